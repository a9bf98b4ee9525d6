"""Simulates sixteen devices in one, two and four processes: the same bits and cycles, and how fast.

digits-cnn trains on sixteen boards in a chain, each of which has the whole network and a sixteenth
of the samples (strategy data), so that all devices have as much to do. Every process simulates its
devices in one thread. One round runs first, which compiles the simulator; its time is not used.

All numbers of processes run in turn, for some rounds. Prints one JSON object: for each number of
processes its digest of the weights, the cycles of each step, the shortest wall time of a step, and
how many times faster it is than one process; also by round. What the machine gives at best is what
two runs of one process that have nothing to do with each other gain when they run at once: that is
there by round as well. Exits with 1 if a digest or a number of cycles differs.
"""

import argparse
import contextlib
import itertools
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
    return finish(start(folder, ranks), folder, ranks)


def start(folder: Path, ranks: int) -> subprocess.Popen[str]:
    """Begin a training with a number of processes."""
    build = open_build(folder)
    shutil.rmtree(build.run_folder, ignore_errors=True)
    launcher = shutil.which("mpiexec", path=TOOLS) or shutil.which("mpiexec")
    command = [
        *([launcher, "-n", str(ranks)] if ranks > 1 and launcher else []),
        *(TOOLS / "fpgapipe", "run", folder),
        *f"--data random --no-validation --steps {STEPS} --threads 1".split(),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, command)], stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], folder: Path, ranks: int) -> dict[str, Any]:
    """Wait for a training; return the digest, the cycles and the time of a step."""
    stderr = process.communicate()[1]
    assert process.returncode == 0, stderr[-2000:]
    run = open_build(folder).run_folder / "sim"
    lines = [line for line in read_log(run / LOG) if "cycles" in line]
    return {
        "processes": ranks,
        "digest": newest_weights(run)[1][:16],
        "cycles": [line["cycles"] for line in lines],
        "wall_s": round(min(line["wall_s"] for line in lines), 3),
    }


def main() -> int:
    """Build, run with each number of processes, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--array", default="8x8", help="rows and columns of each array")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
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
        other = Path(shutil.copytree(folder, Path(scratch) / "other"))
        rounds, at_once = [], []
        for _ in range(given.rounds):
            both = [(start(each, 1), each) for each in (folder, other)]
            at_once.append([finish(process, each, 1)["wall_s"] for process, each in both])
            rounds.append([step_of(folder, ranks) for ranks in given.ranks])
            print(rounds[-1], file=sys.stderr, flush=True)
    found = [min(each, key=lambda step: step["wall_s"]) for each in zip(*rounds, strict=True)]
    for each in found:
        each["faster"] = round(found[0]["wall_s"] / each["wall_s"], 3)
    equal = all(
        (each["digest"], each["cycles"]) == (found[0]["digest"], found[0]["cycles"])
        for each in itertools.chain(*rounds)
    )
    result = {
        "devices": given.devices,
        "array": given.array,
        "processors": len(os.sched_getaffinity(0)),
        "equal": equal,
        "runs": found,
        "faster_by_round": [
            [round(each[0]["wall_s"] / step["wall_s"], 3) for step in each] for each in rounds
        ],
        "independent_faster_by_round": [
            round(2 * each[0]["wall_s"] / max(both), 3)
            for each, both in zip(rounds, at_once, strict=True)
        ],
        "goal_faster_with_two": 1.8,
    }
    print(json.dumps(result, indent=2))
    return not equal


if __name__ == "__main__":
    sys.exit(main())
