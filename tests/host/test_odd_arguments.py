"""Odd things where commands read and write files: a sample of bench/bench_odd_files.py."""

import importlib.util
import sys
from pathlib import Path

import click
import pytest
from cases.command_cases import commands_of
from odd_files import ODD

from fpgapipe.host.cli import main as cli_module

BENCH = Path(__file__).parents[2] / "bench/bench_odd_files.py"
FILE_WORDS = ("FILE", "DIR", "PATH", "FOLDER")


def _load():
    spec = importlib.util.spec_from_file_location("bench_odd_files", BENCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = _load()


def file_parameters():
    """Every option and argument of every command that is a file, with the command's words."""

    def walk(command, words):
        if isinstance(command, click.Group):
            for name, each in commands_of(command).items():
                yield from walk(each, [*words, name])
            return
        for each in command.params:
            said = each.metavar or ""
            if (
                isinstance(each.type, click.Path)
                or any(word in said for word in FILE_WORDS)
                or each.name == "network"
            ):
                yield " ".join(words), each

    return [*walk(cli_module.cli, [])]


def test_the_bench_tries_every_file_of_every_command():
    assert len(file_parameters()) > 25
    for command, each in file_parameters():
        flags = each.opts if isinstance(each, click.Option) else ["{"]
        assert any(
            kind.command.startswith(f"{command} ")
            and any(f" {flag}" in kind.command for flag in flags)
            for kind in bench.KINDS
        ), f"{command} {each.opts}"


def test_the_bench_tries_the_odd_things_of_the_tests():
    assert {"fifo", *bench.ODD} - {"pipe"} == set(ODD)


SAMPLE = [
    kind
    for kind in bench.KINDS
    if "{build}" not in kind.command and not kind.command.startswith(("bench", "run", "report"))
]


@pytest.mark.parametrize("odd", ["fifo", "device", "folder", "loop", "empty", "sparse", "binary"])
@pytest.mark.parametrize("kind", SAMPLE, ids=lambda kind: kind.name)
def test_odd_things_are_the_users_error(kind, odd, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / kind.file
    path.parent.mkdir(exist_ok=True)
    if kind.prepare:
        kind.prepare(tmp_path)
    ODD[odd](path)
    code, _, err = cli(*kind.command.format(path, home=tmp_path).split())
    assert code == 2 or (code == 0 and kind.may_succeed(odd)), err
    assert "Traceback" not in err
    for name in ("odd", "odd.network"):
        sys.modules.pop(name, None)
    assert path.is_symlink() or not path.is_fifo() or odd == "fifo"
