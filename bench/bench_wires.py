"""The event simulation on slow and long wires against the cycle model of all devices.

Prints one JSON object: for the pipelines of ``bench_pipeline.py`` on wires of 16 bytes and of 1
byte a cycle, with 128 and 20,000 cycles of latency, the cycles of a mini-batch by both, and the
error of the event simulation; then the worst error on each wire.
"""

import argparse
import json
import sys
from collections import defaultdict
from itertools import product
from typing import Any

from bench_pipeline import CASES, SCHEDULES, pipeline_of

from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.partition.pricing.prediction import PipelineTiming

WIRES = tuple(WireTiming(rate, latency) for rate, latency in product((16, 1), (128, 20_000)))
MOST_ERROR = 0.05
"""Largest error that is wanted."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--devices", type=int, choices=(2, 4), action="append")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append")
    given = parser.parse_args()
    cases: list[dict[str, Any]] = []
    errors: dict[str, list[float]] = defaultdict(list)
    for case, devices, kind in product(
        given.case or CASES, given.devices or (2, 4), given.schedule or SCHEDULES
    ):
        pipeline = pipeline_of(case, devices, kind, CASES[case][2])
        for wire in WIRES:
            timing = PipelineTiming.of(pipeline, wires=wire)
            error = timing.event_cycles / timing.cluster.cycles - 1
            name = f"{wire.bytes_per_cycle} bytes a cycle, {wire.latency_cycles} cycles"
            print(f"{case}, {devices}, {kind}, {name}: {error:+.2%}", file=sys.stderr, flush=True)
            errors[name].append(abs(error))
            cases.append(
                {
                    "case": case,
                    "devices": devices,
                    "schedule": kind,
                    "wire": name,
                    "event_cycles": round(timing.event_cycles),
                    "cycle_model_cycles": timing.cluster.cycles,
                    "error": error,
                }
            )
    worst = {name: max(own) for name, own in errors.items()}
    within = max(worst.values()) <= MOST_ERROR
    print(
        json.dumps(
            {"worst": worst, "most_error": MOST_ERROR, "within": within, "all": cases}, indent=1
        )
    )


if __name__ == "__main__":
    main()
