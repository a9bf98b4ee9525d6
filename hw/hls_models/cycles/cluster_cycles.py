"""Cycle model of several cores joined by links: when each instruction of each starts and ends.

Every core is a run of :mod:`fpgapipe.hw.hls_models.cycles.core_cycles`. The cores exchange frames.
A link takes words as long as the other end has room for them; a frame is sent when it is full and
the wire is free; room becomes free again when the words of a frame have been taken (docs/links.md).
Wires are assumed to be free of errors. All runs advance together, in windows no longer than the
latency of a wire.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, nextafter
from typing import Any, NamedTuple

from fpgapipe.hw.hls_models.cycles.bus_cycles import NEVER
from fpgapipe.hw.hls_models.cycles.compiled_core import run_compiled
from fpgapipe.hw.hls_models.cycles.core_cycles import (
    DISPATCH_CYCLES,
    CoreRun,
    MemorySpec,
    Prediction,
)
from fpgapipe.hw.hls_models.cycles.end_cycles import end_cycles
from fpgapipe.hw.hls_models.cycles.engine_cycles import (
    LOAD_CYCLES,
    RECEIVE_CYCLES,
    SEND_CYCLES,
    SIGNAL_CYCLES,
    Event,
    Kind,
    Mover,
)
from fpgapipe.hw.hls_models.cycles.link_cycles import (
    ENTER_CYCLES,
    WRITE_CYCLES,
    WireTiming,
)
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction
from fpgapipe.hw.hls_models.model.dma import burst_words, bursts
from fpgapipe.hw.hls_models.model.link_dma import rows_of, send_words, words_of_packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec

CYCLES = {
    **DISPATCH_CYCLES,
    "enter_cycles": ENTER_CYCLES,
    "write_cycles": WRITE_CYCLES,
}
"""Constants under the names that the machine code uses for them."""

End = tuple[int, int]
"""End of a link: number of the device, and number of its link."""


@dataclass(frozen=True)
class Transfers:
    """Traffic of a wire in one direction.

    Attributes
    ----------
    words : int
        Number of words, packets' tags included.
    frames : int
        Number of frames with words.
    busy_cycles : float
        Cycles in which the wire carried a frame with words.
    """

    words: int
    frames: int
    busy_cycles: float


@dataclass(frozen=True)
class ClusterPrediction:
    """Times at which the programs of several cores run, in cycles.

    Attributes
    ----------
    cycles : int
        Cycles from the start of the first core to the interrupt of the last.
    devices : tuple of Prediction
        Prediction of each device; its times count from the start of the first core.
    wires : dict of End to Transfers
        Traffic of each wire, by the end that sends.
    """

    cycles: int
    devices: tuple[Prediction, ...]
    wires: dict[End, Transfers]


def predict_cluster(
    programs: Sequence[Sequence[Instruction]],
    cores: Sequence[CoreSpec],
    wiring: Sequence[tuple[End, End]],
    *,
    memories: Sequence[MemorySpec] | None = None,
    wires: Sequence[WireTiming] | None = None,
    begins: Sequence[float] | None = None,
) -> ClusterPrediction:
    """Predict the cycles of the programs of several cores.

    Parameters
    ----------
    programs, cores
        One program and one core for each device.
    wiring : sequence of pairs of (device, link)
        Pairs of ends that are joined; each end occurs once.
    memories : sequence of MemorySpec, optional
        One memory for each device.
    wires : sequence of WireTiming, optional
        One wire for each pair of `wiring`.
    begins : sequence of float, optional
        Time at which each device is started, 0 by default.

    Raises
    ------
    ValueError
        If devices wait for each other or for packets that nobody sends, or for the reasons of
        `fpgapipe.hw.hls_models.cycles.core_cycles.predict`.
    """
    count = len(programs)
    memories = memories or [MemorySpec()] * count
    wires = wires or [WireTiming()] * len(wiring)
    begins = begins or [0.0] * count
    runs = [_DeviceRun(*each) for each in zip(programs, cores, memories, begins, strict=True)]
    for pair, wire in zip(wiring, wires, strict=True):
        ports = [_port(runs, end) for end in pair]
        for port, other in (ports, reversed(ports)):
            port.join(other, wire)
    # What an end sends, and what it frees, is heard at the other end no sooner than this.
    heard = [
        port.latency_cycles + port.ends.arrive for run in runs for port in run.ports if port.other
    ]
    _run_all(runs, min(heard, default=1))
    waiting = [
        f"device {number}: {each}" for number, run in enumerate(runs) for each in run.waiting()
    ]
    if waiting:
        raise ValueError("the devices wait for what never comes: " + "; ".join(waiting))
    devices = tuple(run.prediction() for run in runs)
    last = max(max(each.ends, default=0.0) for each in devices)
    sent = {
        (number, link): port.sent()
        for number, run in enumerate(runs)
        for link, port in enumerate(run.ports)
        if port.other is not None
    }
    return ClusterPrediction(round(last + SIGNAL_CYCLES), devices, sent)


def _run_all(runs: Sequence["_DeviceRun"], window: int) -> None:
    """Advance all runs; none gets further ahead than what the other ends of its links may hear."""
    ports = [run.ports for run in runs]
    ends = {id(port): number for number, port in enumerate(chain(*ports))}
    joined = [port for port in chain(*ports) if port.other is not None]
    peers = {ends[id(port)]: ends[id(port.other)] for port in joined}
    if run_compiled(runs, CYCLES, ports=ports, peers=peers, window=window):
        return
    while (now := min(run.next() for run in runs)) != NEVER:
        # At late times, a window may be smaller than the resolution of a floating-point number.
        horizon = max(now + window, nextafter(now, inf))
        for run in runs:
            while (then := run.next()) < horizon:
                run.step(then)


def _port(runs: Sequence["_DeviceRun"], end: End) -> "_Port":
    device, link = end
    if not 0 <= device < len(runs) or not 0 <= link < len(runs[device].ports):
        raise ValueError(f"wiring must be of links that exist, not link {link} of device {device}")
    port = runs[device].ports[link]
    if port.other is not None:
        raise ValueError(f"wiring must name link {link} of device {device} once")
    return port


class _Chunk(NamedTuple):
    """Words that move together: those of a frame for a SEND, those of a burst for a RECEIVE.

    ``frame`` is used for a RECEIVE only: the number, in its channel, of the frame that has the last
    of the words. ``frees`` is the number of frames that the RECEIVE has taken completely with these
    words, or that of words where room is counted in these.
    """

    instruction: int
    channel: int
    words: int
    is_first: bool
    is_last: bool
    frame: int = 0
    frees: int = 0


class _Port:
    """One end of a link: frames that wait to be sent, and frames that came from the other end.

    Parameters
    ----------
    run : _DeviceRun
    link : int
    spec : LinkEngineSpec or OnChipSpec

    Attributes
    ----------
    ends : EndCycles
    """

    def __init__(self, run: "_DeviceRun", link: int, spec: LinkEndSpec) -> None:
        self.run = run
        self.link = link
        self.spec = spec
        self.ends = end_cycles(spec)
        self.other: _Port | None = None
        self._wire = WireTiming()
        self._waiting: deque[_Chunk] = deque()  # read from memory, and not yet in the link
        self._room = list(spec.slots)  # for each channel, frames or words that it can still take
        self._enter_from = 0.0
        self._wire_from = 0.0
        self._trailers: deque[float] = deque()  # ends of the frames that are being sent
        self._words = self._frames = 0
        self._busy = 0.0
        self.arrived = [0] * NUM_CHANNELS  # frames that have arrived, for each channel

    def join(self, other: "_Port", wire: WireTiming) -> None:
        """Connect this end to another by the wire on which this end sends."""
        self.other, self._wire = other, wire

    def sent(self) -> Transfers:
        """Return the traffic that this end has sent."""
        return Transfers(self._words, self._frames, self._busy)

    @property
    def rate(self) -> float:
        """Bytes that go over the wire each cycle."""
        return min(self._wire.bytes_per_cycle, self.spec.phy_bytes)

    @property
    def latency_cycles(self) -> int:
        """Latency of the wire."""
        return self._wire.latency_cycles

    def stopped(self, end: Any, sends: int | None, receives: int | None) -> None:
        """Take the results of machine code for this end, and the instructions that still wait."""
        self._words, self._frames = int(end["words"]), int(end["frames"])
        self._busy = float(end["busy"])
        if sends is not None:
            self._waiting.append(_Chunk(sends, 0, 0, False, False))
        if receives is not None:
            self.run.receivers[self.link].awaits(receives)

    def put(self, chunk: _Chunk, now: float) -> None:
        """Take the words of a frame that have been read from memory."""
        self._waiting.append(chunk)
        self._enter(now)

    def oldest(self) -> int | None:
        """Return the SEND whose words wait for room, if there is one."""
        return self._waiting[0].instruction if self._waiting else None

    def _enter(self, now: float) -> None:
        """Let frames into the link as far as the other end has room."""
        while self._waiting:
            takes = self._link_words(self._waiting[0]) if self.ends.cuts_through else 1
            if self._room[self._waiting[0].channel] < takes:
                return
            chunk = self._waiting.popleft()
            self._room[chunk.channel] -= takes
            # Words follow their beats on the bus, but only after all earlier words have entered.
            behind = now + ENTER_CYCLES
            enters = self._link_words(chunk) * self.spec.parts
            self._enter_from = max(behind, self._enter_from + enters)
            self.run.at(self._enter_from, Event.CALL, self._entered(chunk))

    @staticmethod
    def _link_words(chunk: _Chunk) -> int:
        """Words of a frame on the link; the first frame of a packet has the tag as well."""
        return chunk.words + chunk.is_first

    def _entered(self, chunk: _Chunk) -> Callable[[float], None]:
        def call(now: float) -> None:
            self.run.senders[self.link].entered(chunk, now)
            self._transmit(chunk, now)

        return call

    def _transmit(self, chunk: _Chunk, now: float) -> None:
        if self.other is None:
            return
        words = self._link_words(chunk)
        takes = (words * WORD_BYTES + self.spec.overhead_bytes) / self.rate
        begins = now + self.ends.transmit
        if self.ends.cuts_through:
            self._wire_from = max(self._wire_from + takes, begins + WORD_BYTES / self.rate)
        else:
            self._wire_from = max(self._wire_from, begins) + takes
            self._trailers.append(self._wire_from)
        self._words += words
        self._frames += 1
        self._busy += takes
        comes = self._wire_from + self._wire.latency_cycles + self.ends.arrive
        other = self.other
        other.run.at(comes, Event.CALL, lambda then: other.arrive(chunk.channel, then))

    def arrive(self, channel: int, now: float) -> None:
        """Take a frame that has arrived completely."""
        self.arrived[channel] += 1
        self.run.receivers[self.link].look(now)

    def free(self, channel: int, count: int, now: float) -> None:
        """Free frames or words that have been taken; the next trailer or beat tells it."""
        assert self.other is not None, "what came has come from another end"
        ready = now + self.ends.freed
        while self._trailers and self._trailers[0] < ready:
            self._trailers.popleft()
        # If nothing is on its way, a frame of a trailer alone tells it.
        told = self._trailers[0] if self._trailers else ready + self.spec.overhead_bytes / self.rate
        other = self.other
        heard = told + self._wire.latency_cycles + self.ends.heard
        other.run.at(heard, Event.CALL, lambda then: other.make_room(channel, count, then))

    def make_room(self, channel: int, count: int, now: float) -> None:
        """Take the other end's report that frames are free again."""
        self._room[channel] += count
        self._enter(now)


class _Sender(Mover):
    """Reads a frame's words when there is room for them, and gives them to the link."""

    kind = Kind.LINK_SEND

    def __init__(self, run: "_DeviceRun", link: int, depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self._port = run.ports[link]
        self._link = link
        self._room = send_words(run.core)
        self._wanted: deque[tuple[float, _Chunk]] = deque()  # not yet requested, with its time
        self._asked: deque[_Chunk] = deque()

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        frame_words = self._port.ends.chunk_words
        left = words_of_packet(instruction.body)
        channel = instruction.body["channel"]
        is_first = True
        while left:
            words = min(left, frame_words - is_first)
            left -= words
            self._wanted.append((now, _Chunk(index, channel, words, is_first, not left)))
            is_first = False
        self._ask(now)
        return now

    def oldest(self) -> int | None:
        """Return the SEND whose words wait, if there is one."""
        waiting = self._port.oldest()
        return self._wanted[0][1].instruction if waiting is None and self._wanted else waiting

    def _ask(self, now: float) -> None:
        """Request as many words from memory as there is room for."""
        bus = self.run.bus
        sent, _ = bus.packets[self._link]
        while self._wanted and self._wanted[0][1].words <= self._room:
            since, chunk = self._wanted.popleft()
            self._room -= chunk.words
            self._asked.append(chunk)
            sent.ask(chunk.instruction, chunk.words, 1, max(now, since) + LOAD_CYCLES + bus.latency)
            self.run.bus_changes = True

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        self._port.put(self._asked.popleft(), now)

    def entered(self, chunk: _Chunk, now: float) -> None:
        """Note that the link has taken a frame's words."""
        self._room += chunk.words
        self._ask(now)
        if chunk.is_last:
            self.end(chunk.instruction, now + SEND_CYCLES - ENTER_CYCLES)


class _Receiver(Mover):
    """Writes a burst when the frames that contain its words have arrived."""

    kind = Kind.LINK_RECEIVE

    def __init__(self, run: "_DeviceRun", link: int, depth: int, in_flight: int) -> None:
        super().__init__(run, depth, in_flight)
        self._port = run.ports[link]
        self._link = link
        self._frames = [0] * NUM_CHANNELS  # frames of all packets that have been begun
        self._awaited: deque[tuple[float, _Chunk]] = deque()
        self._writing: deque[_Chunk] = deque()
        self._take_from = 0.0

    def start(self, index: int, instruction: Instruction, now: float) -> float:
        """See `Engine`."""
        since = now + RECEIVE_CYCLES - WRITE_CYCLES
        self._awaited += ((since, chunk) for chunk in self._bursts(index, instruction.body))
        self.look(now)
        return now

    def _bursts(self, index: int, body: Mapping[str, Any]) -> Iterator[_Chunk]:
        """Iterate over the bursts of a packet, each with the frame that it has to wait for."""
        channel, ends = body["channel"], self._port.ends
        frame_words = ends.chunk_words
        longest = burst_words(self.run.core)
        sizes = [
            size // WORD_BYTES
            for start in rows_of(body)
            for _, size in bursts(start, body["row_bytes"], longest)
        ]
        before = self._frames[channel]
        num_frames = -(-(1 + sum(sizes)) // frame_words)
        at, taken = 1, 0  # words of the packet so far, and frames that are taken completely
        for number, size in enumerate(sizes):
            at += size
            is_last = number == len(sizes) - 1
            whole = num_frames if is_last else at // frame_words
            frame = before + (at - 1) // frame_words
            frees = size + (number == 0) if ends.cuts_through else whole - taken
            yield _Chunk(index, channel, size, number == 0, is_last, frame, frees)
            taken = whole
        self._frames[channel] += num_frames

    def oldest(self) -> int | None:
        """Return the RECEIVE that waits for words, if there is one."""
        return self._awaited[0][1].instruction if self._awaited else None

    def awaits(self, index: int) -> None:
        """Remember a RECEIVE that waits for words."""
        self._awaited.append((0.0, _Chunk(index, 0, 0, False, False)))

    def look(self, now: float) -> None:
        """Take words that have arrived."""
        while self._awaited:
            since, chunk = self._awaited[0]
            if self._port.arrived[chunk.channel] <= chunk.frame:
                return
            self._awaited.popleft()
            # Words of earlier frames were taken as they arrived. If the burst's last frame is the
            # newest one, one word is left to be taken; otherwise all words of the burst are.
            parts = self._port.spec.parts
            words = chunk.words * parts
            last = words if self._port.arrived[chunk.channel] > chunk.frame + 1 else parts
            taken = max(now + last, since + words, self._take_from + words)
            self._take_from = taken
            if chunk.frees:
                self._free(chunk, taken)
            self._writing.append(chunk)
            _, received = self.run.bus.packets[self._link]
            received.ask(chunk.instruction, chunk.words, 1, taken + WRITE_CYCLES)
            self.run.bus_changes = True

    def _free(self, chunk: _Chunk, when: float) -> None:
        self.run.at(
            when, Event.CALL, lambda then: self._port.free(chunk.channel, chunk.frees, then)
        )

    def moved(self, index: int, now: float) -> None:
        """See `Mover`."""
        chunk = self._writing.popleft()
        if chunk.is_last:
            self.end(index, now + self.run.bus.latency)


class _DeviceRun(CoreRun):
    """Run of one core among several.

    Attributes
    ----------
    ports : list of _Port
        Ends of its links.
    senders, receivers : dict of int to engine
        Engines of SEND and RECEIVE, by link.
    """

    def __init__(
        self,
        program: Sequence[Instruction],
        core: CoreSpec,
        memory: MemorySpec,
        begins: float,
    ) -> None:
        self.ports = [_Port(self, number, link) for number, link in enumerate(core.links)]
        self.senders: dict[int, _Sender] = {}
        self.receivers: dict[int, _Receiver] = {}
        # A link takes and gives words as fast as the bus.
        super().__init__(program, core, memory, [inf] * len(core.links), begins)

    def sender(self, link: int, spec: SequencerSpec) -> Mover:
        """See `CoreRun`."""
        self.senders[link] = _Sender(self, link, spec.send_words, spec.in_flight)
        return self.senders[link]

    def receiver(self, link: int, spec: SequencerSpec) -> Mover:
        """See `CoreRun`."""
        self.receivers[link] = _Receiver(self, link, spec.receive_words, spec.in_flight)
        return self.receivers[link]

    def waiting(self) -> list[str]:
        """See `CoreRun`; SENDs and RECEIVEs that have begun and not ended are included."""
        begun = [engine.oldest() for engine in self.senders.values()]
        begun += [engine.oldest() for engine in self.receivers.values()]
        waits = [f"instruction {at}: {self.program[at]}" for at in begun if at is not None]
        return waits + super().waiting()
