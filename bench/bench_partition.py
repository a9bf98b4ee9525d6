"""Wall time of the partition planners as layers and devices grow; prints one JSON object.

With ``--plot FILE`` it also draws the growth as an SVG. Times are the best of a few runs in one
process; layers have random times of one order of magnitude.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from fpgapipe.partition.schedule.schedule_kinds import model_of
from fpgapipe.partition.search.chain import plan_chain
from fpgapipe.partition.search.problem import Objective, PartitionProblem

SIZES = ((100, 16), (300, 64), (1000, 256), (3000, 1024), (10_000, 4096))
SPARE_MEMORY = 1.4
"""Device memory relative to what an even share of the layers needs; some cuts do not fit."""
CASES = {
    "equal devices": {},
    "equal devices, memory limits": {"spare_memory": SPARE_MEMORY},
    "equal devices, blocking transfers": {"schedule": "1f1b-sno"},
    "two kinds in given order": {"kinds": 2},
    "two kinds in free order": {"kinds": 2, "free_order": True},
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


def problem(
    num_layers: int,
    num_devices: int,
    *,
    spare_memory: float = np.inf,
    schedule: str = "1f1b-as",
    kinds: int = 1,
    free_order: bool = False,
) -> PartitionProblem:
    """A chain of layers; devices of kind 1 take 1.4 to 2 times as long as those of kind 0."""
    rng = np.random.default_rng(num_layers)
    slower = 1 + rng.uniform(0.4, 1.0, (num_layers, kinds)) * (np.arange(kinds) > 0)
    forward_s = rng.uniform(1e-4, 1e-3, (num_layers, 1)) * slower
    return PartitionProblem(
        names=tuple(f"layer{i}" for i in range(num_layers)),
        forward_s=forward_s,
        backward_s=2 * forward_s,
        output_bytes=rng.integers(1_000, 100_000, num_layers).astype(float),
        weight_bytes=rng.integers(0, 10_000, num_layers).astype(float),
        activation_bytes=rng.integers(0, 1_000, num_layers).astype(float),
        edges=tuple((i, i + 1) for i in range(num_layers - 1)),
        device_names=tuple(f"device{i}" for i in range(num_devices)),
        device_kinds=np.arange(num_devices) % kinds,
        memory_bytes=np.full(num_devices, spare_memory * num_layers / num_devices * 42e3),
        link_bytes_per_s=np.full(num_devices - 1, 1e9),
        link_latency_s=np.full(num_devices - 1, 1e-6),
        schedule=model_of(schedule, 64, num_devices),
        free_order=free_order,
    )


def measure(case: dict[str, object], layers: int, devices: int, objective: Objective) -> dict:
    made = problem(layers, devices, **case)
    best_s = np.inf
    for _ in range(3):
        begin = time.perf_counter()
        answer = plan_chain(made, objective)
        best_s = min(best_s, time.perf_counter() - begin)
        if best_s > 2:
            break
    gap = 1 - answer.lower_bound_s / answer.value_s
    return {
        "layers": layers,
        "devices": devices,
        "wall_s": round(best_s, 4),
        "stages": len(answer.stages),
        "optimal": answer.optimal,
        "gap": 0.0 if answer.optimal else round(gap, 6),
    }


def plot(results: dict[str, list[dict]], path: Path) -> None:
    """Draw wall time over layers times devices, with logarithmic axes."""
    width, height, left, top = 640, 400, 70, 20

    def at(row: dict) -> tuple[float, float]:
        x = (np.log10(row["layers"] * row["devices"]) - 3) / 5
        y = (np.log10(max(row["wall_s"], 1e-4)) + 4) / 6
        return left + x * width, top + (1 - y) * height

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1030 480" font-size="13"'
        ' font-family="sans-serif">',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
    ]
    for power in range(-4, 3):
        y = top + (2 - power) / 6 * height
        parts.append(f'<path d="M{left} {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{10.0**power:g} s</text>')
    for layers, devices in SIZES:
        x, _ = at({"layers": layers, "devices": devices, "wall_s": 1.0})
        parts.append(f'<path d="M{x:.1f} {top}v{height}" stroke="#ddd"/>')
        label = f"{layers:,} x {devices:,}"
        parts.append(
            f'<text x="{x:.1f}" y="{top + height + 20}" text-anchor="middle">{label}</text>'
        )
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 44}" text-anchor="middle">'
        "layers x devices</text>"
    )
    for i, (name, rows) in enumerate(results.items()):
        colour, dash = COLOURS[i // 2 % len(COLOURS)], "" if i % 2 == 0 else "6 4"
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, rows))
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        y = top + 16 + 22 * i
        parts.append(f'<polyline points="{points}" {style}/>')
        parts.append(f'<path d="M{left + width + 14} {y}h24" {style}/>')
        parts.append(f'<text x="{left + width + 44}" y="{y + 4}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))


def main() -> None:
    """Measure every case at every size, with both objectives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the growth as an SVG")
    parser.add_argument("--largest", type=int, default=len(SIZES), help="how many of the sizes")
    arguments = parser.parse_args()
    results = {
        f"{name}, {objective.value}": [
            measure(case, layers, devices, objective)
            for layers, devices in SIZES[: arguments.largest]
        ]
        for name, case in CASES.items()
        for objective in Objective
    }
    print(json.dumps(results, indent=2))
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
