"""A few micro-batches of a device's tasks, which tell the times of all.

How long a task takes depends on the passes before it and after it, with which it overlaps, and on
whether it writes the first gradients of the mini-batch or adds to those that are there. A device
does thousands of tasks but only a handful of such cases, and most of them are found among the tasks
of a few of its micro-batches.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.tasks import slots_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.schedule.schedule import Task

Case = tuple[object, ...]
"""Causes of the cycles of a task: its kind, whether it writes first gradients, the kinds
of the task before it, of the next one, and of the one two before it; the most important first."""


def cases_of(tasks: Sequence[Task]) -> list[Case]:
    """The case of each task of a device."""
    kinds = [task.kind for task in tasks]
    padded = [None, None, *kinds, None]
    found: list[Case] = []
    has_gradients = False
    for at, kind in enumerate(kinds):
        writes = kind in (TaskKind.B, TaskKind.DW)
        two_before, before, _, after = padded[at : at + 4]
        found.append((kind, writes and not has_gradients, before, after, two_before))
        has_gradients = (has_gradients or writes) and kind is not TaskKind.U
    return found


def few_tasks(tasks: Sequence[Task], most: int) -> list[Task]:
    """Tasks of a few micro-batches with all cases that the tasks of all have, or with most of them.

    Parameters
    ----------
    tasks : sequence of Task
        Tasks of a device in their order, without concurrent ones.
    most : int
        Number of micro-batches at most, 2 or more.

    Returns
    -------
    list of Task
        They are in the same order, and are numbered as there. If several micro-batches are in
        flight in `tasks`, several are in these.
    """
    if len({task.microbatch for task in tasks} - {-1}) <= 2:
        return list(tasks)
    cases = cases_of(tasks)
    wanted, slots = set(cases), _in_flight(tasks)
    candidates = _candidates(tasks, cases)

    def score(chosen: tuple[int, ...]) -> tuple[int, int]:
        kept = _of(tasks, chosen)
        return _in_flight(kept), len(wanted.intersection(cases_of(kept)))

    chosen: tuple[int, ...] = max(combinations(candidates, 2), key=score)
    while score(chosen) < (slots, len(wanted)) and len(chosen) < min(most, len(candidates)):
        left = [each for each in candidates if each not in chosen]
        chosen = max(((*chosen, each) for each in left), key=score)
    return _of(tasks, chosen)


def _of(tasks: Sequence[Task], microbatches: Sequence[int]) -> list[Task]:
    return [task for task in tasks if task.microbatch in (-1, *microbatches)]


def _in_flight(tasks: Sequence[Task]) -> int:
    """2 if several micro-batches are in flight, else 1."""
    return min(1 + max(slots_of(tasks).values()), 2)


def _candidates(tasks: Sequence[Task], cases: Sequence[Case]) -> list[int]:
    """Micro-batches of the first two tasks of each case and of the tasks next to them."""
    seen: dict[Case, int] = {}
    found: set[int] = set()
    for at, case in enumerate(cases):
        seen[case] = seen.get(case, 0) + 1
        if seen[case] <= 2:
            found.update(task.microbatch for task in tasks[max(at - 2, 0) : at + 2])
    return sorted(found - {-1})


def like(tasks: Sequence[Task], few: Sequence[Task]) -> list[int]:
    """For each task, the number of the one of a few tasks that takes as long.

    That is the last one of the same case. If there is none, it is the last one with which as many
    parts of its case agree as possible, the most important ones first.
    """
    known: dict[Case, int] = {}
    for number, case in enumerate(cases_of(few)):
        for size in range(1, len(case) + 1):
            known[case[:size]] = number
    found = []
    for case in cases_of(tasks):
        size = len(case)
        while case[:size] not in known:
            size -= 1
        found.append(known[case[:size]])
    return found
