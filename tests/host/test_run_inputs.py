"""A network with two inputs, of which a later device reads one: built, run, checked, resumed."""

import json

import numpy as np
import pytest
from build_cases import plan_of

from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.data.data import load_data
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.network.zoo.gnmt import Sizes, gnmt

ARRAYS = ("source", "target", "labels")


def translator(batch):
    """GNMT with two layers each, 8 features and a few tokens."""
    return gnmt("translator", batch, Sizes(2, 9, 7, 8, 12, 3, 0.25))


def built(folder, *, train=True):
    plan, graph, cluster = plan_of(
        load=translator,
        batch=8,
        microbatches=2,
        array=(8, 8),
        scratchpad_bytes=1 << 18,
        schedules=("1f1b-as" if train else "gpipe",),
        train=train,
    )
    write_build(plan, graph, cluster, folder)
    return open_build(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fpgapipe.hw.rtl.core_verilog.device_verilog", lambda core: "module top; endmodule"
    )
    monkeypatch.chdir(tmp_path)
    built(tmp_path / "b")
    return tmp_path / "b"


def pairs(count=40):
    """A target token depends on the source's, and the decoder reads the one before."""
    rng = np.random.default_rng(0)
    source = rng.integers(0, 9, (count, 12))
    labels = source[:, 1:4] % 7
    target = np.concatenate([np.zeros((count, 1), int), labels[:, :-1]], 1)
    return dict(zip(ARRAYS, (source, target, labels), strict=True))


def test_both_devices_read_an_input(folder):
    read = [set(part.inputs) for part in open_build(folder).pipeline.parts]
    assert read == [{"source"}, {"target"}]


def test_trained_checked_resumed_and_validated(folder, tmp_path, cli):
    np.savez(tmp_path / "pairs.npz", **pairs())
    model = ("run", "b", "--backend", "model", "--data", "pairs.npz", "--learning-rate", "0.1")
    code, out, err = cli(*model, "--steps", 3, "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] == 3
    code, out, err = cli(*model[:4], "--steps", 6, "--resume", "--check", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["steps"], found["ran"], found["check"]) == (6, 3, "torch")
    newest = max((folder / "run/model/checkpoints").glob("*.ckpt"))
    state = Checkpoint.read(newest).state
    log = read_log(folder / "run/model/log.jsonl")
    assert log[0]["labels"] == 24
    code, out, err = cli("run", "b", *model[4:], "--backend", "torch", "--steps", 6,
                         "--precision", "mxint8", "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["loss"] == pytest.approx(found["loss"], rel=1e-3)
    other = Checkpoint.read(max((folder / "run/torch/checkpoints").glob("*.ckpt"))).state
    for name, value in state.items():
        np.testing.assert_allclose(other[name], value, rtol=2e-2, atol=2e-3, err_msg=name)


def test_data_that_do_not_fit(folder, tmp_path, cli):
    given = pairs()
    run = ("run", "b", "--backend", "model", "--steps", 1, "--data")
    for changed, message in (
        (
            {"target": None},
            "must have arrays source, target and labels for translator, and has no ",
        ),
        ({"more": given["source"]}, "has array more, which is no input of translator"),
        ({"target": given["source"]}, "array target must have tokens of 3 for translator"),
    ):
        found = {name: each for name, each in {**given, **changed}.items() if each is not None}
        np.savez(tmp_path / "wrong.npz", **found)
        code, _, err = cli(*run, "wrong.npz")
        assert code == 2
        assert message in " ".join(err.split())
    code, _, err = cli(*run, "digits")
    assert code == 2
    assert "translator has 2 inputs (source, target)" in " ".join(err.split())
    assert cli(*run, "random")[0] == 0


def test_inference(tmp_path, monkeypatch, cli):
    monkeypatch.setattr(
        "fpgapipe.hw.rtl.core_verilog.device_verilog", lambda core: "module top; endmodule"
    )
    monkeypatch.chdir(tmp_path)
    build = built(tmp_path / "b", train=False)
    code, out, err = cli("run", "b", "--backend", "model", "--data", "random", "--check", "--json")
    assert code == 0, err
    samples = load_data("random", build.graph).validation
    logits = np.load(tmp_path / "b/run/model/logits.npz")
    assert logits["logits"].shape == (len(samples.labels), 3, 7)
    right = (logits["logits"].argmax(-1) == logits["labels"]).mean()
    assert json.loads(out)["accuracy"] == pytest.approx(right)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and a link
def test_hardware_equals_the_model(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    built(tmp_path / "b")
    code, out, err = cli("run", "b", "--data", "random", "--steps", 2, "--check", "--no-validation")
    assert code == 0, err
    assert "checked against model: every byte of every memory equal" in out
