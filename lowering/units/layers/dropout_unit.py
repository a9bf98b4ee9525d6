"""The unit of dropout of elements, of channels, and of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.broadcast import broadcast
from fpgapipe.lowering.kernels.dropout import draw_factors, drop
from fpgapipe.lowering.tiling.draw import Draw, kept_of
from fpgapipe.lowering.units.layouts import Layout, channels_last
from fpgapipe.lowering.units.registry import Surroundings, runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer


@dataclass(frozen=True)
class DropoutUnit(Unit):
    """Dropout; each layer has its own random numbers.

    Those of single elements are drawn in the order of memory; those of channels and samples in the
    order of the network. Stochastic depth drops samples.
    """

    stream: int = 0

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return not self.rate

    @property
    def _operator(self) -> ops.Dropout:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Dropout)
        return operator

    @property
    def rate(self) -> float:
        """Share of the elements that are dropped."""
        return self._operator.rate

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        """Shape of the random numbers: axes that are dropped together have one element."""
        rank = len(self.out_shape)
        together = {axis % rank for axis in self._operator.together}
        return tuple(1 if axis in together else n for axis, n in enumerate(self.out_shape))

    @property
    def is_of_elements(self) -> bool:
        """Whether each element has a random number of its own."""
        return self.drawn_shape == self.out_shape

    @property
    def axes(self) -> int:
        """Number of first axes whose elements have random numbers of their own.

        An axis of one element may count either way.
        """
        drawn = (axis for axis, size in enumerate(self.drawn_shape) if size > 1)
        return max(drawn, default=0) + 1

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        if not (train and self.rate):
            return
        kept_of(self.rate)
        if self.is_of_elements:
            return
        first = self.axes
        if first > 2 or self.drawn_shape[:first] != self.out_shape[:first]:
            rank = len(self.out_shape)
            together = sorted({axis % rank for axis in self._operator.together})
            raise NotImplementedError(
                "dropout must drop single elements, channels or samples, not all along axes "
                f"{together} of {list(self.out_shape)}"
            )

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        if self.rate and self.axes == 2 and not self.is_of_elements:
            return {self.inputs[0]: channels_last(self.out_shape)}
        return super().wants(given, rigid)

    def draw(self, step: MicroBatch, count: int) -> Draw:
        """Random numbers of a micro-batch, for as many elements.

        Raises
        ------
        NotImplementedError
            If the core draws none.
        """
        vector = step.product_core.vector
        if vector is None or not vector.random:
            raise NotImplementedError(
                "dropout needs random numbers, which this core's vector engine does not draw "
                "(VectorSpec.random); take a core that does, or a rate of 0"
            )
        return Draw(self.rate, self.stream, step.random_key, step.random_vectors(count))

    def _drop(self, step: MicroBatch, name: str, x: Tensor, y: Tensor) -> None:
        if self.is_of_elements:
            step.add(drop(name, x, y, step.region, self.draw(step, x.elements)))
            return
        count = prod(self.out_shape[: self.axes])
        factors = step.tensor(f"{name}.factors", (count,), FP32)
        step.add(draw_factors(f"{name}.draw", x, factors, step.region, self.draw(step, count)))
        samples, own = self.out_shape[0], x.elements // self.out_shape[0]
        channels = self.out_shape[1] if self.axes == 2 else 1
        rows = replace(factors, shape=(samples, 1, channels))
        shape = (samples, own // channels, channels)
        step.add(broadcast(name, "mul", replace(x, shape=shape), rows, replace(y, shape=shape),
                           step.region))  # fmt: skip

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        if not (step.options.train and self.rate):
            return x
        y = step.activation(self.name, x.shape)
        self._drop(step, self.name, x, y)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        if self.rate:
            dx = step.activation(f"{self.name}.dx", dy.shape)
            self._drop(step, f"{self.name}.gradient", dy, dx)
            dy = dx
        step.give_gradient(self, self.inputs[0], dy)


@runs("dropout")
def _dropout(layer: Layer, around: Surroundings) -> Unit:
    return DropoutUnit((layer,), around.number(layer))
