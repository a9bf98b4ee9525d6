"""Seconds of planning, comparing and building, cold and warm; prints one JSON object.

Each command runs in a fresh process: first with an empty cache, then again with what the first run
left there. Machine code that numba and the C++ compiler make when fpgapipe is first used at all,
and Python's own compiled files, are there already, as commands before the others see to it. Plans
are asked for once more with an option changed, which the cache has no answer for. Processor seconds
include those of helper processes. Each command has the level of its prices: ``machine``, or
``estimate``.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fpgapipe.network.frontends.profile import CSV_COLUMNS

PLAN = ["plan", "resnet50", "--board", "u280", "--devices", "8", "--json"]
COMMANDS = {
    **{f"plan_resnet50_{count}": [*PLAN[:-2], str(count), "--json"] for count in (1, 4)},
    "plan_resnet50_8": PLAN,
    "plan_vgg16_auto_4": [
        *("plan", "vgg16", "--board", "u280", "--devices", "4", "--strategy", "auto"),
        *("--batch", "256", "--json"),
    ],
    "plan_digits_million": [
        *("plan", "digits-cnn", "--board", "u280", "--devices", "1"),
        *("--batch", "1000000", "--json"),
    ],
    "plan_profile_256": [
        *("plan", "--profile", "profile.csv", "--devices", "256", "--bandwidth", "1e9"),
        *("--straight", "--json"),
    ],
    "compare_resnet50_8": ["compare", "resnet50", "--board", "u280", "--devices", "8", "--json"],
    "build_resnet50_4": ["build", "--network", "resnet50", "--board", "u280", "--devices", "4"],
    "build_vgg16_4": ["build", "--network", "vgg16", "--board", "u280", "--devices", "4"],
}


CHANGED = {
    "schedule": ["--schedule", "1f1b-as"],
    "micro-batches": ["--micro-batches", "8"],
    "array": ["--array", "32x128"],
}
"""Options that are changed, each after the cold run alone."""

LAYERS = 1000
"""Layers of the profile."""


def write_profile(path: Path) -> None:
    """Write a profile of layers of random times and sizes."""
    rng = np.random.default_rng(0)
    rows = [",".join(CSV_COLUMNS)]
    for number in range(LAYERS):
        seconds, sizes = rng.uniform(1e-4, 1e-2, 3), rng.integers(1000, 1_000_000, 2)
        rows.append(",".join(map(str, (f"layer{number}", *seconds, *sizes))))
    path.write_text("\n".join(rows) + "\n")


def compile_model(cache: Path) -> None:
    """Compile the bit-exact model, which a build compares its programs in, into a cache."""
    command = "from fpgapipe.hw.hls_models.native.native_library import build_library as b; b()"
    environment = {**os.environ, "FPGAPIPE_CACHE": str(cache)}
    subprocess.run([sys.executable, "-c", command], check=True, env=environment)


def run(arguments: list[str], cache: Path) -> dict[str, Any]:
    """Run a command; returns its seconds and the level of its prices."""
    with tempfile.TemporaryDirectory() as folder:
        write_profile(Path(folder, "profile.csv"))
        environment = {**os.environ, "FPGAPIPE_CACHE": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "fpgapipe.host.cli.main", *arguments],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
        )
        seconds = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
        return {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu, 2),
            "level": level_of(arguments[0], done.stdout, Path(folder)),
        }


def level_of(command: str, text: str, folder: Path) -> Any:
    """Where the times that a command printed or wrote come from."""
    if command == "plan":
        return json.loads(text).get("predicted", {}).get("level")
    if command == "compare":
        return {each["name"]: each["level"] for each in json.loads(text)["entries"]}
    (path,) = folder.glob("out/*/plan.json")
    return json.loads(path.read_text())["predicted"]["level"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(COMMANDS), action="append")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run(PLAN, Path(folder, "first"))
        for name in given.only or COMMANDS:
            cache = Path(folder, name)
            cache.mkdir()  # where measured times have the last word, nothing is kept
            if COMMANDS[name][0] == "build":
                compile_model(cache)
            found[name] = {"cold": run(COMMANDS[name], cache)}
            kept = Path(folder, f"{name} kept")
            shutil.copytree(cache, kept)
            found[name]["warm"] = run(COMMANDS[name], cache)
            if COMMANDS[name][:2] == PLAN[:2]:
                for option, more in CHANGED.items():
                    copy = Path(folder, f"{name}-{option}")
                    shutil.copytree(kept, copy)
                    found[name][f"changed {option}"] = run([*COMMANDS[name], *more], copy)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
