"""Facts of a plan's programs about its times and bytes, in a form that files can keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.partition.timeline.timeline import StageTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.placement import Placement
    from fpgapipe.partition.pricing.task_times import TaskTimes


@dataclass(frozen=True)
class StageFacts:
    """Facts of the program of a stage.

    Attributes
    ----------
    durations : tuple of float
        Cycles of each task of the mini-batch, in their order.
    sends_bytes, returns_bytes : int
        Bytes of a micro-batch that go to the next stage, and to the one before.
    memory_bytes : int
        Bytes of memory for the whole mini-batch.
    """

    durations: tuple[float, ...]
    sends_bytes: int
    returns_bytes: int
    memory_bytes: int

    @classmethod
    def of(
        cls, times: TaskTimes, numbers: Sequence[int], memory_bytes: int, placement: Placement
    ) -> StageFacts:
        """Facts from a program.

        Parameters
        ----------
        times : TaskTimes
            Times of the program's tasks.
        numbers : sequence of int
            For each task of the mini-batch, number of the one in the program that takes as long.
        memory_bytes : int
        placement : Placement
            All devices, and the wires between them.
        """
        program = times.program
        count = max(len({task.microbatch for task in program.tasks} - {-1}), 1)
        node = program.index
        before, after = placement.between(node)
        is_last, is_first = placement.after(node) is None, placement.before(node) is None
        sends = () if is_last else times.sent(after, Channel.ACTIVATIONS)
        returns = () if is_first else times.sent(before, Channel.GRADIENTS)
        return cls(
            tuple(times.durations[list(numbers)].tolist()),
            WORD_BYTES * sum(sent.words for sent in sends) // count,
            WORD_BYTES * sum(sent.words for sent in returns) // count,
            memory_bytes,
        )


@dataclass(frozen=True)
class PlanFacts:
    """Facts of the programs of all stages.

    Attributes
    ----------
    stage_times : StageTimes
        Cycles of tasks and transfers.
    stages : tuple of StageFacts
    cycles : int or None
        Cycles of the mini-batch by the cycle model of all devices together, if programs of all
        micro-batches were timed; otherwise only the event simulation of `stage_times` tells them.
    """

    stage_times: StageTimes
    stages: tuple[StageFacts, ...]
    cycles: int | None

    def to_json(self) -> dict[str, Any]:
        """The facts as values of JSON."""
        times = {
            each.name: np.asarray(value).tolist()
            for each in fields(self.stage_times)
            if (value := getattr(self.stage_times, each.name)) is not None
        }
        stages = [asdict(each) for each in self.stages]
        return {"stage_times": times, "stages": stages, "cycles": self.cycles}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlanFacts:
        """Inverse of `to_json`."""
        times: dict[str, Any] = {
            name: np.array(numbers) for name, numbers in value["stage_times"].items()
        }
        stages = []
        for each in value["stages"]:
            stages.append(StageFacts(**{**each, "durations": tuple(each["durations"])}))
        return cls(StageTimes(**times), tuple(stages), value["cycles"])
