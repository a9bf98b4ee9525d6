"""Tasks of a device: slots of micro-batches, the order on a single device, and common steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.schedule.schedule import Schedule, Task, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    """Tasks of one device with the whole network, which does one micro-batch after the other."""
    tasks = []
    for index in range(num_microbatches):
        tasks.append(Task(TaskKind.F, 0, index))
        if train:
            tasks.append(Task(TaskKind.B, 0, index))
    if train:
        tasks.append(Task(TaskKind.U, 0, -1))
    return tuple(tasks)


def common_steps(schedule: Schedule) -> dict[Task, int]:
    """Step number of each task, if devices have separate engines for forward and backward passes.

    The tasks of one step may run at the same time on all devices: the tasks whose results a task
    needs have earlier steps, and an engine does one task per step.

    Parameters
    ----------
    schedule : Schedule
        Schedule in which stage `i` follows stage `i - 1`, without transfer tasks.

    Raises
    ------
    UserError
        If tasks wait for each other in a circle.
    """
    lanes = [list(lane) for lane in schedule.lanes]
    tasks = {task for lane in lanes for task in lane}
    steps: dict[Task, int] = {}
    begun = [0] * len(lanes)
    free = [0] * len(lanes)  # first step in which each engine is free
    waits = True
    while waits and len(steps) < len(tasks):
        waits = False
        for number, lane in enumerate(lanes):
            for task in lane[begun[number] :]:
                needed = [each for each in _needed(task, schedule) if each in tasks]
                if any(each not in steps for each in needed):
                    break
                steps[task] = max([free[number], *(steps[each] + 1 for each in needed)])
                free[number] = steps[task] + 1
                begun[number] += 1
                waits = True
    if len(steps) < len(tasks):
        stuck = next(task for lane in reversed(lanes) for task in lane if task not in steps)
        raise UserError(f"schedule {schedule.kind} cannot run: {stuck} waits for what waits for it")
    return steps


def _needed(task: Task, schedule: Schedule) -> Iterator[Task]:
    """Tasks that must have earlier steps than a task, apart from the order within its engine."""
    stage, index = task.stage, task.microbatch
    if task.kind is TaskKind.F:
        yield Task(TaskKind.F, stage - 1, index)
        if schedule.in_flight_limit:
            earlier = index - schedule.in_flight_limit[stage]
            yield Task(TaskKind.B, stage, earlier)
            yield Task(TaskKind.DW, stage, earlier)
    elif task.kind in (TaskKind.B, TaskKind.DX):
        yield Task(TaskKind.F, stage, index)
        yield Task(TaskKind.B, stage + 1, index)
        yield Task(TaskKind.DX, stage + 1, index)
    elif task.kind is TaskKind.DW:
        yield Task(TaskKind.DX, stage, index)
