"""Checks the lanes of the vector engine against their model: results and cycles."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.cycles.vector_cycles import (
    LANES_CYCLES,
    MAXIMUM_CYCLES,
    SUM_CYCLES,
    cycles_per_result,
    function_cycles,
)
from fpgapipe.hw.hls_models.isa.vector_fields import (
    NUM_COEFFICIENTS,
    NUM_CONSTANTS,
    NUM_VECTOR_LOOPS,
)
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    NUM_SCALARS,
    VECTOR_BYTES,
    Addend,
    Choice,
    Coefficients,
    Constant,
    Counter,
    Factor,
    Initial,
    Left,
    Outcome,
    Random,
    Right,
    Second,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.model.vector import results
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec
from fpgapipe.hw.rtl.vector.vector_lane import LANE_CONFIG
from fpgapipe.hw.rtl.vector.vector_lanes import LANES_CONFIG
from fpgapipe.sim_tb.drivers.stream import StreamDriver, StreamSink, parameters, reset, start
from fpgapipe.sim_tb.testbenches.tb_fp32 import EDGES, random_operands

Bits = NDArray[np.uint32]

FEW: Bits = np.array([0, 1 << 31, 1, 0x80000001, 0x3F800000, 0xBF800000], np.uint32)
"""A few numbers, so that drawn ones are often equal: zeros, subnormals, 1 and -1."""

FAR: Bits = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F7FFFFF], np.uint32)


@dataclass(frozen=True)
class Work:
    """An instruction and its inputs.

    Attributes
    ----------
    op : VectorOp
        Instruction. Vector `n` of a source is the `n`-th one in memory; lanes are masked by their
        coordinate u.
    memory : uint8 array
        Memory with the vectors.
    scalars : list of int
        Values of the scalar registers.
    """

    op: VectorOp
    memory: NDArray[np.uint8]
    scalars: list[int]

    def expected(self, spec: VectorSpec) -> Bits:
        """Results of the model, one row per beat."""
        values = results(self.op, self.memory, self.scalars)
        return values.view(np.uint32).reshape(-1, spec.lanes)

    def indices(self) -> NDArray[np.int64]:
        """Index of each loop for each vector, shape (6, vectors)."""
        counts = self.op.counts[::-1]
        return np.indices(counts).reshape(NUM_VECTOR_LOOPS, -1)[::-1]

    def config(self) -> int:
        """Configuration of the gateware as an integer."""
        op, fields = self.op, self.op.encoded()
        constants = [
            self.scalars[constant["value"]] if constant["is_register"] else constant["value"]
            for constant in fields["constants"]
        ]
        lane = {name: fields[name] for name in LANE_CONFIG.members if name in fields}
        lane |= {
            "constants": constants,
            "threshold": fields["random"]["threshold"],
            "reduces": int(op.reduced > 0),
        }
        key = fields["random"]["key"]
        config = LANES_CONFIG.const(
            {
                "lane": lane,
                "key": self.scalars[key : key + 2],
                "first": fields["random"]["first"],
                "coefficients": op.coefficients.number,
                "function": fields["function"],
            }
        )
        value: int = config.as_value().value
        return value

    def beats(self, spec: VectorSpec) -> list[list[int]]:
        """Input beats for each step of the outermost loop."""
        op, indices = self.op, self.indices()
        x, there = self._elements(op.x)
        y = self._elements(op.y)[0] if op.y else np.zeros_like(x)
        counter = op.counter.base + _moved(op.counter.steps, indices)
        loops = slice(op.inner, op.inner + op.reduced)
        first = (indices[loops] == 0).all(axis=0)
        last = (indices[loops] == np.array(op.counts[loops])[:, None] - 1).all(axis=0)
        inner = np.cumprod([1, *op.counts])[: op.inner]
        sums = (indices[: op.inner] * inner[:, None]).sum(axis=0)
        lanes = spec.lanes
        beat_bits = (LANES // lanes - 1).bit_length()
        steps: list[list[int]] = [[] for _ in range(op.counts[-1])]
        for number in range(op.num_vectors):
            step = int(indices[-1, number])
            for beat in range(LANES // lanes):
                part = slice(beat * lanes, (beat + 1) * lanes)
                word, place = 0, 0
                for value, bits in (
                    (_word(x[number, part]), 32 * lanes),
                    (_word(y[number, part]), 32 * lanes),
                    (sum(int(bit) << k for k, bit in enumerate(there[number, part])), lanes),
                    (int(counter[number]) % 256, 8),
                    (step % 2, 1),
                    (beat, beat_bits),
                    (int(first[number]), 1),
                    (int(last[number]), 1),
                    (int(sums[number]), 6),
                ):
                    word |= value << place
                    place += bits
                steps[step].append(word)
        return steps

    def coefficients(self, spec: VectorSpec, step: int) -> list[int]:
        """Coefficients that are written before a step of the outermost loop."""
        of, beats = self.op.coefficients, LANES // spec.lanes
        beat_bits = (beats - 1).bit_length()
        words = []
        for number in range(of.number):
            begin = of.base + number * of.pitch + step * of.step
            vector = self.memory[begin : begin + VECTOR_BYTES].view("<u4")
            for beat in range(beats):
                part = _word(vector[beat * spec.lanes : (beat + 1) * spec.lanes])
                head = 1 | (step % 2) << 1 | number << 2 | beat << 4
                words.append(head | part << (4 + beat_bits))
        return words

    def _elements(self, source: Source) -> tuple[Bits, NDArray[np.bool_]]:
        count = self.op.num_vectors
        stored = self.memory[source.base :][: VECTOR_BYTES * count].view("<u4").reshape(-1, LANES)
        u = source.u + _moved(source.u_steps, self.indices())[:, None] + np.arange(LANES)
        there = (u >= 0) & (u < source.u_limit)
        return np.where(there, stored, 0).astype(np.uint32), there


def _moved(steps: Sequence[int], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    padded = np.zeros(NUM_VECTOR_LOOPS, np.int64)
    padded[: len(steps)] = steps
    moved: NDArray[np.int64] = (padded[:, None] * indices).sum(axis=0)
    return moved


def _word(values: Bits) -> int:
    return int.from_bytes(values.astype("<u4").tobytes(), "little")


def numbers(rng: np.random.Generator, count: int) -> Bits:
    """Draw FP32 values of one of several kinds."""
    near = (rng.integers(100, 150, count) << 23 | rng.integers(0, 2, count) << 31).astype(np.uint32)
    near |= rng.integers(0, 1 << 23, count, np.uint32)
    kind = rng.integers(5)
    if kind == 0:
        return random_operands(rng, count)
    if kind == 1:
        return rng.choice(FEW, count)
    if kind == 2:
        return rng.choice(EDGES, count)
    rare = rng.random(count) < (0.02 if kind == 3 else 0)
    return np.where(rare, rng.choice(FAR, count), near)


def random_work(rng: np.random.Generator, **chosen: Any) -> Work:
    """Draw an instruction and its inputs; fields of the instruction may be given."""
    counts = chosen.pop("counts", None)
    inner, reduced = chosen.pop("inner", 0), chosen.pop("reduced", None)
    # Some instructions select coefficients that do not exist; these are zeros.
    num_coefficients = chosen.pop("num_coefficients", int(rng.integers(NUM_COEFFICIENTS + 1)))
    if reduced is None:
        reduced = int(rng.integers(0, 3))
        inner = int(rng.integers(0, 3)) if reduced else 0
    if counts is None:
        counts = (*(int(count) for count in rng.integers(1, 4, 5)), int(rng.integers(1, 5)))
    uses_maximum = bool(reduced and rng.random() < 0.5)

    def steps(most: int) -> tuple[int, ...]:
        return tuple(int(step) for step in rng.integers(-most, most + 1, NUM_VECTOR_LOOPS))

    def pick(kind: Any) -> Any:
        return kind(int(rng.choice([member.value for member in kind])))

    memory_steps = tuple(int(step) * VECTOR_BYTES for step in np.cumprod([1, *counts[:-1]]))
    size = VECTOR_BYTES * prod(counts)

    def source(base: int) -> Source:
        return Source(
            base,
            memory_steps,
            u=int(rng.integers(-12, 8)),
            u_steps=steps(4) if rng.random() < 0.7 else (),
            u_limit=int(rng.integers(1, 30)),
        )

    outcome = Outcome(int(rng.integers(1, 16)))
    thresholds = (0, 1, 0x8000, 0xFFFF, int(rng.integers(1 << 16)))
    firsts = (0, (1 << 48) - 2, int(rng.integers(1 << 48)))
    drawn = Random(
        thresholds[rng.integers(len(thresholds))],
        firsts[rng.integers(len(firsts))],
        int(rng.integers(NUM_SCALARS - 1)),
    )
    test = [None, drawn, (pick(Left), outcome, pick(Right)), (pick(Left), outcome, pick(Right))]
    op = VectorOp(
        counts,
        source(0),
        Target(0),
        y=None if rng.random() < 0.2 else source(size),
        inner=inner,
        reduced=reduced,
        negate_x=bool(rng.integers(2)),
        addend=pick(Addend),
        negate_addend=bool(rng.integers(2)),
        factor=pick(Factor),
        second=pick(Second),
        negate_second=bool(rng.integers(2)),
        test=test[rng.integers(4)],
        then=pick(Choice),
        otherwise=pick(Choice),
        relu=bool(rng.random() < 0.3),
        function=pick(Function) if rng.random() < 0.3 else None,
        constants=tuple(
            Constant(register=int(rng.integers(NUM_SCALARS))) for _ in range(NUM_CONSTANTS)
        ),
        coefficients=Coefficients(
            2 * size,
            step=NUM_COEFFICIENTS * VECTOR_BYTES,
            number=num_coefficients,
        ),
        counter=Counter(int(rng.integers(256)), steps(60)),
        takes_maximum=uses_maximum,
        gives_index=uses_maximum and bool(rng.integers(2)),
        initial=Initial.NOTHING if uses_maximum else pick(Initial),
    )
    op = replace(op, **chosen)
    total = 2 * size + counts[-1] * NUM_COEFFICIENTS * VECTOR_BYTES
    parts = [numbers(rng, words // 4) for words in (size, size, total - 2 * size)]
    scalars = [int(bits) for bits in numbers(rng, NUM_SCALARS)]
    return Work(op, np.concatenate(parts).view(np.uint8), scalars)


class Bench:
    """Driver and sink of the lanes."""

    def __init__(self, dut: Any, spec: VectorSpec, rng: random.Random | None) -> None:
        self._dut = dut
        self._spec = spec
        self.driver = StreamDriver(dut, "i", rng)
        self.sink = StreamSink(dut, "o", rng, fields=[32] * spec.lanes, signed=False)
        dut.start.value = 0
        dut.k_write.value = 0

    async def _send(self, work: Work) -> None:
        dut = self._dut
        for step, beats in enumerate(work.beats(self._spec)):
            for word in work.coefficients(self._spec, step):
                await FallingEdge(dut.clk)
                while int(dut.uses.value) >> step % 2 & 1:
                    await FallingEdge(dut.clk)
                dut.k_write.value = word
                await RisingEdge(dut.clk)
                dut.k_write.value = 0
            await self.driver.send(beats)

    async def begin(self, work: Work) -> Any:
        """Start an instruction; returns the task that sends its beats."""
        dut = self._dut
        dut.config.value = work.config()
        dut.start.value = 1
        task = cocotb.start_soon(self._send(work))
        await RisingEdge(dut.clk)
        dut.start.value = 0
        return task

    async def check(self, work: Work, what: str = "") -> None:
        """Run an instruction and compare all its results with the model's."""
        dut = self._dut
        expected = work.expected(self._spec)
        await self.begin(work)
        received = np.array(await self.sink.receive(len(expected)), np.uint32)
        np.testing.assert_array_equal(received, expected, err_msg=f"{what}: {work.op}")
        for _ in range(LANES_CYCLES):
            await FallingEdge(dut.clk)
            if dut.idle.value:
                break
        assert dut.idle.value
        assert dut.uses.value == 0
        await RisingEdge(dut.clk)


def plain(counts: tuple[int, ...] = (1,), **fields: Any) -> dict[str, Any]:
    """Fields of an instruction that copies X, except for the given fields."""
    return {
        "counts": counts + (1,) * (NUM_VECTOR_LOOPS - len(counts)),
        "reduced": 0,
        "inner": 0,
        "takes_maximum": False,
        "gives_index": False,
        "addend": Addend.NOTHING,
        "factor": Factor.ONE,
        "second": Second.NOTHING,
        "test": None,
        "then": Choice.S,
        "otherwise": Choice.S,
        "initial": Initial.NOTHING,
        "function": None,
        "relu": False,
        **fields,
    }


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def matches_model(dut: Any) -> None:
    """The gateware equals the model bit for bit, however the streams pause."""
    spec = VectorSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    bench = Bench(dut, spec, random.Random(cocotb.RANDOM_SEED))
    works = []
    # First, each choice is tested with all other fields plain; random instructions follow.
    for name, kind in (("addend", Addend), ("factor", Factor), ("second", Second)):
        works += [plain((3,), **{name: member}) for member in kind]
    works += [plain((3,), otherwise=choice) for choice in Choice]
    works += [plain((3,), initial=initial, relu=True) for initial in Initial]
    works += [plain((4,), function=function) for function in Function]
    for left in Left:
        for right in Right:
            outcome = Outcome(int(rng.integers(1, 16)))
            works.append(plain((3,), test=(left, outcome, right), otherwise=Choice.ZERO))
    # With short steps of the outermost loop, coefficients are written while others are in use.
    last = {"initial": Initial.COEFFICIENT, "otherwise": Choice.COEFFICIENT}
    for count in (1, 2, 3, 5):
        works.append(plain((count, 1, 1, 1, 1, 32), num_coefficients=4, **last))
    # Sums and maxima at different distances, and the largest number of sums.
    for count in (1, 2, SUM_CYCLES, SUM_CYCLES + 1):
        works.append(plain((count, 3), inner=1, reduced=1))
        works.append(plain((count, 3), inner=1, reduced=1, takes_maximum=True, gives_index=True))
    if spec.lanes > 2:
        works.append(plain((16, 4, 2, 2), inner=2, reduced=1))
    for number, fields in enumerate(works + [{}] * (30 if spec.lanes > 2 else 15)):
        await bench.check(random_work(rng, **fields), f"instruction {number}")


@cocotb.test(timeout_time=400, timeout_unit="us")
async def takes_predicted_cycles(dut: Any) -> None:
    """Without pauses, beats and results move in the predicted cycles."""
    spec = VectorSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    beats = LANES // spec.lanes
    slow = cycles_per_result(spec, has_function=True)
    for fields, latency, interval in (
        (plain((40,)), LANES_CYCLES, 1),
        (plain((40,), function=Function.EXP), LANES_CYCLES + function_cycles(spec), slow),
        (plain((SUM_CYCLES, 3), inner=1, reduced=1), LANES_CYCLES, 1),
    ):
        bench = Bench(dut, spec, rng=None)
        await bench.check(random_work(rng, **fields))
        moved, came = np.array(bench.driver.cycles), np.array(bench.sink.cycles)
        assert came[0] - moved[-len(came)] == latency, fields
        np.testing.assert_array_equal(np.diff(came), interval)
        if interval == 1:
            np.testing.assert_array_equal(np.diff(moved), 1)

    # A beat that adds to a sum waits for the preceding one.
    for takes_maximum, latency in ((False, LANES_CYCLES), (True, MAXIMUM_CYCLES)):
        bench = Bench(dut, spec, rng=None)
        fields = plain((3, 1), reduced=1, takes_maximum=takes_maximum)
        await bench.check(random_work(rng, **fields))
        moved, came = np.array(bench.driver.cycles), np.array(bench.sink.cycles)
        np.testing.assert_array_equal(np.diff(moved[::beats]), max(SUM_CYCLES, beats))
        np.testing.assert_array_equal(came - moved[-beats:], latency)


@cocotb.test(timeout_time=400, timeout_unit="us")
async def forgets_at_reset(dut: Any) -> None:
    """A reset in the middle of an instruction discards all state."""
    spec = VectorSpec(**parameters())
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await start(dut)
    for fields in (plain((40,)), plain((40,), function=Function.TANH), plain((8, 5), reduced=1)):
        for ready in (0, 1):
            bench = Bench(dut, spec, rng=None)
            task = await bench.begin(random_work(rng, **fields))
            dut.o__ready.value = ready
            await ClockCycles(dut.clk, LANES_CYCLES + function_cycles(spec))
            task.cancel()
            await reset(dut)
            await FallingEdge(dut.clk)
            assert dut.idle.value
            bench = Bench(dut, spec, random.Random(cocotb.RANDOM_SEED))
            await RisingEdge(dut.clk)
            await bench.check(random_work(rng, **plain((4,))))
