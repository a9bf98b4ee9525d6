"""Places for tensors that share memory: two tensors may overlap if they never live together.

A tensor lives from the kernel that writes it to the last kernel that reads it, once for each
micro-batch that uses it. The order of the kernels is that of the program before it is assembled.
Engines overlap kernels, and the assembler makes a kernel wait until nothing needs the bytes that it
overwrites (:mod:`fpgapipe.lowering.program.assemble`). A place is therefore reused only some
kernels after its last use, so that these waits are short.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.lowering.schedule.schedule import Task


class Category(StrEnum):
    """Uses of the bytes of a device's memory."""

    WEIGHTS = "weights"
    OPTIMISER = "optimiser state"
    WEIGHT_GRADIENTS = "weight gradients"
    HOST = "inputs and results"
    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    TEMPORARIES = "temporaries"
    BOUNDARIES = "boundary tensors"
    UNUSED = "unused"
    PROGRAM = "program"


GRACE = 4
"""Kernels that follow a tensor's last use before its place is used again."""

ENOUGH = 0.02
"""Share of the bytes that are alive at once, unused beside which no further order is tried."""

SMALL = 0.01
"""Share of all bytes that the smallest tensors, which keep places of their own, may take."""


@dataclass(frozen=True)
class KernelUse:
    """The tensors that a kernel uses.

    Attributes
    ----------
    task : int
        Index in the tasks of the device.
    reads, writes : frozenset of str
        Names of the tensors.
    words : int
        Words that the kernel takes in the program.
    is_transfer : bool
        Whether the kernel sends a tensor to another device, or receives one.
    """

    task: int
    reads: frozenset[str]
    writes: frozenset[str]
    words: int = 0
    is_transfer: bool = False


@dataclass(frozen=True)
class Shareable:
    """A tensor whose place others may have when it holds nothing that is still read.

    Attributes
    ----------
    size_bytes : int
    number : int
        Number of the tensor among those of its slot, by which equal tensors are sorted.
    slot : int or None
        Slot of the micro-batches that use it; None if all use the same tensor.
    """

    size_bytes: int
    number: int
    slot: int | None = None


@dataclass(frozen=True)
class Life:
    """The kernels during which a tensor has contents that are still read.

    Attributes
    ----------
    name : str
    size_bytes, number : int
        As in `Shareable`.
    live : int
        A bit for each kernel of the program: whether the tensor lives while it runs.
    kept : int
        `live`, and bits for the kernels during which no other tensor may live in its place, so that
        engines and lanes overlap.
    category : Category
    """

    name: str
    size_bytes: int
    number: int
    live: int
    kept: int
    category: Category

    def meets(self, other: Life) -> bool:
        """Whether the tensors need different places."""
        return bool(self.live & other.kept or self.kept & other.live)


class _Span:
    """The first and the last kernel with which a micro-batch uses a tensor."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first


def lives_of(
    tensors: Mapping[str, Shareable],
    uses: Sequence[KernelUse],
    tasks: Sequence[Task],
    steps: Sequence[int],
) -> list[Life]:
    """Find out when tensors live.

    A tensor that a micro-batch reads before it has written it lives all the time.

    Parameters
    ----------
    tensors : mapping of str to Shareable
    uses : sequence of KernelUse
        Kernels in the order in which each one finds the data that it reads.
    tasks : sequence of Task
    steps : sequence of int
        Number of the step of each task. Tasks of one step run at the same time, so the tensors of
        one share no places with those of the other.
    """
    spans: dict[tuple[str, int], _Span] = {}
    lasting: set[str] = set()
    transferred: set[str] = set()
    kinds: dict[str, set[TaskKind]] = {}
    for at, use in enumerate(uses):
        for name in use.reads | use.writes:
            if name not in tensors:
                continue
            task = tasks[use.task]
            span = spans.setdefault((name, task.microbatch), _Span(at))
            if span.first == at and name in use.reads:
                lasting.add(name)
            span.last = at
            kinds.setdefault(name, set()).add(task.kind)
            if use.is_transfer:
                transferred.add(name)
    ranges = _ranges(uses, steps)
    around = _Around(uses, steps, ranges)
    lives: dict[str, tuple[int, int]] = {}
    for (name, _), span in spans.items():
        live = _bits(span.first, span.last + 1)
        kept = _bits(span.first, span.last + 1 + GRACE)
        if name in transferred:
            # Links are given their work a task early, and may finish it a task late.
            live |= around.neighbours(span.first, span.last)
        kept |= live | around.other_lanes(span.first) | around.other_lanes(span.last)
        known = lives.get(name, (0, 0))
        lives[name] = known[0] | live, known[1] | kept
    found = []
    for name, (live, kept) in lives.items():
        tensor = tensors[name]
        if name in lasting:
            live = kept = _bits(0, len(uses))
        category = _category(tensor, kinds[name], is_transferred=name in transferred)
        found.append(Life(name, tensor.size_bytes, tensor.number, live, kept, category))
    return found


def _category(tensor: Shareable, kinds: set[TaskKind], *, is_transferred: bool) -> Category:
    if tensor.slot is None:
        return Category.WEIGHT_GRADIENTS
    if is_transferred:
        return Category.BOUNDARIES
    if kinds == {TaskKind.F}:
        return Category.TEMPORARIES
    return Category.ACTIVATIONS if TaskKind.F in kinds else Category.GRADIENTS


class _Around:
    """Kernels around a kernel: those of the steps before and after, and of other lanes."""

    def __init__(
        self, uses: Sequence[KernelUse], steps: Sequence[int], ranges: Sequence[tuple[int, int]]
    ) -> None:
        self._uses = uses
        self._ranges = ranges
        self._number = [at for at, (first, end) in enumerate(ranges) for _ in range(first, end)]
        self._lanes = _lanes(uses, steps)
        self._step_of = [steps[use.task] for use in uses]

    def neighbours(self, first: int, last: int) -> int:
        """Kernels from the step before one kernel's to the step after another's."""
        begin = max(self._number[first] - 1, 0)
        end = min(self._number[last] + 1, len(self._ranges) - 1)
        return _bits(self._ranges[begin][0], self._ranges[end][1])

    def other_lanes(self, at: int) -> int:
        """Kernels of tasks that run concurrently with a kernel's task."""
        lanes = self._lanes.get(self._step_of[at])
        if lanes is None:
            return 0
        return _bits(*self._ranges[self._number[at]]) & ~lanes[self._uses[at].task]


def _bits(first: int, end: int) -> int:
    return (1 << end) - (1 << first)


def _ranges(uses: Sequence[KernelUse], steps: Sequence[int]) -> list[tuple[int, int]]:
    """First kernel of each step that has kernels, and the kernel after its last."""
    begins = [
        at for at, use in enumerate(uses) if not at or steps[use.task] != steps[uses[at - 1].task]
    ]
    return list(pairwise([*begins, len(uses)]))


def _lanes(uses: Sequence[KernelUse], steps: Sequence[int]) -> dict[int, dict[int, int]]:
    """For each step with several tasks, a bit for each kernel of each of these tasks."""
    found: dict[int, dict[int, int]] = {}
    for at, use in enumerate(uses):
        tasks = found.setdefault(steps[use.task], {})
        tasks[use.task] = tasks.get(use.task, 0) | 1 << at
    return {step: tasks for step, tasks in found.items() if len(tasks) > 1}


def share(lives: Sequence[Life], begin: int) -> tuple[dict[str, Placed], int]:
    """Give tensors places from an address on, in the order that leaves the fewest bytes unused.

    Each tensor gets the lowest place that no tensor has with which it lives together. Large ones
    come first, or those that live long, or that begin to live early; of orders that need as many
    bytes, the first one counts, and none is tried behind one that leaves less than `ENOUGH` unused.

    Returns
    -------
    places : dict of str to Placed
    end : int
        The first free byte behind all of them, a multiple of a page.
    """
    ordered = sorted(lives, key=lambda life: (-life.size_bytes, _first(life.live), life.number))
    small_bytes = SMALL * sum(page(life.size_bytes) for life in ordered)
    small: list[Life] = []
    while ordered and page(ordered[-1].size_bytes) <= small_bytes:
        small_bytes -= page(ordered[-1].size_bytes)
        small.append(ordered.pop())
    least = sum(page(life.size_bytes) for life in fullest(ordered))
    best: dict[str, Placed] | None = None
    end = begin
    for key in (None, lambda life: -life.size_bytes * life.live.bit_count() ** 0.5, _begins):
        found, reached = _placed(sorted(ordered, key=key) if key else ordered, begin)
        if best is None or reached < end:
            best, end = found, reached
        if end - begin <= (1 + ENOUGH) * least:
            break
    assert best is not None
    for life in small:
        best[life.name] = Placed(end, end + life.size_bytes)
        end = page(end + life.size_bytes)
    return best, end


def _placed(lives: Sequence[Life], begin: int) -> tuple[dict[str, Placed], int]:
    """The lowest places of tensors that come in some order, and where the last one ends."""
    taken: list[tuple[int, int, Life]] = []
    end = begin
    for life in lives:
        at = begin
        size = page(life.size_bytes)
        for low, high, other in taken:
            if low >= at + size:
                break
            if high > at and life.meets(other):
                at = high
        insort(taken, (at, at + size, life), key=lambda each: each[:2])
        end = max(end, at + size)
    return {life.name: Placed(at, at + life.size_bytes) for at, _, life in taken}, end


def _begins(life: Life) -> int:
    return _first(life.live)


def _first(live: int) -> int:
    """Number of the lowest bit."""
    return (live & -live).bit_length()


def fullest(lives: Sequence[Life]) -> list[Life]:
    """The tensors that live during the kernel at which the most bytes are alive."""
    change: dict[int, int] = {}
    for life in lives:
        size = page(life.size_bytes)
        for edge in _edges(life.live):
            change[edge] = change.get(edge, 0) + size
            size = -size
    most = now = best = 0
    for at in sorted(change):
        now += change[at]
        if now > most:
            most, best = now, at
    return [life for life in lives if life.live >> best & 1]


def _edges(live: int) -> list[int]:
    """Kernels at which a tensor begins to live and ceases to, in turn."""
    edges = live ^ live << 1
    found = []
    while edges:
        found.append(_first(edges) - 1)
        edges &= edges - 1
    return found
