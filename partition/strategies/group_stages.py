"""Stages of a pipeline on groups of devices, by formulas: where to cut, and which devices.

The inner problem of a stage on a group of devices is that of layer-wise parallelism
(:mod:`fpgapipe.partition.strategies.layerwise`); the outer one assigns runs of layers to runs of
devices. This is the shape of Alpa (Zheng et al., "Alpa: Automating inter- and intra-operator
parallelism for distributed deep learning", OSDI 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.shards.cuts import Cut, degrees_of_cut, why_not_cut, why_not_shared
from fpgapipe.lowering.shards.degrees import SERIAL, Degrees
from fpgapipe.lowering.shards.rebatched import rebatched
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import BatchNorm
from fpgapipe.partition.search.elimination import choose
from fpgapipe.partition.search.problem import PlanError, Refusals
from fpgapipe.partition.strategies.layerwise import ACTIVATION_BYTES, LayerwiseProblem
from fpgapipe.partition.strategies.plan_layerwise import COPIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import DeviceChain

MOST_CUTS = 14
"""Places between layers, at most, at which the network may be cut."""

MOST_KEPT = 6
"""Ways to compute the first layers on the first devices that are kept, none of them better than
another both in its slowest stage and in all stages together."""


@dataclass(frozen=True)
class GroupStage:
    """A run of layers on a run of devices.

    Attributes
    ----------
    first, last : int
        The first group of layers that run together, and the one after the last.
    size : int
        Number of devices.
    degrees : tuple of Degrees
        Degrees of these groups of layers.
    total_s : float
        Seconds of all micro-batches and of the update, without waiting.
    pass_s : float
        Seconds of a micro-batch.
    """

    first: int
    last: int
    size: int
    degrees: tuple[Degrees, ...]
    total_s: float
    pass_s: float


@dataclass(frozen=True)
class GroupPlan:
    """Stages of a network.

    Attributes
    ----------
    layers : list of tuple of str
        Layers of each stage.
    sizes : tuple of int
        Number of devices of each stage.
    degrees : dict of str to Degrees
        Degrees of each layer.
    seconds : float
        Seconds of a mini-batch by formulas: the slowest stage does all its micro-batches, and each
        other stage adds one to fill and drain the pipeline.
    """

    layers: list[tuple[str, ...]]
    sizes: tuple[int, ...]
    degrees: dict[str, Degrees]
    seconds: float


class GroupProblem:
    """The best stages of a network for a number of micro-batches.

    Parameters
    ----------
    graph : Graph
        The network for the samples of one micro-batch.
    cluster : ClusterSpec
    chain : DeviceChain
    cores : mapping of DeviceSpec to NodeSpec
        Core of each kind of device.
    num_microbatches : int
    """

    def __init__(
        self,
        graph: Graph,
        cluster: ClusterSpec,
        chain: DeviceChain,
        cores: Mapping[DeviceSpec, NodeSpec],
        num_microbatches: int,
    ) -> None:
        if 0.0 in chain.link_bytes_per_s:
            raise PlanError("devices that follow one another have no link for a pipeline")
        self.graph = graph
        self.groups = layers_together(graph)
        self._cluster = cluster
        self._chain = chain
        self._cores = cores
        self._count = num_microbatches
        self._problems: dict[tuple[object, bool], LayerwiseProblem] = {}
        self._known: dict[tuple[object, int, int], GroupStage | None] = {}
        self._refusals = Refusals()
        crossing = _crossing(graph, self.groups)
        self._crossing = [
            float(sum(ACTIVATION_BYTES * graph.layers[name].output.elements for name in each))
            for each in crossing
        ]
        self._cuts = self._places([len(each) for each in crossing])

    # ------------------------------------------------------------------ one stage

    def _sub_chain(self, begin: int, size: int) -> DeviceChain:
        """Neighbours of the chain."""
        chain = self._chain
        links = slice(begin, begin + size - 1)
        return replace(
            chain,
            devices=chain.devices[begin : begin + size],
            link_bytes_per_s=chain.link_bytes_per_s[links],
            link_latency_s=chain.link_latency_s[links],
        )

    def _choices(self, names: Sequence[str], size: int, *, shares: bool) -> list[Degrees]:
        """Degrees of layers that run together on some devices, which may share the samples."""
        if size == 1:
            return [SERIAL]
        normalises = any(isinstance(self.graph.layers[n].operator, BatchNorm) for n in names)
        cuts = [Cut.WHOLE, Cut.CHANNELS, Cut.ROWS]
        if shares and not normalises:
            cuts.append(Cut.SAMPLES)
        sharers = size if shares else 1
        why = {cut: why_not_cut(self.graph, names, cut, size, sharers) for cut in cuts}
        if all(why.values()):
            self._refusals.add(f"on {size} devices", why[Cut.WHOLE])
        return [degrees_of_cut(cut, size, 1) for cut in cuts if not why[cut]]

    def _stage(self, first: int, last: int, begin: int, size: int) -> GroupStage | None:
        """The fastest stage of some groups of layers on some devices, if there is any."""
        chain = self._sub_chain(begin, size)
        kinds = tuple(self._cluster.devices[each] for each in chain.devices)
        alike = (kinds, chain.link_bytes_per_s, chain.link_latency_s)
        if (alike, first, last) not in self._known:
            found = [
                stage
                for shares in ((False, True) if size > 1 else (False,))
                if (stage := self._solved(alike, chain, first, last, shares=shares))
            ]
            best = min(found, key=lambda each: each.total_s, default=None)
            self._known[alike, first, last] = best
        return self._known[alike, first, last]

    def _solved(
        self, alike: object, chain: DeviceChain, first: int, last: int, *, shares: bool
    ) -> GroupStage | None:
        size = len(chain.devices)
        if shares and not self._shares(size):
            return None
        own = {name for names in self.groups[first:last] for name in names}
        if shares and (why := why_not_shared(self.graph, own)):
            self._refusals.add(f"on {size} devices that share samples", why)
            return None
        if (alike, shares) not in self._problems:
            self._problems[alike, shares] = LayerwiseProblem(
                self.graph,
                self._cluster,
                chain,
                self._cores,
                choices=lambda names: self._choices(names, size, shares=shares) or [SERIAL],
                rounds=self._count,
                copies=COPIES,
            )
        problem = self._problems[alike, shares]
        rate = min(chain.link_bytes_per_s, default=np.inf)
        nodes = []
        for number in range(first, last):
            if not self._choices(self.groups[number], size, shares=shares):
                return None
            costs = problem.compute_s[number] + problem.sum_s[number]
            whole = np.array([each == SERIAL for each in problem.choices[number]])
            moved = 0.0
            if number == first:
                moved += self._crossing[first]
            if number == last - 1:
                moved += self._crossing[last]
            nodes.append(costs + ~whole * (self._count * moved / rate))
        edges = [
            ((one - first, other - first), table)
            for (one, other), table in problem.edges
            if first <= one and other < last
        ]
        found = choose(nodes, edges)
        degrees = tuple(
            problem.choices[first + number][at] for number, at in enumerate(found.configurations)
        )
        once_s = sum(
            float(problem.sum_s[first + number][at])
            for number, at in enumerate(found.configurations)
        )
        return GroupStage(
            first, last, size, degrees, found.cost, (found.cost - once_s) / self._count
        )

    def _shares(self, size: int) -> bool:
        """Whether some devices can share the samples of a micro-batch."""
        batch = self.graph.batch or 1
        if batch % size:
            return False
        try:
            rebatched(self.graph, batch // size)
        except (NotImplementedError, NetworkError) as error:
            self._refusals.add(f"on {size} devices that share samples", error)
            return False
        return True

    # ------------------------------------------------------------------ all stages

    def _places(self, values: Sequence[int]) -> list[int]:
        """Numbers of groups of layers before which the network may be cut, and both ends.

        Where fewer values cross, cuts are preferred; of many, those are kept that divide the work
        most evenly.

        Parameters
        ----------
        values : sequence of int
            Number of values that cross each place.
        """
        count = len(self.groups)
        inner = [number for number in range(1, count) if values[number]]
        least = min((values[number] for number in inner), default=0)
        narrow = [number for number in inner if values[number] == least]
        if len(narrow) >= min(len(inner), MOST_CUTS) // 2:
            inner = narrow
        if len(inner) > MOST_CUTS:
            macs = [sum(self.graph.layers[name].macs for name in names) for names in self.groups]
            done = np.cumsum([0, *macs])
            wanted = np.linspace(0, done[-1], MOST_CUTS + 2)[1:-1]
            near = [min(inner, key=lambda number: abs(done[number] - each)) for each in wanted]
            inner = sorted(set(near))
        return [0, *inner, count]

    def solve(self, most: int) -> list[GroupPlan]:
        """The fastest plans with two stages or more, one of them on several devices.

        Parameters
        ----------
        most : int
            Plans at most.

        Raises
        ------
        PlanError
            If there are none.
        """
        devices = len(self._chain.devices)
        if devices < 3:
            raise PlanError("a pipeline of groups of devices needs 3 devices or more")
        table: dict[tuple[int, int], list[tuple[GroupStage, ...]]] = {(0, 0): [()]}
        for at, place in enumerate(self._cuts):
            for used in range(devices):
                for before in self._thinned(table.get((at, used), [])):
                    for to in range(at + 1, len(self._cuts)):
                        is_last = to == len(self._cuts) - 1
                        sizes = [devices - used] if is_last else range(1, devices - used)
                        for size in sizes:
                            stage = self._stage(place, self._cuts[to], used, size)
                            if stage is not None:
                                key = (to, used + size)
                                table.setdefault(key, []).append((*before, stage))
        done = [
            each
            for each in table.get((len(self._cuts) - 1, devices), [])
            if 1 < len(each) < devices
        ]
        if not done:
            subject = f"cut of {self.graph.name} into stages of groups of devices"
            raise self._refusals.error(subject)
        done.sort(key=self._seconds)
        return [self._plan(each) for each in done[:most]]

    def _thinned(self, found: list[tuple[GroupStage, ...]]) -> list[tuple[GroupStage, ...]]:
        """Those of some ways that are not worse than another in both respects."""
        ordered = sorted(found, key=lambda each: (_slowest(each), _passes(each)))
        kept: list[tuple[GroupStage, ...]] = []
        for each in ordered:
            if not kept or _passes(each) < _passes(kept[-1]):
                kept.append(each)
        return kept[:MOST_KEPT]

    def _seconds(self, stages: Sequence[GroupStage]) -> float:
        """Seconds of a mini-batch."""
        slowest = max(stages, key=lambda each: each.total_s)
        links_s = max(
            self._count * self._crossing[stage.last] / rate
            for stage, rate in zip(stages, self._rates(stages), strict=False)
        )
        return max(slowest.total_s, links_s) + _passes(stages) - slowest.pass_s

    def _rates(self, stages: Sequence[GroupStage]) -> Iterator[float]:
        """Bytes per second between each stage but the last and the next one."""
        used = 0
        for stage in stages[:-1]:
            used += stage.size
            yield self._chain.link_bytes_per_s[used - 1]

    def _plan(self, stages: Sequence[GroupStage]) -> GroupPlan:
        layers: list[tuple[str, ...]] = []
        degrees: dict[str, Degrees] = {}
        for stage in stages:
            own = self.groups[stage.first : stage.last]
            layers.append(tuple(name for names in own for name in names))
            for names, each in zip(own, stage.degrees, strict=True):
                degrees |= dict.fromkeys(names, each)
        return GroupPlan(
            layers, tuple(stage.size for stage in stages), degrees, self._seconds(stages)
        )


def _slowest(stages: Sequence[GroupStage]) -> float:
    return max((stage.total_s for stage in stages), default=0.0)


def _passes(stages: Sequence[GroupStage]) -> float:
    return sum(stage.pass_s for stage in stages)


def _crossing(graph: Graph, groups: Sequence[Sequence[str]]) -> list[set[str]]:
    """Values that are computed before each group of layers and read from it on."""
    home = {name: number for number, names in enumerate(groups) for name in names}
    last = dict.fromkeys(home, -1)
    for layer in graph.layers.values():
        for name in layer.inputs:
            if name in home:
                last[name] = max(last[name], home[layer.name])
    return [
        {name for name, at in home.items() if at < number <= last[name]}
        for number in range(len(groups) + 1)
    ]
