"""Trainings that diverge: ended at once, and nothing of them is called good."""

from dataclasses import replace

import numpy as np
import pytest
from run_cases import counting

from fpgapipe.errors import UserError
from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointError
from fpgapipe.host.runtime.divergence import Diverged, explosion
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.settings import Settings


def ends_badly(folder, step, *, loss=None, weight=None, every=2):
    """A trainer whose step has such a loss, or leaves such a weight."""
    trainer = counting(folder, checkpoint_every=every)
    good = trainer._backend.step

    def bad(inputs, labels, scalars, **options):
        result = good(inputs, labels, scalars, **options)
        if scalars[15] != step:
            return result
        if weight is not None:
            trainer._backend.memories[0].view(np.float32)[3] = weight
        return result if loss is None else replace(result, loss=loss)

    trainer._backend.step = bad
    return trainer


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def test_what_has_exploded():
    fine = {"a": np.array([1e18, -3], np.float32), "none": np.zeros((0, 3), np.float32)}
    assert explosion(fine) == ""
    assert explosion(fine | {"b": np.array([1, -1e19], np.float32)}) == "b has values up to 1e+19"
    assert explosion({"c": np.array([1, np.nan, 2], np.float32)}) == "c has nan"
    hidden = {"c": np.array([-np.inf], np.float32)}
    assert explosion(hidden) == "c has inf"
    assert explosion(hidden, {"c"}) == ""
    assert explosion(hidden | {"d": hidden["c"]}, {"c"}) == "d has inf"


def test_a_loss_that_is_no_number_blames_the_state_before(tmp_path):
    """Of step 6, with a checkpoint just before it: that one is not called good."""
    trainer = ends_badly(tmp_path / "run", 6, loss=float("nan"))
    good = tmp_path / "run/checkpoints/step-00000004.ckpt"
    with pytest.raises(Diverged) as caught:
        trainer.run()
    assert str(caught.value) == (
        "the loss of step 6 is nan: training has diverged at a learning rate of 0.00583333; the "
        f"last good checkpoint is {good}; '--parameters {good} --learning-rate 0.00058' begins "
        "anew with its weights"
    )
    assert len(read_log(tmp_path / "run/log.jsonl")) == 6
    assert checkpoints(tmp_path / "run") == [
        "step-00000002.ckpt", "step-00000004.ckpt", "step-00000006.ckpt.unused",
    ]  # fmt: skip
    resumed = counting(tmp_path / "run")
    assert resumed.resume() == good


@pytest.mark.parametrize("weight", [np.nan, -np.inf, 1e25])
@pytest.mark.parametrize("step", [5, 14])
def test_an_update_that_explodes_ends_it(step, weight, tmp_path):
    """Also the last one, whose loss nobody would see."""
    trainer = ends_badly(tmp_path / "run", step, weight=weight)
    with pytest.raises(Diverged, match=f"^after the update of step {step} w has ") as caught:
        trainer.run()
    good = tmp_path / f"run/checkpoints/step-{step:08d}.ckpt"
    assert f"the last good checkpoint is {good};" in str(caught.value)
    assert explosion(Checkpoint.read(good).state) == ""
    assert max(checkpoints(tmp_path / "run")) == good.name
    assert len(read_log(tmp_path / "run/log.jsonl")) == step


def test_without_a_good_checkpoint(tmp_path):
    trainer = ends_badly(tmp_path / "run", 1, loss=float("inf"))
    with pytest.raises(Diverged, match="there is no good checkpoint; begin anew with --learning-"):
        trainer.run()
    assert checkpoints(tmp_path / "run") == []


def test_exploded_checkpoints_are_not_gone_on_from(tmp_path, caplog):
    """Such as an earlier version wrote."""
    counting(tmp_path / "run", Settings(steps=4)).run()
    newest = tmp_path / "run/checkpoints/step-00000004.ckpt"
    kept = Checkpoint.read(newest)
    kept.state["w"][2] = np.nan
    kept.write(newest)
    trainer = counting(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"step-00000004\.ckpt is of a training that diverged"
    ):
        trainer.resume(newest)
    trainer.resume()
    assert trainer.step == 2
    with pytest.raises(UserError, match="the largest in FP32"):
        Settings(steps=1, learning_rate=1e300)
