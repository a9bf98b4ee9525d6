"""Checks the MXINT8 quantisers against their model, bit for bit, with pauses."""

import random
from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.sim_tb.drivers.stream import parameters, start
from fpgapipe.sim_tb.testbenches.tb_fp32 import (
    EDGES,
    assert_same_bits,
    random_operands,
    run_pipeline,
)

NUM_BLOCKS = 1500

IN_HALVES = bool(parameters().get("in_halves"))
"""Whether the quantiser gets blocks in halves."""


def random_blocks(rng: np.random.Generator, count: int) -> NDArray[np.uint32]:
    """Make blocks of similar exponents with ties, of edge cases, of any numbers, and of zeros."""
    size = (count, MX_BLOCK)
    any_number = random_operands(rng, count * MX_BLOCK).reshape(size)
    # In blocks of arbitrary numbers most elements round to zero, and many blocks contain a NaN.
    # Therefore other blocks have exponents near a chosen largest one.
    top = rng.choice([1, 2, 9, 100, 127, 200, 254, 255], (count, 1))
    finite = np.clip(top - rng.integers(0, 11, size), 0, 254).astype(np.uint32)
    near = (any_number & 0x807FFFFF) | (finite << 23)
    # An element whose exponent is `distance` below the largest has a tie if the bits below its
    # integer are a one followed by zeros.
    distance = np.clip(top - finite.astype(np.int64), 0, 8)
    half = np.left_shift(1, 16 + distance)
    tie = np.where(distance < 7, rng.integers(0, 128, size) << (17 + distance), 0)
    tie = ((tie | half) + rng.integers(-1, 2, size)) & 0x7FFFFF
    ties = (near & 0xFF800000) | tie.astype(np.uint32)
    bf16 = near & 0xFFFF0000
    edges = rng.choice(EDGES[np.abs(EDGES.view(np.float32)) < np.inf], size)
    special = np.where(rng.random(size) < 0.03, rng.choice(EDGES, size), near)
    zeros = rng.choice(EDGES[:6], size)
    alone = np.where(rng.random(size) < 0.05, near, zeros)
    kinds = np.stack([any_number, near, ties, ties, bf16, edges, special, zeros, alone])
    chosen: NDArray[np.uint32] = kinds[rng.integers(0, len(kinds), count), np.arange(count)]
    return chosen


def _inputs(blocks: NDArray[np.uint32], second: Sequence[int] = ()) -> dict[str, list[int]]:
    """Values of the input ports, from blocks or halves of blocks."""
    size = blocks.shape[1]
    inputs = {f"i__{index}": (blocks[:, index] >> 16).tolist() for index in range(size)}
    more = (blocks & 0xFFFF) != 0
    inputs["more"] = (more << np.arange(size)).sum(axis=1).tolist()
    return inputs | ({"second": list(second)} if second else {})


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=IN_HALVES)
async def quantises(dut: Any) -> None:
    """Elements and codes of the quantiser equal the model's."""
    blocks = random_blocks(np.random.default_rng(cocotb.RANDOM_SEED), NUM_BLOCKS)
    elements, codes = mx.quantise(blocks.view(np.float32))
    await start(dut)
    outputs = ["code", *(f"o__{index}" for index in range(MX_BLOCK))]
    rng = random.Random(cocotb.RANDOM_SEED)
    results = np.array(await run_pipeline(dut, _inputs(blocks), outputs, mx.QUANTISE_CYCLES, rng))
    assert_same_bits(results[:, 0], codes, {"block": range(NUM_BLOCKS)})
    for index in range(MX_BLOCK):
        column = {"element": blocks[:, index].tolist(), "code": codes.tolist()}
        assert_same_bits(results[:, index + 1], elements[:, index].view(np.uint8), column)


@cocotb.test(timeout_time=2, timeout_unit="ms", skip=not IN_HALVES)
async def quantises_halves(dut: Any) -> None:
    """Consecutive halves of blocks give the same results as the whole blocks."""
    blocks = random_blocks(np.random.default_rng(cocotb.RANDOM_SEED), NUM_BLOCKS)
    elements, codes = mx.quantise(blocks.view(np.float32))
    halves, half = blocks.reshape(2 * NUM_BLOCKS, -1), MX_BLOCK // 2
    await start(dut)
    inputs = _inputs(halves, [0, 1] * NUM_BLOCKS)
    outputs = ["code", *(f"o__{index}" for index in range(half))]
    rng = random.Random(cocotb.RANDOM_SEED)
    results = np.array(await run_pipeline(dut, inputs, outputs, mx.HALVES_CYCLES, rng))
    assert_same_bits(results[:, 0], codes.repeat(2), {"half": range(2 * NUM_BLOCKS)})
    wanted = elements.view(np.uint8).reshape(halves.shape)
    for index in range(half):
        column = {"element": halves[:, index].tolist(), "code": codes.repeat(2).tolist()}
        assert_same_bits(results[:, index + 1], wanted[:, index], column)
