"""Prices of layers on a core, found in the program of the whole network on one device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import UPDATE, StepOptions
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.cost.cost import PassCost
from fpgapipe.partition.pricing.price_cache import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.lowering.program.step_program import StepProgram
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.cost.cost import LayerCost

LOSS = "loss"
"""Layer of the kernels of the loss."""

Cycles = dict[tuple[str, TaskKind], float]


@dataclass
class LayerPrices:
    """Prices of the layers of one network for one micro-batch; each core is priced once.

    Parameters
    ----------
    graph : Graph
        The network for the samples of one micro-batch.
    train : bool
        Whether there are backward passes and updates.
    accumulates : bool
        Whether there are several micro-batches, all but the first of which add their weight
        gradients to a sum.
    options : StepOptions, optional
        Options of the program; those of `train` if not given.
    """

    graph: Graph
    train: bool
    accumulates: bool
    options: StepOptions | None = None
    _known: dict[tuple[CoreSpec, MemorySpec], Cycles] = field(default_factory=dict)

    @property
    def _options(self) -> StepOptions:
        return self.options or StepOptions(train=self.train)

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches in the program that is timed."""
        return 2 if self.accumulates else 1

    def costs(self, estimates: Sequence[LayerCost], node: NodeSpec) -> list[LayerCost]:
        """Estimates of all layers with their seconds replaced by those of the program.

        The seconds of layers that run together are those of the first of them, since a stage that
        has the first has them all. Where both gradients are computed together, the time is shared
        among them as the estimate has it. Of a core with several engines one is priced, and the
        times are divided among all: the event simulation expects those of a single engine with all
        columns.

        Raises
        ------
        UserError, NotImplementedError
            If the core does not run a layer.
        """
        core = node.core
        memory = MemorySpec(node.memory_bytes_per_cycle, node.memory_latency_cycles)
        # The program is that of a single device, which has one engine in use and no links.
        key = replace(core, num_engines=1, links=()), memory
        if key not in self._known:
            self._known[key] = self._remembered(*key)
        cycles = self._known[key]
        return self._replaced(estimates, cycles, node.clk_hz, core.num_engines)

    def _remembered(self, core: CoreSpec, memory: MemorySpec) -> Cycles:
        """Result of `_cycles`, from a file if it is there."""
        question = {
            "what": "layers",
            "graph": to_json(self.graph),
            "core": asdict(core),
            "memory": asdict(memory),
            "train": self.train,
            "micro-batches": self.num_microbatches,
            "options": repr(self._options),
        }

        def find() -> list[tuple[str, int, float]]:
            found = self._cycles(core, memory)
            return [(name, int(kind), cycles) for (name, kind), cycles in found.items()]

        answer = remembered(question, find)
        return {(name, TaskKind(kind)): cycles for name, kind, cycles in answer}

    def _cycles(self, core: CoreSpec, memory: MemorySpec) -> Cycles:
        """Cycles of each unit by pass, under the name of its first layer."""
        count = self.num_microbatches
        tasks = single_device(count, train=self.train)
        program = build_step(self.graph, core, memory, self._options, tasks)
        ends = predict(program.instructions, core, memory).ends
        first = {unit.name: unit.layers[0].name for unit in units_of(self.graph)}
        found: Cycles = {}
        for (layer, task), cycles in _shares(program, ends).items():
            kind, microbatch = program.tasks[task].kind, program.tasks[task].microbatch
            if microbatch in (count - 1, -1):
                key = first.get(layer, layer), kind
                found[key] = found.get(key, 0.0) + cycles
        return found

    def _replaced(
        self, estimates: Sequence[LayerCost], cycles: Cycles, clk_hz: float, engines: int
    ) -> list[LayerCost]:
        update = cycles.get((UPDATE, TaskKind.U), 0.0)
        learned = sum(cost.weight_bytes for cost in estimates)
        found = []
        for cost in estimates:
            forward, backward = (
                cycles.get((cost.name, kind), 0.0) for kind in (TaskKind.F, TaskKind.B)
            )
            if cost is estimates[-1]:
                forward += cycles.get((LOSS, TaskKind.F), 0.0)
            forward, backward = forward / engines, backward / engines
            # A gradient that is computed for all micro-batches at last takes about as long for any
            # number of them: most of its time goes into writing it, and into the update of weights.
            late = cycles.get((cost.name, TaskKind.U), 0.0)
            share = 1.0 if not cost.backward_s else cost.input_gradient.seconds / cost.backward_s
            if cost.backward_s and cost.weight_bytes and not cost.input_gradient.seconds:
                share = 0.0
            part = update * cost.weight_bytes / learned if learned else 0.0
            found.append(
                replace(
                    cost,
                    forward=_priced(cost.forward, forward, clk_hz),
                    input_gradient=_priced(cost.input_gradient, share * backward, clk_hz),
                    weight_gradient=_priced(cost.weight_gradient, (1 - share) * backward, clk_hz),
                    update=_priced(cost.update, part + late, clk_hz),
                )
            )
        return found


def _priced(cost: PassCost, cycles: float, clk_hz: float) -> PassCost:
    return replace(cost, seconds=cycles / clk_hz, cycles=round(cycles))


def _shares(program: StepProgram, ends: Sequence[float]) -> dict[tuple[str, int], float]:
    """Cycles by layer and task: from the end of what ended before to its own end.

    All shares together are the time from the start to the last end.
    """
    keys: dict[tuple[str, int], int] = {}
    for each in program.kernels:
        keys.setdefault((each.layer, each.task), len(keys))
    of_kernel = np.array([keys[each.layer, each.task] for each in program.kernels])
    last = np.zeros(len(keys))
    of_instruction = of_kernel[np.array(program.kernel_of)]
    np.maximum.at(last, of_instruction, np.asarray(ends)[: len(of_instruction)])
    order = np.argsort(last, kind="stable")
    cycles = np.zeros(len(keys))
    cycles[order] = np.diff(last[order], prepend=0.0)
    return {key: float(cycles[index]) for key, index in keys.items()}
