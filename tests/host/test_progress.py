"""The progress of a long command, where its time went, and the texts of its options."""

import json
import logging
import re
import threading
import time

import click
import pytest
from cases.command_cases import commands_of
from run_cases import counting, small_build

from fpgapipe import stopwatch
from fpgapipe.host.cli import main as cli_module
from fpgapipe.host.cli.options import options
from fpgapipe.host.report.pages.inputs import read_runs
from fpgapipe.host.runtime import training
from fpgapipe.host.runtime.run_display import RunDisplay
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.host.terminal import progress as progress_module
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.progress import Display, span


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes when it is told to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7530, "2 h 5 min")],
)
def test_times_as_people_say_them(seconds, text):
    assert span(seconds) == text


def test_a_line_has_what_is_done_the_rate_and_the_time_left(clock):
    display = Display()
    display.add_task("planning")
    clock[0] += 7
    assert display.line() == "planning, 7 s so far"
    display.update(completed=0, total=400)
    clock[0] += 10
    display.update(completed=20)
    assert display.line() == "planning, 20 of 400, 2/s, about 3 min 10 s left, 17 s so far"
    display.add_task("training", total=50, unit="mini-batches")
    # What an earlier run has done is none of this one's.
    display.update(completed=40)
    clock[0] += 2
    display.update(completed=41)
    assert display.line() == "training, 41 of 50 mini-batches, 0.5/s, about 18 s left, 2 s so far"


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, caplog):
    """Also while nothing is reported."""
    caplog.set_level("INFO", "fpgapipe")
    monkeypatch.setattr(progress_module, "FIRST_S", 0.01)
    monkeypatch.setattr(progress_module, "EVERY_S", 0.01)
    said = threading.Event()
    monkeypatch.setattr(progress_module.logger, "info", lambda *words: said.set())
    with progress() as display:
        display.add_task("making programs")
        assert said.wait(30)
    assert not [each for each in threading.enumerate() if each.name == "progress"]


def test_lines_of_json_on_request(monkeypatch, capsys):
    """Also if nothing else is to be said."""
    monkeypatch.setattr(progress_module, "FIRST_S", 0.01)
    monkeypatch.setattr(progress_module, "EVERY_S", 0.01)
    monkeypatch.setattr(logging.getLogger("fpgapipe"), "level", logging.ERROR)
    said = threading.Event()
    with progress("json") as display:
        display.add_task("making programs", total=4, unit="programs")
        really = display.record
        monkeypatch.setattr(display, "record", lambda: (said.set(), really())[1])
        assert said.wait(30)
    for line in capsys.readouterr().err.splitlines():
        assert json.loads(line)["progress"]["what"] == "making programs"


def test_within_a_simulated_step(clock):
    display = Display()
    watcher = RunDisplay(display, clk_hz=1e8, expected_cycles=5000)
    watcher.cycles(0, 1000)
    clock[0] += 2
    watcher.cycles(0, 2000)
    assert display.line() == (
        "step 0: 2,000 of about 5,000 cycles at 500 cycles/s, its end in 6 s, 2 s so far"
    )
    watcher.begin(0, 10)
    watcher.cycles(0, 3000, [0.25, 1.0])
    assert display.line() == (
        "step 0: 3,000 of about 5,000 cycles at 1 kcycles/s, its end in 2 s, that of the run in "
        "47 s, devices at 25% 100%, 2 s so far"
    )
    assert json.loads(display.record())["progress"] == {
        "what": display.line().removesuffix(", 2 s so far"),
        "done": None, "total": None, "unit": "mini-batches", "wall_s": 2.0,
        "step": 0, "steps": 10, "cycles": 3000, "expected_cycles": 5000, "cycles_per_s": 1000.0,
        "step_left_s": 2.0, "run_left_s": 47.0, "devices": [0.25, 1.0],
    }  # fmt: skip
    line = {"loss": 0.5, "correct": 1, "labels": 2, "samples": 2, "cycles": 4000}
    watcher.step(line, 1, 10)
    watcher.cycles(1, 100)
    clock[0] += 1
    watcher.cycles(1, 300)
    assert "step 1: 300 of about 4,000 cycles at 200 cycles/s, its end in 18 s" in display.line()
    assert "1 of 10 mini-batches" in display.line()


def test_a_long_step_is_in_the_log(tmp_path, monkeypatch):
    """And what reads the log passes over it."""
    monkeypatch.setattr(training, "PROGRESS_EVERY_S", 0.0)
    counting(tmp_path / "run/model", Settings(steps=2)).run()
    text = (tmp_path / "run/model/log.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [next(iter(line)) for line in lines] == ["progress", "step", "progress", "step"]
    assert lines[2]["progress"].keys() == {"step", "cycles", "wall_s", "devices"}
    assert len(read_log(tmp_path / "run/model/log.jsonl")) == 2
    (found,) = read_runs(tmp_path / "run")
    assert (len(found.steps), found.faults) == (2, ())


def test_phases_are_counted_without_those_within(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    stopwatch.phases()
    for _ in range(2):
        with stopwatch.phase("programs"):
            now[0] += 1
            with stopwatch.phase("elaboration"):
                now[0] += 10
            now[0] += 2
    now[0] += 100
    assert stopwatch.phases() == {"programs": 6, "elaboration": 20}
    assert stopwatch.phases() == {}


def test_a_command_says_where_the_time_went(tmp_path, monkeypatch, cli):
    small_build(tmp_path / "b", monkeypatch)
    monkeypatch.setattr(options, "LONG_S", 0.0)
    run = ("run", tmp_path / "b", "--backend", "model", "--data", "random", "--steps", 1)
    assert re.search(r"^the time went into ", cli(*run)[2], re.M)


# ---------------------------------------------------------------------- options


def commands(group, path=()):
    for name, each in commands_of(group).items():
        if isinstance(each, click.Group):
            yield from commands(each, (*path, name))
        else:
            yield (*path, name), each


@pytest.mark.parametrize(
    "command", [pytest.param(each, id="-".join(path)) for path, each in commands(cli_module.cli)]
)
def test_option_texts_are_sentences_for_strangers(command):
    """Whatever they are about is said, so none begins with "Of"; all that may be left out has a
    default that is shown, or a text that says what comes without it."""
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        assert option.help, f"{option.name} has no text"
        text, _, default = option.help.partition(" [")
        assert text[0].isupper() or text[0] == "-", f"{option.name}: {text}"
        assert len(text.split()) >= 4, f"{option.name}: {text}"
        assert not re.match(r"(Of|As|After which|Instead|In the) ", text), f"{option.name}: {text}"
        if isinstance(option.default, (int, float, str)) and not option.is_flag:
            shown = option.show_default
            if shown is None:
                shown = command.context_settings.get("show_default")
            assert shown or default, f"{option.name} does not say its default"


def test_no_check_and_no_accuracy_of_what_is_made_up(tmp_path, monkeypatch, cli):
    small_build(tmp_path / "b", monkeypatch)
    run = ("run", tmp_path / "b", "--backend", "model", "--data", "random", "--steps", 1)
    code, out, err = cli(*run, "--check", "none")
    assert code == 0, err
    assert "validation accuracy" not in out
    assert "checked against" not in out
    code, _, err = cli(*run, "--check", "")
    assert (code, "'' is not one of" in err) == (2, True)
    code, out, err = cli(*run, "--check", "auto")
    assert "checked against torch" in out
    code, out, _ = cli(*run, "--json")
    assert isinstance(json.loads(out)["accuracy"], float)
