"""Weights rounded to MXINT8 in blocks along the output channels, as the input gradient reads them.

A product of the identity with the weights has the values of the quantised weights as results, which
BF16 holds exactly. Quantising them again gives the same integers and the same scales.
"""

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv import ConvSpec, tiled
from fpgapipe.lowering.products.conv_parts import Formats, Tiling, ceil_div
from fpgapipe.lowering.products.conv_product import Product, Range
from fpgapipe.lowering.tiling.tile import Tile, tile_of

Part = tuple[int, Range]
"""A block of 32 output channels, and some of the other elements of these channels."""


class Rounding(Product[Range, Part]):
    """The weights of a linear layer times identities, one for each block of output channels.

    Parameters
    ----------
    conv : ConvSpec
        The linear layer, of 32 vectors; its output channels fill whole blocks.
    core : CoreSpec
    formats : Formats
        Those of an input gradient: of the identity (`y`), the weights, and the result (`x`).
    """

    def __init__(self, conv: ConvSpec, core: CoreSpec, formats: Formats) -> None:
        super().__init__(
            core, a_fp32=formats.y == FP32, b_fp32=formats.w == FP32, b_transposed=True
        )
        if conv.cout % BLOCK or conv.batch != BLOCK:
            raise ValueError(
                f"rounding must be of whole blocks of {BLOCK} output channels, not {conv.cout}"
            )
        self.conv = conv
        self.formats = formats

    def rows(self, tiling: Tiling) -> list[Range]:
        """See `Product`."""
        return [(0, BLOCK)]

    def columns(self, tiling: Tiling) -> list[Part]:
        """See `Product`."""
        parts = tiled(self.conv.cin, self.core.cols, tiling.n_tiles)
        return [(block, part) for block in range(self.conv.cout // BLOCK) for part in parts]

    def slices(self, tiling: Tiling) -> list[Range]:
        """See `Product`."""
        return [(0, BLOCK)]

    def vectors(self, row: Range) -> int:
        """See `Product`."""
        return BLOCK

    def array_tiles(self, column: Part) -> int:
        """See `Product`."""
        return ceil_div(column[1][1] - column[1][0], self.core.cols)

    def depth(self, part: Range) -> int:
        """See `Product`."""
        return BLOCK // self.core.rows

    def streamed(self, row: Range, part: Range) -> Tile:
        """See `Product`."""
        return tile_of("dy", 0, BLOCK * BLOCK * self.formats.y.element_bytes, [])

    def stationary(self, column: Part, part: Range) -> Tile:
        """See `Product`."""
        return self._tile("w", column, self.formats.w.element_bytes, stored=False)

    def result(self, row: Range, column: Part) -> Tile:
        """See `Product`."""
        return self._tile("dx", column, self.formats.x.element_bytes, stored=True)

    def _tile(self, name: str, column: Part, size: int, *, stored: bool) -> Tile:
        block, (first, end) = column
        pitch = self.conv.cin * size
        offset = block * BLOCK * pitch + first * size
        return tile_of(name, offset, (end - first) * size, [(BLOCK, pitch)], stored=stored)

    def streamed_pattern(self, row: Range, array_tiles: int, part: Range) -> OperandPattern:
        """See `Product`."""
        subs = BLOCK // self.core.rows
        return OperandPattern(
            base=0,
            outer=LoopNest((Loop(array_tiles),)),
            pos=LoopNest((Loop(BLOCK, BLOCK * self.formats.y.element_bytes),)),
            fp32=self.formats.y == FP32,
            subs=subs,
            subs_last=subs,
        )

    def stationary_pattern(self, column: Part, part: Range) -> OperandPattern:
        """See `Product`."""
        core, size = self.core, self.formats.w.element_bytes
        tile = self.stationary(column, part)
        subs = BLOCK // core.rows
        return OperandPattern(
            base=tile.shift,
            outer=LoopNest((Loop(self.array_tiles(column), core.cols * size, u=core.cols),)),
            pos=LoopNest(
                (
                    Loop(BLOCK, tile.pitches[0]),
                    Loop(ceil_div(core.cols, BLOCK), BLOCK * size, u=BLOCK),
                )
            ),
            u_limit=column[1][1] - column[1][0],
            transposed=True,
            emit=min(core.cols, BLOCK),
            emit_last=min(core.cols, BLOCK),
            fp32=self.formats.w == FP32,
            subs=subs,
            subs_last=subs,
        )

    def result_pattern(self, row: Range, column: Part) -> ResultPattern:
        """See `Product`."""
        tile = self.result(row, column)
        cols, size = self.core.cols, self.formats.x.element_bytes
        return ResultPattern(
            base=tile.shift,
            outer=LoopNest((Loop(self.array_tiles(column), cols * size, u=cols),)),
            pos=LoopNest((Loop(BLOCK, tile.pitches[0]),)),
            u_limit=column[1][1] - column[1][0],
            fp32=self.formats.x == FP32,
        )
