"""Checks the systolic array against its model: values with pauses, cycles without."""

import random
from collections.abc import Iterable
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, parameters, reset, start

Tile = tuple[NDArray[np.int64], NDArray[np.int64]]  # weights (rows, cols), activations (m, rows)


class Bench:
    """Drivers and sink of a systolic array."""

    def __init__(self, dut: Any, spec: SystolicSpec, rng: random.Random | None) -> None:
        bits = spec.operand_bits
        self.spec = spec
        self._sending: list[Any] = []
        self.weights = StreamDriver(dut, "i_weights", rng, fields=[bits] * spec.rows)
        self.activations = StreamDriver(dut, "i_activations", rng, fields=[bits] * spec.rows + [1])
        self.sums = StreamSink(dut, "o", rng, fields=[spec.acc_bits] * spec.cols)

    def start_sending(self, tiles: Iterable[Tile]) -> None:
        """Send tiles in the background."""
        columns = [column.tolist() for weights, _ in tiles for column in weights.T]
        vectors = [
            [*vector.tolist(), int(index == len(activations) - 1)]
            for _, activations in tiles
            for index, vector in enumerate(activations)
        ]
        self._sending = [
            cocotb.start_soon(self.weights.send(columns)),
            cocotb.start_soon(self.activations.send(vectors)),
        ]

    def stop(self) -> None:
        """Stop the drivers."""
        for task in self._sending:
            task.cancel()

    async def check(self, tiles: Iterable[Tile]) -> None:
        """Send tiles and compare all their sums with the model's."""
        self.start_sending(tiles)
        for index, (weights, activations) in enumerate(tiles):
            sums = await self.sums.receive(len(activations))
            np.testing.assert_array_equal(
                sums, self.spec.compute(activations, weights), err_msg=f"tile {index}"
            )


def random_tile(spec: SystolicSpec, rng: np.random.Generator, m: int) -> Tile:
    """Draw a tile from all values that an operand can have."""
    least, limit = spec.least_operand, 1 << (spec.operand_bits - 1)
    return (
        rng.integers(least, limit, (spec.rows, spec.cols)),
        rng.integers(least, limit, (m, spec.rows)),
    )


def extreme_tiles(spec: SystolicSpec) -> list[Tile]:
    """Tiles with the largest and smallest sums, and one that distinguishes all rows and columns."""
    least, limit = spec.least_operand, 1 << (spec.operand_bits - 1)
    most = np.full((spec.rows, spec.cols), least)
    others = np.where(np.arange(spec.cols) % 2, least, limit - 1) + 0 * most
    vectors = np.array([[least] * spec.rows, [limit - 1] * spec.rows, [0] * spec.rows])
    index = np.arange(spec.rows * spec.cols).reshape(spec.rows, spec.cols) % limit
    tiles = [most, np.full_like(most, limit - 1), others, limit - 1 + least - others]
    return [*((each, vectors) for each in tiles), (index, np.eye(spec.rows, dtype=np.int64))]


@cocotb.test(timeout_time=200, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """The gateware equals the model bit for bit, however the streams pause."""
    spec = SystolicSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    # Short tiles wait for their weights, long ones do not; all combinations of neighbours occur.
    sizes = [1, 1, spec.cols, 2 * spec.cols + spec.rows, 1, spec.cols + 1, max(1, spec.cols - 1)]
    tiles = extreme_tiles(spec) + [random_tile(spec, rng, m) for m in 3 * sizes]
    await start(dut)
    await Bench(dut, spec, random.Random(cocotb.RANDOM_SEED)).check(tiles)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def takes_predicted_cycles(dut: Any) -> None:
    """Without pauses, the cycles from the first input to the last output equal the model's."""
    spec = SystolicSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    for m, num_tiles in [(1, 1), (1, 4), (spec.cols, 3), (2 * spec.cols + 5, 2)]:
        bench = Bench(dut, spec, rng=None)
        await bench.check([random_tile(spec, rng, m) for _ in range(num_tiles)])
        cycles = bench.sums.cycles[-1] - bench.weights.cycles[0] + 1
        predicted = spec.cycles(m, num_tiles)
        assert cycles == predicted, f"{num_tiles} tiles of {m}: {cycles} cycles, not {predicted}"
        # The last tile is still active. After a reset, the next measurement begins like the first.
        await reset(dut)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of a tile discards all state."""
    spec = SystolicSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    tiles = [random_tile(spec, rng, spec.cols + 2) for _ in range(3)]
    for delay_cycles in (1, spec.cols + 2, spec.latency_cycles + spec.cols):
        bench = Bench(dut, spec, rng=None)
        bench.start_sending(tiles)
        dut.o__ready.value = 1
        await ClockCycles(dut.clk, delay_cycles)
        bench.stop()
        await reset(dut)
        await Bench(dut, spec, random.Random(cocotb.RANDOM_SEED)).check(tiles)
        await reset(dut)
