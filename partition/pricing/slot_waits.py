"""Waits of frames for slots that frames of earlier tasks occupy, over a whole mini-batch.

On a long wire the slots of a channel are full before the first frame's slot is heard to be free
again. When a packet arrives then depends on when all packets before it were sent, also those of
earlier tasks. So the tasks and transfers of the mini-batch are visited once in an order of their
dependences, and the packets of each transfer are sent over its channel in the state in which the
transfers before have left it. The result is written into the lags of `StageTimes`, from which the
event simulation finds the same times again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.link_cycles import PacketTimes, WireTiming, waits_for_slots
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.partition.timeline.event_graph import EventGraph, StageTimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.partition.pricing.task_times import Needed, Sent, TaskTimes

Waits = list[tuple["Task", "Task", float]]
"""Dependences as `fpgapipe.partition.timeline.timeline.simulate` takes them."""


@dataclass(frozen=True)
class SlotChannel:
    """The packets of a mini-batch on one channel of a link.

    Parameters
    ----------
    kind : TaskKind
        ``SF`` for activations, ``SB`` for gradients.
    maker : int
        Sending stage.
    packets : mapping of int to sequence of (Sent, Needed)
        Packets of each micro-batch.
    durations : float array
        Cycles of the tasks of the receiving device's program.
    times : PacketTimes
        The link, on which no packet has been sent.
    """

    kind: TaskKind
    maker: int
    packets: Mapping[int, Sequence[tuple[Sent, Needed]]]
    durations: NDArray[np.float64]
    times: PacketTimes

    @classmethod
    def of(
        cls,
        channel: Channel,
        link: int,
        stages: tuple[int, int],
        tasks: Sequence[TaskTimes],
        memories: Sequence[MemorySpec],
        wire: WireTiming,
        packets: Mapping[int, Sequence[tuple[Sent, Needed]]],
    ) -> list[SlotChannel]:
        """The channel from one stage to another; none if its frames do not wait for slots.

        Parameters
        ----------
        channel, link : int
            Channel, and number of the sending device's link.
        stages : pair of int
            Sending and receiving stage.
        tasks : sequence of TaskTimes
            Tasks of all stages.
        memories : sequence of MemorySpec
            Memories of all stages.
        wire : WireTiming
            The cable between the two stages.
        packets : mapping
            The parameter of `SlotChannel`.
        """
        maker, user = stages
        spec = tasks[maker].program.core.links[link]
        slots = spec.slots[channel]
        if not packets or not waits_for_slots(spec, slots, wire):
            return []
        ends = spec, tasks[user].program.core
        times = PacketTimes(ends, (memories[maker], memories[user]), wire, slots)
        kind = TaskKind.SF if channel is Channel.ACTIVATIONS else TaskKind.SB
        return [cls(kind, maker, packets, tasks[user].durations, times)]


def with_slot_waits(
    schedule: Schedule, times: StageTimes, waits: Waits, channels: Sequence[SlotChannel]
) -> tuple[StageTimes, Waits]:
    """Put the waits of each micro-batch's frames into its lags.

    Parameters
    ----------
    schedule : Schedule
        A schedule whose transfers are streams.
    times : StageTimes
        Cycles, with lags as if all slots were free before each transfer, shape (stages,
        micro-batches).
    waits : list of (Task, Task, float)
        Waits of concurrent tasks for results that are sent.
    channels : sequence of SlotChannel
        Channels whose frames wait for slots.

    Returns
    -------
    times : StageTimes
    waits : list of (Task, Task, float)
    """
    if not channels:
        return times, waits
    visits = _Visits(schedule, times, waits, channels)
    for node in visits.order():
        visits.visit(node)
    return visits.times, visits.waits


class _Visits:
    """Computes times of tasks and transfers, one after the other, and the lags of the transfers.

    Attributes
    ----------
    times, waits
        Those that were given, with the lags of the transfers so far.
    """

    def __init__(
        self, schedule: Schedule, times: StageTimes, waits: Waits, channels: Sequence[SlotChannel]
    ) -> None:
        self.times, self.waits = times.changed(np.copy), list(waits)
        graph = EventGraph(schedule, times, None, waits=waits)
        self._graph = graph
        self._channels = {(each.kind, each.maker): each for each in channels}
        numbers = {task: at for at, task in enumerate(chain.from_iterable(schedule.lanes))}
        self._wait_of = {
            numbers[other]: (at, numbers[task]) for at, (task, other, _) in enumerate(waits)
        }
        sizes = [len(lane) for lane in schedule.lanes]
        firsts = np.cumsum([0, *sizes])[:-1]
        self._firsts = {*firsts.tolist(), *(link.first for link in graph.links)}
        self._first_of: list[int] = np.repeat(firsts, sizes).tolist()
        size = len(graph.kinds)
        self._duration: list[float] = graph.durations().tolist()
        self._start, self._end = [0.0] * size, [0.0] * size
        self._end_of: list[list[int]] = graph.end_of.tolist()
        self._start_of: list[int] = graph.start_of[0].tolist()
        lags = (graph.lag, np.zeros(size), graph.maker_lag, graph.wait_lag)
        self._lags: list[list[float]] = [each.tolist() for each in lags]
        self._user_of = {sent: user for user, sent in enumerate(self._end_of[0]) if sent >= 0}

    def order(self) -> list[int]:
        """Numbers of tasks and transfers in an order in which each is behind all that it needs."""
        schedule = self._graph.schedule
        ones = StageTimes.uniform(schedule.num_stages, 1, 1, 1, transfer_s=1, update_s=1)
        # With a lag, even if it is 0, a transfer begins behind its producer.
        none = np.zeros(schedule.num_stages)
        ones = replace(ones, activations_start_lag_s=none, gradients_start_lag_s=none)
        graph = EventGraph(schedule, ones, None)
        for transfer, user in self._user_of.items():
            if transfer < graph.num_tasks:
                continue
            channel = self._channel(transfer)
            if channel is None:
                continue
            gates = [self._gate(user, needed) for _, needed in self._packets(transfer, channel)]
            graph.end_of[3, transfer] = max(gates)
            maker = int(graph.producer[transfer - graph.num_tasks])
            if maker in self._wait_of:
                # The transfer determines the lag of the concurrent task.
                graph.end_of[3, self._wait_of[maker][1]] = transfer
        _, ends = graph.follow()
        order: list[int] = np.argsort(ends, kind="stable").tolist()
        return order

    def _channel(self, transfer: int) -> SlotChannel | None:
        """The channel of a transfer; None if its frames do not wait for slots."""
        kind = TaskKind(int(self._graph.kinds[transfer]))
        found = self._channels.get((kind, int(self._graph.stages[transfer])))
        has_packets = found and int(self._graph.microbatches[transfer]) in found.packets
        return found if has_packets else None

    def _packets(self, transfer: int, channel: SlotChannel) -> Sequence[tuple[Sent, Needed]]:
        """The packets of a transfer."""
        return channel.packets[int(self._graph.microbatches[transfer])]

    def _gate(self, user: int, needed: Needed) -> int:
        """The task during which a packet's RECEIVE begins; -1 if it waits for no earlier task."""
        gate = user - needed.behind
        return gate if needed.behind and gate >= self._first_of[user] else -1

    def _taken_from(self, user: int, needed: Needed) -> float:
        """Time from which on a packet's RECEIVE takes words."""
        gate = self._gate(user, needed)
        return -inf if gate < 0 else self._end[gate] + needed.offset

    def visit(self, node: int) -> None:
        """Compute the times of a task or transfer from the times of all that it needs."""
        if node >= self._graph.num_tasks and (channel := self._channel(node)) is not None:
            self._send(node, channel)
            return
        begin = 0.0 if node in self._firsts else self._end[node - 1]
        for others, lags in zip(self._end_of, self._lags, strict=True):
            if others[node] >= 0:
                begin = max(begin, self._end[others[node]] + lags[node])
        if self._start_of[node] >= 0:
            begin = max(begin, self._start[self._start_of[node]])
        self._start[node], self._end[node] = begin, begin + self._duration[node]

    def _send(self, node: int, channel: SlotChannel) -> None:
        """Send the packets of a transfer, and note its lags."""
        graph = self._graph
        maker = int(graph.producer[node - graph.num_tasks])
        microbatch = int(graph.microbatches[node])
        made = self._end[maker]
        packets = self._packets(node, channel)
        before = max(channel.times.sent, made + packets[0][0].begin)
        user = self._user_of[node]
        come = [
            channel.times.arrival(
                made + sent.begin, made + sent.end, sent.words, self._taken_from(user, needed)
            )
            for sent, needed in packets
        ]
        left = channel.times.sent
        # The transfer takes no longer than if its frames had the slots for themselves.
        duration = min(self._duration[node], left - before)
        self._start[node], self._end[node] = left - duration, left
        needed = [each for _, each in packets]
        own = max(at + each.rest for at, each in zip(come, needed, strict=True))
        begin = own - float(channel.durations[needed[0].task])
        self._lags[0][user], self._lags[2][user] = begin - left, begin - made
        name = "activations" if channel.kind is TaskKind.SF else "gradients"
        for column, value in (
            ("s", duration),
            ("lag_s", begin - made),
            ("start_lag_s", left - duration - made),
            ("end_lag_s", begin - left),
        ):
            getattr(self.times, f"{name}_{column}")[channel.maker, microbatch] = value
        if needed[0].concurrent >= 0:
            own = max(at + each.rest_concurrent for at, each in zip(come, needed, strict=True))
            lag = own - float(channel.durations[needed[0].concurrent]) - made
            at, waiter = self._wait_of[maker]
            self._lags[3][waiter] = lag
            self.waits[at] = (*self.waits[at][:2], lag)
