"""Elementary functions of FP32 values, bit for bit as the hardware computes them.

All seven functions share one evaluator, a quadratic in fixed point with coefficients from a table:

=========== ============================================ =========================================
function    content of the table                         computation of the result
=========== ============================================ =========================================
RECIPROCAL  1/m, m in [1, 2)                             the exponent changes sign
RSQRT       1/sqrt(m) and 1/sqrt(2m)                     the exponent is halved
SQRT        the same                                     times m
EXP         2**-f, f in [0, 1)                           the exponent is floor(x log2(e))
LOG         log(1 + t)/t, t in [-1/4, 1/2)               times t, plus the exponent times log(2)
TANH        tanh(x)/x below 1/2                          times x; from 1/2 on 1 - 2 sigmoid(-2x)
SIGMOID     sigmoid(-(k + f) log(2)) 2**k for k = 0..12  from 13 on e - e**2, where e = 2**-(k + f)
=========== ============================================ =========================================

Numbers are those of :mod:`~fpgapipe.hw.hls_models.numerics.fp32`: a subnormal operand counts as a
zero of its sign, a result that rounds to less than 2**-126 becomes one, and there is only one NaN.
For finite results:

* RECIPROCAL of a power of two and SQRT of an exact square are exact. EXP(0) is 1, LOG(1) is +0,
  TANH(±0) is ±0, SIGMOID(±0) is 1/2.
* TANH is odd, bit for bit.

Special cases: RECIPROCAL(±0) is ±infinity, RECIPROCAL(±infinity) is ±0. SQRT(-0) is -0, RSQRT(±0)
is ±infinity; both are NaN for other negative numbers. EXP(-infinity) is 0. LOG(±0) is -infinity; it
is NaN for other negative numbers. TANH(±infinity) is ±1, SIGMOID(-infinity) is 0 and
SIGMOID(infinity) is 1. Every function of NaN is NaN.

Source: E. G. Walters, M. J. Schulte, "Efficient function approximation using truncated multipliers
and squarers", ARITH 2005, for piecewise quadratics; the reductions are folklore.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics.fp32 import NAN_BITS

FUNCTION_CYCLES = 13
"""Latency of the function unit, the same for all functions."""

POINT_BITS = 28
"""Fraction bits of table values, of reduced arguments, and of results before rounding."""

OFFSET_BITS = 23
"""Width of the offset in a segment, which is a fraction of the segment's width."""

SLOPE_POINT_BITS = 30
"""Fraction bits of the slope, ``c1 + c2 * offset``."""

CONSTANT_BITS = 34
"""Width of the constants that operands are multiplied by."""

LOG2_E = 0x2E2A8ECA5
"""log2(e), in steps of 2**-33."""

LN_2 = 0x2C5C85FDF
"""log(2), in steps of 2**-34."""

ONE = 1 << 33
"""1, in steps of 2**-33."""

MANTISSA_BITS = 23
"""Fraction bits of an FP32 significand."""

TABLE_ROWS = 1024
"""Number of segments of all functions together."""

COEFFICIENT_BITS = (29, 24, 17)
"""Widths of c0 (unsigned), c1 and c2 (both signed); all are in steps of 2**-28."""

ROW_BITS = sum(COEFFICIENT_BITS)
"""Width of a row of the table, which has c0 in the least significant bits."""

# The row at which the segments of each function begin, and their number.
RECIPROCAL_ROW = 0  # 128
EXP_ROW = 128  # 64
TANH_ROW = 192  # 64
RSQRT_ROW = 256  # 128 for [1, 2), 128 for [2, 4)
SIGMOID_ROW = 512  # 32 for each k
LOG_ROW = 928  # 32 for [3/2, 2), 64 for [1, 3/2)

FAR = 13
"""Value of `k` from which on ``1 - 2**-(k + f)`` is used for ``1/(1 + 2**-(k + f))``, with an error
of 2**-26."""

SATURATED_EXPONENT = 134
"""Biased exponent from which on exp(x) is out of range for either sign: abs(x) is at least 2**7."""

_CHUNK = 1 << 15  # elements whose intermediate results stay in a processor's cache
_MANTISSA = (1 << MANTISSA_BITS) - 1
_UNIT = 1 << POINT_BITS
_FRACTION = _UNIT - 1
_INFINITY = 0x7F800000
_NEGATIVE = 0x80000000

Bits = NDArray[np.uint32]
Words = NDArray[np.int64]


class Function(IntEnum):
    """The functions, with their codes in instructions; 0 stands for no function."""

    RECIPROCAL = 1
    RSQRT = 2
    SQRT = 3
    EXP = 4
    LOG = 5
    TANH = 6
    SIGMOID = 7


def apply(function: Function, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute a function of FP32 values, of any shape; no warnings are emitted.

    Raises
    ------
    TypeError
        If `x` is not float32.
    """
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise TypeError(f"operands of functions must be float32, not {x.dtype}")
    return compute(function, np.ascontiguousarray(x).view(np.uint32)).view(np.float32)


def compute(function: Function, bits: Bits) -> Bits:
    """Compute a function of FP32 values, given and returned as bits, of any shape.

    Raises
    ------
    TypeError
        If `bits` are not uint32.
    ValueError
        If there is no such function.
    """
    function = Function(function)
    bits = np.asarray(bits)
    if bits.dtype != np.uint32:
        raise TypeError(f"bits of operands must be uint32, not {bits.dtype}")
    flat = bits.ravel()
    out = np.empty(flat.shape, np.uint32)
    for begin in range(0, flat.size, _CHUNK):
        out[begin : begin + _CHUNK] = _compute(function, flat[begin : begin + _CHUNK])
    return out.reshape(bits.shape)


@lru_cache(maxsize=1)
def coefficients() -> tuple[Words, Words, Words]:
    """Compute c0, c1 and c2 of all segments, in steps of 2**-28, as read-only arrays.

    A segment is ``c0 + offset * (c1 + offset * c2)`` for an offset in [0, 1). It goes through the
    function's values at the segment's Chebyshev nodes. Decimal arithmetic makes the results the
    same on all machines.
    """
    table = np.zeros((3, TABLE_ROWS), np.int64)
    with localcontext(Context(prec=50, rounding=ROUND_HALF_EVEN)):
        ln_2 = Decimal(2).ln()

        def fill(row: int, rows: int, begin: str, end: str, value: Callable[..., Decimal]) -> None:
            """Approximate a function on the interval from `begin` to `end` by `rows` segments."""
            low, width = Decimal(begin), (Decimal(end) - Decimal(begin)) / rows
            for segment in range(rows):
                start = low + segment * width
                table[:, row + segment] = _segment(value, start, width)

        fill(RECIPROCAL_ROW, 128, "1", "2", lambda m: 1 / m)
        fill(EXP_ROW, 64, "0", "1", lambda f: (-f * ln_2).exp())
        # The table is addressed by u = 2x.
        fill(TANH_ROW, 64, "0", "1", lambda u: 2 * (u.exp() - 1) / (u.exp() + 1) / u)
        for octave in range(2):
            fill(RSQRT_ROW + 128 * octave, 128, str(1 + octave), str(2 + 2 * octave),
                 lambda m: 1 / m.sqrt())  # fmt: skip
        for k in range(FAR):
            fill(SIGMOID_ROW + 32 * k, 32, str(k), str(k + 1),
                 lambda y, k=k: 2**k / ((y * ln_2).exp() + 1))  # fmt: skip
        fill(LOG_ROW, 32, "-0.25", "0", lambda t: (1 + t).ln() / t)
        fill(LOG_ROW + 32, 64, "0", "0.5", lambda t: (1 + t).ln() / t)
    table.setflags(write=False)
    return table[0], table[1], table[2]


@lru_cache(maxsize=1)
def table_words() -> tuple[int, ...]:
    """Compute the rows of the table as integers, `ROW_BITS` wide."""
    words = []
    for row in zip(*coefficients(), strict=True):
        word, place = 0, 0
        for value, bits in zip(row, COEFFICIENT_BITS, strict=True):
            word |= (int(value) & ((1 << bits) - 1)) << place
            place += bits
        words.append(word)
    return tuple(words)


def _segment(value: Callable[[Decimal], Decimal], start: Decimal, width: Decimal) -> list[int]:
    """Return the coefficients of the quadratic through a segment's three Chebyshev nodes."""
    half = Decimal("0.5")
    away = Decimal(3).sqrt() / 4
    nodes = (half - away, half, half + away)
    at = [value(start + node * width) for node in nodes]
    # Newton's divided differences; neighbouring nodes are `away` apart.
    first, second = (at[1] - at[0]) / away, (at[2] - at[1]) / away
    c2 = (second - first) / (2 * away)
    c1 = first - c2 * (nodes[0] + nodes[1])
    c0 = at[0] - nodes[0] * (c1 + nodes[0] * c2)
    rounded = [int((c * _UNIT).to_integral_value()) for c in (c0, c1, c2)]
    limits = [(0, 1 << 29), (-1 << 23, 1 << 23), (-1 << 16, 1 << 16)]
    for c, (least, above) in zip(rounded, limits, strict=True):
        assert least <= c < above
    return rounded


def _compute(function: Function, bits: Bits) -> Bits:
    """Compute a function of a vector."""
    words = bits.astype(np.int64)
    sign, exponent, fraction = words >> 31, words >> MANTISSA_BITS & 255, words & _MANTISSA
    negative, power, value = _NUMBERS[function](sign, exponent, fraction)
    # The conversion rounds to 24 bits, ties to even. Values are in steps of 2**-28, so the exponent
    # of the result is corrected by that.
    rounded = value.astype(np.float32).view(np.int32).astype(np.int64)
    rounded += (power - (127 + POINT_BITS)) << MANTISSA_BITS
    # A carry may have raised the exponent. If it is 255 or more, the result is infinite; if it is
    # below 1, the result is zero.
    np.minimum(rounded, _INFINITY, out=rounded)
    rounded[rounded <= _MANTISSA] = 0
    out = (rounded | negative << 31).astype(np.uint32)
    _put_specials(function, sign, exponent, fraction, out)
    return out


def _put_specials(
    function: Function, sign: Words, exponent: Words, fraction: Words, out: Bits
) -> None:
    """Insert the results that are not computed, mainly those of zeros, infinities and NaNs."""
    signed = (sign << 31).astype(np.uint32)
    zero, largest = exponent == 0, exponent == 255
    match function:
        case Function.RECIPROCAL:
            np.copyto(out, signed | np.uint32(_INFINITY), where=zero)
            np.copyto(out, signed, where=largest)
        case Function.RSQRT:
            np.copyto(out, 0, where=largest)
            np.copyto(out, NAN_BITS, where=sign == 1)
            np.copyto(out, signed | np.uint32(_INFINITY), where=zero)
        case Function.SQRT:
            np.copyto(out, _INFINITY, where=largest)
            np.copyto(out, NAN_BITS, where=sign == 1)
            np.copyto(out, signed, where=zero)
        case Function.EXP:
            large = exponent >= SATURATED_EXPONENT
            np.copyto(out, np.where(sign == 1, 0, _INFINITY).astype(np.uint32), where=large)
        case Function.LOG:
            np.copyto(out, 0, where=(exponent == 127) & (fraction == 0))
            np.copyto(out, _INFINITY, where=largest)
            np.copyto(out, NAN_BITS, where=sign == 1)
            np.copyto(out, _NEGATIVE | _INFINITY, where=zero)
        case Function.TANH:
            # The argument is 2x.
            large = exponent >= SATURATED_EXPONENT - 1
            np.copyto(out, signed | np.uint32(0x3F800000), where=large)
        case Function.SIGMOID:
            large = exponent >= SATURATED_EXPONENT
            np.copyto(out, np.where(sign == 1, 0, 0x3F800000).astype(np.uint32), where=large)
    np.copyto(out, NAN_BITS, where=largest & (fraction != 0))


# The following functions return sign, biased exponent and value of the result, which is
# (-1)**sign * value * 2**(exponent - 127 - 28). For special cases, their result is undefined.
_Number = tuple[Words, Words, Words]


def _reciprocal(sign: Words, exponent: Words, fraction: Words) -> _Number:
    value = _evaluate(RECIPROCAL_ROW + (fraction >> 16), (fraction & 0xFFFF) << 7)
    return sign, 254 - exponent, value


def _inverse_root(exponent: Words, fraction: Words) -> Words:
    """Compute 1/sqrt(m) for m in [1, 4): m includes the last bit of the exponent."""
    octave = ~exponent & 1
    return _evaluate(RSQRT_ROW + (octave << 7) + (fraction >> 16), (fraction & 0xFFFF) << 7)


def _rsqrt(sign: Words, exponent: Words, fraction: Words) -> _Number:
    return np.zeros_like(sign), 191 - ((exponent + 1) >> 1), _inverse_root(exponent, fraction)


def _sqrt(sign: Words, exponent: Words, fraction: Words) -> _Number:
    value = _multiply(_inverse_root(exponent, fraction), fraction + (1 << MANTISSA_BITS))
    # Here, m does not include a bit of the exponent; the result's power of two makes up for it.
    return np.zeros_like(sign), 64 + (exponent >> 1), value


def _exp(sign: Words, exponent: Words, fraction: Words) -> _Number:
    k, f = _binary_exponent(exponent, fraction)
    # 2**(k + f) is 2**(k + 1) * 2**-(1 - f), and 1 - f is the complement of f, except for its last
    # bit.
    f = np.where(sign == 1, f, ~f & _FRACTION)
    power = 127 + np.where(sign == 1, -k, k + 1)
    return np.zeros_like(sign), power, _evaluate(EXP_ROW + (f >> 22), (f & 0x3FFFFF) << 1)


def _log(sign: Words, exponent: Words, fraction: Words) -> _Number:
    # Significands in the upper half count as [3/4, 1), so that t is small where the logarithm is.
    upper = fraction >> 22
    power = exponent - 127 + upper
    row = np.where(upper == 1, LOG_ROW - 32 + (fraction >> 17), LOG_ROW + 32 + (fraction >> 16))
    # The segments of the upper half have a width of 2**-6, those of the lower half 2**-7.
    offset = np.where(upper == 1, (fraction & 0x1FFFF) << 6, (fraction & 0xFFFF) << 7)
    t = np.where(upper == 1, (1 << MANTISSA_BITS) - fraction, fraction)
    # t is shifted until its first bit is at the top; a float's exponent gives the distance.
    places = 127 + MANTISSA_BITS - (t.astype(np.float32).view(np.int32) >> MANTISSA_BITS)
    places = np.where(t == 0, 0, places).astype(np.int64)
    value = _multiply(_evaluate(row, offset), t << places)
    places += upper
    near = power == 0
    whole = (np.abs(power) << 16) * LN_2 >> 22
    part = value >> np.minimum(places, 31)
    total = whole + np.where((upper == 1) ^ (power < 0), -part, part)
    negative = (power < 0) | (near & (upper == 1))
    return (
        negative.astype(np.int64),
        127 - np.where(near, places, 0),
        np.where(near, value, total),
    )


def _tanh(sign: Words, exponent: Words, fraction: Words) -> _Number:
    # The argument is 2x. Both branches are computed, and one result is chosen.
    small = exponent + 1 < 127
    f = _fixed_point(exponent + 1, fraction, ONE) & _FRACTION
    ratio = _evaluate(TANH_ROW + (f >> 22), (f & 0x3FFFFF) << 1)
    product = _multiply(ratio, fraction + (1 << MANTISSA_BITS))
    k, value = _sigmoid_of_negative(exponent + 1, fraction)
    value = _UNIT - (value >> np.clip(k - 1, 0, 31))
    return sign, np.where(small, exponent, 127), np.where(small, product, value)


def _sigmoid(sign: Words, exponent: Words, fraction: Words) -> _Number:
    k, value = _sigmoid_of_negative(exponent, fraction)
    # In e - e**2, the second term matters only for negative x.
    square = _multiply(value, value >> 5) >> np.minimum(k, 31)
    below = value - np.where(k >= FAR, square, 0)
    above = _UNIT - (value >> np.minimum(k, 31))
    power = np.where(sign == 1, 127 - k, 127)
    return np.zeros_like(sign), power, np.where(sign == 1, below, above)


def _sigmoid_of_negative(exponent: Words, fraction: Words) -> tuple[Words, Words]:
    """Compute k and ``2**k * sigmoid(-abs(x))``; from ``k = FAR`` on, with exp in its place."""
    k, f = _binary_exponent(exponent, fraction)
    far = k >= FAR
    row = np.where(far, EXP_ROW + (f >> 22), SIGMOID_ROW + (k << 5) + (f >> 23))
    offset = np.where(far, (f & 0x3FFFFF) << 1, f & 0x7FFFFF)
    return k, _evaluate(row, offset)


def _binary_exponent(exponent: Words, fraction: Words) -> tuple[Words, Words]:
    """Compute abs(x) log2(e), as a whole number and a fraction in steps of 2**-28."""
    y = _fixed_point(exponent, fraction, LOG2_E)
    return y >> POINT_BITS, y & _FRACTION


def _fixed_point(exponent: Words, fraction: Words, constant: int) -> Words:
    """Compute abs(x) times a constant, in steps of 2**-28, with 8 bits before the binary point."""
    product = (fraction + (1 << MANTISSA_BITS)) * constant >> 22
    places: Words = product >> np.clip(SATURATED_EXPONENT - 1 - exponent, 0, 63)
    return places


def _evaluate(row: Words, offset: Words) -> Words:
    """Evaluate segments of the table; the result has 28 fraction bits and does not overflow.

    The last six bits of the offset are ignored in the quadratic term.
    """
    c0, c1, c2 = coefficients()
    slope = (c1[row] << 2) + (c2[row] * (offset >> 6) >> 15)
    value: Words = c0[row] + (slope * offset >> (SLOPE_POINT_BITS + OFFSET_BITS - POINT_BITS))
    return value


def _multiply(value: Words, factor: Words) -> Words:
    """Multiply by a factor with 23 fraction bits, such as a significand."""
    return value * factor >> MANTISSA_BITS


_NUMBERS: dict[Function, Callable[[Words, Words, Words], _Number]] = {
    Function.RECIPROCAL: _reciprocal,
    Function.RSQRT: _rsqrt,
    Function.SQRT: _sqrt,
    Function.EXP: _exp,
    Function.LOG: _log,
    Function.TANH: _tanh,
    Function.SIGMOID: _sigmoid,
}
