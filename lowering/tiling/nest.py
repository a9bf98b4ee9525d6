"""Loop nests of VECTOR instructions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_fields import NUM_VECTOR_LOOPS
from fpgapipe.hw.hls_models.isa.vector_op import MAX_SUMS, Counter, Source, Target, VectorOp

ENOUGH_SUMS = 8
"""Number of concurrent sums from which on the latency of an adder is hidden."""


@dataclass(frozen=True)
class VectorLoop:
    """A loop of a VECTOR instruction, with the movement of each iteration.

    Parameters
    ----------
    count : int
        Number of iterations.
    x, y : (int, int, int)
        Movement of each source per iteration: address in bytes, and the coordinates y and u.
    target : (int, int)
        Movement of the target per iteration: address in bytes, and the coordinate u.
    counter : int
        Change of the counter per iteration.
    """

    count: int
    x: tuple[int, int, int] = (0, 0, 0)
    y: tuple[int, int, int] = (0, 0, 0)
    target: tuple[int, int] = (0, 0)
    counter: int = 0

    def split(self, part: int) -> "tuple[VectorLoop, VectorLoop]":
        """Split the loop into two, the inner of which has `part` iterations."""
        assert self.count % part == 0, "a loop must be split evenly"
        (x_address, x_y, x_u), (y_address, y_y, y_u), (address, u) = self.x, self.y, self.target
        outer = VectorLoop(
            self.count // part,
            (part * x_address, part * x_y, part * x_u),
            (part * y_address, part * y_y, part * y_u),
            (part * address, part * u),
            part * self.counter,
        )
        return replace(self, count=part), outer


def nest(
    positions: Sequence[VectorLoop],
    reduced: Sequence[VectorLoop],
    x: Source,
    target: Target,
    y: Source | None = None,
    *,
    counter: int = 0,
    **settings: Any,
) -> VectorOp:
    """Build an instruction each of whose results is computed from one or several vectors.

    Parameters
    ----------
    positions : sequence of VectorLoop
        Loops over results, in the order in which they may be put inside the reduced loops.
    reduced : sequence of VectorLoop
        Loops that each result reduces over, the innermost first; empty for no reduction.
    x, target, y
        Sources and target at their first vectors; the loops provide their steps.
    counter : int
        First value of the counter.
    **settings
        Further arguments of `VectorOp`.

    Raises
    ------
    ValueError
        As for `VectorOp`, for example if there are more than six loops.
    """
    rest = [loop for loop in positions if loop.count > 1]
    inner: list[VectorLoop] = []
    # One loop is kept even if it has only one iteration, because it marks a reduction: lanes of X
    # outside the limits take no part in a reduction.
    taps = [loop for loop in reduced if loop.count > 1] or list(reduced[:1])
    if taps:
        inner, rest = _hiding(rest, NUM_VECTOR_LOOPS - len(taps))
    loops = [*inner, *taps, *rest]

    def moved(source: Source, which: str) -> Source:
        address, rows, lanes = (
            tuple(getattr(loop, which)[index] for loop in loops) for index in range(3)
        )
        return replace(source, steps=address, y_steps=rows, u_steps=lanes)

    return VectorOp(
        counts=tuple(loop.count for loop in loops),
        inner=len(inner),
        reduced=len(taps),
        x=moved(x, "x"),
        y=moved(y, "y") if y else None,
        target=replace(
            target,
            steps=tuple(loop.target[0] for loop in loops),
            u_steps=tuple(loop.target[1] for loop in loops),
        ),
        counter=Counter(counter, tuple(loop.counter for loop in loops)),
        **settings,
    )


def _hiding(loops: Sequence[VectorLoop], most: int) -> tuple[list[VectorLoop], list[VectorLoop]]:
    """Divide loops over results into those inside the reduced loops and those outside.

    Parameters
    ----------
    loops : sequence of VectorLoop
    most : int
        Largest number of loops over results.
    """
    inner: list[VectorLoop] = []
    rest = list(loops)
    while rest and prod(loop.count for loop in (*inner, rest[0])) <= MAX_SUMS:
        inner.append(rest.pop(0))
    sums = prod(loop.count for loop in inner)
    if rest and sums < ENOUGH_SUMS and len(loops) < most:
        part = largest_divisor(rest[0].count, MAX_SUMS // sums)
        if part > 1:
            first, rest[0] = rest[0].split(part)
            inner.append(first)
    return inner, rest


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


def spans(number: int) -> list[tuple[int, int]]:
    """Split a row of results so that the loop over each part can hide the latency of an adder.

    Each part, given as begin and end, has at most `MAX_SUMS` results, or a number of results that
    can be split into loops of at least `ENOUGH_SUMS` and at most `MAX_SUMS` iterations.
    """
    if number <= MAX_SUMS or largest_divisor(number, MAX_SUMS) >= ENOUGH_SUMS:
        return [(0, number)]
    whole = number // MAX_SUMS * MAX_SUMS
    return [(0, whole), (whole, number)]
