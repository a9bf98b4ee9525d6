"""Costs of single instructions of a training core: words on the bus, cycles of an array."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

TRANSPOSE_CYCLES = 3
"""Cycles that the transposer takes in addition to filling its first square."""


def words_of_transfer(body: Mapping[str, Any], core: CoreSpec) -> tuple[int, int]:
    """Number of 64-byte words that a LOAD or STORE moves, and number of its bursts.

    Rows may begin anywhere in a word. A burst never crosses a multiple of the size of the longest
    burst.
    """
    block = max(core.burst_beats * core.bus_bytes, WORD_BYTES)
    return _words_of_rows(
        body["rows"] + 1,
        body["planes"] + 1,
        body["row_bytes"],
        *(body[name] % block for name in ("memory", "row_memory", "plane_memory")),
        block,
    )


@lru_cache(maxsize=1 << 12)
def _words_of_rows(
    rows: int, planes: int, row_bytes: int, first: int, row_step: int, plane_step: int, block: int
) -> tuple[int, int]:
    starts = first + np.arange(planes)[:, None] * plane_step + np.arange(rows) * row_step
    lasts = starts + row_bytes - 1
    words, bursts = (
        int((lasts // size - starts // size + 1).sum()) for size in (WORD_BYTES, block)
    )
    return words, bursts


@dataclass(frozen=True)
class GemmTiming:
    """Times of a product on its engine.

    Attributes
    ----------
    stream_cycles : int
        Cycles from the first vector to the last, both included, if operands arrive in time.
    last_tile_cycles : int
        The part of `stream_cycles` that the last tile takes.
    a_late, b_late : int
        Cycles by which the first vector of a transposed or FP32 operand is later than that of
        another operand.
    b_words, later_b_words : int
        Cycles of reading the first tile's weights, and of reading those of all other tiles.
    writes : int
        Words that a vector of results takes, 0 without results.
    stall_cycles : int
        Cycles for which the array stops while the last tile's results are written.
    """

    stream_cycles: int
    last_tile_cycles: int
    a_late: int
    b_late: int
    b_words: int
    later_b_words: int
    writes: int
    stall_cycles: int


def gemm_timing(body: Mapping[str, Any], core: CoreSpec) -> GemmTiming:
    """Compute the times of one GEMM instruction from its fields.

    A tile takes as long as the slowest of these: its vectors, one per cycle; the columns of the
    next tile; the reading of either operand, one word of 32 elements or half of one per cycle; the
    latency of the accumulators. If a vector of results takes more than one cycle to be written, the
    array stops meanwhile.
    """
    extent = body["extent"]
    m, k, n = (extent[name] + 1 for name in ("m", "k", "n"))
    element = 4 if body["result"]["fp32"] else 2
    writes = -(-core.cols * element // WORD_BYTES) if extent["last"] else 0
    a, b = body["a"], body["b"]
    if a["fp32"] or b["fp32"]:
        a_words, b_words = (
            np.broadcast_to(_cycles_of_tiles(operand, vectors, k * n), k * n)
            for operand, vectors in ((a, m), (b, core.cols))
        )
        timing = _timing(m, k, n, extent["first"], writes, core.cols, a_words, b_words)
    else:
        timing = _timing_of_equal_tiles(
            *(m, k, n, extent["first"], writes, core.cols),
            *(_vectors_of_tile(a, m), _vectors_of_tile(b, core.cols)),
        )
    stream, last, first_b, later_b, stall = timing
    return GemmTiming(stream, last, _late(a), _late(b), first_b, later_b, writes, stall)


@lru_cache(maxsize=1 << 12)
def _timing_of_equal_tiles(
    m: int, k: int, n: int, first: int, writes: int, cols: int, a_words: int, b_words: int
) -> tuple[int, int, int, int, int]:
    every = np.ones(k * n, np.int64)
    return _timing(m, k, n, first, writes, cols, a_words * every, b_words * every)


def _timing(
    m: int,
    k: int,
    n: int,
    first: int,
    writes: int,
    cols: int,
    a_words: NDArray[np.int64],
    b_words: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Return cycles of all tiles, of the last one, of the first weights, of the others, of a stall.

    The weights' cycles are those of reading them from the scratchpad.
    """
    # The array waits for a tile's weights, which are read while the previous tile streams.
    moves = np.full(k * n, max(m, cols))
    moves[-1] = m
    if not (first and k == 1):
        np.maximum(moves[:-1], ACC_CYCLES, out=moves[:-1])
    # While results come without a gap, each one waits until the previous one has been written.
    stall = (m - (m < cols or k > 1)) * max(writes - 1, 0)
    moves[k - 1 :: k] += stall
    tiles = np.maximum(np.maximum(a_words, np.append(b_words[1:], 0)), moves)
    return int(tiles.sum()), int(tiles[-1]), int(b_words[0]), int(b_words[1:].sum()), stall


def _cycles_of_tiles(
    operand: Mapping[str, Any], vectors: int, tiles: int
) -> NDArray[np.int64] | int:
    """Cycles of reading each tile from the scratchpad; a single number if all tiles are alike.

    An FP32 word takes two cycles, or one if it has only zeros, which are not read.
    """
    if not operand["fp32"]:
        return _vectors_of_tile(operand, vectors)
    # The base address does not matter; without it, many instructions share one cache entry.
    numbers = tuple(
        (name, value)
        for name, value in operand.items()
        if name != "base" and not isinstance(value, list)
    )
    loops = tuple(
        (name, tuple(tuple(loop.items()) for loop in value))
        for name, value in operand.items()
        if isinstance(value, list)
    )
    return _cycles_of_fp32_tiles(numbers, loops, tiles)


@lru_cache(maxsize=1 << 12)
def _cycles_of_fp32_tiles(
    numbers: tuple[tuple[str, int], ...],
    loops: tuple[tuple[str, tuple[tuple[tuple[str, int], ...], ...]], ...],
    tiles: int,
) -> NDArray[np.int64]:
    """Cycles of reading each tile of an FP32 operand, whose fields are given as hashable items."""
    operand: dict[str, Any] = {"base": 0, **dict(numbers)}
    operand |= {name: [dict(loop) for loop in value] for name, value in loops}
    words = OperandPattern.decoded(operand).words()
    cycles: NDArray[np.int64] = (
        (1 + words.lanes.any(axis=1)).reshape(tiles, -1).sum(axis=1, dtype=np.int64)
    )
    return cycles


def _vectors_of_tile(operand: Mapping[str, Any], vectors: int) -> int:
    """BF16 words of a tile: one per vector, or with `transposed` all words of its squares."""
    if not operand["transposed"]:
        return vectors
    loops = operand["tap"] if operand["walks_blocks"] else operand["pos"]
    vectors = math.prod(int(loop["count"]) + 1 for loop in loops)
    return BLOCK * vectors if operand["walks_blocks"] else vectors // BLOCK * BLOCK


def _late(operand: Mapping[str, Any]) -> int:
    halves = 2 if operand["fp32"] else 1
    return (BLOCK * halves + TRANSPOSE_CYCLES) if operand["transposed"] else halves - 1
