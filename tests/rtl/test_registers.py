"""The register map, its document, and the gateware on an AXI4-Lite bus."""

import dataclasses
import re
from pathlib import Path

import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.model.registers import Kind, RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import VERSION, CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.control.registers import Registers
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate_verilog

TESTS = (
    "keeps_what_is_written",
    "takes_accesses_side_by_side",
    "runs_a_core",
    "counts",
    "reads_halves_of_one_moment",
    "forgets_at_reset",
    "shows_links",
)
SPEC = CoreSpec(
    8, 16, num_engines=2, acc_depth=64, scratchpad=ScratchpadSpec(2, 1024), bus_bytes=8,
    vector=VectorSpec(8, 2),
)  # fmt: skip
LINKED = dataclasses.replace(SPEC, vector=None, links=(LinkEngineSpec(), LinkEngineSpec(64, 32)))
DOCUMENT = Path(__file__).parents[2] / "docs" / "registers.md"


def test_document_has_the_map():
    """Replace the tables of docs/registers.md by what this compares them with."""
    core = CoreSpec(32, 32, vector=VectorSpec(), links=(LinkEngineSpec(),))
    tables = RegisterMap(core).markdown()
    assert tables in DOCUMENT.read_text(), tables


@pytest.mark.parametrize("vector", [None, VectorSpec()])
@pytest.mark.parametrize("num_engines", [1, 4])
@pytest.mark.parametrize("num_links", [0, 1, 4])
def test_registers_have_places_of_their_own(num_engines, vector, num_links):
    links = (LinkEngineSpec(),) * num_links
    core = CoreSpec(32, 32, num_engines=num_engines, vector=vector, links=links)
    registers = list(RegisterMap(core))
    offsets = [register.offset for register in registers]
    assert offsets == sorted(set(offsets))
    assert all(offset % 4 == 0 and offset < 4096 for offset in offsets)
    assert len({register.name for register in registers}) == len(registers)
    for register in registers:
        assert sum(field.mask for field in register.fields) < 1 << 32
        # Fields do not overlap.
        assert len({bit for field in register.fields for bit in range(field.bits)}) <= 32
        bits = [bit + field.low for field in register.fields for bit in range(field.bits)]
        assert len(bits) == len(set(bits))


def test_a_core_says_what_it_is():
    values = {r.name: r.reset for r in RegisterMap(SPEC) if r.kind is Kind.CONSTANT}
    assert values == {
        "ID": 0x50475046,
        "VERSION": VERSION,
        "ROWS": 8,
        "COLS": 16,
        "ENGINES": 2,
        "ACC_DEPTH": 64,
        "BANKS": 2,
        "BANK_BYTES": 1024,
        "BUS_BYTES": 8,
        "VECTOR_LANES": 8,
        "CONFIGURATION": int(SPEC.digest, 16),
    }


def test_cores_that_differ_anywhere_have_other_digests():
    links = (dataclasses.replace(LINKED.links[0], frame_words=8), *LINKED.links[1:])
    others = [dataclasses.replace(SPEC, outstanding=32), dataclasses.replace(LINKED, links=links)]
    assert len({core.digest for core in (SPEC, LINKED, *others)}) == 4


def test_links_say_what_they_are():
    found = RegisterMap(LINKED)
    assert found["LINKS"].reset == 2
    assert found.offset("LINK1_CREDIT_WAIT_HI") == 0x5EC
    assert found.offset("QUEUE7_WAIT") == 0x878  # of RECEIVE[1]
    config = found["LINK1_CONFIG"]
    fields = {field.name: field.of(config.reset) for field in config.fields}
    assert fields == {
        "phy_bytes": 64, "frame_words": 32, "slots0": 15, "slots1": 15, "slots2": 3,
    }  # fmt: skip
    assert found.amount_bits("LINK0_TX_WORDS") == 2
    assert found.amount_bits("LINK0_TX_FRAMES") == 1


def test_finds_registers_and_fields():
    found = RegisterMap(SPEC)
    assert found.offset("GEMM1_VECTORS_HI") == 0x26C
    assert found["ERROR"].field("engine").of(0x1234) == 0x2
    with pytest.raises(KeyError, match="register STATUS has no field 'busy'"):
        found["STATUS"].field("busy")


def run(verilog, work, spec=SPEC, **more):
    simulate_verilog(
        verilog, "tb_registers", work, parameters={**dataclasses.asdict(spec), **more}, seed=1
    )


@pytest.mark.sim
@pytest.mark.parametrize("spec", [SPEC, LINKED], ids=["alone", "linked"])
def test_gateware_matches_map(spec, tmp_path):
    run(verilog_of(Registers(spec)), tmp_path, spec)


def with_first_count(count):
    """Verilog whose counters have this number after a reset."""
    verilog, found = re.subn(
        r"rst \? 64'h0000000000000000", f"rst ? 64'h{count:016x}", verilog_of(Registers(SPEC))
    )
    assert found == len(RegisterMap(SPEC).counters)
    return verilog


@pytest.mark.sim
def test_counters_have_upper_halves(tmp_path):
    first_count = (7 << 32) - 100
    run(with_first_count(first_count), tmp_path, first_count=first_count)


# A fault in the Verilog, and the test that has to see it.
FAULTS = {
    "reads an upper half as it is now": (
        r"upper <= [^;]*;",
        "upper <= cycles_count[63:32];",
        "reads_halves_of_one_moment",
    ),
    "answers where nothing is": (
        r"s_axil_rresp <= [^;]*;",
        "s_axil_rresp <= 2'h0;",
        "keeps_what_is_written",
    ),
    "writes all bytes": (r"strobe <= [^;]*;", "strobe <= 4'hf;", "keeps_what_is_written"),
    "takes back a response": (
        r"s_axil_bready \? 1'h0 : s_axil_bvalid",
        "1'h0",
        "keeps_what_is_written",
    ),
    "keeps NaN": (r"command_clear_status \? 1'h0 : status_nan", "status_nan", "runs_a_core"),
    "does not clear a counter": (r"command_clear_counters \? 64'h0+ :", "1'h0 ? 64'h0 :", "counts"),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path):
    pattern, replacement, test = FAULTS[fault]
    first_count = (7 << 32) - 100
    faulty, count = re.subn(pattern, replacement, with_first_count(first_count), count=1)
    assert count == 1
    with pytest.raises(SimulationError) as caught:
        run(faulty, tmp_path, first_count=first_count)
    assert test in caught.value.failures
