"""Checks the transposer against its model: words and squares with pauses, cycles without."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles

from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.rtl.gemm.narrow_transposer import NarrowTransposer
from fpgapipe.hw.rtl.gemm.transposer import TURN_LANES, Transposer, output_layout
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, parameters, reset, start


@dataclass
class Words:
    """Words to send: their lanes and their other fields."""

    lanes: np.ndarray
    side: list[int]
    last: list[int]
    transposed: list[int]
    emit: list[int]


def random_words(
    spec: TransposerSpec, rng: random.Random, groups: Sequence[int], *, emit: int = 0
) -> Words:
    """Draw words. A group is a word that bypasses (0) or a square (1); `emit` 0 means random."""
    transposed = [kind for kind in groups for _ in range(spec.size if kind else 1)]
    number = len(transposed)
    choices = [1, spec.size, rng.randint(1, spec.size)]
    emits = [emit or rng.choice(choices) for _ in transposed]
    return Words(
        np.array([rng.getrandbits(spec.lane_bits) for _ in range(number * spec.size)]).reshape(
            number, spec.size
        ),
        [rng.getrandbits(spec.side_bits) for _ in range(number)],
        [rng.getrandbits(1) for _ in range(number)],
        transposed,
        emits,
    )


class Bench:
    """Driver and sink of a transposer."""

    def __init__(self, dut: Any, spec: TransposerSpec, rng: random.Random | None) -> None:
        self.spec = spec
        self._dut = dut
        self._sending: Any = None
        lanes = [bits for bits in spec.planes for _ in range(spec.width)]
        self.i = StreamDriver(
            dut, "i", rng, fields=[*lanes, spec.side_bits, 1, 1, spec.size.bit_length()]
        )
        self._turn_bits = output_layout(spec)["turn"].width
        left = [self._turn_bits] if self._turn_bits else []
        self.o = StreamSink(dut, "o", rng, fields=[*lanes, spec.side_bits, 1, *left], signed=False)

    def _parts(self, lanes: np.ndarray) -> list[list[int]]:
        """Parts of a word, the lowest lanes first."""
        return [self._planes(part) for part in lanes.reshape(self.spec.parts, -1)]

    def _planes(self, lanes: np.ndarray) -> list[int]:
        """All lanes of the first plane, then those of the others."""
        fields: list[int] = []
        for bits in self.spec.planes:
            fields += (lanes & ((1 << bits) - 1)).tolist()
            lanes = lanes >> bits
        return fields

    def _turned(self, fields: list[int]) -> list[int]:
        """Fields of a word that left, after the rotation that was left to do."""
        if not self._turn_bits:
            return fields
        *fields, turn = fields
        size = self.spec.size
        for plane in range(len(self.spec.planes)):
            lanes = slice(plane * size, (plane + 1) * size)
            fields[lanes] = np.roll(fields[lanes], TURN_LANES * turn).tolist()
        return fields

    def start_sending(self, words: Words) -> None:
        """Send words in the background."""
        along = zip(words.side, words.last, words.transposed, words.emit, strict=True)
        payloads = []
        number = 0  # of the next word in its square
        for lanes, fields in zip(words.lanes, along, strict=True):
            is_turned = fields[2] and not self.spec.lanes
            come = np.roll(lanes, number // 2 * 2) if is_turned else lanes
            payloads += [[*part, *fields] for part in self._parts(come)]
            number = (number + fields[2]) % self.spec.size
        self._sending = cocotb.start_soon(self.i.send(payloads))

    def stop(self) -> None:
        """Stop the driver."""
        self._sending.cancel()

    async def check(self, words: Words, *, late_cycles: int = 0) -> None:
        """Send words and compare all output words with the model's, which are taken later."""
        self.start_sending(words)
        if late_cycles:
            await ClockCycles(self._dut.clk, late_cycles)
        lanes, source = self.spec.compute(
            words.lanes, [bool(each) for each in words.transposed], words.emit
        )
        parts = self.spec.parts
        got = await self.o.receive(len(lanes) * parts)
        for k, index in enumerate(source):
            is_last = k + 1 == len(source) or source[k + 1] != index
            last = int(words.last[index] and is_last)
            for part, numbers in enumerate(self._parts(lanes[k])):
                expected = [*numbers, words.side[index], last]
                seen = self._turned(got[k * parts + part])
                assert seen == expected, f"word {k}, part {part}: {seen}, not {expected}"


def transposer_spec() -> TransposerSpec:
    """Specification that the parameters describe."""
    given = parameters()
    return TransposerSpec(**(given | {"planes": tuple(given["planes"])}))


@cocotb.test(timeout_time=1000, timeout_unit="us")
async def matches_model(dut: Any) -> None:
    """Output words equal the model's and are in order, however the streams pause."""
    spec = transposer_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    groups = [0, 1, 0, 0, 1, 1, 1, 0] + [rng.choice([0, 1, 1]) for _ in range(40)]
    await start(dut)
    await Bench(dut, spec, rng).check(random_words(spec, rng, groups))


@cocotb.test(timeout_time=1000, timeout_unit="us")
async def loses_no_cycle(dut: Any) -> None:
    """Without pauses, squares follow each other without a gap, and so do words that bypass."""
    spec = transposer_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    for emit in (spec.size, 1):
        bench = Bench(dut, spec, rng=None)
        await bench.check(random_words(spec, rng, [1] * 8, emit=emit))
        taken, left = bench.i.cycles, bench.o.cycles
        latency = (NarrowTransposer if spec.lanes else Transposer).latency_cycles
        assert left[0] - taken[spec.size * spec.parts - 1] == latency
        assert taken[-1] - taken[0] == len(taken) - 1
        if emit == spec.size:
            assert left[-1] - left[0] == len(left) - 1
    bench = Bench(dut, spec, rng=None)
    await bench.check(random_words(spec, rng, [0] * 40))
    assert [b - a for a, b in zip(bench.i.cycles, bench.o.cycles, strict=True)] == [1] * (
        40 * spec.parts
    )
    assert bench.o.cycles[-1] - bench.o.cycles[0] == 40 * spec.parts - 1


@cocotb.test(timeout_time=1000, timeout_unit="us")
async def waits_for_its_reader(dut: Any) -> None:
    """Nothing is lost where both squares are full for long."""
    spec = transposer_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    late_cycles = 4 * spec.size * spec.parts
    for groups in ([1] * 5, [1, 0, 1, 1, 0, 1]):
        await Bench(dut, spec, rng=None).check(
            random_words(spec, rng, groups), late_cycles=late_cycles
        )


@cocotb.test(timeout_time=1000, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of a square discards all state."""
    spec = transposer_spec()
    rng = random.Random(cocotb.RANDOM_SEED)
    await start(dut)
    square = spec.size * spec.parts
    for delay_cycles in (2, square - 1, square + 3, 2 * square + 5):
        words = random_words(spec, rng, [1, 1, 1, 0, 1])
        bench = Bench(dut, spec, rng=None)
        bench.start_sending(words)
        dut.o__ready.value = int(delay_cycles < square + 4)
        await ClockCycles(dut.clk, delay_cycles)
        bench.stop()
        await reset(dut)
        await Bench(dut, spec, random.Random(cocotb.RANDOM_SEED)).check(words)
        await reset(dut)
