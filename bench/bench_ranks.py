"""Simulates sixteen devices in one, two and four processes: the same bits and cycles, and how fast.

digits-cnn trains on sixteen boards in a chain, each of which has the whole network and a sixteenth
of the samples (strategy data), so that all devices have as much to do. Every process simulates its
devices in one thread. One round runs first, which compiles the simulator; its time is not used.

Prints one JSON object: for each number of processes its digest of the weights, the cycles of each
step, the wall time of the last step, and how many times faster it is than one process in the same
run. Exits with 1 if a digest or a number of cycles differs.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from run_digest import newest_weights

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as command_line
from fpgapipe.host.runtime.run_folder import LOG
from fpgapipe.host.runtime.run_log import read_log

TOOLS = Path(sys.executable).parent
STEPS = 2


def step_of(folder: Path, ranks: int) -> dict[str, Any]:
    """Train with a number of processes; return the digest, the cycles and the time of a step."""
    build = open_build(folder)
    shutil.rmtree(build.run_folder, ignore_errors=True)
    launcher = shutil.which("mpiexec", path=TOOLS) or shutil.which("mpiexec")
    command = [
        *([launcher, "-n", str(ranks)] if ranks > 1 and launcher else []),
        *(TOOLS / "fpgapipe", "run", folder),
        *f"--data random --no-validation --steps {STEPS} --threads 1".split(),
    ]
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    run = build.run_folder / "sim"
    lines = [line for line in read_log(run / LOG) if "cycles" in line]
    return {
        "processes": ranks,
        "digest": newest_weights(run)[1][:16],
        "cycles": [line["cycles"] for line in lines],
        "wall_s": round(lines[-1]["wall_s"], 3),
    }


def main() -> int:
    """Build, run with each number of processes, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--array", default="8x8", help="rows and columns of each array")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "b"
        options = f"--board u280 --devices {given.devices} --array {given.array}"
        more = f"--batch {given.batch} --micro-batches {given.devices} --strategy data"
        with contextlib.redirect_stdout(sys.stderr):
            code = command_line(["build", *options.split(), *more.split(), "-o", str(folder)])
        assert code == 0
        step_of(folder, 1)
        found = []
        for ranks in given.ranks:
            found.append(step_of(folder, ranks))
            found[-1]["faster"] = round(found[0]["wall_s"] / found[-1]["wall_s"], 3)
            print(found[-1], file=sys.stderr, flush=True)
    equal = all(
        (each["digest"], each["cycles"]) == (found[0]["digest"], found[0]["cycles"])
        for each in found
    )
    result = {
        "devices": given.devices,
        "array": given.array,
        "processors": len(os.sched_getaffinity(0)),
        "equal": equal,
        "runs": found,
        "goal_faster_with_two": 1.8,
    }
    print(json.dumps(result, indent=2))
    return not equal


if __name__ == "__main__":
    sys.exit(main())
