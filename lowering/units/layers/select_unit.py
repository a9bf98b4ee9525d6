"""The unit of a selection at fixed places, whose entries the array selects as a matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.one_hot import check_rows, one_hot, row_numbers, row_numbers_content
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.units.microbatch import MicroBatch


@runs_alone("select")
@dataclass(frozen=True)
class SelectUnit(Unit):
    """Entries of a tensor at fixed places: the product of rows with a single one and the tensor.

    It is computed as an embedding is, and adds up the gradients of places that repeat as that does.
    The indices lie in memory as numbers, and the rows are made from them in each pass.
    """

    engine: ClassVar = "array"

    @property
    def _indices(self) -> tuple[int, ...]:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Select)
        return operator.indices

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        check_rows(self.in_shape[0], "a selection")

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    def _rows(self, step: MicroBatch, name: str) -> Tensor:
        """Add the rows with a single one."""
        count, entries = self.in_shape[0], len(self._indices)
        step.fix(row_numbers(count), row_numbers_content(count))
        indices = Tensor(step.owned(f"{self.name}.indices"), (entries,), FP32)
        step.fix(indices, np.array(self._indices, np.float32))
        rows = step.tensor(name, (entries, count), step.options.activations)
        step.add(one_hot(rows.name, indices, rows, step.region))
        return rows

    def _add(self, step: MicroBatch, name: str, which: Pass, *tensors: Tensor) -> None:
        """Add a pass of the linear layer whose weight is the input."""
        one, other, result = (replace(each, shape=(each.elements,)) for each in tensors)
        core, conv = step.product_core, conv_of(self.layers[0])
        operands = one, other, result
        step.add(
            product_kernel(name, conv, which, operands, core, step.memory, step.product_region)
        )

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        rows = self._rows(step, f"{self.name}.rows")
        y = step.activation(self.name, self.out_shape)
        self._add(step, f"{self.name}.forward", "input", rows, x, y)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        rows = self._rows(step, f"{self.name}.rows again")
        dx = step.activation(f"{self.name}.dx", self.in_shape)
        self._add(step, f"{self.name}.gradient", "weight", dy, rows, dx)
        step.give_gradient(self, self.inputs[0], dx)
