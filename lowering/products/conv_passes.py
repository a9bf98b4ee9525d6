"""The GEMM instructions of the passes of a convolution.

The forward pass and the input gradient are in this module; they stream positions past array tiles
of the weights. The weight gradient is in `conv_weight`.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv import ConvSpec, Pass, PositionTile, spatial_tiles, tiled
from fpgapipe.lowering.products.conv_parts import (
    Formats,
    Image,
    Op,
    Taps,
    Tiling,
    ceil_div,
    subs_last,
    tail,
    tiles_of,
)
from fpgapipe.lowering.products.conv_product import Product, Range
from fpgapipe.lowering.products.conv_weight import WeightGradient
from fpgapipe.lowering.products.rounding import Rounding
from fpgapipe.lowering.tiling.tile import Tile, tile_of


def operations(
    conv: ConvSpec, which: Pass, core: CoreSpec, tiling: Tiling, formats: Formats
) -> Iterator[Op]:
    """Yield all instructions of a pass, in order.

    Raises
    ------
    ValueError
        If the tiling does not suit the core's accumulators.
    """
    for each in products(conv, which, core, formats, own_window=tiling.own_window):
        yield from each.operations(tiling)


def products(
    conv: ConvSpec, which: Pass, core: CoreSpec, formats: Formats, *, own_window: bool
) -> list[Product[Any, Any]]:
    """The matrix products that a pass consists of, in order; for `own_window` see `Tiling`.

    Raises
    ------
    ValueError
        If the input's pixels are apart and a block has several of them.
    """
    if which in ("forward", "weight") and conv.is_packed and conv.x_channels != conv.cin:
        raise ValueError(
            f"the pixels of a packed convolution's input must be {conv.cin} elements apart in "
            f"the {which} pass, not {conv.x_pitch}; copy them"
        )
    if which == "forward":
        return [_Forward(conv, core, formats)]
    if which == "input":
        phases = product(range(min(conv.stride[0], conv.h)), range(min(conv.stride[1], conv.w)))
        return [_InputGradient(conv, core, formats, phase) for phase in phases]
    if which == "rounding":
        return [Rounding(conv, core, formats)]
    return [WeightGradient(conv, core, formats, own_window=own_window)]


class _Positions(Product[PositionTile, Range]):
    """A pass whose rows are positions, at each of which a window of the `source` is read.

    Attributes
    ----------
    source : Image
        The tensor that is read.
    vertical, horizontal : Taps
        The taps of the window.
    packed : bool
        Whether a block has the channels of several taps.
    """

    source: Image
    vertical: Taps
    horizontal: Taps
    packed: bool

    def vectors(self, row: PositionTile) -> int:
        return row.size

    def array_tiles(self, column: Range) -> int:
        return ceil_div(column[1] - column[0], self.core.cols)

    def depth(self, part: Range) -> int:
        vertical, horizontal = self.vertical.count, self.horizontal.count
        channels = part[1] - part[0]
        if self.packed:
            return vertical * tiles_of(horizontal * channels, self.core.rows)
        return vertical * horizontal * tiles_of(channels, self.core.rows)

    def streamed(self, row: PositionTile, part: Range) -> Tile:
        rows = self.vertical.reach(row.y, self.source.h)
        columns = self.horizontal.reach(row.x, self.source.w)
        return self.source.tile(row.n, rows, columns, part)

    def streamed_pattern(self, row: PositionTile, array_tiles: int, part: Range) -> OperandPattern:
        source, vertical, horizontal = self.source, self.vertical, self.horizontal
        tile = self.streamed(row, part)
        low_y, _ = vertical.reach(row.y, source.h)
        low_x, _ = horizontal.reach(row.x, source.w)
        pixel, line, image = tile.pitches
        depth = part[1] - part[0]
        y = row.y[0] * vertical.step + vertical.origin
        x = row.x[0] * horizontal.step + horizontal.origin
        size = horizontal.count * depth if self.packed else depth
        across = (
            Loop()
            if self.packed
            else Loop(horizontal.count, horizontal.tap_step * pixel, u=horizontal.tap_step * depth)
        )
        down = Loop(vertical.count, vertical.tap_step * line, y=vertical.tap_step)
        images, rows, columns = row.shape
        return OperandPattern(
            base=tile.shift + (y - low_y) * line + (x - low_x) * pixel,
            outer=LoopNest((Loop(array_tiles),)),
            tap=_taps_of_blocks(
                Loop(ceil_div(size, BLOCK), BLOCK * source.format.element_bytes, u=BLOCK),
                across,
                down,
                packed=self.packed,
            ),
            pos=LoopNest(
                (
                    Loop(columns, horizontal.step * pixel, u=horizontal.step * depth),
                    Loop(rows, vertical.step * line, y=vertical.step),
                    Loop(images, image),
                )
            ),
            y=y,
            u=x * depth,
            y_limit=source.h,
            u_limit=source.w * depth,
            lanes_last=tail(size),
            fp32=source.format is FP32,
            subs=BLOCK // self.core.rows,
            subs_last=subs_last(size, self.core.rows),
        )


class _Forward(_Positions):
    """The forward pass: rows are positions of the output, columns are output channels."""

    def __init__(self, conv: ConvSpec, core: CoreSpec, formats: Formats) -> None:
        super().__init__(core, a_fp32=formats.x is FP32, b_fp32=formats.w is FP32)
        self.conv = conv
        self.formats = formats
        self.packed = conv.is_packed
        self.source = Image("x", conv.h, conv.w, conv.x_channels, formats.x, self.packed)
        self.vertical = Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0])
        self.horizontal = Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1])

    def rows(self, tiling: Tiling) -> list[PositionTile]:
        return spatial_tiles(self.conv.batch, self.conv.oh, self.conv.ow, tiling.m)

    def columns(self, tiling: Tiling) -> list[Range]:
        return tiled(self.conv.cout, self.core.cols, tiling.n_tiles)

    def slices(self, tiling: Tiling) -> list[Range]:
        if self.packed:
            return [(0, self.conv.cin)]
        return _slices(self.conv.cin, self.conv.taps, tiling)

    def stationary(self, column: Range, part: Range) -> Tile:
        (c0, c1), (s0, s1) = column, part
        conv, element = self.conv, self.formats.w.element_bytes
        row_bytes = conv.cin * element
        return tile_of(
            "w",
            (c0 * conv.w_channel + s0) * element,
            (s1 - s0) * element,
            [(conv.taps, row_bytes), (c1 - c0, conv.w_channel * element)],
        )

    def result(self, row: PositionTile, column: Range) -> Tile:
        conv = self.conv
        return _result(
            "y", conv.oh, conv.ow, conv.y_channels, self.formats.y, row, (1, 0), (1, 0), column
        )

    def stationary_pattern(self, column: Range, part: Range) -> OperandPattern:
        conv, core, formats = self.conv, self.core, self.formats
        tile = self.stationary(column, part)
        tap_pitch, column_pitch = tile.pitches
        size = conv.depth if self.packed else part[1] - part[0]
        across = Loop() if self.packed else Loop(conv.kernel[1], tap_pitch)
        return OperandPattern(
            base=tile.shift,
            outer=LoopNest(
                (Loop(self.array_tiles(column), core.cols * column_pitch, y=core.cols),)
            ),
            tap=_taps_of_blocks(
                Loop(ceil_div(size, BLOCK), BLOCK * formats.w.element_bytes),
                across,
                Loop(conv.kernel[0], conv.kernel[1] * tap_pitch),
                packed=self.packed,
            ),
            pos=LoopNest((Loop(core.cols, column_pitch, y=1),)),
            y_limit=column[1] - column[0],
            lanes_last=tail(size),
            fp32=formats.w is FP32,
            subs=BLOCK // core.rows,
            subs_last=subs_last(size, core.rows),
        )

    def result_pattern(self, row: PositionTile, column: Range) -> ResultPattern:
        return _positions_result(self.result(row, column), self.formats.y, row, column, self.core)


class _InputGradient(_Positions):
    """Input gradient of every `stride`-th position from `phase` on; columns are input channels."""

    def __init__(
        self, conv: ConvSpec, core: CoreSpec, formats: Formats, phase: tuple[int, int]
    ) -> None:
        super().__init__(
            core, a_fp32=formats.y is FP32, b_fp32=formats.w is FP32, b_transposed=True
        )
        self.conv = conv
        self.formats = formats
        self.phase = phase
        self.packed = False
        self.source = Image("dy", conv.oh, conv.ow, conv.y_channels, formats.y)
        self.vertical, self.horizontal = (_phase_taps(conv, axis, phase[axis]) for axis in (0, 1))
        # Where no tap meets a position, a block of outputs outside the image is enough for zeros.
        meets = all(_taps_that_meet(conv, axis, phase[axis]) for axis in (0, 1))
        self.outputs = conv.cout if meets else min(conv.cout, BLOCK)

    def rows(self, tiling: Tiling) -> list[PositionTile]:
        conv = self.conv
        height, width = (
            ceil_div(size - first, stride)
            for size, first, stride in zip((conv.h, conv.w), self.phase, conv.stride, strict=True)
        )
        return spatial_tiles(conv.batch, height, width, tiling.m)

    def columns(self, tiling: Tiling) -> list[Range]:
        return tiled(self.conv.cin, self.core.cols, tiling.n_tiles)

    def slices(self, tiling: Tiling) -> list[Range]:
        return _slices(self.outputs, self.vertical.count * self.horizontal.count, tiling)

    def stationary(self, column: Range, part: Range) -> Tile:
        (c0, c1), (s0, s1) = column, part
        conv, element = self.conv, self.formats.w.element_bytes
        row_bytes = conv.cin * element
        return tile_of(
            "w",
            (s0 * conv.w_channel + c0) * element,
            (c1 - c0) * element,
            [(conv.taps, row_bytes), (s1 - s0, conv.w_channel * element)],
        )

    def result(self, row: PositionTile, column: Range) -> Tile:
        conv, phase = self.conv, self.phase
        return _result(
            "dx", conv.h, conv.w, conv.x_channels, self.formats.x, row,
            (conv.stride[0], phase[0]), (conv.stride[1], phase[1]), column,
        )  # fmt: skip

    def stationary_pattern(self, column: Range, part: Range) -> OperandPattern:
        conv, core, formats = self.conv, self.core, self.formats
        vertical, horizontal = self.vertical, self.horizontal
        tile = self.stationary(column, part)
        tap_pitch, row_pitch = tile.pitches
        corner = vertical.first * conv.kernel[1] + horizontal.first
        size = part[1] - part[0]
        return OperandPattern(
            base=tile.shift + corner * tap_pitch,
            outer=LoopNest(
                (Loop(self.array_tiles(column), core.cols * formats.w.element_bytes, u=core.cols),)
            ),
            tap=_taps_of_blocks(
                Loop(ceil_div(size, BLOCK), BLOCK * row_pitch, y=BLOCK),
                Loop(horizontal.count, horizontal.every * tap_pitch),
                Loop(vertical.count, vertical.every * conv.kernel[1] * tap_pitch),
                packed=False,
            ),
            pos=LoopNest(
                (
                    Loop(BLOCK, row_pitch, y=1),
                    Loop(ceil_div(core.cols, BLOCK), BLOCK * formats.w.element_bytes, u=BLOCK),
                )
            ),
            y_limit=size,
            u_limit=column[1] - column[0],
            transposed=True,
            emit=min(core.cols, BLOCK),
            emit_last=min(core.cols, BLOCK),
            fp32=formats.w is FP32,
            subs=BLOCK // core.rows,
            subs_last=subs_last(size, core.rows),
        )

    def result_pattern(self, row: PositionTile, column: Range) -> ResultPattern:
        return _positions_result(self.result(row, column), self.formats.x, row, column, self.core)


def _slices(channels: int, taps: int, tiling: Tiling) -> list[Range]:
    """Divide the channels of a reduction into pieces of whole blocks.

    The last block, if it has fewer channels, is a piece of its own where there are several taps, as
    `_taps_of_blocks` asks.
    """
    whole = channels // BLOCK * BLOCK if taps > 1 else channels
    pieces = tiled(whole, BLOCK, ceil_div(tiling.k, BLOCK)) if whole else []
    return pieces if whole == channels else [*pieces, (whole, channels)]


def _taps_of_blocks(block: Loop, across: Loop, down: Loop, *, packed: bool) -> LoopNest:
    """The loops over the reduction of an instruction, in the order in which sums are added up.

    All taps of a block of channels come before the next block, so that it makes no difference to
    the sums how many blocks an instruction has. (A packed reduction is never divided: it has the
    blocks of a kernel row, one row after the other.) What holds for the last block alone, such as
    the number of its lanes, holds for the last iteration of the innermost loop; so that loop is the
    blocks' if there is one block, or one tap, and several taps of several blocks are of whole ones.
    """
    if packed or block.count == 1 or across.count * down.count == 1:
        return LoopNest((block, across, down))
    return LoopNest((across, down, block))


def _taps_that_meet(conv: ConvSpec, axis: int, phase: int) -> list[int]:
    """The taps that connect any of the positions of a phase with the output."""
    first, stride = phase + conv.pad[axis], conv.stride[axis]
    return [t for t in range(conv.kernel[axis]) if (first - t * conv.dilation[axis]) % stride == 0]


def _phase_taps(conv: ConvSpec, axis: int, phase: int) -> Taps:
    """The taps that connect the input positions `phase`, `phase` + stride, ... with the output.

    Input position ``i = stride * j + phase`` contributes to output ``o`` through tap ``t`` if
    ``i + pad = stride * o + dilation * t``. If no tap does, the result is a tap outside the image.
    """
    stride, dilation, pad = conv.stride[axis], conv.dilation[axis], conv.pad[axis]
    taps = _taps_that_meet(conv, axis, phase)
    if not taps:  # no further outside than need be, since a pattern's numbers have few bits
        return Taps(1, 0, -ceil_div((conv.h, conv.w)[axis], stride), 1)
    every = taps[1] - taps[0] if len(taps) > 1 else 1
    origin = (phase + pad - taps[0] * dilation) // stride
    return Taps(1, -(every * dilation // stride), origin, len(taps), taps[0], every)


def _result(
    name: str,
    height: int,
    width: int,
    channels: int,
    element: ElementFormat,
    spatial_tile: PositionTile,
    vertical: tuple[int, int],
    horizontal: tuple[int, int],
    columns: Range,
) -> Tile:
    """Tile of the results of a block of positions; each axis is (step, first) of the pixels."""
    y, x = (
        bounds[0] * step + first
        for bounds, (step, first) in ((spatial_tile.y, vertical), (spatial_tile.x, horizontal))
    )
    pixel = channels * element.element_bytes
    offset = ((spatial_tile.n[0] * height + y) * width + x) * pixel + columns[
        0
    ] * element.element_bytes
    images, rows, across = spatial_tile.shape
    return tile_of(
        name,
        offset,
        (columns[1] - columns[0]) * element.element_bytes,
        [
            (across, horizontal[0] * pixel),
            (rows, vertical[0] * width * pixel),
            (images, height * width * pixel),
        ],
        stored=True,
    )


def _positions_result(
    tile: Tile, element: ElementFormat, spatial_tile: PositionTile, columns: Range, core: CoreSpec
) -> ResultPattern:
    """Pattern that writes the results of a block of positions to the tile of `_result`."""
    images, rows, across = spatial_tile.shape
    size = columns[1] - columns[0]
    return ResultPattern(
        base=tile.shift,
        outer=LoopNest(
            (Loop(ceil_div(size, core.cols), core.cols * element.element_bytes, u=core.cols),)
        ),
        pos=LoopNest(
            tuple(
                Loop(count, pitch)
                for count, pitch in zip((across, rows, images), tile.pitches, strict=True)
            )
        ),
        u_limit=size,
        fp32=element is FP32,
    )
