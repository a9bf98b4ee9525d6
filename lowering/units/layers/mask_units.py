"""Units of masks: comparisons with a number, and tensors of which a mask hides elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.kernels.elements.masks import check_compared, compare, masked_fill
from fpgapipe.lowering.units.layers.broadcast_unit import BroadcastUnit
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@runs_alone("compare")
@dataclass(frozen=True)
class CompareUnit(Unit):
    """One of two numbers, by a comparison of each element with a third one."""

    @property
    def _operator(self) -> ops.Compare:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Compare)
        return operator

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        check_compared(self._operator.number)

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, x.shape)
        operator = self._operator
        step.add(
            compare(
                self.name,
                operator.function,
                x,
                y,
                step.region,
                number=operator.number,
                then=operator.then,
                otherwise=operator.otherwise,
            )
        )
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`; there is no gradient to compute."""


@runs_alone("masked_fill")
@dataclass(frozen=True)
class MaskedFillUnit(BroadcastUnit):
    """A tensor of which a mask hides elements; a factor in front of it is in the same kernel."""

    @property
    def _operator(self) -> ops.MaskedFill:
        operator = self.layers[-1].operator
        assert isinstance(operator, ops.MaskedFill)
        return operator

    @property
    def _scale(self) -> float:
        operator = self.layers[0].operator
        return operator.scale if isinstance(operator, ops.Affine) else 1

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return False

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x, mask = self._operands(step)
        y = step.activation(self.name, x.shape)
        value, keeps = self._operator.value, self._operator.keeps
        step.add(
            masked_fill(
                self.name, x, mask, y, step.region, value=value, keeps=keeps, scale=self._scale
            )
        )
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x, mask = self._operands(step)
        dx = step.activation(f"{self.name}.dx", x.shape)
        name, keeps = f"{self.name}.gradient", self._operator.keeps
        dy = self._in_order(step, dy)
        step.add(
            masked_fill(name, dy, mask, dx, step.region, value=0, keeps=keeps, scale=self._scale)
        )
        step.give_gradient(self, self.inputs[0], dx)
