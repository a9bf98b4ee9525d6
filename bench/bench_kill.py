"""``kill -9`` at random moments of a training run, from its first log on; then resumed to the end.

Prints one JSON object: how many of them end with the weights and the log of the run that was left
alone. The run is ``fpgapipe run`` of digits-cnn on two devices in the bit-exact model.
"""

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.build import write_build
from fpgapipe.host.checkpoint import Checkpoint, CheckpointFolder
from fpgapipe.host.run_log import read_log
from fpgapipe.partition.explorer import Request, explore
from fpgapipe.partition.load import load_network
from fpgapipe.partition.planned import as_plan

NETWORK = "digits-cnn"
MICROBATCHES = 2


def make_build(folder: Path, batch: int, devices: int) -> None:
    """Write a build of small cores."""
    cluster = chain_of(load_board("u280"), devices).spec
    request = Request(
        lambda samples: load_network(NETWORK, samples),
        batch,
        cluster,
        ("1f1b-as",),
        MICROBATCHES,
        array=(16, 16),
        all_devices=True,
    )
    graph = load_network(NETWORK, batch // MICROBATCHES)
    write_build(
        as_plan(explore(request).best, graph, NETWORK, batch, cluster), graph, cluster, folder
    )


class Runs:
    """Runs of one build, each in a folder of its own.

    Parameters
    ----------
    build : Path
    folder : Path
        For the copies.
    steps : int
    every : int
        Steps from checkpoint to checkpoint.
    """

    def __init__(self, build: Path, folder: Path, steps: int, every: int) -> None:
        self._build = build
        self._folder = folder
        self._options = ["--steps", str(steps), "--checkpoint-every", str(every)]

    def copy(self, name: str) -> Path:
        """A build that has not been run."""
        return Path(shutil.copytree(self._build, self._folder / name))

    def start(self, build: Path, *more: str) -> subprocess.Popen[bytes]:
        """Begin a run."""
        command = [sys.executable, "-m", "fpgapipe.host.cli", "--quiet", "run", str(build)]
        command += ["--backend", "model", "--no-validation", *self._options, *more]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def finish(self, build: Path) -> float:
        """Take a run to its end, also one that was killed; seconds from its first log on."""
        has_checkpoint = any(CheckpointFolder(build / "run/model/checkpoints"))
        process = self.start(build, *["--resume"] * has_checkpoint)
        begin = self.await_log(build, process)
        if process.wait():
            raise RuntimeError(f"the run of {build} ended with {process.returncode}")
        return time.perf_counter() - begin

    def await_log(self, build: Path, process: subprocess.Popen[bytes]) -> float:
        """Wait until a run has opened its log; when that was."""
        while not (build / "run/model/log.jsonl").exists() and process.poll() is None:
            time.sleep(0.005)
        return time.perf_counter()


def outcome(build: Path) -> tuple[str, list[dict[str, Any]]]:
    """Digest of the last checkpoint's values, and the log without times."""
    digest = hashlib.sha256()
    newest = next(iter(CheckpointFolder(build / "run/model/checkpoints")))
    for name, value in sorted(Checkpoint.read(newest).state.items()):
        digest.update(name.encode() + value.tobytes())
    lines = read_log(build / "run/model/log.jsonl")
    return digest.hexdigest(), [
        {name: value for name, value in line.items() if name != "wall_s"} for line in lines
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    moments, same_weights, same_logs, steps_left = [], 0, 0, []
    with tempfile.TemporaryDirectory() as scratch:
        make_build(Path(scratch) / "build", given.batch, given.devices)
        runs = Runs(Path(scratch) / "build", Path(scratch), given.steps, given.every)
        alone = runs.copy("alone")
        whole_s = runs.finish(alone)
        expected = outcome(alone)
        while len(moments) < given.kills:
            build = runs.copy(f"kill-{len(moments)}")
            moment = rng.uniform(0, whole_s)
            process = runs.start(build)
            runs.await_log(build, process)
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.wait() != -signal.SIGKILL:
                shutil.rmtree(build)  # it was over before: another moment
                continue
            log = read_log(build / "run/model/log.jsonl")
            runs.finish(build)
            found = outcome(build)
            moments.append(round(moment, 3))
            steps_left.append(sum("step" in line for line in log))
            same_weights += found[0] == expected[0]
            same_logs += found[1] == expected[1]
            shutil.rmtree(build)
            print(
                f"kill {len(moments)} after {moment:.2f} s, {steps_left[-1]} steps: "
                f"{'same' if found == expected else 'OTHER'}",
                file=sys.stderr,
            )
    result = {
        "network": NETWORK,
        "devices": given.devices,
        "steps": given.steps,
        "checkpoint_every": given.every,
        "training_s": whole_s,
        "kills": len(moments),
        "killed_after_s": moments,
        "steps_in_log": steps_left,
        "same_weights": same_weights,
        "same_logs": same_logs,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
