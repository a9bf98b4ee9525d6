"""The core's matrix products in PyTorch, bit for bit: operands in MXINT8, sums in FP32.

Blocks of 32 lie along the axis of reduction, as on the core. In the forward pass these are the
input channels of a tap (or of a row of taps where channels are few), in the gradient of the input
the output channels, and in the gradient of the weight the positions of a micro-batch. The products
of a block's elements are added up exactly, as many at a time as an array has rows, and their sums
in FP32 one after the other: all taps of a block of channels come before the next block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN
from fpgapipe.hw.hls_models.numerics.mx import ELEMENT_FRACTION_BITS, ELEMENT_LIMIT, MX_BLOCK

if TYPE_CHECKING:
    from fpgapipe.lowering.products.conv import ConvSpec

ELEMENT_STEPS = CODE_BIAS + ELEMENT_FRACTION_BITS
"""An element of a block with scale `code` is a multiple of ``2**(code - ELEMENT_STEPS)``."""

LEAST_NORMAL = 2.0**-126

EVERY = slice(None)

TERMS = 1 << 20
"""Elements of the sums of blocks that are computed at once."""

OPERAND = 1 << 24
"""Elements of the windows, in the gradient of a weight, that are there at once."""


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks along the last axis, as `fpgapipe.hw.hls_models.numerics.mx.quantise` does.

    Parameters
    ----------
    x : float32 tensor, shape (..., MX_BLOCK)

    Returns
    -------
    elements : int8 tensor, shape (..., MX_BLOCK)
    codes : uint8 tensor, shape (...)
    """
    exponents = (x.view(torch.int32) >> 23) & 255
    codes = exponents.amax(-1, keepdim=True)
    # The scale as two normal numbers of FP32. What a product loses is rounded to zero in any case.
    places = ELEMENT_STEPS - codes
    half = places >> 1
    scaled = torch.round(x * _power_of_two(half) * _power_of_two(places - half))
    # Subnormal numbers count as zeros. All elements of a block that has an infinity or NaN are 0.
    scaled = saturated(scaled).masked_fill((exponents == 0) | (codes == CODE_NAN), 0)
    return scaled.to(torch.int8), codes.squeeze(-1).to(torch.uint8)


def saturated(scaled: torch.Tensor) -> torch.Tensor:
    """Saturate rounded elements; -128 is not used."""
    return scaled.clamp(-ELEMENT_LIMIT, ELEMENT_LIMIT)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """``2**exponent`` as float32, composed of its bits, so that it is exact on every device."""
    return ((exponent.int() + 127) << 23).view(torch.float32)


@dataclass(frozen=True)
class _Blocks:
    """Quantised blocks of an operand.

    Attributes
    ----------
    elements : int8 tensor, shape (..., blocks, MX_BLOCK)
    codes : uint8 tensor, shape (..., blocks)
    size : int
        Elements of all blocks; behind them the last one is filled with zeros.
    """

    elements: torch.Tensor
    codes: torch.Tensor
    size: int

    @classmethod
    def of(cls, x: torch.Tensor) -> _Blocks:
        """Quantise along the last axis; the last block may be short."""
        padded = functional.pad(x, (0, -x.shape[-1] % MX_BLOCK)).unflatten(-1, (-1, MX_BLOCK))
        return cls(*quantise(padded.contiguous()), x.shape[-1])

    def range(self) -> tuple[int, int]:
        """The least and the largest code of blocks that are not zero."""
        least = self.codes.masked_fill(self.codes == 0, CODE_NAN).min()
        return int(least), int(self.codes.max())


@dataclass(frozen=True)
class _Operand:
    """Blocks as the array multiplies them.

    Attributes
    ----------
    values : float32 tensor, shape (..., blocks, MX_BLOCK)
        Elements or, if there are no scales, the numbers that they stand for.
    scales : float64 tensor or None, shape (..., blocks)
    size, rows : int
        Elements of all blocks, and those of a block that the array takes at once.
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    size: int
    rows: int

    def parts(self, *which: int | slice, piece: tuple[int, int] | None = None) -> _Parts:
        """Some of the vectors, and a piece of the blocks (first, end) of each or all of them."""
        first, end = piece or (0, self.values.shape[-2])
        # The array takes nothing behind the last element.
        number = -(-(min(self.size, end * MX_BLOCK) - first * MX_BLOCK) // self.rows)
        values = self.values[which][..., first:end, :].flatten(0, -3).flatten(1)
        values = values.unflatten(1, (-1, self.rows))[:, :number]
        if self.scales is None:
            return _Parts(values, None)
        scales = self.scales[which][..., first:end].flatten(0, -2)
        return _Parts(values, scales.repeat_interleave(MX_BLOCK // self.rows, 1)[:, :number])


@dataclass(frozen=True)
class _Parts:
    """Vectors of an operand, shape (vectors, parts, rows), and scales (vectors, parts) or None."""

    values: torch.Tensor
    scales: torch.Tensor | None

    def some(self, first: int, end: int) -> _Parts:
        """Some parts of all vectors."""
        scales = None if self.scales is None else self.scales[:, first:end]
        return _Parts(self.values[:, first:end], scales)


class _Sums:
    """Adds up the products of blocks of two operands, as the core does.

    Where all sums of blocks are normal numbers or zero, and so are all sums of those, the blocks
    are numbers in FP32, which PyTorch multiplies and adds up exactly in whatever order. Otherwise
    each sum of a block is rounded as on the core, for which FP64 has room.
    """

    def __init__(self, one: _Blocks, other: _Blocks, rows: int) -> None:
        (low, high), (other_low, other_high) = one.range(), other.range()
        self._rows = rows
        # A sum of a block has less than 20 bits, and is a multiple of 2**(codes - 266).
        self._is_plain = (
            min(low, other_low) >= 7 and low + other_low >= 140 and high + other_high <= 374
            and CODE_NAN not in (high, other_high)
        )  # fmt: skip

    def operand(self, blocks: _Blocks) -> _Operand:
        """One of the two operands."""
        if self._is_plain:
            # Blocks of zeros have no scale in FP32, and need none.
            scales = _power_of_two((blocks.codes.int() - ELEMENT_STEPS).clamp(min=-126))
            values = blocks.elements * scales.unsqueeze(-1)
            return _Operand(values, None, blocks.size, self._rows)
        wide = ((blocks.codes.long() - ELEMENT_STEPS + 1023) << 52).view(torch.float64)
        wide = wide.masked_fill(blocks.codes == CODE_NAN, float("nan"))
        return _Operand(blocks.elements.float(), wide, blocks.size, self._rows)

    def add(self, total: torch.Tensor, one: _Parts, other: _Parts) -> None:
        """Add products to `total`, part after part; its elements are (vectors, vectors)."""
        for term in self._products(one, other):
            total += term.view(total.shape)
            if not self._is_plain:
                total.copy_(_flushed(total))

    def _products(self, one: _Parts, other: _Parts) -> Iterator[torch.Tensor]:
        """The FP32 products of the parts, in order."""
        vectors, count, _ = one.values.shape
        each = max(TERMS // (vectors * len(other.values)), 1)
        for first in range(0, count, each):
            a, b = one.some(first, first + each), other.some(first, first + each)
            sums = torch.bmm(a.values.transpose(0, 1), b.values.permute(1, 2, 0))
            if a.scales is not None and b.scales is not None:
                scales = a.scales.T.unsqueeze(2) * b.scales.T.unsqueeze(1)
                sums = _narrowed((sums + 0.0).double() * scales)  # a sum of zero is +0
            yield from sums


def _narrowed(exact: torch.Tensor) -> torch.Tensor:
    """Round FP64 to FP32; what is below the least normal number after it was rounded is zero."""
    return torch.where(exact.abs() < LEAST_NORMAL * (1 - 2.0**-25), exact * 0, exact).float()


def _flushed(x: torch.Tensor) -> torch.Tensor:
    """Zeros in place of subnormal numbers."""
    return torch.where(x.abs() < LEAST_NORMAL, x * 0, x)


def _clean(x: torch.Tensor) -> torch.Tensor:
    """The only NaN of the core in place of any other."""
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The three passes of a convolution, or of a transposed one, without its bias.

    The forward pass of the transposed one is the gradient of the convolution's input, and the other
    way round.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        conv: ConvSpec,
        array_rows: int,
        transposed: bool,
    ) -> torch.Tensor:
        """Return y; see `product_of` and `transposed_product_of`."""
        ctx.spec = conv, array_rows
        ctx.transposed = transposed
        ctx.save_for_backward(x, weight)
        return (input_gradient if transposed else convolved)(x, weight, conv, array_rows)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of both operands."""
        x, weight = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (convolved if ctx.transposed else input_gradient)(dy, weight, *ctx.spec)
        if ctx.needs_input_grad[1]:
            pair = (dy, x) if ctx.transposed else (x, dy)
            dw = weight_gradient(*pair, *ctx.spec)
        return dx, dw, None, None, None


def product_of(
    x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec, array_rows: int
) -> torch.Tensor:
    """A convolution without its bias, with gradients.

    Parameters
    ----------
    x : torch.Tensor
        Of shape (batch, cin, h, w).
    weight : torch.Tensor
        Of shape (cout, cin, kh, kw).
    conv : ConvSpec
    array_rows : int
        Rows of the core's array.

    Returns
    -------
    torch.Tensor
        Of shape (batch, cout, oh, ow).
    """
    return _Product.apply(x, weight, conv, array_rows, False)


def transposed_product_of(
    x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec, array_rows: int
) -> torch.Tensor:
    """A transposed convolution without its bias, with gradients; parameters as for `product_of`.

    `conv` is the convolution of which this is the gradient of the input: `x` is of shape
    (batch, cout, oh, ow), and the result of shape (batch, cin, h, w).
    """
    return _Product.apply(x, weight, conv, array_rows, True)


def convolved(
    x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec, array_rows: int
) -> torch.Tensor:
    """Result of a convolution, with both operands rounded along the input channels."""
    images = _padded(x, conv)
    if conv.is_packed:  # the taps of a row lie side by side
        images = images.unfold(2, conv.kernel[1], conv.stride[1]).transpose(3, 4).flatten(3)
    a = _Blocks.of(images)
    b = _Blocks.of(weight.permute(0, 2, 3, 1).reshape(conv.cout, -1, conv.depth))
    sums = _Sums(a, b, array_rows)
    seen, taps = sums.operand(a), sums.operand(b)
    y = x.new_zeros(conv.batch * conv.oh * conv.ow, conv.cout)
    for piece in _pieces(a, conv):
        for tap, window in enumerate(_windows(conv, packed=conv.is_packed)):
            sums.add(y, seen.parts(*window, piece=piece), taps.parts(EVERY, tap, piece=piece))
    return _clean(y).reshape(conv.batch, conv.oh, conv.ow, conv.cout).permute(0, 3, 1, 2)


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, conv: ConvSpec, array_rows: int
) -> torch.Tensor:
    """Gradient of the input, with both operands rounded along the output channels.

    Pixels that no output has seen are zeros, even if the core's would be NaN by that of a weight.
    """
    axes = tuple(_axis(conv, axis) for axis in (0, 1))
    a = _Blocks.of(functional.pad(dy, _margins(*axes)).permute(0, 2, 3, 1))
    b = _Blocks.of(weight.permute(2, 3, 1, 0))
    sums = _Sums(a, b, array_rows)
    outputs, taps = sums.operand(a), sums.operand(b)
    dx = dy.new_zeros(conv.batch, conv.h, conv.w, conv.cin)
    pieces = _pieces(a, conv)
    for down, across in product(*(axis.phases for axis in axes)):
        total = dx[:, down.pixels, across.pixels]
        for piece, (row, rows), (column, columns) in product(pieces, down.taps, across.taps):
            one = outputs.parts(EVERY, rows, columns, piece=piece)
            sums.add(total, one, taps.parts(row, column, piece=piece))
    return _clean(dx).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _Phase:
    """Every `stride`-th pixel of an axis of the input, and the taps through which it is seen.

    Attributes
    ----------
    pixels : slice
    taps : list of (int, slice)
        Number of a tap, and the positions of the padded output that see the pixels through it.
    """

    pixels: slice
    taps: list[tuple[int, slice]]


@dataclass(frozen=True)
class _Axis:
    """The phases of an axis, and the zeros that the output needs before and behind it."""

    phases: list[_Phase]
    before: int
    behind: int


def _axis(conv: ConvSpec, axis: int) -> _Axis:
    """Pixel `i` is seen at position `o` through tap `t` if ``i + pad = stride o + dilation t``."""
    stride, dilation, pad = conv.stride[axis], conv.dilation[axis], conv.pad[axis]
    size, results = (conv.h, conv.w)[axis], (conv.oh, conv.ow)[axis]
    found = [
        (phase, tap, (phase + pad - tap * dilation) // stride)
        for phase in range(min(stride, size))
        for tap in range(conv.kernel[axis])
        if (phase + pad - tap * dilation) % stride == 0
    ]
    counts = [-(-(size - phase) // stride) for phase in range(stride)]
    before = max([0, *(-at for _, _, at in found)])
    behind = max([0, *(at + counts[phase] - results for phase, _, at in found)])
    phases = [
        _Phase(
            slice(phase, None, stride),
            [
                (tap, slice(before + at, before + at + counts[phase]))
                for own, tap, at in found
                if own == phase
            ],
        )
        for phase in range(min(stride, size))
    ]
    return _Axis(phases, before, behind)


def _margins(down: _Axis, across: _Axis) -> tuple[int, int, int, int]:
    return across.before, across.behind, down.before, down.behind


def weight_gradient(
    x: torch.Tensor, dy: torch.Tensor, conv: ConvSpec, array_rows: int
) -> torch.Tensor:
    """Gradient of the weight, with both operands rounded along the positions."""
    a = _Blocks.of(dy.permute(1, 0, 2, 3).flatten(1))
    images = _padded(x, conv)
    windows = list(_windows(conv))
    at_once = max(OPERAND // (a.size * conv.cin), 1)
    parts = []
    for first in range(0, conv.taps, at_once):
        some = [images[each].flatten(0, 2) for each in windows[first : first + at_once]]
        b = _Blocks.of(torch.cat(some, 1).T)
        sums = _Sums(a, b, array_rows)
        parts.append(x.new_zeros(conv.cout, len(some) * conv.cin))
        sums.add(parts[-1], sums.operand(a).parts(), sums.operand(b).parts())
    dw = _clean(torch.cat(parts, 1)).unflatten(1, (*conv.kernel, conv.cin))
    return dw.permute(0, 3, 1, 2)


def _padded(x: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """Images with their padding, channels last."""
    top, left, bottom, right = conv.pad
    return functional.pad(x, (left, right, top, bottom)).permute(0, 2, 3, 1)


def _windows(conv: ConvSpec, *, packed: bool = False) -> Iterator[tuple[slice, slice, slice]]:
    """The padded images' pixels that each tap reads, or each row of taps, in the core's order."""
    for down in range(conv.kernel[0]):
        rows = _span(down * conv.dilation[0], conv.oh, conv.stride[0])
        for across in range(1 if packed else conv.kernel[1]):
            at = _span(across * conv.dilation[1], conv.ow, conv.stride[1])
            yield EVERY, rows, EVERY if packed else at


def _span(first: int, count: int, step: int) -> slice:
    return slice(first, first + (count - 1) * step + 1, step)


def _pieces(blocks: _Blocks, conv: ConvSpec) -> list[tuple[int, int]]:
    """Blocks of each piece of a reduction, (first, end); all taps of a piece come together."""
    count = blocks.codes.shape[-1]
    if conv.taps == 1 or conv.is_packed:
        return [(0, count)]
    return [(first, first + 1) for first in range(count)]
