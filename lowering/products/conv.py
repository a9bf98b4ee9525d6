"""The three passes of a convolution as tiled matrix products on the core.

Tensors are stored with the channels last: x (batch, h, w, cin), weights (cout, kh, kw, cin), y
(batch, oh, ow, cout), and gradients like the tensors that they belong to. A linear layer is a 1 x 1
convolution on images of one pixel. docs/core.md shows the loops.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK

Pass = Literal["forward", "input", "weight", "rounding"]
"""Passes, and the rounding of weights for the input gradient (`lowering.products.rounding`)."""

PASSES: tuple[Pass, ...] = ("forward", "input", "weight")


@dataclass(frozen=True)
class ConvSpec:
    """A two-dimensional convolution.

    Parameters
    ----------
    cin, cout : int
        Number of input channels and of output channels.
    kernel, stride, dilation : (int, int)
        Vertical and horizontal values.
    pad : (int, int, int, int)
        Padding at the top, left, bottom and right.
    h, w, batch : int
        Rows, columns and number of the input images.
    segments : int
        Number of equal parts of the batch that share no block in the weight gradient, whose sums
        are then added up one part after the other. More than one are possible for kernels of one
        tap without stride and padding, if the positions of a part fit in a block.
    x_pitch, w_pitch, y_pitch : int, optional
        Elements from one pixel of x, output channel of w, or pixel of y in memory to the next, if
        these are parts of larger tensors; the same for gradients. Output channels of w can be apart
        if the kernel has one tap.

    Raises
    ------
    ValueError
        If a number is out of range, or the result has no pixel.
    """

    cin: int
    cout: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    h: int = 1
    w: int = 1
    batch: int = 1
    dilation: tuple[int, int] = (1, 1)
    segments: int = 1
    x_pitch: int | None = None
    w_pitch: int | None = None
    y_pitch: int | None = None

    def __post_init__(self) -> None:
        for name in ("cin", "cout", "h", "w", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"conv {name} must be at least 1, not {getattr(self, name)}")
        for name in ("kernel", "stride", "dilation"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"conv {name} must be at least 1, not {getattr(self, name)}")
        least = {"x_pitch": self.cin, "w_pitch": self.taps * self.cin, "y_pitch": self.cout}
        for name, size in least.items():
            pitch = getattr(self, name)
            if pitch is not None and pitch < size:
                raise ValueError(f"conv {name} must be at least {size}, not {pitch}")
        if self.taps > 1 and self.w_pitch not in (None, self.taps * self.cin):
            raise ValueError(f"conv w_pitch must be of a kernel of one tap, not {self.taps}")
        if min(self.pad) < 0:
            raise ValueError(f"conv pad must be at least 0, not {self.pad}")
        if self.segments > 1 and not self._has_segments:
            raise ValueError(
                f"conv of {self.segments} segments must have one tap, no stride and padding, and "
                f"at most {MX_BLOCK} positions in each, not be {self}"
            )
        if self.oh < 1 or self.ow < 1:
            raise ValueError(
                f"conv kernel {self.kernel} must fit the padded image of "
                f"{self.h + self.pad[0] + self.pad[2]} x {self.w + self.pad[1] + self.pad[3]}"
            )

    @classmethod
    def linear(cls, m: int, n: int, k: int) -> "ConvSpec":
        """A linear layer for `m` vectors, with `k` input features and `n` output features."""
        return cls(cin=k, cout=n, batch=m)

    @property
    def x_channels(self) -> int:
        """Elements from one pixel of x to the next."""
        return self.x_pitch or self.cin

    @property
    def w_channel(self) -> int:
        """Elements from one output channel of w to the next."""
        return self.w_pitch or self.taps * self.cin

    @property
    def y_channels(self) -> int:
        """Elements from one pixel of y to the next."""
        return self.y_pitch or self.cout

    @property
    def _has_segments(self) -> bool:
        """Whether the batch can have its segments."""
        plain = self.kernel == self.stride == (1, 1) and self.pad == (0, 0, 0, 0)
        whole = self.batch % self.segments == 0
        return plain and whole and self.segment_positions <= MX_BLOCK

    @property
    def segment_positions(self) -> int:
        """Number of positions of a segment, for kernels of one tap without stride and padding."""
        return self.batch // self.segments * self.h * self.w

    def _out(self, axis: int) -> int:
        size = (self.h, self.w)[axis] + self.pad[axis] + self.pad[axis + 2]
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return (size - reach) // self.stride[axis] + 1

    @property
    def oh(self) -> int:
        """Rows of the output."""
        return self._out(0)

    @property
    def ow(self) -> int:
        """Columns of the output."""
        return self._out(1)

    @property
    def taps(self) -> int:
        """Number of positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_packed(self) -> bool:
        """Whether a block of the input has the channels of several taps of a kernel row.

        A word that is read then extends over several pixels, so they must follow one another in
        memory: x has no pitch, and a group of channels is copied. What is rounded together depends
        on the layer alone, not on the place of its images in memory.
        """
        return self.cin < MX_BLOCK and self.kernel[1] > 1 and self.dilation[1] == 1

    @property
    def depth(self) -> int:
        """Elements of the forward pass's reduction after which blocks of 32 begin anew."""
        return self.kernel[1] * self.cin if self.is_packed else self.cin

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations of each pass, including those with padding."""
        return self.batch * self.oh * self.ow * self.taps * self.cin * self.cout


@dataclass(frozen=True)
class PositionTile:
    """A block of images, rows and columns, each given as the first and one after the last."""

    n: tuple[int, int]
    y: tuple[int, int]
    x: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of images, rows and columns."""
        return self.n[1] - self.n[0], self.y[1] - self.y[0], self.x[1] - self.x[0]

    @property
    def size(self) -> int:
        """Number of positions."""
        n, y, x = self.shape
        return n * y * x


def chunks(total: int, limit: int) -> list[tuple[int, int]]:
    """Divide `total` into the fewest, nearly equal pieces of at most `limit`."""
    number = -(-total // limit)
    bounds = [total * i // number for i in range(number + 1)]
    return list(pairwise(bounds))


def spatial_tiles(batch: int, height: int, width: int, limit: int) -> list[PositionTile]:
    """Divide positions into blocks of at most `limit`: whole images, or rows, or parts of rows."""
    if height * width <= limit:
        return [
            PositionTile(n, (0, height), (0, width))
            for n in chunks(batch, limit // (height * width))
        ]
    if width <= limit:
        rows = chunks(height, limit // width)
        return [PositionTile((n, n + 1), y, (0, width)) for n in range(batch) for y in rows]
    columns = chunks(width, limit)
    return [
        PositionTile((n, n + 1), (y, y + 1), x)
        for n in range(batch)
        for y in range(height)
        for x in columns
    ]


def tiled(total: int, unit: int, limit: int) -> list[tuple[int, int]]:
    """Divide `total` into pieces of at most `limit` units; only the last may end within a unit."""
    units = chunks(-(-total // unit), max(limit, 1))
    return [(first * unit, min(last * unit, total)) for first, last in units]
