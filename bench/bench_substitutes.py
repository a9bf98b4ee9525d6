"""The gain of simulating blocks of a core in C++: two 32x32 cores at work, with two threads.

Prints one JSON object. The same training step runs with all blocks in Verilog and with the models
in C++, in turn. Speeds are those of the processor time that all threads take together, since other
processes disturb these less than wall time, and ratios are those of one round. ``--build`` also
compiles the core in an empty cache, with and without models.
"""

import argparse
import json
import statistics
import tempfile
import time

from bench_speed import CORE, simulated_step

from fpgapipe.hw.rtl.core_verilog import device_verilog
from fpgapipe.sim_tb.native.core_device import device_blocks
from fpgapipe.sim_tb.native.native import build_native
from fpgapipe.sim_tb.native.verilate import environment
from fpgapipe.sim_tb.substitutes.simulation import Simulation


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=20, help="rows and columns of the images")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", action="store_true", help="measure cold builds, too")
    given = parser.parse_args()
    rounds = [
        {
            each: simulated_step(given.size, given.channels, given.threads, each)
            for each in (Simulation.VERILOG, Simulation.FAST)
        }
        for _ in range(given.rounds)
    ]
    steps = [found for each in rounds for found in each.values()]
    assert len({found["cycles"] for found in steps}) == 1
    result = {
        "blocks": str(device_blocks(CORE, Simulation.FAST)),
        "rounds": [
            {str(simulation): found for simulation, found in each.items()} for each in rounds
        ],
        "cycles_are_equal": True,
        "ratio_of_processor_time": statistics.median(
            each[Simulation.VERILOG]["cpu_s"] / each[Simulation.FAST]["cpu_s"] for each in rounds
        ),
        "ratio_of_wall_time": statistics.median(
            each[Simulation.VERILOG]["wall_s"] / each[Simulation.FAST]["wall_s"] for each in rounds
        ),
        "goal_ratio": 6,
        "goal_macs_per_s": 5e8,
    }
    if given.build:
        result["cold_build_s"] = {
            str(each): cold_build_s(each) for each in (Simulation.VERILOG, Simulation.FAST)
        }
        result["goal_cold_build_s"] = 60
    print(json.dumps(result, indent=2))


def cold_build_s(simulation: Simulation) -> float:
    """Seconds of wall time to compile the core's Verilog in an empty cache."""
    verilog = device_verilog(CORE)
    with tempfile.TemporaryDirectory() as cache, environment(FPGAPIPE_CACHE=cache):
        begin = time.perf_counter()
        build_native(verilog, simulation=simulation)
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
