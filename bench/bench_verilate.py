"""Compile times of arrays, from nothing and from the cache, and simulated cycles per second.

Prints one JSON object. As a testbench, the same module measures the cycles a second of a simulator:
``idle`` while Python sleeps, ``streaming`` while Python feeds and empties the array in every cycle.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import Timer

from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
from fpgapipe.hw.rtl.gemm.systolic import SystolicArray
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.drivers.simulate import simulate_verilog
from fpgapipe.sim_tb.drivers.stream import PERIOD_NS, parameters, start
from fpgapipe.sim_tb.native.verilate import build, environment
from fpgapipe.sim_tb.testbenches.tb_systolic import Bench, random_tile

IDLE_CYCLES = 1_000_000
STREAMED_VECTORS = 5_000
SIZES = (8, 16)


def report(dut: Any, name: str, cycles: int, seconds: float) -> None:
    """Leave a number for the process that started the simulator."""
    Path(f"{name}.json").write_text(json.dumps(round(cycles / seconds)))


@cocotb.test()
async def idle(dut: Any) -> None:
    """Run nothing but the clock."""
    await start(dut)
    begin = time.perf_counter()
    await Timer(IDLE_CYCLES * PERIOD_NS, "ns")
    report(dut, "idle", IDLE_CYCLES, time.perf_counter() - begin)


@cocotb.test()
async def streaming(dut: Any) -> None:
    """Stream one long tile."""
    spec = SystolicSpec(**parameters())
    await start(dut)
    bench = Bench(dut, spec, rng=None)
    tile = random_tile(spec, np.random.default_rng(0), STREAMED_VECTORS)
    begin = time.perf_counter()
    await bench.check([tile])
    report(dut, "streaming", spec.cycles(STREAMED_VECTORS), time.perf_counter() - begin)


def measure(size: int, folder: Path) -> dict[str, float]:
    """Build and run one array with an empty cache."""
    spec = SystolicSpec(size, size)
    with environment(FPGAPIPE_CACHE=str(folder / "cache")):
        begin = time.perf_counter()
        verilog = verilog_of(SystolicArray(spec))
        times = [time.perf_counter() - begin]
        for text in (verilog, verilog, verilog + "// another design\n"):
            begin = time.perf_counter()
            build(text)
            times.append(time.perf_counter() - begin)
        values = {"rows": size, "cols": size}
        simulate_verilog(verilog, "bench_verilate", folder, parameters=values, seed=0)
    elaborate_s, first_s, cached_s, next_s = times
    return {
        "elaborate_s": round(elaborate_s, 3),
        "first_build_s": round(first_s, 3),  # with Verilator's runtime library
        "next_build_s": round(next_s, 3),  # of another design of this size
        "cached_build_s": round(cached_s, 4),
        "idle_cycles_per_s": json.loads((folder / "idle.json").read_text()),
        "streaming_cycles_per_s": json.loads((folder / "streaming.json").read_text()),
    }


if __name__ == "__main__":
    results = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            results[f"{size}x{size}"] = measure(size, Path(folder))
    print(json.dumps({"bench": "verilate", **results}))
