"""Checks the function unit against its model, bit for bit, with pauses."""

import random
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics import function as model
from fpgapipe.hw.hls_models.numerics.function import FUNCTION_CYCLES, Bits, Function, compute
from fpgapipe.sim_tb.drivers.stream import start
from fpgapipe.sim_tb.testbenches.tb_fp32 import (
    EDGES,
    assert_same_bits,
    random_operands,
    run_pipeline,
)

NUM_RANDOM = 3000
"""Number of random operands of each kind for each function."""


def edges(function: Function) -> Bits:
    """Make operands at and next to the borders of a function's segments and special cases."""
    borders = [
        np.array([1.0, 0.5, 2.0, 0.75, 1.5, 64.0, 128.0, 2.0**-12, 2.0**-28]),  # ranges
        1 + np.arange(32) / 16,  # mantissas
        np.log(2) * np.arange(1, 134),  # powers of two of exp; of tanh, too
        np.log(2) * np.arange(0, 14, 0.125),
        np.log(2.0) * np.array([126, 126.5, 127, 128, 149, 150]),  # ends of FP32
        np.arange(65) / 128,
        2.0 ** np.arange(-126, 128),
    ]
    near = np.concatenate(borders).astype(np.float32).view(np.uint32)
    near = (near[:, None] + np.arange(-2, 3)[None, :]).astype(np.uint32).ravel()
    if function in (Function.RSQRT, Function.SQRT, Function.LOG):
        return np.concatenate([EDGES, near])
    return np.concatenate([EDGES, near, near | np.uint32(0x80000000)])


def operands(function: Function, rng: np.random.Generator, count: int = NUM_RANDOM) -> Bits:
    """Draw operands: edge cases, any values, and values whose results are not special cases."""
    anything = random_operands(rng, count)
    middle = {
        Function.LOG: (124, 130),
        Function.EXP: (97, 134),
        Function.TANH: (110, 132),
        Function.SIGMOID: (97, 134),
    }.get(function, (1, 255))
    usual = rng.integers(*middle, count) << 23 | rng.integers(0, 1 << 23, count)
    if function not in (Function.RSQRT, Function.SQRT, Function.LOG):
        usual |= rng.integers(0, 2, count) << 31
    return np.concatenate([edges(function), anything, usual.astype(np.uint32)])


async def _check(dut: Any, codes: NDArray[np.int64], values: Bits) -> None:
    """Send elements through the unit and compare the results with the model's."""
    wanted = np.zeros_like(values)
    for function in Function:
        chosen = codes == function
        wanted[chosen] = compute(function, values[chosen])
    await start(dut)
    words = {"i": values.tolist(), "function": codes.tolist()}
    rng = random.Random(cocotb.RANDOM_SEED)
    results = await run_pipeline(dut, words, ["o"], FUNCTION_CYCLES, rng)
    assert_same_bits(np.array(results, dtype=np.uint32)[:, 0], wanted, words)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def computes(dut: Any) -> None:
    """Every function equals its model, whatever the functions of neighbouring elements are."""
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    drawn = [(function, operands(function, rng)) for function in Function]
    codes = np.concatenate([np.full(values.size, function) for function, values in drawn])
    order = rng.permutation(codes.size)
    await _check(dut, codes[order], np.concatenate([values for _, values in drawn])[order])


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reaches_every_row(dut: Any) -> None:
    """Every row of the table is read, at both of its ends."""
    places = np.arange(0, 1 << 23, 1 << 16)
    mantissas = np.concatenate([places, places + 0xFFFF])
    reciprocal = 127 << 23 | mantissas
    roots = np.concatenate([reciprocal, 128 << 23 | mantissas])
    small = np.arange(1, 65) / 128
    curve = np.concatenate([(np.arange(model.FAR * 32) + at) / 32 for at in (0.01, 0.99)])
    exponents = (np.arange(64) + 0.5) / 64
    values = {
        Function.RECIPROCAL: reciprocal,
        Function.RSQRT: roots,
        Function.LOG: reciprocal,
        Function.TANH: np.concatenate([small, small - 0.001]).astype(np.float32).view(np.uint32),
        Function.SIGMOID: (-np.log(2) * curve).astype(np.float32).view(np.uint32),
        Function.EXP: (-np.log(2) * exponents).astype(np.float32).view(np.uint32),
    }
    codes = np.concatenate([np.full(bits.size, each) for each, bits in values.items()])
    await _check(dut, codes, np.concatenate([*values.values()]).astype(np.uint32))
