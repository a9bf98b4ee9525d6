"""Files that ``fpgapipe new`` writes pass their own checks; completion; how a build is made."""

import re
import shlex
import subprocess
import sys

import pytest

from fpgapipe.host.setup.starting_files import KINDS, write_starting_file


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(cli, kind, name):
    """Write a file; returns the command line that the output says checks it."""
    code, out, err = cli("new", kind, name)
    assert code == 0, err
    return shlex.split(re.fullmatch(rf"written to {name}\.\w+; '(.*)' checks it\n", out)[1])


def test_a_board_passes_its_check(cli, tmp_path):
    check = written(cli, "board", "lab")
    code, out, err = cli(*check[1:])
    assert (code, err) == (0, "")
    assert "Our lab card" in out
    # And a network is planned for it.
    code, _, err = cli("plan", "digits-cnn", "--board", "./lab.yaml", "--devices", 2, "--batch", 8)
    assert code == 0, err
    assert "#" in (tmp_path / "lab.yaml").read_text()


def test_a_network_passes_its_check(cli):
    check = written(cli, "network", "my_first_net")
    code, out, err = cli(*check[1:])
    assert (code, err) == (0, "")
    assert "linear" in out
    code, out, err = cli(
        "plan", "my_first_net:network", "--board", "u280", "--devices", 2, "--batch", 8,
        "--array", "8x8", "--micro-batches", 2,
    )  # fmt: skip
    assert code == 0, err


@pytest.mark.sim
def test_a_testbench_passes_its_check(cli):
    check = written(cli, "testbench", "tb_mine")
    assert check == ["python", "tb_mine.py"]
    done = subprocess.run([sys.executable, check[1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "tb_mine: all tests passed"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_overwritten(kind, cli, tmp_path):
    path, _ = write_starting_file(kind, "mine", tmp_path)
    path.write_text("my work")
    code, _, err = cli("new", kind, "mine")
    assert code == 2
    assert f"error: {path.name} is there already, and is not overwritten; take another" in err
    assert path.read_text() == "my work"
    path.unlink()
    path.symlink_to("elsewhere")  # which is not there
    code, _, err = cli("new", kind, "mine")
    assert (code, "cannot be written: File exists" in err) == (2, True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("board", "../x", "the name of a board must be small letters, digits and hyphens"),
        ("board", "Lab", "the name of a board must be small letters"),
        ("network", "my-net", "the name of a network must be a Python module's: small"),
        ("network", "class", "the name of a network must be a Python module's: small"),
        ("network", "numpy", "the name of a network would hide a Python module of that name"),
        ("testbench", "random", "the name of a testbench would hide a Python module"),
    ],
)
def test_names_are_checked(kind, name, message, cli, tmp_path):
    code, _, err = cli("new", kind, name)
    assert (code, f"error: {message}" in err) == (2, True), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "report"])
def test_without_a_build_the_whole_line_that_makes_one_is_said(command, cli):
    line = "'fpgapipe build --board u280 --devices 2 --array 8x8 --batch 8 -o {}' makes one"
    code, _, err = cli(command)
    assert code == 2
    assert line.format("out/digits-cnn") in err
    assert f"'fpgapipe {command} out/digits-cnn'" in err
    code, _, err = cli(command, "nothing")
    assert (code, line.format("nothing") in err) == (2, True)


# ---------------------------------------------------------------------- completion


def completed(words, monkeypatch, capsys):
    """Completions that bash is offered for a line."""
    from fpgapipe.host.cli.main import main

    monkeypatch.setenv("_FPGAPIPE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main([])
    return [line.split(",")[1] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fpgapipe", "ins"], ["inspect"]),
        (["fpgapipe", "inspect", "digits"], ["digits-cnn"]),
        (["fpgapipe", "build", "--board", "u28"], ["u280"]),
        (["fpgapipe", "new", "te"], ["testbench"]),
        (["fpgapipe", "run", "out", "--backend", "m"], ["model"]),
        (["fpgapipe", "run", "out", "--learn"], ["--learning-rate"]),
    ],
)
def test_what_is_completed(words, expected, monkeypatch, capsys):
    assert completed(words, monkeypatch, capsys) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_of_shells(shell, cli):
    code, out, err = cli("completion", shell)
    assert (code, err) == (0, "")
    assert "_FPGAPIPE_COMPLETE" in out
    assert f"{shell}_complete" in out
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
