"""Runs that stop in the middle of a simulated step, and go on to the same bits and cycles."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from run_cases import (
    COUNT,
    CountingBackend,
    counting,
    small_model,
    verilog_build,
)

from fpgapipe.host.backends.snapshot import Pages, Snapshot
from fpgapipe.host.runtime.check import ExactCheck
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.snapshot_file import SnapshotError, read_snapshot, write_snapshot
from fpgapipe.host.runtime.step_snapshots import SNAPSHOT
from fpgapipe.host.runtime.training import Watcher
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import random_batch


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path, request):
    """A key of its own; compiled designs are in the usual place."""
    if "sim" not in request.keywords:
        monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))


def a_snapshot(memory):
    return Snapshot(("design",), 12, 5, 3, (b"cluster", b"", b"device"), (Pages.of(memory),))


def test_pages_are_those_that_are_not_zero():
    memory = np.zeros(5 * 4096, np.uint8)
    memory[4096] = 1
    memory[-1] = 2
    pages = Pages.of(memory)
    assert pages.numbers.tolist() == [1, 4]
    other = np.full_like(memory, 7)
    pages.put(other)
    np.testing.assert_array_equal(other, memory)
    Pages.of(np.zeros(4096, np.uint8)).put(other[:4096])


def test_a_file_gives_back_what_was_written(tmp_path):
    memory = np.zeros(3 * 4096, np.uint8)
    memory[5000:5010] = 9
    path = tmp_path / "a.snap"
    write_snapshot(path, a_snapshot(memory), {"step": 4})
    found, about = read_snapshot(path)
    assert about == {"step": 4}
    assert (found.designs, found.cycle, found.begin, found.runs) == (("design",), 12, 5, 3)
    assert found.states == (b"cluster", b"", b"device")
    back = np.ones_like(memory)
    found.put_memories([back])
    np.testing.assert_array_equal(back, memory)
    write_snapshot(path, a_snapshot(np.zeros(4096, np.uint8)), {})
    assert not len(read_snapshot(path)[0].memories[0].numbers)


def test_only_files_of_this_user_are_read(tmp_path, monkeypatch):
    """A simulator takes a state as it is, so every byte is signed."""
    path = tmp_path / "a.snap"
    write_snapshot(path, a_snapshot(np.ones(4096, np.uint8)), {"step": 4})
    good = path.read_bytes()
    for at in (0, 25, 90, 150, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(SnapshotError):
            read_snapshot(path)
    for text in (good[:-1], good + b"0", b""):
        path.write_bytes(text)
        with pytest.raises(SnapshotError):
            read_snapshot(path)
    path.write_bytes(good)
    read_snapshot(path)
    assert (tmp_path / "cache/snapshot.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "of-another-machine"))
    with pytest.raises(SnapshotError, match=r"was not written by you on this machine$"):
        read_snapshot(path)


def test_the_model_goes_on_with_what_programs_left(tmp_path):
    """Scratchpads and accumulators are part of it: some bytes of memory come from them."""
    one, other = small_model(), small_model()
    one.pipeline.set_batch(one.memories, *random_batch(one.graph, 0, COUNT))
    one._run(scalar_bits(), None)
    one.memories[0][-1] = 77
    assert one._models[0].scratchpad.any()
    write_snapshot(tmp_path / "a.snap", one.keep(a_snapshot(np.zeros(4096, np.uint8))), {})
    found, _ = read_snapshot(tmp_path / "a.snap")
    check = ExactCheck(other)
    assert check.fits(found)
    assert not check.fits(a_snapshot(np.zeros(4096, np.uint8)))
    check.take(found)
    for mine, its in zip(one._models, other._models, strict=True):
        np.testing.assert_array_equal(mine.memory, its.memory)
        np.testing.assert_array_equal(mine.scratchpad, its.scratchpad)
        np.testing.assert_array_equal(mine.accumulators, its.accumulators)
        assert mine.nan == its.nan


class Halves(CountingBackend):
    """Steps of two halves, between which they can be kept; counts the halves that it has done."""

    def __init__(self, design="halves"):
        super().__init__()
        self.design, self.halves, self._at, self._pending = design, 0, 0, None

    def step(self, inputs, labels, scalars, *, progress=None):
        if self._pending is None:
            self.halves += 1
            self._at = 1
            progress(1)
        self._at, self._pending = 0, None
        self.halves += 1
        return super().step(inputs, labels, scalars, progress=progress)

    def snapshot(self):
        memories = (Pages(np.zeros(0, np.int64), np.zeros((0, 4096), np.uint8)),)
        return Snapshot((self.design,), 7, 6, 0, (), memories) if self._at else None

    def go_on_from(self, snapshot):
        if snapshot.designs != (self.design,):
            return False
        self._pending = snapshot
        return True


def halves(folder, watcher=None, design="halves", **options):
    trainer = counting(folder, watcher=watcher, checkpoint_every=4, **options)
    trainer._backend = Halves(design)
    return trainer


class Stops(Watcher):
    """Ends the time, or presses Ctrl-C, in the first half of a step."""

    def __init__(self, step, how):
        self.at, self.how, self.trainer = step, how, None

    def cycles(self, step, cycles, shares=()):
        if step == self.at:
            self.at = None
            if self.how == "time":
                self.trainer._ends_s = 0.0
            else:
                os.kill(os.getpid(), signal.SIGINT)


def stopped(folder, step, how):
    watcher = Stops(step, how)
    watcher.trainer = halves(folder, watcher)
    if how == "time":
        assert watcher.trainer.run().stopped
    else:
        with pytest.raises(KeyboardInterrupt):
            watcher.trainer.run()
    return folder / "checkpoints" / SNAPSHOT


@pytest.mark.parametrize("how", ["time", "ctrl-c"])
@pytest.mark.parametrize("step", [0, 6])
def test_a_step_goes_on_in_its_middle(step, how, tmp_path, interruptible):
    whole = halves(tmp_path / "whole")
    whole.run()
    path = stopped(tmp_path / "run", step, how)
    assert read_snapshot(path)[1]["step"] == step
    again = halves(tmp_path / "run")
    again.resume()
    assert again.step == step
    again.run()
    assert again._backend.halves == 2 * (15 - step) - 1
    assert not path.exists()  # a later checkpoint has taken its place
    for name, value in whole._backend.state().items():
        np.testing.assert_array_equal(again._backend.state()[name], value)
    lines = [line["step"] for line in read_log(tmp_path / "run/log.jsonl")]
    assert lines == list(range(15))


@pytest.mark.parametrize(
    ("options", "damage", "says"),
    [
        ({"design": "other"}, False, "is of another simulation; step 6 begins anew"),
        ({}, True, "is damaged, or was not written by you on this machine; step 6 begins anew"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_not_used(options, damage, says, tmp_path, caplog):
    caplog.set_level("INFO", "fpgapipe")
    path = stopped(tmp_path / "run", 6, "time")
    if damage:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = halves(tmp_path / "run", **options)
    again.resume()
    assert says in caplog.text
    again.run()
    assert again._backend.halves == 2 * 9


def test_one_is_written_now_and_then(tmp_path):
    class Sees(Watcher):
        def step(self, line, done, total):
            if done == 3:
                found.append(read_snapshot(tmp_path / "run/checkpoints" / SNAPSHOT)[1]["step"])

    found = []
    halves(tmp_path / "run", Sees(), save_within_s=0.0).run()
    assert found == [2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A small network on two small cores with their Verilog."""
    folder = tmp_path_factory.mktemp("within") / "b"
    verilog_build(folder)
    return folder


def run(folder, *options, expected=0, launcher=()):
    command = [*launcher, sys.executable, "-m", "fpgapipe.host.cli.main", "run", folder, "--json"]
    command += ["--no-validation", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and link
@pytest.mark.parametrize("simulate", ["verilog", "verified"])
def test_killed_in_a_simulated_step(built, simulate):
    """Gone on in its middle, every byte equals the model's, and the cycles are the same."""
    begin = ("--data", "random", "--steps", "3", "--simulate", simulate)
    whole, _ = run(built, *begin, "--check")
    log = read_log(built / "run/sim/log.jsonl")

    command = [sys.executable, "-m", "fpgapipe.host.cli.main", "run", str(built), *begin]
    path = built / "run/sim/checkpoints" / SNAPSHOT
    command += ["--no-validation", "--save-within", "0", "--check"]
    with subprocess.Popen(command) as process:
        last_s = time.monotonic() + 500
        while not (path.exists() and read_snapshot(path)[1]["step"] == 1):
            assert process.poll() is None
            assert time.monotonic() < last_s
            time.sleep(0.01)
        process.kill()
    again, err = run(built, "--resume", "--simulate", simulate, "--check")
    assert "going on within step 1, from its cycle " in err
    assert again["difference"] is None
    assert {name: again[name] for name in ("loss", "cycles", "steps")} == {
        name: whole[name] for name in ("loss", "cycles", "steps")
    }
    found = read_log(built / "run/sim/log.jsonl")
    assert [line["cycles"] for line in found] == [line["cycles"] for line in log]
    assert [line["loss"] for line in found] == [line["loss"] for line in log]


@pytest.mark.sim
@pytest.mark.slow
def test_waves_of_a_window_of_a_step(built):
    path = built.with_name("waves.vcd")
    cycles = ("--waves-device", "1", "--waves-cycles", "1000:1020")
    whole, _ = run(built, "--data", "random", "--steps", "1", "--waves", path, *cycles, "--check")
    assert whole["difference"] is None
    times = [int(each) for each in re.findall(r"^#(\d+)$", path.read_text(), re.MULTILINE)]
    assert times == [times[0] + 5 * each for each in range(40)]
