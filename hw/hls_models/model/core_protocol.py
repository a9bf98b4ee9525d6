"""How a host runs a program on a core, by its registers: in simulation and on boards alike."""

from collections.abc import Callable

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import Engine, ErrorCode
from fpgapipe.hw.hls_models.model.registers import DATA_BITS, PROGRESS, RegisterMap


class DeviceStopped(UserError):
    """A core stopped with an error."""


def prepare_program(
    write: Callable[[int, int], object],
    registers: RegisterMap,
    entry: int,
    limit: int,
    base: int = 0,
) -> None:
    """Write the registers of a core before its program starts; its interrupt is low afterwards.

    Parameters
    ----------
    write : callable
        Function that writes a register, given its offset and the value.
    registers : RegisterMap
        Register map of the device.
    entry : int
        Byte address of the program.
    limit, base : int
        The core may access the bytes ``base..limit - 1`` of its memory.
    """
    for name, value in (("PROGRAM", entry), ("MEMORY_BASE", base), ("MEMORY_LIMIT", limit)):
        write(registers.offset(f"{name}_LO"), value & ((1 << DATA_BITS) - 1))
        write(registers.offset(f"{name}_HI"), value >> DATA_BITS)
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
        raise DeviceStopped(error_text(read, registers))


def error_text(read: Callable[[int], int], registers: RegisterMap) -> str:
    """Sentence about the error with which a core stopped: where, what, and of which engine."""
    error, fields = read(registers.offset("ERROR")), registers["ERROR"]
    code, engine = fields.field("code").of(error), fields.field("engine").of(error)
    index = read(registers.offset("ERROR_INDEX"))
    what = ErrorCode(code).name if code in list(ErrorCode) else f"error {code}, which is none,"
    return f"the core stopped at instruction {index}: {what} of {_named(engine)}"


def progress_counters(registers: RegisterMap) -> tuple[str, ...]:
    """Names of the counters that rise only while a core makes progress."""
    return tuple(name for name in registers.counters if name.endswith(PROGRESS))


def _named(engine: int) -> str:
    """Name of an engine as the ERROR register numbers it."""
    kind = max(kind for kind in Engine if kind <= engine)
    return f"{kind.name}{f' {engine - kind}' if kind >= Engine.GEMM else ''}"
