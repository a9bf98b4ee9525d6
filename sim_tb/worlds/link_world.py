"""Two ends of a link in gateware, connected by wires with faults, with random traffic and clears.

Sources, sinks and wires are in C++ (``native_channels.hpp``, ``native_link.hpp``). Every word that
leaves the link is compared with the expected one, so a lost, repeated, misplaced or wrong word is
an error in the cycle in which the difference leaves.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fpgapipe.cache import cache_dir
from fpgapipe.closing import Closing
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS, LinkEngineSpec, LinkState
from fpgapipe.hw.rtl.link.link import EVENTS
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native
from fpgapipe.sim_tb.native.native_library import RawCounts
from fpgapipe.sim_tb.native.phy import WireCounts, WireSpec
from fpgapipe.sim_tb.worlds.link_top import LinkTop

_PORT = 0
_PAUSE_SCALE = 1024
UNLIMITED = 2**63
"""Number of words for a source that does not stop."""

_u64 = ctypes.c_uint64
_PER_CHANNEL = _u64 * NUM_CHANNELS


class ChannelsConfig(ctypes.Structure):
    """Configuration of the sources, the sinks and the control of a link's end."""

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
    """Status of the sources, the sinks and the engine of a link's end."""

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
        """Counts of events since the reset, by name."""
        return dict(zip(EVENTS, self.events, strict=True))


@dataclass(frozen=True)
class Traffic:
    """Behaviour of the sources and sinks of an end.

    Parameters
    ----------
    packet_words : tuple of int
        Average number of words per packet, for each channel.
    words : tuple of int
        For each channel, number of words of a session after which its source stops, at the end of
        the packet that it is sending.
    source_pause, sink_pause : float
        Average chance of a pause in a cycle. Some periods have no pauses and some twice as many.
    """

    packet_words: tuple[int, ...] = (40, 9, 2)
    words: tuple[int, ...] = (UNLIMITED,) * NUM_CHANNELS
    source_pause: float = 0.0
    sink_pause: float = 0.0


class LinkWorld(Closing):
    """Two ends of a link and the wires between them; a context manager.

    Parameters
    ----------
    spec : LinkEngineSpec
        Specification of both ends.
    wires : sequence of WireSpec
        Wires from the first end to the second, and back.
    traffic : Traffic or sequence of Traffic
        Behaviour of sources and sinks, for both ends or for each.
    seed : int
        Seed of words, pauses and sessions.
    library : Path, optional
        Compiled end from `link_library`, which is called by default.

    Attributes
    ----------
    cycle : int
        Cycles since the reset.
    window_cycles : int
        Cycles for which one end runs before the other one does.
    seed : int
        Seed of words; a change has an effect from the next `set_traffic` on.
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

    def close(self) -> None:
        """End the simulation of both ends."""
        for device in self._devices:
            device.close()

    def set_traffic(self, traffic: Traffic | Sequence[Traffic], *, enable: bool = True) -> None:
        """Change the behaviour of sources and sinks, for both ends or for each, from now on.

        The lengths of packets must not change, since the sinks compute the expected words with
        them.
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
        """End the session of an end in the next cycle."""
        self._library.fpgapipe_channels_clear(self._handles[end])

    def status(self, end: int) -> ChannelsStatus:
        """Status of an end."""
        status = ChannelsStatus()
        self._library.fpgapipe_channels_status(self._handles[end], ctypes.byref(status))
        return status

    def wire_counts(self, end: int) -> WireCounts:
        """Event counts of the wire that begins at an end."""
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
        """Run until a condition, checked every 128 cycles, holds; returns the ends' status."""
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
    """Compile a link's end; returns the library."""
    cache_dir()  # an unusable cache raises here, before the Verilog is generated
    return build_native(verilog_of(LinkTop(spec)))


def are_joined(both: Sequence[ChannelsStatus]) -> bool:
    """Whether both ends are up, in sessions that match."""
    one, other = both
    return one.state == other.state == LinkState.UP and (one.session, other.session) == (
        other.peer,
        one.peer,
    )


def is_reported(one: ChannelsStatus) -> bool:
    """Whether an end has stopped and knows how many words its peer had delivered."""
    return one.state == LinkState.PEER_RESET and bool(one.peer_delivered_known)


def are_drained(both: Sequence[ChannelsStatus]) -> bool:
    """Whether the sources have stopped and all words have arrived."""
    one, other = both
    everything = (1 << NUM_CHANNELS) - 1
    return (
        one.resting == other.resting == everything
        and list(one.taken) == list(other.accepted)
        and list(other.taken) == list(one.accepted)
    )
