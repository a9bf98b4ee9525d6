"""Plain and packed cells compared: what arrays take, and the cycles of a training step.

Prints one JSON object. For each size and form it has the LUTs, flip-flops and DSPs of an array that
Yosys counts, those of the resource model, those of the model for a whole core with 16 lanes and no
links, and the cycles of a training step by the cycle model. ``--model`` leaves Yosys out, which
takes minutes for large arrays. ``--speed`` simulates a convolution on cores of both forms in turns,
instead, and gives the best of several rounds, and their ratio, for each way of simulation.
"""

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_resources import count

from fpgapipe.host.bench.core_bench import bench_layer, parse_layer
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.resources.core_counts import Resources
from fpgapipe.hw.hls_models.resources.core_resources import (
    CoreOnPart,
    array_resources,
    core_resources,
)
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.hw.rtl.gemm.systolic import SystolicCells
from fpgapipe.lowering.program.step import build_step
from fpgapipe.network.load import load_network
from fpgapipe.sim_tb.substitutes.simulation import VARIABLE, Simulation

SIZES = ((8, 8), (32, 32), (32, 64))
NETWORK, BATCH = "digits-cnn", 32
LAYER = "conv:cin=64,cout=64,k=3,stride=1,pad=1,h=28,w=28"
ROUNDS = 6


def figures(found: Resources) -> dict[str, float]:
    """The resources that the form of cells changes."""
    return {"lut": found.lut, "ff": found.ff, "dsp": found.dsp}


def measure(core: CoreSpec, folder: Path | None) -> dict[str, Any]:
    """Figures of a core; Yosys runs in `folder` if there is one."""
    placed = CoreOnPart(core, "DSP48E2", has_uram=True)
    program = build_step(load_network(NETWORK, BATCH), core)
    result: dict[str, Any] = {
        "array": {"model": figures(array_resources(placed))},
        "core": figures(core_resources(placed)),
        "latency_cycles": core.array.latency_cycles,
        "step_cycles": predict(program.instructions, core, MemorySpec()).cycles,
    }
    if folder:
        counted = count(SystolicCells(core.array), folder)
        result["array"]["yosys"] = figures(counted.resources)
    return result


def speeds() -> dict[str, Any]:
    """Cycles of a core of 32x32 cells without a vector engine in a second of processor time."""
    layer = parse_layer(LAYER)
    cores = {
        form: CoreSpec(32, 32, scratchpad=ScratchpadSpec(8, 1 << 18), form=form) for form in Form
    }
    found: dict[str, Any] = {}
    for simulation in (Simulation.VERILOG, Simulation.FAST):
        os.environ[VARIABLE] = simulation
        best = dict.fromkeys(Form, 0.0)
        for _ in range(ROUNDS):
            for form, core in cores.items():
                run = bench_layer(layer, "forward", core)
                assert run.matches_model, "the simulated core differs from the model"
                best[form] = max(best[form], run.cycles / run.cpu_s)
        found[str(simulation)] = {f"{form}_cycles_per_s": best[form] for form in Form}
        found[str(simulation)]["packed_to_plain"] = best[Form.PACKED] / best[Form.PLAIN]
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="store_true", help="leave Yosys out")
    parser.add_argument("--speed", action="store_true", help="measure simulation instead")
    parser.add_argument("--work", type=Path, help="keep designs and logs here")
    given = parser.parse_args()
    if given.speed:
        print(json.dumps({"bench": "packed", "layer": LAYER, "speed": speeds()}, indent=2))
        return
    report: dict[str, Any] = {"bench": "packed", "network": NETWORK, "batch": BATCH}
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        for rows, cols in SIZES:
            core = CoreSpec(
                rows, cols, scratchpad=ScratchpadSpec(4, 1 << 18), vector=VectorSpec(16, 4)
            )
            name = f"{rows}x{cols}"
            report[name] = {
                str(form): measure(
                    replace(core, form=form), None if given.model else work / f"{name}_{form}"
                )
                for form in Form
            }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
