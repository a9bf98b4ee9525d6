"""Runs external programs, watches how they end, and keeps their output."""

import logging
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fpgapipe.errors import ToolError

LAST_LINES = 30
"""Number of lines at the end of a failed program's output that an error shows."""

logger = logging.getLogger(__name__)


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    """Return the last lines of a log; bytes that are no text are replaced."""
    try:
        with log.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except OSError:
        return []


def identity_of(program: str) -> str:
    """Path, size and time of a program, as in ccache; empty if it is missing."""
    found = shutil.which(program)
    if found is None:
        return ""
    real = Path(found).resolve()
    status = real.stat()
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def run_tool(
    command: Sequence[str | Path],
    *,
    log: Path,
    outputs: Iterable[Path] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
) -> None:
    """Run a program to its end, and check that it has written its outputs.

    Parameters
    ----------
    command : sequence of str or Path
        Program and arguments; no shell is involved.
    log : Path
        File to which the command line and all output are appended.
    outputs : iterable of Path
        Files that must exist afterwards, and not be empty.
    cwd : Path, optional
        Working directory.
    env : mapping, optional
        Variables added to the environment.
    timeout_s : float, optional
        Time after which the program is ended, seconds.
    name : str, optional
        Name of the program in errors; its file name if not given.

    Raises
    ------
    ToolError
        If the program is missing, exits with anything but 0, runs out of time, or an output is
        missing or empty.
    """
    words = [str(word) for word in command]
    name = name or Path(words[0]).name
    log.parent.mkdir(parents=True, exist_ok=True)
    logger.debug("running %s (log: %s)", " ".join(words), log)
    with log.open("a") as file:
        file.write(f"$ {' '.join(words)}\n")
        file.flush()
        try:
            status = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                timeout=timeout_s,
                check=False,
            ).returncode
        except FileNotFoundError:
            raise ToolError(f"{name} is not installed or not on PATH", [], log) from None
        except PermissionError:
            raise ToolError(f"{name} cannot be executed", [], log) from None
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"{name} was ended after {timeout_s:g} s without a result", last_lines(log), log
            ) from None
    if status:
        how = f"exit code {status}" if status > 0 else f"signal {-status}"
        raise ToolError(f"{name} failed ({how})", last_lines(log), log)
    for path in outputs:
        if not path.is_file() or path.stat().st_size == 0:
            raise ToolError(f"{name} ended well but left no {path}", last_lines(log), log)
