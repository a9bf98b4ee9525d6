"""The register map of a core, shared by gateware, host and documentation.

Registers have 32 bits and are on an AXI4-Lite bus; docs/registers.md is generated from this module.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import VERSION, CoreSpec
from fpgapipe.hw.hls_models.spec.link import DELIVERED_BITS, NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.link_clock import METER_BITS, METER_CYCLES, TICK_CYCLES
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec

MAGIC = int.from_bytes(b"FPGP", "little")
"""Value of the register ID."""

ADDRESS_BITS = 12
"""Width of a register's byte address."""

DATA_BITS = 32

_ENGINE_BASE, _ENGINE_STEP = 0x200, 0x40
_VECTOR_BASE = 0x300
_SCALAR_BASE = 0x080
_LINK_BASE, _LINK_STEP = 0x400, 0x100
_LINK_COUNTER_BASE = 0x080
_QUEUE_BASE, _QUEUE_STEP = 0x800, 0x10

SEED_BITS = 15
"""Width of a link's seed."""


class Kind(StrEnum):
    """Kind of a register, which decides about its gateware."""

    CONSTANT = "constant"
    STORED = "stored"  # keeps the value that is written
    COMMAND = "command"  # gives a pulse for each 1 that is written
    STATUS = "status"  # shows a value of the core
    STATUS_LO = "status_lo"  # the lower half; reading it also captures the upper half
    STATUS_HI = "status_hi"
    COUNTER_LO = "counter_lo"
    COUNTER_HI = "counter_hi"

    @property
    def access(self) -> str:
        """Access that the host has: r, w or rw."""
        return {Kind.STORED: "rw", Kind.COMMAND: "w"}.get(self, "r")


@dataclass(frozen=True)
class BitField:
    """Bits of a register.

    Parameters
    ----------
    name : str
    low : int
        Number of the least significant bit.
    bits : int
        Width of the field.
    meaning : str
        Description of the field in the documentation.
    """

    name: str
    low: int
    bits: int
    meaning: str

    @property
    def mask(self) -> int:
        """Mask of the field's bits."""
        return ((1 << self.bits) - 1) << self.low

    def of(self, value: int) -> int:
        """Extract the field's number from a register's value."""
        return (value & self.mask) >> self.low


@dataclass(frozen=True)
class Register:
    """A register.

    Parameters
    ----------
    name : str
    offset : int
        Distance in bytes from the first register.
    kind : Kind
    meaning : str
        Description of the register in the documentation.
    fields : tuple of BitField
        Fields of the register; without any, the register is one number.
    reset : int
        Value after reset; a constant always has this value.
    writable : int
        Mask of the bits that a STORED register keeps; the other bits are always 0.
    """

    name: str
    offset: int
    kind: Kind
    meaning: str
    fields: tuple[BitField, ...] = ()
    reset: int = 0
    writable: int = (1 << DATA_BITS) - 1

    def field(self, name: str) -> BitField:
        """Return the field of a name.

        Raises
        ------
        KeyError
            If there is no such field.
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
"""Counters of a core with their meanings; they count events or bytes."""

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


LINK_RUN_COUNTERS = {
    "SEND_BUSY": "Cycles in which a SEND was under way.",
    "SEND_WAIT_SEMAPHORE": "Cycles in which one waited for semaphores.",
    "SEND_WAIT_LINK": "Cycles in which a word of one waited for the link to take it.",
    "RECEIVE_BUSY": "Cycles in which a RECEIVE was under way.",
    "RECEIVE_WAIT_SEMAPHORE": "Cycles in which one waited for semaphores.",
    "RECEIVE_WAIT_LINK": "Cycles in which one waited for a word from the link.",
}
"""Counters of each link that count while a program runs."""

LINK_COUNTERS = {
    "TX_WORDS": "Words that went into the link.",
    "RX_WORDS": "Words that came out of it.",
    "TX_FRAMES": "Frames with words that were sent, again or not.",
    "RX_FRAMES": "Frames with words that came whole, each once.",
    "CRC_ERRORS": "Frames that came damaged.",
    "REPLAYS": "Frames that were sent again.",
    "TX_STALL": "Cycles in which a beat waited for the PHY.",
    "CREDIT_WAIT": "Cycles in which a word waited for room at the other end.",
}
"""Counters of each link that always count."""


PROGRESS = ("INSTRUCTIONS", "_BYTES", "_VECTORS", "X_WORDS")
"""Ends of the names of those counters that rise only while a core makes progress."""

KEPT_COUNTERS = ("CYCLES", *PROGRESS, "CRC_ERRORS", "REPLAYS")
"""Ends of the names of the counters of a core without `CoreSpec.counters`: those that tell whether
it makes progress and whether its links have errors."""


class RegisterMap:
    """The registers of a core.

    Parameters
    ----------
    spec : CoreSpec

    Attributes
    ----------
    registers : tuple of Register
        All registers, in the order of their offsets.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self.registers = (
            *_constants(spec),
            *_controls(spec),
            *_scalars(spec),
            *_present(_counters(spec), spec),
            *(
                register
                for link in range(len(spec.links))
                for register in _present(_link(spec, link), spec)
            ),
            *_queues(spec),
        )
        self._by_name = {register.name: register for register in self.registers}

    def __getitem__(self, name: str) -> Register:
        """Return the register of a name.

        Raises
        ------
        KeyError
            If there is no such register.
        """
        return self._by_name[name]

    def __iter__(self) -> Iterator[Register]:
        """Iterate over all registers, in the order of their offsets."""
        return iter(self.registers)

    def offset(self, name: str) -> int:
        """Return the byte offset of the register of a name."""
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
        """Width of the number by which a counter may rise in one cycle."""
        if counter.endswith("_BYTES"):
            return self.spec.bus_bytes.bit_length()
        return NUM_CHANNELS.bit_length() if counter.endswith("X_WORDS") else 1

    def markdown(self) -> str:
        """Return the map as Markdown tables: one of the registers, and one of their fields.

        The two halves of a number share a row. Of registers that are numbered, those of number 0
        stand for all.
        """
        lines = ["| offset | name | access | meaning |", "|---|---|---|---|"]
        fields = ["| register | bits | field | meaning |", "|---|---|---|---|"]
        for register in self.registers:
            if register.name.endswith("_HI") or re.search(
                "(SCALAR|QUEUE|DELIVERED)[1-9]", register.name
            ):
                continue
            name = re.sub("_LO$", "_LO, _HI", register.name)
            meaning = re.sub(r"[:.] [Bb]its 31:0\.$", ".", register.meaning)
            meaning = re.sub("^(GEMM engine|Vector engine|Link|Channel)[ 0]*: ", "", meaning)
            access = register.kind.access
            lines.append(f"| {register.offset:#05x} | {name} | {access} | {meaning} |")
            for field in register.fields:
                high = field.low + field.bits - 1
                bits = f"{high}:{field.low}" if field.bits > 1 else f"{high}"
                fields.append(f"| {register.name} | {bits} | {field.name} | {field.meaning} |")
        return "\n".join([*lines, "", *fields]) + "\n"


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
    if spec.links:
        values.append(("LINKS", len(spec.links), "To other devices."))
    for index, (name, value, meaning) in enumerate(values):
        yield Register(name, 4 * index, Kind.CONSTANT, meaning, reset=value)
    yield Register(
        "CONFIGURATION",
        0x02C,
        Kind.CONSTANT,
        "Digest of all parameters of the core, as its files have it in their names.",
        reset=int(spec.digest, 16),
    )


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
            BitField("code", 0, 8, "`fpgapipe.hw.hls_models.isa.instructions.ErrorCode`."),
            BitField(
                "engine", 8, 4, "Who failed: `fpgapipe.hw.hls_models.isa.instructions.Engine`."
            ),
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
        yield from _counter(offset, name, meaning)


def _present(registers: Iterable[Register], spec: CoreSpec) -> Iterator[Register]:
    """Yield the registers that a core has: without `CoreSpec.counters`, only few counters."""
    for register in registers:
        is_counter = register.kind in (Kind.COUNTER_LO, Kind.COUNTER_HI)
        if spec.counters or not is_counter or register.name[:-3].endswith(KEPT_COUNTERS):
            yield register


def _counter(offset: int, name: str, meaning: str) -> Iterator[Register]:
    yield Register(f"{name}_LO", offset, Kind.COUNTER_LO, f"{meaning} Bits 31:0.")
    yield Register(f"{name}_HI", offset + 4, Kind.COUNTER_HI, "Bits 63:32 of it.")


def _link(spec: CoreSpec, link: int) -> Iterator[Register]:
    base, name = _LINK_BASE + _LINK_STEP * link, f"LINK{link}_"
    yield Register(
        f"{name}ENABLE",
        base,
        Kind.STORED,
        f"Link {link}: whether it is on. To turn it on begins a session.",
        (BitField("enable", 0, 1, "It is on."),),
        writable=1,
    )
    yield Register(
        f"{name}SEED",
        base + 0x04,
        Kind.STORED,
        "Sessions are numbered from here on; of each device another number, of each run too.",
        writable=(1 << SEED_BITS) - 1,
    )
    yield Register(
        f"{name}CONTROL",
        base + 0x08,
        Kind.COMMAND,
        "A command; it takes effect where a 1 is written. Reads as 0.",
        (
            BitField(
                "reset",
                0,
                1,
                "Begin a new session: words on their way are lost. After a program that ended in "
                "an error or an abort, both ends need it: a packet may be cut.",
            ),
        ),
    )
    yield Register(
        f"{name}STATUS",
        base + 0x0C,
        Kind.STATUS,
        "How it is.",
        (
            BitField("state", 0, 3, "`fpgapipe.hw.hls_models.spec.link.LinkState`."),
            BitField("peer_delivered_known", 3, 1, f"{name}PEER_DELIVERED0 to 2 are known."),
        ),
    )
    yield Register(
        f"{name}SESSIONS",
        base + 0x10,
        Kind.STATUS,
        "Numbers of sessions.",
        (BitField("own", 0, 16, "Of this end."), BitField("peer", 16, 16, "Of the other end.")),
    )
    fields, value = _link_config(spec.links[link])
    yield Register(
        f"{name}CONFIG",
        base + 0x14,
        Kind.CONSTANT,
        "`fpgapipe.hw.hls_models.spec.link.LinkEngineSpec`.",
        fields,
        reset=value,
    )
    yield Register(
        f"{name}CLOCK",
        base + 0x18,
        Kind.STATUS,
        "How fast the PHY's clock is.",
        (
            BitField(
                "ticks",
                0,
                METER_BITS,
                f"Cycles of the PHY's clock, divided by {TICK_CYCLES}, in {METER_CYCLES:,} of the "
                "core's clock.",
            ),
            BitField("known", METER_BITS, 1, "As many have passed since the reset."),
        ),
    )
    for offset, prefix, meaning in (
        (0x20, "DELIVERED", "Words that this end has handed out this session"),
        (0x40, "PEER_DELIVERED", "Words that the other end had handed out when it was reset"),
    ):
        for channel in range(NUM_CHANNELS):
            at, whole = base + offset + 8 * channel, f"{name}{prefix}{channel}"
            yield Register(
                f"{whole}_LO",
                at,
                Kind.STATUS_LO,
                f"Channel {channel}: {meaning}. Bits 31:0.",
            )
            yield Register(
                f"{whole}_HI", at + 4, Kind.STATUS_HI, f"Bits {DELIVERED_BITS - 1}:32 of it."
            )
    counters = LINK_RUN_COUNTERS | LINK_COUNTERS
    for index, (counter, meaning) in enumerate(counters.items()):
        offset = base + _LINK_COUNTER_BASE + 8 * index
        yield from _counter(offset, name + counter, f"Link {link}: {meaning}")


def _link_config(link: LinkEndSpec) -> tuple[tuple[BitField, ...], int]:
    """Return the fields of a link's CONFIG register, and its value."""
    numbers = [
        ("phy_bytes", 7, "Width of the stream to the PHY.", link.phy_bytes),
        ("frame_words", 6, "Words of a full frame.", link.frame_words),
        *(
            (f"slots{channel}", 6, f"Frames buffered of channel {channel}, less one.", slots - 1)
            for channel, slots in enumerate(link.slots)
        ),
    ]
    fields, value, low = [], 0, 0
    for name, bits, meaning, number in numbers:
        fields.append(BitField(name, low, bits, meaning))
        value |= number << low
        low += bits
    return tuple(fields), value


def _queues(spec: CoreSpec) -> Iterator[Register]:
    """Registers that show a waiting host the state of the queues.

    They exist only in cores with links, where a program may wait for other devices.
    """
    if not spec.links:
        return
    sequencer = SequencerSpec.of(spec)
    for queue in range(sequencer.num_queues):
        base, name = _QUEUE_BASE + _QUEUE_STEP * queue, f"QUEUE{queue}_"
        engine = sequencer.name_of_queue(queue)
        yield Register(
            f"{name}HEAD",
            base,
            Kind.STATUS,
            f"{engine}: number of the next instruction, if it waits for semaphores or its engine.",
        )
        yield Register(
            f"{name}OLDEST",
            base + 0x4,
            Kind.STATUS,
            "Number of the oldest instruction that is under way, if one is.",
        )
        yield Register(
            f"{name}WAIT",
            base + 0x8,
            Kind.STATUS,
            "What is waited for.",
            (
                BitField("semaphores", 0, 1, "The next one waits for semaphores."),
                BitField("busy", 1, 1, "One is under way."),
                BitField("empty", 2, 1, "None is here or under way."),
                BitField("offered", 3, 1, "The next one waits for its engine."),
            ),
        )
        yield Register(
            f"{name}MISSING",
            base + 0xC,
            Kind.STATUS,
            "Semaphores that the next one waits for and that are 0, a bit each.",
        )
