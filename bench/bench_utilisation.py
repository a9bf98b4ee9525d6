"""How busy a 32 x 32 array is in a block of GPT-2 small, forward and backward.

A block with 1,024 tokens of 768 features and 12 heads lies alone on a device: the embedding is on
the device before it, and the head on the one behind. The device is a U280 with the core that the
planner makes for an array of 32 x 32, and with its memory. The cycle model runs the block's
program: one micro-batch of a sample, forward and backward, without the update, with what comes
from other devices there at once. A second cut has the attention alone: what lies between the
products of its queries, keys and values and the product behind it.

The utilisation is the share of the array's multiply-accumulates in these cycles that belong to the
network's products. Prints one JSON object: for both cuts the cycles, multiply-accumulates and
utilisation; where the cycles of the array go, by unit, pass and cause; and how long each engine
works for each unit. ``attention_products`` are the products of two activations within the cut: the
cycles are those in which the array does them.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf
from typing import Any

from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.cycles.core_cycles import CoreRun, MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.units.attention.matmul_unit import MatMulUnit
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.network.graph import Graph
from fpgapipe.network.zoo.transformer import GPT2, Sizes, gpt
from fpgapipe.partition.cost.cores import core_of, with_links
from fpgapipe.partition.pricing.cycle_account import Cause, CycleAccount
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

ROWS = COLS = 32
LEAST = {"block": 0.75, "attention": 0.50}
"""Utilisation that is wanted of each cut."""

PRODUCTS = (Cause.VECTORS, Cause.OPERANDS, Cause.FILL)
"""Activities of the array while it has a product."""


def graph_of(tokens: int, sizes: Sizes) -> Graph:
    """A network of one block, with a small vocabulary."""
    return gpt("block", 1, sizes, vocabulary=128, positions=tokens)


def u280() -> tuple[CoreSpec, MemorySpec]:
    """The planner's core of 32 x 32 with two links for a U280, and that card's memory."""
    device = load_board("u280").device_spec()
    node = core_of(device, ROWS, COLS)
    node = with_links(node, (LinkEngineSpec(), LinkEngineSpec()))
    return node.core, MemorySpec(node.memory_bytes_per_cycle, node.memory_latency_cycles)


def cut_of(graph: Graph, which: str) -> list[list[str]]:
    """Layers of three devices, of which the second one has what is measured."""
    names = list(graph.layers)
    first, last = {
        "block": ("block0.norm1", "block0.add2"),
        "attention": ("block0.split", "block0.attention"),
    }[which]
    begin = next(at for at, name in enumerate(names) if name.startswith(first))
    end = names.index(last) + 1
    return [names[:begin], names[begin:end], names[end:]]


def macs_of(graph: Graph, layers: list[str]) -> int:
    """Multiply-accumulates of the layers, forward and backward."""
    passes = [each for name in layers for each in graph.passes(name).values()]
    return sum(product.macs for products in passes for product in products)


def measure(which: str, graph: Graph, core: CoreSpec, memory: MemorySpec) -> dict[str, Any]:
    """Figures of one cut."""
    cut = cut_of(graph, which)
    began = time.perf_counter()
    schedule = make_schedule("1f1b-as", 3, 1)
    part = build_pipeline(graph, [core] * 3, cut, schedule, memory).parts[1]
    seconds = time.perf_counter() - began
    found = CoreRun(part.instructions, core, memory, [inf] * len(core.links)).run()
    measured = [task.kind is not TaskKind.U for task in part.tasks]
    ends = [
        end
        for kernel, end in zip(part.kernel_of, found.ends, strict=False)
        if measured[part.kernels[kernel].task]
    ]
    cycles = max(ends)
    account = CycleAccount(part, found, cycles)
    kinds = [task.kind.token for task in part.tasks if task.kind is not TaskKind.U]
    spent = [each for each in account.spent() if each.direction in kinds]
    layers = cut[1]
    products = [unit for unit in units_of(graph) if isinstance(unit, MatMulUnit)]
    names = {unit.name for unit in products}
    busy = sum(each.cycles for each in spent if each.layer in names and each.cause in PRODUCTS)
    total, own = macs_of(graph, layers), macs_of(graph, [unit.product.name for unit in products])
    return {
        "cycles": round(cycles),
        "macs": total,
        "utilisation": round(total / (cycles * ROWS * COLS), 4),
        "least": LEAST[which],
        "attention_products": {
            "macs": own,
            "cycles": round(busy),
            "utilisation": round(own / (busy * ROWS * COLS), 4),
        },
        "array_by_cause": summed(spent, lambda each: each.words),
        "array_by_unit": summed(spent, lambda each: f"{each.layer} {each.direction} {each.words}"),
        "engines": summed(
            [each for each in account.engines() if each.direction in kinds],
            lambda each: each.engine,
        ),
        "engines_by_unit": summed(
            [each for each in account.engines() if each.direction in kinds],
            lambda each: f"{each.engine} {each.layer} {each.direction}",
        ),
        "instructions": len(part.instructions),
        "seconds_of_lowering": round(seconds, 1),
    }


def summed(rows: list[Any], key: Callable[[Any], str]) -> dict[str, int]:
    """Whole cycles of rows that have a key in common, the largest first."""
    found: dict[str, float] = defaultdict(float)
    for each in rows:
        found[key(each)] += each.cycles
    return {name: round(at) for name, at in sorted(found.items(), key=lambda x: -x[1])}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--cut", choices=list(LEAST), action="append")
    parser.add_argument("--dropout", type=float, default=GPT2.dropout)
    parser.add_argument("--function-lanes", type=int, help="instead of the planner's")
    parser.add_argument("--bytes-per-cycle", type=float, help="bandwidth instead of the card's")
    given = parser.parse_args()
    graph = graph_of(given.tokens, replace(GPT2, blocks=1, dropout=given.dropout))
    core, memory = u280()
    assert core.vector is not None
    if given.function_lanes:
        core = replace(core, vector=replace(core.vector, function_lanes=given.function_lanes))
    if given.bytes_per_cycle:
        memory = replace(memory, bytes_per_cycle=given.bytes_per_cycle)
    result: dict[str, Any] = {
        "tokens": given.tokens,
        "dropout": given.dropout,
        "core": {
            "array": [ROWS, COLS],
            "scratchpad_bytes": core.scratchpad.size_bytes,
            "scratchpad_banks": core.scratchpad.banks,
            "accumulators": core.acc_depth,
            "vector_lanes": core.vector.lanes,
            "function_lanes": core.vector.function_lanes,
        },
        "memory": asdict(memory),
    }
    for which in given.cut or LEAST:
        result[which] = measure(which, graph, core, memory)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
