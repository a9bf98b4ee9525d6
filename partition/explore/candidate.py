"""One way to train a network on a cluster: stages, schedule and cores, and their time and memory.

The partitioner works with simple models of schedules. Here the event simulation times a finished
candidate, from which its use of memory and links follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.lowering.schedule.schedule import Schedule, TaskKind, forward_only
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import LayerCost, activation_bytes
from fpgapipe.partition.plan import DATA_PARALLEL
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, schedule_kind
from fpgapipe.partition.search.problem import TOLERANCE
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate

Option = tuple[NodeSpec, list[LayerCost]]
"""A core of a kind of device, and the costs of all layers on it."""

Choice = dict[DeviceSpec, Option]
"""Core of each kind of device, with costs."""


@dataclass(frozen=True)
class DeviceChain:
    """A device chain: devices in the order in which data flow, and the links between them.

    Attributes
    ----------
    devices : tuple of int
        Positions of the devices in the cluster.
    link_bytes_per_s, link_latency_s : tuple of float
        Payload rate in one direction and latency from each device to the next; 0 bytes/s if there
        is no link.
    """

    devices: tuple[int, ...]
    link_bytes_per_s: tuple[float, ...]
    link_latency_s: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """The layers of one stage, on one device, with their costs there.

    Attributes
    ----------
    position : int
        That of the device in the cluster.
    node : NodeSpec or None
        Core, clock and memory of the device; None where times were measured.
    costs : tuple of LayerCost
        Costs of the layers, in the order in which they run.
    sends_bytes, returns_bytes : float
        Bytes of a micro-batch's activations sent to the next stage, and of their gradients, which
        come back.
    """

    position: int
    node: NodeSpec | None
    costs: tuple[LayerCost, ...]
    sends_bytes: float
    returns_bytes: float

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order in which they run."""
        return tuple(cost.name for cost in self.costs)

    @cached_property
    def pass_s(self) -> tuple[float, float, float, float]:
        """Seconds of F, dX and dW of a micro-batch, and seconds of the update."""
        return (
            sum(cost.forward.seconds for cost in self.costs),
            sum(cost.input_gradient.seconds for cost in self.costs),
            sum(cost.weight_gradient.seconds for cost in self.costs),
            sum(cost.update.seconds for cost in self.costs),
        )

    @cached_property
    def activation_bytes(self) -> int:
        """Bytes of activations that each micro-batch in flight keeps."""
        return activation_bytes(self.costs)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes that the layers need once; see `LayerCost.state_bytes`."""
        return sum(cost.state_bytes for cost in self.costs)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the learned parameters in FP32."""
        return sum(cost.weight_bytes for cost in self.costs)


@dataclass(frozen=True)
class Candidate:
    """Stages under a schedule, with the times that the event simulation found.

    Attributes
    ----------
    kind : str
        The schedule's name.
    microbatch : int or None
        Samples in a micro-batch; None for a profile.
    stages : tuple of Stage
        Stages in the order in which data flow.
    timeline : Timeline
        Times of all tasks and transfers.
    optimal : bool
        Whether no other partition has a better objective.
    reason : str
        Why the partition is optimal, or why only a bound is known.
    lower_bound_s : float
        Time below which the minimised objective cannot be with another partition.
    gap : float
        Share of the objective by which another partition could be below it, at most.
    """

    kind: str
    microbatch: int | None
    stages: tuple[Stage, ...]
    timeline: Timeline
    optimal: bool = False
    reason: str = ""
    lower_bound_s: float = 0.0
    gap: float = 1.0

    def judged(self, value_s: float, lower_bound_s: float, reason: str) -> Candidate:
        """The candidate with the value of the minimised objective held against its bound."""
        bound_s = min(lower_bound_s, value_s)
        optimal = value_s - bound_s <= TOLERANCE * value_s
        gap = 0.0 if optimal else 1 - bound_s / value_s
        return replace(self, optimal=optimal, reason=reason, lower_bound_s=bound_s, gap=gap)

    @property
    def minibatch_s(self) -> float:
        """Time of a mini-batch, from the first task to the last update."""
        return self.timeline.makespan_s

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches in a mini-batch."""
        return self.timeline.schedule.num_microbatches

    @cached_property
    def period_s(self) -> float:
        """Seconds that the busiest engine or link works per micro-batch.

        This is what one more micro-batch costs. Transfers that block an engine count as work of
        that engine, and so do updates after each micro-batch.
        """
        schedule = self.timeline.schedule
        counted = [TaskKind.SF, TaskKind.SB] + ([] if schedule.synchronous else [TaskKind.U])
        times = zip(schedule.lanes, self.timeline.start_s, self.timeline.end_s, strict=True)
        busy = [
            computing + float((end - start)[np.isin(lane.kinds, counted)].sum())
            for computing, (lane, start, end) in zip(self.timeline.busy_s, times, strict=True)
        ]
        return max(*busy, *self.timeline.link_busy_s, 0.0) / self.num_microbatches

    @property
    def steady_s(self) -> float:
        """Time of a mini-batch; for an asynchronous pipeline, its time in the steady state."""
        if self.timeline.schedule.synchronous:
            return self.minibatch_s
        return self.period_s * self.num_microbatches

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """For each stage, the most memory in use at any time, in bytes."""
        if not self.timeline.schedule.synchronous:
            # In the steady state a stage has one micro-batch in flight for itself and for each
            # stage behind it, however few a mini-batch has, and for each of them a copy of the
            # weights that its forward pass used, if these are kept.
            keeps = self.timeline.schedule.keeps_weights
            depths = range(len(self.stages), 0, -1)
            return tuple(
                float(depth * stage.activation_bytes + stage.state_bytes)
                + keeps * (depth - 1) * stage.weight_bytes
                for depth, stage in zip(depths, self.stages, strict=True)
            )
        kept = np.array([float(stage.activation_bytes) for stage in self.stages])
        if all((lane.kinds == TaskKind.F).all() for lane in self.timeline.schedule.lanes):
            # No micro-batch waits for its backward pass.
            return tuple(float(stage.activation_bytes + stage.state_bytes) for stage in self.stages)
        peaks = self.timeline.peak_activations(kept)
        placed = self.timeline.schedule.placement
        return tuple(peaks[placed[i]] + stage.state_bytes for i, stage in enumerate(self.stages))

    @cached_property
    def link_load(self) -> tuple[float, ...]:
        """For each pair of sender and receiver, share of the mini-batch in which they transfer."""
        return tuple(busy / self.steady_s for busy in self.timeline.link_busy_s)


def on_every_device(
    cluster: ClusterSpec,
    choice: Choice,
    microbatch: int,
    num_microbatches: int,
    *,
    train: bool = True,
) -> Candidate:
    """Each device has the whole network, and does its share of the micro-batches.

    Parameters
    ----------
    cluster : ClusterSpec
    choice : dict of DeviceSpec to (NodeSpec, list of LayerCost)
        Core of each kind of device, and the layers' costs there.
    microbatch, num_microbatches : int
        Samples in a micro-batch, and number of micro-batches of all devices together.
    train : bool
        Whether there are backward passes and updates.
    """
    stages = [
        Stage(place, choice[device][0], tuple(choice[device][1]), 0.0, 0.0)
        for place, device in enumerate(cluster.devices)
    ]
    return time_candidate(
        DATA_PARALLEL, microbatch, num_microbatches, stages, device_chain(cluster), train=train
    )


def stage_times(stages: Sequence[Stage], row: DeviceChain) -> StageTimes:
    """Times of the stages on a device chain, for the event simulation."""
    return times_of(
        [stage.pass_s for stage in stages],
        [stage.sends_bytes for stage in stages],
        [stage.returns_bytes for stage in stages],
        row,
    )


def times_of(
    pass_s: Sequence[tuple[float, float, float, float]],
    sends_bytes: Sequence[float],
    returns_bytes: Sequence[float],
    row: DeviceChain,
) -> StageTimes:
    """Times of stages from their attributes; see `Stage`."""
    passes = np.array(pass_s, np.float64).reshape(-1, 4)
    activations = np.zeros(len(passes))
    gradients = np.zeros(len(passes))
    for i, rate in enumerate(row.link_bytes_per_s[: len(passes) - 1]):
        activations[i] = sends_bytes[i] / rate if sends_bytes[i] else 0.0
        gradients[i + 1] = returns_bytes[i] / rate if returns_bytes[i] else 0.0
    latency = max(row.link_latency_s[: len(passes) - 1], default=0.0)
    forward, input_gradient, weight_gradient, update = passes.T
    return StageTimes(
        forward, input_gradient, weight_gradient, update, activations, gradients, latency
    )


def make_candidate_schedule(
    kind: str, num_stages: int, num_microbatches: int, times: StageTimes, memory: int | None = None
) -> Schedule:
    """Make a schedule by its name; one without an order of its own is made for the given times."""
    if make := schedule_kind(kind).make_for:
        return make(num_stages, num_microbatches, times, memory)
    return make_schedule(kind, num_stages, num_microbatches)


def time_candidate(
    kind: str,
    microbatch: int | None,
    num_microbatches: int,
    stages: Sequence[Stage],
    row: DeviceChain,
    *,
    train: bool = True,
    order: Schedule | None = None,
) -> Candidate:
    """Simulate stages under a schedule, or its forward passes alone if `train` is false.

    The schedule is `order` where it is given, and has its kind as its name.
    """
    times = stage_times(stages, row)
    schedule = order or make_candidate_schedule(kind, len(stages), num_microbatches, times)
    if not train:
        schedule = forward_only(schedule)
    return Candidate(kind, microbatch, tuple(stages), simulate(schedule, times))


def device_chain(cluster: ClusterSpec, devices: Sequence[int] | None = None) -> DeviceChain:
    """The device chain of a cluster, in the given order or in the cluster's own.

    Of several links that join two devices, a core uses the fastest.
    """
    order = tuple(range(len(cluster.devices))) if devices is None else tuple(devices)
    rates, latencies = [], []
    for a, b in itertools.pairwise(order):
        link = cluster.fastest_link(a, b)
        rates.append(link.payload_bytes_per_s if link else 0.0)
        latencies.append(link.latency_s if link else 0.0)
    return DeviceChain(order, tuple(rates), tuple(latencies))


def ring_seconds(graph: Graph, chain: DeviceChain) -> float:
    """Seconds of a ring all-reduce of a network's gradients."""
    n = len(chain.devices)
    weights = 4 * graph.totals.parameters
    latency_s = max(chain.link_latency_s, default=0.0)
    rate = min(chain.link_bytes_per_s, default=float("inf"))
    return 2 * (n - 1) / n * weights / rate + 2 * (n - 1) * latency_s
