"""Costs of single instructions of a training core: words on the bus, cycles of an array."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.operand_cycles import Meeting, Reads, meeting
from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.shared_fields import SharedFields
from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec

_Found = TypeVar("_Found")

_Numbers = tuple[tuple[str, int], ...]
_Loops = tuple[tuple[str, tuple[tuple[tuple[str, int], ...], ...]], ...]
_Reading = int | tuple[_Numbers, _Loops]
"""Words of each tile of an operand; of an FP32 operand, its fields as hashable items."""

TRANSPOSE_CYCLES = 3
"""Cycles that the transposer takes in addition to filling its first square."""

NARROW_TRANSPOSE_CYCLES = 1
"""The same of a transposer of words that come in parts."""

PARTS_CYCLES = -3
"""Cycles of an operand's reader from a word's last part to its vector, compared with the path of a
whole word, less one for the first part."""


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
    a_ahead : int
        Cycles by which the streamed operand's last read is further ahead of the last vector than
        that of another operand.
    b_words, later_b_words : int
        Cycles of reading the first tile's weights, and of reading those of all other tiles.
    writes : int
        Cycles in which a vector of results is written, 0 without results.
    stall_cycles : int
        Cycles by which the next product's weights come later than the last tile begins: the array
        stops while the last tile's results are written, and its vectors may be read first.
    """

    stream_cycles: int
    last_tile_cycles: int
    a_late: int
    b_late: int
    a_ahead: int
    b_words: int
    later_b_words: int
    writes: int
    stall_cycles: int


def once_for_each_body(
    find: Callable[[Mapping[str, Any], CoreSpec], _Found],
) -> Callable[[Mapping[str, Any], CoreSpec], _Found]:
    """Keep what a function finds about a body with shared fields on a core's engines."""

    @wraps(find)
    def found(body: Mapping[str, Any], core: CoreSpec) -> _Found:
        if not isinstance(body, SharedFields):
            return find(body, core)
        key = find.__name__, core.rows, core.cols, core.scratchpad, core.vector
        if key not in body.known:
            body.known[key] = find(body, core)
        result: _Found = body.known[key]
        return result

    return found


@once_for_each_body
def gemm_timing(body: Mapping[str, Any], core: CoreSpec) -> GemmTiming:
    """Compute the times of one GEMM instruction from its fields.

    A tile takes as long as the slowest of these: its vectors, one per cycle; the columns of the
    next tile; the reading of either operand, one word of 32 elements or half of one per cycle (or
    the part of one that a narrow port of the scratchpad reads); the latency of the accumulators. If
    a vector of results takes more than one cycle to be written, the array stops meanwhile. Operands
    in the same bank also wait for each other (`operand_cycles`).
    """
    extent = body["extent"]
    m, k, n = (extent[name] + 1 for name in ("m", "k", "n"))
    element = 4 if body["result"]["fp32"] else 2
    parts = core.scratchpad.parts
    writes = -(-core.cols * element // WORD_BYTES) * parts if extent["last"] else 0
    a, b = body["a"], body["b"]
    # The base address does not matter; without it, many instructions share one cache entry.
    a_reading, b_reading = (
        _items(operand, 2) if operand["fp32"] else _vectors_of_tile(operand, vectors)
        for operand, vectors in ((a, m), (b, core.cols))
    )
    a_first = parts * _first_reads(a_reading, k * n, transposed=a["transposed"])
    b_first = parts * _first_reads(b_reading, k * n, transposed=b["transposed"])
    a_late = _late(a_first, parts, transposed=a["transposed"])
    # `a_late` has the first reads. Behind the last ones a vector is left, or columns of a square.
    saved = a_first - (a["emit_last"] if a["transposed"] else 1)
    timing = _timing_of_tiles(
        *(m, k, n, extent["first"], writes, core.cols, a_reading, b_reading),
        parts,
        1 if a["transposed"] else parts,
        saved,
    )
    stream, last, first_b, later_b, stall = timing
    # The columns of the first tile may come further apart than one per cycle.
    apart = (core.cols - 1) * parts if b["transposed"] else first_b - b_first
    late = _late(b_first, parts, transposed=b["transposed"]) + max(apart - (core.cols - 1), 0)
    if _share_a_bank(a, b, core.scratchpad):
        items = (*_items(a, 2 * WORD_BYTES), *_items(b, 2 * WORD_BYTES))
        hazard = ACC_CYCLES if not (extent["first"] and k == 1) else 0
        array = core.rows, core.cols
        found = _meeting(items, (m, k, n), array, writes, hazard, core.scratchpad.port_bytes)
        stream, last = found.stream_cycles, found.last_tile_cycles
        late += found.first_late
        stall = max(found.next_cycles - first_b, stall)
    return GemmTiming(stream, last, a_late, late, a_late - saved, first_b, later_b, writes, stall)


@lru_cache(maxsize=1 << 12)
def _meeting(
    items: tuple[_Numbers, _Loops, _Numbers, _Loops],
    tiles: tuple[int, int, int],
    array: tuple[int, int],
    writes: int,
    hazard: int,
    port_bytes: int,
) -> Meeting:
    """Times of a product whose operands, given by hashable items, lie in one bank."""
    rows, cols = array
    a, b = (Reads.of(_pattern(*each), rows, 2, port_bytes) for each in (items[:2], items[2:]))
    return meeting(a, b, tiles, cols, writes, hazard)


@lru_cache(maxsize=1 << 14)
def _timing_of_tiles(
    m: int,
    k: int,
    n: int,
    first: int,
    writes: int,
    cols: int,
    a: _Reading,
    b: _Reading,
    parts: int,
    pace: int,
    saved: int,
) -> tuple[int, int, int, int, int]:
    """Do what `_timing` does, given how the operands' tiles are read."""
    a_words, b_words = (
        parts
        * np.broadcast_to(
            np.int64(each) if isinstance(each, int) else _reads_of_fp32(*each, k * n)[0], k * n
        )
        for each in (a, b)
    )
    return _timing(m, k, n, first, writes, cols, a_words, b_words, pace, saved)


def _timing(
    m: int,
    k: int,
    n: int,
    first: int,
    writes: int,
    cols: int,
    a_words: NDArray[np.int64],
    b_words: NDArray[np.int64],
    pace: int,
    saved: int,
) -> tuple[int, int, int, int, int]:
    """Return five times of a product, in cycles.

    They are the times of all tiles and of the last tile, those of reading the weights of the first
    tile and of all others from the scratchpad, and the stall of `GemmTiming`. `pace` is
    the least number of cycles from a streamed vector to the next one, and `saved` are the cycles
    by which the streamed operand's reads are ahead of its vectors.
    """
    # The array waits for a tile's weights, which are read while the previous tile streams.
    moves = np.full(k * n, max(m, cols))
    moves[-1] = m
    if not (first and k == 1):
        np.maximum(moves[:-1], ACC_CYCLES, out=moves[:-1])
    # While results come without a gap, each one waits until the previous one has been written.
    stall = (m - (m < cols or k > 1)) * max(writes - pace, 0)
    moves[k - 1 :: k] += stall
    reads = np.maximum(a_words, np.append(b_words[1:], 0))
    reads[-1] -= saved
    tiles = np.maximum(reads, moves)
    return int(tiles.sum()), int(tiles[-1]), int(b_words[0]), int(b_words[1:].sum()), stall


@lru_cache(maxsize=1 << 12)
def _reads_of_fp32(
    numbers: _Numbers, loops: _Loops, tiles: int
) -> tuple[NDArray[np.int64], int, int]:
    """Reads of each tile of an FP32 operand, of its first square of words, and of its first word.

    A word of zeros takes one read, others take two. The operand's fields are hashable items.
    """
    _, used, _ = _pattern(numbers, loops).reads()
    reads = 1 + used.astype(np.int64)
    return reads.reshape(tiles, -1).sum(axis=1), int(reads[:BLOCK].sum()), int(reads[0])


def _share_a_bank(a: Mapping[str, Any], b: Mapping[str, Any], scratchpad: ScratchpadSpec) -> bool:
    """Whether both operands are in the same bank; each is taken to lie in one bank."""
    banks = [_middle(operand) // scratchpad.bank_bytes for operand in (a, b)]
    return banks[0] == banks[1]


def _middle(operand: Mapping[str, Any]) -> int:
    """Address of the word in the middle; the first and the last ones may be padding."""
    address = int(operand["base"])
    for name in ("outer", "tap", "pos"):
        moved = 0
        for number, loop in enumerate(operand[name]):
            step = loop["address"] + moved
            moved += loop["count"] * step
            first = 0
            if name == "pos" and number < 2:
                first = loop["count"] - operand[f"pos{number}_left"]
            address += (loop["count"] // 2 - first) * step
    return address


def _items(operand: Mapping[str, Any], modulus: int) -> tuple[_Numbers, _Loops]:
    """Fields of an operand as hashable items; only the remainder of the base address is kept."""
    numbers = tuple(
        (name, value % modulus if name == "base" else value)
        for name, value in operand.items()
        if not isinstance(value, list)
    )
    loops = tuple(
        (name, tuple(tuple(loop.items()) for loop in value))
        for name, value in operand.items()
        if isinstance(value, list)
    )
    return numbers, loops


def _pattern(numbers: _Numbers, loops: _Loops) -> OperandPattern:
    """Inverse of `_items`."""
    operand: dict[str, Any] = dict(numbers)
    operand |= {name: [dict(loop) for loop in value] for name, value in loops}
    return OperandPattern.decoded(operand)


def _vectors_of_tile(operand: Mapping[str, Any], vectors: int) -> int:
    """BF16 words of a tile: one per vector, or with `transposed` all words of its squares."""
    if not operand["transposed"]:
        return vectors
    loops = operand["tap"] if operand["walks_blocks"] else operand["pos"]
    vectors = math.prod(int(loop["count"]) + 1 for loop in loops)
    return BLOCK * vectors if operand["walks_blocks"] else vectors // BLOCK * BLOCK


def _first_reads(reading: _Reading, tiles: int, *, transposed: int) -> int:
    """Reads of the first vector, or of the first square of a transposed operand."""
    if isinstance(reading, int):
        return BLOCK if transposed else 1
    _, square, word = _reads_of_fp32(*reading, tiles)
    return square if transposed else word


def _late(first: int, parts: int, *, transposed: int) -> int:
    """Cycles by which the first vector is later than that of a BF16 operand as it lies.

    `first` are the cycles of its first reads.
    """
    if parts == 1:
        return first + TRANSPOSE_CYCLES if transposed else first - 1
    late = first + NARROW_TRANSPOSE_CYCLES if transposed else first - parts
    return late + parts + PARTS_CYCLES
