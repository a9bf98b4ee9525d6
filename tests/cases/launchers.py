"""The launcher of MPI that tests start several processes with.

By default it is the ``mpiexec`` beside Python, or else the one on PATH. ``FPGAPIPE_MPIEXEC`` names
another, whose MPI mpi4py has to use as well.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OF_OPEN_MPI = ("--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE")
"""Without them, Open MPI refuses to run as root, and more processes than there are cores."""


@functools.cache
def _launcher() -> tuple[str, str]:
    """Path of the launcher, and what it says of its version; empty if there is none."""
    here = Path(sys.executable).parent
    path = os.environ.get("FPGAPIPE_MPIEXEC") or shutil.which("mpiexec", path=here)
    path = path or shutil.which("mpiexec")
    if not path:
        return "", ""
    command = [path, "--version"]
    return path, subprocess.run(command, capture_output=True, text=True, check=False).stdout


def is_open_mpi() -> bool:
    """Whether the launcher is that of Open MPI."""
    # Version 4 calls itself "mpiexec (OpenRTE) 4.1.4", version 5 "mpiexec (Open MPI) 5.0.11".
    return any(name in _launcher()[1] for name in ("Open MPI", "OpenRTE"))


def open_mpi(size: int) -> list[str]:
    """Return the command under Debian's Open MPI, which may be installed beside another MPI.

    It needs ``MPI4PY_MPIABI=openmpi``. Skips the test if it is not installed.
    """
    path = shutil.which("mpiexec.openmpi")
    if not path:
        pytest.skip("Debian's Open MPI (openmpi-bin) is not installed")
    return [path, *OF_OPEN_MPI, "-n", str(size)]


def mpiexec(size: int, *options: str) -> list[str]:
    """Return the command that starts some processes; skips the test if there is no MPI."""
    path, _ = _launcher()
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    if not path:
        pytest.skip("no mpiexec")
    own = OF_OPEN_MPI if is_open_mpi() else ()
    return [path, *own, *options, "-n", str(size)]
