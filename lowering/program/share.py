"""Share of a device in a network that several devices compute together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from fpgapipe.lowering.sums.all_reduce import Member, Team
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping


class Summed(IntEnum):
    """Which devices have a summand of a parameter's gradient; gradients lie in this order."""

    ALL = 0
    """All devices."""
    GROUPS = 1
    """Each group of devices; all devices of a group have the same summand."""
    LANES = 2
    """Each group of devices; the devices of a group have different parts of the parameter."""
    NONE = 3
    """No other device: each has the whole gradient, or all there is of its part."""


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
    """

    member: Member = field(default_factory=lambda: Member(0, 1))
    num_groups: int = 1
    sharers: int = 1
    same: frozenset[str] = frozenset()
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)

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
        return is_first_group and (self.lane == 0 or parameter in self.parts)

    @property
    def has_parts(self) -> bool:
        """Whether a device's gradients, with all sums, are not those of the whole network."""
        return bool(self.same or self.parts)

    def part(self, parameter: str) -> tuple[int, int, int] | None:
        """Axis along which a parameter is cut, first index of the device's part, and axis's size.

        None if the device has the whole parameter.
        """
        if parameter not in self.parts:
            return None
        sizes = self.parts[parameter]
        return self.axes.get(parameter, 0), sum(sizes[: self.lane]), sum(sizes)

    def tensor_of(self, lane: int, tensor: Tensor) -> Tensor:
        """The tensor that another device of the group has in the place of one's own."""
        sizes = self.parts[tensor.name]
        if lane == self.lane:
            return tensor
        elements = tensor.elements // sizes[self.lane] * sizes[lane]
        return Tensor(f"{tensor.name} of {lane}", (elements,), tensor.format)

    def lane_team(self, lane: int) -> Team:
        """The devices, one of each group, that have the same part of the parameters."""
        team = tuple(range(lane, self.member.num_devices, self.group_size))
        return Team(team, team)
