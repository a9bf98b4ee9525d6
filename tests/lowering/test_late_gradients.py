"""Weight gradients computed once for all micro-batches: fewer bytes and cycles, the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.hw.hls_models.cycles.core_cycles import predict
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units import late_gradients
from fpgapipe.lowering.units.late_gradients import is_late
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network

F, DX, DW, B, U = TaskKind.F, TaskKind.DX, TaskKind.DW, TaskKind.B, TaskKind.U
COUNT = 3
ORDERS = {
    "one after the other": [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)],
    "weights later": [
        (F, 0), (F, 1), (DX, 0), (F, 2), (DX, 1), (DW, 0), (DX, 2), (DW, 1), (DW, 2),
    ],
}  # fmt: skip


def perceptron(samples):
    """A perceptron of odd widths."""
    net = Network("perceptron", samples)
    x = net.flatten(net.image(3, 7, 5))
    for width in (141, 100):
        x = net.relu(net.linear(x, width))
    net.linear(x, 11)
    return net.build()


def run(graph, core, order, options):
    tasks = [*(Task(kind, 0, index) for kind, index in ORDERS[order]), Task(U, 0, -1)]
    program = build_step(graph, core, options=options, tasks=tasks)
    memory = program.image(initial_parameters(graph, 0))
    program.set_batch(memory, *random_batch(graph, 0, COUNT))
    model = CoreModel(core, memory)
    for step in range(2):
        model.scalars[:] = scalar_bits(seed=7, step=step)
        model.run(program.instructions)
    found = program.parameters(memory) | program.parameters(memory, ".gradient")
    return program, found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("samples", "rows", "cols", "activations"),
    [(1, 8, 8, BF16), (5, 8, 16, BF16), (13, 32, 32, FP32), (32, 16, 64, BF16), (33, 8, 8, BF16)],
)
def test_late_gradients_have_the_same_bits(samples, rows, cols, activations, order):
    graph = perceptron(samples)
    core = replace(SMALL_CORE, rows=rows, cols=cols)
    programs, results = zip(
        *(
            run(graph, core, order, StepOptions(activations, late_gradients=late))
            for late in (False, True)
        ),
        strict=True,
    )
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(
            results[1][name].view(np.uint32), value.view(np.uint32), err_msg=name
        )
    parts = [{name for name in each.places if name.endswith(".part")} for each in programs]
    late = {"linear1.weight.part", "linear2.weight.part"} if samples == 1 else set()
    late |= {"linear1.weight.part"} if samples == 5 else set()
    assert parts[0] - parts[1] >= late
    if samples == 33:
        assert parts[0] == parts[1]  # more vectors than a block has


def test_late_gradients_take_fewer_cycles():
    net = Network("wide", 1)
    net.linear(net.relu(net.linear(net.flatten(net.image(128, 1, 1)), 192)), 128)
    graph = net.build()
    tasks = [*(Task(kind, 0, i) for i in range(4) for kind in (F, B)), Task(U, 0, -1)]
    cycles = []
    for late in (False, True):
        options = StepOptions(late_gradients=late)
        program = build_step(graph, SMALL_CORE, options=options, tasks=tasks)
        cycles.append(predict(program.instructions, SMALL_CORE).cycles)
        origins = {(each.name, program.tasks[each.task].kind) for each in program.kernels}
        assert (("linear1.weight", U) in origins) == late
    assert cycles[1] < 0.9 * cycles[0]


def test_where_gradients_are_late():
    conv = ConvSpec.linear(4, 256, 256)

    def decided(conv, count):
        positions = conv.batch * conv.h * conv.w
        x, dy = (Tensor("", (positions, each), BF16) for each in (conv.cin, conv.cout))
        dw = Tensor("", (conv.cout, conv.taps * conv.cin))
        return is_late(conv, count, x, dy, dw)

    assert decided(conv, 2)
    assert not decided(conv, 1)  # nothing is added
    assert not decided(replace(conv, batch=33), 2)  # two blocks each
    assert not decided(replace(conv, h=3, w=3, kernel=(3, 3)), 2)  # other positions for each tap
    # The gathered operands would be more than what they save.
    assert not decided(replace(conv, batch=32, cin=32, cout=16), 2)
    assert not decided(replace(conv, cin=32, cout=32), 2)  # two kernels take longer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": 3}, "conv of 3 segments must have one tap"),
        ({"segments": 2, "batch": 66}, "at most 32 positions in each"),
        ({"segments": 2, "kernel": (1, 3), "w": 3}, "must have one tap"),
    ],
)
def test_segments_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        replace(ConvSpec.linear(8, 4, 4), **change)


@pytest.mark.sim
@pytest.mark.slow
@pytest.mark.parametrize("sliced_bytes", [late_gradients.SLICED_BYTES, 4096])
def test_gateware_matches_model_while_the_memory_pauses(monkeypatch, sliced_bytes):
    from fpgapipe.hw.hls_models.model.registers import RegisterMap
    from fpgapipe.sim_tb.native.core_device import build_device, run_program
    from fpgapipe.sim_tb.native.native import NativeDevice

    monkeypatch.setattr(late_gradients, "SLICED_BYTES", sliced_bytes)
    graph = perceptron(3)
    tasks = [*(Task(kind, 0, index) for kind, index in ORDERS["weights later"]), Task(U, 0, -1)]
    program = build_step(graph, SMALL_CORE, tasks=tasks)
    assert "linear1.dy of all" in program.places
    image = program.image(initial_parameters(graph, 0))
    program.set_batch(image, *random_batch(graph, 0, COUNT))
    expected = image.copy()
    model = CoreModel(SMALL_CORE, expected)
    model.scalars[:] = scalar_bits(seed=7)
    model.run(program.instructions)
    library, _, _ = build_device(SMALL_CORE)
    registers = RegisterMap(SMALL_CORE)
    memory_bytes = program.memory_bytes
    with NativeDevice(library, memory_bytes=memory_bytes, pause=0.3, seed=5) as device:
        device.memory[:] = image
        for number, bits in enumerate(scalar_bits(seed=7)):
            device.write_register(registers.offset(f"SCALAR{number}"), bits)
        run_program(device, registers, program.entry, memory_bytes)
        np.testing.assert_array_equal(device.memory, expected)
