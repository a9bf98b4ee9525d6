"""Cycles and memory traffic of one matrix product on a weight-stationary array.

This is the one place where the cycles of a product are computed, for planner, lowering and reports.
docs/cost-model.md explains the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec

ACCUMULATE_CYCLES = 8
"""Latency of converting a column's sum to FP32 and adding it to its accumulator.

This is an estimate: three cycles to convert and scale, five to add. The same accumulator cannot be
used again earlier."""

DRAIN_CYCLES = 6
"""Cycles from an accumulator to the write port of the memory: bias, ReLU, rounding and store FIFO.
This is an estimate."""

START_CYCLES = 16
"""Cycles from the start of a product to its first read request: decoding and address generators.
This is an estimate."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Axis:
    """One side of a matrix: taps of a kernel times channels.

    A vector of the array holds channels of one tap, or those of a run of neighbouring taps, which
    are next to each other in memory (channels last). This is how the three channels of a first
    layer fill the array.

    Parameters
    ----------
    channels : int
        Number of channels.
    taps : int
        Number of positions of the kernel; 1 for a plain matrix.
    run : int
        Number of taps next to each other in memory, a divisor of `taps`: a row of the kernel.
    """

    channels: int
    taps: int = 1
    run: int = 1

    def __post_init__(self) -> None:
        for name in ("channels", "taps", "run"):
            if getattr(self, name) < 1:
                raise ValueError(f"axis {name} must be at least 1, not {getattr(self, name)!r}")
        if self.taps % self.run:
            raise ValueError(f"axis run must divide {self.taps} taps, not {self.run!r}")

    @property
    def size(self) -> int:
        """Number of elements along the axis."""
        return self.channels * self.taps

    def tiles(self, width: int) -> int:
        """Number of vectors of `width` places that the axis takes."""
        return self.taps // self.run * _ceil(self.run * self.channels, width)


@dataclass(frozen=True)
class ProductSpec:
    """`count` independent products of ``m x k`` by ``k x n``, all of them `steps` times in a row.

    Parameters
    ----------
    m, k, n : Axis
        Rows of the result, which are streamed; reduction; columns of the result, whose operand is
        the stationary one.
    left_bytes, right_bytes, out_bytes : int
        Size in memory of the operands and the result of one product, with every element counted
        once: for a convolution, the size of the input, not of the matrix of its windows.
    count, steps : int
        Numbers of products and steps, as in the network's graph; each step needs the result of the
        previous one.
    accumulates : bool
        Whether the vector engine adds the result to the content of the memory (weight gradients of
        further micro-batches), once it has been written.
    transposed : bool
        Whether the streamed operand passes through the transposer, because its reduction axis is
        not contiguous in memory (weight gradients).
    weights : bool
        Whether the right operand is learned, FP32 in memory. Where the array would wait for such a
        one, it has a rounded copy of half the bytes, whose making is left out.

    Raises
    ------
    ValueError
        If a count is below 1 or a size below 0.
    """

    m: Axis
    k: Axis
    n: Axis
    left_bytes: int
    right_bytes: int
    out_bytes: int
    count: int = 1
    steps: int = 1
    accumulates: bool = False
    transposed: bool = False
    weights: bool = False

    def __post_init__(self) -> None:
        for name in ("count", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"product {name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("left_bytes", "right_bytes", "out_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"product {name} must be at least 0, not {getattr(self, name)!r}")

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates, products with padding zeros included."""
        return self.m.size * self.k.size * self.n.size * self.count * self.steps


@dataclass(frozen=True)
class _Engine:
    """One of a node's engines with its equal share of scratchpad and memory.

    If `as_one`, an engine with the columns of all, which has scratchpad and memory to itself.
    """

    node: NodeSpec
    as_one: bool

    def __post_init__(self) -> None:
        if self.acc_depth < self.rows:
            raise ValueError(
                f"engine acc_depth must be at least its {self.rows} rows, not {self.acc_depth}"
            )
        least = self.array.least_scratchpad_bytes
        if self.scratchpad_bytes < least:
            raise ValueError(
                f"engine scratchpad must be at least {least} bytes (two tiles of FP32 operands for "
                f"{self.rows}x{self.cols} cells), not {self.scratchpad_bytes}"
            )

    @cached_property
    def array(self) -> SystolicSpec:
        core = self.node.core
        return replace(core.array, cols=core.cols * core.num_engines) if self.as_one else core.array

    @cached_property
    def rows(self) -> int:
        return self.array.rows

    @cached_property
    def cols(self) -> int:
        return self.array.cols

    @cached_property
    def scratchpad_bytes(self) -> int:
        return self.node.core.scratchpad.size_bytes // self.node.shares(as_one=self.as_one)

    @cached_property
    def acc_depth(self) -> int:
        return self.node.core.acc_depth

    def transfer_cycles(self, size_bytes: float) -> int:
        return self.node.transfer_cycles(size_bytes, as_one=self.as_one)


class GemmCost(NamedTuple):
    """Cost of a product.

    Attributes
    ----------
    cycles : int
        Cycles from its start to the last word written, both included.
    compute_cycles : int
        Cycles of the array alone, if operands always arrive in time (`SystolicSpec.cycles`).
    memory_cycles : int
        Cycles in which the memory is busy.
    memory_bytes : int
        Bytes read and written.
    dataflow : str
        Data that stays on chip: ``stationary`` panels, ``streamed`` panels, or ``sums``.
    """

    cycles: int
    compute_cycles: int
    memory_cycles: int
    memory_bytes: int
    dataflow: str


class _Side(NamedTuple):
    """A product as the array sees it: `stream` vectors, and tiles of ``reduction x across``."""

    stream: int
    reduction_tiles: int
    across_tiles: int
    stream_bytes: int
    across_bytes: int


class _Blocking(NamedTuple):
    """Tiling of a product into `num_blocks` blocks of streamed vectors, and its cost.

    The array starts with `first_bytes` of operands, on which it works for `first_cycles`.
    """

    dataflow: str
    num_blocks: int
    traffic_bytes: int
    first_bytes: float
    first_cycles: int


def gemm_cost(product: ProductSpec, node: NodeSpec, *, as_one: bool = False) -> GemmCost:
    """Cost of a product on a node; parameters and errors are those of `gemm_costs`."""
    return gemm_costs(node, as_one=as_one)(product)


@lru_cache(maxsize=64)
def gemm_costs(node: NodeSpec, *, as_one: bool = False) -> Callable[[ProductSpec], GemmCost]:
    """Return a function for the cost of a product, which finds that of each product once.

    It is the cost with the best tiling, the one with the fewest cycles of array or memory,
    whichever is busy longer; then the fewest bytes; then the fewest cycles in all.

    Parameters
    ----------
    node : NodeSpec
        The node, one of whose engines has its equal share of scratchpad and memory.
    as_one : bool
        Whether it is an engine with the columns of all, which has scratchpad and memory to itself.

    Raises
    ------
    ValueError
        If the scratchpad does not hold two tiles of each operand, or there are fewer accumulators
        than rows.
    """
    engine = _Engine(node, as_one)

    def rank(cost: GemmCost) -> tuple[int, int, int]:
        return max(cost.compute_cycles, cost.memory_cycles), cost.memory_bytes, cost.cycles

    return cache(lambda product: min(_choices(product, engine), key=rank))


def _choices(product: ProductSpec, engine: _Engine) -> Iterator[GemmCost]:
    side = _side(product, engine)
    for blocking in _blockings(side, engine):
        yield _cost(product, engine, side, blocking)


def _side(product: ProductSpec, engine: _Engine) -> _Side:
    is_copied = product.weights and engine.array.waits_for_fp32(product.m.size)
    # The transposer works on squares of rows x rows and takes `rows` cycles for a square, however
    # little of it is used.
    squares = product.m.tiles(engine.rows) * engine.rows
    return _Side(
        squares if product.transposed else product.m.size,
        product.k.tiles(engine.rows),
        product.n.tiles(engine.cols),
        product.left_bytes,
        product.right_bytes // 2 if is_copied else product.right_bytes,
    )


def _blockings(side: _Side, engine: _Engine) -> Iterator[_Blocking]:
    """Iterate over the tilings of a product that fit the scratchpad.

    The pieces have the whole reduction: a streamed vector has `vector` bytes, a column of tiles
    `tile` bytes. The operand that stays on chip is held once if all of it fits; otherwise it takes
    one half of the room while its next part is loaded into the other half.
    """
    vector = side.stream_bytes / side.stream
    tile = side.across_bytes / side.across_tiles
    room = engine.scratchpad_bytes
    longest = min(side.stream, engine.acc_depth)
    for block in {longest, min(longest, engine.cols)}:
        blocks = _ceil(side.stream, block)
        first = (block * vector + tile, block * side.reduction_tiles)
        # A panel of tiles stays on chip, and blocks of vectors stream past it.
        panel = _held(side.across_tiles, tile, room - 2 * block * vector)
        if panel:
            passes = _ceil(side.across_tiles, panel)
            traffic = side.stream_bytes * passes + side.across_bytes
            yield _Blocking("stationary", blocks, traffic, *first)
        # Blocks of vectors stay on chip, and all tiles stream past them.
        chunk = _held(side.stream, vector, room - 2 * tile)
        if chunk >= block:
            traffic = side.stream_bytes + side.across_bytes * _ceil(side.stream, chunk)
            yield _Blocking("streamed", blocks, traffic, *first)
    yield from _sum_blockings(side, engine, vector, tile)


def _held(number: int, size_bytes: float, room_bytes: float) -> int:
    """Return how many of `number` pieces stay on chip at a time."""
    if number * size_bytes <= room_bytes:
        return number
    return max(int(room_bytes / (2 * size_bytes)), 0)


def _sum_blockings(side: _Side, engine: _Engine, vector: float, tile: float) -> Iterator[_Blocking]:
    """Iterate over tilings in which a block of sums stays in the accumulators.

    Only a slice of the reduction, one tile long, is on chip at a time, while the next slice loads.
    Blocks of fewer vectors than the array has columns would wait for weights. One column of tiles
    with `rows` vectors always fits, because `_Engine` checks it.
    """
    room = engine.scratchpad_bytes / 2 * side.reduction_tiles
    columns = 1
    while columns < 2 * side.across_tiles:
        block = min(side.stream, engine.acc_depth // columns)
        if block * vector + columns * tile > room:
            block = min(block, max(int((room - columns * tile) / vector), 0)) if vector else 0
        if block < min(side.stream, engine.cols, engine.acc_depth):
            if columns > 1:
                return
            block = max(block, min(side.stream, engine.rows))
        blocks = _ceil(side.stream, block)
        passes = _ceil(side.across_tiles, columns)
        traffic = side.stream_bytes * passes + side.across_bytes * blocks
        slice_bytes = (block * vector + columns * tile) / side.reduction_tiles
        yield _Blocking("sums", blocks, traffic, slice_bytes, block)
        columns *= 2


def _cost(product: ProductSpec, engine: _Engine, side: _Side, blocking: _Blocking) -> GemmCost:
    tiles = side.reduction_tiles * side.across_tiles * product.count
    parts = engine.node.core.scratchpad.parts
    compute = compute_cycles(
        engine.array, side.stream, tiles, blocking.num_blocks, side.reduction_tiles, parts
    )
    # What is added is written, and read with what it is added to; the sum is written.
    out_bytes = product.out_bytes * (4 if product.accumulates else 1)
    step_bytes = (blocking.traffic_bytes + out_bytes) * product.count
    once_bytes = 0
    if product.steps > 1:
        # Weights that fit the scratchpad stay there from step to step.
        weights = side.across_bytes * product.count
        if 2 * weights <= engine.scratchpad_bytes:
            once_bytes = weights
            step_bytes = (product.left_bytes + out_bytes) * product.count
    memory_bytes = step_bytes * product.steps + once_bytes
    memory = engine.transfer_cycles(memory_bytes)

    first = _first_load(engine, side, blocking)
    last = _last_store(product, engine, side)
    fixed = START_CYCLES + ACCUMULATE_CYCLES + DRAIN_CYCLES
    if engine.node.memory_bytes_per_cycle:
        fixed += engine.node.memory_latency_cycles
    # A step ends when its sums are complete, because the next step reads them.
    steps = product.steps * compute + (product.steps - 1) * (ACCUMULATE_CYCLES + DRAIN_CYCLES)
    cycles = max(steps + first + last, memory) + fixed
    return GemmCost(
        cycles,
        product.steps * compute,
        memory,
        memory_bytes,
        blocking.dataflow,
    )


def compute_cycles(
    array: SystolicSpec,
    stream: int,
    num_tiles: int,
    num_blocks: int = 1,
    reduction_tiles: int = 1,
    vector_cycles: int = 1,
) -> int:
    """Cycles of the array for `num_tiles` tiles past which `stream` vectors go in equal blocks.

    With one block, and if the accumulators keep up, this is `SystolicSpec.cycles`. A block takes at
    least ``cols`` cycles, in which the next weights load. If tiles are added up, it also takes at
    least the latency of the FP32 accumulation. Where the readers make a vector in several
    (`vector_cycles`) cycles, vectors and weights take that many times as long.
    """
    stream *= vector_cycles
    weights = array.cols * vector_cycles
    shortest = weights if reduction_tiles == 1 else max(weights, ACCUMULATE_CYCLES)
    last = stream // num_blocks
    # Blocks differ by at most one vector, so either all are at least `shortest` long or none is
    # longer.
    all_tiles = num_tiles * max(stream, num_blocks * shortest)
    return array.cycles(last) + all_tiles - max(last, shortest)


def _first_load(engine: _Engine, side: _Side, blocking: _Blocking) -> int:
    """Cycles by which the first vectors and tiles arrive later than the array could take them.

    The array starts with the first tile and the first vector. It needs the rest of the first block,
    over the whole reduction, while it computes.
    """
    tile = side.across_bytes / (side.across_tiles * side.reduction_tiles)
    tile_late = engine.transfer_cycles(tile) - engine.cols
    block_late = engine.transfer_cycles(blocking.first_bytes) - blocking.first_cycles
    return max(tile_late, block_late, 0)


def _last_store(product: ProductSpec, engine: _Engine, side: _Side) -> int:
    """Cycles of writing after the last sums, if sums come faster than the memory takes them.

    A column of tiles gives its results in its last pass, one vector per cycle.
    """
    vectors = min(side.stream, engine.acc_depth)
    share = vectors * engine.cols / (product.m.size * product.n.size)
    return max(engine.transfer_cycles(product.out_bytes * min(share, 1.0)) - vectors, 0)
