"""Parts that the passes of a convolution share: their tilings, instructions and windows."""

from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, ElementFormat
from fpgapipe.lowering.tiling.tile import Tile, tile_of

MOST_POSITIONS = 1 << 16
"""Largest number of iterations of a loop, and of rows of a transfer."""


@dataclass(frozen=True)
class Formats:
    """Format of each tensor in memory: BF16 or FP32."""

    x: ElementFormat = BF16
    w: ElementFormat = BF16
    y: ElementFormat = BF16
    dw: ElementFormat = FP32


@dataclass(frozen=True)
class Tiling:
    """A tiling: how a pass is divided into instructions.

    Parameters
    ----------
    m : int
        Most vectors that an instruction streams: positions or, for the weight gradient, output
        channels.
    n_tiles : int
        Most columns of array tiles of an instruction.
    k : int
        Most channels of the reduction of an instruction or, for the weight gradient, positions; in
        blocks of 32, at least one.
    n_outer : bool
        Whether the pieces of the columns are the outer loop, so that their tiles stay on chip.
    own_window : bool
        For the weight gradient, whether a tile of the input has only the pixels that the
        instruction's own taps read. Otherwise it has the pixels of all taps, so that the
        instructions of other taps find them on chip.
    """

    m: int
    n_tiles: int
    k: int
    n_outer: bool = False
    own_window: bool = False


@dataclass(frozen=True)
class Op:
    """A GEMM instruction; the bases of its patterns are relative to the slots of the tiles.

    Parameters
    ----------
    a, b : Tile
        Tiles of the streamed and of the stationary operand.
    result : Tile
        Tile of the results, stored after the last instruction that adds to their sums.
    a_pattern, b_pattern : OperandPattern
    result_pattern : ResultPattern
    m, k, n : int
        Numbers of vectors, of array tiles that are added up, and of columns of array tiles.
    first, last : bool
        Whether this is the first, and the last, instruction that adds to its sums.
    acc_step : int
        Accumulators from one column of array tiles to the next.
    """

    a: Tile
    b: Tile
    result: Tile
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
class Taps:
    """An axis of a sliding window: source = position * step + tap * tap_step + origin.

    The taps that take part are `first`, `first` + `every`, ... of the kernel's taps.
    """

    step: int
    tap_step: int
    origin: int
    count: int
    first: int = 0
    every: int = 1

    def reach(self, bounds: tuple[int, int], size: int) -> tuple[int, int]:
        """Range of the source coordinates, clipped to 0..size, that a range of positions reads."""
        last_tap = (self.count - 1) * self.tap_step
        low = bounds[0] * self.step + self.origin + min(0, last_tap)
        high = (bounds[1] - 1) * self.step + self.origin + max(0, last_tap) + 1
        low, high = min(max(low, 0), size), min(max(high, 0), size)
        return low, max(low, high)


@dataclass(frozen=True)
class Image:
    """A tensor of images with the channels last.

    `begins_in_padding` says whether a word may begin in the padding to the left of the first pixel
    that it reads. This happens if a word holds several pixels, or if it extends beyond the channels
    that the array takes from it.
    """

    name: str
    h: int
    w: int
    channels: int
    format: ElementFormat
    begins_in_padding: bool = False

    def tile(
        self, n: tuple[int, int], y: tuple[int, int], x: tuple[int, int], c: tuple[int, int]
    ) -> Tile:
        """Tile of some images, rows, columns and channels; it has no bytes if a range is empty."""
        if y[0] >= y[1] or x[0] >= x[1]:
            return Tile(self.name, 0, 0, (1, 1, 1), (0, 0, 0), (0, 0, 0))
        pixel = self.channels * self.format.element_bytes
        pixels = (n[0] * self.h + y[0]) * self.w + x[0]
        offset = pixels * pixel + c[0] * self.format.element_bytes
        dims = [
            (x[1] - x[0], pixel),
            (y[1] - y[0], self.w * pixel),
            (n[1] - n[0], self.h * self.w * pixel),
        ]
        return tile_of(
            self.name,
            offset,
            (c[1] - c[0]) * self.format.element_bytes,
            dims,
            lead_bytes=self._lead_bytes,
        )

    def run(self, pixels: tuple[int, int], c: tuple[int, int]) -> Tile:
        """Tile of consecutive pixels, numbered through rows and images; no bytes if there are none.

        Raises
        ------
        ValueError
            If there are more pixels than a transfer can have rows.
        """
        first, end = pixels
        if first >= end:
            return Tile(self.name, 0, 0, (1,), (0,), (0,))
        element = self.format.element_bytes
        size, pixel = c[1] - c[0], self.channels * element
        if size < self.channels and end - first > MOST_POSITIONS:
            raise ValueError(
                f"{end - first:,} pixels of {size} of {self.channels} channels must be at most "
                f"{MOST_POSITIONS:,}"
            )
        return tile_of(
            self.name, first * pixel + c[0] * element, size * element,
            [(end - first, pixel)], lead_bytes=self._lead_bytes,
        )  # fmt: skip

    @property
    def _lead_bytes(self) -> int:
        return BLOCK * self.format.element_bytes if self.begins_in_padding else 0


def ceil_div(a: int, b: int) -> int:
    """Return the quotient, rounded up."""
    return -(-a // b)


def tail(size: int, unit: int = BLOCK) -> int:
    """Number of elements in the last of the units that `size` elements take."""
    return size - (ceil_div(size, unit) - 1) * unit


def tiles_of(size: int, rows: int) -> int:
    """Number of array tiles along a reduction of `size` elements in blocks of 32."""
    return (ceil_div(size, BLOCK) - 1) * (BLOCK // rows) + ceil_div(tail(size), rows)


def subs_last(size: int, rows: int) -> int:
    """Number of parts of the last block of `size` elements that the array takes in sequence."""
    return ceil_div(tail(size), rows)
