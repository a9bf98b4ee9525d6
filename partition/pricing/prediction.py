"""Predicts the time of a mini-batch on three levels: closed form, event simulation, cycle model.

The closed form (:mod:`fpgapipe.partition.pricing.closed_form`) takes times from the planner's cost
model. The event simulation (:mod:`fpgapipe.partition.timeline.timeline`) gets the times of each
task from the cycle model of each device alone (:mod:`fpgapipe.partition.pricing.task_times`); the
cycle model here is that of all devices together
(:mod:`fpgapipe.hw.hls_models.cycles.cluster_cycles`). Times are clock cycles.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.cluster_cycles import ClusterPrediction, predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.engine_cycles import SIGNAL_CYCLES
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming, transfer_cycles
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.program.lanes import is_concurrent
from fpgapipe.lowering.schedule.schedule import Lane, Schedule, Task, TaskKind
from fpgapipe.lowering.schedule.tasks import common_steps, slots_of
from fpgapipe.partition.pricing import closed_form
from fpgapipe.partition.pricing.clip_waits import with_clip_waits
from fpgapipe.partition.pricing.few_tasks import like
from fpgapipe.partition.pricing.slot_waits import SlotChannel, Waits, with_slot_waits
from fpgapipe.partition.pricing.task_times import (
    Lag,
    Needed,
    Sent,
    TaskTimes,
    lags,
    link_ends,
)
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES
from fpgapipe.partition.timeline.timeline import StageTimes, Timeline, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.program.pipeline import PipelineProgram


RECEIVERS = {
    Channel.ACTIVATIONS: (TaskKind.F,),
    Channel.GRADIENTS: (TaskKind.B, TaskKind.DX),
}
"""Kinds of the tasks that receive something on a channel; the same kinds send it."""


@dataclass(frozen=True)
class PipelineTiming:
    """Predictions of all levels for a pipeline's mini-batch.

    Parameters
    ----------
    pipeline : PipelineProgram
    memories : tuple of MemorySpec
        Memory of each device.
    wires : tuple of WireTiming
        The wires of the pipeline's placement.
    lanes : sequence of sequence of Task, optional
        Tasks of each device for all micro-batches, if its program has those of a few that
        :mod:`fpgapipe.partition.pricing.few_tasks` chooses: every task takes as long as the one of
        these that is like it. By default, the programs have all.
    """

    pipeline: PipelineProgram
    memories: tuple[MemorySpec, ...]
    wires: tuple[WireTiming, ...]
    lanes: Sequence[Sequence[Task]] | None = None

    @classmethod
    def of(
        cls,
        pipeline: PipelineProgram,
        memory: MemorySpec | Sequence[MemorySpec] | None = None,
        wires: WireTiming | Sequence[WireTiming] | None = None,
        lanes: Sequence[Sequence[Task]] | None = None,
    ) -> PipelineTiming:
        """Make the predictions; a single memory or wire is used for all devices or cables."""
        sizes = len(pipeline.parts), len(pipeline.placement.wires)
        memory, wires = memory or MemorySpec(), wires or WireTiming()
        memories = (memory,) * sizes[0] if isinstance(memory, MemorySpec) else tuple(memory)
        cables = (wires,) * sizes[1] if isinstance(wires, WireTiming) else tuple(wires)
        if (len(memories), len(cables)) != sizes:
            raise UserError(
                f"a pipeline of {sizes[0]} devices has {sizes[0]} memories and {sizes[1]} wires, "
                f"not {len(memories)} and {len(cables)}"
            )
        return cls(pipeline, memories, cables, lanes)

    @cached_property
    def tasks(self) -> tuple[TaskTimes, ...]:
        """Times of the tasks of each device's program, alone."""
        parts = zip(self.pipeline.parts, self.memories, self._steps, strict=True)
        return tuple(TaskTimes(part, memory, steps) for part, memory, steps in parts)

    @cached_property
    def _steps(self) -> list[list[int]]:
        """Step of each task, by device; concurrent tasks, on two GEMM engines, share a step."""
        parts = self.pipeline.parts
        if not any(is_concurrent(part.instructions) for part in parts):
            return [list(range(len(part.tasks))) for part in parts]
        lanes, limits = [], []
        for part in parts:
            forward = [task for task in part.tasks if task.kind is TaskKind.F]
            backward = [task for task in part.tasks if task.kind is not TaskKind.F]
            lanes += [_lane(part.index, "forward", forward)]
            lanes += [_lane(part.index, "backward", backward)]
            limits.append(1 + max(slots_of(part.tasks).values()))
        steps = common_steps(replace(_schedule(lanes, len(parts)), in_flight_limit=tuple(limits)))
        return [[steps[task] for task in part.tasks] for part in parts]

    @cached_property
    def like(self) -> tuple[Sequence[int], ...]:
        """For each device, for each task of its lane, number of the one in its program."""
        if self.lanes is None:  # concurrent tasks are in the order of their ends
            return tuple(times.order for times in self.tasks)
        return tuple(
            range(len(lane)) if len(lane) == len(part.tasks) else like(lane, part.tasks)
            for lane, part in zip(self.lanes, self.pipeline.parts, strict=True)
        )

    @cached_property
    def all_tasks(self) -> Sequence[Sequence[Task]]:
        """Tasks of each device for all micro-batches."""
        if self.lanes is not None:
            return self.lanes
        return [[times.program.tasks[number] for number in times.order] for times in self.tasks]

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that the programs follow; results are sent while they are computed."""
        return schedule_of(self.all_tasks)

    @property
    def stage_times(self) -> StageTimes:
        """Cycles of tasks and transfers, of each stage and micro-batch."""
        return self._slotted[0]

    @property
    def waits(self) -> Waits:
        """Waits of tasks for a result that a concurrent task of the same step uses."""
        return self._slotted[1]

    @cached_property
    def _slotted(self) -> tuple[StageTimes, Waits]:
        """`stage_times` and `waits`, in which frames wait for slots."""
        channels = []
        for (channel, maker, user), transfers in self._transfers.items():
            packets = {microbatch: each.packets for microbatch, each in transfers.items()}
            _, link, _ = link_ends(self.pipeline.placement, maker, user)
            wire = self.wires[self.pipeline.placement.wire(maker, user)]
            channels += SlotChannel.of(
                channel, link, (maker, user), self.tasks, self.memories, wire, packets
            )
        times, waits = with_slot_waits(self.schedule, self._free_times, self._free_waits, channels)
        placement = self.pipeline.placement
        clipped = with_clip_waits(
            self.schedule, times, self.tasks, self.memories, self.wires, placement, waits
        )
        return clipped, waits

    @cached_property
    def _free_times(self) -> StageTimes:
        """`stage_times` if all slots of a link were free before each transfer."""
        shape = (self.schedule.num_stages, self.schedule.num_microbatches)
        passes = {kind: np.zeros(shape) for kind in (TaskKind.F, TaskKind.DX, TaskKind.DW)}
        passes[TaskKind.B] = passes[TaskKind.DX]
        update = np.zeros(shape[0])
        for stage, (lane, numbers) in enumerate(zip(self.all_tasks, self.like, strict=True)):
            durations = self.tasks[stage].durations[numbers]
            for task, cycles in zip(lane, durations, strict=True):
                if task.kind is TaskKind.U:
                    update[stage] = max(update[stage], cycles)
                else:
                    passes[task.kind][stage, task.microbatch] = cycles
        # On the link, and the three lags, by channel.
        sent = {channel: tuple(np.zeros(shape) for _ in range(4)) for channel in RECEIVERS}
        for (channel, maker, _), transfers in self._transfers.items():
            for microbatch, each in transfers.items():
                lag = each.lag
                found = each.link_cycles, lag.cycles, lag.start, lag.behind
                for table, cycles in zip(sent[channel], found, strict=True):
                    table[maker, microbatch] = cycles
        activations, gradients = sent[Channel.ACTIVATIONS], sent[Channel.GRADIENTS]
        return StageTimes(
            passes[TaskKind.F],
            passes[TaskKind.DX],
            passes[TaskKind.DW],
            update,
            activations[0],
            gradients[0],
            max((wire.latency_cycles for wire in self.wires), default=0),
            *(each for both in zip(activations[1:], gradients[1:], strict=True) for each in both),
        )

    @cached_property
    def _transfers(self) -> dict[tuple[Channel, int, int], dict[int, _Transfer]]:
        """Transfers of each micro-batch, by channel, sending and receiving stage."""
        pairs = self.pipeline.placement.pairs
        ways = {Channel.ACTIVATIONS: pairs, Channel.GRADIENTS: [pair[::-1] for pair in pairs]}
        return {
            (channel, maker, user): self._sent(channel, maker, user)
            for channel, several in ways.items()
            for maker, user in several
        }

    def _sent(self, channel: Channel, maker: int, user: int) -> dict[int, _Transfer]:
        """Transfers from a stage to another on a channel, by micro-batch."""
        _, link, other = link_ends(self.pipeline.placement, maker, user)
        makes, uses = self.tasks[maker], self.tasks[user]
        sent: defaultdict[int, list[Sent]] = defaultdict(list)
        needed: defaultdict[int, list[Needed]] = defaultdict(list)
        for packet in makes.sent(link, channel):
            sent[packet.task].append(packet)
        for part in uses.needed(other, channel):
            needed[part.task].append(part)
        wire = self.wires[self.pipeline.placement.wire(maker, user)]
        spec = makes.program.core.links[link]
        makers, users = (self._numbers(stage, channel) for stage in (maker, user))
        known: dict[tuple[int, int], _Transfer] = {}
        found = {}
        for microbatch, number in makers.items():
            if not sent[number]:
                continue
            pair = number, users[microbatch]
            if pair not in known:
                lag = lags(
                    sent[number],
                    needed[pair[1]],
                    uses.durations,
                    (makes.program.core, uses.program.core),
                    link,
                    (self.memories[maker], self.memories[user]),
                    wire,
                    channel,
                )[number]
                cycles = sum(
                    transfer_cycles(packet.words, spec, spec.slots[channel], wire)
                    for packet in sent[number]
                )
                packets = list(zip(sent[number], needed[pair[1]], strict=True))
                known[pair] = _Transfer(number, packets, cycles, lag)
            found[microbatch] = known[pair]
        return found

    def _numbers(self, stage: int, channel: Channel) -> dict[int, int]:
        """For each micro-batch, number of the task in a stage's program that uses a channel."""
        return {
            task.microbatch: number
            for task, number in zip(self.all_tasks[stage], self.like[stage], strict=True)
            if task.kind in RECEIVERS[channel]
        }

    @cached_property
    def _free_waits(self) -> Waits:
        """`waits` if all slots of a link were free before each transfer.

        Each is a triple of the waiting task, the task that computes the result, and the least
        number of cycles from the end of the latter to the beginning of the former.
        """
        return [
            (
                self.tasks[user].program.tasks[each.lag.concurrent],
                self.tasks[maker].program.tasks[each.task],
                each.lag.cycles_concurrent,
            )
            for (_, maker, user), transfers in self._transfers.items()
            for each in transfers.values()
            if each.lag.concurrent >= 0
        ]

    @cached_property
    def timeline(self) -> Timeline:
        """Result of the event simulation."""
        return simulate(self.schedule, self.stage_times, waits=self.waits)

    @property
    def event_cycles(self) -> float:
        """Cycles of a mini-batch, by the event simulation."""
        return self.timeline.makespan_s + SIGNAL_CYCLES

    @cached_property
    def cluster(self) -> ClusterPrediction:
        """Prediction of the cycle model of all devices together."""
        return predict_cluster(
            [part.instructions for part in self.pipeline.parts],
            [part.core for part in self.pipeline.parts],
            self.pipeline.wiring,
            memories=self.memories,
            wires=self.wires,
        )

    @property
    def mini_batch_cycles(self) -> int | None:
        """Cycles of a mini-batch by the cycle model of all devices together.

        None if programs lack some micro-batches, or if there is one device, whose tasks take
        exactly as long as the event simulation says.
        """
        tasks = [len(part.tasks) for part in self.pipeline.parts]
        is_whole = len(tasks) > 1 and tasks == list(map(len, self.all_tasks))
        return self.cluster.cycles if is_whole else None

    def event_tasks(self) -> list[dict[Task, tuple[float, float]]]:
        """Begin and end of each task on each device, in cycles, by the event simulation."""
        found: list[dict[Task, tuple[float, float]]] = [{} for _ in self.pipeline.parts]
        for device, task, _, end in self.timeline.tasks():
            times = self.tasks[device]
            cycles = float(times.spans[times.program.tasks.index(task)])
            found[device][task] = end - cycles, end
        return found

    @cached_property
    def closed_layers(self) -> list[dict[tuple[str, TaskKind], float]]:
        """Cycles of each device's layers by the cost model, see `closed_form.layer_cycles`."""
        return closed_form.layer_cycles(self.pipeline, self.memories)

    def closed_form(self, kind: str) -> float | None:
        """Cycles of a mini-batch by a schedule's formula and the cost model; None without one."""
        trains = any(task.kind is not TaskKind.F for task in self.pipeline.parts[0].tasks)
        layers = [
            {key: cycles for key, cycles in own.items() if trains or key[1] is TaskKind.F}
            for own in self.closed_layers
        ]
        formula = SCHEDULES[kind].closed_form if kind in SCHEDULES else None
        return formula and formula(self.schedule.num_microbatches, closed_form.stage_times(layers))


@dataclass(frozen=True)
class _Transfer:
    """Packets of a micro-batch from one device to another, with the tasks of their programs.

    Attributes
    ----------
    task : int
        Number of the sending task.
    packets : list of (Sent, Needed)
    link_cycles : float
        Cycles that the wire needs for them.
    lag : Lag
    """

    task: int
    packets: list[tuple[Sent, Needed]]
    link_cycles: float
    lag: Lag


def schedule_of(lanes: Sequence[Sequence[Task]]) -> Schedule:
    """Schedule of the tasks of each device, each in one lane."""
    own = [_lane(device, "compute", tasks) for device, tasks in enumerate(lanes)]
    return _schedule(own, len(lanes))


def _schedule(lanes: Sequence[Lane], num_stages: int) -> Schedule:
    """Schedule of these lanes, with one stage on each device."""
    stages = tuple(range(num_stages))
    count = len(set(lanes[0].microbatches.tolist()) - {-1})
    routes = np.zeros(count, np.int32)
    return Schedule("programs", count, stages, (stages,), routes, tuple(lanes), "stream")


def _lane(device: int, engine: str, tasks: Sequence[Task]) -> Lane:
    return Lane.of(device, engine, [(task.kind, task.stage, task.microbatch) for task in tasks])
