"""Two ends of a link in gateware, saturated or with pauses, over wires with faults, and cleared.

Sources, sinks and wires are C++ (``native_channels.hpp``, ``native_link.hpp``): every word that
leaves is compared with the one that has to come, so a lost, repeated, misplaced or wrong word is an
error in the cycle in which it leaves.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Self

from fpgapipe.cache import cache_dir
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec, LinkState
from fpgapipe.hw.rtl.link.link import EVENTS
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native
from fpgapipe.sim_tb.native.native_library import RawCounts
from fpgapipe.sim_tb.native.phy import WireCounts, WireSpec
from fpgapipe.sim_tb.native.verilate import verilog_of
from fpgapipe.sim_tb.worlds.link_top import LinkTop

_PORT = 0
_PAUSE_SCALE = 1024
UNLIMITED = 2**63
"""Words of a source that does not stop."""

_u64 = ctypes.c_uint64
_PER_CHANNEL = _u64 * NUM_CHANNELS


class ChannelsConfig(ctypes.Structure):
    """What sources, sinks and the control of a link are told."""

    _fields_ = [
        ("enable", _u64),
        ("link_seed", _u64),
        ("seed", _u64),
        ("peer_seed", _u64),
        ("packet_words", _PER_CHANNEL),
        ("words", _PER_CHANNEL),
        ("source_pause", _u64),
        ("sink_pause", _u64),
    ]


class ChannelsStatus(ctypes.Structure):
    """What they tell."""

    _fields_ = [
        *((name, _u64) for name in ("state", "session", "peer", "peer_delivered_known")),
        *((name, _PER_CHANNEL) for name in ("delivered", "peer_delivered", "accepted", "taken")),
        *((name, _u64) for name in ("resting", "accepted_cycle", "taken_cycle", "ended_session")),
        ("ended_accepted", _PER_CHANNEL),
        ("ended_taken", _PER_CHANNEL),
        ("total_accepted", _u64),
        ("total_taken", _u64),
        ("events", _u64 * 8),
    ]

    @property
    def counted(self) -> dict[str, int]:
        """Events since the reset, by name."""
        return dict(zip(EVENTS, self.events, strict=True))


@dataclass(frozen=True)
class Traffic:
    """What the sources and sinks of an end do.

    Parameters
    ----------
    packet_words : tuple of int
        Of each channel, on average.
    words : tuple of int
        A channel's source stops at the end of the first packet behind so many words of a session.
    source_pause, sink_pause : float
        Chance of a pause in a cycle, on average; some stretches have none and some twice as many.
    """

    packet_words: tuple[int, ...] = (40, 9, 2)
    words: tuple[int, ...] = (UNLIMITED,) * NUM_CHANNELS
    source_pause: float = 0.0
    sink_pause: float = 0.0


class LinkWorld:
    """Two ends and the wires between them; a context manager.

    Parameters
    ----------
    spec : LinkEngineSpec
        Of both.
    wires : sequence of WireSpec
        From the first end to the second, and back.
    seed : int
        Of words, pauses and sessions.
    library : Path, optional
        From `link_library`, made if not given.

    Attributes
    ----------
    cycle : int
        Cycles since the reset.
    window_cycles : int
        What one end runs before the other does.
    seed : int
        Of words, from the next `set_traffic` on.
    """

    def __init__(
        self,
        spec: LinkEngineSpec,
        wires: Sequence[WireSpec],
        *,
        traffic: Traffic | Sequence[Traffic] = Traffic(),
        seed: int = 0,
        library: Path | None = None,
    ) -> None:
        self.spec = spec
        self.cycle = 0
        self.window_cycles = min(wire.delay_cycles for wire in wires)
        self.seed = seed
        library = library or link_library(spec)
        self._devices = [NativeDevice(library, seed=seed + end) for end in range(2)]
        self._handles = []
        rng = random.Random(seed)
        self._link_seeds = [rng.randrange(1 << 15) for _ in range(2)]
        for device, wire in zip(self._devices, wires, strict=True):
            device.reset()
            device.attach_wire(_PORT, wire)
            handle, self._library = device.lend()
            self._handles.append(handle)
        self.set_traffic(traffic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for device in self._devices:
            device.close()

    def set_traffic(self, traffic: Traffic | Sequence[Traffic], *, enable: bool = True) -> None:
        """Change what sources and sinks do, of both ends alike or of each, from now on.

        Both agree about the packets' lengths, so these have to stay.
        """
        both = [traffic] * 2 if isinstance(traffic, Traffic) else list(traffic)
        for end, one in enumerate(both):
            config = ChannelsConfig(
                enable=enable,
                link_seed=self._link_seeds[end],
                seed=self.seed * 2 + end,
                peer_seed=self.seed * 2 + 1 - end,
                packet_words=_PER_CHANNEL(*one.packet_words),
                words=_PER_CHANNEL(*one.words),
                source_pause=round(one.source_pause * _PAUSE_SCALE),
                sink_pause=round(one.sink_pause * _PAUSE_SCALE),
            )
            self._library.fpgapipe_channels_configure(self._handles[end], ctypes.byref(config))

    def clear(self, end: int) -> None:
        """End the session of an end, in the next cycle."""
        self._library.fpgapipe_channels_clear(self._handles[end])

    def status(self, end: int) -> ChannelsStatus:
        """What happened at an end."""
        status = ChannelsStatus()
        self._library.fpgapipe_channels_status(self._handles[end], ctypes.byref(status))
        return status

    def wire_counts(self, end: int) -> WireCounts:
        """What happened on the wire that begins at an end."""
        raw = RawCounts()
        self._library.fpgapipe_counts(self._handles[end], _PORT, ctypes.byref(raw))
        return WireCounts(*(getattr(raw, field.name) for field in fields(WireCounts)))

    def run(self, cycles: int) -> None:
        """Run both ends.

        Raises
        ------
        DeviceError
            If a word is wrong, or an end breaks a rule of its ports.
        """
        library = self._library
        count = ctypes.c_uint64()
        end_cycle = self.cycle + cycles
        while self.cycle < end_cycle:
            window = min(self.window_cycles, end_cycle - self.cycle)
            for handle in self._handles:
                library.fpgapipe_run(handle, window, False)
            self.cycle += window
            for source, target in (self._handles, self._handles[::-1]):
                beats = library.fpgapipe_flying(source, _PORT, ctypes.byref(count))
                library.fpgapipe_give(target, _PORT, beats, count)
                library.fpgapipe_taken(source, _PORT)
            for end, handle in enumerate(self._handles):
                if text := library.fpgapipe_error(handle):
                    raise DeviceError(f"end {end}: {text.decode(errors='replace')}")

    def run_until(
        self, condition: Callable[[Sequence[ChannelsStatus]], bool], max_cycles: int = 200_000
    ) -> Sequence[ChannelsStatus]:
        """Run until something holds, to be seen every hundred cycles or so; both ends' status."""
        begin = self.cycle
        while True:
            both = self.status(0), self.status(1)
            if condition(both):
                return both
            if self.cycle - begin >= max_cycles:
                states = [LinkState(one.state).name for one in both]
                taken = [list(one.taken) for one in both]
                raise DeviceError(
                    f"cycle {self.cycle}: what was waited for did not come within {max_cycles} "
                    f"cycles; the ends are {' and '.join(states)} and have taken {taken} words"
                )
            self.run(128)


def link_library(spec: LinkEngineSpec) -> Path:
    """A link's end, compiled."""
    cache_dir()  # rather refused now than when its Verilog is made
    return build_native(verilog_of(LinkTop(spec)))


def are_joined(both: Sequence[ChannelsStatus]) -> bool:
    """Whether both ends are up, in sessions that match."""
    one, other = both
    return one.state == other.state == LinkState.UP and (one.session, other.session) == (
        other.peer,
        one.peer,
    )


def is_reported(one: ChannelsStatus) -> bool:
    """Whether an end has stopped and knows what its peer had delivered."""
    return one.state == LinkState.PEER_RESET and bool(one.peer_delivered_known)


def are_drained(both: Sequence[ChannelsStatus]) -> bool:
    """Whether the sources have stopped, and everything has come."""
    one, other = both
    everything = (1 << NUM_CHANNELS) - 1
    return (
        one.resting == other.resting == everything
        and list(one.taken) == list(other.accepted)
        and list(other.taken) == list(one.accepted)
    )
