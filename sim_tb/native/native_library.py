"""Compiles gateware and the C++ simulator to a shared library and loads it for Python.

The module `native` drives the library. The structures here have the layout of those in
``native_memory.hpp`` and ``native_link.hpp``.
"""

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.hw.rtl.lib.primitives import with_primitives
from fpgapipe.sim_tb import substitutes
from fpgapipe.sim_tb.native.clock_enable import clock_enable
from fpgapipe.sim_tb.native.compiler import GXX, native_compiler
from fpgapipe.sim_tb.native.idle_clocks import idle_clocks
from fpgapipe.sim_tb.native.input_logic import evaluate_inputs_once
from fpgapipe.sim_tb.native.phy import MAX_PHY_BYTES, WireCounts, WireSpec, threshold_of
from fpgapipe.sim_tb.native.verilate import (
    VERILATOR_FLAGS,
    cached_simulator,
    compile_model,
)
from fpgapipe.sim_tb.native.waves import WaveFormat
from fpgapipe.sim_tb.substitutes.simulation import Simulation
from fpgapipe.sim_tb.substitutes.substitution import substitute

# Only the functions for Python are visible, so calls within the library are direct.
_CXX_FLAGS = (
    "-std=gnu++20 -fPIC -fvisibility=hidden -DVL_USER_FATAL -DVL_USER_STOP -DVL_USER_FINISH"
)
_LINK_FLAGS = "-shared -pthread -Wl,-Bsymbolic"
_HARNESS = (
    "native.cpp",
    "native_archive.hpp",
    "native_channels.hpp",
    "native_link.hpp",
    "native_memory.hpp",
    "native_model_state.hpp",
)
_REWRITES = ("clock_enable.py", "idle_clocks.py", "input_logic.py")

BEAT_BYTES = -(-MAX_PHY_BYTES // 8) * 8
"""Bytes of a beat's data where libraries pass it: whole numbers of 64 bits, without padding."""

NEVER = 2**64 - 1
"""Value that stands for "no cycle" in the statistics."""


class DeviceError(UserError):
    """A simulated device broke a rule of its buses, responded with an error, or stopped.

    A device that broke a rule must be reset before it can run again.
    """


class Config(ctypes.Structure):
    """Configuration of a device."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("memory_bytes", ctypes.c_uint64),
        ("rate_numerator", ctypes.c_uint64),
        ("rate_denominator", ctypes.c_uint64),
        ("read_latency", ctypes.c_uint64),
        ("write_latency", ctypes.c_uint64),
        ("outstanding", ctypes.c_uint64),
        ("pause", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("banks", ctypes.c_uint64),
        ("bank_bytes", ctypes.c_uint64),
        ("bank_cycles", ctypes.c_uint64),
    ]


class RawBeat(ctypes.Structure):
    """A beat on a wire: the fields of `phy.Beat`, and the cycle of its arrival."""

    _fields_ = [
        ("arrival", ctypes.c_uint64),
        ("keep", ctypes.c_uint64),
        ("data", ctypes.c_uint8 * BEAT_BYTES),
        ("last", ctypes.c_uint64),
    ]


class _Numbers(ctypes.Structure):
    """A list of numbers; its memory lives as long as the structure that contains it."""

    _fields_ = [("items", ctypes.POINTER(ctypes.c_uint64)), ("size", ctypes.c_uint64)]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "_Numbers":
        return cls((ctypes.c_uint64 * len(numbers))(*numbers), len(numbers))


class RawWire(ctypes.Structure):
    """Configuration of a wire: `phy.WireSpec` in integers."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("phy_bytes", "rate_numerator", "rate_denominator", "delay_cycles"),
                *("burst_bits", "seed", "burst", "drop", "duplicate", "pause"),
            )
        ),
        ("errors", ctypes.c_uint64 * (MAX_PHY_BYTES + 1)),
        *(
            (name, _Numbers)
            for name in ("bit_errors", "drops", "duplicates", "resets", "down", "stalls")
        ),
    ]

    @classmethod
    def of(cls, spec: WireSpec) -> "RawWire":
        """Convert a specification."""
        return cls(
            phy_bytes=spec.phy_bytes,
            rate_numerator=spec.rate.numerator,
            rate_denominator=spec.rate.denominator,
            delay_cycles=spec.delay_cycles,
            burst_bits=spec.burst_bits,
            seed=spec.seed,
            burst=threshold_of(spec.burst_rate),
            drop=threshold_of(spec.drop_rate),
            duplicate=threshold_of(spec.duplicate_rate),
            pause=threshold_of(spec.pause),
            errors=(ctypes.c_uint64 * (MAX_PHY_BYTES + 1))(*spec.error_thresholds),
            bit_errors=_Numbers.of(spec.bit_errors),
            drops=_Numbers.of(spec.drops),
            duplicates=_Numbers.of(spec.duplicates),
            resets=_Numbers.of(spec.resets),
            down=_Numbers.of([*chain.from_iterable(spec.down)]),
            stalls=_Numbers.of([*chain.from_iterable(spec.stalls)]),
        )


class RawCounts(ctypes.Structure):
    """`phy.WireCounts` in the layout in which the library fills it."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in fields(WireCounts)]


@dataclass(frozen=True)
class Statistics:
    """Events on a device's memory bus since the last reset, from which cycles are counted.

    Attributes
    ----------
    cycle : int
        Cycles since the reset.
    read_bursts, write_bursts : int
        Number of burst addresses that the memory accepted.
    read_beats, write_beats : int
        Number of data beats that were transferred.
    first_read_cycle, last_read_cycle, first_write_cycle, last_write_cycle : int or None
        Cycles of the first and the last data beat of each direction; None if there was none.
    read_wait_cycles : int
        Cycles in which the memory offered a beat of read data and the design did not accept it.
    write_wait_cycles : int
        Cycles in which the design offered a beat of write data and the memory did not accept it.
    active_cycle : int or None
        Cycle of the last handshake on any of the five channels.
    reads_in_flight, writes_in_flight : int
        Reads whose last beat, and writes whose response, is still to come.
    irq : bool
        Whether the interrupt is high now.
    irq_cycle : int or None
        First cycle of the current period in which the interrupt is high; None if it is low.
    """

    cycle: int
    read_bursts: int
    write_bursts: int
    read_beats: int
    write_beats: int
    first_read_cycle: int | None
    last_read_cycle: int | None
    first_write_cycle: int | None
    last_write_cycle: int | None
    read_wait_cycles: int
    write_wait_cycles: int
    active_cycle: int | None
    reads_in_flight: int
    writes_in_flight: int
    irq: bool
    irq_cycle: int | None


class RawStatistics(ctypes.Structure):
    """`Statistics` in the layout in which the library fills it; `NEVER` stands for None."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in fields(Statistics)]


def build_native(
    verilog: str,
    top: str = "top",
    *,
    waves: bool | WaveFormat = False,
    flags: Sequence[str] = (),
    simulation: Simulation = Simulation.VERILOG,
) -> Path:
    """Compile a design to a library for `NativeDevice`, or return the cached one.

    Parameters
    ----------
    verilog : str
        The whole design; included files are not seen. It is rewritten by `clock_enable` before it
        is compiled.
    top : str
        Name of the top module.
    waves : bool or WaveFormat
        Whether the library can write waves, and in which format; True stands for VCD. Such a
        library is slower, and its design is compiled without the rewriting.
    flags : sequence of str
        Further options for Verilator, such as ``-Wno-UNOPTFLAT``.
    simulation : Simulation
        Whether blocks are substituted by models in C++. A library with waves has none of these.

    Returns
    -------
    Path
        The library. Its folder may be dropped when the cache is full, so do not keep the path.

    Raises
    ------
    UserError
        If a program is missing or the cache cannot be used.
    ToolError
        If Verilator or the compiler fails.
    """
    files = resources.files(__package__)
    compiler = GXX if waves else native_compiler()
    harness = {name: files.joinpath(name).read_text() for name in _HARNESS}
    design = substitute(verilog, top, Simulation.VERILOG if waves else simulation)
    models = resources.files(substitutes)
    harness |= {name: models.joinpath(name).read_text() for name in design.sources}
    arguments = [
        *VERILATOR_FLAGS,
        "--savable",
        *([f"--trace-{WaveFormat.VCD if waves is True else waves}"] if waves else []),
        *flags,
        *("--top-module", top),
        *("-CFLAGS", f"{_CXX_FLAGS} {compiler.flags}"),
        *("-LDFLAGS", f"{_LINK_FLAGS} {compiler.libraries}".rstrip()),
        "native.cpp",
        *(name for name in design.sources if name.endswith(".cpp")),
        f"{top}.v",
    ]
    texts = {f"{top}.v": with_primitives(design.verilog), **harness}
    rewrites = {name: files.joinpath(name).read_text() for name in _REWRITES}
    made_of = texts | rewrites
    ingredients = {
        "native": arguments,
        "make": compiler.variables,
        "compiler": compiler.identity,
        **{name: hashlib.sha256(text.encode()).hexdigest() for name, text in made_of.items()},
    }

    def compile_(folder: Path, cache: Path, log: Path) -> None:
        if not waves:
            fast = substitute(clock_enable(verilog), top, simulation, modules=design.modules)
            rewritten = fast.verilog
            if fast.blocks.substituted:
                checked = simulation is Simulation.VERIFIED
                rewritten = idle_clocks(rewritten, top, checked=checked)
            (folder / f"{top}.v").write_text(with_primitives(rewritten))
        compile_model(
            folder,
            arguments,
            compiler.variables,
            cache,
            log,
            lambda made: evaluate_inputs_once(made, top),
        )

    return cached_simulator(top, texts, ingredients, compile_)


@functools.cache
def _loaded(path: str, inode: int) -> ctypes.CDLL:
    """Load a library; a new file of the same name, with another inode, is loaded anew."""
    library = ctypes.CDLL(path)
    handle, integer = ctypes.c_void_p, ctypes.c_int
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "features": (u32, []),
        "create": (handle, [ctypes.POINTER(Config)]),
        "destroy": (None, [handle]),
        "reset": (None, [handle, u64]),
        "run": (u64, [handle, u64, integer]),
        "access": (
            integer,
            [handle, u32, ctypes.POINTER(u32), integer, u64, integer],
        ),
        "cycle": (u64, [handle]),
        "state": (None, [handle, ctypes.c_void_p]),
        "link_bytes": (u32, [u32]),
        "attach": (None, [handle, u32, ctypes.POINTER(RawWire)]),
        "flying": (ctypes.POINTER(RawBeat), [handle, u32, ctypes.POINTER(u64)]),
        "taken": (None, [handle, u32]),
        "give": (None, [handle, u32, ctypes.POINTER(RawBeat), u64]),
        "counts": (None, [handle, u32, ctypes.POINTER(RawCounts)]),
        "channels_configure": (None, [handle, ctypes.c_void_p]),
        "channels_status": (None, [handle, ctypes.c_void_p]),
        "channels_clear": (None, [handle]),
        "inject": (None, [handle, u64, u64, integer, integer, integer]),
        "heal": (None, [handle]),
        "waves": (integer, [handle, ctypes.c_char_p, u64, u64]),
        "flush": (None, [handle]),
        "save": (ctypes.POINTER(ctypes.c_uint8), [handle, ctypes.POINTER(u64)]),
        "restore": (None, [handle, ctypes.c_char_p, u64]),
        "statistics": (None, [handle, ctypes.POINTER(RawStatistics)]),
        "error": (ctypes.c_char_p, [handle]),
        "bare": (ctypes.c_double, [u64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"fpgapipe_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def load(path: Path) -> ctypes.CDLL:
    """Load a library that `build_native` returned; its functions release Python's lock."""
    return _loaded(str(path), path.stat().st_ino)


def native_speed(verilog: str, cycles: int, top: str = "top") -> float:
    """Measure the speed of a design that is only clocked, with all inputs zero.

    Parameters
    ----------
    verilog, top
        See `build_native`; any design with the ports ``clk`` and ``rst`` will do.
    cycles : int
        Number of cycles after the reset.

    Returns
    -------
    float
        Cycles per second of processor time, which depends less on other processes than wall-clock
        time does.
    """
    seconds: float = load(build_native(verilog, top)).fpgapipe_bare(cycles)
    if seconds < 0:
        raise DeviceError(f"the model of {top} stopped")
    return cycles / max(seconds, 1e-9)
