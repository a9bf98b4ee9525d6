"""Prices of a plan whose devices have parts of all layers, by the cycle model of all of them.

The devices wait for each other within each pass, so none can be timed alone. The programs of a few
rounds of micro-batches are timed together; each further round takes as long as the last of these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.isa.instructions import Opcode, span_of
from fpgapipe.lowering.lower import build_pipeline, tasks_of_devices
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.program.pipeline import link_after, wiring_of
from fpgapipe.lowering.program.step_program import StepProgram
from fpgapipe.lowering.schedule.schedule import TaskKind, forward_only
from fpgapipe.network.graph_json import to_json
from fpgapipe.partition.plan import DATA_PARALLEL, Prediction
from fpgapipe.partition.pricing.plan_cores import core_specs, memory_specs, wire_timings
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.cluster_cycles import ClusterPrediction
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.schedule.schedule import Task
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline

ROUNDS = 3
"""Rounds of micro-batches whose programs are timed."""


@dataclass(frozen=True)
class ShardFacts:
    """What a device's program says.

    Attributes
    ----------
    forward_cycles, backward_cycles : float
        Cycles of a pass over a micro-batch, with waiting.
    sends_bytes, returns_bytes : int
        Bytes of a micro-batch's values that go to the next device, and of the gradients that come
        back from it.
    memory_bytes : int
    """

    forward_cycles: float
    backward_cycles: float
    sends_bytes: int
    returns_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class ShardedFacts:
    """What the programs of all devices say.

    Attributes
    ----------
    cycles : float
        Cycles of a mini-batch.
    round_cycles : float
        Cycles that one more round of micro-batches costs.
    devices : tuple of ShardFacts
    """

    cycles: float
    round_cycles: float
    devices: tuple[ShardFacts, ...]


_FACTS = TypeAdapter(ShardedFacts)


def price_sharded(
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
        A plan with shards.
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
        The update has what is left of a mini-batch: the sum of gradients, and what the first round
        takes longer than the others.

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
    clk_hz, rounds = plan.clk_hz, plan.rounds
    nodes, times = [], []
    for node, own in zip(plan.nodes, facts.devices, strict=True):
        estimated = node.input_gradient_s + node.weight_gradient_s
        share = node.input_gradient_s / estimated if estimated else 1.0
        forward_s, backward_s = own.forward_cycles / clk_hz, own.backward_cycles / clk_hz
        rest = facts.cycles / clk_hz - rounds * (forward_s + backward_s)
        row = forward_s, share * backward_s, (1 - share) * backward_s, max(rest, 0.0)
        times.append(row)
        nodes.append(
            node.model_copy(
                update={
                    "forward_s": row[0],
                    "input_gradient_s": row[1],
                    "weight_gradient_s": row[2],
                    "update_s": row[3] if plan.trains else 0.0,
                    "sends_bytes": own.sends_bytes,
                    "returns_bytes": own.returns_bytes,
                    "memory_bytes": own.memory_bytes,
                }
            )
        )
    forward, inputs, weights, update = np.array(times).T
    none = np.zeros(len(nodes))
    stage_times = StageTimes(forward, inputs, weights, update, none, none)
    schedule = make_schedule(DATA_PARALLEL, len(nodes), rounds * len(nodes))
    timeline = simulate(schedule if plan.trains else forward_only(schedule), stage_times)
    seconds = facts.cycles / clk_hz
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=facts.round_cycles / clk_hz / plan.sharers,
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
        "what": "sharded plan",
        "graph": to_json(graph),
        "degrees": {name: asdict(each) for name, each in plan.division.degrees.items()},
        "cores": [asdict(core) for core in core_specs(plan)],
        "memories": [asdict(memory) for memory in memory_specs(plan)],
        "wires": [asdict(wire) for wire in wire_timings(plan, cluster)],
        "microbatches": plan.num_microbatches,
        "options": repr(options),
    }


def _found(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None,
) -> ShardedFacts:
    """What the programs say."""
    rounds = plan.rounds
    cores, memories = core_specs(plan), memory_specs(plan)

    def timed(count: int) -> tuple[PipelineProgram, ClusterPrediction]:
        def tasks_of(tasks: Sequence[Task]) -> Sequence[Task]:
            return [each for each in tasks if each.microbatch // plan.sharers < count]

        programs = pipeline if pipeline is not None and count == rounds else None
        if programs is None:
            try:
                programs = build_pipeline(
                    graph, cores, plan.division, plan.order, memories, options, tasks_of
                )
            except NotImplementedError as error:
                raise UserError(str(error)) from error
        return programs, predict_cluster(
            [part.instructions for part in programs.parts],
            cores,
            wiring_of(len(cores)),
            memories=memories,
            wires=wire_timings(plan, cluster),
        )

    programs, found = timed(min(rounds, ROUNDS))
    each = found.cycles / rounds
    total = float(found.cycles)
    if rounds > ROUNDS:
        _, fewer = timed(ROUNDS - 1)
        each = float(found.cycles - fewer.cycles)
        total += (rounds - ROUNDS) * each
    devices = []
    lanes = tasks_of_devices(plan.division, plan.order, train=plan.trains)
    for part, prediction, tasks in zip(programs.parts, found.devices, lanes, strict=True):
        forward, backward, end = _shares(part, prediction.ends)
        size = part.memory_bytes
        if rounds > ROUNDS:
            assert isinstance(part, StepProgram), "a program that was just made knows its demand"
            size = memory_bytes(part.demand.repeated(tasks))
        passes = each if rounds > ROUNDS else end / rounds
        whole = forward + backward or 1.0
        devices.append(
            ShardFacts(
                passes * forward / whole,
                passes * backward / whole,
                *moved_bytes(part),
                size,
            )
        )
    return ShardedFacts(total, each, tuple(devices))


def _shares(part: DeviceProgram, ends: Sequence[float]) -> tuple[float, float, float]:
    """Cycles of the last micro-batch's passes, forward and backward, and when they are done."""
    done = np.zeros(len(part.tasks))
    for kernel, end in zip(part.kernel_of, ends, strict=False):
        task = part.kernels[kernel].task
        done[task] = max(done[task], end)
    done = np.maximum.accumulate(done)
    took = np.diff(done, prepend=0.0)
    kinds = np.array([task.kind for task in part.tasks])
    passes = [np.flatnonzero(kinds == kind) for kind in (TaskKind.F, TaskKind.B)]
    forward, backward = (float(took[each[-1]]) if each.size else 0.0 for each in passes)
    return forward, backward, float(done[max(each[-1] for each in passes if each.size)])


def moved_bytes(part: DeviceProgram) -> tuple[int, int]:
    """Bytes of a micro-batch that go to the next device, and that come back from it."""
    link = link_after(part.index)
    moved = {(TaskKind.F, Opcode.SEND): 0, (TaskKind.B, Opcode.RECEIVE): 0}
    for kernel, instruction in zip(part.kernel_of, part.instructions, strict=False):
        key = part.tasks[part.kernels[kernel].task].kind, instruction.opcode
        if key in moved and instruction.engine == link:
            begin, end = span_of(instruction)
            moved[key] += end - begin
    count = max(len(part.microbatches), 1)
    sends, returns = (total // count for total in moved.values())
    return sends, returns
