"""Groups: instructions of a kernel that are scheduled together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing, once_for_each_body
from fpgapipe.hw.hls_models.cycles.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import LINK_OPCODES, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.tiling.kernel import Track

    Numbers = NDArray[np.int64]

LINK_BYTES_PER_CYCLE = 16
"""Estimate of the speed of a transfer over a link, bytes per cycle."""


@dataclass(frozen=True)
class Groups:
    """The groups of all kernels of a program, one kernel behind the other.

    Attributes
    ----------
    program : Program
        The instructions of all kernels.
    begins : int array, shape (groups + 1,)
        Number of the first instruction of each group, and at last the number of all instructions.
    kernel : int array
        Number of each group's kernel.
    tracks : tuple of Track
        Track of each kernel.
    """

    program: Program
    begins: Numbers
    kernel: Numbers
    tracks: tuple[Track, ...]

    @classmethod
    def of(cls, programs: Sequence[Program], tracks: Sequence[Track]) -> Groups:
        """Divide the programs of kernels into groups."""
        own = [
            _begins(program.opcodes.tobytes(), track.is_link)
            for program, track in zip(programs, tracks, strict=True)
        ]
        firsts = np.cumsum([0, *map(len, programs)])
        sizes = list(map(len, own))
        begins = np.concatenate([np.zeros(0, np.int64), *own]) + np.repeat(firsts[:-1], sizes)
        kernel = np.repeat(np.arange(len(programs)), sizes)
        program = Program.joined(programs)
        return cls(program, np.append(begins, firsts[-1]), kernel, tuple(tracks))

    def __len__(self) -> int:
        return len(self.kernel)

    @property
    def sizes(self) -> Numbers:
        """Number of instructions of each group."""
        return np.diff(self.begins)

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether each group is the first of its kernel."""
        return np.diff(self.kernel, prepend=-1) > 0

    def cycles(self, core: CoreSpec) -> Numbers:
        """Estimate of each group's cycles."""
        return _sums(_cycles(self.program, core), self.begins)

    def places(self, order: Numbers) -> Numbers:
        """Numbers of the instructions in another order of the groups."""
        sizes = self.sizes[order]
        # Each group's first instruction, less the number of instructions before it, and a count.
        found = np.repeat(self.begins[order] - (np.cumsum(sizes) - sizes), sizes)
        return found + np.arange(len(found))


def _sums(values: Numbers, begins: Numbers) -> Numbers:
    """Sums of the values of each group."""
    until = np.concatenate([[0], np.cumsum(values)])
    found: Numbers = until[begins[1:]] - until[begins[:-1]]
    return found


@lru_cache(maxsize=1 << 10)
def _begins(opcodes: bytes, is_link: bool) -> Numbers:
    """Places where a new load or computation of a kernel begins, or a part of a transfer."""
    moves = (Opcode.LOAD, Opcode.STORE)
    if not is_link:
        assert opcodes[0] == Opcode.LOAD, "a kernel must begin with a load"
        assert opcodes[-1] in moves, "a kernel must end with a store or a load"
    found = [0]
    for place, (before, opcode) in enumerate(pairwise(opcodes), 1):
        if opcode == Opcode.VECTOR:
            begins = before == Opcode.STORE
        elif opcode in (Opcode.LOAD, Opcode.GEMM):
            begins = before != Opcode.LOAD
        else:
            begins = opcode != Opcode.STORE
        if begins:
            found.append(place)
    return np.array(found, np.int64)


def _cycles(program: Program, core: CoreSpec) -> Numbers:
    """Estimate of the cycles of each instruction; LOADs and STOREs take none."""
    found = np.zeros(len(program), np.int64)
    for opcode, work in ((Opcode.GEMM, _gemm_work), (Opcode.VECTOR, _vector_work)):
        places = program.places_of(opcode)
        # The time does not depend on how many random vectors are skipped.
        numbers, which = np.unique(program.body_of[places], return_inverse=True)
        each = [work(program.bodies[number], core) for number in numbers.tolist()]
        found[places] = np.array(each, np.int64)[which]
    packets = np.isin(program.opcodes, LINK_OPCODES)
    begin, end = (each[packets] for each in program.spans)
    found[packets] = (end - begin) // LINK_BYTES_PER_CYCLE
    return found


def _gemm_work(body: Mapping[str, Any], core: CoreSpec) -> int:
    """Estimate the cycles of a GEMM instruction."""
    return gemm_timing(body, core).stream_cycles


@once_for_each_body
def _vector_work(body: Mapping[str, Any], core: CoreSpec) -> int:
    """Estimate the cycles of a VECTOR instruction."""
    assert core.vector is not None, "a vector kernel needs a vector engine"
    return vector_cycles(VectorOp.decoded(body), core.vector, core.scratchpad.parts)
