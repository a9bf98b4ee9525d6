"""A comparison of ways to train, with the times of layers from programs.

Formulas say first how each way is best, on which core and with how many samples in a micro-batch.
The programs of a layer are about the same in all ways, so a few such numbers of samples, which suit
most ways, are priced by the program of the whole network on one device, and every way is timed anew
with these. A stage's own program takes up to a tenth more or less, since its device has other loads
and stores to wait for: `fpgapipe.partition.pricing.machine.price_plan` has such prices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.jobs import results
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.partition.explore.candidate import (
    Candidate,
    on_every_device,
)
from fpgapipe.partition.explore.comparison import (
    Comparison,
    Entry,
    compare,
    entry_of,
    even_candidate,
    explored,
    parallel_entry,
)
from fpgapipe.partition.explore.cut_problem import check_memory
from fpgapipe.partition.explore.explorer import (
    Request,
    device_chains,
    on_one_device,
    plan_one,
)
from fpgapipe.partition.explore.planned import as_plan, one_link_each
from fpgapipe.partition.pricing.all_reduce_cycles import all_reduce_s
from fpgapipe.partition.pricing.layer_choice import Choice, priced_choice
from fpgapipe.partition.schedule.schedule_kinds import num_engines_of
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph

SIZES = 2
"""Numbers of samples in a micro-batch that are priced for all ways."""

LEVEL = "layers"
"""Level of entries with prices of layers by programs."""

Choices: TypeAlias = "Mapping[tuple[int, bool], Choice]"
"""Costs of all layers on the machine, by the samples of a micro-batch and whether there are several
micro-batches."""


def compare_on_machine(
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    *,
    schedules: Sequence[str] | None = None,
    microbatch: int | None = None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Time every way to train a mini-batch, as `compare` does, with prices of layers by programs.

    A way keeps the time of the formulas, and says so, if the core does not run the network, if its
    programs would take minutes to time, or if its devices have several engines.
    """
    found = compare(
        load, batch, cluster, schedules=schedules, microbatch=microbatch, on_step=on_step
    )
    choices = priced_choices(found, load, batch, cluster, microbatch)
    jobs = [(entry.name, load, batch, cluster, choices) for entry in found.entries]
    priced = results(entry_on_machine, jobs)
    entries = (new or entry for new, entry in zip(priced, found.entries, strict=True))
    return Comparison(tuple(entries), found.refused)


def priced_choices(
    found: Comparison,
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    microbatch: int | None = None,
) -> Choices:
    """Prices of layers for the numbers of samples that suit the ways of a comparison.

    They do not depend on the links. There are none if the core does not run the network, or if its
    programs would take minutes to time.
    """
    try:
        best = explored(load, batch, cluster, "1f1b-as", microbatch).best
    except (PlanError, ScheduleError):
        return {}
    cores = {
        cluster.devices[stage.device]: stage.node for stage in best.stages if stage.node is not None
    }
    if set(cores) != set(cluster.devices):
        return {}
    sizes = _sizes(found, batch, len(cluster.devices))
    choices = results(_choice, [(load, size, several, cores) for size, several in sizes])
    return {size: choice for size, choice in zip(sizes, choices, strict=True) if choice}


def _choice(
    load: Callable[[int], Graph], size: int, several: bool, cores: Mapping[DeviceSpec, NodeSpec]
) -> Choice | None:
    """Prices of all layers in micro-batches of some samples."""
    return priced_choice(load(size), cores, train=True, accumulates=several)


def _sizes(found: Comparison, batch: int, num_devices: int) -> list[tuple[int, bool]]:
    """Samples of a micro-batch with which most ways are best, and those of data parallelism.

    Only data parallelism has single micro-batches priced: the way that is compared with all others
    gets the number of micro-batches that it likes best.
    """
    votes: dict[tuple[int, bool], int] = {}
    own = []
    for entry in found.entries:
        shared = entry.name.startswith("data parallel")
        share = -(-batch // num_devices) if shared else batch
        size = share // entry.num_microbatches, entry.num_microbatches > 1
        if share % entry.num_microbatches == 0 and size[1]:
            votes[size] = votes.get(size, 0) + 1
        if share % entry.num_microbatches == 0 and shared:
            own.append(size)
    most = sorted(votes, key=lambda size: (-votes[size], size))[:SIZES]
    return list(dict.fromkeys([*most, *own]))


def entry_on_machine(
    name: str,
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    choices: Choices,
) -> Entry | None:
    """The fastest entry of a way with prices of layers by programs; None if there are none.

    Parameters
    ----------
    name : str
        Name of the way, as in `Comparison`.
    load, batch, cluster
        As for `compare`.
    choices : mapping
        Result of `priced_choices` for a cluster of the same devices.
    """
    found: list[Entry] = []
    shared = name.startswith("data parallel")
    share = -(-batch // len(cluster.devices)) if shared else batch
    for (size, several), choice in choices.items():
        if several is (share == size):
            continue
        try:
            found += _ways(name, load, batch, cluster, size, choice)
        except (PlanError, ScheduleError):
            continue
    if not found:
        return None
    return replace(min(found, key=lambda each: each.minibatch_s), name=name, level=LEVEL)


def _ways(
    name: str,
    load: Callable[[int], Graph],
    batch: int,
    cluster: ClusterSpec,
    size: int,
    choice: Choice,
) -> Iterator[Entry]:
    """Entries of a way with micro-batches of some samples."""
    graph = load(size)
    if name == "one device":
        for device in choice:
            for alone in _alone(load, batch, device, size, choice):
                yield entry_of(name, alone)
    elif name.startswith("data parallel"):
        share = -(-batch // len(cluster.devices))
        shares = {device: list(_alone(load, share, device, size, choice)) for device in choice}
        if all(shares.values()):
            own = {device: each[0] for device, each in shares.items()}
            sum_s = _sum_s(graph, cluster, choice)
            yield parallel_entry(cluster, own, sum_s, overlapped=name.endswith("overlapped"))
    elif batch % size == 0 and name == "even split":
        columns = {
            device: (core, {cost.name: cost for cost in costs})
            for device, (core, costs) in choice.items()
        }
        candidate = even_candidate(graph, columns, cluster, batch // size)
        check_memory(candidate, cluster)
        yield entry_of(name, candidate)
    elif batch % size == 0 and num_engines_of(name) == 1:
        request = Request(load, batch, cluster, (name,))
        for chain in device_chains(cluster):
            yield entry_of(name, plan_one(request, graph, choice, chain, name, batch // size))


def _sum_s(graph: Graph, cluster: ClusterSpec, choice: Choice) -> float:
    """Seconds of the sum of all gradients, as it is built."""
    count, size = len(cluster.devices), graph.batch or 1
    candidate = on_every_device(cluster, choice, size, count)
    plan = as_plan(candidate, graph, graph.name, count * size, one_link_each(cluster))
    return all_reduce_s(plan, cluster, graph.totals.parameters)


def _alone(
    load: Callable[[int], Graph], batch: int, device: DeviceSpec, size: int, choice: Choice
) -> Iterator[Candidate]:
    """One device with the whole network, for a batch of its own."""
    if batch % size:
        return
    lone = ClusterSpec(device.name, (device.name,), (device,), ())
    request = Request(load, batch, lone, ("1f1b-as",))
    yield from on_one_device(request, {device: choice[device]}, "1f1b-as", batch // size)
