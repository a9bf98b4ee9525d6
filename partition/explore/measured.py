"""Planning from measured times, on equal devices with equal links; stages may be replicated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fpgapipe.lowering.schedule.schedule import Schedule, ScheduleError
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators import Measured
from fpgapipe.partition.cost.cost import LayerCost, measured_costs
from fpgapipe.partition.explore.candidate import DeviceChain, make_candidate_schedule
from fpgapipe.partition.explore.fastest_cut import Answer, Question, find_fastest
from fpgapipe.partition.explore.unit_problem import make_problem, reads_of, units_of
from fpgapipe.partition.schedule.replicated import replicated
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, model_of, schedule_kind
from fpgapipe.partition.search import dag
from fpgapipe.partition.search.problem import (
    TOLERANCE,
    Objective,
    Partition,
    PartitionProblem,
    StageAssignment,
    Transfer,
)
from fpgapipe.partition.search.replicas import plan_replicated
from fpgapipe.partition.timeline.event_graph import StageTimes
from fpgapipe.partition.timeline.replay import GRADIENTS, Replay

MAX_DEVICES = 65_536


def plan_profile(
    graph: Graph,
    num_devices: int,
    *,
    bytes_per_s: float,
    straight: bool = False,
    objective: Objective = Objective.BOTTLENECK,
    num_microbatches: int = 1,
    schedule: str = "pipedream",
    order: Schedule | None = None,
) -> Partition:
    """Cut a measured network into stages.

    The time of a mini-batch is that of the event simulation; of an asynchronous schedule, in the
    steady state.

    Parameters
    ----------
    graph : Graph
        Profile: a network of `Measured` layers.
    num_devices : int
        Number of devices, all equal to the one that was measured.
    bytes_per_s : float
        Bandwidth of the link between any two devices.
    straight : bool
        Whether every stage has one device and transfers cost nothing. If false, a stage may have
        several devices, which add up their gradients in a ring.
    objective : Objective
        Time to minimise.
    num_microbatches : int
        Micro-batches of a mini-batch.
    schedule : str
        Name of the schedule.
    order : Schedule, optional
        A schedule with an order of its own. Every device has one stage then, and the objective is
        the time of a mini-batch.

    Raises
    ------
    NetworkError
        If the number of devices is out of range, or the network is no profile.
    ScheduleError
        If the schedule cannot be planned.
    PlanError
        If no partition keeps the limits.
    """
    if not 1 <= num_devices <= MAX_DEVICES:
        raise NetworkError(f"devices must be 1..{MAX_DEVICES}, not {num_devices}")
    if not all(isinstance(layer.operator, Measured) for layer in graph.layers.values()):
        raise NetworkError(f"{graph.name} is no profile: its layers have shapes, not times")
    costs = measured_costs(graph)
    forward = sum(cost.forward.seconds for cost in costs)
    ratio = sum(cost.backward_s for cost in costs) / forward if forward else 2.0
    model = model_of("gpipe" if order else schedule, num_microbatches, num_devices, ratio)
    if straight:
        model = model.straight
    hops = num_devices - 1
    groups = layers_together(graph)
    problem = make_problem(
        graph,
        groups,
        [costs],
        [0] * num_devices,
        [f"device{i}" for i in range(num_devices)],
        [float(np.inf)] * num_devices,
        DeviceChain(tuple(range(num_devices)), (bytes_per_s,) * hops, (0.0,) * hops),
        model,
    )
    units = units_of(groups, [costs])
    question = Question(problem, units, schedule, reads=reads_of(graph, units[0]), order=order)
    simulation = _Simulation(problem, units[0], schedule)
    if order is not None:
        return _searched(question, simulation)
    # An order for given times has no replicas.
    alone = straight or (order is None and schedule_kind(schedule).make_for is not None)
    plan = dag.plan if alone else plan_replicated
    try:
        found = plan(problem, objective, evaluate=simulation)
    except ScheduleError as error:  # too many passes to simulate
        found = plan(problem, objective)
        why = f"by the formula of the schedule, since {error}; {found.reason}"
        return dataclasses.replace(found, reason=why)
    if objective is Objective.BOTTLENECK:
        return found
    return _searched(question, simulation, found, replicates=not alone)


def _searched(
    question: Question,
    simulation: _Simulation,
    other: Partition | None = None,
    *,
    replicates: bool = False,
) -> Partition:
    """The fastest cut without replicas, or another partition if that is faster."""
    problem = question.problem
    answer = find_fastest(question, [], all_devices=question.order is not None)
    if answer is None:
        if other is None:
            raise ScheduleError(
                f"{problem.num_layers} layers cannot be cut into {problem.num_devices} stages"
            )
        return other
    found = simulation.partition(answer)
    if not replicates:
        return found
    assert other is not None
    best = min((found, other), key=lambda each: each.minibatch_time_s)
    # However stages are replicated, all devices together do the work of all micro-batches, and one
    # of these passes all layers and their input gradients.
    work = problem.schedule.num_microbatches * float(problem.compute_s.sum()) / problem.num_devices
    passes = [question.times.passes_s[row, 0, -1] for row in range(2)]
    bound_s = min(max(work, float(sum(passes))), answer.lower_bound_s)
    gap = 1 - bound_s / best.minibatch_time_s if best.minibatch_time_s else 0.0
    reason = (
        f"at most {gap:.2%} above the least possible with replicas; "
        f"the fastest of some in the event simulation; without replicas: {answer.reason}"
    )
    optimal = gap <= TOLERANCE
    return dataclasses.replace(best, lower_bound_s=bound_s, optimal=optimal, reason=reason)


@dataclass
class _Simulation:
    """The event simulation of stages that may have replicas."""

    problem: PartitionProblem
    units: Sequence[Sequence[LayerCost]]
    kind: str

    def __call__(self, stages: Sequence[StageAssignment]) -> float:
        """Time of a mini-batch; of an asynchronous schedule, in the steady state."""
        replicas = [stage.replicas for stage in stages]
        count = self.problem.schedule.num_microbatches
        durations = self._durations(stages)
        if schedule_kind(self.kind).make_for:
            schedule = make_candidate_schedule(
                self.kind, len(stages), count, StageTimes(*durations)
            )
        else:
            schedule = replicated(self.kind, replicas, count)
        return Replay(schedule).minibatch_s(np.repeat(durations, replicas, axis=1))

    @cached_property
    def _is_late(self) -> bool:
        """Whether weights are updated before the end of a mini-batch."""
        return not make_schedule(self.kind, 1, 1).synchronous

    def _durations(self, stages: Sequence[StageAssignment]) -> np.ndarray:
        index = {name: number for number, name in enumerate(self.problem.names)}
        rate = float(self.problem.link_bytes_per_s[0]) if self.problem.num_devices > 1 else np.inf
        sends = self.problem.schedule.transfer is not Transfer.NONE
        count = self.problem.schedule.num_microbatches
        result = np.zeros((6, len(stages)))
        for number, stage in enumerate(stages):
            own = [cost for name in stage.layers for cost in self.units[index[name]]]
            for row, name in enumerate(("forward", "input_gradient", "weight_gradient", "update")):
                result[row, number] = sum(getattr(cost, name).seconds for cost in own)
            weights = sum(cost.weight_bytes for cost in own)
            ring_s = 2 * (stage.replicas - 1) / stage.replicas * weights / rate if rate else 0.0
            if self._is_late:  # an update after each micro-batch of a replica
                ring_s *= stage.replicas / count
            result[3, number] += ring_s
            if sends:
                result[4, number] = stage.transfer_s
                if number + 1 < len(stages):
                    result[GRADIENTS, number + 1] = stage.transfer_s
        return result

    def partition(self, answer: Answer) -> Partition:
        """The partition that a search found."""
        problem = self.problem
        index = {name: number for number, name in enumerate(problem.names)}
        before = np.zeros(problem.num_layers, bool)
        stages = []
        for number, (device, layers) in enumerate(answer.parts):
            own = [index[name] for name in layers]
            before[own] = True
            link = min(device, max(problem.num_devices - 2, 0))
            sent = problem.cut_bytes(before)
            transfer_s = float(problem.transfer_s(np.array([sent]), link)[0]) if sent else 0.0
            kept = problem.kept_bytes(
                problem.state[own].sum(),
                problem.weight_bytes[own].sum(),
                problem.activation_bytes[own].sum(),
                len(answer.parts) - 1 - number,
            )
            stages.append(
                StageAssignment(
                    layers,
                    (device,),
                    1,
                    float(problem.compute_s[own, 0].sum()),
                    transfer_s,
                    float(kept),
                )
            )
        times = [stage.time_s for stage in stages]
        sent_s = max((stage.transfer_s for stage in stages), default=0.0)
        return Partition(
            tuple(stages),
            max(*times, sent_s),
            answer.minibatch_s,
            Objective.MINIBATCH,
            min(answer.lower_bound_s, answer.minibatch_s),
            answer.optimal,
            answer.reason,
        )
