"""Memory of the devices that train ResNet-50 and VGG-16, with tensors that share it and apart.

Plans training on four U280, makes the programs of all micro-batches, and prints one JSON object:
for each network and number of micro-batches the bytes of each device with all tensors apart and
with shared memory, their ratios, what the bytes are used for, and whether the bytes of the plan,
which come from programs of a few micro-batches, are those of the program. ``--micro-batches 0``
leaves the number to the planner.
"""

import argparse
import json
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.lowering.memory.layout import lay_out, memory_bytes
from fpgapipe.lowering.program.step_program import StepProgram
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_memory import node_memory
from fpgapipe.partition.schedule.schedule_kinds import tried_schedules

NETWORKS = ("resnet50", "vgg16")


def compare(network: str, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Figures of one network and number of micro-batches."""
    cluster = chain_of(load_board("u280"), given.devices).spec
    schedules = tried_schedules() if given.schedule == "auto" else (given.schedule,)
    request = Request(
        lambda samples: load_network(network, samples),
        given.batch,
        cluster,
        schedules,
        count or None,
        all_devices=True,
    )
    best = explore(request).best
    assert best.microbatch is not None
    graph = load_network(network, best.microbatch)
    plan = as_plan(best, graph, network, given.batch, cluster)
    parts = lower_plan(plan, graph, cluster).parts
    few = lower_plan(plan, graph, cluster, few=True)
    planned = node_memory(plan, few)
    rows = []
    for part, size in zip(parts, planned, strict=True):
        assert isinstance(part, StepProgram)
        apart = memory_bytes(part.demand.all_apart())
        rows.append(
            {
                "apart_bytes": apart,
                "shared_bytes": part.memory_bytes,
                "ratio": round(apart / part.memory_bytes, 3),
                "planned_bytes": size,
                "plan_is_program": size == part.memory_bytes,
                "apart": lay_out(part.demand.all_apart()).account(part.demand.all_apart(), apart),
                "shared": part.account,
            }
        )
    sums = [sum(int(row[key]) for row in rows) for key in ("apart_bytes", "shared_bytes")]
    most = [max(int(row[key]) for row in rows) for key in ("apart_bytes", "shared_bytes")]
    return {
        "network": network,
        "schedule": plan.kind,
        "micro_batches": plan.num_microbatches,
        "ratio_of_all": round(sums[0] / sums[1], 3),
        "ratio_of_fullest": round(most[0] / most[1], 3),
        "devices": rows,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, action="append")
    parser.add_argument("--schedule", default="auto")
    given = parser.parse_args()
    found = [
        compare(network, count, given)
        for network in given.network or NETWORKS
        for count in given.micro_batches or [0]
    ]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
