"""The layout of a device's memory: tensors with places of their own, shared places, the program.

What decides the layout is data (`Demand`), so that the memory of a program for many micro-batches
is known from a program for a few, without lowering.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode, words_of
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.memory.sharing import (
    Category,
    KernelUse,
    Life,
    Shareable,
    fullest,
    lives_of,
    share,
)
from fpgapipe.lowering.schedule.tasks import slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fpgapipe.lowering.schedule.schedule import Task, TaskKind


@dataclass(frozen=True)
class Own:
    """A tensor with a place of its own.

    Attributes
    ----------
    size_bytes : int
    category : Category
    is_repeated : bool
        Whether there is one for each micro-batch.
    """

    size_bytes: int
    category: Category
    is_repeated: bool = False


@dataclass(frozen=True)
class Demand:
    """Demand of a device's program for memory.

    Attributes
    ----------
    own : mapping of str to Own
        Tensors that share their places with no others, in the order of their places.
    shareable : mapping of str to Shareable
        All other tensors.
    uses : sequence of KernelUse
        Kernels in the order in which each one finds the data that it reads.
    tasks : sequence of Task
    steps : sequence of int
        Number of the step of each task.
    apart : bool
        Whether all tensors get places of their own.
    """

    own: Mapping[str, Own]
    shareable: Mapping[str, Shareable]
    uses: Sequence[KernelUse]
    tasks: Sequence[Task]
    steps: Sequence[int]
    apart: bool = False

    def repeated(self, tasks: Sequence[Task]) -> Demand:
        """The same for another number of micro-batches, whose tasks are `tasks`, one a step.

        All micro-batches but the first have the same kernels. The first one's weight gradients
        begin sums to which those of the others are added.
        """
        slots, more_slots = slots_of(self.tasks), slots_of(tasks)
        uses_of: dict[int, list[KernelUse]] = {number: [] for number in range(len(self.tasks))}
        for use in self.uses:
            uses_of[use.task].append(use)
        alike: dict[TaskKind, list[int]] = {}  # tasks of each kind, in their order
        for number, task in enumerate(self.tasks):
            alike.setdefault(task.kind, []).append(number)
        of_slot: dict[int | None, list[tuple[str, Shareable]]] = {}
        for name, each in self.shareable.items():
            of_slot.setdefault(each.slot, []).append((name, each))
        shareable = dict(of_slot.get(None, []))
        uses: list[KernelUse] = []
        seen: set[TaskKind] = set()
        for at, task in enumerate(tasks):
            known = alike[task.kind][:2][-1 if task.kind in seen else 0]
            seen.add(task.kind)
            renamed: dict[str, str] = {}
            if task.microbatch >= 0:
                slot = more_slots[task.microbatch]
                for name, each in of_slot.get(slots[self.tasks[known].microbatch], []):
                    renamed[name] = f"{each.number} in slot {slot}"
                    shareable[renamed[name]] = replace(each, slot=slot)
            for use in uses_of[known]:
                reads, writes = (
                    frozenset(renamed.get(name, name) for name in names)
                    for names in (use.reads, use.writes)
                )
                uses.append(replace(use, task=at, reads=reads, writes=writes))
        own = {name: each for name, each in self.own.items() if not each.is_repeated}
        repeated = sum(page(each.size_bytes) for each in self.own.values() if each.is_repeated)
        if repeated:
            own["of all micro-batches"] = Own(
                repeated // len(slots) * len(more_slots), Category.HOST, is_repeated=True
            )
        return Demand(own, shareable, uses, tasks, range(len(tasks)), self.apart)

    def with_words(self, words: Sequence[int]) -> Demand:
        """The same with the words that each kernel takes in the program."""
        uses = [replace(use, words=some) for use, some in zip(self.uses, words, strict=True)]
        return replace(self, uses=uses)

    def all_apart(self) -> Demand:
        """The same with places of their own for all tensors."""
        return replace(self, apart=True)

    @property
    def program_bytes(self) -> int:
        """Bytes of the program."""
        return (sum(use.words for use in self.uses) + words_of(Opcode.END)) * WORD_BYTES


@dataclass(frozen=True)
class Layout:
    """The places of a device's tensors and of its program.

    Attributes
    ----------
    places : dict of str to Placed
    entry : int
        Byte address of the program.
    shared : dict of str to int
        Tensors that share bytes with others, each with the number of the last kernel that writes
        it.
    lives : list of Life
        Tensors that may share places.
    """

    places: dict[str, Placed]
    entry: int
    shared: dict[str, int]
    lives: list[Life]

    def account(self, demand: Demand, memory_bytes: int) -> dict[str, int]:
        """Bytes by category, which add up to the whole memory.

        Where tensors share places, those are counted that live when the most bytes are alive; the
        rest of the shared places is unused then.
        """
        found = dict.fromkeys(Category, 0)
        for own in demand.own.values():
            found[own.category] += page(own.size_bytes)
        for life in self.lives if demand.apart else fullest(self.lives):
            found[life.category] += page(life.size_bytes)
        found[Category.UNUSED] = self.entry - sum(found.values())
        found[Category.PROGRAM] = memory_bytes - self.entry
        return {category.value: size for category, size in found.items() if size}


def lay_out(demand: Demand) -> Layout:
    """Give all tensors their places; the program comes behind them."""
    places: dict[str, Placed] = {}
    at = 0
    for name, own in demand.own.items():
        places[name] = Placed(at, at + own.size_bytes)
        at = page(at + own.size_bytes)
    lives = lives_of(demand.shareable, demand.uses, demand.tasks, demand.steps)
    if demand.apart:
        for life in lives:
            places[life.name] = Placed(at, at + life.size_bytes)
            at = page(at + life.size_bytes)
        return Layout(places, at, {}, lives)
    shared, at = share(lives, at)
    overlapping = _overlapping(shared)
    last = {name: number for number, use in enumerate(demand.uses) for name in use.writes}
    return Layout(places | shared, at, {name: last[name] for name in overlapping}, lives)


def memory_bytes(demand: Demand) -> int:
    """Bytes of memory that a program needs, as its layout has them."""
    return page(lay_out(demand).entry + demand.program_bytes)


def _overlapping(places: Mapping[str, Placed]) -> Iterable[str]:
    """Names of the tensors that share bytes with others, sorted by address."""
    ordered = sorted(places.items(), key=lambda each: (each[1].begin, each[1].end))
    found: dict[str, None] = {}
    reach, reaching = -1, ""
    for name, place in ordered:
        if place.begin < reach:
            found[reaching] = found[name] = None
        if place.end > reach:
            reach, reaching = place.end, name
    return found
