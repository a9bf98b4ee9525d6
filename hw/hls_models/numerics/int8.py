"""INT8 with static scales: quantisation and rescaling in exact integers.

An integer ``q`` of eight bits stands for the real number ``(q - zero) * scale``. Scale and zero
point belong to a whole tensor, or to a channel of weights, and are known before the network runs.
What is multiplied are the differences ``q - zero``, the *centred* integers. The sum of their
products is exact; rescaling turns it into the integers of the next tensor.

Sources: ONNX operators QuantizeLinear, DequantizeLinear, QLinearConv and QLinearMatMul, opset 21;
Arm Ltd., "TOSA Specification" 1.0, ``apply_scale_32`` and RESCALE.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MAX_EXACT = 1 << 24
"""Largest magnitude up to which FP32 holds every integer exactly."""

_DOUBLE_ROUNDING_SHIFT = 31
"""Largest shift with which TOSA's double rounding is the same as single rounding."""


class Rounding(StrEnum):
    """How a rescaled sum is rounded to an integer."""

    EVEN = "even"
    """To nearest, ties to even, as in ONNX."""
    UP = "up"
    """To nearest, ties towards positive infinity: TOSA's single rounding."""
    DOUBLE = "double"
    """TOSA's double rounding: to a multiple of 2**-31 of the sum's scale, then to an integer."""


def quantise(x: NDArray[np.float32], scale: float, low: int, high: int) -> NDArray[np.int32]:
    """Quantise real numbers to centred integers, as ONNX's QuantizeLinear does.

    The quotient is rounded to FP32 and then to an integer, ties to even.

    Parameters
    ----------
    x : float32 array
    scale : float
        A positive FP32 number.
    low, high : int
        Least and largest centred integer: those of the type less the zero point.
    """
    quotients = np.rint(np.asarray(x, np.float32) / np.float32(scale))
    found: NDArray[np.int32] = np.clip(quotients, low, high).astype(np.int32)
    return found


def dequantise(centred: NDArray[np.integer], scale: float) -> NDArray[np.float32]:
    """Compute the real numbers of centred integers, as ONNX's DequantizeLinear does."""
    return np.asarray(centred).astype(np.float32) * np.float32(scale)


@dataclass(frozen=True)
class Scale:
    """A positive factor ``multiplier * 2**-shift``.

    Parameters
    ----------
    multiplier : int
        A positive integer; TOSA's have at most 31 bits, those of FP32 numbers 24.
    shift : int
        May be negative for factors above 1.

    Raises
    ------
    ValueError
        If the multiplier is not positive.
    """

    multiplier: int
    shift: int

    def __post_init__(self) -> None:
        if self.multiplier < 1:
            raise ValueError(f"INT8 multiplier must be positive, not {self.multiplier}")

    @classmethod
    def of(cls, factor: float) -> "Scale":
        """The exact value of a floating-point number.

        Raises
        ------
        ValueError
            If the number is not positive and finite.
        """
        factor = float(factor)
        if not 0 < factor < float("inf"):
            raise ValueError(f"INT8 scale must be positive and finite, not {factor}")
        numerator, denominator = factor.as_integer_ratio()
        twos = (numerator & -numerator).bit_length() - 1
        return cls(numerator >> twos, denominator.bit_length() - 1 - twos)

    @property
    def value(self) -> Fraction:
        """The factor as a fraction."""
        return Fraction(self.multiplier) / Fraction(2) ** self.shift


def rescale(
    total: int, scale: Scale, rounding: Rounding, low: int, high: int, zero: int = 0
) -> int:
    """Rescale a sum to a centred integer: round, then saturate.

    Parameters
    ----------
    total : int
        The exact sum, with the bias.
    scale : Scale
    rounding : Rounding
    low, high : int
        Least and largest centred integer.
    zero : int
        The zero point, if it is added before ties are rounded to even, as in ONNX's reference of
        QLinearConv and QLinearMatMul; 0 where it is added afterwards.
    """
    exact = total * scale.value
    if rounding is Rounding.EVEN:
        found = round(exact + zero) - zero
    else:
        found = _rounded_up(total, scale, double=rounding is Rounding.DOUBLE)
    return min(max(found, low), high)


def _rounded_up(total: int, scale: Scale, *, double: bool) -> int:
    """TOSA's ``apply_scale_32``, without its limits of widths."""
    up = Fraction(1, 2)
    if double and scale.shift > _DOUBLE_ROUNDING_SHIFT:
        quarter = Fraction(1 << (_DOUBLE_ROUNDING_SHIFT - 1), 1 << scale.shift)
        up += quarter if total >= 0 else -quarter
    exact = total * scale.value + up
    return exact.numerator // exact.denominator


def thresholds(scale: Scale, rounding: Rounding, low: int, high: int, zero: int = 0) -> list[int]:
    """The least sums that are rescaled to ``low + 1``, ``low + 2``, ... ``high``.

    Rescaling never decreases with the sum, so these say all about it.

    Parameters
    ----------
    scale, rounding, low, high, zero
        As for `rescale`.
    """
    # With m / 2**s as the scale, a sum a becomes j or more if a * 2m >= (2j - 1) * 2**s. All sides
    # are multiplied by a power of two so that they are integers, also for negative shifts.
    m, unit = 2 * scale.multiplier, 1
    if scale.shift >= 0:
        unit <<= scale.shift
    else:
        m <<= -scale.shift
    found = []
    for j in range(low + 1, high + 1):
        edge = (2 * j - 1) * unit
        if rounding is Rounding.EVEN:
            strict = (j + zero) % 2 != 0  # a tie goes to the even neighbour
            found.append(edge // m + 1 if strict else -(-edge // m))
        elif rounding is Rounding.DOUBLE and scale.shift > _DOUBLE_ROUNDING_SHIFT:
            half = 1 << _DOUBLE_ROUNDING_SHIFT  # twice what is added to sums from 0 on
            below, above = -(-(edge + half) // m), -(-(edge - half) // m)
            found.append(below if below < 0 else max(above, 0))
        else:
            found.append(-(-edge // m))
    return found


def rescaled(
    totals: NDArray[np.integer],
    scale: Scale,
    rounding: Rounding,
    low: int,
    high: int,
    zero: int = 0,
) -> NDArray[np.int64]:
    """Rescale an array of sums; see `rescale`."""
    edges = np.array(thresholds(scale, rounding, low, high, zero), object)
    # Sums have 64 bits at most, so edges beyond that are never reached, or always passed.
    wide = np.clip(edges, -(1 << 62), 1 << 62).astype(np.int64)
    found: NDArray[np.int64] = low + np.searchsorted(wide, totals, side="right")
    return found
