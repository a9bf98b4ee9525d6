"""The program of a training step, with the information that the lowering has about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.program.device_program import DeviceProgram

if TYPE_CHECKING:
    from fpgapipe.lowering.memory.layout import Demand
    from fpgapipe.lowering.program.boundary import StageUnits
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class StepProgram(DeviceProgram):
    """A device's program of a step, with the information that the lowering has about it.

    Attributes
    ----------
    graph : Graph
    options : StepOptions
    stage : StageUnits
        The part of the network that the device computes.
    values : dict of str to Value
        Values of the first micro-batch.
    operands : dict of (str, str) to str
        Name of the tensor that a unit reads for a value, by the unit's name and the value's name.
    gradients : dict of str to str
        Name of the tensor of each value's gradient, for the values that have one.
    demand : Demand
        What the program needs of its memory.
    """

    graph: Graph
    options: StepOptions
    stage: StageUnits
    values: dict[str, Value]
    operands: dict[tuple[str, str], str]
    gradients: dict[str, str]
    demand: Demand
