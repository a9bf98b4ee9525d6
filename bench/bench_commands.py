"""Wall time of commands that people wait for, each in a fresh process; prints one JSON object."""

import json
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "help": ["--help"],
    "inspect_resnet50": ["inspect", "resnet50"],
    "inspect_resnet152": ["inspect", "resnet152"],
    "boards": ["boards"],
    "cluster": ["cluster", "--board", "u280", "--devices", "8"],
}
REPEATS = 5


def main() -> None:
    """Time each command: best and median of a few runs."""
    results = {}
    for name, arguments in COMMANDS.items():
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            command = [sys.executable, "-m", "fpgapipe.host.cli.main", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - begin)
        results[name] = {"median_s": statistics.median(times), "best_s": min(times)}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
