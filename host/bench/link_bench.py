"""Benchmark of a simulated link: share of the wire that carries words, and latency of a word."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
    from fpgapipe.sim_tb.native.phy import WireSpec

LINK_PACKET_WORDS = 1 << 12
"""Words in a packet of saturating traffic, so many that nearly all frames are full."""

_LATENCY_WORDS = 50
_WARM_UP_CYCLES = 10_000


@dataclass(frozen=True)
class LinkBench:
    """Results of `bench_link`; ``to_dict`` gives them for JSON.

    Attributes
    ----------
    cycles : int
        Cycles of each of the two measurements.
    efficiency_both : float
        Bytes of delivered words as a share of the bytes that the line could have carried, in the
        worse direction, while both directions are saturated.
    efficiency_one : float
        The same share for one direction while the other carries nothing but feedback.
    word_cycles : float
        Average cycles from the one in which an idle link accepts a word to the one in which the
        word leaves the other end, including the wire's latency.
    events : dict
        Counts of events at both ends while both directions were saturated.
    words : int
        Number of delivered words; each was compared with the word that was sent.
    cycles_per_s : float
        Simulated cycles of the whole link, with both ends, per second of processor time.
    words_per_s : float
        Delivered words per second of processor time.
    build_s : float
        Seconds for generating and compiling the simulator.
    """

    link: LinkEngineSpec
    wire: WireSpec
    cycles: int
    efficiency_both: float
    efficiency_one: float
    word_cycles: float
    events: dict[str, int]
    words: int
    cycles_per_s: float
    words_per_s: float
    build_s: float

    def to_dict(self) -> dict[str, Any]:
        """Values of the results, by name."""
        figures = {
            name: value for name, value in vars(self).items() if name not in ("link", "wire")
        }
        return {
            **asdict(self.link),
            "bytes_per_cycle": float(self.wire.rate),
            "latency_cycles": self.wire.delay_cycles,
            "bit_error_rate": self.wire.bit_error_rate,
            "efficiency_limit": self.link.efficiency,
            **figures,
        }


def bench_link(
    link: LinkEngineSpec,
    wire: WireSpec,
    *,
    cycles: int = 200_000,
    library: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> LinkBench:
    """Saturate a link in both directions, then in one, then send single words.

    Parameters
    ----------
    link : LinkEngineSpec
        Spec of both ends.
    wire : WireSpec
        Wire of both directions, which get different seeds.
    cycles : int
        Cycles of each of the two measurements.
    library : Path, optional
        Compiled simulator of a link's end, if there is one already.
    progress : callable, optional
        Function that is called with the number of steps done and of all steps.

    Raises
    ------
    DeviceError
        If a delivered word is not the expected one.
    """
    # The simulator is slow to import, so it is imported only here.
    from fpgapipe.sim_tb.worlds.link_world import link_library

    begin = time.perf_counter()
    library = library or link_library(link)
    build_s = time.perf_counter() - begin
    wires = wire, replace(wire, seed=(wire.seed + 1) % 2**64)
    line_bytes = float(min(wire.rate, Fraction(wire.phy_bytes))) * cycles
    num_steps = 3

    def step(number: int) -> None:
        if progress is not None:
            progress(number, num_steps)

    step(0)
    both = _saturate(link, wires, cycles, library, back=True)
    step(1)
    one = _saturate(link, wires, cycles, library, back=False)
    step(2)
    word_cycles = _single_words(link, wires, library)
    cpu_s = max(both.cpu_s + one.cpu_s, 1e-9)
    words = sum(both.moved) + sum(one.moved)
    return LinkBench(
        link,
        wire,
        cycles,
        efficiency_both=min(both.moved) * WORD_BYTES / line_bytes,
        efficiency_one=one.moved[1] * WORD_BYTES / line_bytes,
        word_cycles=word_cycles,
        events=both.events,
        words=words + _LATENCY_WORDS,
        cycles_per_s=2 * cycles / cpu_s,
        words_per_s=words / cpu_s,
        build_s=build_s,
    )


@dataclass(frozen=True)
class _Load:
    """Words delivered at each end, event counts of both ends, and processor time in seconds."""

    moved: tuple[int, int]
    events: dict[str, int]
    cpu_s: float


def _saturate(
    link: LinkEngineSpec, wires: Sequence[WireSpec], cycles: int, library: Path, *, back: bool
) -> _Load:
    from fpgapipe.sim_tb.worlds.link_world import UNLIMITED, LinkWorld, Traffic, are_joined

    packet_words = (LINK_PACKET_WORDS,) * NUM_CHANNELS
    traffic = [
        Traffic(packet_words, (words,) * NUM_CHANNELS)
        for words in (UNLIMITED, UNLIMITED if back else 0)
    ]
    with LinkWorld(link, wires, traffic=traffic, seed=wires[0].seed, library=library) as world:
        world.run_until(are_joined)
        world.run(_WARM_UP_CYCLES)
        before = world.status(0), world.status(1)
        began = time.process_time()
        world.run(cycles)
        cpu_s = time.process_time() - began
        after = world.status(0), world.status(1)
    pairs = list(zip(before, after, strict=True))
    first, second = (new.total_taken - old.total_taken for old, new in pairs)
    events = {
        name: sum(new.counted[name] - old.counted[name] for old, new in pairs)
        for name in after[0].counted
    }
    return _Load((first, second), events, cpu_s)


def _single_words(link: LinkEngineSpec, wires: Sequence[WireSpec], library: Path) -> float:
    """Cycles that a word takes through an idle link, on average."""
    from fpgapipe.sim_tb.worlds.link_world import LinkWorld, Traffic, are_drained, are_joined

    packet_words, none = (1,) * NUM_CHANNELS, (0,) * NUM_CHANNELS
    idle = Traffic(packet_words, none)
    taken = 0
    with LinkWorld(link, wires, traffic=idle, seed=wires[0].seed, library=library) as world:
        world.run_until(are_joined)
        for number in range(_LATENCY_WORDS):
            world.set_traffic((Traffic(packet_words, (number + 1, 0, 0)), idle))
            world.run(97)  # words then meet the line in different phases
            one, other = world.run_until(are_drained)
            taken += other.taken_cycle - one.accepted_cycle
    return taken / _LATENCY_WORDS
