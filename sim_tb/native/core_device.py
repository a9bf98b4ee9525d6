"""A core in the native simulator: its design, its compilation, and programs that run on it."""

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fpgapipe.cache import cache_dir
from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.sim_tb.native.native import NativeDevice, build_native
from fpgapipe.sim_tb.native.verilate import verilog_of
from fpgapipe.stopwatch import phase


class DeviceStopped(UserError):
    """A simulated core stopped with an error."""


def prepare_program(
    write: Callable[[int, int], object], registers: RegisterMap, entry: int, limit: int
) -> None:
    """Write the registers of a core whose program is to start next; its interrupt is low then.

    Parameters
    ----------
    write : callable
        Writes a register: its offset and the value.
    registers, entry, limit
        As for `run_program`.
    """
    for name, value in (("PROGRAM", entry), ("MEMORY_BASE", 0), ("MEMORY_LIMIT", limit)):
        write(registers.offset(f"{name}_LO"), value & 0xFFFFFFFF)
        write(registers.offset(f"{name}_HI"), value >> 32)
    write(registers.offset("IRQ_ENABLE"), sum(f.mask for f in registers["IRQ_ENABLE"].fields))
    # The interrupt of a program before this one would be taken for the end of this one.
    control = registers["CONTROL"]
    write(control.offset, control.field("clear_status").mask)


def check_program(read: Callable[[int], int], registers: RegisterMap) -> None:
    """See that a program which has ended did so well.

    Raises
    ------
    DeviceStopped
        If it ended in an error.
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
        Of the device.
    entry : int
        Byte address of the program.
    limit : int
        The core may touch the bytes 0 to `limit` - 1.
    progress : callable, optional
        As for ``NativeDevice.run``.

    Returns
    -------
    int
        From the command that starts it to the last word written, both included; to the end of the
        program if it writes none.

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
    """All of a core's counters."""
    found = {}
    for name in registers.counters:
        low = device.read_register(registers.offset(f"{name}_LO"))
        found[name] = device.read_register(registers.offset(f"{name}_HI")) << 32 | low
    return found


@lru_cache(maxsize=16)
def device_verilog(core: CoreSpec) -> str:
    """Verilog of a core; the same text for the same core."""
    with phase("elaboration of the hardware"):
        return verilog_of(Device(core))


def build_device(core: CoreSpec) -> tuple[Path, float, float]:
    """Simulator of a core, seconds for its Verilog, and seconds for compiling it."""
    cache_dir()  # rather refused now than when its Verilog is made
    begin = time.perf_counter()
    verilog = device_verilog(core)
    generated = time.perf_counter()
    library = build_native(verilog)
    return library, generated - begin, time.perf_counter() - generated
