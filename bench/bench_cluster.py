"""Compares simulated clusters with their targets: threads, cost of lock-step, builds, results.

Prints one JSON object. Four cores of 16 x 16 in a chain run real programs, links included. A
second, slower lock-step in Python does the same run, and also records what arrives where and when;
then each device runs alone with the same beats, free of any lock-step. Ratios by processor time
hold on a busy machine; those by the clock need two idle processors. ``--quick`` takes cores of 4 x
4, and does not build them a second time.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from itertools import groupby
from types import SimpleNamespace

import numpy as np

from fpgapipe.host.bench.cluster_bench import (
    Chain,
    bench_chain,
    bring_up_links,
    chain_core,
    chain_nodes,
    make_chain,
    open_chain,
    start_programs,
)
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.sim_tb.native.core_device import build_device
from fpgapipe.sim_tb.native.native import NativeDevice
from fpgapipe.sim_tb.native.phy import WireSpec
from fpgapipe.sim_tb.native.verilate import environment

MEMORY, WIRE, SEED = MemorySpec(), WireSpec(latency_cycles=128), 1
DEVICES, BUILD_DEVICES = 4, 16


class PythonCluster:
    """A `Cluster` whose exchange and threads are in Python, and which records a replay.

    Attributes
    ----------
    done : list
        For each device its requests in order: cycles to run, or an access.
    beats : list of dict
        For each device and port, what arrived.
    """

    def __init__(self, chain: Chain, images: list) -> None:
        registers = RegisterMap(chain.core)
        nodes, self.connections = chain_nodes(chain, images, MEMORY, WIRE)
        self.devices = [node.device for node in nodes]
        self.nodes = [SimpleNamespace(name="", registers=registers) for _ in nodes]
        self.cycle = 0
        self.done: list = [[] for _ in self.devices]
        self.beats: list = [{} for _ in self.devices]
        for connection in self.connections:
            number, port = connection.source
            self.devices[number].attach_wire(port, connection.wire)

    def write_register(self, number: int, address: int, value: int) -> None:
        """As in `Cluster`."""
        self._access(number, NativeDevice.write_register, address, value)

    def read_register(self, number: int, address: int) -> int:
        """As in `Cluster`."""
        return self._access(number, NativeDevice.read_register, address)

    def _access(self, number, function, *arguments):
        value = function(self.devices[number], *arguments)
        self.done[number].append((function, arguments))
        self._advance(self.devices[number].cycle)
        return value

    def run(self, cycles: int, until_irq: bool = False) -> None:
        """As in `Cluster`."""
        end = self.cycle + cycles
        while self.cycle < end:
            self._advance(min(end, self.cycle + WIRE.delay_cycles))

    def _advance(self, cycle: int) -> None:
        for device, done in zip(self.devices, self.done, strict=True):
            if missing := cycle - device.cycle:
                device.run(missing, until_irq=False)
                done.append(missing)
        self.cycle = cycle
        for connection in self.connections:
            beats = self.devices[connection.source[0]].take_beats(connection.source[1])
            number, port = connection.target
            self.devices[number].give_beats(port, beats)
            self.beats[number].setdefault(port, []).extend(beats)


def replayed(chain: Chain, images: list, python: PythonCluster) -> tuple[float, bool]:
    """Run each device alone: processor seconds of the last step, and whether all is equal."""
    cpu_s, equal = 0.0, True
    for number, node in enumerate(chain_nodes(chain, images, MEMORY, WIRE)[0]):
        device = node.device
        for port, beats in python.beats[number].items():
            device.attach_wire(port, WIRE)  # only its rate matters here; it has no stalls
            device.give_beats(port, beats)
        steps = []
        for is_run, group in groupby(python.done[number], lambda step: isinstance(step, int)):
            found = list(group)
            steps += [sum(found)] if is_run else found
        for step in steps:
            begin = time.process_time()
            if isinstance(step, int):
                device.run(step, until_irq=False, progress_cycles=1 << 62)
            else:
                step[0](device, *step[1])
            last = time.process_time() - begin
        cpu_s += last
        other = python.devices[number]
        equal &= device.statistics == other.statistics
        equal &= bool(np.array_equal(device.memory, other.memory))
        device.close()
    return cpu_s, equal


def lock_step(chain: Chain, cycles: int) -> dict:
    """Compare the cluster on one thread with devices that run freely and do the same work."""
    images = chain.images(SEED)
    python = PythonCluster(chain, images)
    bring_up_links(python)
    start_programs(python, chain.programs)
    begin = python.cycle
    python.run(cycles)
    together = []
    with open_chain(chain, images, MEMORY, WIRE, threads=1) as cluster:
        for _ in range(2):
            cluster.reset()
            for node, image in zip(cluster.nodes, images, strict=True):
                node.device.memory[:] = image
            bring_up_links(cluster)
            start_programs(cluster, chain.programs)
            same = cluster.cycle == begin
            cpu_s = time.process_time()
            cluster.run(cycles, until_irq=False)
            together.append(time.process_time() - cpu_s)
            for node, other in zip(cluster.nodes, python.devices, strict=True):
                same &= node.device.statistics == other.statistics
                same &= bool(np.array_equal(node.device.memory, other.memory))
    free = [replayed(chain, images, python) for _ in range(2)]
    best = min(seconds for seconds, _ in free)
    return {
        "latency_cycles": WIRE.delay_cycles,
        "cycles": cycles,
        "free_cpu_s": [seconds for seconds, _ in free],
        "lock_step_cpu_s": together,
        "overhead": min(together) / best - 1,
        "at_most": 0.15,
        "python_lock_step_is_equal": same,
        "devices_alone_are_equal": all(equal for _, equal in free),
    }


def alone(chain: Chain) -> dict:
    """Run the same layers on one device, which neither sends nor receives."""
    single = make_chain(chain.core, 1, chain.rounds, *shape_of(chain))
    images = single.images(SEED)
    python = PythonCluster(single, images)
    start_programs(python, single.programs)
    device = python.devices[0]
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    ran = device.run()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    device.close()
    return {"cycles": ran, "cycles_per_s": ran / wall_s, "cycles_per_cpu_s": ran / cpu_s}


def shape_of(chain: Chain) -> tuple[int, int]:
    """Vectors and width of its layers."""
    conv = chain.programs[0].conv
    return conv.batch, conv.cin


def builds(chain: Chain) -> dict:
    """Count runs of Verilator for many devices of one configuration, with an empty cache."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fpgapipe.sim_tb.native.verilate")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    begin = time.perf_counter()
    for _ in range(BUILD_DEVICES):
        library, _, _ = build_device(chain.core)
        NativeDevice(library, memory_bytes=4096).close()
    logger.removeHandler(handler)
    return {
        "devices": BUILD_DEVICES,
        "verilator_builds": sum("for Verilator" in message for message in messages),
        "at_most": 1,
        "seconds": time.perf_counter() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    size, vectors, width, rounds = (4, 16, 64, 4) if quick else (16, 64, 256, 10)
    note = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    chain = make_chain(chain_core(size, size), DEVICES, rounds, vectors, width)
    result: dict = {"rows": size, "devices": DEVICES, "processors": len(os.sched_getaffinity(0))}
    with (
        tempfile.TemporaryDirectory() as cache,
        environment(**({} if quick else {"FPGAPIPE_CACHE": cache})),
    ):
        result["builds"] = builds(chain)
        note(f"builds: {result['builds']}")
        runs = {
            threads: bench_chain(chain, wire=WIRE, memory=MEMORY, seed=SEED, threads=threads)
            for threads in (1, 2)
        }
        sampled = bench_chain(
            chain, wire=WIRE, memory=MEMORY, seed=SEED, threads=2, sample_cycles=1000
        )
        result["runs"] = {threads: run.to_dict() for threads, run in runs.items()}
        result["equal_with_any_threads"] = runs[1].digest == runs[2].digest
        result["equal_with_sampling"] = sampled.digest == runs[1].digest
        note(f"equal: {result['equal_with_any_threads']}, {result['equal_with_sampling']}")
        two = runs[2].to_dict()
        result["alone"] = one = alone(chain)
        per_cpu_s = DEVICES * two["cycles"] / two["cpu_s"]
        result["two_threads_over_alone"] = {
            "by_clock": two["device_cycles_per_s"] / one["cycles_per_s"],
            "by_processor_time": 2 * per_cpu_s / one["cycles_per_cpu_s"],
            "at_least": 1.6,
        }
        note(f"threads: {result['two_threads_over_alone']}")
        result["lock_step"] = lock_step(chain, runs[1].cycles)
        note(f"lock-step: {result['lock_step']['overhead']:.3f}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
