"""Comparison, on one cost model, of one device, data parallelism and the pipeline schedules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import CostModel, LayerCost, candidate_cores
from fpgapipe.partition.explore.candidate import (
    Candidate,
    DeviceChain,
    Stage,
    device_chain,
    time_candidate,
)
from fpgapipe.partition.explore.cut_problem import check_memory, cut_bytes
from fpgapipe.partition.explore.explorer import Exploration, Request, counts_tried, explore
from fpgapipe.partition.schedule.schedule_kinds import compared_schedules
from fpgapipe.partition.search.problem import PlanError


@dataclass(frozen=True)
class Entry:
    """One way of training, with its time and its use of the devices.

    Attributes
    ----------
    name : str
        Name of the way: a schedule, or for example ``one device``.
    minibatch_s : float
        Time of a mini-batch; for an asynchronous pipeline, its time in the steady state.
    num_microbatches, num_devices : int
        Micro-batches of a mini-batch, and devices in use.
    bubble_rate : float
        Share of the time in which the average device does not compute.
    memory_bytes : float
        The most memory in use on any device, by formulas.
    link_load : float
        Share of the time in which the busiest link sends.
    level : str
        Where the times of layers come from: ``layers``, the program of the whole network on one
        device and its cycle model, or ``estimate``, formulas.
    """

    name: str
    minibatch_s: float
    num_microbatches: int
    num_devices: int
    bubble_rate: float
    memory_bytes: float
    link_load: float
    level: str = "estimate"

    def over(self, base: Entry | None) -> float | None:
        """Speed-up over another way; None if that does not fit, or has prices of another level."""
        if base is None or base.level != self.level:
            return None
        return base.minibatch_s / self.minibatch_s


@dataclass(frozen=True)
class Comparison:
    """All ways of training that fit, and the reasons why the others do not."""

    entries: tuple[Entry, ...]
    refused: tuple[str, ...]

    def find(self, name: str) -> Entry | None:
        """The entry with a given name; None if that way does not fit."""
        return next((entry for entry in self.entries if entry.name == name), None)


def compare(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    *,
    schedules: Sequence[str] | None = None,
    microbatch: int | None = None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Time every way to train a mini-batch.

    Parameters
    ----------
    load : callable
        Returns the network for a number of samples.
    batch : int
        Samples in a mini-batch, the same for all ways.
    cluster : ClusterSpec
    schedules : sequence of str
        Names of the pipeline schedules to compare; those of `compared_schedules` by default.
    microbatch : int, optional
        Samples of each micro-batch, if the network has no other; several are tried if not given.
    on_step : function
        Called with the number of steps done and their total.
    """
    if schedules is None:
        schedules = compared_schedules()
    names = ["one device", "data parallel", "data parallel, overlapped", "even split", *schedules]
    found = results(_way, [(name, load, batch, cluster, microbatch) for name in names], on_step)
    entries = tuple(each for each in found if isinstance(each, Entry))
    return Comparison(entries, tuple(each for each in found if isinstance(each, str)))


def _way(
    name: str,
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    microbatch: int | None,
) -> Entry | str:
    """The entry of a way, or why there is none."""
    try:
        if name == "one device":
            return one_device(load, batch, cluster, microbatch)
        if name.startswith("data parallel"):
            overlapped = name.endswith("overlapped")
            return data_parallel(load, batch, cluster, microbatch, overlapped=overlapped)
        if name == "even split":
            return even_split(load, batch, cluster, microbatch)
        return entry_of(name, explored(load, batch, cluster, name, microbatch).best)
    except (PlanError, ScheduleError) as error:
        return f"{name}: {error}"


def entry_of(name: str, candidate: Candidate) -> Entry:
    """The entry that sums up a candidate."""
    seconds = candidate.steady_s
    bubble = candidate.timeline.bubble_rate
    if not candidate.timeline.schedule.synchronous:
        bubble = 1 - sum(candidate.timeline.busy_s) / len(candidate.stages) / seconds
    return Entry(
        name,
        seconds,
        candidate.num_microbatches,
        len(candidate.stages),
        bubble,
        max(candidate.memory_bytes),
        max(candidate.link_load, default=0.0),
    )


@functools.lru_cache(maxsize=32)
def explored(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    kind: str,
    microbatch: int | None = None,
) -> Exploration:
    """Explore a schedule, with micro-batches of some samples if they are given."""
    return explore(Request(load, batch, cluster, (kind,), count_of(batch, microbatch)))


def count_of(batch: int, microbatch: int | None) -> int | None:
    """Number of micro-batches of a batch, or None if it is not given how large they are.

    Raises
    ------
    PlanError
        If they do not make up the batch.
    """
    if microbatch is None:
        return None
    if batch % microbatch:
        raise PlanError(
            f"{batch} samples of a device must be a multiple of the network's batch, {microbatch}"
        )
    return batch // microbatch


def one_device(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    microbatch: int | None = None,
) -> Entry:
    """The whole network on the one device that trains it fastest.

    Raises
    ------
    PlanError
        If the network fits on no device.
    """
    alone: list[Candidate] = []
    errors = []
    for device in dict.fromkeys(cluster.devices):
        try:
            alone.append(_alone(load, batch, device, microbatch).best)
        except PlanError as error:
            errors.append(error)
    if not alone:
        raise errors[0]
    return entry_of("one device", min(alone, key=lambda each: each.minibatch_s))


def data_parallel(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    microbatch: int | None = None,
    *,
    overlapped: bool = False,
) -> Entry:
    """The whole network on every device, each with a share of the batch; a ring all-reduce follows.

    Devices of different kinds get equal shares, or shares in proportion to their speed if that is
    faster. Each device divides its share into the micro-batches with which it is fastest. The ring
    all-reduce moves ``2 (N - 1) / N`` of the FP32 gradients over the slowest link. In a chain the
    hop from the last device to the first uses the other direction of the links, which are full
    duplex.

    Parameters
    ----------
    load : callable
        Returns the network for a number of samples.
    batch : int
        Samples in a mini-batch, all devices together.
    cluster : ClusterSpec
    microbatch : int, optional
        As for `compare`.
    overlapped : bool
        Whether the all-reduce runs concurrently with the last micro-batch's backward pass, as if
        every gradient were ready when that pass begins. No form of data parallelism is faster.

    Raises
    ------
    PlanError
        If a device cannot hold the network, or the batch has fewer samples than there are devices.
    """
    n = len(cluster.devices)
    if batch < n:
        raise PlanError(f"a batch of {batch} has no sample for each of {n} devices")
    chain = device_chain(cluster)
    rate = min(chain.link_bytes_per_s, default=float("inf"))
    if rate == 0:
        raise PlanError("devices that follow one another have no link for the all-reduce")
    ring_s = ring_seconds(load(microbatch or 1), chain)

    def score(each: Candidate) -> float:
        return each.minibatch_s + _exposed(ring_s, each, overlapped)

    best: Entry | None = None
    for shares in _shares(load, batch, cluster, microbatch):
        alone = {
            device: min(_alone(load, share, device, microbatch).tried, key=score)
            for device, share in shares.items()
        }
        entry = parallel_entry(cluster, alone, ring_s, overlapped=overlapped)
        if best is None or entry.minibatch_s < best.minibatch_s:
            best = entry
    assert best is not None
    return best


def ring_seconds(graph: Graph, chain: DeviceChain) -> float:
    """Seconds of a ring all-reduce of a network's gradients."""
    n = len(chain.devices)
    weights = 4 * graph.totals.parameters
    latency_s = max(chain.link_latency_s, default=0.0)
    rate = min(chain.link_bytes_per_s, default=float("inf"))
    return 2 * (n - 1) / n * weights / rate + 2 * (n - 1) * latency_s


def parallel_entry(
    cluster: ClusterSpec, alone: Mapping[DeviceSpec, Candidate], ring_s: float, *, overlapped: bool
) -> Entry:
    """The entry of data parallelism, in which each kind of device trains its share alone."""
    n = len(cluster.devices)
    seconds = max(each.minibatch_s + _exposed(ring_s, each, overlapped) for each in alone.values())
    computing = sum(alone[device].timeline.busy_s[0] for device in cluster.devices)
    slowest = max(alone.values(), key=lambda each: each.minibatch_s)
    return Entry(
        "data parallel, overlapped" if overlapped else "data parallel",
        seconds,
        slowest.num_microbatches,
        n,
        1 - computing / n / seconds,
        max(max(each.memory_bytes) for each in alone.values()),
        ring_s / seconds,
    )


def _exposed(ring_s: float, alone: Candidate, overlapped: bool) -> float:
    """Time of the all-reduce that is not hidden behind the last backward pass."""
    if not overlapped:
        return ring_s
    _, input_gradient_s, weight_gradient_s, _ = alone.stages[0].pass_s
    return max(0.0, ring_s - input_gradient_s - weight_gradient_s)


def _shares(
    load: Callable[[int], Graph], batch: int, cluster: ClusterSpec, microbatch: int | None
) -> Iterator[dict[DeviceSpec, int]]:
    """Samples for each kind of device: first equal shares, then shares in proportion to speed.

    The latter are left out where the size of micro-batches is given, of which they are no multiple.
    """
    n = len(cluster.devices)
    equal = dict.fromkeys(cluster.devices, -(-batch // n))
    yield equal
    if len(equal) == 1 or microbatch is not None:
        return
    speed = {
        device: 1 / _alone(load, share, device, None).best.minibatch_s
        for device, share in equal.items()
    }
    whole = sum(speed[device] for device in cluster.devices)
    *slower, fastest = sorted(equal, key=lambda device: speed[device])
    shares = {device: max(1, int(batch * speed[device] / whole)) for device in slower}
    left = batch - sum(shares.get(device, 0) for device in cluster.devices)
    shares[fastest] = -(-left // cluster.devices.count(fastest))
    yield shares


def even_split(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    microbatch: int | None = None,
) -> Entry:
    """Stages with equal numbers of layers under 1f1b-as, as one would choose without a planner.

    Raises
    ------
    PlanError
        If a stage does not fit its device.
    """
    if 0.0 in device_chain(cluster).link_bytes_per_s:
        raise PlanError("devices that follow one another have no link for what they send")
    best: Candidate | None = None
    error: PlanError | None = None
    given = count_of(batch, microbatch)
    for count in _divisors(batch) if given is None else [given]:
        graph = load(batch // count)
        columns = _fastest(graph, cluster.devices)
        candidate = even_candidate(graph, columns, cluster, count)
        try:
            check_memory(candidate, cluster)
        except PlanError as reason:
            error = reason
            continue
        if best is None or candidate.minibatch_s < best.minibatch_s:
            best = candidate
    if best is None:
        raise error or PlanError("nothing to try")
    return entry_of("even split", best)


def even_candidate(
    graph: Graph,
    columns: Mapping[DeviceSpec, tuple[NodeSpec, Mapping[str, LayerCost]]],
    cluster: ClusterSpec,
    count: int,
) -> Candidate:
    """Stages with equal numbers of layers under 1f1b-as.

    Parameters
    ----------
    graph : Graph
        The network for one micro-batch.
    columns : mapping
        Core of each kind of device, and the costs of all layers on it.
    cluster : ClusterSpec
    count : int
        Number of micro-batches.

    Raises
    ------
    PlanError
        If there are fewer layers than devices.
    """
    n = len(cluster.devices)
    names = list(graph.layers)
    if len(names) < n:
        raise PlanError(f"{len(names)} layers are too few for {n} devices")
    bounds = [len(names) * i // n for i in range(n + 1)]
    stages = []
    for i, device in enumerate(cluster.devices):
        node, costs = columns[device]
        inside = [costs[name] for name in names[: bounds[i + 1]]]
        own = tuple(costs[name] for name in names[bounds[i] : bounds[i + 1]])
        stages.append(Stage(i, node, own, *cut_bytes(graph, inside)))
    return time_candidate("1f1b-as", graph.batch or 1, count, stages, device_chain(cluster))


@functools.lru_cache(maxsize=32)
def _alone(
    load: Callable[[int], Graph], batch: int, device: DeviceSpec, microbatch: int | None
) -> Exploration:
    """Explore a batch on one device, with every micro-batch size that fits if none is given."""
    lone = ClusterSpec(device.name, (device.name,), (device,), ())
    return explore(Request(load, batch, lone, ("1f1b-as",), count_of(batch, microbatch)))


def _fastest(
    graph: Graph, devices: Sequence[DeviceSpec]
) -> dict[DeviceSpec, tuple[NodeSpec, dict[str, LayerCost]]]:
    """For each kind of device, its best core for the whole network and the layers' costs."""
    model = CostModel(graph)
    found = {}
    for device in dict.fromkeys(devices):
        try:
            nodes = candidate_cores(device, num_links=min(len(devices) - 1, 2))
        except ValueError as error:
            raise PlanError(str(error)) from None
        options = [(node, model.costs(node)) for node in nodes]
        node, costs = min(options, key=lambda option: sum(cost.total_s for cost in option[1]))
        found[device] = (node, {cost.name: cost for cost in costs})
    return found


def _divisors(batch: int) -> list[int]:
    """The tried numbers of micro-batches that are powers of two or the batch size itself."""
    return [n for n in counts_tried(batch) if n & (n - 1) == 0 or n == batch]
