"""Runs that go on with other settings, which the log and the report say."""

import json

import numpy as np
import pytest
from run_cases import small_build

import fpgapipe
from fpgapipe.errors import UserError
from fpgapipe.host.cli.options import changes
from fpgapipe.host.make.run import CHANGEABLE
from fpgapipe.host.runtime.run_log import read_log

OPTIONS = {"data": "random", "steps": 4, "learning_rate": 0.05, "validates": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    small_build(tmp_path / "b", monkeypatch)
    fpgapipe.run(tmp_path / "b", "model", **OPTIONS)
    return tmp_path / "b"


def state_of(folder, step):
    path = folder / f"run/model/checkpoints/step-{step:08d}.ckpt"
    return fpgapipe.read_checkpoint(path).state


def go_on(folder, **changes):
    return fpgapipe.run(
        folder, "model", resume=True, more=1, changes=changes, validates=False
    ).summary


def test_the_command_and_the_call_change_the_same_settings():
    assert {name.replace("-", "_") for name in changes.CHANGEABLE} == {*CHANGEABLE}


def test_steps_behind_a_change_have_the_new_setting(folder, capsys):
    before = state_of(folder, 4)
    assert go_on(folder, learning_rate=0.0).learning_rate == 0.0
    after = state_of(folder, 5)
    # At a rate of 0 weights stay, and only statistics of batches go on.
    learned = {name for name in before if f"{name}.momentum" in before}
    assert len(learned) > 2
    for name in learned:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name, strict=True)
    change = {"step": 4, "setting": "learning_rate", "before": 0.05, "after": 0.0}
    log = read_log(folder / "run/model/log.jsonl")
    assert [line["change"] for line in log if "change" in line] == [change]
    # The run goes on with the new setting, and with the old one only if that is said again.
    assert go_on(folder).learning_rate == 0.0
    with pytest.raises(UserError, match=r"learning rate \(then 0.0, now 0.05\)"):
        fpgapipe.run(folder, "model", resume=True, more=1, learning_rate=0.05, validates=False)
    assert go_on(folder, learning_rate=0.05).steps == 7
    run = fpgapipe.report(folder).to_dict()["builds"][0]["runs"][0]
    assert run["changes"] == [change, change | {"step": 6, "before": 0.0, "after": 0.05}]
    page = (folder / "run/report.html").read_text()
    assert "After 4 mini-batches, model went on with learning rate 0 (0.05 before)." in page
    assert run["steps"] == 6


def test_a_change_is_kept_before_the_first_step_behind_it(folder, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fpgapipe.host.runtime.training.Trainer._loop", killed)
        with pytest.raises(KeyboardInterrupt):
            go_on(folder, learning_rate=0.01)
    assert go_on(folder).learning_rate == 0.01


def test_other_data(folder, tmp_path):
    shape = (16, 1, 8, 8)
    images = np.random.default_rng(0).random(shape, np.float32)
    np.savez(tmp_path / "other.npz", images=images, labels=np.arange(16) % 10)
    go_on(folder, data=str(tmp_path / "other.npz"))
    (change,) = (
        line["change"] for line in read_log(folder / "run/model/log.jsonl") if "change" in line
    )
    assert change["setting"] == "data"
    assert json.loads((folder / "run/model/settings.json").read_text())["data"].endswith(".npz")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--change seed=3", "it needs --resume or --from"),
        ("--resume --change seed=3 --seed 4", "--change seed excludes the option for the same"),
        ("--resume --change epochs=2 --steps 9", "--change epochs excludes the option"),
        ("--resume --change lr=1", "--change takes clip-norm, data, epochs, "),
        ("--resume --change warmup=1", "not 'warmup'; did you mean 'warm-up'?"),
        ("--resume --change learning-rate=nan", "--change learning-rate: 'nan' is no number"),
        ("--resume --change rate-schedule=x", "--change rate-schedule: 'x' is not one of "),
        ("--resume --change seed", "must be a setting, '=' and a value, such as learning-rate="),
        ("--resume --change seed=1 --change seed=2", "--change names seed twice"),
        ("--resume --change clip-norm=1", "the build does not clip gradients"),
        ("--resume --change data=none.npz", "none.npz: there is no such file"),
    ],
)
def test_what_is_refused(folder, words, message, cli):
    code, _, err = cli("run", folder, "--backend", "model", *words.split())
    assert code == 2
    assert message in err
