"""Two devices behind each transport, and what they train: all must leave the same bits."""

import contextlib
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from agent_cases import agent_of, client_of, made_keys, served
from litex_cases import together, transport_to
from pynq_cases import pynq_device
from step_cases import SMALL_CORE
from transport_cases import XdmaFiles
from xrt_cases import Card, compiled

from fpgapipe.boards.address import Address
from fpgapipe.boards.library import load_board
from fpgapipe.host.data.data import load_data
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.host.transports.pynq_board import PynqTransport
from fpgapipe.host.transports.simulated import simulated_transports
from fpgapipe.host.transports.xdma import XdmaTransport
from fpgapipe.host.transports.xrt import XrtTransport
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.zoo.classic import digits_cnn
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.phy import WireSpec

DEVICES = 2
BASES = (0x10000, 0x345000)
"""Places of the memories of the two devices, as a board's allocator may choose them."""

SAMPLES, COUNT, STEPS = 2, 2, 3
"""Samples of a micro-batch, micro-batches of a step, and steps that digits-cnn is trained for."""


def digits_pipeline():
    """The network digits-cnn over two devices with small cores."""
    graph = digits_cnn(SAMPLES)
    names = list(graph.layers)
    half = len(names) // 2
    core = replace(SMALL_CORE, links=(LinkEngineSpec(),))
    schedule = make_schedule("1f1b-as", DEVICES, COUNT)
    return build_pipeline(graph, [core] * DEVICES, [names[:half], names[half:]], schedule)


def trained_digits(backend, graph):
    """Train digits-cnn; gives loss and right answers of each step, and a digest of all memories."""
    samples = load_data("digits", graph).train
    results = []
    for step in range(STEPS):
        taken = np.arange(step * SAMPLES * COUNT, (step + 1) * SAMPLES * COUNT)
        (name,) = graph.inputs
        inputs = {name: samples.images[taken]}
        done = backend.step(inputs, samples.labels[taken], scalar_bits(seed=7, step=step))
        results.append((done.loss, done.correct))
    digest = hashlib.sha256()
    for memory in backend.memories:
        digest.update(np.asarray(memory).tobytes())
    return results, digest.hexdigest()


def modelled(pipeline, bases, rig):
    """Bit-exact models of both devices, behind registers."""
    cores = [part.core for part in pipeline.parts]
    sizes = [part.memory_bytes + base for part, base in zip(pipeline.parts, bases, strict=True)]
    cluster = ModelledCluster(cores, sizes, pipeline.wiring)
    rig.others = together(cluster)
    return [ModelledTransport(cluster, number, base) for number, base in enumerate(bases)]


def simulated(pipeline, bases, rig):
    """Both devices and the link between them in RTL."""
    sizes = [
        -(-(part.memory_bytes + base) // 4096) * 4096
        for part, base in zip(pipeline.parts, bases, strict=True)
    ]
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    cores = [part.core for part in pipeline.parts]
    memories, wires = [MemorySpec()] * DEVICES, [wire] * (DEVICES - 1)
    cluster = CoreCluster(cores, sizes, memories, pipeline.wiring, wires)
    ways = simulated_transports(cluster, bases)
    rig.stack.callback(ways[0].close)
    rig.others = threading.Lock(), lambda: True
    return ways


@dataclass
class Rig:
    """Folder, devices and library that transports need.

    Attributes
    ----------
    folder : Path
    stack : contextlib.ExitStack
        Contexts and callbacks that end with the transports.
    behind : callable
        Function that makes the devices that are reached: `modelled` or `simulated`.
    library : Path or None
        XRT's shim, compiled; made where it is None.
    others : tuple
        Lock of the devices, and whether they may run; see `transport_to`.
    """

    folder: Path
    stack: contextlib.ExitStack
    behind: Callable = modelled
    library: Path | None = None
    others: tuple = ()

    def devices(self, pipeline, bases):
        """Ways to the devices that are reached."""
        return self.behind(pipeline, bases, self)

    def shim(self):
        """XRT's shim; it is compiled where there is none."""
        if self.library is None:
            folder = self.folder / "shim"
            folder.mkdir()
            self.library = compiled(folder)
        return self.library


def directly(pipeline, bases, rig):
    """No transport at all between driver and devices."""
    return rig.devices(pipeline, bases)


def over_xdma(pipeline, bases, rig):
    """Files of the XDMA driver that move at most 100,000 bytes at once."""
    return [
        XdmaTransport(
            0,
            registers=0x2000,
            memory=base,
            memory_bytes=part.memory_bytes,
            files=XdmaFiles(inner, 0x2000, 100_000),
        )
        for inner, base, part in zip(
            rig.devices(pipeline, bases), bases, pipeline.parts, strict=True
        )
    ]


def over_xrt(pipeline, bases, rig, memory_ports=1):
    """The shim of XRT before a card of several nodes, of which one has interrupts."""
    ways = []
    library, board = rig.shim(), load_board("u280")
    for number, inner in enumerate(rig.devices(pipeline, bases)):
        card = Card(library, inner, number, interrupts=not ways, memory_ports=memory_ports)
        address = Address(device="0000:3b:00.1", bitstream="a.xclbin", node=number)
        ways.append(XrtTransport.open(address, board, library.parent))
        ways[-1].card = card  # which must live as long
        opened = ("0000:3b:00.1", str(library.with_name("a.xclbin")), f"fpgapipe_core_{number}")
        assert card.opened == [opened]
    return ways


def over_two_ports(pipeline, bases, rig):
    """The same with two memory ports a node, behind each of which lies half of its blocks."""
    return over_xrt(pipeline, bases, rig, memory_ports=2)


def over_litex(pipeline, bases, rig):
    """LiteX's own server and client, before a SoC behind a serial line."""
    ways = rig.devices(pipeline, bases)
    return [
        rig.stack.enter_context(
            transport_to(
                inner, rig.folder, part.memory_bytes + base, others=rig.others, memory=base
            )
        )
        for inner, base, part in zip(ways, bases, pipeline.parts, strict=True)
    ]


def over_pynq(pipeline, bases, rig):
    """PYNQ's own MMIO and buffers."""
    return [
        PynqTransport(0xA0000000, device=pynq_device(inner))
        for inner in rig.devices(pipeline, bases)
    ]


def through_agents(ways, rig):
    """Two agents, each before one of two devices, which run together."""
    keys = made_keys(rig.folder)
    accesses = threading.Lock()
    clients = []
    for number, inner in enumerate(ways):
        device = served(f"card-{number}", inner, accesses=accesses)
        place = rig.stack.enter_context(agent_of(keys, device))
        clients.append(client_of(place, device.name, keys))
    return clients


def over_agents(pipeline, bases, rig):
    """Agents of two hosts."""
    return through_agents(rig.devices(pipeline, bases), rig)


def over_agents_and_xdma(pipeline, bases, rig):
    """Agents of two hosts, each with files of the XDMA driver."""
    return through_agents(over_xdma(pipeline, bases, rig), rig)


TRANSPORTS = {
    "directly": directly,
    "xdma": over_xdma,
    "xrt": over_xrt,
    "xrt with two memory ports": over_two_ports,
    "litex": over_litex,
    "pynq": over_pynq,
    "agent": over_agents,
    "agent and xdma": over_agents_and_xdma,
}
"""For each transport, the function that makes the ways to both devices."""

NEEDS = {"litex": "litex", "pynq": "pynq"}
"""Packages without which a transport cannot be tried."""
