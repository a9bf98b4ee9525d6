"""Semaphores between engines: a core of one GEMM engine has enough; others leave waits out."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from test_embedding_unit import language
from test_fbp import COUNT, ONE_ENGINE, SAMPLES, batch_of, network, on_one_engine, ran
from test_pipeline import cut

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Opcode, semaphores_of_core
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.program import assemble, hazards
from fpgapipe.lowering.program.hazards import STORED
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

FEW = 24
"""Semaphores of a core that has not one for each pair of engines."""


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


@pytest.mark.parametrize("kind", ["1f1b-as", "zb-h1", "zb-h2", "pipedream"])
@pytest.mark.parametrize("graph", [network(), language(SAMPLES)], ids=["passes through", "tied"])
def test_a_core_of_one_engine_has_enough(graph, kind, monkeypatch):
    """A value passes through the second of four devices, or gradients of a weight go both ways.

    Nothing is left out then, though cores had too few for it before.
    """
    if kind == "pipedream" and graph.name == "language":
        return  # no programs add up gradients where weights are updated late
    monkeypatch.setattr(hazards, "_waits", partial(never_reduced, hazards._waits))
    assert num_semaphores(built(graph, kind)) <= semaphores_of_core(2, 1)


def never_reduced(find, *given, reduces):
    assert not reduces
    return find(*given, reduces=False)


def always_reduced(find, *given, reduces):
    return find(*given, reduces=True)


def test_all_pairs_of_engines_have_a_semaphore():
    """Queues of two links are 6; LOADs need not be waited for, nor does a STORE wait."""
    engines = [(Opcode.LOAD, 0), (Opcode.STORE, 0)]
    engines += [(opcode, link) for link in range(2) for opcode in (Opcode.SEND, Opcode.RECEIVE)]
    # Both read: nothing that a SEND or a LOAD reads is changed by another.
    reads = {(Opcode.LOAD, 0), (Opcode.SEND, 0), (Opcode.SEND, 1)}
    pairs = [
        (one, other)
        for one in engines
        for other in engines
        if one != other
        and one[0] is not Opcode.LOAD
        and other[0] is not Opcode.STORE
        and not (one in reads and other[0] is Opcode.SEND)
    ]
    assert len(pairs) == 19
    assert STORED + len(pairs) <= semaphores_of_core(2, 1)


@pytest.mark.parametrize(
    ("kind", "order"),
    [("1f1b-as", "any"), ("1f1b-as", "stores late"), ("zb-h1", "transfers late")],
)
def test_a_value_passes_through_a_stage(kind, order, expected, monkeypatch):
    """With 24 semaphores the second of four devices has too few for all waits."""
    graph = network()
    assert num_semaphores(built(graph, kind)) > FEW
    monkeypatch.setattr(assemble, "semaphores_of_core", lambda links, engines: FEW)
    pipeline = built(graph, kind)
    assert num_semaphores(pipeline) <= FEW
    found, left = ran(pipeline, order)
    assert left == [0, 0, 0, 0]
    same(found, expected)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("kind", "devices"), [("gpipe", 2), ("gpipe", 3), ("1f1b-as", 3)])
def test_what_others_imply_is_not_needed(kind, devices, expected, monkeypatch):
    """Also where there are enough semaphores, no engine reads too early or overwrites too much."""
    graph = network()
    whole = built(graph, kind, devices)
    monkeypatch.setattr(hazards, "_waits", partial(always_reduced, hazards._waits))
    reduced = built(graph, kind, devices)
    assert waits(reduced) < waits(whole)
    found, left = ran(reduced, "stores late" if devices == 2 else "any")
    assert left == [0] * devices
    same(found, expected)


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(assemble, "semaphores_of_core", lambda links, engines: FEW)
    with pytest.raises(NotImplementedError) as error:
        built(network(), "pipedream")
    assert str(error.value).startswith("program needs over 24 semaphores, for STORE -> LOAD, ")
    assert str(error.value).endswith(
        "; cut the network where fewer values pass through a device, or take another schedule"
    )


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("graph", "kind"),
    [(network(), "1f1b-as"), (network(), "pipedream"), (language(SAMPLES), "zb-h2")],
    ids=["1f1b-as", "pipedream", "tied weights under zb-h2"],
)
def test_hardware_equals_the_model(graph, kind):
    pipeline = built(graph, kind)
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
