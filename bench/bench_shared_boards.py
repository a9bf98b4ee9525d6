"""The speed of a whole board: the plan on the best number of nodes against the plan of one core.

For each network and board, plans one core of the board with a batch of 32, the shared board with 32
samples for each die, and each node that it is shared among alone, with its part of these samples
and the resources that it has. Prints one JSON object: samples a second by whole programs or by
formulas, the nodes, their cores and memory ports, the other ways to share the board, and the
seconds of processor time that planning took. With ``--chain`` it also plans ResNet-50 on as many
boards and on one, with 64 samples for each board. A network whose batch is too large for the
memories is tried with half of it until it fits. Progress goes to standard error; ``-o
docs/figures/whole-boards.json`` writes to the file of docs/boards.md, whose other cases stay.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from figure import commit, write_figure

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

NOTE = (
    "Samples a second by programs (`by`: machine) or formulas (estimate): one core of a board, the "
    "board on the number of nodes that is fastest, and each of these nodes alone."
)

BATCH = 32
"""Samples of a mini-batch for each node."""

CHAIN_BATCH = 64
"""Samples of a mini-batch for each board of a chain."""


def alone(cluster: Cluster, number: int) -> Cluster:
    """A node of a board by itself, with the resources, ports and memory that it has there."""
    part = slice(number, number + 1)
    return dataclasses.replace(
        cluster, device_names=cluster.device_names[part], nodes=cluster.nodes[part], links=()
    )


def fitting(what: str, batch: int, plan: Any) -> dict[str, Any]:
    """Plan with the largest batch that fits, of halves of one."""
    begin_s = time.process_time()
    while True:
        try:
            found = plan(batch)
            if found.fits or batch == 1:
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
        "lanes": [node.core.vector_lanes for node in plan.nodes],
        "memory_ports": [node.core.memory_ports for node in plan.nodes],
        "can_be_built": found.built["possible"],
        "reason": found.built["reason"],
        "bubble": plan.predicted.bubble_rate,
        "planning_s": time.process_time() - begin_s,
    }
    if found.ways:
        record["ways"] = [dataclasses.asdict(way) for way in found.ways if way.planned_per_s]
    print(json.dumps({what: record}), file=sys.stderr, flush=True)
    return record


def case(network: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """One network on one board, whole and shared."""
    board = load_board(name)
    dies = len(board.fabric.dies)
    whole = fpgapipe.chain_of(board, 1)

    def shared(batch: int) -> Any:
        return fpgapipe.plan_board(network, board, batch=batch, **options)

    found = {
        "one_core": fitting(
            f"{network} {name} one core",
            BATCH,
            lambda batch: fpgapipe.plan(network, whole, batch=batch),
        ),
        "shared": fitting(f"{network} {name} shared", BATCH * dies, shared),
    }
    if nodes := len(found["shared"].get("cores", ())):
        cluster = fpgapipe.chain_of(board, 1, nodes) if nodes > 1 else whole
        found["each_node"] = [
            fitting(
                f"{network} {name} node {number}",
                found["shared"]["batch"] // nodes,
                lambda batch, number=number: fpgapipe.plan(
                    network, alone(cluster, number), batch=batch
                ),
            )
            for number in range(nodes)
        ]
    rates = {key: found[key].get("samples_per_s", 0.0) for key in ("one_core", "shared")}
    of_nodes = sum(each.get("samples_per_s", 0.0) for each in found.get("each_node", ()))
    return {
        "network": network,
        "board": name,
        "commit": commit(),
        **found,
        "shared_to_one_core": _ratio(rates["shared"], rates["one_core"]),
        "shared_to_its_nodes": _ratio(rates["shared"], of_nodes),
    }


def chain(network: str, name: str, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """One network on a chain of shared boards, and on one of them with its part of the samples."""
    board = load_board(name)
    found = {
        str(boards): fitting(
            f"{network} {boards} {name}",
            CHAIN_BATCH * boards,
            lambda batch, boards=boards: fpgapipe.plan_board(
                network, board, boards, batch=batch, **options
            ),
        )
        for boards in (1, count)
    }
    rates = [each.get("samples_per_s", 0.0) for each in found.values()]
    ratio = _ratio(*reversed(rates))
    whole = {"network": network, "board": name, "commit": commit()}
    return whole | {"boards": found, "ratio": ratio}


def _ratio(one: float, other: float) -> float | None:
    return one / other if other else None


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=[network for network, _ in CASES])
    parser.add_argument("--boards", nargs="+", default=["u280", "u55c"])
    parser.add_argument("--strategy")
    parser.add_argument("--nodes", type=int, help="nodes of a board, searched by default")
    parser.add_argument("--cells", choices=("plain", "packed"))
    parser.add_argument("--chain", type=int, help="boards of a chain for ResNet-50")
    parser.add_argument("-o", "--output", type=Path, help="keep what is found in this file, too")
    given = parser.parse_args()
    options = {"strategy": given.strategy, "nodes": given.nodes, "cells": given.cells}
    kept = json.loads(given.output.read_text()) if given.output and given.output.exists() else {}
    found: dict[str, Any] = {name: kept[name] for name in ("cases", "chain") if name in kept}
    for network, board in CASES:
        if network in given.networks and board in given.boards:
            one = case(network, board, options)
            before = found.get("cases", [])
            place = (network, board)
            found["cases"] = [e for e in before if (e["network"], e["board"]) != place] + [one]
            _keep(given.output, found)
    if given.chain:
        found["chain"] = chain("resnet50", "u280", given.chain, options)
        _keep(given.output, found)
    print(json.dumps(found, indent=1))


def _keep(path: Path | None, found: dict[str, Any]) -> None:
    """Write what was found so far."""
    if path is not None:
        write_figure(path, "bench/bench_shared_boards.py", NOTE, found)


if __name__ == "__main__":
    main()
