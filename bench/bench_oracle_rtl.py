"""The oracle's prices of the machine against the generated Verilog.

Prints one JSON object: for each network, strategy and number of devices the cycles of a mini-batch
that the oracle foretells and those of the simulated devices, and the accuracy, 1 - |foretold -
simulated| / simulated; then the mean and the worst of all. Arrays are 8 x 8. ``--network``,
``--strategy`` and ``--devices`` choose some.
"""

import argparse
import functools
import json
import sys
import time
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.build.wires import wire_specs
from fpgapipe.host.runtime.measure import random_samples
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.load import load_network
from fpgapipe.partition.oracle.machine import STRATEGIES, ask, best_groups, plan_of
from fpgapipe.partition.oracle.question import Batch, Machine
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs

NETWORKS = ("digits-cnn", "vgg-mini", "resnet-mini")
DEVICES = (2, 4)
BATCH = 8
LEAST_MEAN, LEAST = 0.98, 0.95


def machine_of(network: str) -> Machine:
    """The question to the oracle."""
    board = load_board("u280")
    return Machine(
        functools.cache(lambda samples: load_network(network, samples)),
        network,
        lambda count: chain_of(board, count).spec,
        Batch(BATCH, per_device=False),
        array=(8, 8),
    )


def measured(machine: Machine, strategy: str, devices: int) -> dict[str, Any]:
    """Cycles that are foretold and simulated."""
    foretold = ask(machine, strategy, devices)
    plan = plan_of(machine, strategy, devices, best_groups(machine, strategy, devices))
    cluster = machine.cluster_of(devices)
    graph = machine.load(plan.microbatch)
    programs = lower_plan(plan, graph, cluster)
    begin = time.perf_counter()
    with SimulatorBackend(
        programs, initial_parameters(graph, 0), memory_specs(plan), wire_specs(plan, cluster)
    ) as backend:
        simulated = backend.cycles_of(*random_samples(programs), scalar_bits(learning_rate=0.01))
    assert foretold.minibatch_s is not None
    cycles = round(foretold.minibatch_s * plan.clk_hz)
    return {
        "network": machine.network,
        "strategy": strategy,
        "devices": devices,
        "devices_used": len(plan.nodes),
        "micro_batches": plan.num_microbatches,
        "level": foretold.level,
        "foretold_cycles": cycles,
        "simulated_cycles": simulated,
        "accuracy": 1 - abs(cycles - simulated) / simulated,
        "simulation_s": time.perf_counter() - begin,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    parser.add_argument("--devices", type=int, action="append")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    for network in given.network or NETWORKS:
        machine = machine_of(network)
        for strategy in given.strategy or STRATEGIES:
            for devices in given.devices or DEVICES:
                try:
                    rows.append(measured(machine, strategy, devices))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                except (UserError, NotImplementedError) as error:
                    refused.append(f"{network}, {strategy} on {devices}: {error}")
    found = [row["accuracy"] for row in rows]
    mean, worst = sum(found) / len(found), min(found)
    result = {
        "rows": rows,
        "refused": refused,
        "mean_accuracy": mean,
        "worst_accuracy": worst,
        "within": mean >= LEAST_MEAN and worst >= LEAST,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
