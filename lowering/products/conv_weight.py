"""The weight gradient of a convolution as GEMM instructions.

Output channels are streamed past array tiles of the input; the positions are the reduction.
"""

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv import ConvSpec, PositionTile, chunks, tiled
from fpgapipe.lowering.products.conv_parts import (
    MOST_POSITIONS,
    Formats,
    Image,
    Taps,
    Tiling,
    ceil_div,
    tail,
)
from fpgapipe.lowering.products.conv_product import Product, Range
from fpgapipe.lowering.tiling.tile import Tile, tile_of

Group = tuple[Range, Range, Range]
"""Kernel rows, kernel columns and input channels, which are columns of the product."""


class WeightGradient(Product[Range, Group]):
    """The weight gradient as one matrix product; see `conv_passes.products`."""

    def __init__(
        self, conv: ConvSpec, core: CoreSpec, formats: Formats, *, own_window: bool
    ) -> None:
        super().__init__(
            core,
            a_fp32=formats.y is FP32,
            b_fp32=formats.x is FP32,
            a_transposed=True,
            b_transposed=True,
        )
        self.conv = conv
        self.formats = formats
        self.own_window = own_window
        self.packed = conv.is_packed
        self.gradient = Image("dy", conv.oh, conv.ow, conv.y_channels, formats.y)
        begins = self.packed or core.cols != BLOCK
        self.source = Image("x", conv.h, conv.w, conv.x_channels, formats.x, begins)
        self.taps = (
            Taps(conv.stride[0], conv.dilation[0], -conv.pad[0], conv.kernel[0]),
            Taps(conv.stride[1], conv.dilation[1], -conv.pad[1], conv.kernel[1]),
        )

    def rows(self, tiling: Tiling) -> list[Range]:
        """See `Product`."""
        return tiled(self.conv.cout, BLOCK, ceil_div(tiling.m, BLOCK))

    def columns(self, tiling: Tiling) -> list[Group]:
        """See `Product`."""
        return _column_groups(self.conv, self.core, tiling)

    def slices(self, tiling: Tiling) -> list[Range]:
        """See `Product`."""
        size = self.conv.segment_positions
        if self.conv.segments > 1:
            return [(first * size, end * size) for first, end in self._segments(tiling.k // size)]
        return _reduction_pieces(self.conv, tiling.k)

    def _segments(self, limit: int) -> list[Range]:
        """Divide the segments into pieces of at most `limit`, or of one."""
        return chunks(self.conv.segments, max(limit, 1))

    def vectors(self, row: Range) -> int:
        """See `Product`."""
        return row[1] - row[0]

    def array_tiles(self, column: Group) -> int:
        """See `Product`."""
        (t0, t1), (u0, u1), (c0, c1) = column
        size = self.conv.depth if self.packed else c1 - c0
        return ceil_div(size, self.core.cols) * (1 if self.packed else u1 - u0) * (t1 - t0)

    def depth(self, part: Range) -> int:
        """See `Product`."""
        blocks = self._blocks(part)
        return blocks.tiles(self.core.rows)

    def _blocks(self, part: Range) -> "_Blocks":
        """The blocks of the reduction in a piece of it."""
        size = part[1] - part[0]
        if self.conv.segments == 1:
            return _Blocks(ceil_div(size, BLOCK), BLOCK, tail(size))
        own = self.conv.segment_positions
        return _Blocks(size // own, own, own)

    def streamed(self, row: Range, part: Range) -> Tile:
        """See `Product`."""
        return self.gradient.run(part, row)

    def stationary(self, column: Group, part: Range) -> Tile:
        """See `Product`."""
        return self._window(column, part)[0]

    def _window(self, column: Group, part: Range) -> tuple[Tile, "_Window"]:
        window = self._taps_of(column)
        loaded = window if self.own_window else self.taps
        return _window(self.conv, self.source, part, window, loaded, column[2])

    def _taps_of(self, column: Group) -> tuple[Taps, Taps]:
        return _some(self.taps[0], *column[0]), _some(self.taps[1], *column[1])

    def result(self, row: Range, column: Group) -> Tile:
        """See `Product`."""
        (t0, t1), (u0, u1), (c0, c1) = column
        conv, element = self.conv, self.formats.dw.element_bytes
        tap = conv.cin * element
        first = row[0] * conv.w_channel * element
        first += (t0 * conv.kernel[1] + u0) * tap + c0 * element
        dims = [
            (u1 - u0, tap),
            (t1 - t0, conv.kernel[1] * tap),
            (row[1] - row[0], conv.w_channel * element),
        ]
        return tile_of("dw", first, (c1 - c0) * element, dims, stored=True)

    def streamed_pattern(self, row: Range, array_tiles: int, part: Range) -> OperandPattern:
        """See `Product`."""
        formats = self.formats
        depth, blocks = row[1] - row[0], self._blocks(part)
        tile = self.streamed(row, part)
        pixel = tile.pitches[0]
        pos = LoopNest((Loop(part[1] - part[0], pixel),))
        return OperandPattern(
            base=tile.shift,
            outer=LoopNest((Loop(array_tiles),)),
            tap=LoopNest((Loop(ceil_div(depth, BLOCK), BLOCK * formats.y.element_bytes, u=BLOCK),)),
            pos=pos if self.conv.segments == 1 else blocks.nest(pixel),
            y_limit=1 if self.conv.segments == 1 else blocks.size,
            u_limit=depth,
            blocks=blocks.number,
            walks_blocks=True,
            transposed=True,
            emit_last=tail(depth),
            fp32=formats.y is FP32,
            subs=ceil_div(blocks.size, self.core.rows),
            subs_last=ceil_div(blocks.last, self.core.rows),
        )

    def stationary_pattern(self, column: Group, part: Range) -> OperandPattern:
        """See `Product`."""
        (t0, t1), (u0, u1), channels = column
        conv, core, formats = self.conv, self.core, self.formats
        depth, blocks = channels[1] - channels[0], self._blocks(part)
        size = conv.kernel[1] * depth if self.packed else depth
        down, side = self._taps_of(column)
        _, place = self._window(column, part)
        across = Loop(u1 - u0, side.tap_step * place.pixel, u=side.tap_step * depth)
        return OperandPattern(
            base=place.base,
            outer=LoopNest(
                (
                    Loop(
                        ceil_div(size, core.cols), core.cols * formats.x.element_bytes, u=core.cols
                    ),
                    *(() if self.packed else (across,)),
                    Loop(t1 - t0, down.tap_step * place.row, y=down.tap_step),
                )
            ),
            tap=LoopNest(
                (Loop(ceil_div(core.cols, BLOCK), BLOCK * formats.x.element_bytes, u=BLOCK),)
            ),
            **self._positions(place, depth, blocks),
            # If a column of array tiles takes several words, the limit of the results drops the
            # excess.
            lanes_last=tail(size, core.cols) if core.cols <= BLOCK else BLOCK,
            lanes_by_outer=True,
            blocks=blocks.number,
            walks_blocks=True,
            transposed=True,
            emit=min(core.cols, BLOCK),
            emit_last=min(core.cols, BLOCK),
            fp32=formats.x is FP32,
            subs=ceil_div(blocks.size, core.rows),
            subs_last=ceil_div(blocks.last, core.rows),
        )

    def _positions(self, place: "_Window", depth: int, blocks: "_Blocks") -> dict[str, Any]:
        """Arguments of the input's pattern that say which positions a block has."""
        if self.conv.segments > 1:
            return {
                "pos": blocks.nest(place.pixel),
                "y_limit": blocks.size,
                "u_limit": depth,
            }
        return {
            "pos": place.pos,
            "pos_start": place.start,
            "y": place.y,
            "u": place.x * depth,
            "y_limit": self.conv.h,
            "u_limit": self.conv.w * depth,
        }

    def result_pattern(self, row: Range, column: Group) -> ResultPattern:
        """See `Product`."""
        (t0, t1), (u0, u1), (c0, c1) = column
        core, element = self.core, self.formats.dw
        tile = self.result(row, column)
        across, down, channel = tile.pitches
        size = (u1 - u0) * (c1 - c0) if self.packed else c1 - c0
        taps = [] if self.packed else [Loop(u1 - u0, across)]
        return ResultPattern(
            base=tile.shift,
            outer=LoopNest(
                (
                    Loop(ceil_div(size, core.cols), core.cols * element.element_bytes, u=core.cols),
                    *taps,
                    Loop(t1 - t0, down),
                )
            ),
            pos=LoopNest((Loop(row[1] - row[0], channel),)),
            u_limit=size,
            fp32=element is FP32,
        )


@dataclass(frozen=True)
class _Blocks:
    """Blocks of a reduction over positions.

    Attributes
    ----------
    number : int
    size, last : int
        Positions in each block but the last, and in the last one; at most 32.
    """

    number: int
    size: int
    last: int

    def tiles(self, rows: int) -> int:
        """Number of array tiles of an array with so many rows."""
        return (self.number - 1) * ceil_div(self.size, rows) + ceil_div(self.last, rows)

    def nest(self, pixel: int) -> LoopNest:
        """Loops over 32 places in each block; those with `y` from `size` on have no position."""
        return LoopNest((Loop(BLOCK, pixel, y=1), Loop(self.number, self.size * pixel)))


def _some(axis: Taps, first: int, end: int) -> Taps:
    """Restrict an axis to some of its taps."""
    return replace(axis, origin=axis.origin + first * axis.tap_step, count=end - first)


@dataclass(frozen=True)
class _Window:
    """Location, in a tile of the input, of the pixels that the first tap reads for a piece.

    Attributes
    ----------
    base : int
        Byte of the first position's pixel, from the beginning of the slot.
    y, x : int
        Row and column of this pixel.
    pixel, row : int
        Bytes from one pixel to the next, and from one row to the next.
    pos : LoopNest
        Loop nest over the positions.
    start : (int, int)
        First counters of the loop nest, as in `OperandPattern`.
    """

    base: int
    y: int
    x: int
    pixel: int
    row: int
    pos: LoopNest
    start: tuple[int, int] = (0, 0)


def _window(
    conv: ConvSpec,
    source: Image,
    piece: Range,
    window: tuple[Taps, Taps],
    loaded: tuple[Taps, Taps],
    channels: Range,
) -> tuple[Tile, _Window]:
    """Tile of the input that some positions read with all the taps `loaded`, and their window."""
    down, side = window
    depth = channels[1] - channels[0]
    first, last = _position(conv, piece[0]), _position(conv, piece[1] - 1)
    y = first[1] * down.step + down.origin
    x = first[2] * side.step + side.origin
    spatial_tile = _spatial_tile(conv, piece)
    if spatial_tile:
        low_y, high_y = loaded[0].reach(spatial_tile.y, conv.h)
        low_x, high_x = loaded[1].reach(spatial_tile.x, conv.w)
        tile = source.tile(spatial_tile.n, (low_y, high_y), (low_x, high_x), channels)
        pixel, row, image = tile.pitches
        ahead = (y - low_y) * row + (x - low_x) * pixel
        images, rows, columns = spatial_tile.shape
        start = (0, 0)
    else:
        # The tile is a run of consecutive pixels, across rows and images: from the first pixel that
        # the first position reads to the last pixel that the last position reads.
        low = _pixel(conv, first, loaded, 0)
        tile = source.run((low, _pixel(conv, last, loaded, 1)), channels)
        pixel = tile.pitches[0]
        row, image = conv.w * pixel, conv.h * conv.w * pixel
        ahead = ((first[0] * conv.h + y) * conv.w + x - low) * pixel
        images, columns = last[0] - first[0] + 1, conv.ow
        rows = conv.oh if images > 1 else last[1] - first[1] + 1
        start = (first[2], first[1] if images > 1 else 0)
    pos = LoopNest(
        (
            Loop(columns, side.step * pixel, u=side.step * depth),
            Loop(rows, down.step * row, y=down.step),
            Loop(images, image),
        )
    )
    return tile, _Window(tile.shift + ahead, y, x, pixel, row, pos, start)


def _position(conv: ConvSpec, number: int) -> tuple[int, int, int]:
    """Image, row and column of a position."""
    rest, column = divmod(number, conv.ow)
    return *divmod(rest, conv.oh), column


def _pixel(
    conv: ConvSpec, position: tuple[int, int, int], loaded: tuple[Taps, Taps], end: int
) -> int:
    """Number of the first input pixel that a position reads or, with `end` 1, one after the last.

    If the position reads no pixel, the result still bounds the pixels that later positions (with
    `end` 1, earlier positions) read.
    """
    y, x = (
        at * axis.step + axis.origin + end * (axis.count - 1) * axis.tap_step
        for at, axis in zip(position[1:], loaded, strict=True)
    )
    if y < 0:
        y, x = 0, 0
    elif y >= conv.h:
        y, x = conv.h, 0
    else:
        x = min(max(x + end, 0), conv.w)
    return (position[0] * conv.h + y) * conv.w + x


def _column_groups(conv: ConvSpec, core: CoreSpec, tiling: Tiling) -> list[Group]:
    """Group kernel rows, kernel columns and input channels into at most `tiling.n_tiles` tiles."""
    height, width = conv.kernel
    if conv.is_packed:
        a_row = ceil_div(conv.depth, core.cols)
        rows = chunks(height, max(tiling.n_tiles // a_row, 1))
        return [(row, (0, width), (0, conv.cin)) for row in rows]
    whole = ceil_div(conv.cin, core.cols)
    if whole * width <= tiling.n_tiles:
        rows = chunks(height, tiling.n_tiles // (whole * width))
        return [(row, (0, width), (0, conv.cin)) for row in rows]
    slices = tiled(conv.cin, core.cols, tiling.n_tiles)
    taps_across = (
        chunks(width, max(tiling.n_tiles // whole, 1))
        if len(slices) == 1
        else [(i, i + 1) for i in range(width)]
    )
    # Channels are the outer loop, so that all taps use a slice of the input while it is on chip.
    return [
        ((row, row + 1), across, channels)
        for channels in slices
        for row in range(height)
        for across in taps_across
    ]


def _reduction_pieces(conv: ConvSpec, limit: int) -> list[Range]:
    """Divide the positions of all images into pieces of whole blocks of 32, each (first, end).

    Pieces end at the end of an image or of a row if the limit allows that. The input that the last
    row of a piece reads then need not be loaded for the next piece as well.
    """
    image, total = conv.oh * conv.ow, conv.batch * conv.oh * conv.ow
    limit = min(limit, MOST_POSITIONS)
    if total <= limit:
        return [(0, total)]
    of_images, of_rows = lcm(image, BLOCK), lcm(conv.ow, BLOCK)
    if of_images <= limit:
        span, each = total, limit // of_images * of_images
    elif of_rows <= limit:
        span, each = total if image % BLOCK else image, limit // of_rows * of_rows
    else:
        return tiled(total, BLOCK, limit // BLOCK)
    return [
        (first + part, first + min(part + each, span))
        for first in range(0, total, span)
        for part in range(0, span, each)
    ]


def _spatial_tile(conv: ConvSpec, piece: Range) -> PositionTile | None:
    """A piece as whole images, whole rows of an image, or part of a row; None if it is not."""
    (n0, y0, x0), (n1, y1, x1) = _position(conv, piece[0]), _position(conv, piece[1] - 1)
    whole_rows = x0 == 0 and x1 == conv.ow - 1
    if whole_rows and y0 == 0 and y1 == conv.oh - 1:
        return PositionTile((n0, n1 + 1), (0, conv.oh), (0, conv.ow))
    if n0 == n1 and (whole_rows or y0 == y1):
        return PositionTile((n0, n1 + 1), (y0, y1 + 1), (x0, x1 + 1))
    return None
