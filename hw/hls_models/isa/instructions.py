"""Instructions of the training core and their decoding, shared by gateware, model and lowering.

A program is a sequence of words of 64 bytes in memory. An instruction takes one or more words and
begins with a header. Numbers are little-endian, and fields are packed from the least significant
bit on. docs/core.md explains what the instructions do.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.gemm_fields import GEMM
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR

WORD_BYTES = 64
"""Bytes of a program word, of a scratchpad word, and of a block of 32 BF16 elements."""

NUM_SEMAPHORES = 32
"""Semaphores that an instruction can name; `semaphores_of_core` says how many a core has."""

MAX_LINKS = 4
"""Largest number of links of a core."""

CORE_SEMAPHORES, LINK_SEMAPHORES, ENGINE_SEMAPHORES = 16, 4, 8
"""Semaphores of a core with one GEMM engine and no links, further ones for a link, and further
ones for each further engine. With several links a core has all that instructions can name."""

MAX_SEMAPHORE = 255
"""Largest count of a semaphore; one more signal is an error."""


class Opcode(IntEnum):
    """Kind of an instruction. Zero is not an opcode, so that empty memory is not a program."""

    END = 1
    LOAD = 2
    STORE = 3
    GEMM = 4
    VECTOR = 5
    SEND = 6
    RECEIVE = 7

    __hash__ = int.__hash__  # an enumeration hashes the name, in Python, which programs do often


class ErrorCode(IntEnum):
    """Reason why a core stopped, as its ERROR register reports it."""

    NONE = 0
    BAD_OPCODE = 1
    BAD_LENGTH = 2
    BAD_FIELD = 3
    MEMORY_RANGE = 4
    SCRATCHPAD_RANGE = 5
    AXI_READ = 6
    AXI_WRITE = 7
    SEMAPHORE_OVERFLOW = 8
    LINK_STREAM = 9
    LINK_DOWN = 10


class Engine(IntEnum):
    """Origin of an error, as the ERROR register reports it.

    GEMM engine `e` is ``GEMM + e``; the engines of link `n` are ``SEND + n`` and ``RECEIVE + n``.
    """

    SEQUENCER = 0
    LOAD = 1
    STORE = 2
    VECTOR = 3
    GEMM = 4
    SEND = 8
    RECEIVE = 12


class ProgramError(ValueError):
    """An instruction cannot be encoded, decoded or run.

    Parameters
    ----------
    index : int
        The instruction's number in its program, from 0.
    code : ErrorCode
        Error that a core would report.
    reason : str
        Text of the message.
    """

    def __init__(self, index: int, code: ErrorCode, reason: str) -> None:
        self.index = index
        self.code = code
        super().__init__(f"instruction {index}: {reason}")


HEADER = Group(
    "header",
    (
        Field("opcode", 8),
        Field("words", 8),
        Field("wait", NUM_SEMAPHORES),
        Field("signal", NUM_SEMAPHORES),
        Field("engine", 4),
        Field("reserved", 4),
    ),
)
"""Header of every instruction.

It has the opcode, the length in words, the semaphores that the instruction waits for before it
starts (each is then decremented by one), the semaphores that it signals when it is done, and the
number of the GEMM engine or link that runs it."""

TRANSFER = Group(
    "transfer",
    (
        Field("memory", 48),
        Field("scratchpad", 32),
        Field("row_bytes", 32),
        Field("rows", 16),
        Field("row_memory", 40, signed=True),
        Field("row_scratchpad", 32, signed=True),
        Field("planes", 16),
        Field("plane_memory", 40, signed=True),
        Field("plane_scratchpad", 32, signed=True),
    ),
)
"""LOAD and STORE: a copy of `planes` planes of `rows` rows of `row_bytes` bytes.

The fields `planes` and `rows` hold one less than the number. The other fields are the distances in
bytes from row to row and from plane to plane."""

LINK = Group(
    "link",
    (
        Field("memory", 48),
        Field("row_bytes", 32),
        Field("rows", 16),
        Field("row_memory", 40, signed=True),
        Field("planes", 16),
        Field("plane_memory", 40, signed=True),
        Field("channel", 2),
        Field("stream", 32),
        Field("in_scratchpad", 1),
    ),
)
"""SEND and RECEIVE: rows of memory as in `TRANSFER`, a channel of the link (0 to 2), and the tag
that the packet has and that its receiver expects.

With `in_scratchpad`, `memory` is a byte address in the scratchpad. The packet is then one row, of
whole words."""

BODIES: dict[Opcode, Group] = {
    Opcode.END: Group("end", ()),
    Opcode.LOAD: TRANSFER,
    Opcode.STORE: TRANSFER,
    Opcode.GEMM: GEMM,
    Opcode.VECTOR: VECTOR,
    Opcode.SEND: LINK,
    Opcode.RECEIVE: LINK,
}


_MOVES = (Opcode.LOAD, Opcode.STORE)
_MEMORY_BITS = TRANSFER.fields[0].bits
_WORDS_BITS = next(each.bits for each in HEADER.fields if each.name == "words")

LINK_OPCODES = (Opcode.SEND, Opcode.RECEIVE)
"""Opcodes of the instructions that each link has an engine for."""


@cache
def words_of(opcode: Opcode) -> int:
    """Program words that an instruction takes."""
    return -(-(HEADER.bits + BODIES[opcode].bits) // (8 * WORD_BYTES))


def has_one_engine(opcode: Opcode) -> bool:
    """Whether a core has only one engine for an opcode."""
    return opcode not in (Opcode.GEMM, *LINK_OPCODES)


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Parameters
    ----------
    opcode : Opcode
    wait, signal : tuple of int
        Semaphores that the instruction waits for before it starts, and those that it signals when
        it is done; in any order, each at most once. END signals none.
    engine : int
        Number of the GEMM engine or link; 0 for other opcodes.
    body : mapping
        Fields of ``BODIES[opcode]``.

    Raises
    ------
    ValueError
        If a semaphore does not exist or is named twice, or END signals.
    """

    opcode: Opcode
    wait: tuple[int, ...] = ()
    signal: tuple[int, ...] = ()
    engine: int = 0
    body: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if type(self.opcode) is not Opcode:
            object.__setattr__(self, "opcode", Opcode(self.opcode))
        for name in ("wait", "signal"):
            semaphores = getattr(self, name)
            if not semaphores and type(semaphores) is tuple:
                continue
            semaphores = tuple(sorted(semaphores))
            object.__setattr__(self, name, semaphores)
            for number in semaphores:
                if not 0 <= number < NUM_SEMAPHORES:
                    raise ValueError(
                        f"{self.opcode.name} {name} must be of semaphores 0..{NUM_SEMAPHORES - 1}, "
                        f"not {number!r}"
                    )
            if len(set(semaphores)) != len(semaphores):
                raise ValueError(
                    f"{self.opcode.name} {name} must name each semaphore once, not {semaphores}"
                )
        if self.opcode is Opcode.END and self.signal:
            raise ValueError(f"END signal must be empty, not {self.signal}")

    @property
    def words(self) -> int:
        """Number of program words that the instruction takes."""
        return words_of(self.opcode)

    def __str__(self) -> str:
        """Return the instruction as one line of text, without fields that are 0."""
        engine = "" if has_one_engine(self.opcode) else f"[{self.engine}]"
        parts = [f"{self.opcode.name}{engine}"]
        for name in ("wait", "signal"):
            if semaphores := getattr(self, name):
                parts.append(f"{name} {','.join(map(str, semaphores))}")
        parts += [f"{name}={value}" for name, value in _flat(self.body) if value]
        return "  ".join(parts)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Iterate over the fields of a body with their full names, such as ``a.outer[1].count``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from _flat(item, f"{prefix}{name}[{index}].")
        else:
            yield prefix + name, value


Span = tuple[int, int]
"""First byte of a range, and the byte after its last."""


def span_of(instruction: Instruction) -> Span:
    """Range of memory that a transfer reads or writes; it is empty for words in the scratchpad."""
    body = instruction.body
    if body.get("in_scratchpad"):
        return 0, 0
    rows, planes = body["rows"] * body["row_memory"], body["planes"] * body["plane_memory"]
    begin: int = body["memory"] + min(rows, 0) + min(planes, 0)
    return begin, body["memory"] + max(rows, 0) + max(planes, 0) + body["row_bytes"]


def semaphores_of_core(num_links: int, num_engines: int) -> int:
    """Number of semaphores of a core; its programs may not name others.

    Kernels use 10 themselves, and 3 more those that add up what comes over links. Between them
    there is one for each pair of engines of which one waits for the other: at most 7 with one link,
    and 19 with two.
    """
    if num_links > 1:
        return NUM_SEMAPHORES
    further = LINK_SEMAPHORES * num_links + ENGINE_SEMAPHORES * (num_engines - 1)
    return min(CORE_SEMAPHORES + further, NUM_SEMAPHORES)


def mask_of(semaphores: Iterable[int]) -> int:
    """Semaphores as the bits of a header's `wait` or `signal`."""
    return sum(1 << number for number in semaphores)


@lru_cache(maxsize=1 << 12)
def semaphores_of(mask: int) -> tuple[int, ...]:
    """Inverse of `mask_of`."""
    return tuple(number for number in range(NUM_SEMAPHORES) if mask >> number & 1)


def decode(
    program: bytes,
    num_engines: int = 16,
    *,
    has_vector: bool = True,
    num_links: int = MAX_LINKS,
) -> list[Instruction]:
    """Decode a program up to its END, with all the checks that a core makes.

    Bytes after END, and the bits between a body and the end of its last word, are ignored.

    Parameters
    ----------
    program : bytes
    num_engines : int
        GEMM engines of the core.
    has_vector : bool
        Whether the core has a vector engine.
    num_links : int
        Links of the core.

    Returns
    -------
    list of Instruction
        The instructions; the last one is END. Equal instructions are one object, and equal bodies.

    Raises
    ------
    ProgramError
        If an instruction is invalid, or there is no END.
    """
    engines = engines_of(num_engines, has_vector=has_vector, num_links=num_links)
    instructions: list[Instruction] = []
    bodies: dict[tuple[Opcode, int], Mapping[str, Any]] = {}
    seen: dict[bytes, Instruction] = {}
    shift, mask = HEADER.shift_of("words"), (1 << _WORDS_BITS) - 1
    offset = 0
    while not instructions or instructions[-1].opcode is not Opcode.END:
        header = int.from_bytes(program[offset : offset + HEADER.bits // 8], "little")
        words = program[offset : offset + (header >> shift & mask) * WORD_BYTES]
        instruction = seen.get(words)
        if instruction is None:
            instruction = seen[words] = _decode_one(
                program,
                offset,
                len(instructions),
                engines,
                semaphores_of_core(num_links, num_engines),
                bodies,
            )
        offset += instruction.words * WORD_BYTES
        instructions.append(instruction)
    return instructions


def engines_of(num_engines: int, *, has_vector: bool, num_links: int) -> dict[Opcode, int]:
    """Opcodes that a core knows, each with the number of engines that can run it.

    END is listed with one engine, although no engine runs it.
    """
    numbers = dict.fromkeys(Opcode, 1) | {Opcode.GEMM: num_engines, Opcode.VECTOR: int(has_vector)}
    numbers |= dict.fromkeys(LINK_OPCODES, num_links)
    return {opcode: number for opcode, number in numbers.items() if number}


def _decode_one(
    program: bytes,
    offset: int,
    index: int,
    known: Mapping[Opcode, int],
    num_semaphores: int,
    bodies: dict[tuple[Opcode, int], Mapping[str, Any]],
) -> Instruction:
    """Decode the instruction at byte `offset`.

    Parameters
    ----------
    program : bytes
    offset, index : int
        First byte of the instruction, and its number.
    known : mapping of Opcode to int
        Number of engines that run each opcode.
    num_semaphores : int
    bodies : dict
        Bodies that are known, to which that of the instruction is added.
    """

    def refuse(code: ErrorCode, reason: str) -> ProgramError:
        return ProgramError(index, code, reason)

    size = len(program)
    if offset + WORD_BYTES > size:
        raise refuse(ErrorCode.MEMORY_RANGE, f"program must have an END within its {size} bytes")
    header = HEADER.unpack(int.from_bytes(program[offset : offset + HEADER.bits // 8], "little"))
    if header["opcode"] not in known:
        raise refuse(
            ErrorCode.BAD_OPCODE,
            f"opcode must be one of {', '.join(map(str, sorted(known)))}, not {header['opcode']}",
        )
    opcode = Opcode(header["opcode"])
    words = words_of(opcode)
    if header["words"] != words:
        raise refuse(
            ErrorCode.BAD_LENGTH, f"{opcode.name} words must be {words}, not {header['words']}"
        )
    engines = known[opcode]
    if header["engine"] >= engines:
        raise refuse(
            ErrorCode.BAD_FIELD,
            f"{opcode.name} engine must be in 0..{engines - 1}, not {header['engine']}",
        )
    if header["reserved"]:
        raise refuse(
            ErrorCode.BAD_FIELD, f"{opcode.name} reserved must be 0, not {header['reserved']}"
        )
    for which in ("wait", "signal"):
        if header[which] >> num_semaphores:
            raise refuse(
                ErrorCode.BAD_FIELD,
                f"{opcode.name} {which} must be of semaphores 0..{num_semaphores - 1}, not "
                f"{max(semaphores_of(header[which]))}",
            )
    if opcode is Opcode.END and header["signal"]:
        raise refuse(
            ErrorCode.BAD_FIELD, f"END signal must be empty, not {semaphores_of(header['signal'])}"
        )
    end = offset + words * WORD_BYTES
    if end > size:
        raise refuse(
            ErrorCode.MEMORY_RANGE,
            f"{opcode.name} must end within the program's {size} bytes, not at {end}",
        )
    packed = int.from_bytes(program[offset + HEADER.bits // 8 : end], "little")
    return Instruction(
        opcode,
        semaphores_of(header["wait"]),
        semaphores_of(header["signal"]),
        header["engine"],
        _body_of(opcode, packed & ((1 << BODIES[opcode].bits) - 1), bodies),
    )


def _body_of(
    opcode: Opcode, packed: int, bodies: dict[tuple[Opcode, int], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Decode a body, of which a program has few different ones, apart from addresses in memory."""
    found = bodies.get((opcode, packed))
    if found is None:
        number = packed & ((1 << _MEMORY_BITS) - 1) if opcode in _MOVES else 0
        if number:
            # The address is the lowest field.
            found = {**_body_of(opcode, packed - number, bodies), "memory": number}
        else:
            found = BODIES[opcode].unpack(packed)
        bodies[opcode, packed] = found
    return found


def listing(program: bytes) -> str:
    """Return a program as text: one line per instruction, with its number and byte offset."""
    lines, offset = [], 0
    for index, instruction in enumerate(decode(program)):
        lines.append(f"{index:6d}  {offset:#08x}  {instruction}")
        offset += instruction.words * WORD_BYTES
    return "\n".join(lines)
