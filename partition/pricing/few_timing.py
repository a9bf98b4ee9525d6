"""Times of all micro-batches of a pipeline, from programs of a few of them.

Each device's program has those of its tasks that :mod:`fpgapipe.partition.pricing.few_tasks`
chooses, and every task of the mini-batch takes as long as the one of these that is like it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.link_cycles import transfer_cycles
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, TaskKind
from fpgapipe.partition.pricing.clip_waits import with_clip_waits
from fpgapipe.partition.pricing.few_tasks import like
from fpgapipe.partition.pricing.slot_waits import SlotChannel, with_slot_waits
from fpgapipe.partition.pricing.task_times import (
    Lag,
    Needed,
    Sent,
    TaskTimes,
    lags,
    link_ends,
)
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.schedule.schedule import Task

RECEIVERS = {
    Channel.ACTIVATIONS: (TaskKind.F,),
    Channel.GRADIENTS: (TaskKind.B, TaskKind.DX),
}
"""Kinds of the tasks that receive something on a channel; the same kinds send it."""


@dataclass(frozen=True)
class FewTiming:
    """Times of the tasks of all devices.

    Parameters
    ----------
    pipeline : PipelineProgram
        Programs of a few micro-batches of each device.
    lanes : sequence of sequence of Task
        Tasks of all micro-batches, for each device.
    memories : sequence of MemorySpec
    wires : sequence of WireTiming
        Cables: for each device but the last, the one to the next device.
    """

    pipeline: PipelineProgram
    lanes: Sequence[Sequence[Task]]
    memories: Sequence[MemorySpec]
    wires: Sequence[WireTiming]

    @cached_property
    def tasks(self) -> tuple[TaskTimes, ...]:
        """Times of the tasks of each device's program."""
        parts = zip(self.pipeline.parts, self.memories, strict=True)
        return tuple(TaskTimes(part, memory, range(len(part.tasks))) for part, memory in parts)

    @cached_property
    def like(self) -> tuple[list[int], ...]:
        """For each device, for each task of its lane, number of the one in its program."""
        return tuple(
            list(range(len(lane))) if len(lane) == len(part.tasks) else like(lane, part.tasks)
            for lane, part in zip(self.lanes, self.pipeline.parts, strict=True)
        )

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches in the mini-batch."""
        return len({task.microbatch for task in self.lanes[0]} - {-1})

    @cached_property
    def durations(self) -> tuple[NDArray[np.float64], ...]:
        """Cycles of each task of each device's lane."""
        return tuple(
            times.durations[numbers] for times, numbers in zip(self.tasks, self.like, strict=True)
        )

    @cached_property
    def stage_times(self) -> StageTimes:
        """Cycles of tasks and transfers, of each stage and micro-batch."""
        shape = (len(self.tasks), self.num_microbatches)
        passes = {kind: np.zeros(shape) for kind in (TaskKind.F, TaskKind.DX, TaskKind.DW)}
        passes[TaskKind.B] = passes[TaskKind.DX]
        update = np.zeros(shape[0])
        for stage, (lane, durations) in enumerate(zip(self.lanes, self.durations, strict=True)):
            for task, cycles in zip(lane, durations, strict=True):
                if task.kind is TaskKind.U:
                    update[stage] = max(update[stage], cycles)
                else:
                    passes[task.kind][stage, task.microbatch] = cycles
        channels: list[SlotChannel] = []
        sent = {channel: self._sent(channel, channels) for channel in RECEIVERS}
        activations, gradients = sent[Channel.ACTIVATIONS], sent[Channel.GRADIENTS]
        times = StageTimes(
            passes[TaskKind.F],
            passes[TaskKind.DX],
            passes[TaskKind.DW],
            update,
            activations[0],
            gradients[0],
            max((wire.latency_cycles for wire in self.wires), default=0),
            *(each for both in zip(activations[1:], gradients[1:], strict=True) for each in both),
        )
        schedule = schedule_of(self.lanes)
        times, _ = with_slot_waits(schedule, times, [], channels)
        placement = self.pipeline.placement
        return with_clip_waits(
            schedule, times, self.tasks, self.memories, self.wires, placement, []
        )

    def _sent(
        self, channel: Channel, channels: list[SlotChannel]
    ) -> tuple[NDArray[np.float64], ...]:
        """Cycles on the link, and the three lags, of each stage's and micro-batch's packets.

        Channels whose frames wait for slots are added to `channels`.
        """
        shape = (len(self.tasks), self.num_microbatches)
        table, lag, start, behind = (np.zeros(shape) for _ in range(4))
        pairs = list(pairwise(range(shape[0])))
        for maker, user in pairs if channel is Channel.ACTIVATIONS else [p[::-1] for p in pairs]:
            _, link, other = link_ends(self.pipeline.placement, maker, user)
            makes, uses = self.tasks[maker], self.tasks[user]
            sent: defaultdict[int, list[Sent]] = defaultdict(list)
            needed: defaultdict[int, list[Needed]] = defaultdict(list)
            for packet in makes.sent(link, channel):
                sent[packet.task].append(packet)
            for part in uses.needed(other, channel):
                needed[part.task].append(part)
            wire = self.wires[min(maker, user)]
            spec = makes.program.core.links[link]
            makers, users = (self._numbers(stage, channel) for stage in (maker, user))
            known: dict[tuple[int, int], Lag] = {}
            packets: dict[int, list[tuple[Sent, Needed]]] = {}
            for microbatch, number in makers.items():
                pair = number, users[microbatch]
                if not sent[number]:
                    continue
                packets[microbatch] = list(zip(sent[number], needed[pair[1]], strict=True))
                table[maker, microbatch] = sum(
                    transfer_cycles(packet.words, spec, spec.slots[channel], wire)
                    for packet in sent[number]
                )
                if pair not in known:
                    known[pair] = lags(
                        sent[number],
                        needed[pair[1]],
                        uses.durations,
                        (makes.program.core, uses.program.core),
                        link,
                        (self.memories[maker], self.memories[user]),
                        wire,
                        channel,
                    )[number]
                lag[maker, microbatch] = known[pair].cycles
                start[maker, microbatch] = known[pair].start
                behind[maker, microbatch] = known[pair].behind
            channels += SlotChannel.of(
                channel, link, (maker, user), self.tasks, self.memories, wire, packets
            )
        return table, lag, start, behind

    def _numbers(self, stage: int, channel: Channel) -> dict[int, int]:
        """For each micro-batch, number of the task in a stage's program that uses a channel."""
        return {
            task.microbatch: number
            for task, number in zip(self.lanes[stage], self.like[stage], strict=True)
            if task.kind in RECEIVERS[channel]
        }


def schedule_of(lanes: Sequence[Sequence[Task]]) -> Schedule:
    """Schedule of the tasks of each device, without concurrent ones."""
    own = [
        Lane.of(index, "compute", [(task.kind, task.stage, task.microbatch) for task in lane])
        for index, lane in enumerate(lanes)
    ]
    stages = tuple(range(len(lanes)))
    count = len({task.microbatch for task in lanes[0]} - {-1})
    routes = np.zeros(count, np.int32)
    return Schedule("programs", count, stages, (stages,), routes, tuple(own), "stream")


def timeline_of(
    lanes: Sequence[Sequence[Task]], stage_times: StageTimes, clk_hz: float
) -> Timeline:
    """The event simulation of a mini-batch in seconds.

    Parameters
    ----------
    lanes : sequence of sequence of Task
        Tasks of each device, without concurrent ones.
    stage_times : StageTimes
        Cycles.
    clk_hz : float
        Clock frequency of all devices, Hz.
    """
    return simulate(schedule_of(lanes), stage_times.changed(lambda values: values / clk_hz))
