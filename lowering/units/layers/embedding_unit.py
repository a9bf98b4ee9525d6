"""The unit of an embedding, whose rows the array selects as a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.lowering.kernels.one_hot import check_rows, one_hot, row_numbers, row_numbers_content
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.rounded_weights import product_of_weight
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class EmbeddingUnit(Unit):
    """Rows of a learned table: the product of rows with a single one and the table.

    That product is the input gradient of a linear layer whose weight is the table. The rows with a
    single one are made again in the backward pass, since keeping them takes more memory than time.
    """

    engine: ClassVar = "array"

    is_of_network: bool = True
    """Whether the indices are an input of the network."""

    @property
    def _operator(self) -> ops.Embedding:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Embedding)
        return operator

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        if not self.is_of_network:
            raise NotImplementedError(
                f"the indices of an embedding must be an input of the network, and "
                f"{self.inputs[0]!r} is computed"
            )
        check_rows(self._operator.num_embeddings)

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {self.inputs[0]: PLAIN}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN

    def arranges(self, wanted: Mapping[str, Layout]) -> dict[str, Layout]:
        """See `Unit`; a layer that shares the table must keep its order, too."""
        return {self.layers[0].parameters[0].name: PLAIN}

    def _rows(
        self, step: MicroBatch, name: str, left_out: int | None = None, *, is_weight: bool = False
    ) -> Tensor:
        """Add the rows with a single one; those of an index that is left out are zeros."""
        indices = step.take(self, self.inputs[0])
        count = self._operator.num_embeddings
        step.fix(row_numbers(count, left_out), row_numbers_content(count, left_out))
        rows = step.tensor(name, (prod(self.in_shape), count), step.options.activations)
        kernel = one_hot(rows.name, indices, rows, step.region, left_out=left_out)
        step.add(kernel, is_weight=is_weight)
        return rows

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        rows = self._rows(step, f"{layer.name}.rows")
        y = step.activation(self.name, self.out_shape)
        name, table = f"{layer.name}.forward", step.weight(layer)
        step.add(product_of_weight(step, name, conv_of(layer), "input", (rows, table, y)))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer = self.layers[0]
        dw = step.gradient_of(step.weight(layer))
        if dw is None:
            return
        name, padding = f"{layer.name}.rows again", self._operator.padding
        rows = self._rows(step, name, padding, is_weight=True)
        kernel = product_kernel(
            f"{layer.name}.weight",
            conv_of(layer),
            "weight",
            (dy, rows, dw),
            step.product_core,
            step.memory,
            step.product_region,
        )
        step.add(kernel, is_weight=True)


@runs("embedding")
def _embedding(layer: Layer, around: Surroundings) -> Unit:
    return EmbeddingUnit((layer,), layer.inputs[0] in around.graph.inputs)
