"""Soak test of a link over wires with all kinds of faults; its ends are cleared at random times."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec, LinkState
from fpgapipe.sim_tb.native.native import DeviceError
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.worlds.link_world import (
    UNLIMITED,
    LinkWorld,
    Traffic,
    are_drained,
    are_joined,
    is_reported,
)

_SETTLE_CYCLES = 16
"""Cycles from a clear to the next session, with some margin."""

_PATIENCE_CYCLES = 400_000
_HORIZON_CYCLES = 1 << 26
_EVENT_CYCLES = 60_000
"""Average number of cycles between two of a wire's down times, resets and stalls."""


@dataclass
class Soak:
    """Results of a soak test.

    Attributes
    ----------
    words : int
        Words that left the link at both ends; each was compared.
    cycles : int
        Cycles of the simulation.
    clears : int
        Sessions that were ended.
    reports : int
        Ended sessions that the other end reported; these are all that it knew of.
    drains : int
        Times at which all accepted words had arrived.
    states : Counter
        States of the ends when they were cleared.
    events : Counter
        Events of both engines.
    faults : Counter
        Event counts of both wires.
    """

    words: int = 0
    cycles: int = 0
    clears: int = 0
    reports: int = 0
    drains: int = 0
    states: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Soak") -> "Soak":
        return Soak(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


def random_wire(phy_bytes: int, rng: random.Random) -> WireSpec:
    """Draw a wire with faults of all kinds."""
    at, down, resets, stalls = 2000, [], [], []
    while at < _HORIZON_CYCLES:
        at += rng.randrange(1, 2 * _EVENT_CYCLES)
        kind, size = rng.randrange(3), rng.choice((1, 3, 50, 2000))
        if kind == 0:
            down.append((at, at + size))
        elif kind == 1:
            resets.append(at)
        else:
            stalls.append((at, at + size))
        at += size
    return WireSpec(
        phy_bytes,
        Fraction(phy_bytes * rng.choice((8, 7, 5)), 8),
        rng.choice((6, 20, 128)),
        rng.choice((0, 0, 37)),
        bit_error_rate=rng.choice((0, 1e-7, 1e-6, 1e-5)),
        burst_rate=rng.choice((0, 1e-4)),
        burst_bits=rng.choice((8, 33, 900)),
        drop_rate=rng.choice((0, 1e-3, 1e-2)),
        duplicate_rate=rng.choice((0, 1e-3, 1e-2)),
        down=tuple(down),
        resets=tuple(resets),
        stalls=tuple(stalls),
        pause=rng.choice((0, 0, 0.2)),
        seed=rng.randrange(2**64),
    )


def soak(
    spec: LinkEngineSpec,
    num_words: int,
    seed: int,
    *,
    library: Path | None = None,
    progress: Callable[[int], object] | None = None,
) -> Soak:
    """Transfer at least `num_words` words, both directions together.

    Raises
    ------
    DeviceError
        If a word is lost, repeated, out of order or wrong; if an end reports a wrong number of
        words that its peer had delivered; or if an awaited state is not reached in time.
    """
    rng = random.Random(seed)
    wires = [random_wire(spec.phy_bytes, rng) for _ in range(2)]
    packet_words = rng.choice(((40, 9, 2), (500, 60, 1), (3, 30, 17)))
    found = Soak()
    with LinkWorld(spec, wires, seed=seed, library=library) as world:
        driver = _Driver(world, packet_words, rng, found)
        while found.words < num_words:
            driver.turn()
            found.words = sum(world.status(end).total_taken for end in range(2))
            if progress is not None:
                progress(found.words)
        driver.drain()
        found.words = sum(world.status(end).total_taken for end in range(2))
        found.cycles = world.cycle
        for end in range(2):
            found.events.update(world.status(end).counted)
            found.faults.update(vars(world.wire_counts(end)))
    return found


class _Driver:
    """Drives a link through random phases of traffic, drains and clears."""

    def __init__(
        self, world: LinkWorld, packet_words: tuple[int, ...], rng: random.Random, found: Soak
    ) -> None:
        self._world, self._packet_words, self._rng = world, packet_words, rng
        self._found = found
        self._clears = [0, 0]  # number of clears of each end
        self._traffic(UNLIMITED)

    def turn(self) -> None:
        """Run some cycles under load, then drain the link, clear an end, or change the traffic."""
        rng = self._rng
        self._world.run(rng.choice((100, 1000, 5000, 20_000)))
        draw = rng.random()
        if draw < 0.15:
            self.drain()
        elif draw < 0.6:
            self._clear()
        self._traffic(UNLIMITED)

    def drain(self) -> None:
        """Stop the sources and wait until all words have arrived; then check the counters."""
        self._join()
        self._traffic(0)
        both = self._world.run_until(are_drained, _PATIENCE_CYCLES)
        self._world.run(2)  # events are one cycle late
        for end, one in enumerate(both):
            _expect(f"end {end}: delivered", list(one.delivered), list(one.taken))
            counted = self._world.status(end).counted
            _expect(f"end {end}: RX_WORDS", counted["rx_word"], one.total_taken)
            # Words that are accepted while a session ends are lost with it and need not be counted.
            uncounted = one.total_accepted - counted["tx_word"]
            if not 0 <= uncounted <= 2 * self._clears[end]:
                _expect(f"end {end}: TX_WORDS", counted["tx_word"], one.total_accepted)
        self._found.drains += 1

    def _traffic(self, words: int) -> None:
        rates = (0.0, 0.0, 0.2, 0.6, 0.9)
        self._world.set_traffic(
            [
                Traffic(
                    self._packet_words,
                    (words,) * NUM_CHANNELS,
                    self._rng.choice(rates) if words else 0.0,
                    self._rng.choice(rates) if words else 0.0,
                )
                for _ in range(2)
            ]
        )

    def _join(self) -> None:
        """Bring both ends up, as a host does, by clearing each end that has stopped."""
        world = self._world
        while not are_joined(both := (world.status(0), world.status(1))):
            for end, one in enumerate(both):
                if is_reported(one):
                    self._end_session(end)
            world.run_until(
                lambda both: are_joined(both) or any(map(is_reported, both)), _PATIENCE_CYCLES
            )

    def _end_session(self, end: int) -> None:
        before = self._world.status(end)
        self._world.clear(end)
        self._world.run(_SETTLE_CYCLES)
        after = self._world.status(end)
        _expect("session that ended", after.ended_session, before.session)
        _expect("next session", after.session, (before.session + 1) % (1 << 15) | 1 << 15)
        self._found.clears += 1
        self._clears[end] += 1
        self._found.states[LinkState(before.state).name] += 1

    def _clear(self) -> None:
        """Clear an end up to three times, and check that the other end reports it."""
        world, rng = self._world, self._rng
        end = rng.randrange(2)
        before = world.status(end), world.status(1 - end)
        self._end_session(end)
        ended = world.status(end)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            world.run(rng.randrange(1, 400))
            self._end_session(end)
        lost, other = before
        if other.state != LinkState.UP or other.peer != lost.session:
            return  # the other end did not know that session
        reported = world.run_until(lambda both: is_reported(both[1 - end]), _PATIENCE_CYCLES)[
            1 - end
        ]
        _expect("peer of the end that stopped", reported.peer, lost.session)
        _expect("peer's words", list(reported.peer_delivered), list(ended.ended_taken))
        world.run(rng.choice((0, 0, 2000)))  # words that had arrived are still delivered
        stopped = world.status(1 - end)
        _expect("delivered", list(stopped.delivered), list(stopped.taken))
        for what, taken, accepted in (
            ("there", ended.ended_taken, stopped.accepted),
            ("back", stopped.taken, ended.ended_accepted),
        ):
            if any(got > sent for got, sent in zip(taken, accepted, strict=True)):
                raise DeviceError(f"{what}: {list(taken)} words came of {list(accepted)}")
        self._found.reports += 1
        if rng.random() < 0.8:
            self._join()


def _expect(what: str, value: object, right: object) -> None:
    if value != right:
        raise DeviceError(f"{what} must be {right}, not {value}")
