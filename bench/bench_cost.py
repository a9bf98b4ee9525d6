"""ResNet-50 in the cost model at 32x32, and the time that costing a network takes.

Prints one JSON object.
"""

import itertools
import json
import time

from fpgapipe.boards.library import load_board
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.network.zoo import built_in
from fpgapipe.partition.cost.cost import (
    CostModel,
    candidate_cores,
    core_of,
    layer_costs,
)

SCALE_SIM_CYCLES = 5_979_656  # 3.0.0, 32x32 weight stationary, 3.41 G products
CLK_HZ = 1e8
# Memory moves 64 bytes a cycle after 100 cycles.
NODE = NodeSpec(CoreSpec(32, 32, vector=VectorSpec()), CLK_HZ, 64.0, 100)


def convolutions() -> dict[str, float]:
    """Cycles and utilisation of ResNet-50's convolutions, batch 1, each pass."""
    graph = built_in("resnet50")
    costs = [each for each in layer_costs(graph, NODE) if graph.layers[each.name].gemms]
    costs = [each for each in costs if graph.layers[each.name].op == "conv"]
    found: dict[str, float] = {"scale_sim_forward_cycles": SCALE_SIM_CYCLES}
    for name in ("forward", "input_gradient", "weight_gradient"):
        passes = [getattr(each, name) for each in costs]
        cycles = sum(each.cycles for each in passes)
        macs = sum(each.macs for each in passes)
        found[f"{name}_cycles"] = cycles
        found[f"{name}_utilisation"] = round(macs / cycles / NODE.core.cells, 4)
        found[f"{name}_memory_bytes"] = sum(each.memory_bytes for each in passes)
    return found


def training_step() -> dict[str, int]:
    """Cycles of the whole network at batch 1, and busy cycles of each unit."""
    costs = layer_costs(built_in("resnet50"), NODE)
    parts = [p for c in costs for p in (c.forward, c.input_gradient, c.weight_gradient)]
    keys = ("cycles", "gemm_cycles", "vector_cycles", "memory_cycles")
    return {key: sum(getattr(each, key) for each in parts) for key in keys}


def fewer_lanes() -> dict[str, float]:
    """Cycles of a training step of ResNet-50 on packed 32x64 cells, with 16 lanes and with 8."""
    found: dict[str, float] = {}
    for lanes, functions in ((16, 4), (8, 2)):
        pad, vector = ScratchpadSpec(4, 1 << 18), VectorSpec(lanes, functions)
        core = CoreSpec(32, 64, scratchpad=pad, vector=vector, form=Form.PACKED)
        costs = layer_costs(built_in("resnet50", 8), NodeSpec(core, 3e8, 44.3, 100))
        parts = [p for c in costs for p in (c.forward, c.input_gradient, c.weight_gradient)]
        found[f"lanes_{lanes}"] = sum(each.cycles for each in parts)
    return found | {"ratio": round(found["lanes_8"] / found["lanes_16"], 4)}


def seconds(network: str) -> dict[str, float]:
    """Seconds to cost a network: for a first core, and for the next one."""
    graph, device = built_in(network), load_board("u280").device_spec()
    times = [time.perf_counter()]
    model = CostModel(graph)
    model.costs(core_of(device, 32, 32))
    times.append(time.perf_counter())
    model.costs(core_of(device, 32, 64))
    times.append(time.perf_counter())
    first, following = (b - a for a, b in itertools.pairwise(times))
    return {
        "first_s": round(first, 4),
        "next_core_s": round(following, 4),
    }


def main() -> None:
    """Print everything."""
    begin = time.perf_counter()
    nodes = candidate_cores(load_board("u280").device_spec())
    candidates_s = time.perf_counter() - begin
    print(
        json.dumps(
            {
                "bench": "cost",
                "resnet50_convolutions_32x32": convolutions(),
                "resnet50_training_32x32": training_step(),
                "resnet50_training_32x64_by_lanes": fewer_lanes(),
                "resnet50": seconds("resnet50"),
                "resnet152": seconds("resnet152"),
                "u280_candidates": [[each.core.rows, each.core.cols] for each in nodes],
                "u280_candidates_s": round(candidates_s, 4),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
