"""Simulates sixteen devices in one, two and four processes: the same bits and cycles, and how fast.

digits-cnn trains on sixteen boards in a chain, each of which has the whole network and a sixteenth
of the samples (strategy data), so that all devices have as much to do. Every process simulates its
devices in one thread. One round runs first, which compiles the simulator; its time is not used.

All numbers of processes run in turn, for some rounds. Prints one JSON object: for each number of
processes its digest of the weights, the cycles of each step, the shortest wall time of a step, and
how many times faster it is than one process; also by round. What the machine gives at best is what
two runs of one process that have nothing to do with each other gain when they run at once: that is
there by round as well. Exits with 1 if a digest or a number of cycles differs.

With ``--nodes N`` the devices are nodes of boards, N on each, and what is compared with boards of
one node is how many cycles of a device a second of processor time simulates, in one thread. The
digests of the weights must then be equal for both, and the cycles for any number of processes.
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
import time
from pathlib import Path
from typing import Any

from run_digest import newest_weights

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as command_line
from fpgapipe.host.runtime.measure import random_samples
from fpgapipe.host.runtime.run_folder import LOG
from fpgapipe.host.runtime.run_log import read_log
from fpgapipe.host.runtime.runtime import RunOptions, open_backend
from fpgapipe.lowering.units.step_options import scalar_bits

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


def make(folder: Path, given: argparse.Namespace, nodes: int) -> None:
    """Build the devices as boards with a number of nodes each."""
    boards = f"--board u280 --devices {given.devices // nodes} --nodes {nodes}"
    options = f"--array {given.array} --batch {given.batch} --micro-batches {given.devices}"
    command = ["build", *boards.split(), *options.split(), "--strategy", "data", "-o", str(folder)]
    with contextlib.redirect_stdout(sys.stderr):
        assert command_line(command) == 0


def shared(given: argparse.Namespace, scratch: Path) -> int:
    """Compare nodes that share boards with boards of one node, and print the figures."""
    folders = {nodes: scratch / str(nodes) for nodes in (1, given.nodes)}
    for nodes, folder in folders.items():
        make(folder, given, nodes)
    runs = {
        nodes: [step_of(folder, ranks) for ranks in (1, 2)] for nodes, folder in folders.items()
    }
    rates: dict[int, list[float]] = {nodes: [] for nodes in folders}
    with contextlib.ExitStack() as opened:
        backends = {}
        for nodes, folder in folders.items():
            build = open_build(folder)
            backend = open_backend(build, "sim", RunOptions("sim", threads=1))
            backends[nodes] = opened.enter_context(backend), random_samples(build.pipeline)
        for _ in range(given.rounds):
            for nodes, (backend, batch) in backends.items():
                begin_s = time.process_time()
                cycles = backend.step(*batch, scalar_bits()).cycles
                rates[nodes].append(given.devices * cycles / (time.process_time() - begin_s))
            print(rates, file=sys.stderr, flush=True)
    best = {nodes: max(each) for nodes, each in rates.items()}
    digests = {each["digest"] for found in runs.values() for each in found}
    equal = len(digests) == 1 and all(one["cycles"] == two["cycles"] for one, two in runs.values())
    result = {
        "devices": given.devices,
        "nodes_of_a_board": given.nodes,
        "array": given.array,
        "equal": equal,
        "runs": runs,
        "device_cycles_per_cpu_s": best,
        "share": round(best[given.nodes] / best[1], 3),
        "goal_share": 0.9,
    }
    print(json.dumps(result, indent=2))
    return not equal


def main() -> int:
    """Build, run with each number of processes, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--array", default="8x8", help="rows and columns of each array")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--nodes", type=int, default=1, help="nodes of each board")
    given = parser.parse_args()
    if given.nodes > 1:
        with tempfile.TemporaryDirectory() as scratch:
            return shared(given, Path(scratch))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "b"
        make(folder, given, 1)
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
