"""Peak memory of runs whose data are larger than the memory that they may take.

Makes a folder of arrays of 6 GiB (a sparse file of bytes, 24 GiB in FP32) and a folder of images of
6 GiB in FP32 (hard links to a few files), builds a small network for one U280, trains on either
with each backend, goes on from the checkpoint, and predicts. Each command is a process of its own,
whose peak memory is what the system counted for it.

Prints one JSON object, and with ``--output docs/figures/large-data.json`` writes it. Exits with 1
if a command fails or takes more than 2 GiB.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from figure import write_figure

import fpgapipe
from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.layers import Network

LIMIT_BYTES = 2 << 30
SIDE, BATCH, CLASSES = 128, 64, 10
IMAGE_BYTES = 3 * SIDE * SIDE
LAUNCHER = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
took = time.perf_counter() - begin
print(json.dumps([code, used.ru_maxrss, used.ru_utime + used.ru_stime, took]))
"""
"""A small process that runs a command: the peak of a child counts from that of its parent."""

NOTE = "peak memory of commands on a data set of 6 GiB (arrays of bytes; images as FP32)"


def network(samples: int) -> Graph:
    """A network whose images are large and whose layers are small."""
    net = Network("large-images", samples)
    x = net.relu(net.conv(net.image(3, SIDE, SIDE), 8, 4, stride=4))
    net.linear(net.flatten(net.max_pool(x, 4)), CLASSES)
    return net.build()


def make_arrays(folder: Path, size_bytes: int) -> int:
    """Write a folder of arrays, whose images are a sparse file; return the samples."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    count = size_bytes // IMAGE_BYTES
    shape = count, 3, SIDE, SIDE
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    images[:: count // 64] = rng.integers(0, 256, images[:: count // 64].shape, np.uint8)
    images.flush()
    np.save(folder / "labels.npy", rng.integers(0, CLASSES, count))
    np.save(folder / "validation_images.npy", rng.integers(0, 256, (256, *shape[1:]), np.uint8))
    np.save(folder / "validation_labels.npy", rng.integers(0, CLASSES, 256))
    return count


def make_images(folder: Path, size_bytes: int) -> int:
    """Make a folder of images by class, of a few files with many names; return the images."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", size_bytes // IMAGE_BYTES // 4), ("val", 250)):
        for number in range(CLASSES):
            own = folder / part / str(number)
            own.mkdir(parents=True)
            pixels = rng.integers(0, 256, (20, 25, 3), np.uint8)
            first = own / "0.jpg"
            Image.fromarray(pixels).resize((200, 160)).save(first)
            for each in range(1, -(-count // CLASSES)):
                os.link(first, own / f"{each}.jpg")
    return -(-(size_bytes // IMAGE_BYTES // 4) // CLASSES) * CLASSES


def measured(name: str, words: list[str]) -> dict[str, Any]:
    """Run a command; its peak memory, times and exit code."""
    program = [sys.executable, "-m", "fpgapipe.host.cli.main", *words]
    launched = [sys.executable, "-c", LAUNCHER, *program]
    done = subprocess.run(launched, stdout=subprocess.PIPE, text=True, check=True)
    code, peak_kib, processor_s, wall_s = json.loads(done.stdout)
    return {
        "command": name,
        "code": code,
        "peak_mib": round(peak_kib / 1024),
        "processor_s": round(processor_s, 1),
        "wall_s": round(wall_s, 1),
    }


def main() -> None:
    """Print the figures of all commands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=6.0, help="size of the data [6]")
    parser.add_argument("--steps", type=int, default=20, help="mini-batches of a run [20]")
    parser.add_argument("--output", type=Path, help="also write the figures to a file")
    given = parser.parse_args()
    size = round(given.gib * (1 << 30))
    backends = ["model"] + ["torch"] * (importlib.util.find_spec("torch") is not None)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        samples = {"arrays": make_arrays(home / "arrays", size)}
        if importlib.util.find_spec("PIL"):
            samples["images"] = make_images(home / "images", size)
        build = str(home / "build")
        cluster = fpgapipe.chain_of(fpgapipe.load_board("u280"), 1)
        fpgapipe.build(network, cluster, build, batch=BATCH, array=(16, 16), package=None)
        for data in samples:
            for backend in backends:
                run = ["run", build, "--backend", backend]
                more = ["--data", str(home / data), "--steps", str(given.steps)]
                first = measured(f"run --backend {backend} --data {data}", [*run, *more])
                on = measured(
                    f"run --backend {backend} --resume", [*run, "--resume", "--more", "2"]
                )
                rows += [first, on]
            words = [
                "predict",
                f"{build}/run/model",
                "--data",
                str(home / data),
                "--samples",
                "all",
            ]
            rows.append(measured(f"predict --data {data}", [*words, "--first", "500"]))
    result = {"gib": given.gib, "samples": samples, "steps": given.steps, "rows": rows}
    print(json.dumps(result, indent=1))
    if given.output:
        write_figure(given.output, "bench/bench_large_data.py", NOTE, result)
    if any(row["code"] or row["peak_mib"] > LIMIT_BYTES >> 20 for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
