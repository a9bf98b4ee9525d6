"""Whole devices: programs one after the other, errors, abort, counters, interrupts."""

import contextlib
import dataclasses
import json
import random
import re
from functools import cache

import numpy as np
import pytest
from device_programs import (
    Program,
    back_to_back,
    changed,
    first_touching,
    layer,
    may_run,
    merged,
    middle,
    over_the_end,
    patched,
    vectors,
)
from vector_cases import beyond, random_scalars

from fpgapipe.hw.hls_models.isa.instructions import Engine, ErrorCode, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import Source, VectorOp
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec, check
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.rtl.core_verilog import device_verilog
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.lowering.products.conv import PASSES, ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats, Tiling
from fpgapipe.sim_tb.drivers.axi_memory import DECERR, SLVERR
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate_verilog

TWO = CoreSpec(
    4, 4, num_engines=2, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 12),
    vector=VectorSpec(4, 2),
)  # fmt: skip
NARROW = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 12), bus_bytes=16)
TWO_PORTS = dataclasses.replace(NARROW, memory_ports=2)
PAGE = 4096

# Yosys writes muxes of several one-hot cases as "casez" with the mark that they never overlap.
FLAGS = ("-Wno-CASEOVERLAP",)

pytestmark = pytest.mark.sim


class Cases:
    """Cases of the testbench in the making."""

    def __init__(self, spec):
        self.spec = spec
        self.cases = []
        self.arrays = {}
        self.rng = random.Random(5)

    def write(self, folder):
        """Write them for the testbench; return its parameters."""
        folder.mkdir()
        (folder / "cases.json").write_text(json.dumps(self.cases))
        np.savez(folder / "images.npz", **self.arrays)
        return {**dataclasses.asdict(self.spec), "folder": str(folder)}

    def _key(self, array):
        for key, known in self.arrays.items():
            if known is array:
                return key
        key = f"array{len(self.arrays)}"
        self.arrays[key] = array
        return key

    def _add(self, name, before, expected, exact, entry, **more):
        case = {
            "name": name,
            "image": self._key(before),
            "expected": self._key(expected),
            "exact": self._key(exact),
            "entry": entry,
            "base": 0,
            "limit": before.size,
            "bad": [],
            "ends": "done",
            "error": [0, 0, 0],
            "nan": False,
            "counters": {},
            "abort_after": None,
            "start_again_after": None,
            "scalars": [],
            "latency": self.rng.choice([(1, 1), (1, 30), (40, 60)]),
        }
        self.cases.append(case | more)

    def image(self, program, code=None):
        """Memory with the program behind its data, and where that begins."""
        code = code or encode(program.instructions)
        entry = program.memory.size
        image = np.full(-(-(entry + len(code)) // PAGE) * PAGE, 0xA5, np.uint8)
        image[:entry] = program.memory
        image[entry : entry + len(code)] = np.frombuffer(code, np.uint8)
        return image, entry

    def _model(self, memory):
        """A core, and its registers of scalars."""
        model = CoreModel(self.spec, memory)
        scalars = random_scalars(self.rng) if self.spec.vector else []
        model.scalars[: len(scalars)] = scalars
        return model, scalars

    def good(self, name, program, *, ends=True, **more):
        """A program that ends well, or is aborted, or would never end."""
        if ends:
            check(encode(program.instructions), SequencerSpec.of(self.spec))
        before, entry = self.image(program)
        expected = before.copy()
        model, scalars = self._model(expected)
        model.run(program.instructions)
        aborted = more.get("abort_after") is not None
        exact = np.full(before.size, not aborted, np.uint8)
        more = {"scalars": scalars} | more
        more = {"nan": model.nan, "counters": program.counters(self.spec)} | more
        if aborted:
            more |= {"ends": "aborted", "counters": {}}
        self._add(name, before, expected, exact, entry, **more)

    def bad(self, name, program, index, code, engine, *, encoded=None, **more):
        """A program whose instruction `index` fails."""
        before, entry = self.image(program, encoded)
        runs = may_run(program.instructions, index, engine == Engine.SEQUENCER)
        expected = before.copy()
        exact = np.zeros(before.size, np.uint8)
        model, scalars = self._model(expected)
        for number in sorted({*runs, index} if engine == Engine.STORE else runs):
            item = program.instructions[number]
            earlier = expected.copy()
            with contextlib.suppress(*[CoreError] * (number == index)):
                model.run([item])
            sure = engine == Engine.STORE and number < index and item.opcode == Opcode.STORE
            exact[(earlier != expected) & sure] = 1
        ranges = (ErrorCode.MEMORY_RANGE, ErrorCode.SCRATCHPAD_RANGE)
        if engine != Engine.SEQUENCER and code in ranges:
            with pytest.raises(CoreError) as caught:
                CoreModel(self.spec, before.copy()).run(program.instructions)
            assert (caught.value.code, caught.value.index) == (code, index)
        if engine == Engine.SEQUENCER and code != ErrorCode.SEMAPHORE_OVERFLOW:
            more = {"counters": {"INSTRUCTIONS": index}} | more
        error = [int(code), int(engine), index]
        more = {"ends": "error", "scalars": scalars, "error": error} | more
        self._add(name, before, expected, exact, entry, **more)


def add_errors(cases, program):
    """Everything that can go wrong in a program, each time followed by one that is right."""
    size, spec = cases.spec.scratchpad.size_bytes, cases.spec
    dispatch, load, store, gemm = Engine.SEQUENCER, Engine.LOAD, Engine.STORE, Engine.GEMM
    of_load, of_store = middle(program, Opcode.LOAD), middle(program, Opcode.STORE)
    of_gemm = middle(program, Opcode.GEMM)
    end = len(program.instructions) - 1
    image, entry = cases.image(program)

    def bad(name, index, code, engine, *, change=None, header=None, **more):
        other = changed(program, index, **change) if change else program
        encoded = patched(program, index, *header) if header else None
        cases.bad(name, other, index, code, engine, encoded=encoded, **more)
        cases.good(f"after {name}", program)

    bad("opcode", of_gemm, ErrorCode.BAD_OPCODE, dispatch, header=(0, 0x7F))
    bad("length", of_gemm, ErrorCode.BAD_LENGTH, dispatch, header=(1, 4))
    bad("reserved", of_store, ErrorCode.BAD_FIELD, dispatch, header=(10, 0x80))
    bad("engine", of_gemm, ErrorCode.BAD_FIELD, dispatch, header=(10, spec.num_engines))
    bad("end signals", end, ErrorCode.BAD_FIELD, dispatch, header=(6, 1))
    inside = entry + 64 * (sum(item.words for item in program.instructions[:of_gemm]) + 2)
    bad("program beyond limit", of_gemm, ErrorCode.MEMORY_RANGE, dispatch, limit=inside)
    bad("program before base", 0, ErrorCode.MEMORY_RANGE, dispatch, base=entry + 64)
    bad("no memory", 0, ErrorCode.MEMORY_RANGE, dispatch, limit=0)
    bad("program unreadable", of_gemm, ErrorCode.AXI_READ, dispatch,
        bad=[(inside, inside + 1, SLVERR)])  # fmt: skip
    body = program.instructions[of_load].body
    bad("load no bytes", of_load, ErrorCode.BAD_FIELD, load, change={"row_bytes": 0})
    bad("load beyond memory", of_load, ErrorCode.MEMORY_RANGE, load,
        change={"memory": (1 << 48) - PAGE + body["memory"] % 64})  # fmt: skip
    bad("load beyond scratchpad", of_load, ErrorCode.SCRATCHPAD_RANGE, load,
        change={"scratchpad": size + body["scratchpad"] % 64})  # fmt: skip
    for name, response in (("SLVERR", SLVERR), ("DECERR", DECERR)):
        first = body["memory"] // 64 * 64
        index = first_touching(program, Opcode.LOAD, first)
        bad(f"load {name}", index, ErrorCode.AXI_READ, load, bad=[(first, first + 1, response)])
    body = program.instructions[of_store].body
    bad("store beyond memory", of_store, ErrorCode.MEMORY_RANGE, store,
        change={"memory": image.size + body["memory"] % 64})  # fmt: skip
    bad("store beyond scratchpad", of_store, ErrorCode.SCRATCHPAD_RANGE, store,
        change={"scratchpad": size + body["scratchpad"] % 64})  # fmt: skip
    for name, response in (("SLVERR", SLVERR), ("DECERR", DECERR)):
        first = body["memory"] // 64 * 64
        index = first_touching(program, Opcode.STORE, first)
        bad(f"store {name}", index, ErrorCode.AXI_WRITE, store, bad=[(first, first + 1, response)])
    for name, base in (("a", size), ("b", size), ("a", -size), ("b", -size)):
        bad(f"operand {name} at {base}", of_gemm, ErrorCode.SCRATCHPAD_RANGE, gemm,
            change={f"{name}__base": base})  # fmt: skip
    of_last = middle(program, Opcode.GEMM, lambda body: body["extent"]["last"])
    for base in (size, -64):
        bad(f"result at {base}", of_last, ErrorCode.SCRATCHPAD_RANGE, gemm,
            change={"result__base": base})  # fmt: skip
    tiny = dataclasses.replace(
        program.instructions[of_load],
        wait=(),
        signal=(15,),
        body={**program.instructions[of_load].body, "row_bytes": 2, "rows": 0, "planes": 0},
    )
    many = Program([*[tiny] * 256, Instruction(Opcode.END)], program.memory)
    cases.bad("semaphore", many, 255, ErrorCode.SEMAPHORE_OVERFLOW, dispatch)
    cases.good("after semaphore", program)


def add_vectors(cases):
    """Programs with VECTOR instructions, alone and beside products, right ones and wrong ones."""
    spec, rng = cases.spec, random.Random(7)
    size = spec.scratchpad.size_bytes
    alone = [vectors(spec, number) for number in range(4)]
    for number, program in enumerate(alone):
        cases.good(f"vectors {number}", program)
    for number, which in enumerate(PASSES):
        product = layer(spec, which, 30 + number, size_bytes=size // 2)
        both = merged(spec, product, vectors(spec, number, size_bytes=size // 2), cases.rng)
        cases.good(f"vectors beside {which}", both)
    for number, which in enumerate(("x", "y", "target", "target")):
        program = alone[number]
        index = middle(program, Opcode.VECTOR)
        op = VectorOp.decoded(program.instructions[index].body)
        op = dataclasses.replace(op, y=op.y or op.x)
        failing = changed(program, index, **beyond(rng, op, which, size).encoded())
        cases.bad(f"vector {which} outside {number}", failing, index, ErrorCode.SCRATCHPAD_RANGE,
                  Engine.VECTOR)  # fmt: skip
        cases.good(f"after vector {which} outside {number}", program)
    index = middle(alone[0], Opcode.VECTOR)
    blocks = dataclasses.replace(
        VectorOp.decoded(alone[0].instructions[index].body), x=Source(0, format=Format.MXINT8)
    )
    failing = changed(alone[0], index, **blocks.encoded())
    cases.bad("vector of blocks", failing, index, ErrorCode.BAD_FIELD, Engine.VECTOR)
    cases.good("after vector of blocks", alone[0])
    for number, after in enumerate((150, 400, 520, 640, 760)):
        cases.good(f"vectors aborted after {after}", alone[number % 4], abort_after=after)
        cases.good(f"after vectors aborted {number}", alone[(number + 1) % 4])


def with_nans(program):
    """Its first operand begins with NaN, and then infinity."""
    memory = program.memory.copy()
    memory[:2], memory[32:34] = (0xC0, 0x7F), (0x80, 0x7F)
    return Program(program.instructions, memory)


NARROW_FORMATS = Formats(BF16, BF16, BF16, BF16)
SMALL = ConvSpec(cin=20, cout=9, kernel=(2, 2), h=4, w=3, batch=2)
"""Convolution in whose programs the errors happen."""


@cache
def cases_of_two():
    """All that is tried on a device of two engines."""
    cases = Cases(TWO)
    layers = [layer(TWO, which, seed) for seed in range(2) for which in PASSES]
    for number, program in enumerate(layers):
        cases.good(f"layer {number}", program)
    half = TWO.scratchpad.size_bytes // 2
    for number, one, other in [(0, "forward", "weight"), (1, "input", "forward")]:
        pair = [layer(TWO, which, 20 + number, size_bytes=half) for which in (one, other)]
        both = merged(TWO, *pair, cases.rng)
        cases.good(f"both engines {number}", both)
        index = next(index for index, item in enumerate(both.instructions) if item.engine == 1)
        failing = changed(both, index, b__base=-TWO.scratchpad.size_bytes)
        cases.bad(f"engine 1 fails {number}", failing, index, ErrorCode.SCRATCHPAD_RANGE,
                  Engine.GEMM + 1)  # fmt: skip
    for element in (BF16, FP32):
        cases.good(f"operand over the end, {element.value}", over_the_end(TWO, element))
    for number, conv in enumerate([ConvSpec.linear(1, 90, 4), ConvSpec.linear(3, 9, 100)]):
        many = layer(
            TWO, "forward", number, conv=conv, cut=Tiling(32, 1, 32), formats=NARROW_FORMATS
        )
        cases.good(f"back to back {number}", back_to_back(many))
    add_vectors(cases)
    cases.good("only loads", Program(
        [dataclasses.replace(item, wait=(), signal=()) for item in layers[0].instructions
         if item.opcode in (Opcode.LOAD, Opcode.END)], layers[0].memory,
    ))  # fmt: skip
    cases.good("only end", Program([Instruction(Opcode.END)], layers[0].memory))
    small = layer(TWO, "forward", 0, conv=SMALL, cut=Tiling(32, 1, 32), formats=NARROW_FORMATS)
    cases.good("nan", with_nans(small))
    assert cases.cases[-1]["nan"]
    add_errors(cases, small)
    stuck = Program([*small.instructions[:-1], Instruction(Opcode.END, (9,))], small.memory)
    cases.good("stuck", stuck, ends=False, abort_after=1500)
    cases.good("after stuck", small)
    for number, after in enumerate((0, 30, 90, 200, 350, 500)):
        cases.good(f"aborted after {after}", layers[number], abort_after=after)
        cases.good(f"after abort {number}", small, start_again_after=10)
    return cases


@cache
def cases_of_narrow(spec=NARROW):
    """All that is tried on a device of one engine and a narrow bus."""
    cases = Cases(spec)
    small = layer(spec, "forward", 0, conv=SMALL, cut=Tiling(32, 1, 32), formats=NARROW_FORMATS)
    cases.good("small", small)
    layers = {which: layer(spec, which, 3) for which in PASSES}
    for which, program in layers.items():
        cases.good(which, program)
    cases.good("nan", with_nans(small))
    for number, after in enumerate((150, 700, 900, 1100)):
        cases.good(f"aborted after {after}", layers["input"], abort_after=after, latency=(200, 300))
        cases.good(f"after abort {number}", small)
    of_gemm = middle(small, Opcode.GEMM)
    cases.bad("vector without its engine", small, of_gemm, ErrorCode.BAD_OPCODE, Engine.SEQUENCER,
              encoded=patched(small, of_gemm, 0, Opcode.VECTOR))  # fmt: skip
    for name, base in (("a", 1 << 13), ("b", 1 << 13)):
        failing = changed(small, of_gemm, **{f"{name}__base": base})
        cases.bad(f"operand {name}", failing, of_gemm, ErrorCode.SCRATCHPAD_RANGE, Engine.GEMM)
        cases.good(f"after operand {name}", small)
    for name, opcode, code in (
        ("load", Opcode.LOAD, ErrorCode.AXI_READ), ("store", Opcode.STORE, ErrorCode.AXI_WRITE),
    ):  # fmt: skip
        first = small.instructions[middle(small, opcode)].body["memory"] // 64 * 64
        index = first_touching(small, opcode, first)
        cases.bad(name, small, index, code, Engine[name.upper()], bad=[(first, first + 1, SLVERR)])
        cases.good(f"after {name}", small)
    return cases


@cache
def verilog_of_narrow():
    """A device with a port that selects one of `FAULTS`; 0 is none."""
    verilog = verilog_of(Device(NARROW))
    for number, (module, pattern, replacement) in enumerate(FAULTS.values(), 1):
        begin = verilog.index(f"module {module}")
        end = verilog.index("endmodule", begin)
        changed, count = re.subn(
            pattern, replacement.replace("FAULT", f"(top.fault == {number})"), verilog[begin:end]
        )
        assert count == 1, pattern
        verilog = verilog[:begin] + changed + verilog[end:]
    ports = r"(?s)(module top\()(.*?\);)"
    return re.sub(ports, r"\1fault, \2\n  input [3:0] fault;\n  wire [3:0] fault;", verilog)


# A fault in the Verilog: the module, what it is instead.
TOP, GEMM = "top(", "gemm_engine("
FAULTS = {
    "operand A gets operand B's words": (
        TOP, r"(\.read_a__data)\(read_a__data\)", r"\1(FAULT ? read_b__data : read_a__data)"
    ),
    "operand B does not wait for its bank": (
        TOP, r"(\.read_b__ready)\(read_b__ready\)", r"\1(FAULT | read_b__ready)"
    ),
    "loads are done when stores are": (
        TOP, r"\.load_done\(load_done\)", ".load_done(FAULT ? store_done : load_done)"
    ),
    "a start does not clear": (TOP, r"rst \| clear;", "rst | (clear & ~FAULT);"),
    "stores are always idle": (
        TOP, r"\.store_idle\(store_idle\)", ".store_idle(FAULT | store_idle)"
    ),
    "store bytes count loads": (
        TOP, r"\.store_bytes\(store_bytes\)", ".store_bytes(FAULT ? load_bytes : store_bytes)"
    ),
    "nan is not seen": (
        TOP, r"\.nan\(nan\)", ".nan(nan & ~FAULT)"
    ),
    "operand B's failure is not seen": (
        TOP, r"(\.gemm_failures__0__1__valid)\(gemm_failures__0__1__valid\)",
        r"\1(gemm_failures__0__1__valid & ~FAULT)",
    ),
    "a product is done as it begins": (
        GEMM,
        r"(\| summed;\s+assign \S+  = )(\S+)(  & \S+ ;(?:.*\n)*?  assign is_done = )([^;]*);",
        r"\1\2\3FAULT ? \2 : \4;",
    ),
    "the fork hands a word out twice": (
        "\\gemm_engine.fork", r"(\S+)  = i_ready \? 5'h00 : (\S+) ;",
        r"\1  = (i_ready | FAULT) ? 5'h00 : \2 ;",
    ),
}  # fmt: skip


def run(cases, verilog, work, **more):
    """Run cases on a device."""
    return simulate_verilog(
        verilog, "tb_device", work, parameters=cases.write(work / "cases") | more,
        flags=FLAGS, seed=3,
    )  # fmt: skip


SHORT = {
    "programs and their interrupts": ("small", "forward", "nan"),
    "errors": (
        "vector without its engine", "operand a", "after operand a", "load", "after load", "store",
        "after store",
    ),
    "aborts": ("aborted after 150", "after abort 0", "aborted after 900", "after abort 2"),
}  # fmt: skip
"""Cases of a device of one engine that every run of the tests tries."""


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("spec", [NARROW, TWO_PORTS], ids=["one port", "two ports"])
def test_small_device_as_it_is_built(spec, kind, tmp_path):
    """On the Verilog that a build has, as it is written there; one simulator for all kinds."""
    cases = cases_of_narrow(spec)
    assert set(SHORT[kind]) <= {case["name"] for case in cases.cases}
    simulate_verilog(
        device_verilog(spec), "tb_device", tmp_path, seed=3,
        parameters=cases.write(tmp_path / "cases") | {"cases": SHORT[kind]},
        flags=(*FLAGS, "-CFLAGS", "-O1"),  # a short simulation: compiling takes longer
    )  # fmt: skip


@pytest.mark.slow  # a build of a whole device
def test_two_engines(tmp_path):
    run(cases_of_two(), verilog_of(Device(TWO)), tmp_path)


@pytest.mark.slow
def test_narrow_bus(tmp_path):
    run(cases_of_narrow(), verilog_of_narrow(), tmp_path, fault=0)


@pytest.mark.slow  # a build of a whole device; blocks have faults of their own
@pytest.mark.parametrize("fault", FAULTS)
def test_testbench_sees(fault, tmp_path):
    number = list(FAULTS).index(fault) + 1
    with pytest.raises(SimulationError) as caught:
        run(cases_of_narrow(), verilog_of_narrow(), tmp_path, fault=number)
    assert "runs_programs" in caught.value.failures
