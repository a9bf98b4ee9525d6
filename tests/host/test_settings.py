"""Settings of a training: its learning rate of each step, defaults, and what is refused."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases.command_cases import commands_of
from run_cases import CountingBackend, counting, small_build, small_network

from fpgapipe.errors import UserError
from fpgapipe.host.backends.base import StepResult
from fpgapipe.host.cli.commands.run import given_settings
from fpgapipe.host.make.run import Asked
from fpgapipe.host.runtime.checkpoint import CheckpointFolder
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.settings import Settings, default_rate
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network

MODEL = ("--backend", "model", "--data", "random")


def test_a_given_rate_is_used_as_it_is():
    settings = Settings(epochs=2, learning_rate=0.5)
    assert settings.for_batch(8, 4) == settings
    assert [round(settings.rate(step, 4), 6) for step in (0, 4, 8)] == [0.5, 0.25, 0.0]
    assert Settings(steps=9, learning_rate=0.05).rate(0, 4) == 0.05
    assert (settings.num_steps(4), Settings(steps=9).num_steps(4)) == (8, 9)


@pytest.mark.parametrize(
    ("batch", "rate"), [(1, 0.0035), (4, 0.0071), (8, 0.01), (32, 0.02), (128, 0.04), (4096, 0.1)]
)
def test_the_default_suits_the_batch(batch, rate):
    assert default_rate(batch) == rate
    assert Settings(steps=9).for_batch(batch, 4).learning_rate == rate


def test_the_default_is_warmed_up():
    # By a tenth of the training, an epoch, or 100 steps, whichever is least.
    assert [
        Settings(epochs=8).for_batch(8, per_epoch).warm_up for per_epoch in (1, 11, 179, 359)
    ] == [0, 8, 100, 100]
    assert Settings(epochs=20).for_batch(8, 44).warm_up == 44
    assert [Settings(steps=3).for_batch(8, per_epoch).warm_up for per_epoch in (4, 179)] == [4, 100]
    settings = Settings(epochs=10).for_batch(8, 4)
    rates = [round(settings.rate(step, 4) / 0.01, 4) for step in (0, 1, 3, 4, 22, 40)]
    assert rates == [0.25, 0.5, 1.0, 1.0, 0.5, 0.0]
    assert settings.schedule() == "half a cosine after a warm-up of 4 steps"
    assert Settings(steps=3, learning_rate=1.0).schedule() == "constant"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Settings(), "either a number of epochs or one of steps"),
        (lambda: Settings(steps=3, more=3), "either a number of epochs or one of steps"),
        (lambda: Settings(steps=0), "training steps must be at least 1, not 0"),
        (lambda: Settings(epochs=-1), "training epochs must be at least 1, not -1"),
        (
            lambda: Settings(steps=1, learning_rate=float("nan")),
            "training learning_rate must be a number of at least 0 and at most 3.40282e\\+38, the "
            "largest in FP32, not nan",
        ),
        (lambda: Settings(steps=1, learning_rate=1e39), "the largest in FP32, not 1e\\+39"),
    ],
    ids=range(6),
)
def test_settings_are_checked(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_weights_before_a_relu_keep_the_variance_of_activations():
    graph = load_network("digits-cnn", 64)
    found = initial_parameters(graph, 0)
    # fc1's 256 inputs go into a ReLU, fc2's 128 into the loss.
    assert np.abs(found["fc1.weight"]).max() == pytest.approx((6 / 256) ** 0.5, rel=1e-2)
    assert np.abs(found["fc2.weight"]).max() == pytest.approx((1 / 128) ** 0.5, rel=1e-2)
    assert np.abs(found["fc1.bias"]).max() <= (1 / 256) ** 0.5
    # Batch normalisation sets the scale itself.
    small = initial_parameters(small_network(), 0)
    assert np.abs(small["conv1.weight"]).max() <= 1 / 4


def test_a_finished_training_is_gone_on_with(tmp_path):
    """At a constant rate, whatever its rate was; a training that is under way is not."""
    counting(tmp_path / "a", Settings(epochs=2)).run()
    kept = CheckpointFolder(tmp_path / "a/checkpoints")
    more = counting(tmp_path / "b", Settings(more=3, learning_rate=0.5))
    more.resume(tmp_path / "a")
    result = more.run()
    assert (result.steps, result.ran, more.num_steps) == (27, 3, 27)
    assert len(read_log(tmp_path / "b/log.jsonl")) == 27
    settings = json.loads((tmp_path / "b/settings.json").read_text())
    assert (settings["steps"], settings["more"], settings["epochs"]) == (27, None, None)
    other = counting(tmp_path / "c", replace(Settings(more=3), seed=1))
    with pytest.raises(UserError, match=r"other settings: seed \(then 0, now 1\); resume"):
        other.resume(tmp_path / "a")
    early = counting(tmp_path / "d", Settings(more=3))
    with pytest.raises(UserError, match=r"other settings: epochs \(then 2, now none\)"):
        early.resume(next(path for path in kept if path.name != "step-00000024.ckpt"))
    with pytest.raises(UserError, match="--more goes on from a checkpoint; name it with --resume"):
        counting(tmp_path / "e", Settings(more=3)).run()


def test_what_make_run_does_is_understood():
    """Its command lines, option by option; tests/host/test_whole.py does the same in small."""
    recipe = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = recipe[recipe.index("\nrun: setup") :].split("\n\n")[0]
    for variable, value in (("OUT", "out"), ("EPOCHS", "4"), ("STEPS", "4")):
        recipe = recipe.replace(f"$({variable})", value)
    lines = [shlex.split(line) for line in re.findall(r"\$\(BIN\)/fpgapipe ([^;\n]*)", recipe)]
    assert [line[0] for line in lines] == ["doctor", "build", "run", "run", "run", "report"]
    for name, *arguments in lines:
        context = commands_of()[name].make_context(name, arguments)
        if name == "run":
            with context:
                found = Asked(**given_settings(context.params)).settings(StepOptions())
            assert (found.epochs, found.more) in ((4, None), (None, 4))


def test_the_command_says_its_rate_and_keeps_it(tmp_path, monkeypatch, cli):
    small_build(tmp_path / "b", monkeypatch)
    run = ("run", tmp_path / "b", *MODEL, "--no-validation")
    code, out, err = cli(*run, "--steps", 2)
    assert code == 0, err
    assert "0.01, constant after a warm-up of 100 steps\n" in out
    assert (
        "learning rate 0.01, which suits a batch of 8, constant after a warm-up of 100 steps; "
        "--learning-rate says another\n"
    ) in err
    code, out, err = cli(*run, "--resume", "--more", 1, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["steps"], found["ran"], found["learning_rate"]) == (3, 1, 0.01)
    assert found["rate_schedule"] == "constant after a warm-up of 100 steps"
    code, out, err = cli(*run, "--steps", 1, "--learning-rate", 0.05)
    assert "which suits" not in err
    assert "  0.05, constant\n" in out
    code, _, err = cli(*run, "--steps", 1, "--learning-rate", "1e39")
    assert (code, "1e+39 is not in the range" in err) == (2, True)
    code, _, err = cli(*run, "--steps", 1, "--more", 1)
    assert (code, "--steps and --more exclude each other: each says how long" in err) == (2, True)


@pytest.mark.parametrize("updates", [1, 4])
def test_weight_decay_is_shared_by_the_updates_of_a_mini_batch(tmp_path, monkeypatch, updates):
    seen = []

    def step(self, inputs, labels, scalars, *, progress=None):
        seen.append(np.array(scalars[:3], np.uint32).view(np.float32).tolist())
        return StepResult(1.0, 0, None)

    monkeypatch.setattr(CountingBackend, "step", step)
    monkeypatch.setattr(CountingBackend, "num_updates", updates)
    counting(tmp_path, Settings(steps=1, learning_rate=0.5, weight_decay=0.5)).run()
    assert [decay for _, _, decay in seen] == [0.5 / updates]
