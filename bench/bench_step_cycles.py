"""Cycles of a training step of VGG-16 and ResNet-50 on four U280, and what saves how many.

Prints one JSON object. For each network: the cut that `plan` finds for arrays of 32 x 32, four
micro-batches of a sample each and 1F1B; the cycles of the programs of that cut by the cycle model,
as they are built and with each choice of the lowering switched off; for the slowest device, how the
cycles of its array are spent; the cycles of all arrays that wait for vector passes of bias and
activation, the most that these passes could save in the drain of products; and, for products of few
vectors, the array's cycles with the weights stationary and with the other operand stationary.
"""

import argparse
import json
from collections import defaultdict
from typing import Any

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.step_units import ProductUnit
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.cycle_account import Cause, CycleAccount, accounts
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.prediction import PipelineTiming

NETWORKS = ("vgg16", "resnet50")
DEVICES, MICROBATCHES, ARRAY = 4, 4, (32, 32)
WITHOUT = {
    "without_late_gradients": {"late_gradients": False},
    "without_rounded_weights": {"rounded_weights": False},
    "without_both": {"late_gradients": False, "rounded_weights": False},
}
FEW_VECTORS = 64
WIDE = 128
"""Columns of a wide array, for the comparison of stationary operands."""


def timed(plan: Plan, graph: Graph, cluster: Any, options: StepOptions) -> list[CycleAccount]:
    """Accounts of all devices of a step."""
    pipeline = lower_plan(plan, graph, cluster, options)
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    return accounts(pipeline, timing.cluster)


def by_cause(account: CycleAccount) -> dict[str, int]:
    """Cycles of an array by cause, the largest first."""
    found: dict[str, float] = defaultdict(float)
    for each in account.spent():
        found[each.words] += each.cycles
    return {words: round(cycles) for words, cycles in sorted(found.items(), key=lambda x: -x[1])}


def in_drain(account: CycleAccount, units: set[str]) -> int:
    """Cycles that an array waits for bias, activation and their gradients behind products."""
    return round(
        sum(
            each.cycles
            for each in account.spent()
            if each.cause is Cause.VECTOR
            and each.layer in units
            and (each.kernel.endswith((".bias", ".gradient")) or each.kernel == each.layer)
        )
    )


def stationary(graph: Graph, cols: int) -> dict[str, int]:
    """Array cycles of one sample's forward passes of few vectors, with either operand stationary.

    Weights stationary: each tile of `cols` output channels takes its vectors, or the `cols` columns
    of the next tile. The other operand stationary: each tile of `cols` vectors takes all output
    channels. Both read 32 elements of BF16 or MXINT8 a cycle.
    """
    total = {"weights": 0, "other": 0}
    for unit in units_of(graph):
        if not isinstance(unit, ProductUnit):
            continue
        conv = conv_of(unit.layers[0])
        vectors = conv.batch * conv.oh * conv.ow
        if vectors >= FEW_VECTORS:
            continue
        depth = conv.taps * -(-conv.cin // ARRAY[0])
        total["weights"] += depth * -(-conv.cout // cols) * max(vectors, cols)
        total["other"] += depth * -(-vectors // cols) * max(conv.cout, cols)
    return total


def measure(network: str) -> dict[str, Any]:
    """Figures of one network."""
    cluster = chain_of(load_board("u280"), DEVICES).spec

    def load(samples: int) -> Graph:
        return load_network(network, samples)

    request = Request(
        load, MICROBATCHES, cluster, ("1f1b-as",), MICROBATCHES, array=ARRAY, all_devices=True
    )
    graph = load(1)
    plan = best_plan(request, network).plan
    found = timed(plan, graph, cluster, StepOptions())
    slowest = min(found, key=lambda each: by_cause(each).get(Cause.DONE, 0))
    units = {unit.name for unit in units_of(graph) if isinstance(unit, ProductUnit)}
    cycles: dict[str, int] = {"as_built": round(found[0].cycles)}
    for name, options in WITHOUT.items():
        cycles[name] = round(timed(plan, graph, cluster, StepOptions(**options))[0].cycles)
    return {
        "cut": [[stage.layers[0], stage.layers[-1]] for stage in plan.stages],
        "cycles": cycles,
        "slowest_device": by_cause(slowest),
        "waits_for_bias_and_activation": [in_drain(each, units) for each in found],
        "stationary": {f"32x{cols}": stationary(graph, cols) for cols in (ARRAY[1], WIDE)},
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    given = parser.parse_args()
    print(json.dumps({each: measure(each) for each in given.network or NETWORKS}, indent=1))


if __name__ == "__main__":
    main()
