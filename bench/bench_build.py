"""Times of `fpgapipe build` for large networks on four U280, and resources of their cores.

Prints one JSON object; exits with 1 if a build takes 120 seconds or more, or exceeds a board.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as fpgapipe

MOST_S = 120
DEVICES = 4


def built(network: str, folder: Path) -> dict[str, Any]:
    """Build a network with the command's defaults."""
    begin = time.perf_counter()
    options = ("--board", "u280", "--devices", str(DEVICES), "--network", network)
    code = fpgapipe(["build", *options, "-o", str(folder)])
    wall_s = time.perf_counter() - begin
    if code:
        return {"wall_s": wall_s, "fits": False}
    cores = open_build(folder).resources
    return {
        "wall_s": wall_s,
        "cores": [each["core"] for each in cores],
        "fits": all(
            each["used"][name] <= limit for each in cores for name, limit in each["limits"].items()
        ),
    }


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet50", "vgg16"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: built(name, Path(scratch) / name) for name in given.networks}
    reached = all(each["fits"] and each["wall_s"] < MOST_S for each in found.values())
    print(json.dumps({"most_s": MOST_S, "networks": found, "reached": reached}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
