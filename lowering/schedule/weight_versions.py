"""Weights of several versions, where they are updated after each micro-batch.

The order of a device's tasks says which updates come before a pass. The backward pass of a
micro-batch uses the newest weights, or those that its forward pass used; a device then has copies
of the weights. An update writes the copy that the next tasks read. A copy is free again when the
backward passes of all micro-batches that used it are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.schedule.schedule import Schedule, Task


@dataclass(frozen=True)
class WeightCopies:
    """The copy of the weights that each task of a device reads, and the one that it writes.

    Attributes
    ----------
    count : int
        Number of copies. A step begins and ends with the weights in copy 0.
    reads, writes : tuple of int
        Number of a copy, for each task; a task that is no update writes none, which is -1.
    """

    count: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @classmethod
    def of(cls, tasks: Sequence[Task], *, keeps: bool) -> WeightCopies:
        """Assign copies to the tasks of a device.

        Parameters
        ----------
        tasks : sequence of Task
            Tasks of a step in their order, with an update after each backward pass.
        keeps : bool
            Whether a backward pass uses the weights of its forward pass.
        """
        last = max((at for at, task in enumerate(tasks) if task.kind is TaskKind.U), default=-1)
        used: dict[int, int] = {}  # copy of each micro-batch between its two passes
        newest, count = 0, 1
        reads, writes = [], []
        for at, task in enumerate(tasks):
            read, written = newest, -1
            if task.kind is TaskKind.F and keeps:
                used[task.microbatch] = newest
            elif task.kind is TaskKind.B and keeps:
                read = used.pop(task.microbatch)
            elif task.kind is TaskKind.U:
                busy = set(used.values())
                free = (copy for copy in range(count + 1) if copy not in busy | {newest})
                written = newest if newest not in busy else next(free)
                written = 0 if at == last else written  # nothing is in flight any more
                newest, count = written, max(count, written + 1)
            reads.append(read)
            writes.append(written)
        assert newest == 0, "the last update must leave the weights where the next step begins"
        return cls(count, tuple(reads), tuple(writes))


@dataclass(frozen=True)
class LateWeights:
    """How many updates came before each pass, where weights are updated after each micro-batch.

    Attributes
    ----------
    stages : tuple of tuple of str
        Names of the layers of each stage.
    forward, backward : integer arrays, shape (stages, micro-batches)
        Updates of the mini-batch before the weights that a pass of a micro-batch uses.
    """

    stages: tuple[tuple[str, ...], ...]
    forward: NDArray[np.int64]
    backward: NDArray[np.int64]

    @classmethod
    def of(cls, schedule: Schedule, stages: Sequence[Sequence[str]]) -> LateWeights:
        """Count the updates before the passes of a schedule, one stage a device.

        Parameters
        ----------
        schedule : Schedule
            A schedule with an update after each backward pass.
        stages : sequence of sequence of str
            Names of the layers of each stage.
        """
        shape = (schedule.num_stages, schedule.num_microbatches)
        seen: Mapping[TaskKind, NDArray[np.int64]] = {
            kind: np.zeros(shape, np.int64) for kind in (TaskKind.F, TaskKind.B)
        }
        for lane in schedule.lanes:
            updates = np.cumsum(lane.kinds == TaskKind.U)
            for kind, table in seen.items():
                own = lane.kinds == kind
                table[lane.stages[own], lane.microbatches[own]] = updates[own]
        forward, backward = seen[TaskKind.F], seen[TaskKind.B]
        names = tuple(tuple(layers) for layers in stages)
        return cls(names, forward, forward if schedule.keeps_weights else backward)

    def others(self) -> Iterator[tuple[str, LateWeights]]:
        """Other versions that a faulty program might read, each with what it would do."""
        newest = np.broadcast_to(np.arange(self.forward.shape[1]), self.forward.shape)
        choices = {
            "backward passes with the weights of the forward passes": (self.forward, self.forward),
            "backward passes with the newest weights": (self.forward, newest),
        }
        for updates, text in ((-1, "an update earlier"), (1, "an update later")):
            forward, backward = (
                np.clip(each + updates, 0, newest) for each in (self.forward, self.backward)
            )
            choices[f"forward passes with the weights of {text}"] = forward, self.backward
            choices[f"backward passes with the weights of {text}"] = self.forward, backward
            choices[f"all passes with the weights of {text}"] = forward, backward
        seen = {(self.forward.tobytes(), self.backward.tobytes())}
        for text, (forward, backward) in choices.items():
            key = forward.tobytes(), backward.tobytes()
            if key not in seen:
                seen.add(key)
                yield text, LateWeights(self.stages, forward, backward)

    @property
    def most_late(self) -> int:
        """Updates, at most, that came between the weights of a pass and its own update."""
        numbers = np.arange(self.forward.shape[1])
        return int((numbers - np.minimum(self.forward, self.backward)).max())
