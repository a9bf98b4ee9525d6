"""The set-up script: one at a time, and a sentence when it is interrupted."""

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "bootstrap.py"


@pytest.mark.usefixtures("interruptible")
def test_waits_for_another_and_can_be_interrupted(tmp_path):
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with subprocess.Popen(
            [sys.executable, script], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr.readline() == (
                "fpgapipe: waiting for another set-up in this folder\n"
            )
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
    finally:
        os.close(holder)
    assert rest == "fpgapipe: set-up interrupted; make starts it again\n"
    assert process.returncode == 1


@pytest.fixture
def fingerprint(tmp_path):
    """``fingerprint`` of a copy of the script, and the folder of its project."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "host" / "report").mkdir(parents=True)
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    spec = importlib.util.spec_from_file_location("bootstrap", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fingerprint, tmp_path


def test_every_folder_of_the_package_counts():
    """A file that is added anywhere renews the links."""
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = given["tool"]["setuptools"]["package-dir"].values()
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.FOLDERS) == sorted({folder.split("/")[0] for folder in folders})


@pytest.mark.parametrize("name", ["a.py", "a.css", "a.js", "a.cpp", "a.hpp", "a.yaml", "py.typed"])
def test_an_added_file_renews_the_links(fingerprint, name):
    digest, root = fingerprint
    before = digest()
    (root / "host" / "report" / name).write_text("one")
    added = digest()
    assert added != before
    (root / "host" / "report" / name).write_text("two")
    assert digest() == added


LEFT = ["__pycache__/a.cpython-311.pyc", ".cache/a.py", ".a.swp", "a.py~"]


@pytest.mark.parametrize("name", LEFT)
def test_what_python_and_editors_leave_does_not(fingerprint, name):
    digest, root = fingerprint
    before = digest()
    path = root / "host" / "report" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("one")
    assert digest() == before


def test_a_folder_without_the_project_is_one_line(tmp_path):
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("fpgapipe: set-up failed: [Errno 2] No such file or directory")
    assert len(result.stderr.splitlines()) == 1
