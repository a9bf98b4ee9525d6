"""Updates after each micro-batch: late weights in programs, PyTorch and simulated hardware."""

import random
from fractions import Fraction

import numpy as np
import pytest
from pipeline_cases import run_devices
from test_fbp import ONE_ENGINE, network
from test_pipeline import ORDERS, cut

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.host.backends.torch_backend import TorchBackend
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.program.array_rows import array_rows
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.schedule import Task, TaskKind, parse
from fpgapipe.lowering.schedule.weight_versions import LateWeights, WeightCopies
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.few_tasks import few_tasks
from fpgapipe.partition.schedule.schedule_kinds import make_schedule
from fpgapipe.partition.schedule.schedule_rules import check_schedule
from fpgapipe.sim_tb.native.phy import WireSpec

SAMPLES, COUNT = 2, 6
KINDS = ("pipedream", "pipedream-newest")
SCALARS = scalar_bits(learning_rate=0.05, weight_decay=1e-3, seed=3)


def plain(samples=SAMPLES):
    """A small network without random numbers and normalisation."""
    net = Network("plain", samples)
    x = net.relu(net.conv(net.image(3, 6, 6), 8, 3, padding=1))
    x = net.relu(net.conv(x, 8, 3, padding=1))
    x = net.relu(net.linear(net.flatten(net.global_average_pool(x)), 12))
    net.linear(x, 5)
    return net.build()


def programs(graph, kind, devices, count=COUNT, **more):
    schedule = make_schedule(kind, devices, count)
    layers = cut(graph, devices)
    pipeline = build_pipeline(graph, [ONE_ENGINE] * devices, layers, schedule, **more)
    return pipeline, None if schedule.synchronous else LateWeights.of(schedule, layers)


def test_copies_by_hand():
    """The first of three devices: three versions are alive before each update."""
    tasks = list(make_schedule("pipedream", 3, 4).lanes[0])
    assert " ".join(str(task).removesuffix("@0") for task in tasks) == (
        "F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3"
    )
    copies = WeightCopies.of(tasks, keeps=True)
    assert copies.count == 3
    assert copies.reads == (0, 0, 0, 0, 0, 1, 0, 1, 0, 2, 1, 2)
    assert copies.writes == (-1, -1, -1, -1, 1, -1, -1, 2, -1, 2, -1, 0)
    newest = WeightCopies.of(tasks, keeps=False)
    assert (newest.count, set(newest.reads)) == (1, {0})


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (1, 5), (2, 3), (4, 2), (5, 9), (8, 40)])
def test_no_copy_is_overwritten_while_it_is_needed(devices, count):
    schedule = make_schedule("pipedream", devices, count)
    for lane in schedule.lanes:
        tasks = list(lane)
        copies = WeightCopies.of(tasks, keeps=True)
        holds = {0: 0}  # version in each copy
        version, used = 0, {}
        for task, read, written in zip(tasks, copies.reads, copies.writes, strict=True):
            if task.kind is TaskKind.F:
                used[task.microbatch] = version
                assert holds[read] == version
            elif task.kind is TaskKind.B:
                assert holds[read] == used[task.microbatch]
            else:
                assert holds[read] == version
                version += 1
                holds[written] = version
        assert holds[0] == version == count
        assert copies.count <= min(devices - lane.device, count)


def test_updates_before_each_pass():
    kept, newest = (
        LateWeights.of(make_schedule(kind, 3, 5), [["a"], ["b"], ["c"]]) for kind in KINDS
    )
    np.testing.assert_array_equal(kept.forward, [[0, 0, 0, 1, 2], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(kept.backward, kept.forward)
    np.testing.assert_array_equal(newest.forward, kept.forward)
    np.testing.assert_array_equal(newest.backward, [[0, 1, 2, 3, 4]] * 3)
    assert kept.most_late == newest.most_late == 2
    schedule = make_schedule("pipedream-newest", 3, 5)
    assert "\nweights newest\n" in str(schedule)
    again = parse(str(schedule))
    assert (str(again), again.keeps_weights) == (str(schedule), False)
    assert parse(str(make_schedule("pipedream", 3, 5))).keeps_weights
    assert check_schedule(schedule).weight_versions == (1, 1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_with_the_same_late_weights_agrees(kind):
    """Loss, last gradients and momentum over two steps; the other schedules are told apart."""
    graph = network()
    pipeline, late = programs(graph, kind, 3)
    values = initial_parameters(graph, 1)  # with 0, one rounding is turned over: 3.5 % of it
    inputs, labels = random_batch(graph, 1, COUNT)
    model = ModelBackend(pipeline, values)
    assert model.num_updates == COUNT
    other = next(each for each in KINDS if each != kind)
    wrong = [None, LateWeights.of(make_schedule(other, 3, COUNT), cut(graph, 3))]
    before = model.state()
    for step in range(2):
        result = model.step(inputs, labels, SCALARS)
        checks = []
        for reference in (late, *wrong):
            torch = TorchBackend(
                graph, values, num_microbatches=COUNT, precision="mxint8", device="cpu",
                late=reference, array_rows=array_rows(pipeline.parts),
            )  # fmt: skip
            check = NumericCheck(torch)
            found = check.after(step, model, result, before, inputs, labels, SCALARS)
            checks.append((found, check.worst))
        (found, worst), *others = checks
        assert found is None
        assert max(worst.values()) < 0.01
        assert {"conv1.weight.momentum", "linear1.bias.gradient", "loss"} <= worst.keys()
        if step == 0:
            assert all(found is not None for found, _ in others)
            text = (
                f"the {'newest weights' if kind == KINDS[1] else 'weights of the forward passes'}"
            )
            note = f"as if torch did its backward passes with {text}"
            # There is none where a tensor is beyond doubt.
            assert others[1][0].note in ("", note), others
        before = model.state()


def task_by_task(graph, layers, schedule, values, inputs, labels, rate, momentum):
    """SGD in the very order of a schedule's tasks, a device's weights changing under its passes.

    PyTorch's functions keep a reference to the weights, whose values are changed behind its back:
    a backward pass uses what is there when it runs, or a copy of what its forward pass used.
    """
    import torch

    from fpgapipe.host.backends.torch_reference import run_layer

    weights = {name: torch.tensor(value) for name, value in values.items()}
    speed = {name: torch.zeros_like(value) for name, value in weights.items()}
    images = torch.tensor(inputs["input"]).chunk(schedule.num_microbatches)
    classes = torch.tensor(np.asarray(labels, np.int64)).chunk(schedule.num_microbatches)
    kept, sent, returned, gradients = {}, {}, {}, {}
    todo = [list(lane) for lane in schedule.lanes]
    last = schedule.num_stages - 1

    def forward(stage, index):
        x = images[index] if stage == 0 else sent[stage - 1, index]
        x = x.detach().requires_grad_()
        y, leaves = x, {}
        for name in layers[stage]:
            layer, own = graph.layers[name], {}
            for each in layer.parameters:
                shared = weights[each.name]
                leaf = (shared.clone() if schedule.keeps_weights else shared).requires_grad_()
                own[each.spec.role] = leaves[each.name] = leaf
            y = run_layer(layer, own, [y], training=True)
        sent[stage, index] = y.detach()
        if stage == last:
            y = torch.nn.functional.cross_entropy(y, classes[index]) / schedule.num_microbatches
        kept[stage, index] = x, y, leaves

    def backward(stage, index):
        x, y, leaves = kept.pop((stage, index))
        dy = None if stage == last else returned[stage + 1, index]
        dx, *found = torch.autograd.grad(y, [x, *leaves.values()], dy)
        returned[stage, index] = dx
        gradients[stage] = dict(zip(leaves, found, strict=True))

    while any(todo):
        for stage, lane in enumerate(todo):
            while lane:
                kind, index = lane[0].kind, lane[0].microbatch
                if kind is TaskKind.F and stage and (stage - 1, index) not in sent:
                    break
                if kind is TaskKind.B and stage < last and (stage + 1, index) not in returned:
                    break
                lane.pop(0)
                if kind is TaskKind.F:
                    forward(stage, index)
                elif kind is TaskKind.B:
                    backward(stage, index)
                else:
                    for name, gradient in gradients.pop(stage).items():
                        speed[name] = gradient + momentum * speed[name]
                        weights[name].data -= rate * speed[name]
    return {name: value.detach().numpy() for name, value in weights.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_late_weights_are_those_of_the_tasks(kind):
    """The reference, one micro-batch after the other, equals the tasks one by one."""
    graph = plain()
    layers, schedule = cut(graph, 3), make_schedule(kind, 3, COUNT)
    values = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, COUNT)
    torch = TorchBackend(
        graph, values, num_microbatches=COUNT, device="cpu", late=LateWeights.of(schedule, layers)
    )
    torch.step(inputs, labels, scalar_bits(learning_rate=0.5, momentum=0.5))
    expected = task_by_task(graph, layers, schedule, values, inputs, labels, 0.5, 0.5)
    for name, value in torch.parameters().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    other = make_schedule(KINDS[kind == KINDS[0]], 3, COUNT)
    unlike = task_by_task(graph, layers, other, values, inputs, labels, 0.5, 0.5)
    assert any(np.abs(unlike[name] - expected[name]).max() > 1e-4 for name in unlike)


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_does_a_step_for_each_micro_batch(kind):
    """With a learning rate of a quarter, four steps of a micro-batch give the same bits."""
    graph = plain()
    values = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, 4)
    pipeline, _ = programs(graph, kind, 1, 4)
    model = ModelBackend(pipeline, values)
    model.step(inputs, labels, scalar_bits(learning_rate=0.5, weight_decay=2**-12))
    program = build_step(graph, ONE_ENGINE)
    memory = program.image(values)
    for index in range(4):
        own = slice(index * SAMPLES, (index + 1) * SAMPLES)
        program.set_batch(memory, {name: each[own] for name, each in inputs.items()}, labels[own])
        core = CoreModel(ONE_ENGINE, memory)
        core.scalars[:] = scalar_bits(learning_rate=0.125, weight_decay=2**-10)
        core.run(program.instructions)
    for name, value in program.parameters(memory).items():
        np.testing.assert_array_equal(model.parameters()[name], value, err_msg=name)
        assert not np.array_equal(value, values[name])


@pytest.mark.parametrize(("kind", "order"), [(KINDS[0], "any"), (KINDS[0], "transfers late"),
                                             (KINDS[1], "last"), (KINDS[1], "any")])  # fmt: skip
def test_same_bits_in_any_order_of_the_engines(kind, order):
    graph = network()
    pipeline, _ = programs(graph, kind, 3)
    values = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, COUNT)
    model = ModelBackend(pipeline, values)
    model.step(inputs, labels, SCALARS)
    memories = pipeline.images(values)
    pipeline.set_batch(memories, inputs, labels)
    codes = [part.instructions for part in pipeline.parts]
    choose = random.Random(5).choice if order == "any" else ORDERS[order]
    assert run_devices([ONE_ENGINE] * 3, memories, codes, SCALARS, choose) == [0, 0, 0]
    expected = model.state()
    for name, value in pipeline.state(memories).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_memory_of_many_micro_batches_is_foretold_from_few():
    """Also where the few tasks need fewer copies of the weights than all."""
    graph = plain()
    whole, _ = programs(graph, "pipedream", 4, 16)
    few, _ = programs(graph, "pipedream", 4, 16, tasks_of=lambda tasks: few_tasks(tasks, 3))
    lanes = [list(lane) for lane in make_schedule("pipedream", 4, 16).lanes]
    for one, other, tasks in zip(whole.parts, few.parts, lanes, strict=True):
        assert len(other.tasks) < len(tasks)
        assert memory_bytes(other.demand.repeated(tasks)) == one.memory_bytes
    assert "parameters 3" in whole.parts[0].places
    assert "parameters 1" not in whole.parts[3].places


def test_only_sgd():
    for options in (StepOptions(optimiser="adam"), StepOptions(clip_norm=1.0)):
        with pytest.raises(NotImplementedError) as error:
            programs(plain(), "pipedream", 2, options=options)
        assert str(error.value) == (
            "weights that are updated after each micro-batch are updated by SGD without clipping, "
            "and all of them decay; take another schedule, such as 1f1b-as"
        )


def test_inference_has_no_updates():
    pipeline, _ = programs(plain(), "pipedream", 2, options=StepOptions(train=False))
    assert {task.kind for part in pipeline.parts for task in part.tasks} == {TaskKind.F}
    assert Task(TaskKind.F, 1, 0) in pipeline.parts[1].tasks


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(("kind", "devices"), [(KINDS[0], 2), (KINDS[1], 2), (KINDS[0], 4)])
def test_hardware_equals_the_model(kind, devices):
    graph = network() if devices == 2 else plain()
    pipeline, _ = programs(graph, kind, devices)
    values = initial_parameters(graph, 0)
    inputs, labels = random_batch(graph, 0, COUNT)
    wire = WireSpec(phy_bytes=16, bytes_per_cycle=Fraction(16), latency_cycles=128)
    with (
        ModelBackend(pipeline, values) as model,
        SimulatorBackend(pipeline, values, MemorySpec(), [wire] * (devices - 1)) as hardware,
    ):
        for _ in range(2):
            expected = model.step(inputs, labels, SCALARS)
            found = hardware.step(inputs, labels, SCALARS)
            assert (found.loss, found.correct) == (expected.loss, expected.correct)
            for one, other in zip(hardware.memories, model.memories, strict=True):
                np.testing.assert_array_equal(one, other)
