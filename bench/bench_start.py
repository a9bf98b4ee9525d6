"""Processor time of commands that should answer at once; prints one JSON object.

Each command runs in a process of its own, several times, with Python's compiled files there
already. The figures are medians of its user and system time; ``nothing`` is an interpreter that
does nothing.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

COMMAND = ["-m", "fpgapipe.host.cli.main"]
COMMANDS = {
    "nothing": (["-c", "pass"], 0, None),
    "--help": ([*COMMAND, "--help"], 0, 0.2),
    "boards": ([*COMMAND, "boards"], 0, 0.4),
    "run, no folder": ([*COMMAND, "run", "out/none"], 2, 0.6),
    "run, no such option": ([*COMMAND, "run", "out/none", "--stepz", "2"], 2, 0.6),
    "report, no folder": ([*COMMAND, "report", "out/none"], 2, 0.6),
}
"""Arguments of Python, the exit code, and the seconds that are asked for."""


def cpu_seconds(arguments: list[str], code: int, folder: str) -> float:
    """Processor time of a run in a folder."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, cwd=folder, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, done.stderr.decode()
    return sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (arguments, code, most_s) in COMMANDS.items():
            cpu_seconds(arguments, code, folder)  # writes compiled files
            times = [cpu_seconds(arguments, code, folder) for _ in range(given.repeats)]
            found[name] = {
                "cpu_seconds": round(statistics.median(times), 3),
                "asked_s": most_s,
                "met": most_s is None or statistics.median(times) <= most_s,
            }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
