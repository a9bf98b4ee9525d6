"""One conformance suite over all transports: the same training leaves the same bits."""

import contextlib
import threading
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from agent_cases import agent_of, client_of, made_keys, served
from litex_cases import together, transport_to
from pynq_cases import pynq_device
from step_cases import every_operator
from test_backends import check, pipeline_of, trained
from test_pipeline import SAMPLES
from transport_cases import XdmaFiles
from xrt_cases import Card, compiled

from fpgapipe.host.backends.devices import DeviceBackend
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.host.transports.pynq_board import PynqTransport
from fpgapipe.host.transports.simulated import simulated_transports
from fpgapipe.host.transports.xdma import XdmaTransport
from fpgapipe.host.transports.xrt import XrtTransport
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.sim_tb.native.phy import WireSpec

DEVICES = 2
BASES = (0x10000, 0x345000)
"""Places of the memories of the two devices, as a board's allocator may choose them."""


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_of(every_operator(SAMPLES), DEVICES, "gpipe")


@pytest.fixture(scope="module")
def expected(pipeline):
    parameters = initial_parameters(pipeline.graph, 0)
    with ModelBackend(pipeline, parameters) as backend:
        results, left = trained(backend, pipeline.graph)
        return results, left, [memory.copy() for memory in backend.memories]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """XRT's shim of each device, a library of its own."""
    return [compiled(tmp_path_factory.mktemp("shim")) for _ in range(DEVICES)]


@pytest.fixture
def rig(libraries, tmp_path):
    """What transports need of a test: libraries, a folder, and a stack of what ends with it."""
    with contextlib.ExitStack() as stack:
        yield SimpleNamespace(libraries=libraries, folder=tmp_path, stack=stack)


def modelled(pipeline, bases, rig):
    cores = [part.core for part in pipeline.parts]
    sizes = [part.memory_bytes + base for part, base in zip(pipeline.parts, bases, strict=True)]
    cluster = ModelledCluster(cores, sizes, pipeline.wiring)
    return [ModelledTransport(cluster, number, base) for number, base in enumerate(bases)]


def over_xdma(pipeline, bases, rig):
    """Files of the XDMA driver that move at most 100,000 bytes at once, before the models."""
    return [
        XdmaTransport(
            0,
            registers=0x2000,
            memory=base,
            memory_bytes=part.memory_bytes,
            files=XdmaFiles(inner, 0x2000, 100_000),
        )
        for inner, base, part in zip(
            modelled(pipeline, bases, rig), bases, pipeline.parts, strict=True
        )
    ]


def over_xrt(pipeline, bases, rig):
    ways = []
    for library, inner in zip(rig.libraries, modelled(pipeline, bases, rig), strict=True):
        card = Card(library, inner, interrupts=not ways)
        ways.append(XrtTransport(library, "0000:3b:00.1", library.with_name("a.xclbin"), "core"))
        ways[-1].card = card  # which must live as long
        assert card.opened == [("0000:3b:00.1", str(library.with_name("a.xclbin")), "core")]
    return ways


def over_litex(pipeline, bases, rig):
    """LiteX's own server and client, before a SoC behind a serial line."""
    pytest.importorskip("litex", reason="LiteX is not installed")
    ways = modelled(pipeline, bases, rig)
    others = together(ways[0]._cluster)
    return [
        rig.stack.enter_context(
            transport_to(inner, rig.folder, part.memory_bytes + base, others=others, memory=base)
        )
        for inner, base, part in zip(ways, bases, pipeline.parts, strict=True)
    ]


def over_pynq(pipeline, bases, rig):
    pytest.importorskip("pynq", reason="PYNQ is not installed")
    return [
        PynqTransport(0xA0000000, device=pynq_device(inner))
        for inner in modelled(pipeline, bases, rig)
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
    return through_agents(modelled(pipeline, bases, rig), rig)


def over_agents_and_xdma(pipeline, bases, rig):
    return through_agents(over_xdma(pipeline, bases, rig), rig)


def over_agents_to_simulated(pipeline, bases, rig):
    return through_agents(simulated(pipeline, bases, rig), rig)


def simulated(pipeline, bases, rig):
    sizes = [
        -(-(part.memory_bytes + base) // 4096) * 4096
        for part, base in zip(pipeline.parts, bases, strict=True)
    ]
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    cores = [part.core for part in pipeline.parts]
    memories, wires = [MemorySpec()] * DEVICES, [wire] * (DEVICES - 1)
    return simulated_transports(cores, sizes, memories, pipeline.wiring, wires, bases)


@pytest.mark.parametrize("bases", [(0, 0), BASES], ids=["at 0", "elsewhere"])
@pytest.mark.parametrize(
    "transports",
    [
        modelled,
        over_xdma,
        over_xrt,
        over_litex,
        over_pynq,
        over_agents,
        over_agents_and_xdma,
        pytest.param(simulated, marks=[pytest.mark.sim, pytest.mark.slow]),
        pytest.param(over_agents_to_simulated, marks=[pytest.mark.sim, pytest.mark.slow]),
    ],
)
def test_the_same_bits_over_every_transport(transports, bases, pipeline, expected, rig):
    parameters = initial_parameters(pipeline.graph, 0)
    with DeviceBackend(pipeline, parameters, transports(pipeline, bases, rig)) as backend:
        found = trained(backend, pipeline.graph)
        memories = [np.asarray(memory) for memory in backend.memories]
        counters = backend.counters()
    check(found, expected[:2])
    for one, other in zip(memories, expected[2], strict=True):
        np.testing.assert_array_equal(one, other)
    if transports in (simulated, over_agents_to_simulated):
        assert all(each.cycles for each in found[0])
        assert all(each["LOAD_BYTES"] for each in counters)


def test_a_state_goes_from_transport_to_transport(pipeline, rig):
    parameters = initial_parameters(pipeline.graph, 0)
    with ModelBackend(pipeline, parameters) as one:
        trained(one, pipeline.graph)
        state = one.state()
        after = trained(one, pipeline.graph)
    with DeviceBackend(pipeline, parameters, over_xdma(pipeline, BASES, rig)) as other:
        other.set_state(state)
        check(trained(other, pipeline.graph), after)


def test_the_shim_is_checked(tmp_path, pipeline, rig):
    with pytest.raises(TransportError, match=r"none.so cannot be used: .*; 'make' in the package"):
        XrtTransport(tmp_path / "none.so", "0", tmp_path / "a.xclbin", "core")
    library = compiled(tmp_path)
    card = Card(library, modelled(pipeline, BASES, rig)[0])
    card.library.fake_version(7)
    with pytest.raises(TransportError, match="has version 7 of its functions, not 1"):
        XrtTransport(library, "0", tmp_path / "a.xclbin", "core")
    card.library.fake_version(1)
    with XrtTransport(library, "0", tmp_path / "a.xclbin", "core") as way:
        address = way.allocate(8192)
        with pytest.raises(TransportError, match="10 bytes at 0x11ffc are not in memory that was"):
            way.read(address + 8188, 10)
        with pytest.raises(TransportError, match=r"XRT fails to allocate [\d,]+ bytes: the tes"):
            way.allocate(1 << 40)
        assert card.library.fake_num_open() == 1
    assert card.library.fake_num_open() == 0
    way.close()
    assert card.library.fake_num_open() == 0
