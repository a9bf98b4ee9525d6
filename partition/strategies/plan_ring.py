"""The plan of a ring of models: one core for all devices, and the prices of its programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.ring.hop import hop_programs
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.cost.cores import ported
from fpgapipe.partition.explore.planned import as_plan, link_ends
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.smallest import explore_smallest
from fpgapipe.partition.placed_nodes import PlacedNodes
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.machine import price_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.data_parallel import priced_best
from fpgapipe.partition.strategies.ring import RingCost, RingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate

MOST_BYTES = 1 << 22
"""Bytes of a transfer up to which all its packets are timed; more take longer in proportion."""


HOPS_TIMED = 8
"""Most hops that are timed, with models at other devices; unlike models take unlike times."""


@dataclass(frozen=True)
class RingPlan:
    """A plan for several models in a ring.

    Attributes
    ----------
    networks : tuple of str
        Name of each model's network.
    plans : tuple of Plan
        Plan of each model on one device, with the core that all devices have.
    spread : Plan
        The first of these plans with a node for each device of the ring, for its cores, memories
        and wires.
    """

    networks: tuple[str, ...]
    plans: tuple[Plan, ...]
    spread: Plan

    @property
    def clk_hz(self) -> float:
        """Clock frequency of the devices, Hz."""
        return self.spread.clk_hz


def plan_ring(
    models: Sequence[tuple[str, Callable[[int], Graph]]],
    batch: int,
    cluster: ClusterSpec,
    num_microbatches: int | None = None,
    array: tuple[int, int] | None = None,
) -> RingPlan:
    """Plan each model on one device, with the core that all of them can run on.

    The array is the largest of those that suit the models, and so is the scratchpad.

    Parameters
    ----------
    models : sequence of (str, callable)
        Name of each network, and the function that loads it for a number of samples.
    batch : int
        Samples in a mini-batch.
    cluster : ClusterSpec
        Devices of one kind, each with a link to the next.
    num_microbatches : int, optional
        Number of micro-batches; the best for each model if it is not given.
    array : (int, int), optional
        Rows and columns of the devices' arrays.

    Raises
    ------
    PlanError
        If the devices differ or are not linked, or a network does not fit a device.
    """
    _check_cluster(cluster)
    names = cluster.device_names
    alone = replace(cluster, device_names=names[:1], devices=cluster.devices[:1], links=())
    distinct = dict(models)

    def best(name: str, array: tuple[int, int] | None) -> tuple[Request, Candidate]:
        request = Request(
            distinct[name],
            batch,
            alone,
            ("1f1b-as",),
            num_microbatches,
            array=array,
            all_devices=True,
        )
        return request, explore_smallest(request).best

    found = {name: best(name, array) for name in distinct}
    if array is None:
        array = max((_array(each) for _, each in found.values()), key=lambda it: it[0] * it[1])
        found = {
            name: known if _array(known[1]) == array else best(name, array)
            for name, known in found.items()
        }
    plans = {name: _priced(name, *each) for name, each in found.items()}
    widest = max(
        (plan.nodes[0].spec for plan in plans.values()),
        key=lambda each: each.core.scratchpad.size_bytes,
    )
    spec = replace(widest, core=replace(widest.core, links=_link_ends(cluster, widest)))
    for name, plan in plans.items():
        node = plan.nodes[0].model_copy(update={"spec": spec})
        plan = plan.with_nodes([node]).model_copy(update={"cluster": cluster.name})
        if plan.predicted.level == "machine" and spec != plans[name].nodes[0].spec:
            plan, _ = price_plan(plan, distinct[name](plan.microbatch), alone)
        plans[name] = plan
    of_all = tuple(plans[name] for name, _ in models)
    first = of_all[0]
    nodes = tuple(first.nodes[0].model_copy(update={"device": name}) for name in names)
    stage = first.stages[0].model_copy(update={"nodes": nodes})
    return RingPlan(
        tuple(name for name, _ in models), of_all, first.model_copy(update={"stages": (stage,)})
    )


def _check_cluster(cluster: ClusterSpec) -> None:
    if len(cluster.devices) < 2:
        raise PlanError("a ring needs at least 2 devices; 'fpgapipe run' trains on one")
    if len(set(cluster.devices)) > 1:
        raise PlanError(
            "the devices of a ring must be boards of one kind, since all run the same programs; "
            f"cluster {cluster.name} has {len({each.name for each in cluster.devices})} kinds"
        )
    PlacedNodes.chain(range(len(cluster.devices)), cluster)


def _array(candidate: Candidate) -> tuple[int, int]:
    node = candidate.stages[0].node
    assert node is not None
    return node.core.rows, node.core.cols


def _priced(name: str, request: Request, candidate: Candidate) -> Plan:
    """The plan of one device with the prices of its programs."""

    def planned(each: Candidate, /, *, request: Request) -> Plan:
        assert each.microbatch is not None
        graph = request.load(each.microbatch)
        return as_plan(each, graph, name, request.batch, request.cluster)

    alone = [(candidate, planned)]
    plan, _, _ = priced_best(request, alone, lambda done, total: None, "plan of a ring")
    return plan


def _link_ends(cluster: ClusterSpec, node: NodeSpec) -> tuple[LinkEndSpec, ...]:
    """Ends of the links to the devices before and after, alike on all devices."""
    ends = link_ends(PlacedNodes.chain(range(len(cluster.devices)), cluster))
    if not all(end.has_phy for end in ends):
        raise UserError("boards of a ring have one node each so far; leave out --nodes")
    widest = LinkEngineSpec(
        phy_bytes=max(end.phy_bytes for end in ends),
        frame_words=max(end.frame_words for end in ends),
        slots=tuple(max(sizes) for sizes in zip(*(end.slots for end in ends), strict=True)),
    )
    own = ported((widest, widest), node.core.bus_bytes, node.core.scratchpad.port_bytes)
    return own[0], own[1]


def state_bytes(graph: Graph, options: StepOptions | None = None) -> int:
    """Bytes of all that lasts from step to step: weights, statistics, the optimiser's values."""
    options = options or StepOptions()
    copies = 3 if options.has_second_moment else 2
    return sum(
        4 * (copies if each.spec.trainable else 1) * each.spec.elements
        for layer in graph.layers.values()
        for each in layer.parameters
    )


def sample_bytes(graph: Graph, options: StepOptions | None = None) -> int:
    """Bytes of a sample and its label in a device's memory."""
    options = options or StepOptions()
    (tensor,) = graph.inputs.values()
    return int(options.activations.size_bytes((1, *tensor.shape[1:]))) + 4


def ring_cost(
    plan: RingPlan,
    models: Sequence[tuple[str, Callable[[int], Graph]]],
    cluster: ClusterSpec,
    epochs: int,
    shard_samples: int,
) -> RingCost:
    """Times and bytes of a plan, from the cycle model of its programs.

    Parameters
    ----------
    plan, models, cluster
        As given to `plan_ring`, and what it returned.
    epochs : int
    shard_samples : int
        Samples of each device.
    """
    graphs = [load(each.microbatch) for (_, load), each in zip(models, plan.plans, strict=True)]
    own = tuple(
        RingModel(name, each.predicted.minibatch_s, state_bytes(graph))
        for name, each, graph in zip(plan.networks, plan.plans, graphs, strict=True)
    )
    count = len(cluster.devices)
    sizes = [model.state_bytes for model in own[:count]]
    sizes += [0] * (count - len(sizes))
    places = {tuple(sizes[-n:] + sizes[:-n]) for n in range(0, count, -(-count // HOPS_TIMED))}
    size = sample_bytes(graphs[0])
    shard = shard_samples * size // 4 * 4
    return RingCost(
        own,
        count,
        epochs,
        plan.plans[0].batch,
        shard_samples,
        size,
        sum(shift_s(plan, cluster, each) for each in sorted(places)) / len(places),
        shift_s(plan, cluster, [shard] * count),
    )


def shift_s(plan: RingPlan, cluster: ClusterSpec, sizes: Sequence[int]) -> float:
    """Seconds in which each device sends some bytes to the next, the last one to the first.

    Parameters
    ----------
    plan : RingPlan
    cluster : ClusterSpec
    sizes : sequence of int
        Bytes that each device sends, which are multiples of 4.
    """
    most = max(sizes)
    if most > MOST_BYTES:
        half = [size * MOST_BYTES // most // 8 * 4 for size in sizes]
        less, more = (shift_s(plan, cluster, [n * each for each in half]) for n in (1, 2))
        return more + (more - less) * (most - 2 * max(half)) / max(half)
    places, at = [], 0
    for size in sizes:
        places.append((Placed(at, at + size),) if size else ())
        at = page(at + size)
    return hop_cycles(plan, cluster, hop_programs(places, at)) / plan.clk_hz


def hop_cycles(plan: RingPlan, cluster: ClusterSpec, programs: Sequence[Sequence[object]]) -> int:
    """Cycles of the programs of a hop, by the cycle model of all devices together."""
    found = predict_cluster(
        programs,  # type: ignore[arg-type]
        plan.spread.cores,
        PlacedNodes.of(plan.spread, cluster).placement.wires,
        memories=memory_specs(plan.spread),
        wires=wire_timings(plan.spread, cluster),
    )
    return found.cycles
