"""The core's matrix products in PyTorch: operands in MXINT8, sums in FP32.

Blocks of 32 lie along the axis of reduction, as on the core. In the forward pass these are the
input channels of a tap (or of a row of taps where channels are few), in the gradient of the input
the output channels, and in the gradient of the weight the positions of a micro-batch. The only
difference from the core is the order in which FP32 sums are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN
from fpgapipe.hw.hls_models.numerics.mx import ELEMENT_FRACTION_BITS, ELEMENT_LIMIT, MX_BLOCK

if TYPE_CHECKING:
    from fpgapipe.lowering.products.conv import ConvSpec

ELEMENT_STEPS = CODE_BIAS + ELEMENT_FRACTION_BITS
"""An element of a block with scale `code` is a multiple of ``2**(code - ELEMENT_STEPS)``."""


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
    # The scale is a normal FP64 number and a power of two, so every product with it is exact.
    scaled = torch.round(x.double() * _power_of_two(ELEMENT_STEPS - codes))
    # Subnormal numbers count as zeros. All elements of a block that has an infinity or NaN are 0.
    scaled = scaled.masked_fill((exponents == 0) | (codes == CODE_NAN), 0)
    return saturated(scaled).to(torch.int8), codes.squeeze(-1).to(torch.uint8)


def saturated(scaled: torch.Tensor) -> torch.Tensor:
    """Saturate rounded elements; -128 is not used."""
    return scaled.clamp(-ELEMENT_LIMIT, ELEMENT_LIMIT)


def dequantise(elements: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Compute the numbers that blocks represent, as float64; NaN in a block with the code 255."""
    scale = _power_of_two(codes.long() - ELEMENT_STEPS)
    scale = scale.masked_fill(codes == CODE_NAN, float("nan"))
    return elements * scale.unsqueeze(-1)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """``2**exponent`` as float64, composed of its bits, so that it is exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round to MXINT8 with blocks along the last axis; the last block may be short."""
    size = x.shape[-1]
    padded = functional.pad(x, (0, -size % MX_BLOCK)).unflatten(-1, (-1, MX_BLOCK))
    return dequantise(*quantise(padded)).to(x.dtype).flatten(-2)[..., :size]


class Product(torch.autograd.Function):  # type: ignore[misc]
    """A convolution's three passes, without its bias.

    Called as ``Product.apply(x, weight, conv)`` with `x` of shape (batch, cin, h, w) and `weight`
    of shape (cout, cin, kh, kw).
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
        """Return y, of shape (batch, cout, oh, ow)."""
        ctx.conv = conv
        ctx.save_for_backward(x, weight)
        return convolved(x, weight, conv)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of both operands."""
        conv: ConvSpec = ctx.conv
        x, weight = ctx.saved_tensors
        dx = input_gradient(dy, weight, conv) if ctx.needs_input_grad[0] else None
        dw = weight_gradient(x, dy, conv) if ctx.needs_input_grad[1] else None
        return dx, dw, None


class TransposedProduct(torch.autograd.Function):  # type: ignore[misc]
    """The three passes of a transposed convolution, without its bias.

    Called as ``TransposedProduct.apply(x, weight, conv)``, where `conv` is the convolution of which
    this is the input gradient: `x` is of shape (batch, cout, oh, ow).
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
        """Return y, of shape (batch, cin, h, w)."""
        ctx.conv = conv
        ctx.save_for_backward(x, weight)
        return input_gradient(x, weight, conv)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of both operands."""
        x, weight = ctx.saved_tensors
        dx = convolved(dy, weight, ctx.conv) if ctx.needs_input_grad[0] else None
        dw = weight_gradient(dy, x, ctx.conv) if ctx.needs_input_grad[1] else None
        return dx, dw, None


def convolved(x: torch.Tensor, weight: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """Result of a convolution, with both operands rounded along the input channels."""
    seen = rounded(unfolded(x, conv).unflatten(1, (-1, conv.depth)))
    taps = rounded(weight.permute(0, 2, 3, 1).reshape(conv.cout, -1, conv.depth))
    return _as_images(seen.flatten(1) @ taps.flatten(1).T, conv)


def input_gradient(dy: torch.Tensor, weight: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """Gradient of the input, with both operands rounded along the output channels."""
    outputs = dy.permute(0, 2, 3, 1).reshape(-1, conv.cout)
    taps = rounded(weight.permute(2, 3, 1, 0).reshape(-1, conv.cout))
    return folded(rounded(outputs) @ taps.T, conv)


def weight_gradient(x: torch.Tensor, dy: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """Gradient of the weight, with both operands rounded along the positions."""
    outputs = dy.permute(0, 2, 3, 1).reshape(-1, conv.cout)
    dw = rounded(outputs.T) @ rounded(unfolded(x, conv).T).T
    return dw.unflatten(1, (*conv.kernel, conv.cin)).permute(0, 3, 1, 2)


def unfolded(x: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """The input values in the window of each position, shape (positions, kh * kw * cin)."""
    top, left, bottom, right = conv.pad
    padded = functional.pad(x, (left, right, top, bottom))
    seen = functional.unfold(padded, conv.kernel, conv.dilation, 0, conv.stride)
    seen = seen.unflatten(1, (conv.cin, conv.taps))
    return seen.permute(0, 3, 2, 1).reshape(-1, conv.taps * conv.cin)


def folded(seen: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    """Sum for each pixel over all windows that contain it; the adjoint of `unfolded`."""
    top, left, bottom, right = conv.pad
    parts = seen.reshape(conv.batch, conv.oh * conv.ow, conv.taps, conv.cin)
    parts = parts.permute(0, 3, 2, 1).reshape(conv.batch, conv.cin * conv.taps, -1)
    size = (conv.h + top + bottom, conv.w + left + right)
    whole = functional.fold(parts, size, conv.kernel, conv.dilation, 0, conv.stride)
    return whole[:, :, top : top + conv.h, left : left + conv.w]


def _as_images(y: torch.Tensor, conv: ConvSpec) -> torch.Tensor:
    return y.reshape(conv.batch, conv.oh, conv.ow, conv.cout).permute(0, 3, 1, 2)
