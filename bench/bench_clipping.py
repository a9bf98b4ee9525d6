"""Trains digits-cnn with MXINT8 elements of -127..127, as cores have them, and of -128..127.

A block's most negative element may round to -128, which stands for twice the largest power of two
in the block. Both trainings run in PyTorch with the core's numbers, with the same samples and
parameters; only the least element differs. Prints a JSON object.
"""

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from fpgapipe.host.backends import torch_mx
from fpgapipe.host.cli.main import main as fpgapipe
from fpgapipe.hw.hls_models.numerics.mx import ELEMENT_LIMIT


def command(*words: object) -> str:
    """Run a command line of fpgapipe; returns its output."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = fpgapipe([str(word) for word in words])
    if code:
        raise SystemExit(f"fpgapipe {words[0]} ended with {code}")
    return output.getvalue()


class Clipping:
    """Saturates elements, and counts those that -127 and -128 treat differently."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.elements = self.clipped = 0

    def __call__(self, scaled: torch.Tensor) -> torch.Tensor:
        """Elements that are rounded already."""
        self.elements += scaled.numel()
        self.clipped += int((scaled < -ELEMENT_LIMIT).sum())
        return scaled.clamp(self.least, ELEMENT_LIMIT)


def trained(folder: Path, epochs: int, clipping: Clipping) -> dict[str, Any]:
    """Loss and accuracy of a training with a clipping."""
    before, torch_mx.saturated = torch_mx.saturated, clipping
    try:
        output = command(
            "run", folder, "--backend", "torch", "--precision", "mxint8", "--epochs", epochs,
            "--json",
        )  # fmt: skip
    finally:
        torch_mx.saturated = before
    found = json.loads(output)
    return {
        "least_element": clipping.least,
        "loss": found["loss"],
        "validation_accuracy": found["accuracy"],
        "elements_at_the_limit": clipping.clipped / clipping.elements,
    }


def main() -> None:
    """Train with both, for several seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.seeds):
            folder = Path(name) / f"seed{seed}"
            command("build", "--board", "u280", "--devices", 1, "--array", "16x32", "--seed", seed,
                    "-o", folder)  # fmt: skip
            for least in (-ELEMENT_LIMIT, -ELEMENT_LIMIT - 1):
                found.append({"seed": seed, **trained(folder, options.epochs, Clipping(least))})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
