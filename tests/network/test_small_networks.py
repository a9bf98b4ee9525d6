"""The small networks: what they are made of, and that they train over four devices."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from test_pipeline import CORE

from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.data.data import load_data
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo import built_in
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

torch = pytest.importorskip("torch", reason="needs the torch extra")

from torch import nn  # noqa: E402
from torch_models import Residual, count  # noqa: E402

STAGES = {
    "resnet-mini": ("block1.conv1", "block2.conv1", "block3.conv1"),
    "vgg-mini": ("conv2_1", "conv3_1", "conv4_1"),
}
"""First layers of each of four stages but the first."""

MODEL_STEPS = 20
SAMPLES, COUNT = 4, 4

# Eight columns of 64 channels' weights, FP32, need more than the small core has.
CORES = {
    "resnet-mini": CORE,
    "vgg-mini": replace(CORE, scratchpad=ScratchpadSpec(8, 1 << 15)),
}
LEARNING_RATE = {"resnet-mini": 0.05, "vgg-mini": 0.03}


def resnet_mini():
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [Residual(8, 8, 1, False), Residual(8, 16, 2, False), Residual(16, 32, 2, False)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def vgg_mini():
    layers, channels = [], 3
    for out in (8, 16, 32, 64):
        for _ in range(2):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            channels = out
        layers += [nn.MaxPool2d(2), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


MODULES = {"resnet-mini": resnet_mini, "vgg-mini": vgg_mini}


def stages(graph, firsts):
    names = list(graph.layers)
    bounds = [0, *(names.index(first) for first in firsts), len(names)]
    return [names[begin:end] for begin, end in pairwise(bounds)]


@pytest.mark.parametrize("name", MODULES)
def test_counts_equal_pytorchs_layer_by_layer(name):
    graph = built_in(name, 2)
    ours = [
        (layer.op, layer.macs, layer.num_parameters)
        for layer in graph.layers.values()
        if layer.num_parameters
    ]
    assert ours == count(MODULES[name](), 32, 2)


def test_resnet_mini_is_a_small_resnet():
    graph = built_in("resnet-mini")
    ops = [layer.op for layer in graph.layers.values()]
    strides = [layer.operator.stride for layer in graph.layers.values() if layer.op == "conv"]
    assert (ops.count("conv"), ops.count("batch_norm"), ops.count("add")) == (9, 9, 3)
    assert strides.count((2, 2)) == 4
    assert graph.totals.parameters == 19_954
    assert graph.totals.macs == 3_236_160


def test_vgg_mini_is_balanced():
    graph = built_in("vgg-mini")
    macs = [
        sum(graph.layers[name].macs for name in layers)
        for layers in stages(graph, STAGES["vgg-mini"])
    ]
    assert macs == [811_008, 884_736, 884_736, 887_296]
    assert graph.totals.parameters == 76_418


@pytest.mark.parametrize("name", MODULES)
def test_reference_computes_what_the_module_does(name):
    from fpgapipe.host.backends.torch_reference import forward

    graph = built_in(name, 3)
    module = MODULES[name]().train()
    own = [p.name for layer in graph.layers.values() for p in layer.parameters if p.spec.trainable]
    weights = {key: torch.tensor(value) for key, value in initial_parameters(graph, 1).items()}
    with torch.no_grad():
        for key, parameter in zip(own, module.parameters(), strict=True):
            parameter.copy_(weights[key])
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 3, 32, 32), np.float32))
    found = forward(graph, weights, {"input": x}, training=True)[graph.outputs[0]]
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # lowering for one device and for four, and 40 steps of the model
@pytest.mark.parametrize("name", MODULES)
def test_four_devices_train_as_one(name):
    """The loss falls, and four devices leave the bits of one."""
    graph = built_in(name, SAMPLES)
    data = load_data("random", graph)
    ends = []
    for layers in (stages(graph, ()), stages(graph, STAGES[name])):
        number = len(layers)
        schedule = make_schedule("1f1b-as", number, COUNT)
        pipeline = build_pipeline(graph, [CORES[name]] * number, layers, schedule)
        results = []
        with ModelBackend(pipeline, initial_parameters(graph, 0)) as backend:
            batches = data.train.batches(SAMPLES * COUNT, 0)
            for step, batch in zip(range(MODEL_STEPS), batches, strict=False):
                scalars = scalar_bits(
                    learning_rate=LEARNING_RATE[name], weight_decay=1e-4, step=step
                )
                results.append(backend.step({"input": batch.images}, batch.labels, scalars))
            ends.append((results, backend.parameters() | backend.parameters(".momentum")))
    losses = [each.loss for each in ends[0][0]]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert ends[0][0] == ends[1][0]
    assert ends[0][1].keys() == ends[1][1].keys()
    for key, value in ends[0][1].items():
        np.testing.assert_array_equal(ends[1][1][key], value, err_msg=key)
