"""Schedules in the CSV format of ``torch.distributed.pipelining``, one line per device.

A cell has stage, action and micro-batch, such as ``0F3``: F is a forward pass, B a whole backward
pass, I an input gradient, W a weight gradient. SEND_F, RECV_F, SEND_B and RECV_B are transfers that
the device waits for. Empty cells are idle steps. The format has no updates: every stage is updated
once, after all its other tasks. REDUCE_GRAD, which has no micro-batch and comes after a stage's
last gradient, is the sum over replicas of the stage; an update begins with that sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fpgapipe.errors import FileError, shown
from fpgapipe.files import read_text
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, ScheduleError, TaskKind

MAX_BYTES = 64 * 2**20
"""Largest file that is read, bytes."""
MAX_FAULTS = 20
"""Most faults that are listed."""
MAX_TASKS = 2**22
"""Most tasks of a schedule that is read."""

_ACTIONS = {
    TaskKind.F: "F",
    TaskKind.B: "B",
    TaskKind.DX: "I",
    TaskKind.DW: "W",
    TaskKind.SF: "SEND_F",
    TaskKind.RF: "RECV_F",
    TaskKind.SB: "SEND_B",
    TaskKind.RB: "RECV_B",
}
_KINDS = {name: kind for kind, name in _ACTIONS.items()}
_TRANSFERS = (TaskKind.SF, TaskKind.RF, TaskKind.SB, TaskKind.RB)
_REDUCE = re.compile(r"([0-9]{1,7})REDUCE_GRAD")
_CELL = re.compile(r"([0-9]{1,7})([A-Z_]+)([0-9]{1,7})")


def to_pytorch_csv(schedule: Schedule) -> str:
    """Write the tasks in the CSV format of ``torch.distributed.pipelining``, one row per device.

    Updates are left out.

    Raises
    ------
    ScheduleError
        If a device has two engines, which the format cannot express.
    """
    if schedule.splits_engines:
        raise ScheduleError(f"{schedule.kind} has two engines a device, which PyTorch's CSV lacks")
    rows = []
    for lane in sorted(schedule.lanes, key=lambda lane: lane.device):
        cells = [
            f"{task.stage}{_ACTIONS[task.kind]}{task.microbatch}"
            for task in lane
            if task.kind in _ACTIONS
        ]
        rows.append(",".join(cells))
    return "\n".join(rows) + "\n"


def read_pytorch_csv(path: Path) -> Schedule:
    """Read a file in PyTorch's CSV format.

    Raises
    ------
    FileError
        If the file cannot be read, or is no schedule. The message lists every fault, with line and
        column where it has one.
    """
    text = read_text(path, MAX_BYTES)
    try:
        return from_pytorch_csv(text)
    except ScheduleError as error:
        raise FileError(path, str(error).splitlines()) from None


def from_pytorch_csv(text: str, *, kind: str = "csv") -> Schedule:
    """Read PyTorch's CSV format; each stage is placed on the device whose line contains it.

    The stages form one route in the order of their numbers. If there are transfers, they take the
    time of the device where they stand; otherwise they run concurrently with its tasks.

    Parameters
    ----------
    text : str
    kind : str
        Name of the schedule.

    Raises
    ------
    ScheduleError
        If a cell is no action or is there twice, a stage is on two devices, or a task is missing.
        The message has a line for each fault.
    """
    draft = _Draft()
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while lines and not lines[-1].strip(", \t"):
        lines.pop()
    if not lines:
        raise ScheduleError("the schedule is empty; it has a line of tasks for each device")
    for device, line in enumerate(lines):
        draft.read(device, line)
        if len(draft.faults) >= MAX_FAULTS:
            break
    if not draft.faults:
        draft.check()
    if draft.faults:
        hidden = len(draft.faults) - MAX_FAULTS
        more = [f"and {hidden} more faults"] if hidden > 0 else []
        raise ScheduleError("\n".join([*draft.faults[:MAX_FAULTS], *more]))
    return draft.schedule(kind)


@dataclass
class _Draft:
    """Tasks that were read so far."""

    lanes: list[list[tuple[int, int, int]]] = field(default_factory=list)
    where: dict[int, int] = field(default_factory=dict)
    places: dict[tuple[int, int, int], str] = field(default_factory=dict)
    reduced: dict[int, tuple[int, str]] = field(default_factory=dict)
    """For each stage with a REDUCE_GRAD, how many tasks come before that, and its place."""
    faults: list[str] = field(default_factory=list)

    def read(self, device: int, line: str) -> None:
        """Read the line of a device."""
        tasks: list[tuple[int, int, int]] = []
        self.lanes.append(tasks)
        column = 1
        for cell in line.split(","):
            place = f"line {device + 1}, column {column + len(cell) - len(cell.lstrip())}"
            column += len(cell) + 1
            if not cell.strip():
                continue
            task = self._task(cell.strip(), place)
            if len(self.faults) >= MAX_FAULTS:
                return
            if task is None:
                continue
            stage = task[1]
            if self.where.setdefault(stage, device) != device:
                self.faults.append(
                    f"{place}: stage {stage} is on line {self.where[stage] + 1} already; a stage "
                    "is on one device"
                )
                continue
            if task in self.places:
                self.faults.append(f"{place}: {cell.strip()} is in {self.places[task]} already")
                continue
            self.places[task] = place
            tasks.append(task)
            if len(self.places) > MAX_TASKS:
                raise ScheduleError(f"{place}: more than {MAX_TASKS:,} tasks")
        if not tasks and not self.faults:
            self.faults.append(f"line {device + 1}: has no task; each line is a device")

    def _task(self, cell: str, place: str) -> tuple[int, int, int] | None:
        if reduces := _REDUCE.fullmatch(cell):
            self._reduce(int(reduces[1]), place)
            return None
        found = _CELL.fullmatch(cell)
        if found is None or found[2] not in _KINDS:
            why = ""
            if any(word in cell for word in ("OVERLAP", "SHARD")):
                why = " that is read (no overlapped passes, no sharded parameters)"
            self.faults.append(
                f"{place}: {shown(cell, 30)} is no action{why}; there are stage, "
                f"{', '.join(_KINDS)} and micro-batch, such as 0F3"
            )
            return None
        return int(_KINDS[found[2]]), int(found[1]), int(found[3])

    def _reduce(self, stage: int, place: str) -> None:
        """Note where the gradients of a stage are summed over its replicas."""
        number, line = len(self.places), len(self.lanes)
        if stage in self.reduced:
            self.faults.append(
                f"{place}: {stage}REDUCE_GRAD is in {self.reduced[stage][1]} already"
            )
        elif self.where.get(stage) != line - 1:
            self.faults.append(
                f"{place}: {stage}REDUCE_GRAD comes before the gradients of the stage"
            )
        else:
            self.reduced[stage] = number, place

    def check(self) -> None:
        """Find the gaps in the numbers, and the tasks that are missing."""
        microbatches = {number for _, _, number in self.places}
        for what, numbers in (("stages", set(self.where)), ("micro-batches", microbatches)):
            gap = next(i for i in range(len(numbers) + 1) if i not in numbers)
            if gap < len(numbers):
                self.faults.append(
                    f"{what} must be numbered from 0 without a gap: {gap} is missing"
                )
        if not self.faults:
            for task in self._missing(len(microbatches)):
                self.faults.append(f"line {self.where[task[1]] + 1}: {_cell(task)} is missing")
                if len(self.faults) > MAX_FAULTS:
                    return
        if not self.faults:
            self.faults += self._misplaced()

    def _missing(self, num_microbatches: int) -> Iterator[tuple[int, int, int]]:
        last = len(self.where) - 1
        sends = any(kind in _TRANSFERS for kind, _, _ in self.places)
        for stage in sorted(self.where):
            before = stage > 0 and self.where[stage - 1] != self.where[stage]
            after = stage < last and self.where[stage + 1] != self.where[stage]
            for number in range(num_microbatches):
                wanted = [TaskKind.F]
                parts = [(int(each), stage, number) for each in (TaskKind.DX, TaskKind.DW)]
                if any(part in self.places for part in parts):
                    wanted += [TaskKind.DX, TaskKind.DW]
                else:
                    wanted.append(TaskKind.B)
                if sends:
                    wanted += [TaskKind.RF, TaskKind.SB] * before
                    wanted += [TaskKind.SF, TaskKind.RB] * after
                for kind in wanted:
                    task = (int(kind), stage, number)
                    if task not in self.places:
                        yield task

    def _misplaced(self) -> Iterator[str]:
        """Transfers that come before what they send, or after what needs them."""
        order = {task: number for number, task in enumerate(self.places)}
        back = TaskKind.B, TaskKind.DX
        for first, second in (
            *((TaskKind.RF, TaskKind.F), (TaskKind.F, TaskKind.SF)),
            *((TaskKind.RB, each) for each in back),
            *((each, TaskKind.SB) for each in back),
        ):
            for task in self.places:
                other = (int(first), *task[1:])
                if task[0] == second and order.get(other, -1) > order[task]:
                    yield f"{self.places[task]}: {_cell(task)} comes before {_cell(other)}"
        gradients = TaskKind.B, TaskKind.DX, TaskKind.DW
        for task, number in order.items():
            before, place = self.reduced.get(task[1], (number + 1, ""))
            if task[0] in gradients and number >= before:
                yield f"{place}: {task[1]}REDUCE_GRAD comes before {_cell(task)}"

    def schedule(self, kind: str) -> Schedule:
        """The schedule, with an update of each stage."""
        count = 1 + max(number for _, _, number in self.places)
        sends = any(task[0] in _TRANSFERS for task in self.places)
        lanes = []
        own: list[list[int]] = [[] for _ in self.lanes]
        for stage in sorted(self.where):
            own[self.where[stage]].append(stage)
        for device, tasks in enumerate(self.lanes):
            updates = [(int(TaskKind.U), stage, -1) for stage in own[device]]
            lanes.append(Lane.of(device, "compute", [*tasks, *updates]))
        stages = tuple(sorted(self.where))
        return Schedule(
            kind,
            count,
            tuple(self.where[stage] for stage in stages),
            (stages,),
            np.zeros(count, np.int32),
            tuple(lanes),
            "block" if sends else "after",
        )


def _cell(task: tuple[int, int, int]) -> str:
    kind, stage, number = task
    return f"{stage}{_ACTIONS[TaskKind(kind)]}{number}"
