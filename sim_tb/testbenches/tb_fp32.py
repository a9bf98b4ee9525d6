"""Checks the FP32 pipelines against their models, bit for bit, with pauses."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, CODE_NAN, SUM_FRACTION_BITS
from fpgapipe.sim_tb.drivers.stream import PAUSE_RATES, PHASE_CYCLES, parameters, start

Bits = NDArray[np.uint32]

NUM_RANDOM = 20_000
"""Number of random operands, or pairs of operands, for each kind of pipeline."""

EDGES: Bits = np.array(
    [
        sign | magnitude
        for magnitude in (
            0,
            0x00000001,  # subnormals: smallest and largest
            0x007FFFFF,
            0x00800000,  # smallest normal number, and numbers next to it
            0x00800001,
            0x00FFFFFF,
            0x01000000,
            0x33800000,  # 2**-24 and 2**-25: half and a quarter of a unit in the last place of 1
            0x33000000,
            0x3F7FFFFF,  # about one
            0x3F800000,
            0x3F800001,
            0x3FFFFFFF,
            0x4B7FFFFF,  # about 2**24, from which on not all integers can be represented
            0x4B800000,
            0x7F000000,  # the largest power of two, and the largest numbers
            0x7F7FFFFE,
            0x7F7FFFFF,
            0x7F800000,  # infinity
            0x7F800001,  # NaNs: signalling, quiet, and with all bits set
            0x7FC00000,
            0x7FFFFFFF,
        )
        for sign in (0, 0x80000000)
    ],
    dtype=np.uint32,
)


def random_operands(rng: np.random.Generator, count: int) -> Bits:
    """Draw FP32 values of all exponents; fractions often are almost all zeros or all ones."""
    sign = rng.integers(0, 2, count) << 31
    exponent = rng.integers(0, 256, count)
    few = (1 << rng.integers(0, 23, count)) - rng.integers(0, 2, count)
    fraction = np.choose(
        rng.integers(0, 5, count),
        [
            rng.integers(0, 1 << 23, count),
            few,
            few ^ 0x7FFFFF,
            rng.integers(0, 4, count),
            rng.integers(0, 1 << 23, count) & 0x7FF000,
        ],
    )
    values: Bits = (sign | exponent << 23 | fraction & 0x7FFFFF).astype(np.uint32)
    return np.where(rng.random(count) < 0.02, rng.choice(EDGES, count), values)


def pairs_to_add(rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Make pairs of all edge cases, of similar exponents, and of values that almost cancel."""
    a, b = random_operands(rng, NUM_RANDOM), random_operands(rng, NUM_RANDOM)
    distance = rng.choice([0, 1, 2, 3, 12, 22, 23, 24, 25, 26, 27, 32, 33, 64], NUM_RANDOM)
    exponent = np.clip((a >> 23 & 255).astype(np.int64) - distance, 0, 255)
    near = (b & 0x807FFFFF) | (exponent << 23).astype(np.uint32)
    last = rng.integers(-3, 4, NUM_RANDOM) * (1 << rng.integers(0, 24, NUM_RANDOM))
    cancelling = ((a.astype(np.int64) ^ 0x80000000) + last).astype(np.uint32)
    b = np.choose(rng.integers(0, 4, NUM_RANDOM), [b, near, near, cancelling])
    swap = rng.integers(0, 2, NUM_RANDOM) == 1
    return _with_edges(np.where(swap, b, a), np.where(swap, a, b))


def pairs_to_multiply(rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Make pairs of all edge cases, and pairs with products near the least or largest number."""
    a, b = random_operands(rng, NUM_RANDOM), random_operands(rng, NUM_RANDOM)
    target = rng.choice([1, 127, 254, 255], NUM_RANDOM) + rng.integers(-2, 3, NUM_RANDOM)
    exponent = np.clip(target + 127 - (a >> 23 & 255).astype(np.int64), 0, 255)
    near = (b & 0x807FFFFF) | (exponent << 23).astype(np.uint32)
    with np.errstate(all="ignore"):
        quotient = (2.0**-126 / a.view(np.float32).astype(np.float64)).astype(np.float32)
    least = (quotient.view(np.uint32) + rng.integers(-2, 3, NUM_RANDOM)).astype(np.uint32)
    return _with_edges(a, np.choose(rng.integers(0, 4, NUM_RANDOM), [b, near, near, least]))


def _with_edges(a: Bits, b: Bits) -> tuple[Bits, Bits]:
    """Prepend all pairs of edge cases."""
    edges_a, edges_b = np.meshgrid(EDGES, EDGES)
    return np.concatenate([edges_a.ravel(), a]), np.concatenate([edges_b.ravel(), b])


async def run_pipeline(
    dut: Any,
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
    latency_cycles: int,
    rng: random.Random,
) -> list[tuple[int, ...]]:
    """Send values through a pipeline that is paused at random.

    Parameters
    ----------
    dut
        The design, with its clock ``clk`` and its clock enable ``advance``, right after a reset.
    inputs : mapping of str to sequence of int
        Values for each input port.
    outputs : sequence of str
        Names of the output ports.
    latency_cycles : int
        Latency of the pipeline, cycles.
    rng : random.Random
        Source of the pauses.

    Returns
    -------
    list of tuple of int
        Outputs for each input, unsigned. The function also checks that they do not change during
        a pause.
    """
    ports_in = [getattr(dut, name) for name in inputs]
    ports_out = [getattr(dut, name) for name in outputs]
    words = list(zip(*inputs.values(), strict=True))
    results: list[tuple[int, ...]] = []
    taken = 0  # number of cycles in which the pipeline has advanced, each with one value
    cycle = 0
    await FallingEdge(dut.clk)
    while len(results) < len(words):
        advance = rng.random() >= PAUSE_RATES[cycle // PHASE_CYCLES % len(PAUSE_RATES)]
        cycle += 1
        dut.advance.value = int(advance)
        # During a pause, the inputs are random values, which must be ignored.
        word = words[taken % len(words)] if advance else words[rng.randrange(len(words))]
        for port, value in zip(ports_in, word, strict=True):
            port.value = value
        await FallingEdge(dut.clk)
        taken += advance
        if taken >= latency_cycles:
            shown = tuple(port.value.to_unsigned() for port in ports_out)
            if advance:
                results.append(shown)
            else:
                assert shown == results[-1], "the outputs changed while advance was low"
    return results


def assert_same_bits(
    found: NDArray[Any], wanted: NDArray[Any], inputs: Mapping[str, Sequence[int]]
) -> None:
    """Compare results; the error shows the first one that differs, with its operands."""
    wrong = np.flatnonzero(np.asarray(found) != wanted)
    if wrong.size:
        first = wrong[0]
        operands = ", ".join(f"{name} = {values[first]:#x}" for name, values in inputs.items())
        raise AssertionError(
            f"{wrong.size} of {len(wanted)} results differ; the first is {found[first]:#010x}, not "
            f"{wanted[first]:#010x}: {operands}"
        )


async def _check(
    dut: Any,
    inputs: Mapping[str, NDArray[Any]],
    latency_cycles: int,
    wanted: NDArray[Any],
) -> None:
    await start(dut)
    words = {name: values.tolist() for name, values in inputs.items()}
    rng = random.Random(cocotb.RANDOM_SEED)
    results = await run_pipeline(dut, words, ["o"], latency_cycles, rng)
    assert_same_bits(np.array(results, dtype=np.uint32)[:, 0], wanted, words)


async def _check_binary(
    dut: Any,
    pairs: tuple[Bits, Bits],
    latency_cycles: int,
    compute: Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]],
) -> None:
    a, b = pairs
    wanted = compute(a.view(np.float32), b.view(np.float32)).view(np.uint32)
    await _check(dut, {"a": a, "b": b}, latency_cycles, wanted)


def _runs(block: str) -> bool:
    """Whether a block is the simulated one."""
    return bool(parameters().get("block") == block)


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=not _runs("adder"))
async def adds(dut: Any) -> None:
    """The adder equals its model."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await _check_binary(dut, pairs_to_add(rng), fp32.ADD_CYCLES, fp32.add)


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=not _runs("multiplier"))
async def multiplies(dut: Any) -> None:
    """The multiplier equals its model."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    await _check_binary(dut, pairs_to_multiply(rng), fp32.MULTIPLY_CYCLES, fp32.multiply)


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=not _runs("converter"))
async def converts(dut: Any) -> None:
    """The converter of partial sums equals its model."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    acc_bits = parameters()["acc_bits"]
    least = -(1 << (acc_bits - 1))
    edges = np.array([least, least + 1, -1, 0, 1, -least - 1])
    small = rng.integers(least, -least, NUM_RANDOM) >> rng.integers(0, acc_bits, NUM_RANDOM)
    power = 1 << rng.integers(0, acc_bits - 1, NUM_RANDOM)
    sums = np.choose(rng.integers(0, 3, NUM_RANDOM), [small, power, -power - 1])
    sums = np.concatenate([np.repeat(edges, 256), sums])
    code_a = rng.integers(0, 256, sums.size)
    # Sums of codes near both ends of the range, near its middle, and any others.
    total = rng.choice([116, 266, 372, 390, 510], sums.size) + rng.integers(-26, 27, sums.size)
    code_b = np.where(rng.random(sums.size) < 0.2, rng.integers(0, 256, sums.size), total - code_a)
    code_b = np.clip(code_b, 0, CODE_NAN)
    inputs = {
        "sum": sums,
        "exponent": code_a + code_b + acc_bits - 1 - CODE_BIAS - SUM_FRACTION_BITS,
        "nan": ((code_a == CODE_NAN) | (code_b == CODE_NAN)).astype(np.int64),
    }
    wanted = fp32.from_sum(sums, code_a, code_b).view(np.uint32)
    await _check(dut, inputs, fp32.FROM_SUM_CYCLES, wanted)


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=not _runs("rounder"))
async def rounds(dut: Any) -> None:
    """The rounding to BF16 equals its model."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    values = random_operands(rng, NUM_RANDOM)
    # Ties and their neighbours.
    ties = (values & 0xFFFF0000) | (0x8000 + rng.integers(-1, 2, NUM_RANDOM)).astype(np.uint32)
    values = np.concatenate([EDGES, np.where(rng.random(NUM_RANDOM) < 0.5, ties, values)])
    wanted = fp32.to_bf16(values.view(np.float32))
    await _check(dut, {"i": values}, fp32.TO_BF16_CYCLES, wanted)
