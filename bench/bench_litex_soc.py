"""One training step of digits-cnn on the SoC of a package for LiteX, simulated with its SDRAM.

The core is the one that the ULX3S's bitstream has. `fpgapipe run --backend litex` trains over
LiteX's server, and every byte of the memory is compared with the bit-exact model. Prints one JSON
object: cycles of the step, those that the plan predicts, and the seconds of each part. Exits with 1
if a byte differs. Takes two minutes on two idle cores.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main as fpgapipe

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cases"))
from litex_soc_cases import cluster_file, compiled, servers

BOARD = "ulx3s"


def command(*arguments: str) -> tuple[int, str, float]:
    """Run fpgapipe; returns its exit code, what it printed, and seconds."""
    text, began_s = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(text):
        code = fpgapipe(list(arguments))
    return code, text.getvalue(), round(time.monotonic() - began_s, 1)


def step_of(folder: Path, batch: int) -> dict[str, Any]:
    """Build and package digits-cnn, run one checked step on its SoC, and return what was found."""
    network = ("--network", "digits-cnn", "--batch", str(batch), "--micro-batches", "1")
    device = ("--board", BOARD, "--devices", "1", "--package", "litex")
    code, _, build_s = command("build", *device, *network, "-o", str(folder / "b"))
    if code:
        return {"equal": False}
    build = open_build(folder / "b")
    packages = (folder / "b" / "package" / "litex").iterdir()
    (package,) = (each for each in packages if each.is_dir())
    began_s = time.monotonic()
    program, csr = compiled(package, num_boards=1)
    compile_s = round(time.monotonic() - began_s, 1)
    with servers(program) as places:
        cluster = folder / "lab.yaml"
        cluster.write_text(cluster_file(places, csr, BOARD))
        boards = ("--backend", "litex", "--cluster", str(cluster))
        steps = ("--steps", "1", "--check", "--no-validation", "--json")
        code, text, run_s = command("run", str(folder / "b"), *boards, *steps)
    found: dict[str, Any] = {
        "core": build.resources[0]["core"],
        "memory_bytes": sum(build.memory_use[0].values()),
        "equal": code == 0,
        "seconds": {"build": build_s, "compilation": compile_s, "run": run_s},
    }
    if code == 0:
        run = json.loads(text)
        predicted = build.plan.predicted.minibatch_s * build.plan.nodes[0].spec.clk_hz
        found["seconds"]["step in run"] = round(run["wall_s"], 1)
        found |= {
            "loss": run["loss"],
            "cycles": run["cycles"],
            "predicted": round(predicted),
            "off": round(predicted / run["cycles"] - 1, 4),
        }
    return found


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = step_of(Path(scratch), given.batch)
    print(json.dumps({"bench": "simulated SoC of LiteX", **found}, indent=2))
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
