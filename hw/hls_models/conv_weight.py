"""The weight gradient of a convolution as GEMM instructions.

Output channels stream past tiles of the input; the positions are the reduction.
"""

from collections.abc import Iterator

from fpgapipe.hw.hls_models.address import BLOCK, Loop, Odometer, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.conv import Box, ConvSpec, chunks, tiled
from fpgapipe.hw.hls_models.conv_parts import (
    Cut,
    Formats,
    Image,
    Op,
    Taps,
    ceil_div,
    is_packed,
    ordered,
    subs_last,
    sums,
    tail,
    tiles_of,
)
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.slab import Slab, slab_of


def weight_gradient(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    """All instructions of the pass, in order; see `conv_passes.operations`."""
    gradient = Image("dy", conv.oh, conv.ow, conv.cout, formats.y)
    vertical = Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0])
    horizontal = Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1])
    packed = is_packed(conv)
    source = Image("x", conv.h, conv.w, conv.cin, formats.x, packed or core.cols != BLOCK)
    pieces = _reduction_boxes(conv, cut.k)
    for (m0, m1), group in ordered(
        cut.n_outer,
        tiled(conv.cout, BLOCK, ceil_div(cut.m, BLOCK)),
        _column_groups(conv, core, cut),
    ):
        (t0, t1), (u0, u1), (c0, c1) = group
        depth = c1 - c0
        size = conv.kernel[1] * depth if packed else depth
        across = 1 if packed else u1 - u0
        n = ceil_div(size, core.cols) * across * (t1 - t0)
        result, target = _weights_result(conv, core, formats, (m0, m1), group, packed)
        for index, box in enumerate(pieces):
            blocks = ceil_div(box.size, BLOCK)
            a = gradient.slab(box.n, box.y, box.x, (m0, m1))
            a_pattern = OperandPattern(
                base=a.shift,
                outer=Odometer((Loop(n),)),
                tap=Odometer((Loop(ceil_div(m1 - m0, BLOCK), BLOCK * formats.y, u=BLOCK),)),
                pos=Odometer(
                    tuple(
                        Loop(count, pitch)
                        for count, pitch in zip(box.shape[::-1], a.pitches, strict=True)
                    )
                ),
                u_limit=m1 - m0,
                blocks=blocks,
                walks_blocks=True,
                transposed=True,
                emit_last=tail(m1 - m0),
                fp32=formats.y == 4,
                subs=BLOCK // core.rows,
                subs_last=subs_last(box.size, core.rows),
            )
            down = Taps(
                vertical.step, vertical.tap_step, vertical.origin + t0 * vertical.tap_step, t1 - t0
            )
            side = Taps(
                horizontal.step,
                horizontal.tap_step,
                horizontal.origin + u0 * horizontal.tap_step,
                u1 - u0,
            )
            low_y, high_y = vertical.reach(box.y, conv.h)
            low_x, high_x = horizontal.reach(box.x, conv.w)
            b = source.slab(box.n, (low_y, high_y), (low_x, high_x), (c0, c1))
            pixel, row, image = b.pitches
            y = box.y[0] * down.step + down.origin
            x = box.x[0] * side.step + side.origin
            images, rows, columns = box.shape
            taps = [] if packed else [Loop(across, side.tap_step * pixel, u=side.tap_step * depth)]
            b_pattern = OperandPattern(
                base=b.shift + (y - low_y) * row + (x - low_x) * pixel,
                outer=Odometer(
                    (
                        Loop(ceil_div(size, core.cols), core.cols * formats.x, u=core.cols),
                        *taps,
                        Loop(t1 - t0, down.tap_step * row, y=down.tap_step),
                    )
                ),
                tap=Odometer((Loop(ceil_div(core.cols, BLOCK), BLOCK * formats.x, u=BLOCK),)),
                pos=Odometer(
                    (
                        Loop(columns, side.step * pixel, u=side.step * depth),
                        Loop(rows, down.step * row, y=down.step),
                        Loop(images, image),
                    )
                ),
                y=y,
                u=x * depth,
                y_limit=conv.h,
                u_limit=conv.w * depth,
                # Of several words a column of tiles, the results' limit drops what is too much.
                lanes_last=tail(size, core.cols) if core.cols <= BLOCK else BLOCK,
                lanes_by_outer=True,
                blocks=blocks,
                walks_blocks=True,
                transposed=True,
                emit=min(core.cols, BLOCK),
                emit_last=min(core.cols, BLOCK),
                fp32=formats.x == 4,
                subs=BLOCK // core.rows,
                subs_last=subs_last(box.size, core.rows),
            )
            yield Op(
                a, b, result, a_pattern, b_pattern, target,
                m1 - m0, tiles_of(box.size, core.rows), n,
                *sums(index, len(pieces), m1 - m0, n, core),
            )  # fmt: skip


def _column_groups(
    conv: ConvSpec, core: CoreSpec, cut: Cut
) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Pieces of (kernel rows, kernel columns, input channels) with at most `cut.n_tiles` tiles."""
    height, width = conv.kernel
    if is_packed(conv):
        a_row = ceil_div(width * conv.cin, core.cols)
        rows = chunks(height, max(cut.n_tiles // a_row, 1))
        return [(row, (0, width), (0, conv.cin)) for row in rows]
    whole = ceil_div(conv.cin, core.cols)
    if whole * width <= cut.n_tiles:
        rows = chunks(height, cut.n_tiles // (whole * width))
        return [(row, (0, width), (0, conv.cin)) for row in rows]
    slices = tiled(conv.cin, core.cols, cut.n_tiles)
    taps_across = (
        chunks(width, max(cut.n_tiles // whole, 1))
        if len(slices) == 1
        else [(i, i + 1) for i in range(width)]
    )
    # Channels are the outer loop, so that a slice of the input serves all taps while it is there.
    return [
        ((row, row + 1), across, channels)
        for channels in slices
        for row in range(height)
        for across in taps_across
    ]


def _reduction_boxes(conv: ConvSpec, limit: int) -> list[Box]:
    """Cut the positions, batch and image, into pieces of whole blocks of 32.

    A piece ends where both a block of 32 and a row end, or is the last one.
    """
    image = conv.oh * conv.ow
    whole = Box((0, conv.batch), (0, conv.oh), (0, conv.ow))
    if whole.size <= limit:
        return [whole]
    if image <= limit or image % BLOCK:
        # The fewest images that end with a block.
        step = next(i for i in range(1, BLOCK + 1) if i * image % BLOCK == 0)
        each = max(limit // image // step, 1) * step
        starts = range(0, conv.batch, each)
        return [Box((n, min(n + each, conv.batch)), (0, conv.oh), (0, conv.ow)) for n in starts]
    step = next(i for i in range(1, BLOCK + 1) if i * conv.ow % BLOCK == 0)
    each = max(limit // conv.ow // step, 1) * step
    return [
        Box((n, n + 1), (y, min(y + each, conv.oh)), (0, conv.ow))
        for n in range(conv.batch)
        for y in range(0, conv.oh, each)
    ]


def _weights_result(
    conv: ConvSpec,
    core: CoreSpec,
    formats: Formats,
    outputs: tuple[int, int],
    group: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    packed: bool,
) -> tuple[Slab, ResultPattern]:
    """Where a piece of the weights' gradient goes: rows are output channels."""
    (t0, t1), (u0, u1), (c0, c1) = group
    element = formats.dw
    tap = conv.cin * element
    first = ((outputs[0] * conv.kernel[0] + t0) * conv.kernel[1] + u0) * tap + c0 * element
    dims = [
        (u1 - u0, tap),
        (t1 - t0, conv.kernel[1] * tap),
        (outputs[1] - outputs[0], conv.taps * tap),
    ]
    slab = slab_of("dw", first, (c1 - c0) * element, dims, stored=True)
    across, down, channel = slab.pitches
    size = (u1 - u0) * (c1 - c0) if packed else c1 - c0
    taps = [] if packed else [Loop(u1 - u0, across)]
    pattern = ResultPattern(
        base=slab.shift,
        outer=Odometer(
            (
                Loop(ceil_div(size, core.cols), core.cols * element, u=core.cols),
                *taps,
                Loop(t1 - t0, down),
            )
        ),
        pos=Odometer((Loop(outputs[1] - outputs[0], channel),)),
        u_limit=size,
        fp32=element == 4,
    )
    return slab, pattern
