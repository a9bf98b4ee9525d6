"""The hook that checks messages of commits."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "commit_message.py"
FAULTS_OF = runpy.run_path(str(SCRIPT))["faults_of"]


@pytest.mark.parametrize(
    ("message", "changed_lines", "faults"),
    [
        ("docs: a typing error.", 2, 0),
        ("docs: a typing error.\n# Please enter the message\n", 2, 0),
        ("hw.rtl.arith: fewer LUTs.\n\nThey are short.\n", 200, 0),
        ("docs, tests: pages of links say what is tested.\n\nWhy.\n", 200, 0),
        ("Merge branch 'x'", 200, 0),
        ("hw.rtl.arith: fewer LUTs.", 200, 1),
        ("fewer LUTs", 2, 1),
        ("", 2, 1),
        ("hw: fewer LUTs.\nThey are short.", 2, 1),
        ("more\nand more", 2, 2),
    ],
)
def test_messages(message, changed_lines, faults):
    assert len(FAULTS_OF(message, changed_lines)) == faults


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_counts_what_is_staged(tmp_path):
    def git(*args):
        subprocess.run(["git", *args], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("line\n" * 30)
    (tmp_path / "message").write_text("docs: many lines.\n")
    git("add", "file")
    done = subprocess.run(
        [sys.executable, SCRIPT, "message"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "commit message: 30 lines change: a body should say why\n"
