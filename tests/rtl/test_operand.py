"""The operand reader: vectors for the array, its gateware against the models of its parts."""

import dataclasses
import re

import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = (
    "matches_model",
    "loses_no_cycle",
    "reads_only_what_counts",
    "halts",
    "forgets_at_reset",
)
CORE = CoreSpec(8, 4, scratchpad=ScratchpadSpec(2, 4096))


@pytest.mark.sim
@pytest.mark.parametrize("rows", [4, 16, 32])
def test_gateware_matches_model(rows, tmp_path):
    spec = dataclasses.replace(CORE, rows=rows)
    assert simulate(OperandReader(spec), "tb_operand", tmp_path).tests == TESTS


@pytest.mark.sim
@pytest.mark.parametrize(("rows", "port_bytes"), [(4, 8), (8, 8), (4, 32), (32, 16), (1, 16)])
def test_narrow_gateware_matches_model(rows, port_bytes, tmp_path):
    spec = dataclasses.replace(CORE, rows=rows, scratchpad=ScratchpadSpec(2, 4096, port_bytes))
    assert simulate(OperandReader(spec), "tb_operand", tmp_path).tests == TESTS


# A fault in the Verilog, and the test that has to see it.
FAULTS = {
    "keeps elements that do not count": (
        r"(plane0\[31\]  = )\S+ \[31\] \? (value\[511:496\]) : 16'h0000",
        r"\1\2",
        "matches_model",
    ),
    "drops the lower halves of FP32": (
        r"(\blow_more <= )[^;]*;",
        r"\g<1>16'h0000;",
        "matches_model",
    ),
    "rotates words of squares, but not what counts of them": (
        r"\.amount\(pairs\[1:0\]\)",
        ".amount(2'h0)",
        "matches_model",
    ),
    "exchanges no parts of FP32": (
        r"assign crosses = [^;]*;",
        "assign crosses = 8'h00;",
        "matches_model",
    ),
    "leaves columns rotated": (r"(\bturn_out <= )[^;]*;", r"\g<1>2'h0;", "matches_model"),
    "reads while halted": (r"~ halt", "1'h1", "halts"),
    "keeps half a word through a reset": (
        r"\bhas_low <= ",
        "if (!rst) has_low <= ",
        "forgets_at_reset",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS, kept=1))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    faulty, count = re.subn(pattern, replacement, verilog_of(OperandReader(CORE)), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty, "tb_operand", tmp_path, parameters=dataclasses.asdict(CORE), seed=1
        )
    assert test in caught.value.failures
