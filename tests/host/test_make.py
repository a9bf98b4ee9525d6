"""What the commands do, called from Python: one call, and a result that prints and is data."""

import json

import pytest

import fpgapipe
from fpgapipe import UserError
from fpgapipe.host.make import build as making
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.network.load import load_network
from fpgapipe.sim_tb.native import core_device

CHAIN = ("--board", "u280", "--devices", 2)
SMALL = (*CHAIN, "--array", "8x8", "--batch", 8)


@pytest.fixture(scope="module")
def chain():
    return fpgapipe.chain_of(fpgapipe.load_board("u280"), 2)


def told(cli, *words):
    """What a command prints, as text and as JSON."""
    code, text, err = cli(*words)
    assert code == 0, err
    code, value, err = cli(*words, "--json")
    assert code == 0, err
    return text, json.loads(value)


@pytest.mark.parametrize("strategy", ["pipeline", "data"])
def test_a_plan_prints_and_turns_into_what_the_command_says(cli, chain, strategy):
    found = fpgapipe.plan("digits-cnn", chain, batch=8, array=(8, 8), strategy=strategy)
    text, value = told(cli, "plan", "digits-cnn", *SMALL, "--strategy", strategy)
    assert text == f"{found}\n"
    assert value == json.loads(json.dumps(found.to_dict()))
    assert [each["device"] for each in found.to_records()] == ["u280-0", "u280-1"]


def test_a_network_may_be_a_function_and_a_cluster_a_specification(chain):
    asked = []

    def network(samples):
        asked.append(samples)
        return load_network("digits-cnn", samples)

    found = fpgapipe.plan(network, chain.spec, batch=8, array=(8, 8))
    named = fpgapipe.plan("digits-cnn", chain, batch=8, array=(8, 8))
    assert len(asked) == len(set(asked))
    assert found.plan == named.plan
    assert found.graph.batch == found.plan.microbatch


def test_a_python_user_gets_a_larger_scratchpad_for_a_layer_that_does_not_fit(
    chain, monkeypatch, tmp_path
):
    sizes = []
    write_build = making.write_build

    def write(plan, *args, **options):
        core = plan.stages[0].core
        sizes.append(core.scratchpad_banks * core.scratchpad_bank_bytes)
        if len(sizes) == 1:
            raise UserError("layer 'conv9' is too large") from NoRoom()
        return write_build(plan, *args, **options)

    monkeypatch.setattr(making, "write_build", write)
    monkeypatch.setattr(core_device, "device_verilog", lambda core: "module top; endmodule")
    built = fpgapipe.build("digits-cnn", chain, tmp_path / "b", batch=8, array=(8, 8), verify=False)
    assert sizes[1:] == [2 * sizes[0]]
    assert built.build.plan == fpgapipe.open_build(tmp_path / "b").plan
    assert built.to_dict()["verification"] == "programs not verified: --no-verify"
    assert len(built.to_records()) == 2


def test_a_build_from_python_is_that_of_the_command(cli, chain, tmp_path):
    made = {"batch": 8, "array": (8, 8), "verify": False, "hardware": False}
    built = fpgapipe.build("digits-cnn", chain, tmp_path / "a", **made)
    words = ("build", *SMALL, "--no-verify", "--no-hardware")
    code, text, err = cli(*words, "-o", tmp_path / "b")
    assert code == 0, err
    assert text == f"{built}\n".replace(str(tmp_path / "a"), str(tmp_path / "b"))
    files = sorted(path for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_a_package_needs_boards(chain):
    with pytest.raises(TypeError, match="a package needs the boards of a Cluster"):
        fpgapipe.build("digits-cnn", chain.spec, package="vitis")


def test_inference_is_asked_for_by_the_options_of_the_programs(chain, tmp_path):
    options = fpgapipe.StepOptions(train=False)
    with pytest.raises(UserError, match="--int8 builds networks for inference"):
        fpgapipe.build("digits-cnn", chain, tmp_path / "b", int8="digits")
    built = fpgapipe.build(
        "digits-cnn", chain, tmp_path / "b", batch=8, array=(8, 8), options=options,
        verify=False, hardware=False,
    )  # fmt: skip
    assert built.build.plan.mode == "infer"
