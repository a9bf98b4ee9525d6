"""Prices of plans with stages of several nodes, by the cycle model of all of them together.

The nodes of a stage wait for each other within each pass, so none can be timed alone. Of a
mini-batch with many micro-batches, the programs of some are timed; each further one takes as long
as the last of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.schedule.schedule import TaskKind, forward_only
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import DATA_PARALLEL
from fpgapipe.partition.pricing.plan_cores import asked_of, memory_specs, wire_timings
from fpgapipe.partition.pricing.plan_facts import NodeFacts, with_prices
from fpgapipe.partition.pricing.plan_memory import node_memory
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.cluster_cycles import ClusterPrediction
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.lowering.placement import Placement
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.schedule.schedule import Task
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


LONG_CYCLES = 1e7
"""Cycles of a round's products from which on the second round is as long as the third: in VGG-16
over four U280 the two differ by 1.5e-7, in networks of some 300,000 cycles by up to 0.6 %."""


@dataclass(frozen=True)
class JointFacts:
    """Facts of the programs of all nodes.

    Attributes
    ----------
    cycles, period_cycles : float
        Cycles of a mini-batch, and those that one more round costs: of an only stage, a micro-batch
        on each device that shares the samples, of several, a micro-batch.
    nodes : tuple of NodeFacts
    """

    cycles: float
    period_cycles: float
    nodes: tuple[NodeFacts, ...]


_FACTS = TypeAdapter(JointFacts)


def timed_rounds(plan: Plan) -> tuple[int, int]:
    """Rounds whose programs are timed, and those at their end whose time is that of all further.

    A pipeline is full after as many micro-batches as it has stages. An only stage's second round is
    as long as the third, but for what short tasks overlap with.
    """
    depth = len(plan.stages)
    if depth > 1:
        return min(plan.rounds, depth + 4), 2
    first = plan.nodes[0]
    # By products alone: its times are others once the plan is priced.
    cycles = (3 if plan.trains else 1) * first.macs / first.core.cells
    return min(plan.rounds, 2 if cycles > LONG_CYCLES else 3), 1


def price_together(
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
        A plan in which a stage has several nodes.
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
        The event simulation: of an only stage with a lane for each node, whose update has what is
        left of a mini-batch; of several with a lane for each stage. The latter is a sketch: passes
        follow one another in it, where programs send results before a pass is done.

    Raises
    ------
    UserError
        If no programs are made for the plan, or a layer does not fit its core.
    """
    question = asked_of(plan, graph, cluster, options)
    question |= {"what": "nodes together", "timed": timed_rounds(plan)}

    def find() -> str:
        found = _found(plan, graph, cluster, options, pipeline)
        return _FACTS.dump_json(found).decode()

    facts = _FACTS.validate_json(remembered(question, find))
    clk_hz, seconds = plan.clk_hz, facts.cycles / plan.clk_hz
    nodes, times = [], []
    for node, own in zip(plan.nodes, facts.nodes, strict=True):
        priced = own.priced(node, clk_hz)
        passes_s = priced.forward_s, priced.input_gradient_s, priced.weight_gradient_s
        update_s = priced.update_s
        if len(plan.stages) == 1:  # all that is left
            update_s = max(seconds - plan.rounds * sum(passes_s), 0.0)
        times.append((*passes_s, update_s))
        nodes.append(priced.model_copy(update={"update_s": update_s if plan.trains else 0.0}))
    timeline = _timeline(plan, np.array(times))
    period_s = facts.period_cycles / clk_hz / plan.sharers
    return with_prices(plan, nodes, seconds, period_s, timeline)


def _timeline(plan: Plan, times: NDArray[np.float64]) -> Timeline:
    """The event simulation of rows of seconds, one for each node."""
    schedule = plan.order
    if len(plan.stages) == 1:
        count = len(plan.nodes)
        schedule = make_schedule(DATA_PARALLEL, count, plan.rounds * count)
    else:
        times = times[np.cumsum(plan.division.sizes) - 1]  # of the last node
    forward, inputs, weights, update = times.T
    none = np.zeros(len(times))
    return simulate(
        schedule if plan.trains else forward_only(schedule),
        StageTimes(forward, inputs, weights, update, none, none),
    )


def _found(
    plan: Plan,
    graph: Graph,
    cluster: ClusterSpec,
    options: StepOptions,
    pipeline: PipelineProgram | None,
) -> JointFacts:
    """Facts of the programs."""
    rounds, last = timed_rounds(plan)
    cores, memories = plan.cores, memory_specs(plan)

    def timed(number: int) -> tuple[PipelineProgram, ClusterPrediction]:
        programs = pipeline if number == plan.rounds else None
        if programs is None:
            programs = _some(plan, graph, cluster, options, number)
        return programs, predict_cluster(
            [part.instructions for part in programs.parts],
            cores,
            programs.wiring,
            memories=memories,
            wires=wire_timings(plan, cluster),
        )

    programs, found = timed(rounds)
    period = found.cycles / rounds
    total = float(found.cycles)
    if rounds < plan.rounds:
        period = (found.cycles - timed(rounds - last)[1].cycles) / last
        total += (plan.rounds - rounds) * period
    ends = [np.array(device.ends) for device in found.devices]
    if len(plan.stages) > 1:
        passes = _stages_passes(plan, programs, ends)
    else:
        each = period if rounds < plan.rounds else None
        pairs = zip(programs.parts, ends, strict=True)
        passes = [_shares(part, own, rounds, each) for part, own in pairs]
    nodes = [
        NodeFacts(forward, backward, tail, *_moved_bytes(part, programs.placement), size)
        for (forward, backward, tail), part, size in zip(
            passes, programs.parts, node_memory(plan, programs), strict=True
        )
    ]
    return JointFacts(total, float(period), tuple(nodes))


def _some(
    plan: Plan, graph: Graph, cluster: ClusterSpec, options: StepOptions, rounds: int
) -> PipelineProgram:
    """Programs of the first rounds of a mini-batch."""
    sharers = plan.sharers

    def tasks_of(tasks: Sequence[Task]) -> Sequence[Task]:
        return [each for each in tasks if each.microbatch // sharers < rounds]

    alone = len(plan.stages) == 1
    order = plan.order if alone else make_schedule(plan.schedule, len(plan.stages), rounds)
    try:
        return build_pipeline(
            graph, plan.cores, plan.division, order, memory_specs(plan), options,
            tasks_of if alone else None, PlacedNodes.of(plan, cluster).placement,
        )  # fmt: skip
    except NotImplementedError as error:
        raise UserError(str(error)) from error


def _stages_passes(
    plan: Plan, programs: PipelineProgram, ends: Sequence[NDArray[np.float64]]
) -> list[tuple[float, float, float]]:
    """Cycles of the passes and of the tail of each node's stage."""
    found = []
    for first, size in zip(plan.division.first, plan.division.sizes, strict=True):
        last, placement = first + size - 1, programs.placement
        forward, _ = _passes(programs, first, ends[first], placement.before(first))
        _, backward = _passes(programs, last, ends[last], placement.after(last))
        tail = max(_tail(programs.parts[each], ends[each]) for each in range(first, last + 1))
        found += [(forward, backward, tail)] * size
    return found


def _passes(
    programs: PipelineProgram, node: int, ends: NDArray[np.float64], other: int | None
) -> tuple[float, float]:
    """Mean cycles of the passes of a node, from when its input has come from another, if any."""
    part = programs.parts[node]
    comes = None if other is None else programs.placement.link(node, other)
    done = _done(part, ends)
    came = np.zeros(len(part.tasks))
    program = part.instructions
    receives = np.flatnonzero((program.opcodes == Opcode.RECEIVE) & (program.engines == comes))
    np.maximum.at(came, _tasks(part)[receives], ends[receives])
    began = np.maximum(np.concatenate([[0.0], done[:-1]]), came)
    took = np.maximum(done - began, 0.0)
    kinds = np.array([task.kind for task in part.tasks])
    split = took[kinds == TaskKind.DX].sum() + took[kinds == TaskKind.DW].sum()
    count = max(int((kinds == TaskKind.F).sum()), 1)
    backward = float(took[kinds == TaskKind.B].sum() + split) / count
    return float(took[kinds == TaskKind.F].sum()) / count, backward


def _shares(
    part: DeviceProgram, ends: NDArray[np.float64], rounds: int, period: float | None
) -> tuple[float, float, float]:
    """Cycles of a round's passes, divided as those of the last micro-batch; no tail."""
    done = _done(part, ends)
    took = np.diff(done, prepend=0.0)
    kinds = np.array([task.kind for task in part.tasks])
    passes = [np.flatnonzero(kinds == kind) for kind in (TaskKind.F, TaskKind.B)]
    forward, backward = (float(took[each[-1]]) if each.size else 0.0 for each in passes)
    end = float(done[max(each[-1] for each in passes if each.size)])
    each, whole = end / rounds if period is None else period, forward + backward or 1.0
    return each * forward / whole, each * backward / whole, 0.0


def _done(part: DeviceProgram, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cycle at which each task and all before it are done."""
    done = np.zeros(len(part.tasks))
    tasks = _tasks(part)
    np.maximum.at(done, tasks, ends[: len(tasks)])
    return np.maximum.accumulate(done)


def _tasks(part: DeviceProgram) -> NDArray[np.int64]:
    """Number of the task of each instruction but END."""
    tasks = np.array([each.task for each in part.kernels], np.int64)
    found: NDArray[np.int64] = tasks[part.kernel_of]
    return found


def _tail(part: DeviceProgram, ends: NDArray[np.float64]) -> float:
    """Cycles of a device after its last pass: the sums of gradients, and the update."""
    tasks = _tasks(part)
    is_pass = np.array([task.kind is not TaskKind.U for task in part.tasks])[tasks]
    return float(ends.max(initial=0.0) - ends[: len(tasks)][is_pass].max(initial=0.0))


def _moved_bytes(part: DeviceProgram, placement: Placement) -> tuple[int, int]:
    """Bytes of a micro-batch that go to the next node, and that come back from it."""
    _, link = placement.between(part.index)
    program, tasks = part.instructions[:-1], _tasks(part)
    begin, end = program.spans
    kinds = np.array([task.kind for task in part.tasks])[tasks]
    count = max(len(part.microbatches), 1)
    sends, returns = (
        int((end - begin)[(kinds == kind) & (program.opcodes == opcode) & over].sum()) // count
        for over in (program.engines == link,)
        for kind, opcode in ((TaskKind.F, Opcode.SEND), (TaskKind.B, Opcode.RECEIVE))
    )
    return sends, returns
