"""Programs of a ring: hops, and training steps that lie one behind the other."""

import random
from fractions import Fraction

import numpy as np
import pytest
from pipeline_cases import run_devices
from step_cases import every_operator
from test_pipeline import CORE, SCALARS

from fpgapipe.errors import UserError
from fpgapipe.host.backends.simulated_devices import SimulatedDevices
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.ring.hop import BUFFER_BYTES, hop_programs
from fpgapipe.lowering.ring.ring_program import build_ring
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.phy import WireSpec

SIZES = [100_000, 84, 0, 40_004, 8192]
"""Bytes that devices send; the third sends none."""


def hop_of(num_devices, sizes=SIZES):
    """Programs of a hop, memories before it, and the bytes of them that count after it."""
    places, at = [], 0
    for device in range(num_devices):
        first = Placed(at, at + sizes[device % len(sizes)])
        second = Placed(page(first.end), page(first.end) + 12)
        places.append((first, second) if first.size_bytes else ())
        at = page(second.end)
    rng = np.random.default_rng(num_devices)
    memories = [rng.integers(0, 256, at + BUFFER_BYTES, np.uint8) for _ in range(num_devices)]
    after = [memory[:at].copy() for memory in memories]
    for device, own in enumerate(places):
        for place in own:
            after[(device + 1) % num_devices][place.begin : place.end] = memories[device][
                place.begin : place.end
            ]
    return hop_programs(places, at), memories, after


@pytest.mark.parametrize("num_devices", [2, 3, 4, 7])
def test_a_hop_moves_what_each_device_has_to_the_next(num_devices):
    programs, memories, after = hop_of(num_devices)
    run_cluster(
        [CoreModel(CORE, each) for each in memories],
        programs,
        Placement.chain(num_devices).wires,
    )
    for memory, expected in zip(memories, after, strict=True):
        np.testing.assert_array_equal(memory[: expected.size], expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_hop_with_small_queues_in_any_order(seed):
    programs, memories, after = hop_of(5)
    rng = random.Random(seed)
    unbegun = run_devices([CORE] * 5, memories, programs, SCALARS, rng.choice)
    assert not any(unbegun)
    for memory, expected in zip(memories, after, strict=True):
        np.testing.assert_array_equal(memory[: expected.size], expected)


def test_a_hop_takes_as_long_as_one_transfer():
    for num_devices in (2, 4, 8):
        programs, _, _ = hop_of(num_devices, [1 << 19])
        found = predict_cluster(programs, [CORE] * num_devices, Placement.chain(num_devices).wires)
        assert found.cycles < 1.3 * (1 << 19) / 16


def small_ring(num_devices, num_models=2):
    graph = every_operator(2)
    program = build_step(graph, CORE)
    return graph, program, build_ring([program] * num_models, CORE, num_devices)


def test_models_lie_one_behind_the_other_and_train_as_alone():
    graph, program, ring = small_ring(3)
    parameters = [initial_parameters(graph, seed) for seed in range(2)]
    memories = ring.images(parameters)
    inputs, labels = random_batch(graph, 0, 1)
    alone = program.image(parameters[1])
    program.set_batch(alone, inputs, labels)
    model = CoreModel(CORE, alone)
    model.scalars[:] = SCALARS
    model.run(program.instructions)
    ring.models[1].set_batch(memories[1], inputs, labels)
    model = CoreModel(CORE, memories[1])
    model.scalars[:] = SCALARS
    model.run(ring.step_of(1, 0).instructions)
    begin = page(program.memory_bytes)
    size = program.entry
    np.testing.assert_array_equal(memories[1][begin : begin + size], alone[:size])
    for name, value in program.state(alone).items():
        np.testing.assert_array_equal(ring.models[1].state(memories[1])[name], value)


def test_each_model_is_at_one_device():
    _, _, ring = small_ring(3)
    for rounds in range(7):
        found = [ring.visitor(device, rounds) for device in range(3)]
        assert found[rounds % 3] == 0
        assert found[(rounds + 1) % 3] == 1
        assert found[(rounds + 2) % 3] is None
        assert ring.step_of((rounds + 2) % 3, rounds) == ring.idle
    memories = ring.images([initial_parameters(every_operator(2), seed) for seed in range(2)])
    at_home, elsewhere = (
        [memory[place.begin : place.end].any() for place in ring.lasting[0]]
        for memory in memories[:2]
    )
    assert any(at_home)
    assert not any(elsewhere)


def test_all_that_lasts_hops():
    graph, _, ring = small_ring(2)
    covered = set()
    for place in ring.lasting[1]:
        covered |= set(range(place.begin, place.end))
    model = ring.models[1]
    assert all(
        set(range(model.places[name].begin, model.places[name].end)) <= covered
        for name, _ in model.lasting()
    )
    assert graph.name


def test_more_models_than_devices_are_refused():
    with pytest.raises(UserError, match="not 3 models on 2 devices"):
        small_ring(2, 3)
    with pytest.raises(UserError, match="at least 2 devices"):
        small_ring(1, 1)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(("num_devices", "latency"), [(2, 128), (4, 128), (4, 1000)])
def test_a_simulated_hop(num_devices, latency):
    """Every byte is where the model has it, and the cycles are those of the cycle model.

    With a latency of 1000 cycles the links have too few slots, and the cycle model takes a hop for
    9 % longer than it is (docs/limits.md).
    """
    programs, memories, _ = hop_of(num_devices)
    entry = page(memories[0].size)
    images = []
    for program, memory in zip(programs, memories, strict=True):
        code = np.frombuffer(encode(program), np.uint8)
        image = np.zeros(page(entry + code.size), np.uint8)
        image[: memory.size] = memory
        image[entry : entry + code.size] = code
        images.append(image)
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=latency)
    wiring = Placement.chain(num_devices).wires
    cluster = CoreCluster(
        [CORE] * num_devices,
        [image.size for image in images],
        [MemorySpec()] * num_devices,
        wiring,
        [wire] * len(wiring),
        threads=2,
    )
    devices = SimulatedDevices(cluster)
    try:
        devices.load(images)
        devices.links_up()
        cycles = devices.run([entry] * num_devices, [SCALARS] * num_devices)
        run_cluster([CoreModel(CORE, each) for each in images], programs, wiring)
        for driver, its in zip(devices.drivers, images, strict=True):
            np.testing.assert_array_equal(driver.memory, its)
    finally:
        devices.close()
    found = predict_cluster(
        programs, [CORE] * num_devices, wiring, wires=[WireTiming(16, latency)] * len(wiring)
    )
    if latency == 128:
        assert found.cycles == pytest.approx(cycles, rel=0.01)
    else:
        assert cycles <= found.cycles
