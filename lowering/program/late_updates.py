"""A training step whose weights are updated after each micro-batch, not at the end.

Micro-batches that are in flight meanwhile see weights that are late by some updates: their backward
passes use the newest weights, or those that their forward passes used, of which the device then has
copies (:mod:`fpgapipe.lowering.schedule.weight_versions`). Each gradient is that of one micro-batch
alone. All else is as in a step with one update.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.layout import Own
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.memory.sharing import Category
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.weight_versions import WeightCopies
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.microbatch import LoweredKernel
from fpgapipe.lowering.units.step_options import (
    GRADIENTS,
    MOMENTUM,
    PARAMETERS,
    UPDATE,
    StepOptions,
)
from fpgapipe.lowering.units.update import update_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.layout import Demand
    from fpgapipe.lowering.program.boundary import Part
    from fpgapipe.lowering.schedule.schedule import Task
    from fpgapipe.network.graph import Graph

UPDATED = "updated parameters"
"""Name under which an update writes the parameters to another copy."""


def late_options(options: StepOptions) -> StepOptions:
    """Options of a step whose weights are updated after each micro-batch.

    Nothing is computed once for all micro-batches, since each has weights and an update of its own.

    Raises
    ------
    NotImplementedError
        If the options ask for an optimiser that no such step has.
    """
    if options.optimiser != "sgd" or options.clips or options.decays != "all" or options.undecayed:
        raise NotImplementedError(
            "weights that are updated after each micro-batch are updated by SGD without clipping, "
            "and all of them decay; take another schedule, such as 1f1b-as"
        )
    return replace(options, late_gradients=False, rounded_weights=False)


class LateStepBuilder(StepBuilder):
    """Builds the program of a device that updates its weights after each micro-batch.

    Parameters
    ----------
    graph, core, memory, options, tasks, part, num_microbatches
        As for `StepBuilder`; the options are those of `late_options`.
    copies : WeightCopies
        Copies of the weights that the tasks read and write.
    num_copies : int
        Copies for which there is memory; more, if `tasks` are only some.
    """

    def __init__(
        self,
        graph: Graph,
        core: CoreSpec,
        memory: MemorySpec,
        options: StepOptions,
        tasks: Sequence[Task],
        part: Part,
        num_microbatches: int,
        copies: WeightCopies,
        num_copies: int,
    ) -> None:
        super().__init__(
            graph, core, memory, options, tasks, part, num_microbatches=num_microbatches
        )
        self._weights = copies
        self._num_copies = num_copies

    def _update(self) -> None:
        """Add the update by the gradients of one micro-batch."""
        arenas = self._arenas
        if elements := arenas.elements(GRADIENTS):
            size = (elements,)
            number = self._task
            moves = self._weights.reads[number] != self._weights.writes[number]
            kernel = update_kernel(
                self.options,
                tuple(Tensor(name, size) for name in (PARAMETERS, GRADIENTS, MOMENTUM, "")),
                self.region,
                updated=Tensor(UPDATED, size) if moves else None,
            )
            self._take([LoweredKernel(kernel, layer=UPDATE)])
        self._written.clear()

    def _demand(self) -> Demand:
        demand = super()._demand()
        whole = demand.own.get(PARAMETERS)
        if whole is None:
            return demand
        more = {
            _copy_name(number): Own(whole.size_bytes, Category.WEIGHTS)
            for number in range(1, self._num_copies)
        }
        return replace(demand, own={**demand.own, **more})

    def _moved(self, places: Mapping[str, Placed]) -> Mapping[int, Mapping[str, Placed]]:
        names = [PARAMETERS, *(each.tensor.name for each in self.stored.values() if each.trainable)]
        home = places[PARAMETERS].begin
        by_copy: list[dict[str, Placed]] = [{}]
        for copy in range(1, self._num_copies):
            offset = places[_copy_name(copy)].begin - home
            by_copy.append(
                {name: Placed(places[name].begin + offset, places[name].end + offset)
                 for name in names}
            )  # fmt: skip
        found: dict[int, Mapping[str, Placed]] = {}
        for number, task in enumerate(self._task_of):
            own = by_copy[self._weights.reads[task]]
            if self._tasks[task].kind is TaskKind.U:
                written = by_copy[self._weights.writes[task]]
                own = {**own, UPDATED: written.get(PARAMETERS, places[PARAMETERS])}
            if own:
                found[number] = own
        return found


def _copy_name(number: int) -> str:
    """Name of the arena of a copy of the parameters."""
    return f"{PARAMETERS} {number}"
