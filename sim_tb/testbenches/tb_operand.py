"""Checks the operand reader against its model: vectors and errors with pauses, cycles without."""

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.isa.address import BLOCK, Loop, LoopNest, OperandPattern, Words
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.numerics.mx import quantise
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.dma.scratchpad import READ_LATENCY
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, cycle, reset, start
from fpgapipe.sim_tb.testbenches.tb_address import core_spec, descriptor, random_pattern

INDEX_STEP = 5
"""Difference between the indices of consecutive operands."""


class Clipped(OperandPattern):
    """A pattern whose words are zeros if they begin outside a scratchpad of `size` bytes."""

    size: int

    @classmethod
    def of(cls, pattern: OperandPattern, size: int) -> "Clipped":
        """Clip a pattern."""
        fields = {f.name: getattr(pattern, f.name) for f in dataclasses.fields(pattern)}
        clipped = cls(**fields)
        object.__setattr__(clipped, "size", size)
        return clipped

    def words(self) -> Words:
        """Words in order."""
        words = super().words()
        inside = (words.address >= 0) & (words.address < self.size)
        return dataclasses.replace(words, lanes=words.lanes & inside[:, None])


def random_scratchpad(core: CoreSpec, rng: random.Random) -> NDArray[np.uint8]:
    """Draw BF16 numbers of moderate size, some zeros and, rarely, arbitrary bit patterns."""
    draw = np.random.default_rng(rng.getrandbits(32))
    number = core.scratchpad.size_bytes // 2
    values = draw.normal(size=number).astype(np.float32).view(np.uint32) >> 16
    bits = values.astype(np.uint16)
    bits[draw.random(number) < 0.05] = 0
    wild = draw.random(number) < 0.003
    bits[wild] = draw.integers(0, 1 << 16, wild.sum())
    return bits.view(np.uint8)


def expected(
    pattern: OperandPattern, core: CoreSpec, scratchpad: NDArray[np.uint8]
) -> tuple[list[list[int]], int]:
    """Payloads of all vectors as unsigned bytes, and the number of words out of range."""
    clipped = Clipped.of(pattern, core.scratchpad.size_bytes)
    vectors, subs = clipped.vectors(scratchpad)
    elements, codes = quantise(vectors)
    parts = elements.reshape(-1, BLOCK // core.rows, core.rows)
    data = parts[np.arange(len(subs)), subs].astype(np.uint8)
    payloads = [[*row, int(code)] for row, code in zip(data.tolist(), codes, strict=True)]
    errors = pattern.words().lanes.any(axis=1) & ~clipped.words().lanes.any(axis=1)
    return payloads, int(errors.sum())


class Bench:
    """Both ends of an operand reader, its scratchpad and its errors."""

    def __init__(self, dut: Any, core: CoreSpec, rng: random.Random | None) -> None:
        self._dut, self._core, self._rng = dut, core, rng
        self._sending: Any = None
        self.scratchpad = random_scratchpad(core, random.Random(7))
        self.operands = StreamDriver(dut, "i", rng)
        self.vectors = StreamSink(dut, "o", rng, fields=[8] * (core.rows + 1), signed=False)
        self.errors: list[int] = []
        self.done: list[int] = []  # cycles of the pulses
        self.num_reads = 0
        self._serving = cocotb.start_soon(self._serve())

    async def _serve(self) -> None:
        """Simulate the scratchpad, and record errors and pulses."""
        dut = self._dut
        bank = np.concatenate([self.scratchpad, self.scratchpad[:WORD_BYTES]])
        size = self._core.scratchpad.port_bytes
        coming: list[int | None] = [None] * READ_LATENCY
        while True:
            word = coming.pop(0)
            dut.read__data_valid.value = int(word is not None)
            # While data is not valid, all its bits are ones, to detect a use of it.
            dut.read__data.value = (1 << 8 * WORD_BYTES) - 1 if word is None else word
            dut.read__ready.value = int(not self._rng or self._rng.random() < 0.7)
            await FallingEdge(dut.clk)
            if dut.read__valid.value and dut.read__ready.value:
                self.num_reads += 1
                address = int(dut.read__address.value)
                data = np.roll(bank[address : address + size], 2 * int(dut.read__turn.value))
                coming.append(int.from_bytes(data.tobytes(), "little"))
            else:
                coming.append(None)
            if dut.error_valid.value:
                assert dut.error_code.value == ErrorCode.SCRATCHPAD_RANGE
                self.errors.append(int(dut.error_index.value))
            if dut.done.value:
                self.done.append(cycle())
            await RisingEdge(dut.clk)

    def start_sending(self, patterns: Iterable[OperandPattern]) -> None:
        """Send operands in the background."""
        words = [descriptor(pattern, INDEX_STEP * k) for k, pattern in enumerate(patterns)]
        self._sending = cocotb.start_soon(self.operands.send(words))

    def stop(self) -> None:
        """Stop the driver and the scratchpad."""
        self._sending.cancel()
        self._serving.cancel()
        self._dut.read__data_valid.value = 0

    async def check(self, patterns: Sequence[OperandPattern]) -> None:
        """Send operands and compare vectors, errors and pulses with the model's."""
        self.start_sending(patterns)
        ends, errors = [], []
        for number, pattern in enumerate(patterns):
            payloads, num_errors = expected(pattern, self._core, self.scratchpad)
            errors += [INDEX_STEP * number] * num_errors
            got = await self.vectors.receive(len(payloads))
            ends.append(self.vectors.cycles[-1])
            for k, (vector, model) in enumerate(zip(got, payloads, strict=True)):
                assert vector == model, f"operand {number}, vector {k}: {vector}, not {model}"
        await ClockCycles(self._dut.clk, 1)
        assert self.errors == errors
        assert self.done == ends
        self.stop()


@cocotb.test(timeout_time=20000, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """All vectors equal the model's, however streams and scratchpad pause."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    patterns = [random_pattern(rng, core, 150, in_range=rng.random() < 0.7) for _ in range(60)]
    dut.halt.value = 0
    await start(dut)
    await Bench(dut, core, rng).check(patterns)


def plain(words: int, *, fp32: bool = False, transposed: bool = False) -> OperandPattern:
    """Make an operand of consecutive words."""
    pos = LoopNest((Loop(BLOCK, 64), Loop(words // BLOCK, 32)))
    return OperandPattern(6, pos=pos, fp32=fp32, transposed=transposed)


@cocotb.test(timeout_time=6000, timeout_unit="us")
async def loses_no_cycle(dut: Any) -> None:
    """Without pauses a vector leaves each cycle (FP32: every second one), after the latency."""
    core = core_spec()
    dut.halt.value = 0
    await start(dut)
    for fp32 in (False, True):
        for transposed in (False, True):
            bench = Bench(dut, core, rng=None)
            patterns = [plain(32, fp32=fp32, transposed=transposed)] * 3
            patterns += [plain(96, fp32=fp32, transposed=transposed)] * 2
            await bench.check(patterns)
            cycles = bench.vectors.cycles
            # For transposed operands, the interval is measured after the first square.
            parts = core.scratchpad.parts
            first = cycles[-1] - cycles[BLOCK if transposed else 0]
            number = len(cycles) - 1 - (BLOCK if transposed else 0)
            most = number * (1 + fp32) * parts
            assert first <= most, f"{number} vectors in {first} cycles, not {most}"
            if not transposed:
                latency = cycles[0] - bench.operands.cycles[0]
                least = OperandReader(core).latency_cycles + fp32 * parts
                assert latency == least, f"latency {latency}"
            await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=6000, timeout_unit="us")
async def reads_only_what_counts(dut: Any) -> None:
    """Words without elements are not read; FP32 words take two reads."""
    core = core_spec()
    dut.halt.value = 0
    await start(dut)
    bench = Bench(dut, core, rng=None)
    pos = LoopNest((Loop(10, 64, y=1),))
    fields: dict[str, Any] = {"pos": pos, "y": -2, "y_limit": 5}
    await bench.check([OperandPattern(-128, **fields), OperandPattern(-128, **fields, fp32=True)])
    assert bench.num_reads == (5 + 2 * 5) * core.scratchpad.parts


@cocotb.test(timeout_time=6000, timeout_unit="us")
async def halts(dut: Any) -> None:
    """No read begins during a halt; afterwards nothing is missing."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.halt.value = 0
    await start(dut)
    bench = Bench(dut, core, rng=None)
    patterns = [random_pattern(rng, core, 60, in_range=True) for _ in range(4)]
    checking = cocotb.start_soon(bench.check([plain(96), *patterns]))
    for _ in range(20):
        await ClockCycles(dut.clk, rng.randint(1, 30))
        dut.halt.value = 1
        await ClockCycles(dut.clk, 2)  # a read that waits may still begin
        before = bench.num_reads
        await ClockCycles(dut.clk, rng.randint(1, 30))
        assert bench.num_reads == before
        dut.halt.value = 0
    await checking


@cocotb.test(timeout_time=6000, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of an operand discards all state."""
    core = core_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.halt.value = 0
    await start(dut)
    for delay_cycles in (3, 12, 40, 75):
        patterns = [random_pattern(rng, core, 60) for _ in range(3)]
        patterns.insert(0, plain(96, transposed=delay_cycles > 50, fp32=True))
        bench = Bench(dut, core, rng=None)
        bench.start_sending(patterns)
        dut.o__ready.value = int(delay_cycles > 12)
        await ClockCycles(dut.clk, delay_cycles)
        bench.stop()
        await reset(dut)
        await Bench(dut, core, random.Random(cocotb.RANDOM_SEED)).check(patterns)
        await reset(dut)
