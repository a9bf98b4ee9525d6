"""Tasks of one device: what a micro-batch keeps, and the order without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.partition.schedule import Task, TaskKind

if TYPE_CHECKING:
    from collections.abc import Sequence


def slots_of(tasks: Sequence[Task]) -> dict[int, int]:
    """Slot of each micro-batch: the lowest that is free when its forward pass begins."""
    last = {task.microbatch: at for at, task in enumerate(tasks) if task.microbatch >= 0}
    free: list[int] = []
    found: dict[int, int] = {}
    num_slots = 0
    for at, task in enumerate(tasks):
        index = task.microbatch
        if index < 0:
            continue
        if index not in found:
            if not free:
                free.append(num_slots)
                num_slots += 1
            found[index] = free.pop(free.index(min(free)))
        if last[index] == at:
            free.append(found[index])
    return found


def single_device(num_microbatches: int, *, train: bool = True) -> tuple[Task, ...]:
    """Tasks of one device that has the whole network: one micro-batch after the other."""
    tasks = []
    for index in range(num_microbatches):
        tasks.append(Task(TaskKind.F, 0, index))
        if train:
            tasks.append(Task(TaskKind.B, 0, index))
    if train:
        tasks.append(Task(TaskKind.U, 0, -1))
    return tuple(tasks)
