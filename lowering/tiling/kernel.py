"""Kernels: the sections of a core's program that operators of a network are lowered to.

A kernel reads tensors from memory and writes tensors to memory. No other kernel uses what it keeps
on chip meanwhile, so kernels can be combined in any order that respects the tensors that they share
(:mod:`fpgapipe.lowering.program.assemble`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from math import copysign, prod
from typing import Any, Protocol

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.isa.shared_fields import SharedFields
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.lowering.tiling.banks import apart
from fpgapipe.lowering.tiling.template import Template
from fpgapipe.lowering.tiling.tile import Tile, ceil_word


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory; its elements are contiguous.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Shape with the channels last.
    format : ElementFormat
    """

    name: str
    shape: tuple[int, ...]
    format: ElementFormat = FP32

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of all elements in bytes, with the scales of blocks."""
        return self.format.size_bytes(self.shape)

    @property
    def element_bytes(self) -> int:
        """Distance in bytes from one element to the next, where elements stand alone."""
        return self.format.element_bytes


class Track(IntEnum):
    """The engine that does a kernel's work; kernels of different tracks may overlap.

    The tracks of lane `n` are ``GEMM + 2 * n`` and ``VECTOR + 2 * n``. Each lane has its own GEMM
    engine and its own part of the scratchpad; the lanes use the only vector engine alternately. The
    tracks of link `n` are ``SEND0 + 2 * n`` and ``RECEIVE0 + 2 * n``.
    """

    GEMM = 0
    VECTOR = 1
    GEMM1 = 2
    VECTOR1 = 3
    SEND0 = 4
    RECEIVE0 = 5
    SEND1 = 6
    RECEIVE1 = 7
    SEND2 = 8
    RECEIVE2 = 9
    SEND3 = 10
    RECEIVE3 = 11

    @property
    def is_link(self) -> bool:
        """Whether the engine belongs to a link."""
        return self >= Track.SEND0

    @property
    def engine(self) -> "Track":
        """The first of the tracks that share one engine."""
        return Track.VECTOR if self is Track.VECTOR1 else self


class Kernel(Protocol):
    """A section of a program."""

    @property
    def name(self) -> str:
        """Name of the kernel, for people."""
        ...

    @property
    def track(self) -> Track:
        """Track of the kernel's engine."""
        ...

    @property
    def reads(self) -> frozenset[str]:
        """Names of the tensors that the kernel reads from memory."""
        ...

    @property
    def writes(self) -> frozenset[str]:
        """Names of the tensors that the kernel writes to memory."""
        ...

    def instructions(self, addresses: Mapping[str, int]) -> Program:
        """Return the instructions.

        A GEMM or VECTOR kernel begins with a LOAD, and ends with a STORE or, if it stores nothing,
        with a LOAD that waits until it has left the scratchpad.

        Parameters
        ----------
        addresses : mapping of str to int
            Byte address of each tensor in memory, a multiple of 64.
        """
        ...


def words_of(kernel: Kernel) -> int:
    """Words that a kernel takes in a program."""
    return int(kernel.instructions(defaultdict(int)).words.sum())


class Semaphore(IntEnum):
    """Numbers of the semaphores of a vector kernel; lower numbers belong to products.

    The lanes share LOADED and COMPUTED, which are signalled and waited for in the order of the
    program. Each lane has its own FREE, by which a load waits for a computation, and its own
    STORED, by which a computation waits for a store.
    """

    LOADED = 6
    FREE = 7
    COMPUTED = 8
    STORED = 9
    FREE1 = 17
    STORED1 = 18


_FREE = (int(Semaphore.FREE), int(Semaphore.FREE1))
_STORED = (int(Semaphore.STORED), int(Semaphore.STORED1))
"""Semaphore of each lane."""


@dataclass(frozen=True)
class Region:
    """A part of the scratchpad.

    Parameters
    ----------
    base, size_bytes : int
        First byte and size, multiples of 64.
    bank_bytes : int or None
        Size of a bank, if the region consists of whole banks. Buffers are then placed in different
        banks where they fit, since a bank reads one vector and writes one vector per cycle. None
        treats the region as one bank.
    lane, lanes : int
        Number of the lane that the region belongs to, and number of lanes with regions of this
        size; see `Track`.
    """

    base: int
    size_bytes: int
    bank_bytes: int | None = None
    lane: int = 0
    lanes: int = 1


@dataclass(frozen=True)
class Buffer:
    """A buffer on chip.

    Parameters
    ----------
    size_bytes : int
    kept : bool
        Whether all pieces of a kernel share one copy. Other buffers have two copies if there is
        room, which pieces use alternately: one piece is loaded or stored while another is computed.
    """

    size_bytes: int
    kept: bool = False


@dataclass(frozen=True)
class Move:
    """A tile, and the name of the buffer that it is loaded into or stored from.

    The tile that is moved lies `ahead` bytes behind `tile` in memory, a multiple of 64, so that
    pieces can share a tile.
    """

    tile: Tile
    buffer: str
    ahead: int = 0


@dataclass(frozen=True)
class Step:
    """A VECTOR instruction whose addresses are relative to the beginnings of the named buffers."""

    op: VectorOp
    x: str
    target: str
    y: str | None = None
    coefficients: str | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a kernel's work whose data are loaded, computed and stored together.

    Attributes
    ----------
    steps : tuple of Step
    loads, stores : tuple of Move
    restarts : bool
        Whether what the pieces before have left on chip is used no more, so that buffers that are
        kept may be loaded anew. The piece has loads, and the one before it has stores.
    """

    steps: tuple[Step, ...]
    loads: tuple[Move, ...] = ()
    stores: tuple[Move, ...] = ()
    restarts: bool = False


@dataclass(frozen=True)
class _VectorTemplate:
    """Instructions of a vector kernel, and the tensors in its tiles that it loads and stores."""

    program: Template
    loaded: frozenset[str]
    stored: frozenset[str]


@dataclass(frozen=True)
class VectorKernel:
    """A kernel of the vector engine.

    A buffer that is kept and loaded in one piece must not be loaded again in a later piece, and one
    that is kept and stored is stored in the last piece; both hold up to the next piece that
    restarts. A buffer that is not kept is either loaded or stored, but not both, since no load
    waits until a store has read the data that it overwrites. The same holds for one that is kept
    and that pieces load on both sides of one that restarts.

    Parameters
    ----------
    name : str
    buffers : mapping of str to Buffer
    pieces : tuple of Piece
        Pieces, each with at least one step.
    region : Region
    buffer_count : int
        Number of copies of each buffer that is not kept, 2 or 1.
    tensors : mapping of str to str
        Names of the tensors by those that the tiles have, where they differ; see `renamed`.
    skipped : int
        Number of random vectors that instructions skip besides those that they name.

    Raises
    ------
    ValueError
        If the buffers do not fit in the region, or if a buffer that is not kept is both loaded and
        stored.
    """

    name: str
    buffers: Mapping[str, Buffer]
    pieces: tuple[Piece, ...]
    region: "Region"
    buffer_count: int = 2
    tensors: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0

    def __post_init__(self) -> None:
        needed = room_of(self.buffers, self.buffer_count)
        if needed > self.region.size_bytes:
            raise NoRoom(
                f"kernel {self.name} needs {needed:,} bytes of scratchpad, and has "
                f"{self.region.size_bytes:,}"
            )
        loaded, stored = (
            {move.buffer for piece in self.pieces for move in getattr(piece, which)}
            for which in ("loads", "stores")
        )
        both = sorted(name for name in loaded & stored if not self.buffers[name].kept)
        if both and len(self.pieces) > self.buffer_count:
            raise ValueError(f"kernel {self.name} both loads and stores buffers {', '.join(both)}")

    @property
    def track(self) -> Track:
        """Track of the vector engine for the kernel's lane."""
        return Track(Track.VECTOR + 2 * self.region.lane)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the tensors that the kernel loads."""
        return frozenset(self.tensors.get(each, each) for each in self._template.loaded)

    @property
    def writes(self) -> frozenset[str]:
        """Names of the tensors that the kernel stores."""
        return frozenset(self.tensors.get(each, each) for each in self._template.stored)

    def renamed(self, name: str, tensors: Mapping[str, str], *, skipped: int = 0) -> "VectorKernel":
        """Return the same kernel for other tensors, which shares the instructions.

        Parameters
        ----------
        name : str
            Name of the kernel.
        tensors : mapping of str to str
            Names of the other tensors by those that the kernel has.
        skipped : int
            Number of random vectors that it skips besides those that the kernel skips.
        """
        made = self._template  # made once for all
        now = {each: self.tensors.get(each, each) for each in (*made.loaded, *made.stored)}
        names = {each: tensors.get(known, known) for each, known in now.items()}
        found = object.__new__(VectorKernel)
        found.__dict__.update(
            self.__dict__, name=name, tensors=names, skipped=self.skipped + skipped
        )
        return found

    def instructions(self, addresses: Mapping[str, int]) -> Program:
        """See `Kernel`."""
        found = self._template
        own = (*found.loaded, *found.stored)
        places = {each: addresses[self.tensors.get(each, each)] for each in own}
        return found.program.placed(places, self.skipped)

    @cached_property
    def _template(self) -> "_VectorTemplate":
        buffer_count = self.buffer_count
        places = [self._places(copy) for copy in range(buffer_count)]
        free, stored = _FREE[self.region.lane], _STORED[self.region.lane]
        program: list[Instruction] = []
        tensors: list[str | None] = []
        ahead: list[int] = []
        # Pieces share steps and tiles.
        made: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], Instruction] = {}
        bodies: dict[tuple[int, int], list[dict[str, Any]]] = {}

        def bodies_of(tile: Tile, slot: int) -> list[dict[str, Any]]:
            key = id(tile), slot
            if key not in bodies:
                bodies[key] = list(tile.transfers(0, slot))
            return bodies[key]

        def move(
            opcode: Opcode, moves: Sequence[Move], wait: tuple[int, ...], signal: tuple[int, ...]
        ) -> None:
            """Add transfers of some tiles; the first one waits, and the last one signals."""
            parts = [
                (each, body) for each in moves for body in bodies_of(each.tile, place[each.buffer])
            ]
            for index, (each, body) in enumerate(parts):
                waits = wait if index == 0 else ()
                signals = signal if index == len(parts) - 1 else ()
                key = opcode, id(body), waits, signals
                if key not in made:
                    made[key] = Instruction(opcode, waits, signals, body=body)
                program.append(made[key])
                tensors.append(each.tile.tensor)
                ahead.append(each.ahead)

        loads = [self._first_loads(), *(piece.loads for piece in self.pieces[1:])]
        for begin, end in self._spans():
            has_loads = [bool(each) for each in loads[begin:end]]
            has_stores = [bool(piece.stores) for piece in self.pieces[begin:end]]
            last, restarts, goes_on = end - begin - 1, begin > 0, end < len(self.pieces)
            for index, piece in enumerate(self.pieces[begin:end]):
                place = places[index % buffer_count]
                # An earlier piece frees its buffers when it has been computed or, for targets,
                # stored. The last one before a piece that restarts frees all of them.
                again = index >= buffer_count
                anew = restarts and index == 0
                if has_loads[index]:
                    waits = (free,) if again or anew else ()
                    move(Opcode.LOAD, loads[begin + index], waits, (int(Semaphore.LOADED),))
                ends = goes_on and index == last
                for number, step in enumerate(piece.steps):
                    wait, signal = [], []
                    if number == 0:
                        wait += [int(Semaphore.LOADED)] * has_loads[index]
                        wait += [stored] * (anew or (again and has_stores[index - buffer_count]))
                    if number == len(piece.steps) - 1:
                        signal += [int(Semaphore.COMPUTED)] * has_stores[index]
                        later = index + buffer_count
                        signal += [free] * (ends or (later <= last and has_loads[later]))
                    key = id(step), index % buffer_count, tuple(wait), tuple(signal)
                    if key not in made:
                        made[key] = vector_instruction(step, place, *key[2:])
                    program.append(made[key])
                    tensors.append(None)
                    ahead.append(0)
                if piece.stores:
                    signals = (stored,) if ends or index + buffer_count <= last else ()
                    move(Opcode.STORE, piece.stores, (int(Semaphore.COMPUTED),), signals)
        reads, writes = (
            frozenset(move.tile.tensor for piece in self.pieces for move in getattr(piece, which))
            for which in ("loads", "stores")
        )
        moved = Program.of(program).moved(np.array(ahead, np.int64))
        return _VectorTemplate(Template(moved, tensors), reads, writes)

    def _spans(self) -> list[tuple[int, int]]:
        """Numbers of the first piece and behind the last, from one that restarts to the next."""
        begins = [at for at, piece in enumerate(self.pieces) if piece.restarts or at == 0]
        for at in begins[1:]:
            assert self.pieces[at].loads, "a piece that restarts must load"
            assert self.pieces[at - 1].stores, "a piece before one that restarts must store"
        return list(zip(begins, [*begins[1:], len(self.pieces)], strict=True))

    def _first_loads(self) -> tuple[Move, ...]:
        """Loads of the first piece, of which there is one at least.

        A kernel waits with its first load for the kernels before it. One that begins without
        operands, because it writes zeros, loads the first word of what it is about to overwrite.
        """
        first = self.pieces[0]
        if first.loads:
            return first.loads
        assert first.stores, "a piece must load or store"
        store = first.stores[0]
        word = replace(
            store.tile,
            run_bytes=min(store.tile.run_bytes, WORD_BYTES),
            counts=(),
            memory_pitches=(),
            pitches=(),
        )
        return (Move(word, store.buffer, store.ahead),)

    def _places(self, copy: int) -> dict[str, int]:
        """Byte addresses of one copy of the buffers."""
        bank_bytes = self.region.bank_bytes or self.region.size_bytes
        banks = self.region.size_bytes // bank_bytes
        rooms = {
            name: room_of({name: buffer}, self.buffer_count)
            for name, buffer in self.buffers.items()
        }
        # Pieces share steps.
        steps = {id(step): step for piece in self.pieces for step in piece.steps}.values()
        pairs = [(step.x, step.y) for step in steps if step.y is not None and step.y != step.x]
        begins = apart(rooms, pairs, banks, bank_bytes)
        places = {}
        for name, buffer in self.buffers.items():
            size = 0 if buffer.kept else ceil_word(buffer.size_bytes)
            places[name] = self.region.base + begins[name] + copy * size
        return places


def room_of(buffers: Mapping[str, Buffer], buffer_count: int = 2) -> int:
    """Bytes of scratchpad that all copies of the buffers take."""
    return sum(
        ceil_word(buffer.size_bytes) * (1 if buffer.kept else buffer_count)
        for buffer in buffers.values()
    )


def vector_instruction(
    step: Step, places: Mapping[str, int], wait: tuple[int, ...], signal: tuple[int, ...]
) -> Instruction:
    """The instruction of a step with its buffers at the given bytes, and its semaphores."""
    op = step.op
    y = coefficients = 0
    if op.y is not None:
        assert step.y is not None, "a source needs a buffer"
        y = places[step.y]
    if op.coefficients.number:
        assert step.coefficients is not None, "coefficients need a buffer"
        coefficients = places[step.coefficients]
    signs = tuple(copysign(1, each.value) for each in op.constants)
    body = _vector_body(op, signs, places[step.x], places[step.target], y, coefficients)
    return Instruction(Opcode.VECTOR, wait=wait, signal=signal, body=body)


@lru_cache(maxsize=1 << 14)
def _vector_body(
    op: VectorOp, signs: tuple[float, ...], x: int, target: int, y: int, coefficients: int
) -> Mapping[str, object]:
    """Fields of a VECTOR instruction with its buffers at the given bytes, cached for micro-batches.

    `y` and `coefficients` are 0 if the instruction has no such buffer. `signs` are the signs of the
    constants: they distinguish 0 from -0, which compare equal and would share a cache entry.
    """
    assert len(signs) == len(op.constants)
    moved = replace(
        op,
        x=replace(op.x, base=op.x.base + x),
        target=replace(op.target, base=op.target.base + target),
        y=op.y and replace(op.y, base=op.y.base + y),
        coefficients=replace(op.coefficients, base=op.coefficients.base + coefficients),
    )
    return SharedFields(moved.encoded())
