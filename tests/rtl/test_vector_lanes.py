"""The lanes of the vector engine against the model."""

import re

import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.cycles.vector_cycles import (
    LANES_CYCLES,
    MAXIMUM_CYCLES,
    SUM_CYCLES,
    cycles_per_result,
    function_cycles,
)
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec
from fpgapipe.hw.rtl.vector.vector_lanes import VectorLanes
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = ("matches_model", "takes_predicted_cycles", "forgets_at_reset")


SPECS = [VectorSpec(1, 1), VectorSpec(4, 2)]
# Each lane is compiled anew: these are for the full suite.
SLOW_SPECS = [VectorSpec(2, 2), VectorSpec(8, 8), VectorSpec(16, 4)]


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [*SPECS, *(pytest.param(spec, marks=pytest.mark.slow) for spec in SLOW_SPECS)],
    ids=lambda spec: f"{spec.lanes}-{spec.function_lanes}",
)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(VectorLanes(spec), "tb_vector_lanes", tmp_path).tests == TESTS


def test_predicts_cycles_counted_by_hand():
    # Taken and chosen, a sum of 5 cycles, chosen, a product of 5, a sum of 5; two operands, a test,
    # a choice; a sum of 5; relu. A maximum takes two cycles where a sum takes five.
    assert LANES_CYCLES == 2 + 5 + 1 + 5 + 5 + 3 + 5 + 1
    assert MAXIMUM_CYCLES == LANES_CYCLES - 3
    # Written, read, chosen, and added.
    assert SUM_CYCLES == 1 + 1 + 1 + 5
    # Kept, put through the units in four parts, and gathered.
    spec = VectorSpec(16, 4)
    assert function_cycles(spec) == 4 + 13 + 1
    assert cycles_per_result(spec, has_function=True) == 4
    assert cycles_per_result(spec, has_function=False) == 1


def test_a_lane_is_one_module():
    verilog = verilog_of(VectorLanes(VectorSpec(4, 2)))
    for name in (
        "vector_lane",
        "fp32_adder",
        "fp32_multiplier",
        "function_unit",
        "threefry_shared",
    ):
        assert len(re.findall(rf"^module {name}\(", verilog, re.M)) == 1


# A fault in the Verilog of four lanes, and the test that has to see it.
FAULTS = {
    "adds to sums too early": (r"assign hazard = [^;]*;", "assign hazard = 1'h0;", 0),
    "takes the later of equal maxima": (
        r"(\{ \S+ \[30:0\], 1'h0 \}) < (\{ \S+ \[30:0\], \S+ \[31\] \})",
        r"\1 <= \2",
        0,
    ),
    "forgets the last stage of a conflict": (r"advance & feeds\[6\]", "advance & feeds[5]", 0),
    "finds maxima where no lane is": (r"assign better = there21 & ", "assign better = ", 0),
    "has coefficients overwritten": (r"assign uses\[1\] = [^;]*;", "assign uses[1] = 1'h0;", 0),
    "draws with each beat": (r"(assign draw = \S+ ) & \S+ ;", r"\1;", 0),
    "takes NaN for equal": (r"unordered \? \\config \[191\]", r"unordered ? \\config [189]", 0),
    "moves on while a result waits": (r"assign keep = [^;]*;", "assign keep = 1'h0;", 0),
    "falls asleep over its last result": (
        r"(assign \S+  = i__valid \| \S+ ;\s*assign \S+  = \S+ ) \| has_result;",
        r"\1;",
        0,
    ),
    "writes no sums": (r"(\.write\()\\write\$\d+ ", r"\g<1>1'h0", 0),
    "keeps its beats through a reset": (
        r"(assign \S+  = )rst \? 26'h0000000 : ",
        r"\1",
        2,
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS, kept=1))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    # With few lanes it takes longer to write coefficients than they are needed.
    lanes = 16 if "coefficients" in fault else 4
    verilog = verilog_of(VectorLanes(VectorSpec(lanes, 1)))
    faulty, count = re.subn(pattern, replacement, verilog, count=1)
    assert count == 1
    parameters = {"lanes": lanes, "function_lanes": 1}
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_vector_lanes", tmp_path, parameters=parameters, seed=1)
    assert TESTS[test] in caught.value.failures
