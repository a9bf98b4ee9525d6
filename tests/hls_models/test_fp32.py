"""FP32 arithmetic: models against exact references, the gateware against the models."""

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from core_cases import some_of

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.fp32 import SumSpec
from fpgapipe.hw.rtl.arith.fp32 import Bf16Rounder, Fp32Adder, Fp32Multiplier, SumConverter
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog
from fpgapipe.sim_tb.testbenches.tb_fp32 import (
    EDGES,
    pairs_to_add,
    pairs_to_multiply,
    random_operands,
)

NAN = 0x7FC00000
LEAST_NORMAL = Fraction(1, 2**126)


def floats(*bits):
    return np.array(bits, dtype=np.uint32).view(np.float32)


def bits_of(values):
    return [hex(value) for value in np.atleast_1d(values).view(np.uint32).tolist()]


def rounded(exact, sign):
    """FP32 bits of an exact number, by integer arithmetic; `sign` is that of a zero."""
    sign = sign if exact == 0 else int(exact < 0)
    magnitude = abs(exact)
    if magnitude:
        # 2**23 <= magnitude / 2**place < 2**24
        place = magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 24
        while magnitude >= Fraction(2) ** (place + 24):
            place += 1
        # round() of a fraction goes to even.
        magnitude = round(magnitude / Fraction(2) ** place) * Fraction(2) ** place
    if magnitude < LEAST_NORMAL:
        return sign << 31
    if magnitude >= 2**128:
        return sign << 31 | 0x7F800000
    return sign << 31 | int(np.float32(float(magnitude)).view(np.uint32))


def reference(a, b, operation):
    """Bits of a sum or a product, by fractions."""
    if np.isnan(a) or np.isnan(b):
        return NAN
    a, b = (x if abs(x) >= 2.0**-126 else np.copysign(0.0, x) for x in (float(a), float(b)))
    signs = [int(np.signbit(x)) for x in (a, b)]
    sign = signs[0] & signs[1] if operation == "add" else signs[0] ^ signs[1]
    if np.isinf(a) or np.isinf(b):
        if operation == "add":
            if np.isinf(a) and np.isinf(b) and signs[0] != signs[1]:
                return NAN
            sign = signs[0] if np.isinf(a) else signs[1]
        elif a == 0 or b == 0:
            return NAN
        return sign << 31 | 0x7F800000
    a, b = Fraction(a), Fraction(b)
    return rounded(a + b if operation == "add" else a * b, sign)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (0x3F800000, 0x40000000, 0x40400000),  # 1 + 2
        (0x3F800000, 0xBF800000, 0x00000000),  # 1 - 1 = +0
        (0x80000000, 0x80000000, 0x80000000),  # -0 + -0 = -0
        (0x80000000, 0x00000000, 0x00000000),  # -0 + 0 = +0
        (0x3F800000, 0x33800000, 0x3F800000),  # 1 + 2**-24: a tie, 1 is even
        (0x3F800001, 0x33800000, 0x3F800002),  # a tie, up to even
        (0x3F800000, 0x33800001, 0x3F800001),  # a little more than a tie
        (0x00800000, 0x80800001, 0x80000000),  # 2**-126 less a little more: tiny, negative
        (0x00800001, 0x007FFFFF, 0x00800001),  # a subnormal operand is zero
        (0x807FFFFF, 0x80000001, 0x80000000),
        (0x7F7FFFFF, 0x73000000, 0x7F800000),  # the largest and half a unit of it: infinity
        (0x7F7FFFFF, 0x72FFFFFF, 0x7F7FFFFF),
        (0x7F800000, 0xFF800000, NAN),
        (0xFF800000, 0x7F7FFFFF, 0xFF800000),
        (0xFFC12345, 0x3F800000, NAN),
    ],
)
def test_adds_numbers_worked_by_hand(a, b, wanted):
    for first, second in ((a, b), (b, a)):
        assert bits_of(fp32.add(floats(first), floats(second))) == [hex(wanted)]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (0x40400000, 0xC0000000, 0xC0C00000),  # 3 * -2
        (0x3F800001, 0x3F800001, 0x3F800002),  # 1 + 2**-22 + 2**-46
        (0x3F800001, 0x3FC00000, 0x3FC00002),  # 1.5 + 1.5 * 2**-23: a tie, up to even
        (0x3F800003, 0x3FC00000, 0x3FC00004),  # 1.5 + 4.5 * 2**-23: a tie, down to even
        (0x00800000, 0x3F000000, 0x00000000),  # 2**-127
        (0x00800000, 0xBF7FFFFF, 0x80000000),  # 2**-126 - 2**-150: 24 bits hold it, so it is tiny
        (0x00FFFFFF, 0x3F000000, 0x00000000),  # the same; IEEE 754 has 2**-126, by a tie
        (0x00FFFFFE, 0x3F000001, 0x00800000),  # 2**-126 (1 - 2**-46): rounds up to 2**-126
        (0x7F000000, 0x40000000, 0x7F800000),
        (0x7F800000, 0x80000000, NAN),
        (0x7F800000, 0x00000001, NAN),  # a subnormal operand is zero
        (0xFF800000, 0x3F800000, 0xFF800000),
        (0x7F800001, 0x7F800000, NAN),
    ],
)
def test_multiplies_numbers_worked_by_hand(a, b, wanted):
    for first, second in ((a, b), (b, a)):
        assert bits_of(fp32.multiply(floats(first), floats(second))) == [hex(wanted)]


@pytest.mark.parametrize(
    ("operation", "pairs"), [("add", pairs_to_add), ("multiply", pairs_to_multiply)]
)
def test_arithmetic_equals_fractions(operation, pairs):
    a, b = pairs(np.random.default_rng(1))
    a, b = a[:8000].view(np.float32), b[:8000].view(np.float32)
    wanted = [reference(x, y, operation) for x, y in zip(a, b, strict=True)]
    found = getattr(fp32, operation)(a, b).view(np.uint32)
    np.testing.assert_array_equal(found, np.array(wanted, dtype=np.uint32))


def test_arithmetic_equals_ieee_754_where_numbers_are_normal():
    rng = np.random.default_rng(2)
    a, b = ((rng.integers(90, 160, 100_000) << 23).astype(np.uint32) for _ in range(2))
    a, b = ((x | rng.integers(0, 1 << 23, x.size).astype(np.uint32)).view(np.float32)
            for x in (a, b))  # fmt: skip
    np.testing.assert_array_equal(fp32.add(a, -b), a - b)
    np.testing.assert_array_equal(fp32.multiply(a, b), a * b)


def test_flush_keeps_all_but_subnormals_and_nans():
    found = fp32.flush(floats(0x80000001, 0x007FFFFF, 0x00800000, 0xFF800001, 0xFF800000))
    assert bits_of(found) == bits_of(floats(0x80000000, 0, 0x00800000, NAN, 0xFF800000))


def test_flush_does_not_write_to_its_operand():
    operand = floats(1)
    fp32.flush(operand)
    assert bits_of(operand) == ["0x1"]


def test_sums_convert_as_worked_by_hand():
    # The code of 2**0 is 127; a sum counts steps of 2**-12.
    cases = [
        (1 << 12, 127, 127, 0x3F800000),  # 1
        (-3, 127, 127, 0xBA400000),  # -3 * 2**-12
        (0, 127, 127, 0x00000000),
        (-1, 254, 254, 0xFF800000),  # -2**242
        (1 << 12, 254, 127, 0x7F000000),  # 2**127
        (1 << 12, 254, 128, 0x7F800000),  # 2**128
        (1 << 12, 0, 128, 0x00800000),  # 2**-126
        (-4095, 0, 128, 0x80000000),  # a little less
        (0, 0, 20, 0x00000000),
        (5, 255, 0, NAN),
        (0, 3, 255, NAN),
    ]
    sums, code_a, code_b, wanted = zip(*cases, strict=True)
    found = fp32.from_sum(np.array(sums), np.array(code_a), np.array(code_b))
    assert bits_of(found) == [hex(bits) for bits in wanted]


def test_sums_are_exact_or_out_of_range():
    rng = np.random.default_rng(3)
    sums = rng.integers(-(1 << 23), 1 << 23, 4000) >> rng.integers(0, 24, 4000)
    code_a, code_b = rng.integers(0, 256, 4000), rng.integers(0, 256, 4000)
    found = fp32.from_sum(sums, code_a, code_b).view(np.uint32)
    for total, a, b, bits in zip(sums, code_a, code_b, found, strict=True):
        exact = Fraction(int(total)) * Fraction(2) ** (int(a) + int(b) - 254 - 12)
        assert bits == (NAN if 255 in (a, b) else rounded(exact, 0))


def test_sums_broadcast():
    found = fp32.from_sum(np.full((2, 3), 4096), np.uint8(127), np.array([[126], [128]], np.uint8))
    np.testing.assert_array_equal(found, [[0.5] * 3, [2] * 3])


def test_bf16_equals_torch_and_ml_dtypes():
    bits = random_operands(np.random.default_rng(4), 200_000)
    # Every upper half, with ties and their neighbours below it.
    halves = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    bits = np.concatenate(
        [bits, EDGES, *(halves | np.uint32(x) for x in (0, 0x7FFF, 0x8000, 0x8001))]
    )
    values = bits.view(np.float32)
    found = fp32.to_bf16(values)
    normal = ((bits >> 23) & 255 != 0) & ~np.isnan(values)
    by_torch = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    np.testing.assert_array_equal(found[normal], by_torch.view(np.uint16)[normal])
    by_ml_dtypes = values[normal].astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(found[normal], by_ml_dtypes)
    assert set(found[np.isnan(values)].tolist()) == {0x7FC0}
    zero = (bits >> 23) & 255 == 0
    np.testing.assert_array_equal(found[zero], (bits[zero] >> 16) & 0x8000)


def test_every_bf16_number_survives_fp32():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = fp32.from_bf16(bits)
    kept = ((bits >> 7) & 255 != 0) & ~np.isnan(values)
    np.testing.assert_array_equal(fp32.to_bf16(values)[kept], bits[kept])
    assert bits_of(fp32.from_bf16(np.array([0xC040], np.uint16))) == ["0xc0400000"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fp32.add(np.zeros(2), np.zeros(2, np.float32)), TypeError,
         "operands of FP32 arithmetic must be float32, not float64"),
        (lambda: fp32.from_bf16(np.zeros(2, np.int32)), TypeError,
         "bits of BF16 must be uint16, not int32"),
        (lambda: fp32.from_sum(np.zeros(2), np.zeros(2, int), np.zeros(2, int)), TypeError,
         "partial sums must be integers, not float64"),
        (lambda: fp32.from_sum(np.array([1 << 23]), np.array([0]), np.array([0])), ValueError,
         "partial sums must be in -8388608..8388607, not 8388608"),
        (lambda: fp32.from_sum(np.array([1]), np.array([0]), np.array([256])), ValueError,
         "codes of partial sums must be in 0..255, not 256"),
        (lambda: SumSpec(25), ValueError,
         "partial sums must have 2..24 bits (FP32 holds those exactly), not 25"),
    ],
)  # fmt: skip
def test_refuses(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


BLOCKS = {
    "adder": (Fp32Adder, "adds", {}),
    "multiplier": (Fp32Multiplier, "multiplies", {}),
    "rounder": (Bf16Rounder, "rounds", {}),
    "converter": (lambda: SumConverter(SumSpec(21)), "converts", {"acc_bits": 21}),
    "widest converter": (lambda: SumConverter(SumSpec(24)), "converts", {"acc_bits": 24}),
    "narrowest converter": (lambda: SumConverter(SumSpec(2)), "converts", {"acc_bits": 2}),
}


def parameters(block):
    return {"block": block.split()[-1], **BLOCKS[block][2]}


@pytest.mark.sim
@pytest.mark.parametrize("block", BLOCKS)
def test_gateware_matches_model(block, tmp_path):
    make, test, _ = BLOCKS[block]
    result = simulate(make(), "tb_fp32", tmp_path, parameters=parameters(block))
    assert result.tests == (test,)


def test_latencies_are_those_of_the_model():
    latencies = [Fp32Adder, Fp32Multiplier, SumConverter, Bf16Rounder]
    assert [block.latency_cycles for block in latencies] == [
        fp32.ADD_CYCLES,
        fp32.MULTIPLY_CYCLES,
        fp32.FROM_SUM_CYCLES,
        fp32.TO_BF16_CYCLES,
    ]


# A fault in the Verilog of a block.
FAULTS = {
    "adder drops what it shifts out": ("adder", r"assign lost = [^;]*;", "assign lost = 1'h0;"),
    "adder rounds ties up": ("adder", r"= word\[4\] \|", "= 1'h1 |"),
    "adder shifts by 5 bits of a distance": ("adder", r"\| distance\[7:5\]", "1'h0"),
    "adder has a negative zero": ("adder", r"context3\[9\] & \S+ ;", "1'h0;"),
    "adder has an exponent for what is tiny": (
        "adder",
        r"\$signed\(exponent4\) <= \$signed\(1'h0\)",
        "1'h0",
    ),
    "adder subtracts infinities": ("adder", r"context1\[9\] & \S+ ;", "1'h0;"),
    "multiplier drops the last bits": ("multiplier", r"\| product3\[21:0\]", "1'h0"),
    "multiplier flushes before it rounds": (
        "multiplier",
        r"\$signed\(rounded\) <",
        "$signed({ exponent4, 23'h7fffff }) <",
    ),
    "multiplier has no NaN of zero and infinity": ("multiplier", r"infinite & zero", "1'h0"),
    "multiplier moves on in a pause": ("multiplier", r"advance \? product ", "1'h1 ? product "),
    "rounder rounds ties up": ("rounder", r"i\[16\] \|", "1'h1 |"),
    "rounder makes an infinity of a NaN": ("rounder", r"i\[30:0\] > 31'h7f800000", "1'h0"),
    "converter wraps infinities": (
        "converter",
        r"assign infinite = [^;]*;",
        "assign infinite = 1'h0;",
    ),
    "converter takes the least sum for zero": (
        "converter",
        r"advance \? \{ magnitude,",
        "advance ? { 1'h0, magnitude[19:0],",
    ),
    "converter knows no NaN": ("converter", r"\{ nan, sum", "{ 1'h0, sum"),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    block, pattern, replacement = FAULTS[fault]
    make, test, _ = BLOCKS[block]
    faulty, count = re.subn(pattern, replacement, verilog_of(make()), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_fp32", tmp_path, parameters=parameters(block), seed=1)
    assert list(caught.value.failures) == [test]
