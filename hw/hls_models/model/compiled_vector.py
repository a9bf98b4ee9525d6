"""Loops of VECTOR instructions and transfers as machine code, for prepared programs.

:mod:`fpgapipe.hw.hls_models.model.vector` and `CoreModel` define the results. This module needs
numba. An instruction is represented by an array of numbers, so that all instructions share the
code.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import NUM_VECTOR_LOOPS, Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Addend,
    Choice,
    Factor,
    Initial,
    Left,
    Random,
    Right,
    Second,
    Source,
    VectorOp,
)
from fpgapipe.hw.hls_models.model.compiled_gemm import quantise_block
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN
from fpgapipe.hw.hls_models.numerics.mx import ELEMENT_FRACTION_BITS, MX_BLOCK
from fpgapipe.machine_code import compiled

_LEAST = np.float32(2.0**-126)
_NAN = np.float32(np.nan)
_ZERO = np.float32(0)
_NOTHING = np.float32(-0.0)
_ONE = np.float32(1)
_LOWEST = np.float32(-np.inf)
_VANISHING = 2.0**-126 - 2.0**-151

_STEPS = np.ldexp(1.0, np.arange(256) - CODE_BIAS - ELEMENT_FRACTION_BITS)
_STEPS[CODE_NAN] = np.nan
"""Value of one step of an MXINT8 element, by its block's code."""

_NUM_MOVED = 7
"""Count of the numbers that the loops move: address, y and u of both sources, and the counter."""

# Enumerations are integers in machine code.
_FP32, _MXINT8 = int(Format.FP32), int(Format.MXINT8)
_ADD_Y, _ADD_K, _ADD_C = int(Addend.Y), int(Addend.COEFFICIENT), int(Addend.CONSTANT)
_BY_SELF, _BY_Y = int(Factor.SELF), int(Factor.Y)
_BY_K, _BY_C = int(Factor.COEFFICIENT), int(Factor.CONSTANT)
_SECOND_SQUARE = int(Second.SQUARE)
_SECOND_K, _SECOND_C = int(Second.COEFFICIENT), int(Second.CONSTANT)
_LEFT_X, _LEFT_Y = int(Left.X), int(Left.Y)
_RIGHT_Y, _RIGHT_K, _RIGHT_C = int(Right.Y), int(Right.COEFFICIENT), int(Right.CONSTANT)
_S, _X, _Y = int(Choice.S), int(Choice.X), int(Choice.Y)
_K, _C = int(Choice.COEFFICIENT), int(Choice.CONSTANT)
_FROM_K, _FROM_C = int(Initial.COEFFICIENT), int(Initial.CONSTANT)


def _jumps(counts: Sequence[int], *numbers: Sequence[int]) -> NDArray[np.int64]:
    """Return what is added to each number when a loop steps and all inside it start again."""
    jumps = np.zeros((len(counts), len(numbers)), np.int64)
    for which, steps in enumerate(numbers):
        moved = 0
        for loop, count in enumerate(counts):
            step = steps[loop] if loop < len(steps) else 0
            jumps[loop, which] = step - moved
            moved += (count - 1) * step
    return jumps


def vector_numbers(op: VectorOp) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of an instruction that `compute_vector` takes, and its loops' jumps."""
    x, y = op.x, op.y or Source(0, u_limit=0)
    compared = op.test if isinstance(op.test, tuple) else None
    inner = int(np.prod(op.counts[: op.inner], dtype=np.int64))
    numbers = [
        *op.counts,
        *(x.base, x.y, x.u, y.base, y.y, y.u, op.counter.base),
        *(x.y_limit, x.u_limit, x.format, x.broadcast),
        *(y.y_limit, y.u_limit, y.format, y.broadcast),
        *(inner, op.num_vectors // op.num_results, op.reduced > 0),
        *(op.takes_maximum, op.gives_index, op.negate_x, op.addend, op.negate_addend),
        *(op.factor, op.second, op.negate_second),
        1 if compared else 2 if isinstance(op.test, Random) else 0,
        *((compared[0], compared[1], compared[2]) if compared else (0, 0, 0)),
        *(op.then, op.otherwise, op.initial, op.relu),
        *(op.coefficients.base, op.coefficients.pitch, op.coefficients.step),
        op.coefficients.number,
    ]
    jumps = _jumps(
        op.counts,
        *(x.steps, x.y_steps, x.u_steps),
        *(y.steps, y.y_steps, y.u_steps),
        op.counter.steps,
    )
    return np.array([int(number) for number in numbers], np.int64), jumps


def target_numbers(op: VectorOp) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers and jumps of an instruction's target that `write_vectors` takes."""
    reduced = range(op.inner, op.inner + op.reduced)
    counts = [1 if loop in reduced else count for loop, count in enumerate(op.counts)]
    target = op.target
    numbers = [*counts, target.base, target.u, target.u_limit, int(target.format)]
    return np.array(numbers, np.int64), _jumps(counts, target.steps, target.u_steps)


@compiled
def _flush(x: np.float32) -> np.float32:
    x = x * _ZERO if abs(x) < _LEAST else x
    return x if x == x else _NAN


@compiled
def _add(a: np.float32, b: np.float32) -> np.float32:
    return _flush(a + b)


@compiled
def _multiply(a: np.float32, b: np.float32) -> np.float32:
    exact = np.float64(a) * np.float64(b)
    exact = exact * 0.0 if abs(exact) < _VANISHING else exact
    rounded = np.float32(exact)
    return rounded if rounded == rounded else _NAN


@compiled
def _read_half(
    halves: NDArray[np.uint16],
    address: int,
    low: int,
    high: int,
    values: NDArray[np.float32],
    row: int,
) -> None:
    """Read lanes `low` to `high` of half an MXINT8 block."""
    start = address // 2
    step = _STEPS[halves[(start + MX_BLOCK // 2) % halves.size] & np.uint16(255)]
    for lane in range(low, high):
        element = address % 2 * LANES + lane
        pair = np.int64(halves[(start + element // 2) % halves.size])
        byte = pair >> 8 if element % 2 else pair & 255
        values[row, lane] = _flush(np.float32((byte - 256 if byte > 127 else byte) * step))


@compiled
def _read(
    halves: NDArray[np.uint16],
    address: int,
    low: int,
    high: int,
    layout: int,
    broadcast: bool,
    bits: NDArray[np.uint32],
    values: NDArray[np.float32],
    row: int,
) -> bool:
    """Read lanes `low` to `high` of a vector, with subnormals flushed; False if it lies outside."""
    for lane in range(LANES):
        bits[row, lane] = 0
    if high <= low:
        return True
    if address < 0 or address >= 2 * halves.size:
        return False
    if layout == _MXINT8:
        _read_half(halves, address, low, high, values, row)
        return True
    start = address // 2
    size = 2 if layout == _FP32 else 1
    for lane in range(low, high):
        at = start if broadcast else start + lane * size
        at = at if at < halves.size else at - halves.size
        if layout == _FP32:
            after = at + 1 if at + 1 < halves.size else 0
            upper = np.uint32(halves[after])
            bits[row, lane] = upper << np.uint32(16) | np.uint32(halves[at])
        else:
            bits[row, lane] = np.uint32(halves[at]) << np.uint32(16)
    for lane in range(low, high):
        values[row, lane] = _flush(values[row, lane])
    return True


@compiled
def compute_vector(
    numbers: NDArray[np.int64],
    jumps: NDArray[np.int64],
    constants: NDArray[np.float32],
    drawn: NDArray[np.bool_],
    halves: NDArray[np.uint16],
    out: NDArray[np.float32],
) -> bool:
    """Compute an instruction's results, without applying its function.

    Parameters
    ----------
    numbers, jumps
        Results of `vector_numbers`.
    constants : float32 array, shape (5,)
        The constants, with subnormals flushed.
    drawn : bool array, shape (num_vectors, 16)
        Outcomes of a random test; empty if there is none.
    halves : uint16 array
        The scratchpad.
    out : float32 array, shape (num_results, 16)
        Output: the results.

    Returns
    -------
    bool
        Whether all vectors that are read begin in the scratchpad.
    """
    x_y_limit, x_u_limit, x_format = numbers[13], numbers[14], numbers[15]
    x_broadcast = numbers[16]
    y_y_limit, y_u_limit, y_format = numbers[17], numbers[18], numbers[19]
    y_broadcast = numbers[20]
    inner, length, reduces = numbers[21], numbers[22], numbers[23]
    takes_maximum, gives_index = numbers[24], numbers[25]
    negate_x, addend, negate_addend = numbers[26], numbers[27], numbers[28]
    factor, second, negate_second = numbers[29], numbers[30], numbers[31]
    tests, left, outcomes = numbers[32], numbers[33], numbers[34]
    right, then, otherwise = numbers[35], numbers[36], numbers[37]
    initial, relu = numbers[38], numbers[39]
    k_base, k_pitch, k_step = numbers[40], numbers[41], numbers[42]
    num_k = numbers[43]

    now = numbers[6:13].copy()
    turns = np.zeros(NUM_VECTOR_LOOPS, np.int64)
    bits = np.zeros((6, LANES), np.uint32)
    values = bits.view(np.float32)
    counted = np.zeros((inner, LANES), np.float32)
    found = np.zeros((inner, LANES), np.bool_)
    last_step = -1
    # The rows of `values` are X, Y and k0 to k3.
    c0, c1, c2, c3, c4 = constants[0], constants[1], constants[2], constants[3], constants[4]
    num_vectors = out.shape[0] * length
    for vector in range(num_vectors):
        if num_k and turns[NUM_VECTOR_LOOPS - 1] != last_step:
            last_step = turns[NUM_VECTOR_LOOPS - 1]
            for number in range(num_k):
                address = k_base + number * k_pitch + last_step * k_step
                if not _read(halves, address, 0, LANES, _FP32, False, bits, values, 2 + number):
                    return False
        low, high = max(0, -now[2]), min(LANES, x_u_limit - now[2])
        if not 0 <= now[1] < x_y_limit:
            high = 0
        if not _read(halves, now[0], low, high, x_format, x_broadcast != 0, bits, values, 0):
            return False
        y_low, y_high = max(0, -now[5]), min(LANES, y_u_limit - now[5])
        if not 0 <= now[4] < y_y_limit:
            y_high = 0
        if not _read(halves, now[3], y_low, y_high, y_format, y_broadcast != 0, bits, values, 1):
            return False
        count = np.float32(now[6] & 255)
        if reduces:
            place = vector % inner
            step = vector // inner % length
            row = vector // inner // length * inner + place
        else:
            place, step, row = 0, 0, vector
        for lane in range(LANES):
            x, y, k3 = values[0, lane], values[1, lane], values[5, lane]
            d = -x if negate_x else x
            if addend == _ADD_Y:
                d = _add(d, -y if negate_addend else y)
            elif addend == _ADD_K:
                d = _add(d, values[2, lane])
            elif addend == _ADD_C:
                d = _add(d, c0)
            if factor == _BY_SELF:
                d = _multiply(d, d)
            elif factor == _BY_Y:
                d = _multiply(d, y)
            elif factor == _BY_K:
                d = _multiply(d, values[3, lane])
            elif factor == _BY_C:
                d = _multiply(d, c1)
            if second:
                q = y
                if second == _SECOND_SQUARE:
                    q = _multiply(y, y)
                elif second == _SECOND_K:
                    q = _multiply(y, values[4, lane])
                elif second == _SECOND_C:
                    q = _multiply(y, c2)
                d = _add(d, -q if negate_second else q)
            s = d if d == d else _NAN
            held = False
            if tests == 1:
                a = x if left == _LEFT_X else y if left == _LEFT_Y else s
                b = count
                if right == _RIGHT_Y:
                    b = y
                elif right == _RIGHT_K:
                    b = k3
                elif right == _RIGHT_C:
                    b = c3
                outcome = 1 if a < b else 2 if a == b else 4 if a > b else 8
                held = (outcomes & outcome) != 0
            elif tests == 2:
                held = drawn[vector, lane]
            choice = then if held else otherwise
            t = _ZERO
            if choice == _S:
                t = s
            elif choice == _X:
                t = x
            elif choice == _Y:
                t = y
            elif choice == _K:
                t = k3
            elif choice == _C:
                t = c3
            start = _NOTHING
            if initial == _FROM_K:
                start = k3
            elif initial == _FROM_C:
                start = c4
            there = low <= lane < high
            if not reduces:
                out[row, lane] = _add(t, start)
            elif not takes_maximum:
                old = start if step == 0 else out[row, lane]
                out[row, lane] = _add(old, t if there else _NOTHING)
            else:
                if step == 0:
                    out[row, lane] = _LOWEST
                    counted[place, lane] = 0
                    found[place, lane] = False
                if there:
                    if not found[place, lane] or t > out[row, lane] or t != t:
                        out[row, lane] = t
                        counted[place, lane] = count
                    found[place, lane] = True
                if gives_index and step == length - 1:
                    out[row, lane] = counted[place, lane]
        for loop in range(NUM_VECTOR_LOOPS):
            turns[loop] += 1
            if turns[loop] < numbers[loop]:
                for which in range(_NUM_MOVED):
                    now[which] += jumps[loop, which]
                break
            turns[loop] = 0
    if relu:
        words = out.view(np.uint32)
        for row in range(out.shape[0]):
            for lane in range(LANES):
                if words[row, lane] >> np.uint32(31):
                    words[row, lane] = 0
    return True


@compiled
def write_vectors(
    numbers: NDArray[np.int64],
    jumps: NDArray[np.int64],
    results: NDArray[np.float32],
    halves: NDArray[np.uint16],
) -> None:
    """Write results, shape (num_results, 16), to the scratchpad; subnormals are flushed already."""
    bits = results.view(np.uint32)
    fp32, blocks = numbers[9] == _FP32, numbers[9] == _MXINT8
    block, elements = np.zeros((1, MX_BLOCK), np.uint32), np.empty(MX_BLOCK, np.float32)
    numbers_of_block = block.view(np.float32)
    found = False
    # Where results overlap, the order matters: the model writes all lower halves, then all upper
    # ones.
    for upper in range(2 if fp32 else 1):
        address, u = numbers[6], numbers[7]
        turns = np.zeros(NUM_VECTOR_LOOPS, np.int64)
        for row in range(results.shape[0]):
            low, high = max(0, -u), min(LANES, numbers[8] - u)
            if blocks:
                half = LANES * (row % 2)
                for lane in range(LANES):
                    block[0, half + lane] = bits[row, lane] if low <= lane < high else np.uint32(0)
                found = low < high or (found and half > 0)
                if found and half:
                    code = quantise_block(block, numbers_of_block, 0, elements)
                    start = address // 2
                    for pair in range(MX_BLOCK // 2):
                        even, odd = np.int64(elements[2 * pair]), np.int64(elements[2 * pair + 1])
                        halves[start + pair] = np.uint16((even & 255) | (odd & 255) << 8)
                    halves[start + MX_BLOCK // 2] = np.uint16(code)
            elif fp32:
                for lane in range(low, high):
                    word = bits[row, lane] >> np.uint32(16 * upper)
                    halves[(address + 4 * lane) // 2 + upper] = np.uint16(word & np.uint32(0xFFFF))
            else:
                for lane in range(low, high):
                    word = bits[row, lane]
                    word += ((word >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
                    halves[(address + 2 * lane) // 2] = np.uint16(word >> np.uint32(16))
            for loop in range(NUM_VECTOR_LOOPS):
                turns[loop] += 1
                if turns[loop] < numbers[loop]:
                    address += jumps[loop, 0]
                    u += jumps[loop, 1]
                    break
                turns[loop] = 0


@compiled
def move_rows(
    numbers: NDArray[np.int64],
    loads: bool,
    memory: NDArray[np.uint8],
    scratchpad: NDArray[np.uint8],
) -> bool:
    """Run a transfer; if one of its rows lies outside, return False without moving anything.

    Parameters
    ----------
    numbers : int64 array, shape (9,)
        Fields of `fpgapipe.hw.hls_models.isa.instructions.TRANSFER`, in order.
    loads : bool
        Whether the transfer is a LOAD; it is a STORE otherwise.
    memory, scratchpad : uint8 array
        Content of the memory and of the scratchpad; the target of the transfer is changed.
    """
    for moves in range(2):
        for plane in range(numbers[6] + 1):
            for row in range(numbers[3] + 1):
                far = numbers[0] + plane * numbers[7] + row * numbers[4]
                near = numbers[1] + plane * numbers[8] + row * numbers[5]
                size = numbers[2]
                if loads:
                    end = -(-(far + size) // WORD_BYTES) * WORD_BYTES
                    far = far // WORD_BYTES * WORD_BYTES
                    near = near // WORD_BYTES * WORD_BYTES
                    size = end - far
                if moves:
                    if loads:
                        scratchpad[near : near + size] = memory[far : far + size]
                    else:
                        memory[far : far + size] = scratchpad[near : near + size]
                elif not (0 <= far <= memory.size - size and 0 <= near <= scratchpad.size - size):
                    return False
    return True
