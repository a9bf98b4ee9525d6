"""ResNet-50 and VGG-16 at 224 x 224 on simulated devices, forward and in training, byte for byte.

Prints one JSON object. Each case is planned for U280 with arrays of 32 x 32: the forward pass of
one sample on one device, a training step of four micro-batches of a sample each on one device and
on four. It is lowered, timed by the cycle model, simulated cycle by cycle and computed by the
bit-exact model; every byte of the devices' memories is compared. Each case has the seconds of all
of these, the most memory that the process has used, and for each layer the multiply-accumulates,
the cycles of the array by the cycle model, and the share of the array that they use. ``--case``
chooses some, ``--threads`` the threads of the simulation; ``FPGAPIPE_SIMULATE`` the blocks in C++.
``--output docs/figures/real-networks.json`` writes the figures of the layers to the file of the
page docs/real-networks.md. Exits with 1 if a byte differs.
"""

import argparse
import json
import resource
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from figure import write_figure

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.build.wires import wire_specs
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.graph import Graph
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.load import load_network
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.pricing.best_plan import best_plan
from fpgapipe.partition.pricing.cycle_account import CycleAccount, accounts
from fpgapipe.partition.pricing.machine import lower_plan
from fpgapipe.partition.pricing.plan_cores import memory_specs, wire_timings
from fpgapipe.partition.pricing.prediction import PipelineTiming

ARRAY = (32, 32)
CASES = {
    f"{network} {kind} {devices}": (network, kind == "training", devices, count)
    for network in ("resnet50", "vgg16")
    for kind, devices, count in (("forward", 1, 1), ("training", 4, 4), ("training", 1, 4))
}
"""Network, whether it is trained, devices and micro-batches."""

NOTE = (
    "Of each layer: multiply-accumulates, cycles of the array by the cycle model, and the share of "
    "a core of 32 x 32 that they use."
)


def memory_gib() -> float:
    """The most memory that this process has used so far, GiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


class Clock:
    """Seconds, and seconds of processor time, of one part after the other."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._begin, self._cpu_begin = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """End a part and begin the next one."""
        now, cpu_now = time.perf_counter(), time.process_time()
        self.seconds[name] = round(now - self._begin, 2)
        self.cpu_seconds[name] = round(cpu_now - self._cpu_begin, 2)
        self._begin, self._cpu_begin = now, cpu_now
        print(f"{self.what}: {name} {self.seconds[name]:.1f} s", file=sys.stderr, flush=True)


def by_layer(graph: Graph, found: list[CycleAccount], train: bool, count: int) -> dict[str, Any]:
    """For each layer with products its multiply-accumulates, array cycles and utilisation."""
    cycles: dict[str, float] = defaultdict(float)
    units: dict[str, str] = {}  # a unit of several layers has the name of the last one
    for account in found:
        for each in account.spent():
            cycles[each.layer] += each.cycles
            units[each.kernel.rpartition(".")[0]] = each.layer
    rows = {}
    for layer in graph.layers:
        passes = graph.passes(layer)
        macs = count * sum(
            gemm.macs for name in (passes if train else ("F",)) for gemm in passes.get(name, ())
        )
        if macs:
            spent = cycles[units.get(layer, layer)]
            share = macs / (spent * ARRAY[0] * ARRAY[1])
            rows[layer] = {
                "macs": macs, "array_cycles": round(spent), "utilisation": round(share, 3)
            }  # fmt: skip
    return rows


def measured(case: str, threads: int | None) -> dict[str, Any]:
    """Figures of one case."""
    network, train, devices, count = CASES[case]
    clock = Clock(case)
    cluster = chain_of(load_board("u280"), devices).spec
    request = Request(
        lambda samples: load_network(network, samples),
        count,
        cluster,
        ("1f1b-as" if train else "gpipe",),
        count,
        array=ARRAY,
        train=train,
        all_devices=True,
    )
    graph = load_network(network, 1)
    plan = best_plan(request, network).plan
    clock.lap("planning")
    pipeline = lower_plan(plan, graph, cluster)
    clock.lap("lowering")
    timing = PipelineTiming.of(pipeline, memory_specs(plan), wire_timings(plan, cluster))
    found = accounts(pipeline, timing.cluster)
    predicted = round(found[0].cycles)
    clock.lap("cycle model")
    parameters = initial_parameters(graph, 0)
    inputs, labels = random_batch(load_network(network, count), 0)
    simulator = SimulatorBackend(
        pipeline, parameters, memory_specs(plan), wire_specs(plan, cluster), threads=threads
    )
    clock.lap("compilation")
    with simulator as hardware:
        if train:
            result = hardware.step(inputs, labels, scalar_bits())
            cycles = result.cycles
        else:
            _, cycles = hardware.infer(inputs, scalar_bits())
    assert cycles is not None
    clock.lap("simulation")
    used_gib = memory_gib()
    with ModelBackend(pipeline, parameters) as model:
        if train:
            model.step(inputs, labels, scalar_bits())
        else:
            model.infer(inputs, scalar_bits())
    clock.lap("bit-exact model")
    pairs = list(zip(hardware.memories, model.memories, strict=True))
    differ = sum(int((one != other).sum()) for one, other in pairs)
    layers = by_layer(graph, found, train, count)
    macs = sum(row["macs"] for row in layers.values())
    return {
        "network": network,
        "trained": train,
        "devices": devices,
        "micro_batches": count,
        "simulation": hardware.simulation,
        "cut": [[stage.layers[0], stage.layers[-1]] for stage in plan.stages],
        "bytes": sum(other.size for _, other in pairs),
        "bytes_that_differ": differ,
        "cycles": cycles,
        "predicted_cycles": predicted,
        "error": round((predicted - cycles) / cycles, 4),
        "utilisation": round(macs / (cycles * devices * ARRAY[0] * ARRAY[1]), 3),
        "device_cycles_per_s": round(devices * cycles / clock.seconds["simulation"]),
        "macs_per_s": round(macs / clock.seconds["simulation"]),
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "memory_gib": used_gib,
        "layers": layers,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, help="file of the layers' figures")
    given = parser.parse_args()
    found = {case: measured(case, given.threads) for case in given.case or CASES}
    if given.output:
        layers = {case: each["layers"] for case, each in found.items()}
        write_figure(given.output, "bench/bench_resnet50.py", NOTE, {"cases": layers})
    print(json.dumps(found, indent=1))
    sys.exit(any(each["bytes_that_differ"] for each in found.values()))


if __name__ == "__main__":
    main()
