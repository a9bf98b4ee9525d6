"""The function unit: model against FP64, gateware against model."""

import hashlib
import re
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from fpgapipe.hw.hls_models.numerics import function as model
from fpgapipe.hw.hls_models.numerics.function import Function, apply, compute
from fpgapipe.hw.rtl.arith.function import FunctionUnit
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog
from fpgapipe.sim_tb.testbenches.tb_function import operands

NAN = 0x7FC00000
INF = 0x7F800000
NEGATIVE = 0x80000000
LEAST_NORMAL = 2.0**-126
OVERFLOW = 2.0**128 * (1 - 2.0**-25)

# Largest errors, in units of the last place of the exact result; docs/vector.md has them.
ULPS = {
    Function.RECIPROCAL: 0.84,
    Function.RSQRT: 0.68,
    Function.SQRT: 0.80,
    Function.EXP: 0.77,
    Function.LOG: 0.72,
    Function.TANH: 1.0,
    Function.SIGMOID: 1.49,
}

POSITIVE_ONLY = (Function.RSQRT, Function.SQRT, Function.LOG)


def sigmoid(x):
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1) / (1 + power)


REFERENCES = {
    Function.RECIPROCAL: lambda x: 1 / x,
    Function.RSQRT: lambda x: 1 / np.sqrt(x),
    Function.SQRT: np.sqrt,
    Function.EXP: np.exp,
    Function.LOG: np.log,
    Function.TANH: np.tanh,
    Function.SIGMOID: sigmoid,
}

# Biased exponents and signs beyond which results do not change, or for the first three only by a
# power of two.
RANGES = {
    Function.RECIPROCAL: (range(127, 128), (0,)),
    Function.RSQRT: (range(127, 129), (0,)),
    Function.SQRT: (range(127, 129), (0,)),
    Function.EXP: (range(98, 135), (0, 1)),
    Function.LOG: (range(1, 255), (0,)),
    Function.TANH: (range(112, 134), (0,)),
    Function.SIGMOID: (range(98, 135), (0, 1)),
}


def floats(*bits):
    return np.array(bits, dtype=np.uint32).view(np.float32)


def patterns(sign, exponents, fractions):
    """Bits of all combinations."""
    return (
        np.asarray(exponents, np.uint32)[:, None] << np.uint32(23)
        | np.asarray(fractions, np.uint32)
        | np.uint32(sign << 31)
    ).ravel()


def largest_error(function, bits):
    """Largest error, in units of the last place, of normal results of normal operands."""
    found = compute(function, bits).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore", divide="ignore"):
        exact = REFERENCES[function](bits.view(np.float32).astype(np.float64))
    magnitude = np.abs(exact)
    # Next to the ends of the range the result may be on the other side.
    low, high = magnitude < LEAST_NORMAL, magnitude >= OVERFLOW
    edge_low = magnitude < LEAST_NORMAL * (1 + 2.0**-22)
    edge_high = magnitude >= 2.0**128 * (1 - 2.0**-22)
    assert (np.abs(found[low & edge_low]) <= LEAST_NORMAL).all()
    assert (found[magnitude < LEAST_NORMAL * (1 - 2.0**-22)] == 0).all()
    assert np.isinf(found[magnitude >= 2.0**128 * (1 + 2.0**-22)]).all()
    inside = ~(edge_low | edge_high | (magnitude == 0))
    exponent = (exact[inside].view(np.int64) >> 52 & 2047) - 23
    ulp = (exponent << 52).view(np.float64)
    errors = np.abs(found[inside] - exact[inside]) / ulp
    assert high.any() or np.isfinite(found).all()
    return float(errors.max(initial=0.0))


@pytest.mark.parametrize(
    ("function", "operand", "wanted"),
    [
        (Function.RECIPROCAL, 0x00000000, INF),
        (Function.RECIPROCAL, 0x807FFFFF, NEGATIVE | INF),  # a subnormal operand is zero
        (Function.RECIPROCAL, INF, 0),
        (Function.RECIPROCAL, NEGATIVE | INF, NEGATIVE),
        (Function.RECIPROCAL, 0x40400000, 0x3EAAAAAB),  # 1/3
        (Function.RECIPROCAL, 0xFE800000, 0x80800000),  # -2**126: the least normal number
        (Function.RECIPROCAL, 0xFE800001, NEGATIVE),  # less than that
        (Function.RECIPROCAL, 0x7F000000, 0),
        (Function.RECIPROCAL, 0x00800000, 0x7E800000),
        (Function.RSQRT, 0x00000001, INF),
        (Function.RSQRT, NEGATIVE, NEGATIVE | INF),
        (Function.RSQRT, INF, 0),
        (Function.RSQRT, NEGATIVE | INF, NAN),
        (Function.RSQRT, 0xBF800000, NAN),
        (Function.RSQRT, 0x40800000, 0x3F000000),  # 4: 1/2
        (Function.RSQRT, 0x00800000, 0x5F000000),  # 2**-126: 2**63
        (Function.SQRT, 0x00000000, 0),
        (Function.SQRT, 0x80000001, NEGATIVE),
        (Function.SQRT, INF, INF),
        (Function.SQRT, 0x80800000, NAN),
        (Function.SQRT, 0x40000000, 0x3FB504F3),  # 2
        (Function.SQRT, 0x00800000, 0x20000000),
        (Function.EXP, NEGATIVE, 0x3F800000),
        (Function.EXP, 0x3F800000, 0x402DF854),  # e
        (Function.EXP, INF, INF),
        (Function.EXP, NEGATIVE | INF, 0),
        (Function.EXP, 0x42B17217, 0x7F7FFF84),  # 88.72283, the largest that does not overflow
        (Function.EXP, 0x42B17218, INF),
        (Function.EXP, 0xC2AEAC50, 0x00800000 - 0x00800000),  # -87.33655: below 2**-126
        (Function.EXP, 0xC2AEAC4F, 0x00800026),
        (Function.LOG, 0x3F800000, 0),
        (Function.LOG, 0x007FFFFF, NEGATIVE | INF),
        (Function.LOG, NEGATIVE, NEGATIVE | INF),
        (Function.LOG, INF, INF),
        (Function.LOG, 0xBF800000, NAN),
        (Function.LOG, 0x3F800001, 0x33FFFFFF),  # 1 + 2**-23: 2**-23 - 2**-47
        (Function.LOG, 0x3F7FFFFF, 0xB3800000),  # 1 - 2**-24: -2**-24 - 2**-49
        (Function.LOG, 0x40000000, 0x3F317218),  # log(2)
        (Function.TANH, 0x00000000, 0),
        (Function.TANH, NEGATIVE, NEGATIVE),
        (Function.TANH, 0x00800001, 0x00800001),  # the smallest are their own
        (Function.TANH, 0xB9000001, 0xB9000001),  # -2**-13
        (Function.TANH, 0xC1200000, 0xBF800000),  # -10
        (Function.TANH, INF, 0x3F800000),
        (Function.TANH, NEGATIVE | INF, 0xBF800000),
        (Function.SIGMOID, 0x00000000, 0x3F000000),
        (Function.SIGMOID, NEGATIVE, 0x3F000000),
        (Function.SIGMOID, INF, 0x3F800000),
        (Function.SIGMOID, NEGATIVE | INF, 0),
        (Function.SIGMOID, 0x41C80000, 0x3F800000),  # 25
    ],
)
def test_meets_known_values(function, operand, wanted):
    found = compute(function, np.array(operand, np.uint32))
    assert hex(found) == hex(wanted)


@pytest.mark.parametrize("function", Function)
def test_nan_gives_the_one_nan(function):
    bits = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    assert set(compute(function, bits).tolist()) == {NAN}


def test_powers_of_two_and_squares_are_exact():
    power = np.arange(-126, 127)
    x = np.ldexp(np.float32(1), power).astype(np.float32)
    np.testing.assert_array_equal(apply(Function.RECIPROCAL, x), np.ldexp(1.0, -power))
    np.testing.assert_array_equal(apply(Function.RSQRT, x[::2]), np.ldexp(1.0, -power[::2] // 2))
    roots = np.arange(1, 4097).astype(np.float32)
    for scale in (1.0, 4.0**-40, 4.0**30):
        np.testing.assert_array_equal(
            apply(Function.SQRT, (roots * roots * scale).astype(np.float32)), roots * scale**0.5
        )


def test_tanh_is_odd():
    bits = operands(Function.TANH, np.random.default_rng(1), 100_000) & 0x7FFFFFFF
    bits = bits[bits <= INF]
    np.testing.assert_array_equal(
        compute(Function.TANH, bits | np.uint32(NEGATIVE)), compute(Function.TANH, bits) | NEGATIVE
    )


@pytest.mark.parametrize("function", Function)
def test_errors_are_within_their_bounds(function):
    # Both ends of the 128 narrowest segments, all exponents; and any mantissas.
    rng = np.random.default_rng(int(function))
    ends = (np.arange(128)[:, None] << 16 | np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF])).ravel()
    for sign in (0,) if function in POSITIVE_ONLY else (0, 1):
        fractions = np.concatenate([ends, rng.integers(0, 1 << 23, 800)])
        assert largest_error(function, patterns(sign, range(1, 255), fractions)) <= ULPS[function]
    exponents, signs = RANGES[function]
    for sign in signs:
        fractions = rng.integers(0, 1 << 23, 2_000_000 // len(exponents) // len(signs))
        assert largest_error(function, patterns(sign, exponents, fractions)) <= ULPS[function]


def test_tiny_operands_give_the_first_term():
    # Those below what test_errors_of_all_operands_are_within_their_bounds tries.
    fractions = np.random.default_rng(3).integers(0, 1 << 23, 4_000)
    for sign in (0, 1):
        bits = patterns(sign, range(1, 98), fractions)
        assert set(compute(Function.EXP, bits).tolist()) == {0x3F800000}
        assert set(compute(Function.SIGMOID, bits).tolist()) == {0x3F000000}
        bits = patterns(sign, range(1, 112), fractions)
        np.testing.assert_array_equal(compute(Function.TANH, bits), bits)


@pytest.mark.slow
@pytest.mark.parametrize("function", Function)
def test_errors_of_all_operands_are_within_their_bounds(function):
    exponents, signs = RANGES[function]
    part = np.arange(1 << 16)
    for sign in signs:
        for exponent in exponents:
            for begin in range(0, 1 << 23, 1 << 16):
                bits = patterns(sign, [exponent], part + begin)
                assert largest_error(function, bits) <= ULPS[function]


@pytest.mark.parametrize(
    ("function", "by_torch"),
    [
        (Function.RECIPROCAL, torch.reciprocal),
        (Function.RSQRT, torch.rsqrt),
        (Function.SQRT, torch.sqrt),
        (Function.EXP, torch.exp),
        (Function.LOG, torch.log),
        (Function.TANH, torch.tanh),
        (Function.SIGMOID, torch.sigmoid),
    ],
)
def test_agrees_with_torch(function, by_torch):
    x = np.random.default_rng(2).normal(0, 4, 100_000).astype(np.float32)
    x = np.abs(x) if function in POSITIVE_ONLY else x
    wanted = by_torch(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(apply(function, x), wanted, rtol=5e-7, atol=0)


def test_constants_are_rounded():
    with localcontext(prec=50):
        ln_2 = Decimal(2).ln()
        assert round(2**33 / ln_2) == model.LOG2_E
        assert round(2**34 * ln_2) == model.LN_2


def test_table_is_the_same_everywhere():
    # The bits of results hang on it: another hash is another version of the device.
    words = model.table_words()
    assert len(words) == model.TABLE_ROWS
    assert max(words) < 1 << model.ROW_BITS
    packed = b"".join(word.to_bytes(9, "little") for word in words)
    assert hashlib.sha256(packed).hexdigest() == (
        "fbebc161504de7dcc70494e987e750eb541ffea753033cf3bf228967925cde5d"
    )


def test_keeps_shapes():
    bits = np.full((3, 5), 0x40800000, np.uint32).T
    found = compute(Function.SQRT, bits)
    assert found.shape == (5, 3)
    assert (found == 0x40000000).all()
    np.testing.assert_array_equal(apply(Function.SQRT, np.float32(4)), np.float32(2))
    assert compute(Function.EXP, bits[:0]).size == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: apply(Function.EXP, np.zeros(2)), TypeError,
         "operands of functions must be float32, not float64"),
        (lambda: compute(Function.EXP, np.zeros(2, np.int32)), TypeError,
         "bits of operands must be uint32, not int32"),
        (lambda: compute(0, np.zeros(2, np.uint32)), ValueError, "0 is not a valid Function"),
    ],
)  # fmt: skip
def test_refuses(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


def test_latency_is_that_of_the_model():
    assert FunctionUnit.latency_cycles == model.FUNCTION_CYCLES


@pytest.mark.sim
def test_gateware_matches_model(tmp_path):
    result = simulate(FunctionUnit(), "tb_function", tmp_path)
    assert result.tests == ("computes", "reaches_every_row")


# A fault in the Verilog, and the tests that see it. Each takes a build.
BOTH = ["computes", "reaches_every_row"]
FAULTS = {
    "an element has its neighbour's function": (r"advance \? marks2 :", "advance ? marks1 :", BOTH),
    "a row of the table is wrong": (
        r"(\[950\] = 70'h\w+)\w(\w{4};)",
        r"\g<1>0\g<2>",
        BOTH,
    ),
    "a register moves on in a pause": (r"advance \? total :", "1'h1 ? total :", BOTH),
    "ties are rounded up": (r"value\[11\] \|", "1'h1 |", BOTH),
    "the sigmoid's rows go on": (
        r"argument\[35:28\] < 4'hd",
        "argument[35:28] < 4'he",
        ["computes"],
    ),
    "the square comes too early": (
        r"argument4\[35:28\] >= 4'hd",
        "argument4[35:28] >= 4'hc",
        BOTH,
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.slow] if index else [])
        for index, fault in enumerate(FAULTS)
    ],
)
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, tests = FAULTS[fault]
    faulty, count = re.subn(pattern, replacement, verilog_of(FunctionUnit()))
    assert count
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_function", tmp_path, seed=1)
    assert list(caught.value.failures) == tests
