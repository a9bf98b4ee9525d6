"""The wire between two ends of a link, one direction: rate, latency, and all that goes wrong on it.

`Wire` is the definition, cycle by cycle; ``native_link.hpp`` does the same in C++, bit for bit. All
arithmetic of a running wire is on integers: `WireSpec` turns probabilities into thresholds.

A cycle of a wire
-----------------
1. `Wire.tready`. The credit, in ``1 / denominator`` bytes, grows by a cycle's worth, to at most a
   cycle's worth and a full beat. The transmitter may move a beat if the credit is above 0, no stall
   says otherwise and no pause is drawn.
2. `Wire.accept`, if the transmitter moves a beat. It costs as many bytes as it keeps, so the credit
   may fall below 0, and later cycles pay. Then, in this order:

   a. At the first beat of a frame, which is the beat after one with ``last``: two draws decide
      whether the frame is dropped, and whether it is repeated. One that is dropped is not repeated.
   b. Bits flip: those of `bit_errors`; as long as a draw is below the threshold for so many kept
      bytes, the bit that the next draw names, modulo the kept bits; and those of bursts. All of it
      also happens to beats that do not arrive.
   c. The beat vanishes if its frame is dropped or the wire is down.
   d. It gets its cycle of arrival: `delay_cycles` after this one, and at least a cycle after the
      beat before it. It vanishes if a reset comes from now to the cycle before it arrives.
   e. With the last beat of a repeated frame, all beats of it that the wire took after step c follow
      once more, damaged as they are, as if accepted in this cycle.
3. `Wire.arrival`: the beat that the receiver sees in this cycle. Receivers never wait.

Bits are counted from the lowest bit of the lowest byte that a beat keeps; other bytes do not count.

Four streams of random numbers (splitmix64) belong to a wire: errors (a draw that decides, then one
that names the bit, and so on until one decides for none, each beat), bursts (a draw each beat that
is not within a burst; one that names the first bit; one for each 64 bits of it, whose bits say
which flip, but the first always does), frames (two draws each) and pauses (one each cycle). A
stream whose rates are 0 is not drawn from.

Source: S. Vigna, splitmix64.c, 2015, in the public domain.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

MAX_PHY_BYTES = 64

_MASK = 2**64 - 1
ERRORS, BURSTS, FRAMES, PAUSES = range(4)
"""Streams of random numbers."""


class Beat(NamedTuple):
    """A beat of an AXI4-Stream.

    Attributes
    ----------
    data : int
        Its bytes, the first one lowest.
    keep : int
        Bit `i` is 1 if byte `i` counts.
    last : bool
        Whether it ends a frame.
    """

    data: int
    keep: int
    last: bool


def beats_of(frame: bytes, phy_bytes: int) -> list[Beat]:
    """Cut a frame into beats, the last of which may keep fewer bytes."""
    parts = [frame[at : at + phy_bytes] for at in range(0, len(frame), phy_bytes)]
    return [
        Beat(int.from_bytes(part, "little"), (1 << len(part)) - 1, number == len(parts) - 1)
        for number, part in enumerate(parts)
    ]


def bytes_of(beat: Beat) -> bytes:
    """What a beat keeps."""
    return bytes(
        beat.data >> 8 * lane & 0xFF for lane in range(MAX_PHY_BYTES) if beat.keep >> lane & 1
    )


def threshold_of(probability: float) -> int:
    """How many of the 64-bit numbers mean yes; at most all but one."""
    return min(int(probability * 2**64), _MASK)


@dataclass(frozen=True)
class WireSpec:
    """One direction of a wire.

    Cycles are those of the two devices, which count alike; cycle 0 is the first after the reset.

    Parameters
    ----------
    phy_bytes : int
        Of a beat: 4, 8, 16, 32 or 64.
    bytes_per_cycle : Fraction or int
        Line rate. A port moves no more than one beat in a cycle whatever it is.
    latency_cycles : int
        From the cycle in which the transmitter moves a beat to that in which the receiver sees it,
        at least 1.
    skew_cycles : int
        Added to the latency, in this direction alone.
    bit_error_rate : float
        Mean of flipped bits in a kept bit, below 1.
    burst_rate : float
        Chance of a burst at a beat.
    burst_bits : int
        From its first flipped bit to the last that may be, on through beats, at least 1.
    bit_errors : tuple of int
        Bits that flip, counted over all accepted beats from 0.
    drop_rate, duplicate_rate : float
        Chance of a frame.
    drops, duplicates : tuple of int
        Frames, counted over all that begin from 0.
    down : tuple of (int, int)
        In cycles ``begin..end - 1`` accepted beats vanish.
    resets : tuple of int
        In these cycles everything on the wire vanishes, what is accepted then included; what
        arrives then is not on it any more.
    stalls : tuple of (int, int)
        In cycles ``begin..end - 1`` nothing is accepted.
    pause : float
        Chance that a cycle accepts nothing.
    seed : int
        Of all that is random, 0..2^64 - 1.

    Raises
    ------
    ValueError
        If a number is out of range, or ranges overlap or do not ascend.
    """

    phy_bytes: int = 16
    bytes_per_cycle: Fraction | int = 16
    latency_cycles: int = 128
    skew_cycles: int = 0
    bit_error_rate: float = 0.0
    burst_rate: float = 0.0
    burst_bits: int = 32
    bit_errors: tuple[int, ...] = ()
    drop_rate: float = 0.0
    duplicate_rate: float = 0.0
    drops: tuple[int, ...] = ()
    duplicates: tuple[int, ...] = ()
    down: tuple[tuple[int, int], ...] = ()
    resets: tuple[int, ...] = ()
    stalls: tuple[tuple[int, int], ...] = ()
    pause: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.phy_bytes not in (4, 8, 16, 32, MAX_PHY_BYTES):
            raise ValueError(f"wire phy_bytes must be 4, 8, 16, 32 or 64, not {self.phy_bytes!r}")
        if not 0 < self.rate <= 1 << 20:
            raise ValueError(
                f"wire bytes per cycle must be 1/65536..1048576, not {self.bytes_per_cycle!r}"
            )
        for name, least in (("latency_cycles", 1), ("skew_cycles", 0), ("burst_bits", 1)):
            if not least <= getattr(self, name) < 1 << 32:
                raise ValueError(
                    f"wire {name} must be {least}..2^32 - 1, not {getattr(self, name)!r}"
                )
        for name in ("burst_rate", "drop_rate", "duplicate_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"wire {name} must be 0..1, not {getattr(self, name)!r}")
        for name in ("bit_error_rate", "pause"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"wire {name} must be 0..1, 1 excluded, not {value!r}")
        for name in ("bit_errors", "drops", "duplicates", "resets"):
            _check_ascending(name, getattr(self, name))
        for name in ("down", "stalls"):
            ranges = getattr(self, name)
            if not all(begin < end for begin, end in ranges):
                raise ValueError(f"wire {name} must be ranges that are not empty, not {ranges!r}")
            _check_ascending(name, [begin for begin, _ in ranges])
            if any(end > begin for (_, end), (begin, _) in pairwise(ranges)):
                raise ValueError(f"wire {name} must not overlap, as in {ranges!r}")
        if not 0 <= self.seed <= _MASK:
            raise ValueError(f"wire seed must be 0..2^64 - 1, not {self.seed!r}")

    @property
    def rate(self) -> Fraction:
        """`bytes_per_cycle` as it is counted, with a denominator of at most 65536."""
        return Fraction(self.bytes_per_cycle).limit_denominator(1 << 16)

    @property
    def delay_cycles(self) -> int:
        """From a beat's acceptance to its arrival, at least."""
        return self.latency_cycles + self.skew_cycles

    @property
    def error_thresholds(self) -> tuple[int, ...]:
        """For each number of kept bytes, 0..64, the threshold of one more flipped bit.

        As a flip may be followed by another, its chance is ``x / (1 + x)`` if `x` is the mean.
        """
        means = [8 * kept * self.bit_error_rate for kept in range(MAX_PHY_BYTES + 1)]
        return tuple(threshold_of(mean / (1 + mean)) for mean in means)


def _check_ascending(name: str, numbers: Sequence[int]) -> None:
    if any(one >= other for one, other in pairwise(numbers)) or (
        numbers and not 0 <= numbers[0] <= numbers[-1] < 1 << 63
    ):
        raise ValueError(f"wire {name} must ascend from 0 or more, not {tuple(numbers)!r}")


@dataclass
class WireCounts:
    """What happened on a wire since the reset.

    Attributes
    ----------
    beats, frames : int
        Accepted; a frame counts with its first beat.
    flips : int
        Bits that were flipped; a bit flipped twice counts twice.
    dropped, repeated : int
        Frames.
    lost : int
        Beats that vanished: of dropped frames, in down times, by resets, copies included.
    waits : int
        Cycles in which no beat could have been accepted.
    """

    beats: int = 0
    frames: int = 0
    flips: int = 0
    dropped: int = 0
    repeated: int = 0
    lost: int = 0
    waits: int = 0


class Random:
    """A stream of 64-bit numbers: splitmix64.

    Parameters
    ----------
    seed : int
        Of the wire.
    stream : int
        Which of the wire's.
    """

    def __init__(self, seed: int, stream: int) -> None:
        # The stream's number goes through the mixer once, so that streams are unrelated.
        self._state = stream
        self._state = self.draw() ^ seed

    def draw(self) -> int:
        """Return the next number."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return mixed ^ mixed >> 31


class Wire:
    """One direction of a wire, at work.

    In each cycle, from 0 on and without a gap: `tready`, then `accept` if a beat moves; and
    `arrival` at any time after the cycle before.

    Attributes
    ----------
    spec : WireSpec
    counts : WireCounts
    """

    def __init__(self, spec: WireSpec) -> None:
        self.spec = spec
        self.counts = WireCounts()
        self._randoms = [Random(spec.seed, stream) for stream in range(4)]
        self._rate, self._scale = spec.rate.numerator, spec.rate.denominator
        self._thresholds = spec.error_thresholds
        self._burst, self._pause = threshold_of(spec.burst_rate), threshold_of(spec.pause)
        self._drop = threshold_of(spec.drop_rate)
        self._duplicate = threshold_of(spec.duplicate_rate)
        self._bit_errors = deque(spec.bit_errors)
        self._drops, self._duplicates = frozenset(spec.drops), frozenset(spec.duplicates)
        self._cycle = -1
        self._ready = False
        self._credit = 0
        self._bits = 0  # kept by all beats before this one
        self._burst_left = 0
        self._in_frame = self._dropping = self._repeating = False
        self._frame: list[Beat] = []  # of a frame that will be repeated
        self._arrived = -1  # cycle of the last beat's arrival
        self._flying: deque[tuple[int, Beat]] = deque()

    def tready(self, cycle: int) -> bool:
        """Begin a cycle; whether the transmitter may move a beat in it.

        Raises
        ------
        ValueError
            If it is not the cycle after that of the last call.
        """
        if cycle != self._cycle + 1:
            raise ValueError(f"a wire in cycle {self._cycle} cannot go to cycle {cycle}")
        self._cycle = cycle
        most = self._rate + self.spec.phy_bytes * self._scale
        self._credit = min(self._credit + self._rate, most)
        paused = self._pause > 0 and self._randoms[PAUSES].draw() < self._pause
        self._ready = self._credit > 0 and not paused and not _within(self.spec.stalls, cycle)
        self.counts.waits += not self._ready
        return self._ready

    def accept(self, cycle: int, beat: Beat) -> None:
        """Take a beat in a cycle whose `tready` was true.

        Raises
        ------
        ValueError
            If it was not, or the beat keeps bytes that the wire does not have.
        """
        if cycle != self._cycle or not self._ready:
            raise ValueError(f"the wire is not ready for a beat in cycle {cycle}")
        if beat.keep >> self.spec.phy_bytes:
            raise ValueError(f"a beat of {self.spec.phy_bytes} bytes cannot keep {beat.keep:#x}")
        self._ready = False
        self._credit -= beat.keep.bit_count() * self._scale
        self.counts.beats += 1
        if not self._in_frame:
            self._begin_frame()
        self._in_frame = not beat.last
        beat = self._damaged(beat)
        if self._dropping or _within(self.spec.down, cycle):
            self.counts.lost += 1
        else:
            if self._repeating:
                self._frame.append(beat)
            self._send(cycle, beat)
        if beat.last:
            for copy in self._frame:
                self._send(cycle, copy)
            self._frame.clear()

    def arrival(self, cycle: int) -> Beat | None:
        """Beat that the receiver sees in a cycle; call it for each."""
        if self._flying and self._flying[0][0] == cycle:
            return self._flying.popleft()[1]
        return None

    def take(self) -> list[tuple[int, Beat]]:
        """All that is on the wire, with cycles of arrival; it is not on it any more."""
        taken = list(self._flying)
        self._flying.clear()
        return taken

    def _begin_frame(self) -> None:
        number = self.counts.frames
        self.counts.frames += 1
        self._dropping, self._repeating = number in self._drops, number in self._duplicates
        if self._drop or self._duplicate:
            draws = self._randoms[FRAMES].draw(), self._randoms[FRAMES].draw()
            self._dropping |= draws[0] < self._drop
            self._repeating |= draws[1] < self._duplicate
        self._repeating &= not self._dropping
        self.counts.dropped += self._dropping
        self.counts.repeated += self._repeating

    def _damaged(self, beat: Beat) -> Beat:
        lanes = [lane for lane in range(self.spec.phy_bytes) if beat.keep >> lane & 1]
        size = 8 * len(lanes)
        flips = []
        while self._bit_errors and self._bit_errors[0] < self._bits + size:
            flips.append(self._bit_errors.popleft() - self._bits)
        if threshold := self._thresholds[len(lanes)]:
            random = self._randoms[ERRORS]
            while random.draw() < threshold:
                flips.append(random.draw() % size)
        if self._burst and size:
            flips += self._burst_flips(size)
        self._bits += size
        self.counts.flips += len(flips)
        data = beat.data
        for bit in flips:
            data ^= 1 << 8 * lanes[bit // 8] + bit % 8
        return beat._replace(data=data)

    def _burst_flips(self, size: int) -> list[int]:
        """Bits of a beat that a burst flips: one that goes on, or one that begins."""
        random = self._randoms[BURSTS]
        first, begins = 0, self._burst_left == 0
        if begins:
            if random.draw() >= self._burst:
                return []
            first, self._burst_left = random.draw() % size, self.spec.burst_bits
        count = min(self._burst_left, size - first)
        self._burst_left -= count
        flips = []
        for bit in range(count):
            if bit % 64 == 0:
                word = random.draw() | (begins and bit == 0)
            if word >> bit % 64 & 1:
                flips.append(first + bit)
        return flips

    def _send(self, cycle: int, beat: Beat) -> None:
        arrival = max(cycle + self.spec.delay_cycles, self._arrived + 1)
        if any(cycle <= reset < arrival for reset in self.spec.resets):
            self.counts.lost += 1
            return
        self._arrived = arrival
        self._flying.append((arrival, beat))


def _within(ranges: tuple[tuple[int, int], ...], cycle: int) -> bool:
    return any(begin <= cycle < end for begin, end in ranges)
