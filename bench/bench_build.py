"""Times of `fpgapipe build` for large networks on U280, and resources of their cores.

Builds for four boards of one node each, or with ``--nodes`` for one board of several, with 32
samples for each; nothing is remembered of earlier runs. Prints one JSON object; exits with 1 if a
build takes 120 seconds or more (60 for one board), or exceeds a device.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fpgapipe.host.build.build import open_build

MOST_S, MOST_WHOLE_S = 120, 60
"""Seconds that a build may take on four boards, and on one that is shared."""

DEVICES = 4
TOOL = Path(sys.executable).with_name("fpgapipe")
SAMPLES = 32
"""Samples of a mini-batch for each node of a shared board."""


def built(network: str, nodes: int, folder: Path) -> dict[str, Any]:
    """Build a network with the command's defaults, in a process and with a cache of its own."""
    boards: tuple[Any, ...] = ("--devices", DEVICES)
    if nodes > 1:
        boards = ("--nodes", nodes, "--batch", SAMPLES * nodes)
    words = ("build", "--board", "u280", *boards, "--network", network, "-o", folder / "build")
    command = [str(TOOL), *map(str, words)]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "log").open("w") as log:
        code = subprocess.run(
            command,
            env=os.environ | {"FPGAPIPE_CACHE": str(folder / "cache")},
            stdout=log,
            stderr=log,
            check=False,
        ).returncode
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        return {"wall_s": wall_s, "fits": False, "log": (folder / "log").read_text()[-1000:]}
    cores = open_build(folder / "build").resources
    return {
        "wall_s": wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "cores": [each["core"] for each in cores],
        "fits": all(
            each["used"][name] <= limit for each in cores for name, limit in each["limits"].items()
        ),
    }


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet50", "vgg16"])
    parser.add_argument("--nodes", type=int, default=1, help="nodes of a single board")
    given = parser.parse_args()
    most_s = MOST_S if given.nodes == 1 else MOST_WHOLE_S
    found = {}
    for name in given.networks:
        with tempfile.TemporaryDirectory() as scratch:
            found[name] = built(name, given.nodes, Path(scratch))
    reached = all(each["fits"] and each["wall_s"] < most_s for each in found.values())
    print(json.dumps({"most_s": most_s, "networks": found, "reached": reached}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
