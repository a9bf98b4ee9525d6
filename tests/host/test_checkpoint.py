"""Checkpoints: whole or not there, and what goes on from one ends with the same bits."""

import errno
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_cases import counting

from fpgapipe.errors import UserError
from fpgapipe.host.runtime.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    write_whole,
)
from fpgapipe.host.runtime.run_log import RunLog, read_log
from fpgapipe.host.runtime.settings import Settings

STATE = {
    "conv/weight:0": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "a name with a\nnew line": np.array(-0.0, np.float32),
    "nothing": np.zeros((0, 4), np.float32),
    "bits": np.array([0x7FC00001, 0x80000000, 1, 0xFF800000], np.uint32).view(np.float32),
}
SAMPLE = Checkpoint(7, "b", {"seed": 0}, STATE)


def weights(trainer):
    return {name: value.tobytes() for name, value in trainer._backend.state().items()}


def test_what_is_written_is_read_bit_for_bit(tmp_path):
    SAMPLE.write(tmp_path / "c")
    found = Checkpoint.read(tmp_path / "c")
    assert (found.step, found.build, found.settings) == (7, "b", {"seed": 0})
    assert list(found.state) == list(STATE)
    for name, value in STATE.items():
        assert found.state[name].shape == value.shape
        assert found.state[name].tobytes() == value.tobytes()
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_every_bit_counts(tmp_path):
    path = tmp_path / "c"
    SAMPLE.write(path)
    whole = path.read_bytes()
    for at in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:at])
        with pytest.raises(CheckpointError, match=r"is (damaged|no checkpoint)"):
            Checkpoint.read(path)
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"is (damaged|no checkpoint)"):
            Checkpoint.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="is damaged"):
        Checkpoint.read(path)


BODIES = [
    b"{",
    b"[" * 100_000,
    b'{"step": 1}',
    b'{"step": 1, "build": "", "settings": {}, "state": [["w", [4]]]}',
    b'{"step": 1, "build": "", "settings": {}, "state": [["w", [-1]]]}',
    b'{"step": 1, "build": "", "settings": {}, "state": [["w", ["x"]]]}',
    b'{"step": "x", "build": "", "settings": {}, "state": []}\n',
    b'{"step": 1, "build": "", "settings": {}, "state": []}\nmore',
    b'{"step": 1, "build": "", "settings": {}, "state": [["w", [0]], ["w", [0]]]}\n',
    b'{"step": NaN, "build": "", "settings": {}, "state": []}\n',
    b'{"step": 1e3, "build": "", "settings": {}, "state": []}\n',
    b'{"step": 1, "build": "", "settings": {"seed": {}}, "state": []}\n',
    b'{"step": 1, "build": "", "settings": {"seed": Infinity}, "state": []}\n',
    b'{"step": 1, "build": "", "settings": {}, "state": [["w", [1000000000, 1000000000]]]}\n',
    b'{"step": ' + b"9" * 5000 + b', "build": "", "settings": {}, "state": []}\n',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_what_was_never_a_checkpoint_is_refused(body, tmp_path):
    import hashlib

    from fpgapipe.host.runtime.checkpoint import MAGIC

    digest = hashlib.sha256(body).hexdigest().encode()
    (tmp_path / "c").write_bytes(MAGIC + digest + b"\n" + body)
    with pytest.raises(CheckpointError, match="no checkpoint of this version"):
        Checkpoint.read(tmp_path / "c")
    with pytest.raises(CheckpointError, match="there is no such file"):
        Checkpoint.read(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is a folder, not a file"):
        Checkpoint.read(tmp_path)


def test_more_than_is_wanted_is_not_read(tmp_path):
    SAMPLE.write(tmp_path / "c")
    Checkpoint.read(tmp_path / "c", 44)
    with pytest.raises(
        CheckpointError, match="is of another network: it has 44 bytes of values, of"
    ):
        Checkpoint.read(tmp_path / "c", 43)
    os.truncate(tmp_path / "c", 10 << 30)
    with pytest.raises(
        CheckpointError, match=r"damaged, or no .*: it has [\d,]+ bytes of values f"
    ):
        Checkpoint.read(tmp_path / "c")


def test_lines_that_no_run_writes_are_passed_over(tmp_path):
    lines = [
        '{"step": 0, "loss": 1.5, "backend": "model", "cycles": null}',
        '{"step": 1, "loss": "1.5"}',
        '{"step": 1, "loss": NaN}',
        '{"step": 1, "loss": 1e400}',
        '{"step": 1, "loss": [1]}',
        '{"step": "1"}',
        '{"step": 1, "cycles": ' + "9" * 350 + "}",
        '{"validation": {"step": 1, "accuracy": 0.5}}',
        '{"validation": 3}',
        '{"validation": {"step": 1, "accuracy": {}}}',
        "[" * 100_000,
        "[]",
        "3",
        '{"step": 1, "loss": 1.25}',
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    found = read_log(tmp_path / "log")
    assert [json.dumps(line) for line in found] == [lines[0], lines[7], lines[-1]]


def test_the_newest_whole_one_is_taken(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2, 3, 10):
        state = {"some": STATE["bits"][1:3]}
        folder.save(replace(SAMPLE, step=step, build="other" if step == 3 else "b", state=state))
    assert [path.name for path in folder] == [f"step-{n:08d}.ckpt" for n in (10, 3, 2)]
    newest = tmp_path / "step-00000010.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / "step-x.ckpt").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        path, found = folder.newest("b")
    assert path.name == "step-00000002.ckpt"
    assert found.step == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{newest} is damaged, or no checkpoint of this version: it has 7 bytes of values for 8; "
        "taking the one before it",
        f"{tmp_path}/step-00000003.ckpt is of another build; taking the one before it",
    ]
    with pytest.raises(UserError, match="has no checkpoint to resume from; leave --resume out"):
        folder.newest("third")
    with pytest.raises(UserError, match="has no checkpoint to resume from"):
        CheckpointFolder(tmp_path / "none").newest("b")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_what_cannot_be_written_leaves_the_old(failing, tmp_path, monkeypatch):
    path = tmp_path / "c"
    write_whole(path, [b"old"])

    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), fails)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_a_log_ends_with_a_whole_line(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    really = os.write
    with RunLog(path) as log:
        log.write({"step": 0})

        def half(file, data):
            if len(data) < 8:
                raise OSError(errno.ENOSPC, "No space left on device")
            return really(file, data[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match=r"No space left on device.*log\.jsonl"):
            log.write({"step": 1, "loss": 0.5})
        monkeypatch.undo()
        assert path.read_text() == '{"step": 0}\n'
        log.write({"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_log(path) == [{"step": 0}, {"step": 1}]
    assert read_log(path, 1) == [{"step": 0}]
    assert read_log(tmp_path / "none") == []


SETTINGS = [Settings(steps=15), Settings(epochs=2, seed=3)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["steps", "epochs"])
def test_resumed_anywhere_it_ends_with_the_same_bits(settings, tmp_path):
    whole = counting(tmp_path / "whole", settings)
    result = whole.run()
    log = [{**line, "wall_s": 0} for line in read_log(tmp_path / "whole/log.jsonl")]
    assert [line["step"] for line in log] == list(range(result.steps))
    for stop in range(1, result.steps, 1 if settings.steps else 4):
        folder = tmp_path / f"{stop}"
        trainer = counting(folder, settings)
        trainer.num_steps = stop  # as if it had been killed there, behind a checkpoint or not
        trainer.run()
        resumed = counting(folder, settings)
        if stop % 2 and stop % 3:  # as if without the one that is written at the end
            (folder / f"checkpoints/step-{stop:08d}.ckpt").unlink()
            if stop == 1:
                with pytest.raises(UserError, match="no checkpoint"):
                    resumed.resume()
                continue
        resumed.resume()
        assert resumed.run().ran == result.steps - stop + bool(stop % 2 and stop % 3)
        assert weights(resumed) == weights(whole)
        assert [{**line, "wall_s": 0} for line in read_log(folder / "log.jsonl")] == log


def test_other_settings_are_refused_by_name(tmp_path):
    counting(tmp_path / "a").run()
    for change, text in [
        ({"seed": 1}, r"seed \(then 0, now 1\)"),
        ({"learning_rate": 0.1}, r"learning rate \(then 0.01, now 0.1\)"),
        ({"steps": None, "epochs": 2}, r"epochs \(then none, now 2\)"),
        ({"momentum": 0.5, "weight_decay": 0.0}, r"momentum \(.*\), weight decay \("),
    ]:
        settings = replace(Settings(steps=15), **change)
        with pytest.raises(UserError, match=f"was made with other settings: {text}"):
            counting(tmp_path / "a", settings).resume()
    trainer = counting(tmp_path / "a")
    trainer._decisive["data"] = "others"
    with pytest.raises(UserError, match=r"other settings: data \(other samples\); resume with"):
        trainer.resume()
    with pytest.raises(UserError, match="comes after 15 steps, more than the 14 asked for"):
        counting(tmp_path / "a", Settings(steps=14)).resume()
    longer = counting(tmp_path / "a", Settings(steps=16))
    longer.resume()
    assert longer.run().ran == 1


def test_a_checkpoint_of_another_run_can_be_gone_on_from(tmp_path):
    counting(tmp_path / "whole").run()
    first = counting(tmp_path / "sim", Settings(steps=6))
    first.run()
    for name, source in (("folder", "sim"), ("file", "sim/checkpoints/step-00000004.ckpt")):
        trainer = counting(tmp_path / name)
        trainer.resume(tmp_path / source)
        assert trainer.run().ran == (9 if name == "folder" else 11)
        assert [line["step"] for line in read_log(tmp_path / name / "log.jsonl")] == list(range(15))
    with pytest.raises(CheckpointError, match=r"step-00000004.ckpt is of another build"):
        counting(tmp_path / "x", build="c").resume(tmp_path / "sim/checkpoints/step-00000004.ckpt")
    # Back to an earlier one of its own: what came later is put aside, not mixed in.
    back = counting(tmp_path / "sim")
    back.resume(tmp_path / "sim/checkpoints/step-00000002.ckpt")
    assert sorted(each.name for each in (tmp_path / "sim/checkpoints").iterdir()) == [
        "step-00000002.ckpt",
        "step-00000004.ckpt.unused",
        "step-00000006.ckpt.unused",
    ]
    back.run()
    assert len(read_log(tmp_path / "sim/log.jsonl")) == 15


def test_a_new_run_keeps_the_one_before(tmp_path):
    counting(tmp_path / "run").run()
    counting(tmp_path / "run", Settings(steps=3)).run()
    assert len(read_log(tmp_path / "run/log.jsonl")) == 3
    assert len(read_log(tmp_path / "run.before/log.jsonl")) == 15
    back = counting(tmp_path / "run", Settings(steps=16))
    back.resume(tmp_path / "run.before")
    assert back.run().ran == 1
    assert len(read_log(tmp_path / "run/log.jsonl")) == 16
    assert len(read_log(tmp_path / "run.before/log.jsonl")) == 3


class BreaksError(Exception):
    """Ends a run before its first step."""


def fails_to_start(folder, *, killed=False):
    """A run that ends before its first step, by an error or as if it were killed."""

    def fails(*_, **__):
        raise BreaksError

    trainer = counting(folder)
    trainer._backend.step = fails
    trainer._save = fails if killed else trainer._save
    with pytest.raises(BreaksError):
        trainer.run()


@pytest.mark.parametrize("killed", [False, True])
def test_runs_that_never_began_push_none_away(tmp_path, caplog, killed):
    counting(tmp_path / "run").run()
    caplog.set_level(logging.INFO)
    for _ in range(5):
        fails_to_start(tmp_path / "run", killed=killed)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run.before"]
    assert len(read_log(tmp_path / "run.before/log.jsonl")) == 15
    assert f"{tmp_path}/run is removed: that run ended before its first step" in caplog.messages
    if killed:
        what = rf"another run: --from {tmp_path}/run.before \(step 15\)"
        with pytest.raises(UserError, match=f"no checkpoint .* or go on from {what}"):
            counting(tmp_path / "run").resume()
    back = counting(tmp_path / "run", Settings(steps=16))
    back.resume(tmp_path / "run.before")
    assert back.run().ran == 1
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_the_oldest_run_goes_when_a_new_one_has_a_checkpoint(tmp_path, caplog):
    for steps in range(10, 14):
        counting(tmp_path / "run", Settings(steps=steps)).run()
    names = ["run", "run.before", "run.before-2", "run.before-3"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert len(read_log(tmp_path / "run.before-3/log.jsonl")) == 10
    caplog.set_level(logging.INFO)
    fails_to_start(tmp_path / "run")
    assert len(read_log(tmp_path / "run.before-4/log.jsonl")) == 10
    counting(tmp_path / "run", Settings(steps=2)).run()
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    kept = [len(read_log(tmp_path / name / "log.jsonl")) for name in names]
    assert kept == [2, 13, 12, 11]
    gone = f"{tmp_path}/run.before-4 (10 steps) is removed: 3 later runs are kept"
    assert gone in caplog.messages
    # One without a checkpoint is worth less than an older one.
    for path in (tmp_path / "run.before/checkpoints").iterdir():
        path.unlink()
    counting(tmp_path / "run", Settings(steps=3)).run()
    assert sorted(len(read_log(each / "log.jsonl")) for each in tmp_path.iterdir()) == [
        2,
        3,
        11,
        12,
    ]


def test_what_a_killed_run_was_writing_is_not_kept(tmp_path):
    counting(tmp_path / "run", Settings(steps=2)).run()
    for name in (".run.00000000.part", "run/.log.jsonl.00000000.part"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "run/checkpoints/.step-00000004.ckpt.00000000.part").write_bytes(b"half")
    counting(tmp_path / "run", Settings(steps=2)).run()
    assert (tmp_path / "run.before/log.jsonl").exists()
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_that_is_no_folder_of_one_is_kept_apart(tmp_path):
    for name in ("run.before-x", "run.beforehand", "run.before-"):
        (tmp_path / name).mkdir()
    counting(tmp_path / "run", Settings(steps=2)).run()
    counting(tmp_path / "run", Settings(steps=2)).run()
    assert len(list(tmp_path.iterdir())) == 5


def test_a_state_of_something_else_is_refused(tmp_path):
    trainer = counting(tmp_path / "a")
    settings = trainer._decisive
    CheckpointFolder(tmp_path / "a/checkpoints").save(
        Checkpoint(1, "b", settings, {"v": np.zeros(3, np.float32)})
    )
    with pytest.raises(CheckpointError, match="state must have w and its momentum, not"):
        trainer.resume()


KILLS = """
import hashlib, json, os, signal, sys
from pathlib import Path
from run_cases import counting

folder = Path(sys.argv[1])

def digest(trainer):
    state = trainer._backend.state()
    return hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).hexdigest()

def lines(path):
    return [{**json.loads(line), "wall_s": 0} for line in path.read_text().splitlines()]

whole = counting(folder / "whole")
whole.run()
outcomes = []
# Calls of each in a run of 15 steps with a checkpoint every other step.
for where, name, count in [(os, "fsync", 20), (Path, "replace", 10), (os, "write", 15)]:
    for call in range(1, count + 1, 3):
        run = folder / f"{name}-{call}"
        if (child := os.fork()) == 0:
            really, calls = getattr(where, name), 0
            def deadly(*args):
                global calls
                calls += 1
                if calls == call:
                    if name == "write":
                        really(args[0], args[1][:9])  # killed with half a line written
                    os.kill(os.getpid(), signal.SIGKILL)
                return really(*args)
            setattr(where, name, deadly)
            counting(run).run()
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        trainer = counting(run)
        if any((run / "checkpoints").glob("*.ckpt")):
            trainer.resume()
        begun = trainer.step
        trainer.run()
        same = digest(trainer) == digest(whole) and not list(run.rglob("*.part"))
        outcomes.append([name, call, killed, begun, same,
                         lines(run / "log.jsonl") == lines(folder / "whole/log.jsonl")])
print(json.dumps(outcomes))
"""


def test_killed_at_any_write_it_ends_with_the_same_bits(tmp_path):
    """Also while a checkpoint, the log or a name in the folder is being written."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) > 12
    assert all(killed and same and log for _, _, killed, _, same, log in outcomes), outcomes
    assert len({begun for *_, begun, _, _ in outcomes}) > 4
