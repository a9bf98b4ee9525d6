"""The partitioner's problem and its answer.

The model
---------
A stage is the set of layers between two cuts of the network. A cut is a downset, that is a set of
layers that contains all predecessors of its members. A stage on a device of kind ``d`` takes the
sum of its layers' forward and backward times there. The boundary tensors of a cut are the outputs
of the layers before it that some layer behind it reads. Each is sent forward once, and as many
bytes of gradients come back. A transfer takes the link's latency plus ``bytes / bandwidth``, or no
time at all if no tensor passes the cut.

With stage times ``t``, transfer times ``c`` and the numbers of a `ScheduleModel`:

* ``overlap``: period = max(t, transfers_per_period * c);
* ``block``: the transfers block the stage before the cut, so t += transfers_per_period * c,
  and period = max(t);
* ``none``: period = max(t);
* mini-batch time = fill_factor * sum(t) + fill_transfers * sum(c) + steady_periods * period.

With equal stages this is the closed form of each schedule; with unequal ones it is the model that
Alpa minimises (Zheng et al., "Alpa", OSDI 2022). In simulations without transfers, GPipe takes
exactly this time if all stages have the same ratio of backward to forward time. 1F1B never takes
more, and up to a seventh less where stage times differ by a factor of three. An event simulation
may therefore rank the best few partitions again; the one with the smallest bottleneck is always
among them.

The planner chooses the number of stages K, up to the number of devices. The stages take the first
K devices in the order given; in free order they take any K devices in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.errors import UserError

if TYPE_CHECKING:
    import networkx as nx

Floats = NDArray[np.float64]
TOLERANCE = 1e-9
"""Relative difference below which two sums of seconds in 64-bit floats count as equal."""


class PlanError(UserError):
    """No plan keeps within the limits."""


MOST_REASONS = 3
"""Reasons, at most, that a refusal of all ways to plan gives."""


class Refusals:
    """Why ways to plan were not possible, while others are tried."""

    def __init__(self) -> None:
        self._ways: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._ways)

    def add(self, way: str, reason: object) -> None:
        """Note a reason and the first way that was not possible for it."""
        self._ways.setdefault(str(reason), way)

    def error(self, subject: str) -> PlanError:
        """The refusal of all ways, in a sentence.

        Parameters
        ----------
        subject : str
            Name of the kind of plan, such as ``hybrid plan``.
        """
        told = [
            f"{way}, {reason}" if len(self._ways) > 1 else reason
            for reason, way in list(self._ways.items())[:MOST_REASONS]
        ]
        if len(self._ways) > MOST_REASONS:
            told.append(f"{len(self._ways) - MOST_REASONS} more reasons for other ways")
        return PlanError(f"no {subject} is possible: {'; '.join(told) or 'there are no ways'}")


class Transfer(StrEnum):
    """How transfers count: not at all, concurrent with compute, or as blocking the sender."""

    NONE = "none"
    OVERLAP = "overlap"
    BLOCK = "block"


class Objective(StrEnum):
    """The time to minimise: the period (bottleneck) or the time of a mini-batch."""

    BOTTLENECK = "bottleneck"
    MINIBATCH = "minibatch"


@dataclass(frozen=True)
class ScheduleModel:
    """The partitioner's model of a schedule.

    Parameters
    ----------
    num_microbatches : int
        Micro-batches of a mini-batch.
    in_flight : callable
        Number of micro-batches whose activations a stage keeps, as a function of the number of
        stages behind it. It must not fall as that number grows.
    transfer : Transfer
        How transfers count.
    transfers_per_period : float
        Number of times that the transfer of a cut has to fit into a period, or blocks the stage
        before the cut.
    fill_factor, fill_transfers, steady_periods : float
        Coefficients of the mini-batch time; see the module's docstring.
    weight_versions : callable
        Number of weight copies of a stage, as a function of the number of stages behind it. It
        must not fall either.
    """

    num_microbatches: int
    in_flight: Callable[[int], int]
    transfer: Transfer
    transfers_per_period: float
    fill_factor: float
    fill_transfers: float
    steady_periods: float
    weight_versions: Callable[[int], int] = lambda stages_after: 1

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise ValueError(f"num_microbatches must be at least 1, not {self.num_microbatches}")

    @property
    def straight(self) -> ScheduleModel:
        """The same where transfers cost nothing."""
        return replace(self, transfer=Transfer.NONE, fill_transfers=0.0)


@dataclass(frozen=True)
class PartitionProblem:
    """Layers, devices and limits; times and bytes are those of one micro-batch.

    Parameters
    ----------
    names : tuple of str
        Names of the layers, in an order in which each comes after its inputs.
    forward_s, backward_s : array, shape (layers, kinds)
        Seconds of each layer on each kind of device.
    output_bytes : array, shape (layers,)
        Bytes of each layer's output.
    weight_bytes : array, shape (layers,)
        Bytes of each layer's parameters.
    activation_bytes : array, shape (layers,)
        Bytes that each layer keeps of a micro-batch in flight for its backward pass.
    edges : tuple of (int, int)
        Pairs (source, target) of a layer and a layer that reads its output.
    device_names : tuple of str
        Names of the devices.
    device_kinds : int array, shape (devices,)
        Kind of each device: its column in `forward_s` and `backward_s`.
    memory_bytes : array, shape (devices,)
        Usable memory of each device; inf where there is no limit.
    link_bytes_per_s, link_latency_s : array, shape (devices - 1,)
        Rate and latency of the link from each device to the next; 0 bytes/s means that there is no
        link. In free order all links must be equal.
    schedule : ScheduleModel
        Model of the schedule.
    state_bytes : array, shape (layers,), optional
        Bytes that each layer needs once, whatever is in flight: weights, gradients and optimiser
        state, and programs where they are known. Twice the bytes of the weights if not given.
    free_order : bool
        Whether the devices may be taken in any order.
    """

    names: tuple[str, ...]
    forward_s: Floats
    backward_s: Floats
    output_bytes: Floats
    weight_bytes: Floats
    activation_bytes: Floats
    edges: tuple[tuple[int, int], ...]
    device_names: tuple[str, ...]
    device_kinds: NDArray[np.int64]
    memory_bytes: Floats
    link_bytes_per_s: Floats
    link_latency_s: Floats
    schedule: ScheduleModel
    state_bytes: Floats | None = None
    free_order: bool = False

    def __post_init__(self) -> None:
        num_layers, num_devices = len(self.names), len(self.device_names)
        if not num_layers or not num_devices:
            raise ValueError("a partition needs at least one layer and one device")
        num_kinds = self.forward_s.shape[-1]
        shapes = {
            "forward_s": (num_layers, num_kinds),
            "backward_s": (num_layers, num_kinds),
            "output_bytes": (num_layers,),
            "weight_bytes": (num_layers,),
            "activation_bytes": (num_layers,),
            "state": (num_layers,),
            "device_kinds": (num_devices,),
            "memory_bytes": (num_devices,),
            "link_bytes_per_s": (num_devices - 1,),
            "link_latency_s": (num_devices - 1,),
        }
        for name, shape in shapes.items():
            values = getattr(self, name)
            if values.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {values.shape}")
            if not (values >= 0).all():
                raise ValueError(f"{name} must be at least 0 everywhere")
        if any(not 0 <= source < target < num_layers for source, target in self.edges):
            raise ValueError("edges must lead from a layer to a later one")
        if (self.device_kinds >= num_kinds).any():
            raise ValueError(f"device_kinds must be in 0..{num_kinds - 1}")
        for name in ("in_flight", "weight_versions"):
            values = np.array([getattr(self.schedule, name)(a) for a in range(num_devices)])
            if (np.diff(values) < 0).any():
                raise ValueError(f"{name} must not fall with the number of stages behind")
        if self.free_order and not self.has_equal_links:
            raise ValueError("devices in free order must have equal links")

    def with_devices(self, devices: NDArray[np.int64]) -> PartitionProblem:
        """The problem with the same layers and only some devices, for devices in free order."""
        return replace(
            self,
            device_names=tuple(self.device_names[device] for device in devices),
            device_kinds=self.device_kinds[devices],
            memory_bytes=self.memory_bytes[devices],
            link_bytes_per_s=self.link_bytes_per_s[: len(devices) - 1],
            link_latency_s=self.link_latency_s[: len(devices) - 1],
        )

    @property
    def num_layers(self) -> int:
        """Number of layers of the network."""
        return len(self.names)

    @property
    def num_devices(self) -> int:
        """Number of available devices."""
        return len(self.device_names)

    @cached_property
    def is_chain(self) -> bool:
        """Whether only one order of the layers is possible."""
        return set(zip(range(self.num_layers), range(1, self.num_layers), strict=False)) <= set(
            self.edges
        )

    @cached_property
    def has_equal_links(self) -> bool:
        """Whether all links have the same rate and latency."""
        return all(len(set(v.tolist())) <= 1 for v in (self.link_bytes_per_s, self.link_latency_s))

    @cached_property
    def device_classes(self) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that have the same kind and the same memory."""
        groups: dict[tuple[int, float], list[int]] = {}
        for device in range(self.num_devices):
            key = (int(self.device_kinds[device]), float(self.memory_bytes[device]))
            groups.setdefault(key, []).append(device)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def has_memory_limit(self) -> bool:
        """Whether any device is too small for the most that it might have to keep."""
        after = self.num_devices - 1
        layers = self.state.sum(), self.weight_bytes.sum(), self.activation_bytes.sum()
        most = self.kept_bytes(*layers, after)
        return bool((self.memory_bytes < most).any())

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of forward and backward pass together, shape (layers, kinds)."""
        total: Floats = self.forward_s + self.backward_s
        return total

    @cached_property
    def device_compute_s(self) -> Floats:
        """Seconds of forward and backward pass together, shape (layers, devices)."""
        return self.compute_s[:, self.device_kinds]

    @cached_property
    def bound_s(self) -> float:
        """Lower bound of the period for all possible cuts, in seconds.

        It is the largest of several bounds. One is the time of the heaviest layer on the device
        that is best for it. The others hold for any device weights y: each layer goes to the
        device where y times its time is least, which gives sum(min(y * t)) / sum(y). This is a
        feasible point of the dual of the linear program of the assignment.
        """
        times = self.device_compute_s
        bounds = [float(times.min(axis=1).max())]
        for weights in (np.ones(self.num_devices), 1 / np.maximum(times.sum(axis=0), 1e-300)):
            bounds.append(float((times * weights).min(axis=1).sum() / weights.sum()))
        return max(bounds)

    @cached_property
    def state(self) -> Floats:
        """`state_bytes`, or its default."""
        return 2 * self.weight_bytes if self.state_bytes is None else self.state_bytes

    def kept_bytes(
        self, state_bytes: Any, weight_bytes: Any, activation_bytes: Any, stages_after: int
    ) -> Any:
        """Bytes of memory that a stage needs; takes numbers or arrays of them."""
        older = self.schedule.weight_versions(stages_after) - 1
        in_flight = self.schedule.in_flight(stages_after)
        return state_bytes + weight_bytes * older + activation_bytes * in_flight

    def transfer_s(self, cut_bytes: Floats, link: int) -> Floats:
        """Seconds of one transfer over a link, for an array of cuts; inf if there is no link."""
        if self.schedule.transfer is Transfer.NONE:
            return np.zeros_like(cut_bytes)
        if link >= self.num_devices - 1:
            return np.where(cut_bytes > 0, np.inf, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = self.link_latency_s[link] + cut_bytes / self.link_bytes_per_s[link]
        return np.where(cut_bytes > 0, seconds, 0.0)

    def cut_bytes(self, before: Sequence[bool] | NDArray[np.bool_]) -> float:
        """Bytes of the boundary tensors of a downset, which is given as a mask of the layers."""
        inside = np.asarray(before, bool)
        sources = {s for s, t in self.edges if inside[s] and not inside[t]}
        return float(sum(self.output_bytes[s] for s in sources))

    def to_networkx(self) -> nx.DiGraph[int]:
        """A graph whose nodes are the indices of layers and whose edges are `edges`."""
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(self.num_layers))
        graph.add_edges_from(self.edges)
        return graph


@dataclass(frozen=True)
class StageAssignment:
    """One stage of a partition.

    Parameters
    ----------
    layers : tuple of str
        Names of the layers, in the network's order.
    devices : tuple of int
        Indices of the devices; more than one if the stage is replicated.
    replicas : int
        Number of devices that share the stage.
    time_s : float
        Seconds per micro-batch: compute, blocking transfers, and the synchronisation of replicas
        where it takes extra time.
    transfer_s : float
        Seconds of one transfer to the next stage, in one direction.
    memory_bytes : float
        Bytes of memory needed on each device.
    """

    layers: tuple[str, ...]
    devices: tuple[int, ...]
    replicas: int
    time_s: float
    transfer_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Partition:
    """The stages, their times, and how good they are.

    Parameters
    ----------
    stages : tuple of StageAssignment
        Stages in the order in which data flow.
    period_s : float
        Time between micro-batches in the steady state.
    minibatch_time_s : float
        Time of a mini-batch under the schedule's model, or by the simulation if one was given.
    objective : Objective
        The time that was minimised.
    lower_bound_s : float
        Value of the objective below which no partition can be, under the model.
    optimal : bool
        Whether the value equals the bound, apart from rounding.
    reason : str
        Why the partition is optimal, or why only a bound is known.
    """

    stages: tuple[StageAssignment, ...]
    period_s: float
    minibatch_time_s: float
    objective: Objective
    lower_bound_s: float
    optimal: bool
    reason: str

    @property
    def value_s(self) -> float:
        """Value of the objective."""
        if self.objective is Objective.BOTTLENECK:
            return self.period_s
        return self.minibatch_time_s

    @property
    def gap(self) -> float:
        """Share of the value by which a better partition could be below it, at most."""
        return 1 - self.lower_bound_s / self.value_s if self.value_s and not self.optimal else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The partition as a dictionary for JSON."""
        return {
            "stages": [
                {
                    "layers": list(stage.layers),
                    "devices": list(stage.devices),
                    "replicas": stage.replicas,
                    "time_s": stage.time_s,
                    "transfer_s": stage.transfer_s,
                    "memory_bytes": stage.memory_bytes,
                }
                for stage in self.stages
            ],
            "period_s": self.period_s,
            "minibatch_time_s": self.minibatch_time_s,
            "objective": self.objective.value,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "optimal": self.optimal,
            "reason": self.reason,
        }
