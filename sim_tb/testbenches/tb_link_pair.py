"""Checks two link ends with a wire between them that loses, damages and repeats frames."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, TRAILER_BYTES, LinkEngineSpec, LinkState
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.rtl.link.link import RECEIVE_CYCLES, SEND_CYCLES
from fpgapipe.sim_tb.drivers.stream import parameters, start
from fpgapipe.sim_tb.worlds.link_pair import CONTROL, STATUS

Frame = list[int]
"""Beats of a frame, each in the layout of the ports."""


def link_spec() -> LinkEngineSpec:
    """Specification that the parameters describe."""
    values = parameters()
    return LinkEngineSpec(**{**values, "slots": tuple(values["slots"])})


def offsets(layout: Any) -> dict[str, int]:
    """First bit of each field of a layout."""
    return {name: layout[name].offset for name, _ in layout}


IN, OUT = offsets(CONTROL), offsets(STATUS)
EVENT_BITS = {
    name: (OUT["events"] + item.offset, item.shape) for name, item in STATUS["events"].shape
}


@dataclass
class Wire:
    """One direction of a wire with faults; frames keep their order.

    Attributes
    ----------
    last_bit : int
        Position of the bit of a beat that marks the last one of a frame.
    latency_cycles : int
        Cycles from the last beat of a frame to the first one at the other end.
    rates : mapping of str to float
        Chances of the faults of a frame, by the names in `spoil`.
    """

    last_bit: int
    latency_cycles: int
    rng: random.Random
    rates: dict[str, float] = field(default_factory=dict)
    frame: Frame = field(default_factory=list)
    beats: deque[tuple[int, int]] = field(default_factory=deque)

    def take(self, cycle: int, beat: int) -> None:
        """Accept a beat; the beats of a frame are forwarded together after its last one."""
        self.frame.append(beat)
        if beat >> self.last_bit:
            for spoilt in self.spoil(self.frame):
                begin = max(cycle + self.latency_cycles, self.beats[-1][0] + 1 if self.beats else 0)
                self.beats.extend((begin + at, beat) for at, beat in enumerate(spoilt))
            self.frame = []

    def spoil(self, frame: Frame) -> list[Frame]:
        """Apply a random fault to a frame; returns the frames that arrive."""
        draw = self.rng.random()
        name = ""
        for each, rate in self.rates.items():
            name = name or (each if draw < rate else "")
            draw -= rate
        if not name:
            return [frame]
        at = self.rng.randrange(len(frame))
        if name == "lost":
            return []
        if name == "repeated":
            return [frame, frame]
        if name == "damaged":
            spoilt = list(frame)
            spoilt[at] ^= 1 << self.rng.randrange(self.last_bit)
            return [spoilt]
        if name == "merged":  # merged with the next frame
            return [[*frame[:-1], frame[-1] ^ 1 << self.last_bit]]
        if name == "behind junk":  # junk may contain ends of frames and be longer than any frame
            ones = self.rng.choice([0, (1 << self.last_bit // 9) - 1]) << 8 * (self.last_bit // 9)
            rate = self.rng.choice([0, 0.1, 0.9])
            junk = [
                self.rng.getrandbits(self.last_bit)
                | ones
                | (self.rng.random() < rate) << self.last_bit
                for _ in range(self.rng.randrange(200))
            ]
            return [junk, frame]
        assert name == "cut"  # the frame loses its end or its beginning, or is split in two
        head, tail = frame[:at], frame[at:]
        return self.rng.choice([[head], [tail], [[*head, head[-1] | 1 << self.last_bit], tail]]
                               if head else [[tail[1:]]])  # fmt: skip


class End:
    """One end of the link, with the words that it is offered and the words that left it."""

    def __init__(self, dut: Any, number: int, rng: random.Random) -> None:
        self.number, self.rng = number, rng
        self.i = [getattr(dut, f"i{number}{channel}") for channel in range(NUM_CHANNELS)]
        self.o = [getattr(dut, f"o{number}{channel}") for channel in range(NUM_CHANNELS)]
        self.rx, self.tx = getattr(dut, f"rx{number}"), getattr(dut, f"tx{number}")
        self.control, self.status = (
            getattr(dut, f"control{number}"),
            getattr(dut, f"status{number}"),
        )
        self.dut = dut
        self.pause = {"i": 0.0, "o": 0.0, "tx": 0.0}
        self.words: list[deque[int]] = [deque() for _ in range(NUM_CHANNELS)]
        self.taken: list[list[int]] = [[] for _ in range(NUM_CHANNELS)]
        self.out: list[list[int]] = [[] for _ in range(NUM_CHANNELS)]
        self.enable, self.clear, self.reads = 1, 0, [True] * NUM_CHANNELS
        self.offers = [False] * NUM_CHANNELS
        self.events = dict.fromkeys(EVENT_BITS, 0)
        self.before = [0] * NUM_CHANNELS  # numbers of words that had left before the last cycle
        self.beat_cycles: list[int] = []
        self.state = 0
        self.known = 0
        self.waiting: int | None = None
        self.driven = 0  # driven value of `control`
        self.taken_cycle = self.out_cycle = 0  # cycles in which the last words entered and left
        self.frame_cycles: list[int] = []  # cycles in which the last beats of frames arrived

    def value(self, name: str) -> int:
        """Value of a port."""
        return int(getattr(self.dut, f"{name}{self.number}").value)

    def counts(self, name: str) -> list[int]:
        """Values of a port that has one number per channel."""
        packed = self.value(name)
        return [packed >> 48 * channel & (1 << 48) - 1 for channel in range(NUM_CHANNELS)]


class Bench:
    """Both ends and the wires, which are simulated cycle by cycle."""

    def __init__(self, dut: Any, spec: LinkEndSpec, latency_cycles: tuple[int, int]) -> None:
        self.dut, self.spec, self.cycle = dut, spec, 0
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.ends = [End(dut, number, self.rng) for number in range(2)]
        self.wires = [Wire(9 * spec.phy_bytes, cycles, self.rng) for cycles in latency_cycles]

    async def begin(self) -> None:
        """Reset the design, with new seeds each time."""
        for end in self.ends:
            end.control.value = 0
            getattr(self.dut, f"seed{end.number}").value = self.rng.randrange(1 << 15)
        await start(self.dut)

    def drive(self, end: End) -> None:
        """Drive an end's inputs for a cycle."""
        control = end.enable << IN["enable"] | end.clear << IN["clear"]
        end.clear = 0
        for channel in range(NUM_CHANNELS):
            if end.words[channel] and not end.offers[channel]:
                end.offers[channel] = self.rng.random() >= end.pause["i"]
                if end.offers[channel]:
                    end.i[channel].value = end.words[channel][0]
            control |= end.offers[channel] << IN["i_valid"] + channel
            ready = end.reads[channel] and self.rng.random() >= end.pause["o"]
            control |= ready << IN["o_ready"] + channel
        control |= (self.rng.random() >= end.pause["tx"]) << IN["tx_ready"]
        wire = self.wires[1 - end.number].beats
        if wire and wire[0][0] <= self.cycle:
            beat = wire.popleft()[1]
            end.rx.value = beat
            if beat >> 9 * self.spec.phy_bytes:
                end.frame_cycles.append(self.cycle)
            control |= 1 << IN["rx_valid"]
        end.control.value = end.driven = control

    def watch(self, end: End) -> None:
        """Check and record an end's outputs, once they have settled."""
        status = int(end.status.value)
        end.state = status >> OUT["state"] & 7
        end.known = status >> OUT["known"] & 1
        assert status >> OUT["rx_ready"] & 1, "a link takes all beats"
        moves = end.driven >> IN["i_valid"] & status >> OUT["i_ready"]
        end.before = [len(out) for out in end.out]
        leaves = end.driven >> IN["o_ready"] & status >> OUT["o_valid"]
        for channel in range(NUM_CHANNELS):
            if moves >> channel & 1:
                end.taken[channel].append(end.words[channel].popleft())
                end.offers[channel] = False
                end.taken_cycle = self.cycle
            if leaves >> channel & 1:
                end.out[channel].append(int(end.o[channel].value))
                end.out_cycle = self.cycle
        for name, (bit, width) in EVENT_BITS.items():
            end.events[name] += status >> bit & (1 << width) - 1
        beat = int(end.tx.value) if status >> OUT["tx_valid"] & 1 else None
        assert end.waiting in (None, beat), "a beat that waits is held"
        end.waiting = beat
        if beat is not None and end.driven >> IN["tx_ready"] & 1:
            end.waiting = None
            end.beat_cycles.append(self.cycle)
            self.wires[end.number].take(self.cycle, beat)

    async def run(self, cycles: int) -> None:
        """Run for some cycles; must be called right after a rising edge."""
        for _ in range(cycles):
            for end in self.ends:
                self.drive(end)
            await FallingEdge(self.dut.clk)
            for end in self.ends:
                self.watch(end)
            await RisingEdge(self.dut.clk)
            self.cycle += 1

    async def until(self, condition: Any, cycles: int = 50_000) -> None:
        """Run until a condition holds."""
        for _ in range(0, cycles, 10):
            if condition():
                return
            await self.run(10)
        states = [(end.state, end.events, list(map(len, end.out))) for end in self.ends]
        raise AssertionError(f"it takes longer than {cycles} cycles: {states}")

    def offer(self, num_words: int, last_rate: float = 0.1) -> None:
        """Queue words on all channels of both ends."""
        for end in self.ends:
            for words in end.words:
                words.extend(
                    self.rng.getrandbits(512) | (self.rng.random() < last_rate) << 512
                    for _ in range(num_words - 1)
                )
                words.append(self.rng.getrandbits(512) | 1 << 512)

    def both(self, state: LinkState) -> bool:
        """Whether both ends are in a state."""
        return all(end.state == state for end in self.ends)

    def delivered(self) -> bool:
        """Whether all offered words have left the other end."""
        return not any(any(end.words) for end in self.ends) and all(
            len(end.taken[channel]) == len(other.out[channel])
            for end, other in zip(self.ends, self.ends[::-1], strict=True)
            for channel in range(NUM_CHANNELS)
        )

    def check(self) -> None:
        """Check that the words that left are the first ones of those that entered."""
        for end, other in zip(self.ends, self.ends[::-1], strict=True):
            for channel in range(NUM_CHANNELS):
                out = other.out[channel]
                assert out == end.taken[channel][: len(out)], f"channel {channel} has other words"
            assert end.counts("delivered") == end.before


FAULT_RATES = {
    "lost": 0.08,
    "damaged": 0.08,
    "repeated": 0.08,
    "merged": 0.04,
    "cut": 0.08,
    "behind junk": 0.03,
}


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def delivers_over_a_bad_wire(dut: Any) -> None:
    """Every word arrives once and in order, despite faults of frames and pauses of streams."""
    spec = link_spec()
    bench = Bench(dut, spec, (7, 90))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    for pause, last_rate, rates in (
        (0.0, 0.1, {}),
        (0.0, 0.02, FAULT_RATES),
        (0.3, 0.4, FAULT_RATES),
        (0.8, 0.1, FAULT_RATES),
    ):
        for end, wire in zip(bench.ends, bench.wires, strict=True):
            wire.rates = rates
            end.pause = {"i": pause, "o": pause, "tx": pause / 2}
        bench.offer(4 * spec.frame_words + 30, last_rate)
        await bench.until(bench.delivered)
        bench.check()
        if not rates:
            assert not any(end.events["replay"] + end.events["crc_error"] for end in bench.ends)
    await bench.run(3)  # events are delayed
    for end in bench.ends:
        assert end.events["tx_word"] == sum(map(len, end.taken))
        assert end.events["rx_word"] == sum(map(len, end.out))
        assert min(end.events[name] for name in ("crc_error", "replay", "tx_stall")) > 0


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def wastes_no_cycle(dut: Any) -> None:
    """A beat is sent in every cycle in which words wait, on all channels; latencies are right."""
    spec = link_spec()
    bench = Bench(dut, spec, (3, 3))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    sender, receiver = bench.ends
    await bench.run(300)  # until there is no more traffic
    num_beats, num_frames = len(sender.beat_cycles), len(receiver.frame_cycles)
    sender.words[1].append(bench.rng.getrandbits(512) | 1 << 512)
    await bench.until(bench.delivered)
    assert sender.beat_cycles[num_beats] - sender.taken_cycle == SEND_CYCLES
    whole = RECEIVE_CYCLES + spec.parts - 1
    assert receiver.out_cycle - receiver.frame_cycles[num_frames] == whole

    await bench.run(100)
    frame_beats = spec.frame_words * (WORD_BYTES // spec.phy_bytes)
    frame_beats += max(1, TRAILER_BYTES // spec.phy_bytes)
    frames, num_beats = 4000 // frame_beats, len(sender.beat_cycles)
    for words in sender.words:
        words.extend(bench.rng.getrandbits(512) for _ in range(frames * spec.frame_words))
        words[-1] |= 1 << 512
    await bench.until(bench.delivered)
    bench.check()
    cycles = sender.beat_cycles[num_beats:][: NUM_CHANNELS * frames * frame_beats]
    # Otherwise the sender waits for the other end, where the parts of words leave one by one.
    if min(spec.slots) * frame_beats > 60 + 2 * frame_beats * (spec.parts > 1):
        assert cycles[-1] - cycles[0] == len(cycles) - 1
    assert sender.events["replay"] == 0


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def waits_for_room(dut: Any) -> None:
    """A channel whose words are not read fills its slots and does not block other channels."""
    spec = link_spec()
    bench = Bench(dut, spec, (20, 5))
    await bench.begin()
    await bench.until(lambda: bench.both(LinkState.UP))
    for stuck in range(NUM_CHANNELS):
        bench.ends[1].reads[stuck] = False
        before = len(bench.ends[0].taken[stuck])
        size = spec.slots[stuck] * spec.frame_words + 60
        for channel in range(NUM_CHANNELS):
            bench.ends[0].words[channel].extend(
                bench.rng.getrandbits(512) | 1 << 512 for _ in range(size)
            )
        others = [channel for channel in range(NUM_CHANNELS) if channel != stuck]
        await bench.until(lambda: not any(bench.ends[0].words[c] for c in others))  # noqa: B023
        await bench.run(1000)
        taken = len(bench.ends[0].taken[stuck]) - before
        # Frames of one word fill all slots; a few more words are in the output registers.
        assert spec.slots[stuck] <= taken <= spec.slots[stuck] + 9
        assert bench.ends[0].events["credit_wait"] > 500
        bench.ends[1].reads[stuck] = True
        await bench.until(bench.delivered)
        bench.check()


@cocotb.test(timeout_time=5000, timeout_unit="us")
async def begins_sessions(dut: Any) -> None:
    """After a clear, the other end reports the words delivered before; then a session begins."""
    spec = link_spec()
    bench = Bench(dut, spec, (11, 30))
    await bench.begin()
    for wire in bench.wires:
        wire.rates = {name: rate / 4 for name, rate in FAULT_RATES.items()}
    for turn in range(4):
        await bench.until(lambda: bench.both(LinkState.UP))
        first, second = bench.ends if turn % 2 else bench.ends[::-1]
        sessions = [end.value("session") for end in bench.ends]
        assert [end.value("peer") for end in bench.ends] == sessions[::-1]
        bench.offer(6 * spec.frame_words + 20)
        await bench.run(bench.rng.randrange(40, 700))
        bench.check()
        if turn == 3:
            first.enable = 0
            await bench.run(30)
            assert first.state == LinkState.OFF
            first.enable = 1
        else:
            first.clear = 1
        await bench.run(3)
        had = [len(out) for out in first.out]
        await bench.until(lambda: second.state == LinkState.PEER_RESET and second.known)  # noqa: B023
        assert second.counts("peer_delivered") == had
        assert first.counts("last_delivered") == had
        assert first.value("session") == (sessions[first.number] + 1) % (1 << 15) | 1 << 15
        second.clear = 1
        await bench.run(3)
        left = [len(out) for out in second.out]
        for end in bench.ends:
            end.taken = [[] for _ in range(NUM_CHANNELS)]
            end.out = [[] for _ in range(NUM_CHANNELS)]
            for words in end.words:
                words.clear()
            end.offers = [False] * NUM_CHANNELS
        await bench.until(lambda: bench.both(LinkState.UP))
        assert first.known
        assert first.counts("peer_delivered") == left
        bench.offer(2 * spec.frame_words + 5)
        await bench.until(bench.delivered)
        bench.check()
