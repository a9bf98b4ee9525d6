"""One direction of the wire between two ends of a link: its rate, its latency and its faults.

`Wire` defines the behaviour cycle by cycle; ``native_link.hpp`` does the same in C++, bit for bit.
A running wire computes with integers only: `WireSpec` converts probabilities to thresholds.

A cycle of a wire
-----------------
1. `Wire.tready`. The credit, in units of ``1 / denominator`` bytes, grows by the bytes of a cycle,
   but to no more than the bytes of a cycle and a full beat. The transmitter may move a beat if the
   credit is above 0, the cycle is not within a stall and no pause is drawn.
2. `Wire.accept`, if the transmitter moves a beat. The credit falls by the number of bytes that the
   beat keeps. It may become negative, and following cycles make up for it. Then, in this order:

   a. At the first beat of a frame, which is the beat after one with ``last``, two draws decide
      whether the frame is dropped and whether it is repeated. A dropped frame is not repeated.
   b. Bits flip. First those of `bit_errors`. Then a number is drawn, and while it is below the
      threshold for the number of kept bytes, a second draw, modulo the number of kept bits, selects
      a bit that flips, and the first draw is repeated. Last, the bits of bursts flip. All this also
      happens to beats that do not arrive.
   c. The beat is lost if its frame is dropped or the wire is down.
   d. The beat arrives `delay_cycles` after this cycle, but at least one cycle after the preceding
      beat. It is lost if a reset occurs in this cycle or later, but before the cycle of arrival.
   e. After the last beat of a repeated frame, all beats of the frame that were not lost in step c
      are sent once more, with the same flipped bits, as if they were accepted in this cycle.
3. `Wire.arrival` returns the beat that the receiver sees in this cycle. Receivers never wait.

Bits are counted from the lowest bit of the lowest byte that a beat keeps. Bytes that it does not
keep are not counted.

A wire has four streams of random numbers (splitmix64):

* errors: for each beat, the pairs of draws of step b, up to the draw that ends them;
* bursts: for each beat outside a burst, one draw that decides whether a burst begins. If it does,
  one draw selects its first bit. Then one draw for each 64 bits of the burst says which of them
  flip; the first bit of a burst always flips;
* frames: two draws for each frame;
* pauses: one draw for each cycle.

No numbers are drawn from a stream whose rates are 0.

Source: S. Vigna, splitmix64.c, 2015, in the public domain.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP_BYTES

MAX_PHY_BYTES = ON_CHIP_BYTES
"""Bytes of the widest beat, that of an on-chip link: a word, and 4 more that count for nothing."""

_MASK = 2**64 - 1
ERRORS, BURSTS, FRAMES, PAUSES = range(4)
"""Numbers of a wire's streams of random numbers."""


class Beat(NamedTuple):
    """A beat of an AXI4-Stream.

    Attributes
    ----------
    data : int
        Bytes of the beat, the first one in the lowest bits.
    keep : int
        Mask of valid bytes: bit `i` is 1 if byte `i` is kept.
    last : bool
        Whether the beat ends a frame.
    """

    data: int
    keep: int
    last: bool


def beats_of(frame: bytes, phy_bytes: int) -> list[Beat]:
    """Split a frame into beats, the last of which may keep fewer bytes."""
    parts = [frame[at : at + phy_bytes] for at in range(0, len(frame), phy_bytes)]
    return [
        Beat(int.from_bytes(part, "little"), (1 << len(part)) - 1, number == len(parts) - 1)
        for number, part in enumerate(parts)
    ]


def bytes_of(beat: Beat) -> bytes:
    """Bytes that a beat keeps."""
    return bytes(
        beat.data >> 8 * lane & 0xFF for lane in range(MAX_PHY_BYTES) if beat.keep >> lane & 1
    )


def threshold_of(probability: float) -> int:
    """Threshold below which a 64-bit random number means "yes", at most 2^64 - 1."""
    return min(int(probability * 2**64), _MASK)


@dataclass(frozen=True)
class WireSpec:
    """Specification of one direction of a wire.

    Both devices count cycles alike; cycle 0 is the first one after the reset.

    Parameters
    ----------
    phy_bytes : int
        Bytes per beat: 4, 8, 16, 32, 64, or 68 for an on-chip link. Beats of the latter keep the
        first 64, and each is a frame.
    bytes_per_cycle : Fraction or int
        Line rate, bytes per cycle. Whatever it is, a port moves at most one beat per cycle.
    latency_cycles : int
        Cycles from the one in which the transmitter moves a beat to the one in which the receiver
        sees it, at least 1.
    skew_cycles : int
        Cycles that this direction adds to the latency.
    bit_error_rate : float
        Mean number of random flips per kept bit, below 1.
    burst_rate : float
        Chance that a burst of errors begins at a beat.
    burst_bits : int
        Length of a burst, bits, at least 1. A burst may extend over several beats.
    bit_errors : tuple of int
        Bits that flip, numbered from 0 over all accepted beats.
    drop_rate, duplicate_rate : float
        Chance that a frame is dropped, and that it is sent twice.
    drops, duplicates : tuple of int
        Frames that are dropped, and that are sent twice, numbered from 0 in order of their begin.
    down : tuple of (int, int)
        Ranges of cycles, ``begin..end - 1``, in which accepted beats are lost.
    resets : tuple of int
        Cycles in which all beats on the wire are lost. A beat accepted in such a cycle is lost too;
        a beat that arrives in it is not.
    stalls : tuple of (int, int)
        Ranges of cycles, ``begin..end - 1``, in which no beat is accepted.
    pause : float
        Chance that no beat is accepted in a cycle.
    seed : int
        Seed of all random numbers, 0..2^64 - 1.

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
        if self.phy_bytes not in (4, 8, 16, 32, 64, MAX_PHY_BYTES):
            raise ValueError(
                f"wire phy_bytes must be 4, 8, 16, 32, 64 or 68, not {self.phy_bytes!r}"
            )
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
        """Line rate in use: `bytes_per_cycle` with a denominator of at most 65536."""
        return Fraction(self.bytes_per_cycle).limit_denominator(1 << 16)

    @property
    def delay_cycles(self) -> int:
        """Least number of cycles from a beat's acceptance to its arrival."""
        return self.latency_cycles + self.skew_cycles

    @property
    def error_thresholds(self) -> tuple[int, ...]:
        """Thresholds of one further flip in a beat, by its number of kept bytes, 0..64.

        The number of flips in a beat has a geometric distribution. For a mean of `x` flips, the
        chance of one further flip is ``x / (1 + x)``.
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
    """Counts of events on a wire since the reset.

    Attributes
    ----------
    beats, frames : int
        Accepted beats and frames; a frame counts from its first beat on.
    flips : int
        Flipped bits; a bit that is flipped twice counts twice.
    dropped, repeated : int
        Frames that were dropped, and that were sent twice.
    lost : int
        Beats that were lost: those of dropped frames, those accepted while the wire was down, and
        those lost in resets, copies included.
    waits : int
        Cycles in which the wire was not ready for a beat.
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
        Seed of the wire.
    stream : int
        Number of the wire's stream.
    """

    def __init__(self, seed: int, stream: int) -> None:
        # The stream's number is mixed once, so that the streams of a wire are unrelated.
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
    """Simulation of one direction of a wire.

    `tready` must be called in each cycle, from cycle 0 on and without a gap, then `accept` if a
    beat moves. `arrival` may be called for a cycle as soon as the cycle before it is over.

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
        self._bits = 0  # bits kept by all preceding beats
        self._burst_left = 0
        self._in_frame = self._dropping = self._repeating = False
        self._frame: list[Beat] = []  # beats so far of a frame that will be repeated
        self._arrived = -1  # cycle of the last beat's arrival
        self._flying: deque[tuple[int, Beat]] = deque()

    def tready(self, cycle: int) -> bool:
        """Begin a cycle; returns whether the transmitter may move a beat in it.

        Raises
        ------
        ValueError
            If `cycle` does not follow that of the last call.
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
        """Accept a beat in a cycle in which `tready` returned true.

        Raises
        ------
        ValueError
            If it returned false, or if the beat keeps bytes beyond the wire's width.
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
        """Beat that the receiver sees in a cycle, if any; must be called for each cycle."""
        if self._flying and self._flying[0][0] == cycle:
            return self._flying.popleft()[1]
        return None

    def take(self) -> list[tuple[int, Beat]]:
        """Remove all beats from the wire and return them with their cycles of arrival."""
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
        """Bits of a beat that flip in a burst, which continues or begins in this beat."""
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
