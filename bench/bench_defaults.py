"""Trains digits-cnn with nothing but defaults at several batches, in the model and in FP32 PyTorch.

For each batch it runs ``fpgapipe build``, then ``fpgapipe run --epochs 8`` in both, as a user does.
Prints one JSON object; exits with 1 if an accuracy misses its bound.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fpgapipe.host.cli.main import main as fpgapipe
from fpgapipe.host.runtime.run_log import read_log

BATCHES = (4, 8, 32, 128)
EPOCHS = 8
BACKENDS = ("model", "torch")
LEAST_ACCURACY, MOST_FROM_TORCH = 0.98, 0.01


def command(*words: object) -> str:
    """Run a command line of fpgapipe; returns its output."""
    print("fpgapipe", *words, file=sys.stderr)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = fpgapipe([str(word) for word in words])
    if code:
        raise SystemExit(f"fpgapipe {words[0]} ended with {code}")
    return output.getvalue()


def trained(folder: Path, batch: int) -> dict[str, Any]:
    """Figures of both backends at a batch."""
    command("build", "--board", "u280", "--array", "16x32", "--batch", batch, "-o", folder)
    found: dict[str, Any] = {"batch": batch}
    for backend in BACKENDS:
        output = command("run", folder, "--backend", backend, "--epochs", EPOCHS, "--json")
        summary = json.loads(output)
        log = read_log(folder / "run" / backend / "log.jsonl")
        found |= {key: summary[key] for key in ("learning_rate", "rate_schedule", "steps")}
        found[backend] = {
            "accuracy": summary["accuracy"],
            "each_epoch": [line["validation"]["accuracy"] for line in log if "validation" in line],
            "wall_s": round(summary["wall_s"], 1),
        }
    found["from_torch"] = found["model"]["accuracy"] - found["torch"]["accuracy"]
    found["reached"] = (
        found["model"]["accuracy"] >= LEAST_ACCURACY and abs(found["from_torch"]) <= MOST_FROM_TORCH
    )
    return found


def main() -> int:
    """Print the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [trained(Path(folder) / f"batch-{batch}", batch) for batch in given.batches]
    result = {
        "network": "digits-cnn",
        "epochs": EPOCHS,
        "least_accuracy": LEAST_ACCURACY,
        "most_from_torch": MOST_FROM_TORCH,
        "batches": found,
        "reached": all(each["reached"] for each in found),
    }
    print(json.dumps(result, indent=2))
    return 0 if result["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
