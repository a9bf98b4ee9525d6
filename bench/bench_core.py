"""Compares the core with its targets: utilisation, cycle model, speed of simulation and builds.

Prints one JSON object. Every layer runs in the Verilated hardware and is compared with the
bit-exact model. ``--quick`` leaves out the random layers and the widest array. As a testbench, the
same module measures the cycles that cocotb simulates in a second while Python sleeps.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import Timer

from fpgapipe.host.bench.core_bench import CoreBench, bench_layer, parse_layer
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.lowering.products.conv import PASSES, ConvSpec
from fpgapipe.lowering.program.layer_program import lower_layer
from fpgapipe.network.load import load_network
from fpgapipe.network.operators.products import Conv
from fpgapipe.sim_tb.drivers.simulate import simulate_verilog
from fpgapipe.sim_tb.drivers.stream import PERIOD_NS, start
from fpgapipe.sim_tb.native.native import build_native, native_speed
from fpgapipe.sim_tb.native.verilate import environment

GEMM = "gemm:m=512,n=512,k=512"
CONV3 = "conv:cin=64,cout=64,k=3,stride=1,pad=1,h=56,w=56,batch=1"
CONV1 = "conv:cin=512,cout=2048,k=1,h=7,w=7,batch=8"
FIRST = "conv:cin=3,cout=64,k=7,stride=2,pad=3,h=224,w=224"

# Layer, pass, least utilisation of a 32 x 32 array.
TARGETS = (
    (GEMM, "forward", 0.90),
    (CONV3, "forward", 0.90),
    (CONV3, "input", 0.90),
    (CONV3, "weight", 0.85),
    (CONV1, "forward", 0.85),
    (CONV1, "input", 0.85),
    (CONV1, "weight", 0.80),
    (FIRST, "forward", 0.60),
)
SCALE_SIM_CYCLES = 5_979_656
"""Cycles of ResNet-50's convolutions, 32 x 32 weight stationary, by SCALE-Sim 3.0.0."""

RESNET_IN_RTL = (0, 1, 12, 30, 52)
"""Convolutions of ResNet-50, counted from the input, that are simulated: first layer, 1 x 1, 3 x 3,
strides, the last."""


IDLE_CYCLES = 200_000

SIZES = ((16, 16), (32, 32), (32, 128))


@cocotb.test()
async def idle(dut: Any) -> None:
    """Run nothing but the clock."""
    await start(dut)
    begin = time.process_time()
    await Timer(IDLE_CYCLES * PERIOD_NS, "ns")
    speed = IDLE_CYCLES / (time.process_time() - begin)
    Path("idle.json").write_text(json.dumps(speed))


def figures(found: CoreBench) -> dict:
    """Figures of a run that are printed."""
    keys = ("macs", "cycles", "predicted_cycles", "error", "utilisation", "matches_model", "wall_s")
    return {key: found.to_dict()[key] for key in keys}


def convolutions(name: str) -> list[ConvSpec]:
    """The convolutions of a built-in network at batch 1."""
    found = []
    for layer in load_network(name, 1).layers.values():
        operator = layer.operator
        if not isinstance(operator, Conv):
            continue
        (_, cin, height, width) = layer.input_tensors[0].shape
        (top, bottom), (left, right) = operator.padding
        found.append(
            ConvSpec(
                cin=cin,
                cout=operator.out_channels,
                kernel=operator.kernel,
                stride=operator.stride,
                pad=(top, left, bottom, right),
                h=height,
                w=width,
            )
        )
    return found


def built(rows: int, cols: int) -> dict:
    """Seconds for a device's Verilog, and for compiling it with an empty cache."""
    begin = time.perf_counter()
    text = verilog_of(Device(CoreSpec(rows, cols)))
    generated = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache, environment(FPGAPIPE_CACHE=cache):
        build_native(text)
        compiled = time.perf_counter()
    return {
        "rows": rows,
        "cols": cols,
        "generate_s": generated - begin,
        "verilog_bytes": len(text),
        "cold_build_s": compiled - generated,
    }


def random_layer(rng: random.Random) -> tuple[ConvSpec, str]:
    """A layer of 2 to 40 million multiply-accumulates, and a pass."""
    while True:
        try:
            conv = (
                ConvSpec.linear(rng.randint(1, 300), rng.randint(8, 600), rng.randint(8, 900))
                if rng.random() < 0.3
                else ConvSpec(
                    cin=rng.choice([3, 16, 24, 32, 48, 64, 96, 128, 200]),
                    cout=rng.choice([16, 32, 40, 64, 100, 128, 256]),
                    kernel=(k := rng.choice([1, 3, 5]), k),
                    stride=(s := rng.choice([1, 1, 2]), s),
                    pad=(k // 2,) * 4,
                    h=(size := rng.choice([7, 8, 14, 20, 28, 33])),
                    w=size,
                    batch=rng.choice([1, 2, 4]),
                )
            )
        except ValueError:
            continue
        if 2e6 <= conv.macs <= 40e6:
            return conv, rng.choice(PASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    core = CoreSpec(32, 32)
    result: dict = {"layers": [], "random": []}
    note = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731

    runs = []
    for layer, which, least in TARGETS:
        found = bench_layer(parse_layer(layer), which, core)
        runs.append(found)
        result["layers"].append({"layer": layer, "pass": which, "least": least, **figures(found)})
        note(f"{layer} {which}: {found.to_dict()['utilisation']:.3f}")

    resnet = convolutions("resnet50")
    predicted = [lower_layer(c, "forward", core).tiled_product.prediction.cycles for c in resnet]
    result["resnet50_forward"] = {
        "convolutions": len(resnet),
        "macs": sum(conv.macs for conv in resnet),
        "predicted_cycles": sum(predicted),
        "scale_sim_cycles": SCALE_SIM_CYCLES,
        "in_rtl": [figures(bench_layer(resnet[i], "forward", core)) for i in RESNET_IN_RTL],
    }
    note(f"resnet50: {sum(predicted):,}")

    rng = random.Random(4)
    for number in range(0 if quick else 50):
        conv, which = random_layer(rng)
        found = bench_layer(conv, which, core, seed=number)
        result["random"].append({"layer": str(conv), "pass": which, **figures(found)})
    checked = result["layers"] + result["random"] + result["resnet50_forward"]["in_rtl"]
    errors = [abs(each["error"]) for each in checked]
    result["cycle_model"] = {
        "runs": len(errors),
        "mean_error": sum(errors) / len(errors),
        "worst_error": max(errors),
        "all_match": all(each["matches_model"] for each in checked),
    }

    longest = max(runs, key=lambda run: run.cycles)
    # Processor time, so that other processes disturb the ratios less.
    array, device = verilog_of(SystolicArray(core.array)), verilog_of(Device(core))
    bare, alone = native_speed(array, 400_000), native_speed(device, 400_000)
    with tempfile.TemporaryDirectory() as folder:
        simulate_verilog(device, "bench_core", Path(folder), parameters={}, seed=0)
        through_cocotb = json.loads((Path(folder) / "idle.json").read_text())
    result["speed"] = {
        "array_cycles_per_s": bare,
        "core_at_work_cycles_per_s": longest.cycles / longest.cpu_s,
        "core_at_work_over_array": longest.cycles / longest.cpu_s / bare,
        "core_idle_cycles_per_s": alone,
        "core_idle_through_cocotb_cycles_per_s": through_cocotb,
        "cocotb_over_native": through_cocotb / alone,
    }
    result["builds"] = [built(rows, cols) for rows, cols in SIZES[: 2 if quick else 3]]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
