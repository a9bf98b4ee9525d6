"""Estimates the costs of tilings of a pass without generating their instructions.

A search looks at some hundred tilings of a pass, each with every way to divide the scratchpad, and
generates the instructions of only a few. It judges all others by their pieces: the sizes of tiles,
how often each tile is loaded, and the work of the array.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.bus_cycles import LOAD_HOLD_CYCLES
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.instruction_cycles import words_of_transfer
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode, words_of
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.lowering.products.conv import ConvSpec, Pass
from fpgapipe.lowering.products.conv_parts import Formats, Tiling
from fpgapipe.lowering.products.conv_passes import products
from fpgapipe.lowering.products.conv_product import Product
from fpgapipe.lowering.products.emit import Rings, rings_for
from fpgapipe.lowering.tiling.tile import Tile

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Sketch:
    """A tiled pass without its patterns; tiles are numbers that `TilingSearch` assigns.

    Attributes
    ----------
    tiling : Tiling
        The tiling, or the first one that divides the pass into the same pieces in the same order.
    num_ops : int
        Number of GEMM instructions.
    work : int
        Rough estimate of the cycles of the array.
    streamed, stationary, results : int arrays
        Numbers of the operand tiles that the operations use, in order, with immediate repetitions
        left out; numbers of the result tiles, each once.
    first_sizes : tuple of int
        Bytes of the three tiles of the first operation.
    last_bytes : int
        Bytes of the last result tile.
    """

    tiling: Tiling
    num_ops: int
    work: int
    streamed: Numbers
    stationary: Numbers
    results: Numbers
    first_sizes: tuple[int, int, int]
    last_bytes: int


LONG_WORK = 1 << 18
"""Cycles from which a product's traffic counts for other kernels, which run meanwhile."""

INSTRUCTION_CYCLES = 2
"""Cycles that each instruction is thought to lose."""

FREE_SHARE, CROWDING = 0.4, 0.01
"""Share of a product's cycles in which it may use the memory, and what others lose by more."""


class Estimate(NamedTuple):
    """Estimate of a tiled product.

    Attributes
    ----------
    cycles : float
    crowding : float
        Cycles that kernels of the vector engine are thought to lose, since the product moves more
        than a share of what the memory does.
    """

    cycles: float
    crowding: float


class TilingSearch:
    """Sketches and estimates tilings of one pass.

    Parameters
    ----------
    conv, which, core, formats, memory
        As for `fpgapipe.lowering.products.tiled_product.tile_product`.
    """

    def __init__(
        self, conv: ConvSpec, which: Pass, core: CoreSpec, formats: Formats, memory: MemorySpec
    ) -> None:
        self.core = core
        self.memory = memory
        self._products = {
            own: products(conv, which, core, formats, own_window=own) for own in (False, True)
        }
        self._numbers: dict[Tile, int] = {}
        self._known: dict[Hashable, int] = {}
        self._pairs: dict[Hashable, Numbers] = {}
        self._moves: list[float] = []  # cycles of the transfer of each tile
        self._sizes: list[int] = []  # bytes of each tile
        self._loads: dict[tuple[bytes, int], list[int]] = {}
        self._sketches: dict[Hashable, Sketch] = {}

    def sketch(self, tiling: Tiling) -> Sketch:
        """Sketch a tiling.

        Raises
        ------
        ValueError
            If the tiling does not suit the core. Patterns are not generated here, so they can still
            turn out not to suit it.
        """
        divided = self._divided(tiling)
        n_outer = tiling.n_outer and any(
            len(rows) > 1 < len(columns) for rows, columns, _ in divided
        )
        key = tiling.own_window, n_outer, tuple(divided)
        if key not in self._sketches:
            self._sketches[key] = self._sketch(tiling, divided)
        return self._sketches[key]

    def work(self, tiling: Tiling) -> tuple[int, int]:
        """Work and number of instructions of a tiling's sketch, without the sketch.

        Raises
        ------
        ValueError
            As `sketch` does.
        """
        return self._work(tiling, self._divided(tiling))

    def _divided(self, tiling: Tiling) -> list[tuple[Any, Any, Any]]:
        """Rows, columns and slices of a tiling's products, if they suit the core."""
        divided = []
        for each in self._products[tiling.own_window]:
            rows, columns, pieces = each.rows(tiling), each.columns(tiling), each.slices(tiling)
            each.check(rows, columns, len(pieces))
            divided.append((tuple(rows), tuple(columns), tuple(pieces)))
        return divided

    def _work(self, tiling: Tiling, divided: Sequence[tuple[Any, Any, Any]]) -> tuple[int, int]:
        work = num_ops = 0
        for each, pieces in zip(self._products[tiling.own_window], divided, strict=True):
            work += each.work(*pieces)
            num_ops += math.prod(map(len, pieces))
        return work, num_ops

    def _sketch(self, tiling: Tiling, divided: Sequence[tuple[Any, Any, Any]]) -> Sketch:
        work, num_ops = self._work(tiling, divided)
        parts: list[tuple[Numbers, Numbers, Numbers]] = [
            self._in_order(tiling, number, each, *pieces)
            for number, (each, pieces) in enumerate(
                zip(self._products[tiling.own_window], divided, strict=True)
            )
        ]
        a, b, result = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Sketch(
            tiling, num_ops, work, _without_repeats(a), _without_repeats(b), result,
            (self._sizes[a[0]], self._sizes[b[0]], self._sizes[result[0]]), self._sizes[result[-1]],
        )  # fmt: skip

    def rings(self, sketch: Sketch, least_slots: int) -> Iterator[Rings]:
        """Yield all ways to divide the scratchpad; see `emit.rings_of`."""
        sequences = [
            np.unique(each) for each in (sketch.streamed, sketch.stationary, sketch.results)
        ]
        largest = [max(self._sizes[number] for number in each) for each in sequences]
        distinct = [len(each) for each in sequences]
        return rings_for(largest, distinct, self.core.scratchpad, least_slots)

    def keeps_stationary(self, sketch: Sketch, rings: Rings) -> bool:
        """Whether all tiles of the stationary operand fit on chip together."""
        loaded = [number for number in set(sketch.stationary.tolist()) if self._moves[number]]
        return len(loaded) <= rings.b.slots

    def estimate(self, sketch: Sketch, rings: Rings, *, is_repeat: bool = False) -> Estimate:
        """Estimate the cycles: work or traffic, first loads, last store, and a few per product.

        With a ring of one slot, work and traffic do not overlap. With `is_repeat`, the stationary
        operand is on chip already.
        """
        per_cycle = min(self.memory.bytes_per_cycle, self.core.bus_bytes)
        traffic = float(
            sum(
                self._moves[number]
                for numbers in (
                    self.loaded(sketch.streamed, rings.a.slots),
                    [] if is_repeat else self.loaded(sketch.stationary, rings.b.slots),
                    sketch.results.tolist(),
                )
                for number in numbers
            )
        )
        traffic += sketch.num_ops * words_of(Opcode.GEMM) * WORD_BYTES / per_cycle
        ends = sketch.first_sizes[0] + sketch.last_bytes
        ends += 0 if is_repeat else sketch.first_sizes[1]
        alone = any(
            ring.slots == 1 and (numbers != numbers[0]).any()
            for ring, numbers in (
                (rings.a, sketch.streamed),
                (rings.b, sketch.stationary),
                (rings.result, sketch.results),
            )
        )
        together = sketch.work + traffic if alone else max(sketch.work, traffic)
        crowding = 0.0
        if sketch.work >= LONG_WORK:
            crowding = max(traffic - FREE_SHARE * sketch.work, 0) * CROWDING
        return Estimate(together + ends / per_cycle + INSTRUCTION_CYCLES * sketch.num_ops, crowding)

    def tile(self, number: int) -> Tile:
        """Return the tile that has a number."""
        return next(tile for tile, known in self._numbers.items() if known == number)

    def _in_order(
        self,
        tiling: Tiling,
        number: int,
        made: Product[Any, Any],
        rows: Sequence[Any],
        columns: Sequence[Any],
        pieces: Sequence[Any],
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Numbers of the tiles of a product's operations, in the order of `Product.operations`."""
        own = tiling.own_window
        streamed = self._numbers_of(("a", number), rows, pieces, made.streamed)
        stationary = self._numbers_of(("b", number, own), columns, pieces, made.stationary)
        result = self._numbers_of(("r", number), rows, columns, made.result)
        shape = len(rows), len(columns), len(pieces)
        a = np.broadcast_to(streamed[:, None], shape)
        b = np.broadcast_to(stationary, shape)
        if tiling.n_outer:
            a, b, result = a.swapaxes(0, 1), b.swapaxes(0, 1), result.T
        return a.reshape(-1), b.reshape(-1), result.reshape(-1)

    def _numbers_of(
        self, what: tuple[Any, ...], ones: Sequence[Any], others: Sequence[Any], make: Any
    ) -> Numbers:
        """Numbers of the tiles of all pairs of two kinds of pieces, which many tilings share."""
        key = what, ones, others
        found = self._pairs.get(key)
        if found is None:
            rows = [
                [self._number_of((*what, one, other), make) for other in others] for one in ones
            ]
            found = self._pairs[key] = np.array(rows, np.intp)
        return found

    def _number_of(self, key: tuple[Any, ...], make: Any) -> int:
        """Number of a tile, which `make` computes from the last two parts of the key."""
        found = self._known.get(key)
        if found is None:
            tile = make(*key[-2:])
            found = self._numbers.setdefault(tile, len(self._numbers))
            self._known[key] = found
            if found == len(self._sizes):
                self._sizes.append(tile.size_bytes)
                self._moves.append(self._move_cycles(tile))
        return found

    def loaded(self, numbers: Numbers, slots: int) -> list[int]:
        """Numbers of the tiles that a ring with this many slots loads, in order, as `emit` does.

        A tile replaces the least recently used one.
        """
        key = numbers.tobytes(), slots
        found = self._loads.get(key)
        if found is None:
            found = []
            inside: dict[int, None] = {}
            for number in numbers.tolist():
                if number in inside:
                    del inside[number]
                elif self._moves[number]:
                    found.append(number)
                    if len(inside) == slots:
                        del inside[next(iter(inside))]
                else:
                    continue  # only padding, which needs no slot
                inside[number] = None
            self._loads[key] = found
        return found

    def _move_cycles(self, tile: Tile) -> float:
        """Cycles of a transfer, limited by its words or by the latency of its rows' bursts."""
        block = max(self.core.burst_beats * self.core.bus_bytes, WORD_BYTES)
        words, rows = _words_of_tile(
            tile.offset % block, tile.run_bytes, tile.counts, tile.memory_pitches, tile.pitches,
            self.core,
        )  # fmt: skip
        per_cycle = min(self.memory.bytes_per_cycle, self.core.bus_bytes)
        waits = rows * (self.memory.latency_cycles + LOAD_HOLD_CYCLES) / self.core.outstanding
        return max(words * WORD_BYTES / per_cycle, waits)


def _without_repeats(numbers: Numbers) -> Numbers:
    """Remove numbers that are equal to the number before them."""
    kept: Numbers = numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]
    return kept


@lru_cache(maxsize=1 << 14)
def _words_of_tile(
    offset: int,
    run_bytes: int,
    counts: tuple[int, ...],
    memory_pitches: tuple[int, ...],
    pitches: tuple[int, ...],
    core: CoreSpec,
) -> tuple[int, int]:
    """Number of words and of bursts of the transfers of a tile."""
    tile = Tile("", offset, run_bytes, counts, memory_pitches, pitches)
    found = [words_of_transfer(body, core) for body in tile.transfers(0, 0)]
    return sum(words for words, _ in found), sum(rows for _, rows in found)
