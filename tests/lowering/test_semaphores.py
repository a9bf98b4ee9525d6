"""Programs that need more semaphores than a core has: waits that others imply are left out."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from test_fbp import COUNT, ONE_ENGINE, batch_of, network, on_one_engine, ran
from test_pipeline import cut

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import semaphores_of_core
from fpgapipe.lowering.program import assemble
from fpgapipe.lowering.program.hazards import Hazards
from fpgapipe.lowering.program.pipeline import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

LIMIT = semaphores_of_core(2, 1)


def built(graph, kind, devices=4):
    schedule = make_schedule(kind, devices, COUNT)
    return build_pipeline(graph, [ONE_ENGINE] * devices, cut(graph, devices), schedule)


def num_semaphores(pipeline):
    return 1 + max(
        number
        for part in pipeline.parts
        for each in part.instructions
        for number in (*each.wait, *each.signal)
    )


def waits(pipeline):
    return sum(len(each.wait) for part in pipeline.parts for each in part.instructions)


@pytest.fixture(scope="module")
def expected():
    return on_one_engine(network())


@pytest.mark.parametrize(
    ("kind", "order"),
    [("1f1b-as", "any"), ("1f1b-as", "stores late"), ("zb-h1", "transfers late")],
)
def test_a_value_passes_through_a_stage(kind, order, expected, monkeypatch):
    """The second of four devices would need 25, and has 24."""
    graph = network()
    pipeline = built(graph, kind)
    assert num_semaphores(pipeline) <= LIMIT
    found, left = ran(pipeline, order)
    assert left == [0, 0, 0, 0]
    same(found, expected)
    monkeypatch.setattr(assemble, "semaphores_of_core", lambda links, engines: 32)
    assert num_semaphores(built(graph, kind)) > LIMIT


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("kind", "devices"), [("gpipe", 2), ("gpipe", 3), ("1f1b-as", 3)])
def test_what_others_imply_is_not_needed(kind, devices, expected, monkeypatch):
    """Also where there are enough semaphores, no engine reads too early or overwrites too much."""
    graph = network()
    whole = built(graph, kind, devices)
    monkeypatch.setattr(assemble, "Hazards", partial(Hazards, reduces=True))
    reduced = built(graph, kind, devices)
    assert waits(reduced) < waits(whole)
    found, left = ran(reduced, "stores late" if devices == 2 else "any")
    assert left == [0] * devices
    same(found, expected)


def test_too_many_pairs_are_refused():
    with pytest.raises(NotImplementedError) as error:
        built(network(), "pipedream")
    assert str(error.value).startswith("program needs over 24 semaphores, for STORE -> LOAD, ")
    assert str(error.value).endswith(
        "; cut the network where fewer values pass through a device, or take another schedule"
    )


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
def test_hardware_equals_the_model():
    graph = network()
    pipeline = built(graph, "1f1b-as")
    values = initial_parameters(graph, 0)
    inputs, labels = batch_of(graph)
    scalars = scalar_bits(seed=7)
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    with (
        ModelBackend(pipeline, values) as model,
        SimulatorBackend(pipeline, values, MemorySpec(), [wire] * 3) as hardware,
    ):
        for _ in range(2):
            assert hardware.step(inputs, labels, scalars).loss == (
                model.step(inputs, labels, scalars).loss
            )
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)
