"""Libraries that are compiled once, whatever number of processes asks for them."""

import subprocess
import sys

import pytest

from fpgapipe.errors import ToolError
from fpgapipe.library_cache import cached_library

ASK = """
import sys, time
from pathlib import Path
from fpgapipe.cache import cache_dir
from fpgapipe.library_cache import cached_library

def compile_(folder, log):
    with Path(sys.argv[1]).open("a") as notes:
        notes.write("compiled\\n")
    time.sleep(0.5)
    (folder / "it.so").write_text((folder / "it.cpp").read_text().upper())

library = cached_library(cache_dir(), "it.so", "it", {"it.cpp": "text"}, {"it": 1}, compile_)
print(library.read_text())
"""


def test_one_of_two_processes_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "cache"))
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", ASK, str(notes)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in running] == ["TEXT\n", "TEXT\n"]
    assert notes.read_text() == "compiled\n"


def test_the_source_of_a_failure_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path))
    for folder in ("simulators", "building", "locks", "logs", "runtime"):
        (tmp_path / folder).mkdir()

    def fail(folder, log):
        raise ToolError("g++ failed (exit code 1)", [], log)

    with pytest.raises(ToolError, match=r"^g\+\+ failed"):
        cached_library(tmp_path, "it.so", "it", {"it.cpp": "text"}, {"it": 1}, fail)
    (kept,) = (tmp_path / "logs").glob("*.cpp")
    assert kept.read_text() == "text"
    assert not list((tmp_path / "simulators").iterdir())
