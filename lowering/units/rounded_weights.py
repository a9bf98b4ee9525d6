"""Copies of weights that are rounded to MXINT8 once for all micro-batches.

A product reads its weights from memory as FP32, quantises them, and takes two cycles for each
column of an array tile. With fewer vectors than that, the array waits for weights. A rounded copy
holds the values of the quantised weights as BF16, which is exact. Products read it with half the
bytes and in half the cycles, and quantise it to the same integers and scales as the weights.

The forward pass has its blocks along the input channels, the input gradient along the output
channels, so each has a copy of its own. The array makes a copy, as a product with the identity, at
the beginning of the step's first forward or backward pass. Copies so never outlive the weights that
they were made from, whoever writes these. On devices that wait for their first input, the step
begins with all copies.

The products of a recurrent layer's hidden states follow one another with the same weight. Where the
whole weight, or its copy, fits on chip, the first of them loads it and the others find it there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.numerics.element_format import BF16
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.lowering.kernels.products import ProductKernel
    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.units.microbatch import MicroBatch

IDENTITY = Tensor("identity", (MX_BLOCK, MX_BLOCK), BF16)
"""The tensor of the identity by which weights are multiplied."""

LEAST_PRODUCTS = 3
"""Number of products of a step from which on a copy can pay: making one takes as long as it saves
in two."""

MOST_COPY_BYTES = 1 << 27
"""Bytes of the largest copy: a larger one takes more memory than its share of the time is worth."""

OVERHEAD_CYCLES = 600
"""Cycles that a further kernel takes besides its work."""


def identity() -> NDArray[np.float32]:
    """Contents of `IDENTITY`."""
    return np.eye(MX_BLOCK, dtype=np.float32)


@dataclass(frozen=True)
class Repeats:
    """Products with one weight, which follow one another in their track.

    Attributes
    ----------
    count : int
        Number of them in a micro-batch.
    number : int
        Number of one among them.
    """

    count: int = 1
    number: int = 0


@dataclass(frozen=True)
class _Choice:
    """A kernel of repeated products, and their number in a micro-batch."""

    kernel: ProductKernel
    count: int

    @property
    def cycles(self) -> int:
        """Cycles of all products; timing a kernel takes long."""
        tiled = self.kernel.tiled_product
        return tiled.loading_cycles + (self.count - 1) * tiled.prediction.cycles


def product_of_weight(
    step: MicroBatch,
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    *,
    repeats: Repeats = Repeats(),
    offsets: tuple[int, ...] = (0, 0, 0),
) -> ProductKernel:
    """Kernel of a forward pass or an input gradient, which reads a rounded copy if that pays.

    Parameters
    ----------
    step : MicroBatch
    name : str
    conv, which
        As for `product_kernel`.
    tensors : tuple of Tensor
        As for `product_kernel`; the weight is the second.
    repeats : Repeats, optional
        Its place among products with the same weight; a single one, if left out.
    offsets : tuple of int
        As for `product_kernel`.
    """
    x, weight, y = tensors

    def best(operands: tuple[Tensor, Tensor, Tensor]) -> _Choice:
        return _repeated(step, name, conv, which, operands, repeats, offsets)

    plain = best(tensors)
    along = conv.cin if which == "forward" else conv.cout
    vectors = conv.batch * (conv.oh * conv.ow if which == "forward" else conv.h * conv.w)
    products = step.num_microbatches * repeats.count
    may_pay = products >= LEAST_PRODUCTS and step.product_core.array.waits_for_fp32(vectors)
    if not (step.options.rounded_weights and may_pay) or along % MX_BLOCK:
        return plain.kernel
    copy = Tensor(f"{weight.name}.{which}", weight.shape, BF16)
    if copy.size_bytes > MOST_COPY_BYTES:
        return plain.kernel
    try:
        less = best((x, copy, y))
        making = _rounding(step, which, weight, copy)
    except NoRoom:
        return plain.kernel  # a core that is too small to make the copy goes without it
    cost = making.tiled_product.prediction.cycles + OVERHEAD_CYCLES
    if step.num_microbatches * (plain.cycles - less.cycles) <= cost:
        return plain.kernel
    step.add_copy(making, copy, {IDENTITY: identity()})
    return less.kernel


def _repeated(
    step: MicroBatch,
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    repeats: Repeats,
    offsets: tuple[int, ...],
) -> _Choice:
    """The kernel of one of repeated products, whose weight stays on chip if that is faster."""
    each = _product(step, name, conv, which, tensors, offsets)
    loading = _Choice(each, repeats.count)
    if repeats.count == 1:
        return loading
    try:
        kernel = _product(step, name, conv, which, tensors, offsets, is_repeated=True)
    except NoRoom:
        return loading
    kept = _Choice(replace(kernel, is_repeat=repeats.number > 0), repeats.count)
    return kept if kept.cycles < loading.cycles else loading


def _rounding(step: MicroBatch, which: Pass, weight: Tensor, copy: Tensor) -> ProductKernel:
    """Kernel that makes a copy for a pass."""
    name = f"{copy.name}.round"
    if which == "forward":
        # Blocks of input channels are vectors, which the identity leaves as they are.
        shape = (weight.elements // MX_BLOCK, MX_BLOCK)
        conv = ConvSpec.linear(shape[0], MX_BLOCK, MX_BLOCK)
        vectors, results = replace(weight, shape=shape), replace(copy, shape=shape)
        return _product(step, name, conv, "forward", (vectors, IDENTITY, results))
    width = prod(weight.shape[1:])
    conv = ConvSpec.linear(MX_BLOCK, weight.shape[0], width)
    return _product(step, name, conv, "rounding", (IDENTITY, weight, copy))


def _product(
    step: MicroBatch,
    name: str,
    conv: ConvSpec,
    which: Pass,
    tensors: tuple[Tensor, Tensor, Tensor],
    offsets: tuple[int, ...] = (0, 0, 0),
    *,
    is_repeated: bool = False,
) -> ProductKernel:
    return product_kernel(
        name, conv, which, tensors, step.product_core, step.memory, step.product_region,
        offsets=offsets, is_repeated=is_repeated,
    )  # fmt: skip
