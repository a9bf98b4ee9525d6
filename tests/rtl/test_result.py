"""The writer of results: the gateware against its pattern."""

import dataclasses
import re

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, ResultPattern
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.rtl.gemm.result import ResultWriter
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = (
    "matches_model",
    "loses_no_cycle",
    "stops_at_the_end_of_the_scratchpad",
    "halts_and_resets",
)
SCRATCHPAD = ScratchpadSpec(2, 1024)


def test_a_pattern_worked_by_hand():
    pattern = ResultPattern(
        base=100,
        outer=LoopNest((Loop(2, address=8, u=4),)),
        pos=LoopNest((Loop(2, address=-20), Loop(2, address=50))),
        u_limit=6,
    )
    np.testing.assert_array_equal(pattern.addresses(), [[100, 80, 150, 130], [108, 88, 158, 138]])
    np.testing.assert_array_equal(pattern.columns(4), [[True] * 4, [True, True, False, False]])


@pytest.mark.sim
@pytest.mark.parametrize("cols", [1, 3, 8, 32, 64])
def test_gateware_matches_model(cols, tmp_path):
    spec = CoreSpec(8, cols, scratchpad=SCRATCHPAD)
    assert simulate(ResultWriter(spec), "tb_result", tmp_path).tests == TESTS


# A fault in the Verilog of a writer for 20 columns, and the test that has to see it.
FAULTS = {
    "rounds down": (r"(rounded \} = i\[30:16\])[^;]*;", r"\1;", "matches_model"),
    "exchanges no halves": (r"\.turn\(write__address\[5\]\)", ".turn(1'h0)", "matches_model"),
    "knows one place of results": (
        r"(= taken \? )i_results__payload\[\d+\] ",
        r"\g<1>1'h0 ",
        "matches_model",
    ),
    "is done with every part": (r"= vector_last & \S+ ;", "= vector_last;", "matches_model"),
    "waits between instructions": (
        r"(assign \S+  = \S+)  \| finished;",
        r"\1 ;",
        "loses_no_cycle",
    ),
    "looks at the first byte alone": (
        r"is_outside = part_writes & \S+ ;",
        "is_outside = part_writes & | part_start[31:11];",
        "stops_at_the_end_of_the_scratchpad",
    ),
    "goes on after an error": (
        r"assign moves = (\S+)  & \S+ ;",
        r"assign moves = \1 ;",
        "stops_at_the_end_of_the_scratchpad",
    ),
    "ignores the halt": (r"= ~ halt;", "= 1'h1;", "halts_and_resets"),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    spec = CoreSpec(8, 20, scratchpad=SCRATCHPAD)
    faulty, count = re.subn(pattern, replacement, verilog_of(ResultWriter(spec)))
    assert count in (1, 2)
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(faulty, "tb_result", tmp_path, parameters=dataclasses.asdict(spec), seed=1)
    assert test in caught.value.failures
