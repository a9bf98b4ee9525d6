"""Stages of merged layers against the fastest ones, for all built-in networks.

Prints one JSON object: for each network on a chain of U280 with equal cores, for merging and for
the exact search, the time of a mini-batch, the bytes that all links carry in it, the most memory of
a device, and the seconds of the search. Times and memory are those of the programs where the core
runs the network and they are soon timed, and estimates elsewhere. Progress goes to standard error.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.network.load import load_network
from fpgapipe.network.zoo import NETWORKS
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan


def measure(request: Request, name: str) -> dict[str, Any]:
    """Plan a network one way."""
    begin = time.perf_counter()
    plan = best_plan(request, name).plan
    search_s = time.perf_counter() - begin
    return {
        "level": plan.predicted.level,
        "minibatch_s": plan.predicted.minibatch_s,
        "link_bytes": plan.num_microbatches
        * sum(node.sends_bytes + node.returns_bytes for node in plan.nodes),
        "most_memory_bytes": max(node.memory_bytes for node in plan.nodes),
        "memory_bytes": [node.memory_bytes for node in plan.nodes],
        "begins": [stage.layers[0] for stage in plan.stages],
        "search_s": search_s,
        "reason": plan.reason,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b-as")
    given = parser.parse_args()
    cluster = chain_of(load_board("u280"), given.devices).spec
    found: dict[str, Any] = {}
    for name in given.network or NETWORKS:
        request = Request(
            lambda samples, name=name: load_network(name, samples),
            given.batch,
            cluster,
            (given.schedule,),
            given.micro_batches,
            array=(32, 32),
            all_devices=True,
        )
        exact = measure(request, name)
        merged = measure(replace(request, merges=True), name)
        found[name] = {
            "exact": exact,
            "merge": merged,
            "time": merged["minibatch_s"] / exact["minibatch_s"],
            "bytes": merged["link_bytes"] / exact["link_bytes"],
            "memory": merged["most_memory_bytes"] / exact["most_memory_bytes"],
        }
        print(
            f"{name} ({exact['level']}, {merged['level']}): time {found[name]['time']:.3f}, "
            f"bytes {found[name]['bytes']:.3f}, memory {found[name]['memory']:.3f}",
            file=sys.stderr,
            flush=True,
        )
    print(json.dumps({"devices": given.devices, "batch": given.batch, "networks": found}, indent=1))


if __name__ == "__main__":
    main()
