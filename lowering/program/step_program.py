"""The program of a training step, as the lowering knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.program.device_program import DeviceProgram

if TYPE_CHECKING:
    from fpgapipe.lowering.program.boundary import Stage
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class StepProgram(DeviceProgram):
    """A step's program as the lowering knows it.

    Attributes
    ----------
    graph : Graph
    options : StepOptions
    stage : Stage
        The part of the network.
    values : dict of str to Value
        Of the first micro-batch.
    operands : dict of (str, str) to str
        Tensor of each value as each unit takes it: by the unit's name and the value's.
    gradients : dict of str to str
        Tensor of the gradient of each of its values that has one.
    """

    graph: Graph
    options: StepOptions
    stage: Stage
    values: dict[str, Value]
    operands: dict[tuple[str, str], str]
    gradients: dict[str, str]
