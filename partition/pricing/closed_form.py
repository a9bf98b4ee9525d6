"""Closed forms: cycles of layers from the cost model, and of a mini-batch from a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import UPDATE
from fpgapipe.partition.cost.cost import layer_costs
from fpgapipe.partition.timeline.timeline import StageTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.partition.cost.cost import LayerCost


def layer_cycles(
    pipeline: PipelineProgram, memories: Sequence[MemorySpec]
) -> list[dict[tuple[str, TaskKind], float]]:
    """Cycles of each layer and pass for one micro-batch by the cost model, for each device.

    Layers of one unit are counted together, under the name of the last one; the update is counted
    under `UPDATE`.
    """
    units = {unit.name: [layer.name for layer in unit.layers] for unit in units_of(pipeline.graph)}
    found = []
    for part, memory in zip(pipeline.parts, memories, strict=True):
        every = {cost.name: cost for cost in _costs(pipeline, part.core, memory)}
        own: dict[tuple[str, TaskKind], float] = {}
        update = 0.0
        for name in computed_layers(part):
            costs = [every[layer] for layer in units.get(name, ())]
            for kind, cycles in _passes(costs).items():
                if cycles:
                    own[name, kind] = cycles
            update += sum(cost.update.cycles for cost in costs)
        own[UPDATE, TaskKind.U] = update
        found.append(own)
    return found


def computed_layers(part: DeviceProgram) -> list[str]:
    """The layers that a device computes, in their order, without those it only passes on."""
    stores = part.kernels_with(Opcode.STORE)
    return list(dict.fromkeys(part.kernels[number].layer for number in stores))


def _passes(costs: Sequence[LayerCost]) -> dict[TaskKind, float]:
    forward, input_gradient, weight_gradient = (
        sum(getattr(cost, name).cycles for cost in costs)
        for name in ("forward", "input_gradient", "weight_gradient")
    )
    return {
        TaskKind.F: forward,
        TaskKind.DX: input_gradient,
        TaskKind.DW: weight_gradient,
        TaskKind.B: input_gradient + weight_gradient,
    }


def _costs(pipeline: PipelineProgram, core: CoreSpec, memory: MemorySpec) -> list[LayerCost]:
    """Costs of all layers at a clock of 1 Hz, so that times in seconds are cycles."""
    rate = min(core.most_memory_bytes, memory.bytes_per_cycle)
    node = NodeSpec(core, 1.0, rate, memory.latency_cycles)
    return layer_costs(pipeline.graph, node)


def stage_times(layers: Sequence[dict[tuple[str, TaskKind], float]]) -> StageTimes:
    """Times of each stage for one micro-batch, summed over its layers; transfers take no time."""
    forward, input_gradient, weight_gradient, update = (
        np.array(
            [sum(cycles for (_, each), cycles in own.items() if each is kind) for own in layers]
        )
        for kind in (TaskKind.F, TaskKind.DX, TaskKind.DW, TaskKind.U)
    )
    none = np.zeros(len(layers))
    return StageTimes(forward, input_gradient, weight_gradient, update, none, none)
