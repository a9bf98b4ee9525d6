"""A simulation that stands in the middle of a step: its devices, wires and memories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PAGE_BYTES = 4096
"""Memories are kept by pages of this size; those with zeros alone take no room."""


class RunStopped(Exception):
    """A step was stopped on purpose by its progress function, and could go on."""


@dataclass(frozen=True)
class Pages:
    """The pages of a memory that are not zero.

    Attributes
    ----------
    numbers : int64 array
        Numbers of these pages, in rising order.
    contents : uint8 array, shape (pages, PAGE_BYTES)
    """

    numbers: NDArray[np.int64]
    contents: NDArray[np.uint8]

    @classmethod
    def of(cls, memory: NDArray[np.uint8]) -> Pages:
        """Copy the pages of a memory, whose size must be a multiple of `PAGE_BYTES`."""
        pages = memory.reshape(-1, PAGE_BYTES)
        numbers = np.flatnonzero(pages.view(np.uint64).any(axis=1))
        return cls(numbers, pages[numbers])

    def put(self, memory: NDArray[np.uint8]) -> None:
        """Give a memory these contents; pages that are zero in both are not written."""
        pages = memory.reshape(-1, PAGE_BYTES)
        stale = np.flatnonzero(pages.view(np.uint64).any(axis=1))
        pages[np.setdiff1d(stale, self.numbers)] = 0
        pages[self.numbers] = self.contents


@dataclass(frozen=True)
class Snapshot:
    """A simulation between two windows, in the middle of a step.

    Attributes
    ----------
    designs : tuple of str
        Identities of the devices' simulators, which must be the same where it continues.
    cycle, begin : int
        Present cycle, and the cycle in which the step began.
    runs : int
        Number of steps that these devices have ended before.
    states : tuple of bytes
        States of the cluster and of each device (`Cluster.state`).
    memories : tuple of Pages
    model_states : tuple of bytes
    model_memories : tuple of Pages
        State and memories before the step of the model that it is checked against
        (`ModelBackend.keep`); empty if it is not checked.
    """

    designs: tuple[str, ...]
    cycle: int
    begin: int
    runs: int
    states: tuple[bytes, ...] = field(repr=False)
    memories: tuple[Pages, ...] = field(repr=False)
    model_states: tuple[bytes, ...] = field(default=(), repr=False)
    model_memories: tuple[Pages, ...] = field(default=(), repr=False)

    def put_memories(self, memories: Sequence[NDArray[np.uint8]]) -> None:
        """Give memories the contents that they had."""
        for pages, memory in zip(self.memories, memories, strict=True):
            pages.put(memory)
