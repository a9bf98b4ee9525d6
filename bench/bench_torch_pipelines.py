"""Pipelines in PyTorch by plans of measured times: losses and times; prints one JSON object.

A network is measured, planned for two processes with each of some schedules, and trained in
processes with a thread each; so often, one after the other. For each schedule: the largest relative
difference of a loss from that of one process, and by how much the median of the mini-batches is
longer than the plan foretells (below 0: shorter), each time and in the median. What one process
takes is there, too. Times need an idle machine with two processors. ``--output
docs/figures/torch-pipelines.json`` writes the figures.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from figure import write_figure

import fpgapipe

SCHEDULES = ("gpipe", "1f1b", "zb-h1")

NOTE = (
    "Pipelines in PyTorch of two processes with a thread each, by plans of times that were "
    "measured just before. off: how much longer a mini-batch takes than the plan foretells, of "
    "each repeat; off_median: the median of these; difference: the largest relative difference of "
    "a loss from that of one process; over_alone: how many times as long one process takes."
)


def measured(network: str, samples: int, count: int, schedule: str, steps: int) -> dict[str, Any]:
    """Measure, plan and train once."""
    with tempfile.TemporaryDirectory() as folder:
        profile, plan = Path(folder, "profile.csv"), Path(folder, "plan.json")
        profile.write_text(
            fpgapipe.profile(
                network, samples=samples, device="cpu", repeats=5, processes=2
            ).to_csv()
        )
        planned = fpgapipe.plan_profile(
            profile, 2, straight=True, objective="minibatch", micro_batches=count, schedule=schedule
        )
        plan.write_text(json.dumps(planned.to_dict()))
        ran = fpgapipe.run_plan(plan, network=network, steps=steps, device="cpu", checks=True)
    alone_s = median(step.seconds for step in ran.alone[1:])
    return {
        "predicted_s": round(ran.predicted_s or 0.0, 4),
        "median_s": round(ran.median_s, 4),
        "off": round(ran.median_s / (ran.predicted_s or 1.0) - 1, 3),
        "over_alone": round(alone_s / ran.median_s, 2),
        "difference": ran.difference,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--samples", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="mini-batches")
    parser.add_argument("-o", "--output", type=Path, help="file of figures")
    given = parser.parse_args()
    rows = []
    for schedule in SCHEDULES:
        found = []
        for number in range(given.repeats):
            found.append(
                measured(given.network, given.samples, given.micro_batches, schedule, given.steps)
            )
            print(f"{schedule}, {number + 1}: {found[-1]}", file=sys.stderr)
        rows.append(
            {
                "schedule": schedule,
                "off_median": median(each["off"] for each in found),
                "off": [each["off"] for each in found],
                "difference": max(each["difference"] for each in found),
                "predicted_s": median(each["predicted_s"] for each in found),
                "median_s": median(each["median_s"] for each in found),
                "over_alone": median(each["over_alone"] for each in found),
            }
        )
    figures = {
        "network": given.network,
        "samples": given.samples,
        "micro_batches": given.micro_batches,
        "torch": torch.__version__,
        "processors": os.cpu_count(),
        "rows": rows,
    }
    if given.output:
        write_figure(given.output, "bench/bench_torch_pipelines.py", NOTE, figures)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
