"""The speed of a whole board: the plan on the best number of nodes against the plan of one core.

For each network and board, plans one core of the board with a batch of 32, one node of the shared
board with the same batch, and the shared board with 32 samples for each die, and prints one JSON
object: samples a second by whole programs or by formulas, the nodes and cores that were taken, what
binds, and the seconds of processor time that planning took. A network whose batch is too large for
the memories is tried with half of it until it fits. Progress goes to standard error.
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import fpgapipe
from fpgapipe.boards.cluster import Cluster
from fpgapipe.boards.library import load_board

CASES = (
    ("resnet50", "u280"),
    ("resnet50", "u55c"),
    ("vgg16", "u280"),
    ("mobilenet_v2", "u280"),
    ("gpt2_small", "u280"),
    ("gnmt8", "u280"),
)
BATCH = 32


def alone(cluster: Cluster) -> Cluster:
    """The first node of a board by itself, with the ports and memory that it has there."""
    return dataclasses.replace(
        cluster, device_names=cluster.device_names[:1], nodes=cluster.nodes[:1], links=()
    )


def fitting(what: str, batch: int, plan: Any) -> dict[str, Any]:
    """Plan with the largest batch that fits, of halves of one."""
    begin_s = time.process_time()
    while True:
        try:
            found = plan(batch)
            break
        except fpgapipe.UserError as error:
            if batch == 1:
                return {"refused": str(error)}
            batch //= 2
    plan = found.plan
    record = {
        "batch": batch,
        "samples_per_s": found.samples_per_s,
        "by": plan.predicted.level,
        "kind": plan.kind,
        "schedule": plan.schedule,
        "micro_batches": plan.num_microbatches,
        "cores": [f"{node.core.rows}x{node.core.cols}" for node in plan.nodes],
        "can_be_built": found.built["possible"],
        "reason": found.built["reason"],
        "bubble": plan.predicted.bubble_rate,
        "planning_s": time.process_time() - begin_s,
    }
    if found.ways:
        record["ways"] = [dataclasses.asdict(way) for way in found.ways if way.planned_per_s]
    print(json.dumps({what: record}), file=sys.stderr, flush=True)
    return record


def case(network: str, name: str, strategy: str) -> dict[str, Any]:
    """One network on one board, whole and shared."""
    board = load_board(name)
    dies = len(board.fabric.dies)
    whole = fpgapipe.chain_of(board, 1)
    of_node = alone(fpgapipe.chain_of(board, 1, dies))

    def shared(batch: int) -> Any:
        return fpgapipe.plan_board(network, board, batch=batch, strategy=strategy)

    found = {
        "one_core": fitting(
            f"{network} {name} one core",
            BATCH,
            lambda batch: fpgapipe.plan(network, whole, batch=batch),
        ),
        "one_node": fitting(
            f"{network} {name} one node",
            BATCH,
            lambda batch: fpgapipe.plan(network, of_node, batch=batch),
        ),
        "shared": fitting(f"{network} {name} shared", BATCH * dies, shared),
    }
    rates = {key: each.get("samples_per_s", 0.0) for key, each in found.items()}
    ratio = rates["shared"] / rates["one_core"] if rates["one_core"] else None
    return {"network": network, "board": name, **found, "shared_to_one_core": ratio}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=[network for network, _ in CASES])
    parser.add_argument("--boards", nargs="+", default=["u280", "u55c"])
    parser.add_argument("--strategy", default="pipeline")
    given = parser.parse_args()
    cases = [
        case(network, board, given.strategy)
        for network, board in CASES
        if network in given.networks and board in given.boards
    ]
    print(json.dumps({"cases": cases}, indent=1))


if __name__ == "__main__":
    main()
