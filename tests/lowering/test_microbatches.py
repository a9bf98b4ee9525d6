"""Steps of several micro-batches on one device: no bit depends on the order of their passes."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE, every_operator

from fpgapipe.host.backends.torch_step import torch_step
from fpgapipe.host.bench.step_bench import relative_error
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.memory.memory_map import LOSS
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.schedule.tasks import single_device, slots_of
from fpgapipe.lowering.units.network_units import drop_factors_of
from fpgapipe.lowering.units.step_options import Scalar, StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network

F, B, DX, DW, U = TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U
COUNT, SAMPLES = 3, 2

ORDERS = {
    "one after the other": [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)],
    "gpipe": [(F, 0), (F, 1), (F, 2), (B, 0), (B, 1), (B, 2)],
    "weights later": [
        (F, 0), (F, 1), (DX, 0), (F, 2), (DX, 1), (DW, 0), (DX, 2), (DW, 1), (DW, 2),
    ],
}  # fmt: skip


def tasks_of(order):
    return [*(Task(kind, 0, index) for kind, index in order), Task(U, 0, -1)]


def batch_of(graph):
    return random_batch(graph, 0, COUNT)


def run(graph, order, options=None):
    program = build_step(graph, SMALL_CORE, options=options, tasks=tasks_of(ORDERS[order]))
    parameters = initial_parameters(graph, 0)
    memory = program.image(parameters)
    inputs, labels = batch_of(graph)
    program.set_batch(memory, inputs, labels)
    model = CoreModel(SMALL_CORE, memory)
    model.scalars[:] = scalar_bits(seed=7)
    model.run(program.instructions)
    return program, memory


def test_slots_are_taken_again():
    assert slots_of(tasks_of(ORDERS["one after the other"])) == {0: 0, 1: 0, 2: 0}
    assert slots_of(tasks_of(ORDERS["gpipe"])) == {0: 0, 1: 1, 2: 2}
    assert slots_of(tasks_of(ORDERS["weights later"])) == {0: 0, 1: 1, 2: 2}
    order = [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (F, 3), (B, 2), (B, 3)]
    assert slots_of(tasks_of(order)) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert slots_of(single_device(3, train=False)) == {0: 0, 1: 0, 2: 0}


def test_no_bit_depends_on_the_order_of_tasks():
    graph = every_operator(SAMPLES)
    results = {order: run(graph, order) for order in ORDERS}
    first, memory = results["one after the other"]
    expected = first.parameters(memory) | first.parameters(memory, ".gradient")
    for program, found in results.values():
        assert program.outcome(found) == first.outcome(memory)
        for name, value in (
            program.parameters(found) | program.parameters(found, ".gradient")
        ).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_gradients_are_those_of_the_whole_batch():
    graph = every_operator(SAMPLES)
    program, memory = run(graph, "weights later", StepOptions(FP32))
    inputs, labels = batch_of(graph)
    key = scalar_bits(seed=7)[Scalar.RANDOM_SEED : Scalar.RANDOM_STEP + 1]
    parameters = initial_parameters(graph, 0)
    references = []
    for index in range(COUNT):
        part = slice(index * SAMPLES, (index + 1) * SAMPLES)
        references.append(
            torch_step(
                graph,
                parameters,
                {name: value[part] for name, value in inputs.items()},
                labels[part],
                drop_factors_of(graph, key, index),
            )
        )
    for index, reference in enumerate(references):
        found = program.read(memory, program.of_microbatch(LOSS, index))[0]
        assert abs(found - reference.loss) < 0.03 * reference.loss
    assert len({reference.loss for reference in references}) == COUNT
    gradients = program.parameters(memory, ".gradient")
    # What MXINT8 does to a gradient, ReLUs that flip included, is far below what a missing or
    # doubled micro-batch would.
    for name in ("linear2.weight", "linear2.bias", "linear1.weight", "conv5.weight"):
        exact = sum(reference.gradients[name] for reference in references) / COUNT
        assert relative_error(gradients[name], exact) < 0.1, name
        wrong = sum(reference.gradients[name] for reference in references[1:]) / COUNT
        assert relative_error(gradients[name], wrong) > 0.2, name


def test_a_shared_parameter_gets_both_gradients():
    net = Network("tied", SAMPLES)
    x = net.linear(net.flatten(net.image(3, 2, 2)), 12)
    net.linear(net.linear(x, 12), 12)
    graph = net.build()
    _, first, second = (layer for layer in graph.layers.values() if layer.op == "linear")
    layers = {**graph.layers, second.name: replace(second, parameters=first.parameters)}
    graph = replace(graph, layers=layers)
    program, memory = run(graph, "one after the other", StepOptions(FP32))
    inputs, labels = batch_of(graph)
    reference = torch_step(
        replace(graph, batch=SAMPLES * COUNT), initial_parameters(graph, 0), inputs, labels
    )
    # MXINT8 leaves some two percent; a gradient without one of its two parts is off by half.
    for name, gradient in program.parameters(memory, ".gradient").items():
        assert relative_error(gradient, reference.gradients[name]) < 0.05, name


@pytest.mark.sim
@pytest.mark.slow
def test_gateware_matches_model():
    from fpgapipe.hw.hls_models.model.registers import RegisterMap
    from fpgapipe.sim_tb.native.core_device import build_device, run_program
    from fpgapipe.sim_tb.native.native import NativeDevice

    graph = every_operator(SAMPLES)
    program, expected = run(graph, "weights later")
    library, _, _ = build_device(SMALL_CORE)
    registers = RegisterMap(SMALL_CORE)
    image = program.image(initial_parameters(graph, 0))
    program.set_batch(image, *batch_of(graph))
    with NativeDevice(library, memory_bytes=program.memory_bytes) as device:
        device.memory[:] = image
        for number, bits in enumerate(scalar_bits(seed=7)):
            device.write_register(registers.offset(f"SCALAR{number}"), bits)
        run_program(device, registers, program.entry, program.memory_bytes)
        np.testing.assert_array_equal(device.memory, expected)
