"""Programs as columns: an array for each part of the instructions, which share their bodies.

A program of a network has hundreds of thousands of instructions, and few of them differ by more
than an address. As columns they are placed, ordered, timed and encoded many at a time;
:class:`Program` is a sequence of `Instruction` all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import (
    BODIES,
    HEADER,
    LINK,
    TRANSFER,
    WORD_BYTES,
    ErrorCode,
    Instruction,
    Opcode,
    ProgramError,
    mask_of,
    semaphores_of,
    words_of,
)
from fpgapipe.hw.hls_models.isa.vector_fields import RANDOM_BITS, VECTOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

WORDS = np.array([0, *map(words_of, Opcode)], np.int64)
"""Program words that an instruction takes, by its opcode."""

READS = frozenset({Opcode.LOAD, Opcode.SEND})
WRITES = frozenset({Opcode.STORE, Opcode.RECEIVE})
"""Opcodes of the instructions that read memory, and of those that write it."""

_ROWS = ("memory", "row_bytes", "rows", "row_memory", "planes", "plane_memory")
_rows = itemgetter(*_ROWS)
_NO_ROWS = (-1, 0, 0, 0, 0, 0)


def _rows_of(body: Mapping[str, Any]) -> tuple[int, ...]:
    """Fields of `_ROWS`; the address is -1 if the instruction neither reads nor writes memory."""
    if "memory" not in body:
        return _NO_ROWS
    found = _rows(body)
    return (-1, *found[1:]) if body.get("in_scratchpad") else found


_NUMBERS = {
    Opcode.LOAD: (TRANSFER.shift_of("memory"), TRANSFER.fields[0].bits),
    Opcode.STORE: (TRANSFER.shift_of("memory"), TRANSFER.fields[0].bits),
    Opcode.SEND: (LINK.shift_of("memory"), LINK.fields[0].bits),
    Opcode.RECEIVE: (LINK.shift_of("memory"), LINK.fields[0].bits),
    Opcode.VECTOR: (VECTOR.shift_of("random", "first"), RANDOM_BITS),
}
"""First bit and number of bits of the field to which a number is added."""


class Bodies(Sequence[Mapping[str, Any]]):
    """Bodies of instructions, and the memory that those of transfers name.

    Parameters
    ----------
    bodies : sequence of mapping
    rows : int array, shape (bodies, 6), optional
        What `rows` has, if it is known.
    """

    def __init__(self, bodies: Sequence[Mapping[str, Any]], rows: Numbers | None = None) -> None:
        self._bodies = bodies
        if rows is not None:
            self.rows = rows

    @cached_property
    def rows(self) -> Numbers:
        """Fields of transfers in the order of `_ROWS`; an address of -1 without memory."""
        return np.array([*map(_rows_of, self._bodies)], np.int64).reshape(-1, len(_ROWS))

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, number: Any) -> Any:
        return self._bodies[number]

    @cached_property
    def spans(self) -> tuple[Numbers, Numbers]:
        """First byte of each transfer's memory, and the byte after its last; -1 for none."""
        memory, row_bytes, rows, row_memory, planes, plane_memory = self.rows.T
        over_rows, over_planes = rows * row_memory, planes * plane_memory
        begin = memory + np.minimum(over_rows, 0) + np.minimum(over_planes, 0)
        end = memory + np.maximum(over_rows, 0) + np.maximum(over_planes, 0) + row_bytes
        moves = memory >= 0
        return np.where(moves, begin, -1), np.where(moves, end, -1)

    @cached_property
    def draws(self) -> NDArray[np.bool_]:
        """Whether each is the body of a VECTOR that draws random numbers."""
        return np.array([bool(body.get("is_random")) for body in self._bodies], np.bool_)


_COLUMNS = ("opcodes", "engines", "waits", "signals", "numbers", "body_of")


class Program(Sequence[Instruction]):
    """A sequence of instructions as columns.

    Parameters
    ----------
    opcodes, engines : int array
        Opcode of each instruction, and number of its GEMM engine or link.
    waits, signals : int array
        Semaphores as masks.
    numbers : int array
        What is added to the address in memory that the body of a transfer has, or to the number of
        random vectors that the body of a VECTOR skips; 0 for other instructions.
    body_of : int array
        Number of each instruction's body.
    bodies : Bodies
        Bodies, each of which many instructions may share.
    """

    def __init__(
        self,
        opcodes: NDArray[np.uint8],
        engines: NDArray[np.uint8],
        waits: Numbers,
        signals: Numbers,
        numbers: Numbers,
        body_of: Numbers,
        bodies: Bodies,
    ) -> None:
        self.opcodes = opcodes
        self.engines = engines
        self.waits = waits
        self.signals = signals
        self.numbers = numbers
        self.body_of = body_of
        self.bodies = bodies

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Program:
        """Return a sequence of instructions as a program."""
        if isinstance(instructions, Program):
            return instructions
        listed = list(instructions)
        known: dict[int, int] = {}
        bodies: list[Mapping[str, Any]] = []
        body_of = []
        for each in listed:
            number = known.setdefault(id(each.body), len(bodies))
            if number == len(bodies):
                bodies.append(each.body)
            body_of.append(number)
        found = cls(
            np.array([each.opcode for each in listed], np.uint8),
            np.array([each.engine for each in listed], np.uint8),
            np.array([mask_of(each.wait) for each in listed], np.int64),
            np.array([mask_of(each.signal) for each in listed], np.int64),
            np.zeros(len(listed), np.int64),
            np.array(body_of, np.int64),
            Bodies(bodies),
        )
        found._listed = listed
        return found

    @classmethod
    def joined(cls, programs: Sequence[Program]) -> Program:
        """Return programs one behind the other; the bodies that some of them share stay one."""
        if len(programs) == 1:
            return programs[0]
        first_of: dict[int, int] = {}
        tables: list[Bodies] = []
        bodies: list[Mapping[str, Any]] = []
        for each in programs:
            if id(each.bodies) not in first_of:
                first_of[id(each.bodies)] = len(bodies)
                tables.append(each.bodies)
                bodies.extend(each.bodies)
        rows = np.concatenate([np.zeros((0, len(_ROWS)), np.int64), *(t.rows for t in tables)])
        sizes = [len(each) for each in programs]
        firsts = np.repeat([first_of[id(each.bodies)] for each in programs], sizes)

        def column(name: str, kind: type[np.generic]) -> NDArray[Any]:
            return np.concatenate([np.zeros(0, kind), *(getattr(each, name) for each in programs)])

        return cls(
            column("opcodes", np.uint8),
            column("engines", np.uint8),
            column("waits", np.int64),
            column("signals", np.int64),
            column("numbers", np.int64),
            column("body_of", np.int64) + firsts.astype(np.int64),
            Bodies(bodies, rows),
        )

    def having(self, **columns: Any) -> Program:
        """Return the program with other columns."""
        own = {name: getattr(self, name) for name in (*_COLUMNS, "bodies")}
        return Program(**own | columns)

    def moved(self, distance: int | Numbers) -> Program:
        """Return the program with the addresses in memory moved by so many bytes.

        Parameters
        ----------
        distance : int or int array
            Bytes, of all instructions or of each.
        """
        moves = self.bodies.rows[self.body_of, 0] >= 0
        return self.having(numbers=self.numbers + np.where(moves, distance, 0))

    def taken(self, places: Numbers | slice) -> Program:
        """Return the instructions at these places."""
        return self.having(**{name: getattr(self, name)[places] for name in _COLUMNS})

    def waiting(self, waits: Numbers) -> Program:
        """Return the program in which instructions wait for others.

        Parameters
        ----------
        waits : int array, shape (waits, 3)
            Number of an instruction, of the one that it waits for, and of a semaphore that neither
            of them names yet.
        """
        waiter, producer, semaphore = waits.T
        added = np.left_shift(np.int64(1), semaphore)
        columns = {"waits": self.waits.copy(), "signals": self.signals.copy()}
        np.bitwise_or.at(columns["waits"], waiter, added)
        np.bitwise_or.at(columns["signals"], producer, added)
        return self.having(**columns)

    @property
    def spans(self) -> tuple[Numbers, Numbers]:
        """First byte of memory of each transfer, and the byte after its last; -1 for none."""
        begin, end = (each[self.body_of] for each in self.bodies.spans)
        moves = begin >= 0
        return np.where(moves, begin + self.numbers, -1), np.where(moves, end + self.numbers, -1)

    @property
    def words(self) -> Numbers:
        """Program words that each instruction takes."""
        found: Numbers = WORDS[self.opcodes]
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of the program."""
        return int(self.words.sum()) * WORD_BYTES

    def body(self, place: int) -> Mapping[str, Any]:
        """Body of an instruction."""
        return _with_number(self.bodies[int(self.body_of[place])], int(self.numbers[place]))

    def places_of(self, opcode: Opcode) -> Numbers:
        """Places of the instructions with an opcode."""
        return np.flatnonzero(self.opcodes == opcode)

    def __len__(self) -> int:
        return len(self.opcodes)

    @overload
    def __getitem__(self, place: int) -> Instruction: ...

    @overload
    def __getitem__(self, place: slice) -> Program: ...

    def __getitem__(self, place: int | slice) -> Instruction | Program:
        if isinstance(place, slice):
            return self.taken(place)
        return self._listed[place]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self._listed)

    @cached_property
    def _listed(self) -> list[Instruction]:
        """All instructions; they are made only if somebody looks at one."""
        return [
            _instruction(opcode, engine, waits, signals, _with_number(self.bodies[body], number))
            for opcode, engine, waits, signals, number, body in self._rows()
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _rows(self) -> Iterator[tuple[int, ...]]:
        return zip(*(getattr(self, name).tolist() for name in _COLUMNS), strict=True)

    def encode(self) -> bytes:
        """Return the bytes of the program.

        Raises
        ------
        ProgramError
            If a field is missing or unknown, or a number does not fit its field.
        """
        program = bytearray()
        packed: dict[tuple[int, int], tuple[int, int]] = {}
        for index, row in enumerate(self._rows()):
            opcode, engine, waits, signals, number, body = row
            try:
                if (opcode, body) not in packed:
                    # A body alone may be out of range where no instruction has it without a number.
                    own = _number_of(self.bodies[body])
                    bare = _with_number(self.bodies[body], -own)
                    packed[opcode, body] = BODIES[_OPCODES[opcode]].pack(bare), own
                bits, own = packed[opcode, body]
                if own + number:
                    shift, most = _NUMBERS[_OPCODES[opcode]]
                    if not 0 <= own + number < 1 << most:
                        BODIES[_OPCODES[opcode]].pack(_with_number(self.bodies[body], number))
                    bits |= own + number << shift
                words = _packed_header(opcode, engine, waits, signals) | bits << HEADER.bits
                program += words.to_bytes(int(WORDS[opcode]) * WORD_BYTES, "little")
            except ValueError as error:
                raise ProgramError(index, ErrorCode.BAD_FIELD, str(error)) from error
        return bytes(program)


def encode(instructions: Iterable[Instruction]) -> bytes:
    """Encode a program, as `Program.encode` does."""
    return Program.of(instructions).encode()


def _instruction(
    opcode: int, engine: int, waits: int, signals: int, body: Mapping[str, Any]
) -> Instruction:
    """Return an instruction; its parts have been checked already, so the checks are skipped."""
    found = object.__new__(Instruction)
    found.__dict__.update(
        opcode=_OPCODES[opcode],
        wait=semaphores_of(waits),
        signal=semaphores_of(signals),
        engine=engine,
        body=body,
    )
    return found


_OPCODES = (Opcode.END, *Opcode)


def _number_of(body: Mapping[str, Any]) -> int:
    """The field to which a number is added; 0 if there is none."""
    found: int = body["memory"] if "memory" in body else body.get("random", {}).get("first", 0)
    return found


def _with_number(body: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return a body with a number added."""
    if not number:
        return body
    if "memory" in body:
        return {**body, "memory": body["memory"] + number}
    return {**body, "random": {**body["random"], "first": body["random"]["first"] + number}}


@lru_cache(maxsize=1 << 12)
def _packed_header(opcode: int, engine: int, waits: int, signals: int) -> int:
    return HEADER.pack(
        {
            "opcode": opcode,
            "words": int(WORDS[opcode]),
            "wait": waits,
            "signal": signals,
            "engine": engine,
            "reserved": 0,
        }
    )
