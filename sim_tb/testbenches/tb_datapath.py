"""Checks the datapath of a GEMM engine against its model: results with pauses, cycles without."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES, DatapathSpec
from fpgapipe.sim_tb.drivers.stream import (
    StreamDriver,
    StreamSink,
    cycle,
    parameters,
    reset,
    start,
    unpack,
)

# Ranges of the codes of exponents: sums around one, any, overflow, underflow, and codes about NaN.
CODES = ((117, 137), (0, 254), (240, 254), (0, 14), (250, 255))
SHAPE_FIELDS = (32, 16, 16, 16, 1, 1, 16, 16)


@dataclass(frozen=True)
class Product:
    """A product: its sizes, the use of the accumulators, and the operands."""

    m: int
    k: int
    n: int
    first: bool
    last: bool
    base: int
    step: int
    a: NDArray[np.int8]
    a_codes: NDArray[np.uint8]
    b: NDArray[np.int8]
    b_codes: NDArray[np.uint8]

    @property
    def num_results(self) -> int:
        """Number of vectors of results."""
        return self.m * self.n if self.last else 0


def random_product(
    spec: DatapathSpec,
    rng: np.random.Generator,
    m: int,
    k: int = 1,
    n: int = 1,
    first: bool = True,
    last: bool = True,
    base: int = 0,
    step: int = 0,
) -> Product:
    """Draw a product with random or least elements, and codes from one range or several."""
    vectors, columns = m * k * n, spec.cols * k * n
    least = spec.array.least_operand
    low, high = (0, 1) if rng.random() < 0.1 else (least, 128)
    kinds = CODES if rng.random() < 0.3 else CODES[:1]

    def operand(count: int) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
        elements = rng.integers(low, high, (count, spec.rows)) if high > 1 else least
        kind = np.array(kinds)[rng.integers(len(kinds), size=count)]
        codes = rng.integers(kind[:, 0], kind[:, 1], endpoint=True)
        return np.full((count, spec.rows), elements, np.int8), codes.astype(np.uint8)

    return Product(m, k, n, first, last, base, step, *operand(vectors), *operand(columns))


def cleared(spec: DatapathSpec) -> Product:
    """Product that sets all accumulators to zero."""
    a = np.zeros((spec.acc_depth, spec.rows), np.int8)
    b = np.zeros((spec.cols, spec.rows), np.int8)
    codes = np.full(spec.acc_depth + spec.cols, 127, np.uint8)
    return Product(spec.acc_depth, 1, 1, True, False, 0, 0, a, codes[: len(a)], b, codes[: len(b)])


class ResultSink(StreamSink):
    """Receives vectors of results, which are in one place of the payload or in the other."""

    def __init__(self, dut: Any, cols: int, rng: random.Random | None) -> None:
        self._cols = cols
        super().__init__(dut, "o", rng, fields=[*[32] * 2 * cols, 1], signed=False)

    def _seen(self) -> int:
        payload, bits = super()._seen(), 32 * self._cols
        is_aside = payload >> 2 * bits
        return (payload >> bits if is_aside else payload) % (1 << bits)

    def _word(self, seen: int) -> list[int]:
        return unpack(seen, [32] * self._cols, signed=False)


class Bench:
    """Drivers, sink and monitor of a datapath."""

    def __init__(self, dut: Any, spec: DatapathSpec, rng: random.Random | None) -> None:
        self._dut = dut
        self.spec = spec
        self.shapes = StreamDriver(dut, "i_shape", rng, fields=SHAPE_FIELDS)
        operand = [8] * (spec.rows + 1)
        self.a = StreamDriver(dut, "i_a", rng, fields=operand)
        self.b = StreamDriver(dut, "i_b", rng, fields=operand)
        self.results = ResultSink(dut, spec.cols, rng)
        self.done_cycles: list[int] = []
        self.num_fed = 0
        self.num_waits = 0
        self.num_nan = 0
        self._tasks: list[Any] = []

    def start(self, products: Sequence[Product]) -> None:
        """Send products in the background, and monitor the status signals of the datapath."""
        shapes = [
            [index, p.m - 1, p.k - 1, p.n - 1, int(p.first), int(p.last), p.base, p.step]
            for index, p in enumerate(products)
        ]
        a = [
            [*v, c] for p in products for v, c in zip(p.a.tolist(), p.a_codes.tolist(), strict=True)
        ]
        b = [
            [*v, c] for p in products for v, c in zip(p.b.tolist(), p.b_codes.tolist(), strict=True)
        ]
        self._tasks = [
            cocotb.start_soon(task)
            for task in (self.shapes.send(shapes), self.a.send(a), self.b.send(b), self._watch())
        ]

    def stop(self) -> None:
        """Stop the drivers and the monitor."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self) -> None:
        dut = self._dut
        while True:
            await FallingEdge(dut.clk)
            reasons = [int(x.value) for x in (dut.fed, dut.wait_a, dut.wait_b, dut.wait_o)]
            assert sum(reasons) <= 1, f"fed and waiting: {reasons}"
            self.num_fed += reasons[0]
            self.num_waits += sum(reasons[1:])
            self.num_nan += int(dut.nan.value)
            if dut.done.value:
                self.done_cycles.append(cycle())

    async def check(self, products: Sequence[Product], *, accumulators: Any = None) -> Any:
        """Send products and compare all their results with the model's.

        `accumulators` are those of the model, which are also returned. Without them, all
        accumulators are cleared first.
        """
        if accumulators is None:
            accumulators = np.zeros((self.spec.acc_depth, self.spec.cols), np.float32)
            products = [cleared(self.spec), *products]
        self.start(products)
        ends = []
        for index, p in enumerate(products):
            expected = self.spec.compute(
                *(p.m, p.k, p.n, p.a, p.a_codes, p.b, p.b_codes, accumulators),
                first=p.first,
                last=p.last,
                acc_base=p.base,
                acc_step=p.step,
            )
            received = await self.results.receive(p.num_results)
            ends.append(self.results.cycles[-1] if p.num_results else None)
            if expected is not None:
                np.testing.assert_array_equal(
                    received,
                    expected.view(np.uint32),
                    err_msg=f"product {index}, m={p.m} k={p.k} n={p.n} {p.first} {p.last}",
                )
        await ClockCycles(self._dut.clk, self.spec.latency_cycles + 3)
        self.stop()
        assert len(self.done_cycles) == len(products), "products done"
        for index, (end, done) in enumerate(zip(ends, self.done_cycles, strict=True)):
            assert end is None or done == end + 1, f"product {index} done in {done}, not {end + 1}"
        assert self.num_fed == sum(len(p.a) for p in products), "vectors fed"
        nan_codes = any(255 in codes for p in products for codes in (p.a_codes, p.b_codes))
        assert bool(self.num_nan) == nan_codes, "codes of NaN"
        return accumulators


def reading(spec: DatapathSpec, rng: np.random.Generator) -> list[Product]:
    """Product that adds to all accumulators and outputs them."""
    return [random_product(spec, rng, spec.acc_depth, first=False)]


@cocotb.test(timeout_time=400, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """The gateware equals the model bit for bit, however the streams pause."""
    spec = DatapathSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    cols, depth = spec.cols, spec.acc_depth
    shapes: list[dict[str, Any]] = [
        {"m": 1},
        {"m": 1, "k": 4},
        {"m": 1, "k": 3, "n": 3},
        {"m": cols, "k": 2, "n": 3},
        {"m": 2, "n": 4, "step": 2, "last": False},
        {"m": 2, "k": 2, "n": 4, "step": 2, "first": False, "last": False},
        {"m": 2, "n": 4, "step": 2, "first": False},
        # The accumulators of a product overlap those of the following one, at every distance.
        {"m": depth, "last": False},
        *({"m": 1, "first": False, "last": False, "base": depth - 1} for _ in range(3)),
        {"m": 3, "n": 3, "step": 1, "first": False, "last": False, "base": depth - 2},
        {"m": 3, "first": False, "base": depth - 1},
    ]
    for _ in range(12):
        m = (1, 2, cols, cols + 1, ACC_CYCLES, 13)[rng.integers(6)]
        shapes.append(
            {
                "m": m,
                "k": int(rng.integers(1, 4)),
                "n": int(rng.integers(1, 4)),
                "first": bool(rng.random() < 0.6),
                "last": bool(rng.random() < 0.5),
                "base": int(rng.integers(depth)),
                "step": (0, m, int(rng.integers(depth)))[rng.integers(3)],
            }
        )
    shapes.append({"m": depth, "first": False})
    products = [random_product(spec, rng, **shape) for shape in shapes]
    await start(dut)
    await Bench(dut, spec, random.Random(cocotb.RANDOM_SEED)).check(products)


@cocotb.test(timeout_time=400, timeout_unit="us")
async def takes_predicted_cycles(dut: Any) -> None:
    """Without pauses, the cycles from the first column to the last result equal the model's."""
    spec = DatapathSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    long = spec.cols + ACC_CYCLES
    for m, k, n in [(1, 1, 1), (1, 1, 3), (1, 3, 1), (1, 2, 3), (spec.cols, 2, 2), (long, 3, 2)]:
        bench = Bench(dut, spec, rng=None)
        product = random_product(spec, rng, m, k, n, step=m)
        await bench.check([product], accumulators=np.zeros((spec.acc_depth, spec.cols), "f4"))
        cycles = bench.results.cycles[-1] - bench.b.cycles[0] + 1
        predicted = spec.cycles(m, k, n)
        assert cycles == predicted, f"{m}, {k}, {n}: {cycles} cycles, not {predicted}"
        assert bench.num_nan == 0 or 255 in [*product.a_codes, *product.b_codes]
        # After a reset, the next measurement begins like the first one.
        await reset(dut)

    # Consecutive products follow each other without a gap, as consecutive tiles do.
    bench = Bench(dut, spec, rng=None)
    sizes = [long, long + 1, long, long + 2]
    await bench.check(
        [random_product(spec, rng, m) for m in sizes],
        accumulators=np.zeros((spec.acc_depth, spec.cols), "f4"),
    )
    fed = [np.diff(bench.a.cycles), np.diff(bench.results.cycles)]
    np.testing.assert_array_equal(fed, np.ones((2, sum(sizes) - 1)))
    await reset(dut)


@cocotb.test(timeout_time=400, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of a product discards all state."""
    spec = DatapathSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    products = [random_product(spec, rng, 5, 2, 2, step=5) for _ in range(3)]
    for delay_cycles in (spec.cols + 3, spec.cols + spec.latency_cycles + 2):
        for ready in (0, 1):
            bench = Bench(dut, spec, rng=None)
            bench.start(products)
            dut.o__ready.value = ready
            await ClockCycles(dut.clk, delay_cycles)
            bench.stop()
            await reset(dut)
            await Bench(dut, spec, random.Random(cocotb.RANDOM_SEED)).check(products)
            await reset(dut)
