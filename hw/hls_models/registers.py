"""The register map of a core, read by gateware, host and documentation alike.

Registers have 32 bits and lie on an AXI4-Lite bus; docs/registers.md is made of this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from fpgapipe.hw.hls_models.core_spec import VERSION, CoreSpec
from fpgapipe.hw.hls_models.vector_op import NUM_SCALARS

MAGIC = int.from_bytes(b"FPGP", "little")
"""What ID reads as."""

ADDRESS_BITS = 12
"""Of a register's byte address."""

DATA_BITS = 32

_ENGINE_BASE, _ENGINE_STEP = 0x200, 0x40
_VECTOR_BASE = 0x300
_SCALAR_BASE = 0x080


class Kind(StrEnum):
    """What a register is to the gateware."""

    CONSTANT = "constant"
    STORED = "stored"  # keeps what is written
    COMMAND = "command"  # a pulse for each 1 that is written
    STATUS = "status"  # shows what the core says
    COUNTER_LO = "counter_lo"
    COUNTER_HI = "counter_hi"

    @property
    def access(self) -> str:
        """Of the host: r, w or rw."""
        return {Kind.STORED: "rw", Kind.COMMAND: "w"}.get(self, "r")


@dataclass(frozen=True)
class BitField:
    """Bits of a register.

    Parameters
    ----------
    name : str
    low : int
        The least significant bit.
    bits : int
    meaning : str
    """

    name: str
    low: int
    bits: int
    meaning: str

    @property
    def mask(self) -> int:
        """The field's bits, all ones."""
        return ((1 << self.bits) - 1) << self.low

    def of(self, value: int) -> int:
        """The field's number in a register's value."""
        return (value & self.mask) >> self.low


@dataclass(frozen=True)
class Register:
    """A register.

    Parameters
    ----------
    name : str
    offset : int
        Bytes from the first.
    kind : Kind
    meaning : str
    fields : tuple of BitField
        If there are none, the register is one number.
    reset : int
        Its value after reset, and always if it is a constant.
    writable : int
        Bits that a STORED one keeps; the others are always 0.
    """

    name: str
    offset: int
    kind: Kind
    meaning: str
    fields: tuple[BitField, ...] = ()
    reset: int = 0
    writable: int = (1 << DATA_BITS) - 1

    def field(self, name: str) -> BitField:
        """The field of that name.

        Raises
        ------
        KeyError
            If there is none.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"register {self.name} has no field {name!r}")


COUNTERS = {
    "CYCLES": "Clock cycles in which a program ran.",
    "INSTRUCTIONS": "Instructions that went into a queue.",
    "LOAD_BUSY": "Cycles in which a load was under way.",
    "LOAD_WAIT_SEMAPHORE": "Cycles in which a load waited for semaphores.",
    "LOAD_BYTES": "Bytes that loads read over the bus.",
    "STORE_BUSY": "Cycles in which a store was under way.",
    "STORE_WAIT_SEMAPHORE": "Cycles in which a store waited for semaphores.",
    "STORE_BYTES": "Bytes that stores wrote over the bus.",
    "SCRATCHPAD_WAIT": "Cycles in which an access to the scratchpad waited for another.",
}
"""Counters of a core, by 1 or by bytes, each with its meaning."""

ENGINE_COUNTERS = {
    "BUSY": "Cycles in which a product was under way.",
    "WAIT_A": "Cycles in which the array waited for the streamed operand.",
    "WAIT_B": "Cycles in which the array waited for weights.",
    "WAIT_RESULT": "Cycles in which the array waited for results to be written.",
    "WAIT_SEMAPHORE": "Cycles in which a product waited for semaphores.",
    "VECTORS": "Vectors that entered the array, one a cycle.",
}
"""Counters of each GEMM engine."""


VECTOR_COUNTERS = {
    "BUSY": "Cycles in which a vector instruction was under way.",
    "WAIT_SEMAPHORE": "Cycles in which one waited for semaphores.",
    "WAIT_X": "Cycles in which the lanes waited for elements of X, or coefficients.",
    "WAIT_Y": "Cycles in which the lanes waited for elements of Y alone.",
    "WAIT_RESULT": "Cycles in which elements waited for sums before them or for results to go.",
    "VECTORS": "Vectors that entered the lanes.",
}
"""Counters of the vector engine."""


class RegisterMap:
    """The registers of a core.

    Parameters
    ----------
    spec : CoreSpec

    Attributes
    ----------
    registers : tuple of Register
        In the order of their offsets.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self.registers = (*_constants(spec), *_controls(spec), *_scalars(spec), *_counters(spec))
        self._by_name = {register.name: register for register in self.registers}

    def __getitem__(self, name: str) -> Register:
        """The register of that name.

        Raises
        ------
        KeyError
            If there is none.
        """
        return self._by_name[name]

    def __iter__(self) -> Iterator[Register]:
        """All registers."""
        return iter(self.registers)

    def offset(self, name: str) -> int:
        """Byte offset of the register of that name."""
        return self[name].offset

    @property
    def counters(self) -> tuple[str, ...]:
        """Names of the counters, without ``_LO`` and ``_HI``."""
        return tuple(
            register.name.removesuffix("_LO")
            for register in self.registers
            if register.kind is Kind.COUNTER_LO
        )

    def amount_bits(self, counter: str) -> int:
        """Bits of what a counter may rise by in a cycle."""
        return self.spec.bus_bytes.bit_length() if counter.endswith("_BYTES") else 1

    def markdown(self) -> str:
        """The map as tables: the registers, then the fields of those that have some."""
        lines = ["| offset | name | access | reset | meaning |", "|---|---|---|---|---|"]
        for register in self.registers:
            reset = "" if register.kind is Kind.CONSTANT else f"{register.reset:#x}"
            lines.append(
                f"| {register.offset:#05x} | {register.name} | {register.kind.access} | {reset} "
                f"| {register.meaning} |"
            )
        lines += ["", "| register | bits | field | meaning |", "|---|---|---|---|"]
        for register in self.registers:
            for field in register.fields:
                high = field.low + field.bits - 1
                bits = f"{high}:{field.low}" if field.bits > 1 else f"{high}"
                lines.append(f"| {register.name} | {bits} | {field.name} | {field.meaning} |")
        return "\n".join(lines) + "\n"


def _constants(spec: CoreSpec) -> Iterator[Register]:
    values = [
        ("ID", MAGIC, f"{MAGIC:#010x}, the letters FPGP, F in the lowest byte."),
        ("VERSION", VERSION, "Of instructions and registers."),
        ("ROWS", spec.rows, "Of the array."),
        ("COLS", spec.cols, "Of the array."),
        ("ENGINES", spec.num_engines, "GEMM engines."),
        ("ACC_DEPTH", spec.acc_depth, "FP32 accumulators below each column."),
        ("BANKS", spec.scratchpad.banks, "Of the scratchpad."),
        ("BANK_BYTES", spec.scratchpad.bank_bytes, "Bytes of a bank."),
        ("BUS_BYTES", spec.bus_bytes, "Width of the memory bus in bytes."),
        (
            "VECTOR_LANES",
            spec.vector.lanes if spec.vector else 0,
            "Of the vector engine; 0 if there is none.",
        ),
    ]
    for index, (name, value, meaning) in enumerate(values):
        yield Register(name, 4 * index, Kind.CONSTANT, meaning, reset=value)


def _controls(spec: CoreSpec) -> Iterator[Register]:
    yield Register(
        "CONTROL",
        0x040,
        Kind.COMMAND,
        "Commands; each takes effect where a 1 is written. Reads as 0.",
        (
            BitField("start", 0, 1, "Run the program; nothing happens while one runs."),
            BitField("abort", 1, 1, "End the program at once. What it wrote stays."),
            BitField("clear_status", 2, 1, "Clear done, error, nan, ERROR and ERROR_INDEX."),
            BitField("clear_counters", 3, 1, "Set all counters to 0."),
        ),
    )
    yield Register(
        "STATUS",
        0x044,
        Kind.STATUS,
        "What became of the program.",
        (
            BitField("idle", 0, 1, "No program runs."),
            BitField("running", 1, 1, "A program runs."),
            BitField("done", 2, 1, "A program has ended well; until the next start."),
            BitField("error", 3, 1, "A program has ended in an error; until the next start."),
            BitField("nan", 4, 1, "A block of an operand was not a number; until cleared."),
        ),
        reset=1,
    )
    yield Register(
        "ERROR",
        0x048,
        Kind.STATUS,
        "What the error was, while STATUS.error is 1.",
        (
            BitField("code", 0, 8, "`fpgapipe.hw.hls_models.isa.ErrorCode`."),
            BitField("engine", 8, 4, "Who failed: `fpgapipe.hw.hls_models.isa.Engine`."),
        ),
    )
    yield Register(
        "ERROR_INDEX", 0x04C, Kind.STATUS, "The number of the instruction that failed, from 0."
    )
    yield Register(
        "IRQ_ENABLE",
        0x050,
        Kind.STORED,
        "The interrupt is high while a bit here and its bit of STATUS are 1.",
        (
            BitField("done", 2, 1, "At the end of a program."),
            BitField("error", 3, 1, "At an error."),
        ),
        writable=0b1100,
    )
    pairs = [
        ("PROGRAM", 0x060, "Byte address of the program, a multiple of 64", 63),
        ("MEMORY_BASE", 0x068, "First byte of the memory that the core may use", 0),
        ("MEMORY_LIMIT", 0x070, "First byte after the memory that the core may use", 0),
    ]
    for name, offset, meaning, zeros in pairs:
        yield Register(
            f"{name}_LO",
            offset,
            Kind.STORED,
            f"{meaning}: bits 31:0.",
            writable=0xFFFFFFFF & ~zeros,
        )
        yield Register(f"{name}_HI", offset + 4, Kind.STORED, f"{meaning}: bits 63:32.")


def _scalars(spec: CoreSpec) -> Iterator[Register]:
    for number in range(NUM_SCALARS if spec.vector else 0):
        yield Register(
            f"SCALAR{number}",
            _SCALAR_BASE + 4 * number,
            Kind.STORED,
            "Taken by vector instructions that name it, as each of them starts.",
        )


def _counters(spec: CoreSpec) -> Iterator[Register]:
    counters = [
        (0x100 + 8 * index, name, meaning) for index, (name, meaning) in enumerate(COUNTERS.items())
    ]
    for engine in range(spec.num_engines):
        base = _ENGINE_BASE + _ENGINE_STEP * engine
        counters += [
            (base + 8 * index, f"GEMM{engine}_{name}", f"GEMM engine {engine}: {meaning}")
            for index, (name, meaning) in enumerate(ENGINE_COUNTERS.items())
        ]
    if spec.vector:
        counters += [
            (_VECTOR_BASE + 8 * index, f"VECTOR_{name}", f"Vector engine: {meaning}")
            for index, (name, meaning) in enumerate(VECTOR_COUNTERS.items())
        ]
    for offset, name, meaning in counters:
        yield Register(f"{name}_LO", offset, Kind.COUNTER_LO, f"{meaning} Bits 31:0.")
        yield Register(f"{name}_HI", offset + 4, Kind.COUNTER_HI, "Bits 63:32 of it.")
