"""The systolic array: the model against numbers worked by hand, the gateware against the model."""

import re

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.errors import ToolError
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = ("matches_model", "takes_predicted_cycles", "forgets_at_reset")


def test_computes_a_product_worked_by_hand():
    spec = SystolicSpec(rows=2, cols=3)
    weights = np.array([[1, -2, 3], [4, 5, -6]])
    activations = np.array([[10, 1], [0, -1]])
    np.testing.assert_array_equal(spec.compute(activations, weights), [[14, -15, 24], [-4, -5, 6]])


@pytest.mark.parametrize(
    ("rows", "operand_bits", "acc_bits"),
    # (-128)**2 = 2**14 needs 15 bits and a sign; twice that needs one more, 32 times five more.
    [(1, 8, 16), (2, 8, 17), (3, 8, 17), (4, 8, 18), (32, 8, 21), (1, 2, 4)],
)
def test_sums_have_just_enough_bits(rows, operand_bits, acc_bits):
    spec = SystolicSpec(rows, 1, operand_bits)
    assert spec.acc_bits == acc_bits
    least = -(1 << (operand_bits - 1))
    largest = spec.compute(np.full((1, rows), least), np.full((rows, 1), least))[0, 0]
    assert largest == rows * least**2
    assert 1 << (acc_bits - 2) <= largest < 1 << (acc_bits - 1)


def test_products_do_not_wrap_in_narrow_arrays():
    spec = SystolicSpec(rows=4, cols=1)
    operand = np.full((4, 1), -128, dtype=np.int8)
    np.testing.assert_array_equal(spec.compute(operand.T, operand), [[4 * 128 * 128]])


def test_predicts_cycles_counted_by_hand():
    spec = SystolicSpec(rows=2, cols=3)
    # Cycles 0 to 2 take the weights, 3 swaps them in, 4 takes the vector, 9 delivers its sums.
    assert spec.latency_cycles == 5
    assert spec.cycles(m=1) == 10
    assert spec.cycles(m=10) == 19
    assert spec.cycles(m=10, num_tiles=3) == 39
    # Tiles shorter than their weights wait for those.
    assert spec.cycles(m=1, num_tiles=3) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0, "cols": 4}, "systolic rows must be at least 1, not 0"),
        ({"rows": 4, "cols": -1}, "systolic cols must be at least 1, not -1"),
        (
            {"rows": 4, "cols": 4, "operand_bits": 1},
            "systolic operand_bits must be at least 2, not 1",
        ),
        (
            {"rows": 4, "cols": 4, "acc_bits": 17},
            "systolic acc_bits must be at least 18 (4 products of 8-bit operands), not 17",
        ),
        (
            {"rows": 4, "cols": 4, "form": "packed", "operand_bits": 4},
            "packed operand_bits must be 8, not 4",
        ),
        (
            {"rows": 20, "cols": 4, "form": "packed"},
            "packed rows must be 1..16 or 32, not 20",
        ),
        (
            {"rows": 4, "cols": 2, "form": "packed"},
            "packed cols must be even and at least 4, not 2",
        ),
        (
            {"rows": 4, "cols": 7, "form": "packed"},
            "packed cols must be even and at least 4, not 7",
        ),
        ({"rows": 4, "cols": 8, "form": "dense"}, "'dense' is not a valid Form"),
    ],
)
def test_refuses_sizes(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SystolicSpec(**arguments)


@pytest.mark.parametrize(
    ("activations", "weights", "error", "message"),
    [
        (np.zeros((2, 4), int), np.zeros((5, 3), int), ValueError,
         "systolic activations must have shape (m, 5), not (2, 4)"),
        (np.zeros((2, 5), int), np.zeros((3, 5), int), ValueError,
         "systolic weights must have shape (5, 3), not (3, 5)"),
        (np.full((2, 5), 200), np.zeros((5, 3), int), ValueError,
         "systolic activations must be in -128..127 (8-bit operands), not 200"),
        (np.zeros((2, 5)), np.zeros((5, 3), int), TypeError,
         "systolic activations must be integers, not float64"),
    ],
)  # fmt: skip
def test_refuses_operands(activations, weights, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        SystolicSpec(rows=5, cols=3).compute(activations, weights)


def test_packed_operands_are_never_the_least():
    spec = SystolicSpec(rows=1, cols=4, form=Form.PACKED)
    message = r"^systolic weights must be in -127\.\.127 \(packed 8-bit operands\), not -128$"
    with pytest.raises(ValueError, match=message):
        spec.compute(np.ones((1, 1), np.int8), np.full((1, 4), -128, np.int8))


def test_packed_cells_take_half_of_the_dsps_and_fill_sooner():
    plain, packed = (SystolicSpec(32, 64, form=form) for form in Form)
    assert (plain.dsps, packed.dsps) == (2048, 1024)
    assert (plain.acc_bits, packed.acc_bits) == (21, 20)
    assert plain.load_cycles == packed.load_cycles == 65
    # 16 rows of a cascade, 32 pairs, the activation's register and the sum of both cascades.
    assert (plain.latency_cycles, packed.latency_cycles) == (96, 16 + 32 + 1 + 1)
    assert SystolicSpec(8, 8, form=Form.PACKED).latency_cycles == 8 + 4 + 1


def test_refuses_no_vectors():
    with pytest.raises(ValueError, match=r"^systolic m must be at least 1, not 0$"):
        SystolicSpec(1, 1).cycles(0)


def test_a_row_is_one_module_however_many_there_are():
    modules = {
        rows: re.findall(
            r"^module (\S+)\(", verilog_of(SystolicArray(SystolicSpec(rows, 4, 8, 20))), re.M
        )
        for rows in (3, 6)
    }
    assert len(modules[3]) == len(modules[6])
    assert "systolic_row_4x8_20" in modules[6]


def test_verilog_is_the_same_every_time():
    first = verilog_of(SystolicArray(SystolicSpec(3, 2)))
    assert verilog_of(SystolicArray(SystolicSpec(3, 2))) == first


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [
        SystolicSpec(1, 1),
        SystolicSpec(1, 8),
        SystolicSpec(8, 1),
        SystolicSpec(5, 3),
        SystolicSpec(8, 8),
        SystolicSpec(3, 4, operand_bits=4, acc_bits=24),
        SystolicSpec(1, 4, form=Form.PACKED),
        SystolicSpec(5, 6, acc_bits=24, form=Form.PACKED),
        SystolicSpec(16, 4, form=Form.PACKED),
        SystolicSpec(32, 8, form=Form.PACKED),
    ],
    ids=lambda spec: f"{spec.rows}x{spec.cols}x{spec.operand_bits}, {spec.form}",
)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(SystolicArray(spec), "tb_systolic", tmp_path).tests == TESTS


# A fault in the Verilog of a 2x2 array, and the test that has to see it.
FAULTS = {
    "subtracts": (
        r"sum_i__0 \}\) \+ \$signed\(product0\)",
        "sum_i__0 }) - $signed(product0)",
        "matches_model",
    ),
    "multiplies unsigned": (
        r"\$signed\(activation\) \* \$signed\(weight0\)",
        "activation * weight0",
        "matches_model",
    ),
    "wraps the largest sum": (
        r"(\S+ )\[16:0\]( : sum_o__0;)",
        r"{ \1[15], \1[15:0] }\2",
        "matches_model",
    ),
    "swaps column 1 early": (r"= later_swaps \? spare1", "= swap ? spare1", "matches_model"),
    "loads column 1 too early": (r"load_i\[1\] \?", "load_i[0] ?", "matches_model"),
    "loads over weights that wait": (r"= swap \| \S+ ;", "= 1'h1;", "matches_model"),
    "moves on while a result waits": (
        r"assign advance = [^;]*;",
        "assign advance = 1'h1;",
        "matches_model",
    ),
    "swaps a cycle late": (r"last \| (\S+) ;", r"\1 ;", "takes_predicted_cycles"),
    "keeps its tile through a reset": (
        r"(assign (\S+)  = swap \? 1'h1 : [^;]*;\s*assign \S+  = )rst \? 1'h0 : \2 ;",
        r"\1\2 ;",
        "forgets_at_reset",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    verilog = verilog_of(SystolicArray(SystolicSpec(2, 2)))
    faulty, count = re.subn(pattern, replacement, verilog, count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty,
            "tb_systolic",
            tmp_path,
            parameters={"rows": 2, "cols": 2},
            seed=1,
        )
    assert test in caught.value.failures


# A fault in packed cells of 2x4 cells, and the test that has to see it.
PACKED_FAULTS = {
    "puts the right weight too low": (
        r"\.D\(\{ weights\[7:0\], 19'h00000 \}\)",
        ".D({ weights[7], weights[7:0], 18'h00000 })",
        "matches_model",
    ),
    "makes the next weights active at once": (
        r"\.CEAD\([^)]*\)",
        ".CEAD(advance)",
        "matches_model",
    ),
    "adds no bias": (r"\.RND\(48'h000000040000\)", ".RND(48'h000000000000)", "matches_model"),
    "adds the bias in every row": (r"\.OPMODE\(9'h015\)", ".OPMODE(9'h115)", "matches_model"),
    "makes the next weights active while it rests": (
        r"(assign \S+  = )advance & swaps\[0\];",
        r"\1swaps[0];",
        "forgets_at_reset",
    ),
    "takes a weight a cycle late": (
        r"\.CEA2\(load\[0\]\)",
        ".CEA2(later_marks[0])",
        "matches_model",
    ),
    "forgets a bit of a cascade": (
        r"\.PCIN\(below0\)",
        ".PCIN(below0 & 48'hfffffffbffff)",
        "matches_model",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(PACKED_FAULTS, kept=3))
def test_testbench_sees_in_packed_cells(fault, tmp_path):
    pattern, replacement, test = PACKED_FAULTS[fault]
    verilog = verilog_of(SystolicArray(SystolicSpec(2, 4, form=Form.PACKED)))
    faulty, count = re.subn(pattern, replacement, verilog)
    assert count
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty,
            "tb_systolic",
            tmp_path,
            parameters={"rows": 2, "cols": 4, "form": Form.PACKED},
            seed=1,
        )
    assert test in caught.value.failures


@pytest.mark.sim
def test_gateware_stops_at_the_least_operand(tmp_path):
    """Plain cells take -128, packed ones do not."""
    sizes = {"rows": 2, "cols": 4, "acc_bits": 17}
    verilog = verilog_of(SystolicArray(SystolicSpec(**sizes, form=Form.PACKED)))
    with pytest.raises(ToolError) as caught:
        simulate_verilog(verilog, "tb_systolic", tmp_path, parameters=sizes)
    assert "-128 enters a packed cell" in str(caught.value)


def test_yosys_runs_where_its_own_cache_cannot_be_written(tmp_path, monkeypatch):
    tiled_product = tmp_path / "file"
    tiled_product.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiled_product))
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))
    assert "module top" in verilog_of(SystolicArray(SystolicSpec(1, 1)))
