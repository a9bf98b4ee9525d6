"""One training step of digits-cnn in RTL on the core that the planner finds for each small board.

Prints one JSON object: the core, what it takes of the board by the resource model, cycles simulated
and predicted. Every byte of the memory is compared with the bit-exact model. Exits with 1 if a
board has no core, a byte differs, or the prediction is off by more than 3 %. Takes ten minutes.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as fpgapipe

BOARDS = ("ulx3s", "pynq-z2", "arty-a7-100t")
MOST_OFF = 0.03
"""Largest share by which predicted cycles may differ from simulated ones."""


def step_on(board: str, folder: Path, batch: int) -> dict[str, Any]:
    """Build digits-cnn for a board, run one checked step in RTL, and return what was found."""
    options = ("--board", board, "--devices", "1", "--network", "digits-cnn")
    sizes = ("--batch", str(batch), "--micro-batches", "1")
    with contextlib.redirect_stdout(io.StringIO()):
        code = fpgapipe(["build", *options, *sizes, "-o", str(folder)])
    if code:
        return {"equal": False}
    build = open_build(folder)
    (core,) = build.plan.cores
    (resources,) = build.resources
    text = io.StringIO()
    steps = ("--backend", "sim", "--steps", "1", "--check", "--no-validation", "--json")
    with contextlib.redirect_stdout(text):
        code = fpgapipe(["run", str(folder), *steps])
    found: dict[str, Any] = {
        "core": resources["core"],
        "port_bytes": core.scratchpad.port_bytes,
        "vector_lanes": core.vector.lanes if core.vector else 0,
        "used": resources["used"],
        "limits": resources["limits"],
        "equal": code == 0,
    }
    if code == 0:
        cycles = json.loads(text.getvalue())["cycles"]
        predicted = build.plan.predicted.minibatch_s * build.plan.nodes[0].spec.clk_hz
        found |= {"cycles": cycles, "predicted": round(predicted), "off": predicted / cycles - 1}
    return found


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boards", nargs="+", default=BOARDS, metavar="BOARD")
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: step_on(name, Path(scratch) / name, given.batch) for name in given.boards}
    reached = all(each["equal"] and abs(each["off"]) <= MOST_OFF for each in found.values())
    print(json.dumps({"bench": "small boards", "boards": found, "reached": reached}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
