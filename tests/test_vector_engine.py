"""The vector engine: its gateware against the model of VECTOR instructions, values and cycles."""

import dataclasses
import json
import random
import re
from functools import cache

import numpy as np
import pytest
from core_cases import some_of
from vector_cases import beyond, random_op, random_scratchpad

from fpgapipe.hw.hls_models import vector
from fpgapipe.hw.hls_models.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.function import Function
from fpgapipe.hw.hls_models.vector_fields import VECTOR
from fpgapipe.hw.hls_models.vector_op import (
    Addend,
    Coefficients,
    Initial,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.rtl.vector_engine import VectorEngine
from fpgapipe.sim_tb.simulate import SimulationError, simulate_verilog
from fpgapipe.sim_tb.verilate import verilog_of

TESTS = (
    "matches_model",
    "takes_as_long_as_predicted",
    "reads_only_what_counts",
    "stops_at_errors",
    "halts",
    "forgets_at_reset",
)
SCRATCHPAD = ScratchpadSpec(2, 1 << 13)
FLAGS = ("-Wno-CASEOVERLAP",)

pytestmark = pytest.mark.sim


def core(lanes, function_lanes):
    return CoreSpec(4, 4, scratchpad=SCRATCHPAD, vector=VectorSpec(lanes, function_lanes))


NARROW = core(2, 1)


def steady(counts, **fields):
    """An instruction whose vectors follow each other in both halves of the scratchpad."""
    steps, size = [], 64
    for count in counts:
        steps.append(size)
        size *= count
    half = SCRATCHPAD.size_bytes // 2
    reduced = range(fields.get("inner", 0), fields.get("inner", 0) + fields.get("reduced", 0))
    moves = tuple(0 if loop in reduced else step for loop, step in enumerate(steps))
    return VectorOp(
        counts, Source(0, tuple(steps)), Target(half, moves), y=Source(64, tuple(steps)), **fields
    )


def timed():
    """Instructions of all kinds of loops, as long as their vectors take."""
    k = Coefficients(0, 64, 64, 3)
    plain = [
        steady((100,), addend=Addend.Y),
        steady((1,), addend=Addend.CONSTANT),
        steady((5, 4, 3), addend=Addend.Y),
        steady((10, 1, 1, 1, 1, 6), coefficients=k, addend=Addend.COEFFICIENT),
        steady((1, 1, 1, 1, 1, 12), coefficients=k, addend=Addend.COEFFICIENT),
        steady((1, 1, 1, 1, 1, 12), coefficients=Coefficients(0, 64, 64, 1)),
    ]
    reduced = [
        steady((50, 2), reduced=1),
        steady((3, 20, 2), inner=1, reduced=1, initial=Initial.CONSTANT),
        steady((20, 6), inner=1, reduced=1),
        steady((2, 30), inner=1, reduced=1, takes_maximum=True),
        steady((4, 1, 1, 1, 9, 3), inner=1, reduced=4, coefficients=k),
    ]
    functions = [
        steady((60,), function=Function.EXP),
        steady((1,), function=Function.TANH),
        steady((6, 5, 2), inner=1, reduced=1, function=Function.RSQRT),
        steady((20, 1, 1, 1, 2, 2), inner=1, reduced=4, function=Function.LOG),
        steady((2, 1, 1, 1, 1, 9), coefficients=k, function=Function.RECIPROCAL),
        steady((9, 1, 1, 1, 1, 9), coefficients=k, function=Function.RECIPROCAL),
    ]
    return plain + reduced + functions


def masked():
    """Instructions that touch nothing."""
    nothing = {"u_limit": 0}
    op = steady((7, 2))
    return dataclasses.replace(
        op,
        x=dataclasses.replace(op.x, **nothing),
        y=dataclasses.replace(op.y, y=-1),
        target=dataclasses.replace(op.target, u=16),
    )


def cases():
    """Lists of instructions, by the test that runs them."""
    rng = random.Random(1)
    size = SCRATCHPAD.size_bytes

    def some(number, **more):
        return [random_op(rng, size, **more) for _ in range(number)]

    failing = []
    for which in ("x", "y", "target") * 4:
        op = random_op(rng, size)
        if which == "y":
            op = dataclasses.replace(op, y=op.y or op.x)
        failing.append([random_op(rng, size), beyond(rng, op, which, size)])
    far = dataclasses.replace(steady((2, 1, 1, 1, 1, 3)), coefficients=Coefficients(0, 64, -32, 2))
    failing.append([random_op(rng, size), far])
    return {
        "matches_model": [some(12) for _ in range(8)],
        "takes_as_long_as_predicted": [timed()],
        "reads_only_what_counts": [[masked()]],
        "stops_at_errors": failing,
        "halts": [some(6) for _ in range(2)],
        "forgets_at_reset": [some(2, function=which) for which in (False, True)],
    }


def write(folder, spec):
    """Write all cases for the testbench; return its parameters."""
    folder.mkdir(parents=True)
    found = {
        name: [[f"{VECTOR.pack(op.encoded()):x}" for op in program] for program in programs]
        for name, programs in cases().items()
    }
    (folder / "cases.json").write_text(json.dumps(found))
    np.save(folder / "scratchpad.npy", random_scratchpad(SCRATCHPAD.size_bytes, random.Random(2)))
    return {**dataclasses.asdict(spec), "folder": str(folder)}


def run(verilog, spec, work, **more):
    return simulate_verilog(
        verilog, "tb_vector_engine", work, parameters=write(work / "cases", spec) | more,
        flags=FLAGS, seed=1,
    )  # fmt: skip


def test_instructions_that_fail_fail_in_the_model():
    scratchpad = random_scratchpad(SCRATCHPAD.size_bytes, random.Random(2))
    for program in cases()["stops_at_errors"]:
        with pytest.raises(IndexError):
            vector.run(program[-1], scratchpad, [0] * 16)


def test_gateware_matches_model(tmp_path):
    spec = core(16, 4)
    assert run(verilog_of(VectorEngine(spec)), spec, tmp_path).tests == TESTS


@pytest.mark.slow
def test_narrow_gateware_matches_model(tmp_path):
    assert run(verilog_with_faults(), NARROW, tmp_path, fault=0).tests == TESTS


@cache
def verilog_with_faults():
    """A narrow engine with a port that selects one of `FAULTS`; 0 is none."""
    verilog = verilog_of(VectorEngine(NARROW))
    for number, (module, pattern, replacement, _) in enumerate(FAULTS.values(), 1):
        begin = verilog.index(f"module {module}")
        end = verilog.index("endmodule", begin)
        changed, count = re.subn(
            pattern, replacement.replace("FAULT", f"(top.fault == {number})"), verilog[begin:end]
        )
        assert count == 1, pattern
        verilog = verilog[:begin] + changed + verilog[end:]
    ports = r"(?s)(module top\()(.*?\);)"
    return re.sub(ports, r"\1fault, \2\n  input [3:0] fault;\n  wire [3:0] fault;", verilog)


# A fault in the Verilog: the module, what it is instead, and the test that has to see it.
READER, WRITER = "vector_reader", "vector_writer"
FAULTS = {
    "the innermost loop moves nothing": (
        f"\\{READER}.positions.nest ", r"\bjump <= (\S+) ;", r"jump <= \1 & ~FAULT;",
        "matches_model",
    ),
    "all rows of Y are there": (
        f"\\{READER}.positions ", r"\by_row_there <= (\S+) ;", r"y_row_there <= \1 | FAULT;",
        "matches_model",
    ),
    "reduced loops count for results": (
        f"\\{WRITER}.places.nest ", r"\bleft1 <= (\S+) ;", r"left1 <= \1 + FAULT;",
        "matches_model",
    ),
    "is done with any write that waited": (
        f"{WRITER}(", r"\baside_last <= (\S+) ;", r"aside_last <= \1 | FAULT;",
        "matches_model",
    ),
    "all of a sum are its first": (
        f"\\{READER}.positions.nest ", r"\bfresh1 <= (\S+) ;", r"fresh1 <= \1 | FAULT;",
        "matches_model",
    ),
    "coefficients are read where they were": (
        f"{READER}(", r"\bk_first <= (\S+) ;", r"k_first <= FAULT ? k_first : \1 ;",
        "matches_model",
    ),
    "coefficients that are in use are written": (
        f"{READER}(", r"assign writes = (\S+)  & (\S+) ;", r"assign writes = \1 & (\2 | FAULT);",
        "takes_as_long_as_predicted",
    ),
    "tags stay through a reset": (
        f"\\{READER}.tags ", r"\blevel <= (\S+) ;", r"level <= FAULT & rst ? level : \1 ;",
        "forgets_at_reset",
    ),
    "writes while halted": (
        f"{WRITER}(", r"~ halt", "~ (halt & ~FAULT)",
        "halts",
    ),
    "goes on after an error": (
        f"{WRITER}(", r"\bfailed <= (\S+) ;", r"failed <= \1 & ~FAULT;",
        "stops_at_errors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", some_of(FAULTS, kept=3))
def test_testbench_sees(fault, tmp_path):
    number = list(FAULTS).index(fault) + 1
    with pytest.raises(SimulationError) as caught:
        run(verilog_with_faults(), NARROW, tmp_path, fault=number)
    assert FAULTS[fault][-1] in caught.value.failures
