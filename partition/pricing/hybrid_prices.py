"""Prices of plans whose stages are groups of devices.

The programs of all devices are timed together, with all that they send to one another. Of a
mini-batch with many micro-batches, those of some are timed; each further one takes as long as the
last of these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.lowering.lower import build_pipeline, tasks_of_devices
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.program.pipeline import link_after, wiring_of
from fpgapipe.lowering.program.step_program import StepProgram
from fpgapipe.lowering.schedule.schedule import TaskKind, forward_only
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.plan import Prediction
from fpgapipe.partition.pricing.plan_cores import core_specs, memory_specs, wire_timings
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.pricing.sharded_prices import moved_bytes
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.cluster_cycles import ClusterPrediction
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline

MORE = 4
"""Micro-batches, besides one for each stage, whose programs are timed."""

LAST = 2
"""Of these, the last ones, whose time is that of all further ones."""


@dataclass(frozen=True)
class HybridFacts:
    """What the programs of all devices say.

    Attributes
    ----------
    cycles, period_cycles : float
        Cycles of a mini-batch, and those that one more micro-batch costs.
    passes : tuple of (float, float, float)
        For each stage, cycles of a forward and a backward pass over a micro-batch once its input is
        there, and of the update with the sums of gradients.
    moved_bytes : tuple of (int, int)
        For each device, bytes of a micro-batch that go to the next one, and that come back.
    memory_bytes : tuple of int
        For each device.
    """

    cycles: float
    period_cycles: float
    passes: tuple[tuple[float, float, float], ...]
    moved_bytes: tuple[tuple[int, int], ...]
    memory_bytes: tuple[int, ...]


_FACTS = TypeAdapter(HybridFacts)


def timed_microbatches(plan: Plan) -> int:
    """Micro-batches whose programs are timed."""
    return min(plan.num_microbatches, len(plan.stages) + MORE)


def price_hybrid(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None = None,
) -> tuple[Plan, Timeline]:
    """Put what the programs take in the place of what formulas estimated.

    Parameters
    ----------
    plan : Plan
        A hybrid plan.
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    options : StepOptions
    pipeline : PipelineProgram, optional
        The programs of all micro-batches, if they are there already.

    Returns
    -------
    plan : Plan
    timeline : Timeline
        The event simulation of the pipeline, one device for each stage. It is a sketch: passes
        follow one another in it, where programs send results before a pass is done.

    Raises
    ------
    UserError
        If no programs are made for the plan, or a layer does not fit its core.
    """
    question = _question(plan, graph, cluster, options)

    def find() -> str:
        found = _found(plan, graph, cluster, options, pipeline)
        return _FACTS.dump_json(found).decode()

    facts = _FACTS.validate_json(remembered(question, find))
    clk_hz = plan.clk_hz
    lane_of = np.repeat(np.arange(len(plan.stages)), plan.division.sizes)
    nodes = []
    rows = [(0.0, 0.0, 0.0, 0.0)] * len(plan.stages)
    for number, (device, lane) in enumerate(zip(plan.nodes, lane_of, strict=True)):
        estimated = device.input_gradient_s + device.weight_gradient_s
        share = device.input_gradient_s / estimated if estimated else 1.0
        forward_s, backward_s, update_s = (cycles / clk_hz for cycles in facts.passes[lane])
        rows[lane] = forward_s, share * backward_s, (1 - share) * backward_s, update_s
        sends_bytes, returns_bytes = facts.moved_bytes[number]
        nodes.append(
            device.model_copy(
                update={
                    "forward_s": forward_s,
                    "input_gradient_s": rows[lane][1],
                    "weight_gradient_s": rows[lane][2],
                    "update_s": update_s,
                    "sends_bytes": sends_bytes,
                    "returns_bytes": returns_bytes,
                    "memory_bytes": facts.memory_bytes[number],
                }
            )
        )
    forward, inputs, weights, update = np.array(rows).T
    none = np.zeros(len(rows))
    timeline = simulate(
        plan.order if plan.trains else forward_only(plan.order),
        StageTimes(forward, inputs, weights, update, none, none),
    )
    seconds = facts.cycles / clk_hz
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=facts.period_cycles / clk_hz,
        bubble_rate=min(max(timeline.bubble_rate, 0.0), 1.0),
        samples_per_s=plan.batch / seconds,
        level="machine",
    )
    return plan.with_nodes(nodes).model_copy(update={"predicted": predicted}), timeline


def _question(
    plan: Plan, graph: Graph, cluster: ClusterSpec, options: StepOptions
) -> dict[str, Any]:
    """All that the cycles of the programs depend on."""
    return {
        "what": "hybrid plan",
        "graph": to_json(graph),
        "layers": plan.division.layers,
        "sizes": plan.division.sizes,
        "degrees": {name: asdict(each) for name, each in plan.division.degrees.items()},
        "cores": [asdict(core) for core in core_specs(plan)],
        "memories": [asdict(memory) for memory in memory_specs(plan)],
        "wires": [asdict(wire) for wire in wire_timings(plan, cluster)],
        "schedule": [plan.schedule, plan.num_microbatches],
        "options": repr(options),
    }


def _found(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None,
) -> HybridFacts:
    """What the programs say."""
    count = timed_microbatches(plan)
    cores, memories = core_specs(plan), memory_specs(plan)

    def timed(number: int) -> tuple[PipelineProgram, ClusterPrediction]:
        programs = pipeline if number == plan.num_microbatches else None
        if programs is None:
            try:
                schedule = make_schedule(plan.schedule, len(plan.stages), number)
                programs = build_pipeline(graph, cores, plan.division, schedule, memories, options)
            except NotImplementedError as error:
                raise UserError(str(error)) from error
        return programs, predict_cluster(
            [part.instructions for part in programs.parts],
            cores,
            wiring_of(len(cores)),
            memories=memories,
            wires=wire_timings(plan, cluster),
        )

    programs, found = timed(count)
    period = found.cycles / count
    total = float(found.cycles)
    if count < plan.num_microbatches:
        period = (found.cycles - timed(count - LAST)[1].cycles) / LAST
        total += (plan.num_microbatches - count) * period
    sizes = _sizes(plan, programs, count)
    ends = [list(device.ends) for device in found.devices]
    passes = []
    for first, size in zip(plan.division.first, plan.division.sizes, strict=True):
        last = first + size - 1
        forward, _ = _passes(programs.parts[first], ends[first], comes=0 if first else None)
        behind = link_after(last) if last + 1 < len(cores) else None
        _, backward = _passes(programs.parts[last], ends[last], comes=behind)
        tail = max(_tail(programs.parts[each], ends[each]) for each in range(first, last + 1))
        passes.append((forward, backward, tail))
    moved = tuple(moved_bytes(part) for part in programs.parts)
    return HybridFacts(total, float(period), tuple(passes), moved, tuple(sizes))


def _sizes(plan: Plan, programs: PipelineProgram, count: int) -> list[int]:
    """Bytes of memory of each device's program of all micro-batches."""
    if count == plan.num_microbatches:
        return [part.memory_bytes for part in programs.parts]
    lanes = tasks_of_devices(plan.division, plan.order, train=plan.trains)
    found = []
    for part, tasks in zip(programs.parts, lanes, strict=True):
        assert isinstance(part, StepProgram), "a program that was just made knows its demand"
        found.append(memory_bytes(part.demand.repeated(tasks)))
    return found


def _passes(part: DeviceProgram, ends: Sequence[float], comes: int | None) -> tuple[float, float]:
    """Mean cycles of the passes of a device, from when its input has come over a link."""
    done = np.zeros(len(part.tasks))
    came = np.zeros(len(part.tasks))
    pairs = zip(part.kernel_of, part.instructions, ends, strict=False)
    for kernel, instruction, end in pairs:
        task = part.kernels[kernel].task
        done[task] = max(done[task], end)
        if instruction.opcode is Opcode.RECEIVE and instruction.engine == comes:
            came[task] = max(came[task], end)
    done = np.maximum.accumulate(done)
    began = np.maximum(np.concatenate([[0.0], done[:-1]]), came)
    took = np.maximum(done - began, 0.0)
    kinds = np.array([task.kind for task in part.tasks])
    split = took[kinds == TaskKind.DX].sum() + took[kinds == TaskKind.DW].sum()
    count = max(int((kinds == TaskKind.F).sum()), 1)
    backward = float(took[kinds == TaskKind.B].sum() + split) / count
    return float(took[kinds == TaskKind.F].sum()) / count, backward


def _tail(part: DeviceProgram, ends: Sequence[float]) -> float:
    """Cycles of a device after its last pass: the sums of gradients, and the update."""
    last = max(ends, default=0.0)
    passes = [
        end
        for kernel, end in zip(part.kernel_of, ends, strict=False)
        if part.tasks[part.kernels[kernel].task].kind is not TaskKind.U
    ]
    return float(last - max(passes, default=0.0))
