"""Bit-exact model of the training core: runs a program on the bytes of its memory.

Instructions take effect one after the other, in program order. The hardware overlaps them, which is
allowed because semaphores order all instructions that use the same bytes. A program whose
semaphores do not do so has no defined result.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.instructions import (
    ErrorCode,
    Instruction,
    Opcode,
    engines_of,
    span_of,
)
from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS, Random, VectorOp
from fpgapipe.hw.hls_models.model import link_dma, vector
from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.model.dma import row_starts
from fpgapipe.hw.hls_models.model.link_dma import Packet
from fpgapipe.hw.hls_models.native.native_library import library
from fpgapipe.hw.hls_models.native.native_program import NativeProgram
from fpgapipe.hw.hls_models.numerics import fp32, mx
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS

_WORD = 64

_MOVES = frozenset({Opcode.LOAD, Opcode.STORE, Opcode.SEND, Opcode.RECEIVE})

_LONG = 256
"""Number of instructions from which on a program is prepared."""


class CoreError(Exception):
    """The core stopped with an error.

    Attributes
    ----------
    code : ErrorCode
        Content of the ERROR register.
    index : int
        Number of the instruction, from 0.
    """

    def __init__(self, code: ErrorCode, index: int, message: str) -> None:
        super().__init__(f"instruction {index}: {code.name}: {message}")
        self.code = code
        self.index = index


def _queues() -> list[deque[Packet]]:
    return [deque() for _ in range(NUM_CHANNELS)]


@dataclass
class LinkModelPort:
    """A core's end of a link.

    Attributes
    ----------
    out, inbox : list of deque of Packet
        Packets that the core has sent, and packets that have arrived for it; one queue for each
        channel, with the oldest packet first.
    """

    out: list[deque[Packet]] = field(default_factory=_queues)
    inbox: list[deque[Packet]] = field(default_factory=_queues)


class CoreModel:
    """A core and its memory.

    Parameters
    ----------
    spec : CoreSpec
    memory : uint8 array
        Memory that the core reads and writes; address 0 is its first byte.
    repeats : bool
        Whether a program is run many times, so that machine code pays even for a short one.

    Attributes
    ----------
    scratchpad : uint8 array
        Content of the scratchpad.
    accumulators : list of float32 arrays, shape (acc_depth, cols)
        Accumulators of each GEMM engine.
    nan : bool
        Whether a block of an operand was NaN.
    scalars : list of int
        Bits of the scalar registers, which a host sets.
    late : list of (int, Instruction)
        RECEIVEs that the program has reached and whose packets have not arrived, in their order.
    links : list of LinkModelPort
        Ends of the links. :mod:`fpgapipe.hw.hls_models.model.cluster` moves packets between them.
    """

    def __init__(self, spec: CoreSpec, memory: NDArray[np.uint8], *, repeats: bool = False) -> None:
        self.spec = spec
        self.repeats = repeats
        self.memory = memory
        self.scratchpad = np.zeros(spec.scratchpad.size_bytes, np.uint8)
        self.accumulators = [
            np.zeros((spec.acc_depth, spec.cols), np.float32) for _ in range(spec.num_engines)
        ]
        self.nan = False
        self.scalars = [0] * NUM_SCALARS
        self.links = [LinkModelPort() for _ in spec.links]
        self.late: list[tuple[int, Instruction]] = []
        self._engines = engines_of(
            spec.num_engines, has_vector=spec.vector is not None, num_links=len(spec.links)
        )
        self._datapath = DatapathSpec(spec.rows, spec.cols, spec.acc_depth, spec.form)
        self._prepared: NativeProgram | None = None

    def remains(self) -> bytes:
        """All that a program leaves to the next one, but the memory: scratchpad and accumulators.

        `set_remains` of a model of the same core takes it.
        """
        return b"".join(part.tobytes() for part in self._kept()) + bytes([self.nan])

    def set_remains(self, remains: bytes) -> None:
        """Take what an earlier program has left."""
        at = 0
        for part in self._kept():
            values = np.frombuffer(remains, part.dtype, part.size, at)
            part[:] = values.reshape(part.shape)
            at += part.nbytes
        self.nan = bool(remains[at])

    def _kept(self) -> list[NDArray[Any]]:
        return [self.scratchpad, *self.accumulators]

    def run(self, program: Sequence[Instruction], start: int = 0) -> int:
        """Run a program to its END, or to an instruction that needs a packet that has not arrived.

        A RECEIVE whose packet has not arrived is postponed until another instruction uses the bytes
        that it writes, because on the core it waits in a queue of its own. Only one into the
        scratchpad is not, so the packet must depend on nothing behind it in the program.

        Where there is a C++ compiler, a long program is prepared, and kept for its next run. This
        changes no bit of the results (:mod:`fpgapipe.hw.hls_models.native.native_program`).

        Parameters
        ----------
        program : sequence of Instruction
        start : int
            Number of the instruction to continue with.

        Returns
        -------
        int
            Number of the first instruction that has not been run: END, or one that needs a packet.
            It is the program's length if the program has no END.

        Raises
        ------
        CoreError
            If an instruction accesses bytes outside the memory or the scratchpad, a packet is not
            the one that a RECEIVE names, or an instruction has vectors in MXINT8 and the vector
            engine does not support them.
        """
        if prepared := self._prepared_for(program):
            return prepared.run(self, start)
        self.begin(start)
        for index in range(start, len(program)):
            instruction = program[index]
            if instruction.opcode == Opcode.END:
                return index
            if not self.puts_off(index, instruction):
                if not self.may_run(instruction):
                    return index
                self.execute(index, instruction)
        return len(program)

    def begin(self, start: int) -> None:
        """Continue a program, or, at its start, drop the previous program's postponed RECEIVEs."""
        if start == 0:
            self.late.clear()

    def puts_off(self, index: int, instruction: Instruction) -> bool:
        """Postpone a RECEIVE whose packet has not arrived, and return whether it was postponed."""
        body = instruction.body
        if instruction.opcode != Opcode.RECEIVE or body["in_scratchpad"]:
            return False
        if body["channel"] >= NUM_CHANNELS:
            return False
        link = instruction.engine
        self.catch_up()
        # The RECEIVEs of a link keep their order, whatever their channels.
        waits = any(other.engine == link for _, other in self.late)
        if not waits and self.links[link].inbox[body["channel"]]:
            return False
        self.late.append((index, instruction))
        return True

    def may_run(self, instruction: Instruction) -> bool:
        """Whether no postponed RECEIVE uses the bytes of an instruction.

        A RECEIVE into the scratchpad also needs its packet, since whoever uses its words is next.
        """
        body, link = instruction.body, instruction.engine
        if instruction.opcode == Opcode.RECEIVE and body["in_scratchpad"]:
            if not link_dma.first_error(self.spec, body, 0, 0)[0]:
                return True
            self.catch_up()
            waits = any(other.engine == link for _, other in self.late)
            return not waits and bool(self.links[link].inbox[body["channel"]])
        if not self.late or instruction.opcode not in _MOVES:
            return True
        self.catch_up()
        begin, end = span_of(instruction)
        spans = [span_of(other) for _, other in self.late]
        return not any(low < end and begin < high for low, high in spans)

    def catch_up(self) -> bool:
        """Run the postponed RECEIVEs that can run now, and return whether none is left."""
        stuck: set[int] = set()
        for each in self.late.copy():
            index, instruction = each
            link = instruction.engine
            if link in stuck or not self.links[link].inbox[instruction.body["channel"]]:
                stuck.add(link)
                continue
            self.late.remove(each)
            self.execute(index, instruction)
        return not self.late

    def _prepared_for(self, program: Sequence[Instruction]) -> NativeProgram | None:
        """The program for machine code; None if it is short, or there is no machine code."""
        if not self.repeats and len(program) < _LONG:
            return None
        if self._prepared is None or not self._prepared.is_of(program):
            if (found := library()) is None:
                return None
            self._prepared = NativeProgram(found, self.spec, program)
        return self._prepared

    def execute(self, index: int, instruction: Instruction) -> None:
        """Run a single instruction other than END; it raises the errors of `run`.

        The packet of a RECEIVE must have arrived.

        Parameters
        ----------
        index : int
            Number of the instruction, for errors.
        instruction : Instruction
        """
        opcode, engine, body = instruction.opcode, instruction.engine, instruction.body
        if opcode not in self._engines:
            raise CoreError(ErrorCode.BAD_OPCODE, index, f"the core has no {opcode.name}")
        if engine >= self._engines[opcode]:
            limit = f"must be in 0..{self._engines[opcode] - 1}, not {engine}"
            raise CoreError(ErrorCode.BAD_FIELD, index, f"{opcode.name} engine {limit}")
        try:
            if opcode == Opcode.LOAD:
                self._load(index, body)
            elif opcode == Opcode.STORE:
                self._store(index, body)
            elif opcode == Opcode.VECTOR:
                self._vector(index, body)
            elif opcode == Opcode.SEND:
                self._send(index, engine, body)
            elif opcode == Opcode.RECEIVE:
                self._receive(index, engine, body)
            else:
                assert opcode == Opcode.GEMM
                self._gemm(index, engine, body)
        except ValueError as error:  # fields that contradict each other
            raise CoreError(
                ErrorCode.BAD_FIELD, index, f"{opcode.name} of engine {engine}: {error}"
            ) from None

    def _vector(self, index: int, body: Mapping[str, Any]) -> None:
        op = VectorOp.decoded(body)
        if op.has_blocks and not (self.spec.vector and self.spec.vector.mx):
            raise CoreError(ErrorCode.BAD_FIELD, index, "the vector engine has no MXINT8")
        if isinstance(op.test, Random) and not (self.spec.vector and self.spec.vector.random):
            raise CoreError(ErrorCode.BAD_FIELD, index, "the vector engine has no random numbers")
        try:
            vector.run(op, self.scratchpad, self.scalars)
        except IndexError as error:
            raise CoreError(ErrorCode.SCRATCHPAD_RANGE, index, str(error)) from None

    def _send(self, index: int, link: int, body: Mapping[str, Any]) -> None:
        packet, code = link_dma.send(self.spec, body, self.memory, self.scratchpad)
        if code is not ErrorCode.NONE:
            raise CoreError(code, index, f"SEND of {body['row_bytes']} bytes a row")
        self.links[link].out[body["channel"]].append(packet)

    def _receive(self, index: int, link: int, body: Mapping[str, Any]) -> None:
        _, code = link_dma.first_error(self.spec, body, 0, self.memory.size)
        if code is ErrorCode.BAD_FIELD:
            raise CoreError(code, index, f"RECEIVE of {body['row_bytes']} bytes a row")
        packet = self.links[link].inbox[body["channel"]].popleft()
        code = link_dma.receive(self.spec, body, packet, self.memory, self.scratchpad)
        if code is not ErrorCode.NONE:
            raise CoreError(
                code,
                index,
                f"stream {packet.stream} of {len(packet.words)} words came for stream "
                f"{body['stream']} of {link_dma.words_of_packet(body)}",
            )

    def _load(self, index: int, body: Mapping[str, Any]) -> None:
        for source, target in row_starts(body):
            first = source // _WORD * _WORD
            size = -(-(source + body["row_bytes"]) // _WORD) * _WORD - first
            into = target // _WORD * _WORD
            self._check(index, self.memory, first, size, ErrorCode.MEMORY_RANGE)
            self._check(index, self.scratchpad, into, size, ErrorCode.SCRATCHPAD_RANGE)
            self.scratchpad[into : into + size] = self.memory[first : first + size]

    def _store(self, index: int, body: Mapping[str, Any]) -> None:
        size = body["row_bytes"]
        for target, source in row_starts(body):
            self._check(index, self.memory, target, size, ErrorCode.MEMORY_RANGE)
            self._check(index, self.scratchpad, source, size, ErrorCode.SCRATCHPAD_RANGE)
            self.memory[target : target + size] = self.scratchpad[source : source + size]

    @staticmethod
    def _check(
        index: int, space: NDArray[np.uint8], start: int, size: int, code: ErrorCode
    ) -> None:
        if not 0 <= start <= space.size - size:
            raise CoreError(code, index, f"{size} bytes at {start:#x} of {space.size:#x}")

    def _gemm(self, index: int, engine: int, body: Mapping[str, Any]) -> None:
        shape = body["extent"]
        m, k, n = (shape[name] + 1 for name in ("m", "k", "n"))
        a, a_codes = self._operand(index, body["a"])
        b, b_codes = self._operand(index, body["b"])
        self.nan = self.nan or bool(
            (a_codes == fp32.CODE_NAN).any() or (b_codes == fp32.CODE_NAN).any()
        )
        results = self._datapath.compute(
            m,
            k,
            n,
            a,
            a_codes,
            b,
            b_codes,
            self.accumulators[engine],
            first=bool(shape["first"]),
            last=bool(shape["last"]),
            acc_base=shape["acc_base"],
            acc_step=shape["acc_step"],
        )
        if results is not None:
            self._write(index, ResultPattern.decoded(body["result"]), results)

    def _operand(
        self, index: int, fields: Mapping[str, Any]
    ) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
        """Return the part of each block that goes to the array, and the blocks' codes."""
        try:
            vectors, sub = OperandPattern.decoded(fields).vectors(self.scratchpad)
        except IndexError as error:
            raise CoreError(ErrorCode.SCRATCHPAD_RANGE, index, str(error)) from None
        elements, codes = mx.quantise(vectors)
        rows = self.spec.rows
        at = sub[:, None] * rows + np.arange(rows)
        return np.take_along_axis(elements, at, axis=1), codes

    def _write(self, index: int, pattern: ResultPattern, results: NDArray[np.float32]) -> None:
        size = pattern.element_bytes
        columns = pattern.columns(self.spec.cols)
        addresses = pattern.addresses()[:, :, None] + np.arange(self.spec.cols) * size
        written = np.broadcast_to(columns[:, None, :], addresses.shape)
        at = addresses[written]
        if at.size and not (at.min() >= 0 and at.max() + size <= self.scratchpad.size):
            raise CoreError(
                ErrorCode.SCRATCHPAD_RANGE,
                index,
                f"results at {at.min():#x}..{at.max():#x} of {self.scratchpad.size:#x}",
            )
        values = results.reshape(addresses.shape)[written]
        if pattern.fp32:
            self.scratchpad.view("<u4")[at // 4] = values.view(np.uint32)
        else:
            self.scratchpad.view("<u2")[at // 2] = fp32.to_bf16(values)
