"""Share of a device in a network that several devices compute together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from fpgapipe.lowering.sums.all_reduce import Member, Team
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fpgapipe.network.graph import Graph


class Summed(IntEnum):
    """Which devices have a summand of a parameter's gradient; gradients lie in this order."""

    ALL = 0
    """All devices."""
    GROUPS = 1
    """Each group of devices; all devices of a group have the same summand."""
    LANES = 2
    """Each group of devices; the devices of a group have different parts of the parameter, or
    different parameters."""
    NONE = 3
    """No other device: each has the whole gradient, or all there is of its part."""


@dataclass(frozen=True)
class StageTensors:
    """Tensors of a stage of which each replica of a pipeline has its own.

    Attributes
    ----------
    learned : tuple of Tensor
        The parameters whose gradients replicas add up.
    averages : tuple of Tensor
        Running averages.
    """

    learned: tuple[Tensor, ...]
    averages: tuple[Tensor, ...]

    @classmethod
    def of(cls, graph: Graph, layers: Collection[str]) -> StageTensors:
        """The tensors of the stage with some layers."""
        known = {
            parameter.name: parameter.spec
            for name in layers
            for parameter in graph.layers[name].parameters
        }
        averaged = averages_of(graph, layers)
        return cls(
            tuple(Tensor(name, (spec.elements,)) for name, spec in known.items() if spec.trainable),
            tuple(Tensor(name, (known[name].elements,)) for name in averaged),
        )


def averages_of(graph: Graph, layers: Collection[str]) -> list[str]:
    """Names of the running averages that layers keep in training, in the order of the network."""
    found = (
        parameter.name
        for layer in graph.layers.values()
        if layer.name in layers
        for parameter in layer.parameters
        if parameter.spec.role in layer.operator.averages
    )
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Share:
    """Share of a device in a network that several devices compute together.

    The devices are groups of neighbours; each group has samples of its own.

    Attributes
    ----------
    member : Member
        The device's place among the devices.
    num_groups : int
    sharers : int
        Parts into which the samples of a mini-batch are divided: one for each device, or for each
        group.
    same : frozenset of str
        Parameters whose gradients are the same on all devices of a group.
    parts : mapping of str to tuple of int
        Parameters of which each device of a group has a part: the sizes of the parts.
    axes : mapping of str to int
        Axis along which these are cut, if it is not the first.
    stages : tuple of StageTensors
        Where each group is a replica of a pipeline: what the devices of a group have.
    """

    member: Member = field(default_factory=lambda: Member(0, 1))
    num_groups: int = 1
    sharers: int = 1
    same: frozenset[str] = frozenset()
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    stages: tuple[StageTensors, ...] = ()

    @property
    def group_size(self) -> int:
        """Devices of a group."""
        return self.member.num_devices // self.num_groups

    @property
    def lane(self) -> int:
        """Number of the device in its group."""
        return self.member.index % self.group_size

    def summed(self, parameter: str) -> Summed:
        """Which devices have a summand of a parameter's gradient."""
        if self.member.num_devices == 1:
            return Summed.NONE
        if self.stages:
            return Summed.LANES
        if parameter not in self.same and parameter not in self.parts:
            return Summed.ALL
        if self.num_groups == 1:
            return Summed.NONE
        return Summed.GROUPS if parameter in self.same else Summed.LANES

    def is_summed(self, parameter: str) -> bool:
        """Whether devices add up their gradients of a parameter."""
        return self.summed(parameter) is not Summed.NONE

    def counts(self, parameter: str) -> bool:
        """Whether the device is the one of several with the same gradient that counts it."""
        is_first_group = self.member.index < self.group_size
        return is_first_group and bool(self.lane == 0 or self.stages or parameter in self.parts)

    @property
    def has_parts(self) -> bool:
        """Whether a device's gradients, with all sums, are not those of the whole network."""
        return bool(self.same or self.parts or self.stages)

    def part(self, parameter: str) -> tuple[int, int, int] | None:
        """Axis along which a parameter is cut, first index of the device's part, and axis's size.

        None if the device has the whole parameter.
        """
        if parameter not in self.parts:
            return None
        sizes = self.parts[parameter]
        return self.axes.get(parameter, 0), sum(sizes[: self.lane]), sum(sizes)

    def learned_of(self, lane: int, own: Sequence[Tensor]) -> Sequence[Tensor]:
        """Parameters that a device of the group has where this one has its own of `LANES`."""
        if lane == self.lane:
            return own
        return self.stages[lane].learned if self.stages else self._parts_of(lane, own)

    def averages_of(self, lane: int, own: Sequence[Tensor]) -> Sequence[Tensor]:
        """As `learned_of`, of running averages."""
        if lane == self.lane:
            return own
        found = self.stages[lane].averages if self.stages else self._parts_of(lane, own)
        return [replace(each, name=f"{each.name} of {lane}") for each in found]

    def _parts_of(self, lane: int, own: Sequence[Tensor]) -> list[Tensor]:
        """What another device of the group has of parameters."""
        found = []
        for each in own:
            sizes = self.parts[each.name]
            elements = each.elements // sizes[self.lane] * sizes[lane]
            found.append(Tensor(each.name, (elements,), each.format))
        return found

    @property
    def learns(self) -> bool:
        """Whether another device of the group has something to learn; only replicas know that."""
        return any(each.learned for each in self.stages)

    def lane_team(self, lane: int) -> Team:
        """The devices, one of each group, that have the same part of the parameters."""
        team = tuple(range(lane, self.member.num_devices, self.group_size))
        return Team(team, team)
