"""Seconds of a training step in the bit-exact model, and its memory; prints one JSON object.

Each case runs in a process of its own: a first step, for which programs are prepared, and then
``--steps`` more, of which the one with the least processor time counts. ``--against`` names the
Python of another installation of fpgapipe, which runs the same cases; then each case has the ratio
of processor times, and whether all bytes of the devices' memories are the same. ``--threads`` sets
the threads of both. Exits with 1 if a byte differs.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from small_networks import TASKS

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.machine import lower_plan

ARRAY = (32, 32)

Case = tuple[Callable[[int], Graph], int, int, int]
CASES: dict[str, Case] = {
    "digits-cnn": (lambda samples: load_network("digits-cnn", samples), 32, 4, 2),
    **{
        name: (task.make, task.micro_batches * task.samples, task.micro_batches, 2)
        for name, task in TASKS.items()
        if name in ("char-gpt", "mobilenet", "gnmt-mini")
    },
    "resnet50": (lambda samples: load_network("resnet50", samples), 4, 4, 1),
    "vgg16": (lambda samples: load_network("vgg16", samples), 4, 4, 1),
}
"""Network, samples of a mini-batch, micro-batches, devices."""

SMALL = [name for name in CASES if name not in ("resnet50", "vgg16")]


def measured(case: str, steps: int) -> dict[str, Any]:
    """Figures of one case in this process."""
    make, batch, count, devices = CASES[case]
    cluster = chain_of(load_board("u280"), devices).spec
    request = Request(
        make, batch, cluster, ("1f1b-as",), count, array=ARRAY, train=True, all_devices=True
    )
    graph = make(batch // count)
    plan = as_plan(explore(request).best, graph, case, batch, cluster, train=True)
    pipeline = lower_plan(plan, graph, cluster)
    macs = count * sum(
        gemm.macs
        for layer in graph.layers
        for gemms in graph.passes(layer).values()
        for gemm in gemms
    )
    inputs, labels = random_batch(make(batch), 0)
    times = []
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        for _ in range(1 + steps):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            backend.step(inputs, labels, scalar_bits())
            cpu_s = time.process_time() - begin_cpu
            times.append((cpu_s, time.perf_counter() - begin))
        digest = hashlib.sha256()
        for memory in backend.memories:
            digest.update(memory.data)
    cpu_s, wall_s = min(times[1:] or times)
    return {
        "samples": batch,
        "macs": macs,
        "instructions": sum(len(part.instructions) for part in pipeline.parts),
        "first_step_cpu_s": round(times[0][0], 4),
        "first_step_wall_s": round(times[0][1], 4),
        "step_cpu_s": round(cpu_s, 4),
        "step_wall_s": round(wall_s, 4),
        "macs_per_s": round(macs / wall_s),
        "memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "digest": digest.hexdigest(),
    }


def asked(python: str, case: str, steps: int, threads: int) -> dict[str, Any]:
    """Figures of one case in a process of a Python."""
    done = subprocess.run(
        [python, __file__, "--measure", case, "--steps", str(steps)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="default: the small ones")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--against", metavar="PYTHON")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure, given.steps)))
        return
    found: dict[str, Any] = {}
    for case in given.case or SMALL:
        row = asked(sys.executable, case, given.steps, given.threads)
        if given.against:
            before = asked(given.against, case, given.steps, given.threads)
            row["before"] = before
            row["equal"] = before["digest"] == row["digest"]
            row["cpu_ratio"] = round(before["step_cpu_s"] / row["step_cpu_s"], 2)
            row["first_step_cpu_ratio"] = round(
                before["first_step_cpu_s"] / row["first_step_cpu_s"], 2
            )
        found[case] = row
        print(f"{case}: {row['step_cpu_s']} s of processor time", file=sys.stderr, flush=True)
    print(json.dumps({"threads": given.threads, "cases": found}, indent=1))
    sys.exit(not all(row.get("equal", True) for row in found.values()))


if __name__ == "__main__":
    main()
