"""Checks the vector engine against its model: writes, errors, halts, cycles.

It is not a test by itself: the caller prepares the instructions. The file ``cases.json`` in the
parameter ``folder`` has lists of programs by the name of the test. A program is a list of
instructions that run one after another; each is the packed fields of VECTOR in hexadecimal. The
file ``scratchpad.npy`` has the initial contents of the scratchpad.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR
from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS, VectorOp
from fpgapipe.hw.hls_models.model import vector
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec
from fpgapipe.hw.rtl.dma.scratchpad import GRANULES, READ_LATENCY
from fpgapipe.sim_tb.drivers.stream import StreamDriver, cycle, parameters, reset, start
from fpgapipe.sim_tb.testbenches.tb_scratchpad import exchanged

INDEX_STEP = 5
"""Difference between the indices of consecutive instructions."""

MOST_CYCLES = 10_000
"""Limit for an instruction, cycles; one that takes longer is considered stuck."""


def vector_spec() -> VectorSpec:
    """Specification of the engine that the parameters describe."""
    return VectorSpec(**parameters()["vector"])


def programs(test: str) -> list[list[str]]:
    """Programs of a test."""
    cases = json.loads((Path(parameters()["folder"]) / "cases.json").read_text())
    found: list[list[str]] = cases[test]
    return found


def decoded(program: Sequence[str]) -> list[VectorOp]:
    """Instructions of a program, decoded for the model."""
    return [VectorOp.decoded(VECTOR.unpack(int(digits, 16))) for digits in program]


class Bench:
    """An engine with its instructions and a scratchpad that may pause."""

    def __init__(self, dut: Any, rng: random.Random | None) -> None:
        self.dut, self.rng = dut, rng
        self.spec = vector_spec()
        self.scratchpad: NDArray[np.uint8] = np.load(
            Path(parameters()["folder"]) / "scratchpad.npy"
        )
        draw = random.Random(11)
        self.scalars = [draw.getrandbits(32) for _ in range(NUM_SCALARS)]
        for number, value in enumerate(self.scalars):
            getattr(dut, f"scalars__{number}").value = value
        self.instructions = StreamDriver(dut, "i", rng)
        self.num_reads = self.num_writes = 0
        # A port writes a part in a cycle, and takes the vector with the last one.
        self.parts, self._part = parameters().get("parts", 1), 0
        self.done: list[int] = []  # cycles of the pulses
        self.errors: list[tuple[int, int]] = []
        self.events = dict.fromkeys(("fed", "wait_x", "wait_y", "wait_result"), 0)
        dut.halt.value = 0
        if "fault" in parameters():
            dut.fault.value = parameters()["fault"]
        self.tasks = [cocotb.start_soon(self._serve())]

    async def _serve(self) -> None:
        """Simulate the scratchpad, and record events, errors and pulses."""
        dut = self.dut
        coming: dict[str, list[int | None]] = {
            port: [None] * READ_LATENCY for port in ("read_x", "read_y")
        }
        waiting = None
        number = 0
        while True:
            rate = 0.5 if number // 64 % 2 else 0.1
            number += 1
            for port, words in coming.items():
                word = words.pop(0)
                getattr(dut, f"{port}__data_valid").value = int(word is not None)
                # While data is not valid, all its bits are ones, to detect a use of it.
                value = (1 << 8 * WORD_BYTES) - 1 if word is None else word
                getattr(dut, f"{port}__data").value = value
            takes = {
                port: not self.rng or self.rng.random() >= rate
                for port in ("read_x", "read_y", "write")
            }
            is_last = self._part == self.parts - 1
            for port, ready in takes.items():
                getattr(dut, f"{port}__ready").value = int(ready and (is_last or port != "write"))
            await FallingEdge(dut.clk)
            if dut.write__valid.value and takes["write"]:
                self._part = 0 if is_last else self._part + 1
            for port, words in coming.items():
                words.append(self._read(port))
            waiting = self._write(waiting)
            for name in self.events:
                self.events[name] += int(getattr(dut, name).value)
            for unit in range(2):
                if getattr(dut, f"failures__{unit}__valid").value:
                    code, index = (
                        int(getattr(dut, f"failures__{unit}__{name}").value)
                        for name in ("code", "index")
                    )
                    self.errors.append((code, index))
            if dut.done.value:
                self.done.append(cycle())
            await RisingEdge(dut.clk)

    def _read(self, port: str) -> int | None:
        dut = self.dut
        if not (getattr(dut, f"{port}__valid").value and getattr(dut, f"{port}__ready").value):
            return None
        self.num_reads += 1
        address = int(getattr(dut, f"{port}__address").value) // 2 * 2
        at = np.arange(address, address + WORD_BYTES) % self.scratchpad.size
        return int.from_bytes(self.scratchpad[at].tobytes(), "little")

    def _write(self, waiting: Any) -> Any:
        dut = self.dut
        if not dut.write__valid.value:
            assert waiting is None, "withdrew a write that was waiting"
            return None
        address = int(dut.write__address.value) // 2 * 2
        mask = exchanged(address, dut.write__mask.value.to_unsigned(), GRANULES)
        granules = np.array([mask >> k & 1 for k in range(GRANULES)], bool)
        word = exchanged(address, dut.write__data.value.to_unsigned(), 8 * WORD_BYTES)
        data = np.frombuffer(word.to_bytes(WORD_BYTES, "little"), np.uint16)
        write = address, mask, data[granules].tobytes()
        assert waiting in (None, write), "changed a write that was waiting"
        if not dut.write__ready.value:
            return write
        self.num_writes += 1
        at = (write[0] // 2 + np.flatnonzero(granules)) % (self.scratchpad.size // 2)
        self.scratchpad.view(np.uint16)[at] = data[granules]
        return None

    def start_sending(self, program: Sequence[str]) -> None:
        """Send instructions in the background."""
        words = [INDEX_STEP * k | int(digits, 16) << 32 for k, digits in enumerate(program)]
        self.tasks.append(cocotb.start_soon(self.instructions.send(words)))

    async def check(self, program: Sequence[str]) -> None:
        """Run instructions and compare the scratchpad with the model's after each of them."""
        expected = self.scratchpad.copy()
        self.done.clear()
        self.start_sending(program)
        for number, op in enumerate(decoded(program)):
            vector.run(op, expected, self.scalars)
            begun = cycle()
            while len(self.done) <= number:
                await RisingEdge(self.dut.clk)
                assert not self.errors, f"instruction {number} has an error: {op}"
                assert cycle() < begun + MOST_CYCLES, f"instruction {number} does not end: {op}"
            at = np.flatnonzero(self.scratchpad != expected)
            assert not at.size, (
                f"instruction {number}: {at.size} bytes are wrong, the first at {at[0]:#x}: "
                f"{self.scratchpad[at[0]]:#04x} for {expected[at[0]]:#04x}: {op}"
            )
        await ClockCycles(self.dut.clk, 2)
        assert self.dut.idle.value
        assert len(self.done) == len(program)
        assert self.events["fed"] == sum(op.num_vectors for op in decoded(program))

    def stop(self) -> None:
        """Stop the driver and the scratchpad."""
        for task in self.tasks:
            task.cancel()
        for name in ("i__valid", "read_x__data_valid", "read_y__data_valid", "write__ready"):
            getattr(self.dut, name).value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def matches_model(dut: Any) -> None:
    """The scratchpad's contents equal the model's, however the scratchpad pauses."""
    await start(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    for number, program in enumerate(programs("matches_model")):
        bench = Bench(dut, rng if number % 4 else None)
        await bench.check(program)
        bench.stop()
        await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def takes_as_long_as_predicted(dut: Any) -> None:
    """Without pauses, instructions take as many cycles as the model predicts."""
    await start(dut)
    for program in programs("takes_as_long_as_predicted"):
        bench = Bench(dut, None)
        await bench.check(program)
        begun = bench.instructions.cycles
        for op, first, last in zip(decoded(program), begun, bench.done, strict=True):
            predicted = vector_cycles(op, bench.spec, bench.parts)
            took = last - first
            cocotb.log.info("%d cycles, %d predicted", took, predicted)
            is_exact = op.function is None or not op.coefficients.number
            off = 0 if is_exact else 0.05 * took
            assert abs(took - predicted) <= off, f"{took}, not {predicted} cycles: {op}"
        bench.stop()
        await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def reads_only_what_counts(dut: Any) -> None:
    """Vectors without valid lanes are neither read nor written."""
    await start(dut)
    for program in programs("reads_only_what_counts"):
        bench = Bench(dut, None)
        await bench.check(program)
        assert (bench.num_reads, bench.num_writes) == (0, 0)
        bench.stop()
        await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def stops_at_errors(dut: Any) -> None:
    """An access outside of the scratchpad is an error, after which nothing runs."""
    await check_errors(dut, programs("stops_at_errors"), ErrorCode.SCRATCHPAD_RANGE)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def refuses_formats(dut: Any) -> None:
    """A format that the engine does not support is an error, after which nothing runs."""
    await check_errors(dut, programs("refuses_formats"), ErrorCode.BAD_FIELD)


async def check_errors(dut: Any, lists: list[list[str]], code: ErrorCode) -> None:
    """Check that the last instruction of each program fails, and that nothing runs after it."""
    await start(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    for number, program in enumerate(lists):
        bench = Bench(dut, rng if number % 2 else None)
        await bench.check(program[:-1])
        assert not bench.errors
        bench.stop()
        bench = Bench(dut, rng if number % 2 else None)
        bench.start_sending(program[-1:] * 2)
        begun = cycle()
        while not bench.errors:
            await RisingEdge(dut.clk)
            assert cycle() < begun + MOST_CYCLES, f"no error: list {number}"
        writes = bench.num_writes
        await ClockCycles(dut.clk, 100)
        assert bench.errors == [(code, 0)]
        assert bench.num_writes <= writes + 100
        assert not bench.done
        assert not dut.idle.value
        bench.stop()
        await reset(dut)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def halts(dut: Any) -> None:
    """During a halt, no read begins and nothing is written; afterwards nothing is missing."""
    await start(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    for program in programs("halts"):
        bench = Bench(dut, rng)
        checking = cocotb.start_soon(bench.check(program))
        while not checking.done():
            await ClockCycles(dut.clk, rng.randint(1, 60))
            dut.halt.value = 1
            await FallingEdge(dut.clk)
            assert dut.idle.value
            before = bench.num_reads, bench.num_writes
            await ClockCycles(dut.clk, rng.randint(20, 60))
            # A waiting read of each port may still begin, as may two writes.
            assert bench.num_reads <= before[0] + 2
            assert bench.num_writes <= before[1] + 2
            dut.halt.value = 0
        await checking
        bench.stop()
        await ClockCycles(dut.clk, 2)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of an instruction discards all state."""
    await start(dut)
    for number, program in enumerate(programs("forgets_at_reset")):
        for delay_cycles in (3, 9, 20, 31, 44, 58, 90):
            bench = Bench(dut, None)
            bench.start_sending(program)
            await ClockCycles(dut.clk, delay_cycles + number)
            bench.stop()
            await reset(dut)
            bench = Bench(dut, random.Random(cocotb.RANDOM_SEED))
            await bench.check(program)
            bench.stop()
            await reset(dut)
