"""Files of figures: what a bench measured, as JSON in docs/figures, to which a page refers."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def write_figure(path: Path, bench: str, note: str, figures: dict[str, Any]) -> None:
    """Write figures with the script that made them, the commit, the day and the machine.

    Parameters
    ----------
    path : Path
    bench : str
        The script, by its path from the root of the repository.
    note : str
        Sentence on what the figures are.
    figures : dict
        Values by further keys.
    """
    origin = {
        "bench": bench,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "note": note,
    }
    path.write_text(_text(origin | figures) + "\n", encoding="utf-8")


def commit() -> str:
    """The commit of the repository, with ``-dirty`` if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _text(value: Any, depth: int = 0) -> str:
    """JSON whose innermost lists and objects have a line each."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(v, dict | list) for v in inner):
        return json.dumps(value)
    space = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_text(each, depth + 1)}" for key, each in value.items()]
    else:
        parts = [_text(each, depth + 1) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(space + part for part in parts) + f"\n{' ' * depth}{end}"
