"""Programs prepared for many runs: the results of `CoreModel`, bit for bit, in much less time.

`CoreModel` is the definition. It takes milliseconds per instruction, most of them for patterns that
are the same in each training step. Here, patterns are decoded once, and loops run as machine code
compiled by numba. Unusual instructions, such as one that accesses bytes outside the scratchpad, are
left to `CoreModel`, and fail as they do there.

This module needs numba; `CoreModel` uses it for long programs if numba is installed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.instructions import LINK_OPCODES, TRANSFER, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.vector_fields import NUM_CONSTANTS
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Constant, Random, VectorOp
from fpgapipe.hw.hls_models.model.compiled_gemm import (
    accumulate,
    operand_numbers,
    read_operand,
    result_numbers,
    write_results,
)
from fpgapipe.hw.hls_models.model.compiled_vector import (
    compute_vector,
    move_rows,
    target_numbers,
    vector_numbers,
    write_vectors,
)
from fpgapipe.hw.hls_models.model.vector import drawn_lanes, lies_within
from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_NAN
from fpgapipe.hw.hls_models.numerics.function import Function, apply
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

_SUMS = 1 << 17
"""Number of sums that are computed at a time, so that they stay in the cache of a processor."""


class Model(Protocol):
    """The part of `CoreModel` that a prepared program uses.

    The attributes are those of `fpgapipe.hw.hls_models.model.core.CoreModel`.
    """

    spec: CoreSpec
    memory: NDArray[np.uint8]
    scratchpad: NDArray[np.uint8]
    accumulators: list[NDArray[np.float32]]
    nan: bool
    scalars: list[int]
    late: list[tuple[int, Instruction]]

    def begin(self, start: int) -> None:
        """Begin a program, or continue it."""

    def may_run(self, instruction: Instruction) -> bool:
        """Whether an instruction may run before the postponed RECEIVEs."""

    def puts_off(self, index: int, instruction: Instruction) -> bool:
        """Postpone a RECEIVE whose packet has not arrived, and return whether it was postponed."""

    def execute(self, index: int, instruction: Instruction) -> None:
        """Run one instruction."""


class Prepared:
    """A program, prepared for cores of one `CoreSpec`.

    It keeps about 2 KB per instruction, and room for the operands of the largest product.

    Parameters
    ----------
    spec : CoreSpec
    program : sequence of Instruction
    """

    def __init__(self, spec: CoreSpec, program: Sequence[Instruction]) -> None:
        self.spec = spec
        self.program = list(program)
        room = _Room()
        self._steps: list[_Step] = []
        for instruction in self.program:
            if instruction.opcode is Opcode.END:
                break
            self._steps.append(_prepared(spec, instruction, room))

    def is_of(self, program: Sequence[Instruction]) -> bool:
        """Whether a program consists of these instructions: the same objects, not equal ones."""
        return len(program) == len(self.program) and all(map(is_, program, self.program))

    def run(self, model: Model, start: int = 0) -> int:
        """Run the program on a model from an instruction on, as `CoreModel.run` does.

        Returns
        -------
        int
            The same as for `CoreModel.run`.

        Raises
        ------
        CoreError
            For the reasons of `CoreModel.run`.
        ValueError
            If the model is of another core.
        """
        if model.spec != self.spec:
            raise ValueError(f"program is prepared for {self.spec}, not for {model.spec}")
        view = _View(model)
        model.begin(start)
        for index in range(start, len(self._steps)):
            step, instruction = self._steps[index], self.program[index]
            if model.late and not model.may_run(instruction):
                return index
            if (step is None or not step(view)) and not model.puts_off(index, instruction):
                model.execute(index, instruction)
        return len(self._steps)


class _View:
    """A model's memories in the types that machine code uses."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.memory = model.memory
        self.scratchpad = model.scratchpad
        self.halves = model.scratchpad.view("<u2")
        self.words = model.scratchpad.view("<u4")
        flags = model.memory.flags
        self.plain_memory = flags.c_contiguous and flags.writeable


_Step = Callable[[_View], bool] | None
"""A prepared instruction. It returns False, with nothing changed, if it leaves the instruction to
`CoreModel`; None leaves it to `CoreModel` always."""


class _Room:
    """Arrays for intermediate results, which all instructions share."""

    def __init__(self) -> None:
        self._bytes: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
        """Return an array with undefined content."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        found = self._bytes.get(name)
        if found is None or found.size < size:
            found = self._bytes[name] = np.empty(size, np.uint8)
        return found[:size].view(dtype).reshape(shape)


def _prepared(spec: CoreSpec, instruction: Instruction, room: _Room) -> _Step:
    if instruction.opcode in (Opcode.LOAD, Opcode.STORE):
        numbers = [instruction.body[each.name] for each in TRANSFER.fields]
        return _Transfer(np.array(numbers, np.int64), instruction.opcode is Opcode.LOAD)
    if instruction.opcode in LINK_OPCODES:
        return None
    try:
        if instruction.opcode is Opcode.VECTOR:
            return _vector(spec, VectorOp.decoded(instruction.body), room)
        return _product(spec, instruction, room)
    except ValueError:
        # If the instruction is run, `CoreModel` raises the error.
        return None


@dataclass(frozen=True)
class _Transfer:
    """A LOAD or STORE."""

    numbers: NDArray[np.int64]
    loads: bool

    def __call__(self, view: _View) -> bool:
        return view.plain_memory and move_rows(
            self.numbers, self.loads, view.memory, view.scratchpad
        )


@dataclass(frozen=True)
class _Operand:
    """An operand of a product: its pattern and its number of vectors."""

    name: str
    numbers: NDArray[np.int64]
    vectors: int

    @classmethod
    def of(cls, name: str, spec: CoreSpec, pattern: OperandPattern) -> "_Operand | None":
        """Prepare an operand; return None if it is left to `CoreModel`."""
        loops = (*pattern.outer.loops, *pattern.tap.loops, *pattern.pos.loops)
        if any(loop.address % 2 for loop in loops):
            return None
        if max(pattern.subs, pattern.subs_last) * spec.rows > BLOCK:
            return None
        return cls(name, operand_numbers(pattern), _num_vectors(pattern))

    def read(
        self, view: _View, rows: int, room: _Room
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]] | None:
        """Return the operand's elements and codes; None if it lies outside the scratchpad."""
        elements = room.array(self.name, (self.vectors, rows), np.float32)
        codes = room.array(self.name + " codes", (self.vectors,), np.uint8)
        found = read_operand(self.numbers, view.halves, elements, codes)
        return (elements, codes) if found else None


def _num_vectors(pattern: OperandPattern) -> int:
    last = pattern.tap.innermost_is_last()
    emit = np.where(last, pattern.emit_last, pattern.emit)
    if pattern.walks_blocks:
        a_block = int(emit.sum()) if pattern.transposed else BLOCK * pattern.tap.size
        vectors = a_block * (pattern.subs * (pattern.blocks - 1) + pattern.subs_last)
    else:
        subs = np.where(last, pattern.subs_last, pattern.subs)
        a_tap = pattern.positions // BLOCK * emit if pattern.transposed else pattern.positions
        vectors = int((subs * a_tap).sum())
    return pattern.outer.size * vectors


def _product(spec: CoreSpec, instruction: Instruction, room: _Room) -> _Step:
    body = instruction.body
    m, k, n = (body["extent"][name] + 1 for name in ("m", "k", "n"))
    a = _Operand.of("a", spec, OperandPattern.decoded(body["a"]))
    b = _Operand.of("b", spec, OperandPattern.decoded(body["b"]))
    if not (a and b and a.vectors == n * k * m and b.vectors == n * k * spec.cols):
        return None
    result = None
    if body["extent"]["last"]:
        pattern = ResultPattern.decoded(body["result"])
        columns = pattern.columns(spec.cols)
        addresses = pattern.addresses()
        if addresses.size != n * m:
            return None
        written = np.broadcast_to(columns.any(axis=1, keepdims=True), addresses.shape)
        # All columns are counted, even those that are not written; results that close to the end
        # are left to `CoreModel`.
        reach = spec.cols * pattern.element_bytes
        outside = (addresses < 0) | (addresses + reach > spec.scratchpad.size_bytes)
        if (written & outside).any():
            return None
        result = result_numbers(pattern)
    return _Product(spec, (m, k, n), instruction.engine, body["extent"], a, b, result, room)


@dataclass(frozen=True)
class _Product:
    """A GEMM."""

    spec: CoreSpec
    sizes: tuple[int, int, int]
    engine: int
    extent: Any
    a: _Operand
    b: _Operand
    result: NDArray[np.int64] | None
    room: _Room

    def __call__(self, view: _View) -> bool:
        (m, k, n), rows, cols = self.sizes, self.spec.rows, self.spec.cols
        found_a = self.a.read(view, rows, self.room)
        found_b = self.b.read(view, rows, self.room)
        if found_a is None or found_b is None:
            return False
        a, b = found_a[0].reshape(-1, m, rows), found_b[0].reshape(-1, cols, rows)
        a_codes, b_codes = found_a[1].reshape(-1, m), found_b[1].reshape(-1, cols)
        model = view.model
        model.nan = model.nan or bool((a_codes == CODE_NAN).any() or (b_codes == CODE_NAN).any())
        results = self.room.array(
            "results", (n if self.result is not None else 0, m, cols), np.float32
        )
        at_once = max(1, _SUMS // (m * cols))
        for begin in range(0, n * k, at_once):
            part = slice(begin, min(begin + at_once, n * k))
            sums = self.room.array("sums", (part.stop - begin, m, cols), np.float32)
            # FP32 holds every partial sum exactly.
            np.matmul(a[part], b[part].transpose(0, 2, 1), out=sums)
            accumulate(
                sums,
                a_codes[part],
                b_codes[part],
                model.accumulators[self.engine],
                results,
                begin,
                k,
                bool(self.extent["first"]),
                self.result is not None,
                self.extent["acc_base"],
                self.extent["acc_step"],
            )
        if self.result is not None:
            write_results(self.result, results.reshape(-1, cols), view.halves, view.words)
        return True


def _vector(spec: CoreSpec, op: VectorOp, room: _Room) -> _Step:
    if op.has_blocks and not (spec.vector and spec.vector.mx):
        return None
    if isinstance(op.test, Random) and not (spec.vector and spec.vector.random):
        return None
    if not lies_within(op, spec.scratchpad.size_bytes):
        return None
    return _Vector(
        *vector_numbers(op),
        *target_numbers(op),
        (*op.constants, *(Constant(),) * NUM_CONSTANTS)[:NUM_CONSTANTS],
        op if isinstance(op.test, Random) else None,
        op.function,
        op.num_results,
        room,
    )


@dataclass(frozen=True)
class _Vector:
    """A VECTOR."""

    numbers: NDArray[np.int64]
    jumps: NDArray[np.int64]
    target: NDArray[np.int64]
    target_jumps: NDArray[np.int64]
    constants: tuple[Constant, ...]
    drawn: VectorOp | None
    function: Function | None
    num_results: int
    room: _Room

    def __call__(self, view: _View) -> bool:
        scalars = view.model.scalars
        constants = np.array(
            [constant.value if constant.register is None else 0.0 for constant in self.constants],
            np.float32,
        )
        for number, constant in enumerate(self.constants):
            if constant.register is not None:
                constants.view(np.uint32)[number] = scalars[constant.register]
        drawn = drawn_lanes(self.drawn, scalars) if self.drawn else np.zeros((0, LANES), np.bool_)
        out = self.room.array("vectors", (self.num_results, LANES), np.float32)
        if not compute_vector(
            self.numbers, self.jumps, fp32.flush(constants), drawn, view.halves, out
        ):
            return False
        if self.function is not None:
            out = apply(self.function, out)
        write_vectors(self.target, self.target_jumps, out, view.halves)
        return True
