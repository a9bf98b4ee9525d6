"""Layer-wise parallelism: each group of layers that run together has degrees of its own.

The time of a step is the sum over all groups of the time of the largest shard and of the sum of the
gradients of weights that several devices have, and over all edges of the time of what moves (Jia et
al., "Exploring hidden dimensions in parallelizing convolutional neural networks", ICML 2018). It
has no overlap between groups and no pipeline. The sum is least by elimination of nodes and edges
(:mod:`fpgapipe.partition.search.elimination`), with memory limits by a price for each byte.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.lowering.shards.degrees import SERIAL, Degrees, degrees_of
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import NetworkError
from fpgapipe.partition.cost.cost import CostModel
from fpgapipe.partition.search.elimination import Choice, choose
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.partition.strategies.movement import (
    busiest_elements,
    needed_boxes,
    written_boxes,
)
from fpgapipe.partition.strategies.shards import shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.cost.cost import LayerCost
    from fpgapipe.partition.explore.candidate import DeviceChain

GRADIENT_BYTES = 4
"""Bytes of an element of a weight's gradient."""

ACTIVATION_BYTES = 2
"""Bytes of an element of an activation or of its gradient, in BF16."""

PRICES = 40
"""Prices of a byte of memory that are tried until the fullest device has room."""


@dataclass(frozen=True)
class GroupChoice:
    """Layers that run together, with their degrees.

    Attributes
    ----------
    layers : tuple of str
    degrees : Degrees
    compute_s : float
        Seconds of all passes of the largest shard, and of its update.
    sum_s : float
        Seconds in which the devices with the same weights add up their gradients.
    memory_bytes : int
        Bytes of a device with a shard.
    """

    layers: tuple[str, ...]
    degrees: Degrees
    compute_s: float
    sum_s: float
    memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "layers": list(self.layers),
            "degrees": {name: value for name, value in vars(self.degrees).items() if value > 1},
            "num_devices": self.degrees.num_devices,
            "compute_s": self.compute_s,
            "sum_s": self.sum_s,
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True)
class LayerwisePlan:
    """Degrees of all groups of layers.

    Attributes
    ----------
    network : str
    batch, num_devices : int
    groups : tuple of GroupChoice
    step_s : float
        Seconds of a step of training.
    moves_s : float
        Seconds of it in which activations and their gradients move.
    memory_bytes : int
        Bytes of the fullest device.
    num_left : int
        Groups that were left when no elimination applied.
    search_s : float
        Seconds of the search.
    is_optimal : bool
        Whether no other degrees are faster, by these prices; memory limits may make a better choice
        unknown.
    data_parallel_s, serial_s : float
        Seconds of a step, by the same prices, if all groups cut the batch as far as it goes, and on
        a single device.
    """

    network: str
    batch: int
    num_devices: int
    groups: tuple[GroupChoice, ...]
    step_s: float
    moves_s: float
    memory_bytes: int
    num_left: int
    search_s: float
    is_optimal: bool
    data_parallel_s: float
    serial_s: float

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        plain = {name: value for name, value in vars(self).items() if name != "groups"}
        return {"strategy": "layerwise", **plain, "groups": [g.to_dict() for g in self.groups]}


class LayerwiseProblem:
    """Times and bytes of all degrees of all groups of a network's layers.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a mini-batch.
    cluster : ClusterSpec
    chain : DeviceChain
        The devices, in the order in which shards are numbered.
    cores : mapping of DeviceSpec to NodeSpec
        Core of each kind of device.
    measured_s : mapping of str to float, optional
        Seconds of all passes of a layer on a single device; a shard then takes the share of it that
        formulas have.
    on_step : callable
        Called with the number of groups that are priced and of all.
    choices : callable, optional
        Returns the degrees of the layers of a group among which to choose; all if left out. Where
        these make fewer shards than there are devices, groups of devices have equal shards.
    rounds : int
        Number of times that a mini-batch has the passes over the batch of the graph; gradients are
        added up once.
    copies : float
        Vector operations on each element of a tensor that moves, forward and backward together.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: ClusterSpec,
        chain: DeviceChain,
        cores: Mapping[DeviceSpec, NodeSpec],
        measured_s: Mapping[str, float] | None = None,
        on_step: Callable[[int, int], object] = lambda done, total: None,
        choices: Callable[[Sequence[str]], list[Degrees]] | None = None,
        rounds: int = 1,
        copies: float = 0.0,
    ) -> None:
        if 0.0 in chain.link_bytes_per_s:
            raise PlanError("devices that follow one another have no link for shards")
        self.graph = graph
        self.groups = layers_together(graph)
        self.num_devices = len(chain.devices)
        self._devices = [cluster.devices[position] for position in chain.devices]
        self._chain = chain
        self._cores = cores
        self._measured_s = measured_s or {}
        self._known: dict[Any, list[LayerCost]] = {}
        self._rounds = rounds
        self._spread = choices is not None
        self._copy_s = copies / min(node.core.vector_lanes * node.clk_hz for node in cores.values())
        self.choices = [
            choices(names) if choices else degrees_of(graph, names, self.num_devices)
            for names in self.groups
        ]
        self.compute_s: list[NDArray[np.float64]] = []
        self.sum_s: list[NDArray[np.float64]] = []
        self.memory: list[NDArray[np.float64]] = []
        for number, (names, each) in enumerate(zip(self.groups, self.choices, strict=True)):
            on_step(number, len(self.groups))
            if not each:
                raise PlanError(
                    f"layer {names[0]!r} can neither be cut over {self.num_devices} devices that "
                    "share the samples so, nor be the same on all of them"
                )
            priced = {}
            for degrees in each:
                with suppress(NetworkError):  # such a part is no network
                    priced[degrees] = self._priced(names, degrees)
            if not priced:
                layer = graph.layers[names[0]]
                tried = " or ".join(map(str, each))
                raise PlanError(
                    f"layer {layer.name!r} ({layer.op}), whose result has shape "
                    f"{list(layer.output.shape)}, cannot be cut by {tried}"
                )
            self.choices[number] = list(priced)
            rows = np.array(list(priced.values()))
            self.compute_s.append(rows[:, 0])
            self.sum_s.append(rows[:, 1])
            self.memory.append(rows[:, 2])

    def _priced(self, names: Sequence[str], degrees: Degrees) -> tuple[float, float, float]:
        """Seconds of the largest shard, seconds of the sum of gradients, and bytes."""
        step = self.num_devices // degrees.num_devices if self._spread else 1
        used = dict.fromkeys(self._devices[: step * degrees.num_devices])
        seconds = max(self._seconds(names, degrees, device) for device in used)
        costs = self._costs(names, degrees, next(iter(used)))
        weights = sum(cost.weight_bytes for cost in costs)
        replicas = degrees.num_devices // degrees.channel
        sum_s = 0.0
        if replicas > 1 and weights:
            # Shards of other channels share the links.
            hops = step * (degrees.num_devices - 1)
            moved = weights // 4 * GRADIENT_BYTES * degrees.channel
            sum_s = moved / min(self._chain.link_bytes_per_s[:hops])
            sum_s += 2 * sum(self._chain.link_latency_s[:hops])
        memory = sum(cost.state_bytes + cost.activation_bytes for cost in costs)
        return seconds, sum_s, float(memory)

    def _seconds(self, names: Sequence[str], degrees: Degrees, device: DeviceSpec) -> float:
        def total(costs: Sequence[LayerCost]) -> float:
            return sum(self._rounds * cost.total_s + cost.update.seconds for cost in costs)

        own = total(self._costs(names, degrees, device))
        if not all(name in self._measured_s for name in names):
            return own
        whole = total(self._costs(names, SERIAL, device))
        return sum(self._measured_s[name] for name in names) * (own / whole if whole else 1.0)

    def _costs(self, names: Sequence[str], degrees: Degrees, device: DeviceSpec) -> list[LayerCost]:
        """Costs of a shard's layers; equal shards are priced once."""
        part = shard(self.graph, names, degrees)
        key = (
            device.name,
            tuple((layer.operator, layer.input_tensors) for layer in part.layers.values()),
        )
        if key not in self._known:
            self._known[key] = CostModel(part).costs(self._cores[device])
        return self._known[key]

    @cached_property
    def edges(self) -> list[tuple[tuple[int, int], NDArray[np.float64]]]:
        """Seconds in which activations, and later their gradients, move between two groups."""
        home = {name: number for number, names in enumerate(self.groups) for name in names}
        rate = min(self._chain.link_bytes_per_s, default=float("inf"))
        latency = max(self._chain.link_latency_s, default=0.0)
        batch = self.graph.batch or 1
        found = []
        known: dict[Any, NDArray[np.float64]] = {}
        for number, names in enumerate(self.groups):
            read: dict[str, str] = {}
            for name in names:
                for source in self.graph.layers[name].inputs:
                    if source in home and home[source] != number:
                        read.setdefault(source, name)
            for source, reader in read.items():
                one, other = home[source], number
                tensor, layer = self.graph.layers[source].output, self.graph.layers[reader]
                out = self.graph.layers[names[-1]].output.shape
                choices = tuple(self.choices[one]), tuple(self.choices[other])
                key = (tensor.shape, layer.operator, layer.output.shape, out, choices)
                if key not in known:
                    elements = busiest_elements(
                        written_boxes(
                            tensor.shape,
                            batch,
                            choices[0],
                            self.num_devices,
                            spread=self._spread,
                        ),
                        needed_boxes(
                            tensor.shape,
                            layer.output.shape,
                            batch,
                            layer.operator,
                            choices[1],
                            self.num_devices,
                            spread=self._spread,
                        ),
                    )
                    seconds = elements * ACTIVATION_BYTES / rate + latency * (elements > 0)
                    copied_s = self._copy_s * tensor.elements * (elements > 0)
                    # there in the forward pass, back in the other
                    known[key] = self._rounds * (2 * seconds + copied_s)
                found.append(((one, other), known[key]))
        return found

    def solve(self) -> LayerwisePlan:
        """Find the degrees with the least time of a step that the memories have room for.

        Raises
        ------
        PlanError
            If there are none.
        """
        room = min(device.memory_bytes for device in self._devices)
        times = [one + other for one, other in zip(self.compute_s, self.sum_s, strict=True)]
        found = choose(times, self.edges)
        optimal = True
        if self._bytes(found) > room:
            optimal = False
            found = self._within(times, room)
        return self._plan(found, optimal)

    def _within(self, times: Sequence[NDArray[np.float64]], room: int) -> Choice:
        """The fastest choice that is found by prices of a byte and has room."""
        low, high = 0.0, sum(float(each.max()) for each in times) / room
        best: Choice | None = None
        for _ in range(PRICES):
            price = (low + high) / 2 if best is not None else high
            costs = [each + price * memory for each, memory in zip(times, self.memory, strict=True)]
            found = choose(costs, self.edges)
            if self._bytes(found) <= room:
                best, high = found, price
            elif best is None:
                low, high = high, 4 * high
            else:
                low = price
        if best is None:
            least = sum(float(each.min()) for each in self.memory)
            raise PlanError(
                f"{self.graph.name} needs {least:,.0f} bytes of memory a device in any degrees, "
                f"and the smallest device has {room:,}; a smaller batch or more devices need less"
            )
        return best

    def _bytes(self, found: Choice) -> float:
        """Bytes of the first device, which has a shard of every group."""
        return float(
            sum(memory[at] for memory, at in zip(self.memory, found.configurations, strict=True))
        )

    def step_s(self, configurations: Sequence[int]) -> tuple[float, float]:
        """Seconds of a step, and those of them in which activations and gradients move."""
        moves = sum(
            float(table[configurations[one], configurations[other]])
            for (one, other), table in self.edges
        )
        own = sum(
            float(compute[at] + summed[at])
            for compute, summed, at in zip(self.compute_s, self.sum_s, configurations, strict=True)
        )
        return own + moves, moves

    def _plan(self, found: Choice, optimal: bool) -> LayerwisePlan:
        chosen = found.configurations
        step_s, moves_s = self.step_s(chosen)
        groups = tuple(
            GroupChoice(
                tuple(names),
                self.choices[number][at],
                float(self.compute_s[number][at]),
                float(self.sum_s[number][at]),
                round(self.memory[number][at]),
            )
            for number, (names, at) in enumerate(zip(self.groups, chosen, strict=True))
        )
        parallel = [
            max(
                range(len(choices)),
                key=lambda at: (choices[at].num_devices == choices[at].sample, choices[at].sample),
            )
            for choices in self.choices
        ]
        return LayerwisePlan(
            self.graph.name,
            self.graph.batch or 1,
            self.num_devices,
            groups,
            step_s,
            moves_s,
            round(self._bytes(found)),
            found.num_left,
            found.search_s,
            optimal,
            self.step_s(parallel)[0],
            self.step_s([0] * len(self.groups))[0],
        )
