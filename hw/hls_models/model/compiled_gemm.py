"""A GEMM instruction's loops as machine code, for :mod:`fpgapipe.hw.hls_models.model.prepared`.

`OperandPattern`, `quantise`, `DatapathSpec` and `ResultPattern` define the results. This module
needs numba. An operand's pattern is represented by an array of numbers (`operand_numbers`), so that
all instructions share the code and each keeps only a few hundred bytes.
"""

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN, SUM_FRACTION_BITS
from fpgapipe.hw.hls_models.numerics.mx import ELEMENT_FRACTION_BITS, ELEMENT_LIMIT
from fpgapipe.machine_code import compiled

_LEAST = np.float32(2.0**-126)
_NAN = np.float32(np.nan)
_ZERO = np.float32(0)
_LIMIT = np.float32(ELEMENT_LIMIT)
# Numbers below this are rounded to zero: see `fp32._round`.
_VANISHING = 2.0**-126 - 2.0**-151

_POWER_BIAS = 64
_POWERS = np.ldexp(np.float32(1), np.arange(-_POWER_BIAS, 70)).astype(np.float32)
_SCALES = np.ldexp(1.0, np.arange(256) - CODE_BIAS - SUM_FRACTION_BITS // 2)
_SCALES[CODE_NAN] = np.nan

_STEP = CODE_BIAS + ELEMENT_FRACTION_BITS
_OUTER, _TAP, _POS = 16, 28, 40
"""Indices at which the loops of each loop nest begin among the numbers; a loop has four numbers."""


def operand_numbers(pattern: OperandPattern) -> NDArray[np.int64]:
    """Return an operand's pattern as the numbers that `read_operand` takes."""
    first = pattern.pos.size - pattern.positions
    numbers = [
        *(pattern.base, pattern.y, pattern.u, pattern.y_limit, pattern.u_limit),
        *(pattern.lanes_last, pattern.lanes_by_outer, pattern.subs, pattern.subs_last),
        *(pattern.blocks, first, pattern.walks_blocks, pattern.transposed),
        *(pattern.emit, pattern.emit_last, pattern.fp32),
    ]
    for loop_nest in (pattern.outer, pattern.tap, pattern.pos):
        for loop in loop_nest.loops:
            numbers += [loop.count, loop.address, loop.y, loop.u]
    return np.array(numbers, np.int64)


def result_numbers(pattern: ResultPattern) -> NDArray[np.int64]:
    """Return a result's pattern as the numbers that `write_results` takes."""
    numbers = [pattern.base, pattern.u_limit, int(pattern.fp32)]
    for loop_nest in (pattern.outer, pattern.pos):
        for loop in loop_nest.loops:
            numbers += [loop.count, loop.address, loop.u]
    return np.array(numbers, np.int64)


@compiled
def _move(numbers: NDArray[np.int64], loops: int, position: int, moved: NDArray[np.int64]) -> None:
    """Compute the distances by which a loop nest has moved address, y and u at a position."""
    moved[:] = 0
    for loop in range(loops, loops + 12, 4):
        step = position % numbers[loop]
        position //= numbers[loop]
        for which in range(3):
            moved[which] += step * numbers[loop + 1 + which]


@compiled
def _read_word(
    halves: NDArray[np.uint16],
    address: int,
    low: int,
    high: int,
    fp32: bool,
    words: NDArray[np.uint32],
    row: int,
) -> bool:
    """Read elements `low` to `high` of a word; the others are zeros. False if it lies outside."""
    if high <= low:
        for element in range(BLOCK):
            words[row, element] = 0
        return True
    if address < 0 or address >= 2 * halves.size:
        return False
    start = address // 2
    size = 2 if fp32 else 1
    if start + size * BLOCK > halves.size:
        for element in range(BLOCK):
            at = (start + size * element) % halves.size
            if fp32:
                upper = np.uint32(halves[(at + 1) % halves.size])
                words[row, element] = upper << np.uint32(16) | np.uint32(halves[at])
            else:
                words[row, element] = np.uint32(halves[at]) << np.uint32(16)
    elif fp32:
        for element in range(BLOCK):
            lower = np.uint32(halves[start + 2 * element])
            upper = np.uint32(halves[start + 2 * element + 1])
            words[row, element] = upper << np.uint32(16) | lower
    else:
        for element in range(BLOCK):
            words[row, element] = np.uint32(halves[start + element]) << np.uint32(16)
    for element in range(low):
        words[row, element] = 0
    for element in range(high, BLOCK):
        words[row, element] = 0
    return True


@compiled
def quantise_block(
    words: NDArray[np.uint32], floats: NDArray[np.float32], row: int, values: NDArray[np.float32]
) -> int:
    """Quantise a block, given as bits and as floats, and return its code."""
    code = np.uint32(0)
    for element in range(BLOCK):
        exponent = (words[row, element] >> np.uint32(23)) & np.uint32(255)
        code = max(code, exponent)
    if code == 0 or code == CODE_NAN:
        for element in range(BLOCK):
            values[element] = 0
        return int(code)
    # The scale is split into two factors, so that each is a normal FP32 number. A product that
    # underflows would be rounded to zero anyway.
    places = _STEP - int(code)
    half = places >> 1
    first, second = _POWERS[half + _POWER_BIAS], _POWERS[places - half + _POWER_BIAS]
    for element in range(BLOCK):
        x = floats[row, element]
        x = _ZERO if abs(x) < _LEAST else x
        x = np.rint(x * first * second)
        x = _LIMIT if x > _LIMIT else x
        values[element] = -_LIMIT if x < -_LIMIT else x
    return int(code)


@compiled
def _put(
    values: NDArray[np.float32],
    code: int,
    at: int,
    distance: int,
    subs: int,
    elements: NDArray[np.float32],
    codes: NDArray[np.uint8],
) -> None:
    """Store the parts of a block among the vectors, `distance` vectors apart."""
    rows = elements.shape[1]
    for sub in range(subs):
        for row in range(rows):
            elements[at + sub * distance, row] = values[sub * rows + row]
        codes[at + sub * distance] = code


@compiled
def read_operand(
    numbers: NDArray[np.int64],
    halves: NDArray[np.uint16],
    elements: NDArray[np.float32],
    codes: NDArray[np.uint8],
) -> bool:
    """Read and quantise all vectors of an operand.

    Parameters
    ----------
    numbers : int64 array
        `operand_numbers` of a pattern with even steps, all parts of which lie inside a block.
    halves : uint16 array
        The scratchpad.
    elements : float32 array, shape (vectors, rows)
        Output: whole numbers in -127..127. Zeros may have a sign.
    codes : uint8 array, shape (vectors,)
        Output: the codes.

    Returns
    -------
    bool
        Whether all words lie in the scratchpad.
    """
    y_limit, u_limit = numbers[3], numbers[4]
    by_outer = numbers[6] != 0
    first = numbers[10]
    walks, transposed, fp32 = numbers[11] != 0, numbers[12] != 0, numbers[15] != 0
    num_outer = numbers[_OUTER] * numbers[_OUTER + 4] * numbers[_OUTER + 8]
    num_taps = numbers[_TAP] * numbers[_TAP + 4] * numbers[_TAP + 8]
    positions = numbers[_POS] * numbers[_POS + 4] * numbers[_POS + 8] - first

    along = np.empty((positions, 3), np.int64)
    start, moved = np.empty(3, np.int64), np.empty(3, np.int64)
    _move(numbers, _POS, first, start)
    for position in range(positions):
        _move(numbers, _POS, first + position, moved)
        for which in range(3):
            along[position, which] = moved[which] - start[which]
    taps = np.empty((num_taps, 3), np.int64)
    for tap in range(num_taps):
        _move(numbers, _TAP, tap, taps[tap])

    words = np.empty((BLOCK, BLOCK), np.uint32)
    columns = np.empty((BLOCK, BLOCK), np.uint32)
    floats, column_floats = words.view(np.float32), columns.view(np.float32)
    values = np.empty(BLOCK, np.float32)
    # A sweep has one block, which contains all positions.
    num_blocks = numbers[9] if walks else 1
    size = BLOCK if walks else positions
    vector = 0
    for outer in range(num_outer):
        _move(numbers, _OUTER, outer, moved)
        outer_last = outer % numbers[_OUTER] == numbers[_OUTER] - 1
        for block in range(num_blocks):
            # The loop over the parts of a block is around the taps, or, in a sweep, around the
            # positions.
            distance = 0
            for tap in range(num_taps if walks else 0):
                last = tap % numbers[_TAP] == numbers[_TAP] - 1
                distance += (numbers[14] if last else numbers[13]) if transposed else BLOCK
            at, subs = vector, 0
            for tap in range(num_taps):
                tap_last = tap % numbers[_TAP] == numbers[_TAP] - 1
                lanes = numbers[5] if (outer_last if by_outer else tap_last) else BLOCK
                emit = numbers[14] if tap_last else numbers[13]
                if walks:
                    subs = numbers[8] if block == num_blocks - 1 else numbers[7]
                else:
                    subs = numbers[8] if tap_last else numbers[7]
                    distance = positions // BLOCK * emit if transposed else positions
                    at = vector
                address = numbers[0] + moved[0] + taps[tap, 0]
                y = numbers[1] + moved[1] + taps[tap, 1]
                u = numbers[2] + moved[2] + taps[tap, 2]
                for number in range(size):
                    position = block * BLOCK + number
                    row = number % BLOCK if transposed else 0
                    low, high, place = 0, 0, 0
                    if position < positions:
                        row_y, row_u = y + along[position, 1], u + along[position, 2]
                        if 0 <= row_y < y_limit:
                            low, high = max(0, -row_u), min(lanes, u_limit - row_u)
                        place = address + along[position, 0]
                    if not _read_word(halves, place, low, high, fp32, words, row):
                        return False
                    if not transposed:
                        code = quantise_block(words, floats, 0, values)
                        _put(values, code, at, distance, subs, elements, codes)
                        at += 1
                    elif row == BLOCK - 1:
                        for i in range(BLOCK):
                            for j in range(BLOCK):
                                columns[j, i] = words[i, j]
                        for column in range(emit):
                            code = quantise_block(columns, column_floats, column, values)
                            _put(values, code, at, distance, subs, elements, codes)
                            at += 1
                if not walks:
                    vector += distance * subs
            if walks:
                vector += distance * subs
    return True


@compiled
def accumulate(
    sums: NDArray[np.float32],
    a_codes: NDArray[np.uint8],
    b_codes: NDArray[np.uint8],
    accumulators: NDArray[np.float32],
    results: NDArray[np.float32],
    tile: int,
    k: int,
    first: bool,
    last: bool,
    acc_base: int,
    acc_step: int,
) -> None:
    """Add some tiles' sums to accumulators, as `DatapathSpec.compute` does.

    Parameters
    ----------
    sums : float32 array, shape (tiles, m, cols)
        The tiles' sums, which are whole numbers.
    a_codes, b_codes : uint8 array, shape (tiles, m) and (tiles, cols)
        Codes of the vectors and of the columns.
    accumulators : float32 array, shape (acc_depth, cols)
        Content of the accumulators, which is changed.
    results : float32 array, shape (n, m, cols)
        Output, if `last`.
    tile : int
        Number of the first of these tiles in the product.
    k, first, last, acc_base, acc_step
        The same as for `DatapathSpec.compute`.
    """
    tiles, m, cols = sums.shape
    depth = accumulators.shape[0]
    scales = np.empty(cols, np.float64)
    for part in range(tiles):
        column, step = divmod(tile + part, k)
        for col in range(cols):
            scales[col] = _SCALES[b_codes[part, col]]
        from_zero = first and step == 0
        ends = last and step == k - 1
        base = acc_base + column * acc_step
        for vector in range(m):
            scale = _SCALES[a_codes[part, vector]]
            line = accumulators[(base + vector) % depth]
            target = results[column, vector] if ends else line
            for col in range(cols):
                # Adding zero turns -0, which is not an integer, into +0.
                term = np.float64(sums[part, vector, col] + _ZERO) * (scale * scales[col])
                term = term * 0.0 if abs(term) < _VANISHING else term
                old = _ZERO if from_zero else line[col]
                old = old * _ZERO if abs(old) < _LEAST else old
                new = old + np.float32(term)
                new = new * _ZERO if abs(new) < _LEAST else new
                target[col] = new if new == new else _NAN


@compiled
def write_results(
    numbers: NDArray[np.int64],
    results: NDArray[np.float32],
    halves: NDArray[np.uint16],
    full: NDArray[np.uint32],
) -> None:
    """Write results, shape (vectors, cols), to the scratchpad, given as uint16 and as uint32."""
    bits = results.view(np.uint32)
    cols = results.shape[1]
    num_outer = numbers[3] * numbers[6] * numbers[9]
    num_pos = numbers[12] * numbers[15] * numbers[18]
    for outer in range(num_outer):
        address, u = numbers[0], 0
        left = outer
        for loop in range(3, 12, 3):
            address += left % numbers[loop] * numbers[loop + 1]
            u += left % numbers[loop] * numbers[loop + 2]
            left //= numbers[loop]
        low, high = max(0, -u), min(cols, numbers[1] - u)
        for pos in range(num_pos):
            place = address
            left = pos
            for loop in range(12, 21, 3):
                place += left % numbers[loop] * numbers[loop + 1]
                left //= numbers[loop]
            vector = outer * num_pos + pos
            if numbers[2]:
                for col in range(low, high):
                    full[place // 4 + col] = bits[vector, col]
            else:
                for col in range(low, high):
                    word = bits[vector, col]
                    word += ((word >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
                    halves[place // 2 + col] = np.uint16(word >> np.uint32(16))
