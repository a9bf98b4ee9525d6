"""Builds the simulator of a core and runs programs on it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fpgapipe.cache import cache_dir
from fpgapipe.hw.hls_models.model.core_protocol import check_program, prepare_program
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.sim_tb.native.native import NativeDevice, build_native
from fpgapipe.sim_tb.native.waves import WaveFormat
from fpgapipe.sim_tb.substitutes.simulation import Blocks, Simulation, chosen_simulation
from fpgapipe.sim_tb.substitutes.substitution import substitute


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


def device_blocks(core: CoreSpec, simulation: Simulation | None = None) -> Blocks:
    """How the blocks of a core are simulated, given what `build_device` is given."""
    return substitute(
        core_verilog.device_verilog(core), "top", chosen_simulation(simulation)
    ).blocks


def build_device(
    core: CoreSpec, simulation: Simulation | None = None, waves: WaveFormat | None = None
) -> tuple[Path, float, float]:
    """Return the simulator of a core, the seconds for its Verilog and those for compiling it.

    `simulation` is that of `chosen_simulation`. With `waves` it can record these, and simulates all
    blocks in Verilog.
    """
    cache_dir()  # an unusable cache raises here, before the Verilog is generated
    begin = time.perf_counter()
    verilog = core_verilog.device_verilog(core)
    generated = time.perf_counter()
    how = chosen_simulation(simulation)
    library = build_native(verilog, waves=waves or False, simulation=how)
    return library, generated - begin, time.perf_counter() - generated
