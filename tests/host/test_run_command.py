"""``fpgapipe run`` on a small build: exit codes, files, and what users get wrong."""

import errno
import importlib.util
import json
import os
import re
import resource
import signal
import threading

import numpy as np
import pytest
from run_cases import small_build
from test_run import Flips

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build.build import holding, open_build
from fpgapipe.host.cli.main import main
from fpgapipe.host.data.data import load_data
from fpgapipe.host.runtime import runtime
from fpgapipe.host.runtime.check import ExactCheck
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.runtime import RunOptions, run_build
from fpgapipe.host.runtime.settings import Settings

MODEL = ("--backend", "model", "--data", "random")
MX = ("--backend", "torch-mx", "--data", "random")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    small_build(tmp_path / "b", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "b"


def newest(folder):
    return max((folder / "checkpoints").glob("*.ckpt"))


def test_trained_resumed_and_gone_on_elsewhere(folder, cli):
    code, out, err = cli("run", "b", *MODEL, "--steps", 5, "--json")
    assert code == 0, err
    whole = json.loads(out)
    state = Checkpoint.read(newest(folder / "run/model")).state
    assert {name: whole[name] for name in ("network", "mode", "backend", "devices", "batch")} == {
        "network": "small", "mode": "train", "backend": "model", "devices": 2, "batch": 8,
    }  # fmt: skip
    assert (whole["steps"], whole["ran"], whole["cycles"], whole["check"]) == (5, 5, None, None)
    assert whole["macs_per_s"] == pytest.approx(whole["macs"] * 5 / whole["wall_s"])
    log = read_log(folder / "run/model/log.jsonl")
    assert whole["loss"] == log[4]["loss"]
    assert whole["accuracy"] == log[5]["validation"]["accuracy"]
    settings = json.loads((folder / "run/model/settings.json").read_text())
    assert (settings["data"], settings["backend"], settings["schedule"]) == (
        "random", "model", "constant",
    )  # fmt: skip
    # The same in two goes, the second checked against PyTorch.
    assert cli("run", "b", *MODEL, "--steps", 3)[0] == 0
    assert (folder / "run/model.before/log.jsonl").exists()
    code, out, err = cli("run", "b", *MODEL[:2], "--steps", 5, "--resume", "--check")
    assert code == 0, err  # data as before
    assert re.search(r"mini-batches +5, 2 just now\n", out)
    assert "checked against torch: loss and gradients within" in out
    assert "going on from step 3" in err
    for name, value in Checkpoint.read(newest(folder / "run/model")).state.items():
        np.testing.assert_array_equal(value, state[name])
    # On in PyTorch from the third step.
    file = folder / "run/model/checkpoints/step-00000003.ckpt"
    common = ("run", "b", "--data", "random", "--steps", 5, "--backend", "torch")
    code, out, err = cli(*common, "--precision", "mxint8", "--from", file, "--json")
    assert code == 0, err
    assert (json.loads(out)["steps"], json.loads(out)["ran"]) == (5, 2)
    found = Checkpoint.read(newest(folder / "run/torch")).state
    for name, value in state.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
    backends = [line["backend"] for line in read_log(folder / "run/torch/log.jsonl")]
    assert backends == ["model"] * 4 + ["torch"] * 3  # each with its validation
    assert cli(*common, "--from", "model")[0] == 0
    code, out, _ = cli("run", "b", "--backend", "torch", "--resume", "--no-validation", "--json")
    assert (code, json.loads(out)["steps"], json.loads(out)["ran"]) == (0, 5, 0)
    code, out, err = cli(*common[:4], "--steps", 1, *common[6:], "--precision", "mxint8", "--check")
    assert code == 0, err
    assert "checked against model: loss and gradients within" in out
    code, out, err = cli("run", "b", *MX, "--steps", 2, "--check")
    assert code == 0, err
    assert "checked against model: loss and gradients within" in out
    assert json.loads((folder / "run/torch-mx/settings.json").read_text())["precision"] == "mxint8"
    assert cli(*common, "--from", "model")[0] == 0
    code, _, err = cli(*common, "--resume", "--precision", "bf16")
    assert (code, "precision (then 'fp32', now bf16)" in err) == (2, True)


def test_inference(tmp_path, monkeypatch, cli):
    small_build(tmp_path / "i", monkeypatch, train=False)
    build = open_build(tmp_path / "i")
    values = {name: value * 2 for name, value in build.parameters.items()}
    np.savez(tmp_path / "p.npz", **values)
    found = {}
    for name, more in (("own", ()), ("given", ("--parameters", tmp_path / "p.npz"))):
        code, out, err = cli(
            "run", tmp_path / "i", *MODEL, "--steps", 2, "--check", "--json", *more
        )
        assert code == 0, err
        summary = json.loads(out)
        assert (summary["mode"], summary["steps"], summary["loss"]) == ("infer", 2, None)
        with np.load(tmp_path / "i/run/model/logits.npz") as arrays:
            logits, labels = arrays["logits"], arrays["labels"]
        assert logits.shape == (16, 10)
        assert summary["accuracy"] == np.mean(logits.argmax(axis=1) == labels)
        log = read_log(tmp_path / "i/run/model/log.jsonl")
        assert sum(line["correct"] for line in log) == summary["accuracy"] * 16
        found[name] = logits
    reference = ModelBackend(build.pipeline, values)
    samples = load_data("random", build.graph).validation
    results, _ = reference.infer({"input": samples.images[8:16]}, [0] * 16)
    np.testing.assert_array_equal(found["given"][8:], results["linear1"])
    assert not np.array_equal(found["own"], found["given"])
    code, _, err = cli("run", tmp_path / "i", *MODEL, "--resume")
    assert (code, "inference has no checkpoints" in err) == (2, True)
    code, _, err = cli("run", tmp_path / "i", *MODEL, "--epochs", 2)
    assert (code, "inference has no epochs" in err) == (2, True)


def test_a_difference_ends_with_1(folder, cli, monkeypatch):
    def flipping(build, options):
        second = Flips(build.pipeline, build.parameters)
        return ExactCheck(second.flip(2, 1, "linear1.bias", 4, bit=9))

    monkeypatch.setattr(runtime, "open_check", flipping)
    code, out, err = cli("run", "b", *MODEL, "--steps", 4, "--check", "sim", "--json")
    assert code == 1
    found = json.loads(out)["difference"]
    assert (found["step"], found["device"], found["layer"]) == (2, 1, "linear1")
    assert (found["tensor"], found["index"], found["count"]) == ("linear1.bias", [4], 1)
    code, out, err = cli("run", "b", *MODEL, "--steps", 4, "--check", "sim")
    assert code == 1
    assert "difference: step 2, device 1, layer linear1, tensor linear1.bias[4]: " in err
    assert "checked against" not in out


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_signals_keep_the_last_step(number, expected, folder, cli, monkeypatch, interruptible):
    good = ModelBackend._run

    def interrupted(self, scalars, progress):
        if scalars[15] == 2 and presses:
            os.kill(os.getpid(), presses.pop())
        return good(self, scalars, progress)

    presses = [number]
    monkeypatch.setattr(ModelBackend, "_run", interrupted)
    code, _, err = cli("run", "b", *MODEL, "--steps", 4)
    assert (code, err.split("\n")[-2]) == (expected, "interrupted")
    assert newest(folder / "run/model").name == "step-00000002.ckpt"
    code, out, _ = cli("run", "b", *MODEL[:2], "--resume", "--json")
    assert (code, json.loads(out)["ran"]) == (0, 2)


def test_a_budget_of_time_ends_with_75(folder, cli):
    code, out, err = cli("run", "b", *MODEL, "--steps", 2, "--time-budget", "0s", "--json")
    assert (code, json.loads(out)["stopped"], json.loads(out)["ran"]) == (75, True, 0)
    assert err.endswith(
        "the time is over after 0 of 2 mini-batches: 'fpgapipe run b --backend model --resume' "
        "goes on\n"
    )
    assert newest(folder / "run/model").name == "step-00000000.ckpt"
    code, out, _ = cli("run", "b", *MODEL[:2], "--resume", "--time-budget", "1.5h", "--json")
    assert (code, json.loads(out)["stopped"], json.loads(out)["ran"]) == (0, False, 2)
    code, _, err = cli("run", "b", *MODEL, "--time-budget", "10 days")
    assert (code, "'10 days' is not a valid" in err) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"data": 3, "seed": "x", "steps": [], "momentum": null}',
        '{"seed": true, "weight_decay": 1e39, "momentum": 1e300}',
    ],
)
def test_settings_that_were_written_by_someone_else(text, folder, cli):
    assert cli("run", "b", *MODEL, "--steps", 1)[0] == 0
    (folder / "run/model/settings.json").write_text(text)
    code, out, err = cli("run", "b", *MODEL, "--steps", 2, "--resume", "--json")
    assert code == 0, err
    assert json.loads(out)["ran"] == 1


def test_a_precision_that_someone_else_made_up(folder, cli):
    assert cli("run", "b", *MODEL, "--steps", 1)[0] == 0
    (folder / "run/model/settings.json").write_text('{"precision": "fp4096"}')
    options = ("--backend", "torch", "--from", "model", "--steps", 2, "--no-validation")
    code, _, err = cli("run", "b", *options, "--data", "random")
    assert code == 0, err


def test_without_pytorch_its_extra_is_named(folder, cli, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    code, _, err = cli("run", "b", *MX)
    assert (code, "fpgapipe[torch]" in err) == (2, True), err


def test_runs_are_named_where_there_is_none_to_resume(folder, cli):
    for name, step in (("torch", 1200), ("model.before", 3)):
        place = folder / "run" / name / "checkpoints"
        place.mkdir(parents=True)
        (place / f"step-{step:08d}.ckpt").write_bytes(b"")
    others = "or go on from another run: --from b/run/model.before (step 3), --from torch "
    code, out, err = cli("run", "b", "--resume")  # before a simulator is compiled
    assert (code, out) == (2, "")
    assert err == (
        "error: b/run/sim/checkpoints has no checkpoint to resume from; leave --resume out to "
        f"begin anew, {others}(step 1,200)\n"
    )
    code, _, err = cli("run", "b", *MODEL, "--from", "sim")
    assert code == 2
    assert err.endswith(f"no run of which --from sim could go on, {others}(step 1,200)\n")


def test_what_users_get_wrong(folder, tmp_path, cli):
    for images, labels, name in [
        (np.zeros((20, 3, 8, 8), np.float32), np.zeros(20, int), "shape"),
        (np.zeros((20, 1, 8, 8), np.float32), np.arange(20), "labels"),
        (np.zeros((6, 1, 8, 8), np.float32), np.zeros(6, int), "few"),
    ]:
        np.savez(f"{name}.npz", images=images, labels=labels)
    np.savez("other.npz", w=np.zeros(3, np.float32))
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    cases = [
        (("run", "none", *MODEL), " --batch 8 -o none' makes one\n"),
        (("run", "empty", *MODEL), "empty is no build folder"),
        (
            ("run", "file", *MODEL),
            "(manifest.json: cannot be read: Not a directory)\n",
        ),
        (("run", "b", *MODEL, "--steps", 0), "'--steps': 0 is not in the range"),
        (("run", "b", *MODEL, "--steps", 2, "--epochs", 2), "exclude each other"),
        (("run", "b", *MODEL, "--learning-rate", "nan"), "'nan' is no number"),
        (("run", "b", *MODEL[:2], "--data", "shape.npz"), "shape.npz: "),
        (("run", "b", *MODEL[:2], "--data", "labels.npz"), "labels.npz: "),
        (("run", "b", *MODEL[:2], "--data", "few.npz"), "a mini-batch has 8 samples; 5 fill none"),
        (("run", "b", *MODEL[:2], "--data", "none.npz"), "none.npz"),
        (("run", "b", *MODEL, "--resume"), "to resume from; leave --resume out to begin anew\n"),
        (("run", "b", *MODEL, "--from", "sim"), "run/sim is not there"),
        (("run", "b", *MODEL, "--from", "file"), "file is no checkpoint of this version"),
        (("run", "b", *MODEL, "--parameters", "other.npz"), "lacks parameter conv1.weight, floa"),
        (("run", "b", *MODEL, "--parameters", "none.npz"), "none.npz: there is no such file"),
        (("run", "b", *MODEL, "--parameters", "file"), "file is no checkpoint of this version"),
        (("run", "b", *MODEL, "--check", "model"), "--check needs another backend than model"),
        (
            ("run", "b", "--backend", "torch", "--data", "random", "--check"),
            "with MXINT8, which fp",
        ),
        (("run", "b", *MX, "--precision", "bf16"), "torch-mx computes with mxint8, not bf16"),
        (("run", "b", *MX, "--check", "torch"), "--check needs another backend than torch-mx"),
    ]
    for arguments, message in cases:
        code, _, err = cli(*arguments)
        assert (code, message in err) == (2, True), (arguments, code, err)
    assert not (folder / "run").exists()


def test_a_folder_that_cannot_be_written_is_named(folder, cli):
    (folder / "run").write_text("")
    code, _, err = cli("run", "b", *MODEL, "--steps", 1)
    assert code == 2
    assert err.startswith("error: ")
    assert "b/run" in err


def test_a_full_disk_leaves_whole_lines(folder):
    build = open_build(folder)
    data = load_data("random", build.graph)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*log\.jsonl") as caught:
            run_build(build, data, Settings(steps=9), RunOptions("model"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG  # exit code 2 of the command line
    text = (folder / "run/model/log.jsonl").read_text()
    assert 2 <= len(text.splitlines()) == len(read_log(folder / "run/model/log.jsonl")) <= 4
    assert text.endswith("\n")
    assert not [path for path in (folder / "run").rglob("*") if path.name.endswith(".part")]


def test_a_second_run_waits_for_the_first(folder):
    codes = []
    other = threading.Thread(
        target=lambda: codes.append(main(["run", str(folder), *MODEL, "--steps", "1"]))
    )
    with holding(folder):
        other.start()
        other.join(0.3)
        assert not (folder / "run").exists()
    other.join()
    assert codes == [0]
    assert (folder / "run/model/log.jsonl").exists()


def test_waves_that_cannot_be_recorded(folder, cli):
    sim = ("run", "b", "--data", "random", "--steps", 1, "--waves", "w.vcd")
    for options, says in (
        (("--backend", "model"), "--waves records a simulation"),
        (("--waves-device", 2), "--waves-device must be 0..1, not 2"),
        (("--waves-cycles", "7:7"), "--waves-cycles must be BEGIN:END with BEGIN less than END"),
        (("--waves-cycles", "all"), "--waves-cycles must be BEGIN:END with BEGIN less than END"),
    ):
        code, _, err = cli(*sim, *options)
        assert code == 2
        assert says in err


def test_the_model_does_the_first_steps(folder, cli, monkeypatch):
    """The steps after them begin with its very bytes; lines and summary say which was which."""

    class Simulated(ModelBackend):
        name, simulation = "sim", "verilog"

    begun = []

    def opened(build, name, options, **others):
        if name != "sim":
            return good(build, name, options, **others)
        found = Simulated(build.pipeline, build.parameters)
        step = found.step

        def first(*arguments, **named):
            begun.append([memory.copy() for memory in found.memories])
            return step(*arguments, **named)

        monkeypatch.setattr(found, "step", first)
        return found

    good = runtime.open_backend
    monkeypatch.setattr(runtime, "open_backend", opened)
    whole = json.loads(cli("run", "b", *MODEL, "--steps", 5, "--json")[1])
    sim = ("run", "b", "--data", "random", "--json")
    code, out, err = cli(*sim, "--from", "model:4", "--check")
    assert code == 0, out + err
    found = json.loads(out)
    assert (found["steps"], found["ran"], found["model_steps"]) == (5, 1, 4)
    assert (found["loss"], found["difference"]) == (whole["loss"], None)
    lines = [line for line in read_log(folder / "run/sim/log.jsonl") if "step" in line]
    assert [line["backend"] for line in lines] == ["model"] * 4 + ["sim"]
    assert ["simulation" in line for line in lines] == [False] * 4 + [True]
    # All bytes are the model's, not only those of the state.
    model = ModelBackend((build := open_build(folder)).pipeline, build.parameters)
    data = load_data("random", build.graph)
    run_build(build, data, Settings(steps=4), RunOptions("model", validates=False))
    assert len(begun) == 1
    assert any(memory.any() for memory in begun[0])
    assert not all(
        np.array_equal(mine, fresh) for mine, fresh in zip(begun[0], model.memories, strict=True)
    )

    # In two goes, the first of which ends in the model's steps.
    code, out, _ = cli(*sim, "--from", "model:4", "--steps", 6, "--time-budget", 0)
    assert (code, json.loads(out)["steps"], json.loads(out)["model_steps"]) == (75, 0, 0)
    code, out, err = cli("run", "b", "--json", "--resume")
    assert code == 0, err
    assert {name: json.loads(out)[name] for name in ("steps", "ran", "model_steps")} == {
        "steps": 6, "ran": 2, "model_steps": 4,
    }  # fmt: skip
    # Goes on behind the model's steps.
    code, out, err = cli("run", "b", "--json", "--resume", "--steps", 7)
    assert (code, json.loads(out)["ran"]) == (0, 1), err

    for options, says in (
        (("--from", "model:4", "--steps", 4), "of 4 mini-batches, 4 in the model leave none to"),
        (("--from", "model:0"), "N must be 1 or more and --backend sim"),
        (("--from", "model:2", "--backend", "model"), "N must be 1 or more and --backend sim"),
    ):
        code, _, err = cli(*sim, *options)
        assert code == 2
        assert says in err
