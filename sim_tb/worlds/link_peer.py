"""Environment of a link's end in gateware: its model as the peer, and the wires between them."""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.model.link_end import LinkEnd
from fpgapipe.hw.hls_models.spec.link import (
    NUM_CHANNELS,
    WINDOW,
    Frame,
    FrameKind,
    LinkEngineSpec,
    LinkState,
    decode_frame,
)
from fpgapipe.hw.rtl.link.link import EVENTS
from fpgapipe.sim_tb.drivers.stream import PAUSE_RATES, PHASE_CYCLES, parameters, start
from fpgapipe.sim_tb.native.phy import Beat, Wire, WireSpec, beats_of, bytes_of

covered: Counter[str] = Counter()
"""Counts of covered situations; `Bench` counts what it observes, and tests count their actions."""

Word = tuple[bytes, bool]


class Bench:
    """The engine, its peer, the wires between them, and a record of all words and frames.

    Attributes
    ----------
    peer : LinkEnd
        Model of the other end.
    out_words, in_words : list of list of (bytes, bool)
        For each channel, words that wait to enter the engine, or the peer.
    accepted, taken : list of list of (bytes, bool)
        For each channel, words that have entered and left the engine in its session.
    peer_accepted, peer_taken : list of list of (bytes, bool)
        For each channel, words that have entered and left the peer.
    loses : callable
        Function that decides whether a frame of the engine is lost after the wire.
    mutes : bool
        Whether the peer sends nothing.
    reads, peer_reads : list of bool
        For each channel, whether received words are accepted at all.
    rate : float
        Factor of the frequency of pauses, `PAUSE_RATES`, 0 to 1; at 0 there are none.
    """

    def __init__(self, dut: Any, wires: WireSpec) -> None:
        self.dut = dut
        values = parameters()
        self.spec = LinkEngineSpec(**{**values, "slots": tuple(values["slots"])})
        self.rng = random.Random(cocotb.RANDOM_SEED)
        phy = self.spec.phy_bytes
        self.wires = [
            Wire(replace(wires, phy_bytes=phy, seed=self.rng.getrandbits(64))) for _ in range(2)
        ]
        self.cycle = 0
        self.peer = LinkEnd(self.spec, self.rng.randrange(1 << 15))
        self.peer.enable()
        self.out_words: list[deque[Word]] = [deque() for _ in range(NUM_CHANNELS)]
        self.in_words: list[deque[Word]] = [deque() for _ in range(NUM_CHANNELS)]
        self.new_records()
        self.loses: Callable[[Frame], bool] = lambda frame: False
        self.mutes = False
        self.reads, self.peer_reads = [True] * NUM_CHANNELS, [True] * NUM_CHANNELS
        self.rate = 0.0
        self.events: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()  # expected counts of events
        self._offers: list[Word | None] = [None] * NUM_CHANNELS
        self._to_engine: deque[Beat] = deque()  # beats of the frame that the peer is sending
        self._from_wire, self._at_engine, self._leaving = b"", b"", b""
        self._waiting: Beat | None = None
        self._clears = False

    def new_records(self) -> None:
        """Clear the records, when a new session begins."""
        self.accepted: list[list[Word]] = [[] for _ in range(NUM_CHANNELS)]
        self.taken: list[list[Word]] = [[] for _ in range(NUM_CHANNELS)]
        self.peer_accepted: list[list[Word]] = [[] for _ in range(NUM_CHANNELS)]
        self.peer_taken: list[list[Word]] = [[] for _ in range(NUM_CHANNELS)]
        self.transmissions: Counter[tuple[int, int, int]] = Counter()
        self.numbers: list[int] = []
        self._sequences = [0] * NUM_CHANNELS  # number of new frames, which does not wrap
        self._came: deque[int] = deque(maxlen=WINDOW)  # numbers of the peer's frames that arrived

    async def begin(self) -> "Bench":
        """Reset the engine and enable it, with a new seed each time."""
        for name in ("link_enable", "link_clear", "m_axis_link0_tready", "s_axis_link0_tvalid"):
            self._set(name, 0)
        for channel in range(NUM_CHANNELS):
            self._set(f"s_axis_channel{channel}_tvalid", 0)
            self._set(f"m_axis_channel{channel}_tready", 0)
        self._set("link_seed", self.rng.randrange(1 << 15))
        await start(self.dut)
        self._set("link_enable", 1)
        return self

    def _set(self, name: str, value: int) -> None:
        getattr(self.dut, name).value = value

    def value(self, name: str) -> int:
        """Value of a port of the engine."""
        return int(getattr(self.dut, name).value)

    @property
    def state(self) -> LinkState:
        """State of the engine."""
        return LinkState(self.value("link_state"))

    def counts(self, name: str) -> list[int]:
        """Values of a counter of the engine, one per channel."""
        return [self.value(f"link_{name}{channel}") for channel in range(NUM_CHANNELS)]

    def _pauses(self, stream: int) -> bool:
        phase = (self.cycle // PHASE_CYCLES + stream) % len(PAUSE_RATES)
        return self.rng.random() < self.rate * PAUSE_RATES[phase]

    def offer(self, num_words: int, last_rate: float, *, back: bool = True) -> None:
        """Queue words on each channel in both directions; the last one ends its packet.

        Each other word ends its packet with the chance `last_rate`. Without `back`, only the engine
        gets words to send.
        """
        for queues in (self.out_words, self.in_words)[: 1 + back]:
            for queue in queues:
                queue.extend(
                    (self.rng.randbytes(64), at == num_words - 1 or self.rng.random() < last_rate)
                    for at in range(num_words)
                )

    async def run(self, cycles: int) -> None:
        """Run for a number of cycles; must be called right after a rising edge."""
        for _ in range(cycles):
            self._drive()
            await FallingEdge(self.dut.clk)
            self._watch()
            await RisingEdge(self.dut.clk)
            self._move_peer()
            self.cycle += 1

    async def until(self, condition: Callable[[], bool], cycles: int = 30_000) -> None:
        """Run until a condition holds."""
        for _ in range(0, cycles, 4):
            if condition():
                return
            await self.run(4)
        raise AssertionError(f"not within {cycles} cycles: {self.state}, {self.peer.state}")

    def _drive(self) -> None:
        self._ready = self.wires[0].tready(self.cycle)
        self._set("m_axis_link0_tready", self._ready)
        beat = self.wires[1].arrival(self.cycle)
        self._set("s_axis_link0_tvalid", beat is not None)
        if beat is not None:
            self._set("s_axis_link0_tdata", beat.data)
            self._set("s_axis_link0_tkeep", beat.keep)
            self._set("s_axis_link0_tlast", beat.last)
            self._at_engine += bytes_of(beat)
            if beat.last:
                self._note_arrival(self._at_engine)
                self._at_engine = b""
        self._set("link_clear", self._clears)
        self._clears = False
        for channel in range(NUM_CHANNELS):
            queue = self.out_words[channel]
            if queue and self._offers[channel] is None and not self._pauses(channel):
                self._offers[channel] = data, last = queue[0]
                self._set(f"s_axis_channel{channel}_tdata", int.from_bytes(data, "little"))
                self._set(f"s_axis_channel{channel}_tlast", last)
            self._set(f"s_axis_channel{channel}_tvalid", self._offers[channel] is not None)
            ready = self.reads[channel] and not self._pauses(channel + 1)
            self._set(f"m_axis_channel{channel}_tready", ready)

    def _watch(self) -> None:
        assert self.value("s_axis_link0_tready"), "a link takes all beats"
        for channel in range(NUM_CHANNELS):
            if self._offers[channel] and self.value(f"s_axis_channel{channel}_tready"):
                self._offers[channel] = None
                self.accepted[channel].append(self.out_words[channel].popleft())
                self.seen["tx_word"] += 1
            port = f"m_axis_channel{channel}"
            if self.value(f"{port}_tvalid") and self.value(f"{port}_tready"):
                data = self.value(f"{port}_tdata").to_bytes(64, "little")
                self.taken[channel].append((data, bool(self.value(f"{port}_tlast"))))
                at = len(self.taken[channel]) - 1
                assert self.taken[channel][at] == self.peer_accepted[channel][at]
                self.seen["rx_word"] += 1
        if self.value("m_axis_link0_tvalid"):
            bits, keep, ends = (
                self.value(f"m_axis_link0_t{name}") for name in ("data", "keep", "last")
            )
            beat = Beat(bits, keep, bool(ends))
            assert self._waiting in (None, beat), "a beat that waits is held"
            self._waiting = None if self._ready else beat
            self.seen["tx_stall"] += not self._ready
            if self._ready:
                self._leaving += bytes_of(beat)
                self.wires[0].accept(self.cycle, beat)
                if beat.last:
                    self._note_departure(self._leaving)
                    self._leaving = b""
        else:
            assert self._waiting is None, "a beat that waits is held"
        packed = self.value("link_events")
        for name, width in EVENTS.items():
            self.events[name] += packed & (1 << width) - 1
            packed >>= width

    def _move_peer(self) -> None:
        peer = self.peer
        peer.tick()
        beat = self.wires[0].arrival(self.cycle)
        if beat is not None:
            self._from_wire += bytes_of(beat)
            if beat.last:
                found = decode_frame(self._from_wire, self.spec)
                if found is None:
                    covered["damaged out"] += 1
                elif not self.loses(found):
                    peer.hear(self._from_wire)
                self._from_wire = b""
        for channel in range(NUM_CHANNELS):
            queue = self.in_words[channel]
            if queue and not self._pauses(channel + 2) and peer.put(channel, *queue[0]):
                self.peer_accepted[channel].append(queue.popleft())
            if queue and peer.transmitter.is_full(channel):
                covered[f"channel {channel} in full"] += 1
            reads = self.peer_reads[channel] and not self._pauses(channel)
            if reads and (word := peer.take(channel)) is not None:
                self.peer_taken[channel].append(word)
                at = len(self.peer_taken[channel]) - 1
                assert word == self.accepted[channel][at]
        ready = self.wires[1].tready(self.cycle)
        if not self._to_engine and not self.mutes and (frame := peer.next_frame()) is not None:
            self._to_engine.extend(beats_of(frame, self.spec.phy_bytes))
            decoded = decode_frame(frame, self.spec)
            assert decoded is not None
            covered[f"{decoded.kind.name} in"] += 1
            if decoded.kind is FrameKind.CONTROL:
                covered["probe in"] += decoded.fields["probe"]
        if self._to_engine and ready:
            self.wires[1].accept(self.cycle, self._to_engine.popleft())

    def _note_departure(self, raw: bytes) -> None:
        """Count a frame that the engine sent."""
        frame = decode_frame(raw, self.spec)
        if frame is None:
            covered["cut by a clear"] += 1
            return
        covered[f"{frame.kind.name} out"] += 1
        if frame.kind is FrameKind.CONTROL:
            covered["probe out"] += frame.fields["probe"]
        if frame.kind is not FrameKind.DATA:
            return
        channel, sequence, number = (frame.fields[n] for n in ("channel", "sequence", "number"))
        if self.numbers and self.numbers[-1] == 255:
            covered["number wraps"] += 1
        expected = (self.numbers[-1] + 1) % 256 if self.numbers else 1
        assert number == expected, "numbers have no gap"
        self.numbers.append(number)
        new = self._sequences[channel]
        if sequence == new % 128:
            covered["sequence wraps"] += new > 0 and sequence == 0
            self._sequences[channel] += 1
        else:
            new -= (new - sequence) % 128
            self.seen["replay"] += 1
        self.transmissions[channel, new, sequence] += 1
        covered["repeated twice"] += self.transmissions[channel, new, sequence] >= 3
        self.seen["tx_frame"] += 1

    def _note_arrival(self, raw: bytes) -> None:
        """Count a frame that arrives at the engine."""
        frame = decode_frame(raw, self.spec)
        if frame is None:
            covered["damaged in"] += 1
            self.seen["crc_error"] += 1
        elif frame.kind is FrameKind.DATA and self.state is LinkState.UP:
            if frame.fields["number"] in self._came:
                covered["repetition in"] += 1
            else:
                self._came.append(frame.fields["number"])
                self.seen["rx_frame"] += 1

    def joined(self) -> bool:
        """Whether both ends are up, in sessions that match."""
        sessions = self.value("link_session"), self.value("link_peer")
        return (
            self.state is self.peer.state is LinkState.UP
            and (self.peer.peer, self.peer.session) == sessions
        )

    def drained(self) -> bool:
        """Whether all words have been delivered at the other end."""
        return (
            not any(self.out_words)
            and not any(self.in_words)
            and (
                [len(words) for words in self.accepted] == [len(words) for words in self.peer_taken]
                and [len(words) for words in self.peer_accepted]
                == [len(words) for words in self.taken]
            )
        )

    async def check_counts(self) -> None:
        """Compare all counters with the expected counts, after all traffic has ended."""
        await self.run(600)
        assert self.counts("delivered") == [len(words) for words in self.taken]
        for name in (
            "tx_word",
            "rx_word",
            "tx_frame",
            "rx_frame",
            "crc_error",
            "replay",
            "tx_stall",
        ):
            assert self.events[name] == self.seen[name], (name, self.events, self.seen)

    async def clear_engine(self) -> list[int]:
        """End the engine's session; returns the number of words it had delivered, by channel."""
        covered[f"cleared in {self.state.name}"] += 1
        session, was_off = self.value("link_session"), self.state is LinkState.OFF
        self._clears = True
        await self.run(12)
        expected = 0 if was_off else (session + 1) % (1 << 15) | 1 << 15
        assert self.value("link_session") == expected
        return [len(words) for words in self.taken]

    async def rejoin(self) -> None:
        """Drop all waiting words, and wait until both ends are in a common session."""
        for queues in (self.out_words, self.in_words):
            for queue in queues:
                queue.clear()
        self._offers = [None] * NUM_CHANNELS
        await self.run(1)
        self.new_records()
        await self.until(self.joined)
