"""The GEMM instructions of a convolution's passes.

Forward and input gradient, which are here, stream positions past tiles of weights; the weight
gradient is in `conv_weight`.
"""

from collections.abc import Iterator
from itertools import product

from fpgapipe.hw.hls_models.address import BLOCK, Loop, Odometer, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.conv import Box, ConvSpec, Pass, boxes, tiled
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
from fpgapipe.hw.hls_models.conv_weight import weight_gradient
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.slab import Slab, slab_of


def operations(
    conv: ConvSpec, which: Pass, core: CoreSpec, cut: Cut, formats: Formats
) -> Iterator[Op]:
    """All instructions of a pass, in order.

    Raises
    ------
    ValueError
        If the cut does not suit the core's accumulators.
    """
    if which == "forward":
        return _forward(conv, core, cut, formats)
    if which == "input":
        return _input_gradient(conv, core, cut, formats)
    return weight_gradient(conv, core, cut, formats)


def _forward(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    vertical = Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0])
    horizontal = Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1])
    packed = is_packed(conv)
    source = Image("x", conv.h, conv.w, conv.cin, formats.x, packed)
    slices = [(0, conv.cin)] if packed else tiled(conv.cin, BLOCK, ceil_div(cut.k, BLOCK))
    columns = tiled(conv.cout, core.cols, cut.n_tiles)
    kernel_row = conv.kernel[1] * conv.cin
    for box, (c0, c1) in ordered(cut.n_outer, boxes(conv.batch, conv.oh, conv.ow, cut.m), columns):
        result, target = _positions_result(
            "y", conv.oh, conv.ow, conv.cout, formats.y, box, (1, 0), (1, 0), (c0, c1), core
        )
        n = ceil_div(c1 - c0, core.cols)
        for index, (s0, s1) in enumerate(slices):
            a, a_pattern, k = _windows(source, vertical, horizontal, box, (s0, s1), core, n, packed)
            row_bytes = conv.cin * formats.w
            b = slab_of(
                "w",
                (c0 * conv.taps * conv.cin + s0) * formats.w,
                (s1 - s0) * formats.w,
                [(conv.taps, row_bytes), (c1 - c0, conv.taps * row_bytes)],
            )
            tap_pitch, column_pitch = b.pitches
            word = BLOCK * formats.w
            size = kernel_row if packed else s1 - s0
            across = [] if packed else [Loop(conv.kernel[1], tap_pitch)]
            b_pattern = OperandPattern(
                base=b.shift,
                outer=Odometer((Loop(n, core.cols * column_pitch, y=core.cols),)),
                tap=Odometer(
                    (
                        Loop(ceil_div(size, BLOCK), word),
                        *across,
                        Loop(conv.kernel[0], conv.kernel[1] * tap_pitch),
                    )
                ),
                pos=Odometer((Loop(core.cols, column_pitch, y=1),)),
                y_limit=c1 - c0,
                lanes_last=tail(size),
                fp32=formats.w == 4,
                subs=BLOCK // core.rows,
                subs_last=subs_last(size, core.rows),
            )
            yield Op(
                a, b, result, a_pattern, b_pattern, target, box.size, k, n,
                *sums(index, len(slices), box.size, n, core),
            )  # fmt: skip


def _input_gradient(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    source = Image("dy", conv.oh, conv.ow, conv.cout, formats.y)
    slices = tiled(conv.cout, BLOCK, ceil_div(cut.k, BLOCK))
    columns = tiled(conv.cin, core.cols, cut.n_tiles)
    phases = product(range(min(conv.stride[0], conv.h)), range(min(conv.stride[1], conv.w)))
    for phase in phases:
        vertical, horizontal = (_phase_taps(conv, axis, phase[axis]) for axis in (0, 1))
        height, width = (
            ceil_div(size - first, stride)
            for size, first, stride in zip((conv.h, conv.w), phase, conv.stride, strict=True)
        )
        for box, (c0, c1) in ordered(cut.n_outer, boxes(conv.batch, height, width, cut.m), columns):
            result, target = _positions_result(
                "dx", conv.h, conv.w, conv.cin, formats.x, box,
                (conv.stride[0], phase[0]), (conv.stride[1], phase[1]), (c0, c1), core,
            )  # fmt: skip
            n = ceil_div(c1 - c0, core.cols)
            for index, (s0, s1) in enumerate(slices):
                a, a_pattern, k = _windows(
                    source, vertical, horizontal, box, (s0, s1), core, n, False
                )
                row_bytes = conv.cin * formats.w
                b = slab_of(
                    "w",
                    (s0 * conv.taps * conv.cin + c0) * formats.w,
                    (c1 - c0) * formats.w,
                    [(conv.taps, row_bytes), (s1 - s0, conv.taps * row_bytes)],
                )
                tap_pitch, row_pitch = b.pitches
                corner = vertical.first * conv.kernel[1] + horizontal.first
                groups = ceil_div(core.cols, BLOCK)
                b_pattern = OperandPattern(
                    base=b.shift + corner * tap_pitch,
                    outer=Odometer((Loop(n, core.cols * formats.w, u=core.cols),)),
                    tap=Odometer(
                        (
                            Loop(ceil_div(s1 - s0, BLOCK), BLOCK * row_pitch, y=BLOCK),
                            Loop(horizontal.count, horizontal.every * tap_pitch),
                            Loop(vertical.count, vertical.every * conv.kernel[1] * tap_pitch),
                        )
                    ),
                    pos=Odometer(
                        (
                            Loop(BLOCK, row_pitch, y=1),
                            Loop(groups, BLOCK * formats.w, u=BLOCK),
                        )
                    ),
                    y_limit=s1 - s0,
                    u_limit=c1 - c0,
                    transposed=True,
                    emit=min(core.cols, BLOCK),
                    emit_last=min(core.cols, BLOCK),
                    fp32=formats.w == 4,
                    subs=BLOCK // core.rows,
                    subs_last=subs_last(s1 - s0, core.rows),
                )
                yield Op(
                    a, b, result, a_pattern, b_pattern, target, box.size, k, n,
                    *sums(index, len(slices), box.size, n, core),
                )  # fmt: skip


def _phase_taps(conv: ConvSpec, axis: int, phase: int) -> Taps:
    """The taps through which positions `phase`, `phase` + stride, ... met the output.

    Position ``i = stride * j + phase`` met output ``o`` at tap ``t`` if
    ``i + pad = stride * o + dilation * t``. No tap gives one that lies outside the image.
    """
    stride, dilation, pad = conv.stride[axis], conv.dilation[axis], conv.pad[axis]
    taps = [t for t in range(conv.kernel[axis]) if (phase + pad - t * dilation) % stride == 0]
    if not taps:
        far = 1 << 14
        return Taps(1, 0, -far, 1)
    every = taps[1] - taps[0] if len(taps) > 1 else 1
    origin = (phase + pad - taps[0] * dilation) // stride
    return Taps(1, -(every * dilation // stride), origin, len(taps), taps[0], every)


def _windows(
    source: Image,
    vertical: Taps,
    horizontal: Taps,
    box: Box,
    channels: tuple[int, int],
    core: CoreSpec,
    n: int,
    packed: bool,
) -> tuple[Slab, OperandPattern, int]:
    """Stream positions of a sliding window: slab, pattern, and tiles that are added up."""
    low_y, high_y = vertical.reach(box.y, source.h)
    low_x, high_x = horizontal.reach(box.x, source.w)
    a = source.slab(box.n, (low_y, high_y), (low_x, high_x), channels)
    pixel, row, image = a.pitches
    depth = channels[1] - channels[0]
    y = box.y[0] * vertical.step + vertical.origin
    x = box.x[0] * horizontal.step + horizontal.origin
    size = horizontal.count * depth if packed else depth
    across = (
        []
        if packed
        else [Loop(horizontal.count, horizontal.tap_step * pixel, u=horizontal.tap_step * depth)]
    )
    down = Loop(vertical.count, vertical.tap_step * row, y=vertical.tap_step)
    images, rows, columns = box.shape
    pattern = OperandPattern(
        base=a.shift + (y - low_y) * row + (x - low_x) * pixel,
        outer=Odometer((Loop(n),)),
        tap=Odometer((Loop(ceil_div(size, BLOCK), BLOCK * source.element, u=BLOCK), *across, down)),
        pos=Odometer(
            (
                Loop(columns, horizontal.step * pixel, u=horizontal.step * depth),
                Loop(rows, vertical.step * row, y=vertical.step),
                Loop(images, image),
            )
        ),
        y=y,
        u=x * depth,
        y_limit=source.h,
        u_limit=source.w * depth,
        lanes_last=tail(size),
        fp32=source.element == 4,
        subs=BLOCK // core.rows,
        subs_last=subs_last(size, core.rows),
    )
    taps = vertical.count * (1 if packed else horizontal.count)
    return a, pattern, taps * tiles_of(size, core.rows)


def _positions_result(
    name: str,
    height: int,
    width: int,
    channels: int,
    element: int,
    box: Box,
    vertical: tuple[int, int],
    horizontal: tuple[int, int],
    columns: tuple[int, int],
    core: CoreSpec,
) -> tuple[Slab, ResultPattern]:
    """Where the results of a box of positions go; each axis is (step, first) of the pixels."""
    y, x = (
        bounds[0] * step + first
        for bounds, (step, first) in ((box.y, vertical), (box.x, horizontal))
    )
    pixel = channels * element
    offset = ((box.n[0] * height + y) * width + x) * pixel + columns[0] * element
    images, rows, across = box.shape
    slab = slab_of(
        name,
        offset,
        (columns[1] - columns[0]) * element,
        [
            (across, horizontal[0] * pixel),
            (rows, vertical[0] * width * pixel),
            (images, height * width * pixel),
        ],
        stored=True,
    )
    counts = (across, rows, images)
    pattern = ResultPattern(
        base=slab.shift,
        outer=Odometer(
            (Loop(ceil_div(columns[1] - columns[0], core.cols), core.cols * element, u=core.cols),)
        ),
        pos=Odometer(
            tuple(Loop(count, pitch) for count, pitch in zip(counts, slab.pitches, strict=True))
        ),
        u_limit=columns[1] - columns[0],
        fp32=element == 4,
    )
    return slab, pattern
