"""Gateware simulated at full speed: clock, registers and memory in C++, driven from Python.

`build_native` compiles a design and `native.cpp` to one shared library; a `NativeDevice` is one
instance of the design. No event of the simulation passes through Python: a call runs the requested
number of cycles and holds no Python lock, so devices in different threads run at the same time.

The design must have the ports ``clk`` and ``rst``. It may have any of these groups of ports, which
are recognized by their names:

``s_axil_*``
    AXI4-Lite slave of 32 bits, which gives access to the registers.
``m_axi_*``
    AXI4 master of 32 to 512 bits, which is connected to the simulated memory. A design may have a
    second one, ``m_axi1_*``, to the same memory.
``m_axis_link{n}_*``, ``s_axis_link{n}_*``
    Link port `n`, 0..3: one AXI4-Stream per direction, with tdata of 32 to 512 bits, tkeep, tlast,
    tvalid and tready. A wire (`fpgapipe.sim_tb.native.phy`) may be attached to it. Without a wire,
    the beats that the design sends are lost.
``irq``
    Interrupt, active high.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fpgapipe.closing import Closing
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import MAX_LINKS
from fpgapipe.sim_tb.native.native_library import (
    BEAT_BYTES,
    NEVER,
    Config,
    DeviceError,
    RawBeat,
    RawCounts,
    RawStatistics,
    RawWire,
    Statistics,
    build_native,
    load,
    native_speed,
)
from fpgapipe.sim_tb.native.phy import Beat, WireCounts, WireSpec

__all__ = [
    "DeviceError",
    "NativeDevice",
    "StallError",
    "Statistics",
    "build_native",
    "native_speed",
]

_CHUNK_CYCLES = 20_000
_RESPONSES = ("OKAY", "EXOKAY", "SLVERR", "DECERR")


class StallError(DeviceError):
    """A simulated device did not raise its interrupt in time."""


class NativeDevice(Closing):
    """One simulated device with its memory; a context manager.

    Only one thread at a time may call a device. Different devices may run in different threads.

    Reads and writes share the bandwidth `bytes_per_cycle`. A beat may move as long as any of the
    budget is left; a beat that exceeds the budget reduces that of the following cycles. If the
    budget suffices for one beat and both directions have one, they alternate. The first beat of a
    read burst comes `latency_cycles` after the cycle in which its address was accepted, or right
    after the preceding burst if that is later; bursts keep their order, whatever their IDs are.
    Memory is read when the beat is first shown and written when the beat is accepted. The memory
    accepts the data of a write burst from the cycle after its address on, and responds
    `write_latency_cycles` after its last beat. Only bursts of type INCR and of the full bus width
    are allowed.

    Parameters
    ----------
    library : Path
        Library that `build_native` returned.
    memory_bytes : int
        Size of the memory, bytes, a multiple of 4096. Pages that are never accessed use no memory
        of the host, so many gigabytes cost nothing. Accesses beyond the end get DECERR.
    bytes_per_cycle : int or Fraction
        Bandwidth of reads and writes together, bytes per cycle; of two ports, each has half of it.
    latency_cycles, write_latency_cycles : int
        Read and write latency, cycles, at least 1. The write latency defaults to the read latency.
    outstanding : int
        Number of bursts of each direction that the memory holds.
    pause : float
        Chance that one of the memory's five channels pauses in a cycle, 0 to 0.99.
    seed : int
        Seed of the pauses.
    banks : (int, int, int), optional
        Number of banks, bytes by which they are interleaved, and the least number of cycles between
        the first beats of two bursts that begin in the same bank. By default banks are not
        modelled.

    Attributes
    ----------
    memory : uint8 array, shape (memory_bytes,)
        The memory itself, not a copy; stays valid after `close`.
    bus_bytes : int
        Width of the memory bus, bytes; 0 if the design has none.
    link_bytes : mapping of int to int
        Width of each link port that the design has, bytes, by its number.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    def __init__(
        self,
        library: Path,
        *,
        memory_bytes: int = 0,
        bytes_per_cycle: int | Fraction = 64,
        latency_cycles: int = 64,
        write_latency_cycles: int | None = None,
        outstanding: int = 64,
        pause: float = 0,
        seed: int = 0,
        banks: tuple[int, int, int] | None = None,
    ) -> None:
        self._handle: int | None = None
        self._is_lent = False
        if write_latency_cycles is None:
            write_latency_cycles = latency_cycles
        if memory_bytes < 0 or memory_bytes % 4096:
            raise ValueError(f"memory must be a multiple of 4096 bytes, not {memory_bytes}")
        rate = Fraction(bytes_per_cycle).limit_denominator(1 << 16)
        if not 0 < rate <= 1 << 20:
            raise ValueError(f"bytes per cycle must be 1/65536..1048576, not {bytes_per_cycle}")
        for name, value in (("read", latency_cycles), ("write", write_latency_cycles)):
            if value < 1:
                raise ValueError(f"{name} latency must be at least 1 cycle, not {value}")
        if not 1 <= outstanding <= 1 << 16:
            raise ValueError(f"outstanding bursts must be 1..65536, not {outstanding}")
        if not 0 <= pause <= 0.99:
            raise ValueError(f"chance of a pause must be 0..0.99, not {pause}")
        if banks and not (1 <= banks[0] <= 1 << 16 and banks[1] >= 1 and banks[2] >= 1):
            raise ValueError(
                f"banks must be 1..65536, their bytes and cycles 1 or more, not {banks}"
            )
        self.memory = _reserve(memory_bytes)
        self._library = load(Path(library))
        features = self._library.fpgapipe_features()
        self.bus_bytes: int = features >> 8 if features & 1 else 0
        widths = [self._library.fpgapipe_link_bytes(port) for port in range(MAX_LINKS)]
        self.link_bytes: dict[int, int] = {
            port: width for port, width in enumerate(widths) if width
        }
        self._has_irq = bool(features & 4)
        self._has_waves = bool(features & 8)
        num_ports = 2 if features & 16 else 1
        config = Config(
            self.memory.ctypes.data,
            memory_bytes,
            rate.numerator,
            rate.denominator * num_ports,
            latency_cycles,
            write_latency_cycles,
            outstanding,
            round(pause * 4096),
            seed % 2**64,
            *(banks or (0, 0, 0)),
        )
        self._handle = self._library.fpgapipe_create(ctypes.byref(config))
        if self._handle is None:
            raise MemoryError("there is no room for another device")
        self.reset()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the simulation and close its wave file; `memory` stays valid."""
        if self._handle is not None:
            self._library.fpgapipe_destroy(self._handle)
            self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the device is closed")
        return self._handle

    def _own(self) -> int:
        if self._is_lent:
            raise ValueError("the device belongs to a cluster, which alone may run it")
        return self._open()

    def lend(self) -> tuple[int, ctypes.CDLL]:
        """Hand the device to a cluster for good; returns its handle and the library's functions."""
        handle = self._own()
        self._is_lent = True
        return handle, self._library

    @property
    def has_irq(self) -> bool:
        """Whether the design has an interrupt."""
        return self._has_irq

    def flush_waves(self) -> None:
        """Flush the waves recorded so far to their file."""
        if self._has_waves:
            self._library.fpgapipe_flush(self._open())

    def _check(self) -> None:
        if text := self._library.fpgapipe_error(self._open()):
            raise DeviceError(text.decode(errors="replace"))

    def reset(self, cycles: int = 4) -> None:
        """Reset design, buses, pauses, statistics and errors; the memory keeps its contents.

        It also ends the recording of waves, because their time would start again at 0.
        """
        self._library.fpgapipe_reset(self._own(), cycles)
        self._check()

    @property
    def statistics(self) -> Statistics:
        """Statistics of the memory bus since the last reset."""
        raw = RawStatistics()
        self._library.fpgapipe_statistics(self._open(), ctypes.byref(raw))
        values = {field.name: getattr(raw, field.name) for field in fields(Statistics)}
        for name, value in values.items():
            if value == NEVER:
                values[name] = None
        return Statistics(**values | {"irq": bool(raw.irq)})

    @property
    def cycle(self) -> int:
        """Cycles since the last reset."""
        return self.statistics.cycle

    def write_register(self, address: int, value: int, *, max_cycles: int = 1000) -> None:
        """Write a register of 32 bits; runs the simulation until the design responds.

        Raises
        ------
        DeviceError
            If the design responds with an error or does not respond within `max_cycles`.
        """
        check_value(value)
        self._access(address, value, True, max_cycles)

    def read_register(self, address: int, *, max_cycles: int = 1000) -> int:
        """Read a register of 32 bits; runs and raises as `write_register` does."""
        return self._access(address, 0, False, max_cycles)

    def _access(self, address: int, value: int, write: bool, max_cycles: int) -> int:
        check_address(address)
        register = ctypes.c_uint32(value)
        response = self._library.fpgapipe_access(
            self._own(), address, ctypes.byref(register), write, max_cycles, False
        )
        self._check()
        if response:
            raise DeviceError(refusal(address, write, response))
        return register.value

    def run(
        self,
        max_cycles: int | None = None,
        *,
        until_irq: bool = True,
        stall_cycles: int | None = 10_000_000,
        progress: Callable[[Statistics], object] | None = None,
        progress_cycles: int = _CHUNK_CYCLES,
    ) -> int:
        """Run until the interrupt is high, or for a number of cycles.

        After Ctrl-C or an exception from `progress`, the device stands between two cycles and can
        go on.

        Parameters
        ----------
        max_cycles : int, optional
            Number of cycles to run; with `until_irq`, the limit within which ``irq`` must rise.
        until_irq : bool
            Whether to stop before the first cycle that begins with ``irq`` high.
        stall_cycles : int, optional
            With `until_irq`, cycles for which the memory bus may be idle; None means no limit.
        progress : callable, optional
            Function that is called with the statistics every `progress_cycles`.
        progress_cycles : int
            Cycles between two times at which Python handles signals and calls `progress`.

        Returns
        -------
        int
            Number of cycles that ran.

        Raises
        ------
        StallError
            If `until_irq` is set and `max_cycles` or `stall_cycles` is reached.
        DeviceError
            If the design breaks a rule of its buses.
        """
        handle = self._own()
        if until_irq and not self._has_irq:
            raise ValueError("the design has no port irq to wait for")
        if not until_irq and max_cycles is None:
            raise ValueError("a device that does not wait for irq needs a number of cycles")
        begin = self.cycle
        ran = 0
        while max_cycles is None or ran < max_cycles:
            now = self.statistics
            if until_irq and now.irq:
                break
            cycles = (
                progress_cycles if max_cycles is None else min(progress_cycles, max_cycles - ran)
            )
            if until_irq and stall_cycles is not None:
                active = begin if now.active_cycle is None else max(begin, now.active_cycle)
                left = stall_cycles - (now.cycle - active)
                if left <= 0:
                    raise StallError(_stalled(now, f"for {stall_cycles} cycles"))
                cycles = min(cycles, left)
            ran += self._library.fpgapipe_run(handle, cycles, until_irq)
            self._check()
            if progress is not None:
                progress(self.statistics)
        self.flush_waves()
        if until_irq:
            now = self.statistics
            if not now.irq:
                raise StallError(_stalled(now, f"within {max_cycles} cycles"))
        return ran

    def inject_error(
        self,
        begin: int,
        end: int,
        response: Literal["SLVERR", "DECERR"] = "SLVERR",
        *,
        reads: bool = True,
        writes: bool = True,
    ) -> None:
        """Answer beats that overlap the bytes ``begin..end - 1`` with an error.

        These beats neither read nor write the memory. This holds until `clear_errors`.
        """
        if response not in ("SLVERR", "DECERR"):
            raise ValueError(f"the response must be SLVERR or DECERR, not {response!r}")
        self._library.fpgapipe_inject(
            self._open(), begin, end, _RESPONSES.index(response), reads, writes
        )

    def clear_errors(self) -> None:
        """Remove all injected errors."""
        self._library.fpgapipe_heal(self._open())

    def attach_wire(self, port: int, spec: WireSpec) -> None:
        """Attach a wire to a link port; beats on a wire that was attached before are lost.

        A wire may be attached at any cycle. It counts cycles as the device does, and `reset`
        restores its initial state.
        """
        if self._link(port) != spec.phy_bytes:
            raise ValueError(
                f"link {port} moves {self.link_bytes[port]} bytes a beat, the wire {spec.phy_bytes}"
            )
        self._library.fpgapipe_attach(self._own(), port, ctypes.byref(RawWire.of(spec)))

    def take_beats(self, port: int) -> list[tuple[int, Beat]]:
        """Remove all beats from the wire of a port; returns cycles of arrival and beats."""
        self._link(port)
        count = ctypes.c_uint64()
        raw = self._library.fpgapipe_flying(self._own(), port, ctypes.byref(count))
        beats = [
            (
                one.arrival,
                Beat(int.from_bytes(bytes(one.data), "little"), one.keep, bool(one.last)),
            )
            for one in raw[: count.value]
        ]
        self._library.fpgapipe_taken(self._own(), port)
        return beats

    def give_beats(self, port: int, beats: Sequence[tuple[int, Beat]]) -> None:
        """Schedule the arrival of beats at a port.

        Raises
        ------
        DeviceError
            If a cycle of arrival is in the past, or not later than that of the preceding beat.
        """
        self._link(port)
        raw = (RawBeat * len(beats))()
        for one, (arrival, beat) in zip(raw, beats, strict=True):
            one.arrival, one.keep, one.last = arrival, beat.keep, beat.last
            one.data[:] = beat.data.to_bytes(BEAT_BYTES, "little")
        self._library.fpgapipe_give(self._own(), port, raw, len(beats))
        self._check()

    def wire_counts(self, port: int) -> WireCounts:
        """Event counts of a port's wire since the reset."""
        self._link(port)
        raw = RawCounts()
        self._library.fpgapipe_counts(self._open(), port, ctypes.byref(raw))
        return WireCounts(*(getattr(raw, field.name) for field in fields(WireCounts)))

    def _link(self, port: int) -> int:
        """Bytes per beat of a port."""
        if port not in self.link_bytes:
            raise ValueError(f"the design has no link {port} (ports m_axis_link{port}_*)")
        return self.link_bytes[port]

    def state(self) -> bytes:
        """State between two cycles, without the contents of the memory.

        `set_state` continues from it to the same bits in the same cycles, in this process or in
        another one.
        """
        size = ctypes.c_uint64()
        raw = self._library.fpgapipe_save(self._open(), ctypes.byref(size))
        self._check()
        return ctypes.string_at(raw, size.value)

    def set_state(self, state: bytes) -> None:
        """Continue from a state that a device of the same library and configuration has saved.

        The caller restores the contents of the memory. The bytes must be trusted: not every change
        of them is noticed.

        Raises
        ------
        DeviceError
            If the state is of another design; the device must then be reset.
        """
        self._library.fpgapipe_restore(self._open(), state, len(state))
        self._check()

    def save_waves(self, path: Path, begin: int = 0, end: int | None = None) -> None:
        """Record waves of cycles ``begin..end - 1`` to a file of 10 ns per cycle.

        Its format is that for which the library was built, VCD or FST.

        The recording ends at the next reset.

        Raises
        ------
        ValueError
            If the library was built without `waves`.
        UserError
            If the file cannot be written.
        """
        handle = self._open()
        if not self._has_waves:
            raise ValueError("waves need a library built with waves=True")
        last = NEVER if end is None else end
        if not self._library.fpgapipe_waves(handle, os.fsencode(path), begin, last):
            raise UserError(f"cannot write waves to {path}")


def check_address(address: int) -> None:
    """Raise ValueError unless `address` is a multiple of 4 below 4096."""
    if address % 4 or not 0 <= address < 1 << 12:
        raise ValueError(f"a register's address must be a multiple of 4 below 4096, not {address}")


def check_value(value: int) -> None:
    """Raise ValueError unless `value` fits in a register of 32 bits."""
    if not 0 <= value < 1 << 32:
        raise ValueError(f"a register's value must fit in 32 bits, not {value}")


def refusal(address: int, write: bool, response: int) -> str:
    """Message of the error for a register access that got an error response."""
    verb = "write" if write else "read"
    return f"the {verb} of register {address:#x} got {_RESPONSES[response & 3]}"


def _stalled(now: Statistics, limit: str) -> str:
    if now.active_cycle is None:
        bus = "the memory bus was never active"
    else:
        bus = (
            f"the memory bus was last active at cycle {now.active_cycle}, with "
            f"{now.reads_in_flight} reads and {now.writes_in_flight} writes in flight now"
        )
    if limit.startswith("for"):
        return f"cycle {now.cycle}: no interrupt and an idle memory bus {limit}; {bus}"
    return f"cycle {now.cycle}: no interrupt {limit}; {bus}"


def _reserve(num_bytes: int) -> NDArray[np.uint8]:
    """Memory of zeros, whose pages the host allocates when they are first accessed."""
    if num_bytes == 0:
        return np.zeros(0, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        return np.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), np.uint8)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise UserError(f"this machine has no room for a memory of {num_bytes} bytes") from None
