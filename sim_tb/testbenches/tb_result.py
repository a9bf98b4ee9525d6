"""Checks the result writer against its pattern: all writes, ends of instructions, errors."""

import random
from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, ResultPattern
from fpgapipe.hw.hls_models.isa.gemm_fields import RESULT
from fpgapipe.hw.hls_models.isa.instructions import (
    ErrorCode,
)
from fpgapipe.hw.hls_models.numerics.fp32 import to_bf16
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.hw.rtl.gemm.result import ResultWriter
from fpgapipe.sim_tb.drivers.stream import StreamDriver, cycle, parameters, reset, start
from fpgapipe.sim_tb.testbenches.tb_scratchpad import exchanged

WORD = 64
GRANULES = WORD // 2

Write = tuple[int, int, int]  # address, mask, data (only the granules that the mask selects)

# Ties that round down and up, carries up to infinity, infinities, NaN, zeros, a subnormal.
EDGES = [
    *(0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0xFF7F8000),
    *(0x7F800000, 0xFF800000, 0x7FC00000, 0x00000000, 0x80000000, 0x00000001),
]


def writes_of(
    pattern: ResultPattern, vectors: NDArray[np.uint32], spec: ScratchpadSpec
) -> list[Write]:
    """Writes of an instruction, in order."""
    cols = vectors.shape[1]
    used = np.repeat(pattern.columns(cols), pattern.pos.size, axis=0)
    size = pattern.element_bytes
    lanes = WORD // size
    writes = []
    for base, columns, vector in zip(pattern.addresses().reshape(-1), used, vectors, strict=True):
        words = vector if pattern.fp32 else to_bf16(vector.view(np.float32))
        for first in range(0, cols, lanes):
            mask = value = 0
            for lane, col in enumerate(range(first, min(first + lanes, cols))):
                if columns[col]:
                    mask |= ((1 << size // 2) - 1) << lane * size // 2
                    value |= int(words[col]) << 8 * size * lane
            if mask:
                writes.append(
                    ((int(base) + WORD * (first // lanes)) % spec.size_bytes, mask, value)
                )
    return writes


def expanded(mask: int) -> int:
    """Mask of the data bits that a mask of granules selects."""
    return sum(0xFFFF << 16 * granule for granule in range(GRANULES) if mask >> granule & 1)


class Bench:
    """A result writer with its instructions, its vectors, and a scratchpad that may pause."""

    def __init__(self, dut: Any, rng: random.Random | None) -> None:
        given = parameters()
        self.dut = dut
        self.cols = given["cols"]
        self.spec = ScratchpadSpec(**given["scratchpad"])
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.patterns = StreamDriver(dut, "i", rng)
        fields = [*[32] * 2 * self.cols, 1]  # results, those aside, and which of them count
        self.results = StreamDriver(dut, "i_results", rng, fields=fields)
        self.pausing = rng
        self.writes: list[Write] = []
        self.cycles: list[int] = []
        self.done: list[int] = []  # for each instruction, writes accepted when it was done
        self.errors: list[tuple[int, int]] = []
        self.tasks = [cocotb.start_soon(self._watch())]
        dut.halt.value = 0

    async def _watch(self) -> None:
        dut = self.dut
        waiting = None
        while True:
            rate = 0.5 if len(self.writes) // 16 % 2 else 0.1
            ready = self.pausing is None or self.rng.random() >= rate
            dut.write__ready.value = int(ready)
            await FallingEdge(dut.clk)
            if dut.done.value:
                self.done.append(len(self.writes))
            if dut.error_valid.value:
                self.errors.append((int(dut.error_code.value), int(dut.error_index.value)))
            write = None
            if dut.write__valid.value:
                address = dut.write__address.value.to_unsigned()
                mask = exchanged(address, dut.write__mask.value.to_unsigned(), GRANULES)
                data = exchanged(address, dut.write__data.value.to_unsigned(), 8 * WORD)
                write = (address, mask, data & expanded(mask))
            assert waiting in (None, write), "changed a write that was waiting"
            waiting = None if ready else write
            if write and ready:
                self.writes.append(write)
                self.cycles.append(cycle())
            await RisingEdge(dut.clk)

    def vectors(self, count: int) -> NDArray[np.uint32]:
        """Draw FP32 vectors, edge values among them."""
        words = [
            self.rng.choice(EDGES) if self.rng.random() < 0.2 else self.rng.getrandbits(32)
            for _ in range(count * self.cols)
        ]
        return np.array(words, np.uint32).reshape(count, self.cols)

    def is_inside(self, pattern: ResultPattern) -> bool:
        """Whether all written elements of a pattern lie in the scratchpad."""
        size = pattern.element_bytes
        addresses = pattern.addresses()[..., None] + size * np.arange(self.cols)
        used = np.broadcast_to(pattern.columns(self.cols)[:, None], addresses.shape)
        inside = (addresses >= 0) & (addresses + size <= self.spec.size_bytes)
        return bool(inside[used].all())

    def pattern(self) -> ResultPattern:
        """Draw a pattern whose elements are inside the scratchpad, possibly up to its edges."""
        rng = self.rng
        while True:
            fp32 = rng.random() < 0.5
            size = 4 if fp32 else 2

            def loops(u: int, size: int = size) -> tuple[Loop, ...]:
                return tuple(
                    Loop(
                        rng.choice([1, 1, 2, 3]), size * rng.randint(-90, 90), u=rng.randint(-u, u)
                    )
                    for _ in range(rng.randint(0, 3))
                )

            pattern = ResultPattern(
                size * rng.randrange(self.spec.size_bytes // size),
                LoopNest(loops(self.cols)),
                LoopNest(loops(0)),
                rng.choice([0, rng.randrange(2 * self.cols + 1), 1 << 23]),
                fp32,
            )
            if self.is_inside(pattern):
                return pattern

    def payloads(self, vectors: NDArray[np.uint32]) -> list[list[int]]:
        """Vectors as the datapath gives them: in one place or, at random, in the other."""
        found = []
        for vector in vectors.tolist():
            other = [self.rng.getrandbits(32) for _ in vector]
            is_aside = self.rng.getrandbits(1)
            found.append([*other, *vector, 1] if is_aside else [*vector, *other, 0])
        return found

    def start_sending(
        self, patterns: Sequence[ResultPattern], vectors: Sequence[NDArray[np.uint32]]
    ) -> None:
        """Send instructions, numbered from 1000, and their vectors in the background."""
        words = [
            1000 + index | RESULT.pack(pattern.encoded()) << 32
            for index, pattern in enumerate(patterns)
        ]
        self.tasks += [
            cocotb.start_soon(self.patterns.send(words)),
            cocotb.start_soon(self.results.send(self.payloads(np.concatenate(vectors)))),
        ]

    async def check(self, patterns: Sequence[ResultPattern]) -> None:
        """Run instructions and compare all writes with the model's."""
        vectors = [self.vectors(pattern.outer.size * pattern.pos.size) for pattern in patterns]
        self.start_sending(patterns, vectors)
        expected: list[Write] = []
        ends = []
        for pattern, rows in zip(patterns, vectors, strict=True):
            expected += writes_of(pattern, rows, self.spec)
            ends.append(len(expected))
        while len(self.done) < len(patterns):
            await RisingEdge(self.dut.clk)
            assert self.writes == expected[: len(self.writes)]
            assert not self.errors
        assert self.writes == expected
        assert self.done == ends
        await ClockCycles(self.dut.clk, 2)
        await FallingEdge(self.dut.clk)
        assert self.dut.idle.value
        await RisingEdge(self.dut.clk)

    def stop(self) -> None:
        """Stop all drivers and monitors."""
        for task in self.tasks:
            task.cancel()
        for name in ("i__valid", "i_results__valid", "write__ready"):
            getattr(self.dut, name).value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def matches_model(dut: Any) -> None:
    """All writes and ends of instructions equal the model's, however the streams pause."""
    await start(dut)
    bench = Bench(dut, random.Random(cocotb.RANDOM_SEED))
    everything_masked = ResultPattern(0, pos=LoopNest((Loop(3, 64),)), u_limit=0)
    await bench.check([everything_masked, *(bench.pattern() for _ in range(40)), everything_masked])
    bench.stop()


@cocotb.test(timeout_time=200, timeout_unit="us")
async def loses_no_cycle(dut: Any) -> None:
    """Without pauses there is a write in every cycle, also between instructions."""
    await start(dut)
    bench = Bench(dut, None)
    shapes = [(4, True), *[(1, False)] * 8, (2, False), (1, True), (3, True), (1, False), (1, True)]
    patterns = [
        ResultPattern(128, u_limit=bench.cols, pos=LoopNest((Loop(count, 2),)), fp32=fp32)
        for count, fp32 in shapes
    ]
    # Instructions arrive before their vectors.
    vectors = [bench.vectors(pattern.pos.size) for pattern in patterns]
    bench.tasks.append(
        cocotb.start_soon(
            bench.patterns.send([RESULT.pack(pattern.encoded()) << 32 for pattern in patterns])
        )
    )
    await ClockCycles(dut.clk, 5)
    bench.tasks.append(
        cocotb.start_soon(bench.results.send(bench.payloads(np.concatenate(vectors))))
    )
    while len(bench.done) < len(patterns):
        await RisingEdge(dut.clk)
    num_writes = sum(
        len(writes_of(pattern, rows, bench.spec))
        for pattern, rows in zip(patterns, vectors, strict=True)
    )
    assert len(bench.writes) == num_writes
    assert bench.cycles[0] - bench.results.cycles[0] == ResultWriter.latency_cycles
    assert bench.cycles[-1] - bench.cycles[0] == num_writes - 1
    bench.stop()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def stops_at_the_end_of_the_scratchpad(dut: Any) -> None:
    """An element outside is an error; everything before it is written, and nothing after it."""
    await start(dut)
    bench = Bench(dut, None)
    size, some = bench.spec.size_bytes, min(bench.cols, 32)
    bench.stop()
    cases = [
        (0, -2, 1, False),
        (size - 4, 4, 1, True),
        # Only the first byte is outside, then only the last one.
        (0, -2, some, False),
        (size - 2 * some, 2, some, False),
    ]
    for base, moved, columns, fp32 in cases:
        bench = Bench(dut, random.Random(cocotb.RANDOM_SEED))
        good = ResultPattern(base, u_limit=columns, fp32=fp32)
        bad = ResultPattern(base, pos=LoopNest((Loop(3, moved),)), u_limit=columns, fp32=fp32)
        patterns = [good, bad, good]
        vectors = [bench.vectors(pattern.pos.size) for pattern in patterns]
        bench.start_sending(patterns, vectors)
        await ClockCycles(dut.clk, 200)
        first_of_bad = writes_of(good, vectors[1][:1], bench.spec)
        assert bench.writes == writes_of(good, vectors[0], bench.spec) + first_of_bad
        assert bench.errors == [(ErrorCode.SCRATCHPAD_RANGE, 1001)]
        assert bench.done == [1]
        bench.stop()
        await reset(dut)
        bench = Bench(dut, random.Random(cocotb.RANDOM_SEED))
        await bench.check([bench.pattern() for _ in range(3)])
        bench.stop()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def halts_and_resets(dut: Any) -> None:
    """At most two writes pass after a halt; a reset discards all state."""
    await start(dut)
    pattern = ResultPattern(0, pos=LoopNest((Loop(20, 2),)), u_limit=1 << 23)
    for delay_cycles in (1, 4, 5, 6, 9, 14):
        bench = Bench(dut, random.Random(delay_cycles))
        task = cocotb.start_soon(bench.check([pattern, pattern]))
        await ClockCycles(dut.clk, delay_cycles)
        dut.halt.value = 1
        before = len(bench.writes)
        await ClockCycles(dut.clk, 40)
        assert len(bench.writes) - before <= 2
        dut.halt.value = 0
        await task
        bench.stop()
        bench = Bench(dut, None)
        bench.start_sending([pattern], [bench.vectors(20)])
        await ClockCycles(dut.clk, delay_cycles)
        bench.stop()
        await reset(dut)
