"""The GEMM instructions of a convolution's passes, and the slabs of tensors that they work on.

Forward and input gradient stream positions past tiles of weights; the weight gradient streams
output channels past tiles of the input, with the positions as its reduction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from fpgapipe.hw.hls_models.address import (
    BLOCK,
    Loop,
    Odometer,
    OperandPattern,
    ResultPattern,
)
from fpgapipe.hw.hls_models.conv import Box, ConvSpec, Pass, boxes, chunks, tiled
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.slab import Slab, slab_of


@dataclass(frozen=True)
class Formats:
    """Bytes of an element in memory: 2 (BF16) or 4 (FP32)."""

    x: int = 2
    w: int = 2
    y: int = 2
    dw: int = 4


@dataclass(frozen=True)
class Cut:
    """How a pass is cut into instructions.

    Parameters
    ----------
    m : int
        Most vectors an instruction streams: positions, or output channels (weight gradient).
    n_tiles : int
        Most columns of tiles an instruction has.
    k : int
        Most channels of the reduction an instruction has, or positions (weight gradient); rounded
        up to what pieces can be made of.
    n_outer : bool
        Whether the columns' chunks are the outer loop, so that those slabs stay on chip.
    """

    m: int
    n_tiles: int
    k: int
    n_outer: bool = False


@dataclass(frozen=True)
class Op:
    """A GEMM instruction; bases of patterns are relative to the slots of the slabs.

    Parameters
    ----------
    a, b : Slab
        The streamed and the stationary operand.
    result : Slab
        Of the same sums, stored after the last instruction that adds to them.
    """

    a: Slab
    b: Slab
    result: Slab
    a_pattern: OperandPattern
    b_pattern: OperandPattern
    result_pattern: ResultPattern
    m: int
    k: int
    n: int
    first: bool
    last: bool
    acc_step: int


@dataclass(frozen=True)
class _Taps:
    """An axis of a sliding window: source = position * step + tap * tap_step + origin.

    The kernel's taps that take part are `first`, `first` + `every`, ...
    """

    step: int
    tap_step: int
    origin: int
    count: int
    first: int = 0
    every: int = 1

    def reach(self, bounds: tuple[int, int], size: int) -> tuple[int, int]:
        """Source coordinates within 0..size that positions from..to need."""
        last_tap = (self.count - 1) * self.tap_step
        low = bounds[0] * self.step + self.origin + min(0, last_tap)
        high = (bounds[1] - 1) * self.step + self.origin + max(0, last_tap) + 1
        low, high = min(max(low, 0), size), min(max(high, 0), size)
        return low, max(low, high)


@dataclass(frozen=True)
class _Image:
    """A tensor of images, channels last.

    `begins_in_padding`: a word may begin in the padding to the left of the first pixel that it
    reaches, either since it holds several pixels, or since it goes on behind the last channel.
    """

    name: str
    h: int
    w: int
    channels: int
    element: int
    begins_in_padding: bool = False

    def slab(
        self, n: tuple[int, int], y: tuple[int, int], x: tuple[int, int], c: tuple[int, int]
    ) -> Slab:
        """A box of it; none of its bytes if a range is empty."""
        if y[0] >= y[1] or x[0] >= x[1]:
            return Slab(self.name, 0, 0, (1, 1, 1), (0, 0, 0), (0, 0, 0))
        pixel = self.channels * self.element
        offset = ((n[0] * self.h + y[0]) * self.w + x[0]) * pixel + c[0] * self.element
        dims = [
            (x[1] - x[0], pixel),
            (y[1] - y[0], self.w * pixel),
            (n[1] - n[0], self.h * self.w * pixel),
        ]
        lead = BLOCK * self.element if self.begins_in_padding else 0
        return slab_of(self.name, offset, (c[1] - c[0]) * self.element, dims, lead_bytes=lead)


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
    return _weight_gradient(conv, core, cut, formats)


def is_packed(conv: ConvSpec) -> bool:
    """Whether a block holds the channels of several taps: those of a kernel's row lie together."""
    return conv.cin < BLOCK and conv.kernel[1] > 1 and conv.dilation[1] == 1


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _tail(size: int, unit: int = BLOCK) -> int:
    """Elements of the last of the units that `size` elements take."""
    return size - (_ceil(size, unit) - 1) * unit


def _tiles_of(size: int, rows: int) -> int:
    """Tiles of the array along a reduction of `size` elements in blocks of 32."""
    return (_ceil(size, BLOCK) - 1) * (BLOCK // rows) + _ceil(_tail(size), rows)


def _ordered(outer_n: bool, m: Sequence, n: Sequence) -> Iterator[tuple]:  # type: ignore[type-arg]
    if outer_n:
        yield from ((i, j) for j in n for i in m)
    else:
        yield from ((i, j) for i in m for j in n)


def _forward(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    vertical = _Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0])
    horizontal = _Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1])
    packed = is_packed(conv)
    source = _Image("x", conv.h, conv.w, conv.cin, formats.x, packed)
    slices = [(0, conv.cin)] if packed else tiled(conv.cin, BLOCK, cut.k // BLOCK)
    columns = tiled(conv.cout, core.cols, cut.n_tiles)
    kernel_row = conv.kernel[1] * conv.cin
    for box, (c0, c1) in _ordered(cut.n_outer, boxes(conv.batch, conv.oh, conv.ow, cut.m), columns):
        result, target = _positions_result(
            "y", conv.oh, conv.ow, conv.cout, formats.y, box, (1, 0), (1, 0), (c0, c1), core
        )
        n = _ceil(c1 - c0, core.cols)
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
                        Loop(_ceil(size, BLOCK), word),
                        *across,
                        Loop(conv.kernel[0], conv.kernel[1] * tap_pitch),
                    )
                ),
                pos=Odometer((Loop(core.cols, column_pitch, y=1),)),
                y_limit=c1 - c0,
                lanes_last=_tail(size),
                fp32=formats.w == 4,
                **_parts(size, core.rows),
            )
            yield Op(
                a, b, result, a_pattern, b_pattern, target, box.size, k, n,
                *_sums(index, len(slices), box.size, n, core),
            )  # fmt: skip


def _input_gradient(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    source = _Image("dy", conv.oh, conv.ow, conv.cout, formats.y)
    slices = tiled(conv.cout, BLOCK, cut.k // BLOCK)
    columns = tiled(conv.cin, core.cols, cut.n_tiles)
    phases = product(range(min(conv.stride[0], conv.h)), range(min(conv.stride[1], conv.w)))
    for phase in phases:
        vertical, horizontal = (_phase_taps(conv, axis, phase[axis]) for axis in (0, 1))
        height, width = (
            _ceil(size - first, stride)
            for size, first, stride in zip((conv.h, conv.w), phase, conv.stride, strict=True)
        )
        for box, (c0, c1) in _ordered(
            cut.n_outer, boxes(conv.batch, height, width, cut.m), columns
        ):
            result, target = _positions_result(
                "dx", conv.h, conv.w, conv.cin, formats.x, box,
                (conv.stride[0], phase[0]), (conv.stride[1], phase[1]), (c0, c1), core,
            )  # fmt: skip
            n = _ceil(c1 - c0, core.cols)
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
                groups = _ceil(core.cols, BLOCK)
                b_pattern = OperandPattern(
                    base=b.shift + corner * tap_pitch,
                    outer=Odometer((Loop(n, core.cols * formats.w, u=core.cols),)),
                    tap=Odometer(
                        (
                            Loop(_ceil(s1 - s0, BLOCK), BLOCK * row_pitch, y=BLOCK),
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
                    **_parts(s1 - s0, core.rows),
                )
                yield Op(
                    a, b, result, a_pattern, b_pattern, target, box.size, k, n,
                    *_sums(index, len(slices), box.size, n, core),
                )  # fmt: skip


def _phase_taps(conv: ConvSpec, axis: int, phase: int) -> _Taps:
    """The taps through which positions `phase`, `phase` + stride, ... met the output.

    Position ``i = stride * j + phase`` met output ``o`` at tap ``t`` if
    ``i + pad = stride * o + dilation * t``. No tap gives one that lies outside the image.
    """
    stride, dilation, pad = conv.stride[axis], conv.dilation[axis], conv.pad[axis]
    taps = [t for t in range(conv.kernel[axis]) if (phase + pad - t * dilation) % stride == 0]
    if not taps:
        far = 1 << 14
        return _Taps(1, 0, -far, 1)
    every = taps[1] - taps[0] if len(taps) > 1 else 1
    origin = (phase + pad - taps[0] * dilation) // stride
    return _Taps(1, -(every * dilation // stride), origin, len(taps), taps[0], every)


def _windows(
    source: _Image,
    vertical: _Taps,
    horizontal: _Taps,
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
        tap=Odometer((Loop(_ceil(size, BLOCK), BLOCK * source.element, u=BLOCK), *across, down)),
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
        lanes_last=_tail(size),
        fp32=source.element == 4,
        **_parts(size, core.rows),
    )
    taps = vertical.count * (1 if packed else horizontal.count)
    return a, pattern, taps * _tiles_of(size, core.rows)


def _parts(size: int, rows: int) -> dict[str, int]:
    """Parts of a block, and of the last block, that the array takes one after the other."""
    return {"subs": BLOCK // rows, "subs_last": _ceil(_tail(size), rows)}


def _sums(index: int, number: int, m: int, n: int, core: CoreSpec) -> tuple[bool, bool, int]:
    """First, last, and distance of the accumulators of a column of tiles from those of the next."""
    if m * (n if number > 1 else 1) > core.acc_depth:
        raise ValueError(
            f"{m} vectors by {n if number > 1 else 1} columns of tiles must fit "
            f"{core.acc_depth} accumulators"
        )
    return index == 0, index == number - 1, m if number > 1 else 0


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
            (Loop(_ceil(columns[1] - columns[0], core.cols), core.cols * element, u=core.cols),)
        ),
        pos=Odometer(
            tuple(Loop(count, pitch) for count, pitch in zip(counts, slab.pitches, strict=True))
        ),
        u_limit=columns[1] - columns[0],
        fp32=element == 4,
    )
    return slab, pattern


def _weight_gradient(conv: ConvSpec, core: CoreSpec, cut: Cut, formats: Formats) -> Iterator[Op]:
    gradient = _Image("dy", conv.oh, conv.ow, conv.cout, formats.y)
    vertical = _Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0])
    horizontal = _Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1])
    packed = is_packed(conv)
    source = _Image("x", conv.h, conv.w, conv.cin, formats.x, packed or core.cols > BLOCK)
    pieces = _reduction_boxes(conv, cut.k)
    for (m0, m1), group in _ordered(
        cut.n_outer, tiled(conv.cout, BLOCK, cut.m // BLOCK), _column_groups(conv, core, cut)
    ):
        (t0, t1), (u0, u1), (c0, c1) = group
        depth = c1 - c0
        size = conv.kernel[1] * depth if packed else depth
        across = 1 if packed else u1 - u0
        n = _ceil(size, core.cols) * across * (t1 - t0)
        result, target = _weights_result(conv, core, formats, (m0, m1), group, packed)
        for index, box in enumerate(pieces):
            blocks = _ceil(box.size, BLOCK)
            parts = _parts(box.size, core.rows)
            a = gradient.slab(box.n, box.y, box.x, (m0, m1))
            a_pattern = OperandPattern(
                base=a.shift,
                outer=Odometer((Loop(n),)),
                tap=Odometer((Loop(_ceil(m1 - m0, BLOCK), BLOCK * formats.y, u=BLOCK),)),
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
                emit_last=_tail(m1 - m0),
                fp32=formats.y == 4,
                **parts,
            )
            down = _Taps(
                vertical.step, vertical.tap_step, vertical.origin + t0 * vertical.tap_step, t1 - t0
            )
            side = _Taps(
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
                        Loop(_ceil(size, core.cols), core.cols * formats.x, u=core.cols),
                        *taps,
                        Loop(t1 - t0, down.tap_step * row, y=down.tap_step),
                    )
                ),
                tap=Odometer((Loop(_ceil(core.cols, BLOCK), BLOCK * formats.x, u=BLOCK),)),
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
                lanes_last=_tail(size, core.cols) if core.cols <= BLOCK else BLOCK,
                lanes_by_outer=True,
                blocks=blocks,
                walks_blocks=True,
                transposed=True,
                emit=min(core.cols, BLOCK),
                emit_last=min(core.cols, BLOCK),
                fp32=formats.x == 4,
                **parts,
            )
            yield Op(
                a, b, result, a_pattern, b_pattern, target,
                m1 - m0, _tiles_of(box.size, core.rows), n,
                *_sums(index, len(pieces), m1 - m0, n, core),
            )  # fmt: skip


def _column_groups(
    conv: ConvSpec, core: CoreSpec, cut: Cut
) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Pieces of (kernel rows, kernel columns, input channels) with at most `cut.n_tiles` tiles."""
    height, width = conv.kernel
    if is_packed(conv):
        a_row = _ceil(width * conv.cin, core.cols)
        rows = chunks(height, max(cut.n_tiles // a_row, 1))
        return [(row, (0, width), (0, conv.cin)) for row in rows]
    whole = _ceil(conv.cin, core.cols)
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
                Loop(_ceil(size, core.cols), core.cols * element, u=core.cols),
                *taps,
                Loop(t1 - t0, down),
            )
        ),
        pos=Odometer((Loop(outputs[1] - outputs[0], channel),)),
        u_limit=size,
        fp32=element == 4,
    )
    return slab, pattern
