"""Groups: instructions of a kernel that are scheduled together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fpgapipe.hw.hls_models.cycles.instruction_cycles import gemm_timing, once_for_each_body
from fpgapipe.hw.hls_models.cycles.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode, Span, span_of
from fpgapipe.hw.hls_models.isa.vector_op import VectorOp
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.tiling.kernel import Track

LINK_BYTES_PER_CYCLE = 16
"""Estimate of the speed of a transfer over a link, bytes per cycle."""


@dataclass
class Group:
    """Consecutive instructions of a kernel that are scheduled together.

    Attributes
    ----------
    kernel : int
    track : Track
    first : bool
        Whether it is the first group of its kernel.
    instructions : list of Instruction
    after : dict of Track to int
        Number of groups of each other track that must come before this group.
    """

    kernel: int
    track: Track
    first: bool
    instructions: list[Instruction] = field(default_factory=list)
    after: dict[Track, int] = field(default_factory=dict)

    def spans(self, opcodes: frozenset[Opcode]) -> list[Span]:
        """Memory spans of the instructions with the given opcodes."""
        return [span_of(each) for each in self.instructions if each.opcode in opcodes]

    def comes_after(self, track: Track, number: int) -> None:
        """Require that at least `number` groups of a track come before this group."""
        self.after[track] = max(self.after.get(track, 0), number)

    def cycles(self, core: CoreSpec, known: dict[int, int]) -> int:
        """Estimate the group's cycles; `known` caches the cycles of instruction bodies by id."""
        total = 0
        for instruction in self.instructions:
            if instruction.opcode in (Opcode.GEMM, Opcode.VECTOR):
                # The time does not depend on how many random vectors are skipped.
                origin = instruction.origin or instruction
                body = origin.body
                if id(body) not in known:
                    work = _gemm_work if origin.opcode is Opcode.GEMM else _vector_work
                    known[id(body)] = work(body, core)
                total += known[id(body)]
            elif self.track.is_link:
                begin, end = span_of(instruction)
                total += (end - begin) // LINK_BYTES_PER_CYCLE
        return total


def _gemm_work(body: Mapping[str, Any], core: CoreSpec) -> int:
    """Estimate the cycles of a GEMM instruction."""
    return gemm_timing(body, core).stream_cycles


@once_for_each_body
def _vector_work(body: Mapping[str, Any], core: CoreSpec) -> int:
    """Estimate the cycles of a VECTOR instruction."""
    assert core.vector is not None, "a vector kernel needs a vector engine"
    return vector_cycles(VectorOp.decoded(body), core.vector, core.scratchpad.parts)
