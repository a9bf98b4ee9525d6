"""Backends run the same steps and leave the same bits, on any number of devices."""

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from step_cases import every_operator
from test_pipeline import CORE, COUNT, SAMPLES, batch_of, cut

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.driver.core_driver import DeviceFault
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

STEPS = 2
GOOD = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
BAD = replace(GOOD, bytes_per_cycle=Fraction(7, 3), bit_error_rate=1e-5, drop_rate=0.02)


def pipeline_of(graph, num_devices, kind):
    schedule = make_schedule(kind, num_devices, COUNT)
    return build_pipeline(graph, [CORE] * num_devices, cut(graph, num_devices), schedule)


def trained(backend, graph):
    """Results of some steps, and what they leave behind."""
    inputs, labels = batch_of(graph)
    results = []
    for step in range(STEPS):
        turned = {name: np.roll(value, step, axis=0) for name, value in inputs.items()}
        results.append(backend.step(turned, np.roll(labels, step), scalar_bits(seed=7, step=step)))
    left = {
        name + suffix: value.copy()
        for suffix in ("", ".gradient", ".momentum")
        for name, value in backend.parameters(suffix).items()
    }
    return results, left


@pytest.fixture(scope="module")
def expected():
    """On one device, in the model."""
    graph = every_operator(SAMPLES)
    with ModelBackend(pipeline_of(graph, 1, "1f1b-as"), initial_parameters(graph, 0)) as backend:
        results, left = trained(backend, graph)
    before = initial_parameters(graph, 0)
    assert all(np.any(left[name] != value) for name, value in before.items())
    return results, left


def check(found, expected):
    results, left = found
    assert [(each.loss, each.correct) for each in results] == [
        (each.loss, each.correct) for each in expected[0]
    ]
    assert left.keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_array_equal(left[name], value, err_msg=name)


@pytest.mark.parametrize(("num_devices", "kind"), [(2, "gpipe"), (4, "1f1b-as")])
def test_the_model_of_several_devices(num_devices, kind, expected):
    graph = every_operator(SAMPLES)
    pipeline = pipeline_of(graph, num_devices, kind)
    with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
        found = trained(backend, graph)
    assert all(each.cycles is None for each in found[0])
    check(found, expected)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    ("num_devices", "kind", "wire"),
    [
        (1, "1f1b-as", GOOD),
        (2, "1f1b-as", GOOD),
        (2, "gpipe", BAD),
        (3, "zb-h1", GOOD),
        (3, "1f1b-as", BAD),
        (4, "gpipe", GOOD),
        (4, "zb-h1", BAD),
    ],
    ids=str,
)
def test_simulated_devices(num_devices, kind, wire, expected):
    graph = every_operator(SAMPLES)
    pipeline = pipeline_of(graph, num_devices, kind)
    wires = [replace(wire, seed=10 * number) for number in range(num_devices - 1)]
    with SimulatorBackend(
        pipeline, initial_parameters(graph, 0), MemorySpec(), wires, threads=2
    ) as backend:
        found = trained(backend, graph)
    assert all(each.cycles for each in found[0])
    check(found, expected)


@pytest.mark.sim
@pytest.mark.slow
def test_a_link_that_does_not_come_up_is_named():
    graph = every_operator(SAMPLES)
    pipeline = pipeline_of(graph, 2, "gpipe")
    cut_off = replace(GOOD, down=((0, 1 << 40),))
    with pytest.raises(DeviceFault) as error:
        SimulatorBackend(pipeline, initial_parameters(graph, 0), MemorySpec(), [cut_off])
    lines = str(error.value).splitlines()
    assert lines[0] == "the link between device 0 and device 1 did not come up in 20,000 cycles"
    assert lines[1].startswith("link 0 of device 0 is HELLO: it hears nothing from the other end")


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("stops", [True, False], ids=["stops", "waits"])
def test_a_simulated_run_that_does_not_end_says_who_waits_for_what(stops):
    """The back device stops with an error, or ends at once; the front one waits for it for ever."""
    graph = every_operator(SAMPLES)
    pipeline = pipeline_of(graph, 2, "gpipe")
    program = bytes(64) if stops else encode([Instruction(Opcode.END)])
    at = pipeline.parts[1].entry
    with SimulatorBackend(pipeline, initial_parameters(graph, 0), MemorySpec(), [GOOD]) as backend:
        backend.memories[1][at : at + len(program)] = np.frombuffer(program, np.uint8)
        with pytest.raises(DeviceFault) as error:
            trained(backend, graph)
        assert backend.snapshot() is None
    first, *states = str(error.value).splitlines()
    assert first == (
        "device 1: the core stopped at instruction 0: BAD_OPCODE of SEQUENCER"
        if stops
        else "no device has made progress for 200,000 cycles"
    )
    back = states.index("device 1:")
    assert states[0] == "device 0:"
    assert states[2] == "  interrupt low"
    assert any(re.match(r"  RECEIVE\[0\]: instruction \d+ \(RECEIVE from", each) for each in states)
    assert states[back + 2] == "  interrupt high"
    assert re.match(r"  memory bus: active last at cycle \d+, 0 reads and 0", states[back + 3])
