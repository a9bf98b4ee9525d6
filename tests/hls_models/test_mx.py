"""MXINT8: the model against numbers worked by hand, the gateware against the model."""

import re
from fractions import Fraction

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.rtl.arith.mx import BlockQuantiser, HalfQuantiser
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog
from fpgapipe.sim_tb.testbenches.tb_mx import random_blocks


def block(*values):
    """A block with zeros behind the values."""
    return np.array([*values, *[0] * (MX_BLOCK - len(values))], dtype=np.float32)


@pytest.mark.parametrize(
    ("values", "elements", "code"),
    [
        ([], [], 0),
        ([1], [64], 127),
        ([-1, 1.5, 0.25], [-64, 96, 16], 127),
        # Steps of 1/64: ties at odd multiples of 1/128.
        ([1, 1 / 128, 3 / 128, -1 / 128, -3 / 128, 5 / 128], [64, 0, 2, 0, -2, 2], 127),
        ([1, 1.0001 / 128, -0.9999 / 128], [64, 1, 0], 127),
        # 127.5 steps are 128, which saturates.
        ([1.9921875, -1.9999, 1.984375], [127, -127, 127], 127),
        ([2.0**-126, 2.0**-127], [64, 0], 1),  # a subnormal is zero
        ([2.0**-140, -(2.0**-149)], [], 0),
        ([-(2.0**127)], [-64], 254),
        ([np.inf, 1], [], 255),
        ([1, np.nan], [], 255),
        ([-0.0], [], 0),
        ([256, 2, 1.9999, 2.0001], [64, 0, 0, 1], 135),
    ],
)
def test_quantises_as_worked_by_hand(values, elements, code):
    found, found_code = mx.quantise(block(*values))
    assert found_code == code
    assert found.tolist() == [*elements, *[0] * (MX_BLOCK - len(elements))]
    assert found.dtype == np.int8


def test_quantises_as_fractions_do():
    blocks = random_blocks(np.random.default_rng(1), 400).view(np.float32)
    elements, codes = mx.quantise(blocks)
    assert elements.shape == blocks.shape
    assert codes.shape == (400,)
    for values, found, code in zip(blocks, elements, codes, strict=True):
        if not np.isfinite(values).all():
            assert code == 255
            assert not found.any()
            continue
        exact = [Fraction(float(value)) if abs(value) >= 2.0**-126 else Fraction(0)
                 for value in values]  # fmt: skip
        scale = Fraction(2) ** (int(code) - 127)
        largest = max(abs(value) for value in exact)
        assert scale <= largest < 2 * scale if largest else code == 0
        wanted = [max(-127, min(127, round(value / scale * 64))) for value in exact]
        assert found.tolist() == wanted


def test_quantises_every_bf16_as_its_blocks_largest():
    bits = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    blocks = np.zeros((bits.size, MX_BLOCK), dtype=np.uint32)
    blocks[:, 5] = bits
    elements, codes = mx.quantise(blocks.view(np.float32))
    np.testing.assert_array_equal(codes, bits >> 23)
    # A BF16 has the 8 bits of an element and its rounding bit.
    significand = 128 + (bits >> 16 & 127)
    wanted = np.minimum(127, np.rint(significand / 2))
    normal = (codes > 0) & (codes < 255)
    np.testing.assert_array_equal(elements[:, 5], np.where(normal, wanted, 0))


def test_dequantises_what_was_quantised():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, MX_BLOCK)).astype(np.float32)
    elements, codes = mx.quantise(x)
    values = mx.dequantise(elements, codes)
    step = 2.0 ** (codes.astype(np.float64) - 127 - 6)
    # Half a step, or nearly one where 127.99 saturates.
    assert (np.abs(values - x) <= step[:, np.newaxis]).all()
    again, codes_again = mx.quantise(values.astype(np.float32))
    np.testing.assert_array_equal(again, elements)
    np.testing.assert_array_equal(codes_again, codes)


def test_a_block_of_nan_dequantises_to_nan():
    assert np.isnan(mx.dequantise(np.zeros(MX_BLOCK, np.int8), np.uint8(255))).all()


def test_dot_is_that_of_the_numbers():
    rng = np.random.default_rng(3)
    a, b = (mx.quantise(rng.normal(size=(200, MX_BLOCK)).astype(np.float32)) for _ in range(2))
    wanted = (mx.dequantise(*a) * mx.dequantise(*b)).sum(axis=-1)
    np.testing.assert_array_equal(mx.dot(*a, *b), wanted)


def test_dot_of_the_largest_elements():
    elements, code = np.full(MX_BLOCK, -127, dtype=np.int8), np.uint8(127)
    assert mx.dot(elements, code, elements, code) == 32 * 127**2 / 4096


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            np.zeros((2, 31), np.float32),
            ValueError,
            "blocks must have shape (..., 32), not (2, 31)",
        ),
        (np.zeros((2, 32)), TypeError, "operands of FP32 arithmetic must be float32, not float64"),
    ],
)
def test_refuses(x, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        mx.quantise(x)


def test_unpacks_what_was_packed():
    blocks = random_blocks(np.random.default_rng(4), 400).view(np.float32)
    elements, codes = mx.quantise(blocks)
    packed = mx.pack(blocks.reshape(20, 20, MX_BLOCK))
    assert packed.shape == (20, 20, 34)
    np.testing.assert_array_equal(packed[..., :MX_BLOCK].view(np.int8).reshape(400, -1), elements)
    np.testing.assert_array_equal(packed[..., MX_BLOCK].reshape(-1), codes)
    assert not packed[..., MX_BLOCK + 1].any()
    exact = mx.dequantise(elements, codes)
    found = mx.unpack(packed).reshape(400, -1)
    normal = np.abs(exact) >= 2.0**-126
    np.testing.assert_array_equal(found, np.where(normal | np.isnan(exact), exact, 0))
    again = mx.pack(found)
    # What is below the least normal number does not come back.
    large = codes > 7
    np.testing.assert_array_equal(again[large], packed.reshape(400, -1)[large])


@pytest.mark.parametrize(
    ("element", "code", "bits"),
    [
        (64, 127, 0x3F800000),
        (-1, 127, 0xBC800000),
        (0, 127, 0),
        (0, 255, 0x7FC00000),
        (-5, 255, 0x7FC00000),
        (-128, 254, 0xFF800000),  # no quantiser makes it
        (127, 254, 0x7F7E0000),
        (64, 1, 0x00800000),
        (63, 1, 0),
        (-63, 1, 0x80000000),
        (-128, 0, 0x80800000),
        (127, 0, 0),
    ],
)
def test_unpacks_as_worked_by_hand(element, code, bits):
    packed = np.zeros(mx.BLOCK_BYTES, np.uint8)
    packed[3], packed[MX_BLOCK], packed[MX_BLOCK + 1] = element % 256, code, 99
    found = mx.unpack(packed)
    assert found.shape == (MX_BLOCK,)
    assert found[3].view(np.uint32) == bits


QUANTISERS = {
    "a block a cycle": (BlockQuantiser, False, "quantises"),
    "half a block a cycle": (HalfQuantiser, True, "quantises_halves"),
}


@pytest.mark.sim
@pytest.mark.parametrize("kind", QUANTISERS)
def test_gateware_matches_model(kind, tmp_path):
    make, in_halves, test = QUANTISERS[kind]
    result = simulate(make(), "tb_mx", tmp_path, parameters={"in_halves": in_halves})
    assert result.tests == (test,)


def test_latencies_are_those_of_the_model():
    assert BlockQuantiser.latency_cycles == mx.QUANTISE_CYCLES
    assert HalfQuantiser.latency_cycles == mx.HALVES_CYCLES


# A fault in the Verilog of a quantiser.
FAULT_IN_HALVES = "has the scale of the second half alone"
FAULTS = {
    "drops what it shifts out": (r"more\[0\]", "1'h0"),
    "rounds ties up": (r"lost4_0 \| kept4_0\[1\]", "1'h1"),
    "does not saturate": (r"full0 = [^;]*;", "full0 = 1'h0;"),
    "shifts by 3 bits of a distance": (r"\| distance0\[7:3\]", "1'h0"),
    "has elements beside a NaN": (r"assign nan = [^;]*;", "assign nan = 1'h0;"),
    "reads subnormals": (r"~ word2_0\[8\]", "1'h0"),
    FAULT_IN_HALVES: (r"exponent2 > exponent3", "1'h1"),
    "overlooks an element": (r"larger_a15 = [^;]*;", "larger_a15 = i__30[14:7];"),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement = FAULTS[fault]
    make, in_halves, test = list(QUANTISERS.values())[fault == FAULT_IN_HALVES]
    faulty, count = re.subn(pattern, replacement, verilog_of(make()), count=1)
    assert count == 1
    parameters = {"in_halves": in_halves}
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_mx", tmp_path, parameters=parameters, seed=1)
    assert list(caught.value.failures) == [test]
