"""The unit of fixed linear maps of axes: resizing and padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.images.axis_map import RowMap, map_rows
from fpgapipe.lowering.units.gradient_parts import Axis
from fpgapipe.lowering.units.layers.part_units import PartUnit
from fpgapipe.lowering.units.layers.upsample_unit import UpsampleUnit
from fpgapipe.lowering.units.registry import Surroundings, runs, runs_alone
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.axis_map import selection
from fpgapipe.network.operators.tensors import normalise_axis

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.lowering.units.unit import Unit
    from fpgapipe.network.graph import Layer


def maps_of(operator: ops.Operator, shape: tuple[int, ...]) -> list[tuple[int, RowMap]]:
    """The maps that an operator applies, each with its axis."""
    if isinstance(operator, ops.AxisMap):
        axis = normalise_axis(operator.axis, len(shape))
        return [(axis, RowMap(shape[axis], operator.taps))]
    if isinstance(operator, ops.Upsample):
        return [
            (
                axis,
                RowMap(shape[axis], selection(at // factor for at in range(shape[axis] * factor))),
            )
            for axis, factor in enumerate(operator.factors, 2)
        ]
    assert isinstance(operator, ops.Pad)
    found = []
    for axis, ((before, after), size) in enumerate(zip(operator.padding, shape, strict=True)):
        if before or after:
            taps = ((),) * before + selection(range(size)) + ((),) * after
            found.append((axis, RowMap(size, taps, operator.value)))
    return found or [(0, RowMap(shape[0], selection(range(shape[0]))))]


@runs_alone("axis_map", "pad")
@dataclass(frozen=True)
class MapUnit(PartUnit):
    """An operator that maps one axis, or several one after the other.

    The backward pass applies the transposed maps. Both compute in FP32. Values are read as
    `PartUnit` reads them.
    """

    @property
    def _maps(self) -> list[tuple[int, RowMap]]:
        return maps_of(self.layers[0].operator, self.in_shape)

    def _steps(self) -> list[tuple[int, RowMap, tuple[int, ...], tuple[int, ...]]]:
        """The axis and the map of each step, with the shapes before and behind it."""
        found, shape = [], self.in_shape
        for axis, rows in self._maps:
            behind = (*shape[:axis], len(rows.taps), *shape[axis + 1 :])
            found.append((axis, rows, shape, behind))
            shape = behind
        return found

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        last = self.lies_last(step)
        x = step.take(self, self.inputs[0])
        steps = self._steps()
        for number, (axis, rows, before, behind) in enumerate(steps):
            if number == len(steps) - 1:
                y = step.activation(self.name, self.memory_shape(behind, last=last))
            else:
                element = x.format if rows.is_selection else FP32
                y = step.tensor(f"{self.name}.{number}", behind, element)
            given, result = (
                _rows(tensor, shape, axis, last=last)
                for tensor, shape in ((x, before), (y, behind))
            )
            step.add(map_rows(f"{self.name}.{number}", rows, given, result, step.region))
            x = y
        return x

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        last = self.lies_last(step)
        steps = self._steps()
        for number in reversed(range(len(steps))):
            axis, rows, before, behind = steps[number]
            if number == 0:
                dx = step.activation(f"{self.name}.dx", step.take(self, self.inputs[0]).shape)
            else:
                dx = step.tensor(f"{self.name}.dx{number}", before, FP32)
            given, result = (
                _rows(tensor, shape, axis, last=last)
                for tensor, shape in ((dy, behind), (dx, before))
            )
            name = f"{self.name}.gradient.{number}"
            step.add(map_rows(name, rows.transposed(), given, result, step.region))
            dy = dx
        step.give_gradient(self, self.inputs[0], dy)


def _rows(tensor: Tensor, shape: tuple[int, ...], axis: int, *, last: bool) -> Tensor:
    """View a value of a shape in the network as rows along an axis."""
    found = Axis.of(shape, axis, last=last)
    return replace(tensor, shape=(found.rows, found.size, found.inner))


@runs("upsample")
def _upsample(layer: Layer, around: Surroundings) -> Unit:
    operator = layer.operator
    assert isinstance(operator, ops.Upsample)
    return MapUnit((layer,)) if len(operator.factors) > 2 else UpsampleUnit((layer,))
