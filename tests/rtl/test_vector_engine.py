"""The vector engine: its gateware against the model of VECTOR instructions, values and cycles."""

import dataclasses
import json
import random
import re
from functools import cache

import numpy as np
import pytest
from core_cases import some_of
from vector_cases import beyond, random_op, random_scratchpad, with_blocks

from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR, Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    VECTOR_BYTES,
    Addend,
    Choice,
    Coefficients,
    Initial,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.model import vector
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.hw.hls_models.numerics.mx import BLOCK_BYTES, MX_BLOCK
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.rtl.vector.vector_engine import VectorEngine
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate_verilog
from fpgapipe.sim_tb.testbenches.tb_mx import random_blocks

TESTS = (
    "matches_model",
    "takes_as_long_as_predicted",
    "reads_only_what_counts",
    "stops_at_errors",
    "refuses_formats",
    "halts",
    "forgets_at_reset",
)
SCRATCHPAD = ScratchpadSpec(2, 1 << 13)
FLAGS = ("-Wno-CASEOVERLAP",)

pytestmark = pytest.mark.sim


def core(lanes, function_lanes, mx=False):
    return CoreSpec(4, 4, scratchpad=SCRATCHPAD, vector=VectorSpec(lanes, function_lanes, mx))


NARROW = core(2, 1, mx=True)


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


BYTES = {Format.BF16: (32, 64), Format.FP32: (64, 128), Format.MXINT8: (1, BLOCK_BYTES)}
"""From one half of a block to the next, and from a block to the next."""


def cast(begin, layout, to, to_layout, blocks, *, first=0, limit=None, as_y=False, **fields):
    """An instruction that moves blocks from one address to another."""
    limits = {"u_steps": (16, 32), "u": first, "u_limit": 32 * blocks if limit is None else limit}
    source = Source(begin, BYTES[layout], format=layout, **limits)
    fields |= {"y": source, "otherwise": Choice.Y} if as_y else {}
    x = Source(begin, u_limit=0) if as_y else source
    target = Target(to, BYTES[to_layout], format=to_layout, **limits)
    return VectorOp((2, blocks), x, target, **fields)


NUM_BLOCKS = 50


def casts():
    """From the numbers and the blocks of `scratchpad_with_blocks`, and back."""
    bf16, fp32, mx = Format
    half = SCRATCHPAD.size_bytes // 2
    there = [
        cast(0, fp32, half, mx, NUM_BLOCKS),
        cast(half, mx, half + 4096, bf16, NUM_BLOCKS),
        cast(half + 4096, bf16, half, mx, NUM_BLOCKS),
        cast(half, mx, 0, fp32, NUM_BLOCKS),
    ]
    # Rows that end in a first half, in a second, and before a block; a row that begins late.
    tails = [
        cast(0, fp32, half, mx, 9, limit=32 * 9 - cut, first=first)
        for cut, first in ((7, 0), (16, 0), (23, 0), (40, 0), (0, -5), (0, -21), (3, -37), (288, 0))
    ]
    back = [
        cast(half + BLOCK_BYTES * NUM_BLOCKS * k, mx, 0, fp32, NUM_BLOCKS, as_y=k % 2 == 1)
        for k in range(4)
    ]
    # A block that ends with the scratchpad.
    last = [cast(0, fp32, 2 * half - 3 * BLOCK_BYTES, mx, 3)]
    return [there + last, tails, back]


def scratchpad_with_blocks():
    """Numbers as quantisers like them least; behind them blocks of all elements and many scales."""
    rng = np.random.default_rng(3)
    found = np.zeros(SCRATCHPAD.size_bytes, np.uint8)
    half = found.size // 2
    found[:half] = random_blocks(rng, half // (4 * MX_BLOCK)).reshape(-1).view(np.uint8)
    blocks = rng.integers(0, 256, (half // BLOCK_BYTES, BLOCK_BYTES))
    edges = [*range(9), 126, 127, 200, *range(246, 256)]
    blocks[:, MX_BLOCK] = np.resize(edges, len(blocks))
    found[half : half + blocks.size] = blocks.reshape(-1)
    return found


def timed_casts():
    """Instructions of all kinds of loops that read or write blocks."""
    bf16, fp32, mx = Format
    half = SCRATCHPAD.size_bytes // 2
    sums = cast(0, fp32, half, mx, 4)
    return [
        cast(0, fp32, half, mx, 40),
        cast(0, bf16, half, mx, 1),
        cast(0, mx, half, fp32, 30),
        cast(0, mx, half, mx, 20, as_y=True),
        cast(0, fp32, half, mx, 9, function=Function.EXP),
        cast(0, mx, half, mx, 2, function=Function.TANH),
        dataclasses.replace(sums, counts=(2, 4, 5), inner=2, reduced=1),
        dataclasses.replace(sums, counts=(2, 4, 5), inner=2, reduced=1, function=Function.EXP),
        dataclasses.replace(sums, counts=(2, 4, 3), inner=2, reduced=1, takes_maximum=True),
    ]


def unused():
    """An instruction without Y, whose fields are any."""
    fields = dataclasses.replace(steady((3, 2)), y=None).encoded()
    fields["source_y"] |= {"format": 3, "broadcast": 1}
    return fields


def refused(has_blocks):
    """Fields of instructions that an engine refuses."""
    op = steady((3, 2))
    for which in ("x", "source_y", "target"):
        fields = op.encoded()
        fields[which]["format"] = 3 if has_blocks else Format.MXINT8
        yield fields
    for which in ("x", "source_y") if has_blocks else ():
        fields = op.encoded()
        fields[which] |= {"format": Format.MXINT8, "broadcast": 1}
        yield fields


def cases(has_blocks=False):
    """Lists of instructions, by the test that runs them."""
    rng, rng_of_blocks = random.Random(1), random.Random(2)
    size = SCRATCHPAD.size_bytes

    def one(**more):
        op = random_op(rng, size, **more)
        return with_blocks(rng_of_blocks, op, size) if has_blocks else op

    def some(number, **more):
        return [one(**more) for _ in range(number)]

    failing = []
    for which in ("x", "y", "target") * 4:
        op = one()
        if which == "y":
            op = dataclasses.replace(op, y=op.y or op.x)
        failing.append([one(), beyond(rng, op, which, size)])
    far = dataclasses.replace(steady((2, 1, 1, 1, 1, 3)), coefficients=Coefficients(0, 64, -32, 2))
    early = dataclasses.replace(steady((5,)), target=Target(-VECTOR_BYTES, (VECTOR_BYTES,)))
    failing += [[one(), far], [one(), early]]
    nothing = [masked()]
    if has_blocks:
        # Halves of a block that ends two bytes behind the scratchpad, of which none is written.
        for which in ({"limit": 9}, {"first": -16}):
            op = cast(0, Format.BF16, size - 32, Format.MXINT8, 1, **which)
            failing.append([one(), op])
        failing.append([cast(0, Format.BF16, -BLOCK_BYTES, Format.MXINT8, 3)])
        half = size // 2
        nothing.append(cast(0, Format.MXINT8, half, Format.MXINT8, 3, limit=0))
        nothing.append(cast(0, Format.MXINT8, half, Format.MXINT8, 3, first=-96))
    return {
        "matches_model": [
            *(casts() if has_blocks else ()),
            *(some(12) for _ in range(8)),
            [unused()],
        ],
        "takes_as_long_as_predicted": [timed() + (timed_casts() if has_blocks else [])],
        "reads_only_what_counts": [nothing],
        "stops_at_errors": failing,
        "refuses_formats": [[steady((4,)), fields] for fields in refused(has_blocks)],
        "halts": [some(6) for _ in range(2)],
        "forgets_at_reset": [some(2, function=which) for which in (False, True)],
    }


def write(folder, spec):
    """Write all cases for the testbench; return its parameters."""
    folder.mkdir(parents=True)

    def packed(op):
        return f"{VECTOR.pack(op.encoded() if isinstance(op, VectorOp) else op):x}"

    found = {
        name: [[packed(op) for op in program] for program in programs]
        for name, programs in cases(spec.vector.mx).items()
    }
    (folder / "cases.json").write_text(json.dumps(found))
    scratchpad = random_scratchpad(SCRATCHPAD.size_bytes, random.Random(2))
    np.save(folder / "scratchpad.npy", scratchpad_with_blocks() if spec.vector.mx else scratchpad)
    return {**dataclasses.asdict(spec), "folder": str(folder)}


def run(verilog, spec, work, **more):
    return simulate_verilog(
        verilog, "tb_vector_engine", work, parameters=write(work / "cases", spec) | more,
        flags=FLAGS, seed=1,
    )  # fmt: skip


@pytest.mark.parametrize("has_blocks", [False, True])
def test_instructions_that_fail_fail_in_the_model(has_blocks):
    scratchpad = random_scratchpad(SCRATCHPAD.size_bytes, random.Random(2))
    for program in cases(has_blocks)["stops_at_errors"]:
        with pytest.raises(IndexError):
            vector.run(program[-1], scratchpad, [0] * 16)


def test_gateware_matches_model(tmp_path):
    spec = core(16, 4)
    assert run(verilog_of(VectorEngine(spec)), spec, tmp_path).tests == TESTS


@pytest.mark.parametrize(("lanes", "port_bytes"), [(1, 8), (2, 8), (4, 32)])
def test_gateware_with_narrow_ports_matches_model(lanes, port_bytes, tmp_path):
    narrow = dataclasses.replace(SCRATCHPAD, port_bytes=port_bytes)
    spec = dataclasses.replace(core(lanes, 1), scratchpad=narrow)
    found = run(verilog_of(VectorEngine(spec)), spec, tmp_path, parts=narrow.parts)
    assert found.tests == TESTS


@pytest.mark.slow
def test_wide_gateware_with_blocks_matches_model(tmp_path):
    spec = core(16, 4, mx=True)
    assert run(verilog_of(VectorEngine(spec)), spec, tmp_path).tests == TESTS


def test_narrow_gateware_with_blocks_matches_model(tmp_path):
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
    return re.sub(ports, r"\1fault, \2\n  input [4:0] fault;\n  wire [4:0] fault;", verilog)


# A fault in the Verilog: the module, what it is instead, and the test that has to see it.
READER, WRITER = "vector_reader", "vector_writer"
FAULTS = {
    "the innermost loop moves what the next one moves": (
        f"\\{READER}.positions.nest ", r"\binner <= (\S+) ;",
        r"inner <= \1 | FAULT;",
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
    "first halves alone are no block": (
        f"{WRITER}(", r"\bfirst_there <= (\S+) ;", r"first_there <= \1 & ~FAULT;",
        "matches_model",
    ),
    "is done with any write that waited": (
        f"{WRITER}(", r"\bskid_last <= (\S+) ;", r"skid_last <= \1 | FAULT;",
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
    "first halves alone may lie outside": (
        f"{WRITER}(", r"\bfirst_outside <= (\S+) ;", r"first_outside <= \1 & ~FAULT;",
        "stops_at_errors",
    ),
    "scales stay what they are": (
        f"{READER}(", r"\bcode <= (\S+) ;", r"code <= FAULT ? code : \1 ;",
        "matches_model",
    ),
    "zeros are numbers": (
        "element_dequantiser(", r"! middle\[6:5\]", r"(! middle[6:5]) & ~FAULT",
        "matches_model",
    ),
    "what is refused lies outside": (
        f"{READER}(", r"\? 8'h03 :", r"? (FAULT ? 8'h05 : 8'h03) :",
        "refuses_formats",
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


@pytest.mark.parametrize("fault", some_of(FAULTS, kept=2))
def test_testbench_sees(fault, tmp_path):
    number = list(FAULTS).index(fault) + 1
    with pytest.raises(SimulationError) as caught:
        run(verilog_with_faults(), NARROW, tmp_path, fault=number)
    assert FAULTS[fault][-1] in caught.value.failures
