"""One conformance suite over all transports: the same training leaves the same bits."""

import contextlib
import importlib.util

import numpy as np
import pytest
from conformance_cases import (
    BASES,
    DEVICES,
    NEEDS,
    TRANSPORTS,
    Rig,
    digits_pipeline,
    modelled,
    over_xdma,
    simulated,
    trained_digits,
)
from step_cases import every_operator
from test_backends import check, pipeline_of, trained
from test_pipeline import SAMPLES
from xrt_cases import CHANNEL_BYTES, Card, compiled

from fpgapipe.host.backends.devices import DeviceBackend
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.driver.two_ports import first_address
from fpgapipe.host.transports.xrt import XrtTransport
from fpgapipe.network.initial_values import initial_parameters


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
def digits():
    """The network digits-cnn, and what its training in the model leaves."""
    pipeline = digits_pipeline()
    with ModelBackend(pipeline, initial_parameters(pipeline.graph, 0)) as backend:
        return pipeline, trained_digits(backend, pipeline.graph)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """XRT's shim."""
    return compiled(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def rig(library, tmp_path):
    with contextlib.ExitStack() as stack:
        yield Rig(tmp_path, stack, library=library)


IN_RTL = [pytest.mark.sim, pytest.mark.slow]
WAYS = [
    *((modelled, name) for name in TRANSPORTS),
    pytest.param(simulated, "directly", marks=IN_RTL),
    pytest.param(simulated, "agent", marks=IN_RTL),
]
"""Function that makes the devices behind a transport, and the transport."""


def opened(transport, pipeline, bases, rig):
    """Ways to both devices by a transport."""
    if not importlib.util.find_spec(needs := NEEDS.get(transport, "fpgapipe")):
        pytest.skip(f"{needs} is not installed")
    return TRANSPORTS[transport](pipeline, bases, rig)


@pytest.mark.parametrize("bases", [(0, 0), BASES], ids=["at 0", "elsewhere"])
@pytest.mark.parametrize(("behind", "transport"), WAYS)
def test_the_same_bits_over_every_transport(behind, transport, bases, pipeline, expected, rig):
    rig.behind = behind
    parameters = initial_parameters(pipeline.graph, 0)
    with DeviceBackend(pipeline, parameters, opened(transport, pipeline, bases, rig)) as backend:
        found = trained(backend, pipeline.graph)
        memories = [np.asarray(memory) for memory in backend.memories]
        counters = backend.counters()
    check(found, expected[:2])
    for one, other in zip(memories, expected[2], strict=True):
        np.testing.assert_array_equal(one, other)
    if behind is simulated:
        assert all(each.cycles for each in found[0])
        assert all(each["LOAD_BYTES"] for each in counters)


@pytest.mark.parametrize(("behind", "transport"), WAYS)
def test_digits_cnn_trains_the_same_over_every_transport(behind, transport, digits, rig):
    """Three steps, with all memories compared; bench/bench_conformance.py tries more of them."""
    pipeline, expected = digits
    rig.behind = behind
    parameters = initial_parameters(pipeline.graph, 0)
    with DeviceBackend(pipeline, parameters, opened(transport, pipeline, BASES, rig)) as backend:
        assert trained_digits(backend, pipeline.graph) == expected


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
        XrtTransport(tmp_path / "none.so", "0", tmp_path / "a.xclbin", "core_0", CHANNEL_BYTES)
    library = compiled(tmp_path)
    card = Card(library, modelled(pipeline, BASES, rig)[0])
    card.library.fake_version(7)
    with pytest.raises(TransportError, match="has version 7 of its functions, not 3"):
        XrtTransport(library, "0", tmp_path / "a.xclbin", "core_0", CHANNEL_BYTES)
    card.library.fake_version(3)
    with XrtTransport(library, "0", tmp_path / "a.xclbin", "core_0", CHANNEL_BYTES) as way:
        address = way.allocate(8192)
        with pytest.raises(TransportError, match="10 bytes at 0x11ffc are not in memory that was"):
            way.read(address + 8188, 10)
        with pytest.raises(TransportError, match=r"XRT fails to allocate [\d,]+ bytes: the tes"):
            way.allocate(1 << 40)
        assert card.library.fake_num_open() == 1
    assert card.library.fake_num_open() == 0
    way.close()
    assert card.library.fake_num_open() == 0


def test_two_ports_are_one_memory(tmp_path, pipeline, rig):
    """Any bytes go to the blocks of the core's memory that they belong to, and come back."""
    library, rng = compiled(tmp_path), np.random.default_rng(1)
    inner = modelled(pipeline, BASES, rig)[0]
    card = Card(library, inner, memory_ports=2)  # must live as long as the transport
    with XrtTransport(library, "0", tmp_path / "a.xclbin", "core_0", CHANNEL_BYTES) as way:
        size = 60_000
        address = way.allocate(size)
        expected = rng.integers(0, 256, size, np.uint8)
        way.write(address, expected)
        for _ in range(60):
            first = int(rng.integers(size))
            end = min(first + int(rng.choice([1, 100, 1024, 2048, 5000, 30_000])), size)
            expected[first:end] = rng.integers(0, 256, end - first, np.uint8)
            way.write(address + first, expected[first:end])
            first = int(rng.integers(size))
            found = way.read(address + first, size - first)
            np.testing.assert_array_equal(found, expected[first:])
        np.testing.assert_array_equal(inner.read(address, size), expected)
        with pytest.raises(TransportError, match="are not in memory that was reserved"):
            way.read(address + size - 1, 2)
        assert card.opened


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            (0, 3 << 22),
            "they are 12,582,912 bytes apart, and half of the memory is a multiple of 8",
        ),
        ((0, 0), "a channel, with room for 4,096 bytes"),
        ((1 << 24, 1 << 23), "they are -8,388,608 bytes apart"),
        ((512, (1 << 23) + 512), "the first one, 0x200, is no multiple of 1,024 bytes"),
    ],
)
def test_halves_at_other_places_are_refused(places, message):
    with pytest.raises(ValueError, match=message):
        first_address(places, 4096, 1 << 23)


def test_halves_of_one_memory_are_as_far_apart():
    assert first_address((1 << 20, (1 << 20) + (3 << 23)), 4096, 1 << 23) == 1 << 21
    assert first_address((0, 3 << 23), 4096, 1 << 23, 3 << 23) == 0
    with pytest.raises(
        ValueError, match="16,777,216 bytes apart, and those of an earlier buffer 25"
    ):
        first_address((0, 2 << 23), 4096, 1 << 23, 3 << 23)
