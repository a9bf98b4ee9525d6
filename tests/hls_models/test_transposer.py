"""The transposer: the model against words by hand, the gateware against the model."""

import re

import numpy as np
import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.rtl.gemm.narrow_transposer import NarrowTransposer
from fpgapipe.hw.rtl.gemm.transposer import Transposer
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate, simulate_verilog

TESTS = ("matches_model", "loses_no_cycle", "waits_for_its_reader", "forgets_at_reset")


def test_transposes_a_square_worked_by_hand():
    spec = TransposerSpec(size=2, planes=(8,))
    words = np.array([[9, 8], [1, 2], [3, 4], [7, 6], [1, 2], [3, 4]])
    transposed = [False, True, True, False, True, True]
    leaving, source = spec.compute(words, transposed, emit=[1, 1, 2, 1, 2, 1])
    np.testing.assert_array_equal(leaving, [[9, 8], [1, 3], [2, 4], [7, 6], [1, 3]])
    np.testing.assert_array_equal(source, [0, 2, 2, 3, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "transposer size must be a power of two, at least 2, not 1"),
        ({"size": 6}, "transposer size must be a power of two, at least 2, not 6"),
        (
            {"planes": ()},
            "transposer planes must have at least 1 bit each, and there must be one, not ()",
        ),
        (
            {"planes": (16, 0)},
            "transposer planes must have at least 1 bit each, and there must be one, not (16, 0)",
        ),
        ({"side_bits": 0}, "transposer side_bits must be at least 1, not 0"),
    ],
)
def test_refuses_specs(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TransposerSpec(**arguments)


@pytest.mark.parametrize(
    ("transposed", "emit", "message"),
    [
        ([1, 0], 1, "transposer square must have 2 words in a row, not 1"),
        ([0, 1], 1, "transposer square must have 2 words in a row, not 1"),
        ([1, 1], 0, "transposer emit must be in 1..2, not 0"),
        ([1, 1], 3, "transposer emit must be in 1..2, not 3"),
    ],
)
def test_refuses_words(transposed, emit, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TransposerSpec(2).compute(np.zeros((2, 2), np.int64), transposed, [emit, emit])


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [TransposerSpec(2, (3,), 1), TransposerSpec(4, (8,), 3), TransposerSpec(32, (16, 1), 5)],
    ids=lambda spec: f"{spec.size}x{spec.lane_bits}",
)
def test_gateware_matches_model(spec, tmp_path):
    assert simulate(Transposer(spec), "tb_transposer", tmp_path).tests == TESTS


@pytest.mark.sim
@pytest.mark.parametrize("lanes", [2, 4])
def test_narrow_gateware_matches_model(lanes, tmp_path):
    spec = TransposerSpec(8, (5, 1), 3, lanes)
    if lanes == 4:
        spec = TransposerSpec(32, (16, 1), 5, lanes)
    assert simulate(NarrowTransposer(spec), "tb_transposer", tmp_path).tests == TESTS


NARROW_FAULTS = {
    "reads the first column only": (
        r"assign last_column = column == \S+ ;",
        "assign last_column = 1'h1;",
        "matches_model",
    ),
    "lets words overtake a column": (r"~ reading;", "1'h1;", "matches_model"),
    "fills a square that is full": (
        r"assign i__ready = (\S+) \? \S+ ",
        r"assign i__ready = \1 ? 1'h1 ",
        "waits_for_its_reader",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", NARROW_FAULTS)
def test_testbench_sees_in_the_narrow_one(fault, tmp_path):
    pattern, replacement, test = NARROW_FAULTS[fault]
    spec = TransposerSpec(4, (8,), 3, 2)
    faulty, count = re.subn(pattern, replacement, verilog_of(NarrowTransposer(spec)), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty,
            "tb_transposer",
            tmp_path,
            parameters={"size": 4, "planes": [8], "side_bits": 3, "lanes": 2},
            seed=1,
        )
    assert test in caught.value.failures


# A fault in the Verilog of a transposer of 4 words, and the test that has to see it.
FAULTS = {
    "reads before the last word is written": (r"~ settling", "1'h1", "matches_model"),
    "lets words overtake a column": (r"= \| reading;", "= 1'h0;", "matches_model"),
    "fills a square that is full": (
        r"assign i__ready = (\S+) \? \S+ ",
        r"assign i__ready = \1 ? 1'h1 ",
        "matches_model",
    ),
    "reads a square's columns one too many": (
        r"assign last_column = column == ",
        "assign last_column = column > ",
        "matches_model",
    ),
    "frees a square late": (r"= frees & ", "= 1'h0 & ", "loses_no_cycle"),
    "keeps the word's number through a reset": (
        r"\bword <= ",
        "if (!rst) word <= ",
        "forgets_at_reset",
    ),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    spec = TransposerSpec(4, (8,), 3)
    faulty, count = re.subn(pattern, replacement, verilog_of(Transposer(spec)), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        simulate_verilog(
            faulty,
            "tb_transposer",
            tmp_path,
            parameters={"size": 4, "planes": [8], "side_bits": 3},
            seed=1,
        )
    assert test in caught.value.failures
