"""The best validation of a run: it is kept, and the run ends for want of a better one."""

import numpy as np
import pytest
from run_cases import counting, small_build

import fpgapipe
from fpgapipe.errors import UserError
from fpgapipe.host.runtime.best import BEST, best_of
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.runtime.settings import Settings

ACCURACIES = [5, 7, 6, 7, 9, 8, 9, 3, 2, 1]
"""Samples of ten that are right, epoch by epoch; each has two steps."""


def trainer(folder, patience=None, *, epochs=10, keeps_best=False):
    """A trainer whose validations are those above, and whose epochs have five steps."""

    def evaluate(state):
        return ACCURACIES[(made.step - 1) // made.steps_per_epoch], 10

    settings = Settings(epochs=epochs, learning_rate=0.1, patience=patience)
    made = counting(folder, settings, evaluate=evaluate, keeps_best=keeps_best)
    return made


def best_step(folder):
    return Checkpoint.read(folder / "checkpoints" / BEST).step


def test_it_ends_after_validations_without_a_better_one(tmp_path):
    made = trainer(tmp_path, 2)
    found = made.run()
    size = made.steps_per_epoch
    assert (found.steps, found.ended_early, found.stopped) == (4 * size, True, False)
    assert (found.best["step"], found.best["accuracy"]) == (2 * size, 0.7)  # an equal one is none
    assert best_step(tmp_path) == 2 * size
    assert (tmp_path / f"checkpoints/step-{4 * size:08d}.ckpt").exists()


def test_interrupted_anywhere_it_ends_as_it_would(tmp_path):
    whole = trainer(tmp_path / "whole", 2)
    whole.run()
    size = whole.steps_per_epoch
    for stop in (1, size, 2 * size, 3 * size + 1, 4 * size):
        folder = tmp_path / str(stop)
        first = trainer(folder, 2)
        first._until = stop
        first.run()
        second = trainer(folder, 2)
        second.resume()
        found = second.run()
        assert (found.steps, found.ended_early) == (4 * size, True), stop
        assert best_step(folder) == 2 * size
    again = trainer(tmp_path / "whole", 3)
    again.resume()
    found = again.run()  # with more patience there is a better one
    assert (found.steps, best_step(tmp_path / "whole")) == (8 * size, 5 * size)


def test_the_best_is_kept_to_the_end_and_when_it_is_resumed(tmp_path):
    made = trainer(tmp_path, epochs=3, keeps_best=True)
    assert made.run().ended_early is False
    size = made.steps_per_epoch
    assert best_step(tmp_path) == 2 * size
    state = Checkpoint.read(tmp_path / "checkpoints" / BEST)
    made = trainer(tmp_path, epochs=3)
    made.resume()
    assert made.run().best["step"] == state.step


def test_a_checkpoint_of_a_later_step_is_removed(tmp_path):
    made = trainer(tmp_path, epochs=3, keeps_best=True)
    made.run()
    early = tmp_path / "checkpoints/step-00000001.ckpt"
    first = trainer(tmp_path / "other", epochs=3)
    first._until = 1
    first.run()
    early.write_bytes((tmp_path / "other/checkpoints/step-00000001.ckpt").read_bytes())
    made = trainer(tmp_path, epochs=3)
    made.resume(early)
    assert not (tmp_path / "checkpoints" / BEST).exists()


def test_of_a_log_without_validations_there_is_none():
    assert best_of([{"step": 0}, {"validation": {"step": 1, "accuracy": None}}]) == {}


def test_a_run_keeps_it_and_its_weights_go_out(tmp_path, monkeypatch, cli):
    folder = tmp_path / "b"
    small_build(folder, monkeypatch)
    done = fpgapipe.run(folder, "model", data="random", steps=2, keeps_best=True)
    path = done.summary.folder / "checkpoints" / BEST
    assert done.summary.to_dict()["best"]["step"] == 2
    assert f"after 2, kept as checkpoints/{BEST}" in str(done)
    exported = fpgapipe.export(path, tmp_path / "w.npz")
    assert (exported.checkpoint, exported.step) == (path, 2)
    with np.load(tmp_path / "w.npz") as found:
        state = Checkpoint.read(path).state
        assert all(np.array_equal(found[name], state[name]) for name in found)
    with pytest.raises(UserError, match="is a checkpoint already, so --step 2 excludes it"):
        fpgapipe.export(path, tmp_path / "w.npz", step=2)
    code, _, err = cli("run", folder, "--backend", "model", "--patience", 2, "--no-validation")
    assert code == 2
    assert err.endswith("there are none: leave --no-validation out\n")
