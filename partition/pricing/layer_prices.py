"""Prices of layers on a core, found in the program of the whole network on one device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
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

Prices = dict[tuple[str, TaskKind], tuple[float, int]]
"""Cycles, and bytes of the program, by the layer and the kind of a task."""


@dataclass
class LayerPrices:
    """Prices of the layers of one network for one micro-batch; each core is priced once.

    Parameters
    ----------
    graph : Graph
        The network for the samples of one micro-batch.
    train : bool
        Whether there are backward passes and updates.
    count : int
        Micro-batches of a mini-batch. All but the first add their weight gradients to a sum.
    options : StepOptions, optional
        Options of the program; those of `train` if not given.
    """

    graph: Graph
    train: bool
    count: int
    options: StepOptions | None = None
    _known: dict[tuple[CoreSpec, MemorySpec], Prices] = field(default_factory=dict)

    @property
    def _options(self) -> StepOptions:
        return self.options or StepOptions(train=self.train)

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches in the program that is timed."""
        return min(self.count, 2)

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
        return self._replaced(estimates, self._known[key], node.clk_hz, core.num_engines)

    def _remembered(self, core: CoreSpec, memory: MemorySpec) -> Prices:
        """Result of `_prices`, from a file if it is there."""
        question = {
            "what": "layers",
            "graph": to_json(self.graph),
            "core": asdict(core),
            "memory": asdict(memory),
            "train": self.train,
            "micro-batches": self.num_microbatches,
            "options": repr(self._options),
        }

        def find() -> list[tuple[str, int, float, int]]:
            found = self._prices(core, memory)
            return [(name, int(kind), *own) for (name, kind), own in found.items()]

        answer = remembered(question, find)
        return {(name, TaskKind(kind)): (cycles, size) for name, kind, cycles, size in answer}

    def _prices(self, core: CoreSpec, memory: MemorySpec) -> Prices:
        """Prices of each unit by pass, under the name of its first layer."""
        count = self.num_microbatches
        tasks = single_device(count, train=self.train)
        program = build_step(self.graph, core, memory, self._options, tasks)
        ends = predict(program.instructions, core, memory).ends
        first = {unit.name: unit.layers[0].name for unit in units_of(self.graph)}
        found: Prices = {}
        for (layer, task), (cycles, size) in _shares(program, ends).items():
            kind, microbatch = program.tasks[task].kind, program.tasks[task].microbatch
            if microbatch in (count - 1, -1):
                key = first.get(layer, layer), kind
                before = found.get(key, (0.0, 0))
                found[key] = before[0] + cycles, before[1] + size
        return found

    def _replaced(
        self, estimates: Sequence[LayerCost], prices: Prices, clk_hz: float, engines: int
    ) -> list[LayerCost]:
        cycles = {key: found for key, (found, _) in prices.items()}
        sizes: defaultdict[str, int] = defaultdict(int)
        for (name, kind), (_, size) in prices.items():
            sizes[name] += size * (1 if kind is TaskKind.U else self.count)
        update = cycles.get((UPDATE, TaskKind.U), 0.0)
        learned = sum(cost.weight_bytes for cost in estimates)
        found = []
        for cost in estimates:
            forward, backward = (
                cycles.get((cost.name, kind), 0.0) for kind in (TaskKind.F, TaskKind.B)
            )
            size = sizes[cost.name]
            if cost is estimates[-1]:
                forward += cycles.get((LOSS, TaskKind.F), 0.0)
                size += sizes[LOSS]
            forward, backward = forward / engines, backward / engines
            # A gradient that is computed for all micro-batches at last takes about as long for any
            # number of them: most of its time goes into writing it, and into the update of weights.
            late = cycles.get((cost.name, TaskKind.U), 0.0)
            share = 1.0 if not cost.backward_s else cost.input_gradient.seconds / cost.backward_s
            if cost.backward_s and cost.weight_bytes and not cost.input_gradient.seconds:
                share = 0.0
            part = cost.weight_bytes / learned if learned else 0.0
            found.append(
                replace(
                    cost,
                    forward=_priced(cost.forward, forward, clk_hz),
                    input_gradient=_priced(cost.input_gradient, share * backward, clk_hz),
                    weight_gradient=_priced(cost.weight_gradient, (1 - share) * backward, clk_hz),
                    update=_priced(cost.update, part * update + late, clk_hz),
                    program_bytes=size + round(part * sizes[UPDATE]),
                )
            )
        return found


def _priced(cost: PassCost, cycles: float, clk_hz: float) -> PassCost:
    return replace(cost, seconds=cycles / clk_hz, cycles=round(cycles))


def _shares(
    program: StepProgram, ends: Sequence[float]
) -> dict[tuple[str, int], tuple[float, int]]:
    """Cycles by layer and task, from the end of what ended before to its own end, and bytes.

    All shares together are the time from the start to the last end, and the whole program.
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
    words = program.instructions.words[: len(of_instruction)]
    sizes = WORD_BYTES * np.bincount(of_instruction, words, len(keys))
    return {key: (float(cycles[at]), int(sizes[at])) for key, at in keys.items()}
