"""The set-up script: one at a time, and a sentence when it is interrupted."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "bootstrap.py"


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


def test_a_folder_without_the_project_is_one_line(tmp_path):
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("fpgapipe: set-up failed: [Errno 2] No such file or directory")
    assert len(result.stderr.splitlines()) == 1
