"""``fpgapipe bench core``: layers as text, and one run of each pass in simulation."""

import json
import re

import pytest

from fpgapipe.errors import UserError
from fpgapipe.host.bench.core_bench import bench_layer, parse_layer
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.products.conv import ConvSpec

# The core of test_core_cycles.py and test_core_random.py, so that one build serves all three.
SMALL = (
    *("bench", "core", "--rows", "8", "--cols", "8"),
    *("--acc-depth", "256", "--scratchpad-bytes", "131072"),
)


def test_layers_as_text():
    assert parse_layer("gemm:m=3,n=4,k=5") == ConvSpec(cin=5, cout=4, batch=3)
    assert parse_layer("conv:cin=3,cout=8,k=7,stride=2,pad=3,h=20,w=30") == ConvSpec(
        3, 8, (7, 7), (2, 2), (3, 3, 3, 3), 20, 30, 1
    )
    assert parse_layer("conv:cin=3,cout=8,k=3x5,stride=1x2,pad=1x2,dilation=2,h=9,w=9,batch=4") == (
        ConvSpec(3, 8, (3, 5), (1, 2), (1, 2, 1, 2), 9, 9, 4, (2, 2))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "layer '' must begin with 'gemm:' or 'conv:'"),
        ("gem:m=1", "layer 'gem:m=1' must begin with 'gemm:' or 'conv:'; did you mean 'gemm'?"),
        ("gemm:m=1,n=2", "layer 'gemm:m=1,n=2' lacks k"),
        ("gemm:m=1,n=2,k=3,m=4", "layer 'gemm:m=1,n=2,k=3,m=4' gives 'm' twice"),
        ("gemm:m=1,n=2,k=x", "layer 'gemm:m=1,n=2,k=x': k must be a whole number, not 'x'"),
        ("gemm:m=1x2,n=2,k=3", "layer 'gemm:m=1x2,n=2,k=3': m must be a whole number, not '1x2'"),
        ("gemm:m=0,n=2,k=3", "layer 'gemm:m=0,n=2,k=3': conv batch must be at least 1, not 0"),
        (
            "conv:cin=1,cout=1,k=5,h=3,w=9",
            "layer 'conv:cin=1,cout=1,k=5,h=3,w=9': conv kernel (5, 5) must fit the padded image "
            "of 3 x 9",
        ),
        ("conv:cin=1,cout=1,k=1,hh=3,w=9", "has no 'hh'; did you mean 'h'?"),
    ],
)
def test_refuses_layers(text, message):
    with pytest.raises(UserError) as caught:
        parse_layer(text)
    assert message in str(caught.value)


def test_a_core_that_cannot_be_is_refused(cli):
    code, out, err = cli("bench", "core", "--rows", "5", "--layer", "gemm:m=1,n=1,k=1")
    assert (code, out) == (2, "")
    assert err == "error: core rows must divide 32, not 5\n"


def test_a_layer_that_does_not_fit_is_refused(cli):
    code, _, err = cli(
        *("bench", "core", "--rows", "4", "--cols", "4", "--scratchpad-bytes", "1024"),
        *("--layer", "conv:cin=512,cout=512,k=3,h=30,w=30,pad=1"),
    )
    assert code == 2
    assert "needs more than the 1,024 bytes of scratchpad" in err


@pytest.mark.sim
@pytest.mark.parametrize("which", ["forward", "input", "weight"])
def test_one_layer(cli, which):
    code, out, _ = cli(
        *SMALL,
        *("--layer", "conv:cin=16,cout=24,k=3,stride=1,pad=1,h=12,w=12,batch=2"),
        *("--pass", which, "--seed", "3", "--json"),
    )
    assert code == 0
    found = json.loads(out)
    assert found["matches_model"] is True
    assert found["macs"] == 2 * 12 * 12 * 9 * 16 * 24
    assert found["utilisation"] == found["macs"] / (found["cycles"] * 64)
    assert abs(found["error"]) < 0.03
    assert found["counters"]["GEMM0_VECTORS"] > 0


@pytest.mark.sim
def test_zeros_of_an_input_gradient(cli):
    """Positions that no tap meets take products with one block of a reduction of three."""
    layer = "conv:cin=16,cout=70,k=1,stride=2,h=9,w=9,batch=2"
    code, out, _ = cli(*SMALL, "--layer", layer, "--pass", "input", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["matches_model"] is True
    met, unmet = 2 * 5 * 5, 2 * (9 * 9 - 5 * 5)
    assert found["counters"]["GEMM0_VECTORS"] == 2 * (met * 9 + unmet * 4)


@pytest.mark.sim
def test_a_table_for_people(cli):
    code, out, _ = cli(
        *SMALL,
        *("--layer", "gemm:m=20,n=20,k=20"),
    )
    assert code == 0
    assert re.search(r"^matches model +yes$", out, re.M)
    assert re.search(r"^macs +8,000$", out, re.M)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize(
    ("simulation", "compiler"), [("verilog", "g++"), ("verilog", ""), ("verified", "")]
)
def test_a_large_core_with_a_link_and_without_models(simulation, compiler, monkeypatch):
    """Registers of 32 x 32 are so wide that a compiler once made code that ends in a crash."""
    monkeypatch.setenv("FPGAPIPE_SIMULATE", simulation)
    if compiler:
        monkeypatch.setenv("FPGAPIPE_CXX", compiler)
    core = CoreSpec(
        32,
        32,
        scratchpad=ScratchpadSpec(8, 1 << 18),
        vector=VectorSpec(),
        links=(LinkEngineSpec(16),),
    )
    found = bench_layer(parse_layer("gemm:m=96,n=70,k=100"), "forward", core)
    assert found.matches_model
