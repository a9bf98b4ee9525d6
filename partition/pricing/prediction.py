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
from itertools import chain, pairwise
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

    from numpy.typing import NDArray

    from fpgapipe.lowering.program.pipeline import PipelineProgram


@dataclass(frozen=True)
class PipelineTiming:
    """Predictions of all levels for a pipeline's mini-batch.

    Parameters
    ----------
    pipeline : PipelineProgram
    memories : tuple of MemorySpec
        Memory of each device.
    wires : tuple of WireTiming
        Cables: for each device but the last, the one to the next device.
    """

    pipeline: PipelineProgram
    memories: tuple[MemorySpec, ...]
    wires: tuple[WireTiming, ...]

    @classmethod
    def of(
        cls,
        pipeline: PipelineProgram,
        memory: MemorySpec | Sequence[MemorySpec] | None = None,
        wires: WireTiming | Sequence[WireTiming] | None = None,
    ) -> PipelineTiming:
        """Make the predictions; a single memory or wire is used for all devices or cables."""
        count = len(pipeline.parts)
        memory, wires = memory or MemorySpec(), wires or WireTiming()
        memories = (memory,) * count if isinstance(memory, MemorySpec) else tuple(memory)
        cables = (wires,) * (count - 1) if isinstance(wires, WireTiming) else tuple(wires)
        if (len(memories), len(cables)) != (count, count - 1):
            raise UserError(
                f"a pipeline of {count} devices has {count} memories and {count - 1} wires, not "
                f"{len(memories)} and {len(cables)}"
            )
        return cls(pipeline, memories, cables)

    @cached_property
    def tasks(self) -> tuple[TaskTimes, ...]:
        """Times of the tasks of each device alone."""
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
        steps = common_steps(replace(self._schedule_of(lanes), in_flight_limit=tuple(limits)))
        return [[steps[task] for task in part.tasks] for part in parts]

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that the programs follow; results are sent while they are computed.

        Each device has one lane, in which concurrent tasks are in the order of their ends.
        """
        lanes = []
        for device, times in enumerate(self.tasks):
            tasks = [times.program.tasks[number] for number in times.order]
            lanes.append(_lane(device, "compute", tasks))
        return self._schedule_of(lanes)

    def _schedule_of(self, lanes: Sequence[Lane]) -> Schedule:
        """Schedule of these lanes, with one stage on each device."""
        stages = tuple(range(len(self.pipeline.parts)))
        count = len({task.microbatch for task in self.pipeline.parts[0].tasks} - {-1})
        routes = np.zeros(count, np.int32)
        return Schedule("programs", count, stages, (stages,), routes, tuple(lanes), "stream")

    @property
    def stage_times(self) -> StageTimes:
        """Cycles of tasks and transfers, of each stage and micro-batch."""
        return self._slotted[0]

    @property
    def _waits(self) -> Waits:
        """Waits of tasks for a result that a concurrent task of the same step uses."""
        return self._slotted[1]

    @cached_property
    def _slotted(self) -> tuple[StageTimes, Waits]:
        """`stage_times` and `_waits`, in which frames wait for slots."""
        channels = []
        for channel in (Channel.ACTIVATIONS, Channel.GRADIENTS):
            for maker, user in self._neighbours(channel):
                _, link, _ = link_ends(self.pipeline.placement, maker, user)
                tasks = self.tasks[maker].program.tasks
                packets: defaultdict[int, list[tuple[Sent, Needed]]] = defaultdict(list)
                for sent, needed in zip(*self._parts[maker, user], strict=True):
                    packets[tasks[sent.task].microbatch].append((sent, needed))
                wire = self.wires[min(maker, user)]
                stages = maker, user
                channels += SlotChannel.of(
                    channel, link, stages, self.tasks, self.memories, wire, packets
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
        for stage, times in enumerate(self.tasks):
            for task, cycles in zip(times.program.tasks, times.durations, strict=True):
                if task.kind is TaskKind.U:
                    update[stage] = cycles
                else:
                    passes[task.kind][stage, task.microbatch] = cycles
        sent = {}
        for channel in (Channel.ACTIVATIONS, Channel.GRADIENTS):
            table, lag, start, behind = (np.zeros(shape) for _ in range(4))
            for maker, user in self._neighbours(channel):
                self._count_words(maker, user, table)
                for number, found in self._lags[maker, user].items():
                    microbatch = self.tasks[maker].program.tasks[number].microbatch
                    lag[maker, microbatch] = found.cycles
                    start[maker, microbatch] = found.start
                    behind[maker, microbatch] = found.behind
            sent[channel] = table, lag, start, behind
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

    def _neighbours(self, channel: Channel) -> list[tuple[int, int]]:
        """Pairs of the sending and the receiving stage of a channel."""
        pairs = list(pairwise(range(len(self.pipeline.parts))))
        return pairs if channel is Channel.ACTIVATIONS else [pair[::-1] for pair in pairs]

    def _count_words(self, maker: int, user: int, table: NDArray[np.float64]) -> None:
        """Add to `table` the cycles that the wire needs for the packets of each micro-batch."""
        times = self.tasks[maker]
        channel, link, _ = link_ends(self.pipeline.placement, maker, user)
        spec = times.program.core.links[link]
        wire = self.wires[min(maker, user)]
        for task, _, _, words in times.sent(link, channel):
            cycles = transfer_cycles(words, spec, spec.slots[channel], wire)
            table[maker, times.program.tasks[task].microbatch] += cycles

    @cached_property
    def _parts(self) -> dict[tuple[int, int], tuple[list[Sent], list[Needed]]]:
        """Parts that are sent and needed, for each pair of a sending and a receiving stage."""
        found = {}
        for pair in chain(*map(self._neighbours, (Channel.ACTIVATIONS, Channel.GRADIENTS))):
            channel, link, other = link_ends(self.pipeline.placement, *pair)
            makes, uses = (self.tasks[stage] for stage in pair)
            found[pair] = makes.sent(link, channel), uses.needed(other, channel)
        return found

    @cached_property
    def _lags(self) -> dict[tuple[int, int], dict[int, Lag]]:
        """Lags for each pair of a sending and a receiving stage, by task of the sending stage."""
        found = {}
        for channel in (Channel.ACTIVATIONS, Channel.GRADIENTS):
            for maker, user in self._neighbours(channel):
                makes, uses = self.tasks[maker], self.tasks[user]
                _, link, _ = link_ends(self.pipeline.placement, maker, user)
                found[maker, user] = lags(
                    *self._parts[maker, user],
                    uses.durations,
                    (makes.program.core, uses.program.core),
                    link,
                    (self.memories[maker], self.memories[user]),
                    self.wires[min(maker, user)],
                    channel,
                )
        return found

    @cached_property
    def _free_waits(self) -> Waits:
        """`_waits` if all slots of a link were free before each transfer.

        Each is a triple of the waiting task, the task that computes the result, and the least
        number of cycles from the end of the latter to the beginning of the former.
        """
        return [
            (
                self.tasks[user].program.tasks[lag.concurrent],
                self.tasks[maker].program.tasks[task],
                lag.cycles_concurrent,
            )
            for (maker, user), found in self._lags.items()
            for task, lag in found.items()
            if lag.concurrent >= 0
        ]

    @cached_property
    def timeline(self) -> Timeline:
        """Result of the event simulation."""
        return simulate(self.schedule, self.stage_times, waits=self._waits)

    def timeline_s(self, clk_hz: float) -> Timeline:
        """The event simulation in seconds.

        Parameters
        ----------
        clk_hz : float
            Clock frequency of all devices, Hz.
        """
        times = self.stage_times.changed(lambda values: values / clk_hz)
        waits = [(task, other, cycles / clk_hz) for task, other, cycles in self._waits]
        return simulate(self.schedule, times, waits=waits)

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


def _lane(device: int, engine: str, tasks: Sequence[Task]) -> Lane:
    return Lane.of(device, engine, [(task.kind, task.stage, task.microbatch) for task in tasks])
