"""Cycles of a product whose two operands lie in the same bank of the scratchpad.

A bank has a memory of even words and one of odd words, each with one read per cycle, and the
streamed operand goes first. How often the readers wait for each other depends on the order of their
reads, because each of them reads in order and only some words ahead of the array. So this module
follows both readers and the array cycle by cycle; other products have closed formulas
(`instruction_cycles`).
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.numerics.mx import QUANTISE_CYCLES

PLACES = 16
"""Words from the scratchpad that can wait for the quantiser."""

READ_CYCLES = 7
"""Cycles from a read to its word's way into the quantiser."""

SQUARE_CYCLES = 4
"""Cycles that a column of a square needs in addition, after the last word of its square."""

PARTS_CYCLES = 4
"""Cycles of the quantiser of blocks that come in parts, after the last part."""

PARTS_SQUARE_CYCLES = 2
"""`SQUARE_CYCLES` for words that come in parts."""

FEW_READS = 100_000
"""Number of reads in a process from which machine code is worth the time to load it."""


@dataclass(frozen=True)
class Reads:
    """An operand's reads, and the vectors that come from them.

    Attributes
    ----------
    sides : sequence of int
        Memories that each read uses: 1 for that of even words, 2 for that of odd words, 3 for both,
        0 for a word of zeros, which is not read.
    needs : sequence of int
        For each vector, the number of reads that must be done before it.
    most : sequence of int
        For each number of vectors that have been taken, the largest number of reads that may be
        done.
    latency_cycles : int
        Cycles from the last read of a vector to the vector.
    """

    sides: NDArray[np.int64]
    needs: NDArray[np.int64]
    most: NDArray[np.int64]
    latency_cycles: int

    @classmethod
    def of(
        cls, operand: OperandPattern, rows: int, repeats: int, port_bytes: int = WORD_BYTES
    ) -> "Reads":
        """Return the reads of an operand, `repeats` times in a row, for an array of `rows` rows."""
        address, used, emit = operand.reads()
        if port_bytes < WORD_BYTES:
            return cls._in_parts(operand, repeats, port_bytes)
        odd = address // WORD_BYTES % 2
        # Reading 64 bytes that begin inside a word uses both memories.
        sides = np.where(address % WORD_BYTES > 0, 3, 1 + odd) * used
        if operand.fp32:
            # An FP32 word of 128 bytes takes two reads; one that has only zeros takes one cycle.
            second = np.where(sides == 3, 3, 3 - sides) * used
            kept = np.stack([np.ones_like(used), used], axis=1).reshape(-1)
            sides = np.stack([sides, second], axis=1).reshape(-1)[kept]
            ends = (1 + used).cumsum()
        else:
            ends = np.arange(1, len(used) + 1)
        stages = QUANTISE_CYCLES + (rows < BLOCK)
        latency = READ_CYCLES + stages
        size = len(sides)
        sides = np.tile(sides, repeats)
        ends = (np.arange(repeats)[:, None] * size + ends).reshape(-1)
        if operand.transposed:
            latency += SQUARE_CYCLES
            ends = ends[BLOCK - 1 :: BLOCK]
            emitted = np.tile(emit[::BLOCK], repeats)
            needs = np.repeat(ends, emitted)
            # There are two squares at a time, one that is filled and one that is emptied.
            emptied = np.searchsorted(
                emitted.cumsum(), np.arange(len(needs) + 1) + stages, side="right"
            )
            most = ends[np.minimum(emptied + 1, len(ends) - 1)]
        else:
            needs = ends
            most = ends[np.minimum(np.arange(len(needs) + 1) + stages, len(ends) - 1)]
        return cls(sides, needs, most + PLACES, latency)

    @classmethod
    def _in_parts(cls, operand: OperandPattern, repeats: int, port_bytes: int) -> "Reads":
        """Return the reads of an operand whose words are read in parts.

        A word of zeros takes as many cycles as its parts, without reads.
        """
        address, used, emit = operand.reads()
        parts = WORD_BYTES // port_bytes
        numbers = parts * (1 + used if operand.fp32 else np.ones_like(used))
        first = numbers.cumsum() - numbers
        within = np.arange(numbers.sum()) - np.repeat(first, numbers)
        at = np.repeat(address, numbers) + within * port_bytes
        sides = np.where(at % port_bytes > 0, 3, 1 + at // port_bytes % 2)
        sides *= np.repeat(used, numbers)
        size = len(sides)
        sides = np.tile(sides, repeats)
        ends = (np.arange(repeats)[:, None] * size + numbers.cumsum()).reshape(-1)
        latency = READ_CYCLES + PARTS_CYCLES
        if operand.transposed:
            latency += PARTS_SQUARE_CYCLES + parts - 1
            ends = ends[BLOCK - 1 :: BLOCK]
            emitted = np.tile(emit[::BLOCK], repeats)
            needs = np.repeat(ends, emitted)
            emptied = np.searchsorted(emitted.cumsum(), np.arange(len(needs) + 1), side="right")
            most = ends[np.minimum(emptied + 1, len(ends) - 1)]
        else:
            needs = ends
            most = ends[np.minimum(np.arange(len(needs) + 1), len(ends) - 1)]
        return cls(sides, needs, most + PLACES, latency)


@dataclass(frozen=True)
class Meeting:
    """Times of a product that follows an equal one, in cycles.

    Attributes
    ----------
    stream_cycles : int
        Cycles from the first vector to the last, both included.
    last_tile_cycles : int
        The part of `stream_cycles` that the last tile takes.
    first_late : int
        Cycles by which the first vector is later, if the array was idle before, than it would be if
        the operands lay in different banks.
    next_cycles : int
        Cycles from the first vector of the last tile to the first vector of an equal product that
        follows.
    """

    stream_cycles: int
    last_tile_cycles: int
    first_late: int
    next_cycles: int


def meeting(
    a: Reads, b: Reads, tiles: tuple[int, int, int], cols: int, writes: int, hazard: int
) -> Meeting:
    """Follow a product and an equal product after it, cycle by cycle.

    Parameters
    ----------
    a, b : Reads
        The streamed and the stationary operand, each read twice.
    tiles : (int, int, int)
        Vectors of a tile, tiles along the reduction, and columns of tiles.
    cols : int
        Columns of the array.
    writes : int
        Cycles in which a vector of results is written; 0 without results.
    hazard : int
        Cycles from one tile's vector to the same vector of the next one; 0 if there are none.
    """
    m, k, n = tiles
    size = m * k * n
    follow: Any = _follow
    _reads[0] += len(a.sides) + len(b.sides)
    if _reads[0] >= FEW_READS and _has_compiler():
        follow = _machine_code()
    parts: list[Any] = [a.sides, a.needs, a.most, b.sides, b.needs, b.most]
    if follow is _follow:
        parts = [part.tolist() for part in parts]
    numbers = (a.latency_cycles, b.latency_cycles, m, k, cols, writes, hazard)
    first, last_tile, last, following = follow(*parts, *numbers, size, True)
    *_, apart = follow(*parts, *numbers, 0, False)
    return Meeting(last - first + 1, last - last_tile + 1, first - apart, following - last_tile)


_reads = [0]


@cache
def _has_compiler() -> bool:
    return importlib.util.find_spec("numba") is not None


@cache
def _machine_code() -> Any:
    from fpgapipe.machine_code import compiled

    return compiled(_follow)


def _follow(
    a_sides: Sequence[int],
    a_needs: Sequence[int],
    a_most: Sequence[int],
    b_sides: Sequence[int],
    b_needs: Sequence[int],
    b_most: Sequence[int],
    a_latency: int,
    b_latency: int,
    m: int,
    k: int,
    cols: int,
    writes: int,
    hazard: int,
    size: int,
    meets: bool,
) -> tuple[int, int, int, int]:
    """Return the times of four vectors.

    They are the first vector, the first vector of the last tile, the last vector, which is number
    ``size - 1``, and the vector after it. `meets` says whether the operands share a bank.
    """
    a_read = b_read = 0  # reads that have been done
    a_taken = b_taken = 0  # vectors and columns that have been taken
    a_times = [0] * len(a_sides)
    b_times = [0] * len(b_sides)
    fed_at = [-hazard] * m
    column = vector = tile = 0  # the next column and the next vector, in their tiles
    active = complete = False
    resting = 0  # earliest time at which the array takes a vector
    first = last_tile = last = now = 0
    while True:
        side = 0
        if a_read < len(a_sides) and a_read < a_most[a_taken]:
            side = a_sides[a_read]
            a_times[a_read] = now
            a_read += 1
        if (
            b_read < len(b_sides)
            and b_read < b_most[b_taken]
            and not (meets and side & b_sides[b_read])
        ):
            b_times[b_read] = now
            b_read += 1
        fed = (
            active
            and now >= resting
            and a_read >= a_needs[a_taken]
            and a_times[a_needs[a_taken] - 1] + a_latency <= now
            and (tile % k == 0 or fed_at[vector] + hazard <= now)
        )
        is_last = fed and vector == m - 1
        if fed:
            if a_taken == size:
                return first, last_tile, last, now
            first = now if a_taken == 0 else first
            last_tile = now if vector == 0 else last_tile
            last = now
            fed_at[vector] = now
            if tile % k == k - 1:
                resting = now + writes
            a_taken += 1
            vector = 0 if is_last else vector + 1
            tile += is_last
        swap = complete and (is_last or not active)
        load = (
            (swap or not complete)
            and b_taken < len(b_needs)
            and b_read >= b_needs[b_taken]
            and b_times[b_needs[b_taken] - 1] + b_latency <= now
        )
        if load:
            b_taken += 1
            column += 1
        if load and column == cols:
            complete, column = True, 0
        elif swap:
            complete = False
        if swap:
            active = True
        elif is_last:
            active = False
        now += 1
