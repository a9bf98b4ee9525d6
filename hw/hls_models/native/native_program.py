"""Programs prepared for many runs: the results of `CoreModel`, bit for bit, in much less time.

`CoreModel` is the definition. It takes milliseconds per instruction. Here, the patterns of a
program's instructions are decoded once, and instructions run in C++ (``model_program.cpp``).
Patterns are the same in many instructions, apart from their addresses, and each is kept once.
Instructions of links, and unusual ones, such as one that accesses bytes outside the scratchpad, are
left to `CoreModel`, and fail as they do there.
"""

import ctypes
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import is_, itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fpgapipe.garbage import rare_collections
from fpgapipe.hw.hls_models.isa.address import (
    COORDINATE_BITS,
    OperandPattern,
    ResultPattern,
)
from fpgapipe.hw.hls_models.isa.instructions import TRANSFER, Instruction, Opcode, span_of
from fpgapipe.hw.hls_models.isa.vector_fields import NUM_VECTOR_LOOPS
from fpgapipe.hw.hls_models.isa.vector_op import Random, Source, Steps, VectorOp
from fpgapipe.hw.hls_models.numerics.function import coefficients
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

_MOVES = (Opcode.LOAD, Opcode.STORE)

_NUMBERS = 16
"""Numbers of a step; the first is its opcode, or 0 if `CoreModel` runs it."""

_LEFT_OUT = (0,) * _NUMBERS


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


class _State(ctypes.Structure):
    """A model's state, in the layout of the library."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("memory_bytes", ctypes.c_int64),
        ("has_plain_memory", ctypes.c_int64),
        ("scratchpad", ctypes.c_void_p),
        ("accumulators", ctypes.c_void_p * 4),
        ("scalars", ctypes.c_int64 * 16),
        ("nan", ctypes.c_int64),
    ]


class NativeProgram:
    """A program, prepared for cores of one `CoreSpec`.

    It keeps 128 bytes per instruction, each different pattern, and room for the operands of the
    largest product.

    Parameters
    ----------
    library : CDLL
        From `fpgapipe.hw.hls_models.native.native_library.library`.
    spec : CoreSpec
    program : sequence of Instruction
    """

    def __init__(
        self, library: ctypes.CDLL, spec: CoreSpec, program: Sequence[Instruction]
    ) -> None:
        self.spec = spec
        self.program = list(program)
        self._library = library
        self._handle = library.fpgapipe_model_create(
            *(spec.rows, spec.cols, spec.acc_depth, spec.scratchpad.size_bytes),
            os.environ.get("FPGAPIPE_SIMD", "").encode(),
        )
        patterns = _Patterns(library, self._handle, spec)
        steps = array("q")
        with rare_collections():
            for instruction in self.program:
                if instruction.opcode is Opcode.END:
                    break
                steps.extend(patterns.step(instruction))
        if patterns.has_functions:
            table = np.ascontiguousarray(np.stack(coefficients(), axis=1), np.int32)
            library.fpgapipe_model_table(self._handle, table.ctypes.data, table.size)
        # The library keeps the address.
        self._steps = np.frombuffer(steps, np.int64) if steps else np.zeros(0, np.int64)
        self._num_steps = len(steps) // _NUMBERS
        library.fpgapipe_model_take(self._handle, self._steps.ctypes.data, self._num_steps)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.fpgapipe_model_destroy(self._handle)

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
        model.begin(start)
        state = _state_of(model)
        index: int = start
        is_checked = False
        while True:
            late = [each for _, other in model.late for each in span_of(other)]
            spans = (ctypes.c_int64 * len(late))(*late)
            index = self._library.fpgapipe_model_run(
                self._handle, ctypes.byref(state), index, spans, len(late) // 2, is_checked
            )
            if index < 0:
                raise MemoryError("there is too little memory for the operands of an instruction")
            model.nan = model.nan or bool(state.nan)
            if index == self._num_steps:
                return index
            instruction = self.program[index]
            if not model.puts_off(index, instruction):
                if not model.may_run(instruction):
                    return index
                if late and not is_checked and instruction.opcode in _MOVES:
                    # No packet arrives before this method returns, so one look is enough.
                    is_checked = True
                    continue
                model.execute(index, instruction)
            index += 1


def _state_of(model: Model) -> _State:
    memory, flags = model.memory, model.memory.flags
    scratchpad = model.scratchpad
    sums = [each.ctypes.data for each in model.accumulators]
    assert scratchpad.flags.c_contiguous
    assert all(each.flags.c_contiguous for each in model.accumulators)
    return _State(
        memory=memory.ctypes.data,
        memory_bytes=memory.size,
        has_plain_memory=flags.c_contiguous and flags.writeable,
        scratchpad=scratchpad.ctypes.data,
        accumulators=(ctypes.c_void_p * 4)(*sums),
        scalars=(ctypes.c_int64 * 16)(*model.scalars),
        nan=model.nan,
    )


_transfer = itemgetter(*(each.name for each in TRANSFER.fields))
_extent = itemgetter("m", "k", "n", "first", "last", "acc_base", "acc_step")
_operand = itemgetter(
    *("y", "u", "y_limit", "u_limit", "lanes_last", "lanes_by_outer", "subs", "subs_last"),
    *("blocks", "pos0_left", "pos1_left", "walks_blocks", "transposed", "emit", "emit_last"),
    "fp32",
)
_result = itemgetter("u_limit", "fp32")
_count = itemgetter("count")
_source = itemgetter("y", "u", "y_limit", "u_limit", "format", "broadcast")
_source_jump = itemgetter("address", "y", "u")
_target = itemgetter("u", "u_limit", "format")
_target_jump = itemgetter("address", "u")
_coefficients = itemgetter("pitch", "step", "number")
_constant = itemgetter("value", "is_register")
_random = itemgetter("threshold", "key")
_options = itemgetter(
    *("inner", "reduced", "takes_maximum", "uses_y", "negate_x", "negate_addend", "addend"),
    *("factor", "negate_second", "second", "is_random", "outcomes", "left", "right", "then"),
    *("otherwise", "initial", "relu", "function", "gives_index"),
)


class _Patterns:
    """The patterns of a program's instructions, each of which is given to the library once."""

    def __init__(self, library: ctypes.CDLL, handle: int, spec: CoreSpec) -> None:
        self._library, self._handle, self._spec = library, handle, spec
        self._given: dict[tuple[str, tuple[int, ...]], int] = {}
        # By fields other than the base; loop nests by their objects, which the program keeps.
        self._operands: dict[tuple[int, ...], tuple[int, int, int]] = {}
        self._results: dict[tuple[int, ...], int] = {}
        self._vectors: dict[tuple[Any, ...], int | None] = {}
        # By bodies, which the program keeps, and which many instructions share.
        self._bodies: dict[tuple[int, int], tuple[int, ...]] = {}
        self.has_functions = False

    def step(self, instruction: Instruction) -> tuple[int, ...]:
        """The numbers of a step, with addresses and patterns' numbers."""
        if instruction.opcode in _MOVES:
            return (int(instruction.opcode), *_transfer(instruction.body), 0, 0, 0, 0, 0, 0)
        key = id(instruction.body), instruction.engine
        found = self._bodies.get(key)
        if found is None:
            found = self._bodies[key] = self._new_step(instruction)
        return found

    def _new_step(self, instruction: Instruction) -> tuple[int, ...]:
        try:
            if instruction.opcode is Opcode.GEMM and instruction.engine < self._spec.num_engines:
                return self._gemm(instruction.engine, instruction.body)
            if instruction.opcode is Opcode.VECTOR:
                return self._vector(instruction.body)
        except ValueError:
            pass  # if the instruction is run, `CoreModel` raises the error
        return _LEFT_OUT

    def _number(self, kind: str, numbers: Sequence[int]) -> int:
        """Number of a pattern in the library."""
        key = kind, tuple(map(int, numbers))
        found = self._given.get(key)
        if found is None:
            values = np.array(key[1], np.int64)
            add: Callable[[int, int], int] = getattr(self._library, f"fpgapipe_model_{kind}")
            found = self._given[key] = add(self._handle, values.ctypes.data)
        return found

    def _gemm(self, engine: int, body: Mapping[str, Any]) -> tuple[int, ...]:
        a, a_base = self._operand(body["a"])
        b, b_base = self._operand(body["b"])
        m, k, n, first, last, acc_base, acc_step = _extent(body["extent"])
        result = self._result(body["result"]) if last else 0
        result_base = body["result"]["base"] if last else 0
        extent = (m + 1, k + 1, n + 1, first, last, acc_base, acc_step, engine)
        return (int(Opcode.GEMM), a, a_base, b, b_base, result, result_base, *extent, 0)

    def _operand(self, fields: Mapping[str, Any]) -> tuple[int, int]:
        base: int = fields["base"]
        nests = id(fields["outer"]), id(fields["tap"]), id(fields["pos"])
        key = (*nests, *_operand(fields))
        found = self._operands.get(key)
        if found is None:
            pattern = OperandPattern.decoded(fields)
            least, most = pattern.reach_of_addresses
            number = self._number("operand", _operand_numbers(pattern))
            found = self._operands[key] = number, least - base, most - base
        number, below, above = found
        limit = 1 << (COORDINATE_BITS["address"] - 1)
        if base % 2 or base + below < -limit or base + above >= limit:
            raise ValueError("the pattern cannot be decoded at this base")
        return number, base

    def _result(self, fields: Mapping[str, Any]) -> int:
        key = (id(fields["outer"]), id(fields["pos"]), *_result(fields))
        found = self._results.get(key)
        if found is None:
            pattern = ResultPattern.decoded({**fields, "base": 0})
            found = self._results[key] = self._number("result", _result_numbers(pattern))
        return found

    def _vector(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        x, y, target, k = (body[name] for name in ("x", "source_y", "target", "coefficients"))
        bases = x["base"], y["base"], target["base"]
        key = (
            *(base % 2 for base in bases),
            *map(_count, body["loops"]),
            *_source(x),
            *map(_source_jump, x["jumps"]),
            *_source(y),
            *map(_source_jump, y["jumps"]),
            *_target(target),
            *map(_target_jump, target["jumps"]),
            *_coefficients(k),
            *map(_constant, body["constants"]),
            body["counter"]["base"],
            *(jump["step"] for jump in body["counter"]["jumps"]),
            *_random(body["random"]),
            *_options(body),
        )
        if key not in self._vectors:
            self._vectors[key] = self._new_vector(body)
        number = self._vectors[key]
        if number is None:
            return _LEFT_OUT
        first = body["random"]["first"]
        return (int(Opcode.VECTOR), number, *bases, k["base"], first, *(0,) * 9)

    def _new_vector(self, body: Mapping[str, Any]) -> int | None:
        op, engine = VectorOp.decoded(body), self._spec.vector
        if op.has_blocks and not (engine and engine.mx):
            return None
        if isinstance(op.test, Random) and not (engine and engine.random):
            return None
        self.has_functions |= op.function is not None
        return self._number("vector", _vector_numbers(op, body["constants"]))


def _operand_numbers(pattern: OperandPattern) -> list[int]:
    """The numbers of ``Operand`` in the library, with a base of 0."""
    numbers = [
        *(0, pattern.y, pattern.u, pattern.y_limit, pattern.u_limit),
        *(pattern.lanes_last, pattern.lanes_by_outer, pattern.subs, pattern.subs_last),
        *(pattern.blocks, pattern.pos.size - pattern.positions, pattern.walks_blocks),
        *(pattern.transposed, pattern.emit, pattern.emit_last, pattern.fp32),
    ]
    for loop_nest in (pattern.outer, pattern.tap, pattern.pos):
        for loop in loop_nest.loops:
            numbers += [loop.count, loop.address, loop.y, loop.u]
    return numbers


def _result_numbers(pattern: ResultPattern) -> list[int]:
    """The numbers of ``Result`` in the library, with a base of 0."""
    numbers = [0, pattern.u_limit, pattern.fp32]
    for loop_nest in (pattern.outer, pattern.pos):
        for loop in loop_nest.loops:
            numbers += [loop.count, loop.address, loop.u]
    return numbers


def _vector_numbers(op: VectorOp, constants: Sequence[Mapping[str, int]]) -> list[int]:
    """The numbers of ``VectorOp`` in the library, with bases of 0."""

    def padded(*steps: Steps) -> list[int]:
        return [
            step for each in steps for step in (*each, *(0,) * NUM_VECTOR_LOOPS)[:NUM_VECTOR_LOOPS]
        ]

    def source(part: Source) -> list[int]:
        limits = [0, part.y, part.u, part.y_limit, part.u_limit, part.format, part.broadcast]
        return [*limits, *padded(part.steps, part.y_steps, part.u_steps)]

    reduced = range(op.inner, op.inner + op.reduced)
    compared = op.test if isinstance(op.test, tuple) else None
    drawn = op.test if isinstance(op.test, Random) else Random()
    test = 1 if compared else 2 if isinstance(op.test, Random) else 0
    target = op.target
    return [
        *op.counts,
        prod(op.counts[: op.inner]) if op.reduced else 1,
        prod(op.counts[loop] for loop in reduced),
        op.reduced > 0,
        *source(op.x),
        *source(op.y or Source(0, u_limit=0)),
        op.y is not None,
        *(op.counter.base, *padded(op.counter.steps)),
        *(1 if loop in reduced else count for loop, count in enumerate(op.counts)),
        *(0, target.u, target.u_limit, target.format, *padded(target.steps, target.u_steps)),
        *(0, op.coefficients.pitch, op.coefficients.step, op.coefficients.number),
        *(op.takes_maximum, op.gives_index, op.negate_x, op.addend, op.negate_addend),
        *(op.factor, op.second, op.negate_second, test),
        *((compared[0], compared[1], compared[2]) if compared else (0, 0, 0)),
        *(op.then, op.otherwise, op.initial, op.relu, op.function or 0),
        *(drawn.threshold, 0, drawn.key),
        *(each["is_register"] for each in constants),
        *(
            constant.register if constant.register is not None else each["value"]
            for constant, each in zip(op.constants, constants, strict=True)
        ),
    ]
