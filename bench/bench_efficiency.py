"""Efficiency of the fastest plan on several devices: the least time that is possible, over its own.

The least time T* is that of one device for the whole mini-batch, divided by the number of devices:
by its own best plan, or, if that is less, that of the passes of the data-parallel plan. Prints one
JSON object: T* and the plans of each strategy, with their time of a mini-batch and T* over it, and
the period of a micro-batch in the steady state and T* of these samples over it. All times are those
of programs. By default VGG-16 on four U280 with a batch of 256, which takes five minutes.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.make.networks import loader
from fpgapipe.partition.explore.planned import one_link_each
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
from fpgapipe.partition.strategies.plan_layerwise import plan_layerwise

LEAST = 0.95


def request_of(network: str, board: str, devices: int, batch: int) -> Request:
    """A question about some devices in a chain."""
    return Request(loader(network), batch, chain_of(load_board(board), devices).spec)


def pipeline_of(request: Request, network: str) -> Plan:
    """The best pipeline, with prices of its programs."""
    return best_plan(replace(request, cluster=one_link_each(request.cluster)), network).plan


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="vgg16")
    parser.add_argument("--board", default="u280")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    alone = pipeline_of(request_of(given.network, given.board, 1, given.batch), given.network)
    request = request_of(given.network, given.board, given.devices, given.batch)
    plans = {
        "pipeline": pipeline_of(request, given.network),
        "data": plan_data_parallel(request, given.network)[0],
        "layerwise": plan_layerwise(request, given.network)[0],
    }
    data = plans["data"]
    rounds = data.num_microbatches // data.sharers
    passes_s = max(
        rounds * (node.forward_s + node.input_gradient_s + node.weight_gradient_s)
        for node in data.nodes
    )
    least_s = min(alone.predicted.minibatch_s / given.devices, passes_s)
    rows: dict[str, dict[str, Any]] = {}
    for name, plan in plans.items():
        told = plan.predicted
        rows[name] = {
            "level": told.level,
            "micro_batches": plan.num_microbatches,
            "minibatch_s": told.minibatch_s,
            "efficiency": least_s / told.minibatch_s,
            "period_s": told.period_s,
            "efficiency_of_period": least_s / plan.num_microbatches / told.period_s,
        }
    auto = min(rows, key=lambda name: (rows[name]["level"] != "machine", rows[name]["minibatch_s"]))
    print(
        json.dumps(
            {
                **vars(given),
                "one_device_s": alone.predicted.minibatch_s,
                "one_device_level": alone.predicted.level,
                "least_s": least_s,
                "plans": rows,
                "auto": auto,
                "within": rows[auto]["efficiency_of_period"] >= LEAST,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
