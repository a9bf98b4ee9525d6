"""Cycles of the vector engine's lanes, shared by their gateware and the cycle model.

Pipeline stages are counted from the beat at the input, which is in stage 0.
"""

from math import prod, sqrt

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, VectorOp
from fpgapipe.hw.hls_models.numerics.fp32 import ADD_CYCLES, MULTIPLY_CYCLES
from fpgapipe.hw.hls_models.numerics.function import FUNCTION_CYCLES
from fpgapipe.hw.hls_models.numerics.mx import HALVES_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec, VectorSpec

FACTOR_STAGE = 2 + ADD_CYCLES
"""Stage in which the first sum is ready; operands are registered twice before it is computed, when
they arrive and when they have been chosen."""

CHOICE_STAGE = FACTOR_STAGE + 1 + MULTIPLY_CYCLES + ADD_CYCLES
"""Stage in which the second sum is ready."""

ELEMENT_STAGE = CHOICE_STAGE + 3
"""Stage of an element before it is added to a sum or compared with a maximum."""

MAXIMUM_STAGE = ELEMENT_STAGE + 2
"""Stage in which a maximum is ready."""

TOTAL_STAGE = ELEMENT_STAGE + ADD_CYCLES
"""Stage in which a sum of elements is ready."""

RANDOM_CYCLES = 15
"""Latency of random bits: twelve rounds, and three additions of keys."""

LANES_CYCLES = TOTAL_STAGE + 1
"""Cycles from a beat to its result, without a function."""

MAXIMUM_CYCLES = MAXIMUM_STAGE + 1
"""Cycles from the last beat of a maximum to its result."""

SUM_CYCLES = TOTAL_STAGE + 1 - (ELEMENT_STAGE - 2)
"""Cycles from a beat of a sum or maximum to the next beat of the same one. A sum is read two stages
before the addition, and must have been written in an earlier cycle."""


def function_cycles(spec: VectorSpec) -> int:
    """Cycles that a function adds to the latency of a beat."""
    return spec.lanes // spec.function_lanes + FUNCTION_CYCLES + 1


def cycles_per_result(spec: VectorSpec, *, has_function: bool) -> int:
    """Cycles between beats of results."""
    return spec.lanes // spec.function_lanes if has_function else 1


READ_CYCLES = 13
"""Cycles from an instruction's move to the engine to its first beat at the lanes, for the loops and
the scratchpad."""

WRITE_CYCLES = 3
"""Cycles from the last result to the signal that it has been written."""

BANK_CYCLES = ELEMENT_STAGE - 1
"""Cycles from the last beat that needs a bank of coefficients to the first write to that bank."""


def vector_cycles(op: VectorOp, spec: VectorSpec, parts: int = 1) -> int:
    """Cycles of an instruction, from its move to the engine to its end.

    `parts` are the cycles in which a port of the scratchpad writes a vector.

    The scratchpad is assumed to be always ready, as if each port had a bank of its own. The result
    is exact, except for an instruction with both coefficients and a function, where it is right to
    within a tenth.
    """
    beats = LANES // spec.lanes
    inner = beats * prod(op.counts[: op.inner])
    reduced = prod(op.counts[op.inner : op.inner + op.reduced])
    sums = op.num_results * beats // inner
    has_function = op.function is not None
    each = cycles_per_result(spec, has_function=has_function)
    # The first element of a sum does not wait; each other one waits for the one before it.
    first = (reduced - 1) * max(inner, SUM_CYCLES) + 1
    further = max(first, each) + (inner - 1) * each
    if op.coefficients.number:
        steps = op.counts[-1]
        step = further * sums // steps
        moving = op.num_vectors * beats // steps if has_function else step
        stream = _with_coefficients(steps, step, moving, op.coefficients.number * beats)
    else:
        stream = first + (inner - 1) * each + (sums - 1) * further
    latency = MAXIMUM_CYCLES if op.takes_maximum else LANES_CYCLES
    latency += function_cycles(spec) if has_function else 0
    latency += HALVES_CYCLES if op.target.format is Format.MXINT8 else 0
    return READ_CYCLES + stream + latency + WRITE_CYCLES + parts - 1


def meeting_cycles(op: VectorOp, spec: VectorSpec, scratchpad: ScratchpadSpec) -> int:
    """Additional cycles of an instruction whose operands X and Y are in the same memories.

    A bank consists of a memory of even words and one of odd words. A vector of X that needs the
    same memory as one of Y waits for a cycle. A narrow port reads the parts of a word from both
    memories, and vectors of the same bank come one after the other. Only the base addresses are
    compared: operands that move by different steps also meet now and then, which is not counted.
    """
    y = op.y
    if y is None or op.x.steps != y.steps or op.x.format is not y.format:
        return 0
    words = [divmod(base, WORD_BYTES) for base in (op.x.base, y.base)]
    banks = [base // scratchpad.bank_bytes for base in (op.x.base, y.base)]
    parts = scratchpad.parts
    whole = parts == 1 and all(offset == 0 for _, offset in words)
    if banks[0] != banks[1] or (whole and (words[0][0] - words[1][0]) % 2):
        return 0
    # If vectors are further apart than one operand's reads, there is time for those of both.
    pace = LANES // spec.lanes * cycles_per_result(spec, has_function=op.function is not None)
    return max(2 * parts - pace, 0) * op.num_vectors


def _with_coefficients(steps: int, step: int, moving: int, written: int) -> int:
    """Cycles of all beats and of writing the coefficients, which have two banks.

    Parameters
    ----------
    steps : int
        Iterations of the outermost loop.
    step, moving : int
        Cycles of an iteration without coefficients, and the number of them in which the lanes move.
    written : int
        Cycles in which the coefficients of an iteration are written.
    """
    if step + written < BANK_CYCLES:
        pairs, odd = divmod(steps - 1, 2)
        return (pairs + 1 + odd) * (step + written) + pairs * BANK_CYCLES
    # Coefficients are also written while results wait for the function. Of the cycles that writing
    # takes, only those are lost in which the lanes would have moved.
    half = (step - written) / 2
    # Lanes that have run empty meanwhile need one more cycle to start again.
    again = (steps - 1) * (written > LANES_CYCLES)
    return round(steps * (step + sqrt(half * half + written * moving) - half)) + again
