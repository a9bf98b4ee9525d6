"""The rules of a link: two ends over wires that lose, damage, cut, join and repeat frames."""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from fpgapipe.hw.hls_models.model.link_end import HELLO_CYCLES, LinkEnd, ahead
from fpgapipe.hw.hls_models.spec.link import (
    HELLO_CONFIG,
    LINK_VERSION,
    NUM_CHANNELS,
    TRAILER,
    WINDOW,
    FrameKind,
    LinkEngineSpec,
    LinkState,
    decode_frame,
    encode_frame,
)

SMALL = LinkEngineSpec(frame_words=2, slots=(2, 4, 2), probe_cycles=40)
SPECS = (
    SMALL,
    LinkEngineSpec(frame_words=1, slots=(64, 64, 64), probe_cycles=300),
    LinkEngineSpec(frame_words=16, slots=(16, 2, 4), probe_cycles=500),
)
STEP_CYCLES = 8
LATENCY_CYCLES = 60
BYTES_PER_CYCLE = 16


def word_of(name, session, channel, index):
    """The word that an end sends, which no other place has."""
    text = f"{name} {session:x} {channel} {index} "
    return (text * 64)[:64].encode()


@dataclass
class FaultyWire:
    """One direction; of each kind of fault, the chance of a frame."""

    rng: random.Random
    faults: dict
    free_at: int = 0
    down_until: int = 0
    flying: deque = field(default_factory=deque)
    counts: Counter = field(default_factory=Counter)
    kept: bytes = b""  # what a frame that lost its end puts before the next one

    def send(self, now, frame):
        self.free_at = now + len(frame) // BYTES_PER_CYCLE
        if now < self.down_until:
            self.counts["down"] += 1
            return
        chosen = next((k for k, chance in self.faults.items() if self.rng.random() < chance), "ok")
        self.counts[chosen] += 1
        if chosen == "down":
            self.down_until = now + self.rng.randrange(1000)
            return
        if chosen == "loss":
            return
        if chosen == "damage":
            bits = bytearray(frame)
            for _ in range(self.rng.choice((1, 1, 2, 30))):
                bits[self.rng.randrange(len(bits))] ^= 1 << self.rng.randrange(8)
            frame = bytes(bits)
        if chosen == "truncation":
            frame = frame[: self.rng.randrange(len(frame))]
        if chosen == "merger":
            self.kept += frame
            return
        frame, self.kept = self.kept + frame, b""
        for _ in range(2 if chosen == "repetition" else 1):
            self.flying.append((self.free_at + LATENCY_CYCLES, frame))

    def arrived(self, now):
        while self.flying and self.flying[0][0] <= now:
            yield self.flying.popleft()[1]


FAULTS = {
    "loss": 0.04,
    "damage": 0.04,
    "truncation": 0.03,
    "merger": 0.03,
    "repetition": 0.05,
    "down": 0.008,
}


class World:
    """Two ends, two wires, and a record of all words by the sessions of both ends."""

    def __init__(self, spec, rng, faults=FAULTS, *, rates=(0.7, 0.7)):
        self.rng, self.now, self.rates = rng, 0, rates
        self.ends = [LinkEnd(spec, seed) for seed in (0x7FF0, 3)]
        self.wires = [FaultyWire(rng, faults) for _ in range(2)]
        self.accepted, self.taken = {}, {}
        self.kinds = Counter()
        self.left = [[1 << 30] * NUM_CHANNELS for _ in range(2)]
        for end in self.ends:
            end.enable()

    def record(self, records, at, session):
        return records.setdefault((at, session), [[] for _ in range(NUM_CHANNELS)])

    def step(self):
        self.now += STEP_CYCLES
        for at, end in enumerate(self.ends):
            other = self.ends[1 - at]
            end.tick(STEP_CYCLES)
            for frame in self.wires[1 - at].arrived(self.now):
                end.hear(frame)
            for channel in range(NUM_CHANNELS):
                if self.left[at][channel] and self.rng.random() < self.rates[0]:
                    self.offer(at, channel)
                if self.rng.random() < self.rates[1]:
                    self.collect(at, channel)
            if self.now >= self.wires[at].free_at and (frame := end.next_frame()) is not None:
                self.kinds[decode_frame(frame, end.spec).kind] += 1
                self.wires[at].send(self.now, frame)
            self.check_invariants(end, other)

    def offer(self, at, channel):
        end = self.ends[at]
        sent = self.record(self.accepted, at, end.session)[channel]
        word = word_of("ab"[at], end.session, channel, len(sent)), self.rng.random() < 0.2
        # The last of all ends its packet, else its frame would wait for more for ever.
        word = word[0], word[1] or self.left[at][channel] == 1
        if end.put(channel, *word):
            sent.append(word)
            self.left[at][channel] -= 1

    def collect(self, at, channel):
        end = self.ends[at]
        word = end.take(channel)
        if word is None:
            return
        assert end.state in (LinkState.UP, LinkState.PEER_RESET)
        taken = self.record(self.taken, at, end.session)[channel]
        sent = self.accepted[1 - at, end.peer][channel]
        assert word == sent[len(taken)]
        taken.append(word)
        assert end.delivered[channel] == len(taken)

    def check_invariants(self, end, other):
        sending = end.transmitter
        assert sending.open + len(sending.replay) <= WINDOW
        joined = end.state is other.state is LinkState.UP
        for channel, slots in enumerate(end.spec.slots):
            freed, fill = sending.peer_freed[channel], sending.fill[channel]
            assert ahead(fill, freed, 7) <= slots
            if joined and end.peer == other.session:
                truly_freed = other.receiver.freed[channel]
                assert ahead(truly_freed, freed, 7) <= ahead(fill, freed, 7)
        if joined and end.peer == other.session:
            assert ahead(other.receiver.seen, sending.base - 1, 8) <= sending.open

    def run_until(self, condition, max_steps=20_000):
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"not within {max_steps} steps")

    def is_up(self):
        return all(end.state is LinkState.UP for end in self.ends)

    def is_drained(self):
        """Whether both ends have got all that the other one accepted, and know that they have."""
        return all(
            self.record(self.taken, at, end.session) == self.record(self.accepted, 1 - at, end.peer)
            and self.left[1 - at] == [0] * NUM_CHANNELS
            and end.transmitter.open == 0
            for at, end in enumerate(self.ends)
        )


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_every_word_comes_once_and_in_order(spec, seed):
    rates = [(0.7, 0.7), (0.9, 0.2), (0.2, 0.9), (1, 1)][seed]
    world = World(spec, random.Random(seed), rates=rates)
    world.left = [[600, 300, 100], [150, 0, 600]]
    world.run_until(world.is_drained)
    assert all(sum(wire.counts[kind] for wire in world.wires) for kind in FAULTS)
    assert set(world.kinds) == set(FrameKind)


@pytest.mark.parametrize("seed", range(9))
def test_a_cleared_end_is_reported_with_exact_counts(seed):
    """Either end, once or several times, in any state, both now and then; then they join again."""
    rng = random.Random(seed)
    world = World(SPECS[seed % 3], rng)
    seen = Counter()
    for _ in range(8):
        # Up or still joining.
        for _ in range(rng.choice((5, 40, 400, 1500))):
            world.step()
        at = rng.randrange(2)
        before = [(end.state, end.session, end.peer) for end in world.ends]
        num_clears = rng.choice((1, 1, 2, 3))
        for number in range(num_clears):
            world.ends[at].clear()
            if number < num_clears - 1:
                for _ in range(rng.randrange(60)):
                    world.step()
        seen[before[at][0]] += 1
        other, (state, session, peer) = world.ends[1 - at], before[1 - at]
        if state is LinkState.UP and peer == before[at][1]:
            world.run_until(lambda other=other: is_reported(other))
            assert (other.session, other.peer) == (session, peer)
            got = world.record(world.taken, at, peer)
            assert other.peer_delivered == [len(words) for words in got]
            for _ in range(rng.randrange(300)):  # what had come goes on being delivered
                world.step()
            assert other.peer_delivered == [len(words) for words in got]
            assert other.put(0, bytes(64), False) is False
            other.clear()
        if rng.random() < 0.7:
            for end in world.ends:
                if end.state is LinkState.PEER_RESET:
                    end.clear()
            world.run_until(lambda: recovered(world))
    world.left = [[300] * NUM_CHANNELS] * 2
    world.run_until(lambda: recovered(world))
    world.left = [[100, 50, 20], [30, 40, 50]]
    world.run_until(world.is_drained)
    assert {LinkState.UP} <= set(seen)


def is_reported(end):
    return end.state is LinkState.PEER_RESET and end.peer_delivered_known


def recovered(world):
    """Whether both ends are up in sessions that match; as a host would, clears who is stopped."""
    for end in world.ends:
        if is_reported(end):
            end.clear()
    one, other = world.ends
    return world.is_up() and (one.peer, other.peer) == (other.session, one.session)


@pytest.mark.parametrize("what", ["digest", "version"])
def test_ends_that_differ_do_not_join(what):
    world = World(SMALL, random.Random(0), {})
    if what == "digest":
        world.ends[1] = LinkEnd(LinkEngineSpec(frame_words=4, slots=SMALL.slots), 3)
    else:
        world.ends[1] = LinkEnd(SMALL, 3, version=LINK_VERSION + 1)
    world.ends[1].enable()
    for _ in range(200):
        world.step()
    for end in world.ends:
        assert (end.state, end.peer) == (LinkState.MISMATCH, 0)
        assert end.take(0) is None
    # The right one in its place: the other has to be cleared.
    world.ends[1] = LinkEnd(SMALL, 77)
    world.ends[1].enable()
    for _ in range(200):
        world.step()
    assert [end.state for end in world.ends] == [LinkState.MISMATCH, LinkState.HELLO]
    world.ends[0].clear()
    world.run_until(world.is_up, 100)


def joined(spec=SMALL):
    """Two ends that are up, without wires."""
    one, other = ends = LinkEnd(spec, 5), LinkEnd(spec, 9)
    for end in ends:
        end.enable()
    for _ in range(6):
        exchange(one, other)
    assert [end.state for end in ends] == [LinkState.UP] * 2
    return one, other


def exchange(one, other, cycles=HELLO_CYCLES):
    """Everything that the ends have to say goes over at once; the frames, decoded."""
    said = []
    for end in (one, other):
        end.tick(cycles)
    silent = 0
    while silent < 2:
        frame = one.next_frame()
        silent = silent + 1 if frame is None else 0
        if frame is not None:
            said.append(other.hear(frame))
            assert len(said) < 100, "the ends do not stop answering each other"
        one, other = other, one
    return said


def test_sessions_are_numbered():
    end = LinkEnd(SMALL, 0x7FFF)
    assert (end.state, end.session, end.next_frame()) == (LinkState.OFF, 0, None)
    end.clear()
    assert end.state is LinkState.OFF
    end.enable()
    assert (end.state, end.session) == (LinkState.HELLO, 0xFFFF)
    end.enable()
    assert end.session == 0xFFFF
    end.clear()
    assert end.session == 0x8000
    end.enable(False)
    assert (end.state, end.session) == (LinkState.OFF, 0)
    end.enable()
    assert end.session == 0x8001


def test_an_idle_link_is_silent_and_an_end_that_waits_asks():
    one, other = joined()
    for _ in range(4):  # the last acknowledgements
        exchange(one, other)
    assert exchange(one, other, 10_000) == []
    assert one.put(0, bytes(64), True)
    lost = one.next_frame()
    assert decode_frame(lost, SMALL).kind is FrameKind.DATA
    for end in (one, other):
        end.tick(SMALL.probe_cycles - 1)
        assert end.next_frame() is None
    one.tick(1)
    control = other.hear(one.next_frame())
    assert (control.kind, control.fields["probe"], control.fields["number"]) == (2, 1, 1)
    assert one.next_frame() is None
    answer = one.hear(other.next_frame())
    assert (answer.kind, answer.fields["probe"]) == (FrameKind.CONTROL, 0)
    assert (answer.fields["seen"], answer.fields["received"]) == (1, 0)
    again = other.hear(one.next_frame())
    assert (again.kind, again.fields["number"], again.fields["sequence"]) == (FrameKind.DATA, 2, 0)
    assert other.take(0) == (bytes(64), True)


def test_an_end_asks_for_buffers_whose_news_was_lost():
    one, other = joined()
    for index in range(2 * SMALL.slots[0]):
        assert one.put(0, word_of("a", 0, 0, index), False)
    exchange(one, other, 0)
    for index in range(2 * SMALL.slots[0]):
        assert other.next_frame() is None
        assert other.take(0) == (word_of("a", 0, 0, index), False)
        if index == 1:
            other.next_frame()  # which would have told of the free buffer
    assert not one.put(0, bytes(64), False)
    assert decode_frame(other.next_frame(), SMALL).fields["freed"][0] == {"sequence": 2}
    assert exchange(one, other, SMALL.probe_cycles - 1) == []
    assert [frame.fields["probe"] for frame in exchange(one, other, 1)] == [1, 0]
    assert one.put(0, bytes(64), False)


def test_repeated_feedback_of_old_changes_nothing():
    one, other = joined()
    for index in range(4):
        assert one.put(1, word_of("a", 0, 0, index), True)
    frames = [one.next_frame() for _ in range(4)]
    other.hear(frames[0])
    first = other.next_frame()
    for frame in frames[2:]:
        other.hear(frame)
    other.take(1)
    second = other.next_frame()
    one.hear(first)
    assert one.transmitter.base == 2
    for report in (second, first, second):
        one.hear(report)
        sending = one.transmitter
        assert (sending.base, sending.next, list(sending.replay)) == (5, 5, [(1, 1)])
        assert sending.peer_freed[1] == 1


@pytest.mark.parametrize("seed", [9, 10])
def test_a_peer_whose_device_was_reset_is_noticed(seed):
    """With another seed, and with the same session number."""
    one, other = joined()
    exchange(one, other)
    assert other.put(0, bytes(64), True)
    exchange(one, other)
    new = LinkEnd(SMALL, seed)
    new.enable()
    for _ in range(8):
        exchange(one, new)
    assert one.state is LinkState.PEER_RESET
    assert not one.peer_delivered_known  # it knows no session before this one
    assert one.take(0) == (bytes(64), True)
    assert new.state is LinkState.HELLO
    one.clear()
    for _ in range(8):
        exchange(one, new)
    assert [one.state, new.state] == [LinkState.UP] * 2


def meet_one_way(one, other):
    """Bring `one` up, and lose what it says then; the frames that it heard."""
    other.hear(one.next_frame())
    pages = []
    for _ in range(5):
        other.tick(HELLO_CYCLES)
        pages.append(one.hear(other.next_frame()))
    assert (one.state, other.state) == (LinkState.UP, LinkState.HELLO)
    return pages


def test_pages_take_turns():
    one, other = LinkEnd(SMALL, 5), LinkEnd(SMALL, 9)
    one.enable()
    other.enable()
    pages = meet_one_way(one, other)
    assert [page.fields["page"] for page in pages] == [0, 1, 2, 3, 0]
    assert {page.fields["peer"] for page in pages} == {one.session}
    assert HELLO_CONFIG.unpack(pages[0].fields["data"])["digest"] == SMALL.digest


def test_an_end_joins_only_whom_it_has_compared():
    one, other = LinkEnd(SMALL, 5), LinkEnd(SMALL, 9)
    one.enable()
    other.enable()
    other.hear(one.next_frame())
    other.next_frame()
    for page in (1, 2, 3):
        other.tick(HELLO_CYCLES)
        hello = one.hear(other.next_frame())
        assert (hello.fields["page"], hello.fields["peer"]) == (page, one.session)
        assert (one.state, one.peer) == (LinkState.HELLO, 0)
    # Pages of two sessions do not add up.
    other.clear()
    for page in range(4):
        other.tick(HELLO_CYCLES)
        assert one.hear(other.next_frame()).fields["page"] == page
    other.clear()
    for _ in range(4):
        one.tick(HELLO_CYCLES)
        other.hear(one.next_frame())
    for page in (0, 1, 2):
        assert one.hear(other.next_frame()).fields["page"] == page
        assert (one.state, one.peer) == (LinkState.HELLO, other.session)
        other.tick(HELLO_CYCLES)
    one.hear(other.next_frame())
    assert one.state is LinkState.UP


def test_frames_of_other_sessions_are_ignored():
    one, other = joined()
    assert one.put(0, bytes(64), True)
    data = decode_frame(one.next_frame(), SMALL)
    old = encode_frame(TRAILER, {**data.fields, "session": data.fields["session"] ^ 1}, data.words)
    assert other.hear(old).kind is FrameKind.DATA
    assert (other.take(0), other.receiver.seen) == (None, 0)


def test_counts_of_the_session_before_are_known_when_both_begin_anew():
    one, other = joined()
    for channel in (0, 2):
        assert one.put(channel, bytes(64), True)
        assert other.put(channel, bytes(64), True)
    exchange(one, other)
    assert one.take(2)
    assert other.take(0)
    one.clear()
    other.clear()
    for _ in range(6):
        exchange(one, other)
    for end in (one, other):
        assert (end.state, end.peer_delivered_known) == (LinkState.UP, True)
    assert (one.peer_delivered, other.peer_delivered) == ([1, 0, 0], [0, 0, 1])


def test_counts_are_of_the_session_that_the_peer_knew():
    """An end that went up with a peer that never did hears of 0 words, not of older ones."""
    one, other = joined()
    assert one.put(0, bytes(64), True)
    exchange(one, other)
    assert other.take(0)
    one.clear()
    other.clear()
    meet_one_way(one, other)
    other.clear()
    for _ in range(8):
        exchange(one, other)
    assert (one.state, one.peer_delivered_known) == (LinkState.PEER_RESET, True)
    assert one.peer_delivered == [0, 0, 0]


def test_counts_are_known_of_the_first_session():
    one, other = LinkEnd(SMALL, 5), LinkEnd(SMALL, 9)
    one.enable()
    other.enable()
    meet_one_way(one, other)
    other.clear()
    other.clear()
    for _ in range(8):
        exchange(one, other)
    assert (one.state, one.peer_delivered_known) == (LinkState.PEER_RESET, True)
    assert one.peer_delivered == [0, 0, 0]


def test_frames_are_checked():
    """A flipped bit anywhere, a cut, and bytes before it are found."""
    one, _ = joined()
    assert one.put(2, bytes(range(64)), True)
    frame = one.next_frame()
    assert decode_frame(frame, SMALL).words == bytes(range(64))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_frame(bytes(damaged), SMALL) is None
    assert all(decode_frame(frame[:cut], SMALL) is None for cut in range(len(frame)))
    assert all(decode_frame(frame[cut:], SMALL) is None for cut in range(1, len(frame)))
    assert decode_frame(frame + frame, SMALL) is None
    assert decode_frame(bytes(16), SMALL) is None
