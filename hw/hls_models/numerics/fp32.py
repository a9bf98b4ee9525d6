"""The FP32 and BF16 arithmetic of the hardware, bit for bit.

Values are rounded to nearest, ties to even, as in IEEE 754. There are three differences, because
hardware for subnormal numbers and for the payload of a NaN would cost more than training gains from
it:

* A subnormal operand is read as zero of the same sign.
* A result that, rounded to 24 bits with unbounded exponent, is less than 2**-126 becomes zero of
  the same sign.
* Every NaN is that of `NAN_BITS`.

All functions take arrays of any shapes that broadcast, and emit no warnings.

Source: IEEE Std 754-2019.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAN_BITS = 0x7FC00000
"""Bits of the only NaN in FP32."""

CODE_BIAS = 127
"""Bias of E8M0 codes: `code` stands for the scale ``2**(code - CODE_BIAS)``."""

CODE_NAN = 255
"""E8M0 code that stands for NaN."""

SUM_FRACTION_BITS = 12
"""Fraction bits of a product of two MXINT8 elements, each of which has 6 fraction bits."""

MAX_SUM_BITS = 24
"""Width of the widest partial sum, sign included; FP32 holds every one of them exactly."""

ADD_CYCLES = 5
"""Latency of an addition."""

MULTIPLY_CYCLES = 5
"""Latency of a multiplication."""

FROM_SUM_CYCLES = 3
"""Latency of the conversion of a partial sum."""

TO_BF16_CYCLES = 1
"""Latency of the rounding to BF16."""

_SIGN = np.uint32(0x80000000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_LEAST_NORMAL = np.uint32(0x00800000)
_NAN = np.uint32(NAN_BITS)


@dataclass(frozen=True)
class SumSpec:
    """Conversion of a partial sum to FP32, the definition that model and gateware share.

    Parameters
    ----------
    acc_bits : int
        Width of the signed sums, in bits.

    Raises
    ------
    ValueError
        If ``acc_bits`` is not in ``2..MAX_SUM_BITS``.
    """

    acc_bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.acc_bits <= MAX_SUM_BITS:
            raise ValueError(
                f"partial sums must have 2..{MAX_SUM_BITS} bits (FP32 holds those exactly), "
                f"not {self.acc_bits!r}"
            )


def flush(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace subnormals by zeros of the same sign, and every NaN by that of `NAN_BITS`."""
    bits = _bits(x).copy()
    magnitude = bits & _MAGNITUDE
    subnormal = magnitude < _LEAST_NORMAL
    if subnormal.any():
        np.bitwise_and(bits, _SIGN, out=bits, where=subnormal)
    nan = magnitude > _INFINITY
    if nan.any():
        np.copyto(bits, _NAN, where=nan)
    return bits.view(np.float32)


def add(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Add; ``x + (-x)`` is +0, and ``(-0) + (-0)`` is -0."""
    with np.errstate(all="ignore"):
        # A sum below 2**-126 is exact in IEEE 754, so it can be flushed after rounding.
        return flush(np.asarray(flush(a) + flush(b)))


def multiply(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply."""
    with np.errstate(all="ignore"):
        # 48 bits at exponents from -252: the product is exact in FP64.
        return _round(np.asarray(flush(a).astype(np.float64) * flush(b).astype(np.float64)))


def from_sum(
    sums: NDArray[np.integer], code_a: NDArray[np.integer], code_b: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Convert partial sums of MXINT8 products: ``sums * 2**(code_a + code_b - 254 - 12)``.

    Parameters
    ----------
    sums : integer array
        Signed values of at most `MAX_SUM_BITS` bits.
    code_a, code_b : integer array
        E8M0 codes of the two blocks, 0..255.

    Raises
    ------
    TypeError
        If an array does not hold integers.
    ValueError
        If a value does not fit.
    """
    sums, code_a, code_b = np.asarray(sums), np.asarray(code_a), np.asarray(code_b)
    limit = 1 << (MAX_SUM_BITS - 1)
    _check("partial sums", sums, -limit, limit - 1)
    _check("codes of partial sums", code_a, 0, CODE_NAN)
    _check("codes of partial sums", code_b, 0, CODE_NAN)
    exponent = code_a.astype(np.int64) + code_b - 2 * CODE_BIAS - SUM_FRACTION_BITS
    # The exponent bits of the scale are set directly, which is much faster than np.ldexp. FP64 has
    # the range for all scales, and the product is exact.
    scale = ((exponent + 1023) << 52).view(np.float64)
    with np.errstate(all="ignore"):
        values = _round(np.asarray(sums * scale))
    nan = (code_a == CODE_NAN) | (code_b == CODE_NAN)
    if nan.any():
        np.copyto(values.view(np.uint32), _NAN, where=nan)
    return values


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to BF16, the upper half of FP32, and return the bits."""
    bits = flush(x).view(np.uint32)
    # Adding just less than half a unit, plus one if the last place that stays is odd, rounds ties
    # to even. The carry continues into the exponent, up to infinity; infinity and NaN have nothing
    # to round.
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(
        16
    )
    return rounded.astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert BF16, given as bits, to FP32, which represents every BF16 exactly."""
    bits = np.asarray(bits)
    if bits.dtype != np.uint16:
        raise TypeError(f"bits of BF16 must be uint16, not {bits.dtype}")
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bits(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """View FP32 values as integers."""
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise TypeError(f"operands of FP32 arithmetic must be float32, not {x.dtype}")
    return x.view(np.uint32)


def _round(exact: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round exact results, given in an array that is overwritten.

    The conversion to float32 rounds as in IEEE 754, that is, below 2**-126 to fewer than 24 bits.
    There, it only matters whether 24 bits would round up to 2**-126. They do for numbers of at
    least 2**-126 - 2**-151, half a unit of the last place below it; the tie is included because
    2**-126 is the even neighbour. These numbers are rounded up by the conversion as well. All
    smaller ones are set to zero beforehand, because processors are slow with subnormals.
    """
    below = np.abs(exact) < 2.0**-126 - 2.0**-151
    if below.any():
        np.multiply(exact, 0.0, out=exact, where=below)
    return flush(exact.astype(np.float32))


def _check(what: str, values: NDArray[np.integer], least: int, largest: int) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{what} must be integers, not {values.dtype}")
    if values.size and (values.min() < least or values.max() > largest):
        outside = values[(values < least) | (values > largest)].flat[0]
        raise ValueError(f"{what} must be in {least}..{largest}, not {outside}")
