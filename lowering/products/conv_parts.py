"""What the passes of a convolution share: how they are cut, and what their instructions say."""

from dataclasses import dataclass

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.tiling.tile import Tile, tile_of

MOST_POSITIONS = 1 << 16
"""Most iterations of a loop, and rows of a transfer."""


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
        Most channels of the reduction an instruction has, or positions (weight gradient); in
        blocks of 32, at least one.
    n_outer : bool
        Whether the columns' chunks are the outer loop, so that those tiles stay on chip.
    own_window : bool
        Whether a tile of the input has only what the instruction's own taps meet, rather than what
        all taps do, so that those which follow find it on chip (weight gradient).
    """

    m: int
    n_tiles: int
    k: int
    n_outer: bool = False
    own_window: bool = False


@dataclass(frozen=True)
class Op:
    """A GEMM instruction; bases of patterns are relative to the slots of the tiles.

    Parameters
    ----------
    a, b : Slab
        The streamed and the stationary operand.
    result : Slab
        Of the same sums, stored after the last instruction that adds to them.
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
class Image:
    """A tensor of images, channels last.

    `begins_in_padding`: a word may begin in the padding to the left of the first pixel that it
    reaches, either since it holds several pixels, or since it goes on behind the channels that the
    array takes of it.
    """

    name: str
    h: int
    w: int
    channels: int
    element: int
    begins_in_padding: bool = False

    def tile(
        self, n: tuple[int, int], y: tuple[int, int], x: tuple[int, int], c: tuple[int, int]
    ) -> Tile:
        """A box of it; none of its bytes if a range is empty."""
        if y[0] >= y[1] or x[0] >= x[1]:
            return Tile(self.name, 0, 0, (1, 1, 1), (0, 0, 0), (0, 0, 0))
        pixel = self.channels * self.element
        offset = ((n[0] * self.h + y[0]) * self.w + x[0]) * pixel + c[0] * self.element
        dims = [
            (x[1] - x[0], pixel),
            (y[1] - y[0], self.w * pixel),
            (n[1] - n[0], self.h * self.w * pixel),
        ]
        return tile_of(
            self.name, offset, (c[1] - c[0]) * self.element, dims, lead_bytes=self._lead_bytes
        )

    def run(self, pixels: tuple[int, int], c: tuple[int, int]) -> Tile:
        """Pixels that follow each other, numbered through rows and images; none if there are none.

        Raises
        ------
        ValueError
            If a transfer cannot have so many rows.
        """
        first, end = pixels
        if first >= end:
            return Tile(self.name, 0, 0, (1,), (0,), (0,))
        size, pixel = c[1] - c[0], self.channels * self.element
        if size < self.channels and end - first > MOST_POSITIONS:
            raise ValueError(
                f"{end - first:,} pixels of {size} of {self.channels} channels must be at most "
                f"{MOST_POSITIONS:,}"
            )
        return tile_of(
            self.name, first * pixel + c[0] * self.element, size * self.element,
            [(end - first, pixel)], lead_bytes=self._lead_bytes,
        )  # fmt: skip

    @property
    def _lead_bytes(self) -> int:
        return BLOCK * self.element if self.begins_in_padding else 0


def is_packed(conv: ConvSpec) -> bool:
    """Whether a block holds the channels of several taps: those of a kernel's row lie together."""
    return conv.cin < BLOCK and conv.kernel[1] > 1 and conv.dilation[1] == 1


def ceil_div(a: int, b: int) -> int:
    """Quotient, rounded up."""
    return -(-a // b)


def tail(size: int, unit: int = BLOCK) -> int:
    """Elements of the last of the units that `size` elements take."""
    return size - (ceil_div(size, unit) - 1) * unit


def tiles_of(size: int, rows: int) -> int:
    """Tiles of the array along a reduction of `size` elements in blocks of 32."""
    return (ceil_div(size, BLOCK) - 1) * (BLOCK // rows) + ceil_div(tail(size), rows)


def subs_last(size: int, rows: int) -> int:
    """Parts of the last block of `size` elements that the array takes one after the other."""
    return ceil_div(tail(size), rows)
