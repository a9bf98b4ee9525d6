"""Units of products of two activations, and of transpositions, which may be part of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.units.layers.matrix_parts import Part, multiply_parts
from fpgapipe.lowering.units.layers.transpose_unit import TransposeUnit
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class MatMulUnit(Unit):
    """Products of matrices that are both activations, one for each index of the axes before.

    The first operand is ``m x k`` and the second ``k x n``, or ``n x k`` if a transposition in
    front of the product is the unit's first layer: an array's reader transposes as it reads. Both
    operands are quantised along the axis of the reduction, in all three passes: as a linear layer's
    whose weight is the second operand.
    """

    engine: ClassVar = "array"

    @property
    def product(self) -> Layer:
        """The layer of the product."""
        return self.layers[-1]

    @property
    def is_turned(self) -> bool:
        """Whether the second operand is read transposed."""
        return len(self.layers) > 1

    @property
    def sources(self) -> tuple[str, str]:
        """Names of the two operands."""
        one, other = self.product.inputs
        return one, self.layers[0].inputs[0] if self.is_turned else other

    @property
    def count(self) -> int:
        """Number of products."""
        return prod(self.out_shape[:-2])

    @property
    def conv(self) -> ConvSpec:
        """The linear layer that a product is, with the second operand as its weight."""
        one, _ = self.product.input_tensors
        m, n = self.out_shape[-2:]
        k = one.shape[-1]
        return ConvSpec.linear(m, n, k) if self.is_turned else ConvSpec.linear(m, k, n)

    @property
    def passes(self) -> tuple[Pass, Pass]:
        """Passes of that layer that give the result, and the gradient of the first operand."""
        return ("forward", "input") if self.is_turned else ("input", "forward")

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        one, other = (tensor.shape for tensor in self.product.input_tensors)
        if len(one) < 2 or one[:-2] != other[:-2]:
            raise NotImplementedError(
                "products of activations must be of matrices whose axes before the last two are "
                f"the same, not {list(one)} and {list(other)}"
            )

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return dict.fromkeys(self.inputs, PLAIN)

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.sources)
        y = step.activation(self.name, self.out_shape)
        self._multiply(step, self.name, self.passes[0], (a, b, y))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        a, b = (step.take(self, name) for name in self.sources)
        needed = {self.product.inputs[at] for at in step.graph.input_gradients(self.product.name)}
        one, other = self.product.inputs
        if one in needed:
            da = step.activation(f"{self.name}.da", a.shape)
            self._multiply(step, f"{self.name}.first", self.passes[1], (dy, b, da))
            step.give_gradient(self, self.sources[0], da)
        if other in needed:
            db = step.activation(f"{self.name}.db", b.shape)
            operands = (a, dy, db) if self.is_turned else (dy, a, db)
            self._multiply(step, f"{self.name}.second", "weight", operands)
            step.give_gradient(self, self.sources[1], db)

    def _multiply(
        self, step: MicroBatch, name: str, which: Pass, tensors: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Add the kernels of a pass of all products."""
        for number in range(self.count):
            one, other, result = (Part.of(tensor, number, self.count) for tensor in tensors)
            multiply_parts(step, f"{name}.{number}", self.conv, which, (one, other, result))


@runs("matmul")
def _matmul(layer: Layer, around: Surroundings) -> Unit:
    return MatMulUnit((layer,))


@runs("transpose")
def _transpose(layer: Layer, around: Surroundings) -> Unit:
    """A transposition of the matrices that are a product's second operand goes with the product."""
    operator = layer.operator
    assert isinstance(operator, ops.Transpose)
    rank = len(operator.order)
    turns = operator.order == (*range(rank - 2), rank - 1, rank - 2)
    reader = around.only_reader(layer.name)
    if rank > 1 and turns and reader is not None and isinstance(reader.operator, ops.MatMul):
        one, other = reader.inputs
        alike = reader.input_tensors[0].shape[:-2] == layer.output.shape[:-2]
        if other == layer.name and alike and around.is_computed_before(one, layer):
            return MatMulUnit((layer, reader))
    return TransposeUnit((layer,))
