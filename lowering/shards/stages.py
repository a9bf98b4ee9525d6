"""Stages: how the layers of a network are divided among the devices of a chain."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from fpgapipe.lowering.shards.degrees import Degrees, sharers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Stages:
    """How a network is divided among the devices of a chain.

    Attributes
    ----------
    layers : tuple of tuple of str
        Names of the layers of each stage.
    sizes : tuple of int
        Number of devices of each stage.
    degrees : mapping of str to Degrees
        Degrees of each layer of the stages of several devices: a stage's layers are cut into as
        many parts as it has devices, or are whole (:mod:`fpgapipe.lowering.shards.cuts`). If there
        is one stage, its devices may be equal groups of neighbours with samples of their own.
    replicas : int
        Pipelines with these stages, one behind the other along the chain, each of which has samples
        of its own.
    """

    layers: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    degrees: Mapping[str, Degrees] = field(default_factory=dict)
    replicas: int = 1

    @classmethod
    def of(
        cls,
        layers: Sequence[Sequence[str]],
        sizes: Sequence[int] | None = None,
        degrees: Mapping[str, Degrees] | None = None,
    ) -> Stages:
        """Stages of one device each, if nothing else is said."""
        names = tuple(tuple(each) for each in layers)
        return cls(names, tuple(sizes or [1] * len(names)), degrees or {})

    @property
    def first(self) -> tuple[int, ...]:
        """Number of the first device of each stage, in the first replica."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    @property
    def replica_devices(self) -> int:
        """Number of devices of a replica."""
        return sum(self.sizes)

    @property
    def num_devices(self) -> int:
        """Number of all devices."""
        return self.replicas * self.replica_devices

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """For each device of the chain, its replica, its stage, and its number in that stage."""
        return [
            (replica, stage, lane)
            for replica in range(self.replicas)
            for stage, size in enumerate(self.sizes)
            for lane in range(size)
        ]

    @cached_property
    def sharers(self) -> tuple[int, ...]:
        """For each stage, the parts into which its devices divide the samples of a micro-batch."""
        return tuple(
            sharers_of({name: self.degrees[name] for name in names if name in self.degrees})
            if size > 1
            else 1
            for names, size in zip(self.layers, self.sizes, strict=True)
        )
