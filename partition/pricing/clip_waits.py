"""How long the updates of a pipeline's stages wait for each other where gradients are clipped.

A total of the squares of all gradients goes from the last stage to the first, and the factor that
follows from it comes back (:mod:`fpgapipe.lowering.sums.global_norm`). The cycle model of each
device alone says when these packets leave and what follows their arrival.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.link_cycles import PacketTimes
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.sums.global_norm import NAME
from fpgapipe.partition.pricing.task_times import link_ends
from fpgapipe.partition.timeline.timeline import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
    from fpgapipe.lowering.placement import Placement
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.partition.pricing.task_times import Needed, Sent, TaskTimes
    from fpgapipe.partition.timeline.timeline import StageTimes

    Around = tuple[Sequence[TaskTimes], Sequence[MemorySpec], Sequence[WireTiming], Placement]
    Waits = list[tuple[Task, Task, float]]


def with_clip_waits(
    schedule: Schedule,
    times: StageTimes,
    tasks: Sequence[TaskTimes],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireTiming],
    placement: Placement,
    waits: Waits,
) -> StageTimes:
    """Put the waits of the updates for the factor of all gradients into their durations.

    Parameters
    ----------
    schedule : Schedule
    times : StageTimes
        Cycles, as if all that an update receives were there at once.
    tasks : sequence of TaskTimes
        Times of each device's tasks.
    memories, wires
        Memory of each device, and the cable to each next device.
    placement : Placement
        The devices, and the wires between them.
    waits : list of (Task, Task, float)
        Further waits of tasks, for the simulation.
    """
    names = {each.name for each in tasks[0].program.kernels}
    if len(tasks) == 1 or f"{NAME}.send" not in names:
        return times
    timeline = simulate(schedule, times, waits=waits)
    free = np.zeros(len(tasks))
    for lane, end in zip(schedule.lanes, timeline.end_s, strict=True):
        free[lane.device] = max(free[lane.device], float(end[-1]))
    ends = free.copy()
    around = tasks, memories, wires, placement
    arrival = 0.0
    for one, other in reversed(placement.pairs):
        total_goes = _sent(tasks[other], placement.link(other, one), Channel.GRADIENTS)
        total = _needed(tasks[one], placement.link(one, other), Channel.GRADIENTS)
        arrival = _arrival(ends[other] + total_goes.begin, total_goes, other, one, around)
        ends[one] = max(ends[one], arrival + total.rest)
    goes = ends[0]
    for number, (one, other) in enumerate(placement.pairs):
        factor_goes = _sent(tasks[one], placement.link(one, other), Channel.ACTIVATIONS)
        goes += 0.0 if number else factor_goes.begin
        goes = _arrival(goes, factor_goes, one, other, around)
        factor = _needed(tasks[other], placement.link(other, one), Channel.ACTIVATIONS)
        ends[other] = max(ends[other], goes + factor.rest)
    return replace(times, update_s=times.update_s + ends - free)


def _sent(times: TaskTimes, link: int, channel: Channel) -> Sent:
    """The last packet that the update sends on a channel."""
    return times.sent(link, channel, updating=True)[-1]


def _needed(times: TaskTimes, link: int, channel: Channel) -> Needed:
    """The last packet that the update receives on a channel."""
    return times.needed(link, channel, updating=True)[-1]


def _arrival(begin: float, sent: Sent, maker: int, user: int, around: Around) -> float:
    """Cycle in which a small packet, whose SEND begins in a cycle, is at a neighbour."""
    tasks, memories, wires, placement = around
    channel, link, _ = link_ends(placement, maker, user)
    spec = tasks[maker].program.core.links[link]
    packet = PacketTimes(
        (spec, tasks[user].program.core),
        (memories[maker], memories[user]),
        wires[placement.wire(maker, user)],
        spec.slots[channel],
    )
    return packet.arrival(begin, begin + sent.end - sent.begin, sent.words)
