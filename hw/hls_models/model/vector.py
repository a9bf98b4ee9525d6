"""Bit-exact model of the vector engine: the results of VECTOR instructions.

:mod:`fpgapipe.hw.hls_models.isa.vector_op` defines the instructions.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.vector_fields import (
    COUNTER_BITS,
    NUM_COEFFICIENTS,
    NUM_CONSTANTS,
    NUM_VECTOR_LOOPS,
    Format,
)
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Addend,
    Choice,
    Factor,
    Initial,
    Left,
    Outcome,
    Random,
    Right,
    Second,
    Source,
    Steps,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics import fp32, mx
from fpgapipe.hw.hls_models.numerics.function import apply
from fpgapipe.hw.hls_models.numerics.threefry import lane_bits

_NOTHING = np.float32(-0.0)
_ONE = np.float32(1)
_LANE = np.arange(LANES)
_ELEMENT_BYTES = {Format.BF16: 2, Format.FP32: 4, Format.MXINT8: mx.BLOCK_BYTES}
"""Bytes that are written together: an element, or in MXINT8 a block."""


def run(op: VectorOp, scratchpad: NDArray[np.uint8], scalars: Sequence[int] = ()) -> None:
    """Run an instruction on a scratchpad.

    The model reads everything before it writes anything. Hardware reads ahead of its writes by an
    unspecified distance, so a program must not depend on it.

    Parameters
    ----------
    op : VectorOp
    scratchpad : uint8 array
        Content of the scratchpad, which is changed.
    scalars : sequence of int
        Bits of the scalar registers.

    Raises
    ------
    IndexError
        If a vector with a valid lane begins outside the scratchpad, or a result is to be written
        outside.
    """
    values = results(op, scratchpad, scalars)
    there, at = _written(op)
    size = _ELEMENT_BYTES[op.target.format]
    if at.size and not (at.min() >= 0 and at.max() + size <= scratchpad.size):
        raise IndexError(
            f"vector results at {at.min():#x}..{at.max():#x} must lie in the scratchpad's "
            f"{scratchpad.size:#x} bytes"
        )
    halves = scratchpad.view("<u2")
    if op.target.format is Format.MXINT8:
        blocks = mx.pack(np.where(there, values, np.float32(0)).reshape(-1, mx.MX_BLOCK))
        written = blocks[_blocks(there)].view("<u2")
        halves[at[:, None] // 2 + np.arange(mx.BLOCK_BYTES // 2)] = written
    elif op.target.format is Format.FP32:
        bits = fp32.flush(values[there]).view(np.uint32)
        halves[at // 2] = bits & np.uint32(0xFFFF)
        halves[at // 2 + 1] = bits >> np.uint32(16)
    else:
        halves[at // 2] = fp32.to_bf16(values[there])


def _blocks(there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which blocks have a valid lane."""
    return np.asarray(there.reshape(-1, mx.MX_BLOCK).any(axis=1))


def _written(op: VectorOp) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which lanes of the results are valid, and the byte addresses of these or their blocks.

    There is one address per valid lane, or in MXINT8 one per block with a valid lane.
    """
    target = op.target
    first = _last_of_sums(op, _along(op, target.steps)) + target.base
    u = (_last_of_sums(op, _along(op, target.u_steps)) + target.u)[:, None] + _LANE
    there = (u >= 0) & (u < target.u_limit)
    if target.format is Format.MXINT8:
        return there, first[::2][_blocks(there)]
    return there, (first[:, None] + _LANE * _ELEMENT_BYTES[target.format])[there]


def results(
    op: VectorOp, scratchpad: NDArray[np.uint8], scalars: Sequence[int] = ()
) -> NDArray[np.float32]:
    """Compute the results in FP32, shape (num_results, 16), without writing them."""
    x, there = _read(op, scratchpad, op.x)
    y = _read(op, scratchpad, op.y)[0] if op.y else np.zeros((1, LANES), np.float32)
    c = [_constant(op, number, scalars) for number in range(NUM_CONSTANTS)]
    k = _coefficients(op, scratchpad)

    addends = {
        Addend.NOTHING: _NOTHING,
        Addend.Y: -y if op.negate_addend else y,
        Addend.COEFFICIENT: k[0],
        Addend.CONSTANT: c[0],
    }
    d = fp32.add(-x if op.negate_x else x, np.asarray(addends[op.addend]))
    factors = {
        Factor.ONE: _ONE,
        Factor.SELF: d,
        Factor.Y: y,
        Factor.COEFFICIENT: k[1],
        Factor.CONSTANT: c[1],
    }
    p = fp32.multiply(d, np.asarray(factors[op.factor]))
    q = np.asarray(_NOTHING)
    if op.second is not Second.NOTHING:
        seconds = {
            Second.Y: _ONE,
            Second.SQUARE: y,
            Second.COEFFICIENT: k[2],
            Second.CONSTANT: c[2],
        }
        q = fp32.multiply(y, np.asarray(seconds[op.second]))
        q = -q if op.negate_second else q
    s = fp32.add(p, q)
    choices = {
        Choice.S: s,
        Choice.X: x,
        Choice.Y: y,
        Choice.COEFFICIENT: k[3],
        Choice.CONSTANT: c[3],
        Choice.ZERO: np.zeros((), np.float32),
    }
    t = np.where(_test(op, x, y, s, k[3], c[3], scalars), choices[op.then], choices[op.otherwise])
    t = np.broadcast_to(fp32.flush(t), x.shape)
    initial = {
        Initial.NOTHING: np.asarray(_NOTHING),
        Initial.COEFFICIENT: k[3],
        Initial.CONSTANT: c[4],
    }[op.initial]
    if not op.reduced:
        r = fp32.add(t, initial)
    elif op.takes_maximum:
        r = _maximum(op, t, there)
    else:
        r = _sum(op, t, there, np.broadcast_to(initial, x.shape))
    if op.relu:
        r = np.where(np.signbit(r), np.float32(0), r)
    if op.function is not None:
        r = apply(op.function, r)
    return np.asarray(r)


def _along(op: VectorOp, steps: Steps) -> NDArray[np.int64]:
    """Distance by which the loops have moved a number at each vector."""
    total = np.zeros(1, np.int64)
    for count, step in zip(op.counts, (*steps, *(0,) * NUM_VECTOR_LOOPS), strict=False):
        total = (np.arange(count, dtype=np.int64)[:, None] * step + total).reshape(-1)
    return total


def _nested(op: VectorOp, values: NDArray[Any]) -> NDArray[Any]:
    """Reshape an array with one entry per vector to ``outer x reduced x inner``."""
    inner = prod(op.counts[: op.inner])
    reduced = prod(op.counts[op.inner : op.inner + op.reduced])
    return values.reshape(-1, reduced, inner, *values.shape[1:])


def _last_of_sums(op: VectorOp, values: NDArray[Any]) -> NDArray[Any]:
    """Select the entries of the vectors that end a sum: one for each result."""
    return _nested(op, values)[:, -1].reshape(-1, *values.shape[1:])


def _read(
    op: VectorOp, scratchpad: NDArray[np.uint8], source: Source
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the vectors of a source, and which of their lanes are valid."""
    address = source.base + _along(op, source.steps)
    y = source.y + _along(op, source.y_steps)
    u = (source.u + _along(op, source.u_steps))[:, None] + _LANE
    there = ((y >= 0) & (y < source.y_limit))[:, None] & (u >= 0) & (u < source.u_limit)
    used = there.any(axis=1)
    outside = used & ((address < 0) | (address >= scratchpad.size))
    if outside.any():
        raise IndexError(
            f"vector address must be in 0..{scratchpad.size - 1}, not {address[outside][0]}"
        )
    address = np.where(used, address, 0)[:, None]
    if source.format is Format.MXINT8:
        at = address // 2 * 2 + np.arange(mx.BLOCK_BYTES)
        blocks = mx.unpack(scratchpad[at % scratchpad.size])
        values = np.take_along_axis(blocks, address % 2 * LANES + _LANE, axis=1)
        return np.where(there, values, np.float32(0)), there
    is_fp32 = source.format is Format.FP32
    size = 2 if is_fp32 else 1  # in halves of 16 bits
    halves = scratchpad.view("<u2")
    at = address // 2 + (0 if source.broadcast else _LANE * size)
    upper = halves[(at + size - 1) % halves.size].astype(np.uint32) << np.uint32(16)
    bits = upper | halves[at % halves.size] if is_fp32 else upper
    return np.where(there, bits, np.uint32(0)).astype(np.uint32).view(np.float32), there


def _constant(op: VectorOp, number: int, scalars: Sequence[int]) -> NDArray[np.float32]:
    if number >= len(op.constants):
        return np.zeros((), np.float32)
    constant = op.constants[number]
    if constant.register is None:
        return np.asarray(constant.value, np.float32)
    return np.asarray(scalars[constant.register], np.uint32).view(np.float32)


def _coefficients(op: VectorOp, scratchpad: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
    """Return ``k0`` to ``k3`` for each vector; coefficients that are not read are zeros."""
    steps = op.counts[-1]
    found = []
    for number in range(op.coefficients.number):
        source = Source(
            op.coefficients.base + number * op.coefficients.pitch,
            steps=(*(0,) * (NUM_VECTOR_LOOPS - 1), op.coefficients.step),
        )
        each = VectorOp((1,) * (NUM_VECTOR_LOOPS - 1) + (steps,), source, Target(0))
        values, _ = _read(each, scratchpad, source)
        found.append(np.repeat(values, op.num_vectors // steps, axis=0))
    zeros = np.zeros((1, LANES), np.float32)
    return [*found, *[zeros] * (NUM_COEFFICIENTS - len(found))]


def drawn_lanes(op: VectorOp, scalars: Sequence[int]) -> NDArray[np.bool_]:
    """Return the outcomes of a random test, shape (num_vectors, 16)."""
    assert isinstance(op.test, Random), "nothing is drawn"
    key = (scalars[op.test.key], scalars[op.test.key + 1])
    drawn: NDArray[np.bool_] = lane_bits(key, op.test.first, op.num_vectors) < op.test.threshold
    return drawn


def _counted(op: VectorOp) -> NDArray[np.float32]:
    """Return the counter's value at each vector."""
    values = op.counter.base + _along(op, op.counter.steps)
    return (values % (1 << COUNTER_BITS)).astype(np.float32)


def _test(
    op: VectorOp,
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    s: NDArray[np.float32],
    k: NDArray[np.float32],
    c: NDArray[np.float32],
    scalars: Sequence[int],
) -> NDArray[np.bool_]:
    if op.test is None:
        return np.zeros((1, 1), np.bool_)
    if isinstance(op.test, Random):
        return drawn_lanes(op, scalars)
    left, outcomes, right = op.test
    a = fp32.flush({Left.X: x, Left.Y: y, Left.S: s}[left])
    rights = {
        Right.Y: y,
        Right.COEFFICIENT: k,
        Right.CONSTANT: c,
        Right.COUNTER: _counted(op)[:, None],
    }
    b = fp32.flush(rights[right])
    held = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_)
    if outcomes & Outcome.LESS:
        held |= a < b
    if outcomes & Outcome.EQUAL:
        held |= a == b
    if outcomes & Outcome.GREATER:
        held |= a > b
    if outcomes & Outcome.UNORDERED:
        held |= np.isnan(a) | np.isnan(b)
    return held


def _sum(
    op: VectorOp,
    t: NDArray[np.float32],
    there: NDArray[np.bool_],
    initial: NDArray[np.float32],
) -> NDArray[np.float32]:
    elements = _nested(op, np.where(there, t, _NOTHING))
    total = _nested(op, initial)[:, 0]
    for number in range(elements.shape[1]):
        total = fp32.add(total, elements[:, number])
    return total.reshape(-1, LANES)


def _maximum(op: VectorOp, t: NDArray[np.float32], there: NDArray[np.bool_]) -> NDArray[np.float32]:
    elements, present, counted = (_nested(op, each) for each in (t, there, _counted(op)))
    best = np.full(elements[:, 0].shape, -np.inf, np.float32)
    index = np.zeros(best.shape, np.float32)
    found = np.zeros(best.shape, np.bool_)
    for number in range(elements.shape[1]):
        element = elements[:, number]
        better = present[:, number] & (~found | (element > best) | np.isnan(element))
        best = np.where(better, element, best)
        index = np.where(better, counted[:, number, :, None], index)
        found |= better
    return (index if op.gives_index else best).reshape(-1, LANES)
