"""`fpgapipe build` of networks at full size for eight U280: time, memory, and what the boards have.

Each network is built by a process of its own, with the command's defaults; other options are
handed on. Prints one JSON object: for each network the seconds of the build by the clock and of its
processor, the peak of the builder's memory, the bytes that each device needs of its board's memory,
and whether all cores fit their boards. BERT-base has a head of two classes, since a network that
trains has one output. Exits with 1 if a build takes 300 seconds or more of processor time, or does
not fit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fpgapipe.boards.library import load_board
from fpgapipe.host.build.build import open_build
from fpgapipe.host.build.build_parts import DEVICES

MOST_S = 300
BOARD, NUM_DEVICES = "u280", 8
NETWORKS = {
    "gpt2_small": "gpt2_small",
    "bert_base": "fpgapipe.network.zoo.transformer:bert_classifier",
    "vit_b": "vit_b",
    "inception_v3": "inception_v3",
    "mobilenet_v2": "mobilenet_v2",
    "gnmt8": "gnmt8",
}


def run(*arguments: str) -> tuple[dict[str, Any], str]:
    """Run a command of fpgapipe; returns its times and memory, and its errors if it fails."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "fpgapipe.host.cli.main", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    found = {
        "wall_s": round(time.perf_counter() - begin, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_bytes": used.ru_maxrss * 1024,
    }
    return found, errors if process.returncode else ""


def measure(network: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """Figures of one network."""
    common = ["--board", BOARD, "--devices", str(NUM_DEVICES), *options]
    found, errors = run("build", "--network", network, *common, "-o", str(folder))
    if errors:
        return {"build": found, "refused": errors.strip().splitlines()[-1]}
    build = open_build(folder)
    # Programs of millions of instructions are not decoded for it.
    maps = [
        json.loads((folder / DEVICES / str(stage) / "device.json").read_text())["map"]
        for stage in range(len(build.plan.nodes))
    ]
    needed = [each["memory_bytes"] for each in maps]
    room = load_board(BOARD).device_spec().memory_bytes
    fits = max(needed) <= room and all(
        each["used"][name] <= limit
        for each in build.resources
        for name, limit in each["limits"].items()
    )
    return {
        "build": found,
        "memory_bytes": needed,
        "room_bytes": room,
        "cores": [each["core"] for each in build.resources],
        "micro_batches": maps[0]["all_microbatches"],
        "fits": fits,
    }


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(NETWORKS), action="append")
    given, options = parser.parse_known_args()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.network or NETWORKS:
            found[name] = measure(NETWORKS[name], Path(scratch) / name, options)
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    reached = all(
        each.get("fits", False) and each["build"]["cpu_s"] < MOST_S for each in found.values()
    )
    print(json.dumps({"most_s": MOST_S, "networks": found, "reached": reached}, indent=1))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
