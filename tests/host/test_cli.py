"""The command line's frame: help, exit codes, logging, output when piped, and what it imports."""

import contextlib
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cases.command_cases import commands_of
from pydantic import BaseModel, field_serializer

from fpgapipe import __version__
from fpgapipe.errors import UserError
from fpgapipe.host.cli import main as cli_module
from fpgapipe.host.terminal.console import Table
from fpgapipe.network.zoo import NETWORKS

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(commands_of())


def run(*args, **kwargs):
    """Run ``fpgapipe`` as users do, in a process of its own."""
    command = [sys.executable, "-m", "fpgapipe.host.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **kwargs)


def test_help_lists_every_command(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert all(re.search(rf"^  {name} ", out, re.M) for name in COMMANDS)
    assert "Example: fpgapipe inspect resnet50 --batch 8" in out


def test_inspect_lists_all_networks(cli):
    listed = " ".join(cli("inspect", "--help")[1].split())
    assert f"Built-in networks: {', '.join(NETWORKS)} Example: " in listed


def test_version(cli):
    assert cli("--version") == (0, f"fpgapipe, version {__version__}\n", "")


BEFORE = {
    **dict.fromkeys(("bringup", "report", "run"), ("build",)),
    **dict.fromkeys(("export", "predict"), ("build", "run")),
    "generate": (
        "build --network char-gpt --board u280 --array 16x16 --batch 1 --micro-batches 1 "
        "--no-hardware -o out/char-gpt",
        "run out/char-gpt --backend model --data play.txt --steps 1",
    ),
}
"""Commands whose examples come before that of a command, or command lines."""

LONG_COMMANDS = {"bench", "compare", "oracle", "plan", "report", "ring"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG_COMMANDS else [])
        for name in COMMANDS
    ],
)
def test_each_commands_help_has_an_example_that_works(name, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # A build and a run are there for those that need them: by the examples that make them.
    (tmp_path / "play.txt").write_text("To be, or not to be. " * 20)
    for step in (*BEFORE.get(name, ()), name):
        line = step
        if " " not in step:
            code, out, _ = cli(step, "--help")
            assert code == 0
            example = re.search(r"Example: fpgapipe (.*)", out)
            assert example
            line = example[1]
        code, out, err = cli(*shlex.split(line))
        assert code == 0, err
        assert out


@pytest.mark.parametrize("words", [(), ("bench",)])
def test_lists_say_the_first_sentence_of_each_commands_help(words):
    group = commands_of()[words[0]] if words else cli_module.cli
    lines = {name: line for name, (_, line) in group._lazy.items()}
    first = {
        name: " ".join(each.help.split("\n\n")[0].split())
        for name, each in commands_of(group).items()
    }
    assert lines == first


def test_a_shell_completes_names_without_importing_commands():
    program = (
        "import sys, click; from fpgapipe.host.cli.main import cli\n"
        "found = cli.shell_complete(click.Context(cli), sys.argv[1])\n"
        "print(*[each.value for each in found])\n"
        "print(any(name.startswith('fpgapipe.host.cli.commands.') for name in sys.modules))"
    )
    for typed, names in (("b", "bench boards bringup build"), ("--v", "--version --verbose")):
        done = subprocess.run(
            [sys.executable, "-c", program, typed], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [names, "False"]


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from fpgapipe.host.cli import main; main.main(['--help']); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    modules = set(loaded.splitlines()[-1].split())
    heavy = {"numpy", "pydantic", "yaml", "networkx", "rich", "amaranth", "cocotb", "torch", "onnx"}
    assert not modules & heavy


def test_inspect_imports_no_more_than_it_needs():
    program = "import sys; from fpgapipe.host.cli import main; main.main(['inspect', 'resnet50']); "
    loaded = subprocess.run(
        [sys.executable, "-c", program + "print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    modules = set(loaded.splitlines()[-1].split())
    assert not modules & {"numpy", "amaranth", "cocotb", "torch", "onnx", "pydantic"}


def test_misspelt_command_and_option():
    wrong = run("inspct", "resnet50")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1] == "Error: no command 'inspct'; did you mean 'inspect'?"
    wrong = run("inspect", "--bach", "3", "resnet50")
    assert wrong.returncode == 2
    assert "--batch" in wrong.stderr


def test_no_command_shows_help():
    result = run()
    assert "Commands:" in result.stdout + result.stderr


def test_user_errors_are_one_line_without_traceback():
    result = run("inspect", "no_such_network")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no network 'no_such_network'")
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def failing(monkeypatch):
    """A sub-command that raises what it is given, or what a function that it is given gives."""

    def install(error):
        @click.command("fail")
        def fail():
            raise error() if callable(error) else error

        monkeypatch.setitem(cli_module.cli.commands, "fail", fail)

    return install


def test_internal_errors_keep_their_traceback_and_say_where_to_report(cli, failing):
    failing(ZeroDivisionError("a defect"))
    code, out, err = cli("fail")
    assert (code, out) == (70, "")
    assert "Traceback" in err
    assert "ZeroDivisionError: a defect" in err
    assert f"This is a defect of fpgapipe {__version__}. Please report it" in err


def test_interrupt(cli, failing):
    failing(KeyboardInterrupt())
    code, _, err = cli("fail")
    assert (code, err.strip()) == (130, "interrupted")


def test_an_interrupt_whose_terminal_has_gone(cli, failing, monkeypatch):
    def echo(*args, **kwargs):
        raise OSError(5, "Input/output error")

    failing(KeyboardInterrupt())
    monkeypatch.setattr("click.echo", echo)
    assert cli("fail")[0] == 130


def test_a_hang_up_while_the_terminal_is_written_to(cli, failing, interruptible):
    class Gone(OSError):
        """Raised by what writes to the terminal, after the signal has come."""

        def __init__(self):
            super().__init__(5, "Input/output error")
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGHUP)

    failing(Gone)
    assert cli("fail")[0] == 129


def test_ctrl_c_while_pydantic_writes(cli, failing):
    class Written(BaseModel):
        number: int = 1

        @field_serializer("number")
        def interrupted(self, number):
            raise KeyboardInterrupt

    def write():
        Written().model_dump_json()

    failing(write)
    code, out, err = cli("fail")
    assert (code, out, err) == (130, "", "interrupted\n")


def test_a_signal_behind_the_end_of_the_command(cli, monkeypatch):
    @contextlib.contextmanager
    def ended(come):
        yield come
        come.append(signal.SIGTERM)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_module, "terminations", ended)
    code, _, err = cli("boards")
    assert (code, err) == (143, "interrupted\n")


def test_nohup_is_respected(cli, failing):
    def hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        return UserError("still here")

    failing(hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli("fail") == (2, "", "error: still here\n")
    finally:
        signal.signal(signal.SIGHUP, before)


NOISY = """
import os, sys
from fpgapipe.network.zoo import built_in

print("imported")
kept = sys.stdout

def network(batch):
    print("called", file=kept)
    os.write(1, b"from below\\n")
    os.system("echo from a program")
    return built_in("lenet5", batch)
"""


def test_what_a_users_module_prints_is_not_in_the_json(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [sys.executable, "-m", "fpgapipe.host.cli.main", "inspect", "noisy:network", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(result.stdout)["network"] == "lenet5"
    assert sorted(result.stderr.splitlines()) == [
        "called", "from a program", "from below", "imported",
    ]  # fmt: skip


def test_a_reader_that_leaves_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m fpgapipe.host.cli.main inspect resnet152 | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert result.returncode == 0


@pytest.mark.parametrize("arguments", ["inspect resnet152", "inspect lenet5 --json", "--help"])
def test_a_full_disk_is_a_user_error(arguments):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    command = [sys.executable, "-m", "fpgapipe.host.cli.main", *arguments.split()]
    with full.open("w") as output:
        result = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr == "error: writing failed: No space left on device\n"


def test_closed_output_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m fpgapipe.host.cli.main inspect lenet5 >&-"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_output_in_ascii_is_no_error(tmp_path):
    path = tmp_path / "ü.csv"
    path.write_text("Layer,M,N,K\nfc,1,2,3\n")
    result = run("inspect", str(path), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("\\xfc, batch 1, 1 layer\n")


def test_inspect_table_is_plain_when_piped():
    result = run("inspect", "digits-cnn", "--batch", "2")
    lines = result.stdout.splitlines()
    assert result.returncode == 0
    assert lines[0] == "digits-cnn, batch 2, 12 layers"
    assert lines[1].split() == [
        "layer", "op", "inputs", "output", "shape", "MACs", "parameters", "features", "passes"
    ]  # fmt: skip
    assert lines[2].split() == [
        "conv1",
        "conv",
        "input",
        "2x32x8x8",
        "36,864",
        "320",
        "4,096",
        "F",
        "dW",
    ]
    assert lines[-1].split() == ["total", "1,874,432", "62,250", "23,060"]
    assert "\x1b" not in result.stdout


def test_inspect_json(cli):
    code, out, err = cli("inspect", "resnet50", "--batch", "4", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["network"] == "resnet50"
    assert value["batch"] == 4
    assert value["totals"]["parameters"] == 25_557_032
    assert value["totals"]["macs"] == 4 * 4_089_184_256
    assert value["totals"]["features"] == sum(layer["features"] for layer in value["layers"])
    first = value["layers"][0]
    assert first["name"] == "conv1"
    assert first["op"] == "conv"
    assert first["inputs"] == ["input"]
    assert first["input_shapes"] == [[4, 3, 224, 224]]
    assert first["output_shape"] == [4, 64, 112, 112]
    assert first["macs"] == 4 * 118_013_952
    assert first["parameters"] == 9408
    assert first["attributes"]["stride"] == [2, 2]
    assert set(first["passes"]) == {"F", "dW"}


def test_inspect_every_built_in_network(cli):
    from fpgapipe.network.zoo import NETWORKS

    for name in NETWORKS:
        code, out, _ = cli("inspect", name, "--json")
        assert code == 0
        json.loads(out)


@pytest.mark.parametrize("batch", ["0", "-1", "1.5", "many"])
def test_inspect_refuses_a_senseless_batch(cli, batch):
    code, out, err = cli("inspect", "resnet50", "--batch", batch)
    assert (code, out) == (2, "")
    assert "--batch" in err


def test_inspect_of_a_huge_batch_stays_exact(cli):
    code, out, _ = cli("inspect", "lenet5", "--batch", "1000000000", "--json")
    assert code == 0
    assert json.loads(out)["totals"]["macs"] == 416_520 * 10**9
    code, _, err = cli("inspect", "lenet5", "--batch", 1 << 53)
    assert code == 2
    assert "2**53 elements" in err


def test_a_missing_extra_is_one_sentence(cli, monkeypatch, tmp_path):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else find(name, *a)
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    code, _, err = cli("inspect", path)
    assert code == 2
    assert err == f"error: reading {path} needs onnx: pip install 'fpgapipe[onnx]'\n"


def test_verbosity_works_on_every_command(cli):
    for flag in ("--quiet", "--verbose", "-q", "-v"):
        assert cli("inspect", "lenet5", flag)[0] == 0
        assert cli(flag, "inspect", "lenet5")[0] == 0
        level = logging.DEBUG if "v" in flag else logging.ERROR
        assert logging.getLogger("fpgapipe").level == level


def test_tables_are_drawn_on_a_terminal():
    pty = pytest.importorskip("pty")
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError as error:
        pytest.skip(f"there are no pseudo-terminals here ({error})")
    chunks = []

    def read(descriptor):
        data = os.read(descriptor, 65536)
        chunks.append(data)
        return data

    saved = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)  # pty.spawn copies what it reads to standard output
        status = pty.spawn(
            [sys.executable, "-m", "fpgapipe.host.cli.main", "inspect", "lenet5"], read
        )
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(null)
    assert status == 0
    assert "─" in b"".join(chunks).decode()


def test_a_narrow_terminal_breaks_no_number_and_no_name(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    headings = "layer|what it does|>MACs"
    Table(headings, [("layer1.0.conv1", "a convolution of 3x3", "118,013,952")]).print()
    text = terminal.getvalue()
    assert all(word in text for word in ("layer1.0.conv1", "convolution", "118,013,952"))
    assert "a convolution of 3x3" not in text  # it gave way
