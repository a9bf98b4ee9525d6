"""The datapath of a GEMM engine: the model worked by hand, the gateware against the model."""

import re

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES, RESULT_CYCLES, DatapathSpec
from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = ("matches_model", "takes_predicted_cycles", "forgets_at_reset")
ONE = 133
"""Two codes that make an integer sum count as itself: 2**(133 + 133 - 254 - 12)."""


def codes(count, code=ONE):
    return np.full(count, code, np.uint8)


def int8(values):
    return np.array(values, np.int8)


def test_computes_a_product_worked_by_hand():
    spec = DatapathSpec(rows=2, cols=3, acc_depth=4)
    accumulators = np.full((4, 3), 1000, np.float32)
    # Two tiles are added up: columns (1, 4), (-2, 5), (3, -6), then all ones.
    a = int8([[10, 1], [0, -1], [1, 1], [2, 2]])
    b = int8([[1, 4], [-2, 5], [3, -6], [1, 1], [1, 1], [1, 1]])
    expected = [[14 + 2, -15 + 2, 24 + 2], [-4 + 4, -5 + 4, 6 + 4]]
    results = spec.compute(2, 2, 1, a, codes(4), b, codes(6), accumulators, acc_base=3)
    np.testing.assert_array_equal(results, expected)
    # The sums of the first tile wait in accumulators 3 and 0; those of the second come out.
    np.testing.assert_array_equal(
        accumulators, [[-4, -5, 6], [1000] * 3, [1000] * 3, [14, -15, 24]]
    )


def test_adds_to_what_the_accumulators_hold():
    spec = DatapathSpec(rows=1, cols=1, acc_depth=4)
    accumulators = np.array([[1], [2], [3], [4]], np.float32)
    a, b = int8([[1], [2], [3], [4]]), int8([[10], [20]])
    arguments = (2, 1, 2, a, codes(4), b, codes(2), accumulators)
    assert spec.compute(*arguments, first=False, last=False, acc_base=1, acc_step=2) is None
    np.testing.assert_array_equal(accumulators[:, 0], [1 + 80, 2 + 10, 3 + 20, 4 + 60])
    results = spec.compute(*arguments, first=False, last=True, acc_base=0, acc_step=0)
    np.testing.assert_array_equal(results[:, 0], [81 + 10, 12 + 20, 81 + 60, 12 + 80])
    np.testing.assert_array_equal(accumulators[:, 0], [81, 12, 23, 64])


def test_more_vectors_than_accumulators_come_round_again():
    spec = DatapathSpec(rows=1, cols=1, acc_depth=2)
    accumulators = np.zeros((2, 1), np.float32)
    a, b = int8([[1], [2], [3], [4], [5]]), int8([[1]])
    spec.compute(5, 1, 1, a, codes(5), b, codes(1), accumulators, first=False, last=False)
    np.testing.assert_array_equal(accumulators[:, 0], [1 + 3 + 5, 2 + 4])


@pytest.mark.parametrize(
    ("code_a", "code_b", "result"),
    [
        (ONE, ONE + 3, 8.0),
        (ONE, ONE - 3, 0.125),
        (254, 254, np.inf),
        (0, 0, 0.0),
        (255, ONE, np.nan),
        (0, 255, np.nan),
    ],
)
def test_codes_scale(code_a, code_b, result):
    spec = DatapathSpec(1, 1, 2)
    arguments = (int8([[1]]), codes(1, code_a), int8([[1]]), codes(1, code_b))
    np.testing.assert_array_equal(
        spec.compute(1, 1, 1, *arguments, np.zeros((2, 1), np.float32)), [[result]]
    )


def test_large_products_are_exact_before_the_additions():
    rng = np.random.default_rng(0)
    spec = DatapathSpec(32, 16)
    m, k, n = 300, 5, 3
    a = rng.integers(-128, 128, (n * k * m, 32)).astype(np.int8)
    b = rng.integers(-128, 128, (n * k * 16, 32)).astype(np.int8)
    a_codes = rng.integers(110, 140, len(a)).astype(np.uint8)
    b_codes = rng.integers(110, 140, len(b)).astype(np.uint8)
    accumulators = np.zeros((spec.acc_depth, 16), np.float32)
    results = spec.compute(m, k, n, a, a_codes, b, b_codes, accumulators)
    for column, vector in [(0, 0), (1, 17), (2, 299)]:
        total = np.zeros(16, np.float32)
        for step in range(k):
            tile = column * k + step
            at, columns = tile * m + vector, slice(tile * 16, (tile + 1) * 16)
            sums = b[columns].astype(np.int64) @ a[at].astype(np.int64)
            total = fp32.add(total, fp32.from_sum(sums, a_codes[at], b_codes[columns]))
        np.testing.assert_array_equal(results[column * m + vector], total)


def test_packed_cells_change_no_bit():
    rng = np.random.default_rng(0)
    plain, packed = (DatapathSpec(32, 8, 64, form) for form in Form)
    a, b = (rng.integers(-127, 128, (size, 32)).astype(np.int8) for size in (60, 16))
    arguments = (30, 2, 1, a, codes(60), b, codes(16))
    results = [spec.compute(*arguments, np.zeros((64, 8), np.float32)) for spec in (plain, packed)]
    np.testing.assert_array_equal(*results)
    # A cascade of 16 rows and 4 pairs, and the registers of an activation and of the cascades' sum.
    assert packed.latency_cycles == 16 + 4 + 1 + 1 + RESULT_CYCLES
    b[3, 5] = -128
    with pytest.raises(ValueError, match=r"^systolic weights must be in -127\.\.127"):
        packed.compute(*arguments, np.zeros((64, 8), np.float32))


def test_predicts_cycles_counted_by_hand():
    spec = DatapathSpec(rows=2, cols=3, acc_depth=16)
    assert (ACC_CYCLES, RESULT_CYCLES, spec.latency_cycles) == (8, 8, 13)
    # 3 columns, one cycle to take them over, a vector; 13 cycles later its result.
    assert spec.cycles(1, 1, 1) == 3 + 1 + 1 + 13
    assert spec.cycles(10, 1, 1) == 3 + 1 + 10 + 13
    assert spec.cycles(10, 4, 2) == 3 + 1 + 80 + 13
    # Short tiles wait for weights, or for the accumulators that they are added to; weights of the
    # next column of tiles are there by then.
    assert spec.cycles(1, 1, 4) == 3 + 1 + 3 * 3 + 1 + 13
    assert spec.cycles(1, 4, 1) == 3 + 1 + 3 * 8 + 1 + 13
    assert spec.cycles(1, 2, 3) == 3 + 1 + 3 * 8 + 2 * 1 + 1 + 13
    assert (spec.tile_cycles(1), spec.tile_cycles(9)) == (8, 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: DatapathSpec(4, 4, 12),
            "datapath acc_depth must be a power of two, at least 2, not 12",
        ),
        (
            lambda: DatapathSpec(1024, 4),
            "partial sums must have 2..24 bits (FP32 holds those exactly), not 26",
        ),
        (lambda: DatapathSpec(4, 4).cycles(0, 1, 1), "datapath m must be at least 1, not 0"),
        (
            lambda: DatapathSpec(1, 1).compute(
                *(2, 1, 1, int8([[1]]), codes(1), int8([[1]]), codes(1), np.zeros((1024, 1), "f4"))
            ),
            "datapath a must have shape (2, 1) and a code for each vector, not (1, 1) and (1,)",
        ),
        (
            lambda: DatapathSpec(1, 1).compute(
                *(1, 1, 1, int8([[1]]), codes(1), int8([[1]]), codes(1), np.zeros((4, 1), "f4"))
            ),
            "datapath accumulators must have shape (1024, 1), not (4, 1)",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_what_a_column_has_is_one_module():
    verilog = verilog_of(GemmDatapath(DatapathSpec(2, 3, 16)))
    assert len(re.findall(r"^module \S*accumulator_column_17\(", verilog, re.M)) == 1
    assert len(re.findall(r"^module \S*systolic_row\S*\(", verilog, re.M)) == 1


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [
        DatapathSpec(1, 1, 16),
        DatapathSpec(4, 3, 16),
        DatapathSpec(2, 5, 32),
        DatapathSpec(16, 4, 16),
        DatapathSpec(8, 8, 64),
        DatapathSpec(4, 4, 16, Form.PACKED),
        DatapathSpec(32, 6, 64, Form.PACKED),
    ],
    ids=lambda spec: f"{spec.rows}x{spec.cols}, {spec.form}",
)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(GemmDatapath(spec), "tb_datapath", tmp_path).tests == TESTS


# A fault in the Verilog of a 2x2 datapath, and the test that has to see it.
FAULTS = {
    "reads accumulators too early": (r"assign hazard = [^;]*;", "assign hazard = 1'h0;", 0),
    "forgets the last stage of a conflict": (r"feeds\[6\] & ", "1'h0 & ", 0),
    "changes the codes too early": (r"advance & swaps\[2\]", "advance & swaps[1]", 0),
    "misses a column's NaN": (r"nan_a \| nan_b", "nan_a", 0),
    "takes the code of a vector too late": (r"(\.code_a\(line\[)71:64", r"\g<1>103:96", 0),
    "never begins with zeros": (r"assign reads = [^;]*;", "assign reads = 1'h1;", 0),
    "moves on while a result waits": (r"wake & \S+ ;", "wake;", 0),
    "falls asleep over its vectors": (r"= \| feeds;", "= 1'h0;", 0),
    "sleeps while vectors wait": (r"(assign wake = \S+)  \| \S+ ;", r"\1 ;", 0),
    "loses a cycle between products": (r"(= \S+)  \| finish;", r"\1 ;", 1),
    "keeps its product through a reset": (
        r"(assign (\S+)  = take \? 1'h1 : [^;]*;\s*assign \S+  = )rst \? 1'h0 : \2 ;",
        r"\1\2 ;",
        2,
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    verilog = verilog_of(GemmDatapath(DatapathSpec(2, 2, 16)))
    faulty, count = re.subn(pattern, replacement, verilog, count=1)
    assert count == 1
    parameters = {"rows": 2, "cols": 2, "acc_depth": 16}
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_datapath", tmp_path, parameters=parameters, seed=1)
    assert TESTS[test] in caught.value.failures
