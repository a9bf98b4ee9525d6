"""How programs train, from the command line: optimiser, clipping, and the course of the rate."""

import json

import numpy as np
import pytest
import torch
from run_cases import small_network

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.options.training_options import chosen_options
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.settings import Settings, default_rate
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.losses import Loss

MODEL = ("--backend", "model", "--data", "random", "--no-validation")


def newest(folder):
    return max((folder / "checkpoints").glob("*.ckpt"))


@pytest.fixture
def build(tmp_path, monkeypatch, cli):
    """Return a function that builds the small network with some options."""
    from fpgapipe.host.make import networks

    monkeypatch.setattr(networks.Loader, "_load", lambda _, samples: small_network(samples))
    monkeypatch.chdir(tmp_path)

    def make(*options, devices=2, batch=8):
        boards = ("--board", "u280", "--devices", devices, "--array", "8x8")
        samples = ("--batch", batch, "--micro-batches", 2)
        code, out, err = cli("build", *boards, *samples, "--no-verify", "-o", "b", *options)
        return code, out, err, tmp_path / "b"

    return make


def test_optimiser_and_clipping_are_in_the_build(build, cli):
    code, _, err, folder = build(
        "--optimiser", "adamw", "--beta1", 0.8, "--epsilon", 1e-6, "--clip-norm", 0.5
    )
    assert code == 0, err
    opened = open_build(folder)
    assert opened.options == StepOptions(
        optimiser="adamw", betas=(0.8, 0.999), epsilon=1e-6, clip_norm=0.5, decays="weights"
    )
    code, out, err = cli("run", "b", *MODEL, "--steps", 4, "--json")
    assert code == 0, err
    whole = Checkpoint.read(newest(folder / "run/model")).state
    settings = json.loads((folder / "run/model/settings.json").read_text())
    names = ("optimiser", "betas", "clip_norm", "weight_decay", "learning_rate")
    assert [settings[name] for name in names] == ["adamw", [0.8, 0.999], 0.5, 0.01, 0.001]
    # In two goes, the second of which is checked against PyTorch, to the same bits.
    assert cli("run", "b", *MODEL, "--steps", 2)[0] == 0
    code, out, err = cli("run", "b", *MODEL, "--steps", 4, "--resume", "--check")
    assert code == 0, err
    assert "loss and gradients within" in out
    again = Checkpoint.read(newest(folder / "run/model")).state
    assert whole.keys() == again.keys()
    assert any(name.endswith(".square") for name in whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    # Another norm is another training.
    code, out, err = cli("run", "b", *MODEL, "--steps", 5, "--resume", "--clip-norm", 0.25)
    assert code == 2
    assert "clip norm (then 0.5, now 0.25)" in err


def test_the_plan_has_the_time_of_its_optimiser(build):
    _, _, _, folder = build()
    plain = open_build(folder).plan.predicted.minibatch_s
    _, _, _, folder = build("--optimiser", "adam", "--clip-norm", 1)
    assert open_build(folder).plan.predicted.minibatch_s > 1.01 * plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beta1", 0.5), "--beta1 is a number of Adam: take --optimiser adam or adamw"),
        (("--mode", "infer", "--optimiser", "adam"), "inference has no optimiser"),
        (("--schedule", "pipedream", "--optimiser", "adamw"), "by SGD without clipping"),
    ],
)
def test_what_does_not_go_together_is_refused(build, options, message):
    code, _, err, folder = build(*options)
    assert code == 2
    assert message in err
    assert not folder.exists()


def test_a_run_refuses_what_its_build_has_not(build, cli):
    build()
    code, _, err = cli("run", "b", *MODEL, "--clip-norm", 1)
    assert (code, "build it again with --clip-norm" in err) == (2, True)
    build("--optimiser", "adam")
    code, _, err = cli("run", "b", *MODEL, "--momentum", 0.5)
    assert (code, "has betas instead of --momentum" in err) == (2, True)


def test_devices_clip_as_one(build, cli):
    """The weights do not depend on the cut."""
    states = []
    for devices in (1, 2):
        code, _, err, folder = build("--clip-norm", 0.1, devices=devices)
        assert code == 0, err
        assert cli("run", "b", *MODEL, "--steps", 3)[0] == 0
        states.append(Checkpoint.read(newest(folder / "run/model")).state)
        folder.rename(folder.with_name(f"b{devices}"))
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, err_msg=name)


def test_devices_with_parts_of_layers_clip(build, cli):
    code, _, err, folder = build("--strategy", "filter", "--clip-norm", 0.1, devices=2)
    assert code == 0, err
    assert cli("run", "b", *MODEL, "--steps", 2)[0] == 0
    assert open_build(folder).options.clip_norm == 0.1


def test_defaults_of_the_optimisers():
    assert chosen_options("sgd", None, None, None, None, "train") == StepOptions()
    assert chosen_options("sgd", None, None, None, None, "infer") == StepOptions(train=False)
    assert [Settings(steps=1, optimiser=o).weight_decay for o in ("sgd", "adam", "adamw")] == [
        1e-4, 0.0, 0.01,
    ]  # fmt: skip
    assert Settings(steps=1, optimiser="adamw", weight_decay=0.0).weight_decay == 0
    assert [default_rate(32, o) for o in ("sgd", "adam")] == [0.02, 0.002]


STEPS, PER_EPOCH, RATE, WARM = 24, 4, 0.5, 6


def pytorchs(schedule):
    """The rates of a schedule of PyTorch's."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], RATE)
    made = schedule(optimiser)
    rates = []
    for _ in range(STEPS):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        made.step()
    return rates


@pytest.mark.parametrize("warm_up", [0, WARM])
@pytest.mark.parametrize("course", ["constant", "cosine", "step"])
def test_rates_are_pytorchs(course, warm_up):
    schedulers = torch.optim.lr_scheduler

    def behind(optimiser):
        if course == "cosine":
            return schedulers.CosineAnnealingLR(optimiser, STEPS - warm_up)
        if course == "step":
            # PyTorch's own counts epochs from the end of a warm-up, people's from the beginning.
            return schedulers.LambdaLR(
                optimiser, lambda step: 0.1 ** ((step + warm_up) // (2 * PER_EPOCH))
            )
        return schedulers.ConstantLR(optimiser, 1.0)

    def schedule(optimiser):
        if not warm_up:
            return behind(optimiser)
        first = schedulers.LinearLR(optimiser, 1 / warm_up, 1.0, warm_up - 1)
        return schedulers.SequentialLR(optimiser, [first, behind(optimiser)], [warm_up])

    settings = Settings(
        steps=STEPS, learning_rate=RATE, rate_schedule=course, warm_up=warm_up, rate_every=2
    )
    found = [settings.rate(step, PER_EPOCH) for step in range(STEPS)]
    np.testing.assert_allclose(found, pytorchs(schedule), rtol=1e-6, atol=1e-9)
    epochs = Settings(
        epochs=STEPS // PER_EPOCH,
        learning_rate=RATE,
        rate_schedule=course,
        warm_up=warm_up,
        rate_every=2,
    )
    assert [epochs.rate(step, PER_EPOCH) for step in range(STEPS)] == found


def test_rates_are_shown_and_resumed(build, cli):
    _, _, _, folder = build(batch=256)
    options = ("--learning-rate", 0.1, "--warm-up", 2, "--checkpoint-every", 3)
    falling = (*options, "--rate-schedule", "step", "--rate-every", 1, "--rate-factor", 0.5)
    code, out, err = cli("run", "b", *MODEL, *falling, "--epochs", 2)
    assert code == 0, err
    assert "0.1, times 0.5 every epoch after a warm-up of 2 steps" in out
    whole = read_log(folder / "run/model/log.jsonl")
    state = Checkpoint.read(newest(folder / "run/model")).state
    source = sorted((folder / "run/model/checkpoints").glob("*.ckpt"))[-2]
    code, _, err = cli("run", "b", *MODEL, "--from", source, "--rate-schedule", "constant")
    assert code == 2
    assert "rate schedule (then 'step', now constant)" in err
    code, out, err = cli("run", "b", *MODEL, "--from", source)
    assert code == 0, err
    assert "0.1, times 0.5 every epoch after a warm-up of 2 steps" in out
    assert [line["loss"] for line in read_log(folder / "run/model/log.jsonl")] == [
        line["loss"] for line in whole
    ]
    again = Checkpoint.read(newest(folder / "run/model")).state
    for name, value in state.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    code, _, err = cli("run", "b", *MODEL, "--resume", "--more", 1, "--rate-schedule", "cosine")
    assert (code, "a cosine ends with the training" in err) == (2, True)


def test_a_cosine_over_steps_ends_with_them(build, cli):
    build()
    cosine = ("--learning-rate", 0.1, "--rate-schedule", "cosine")
    assert cli("run", "b", *MODEL, *cosine, "--steps", 4)[0] == 0
    code, _, err = cli("run", "b", *MODEL, "--resume", "--steps", 6, "--rate-schedule", "cosine")
    assert code == 2
    assert "steps (then 4, now 6)" in err
    code, out, err = cli("run", "b", *MODEL, "--resume", "--more", 1)
    assert code == 0, err
    assert "0.1, constant" in out


def some_data(path, **arrays):
    """A file of samples of the small network, with labels or targets."""
    rng = np.random.default_rng(0)
    shape = small_network().inputs["input"].shape[1:]
    count = len(next(iter(arrays.values())))
    np.savez(path, images=rng.standard_normal((count, *shape), np.float32), **arrays)
    return path


CLASSES = small_network().layers[small_network().outputs[0]].output.shape[1]


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_targets(build, cli, tmp_path, loss):
    code, _, err, folder = build("--loss", loss)
    assert code == 0, err
    targets = np.random.default_rng(1).random((40, CLASSES), np.float32)
    data = ("--backend", "model", "--data", some_data(tmp_path / "a.npz", targets=targets))
    code, out, err = cli("run", "b", *data, "--steps", 3, "--check")
    assert code == 0, err
    assert "loss and gradients within" in out
    assert "accuracy" not in out
    log = read_log(folder / "run/model/log.jsonl")
    assert [line["labels"] for line in log] == [0, 0, 0]
    code, _, err = cli("report", "b")
    assert code == 0, err
    code, _, err = cli("run", "b", *MODEL, "--steps", 1)
    assert (code, "take a .npz file with targets" in err) == (2, True)
    wrong = some_data(tmp_path / "b.npz", targets=targets[:, 1:])
    code, _, err = cli("run", "b", *data[:2], "--data", wrong)
    assert (code, f"must hold floating-point numbers of {CLASSES} a sample" in err) == (2, True)
    beyond = some_data(tmp_path / "c.npz", targets=targets * 2)
    code, _, err = cli("run", "b", *data[:2], "--data", beyond, "--steps", 1)
    assert (code == 2) == ("must have probabilities, in 0..1" in err) == (loss == "bce")


def test_labels_are_smoothed_and_ignored(build, cli, tmp_path):
    code, _, err, folder = build("--label-smoothing", 0.1, "--ignore-labels")
    assert code == 0, err
    assert open_build(folder).options.loss == Loss(smoothing=0.1, ignores=True)
    labels = np.random.default_rng(1).integers(0, CLASSES, 40)
    labels[::3] = -100
    data = ("--backend", "model", "--data", some_data(tmp_path / "a.npz", labels=labels))
    code, out, err = cli("run", "b", *data, "--steps", 4, "--check")
    assert code == 0, err
    assert "loss and gradients within" in out
    log = read_log(folder / "run/model/log.jsonl")
    steps = [line for line in log if "validation" not in line]
    assert all(line["labels"] <= 8 for line in steps)
    assert any(line["labels"] < 8 for line in steps)
    (checked,) = (line["validation"] for line in log if "validation" in line)
    assert checked["samples"] < 8
    folder.rename(tmp_path / "ignoring")
    _, _, _, folder = build(devices=1)
    folder.rename(tmp_path / "plain")
    code, _, err = cli("run", "plain", *data, "--steps", 1)
    assert (code, "must be in 0.." in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--loss", "mse", "--label-smoothing", 0.1), "loss mse has targets, no labels to smooth"),
        (("--mode", "infer", "--ignore-labels"), "inference has no loss"),
    ],
)
def test_losses_that_make_no_sense_are_refused(build, options, message):
    code, _, err, folder = build(*options)
    assert (code, message in err, folder.exists()) == (2, True, False)


def test_decay_and_frozen_parameters(build, cli):
    code, _, err, folder = build(
        "--optimiser", "adamw", "--freeze", "conv1.*", "--no-decay", "linear1*"
    )
    assert code == 0, err
    opened = open_build(folder)
    assert (opened.options.decays, opened.options.undecayed) == ("weights", ("linear1*",))
    before = {name: value.copy() for name, value in opened.parameters.items()}
    run = ("run", "b", *MODEL, "--steps", 2, "--weight-decay", 0.5, "--learning-rate", 0.01)
    code, _, err = cli(*run, "--check")
    assert code == 0, err
    state = Checkpoint.read(newest(folder / "run/model")).state
    np.testing.assert_array_equal(state["conv1.weight"], before["conv1.weight"])
    assert "conv1.weight.momentum" not in state
    assert (state["linear1.weight"] != before["linear1.weight"]).any()
    for options, message in (
        (("--freeze", "conv9.*"), "no learned parameter of small matches 'conv9.*'"),
        (("--freeze", "*"), "* matches all learned parameters of small"),
        (("--no-decay", "x"), "no learned parameter of small matches 'x'"),
    ):
        code, _, err, _ = build(*options, devices=1)
        assert (code, message in err) == (2, True), err
