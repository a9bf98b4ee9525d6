"""Processor time of commands that people wait for, each in a fresh process; prints JSON.

The exit code is 1 if the best run of one with a limit takes longer.
"""

import json
import resource
import statistics
import subprocess
import sys

COMMANDS = {
    "help": ["--help"],
    "inspect_resnet50": ["inspect", "resnet50"],
    "inspect_resnet152": ["inspect", "resnet152"],
    "boards": ["boards"],
    "cluster": ["cluster", "--board", "u280", "--devices", "8"],
    "error_of_run": ["run", "no/such/folder"],
    "wrong_option_of_run": ["run", "no/such/folder", "--lr", "0.1"],
    "error_of_report": ["report", "no/such/folder"],
}
LIMITS_S = {
    "help": 0.2,
    "boards": 0.4,
    "error_of_run": 0.6,
    "wrong_option_of_run": 0.6,
    "error_of_report": 0.6,
}
"""Most processor time, seconds."""

REPEATS = 5


def main() -> int:
    """Time each command: best and median of a few runs; returns the exit code."""
    results = {}
    for name, arguments in COMMANDS.items():
        times = []
        for _ in range(REPEATS):
            command = [sys.executable, "-m", "fpgapipe.host.cli.main", *arguments]
            begin = _used_s()
            done = subprocess.run(command, check=False, capture_output=True)
            times.append(_used_s() - begin)
            assert done.returncode == (2 if "error" in name or "wrong" in name else 0), done.stderr
        results[name] = {
            "median_s": round(statistics.median(times), 3),
            "best_s": round(min(times), 3),
            "limit_s": LIMITS_S.get(name),
        }
    print(json.dumps(results, indent=2))
    return int(any(results[name]["best_s"] > limit for name, limit in LIMITS_S.items()))


def _used_s() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
