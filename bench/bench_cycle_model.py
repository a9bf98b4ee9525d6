"""The cycle model in plain Python and as machine code; prints one JSON object.

Programs of a training step of a network: that of one device, and those of four that links join, of
four micro-batches of a sample each, in arrays of 32 x 32. Times are seconds of the processor, of
the same runs one after the other; the first compiled run, which loads or makes the machine code, is
given apart, and so is what comes at the last moment, for the event simulation's task times.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

from bench_lowering import STAGES, even_cut

from fpgapipe.hw.hls_models.cycles import simulation
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec, predict
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program.step import build_step
from fpgapipe.network.load import load_network
from fpgapipe.partition.pricing.task_times import TaskTimes
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

CORE = CoreSpec(
    32,
    32,
    scratchpad=ScratchpadSpec(8, 1 << 18),
    vector=VectorSpec(16),
    links=(LinkEngineSpec(64),) * 2,
)
NETWORKS = ("resnet-mini", "resnet18", "resnet50")


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and the result."""
    begin = time.process_time()
    result = function()
    return round(time.process_time() - begin, 4), result


def both(function: Callable[[], Any]) -> dict[str, Any]:
    """Time plain Python and machine code; their results have to be the same."""
    simulation.COMPILED_FROM = 1 << 60
    plain_s, expected = timed(function)
    simulation.COMPILED_FROM = 0
    compiled_s, found = timed(function)
    row: dict[str, Any] = {"plain_s": plain_s, "compiled_s": compiled_s}
    return row | {"ratio": round(plain_s / compiled_s, 1), "same": found == expected}


def cases(network: str) -> dict[str, Any]:
    """Times of one network."""
    graph = load_network(network, 1)
    step = build_step(graph, CORE)
    schedule = make_schedule("1f1b-as", STAGES, 4)
    pipeline = build_pipeline(graph, [CORE] * STAGES, even_cut(graph, STAGES), schedule)
    programs = [part.instructions for part in pipeline.parts]

    def last_moment() -> list[float]:
        part = pipeline.parts[1]
        times = TaskTimes(part, MemorySpec(), range(len(part.tasks)))
        return times._pausing.ends

    return {
        "core": {"instructions": len(step.instructions)}
        | both(lambda: predict(step.instructions, CORE)),
        "last moment": {"instructions": len(programs[1])} | both(last_moment),
        "cluster": {"instructions": sum(map(len, programs))}
        | both(lambda: predict_cluster(programs, [CORE] * STAGES, pipeline.wiring)),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    given = parser.parse_args()
    simulation.COMPILED_FROM = 0
    small = build_step(load_network("resnet-mini", 1), CORE)
    first_s, _ = timed(lambda: predict(small.instructions, CORE))
    result: dict[str, Any] = {"first_compiled_run_s": first_s}
    result |= {network: cases(network) for network in given.network or NETWORKS[:2]}
    result["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
