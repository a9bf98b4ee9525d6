"""FP32 constants with which the vector engine rescales and quantises exactly.

Rescaling a sum of products to an integer of eight bits is a step function: it never decreases, and
at most 255 thresholds say all about it (`hls_models.numerics.int8.thresholds`). The vector engine
has FP32 arithmetic only, whose operations never decrease either. So constants are searched with
which a few instructions have the very same thresholds, and every threshold is tried, on both sides:
what passes is equal for all sums. A channel for which nothing passes is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.int8 import Rounding, Scale, quantise, thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Sums = NDArray[np.int64]

TO_INTEGER = float(3 << 22)
"""A number whose FP32 neighbours are one apart: adding it to a small number rounds that to an
integer, ties to even, and leaves that integer in the lower bits."""

SPLITTER = float((1 << 12) + 1)
"""Factor with which FP32 numbers are split into two halves of at most 12 bits.

Source: T. J. Dekker, "A Floating-Point Technique for Extending the Available Precision",
Numerische Mathematik 18, 1971."""

_LEADING_BITS = 15
"""Bits of the leading part of an inverse scale; times an integer and a half, it is exact."""


@dataclass(frozen=True)
class Steps:
    """Step functions of the channels of a tensor.

    Attributes
    ----------
    edges : int64 array, shape (channels, high - low)
        Least total of each result ``low + 1 .. high``.
    factors : float64 array, shape (channels,)
        About the slopes of the functions.
    bias : int64 array, shape (channels,)
        What is added to a sum to give the total.
    low, high : int
        Least and greatest result.
    most : int
        Largest magnitude of a sum without its bias.
    is_odd : bool
        Whether ties go to odd results.
    """

    edges: Sums
    factors: NDArray[np.float64]
    bias: Sums
    low: int
    high: int
    most: int
    is_odd: bool = False

    @classmethod
    def of(
        cls,
        scales: Sequence[Scale],
        bias: Sequence[int],
        rounding: Rounding,
        low: int,
        high: int,
        most: int,
        zero: int = 0,
    ) -> Steps:
        """The step functions of rescaling; see `hls_models.numerics.int8.rescale`.

        Parameters
        ----------
        scales, bias : sequence of Scale, sequence of int
            One for each channel, or one for all.
        rounding, low, high, zero
            As for `rescale`.
        most : int
            Largest magnitude of a sum without its bias.
        """
        channels = max(len(scales), len(bias))
        beyond = most + max(abs(each) for each in bias) + 2
        rows = [
            [
                min(max(each, -beyond), beyond)
                for each in thresholds(scale, rounding, low, high, zero)
            ]
            for scale in scales
        ]
        edges = np.asarray(rows, np.int64).reshape(len(scales), high - low)
        return cls(
            np.broadcast_to(edges, (channels, high - low)),
            np.broadcast_to(np.asarray([float(s.value) for s in scales]), (channels,)),
            np.broadcast_to(np.asarray(bias, np.int64), (channels,)),
            low,
            high,
            most,
            rounding is Rounding.EVEN and zero % 2 != 0,
        )

    @property
    def results(self) -> Sums:
        """The results whose least totals `edges` has."""
        return np.arange(self.low + 1, self.high + 1)


@dataclass(frozen=True)
class DirectConstants:
    """Constants of ``clip(round((sum + offset) * factor))``, one of each for each channel."""

    offsets: Floats
    factors: Floats
    to_integer: float

    def run(self, sums: Sums, low: int, high: int) -> Floats:
        """Results of the instructions for sums of shape (channels, n)."""
        return _near(sums, self.offsets, self.factors, low, high, self.to_integer)


@dataclass(frozen=True)
class CheckedConstants:
    """Constants of a result that is computed, then compared with its own threshold.

    ``y = clip(round((sum + nears) * factor))`` is the result or one more. With the inverse of the
    scale in two parts, ``(y - 1/2) * leading + (y - 1/2) * rest - total`` is above 0, exactly where
    it is one more.
    """

    offsets: Floats
    nears: Floats
    factors: Floats
    leading: Floats
    rest: Floats

    def run(self, sums: Sums, low: int, high: int) -> Floats:
        """Results of the instructions for sums of shape (channels, n)."""
        nears = self.near(sums, low, high)
        corrected = fp32.add(nears, -self.is_above(nears, sums).astype(np.float32))
        return np.maximum(corrected, np.float32(low))

    def near(self, sums: Sums, low: int, high: int) -> Floats:
        """The result, or one more."""
        return _near(sums, self.nears, self.factors, low, high, TO_INTEGER)

    def is_above(self, nears: Floats, sums: Sums) -> NDArray[np.bool_]:
        """Whether a result's threshold is above the total."""
        total = fp32.add(sums.astype(np.float32), self.offsets[:, None])
        edge = fp32.add(nears, np.full_like(nears, -0.5))
        first = fp32.add(fp32.multiply(edge, self.leading[:, None]), -total)
        found: NDArray[np.bool_] = fp32.add(fp32.multiply(edge, self.rest[:, None]), first) > 0
        return found


def _near(
    sums: Sums, offsets: Floats, factors: Floats, low: int, high: int, to_integer: float
) -> Floats:
    """``clip(round((sum + offset) * factor))`` in FP32, as the engine computes it."""
    moved = fp32.add(sums.astype(np.float32), offsets[:, None])
    scaled = np.maximum(fp32.multiply(moved, factors[:, None]), np.float32(low))
    whole = np.full_like(scaled, to_integer)
    found = fp32.add(fp32.add(scaled, whole), -whole)
    return np.minimum(found, np.float32(high))


@dataclass(frozen=True)
class QuotientConstants:
    """Constants of ``clip(round(x / scale))`` with the quotient in FP32, as ONNX defines it.

    Attributes
    ----------
    scale, inverse : float32
    low, high : int
        Least and greatest result.
    is_exact : bool
        Whether the product with the inverse gives the right integers; otherwise the quotient is
        corrected by the remainder of the division, which is computed exactly.
    """

    scale: np.float32
    inverse: np.float32
    low: int
    high: int
    is_exact: bool

    @property
    def limits(self) -> tuple[np.float32, np.float32]:
        """Numbers to which operands are clipped; their quotients are the least and the greatest."""
        return np.float32(self.low) * self.scale, np.float32(self.high) * self.scale

    @property
    def halves(self) -> tuple[np.float32, np.float32]:
        """The scale in two parts of at most 12 bits."""
        upper = _upper(np.asarray([self.scale]))
        return upper[0], (np.asarray([self.scale]) - upper)[0]

    def run(self, x: Floats) -> Floats:
        """Results of the instructions."""
        low, high = self.limits
        x = np.maximum(np.minimum(fp32.flush(x), high), low)
        quotient = _times(x, self.inverse)
        if not self.is_exact:
            upper = _upper(quotient)
            rest = x
            for part in (upper, fp32.add(quotient, -upper)):
                for factor in self.halves:
                    rest = fp32.add(_times(part, -factor), rest)
            quotient = fp32.add(_times(rest, self.inverse), quotient)
        whole = np.full_like(quotient, TO_INTEGER)
        return fp32.add(fp32.add(quotient, whole), -whole)

    @classmethod
    def of(cls, scale: float, low: int, high: int) -> QuotientConstants:
        """Find the constants for a scale.

        Every FP32 number near a tie is tried. Elsewhere a quotient that is off by a few units in
        the last place is rounded to the same integer.

        Raises
        ------
        NotImplementedError
            If a quotient near a tie is rounded to another integer than ONNX's.
        """
        single = np.float32(scale)
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / single
        ties = ((np.arange(low + 1, high + 1) - 0.5) * float(single)).astype(np.float32)
        near = ties.view(np.int32)[:, None] + np.arange(-_NEAR_ULPS, _NEAR_ULPS + 1, dtype=np.int32)
        tried = near.view(np.float32).reshape(-1)
        for is_exact in (True, False):
            found = cls(single, inverse, low, high, is_exact)
            if (found.run(tried) == quantise(tried, float(single), low, high)).all():
                return found
        raise NotImplementedError(f"no FP32 constants quantise exactly with a scale of {scale}")


_NEAR_ULPS = 8
"""Units in the last place around a tie within which a quotient may be rounded wrongly."""


def _times(x: Floats, factor: np.float32) -> Floats:
    return fp32.multiply(x, np.full_like(x, factor))


def _upper(x: Floats) -> Floats:
    """The upper 12 bits of FP32 numbers, rounded."""
    scaled = _times(x, np.float32(SPLITTER))
    return fp32.add(scaled, -fp32.add(scaled, -x))


def search(steps: Steps) -> DirectConstants | CheckedConstants:
    """Find constants with which every channel's function is computed exactly.

    Raises
    ------
    NotImplementedError
        If there are none for some channel.
    """
    direct = _direct(steps)
    if direct is not None:
        return direct
    checked = _checked(steps)
    if checked is not None:
        return checked
    raise NotImplementedError(
        f"no FP32 constants rescale sums of up to {steps.most} exactly to "
        f"{steps.low}..{steps.high}; a smaller layer, or scales with fewer bits, would do"
    )


def _direct(steps: Steps) -> DirectConstants | None:
    """Try neighbours of the scale as factors, with a few offsets."""
    channels = len(steps.factors)
    plain = steps.factors.astype(np.float32)
    offsets, factors = np.zeros(channels, np.float32), plain.copy()
    open_ = np.ones(channels, bool)
    to_integer = TO_INTEGER + steps.is_odd
    for move in (0.0, 0.25, -0.25, 0.125, -0.125):
        for ulps in (0, 1, -1, 2, -2, 3, -3):
            tried = (plain.view(np.int32) + np.int32(ulps)).view(np.float32)
            exact = steps.bias + move
            offset = exact.astype(np.float32)
            fits = (offset == exact) & open_
            if not fits.any():
                continue
            found = DirectConstants(offset[fits], tried[fits], to_integer)
            passed = _has_edges(found, _only(steps, fits))
            chosen = np.flatnonzero(fits)[passed]
            offsets[chosen], factors[chosen] = offset[chosen], tried[chosen]
            open_[chosen] = False
            if not open_.any():
                return DirectConstants(offsets, factors, to_integer)
    return None


def _checked(steps: Steps) -> CheckedConstants | None:
    """Split the inverse of the scale; try neighbours of its second part, with a few offsets."""
    inverse = 1 / steps.factors
    plain = steps.factors.astype(np.float32)
    nears = (steps.bias + np.rint(inverse / 4)).astype(np.float32)
    unit = 2.0 ** (np.floor(np.log2(inverse)) - _LEADING_BITS + 1)
    leading = (np.floor(inverse / unit) * unit).astype(np.float32)
    remainder = inverse - leading
    # With as few bits, the product of the rest with an integer and a half is exact, too; more bits
    # are tried as well, since each edge is.
    fine = unit * 2.0 ** (1 - _LEADING_BITS)
    offsets, rest = np.zeros_like(leading), np.zeros_like(leading)
    open_ = np.ones(len(plain), bool)
    for shift in (0.0, 0.25, -0.25, 0.5, -0.5):
        offset = (steps.bias + shift).astype(np.float32)
        for move in (0, 1, -1, 0.5, -0.5, 0.25, -0.25, 0.125, -0.125, 2, -2, 3, -3, 5, -5, 8, -8):
            tried = ((np.rint(remainder / fine) + move) * fine).astype(np.float32)
            found = CheckedConstants(offset, nears, plain, leading, tried)
            passed = _checks_edges(found, steps) & open_
            offsets[passed], rest[passed] = offset[passed], tried[passed]
            open_ &= ~passed
            if not open_.any():
                return CheckedConstants(offsets, nears, plain, leading, rest)
    return None


def _only(steps: Steps, chosen: NDArray[np.bool_]) -> Steps:
    """The functions of some channels."""
    return replace(
        steps,
        edges=steps.edges[chosen],
        factors=steps.factors[chosen],
        bias=steps.bias[chosen],
    )


@dataclass(frozen=True)
class _Trials:
    """The sums at which a function is tried, shape (channels, high - low).

    Attributes
    ----------
    at, below : int64 array
        The least sum of each result, and the one below it.
    is_reached, is_left : bool array
        Whether some sum is at the edge or above it, and whether some is below it.
    """

    at: Sums
    below: Sums
    is_reached: NDArray[np.bool_]
    is_left: NDArray[np.bool_]

    @classmethod
    def of(cls, steps: Steps) -> _Trials:
        edges, most = steps.edges - steps.bias[:, None], steps.most
        at, below = np.clip(edges, -most, most), np.clip(edges - 1, -most, most)
        return cls(at, below, edges <= most, edges > -most)


def _has_edges(found: DirectConstants, steps: Steps) -> NDArray[np.bool_]:
    """Whether each channel gives the right results at each of its edges, and below it.

    All instructions are monotone, so the function between two edges is right as well.
    """
    trials = _Trials.of(steps)
    enough = found.run(trials.at, steps.low, steps.high) >= steps.results
    less = found.run(trials.below, steps.low, steps.high) < steps.results
    passed = (enough | ~trials.is_reached) & (less | ~trials.is_left)
    return np.asarray(passed.all(axis=1))


def _checks_edges(found: CheckedConstants, steps: Steps) -> NDArray[np.bool_]:
    """Whether each channel's first guess is right or one more, and each comparison is right.

    The guess never decreases with the sum, and the comparison never becomes true with it, so both
    need to be tried only at the edges. A guess at the least result may stand for less than that;
    what follows is saturated.
    """
    trials, low, high = _Trials.of(steps), steps.low, steps.high
    results = np.broadcast_to(steps.results.astype(np.float32), trials.at.shape)
    at = (found.near(trials.at, low, high) >= results) & ~found.is_above(results, trials.at)
    below = (found.near(trials.below, low, high) <= results) & found.is_above(results, trials.below)
    passed = (at | ~trials.is_reached) & (below | ~trials.is_left)
    return np.asarray(passed.all(axis=1))
