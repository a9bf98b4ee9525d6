"""Cycles of the vector engine's lanes, which their gateware and the cycle model share.

Stages are counted from the beat at the input, which is stage 0.
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
"""Where the first sum has been computed: operands are registered twice, as they come and chosen."""

CHOICE_STAGE = FACTOR_STAGE + 1 + MULTIPLY_CYCLES + ADD_CYCLES
"""Where the second one has been."""

ELEMENT_STAGE = CHOICE_STAGE + 3
"""Where an element waits for what it is added to, or compared with."""

MAXIMUM_STAGE = ELEMENT_STAGE + 2
"""Where a maximum has been found."""

TOTAL_STAGE = ELEMENT_STAGE + ADD_CYCLES
"""Where a sum has been computed."""

RANDOM_CYCLES = 15
"""Latency of random bits: twelve rounds, and three additions of keys."""

LANES_CYCLES = TOTAL_STAGE + 1
"""From a beat to its result, without a function."""

MAXIMUM_CYCLES = MAXIMUM_STAGE + 1
"""From the last beat of a maximum to its result."""

SUM_CYCLES = TOTAL_STAGE + 1 - (ELEMENT_STAGE - 2)
"""From a beat of a sum, or a maximum, to the next of the same one: a sum is read two stages before
the addition, as it was written in an earlier cycle."""


def function_cycles(spec: VectorSpec) -> int:
    """How much longer a beat takes, from in to out, if there is a function."""
    return spec.lanes // spec.function_lanes + FUNCTION_CYCLES + 1


def cycles_per_result(spec: VectorSpec, *, has_function: bool) -> int:
    """Cycles between beats of results."""
    return spec.lanes // spec.function_lanes if has_function else 1


READ_CYCLES = 13
"""From an instruction's move to the engine to its first beat at the lanes: loops, scratchpad."""

WRITE_CYCLES = 3
"""From the last result to the signal that it has been written."""

BANK_CYCLES = ELEMENT_STAGE - 1
"""From the last beat that needs a bank of coefficients to the first that is written there."""


def vector_cycles(op: VectorOp, spec: VectorSpec) -> int:
    """Cycles of an instruction, from its move to the engine to its end.

    The scratchpad is taken to be ready whenever it is asked: each port has a bank of its own.
    Exact, unless an instruction has both coefficients and a function: then within a tenth.
    """
    beats = LANES // spec.lanes
    inner = beats * prod(op.counts[: op.inner])
    reduced = prod(op.counts[op.inner : op.inner + op.reduced])
    sums = op.num_results * beats // inner
    has_function = op.function is not None
    each = cycles_per_result(spec, has_function=has_function)
    # The first element of a sum waits for nothing, the others for those before them.
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
    return READ_CYCLES + stream + latency + WRITE_CYCLES


def meeting_cycles(op: VectorOp, spec: VectorSpec, scratchpad: ScratchpadSpec) -> int:
    """Cycles that an instruction takes longer because X and Y lie in the same memories.

    A bank is a memory of even words and one of odd words, and a vector of X that needs what one of
    Y needs waits a cycle. What counts is where both begin; operands that do not go on by the same
    steps meet now and then, which is not counted.
    """
    y = op.y
    if y is None or op.x.steps != y.steps or op.x.format is not y.format:
        return 0
    words = [divmod(base, WORD_BYTES) for base in (op.x.base, y.base)]
    banks = [base // scratchpad.bank_bytes for base in (op.x.base, y.base)]
    whole = all(offset == 0 for _, offset in words)
    if banks[0] != banks[1] or (whole and (words[0][0] - words[1][0]) % 2):
        return 0
    # A beat that takes several cycles leaves time for both.
    has_function = op.function is not None
    is_free = LANES // spec.lanes > 1 or cycles_per_result(spec, has_function=has_function) > 1
    return 0 if is_free else op.num_vectors


def _with_coefficients(steps: int, step: int, moving: int, written: int) -> int:
    """Cycles of all beats and of coefficients, of which there are two banks.

    Parameters
    ----------
    steps : int
        Of the outermost loop.
    step, moving : int
        Cycles of each without coefficients, and of those the ones in which the lanes move.
    written : int
        Cycles in which coefficients are written.
    """
    if step + written < BANK_CYCLES:
        pairs, odd = divmod(steps - 1, 2)
        return (pairs + 1 + odd) * (step + written) + pairs * BANK_CYCLES
    # While results wait for the function, coefficients are written all the same: of the cycles that
    # this takes, as many are lost as the lanes move in.
    half = (step - written) / 2
    # Lanes that have run empty meanwhile need a cycle to begin again.
    again = (steps - 1) * (written > LANES_CYCLES)
    return round(steps * (step + sqrt(half * half + written * moving) - half)) + again
