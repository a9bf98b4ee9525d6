"""Imports torchvision's classification models, and compares each with itself.

Each model gets random weights and a batch of two small images, is imported, and is verified in
evaluation and training: results, gradients, running statistics, and which parameters it learns.

Prints one JSON object: for each model whether it was verified, the largest error and the number of
parameters on both sides, or the reason why it was refused, and the seconds it took. Exits with 1 if
an imported model does not compute what torchvision does. ``--only WORD`` takes the
models with the word in their names. Needs torchvision.
"""

import argparse
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import torch
from architectures import (
    torchvision_models,
    torchvision_options,
    torchvision_small_size,
)

from fpgapipe.errors import UserError
from fpgapipe.host.backends.verification import TOLERANCES, verify
from fpgapipe.network.frontends.torch.torch_program import from_torch

BATCH = 2
MOST_WIDE = 200_000_000
"""Most parameters of a model that is verified in FP64; larger ones take FP32 to save memory."""


def options_of(builder: Any, size: int) -> dict[str, Any]:
    """Arguments of a model's builder: no second head, and the size of the images."""
    options = torchvision_options(builder)
    if builder.__name__.startswith("vit"):
        options["image_size"] = size
    return options


def judge(models: Any, name: str) -> dict[str, Any]:
    """Import and verify a model."""
    size = torchvision_small_size(name)
    begin = time.perf_counter()
    found: dict[str, Any] = {"model": name, "image": size}
    try:
        torch.manual_seed(0)
        builder = models.get_model_builder(name)
        module = builder(**options_of(builder, size))
        found["pytorch_parameters"] = sum(each.numel() for each in module.parameters())
        graph = from_torch((module, torch.randn(BATCH, 3, size, size)), name=name)
        found["import_s"] = time.perf_counter() - begin
        found["parameters"] = graph.totals.parameters
        wide = graph.totals.parameters > MOST_WIDE
        result = verify(graph, batches=1, precisions=("float32",) if wide else tuple(TOLERANCES))
        found |= {
            "verified": result.verified,
            "reason": result.reason,
            "precision": result.precision,
            "max_error": result.to_dict()["max_error"],
            "evaluation": max(result.errors.get("evaluation", {"": None}).values()),
            "training": max(result.errors.get("training", {"": None}).values()),
            "counts_equal": found["parameters"] == found["pytorch_parameters"],
        }
        right = result.verified and found["counts_equal"]
        found["verdict"] = "right" if right else "unverified" if right is None else "WRONG"
    except UserError as error:
        lines = [line for line in str(error).splitlines() if ": supported are " not in line]
        found |= {"verdict": "refused", "reason": "\n".join(lines)[:600]}
    except Exception:  # any error but a refusal is a defect
        found |= {"verdict": "TRACEBACK", "reason": traceback.format_exc(limit=-3)}
    found["wall_s"] = time.perf_counter() - begin
    return found


def main() -> int:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="take the models with this in their names")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    models = torchvision_models()
    begin = time.perf_counter()
    found = []
    for name in sorted(models.list_models(models), key=lambda name: (name.startswith("vgg"), name)):
        if given.only in name:
            each = judge(models, name)
            found.append(each)
            reason = " ".join(str(each.get("reason", "")).split())[:160]
            error = each.get("max_error")
            shown = "" if error is None else f"{error:.1e}"
            line = f"{each['verdict']:10} {name:22} {each['wall_s']:6.1f} s {shown:8} {reason}"
            print(line, file=sys.stderr, flush=True)
    counts = Counter(each["verdict"] for each in found)
    result = {
        "models": len(found),
        "verdicts": dict(counts),
        "wall_s": time.perf_counter() - begin,
        "each": found,
    }
    print(json.dumps(result, indent=2))
    return 1 if counts["WRONG"] + counts["TRACEBACK"] else 0


if __name__ == "__main__":
    sys.exit(main())
