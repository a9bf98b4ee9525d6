"""Networks with recurrent layers: a step against PyTorch, and hardware."""

from dataclasses import replace

import numpy as np
import pytest
from test_fbp import SAMPLES, built, on_one_engine, ran
from test_pipeline import CORE, SCALARS
from unit_steps import (
    assert_gradients_are_near_those_in_fp32,
    assert_hardware_equals_the_model,
    assert_step_is_that_of_pytorch,
)

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec, check
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.lowering.kernels.products import ProductKernel
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.conv_parts import Formats
from fpgapipe.lowering.products.tiled_product import tile_product
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.tiling.kernel import Region
from fpgapipe.lowering.units import rounded_weights
from fpgapipe.network import operators as ops
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.zoo.layers import Network


def language(batch):
    """Two stacked layers between an embedding and a head."""
    net = Network("language", batch)
    x = net.embedding(net.tokens("tokens", 5), 20, 12)
    x = net.lstm(net.lstm(x, 16), 8)
    net.linear(x, 20)
    return net.build()


def both_ways(batch):
    """Odd sizes, two directions, and a layer behind whose input is a network's."""
    net = Network("both_ways", batch)
    x = net.lstm(net.image(4, 7), 5, bidirectional=True)
    x = net.lstm(net.relu(x), 3, bidirectional=True)
    net.linear(net.flatten(x), 6)
    return net.build()


def bare(batch):
    """A layer without biases has more positions than samples, and its input another reader."""
    net = Network("bare", batch)
    x = net.linear(net.image(9, 6), 6)
    y = net.add("lstm", ops.Lstm(6, bias=False), x)
    net.linear(net.flatten(net.plus(x, y)), 4)
    return net.build()


def alone(batch):
    """A single position."""
    net = Network("alone", batch)
    net.linear(net.flatten(net.lstm(net.linear(net.image(1, 6), 6), 7)), 4)
    return net.build()


def gated(batch):
    """Layers of gated recurrent units, stacked, of one direction and of two."""
    net = Network("gated", batch)
    x = net.embedding(net.tokens("tokens", 5), 20, 12)
    x = net.gru(net.gru(x, 16), 7, bidirectional=True)
    net.linear(x, 20)
    return net.build()


def gated_bare(batch):
    """Gated recurrent units without biases, and over a single position."""
    net = Network("gated_bare", batch)
    x = net.linear(net.image(9, 6), 6)
    y = net.add("gru", ops.Gru(6, bidirectional=True, bias=False), x)
    z = net.gru(net.add("first", ops.Slice(1, 0, 1), y), 5)
    net.linear(net.concat([net.flatten(y), net.flatten(z)]), 4)
    return net.build()


def learned(batch):
    """States before the first position that are learned, fixed, and one value twice."""
    net = Network("learned", batch)

    def state(name, width, *, trainable=True):
        value = net.add(name, ops.Constant((1, width), trainable=trainable))
        return net.add(f"{name}.all", ops.Expand((batch, width)), value)

    x = net.image(3, 6)
    x = net.lstm(x, 5, state("h1", 5), state("c1", 5))
    x = net.gru(x, 4, state("h2", 8), bidirectional=True)
    same = state("h3", 5)
    x = net.lstm(x, 5, same, same)
    x = net.lstm(x, 6, state("h4", 6, trainable=False), state("c4", 6))
    net.linear(net.flatten(x), 4)
    return net.build()


def decoder(batch):
    """Layers that begin with the last states of others, or what a linear layer makes of them."""
    net = Network("decoder", batch)
    x = net.image(4, 7)
    y = net.lstm(x, 3, bidirectional=True, final_cell=True)
    cell = net.flatten(net.add("cell", ops.Slice(1, 4, 5), y))
    y = net.add("states", ops.Slice(1, 0, 4), y)
    hidden = net.flatten(net.add("last", ops.Slice(1, 3, 4), y))
    z = net.lstm(y, 6, hidden, cell)
    y = net.gru(y, 5, net.activation(net.linear(hidden, 5), "tanh"))
    z = net.gru(z, 6, net.flatten(net.add("end", ops.Slice(1, 3, 4), z)), bidirectional=False)
    net.linear(net.concat([net.flatten(y), net.flatten(z)]), 4)
    return net.build()


def cells_alone(batch):
    """Nothing but the last cell states of a layer of two directions is read; one position."""
    net = Network("cells_alone", batch)
    y = net.lstm(net.linear(net.image(1, 6), 6), 5, bidirectional=True, final_cell=True)
    net.linear(net.flatten(net.add("cell", ops.Slice(1, 1, 2), y)), 4)
    return net.build()


def whole_blocks(batch):
    """Weights of whole blocks of 32, so that there are rounded copies, which stay on chip."""
    net = Network("whole_blocks", batch)
    x = net.gru(net.lstm(net.image(6, 32), 32), 32, bidirectional=True)
    net.linear(net.flatten(x), 4)
    return net.build()


NETWORKS = [
    language, both_ways, bare, alone, gated, gated_bare, learned, decoder, cells_alone,
    whole_blocks,
]  # fmt: skip


@pytest.mark.parametrize("activations", [FP32, BF16], ids=str)
@pytest.mark.parametrize("samples", [1, 3, 6])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_is_that_of_pytorch(network, samples, activations):
    assert_step_is_that_of_pytorch(network(samples), activations, near=4e-2, loss=1e-4)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_near_those_in_fp32(network):
    """The gradients are compared with those of PyTorch's own layers."""
    assert_gradients_are_near_those_in_fp32(network(4))


REGION = Region(0, CORE.scratchpad.size_bytes)
TILED = tile_product(
    ConvSpec.linear(4, 32, 32), "forward", CORE, Formats(), MemorySpec(), is_repeated=True
)


def reads_of(program, what):
    """For each product of hidden states, how many instructions load the weight."""
    words = {}
    weights = [
        place
        for name, place in program.places.items()
        if name.endswith(("weight_hh", "weight_hh_reverse", ".forward", ".input"))
    ]
    for number, instruction in zip(program.kernel_of, program.instructions, strict=False):
        origin = program.kernels[number]
        if instruction.opcode is Opcode.LOAD and origin.name.endswith(what):
            at = instruction.body["memory"]
            words.setdefault(number, []).append(
                any(place.begin <= at < place.end for place in weights)
            )
    return [sum(words[number]) for number in sorted(words)]


@pytest.mark.parametrize("network", [language, bare, whole_blocks])
def test_a_weight_of_hidden_states_is_loaded_once_for_all_positions(network, monkeypatch):
    """No bit differs from that of products that each load it."""
    graph = network(3)
    core = replace(CORE, scratchpad=ScratchpadSpec(8, 1 << 15))

    def run():
        program = build_step(graph, core, tasks=single_device(2, train=True))
        memory = program.image(initial_parameters(graph, 0))
        program.set_batch(memory, *random_batch(graph, 0, 2))
        model = CoreModel(core, memory)
        model.scalars[:] = SCALARS
        model.run(program.instructions)
        check(encode(program.instructions), SequencerSpec.of(core))
        return program, program.state(memory)

    monkeypatch.setattr(rounded_weights, "_repeated", all_keep)
    program, found = run()
    monkeypatch.setattr(rounded_weights, "_repeated", each_loads)
    other, expected = run()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for what in (".recurrent", ".dhidden"):
        once, each = reads_of(program, what), reads_of(other, what)
        passes = 2 * sum(layer.op in ("lstm", "gru") for layer in graph.layers.values())
        passes += 2 * (network is whole_blocks)  # a direction more, in two micro-batches
        assert len(once) == len(each) > passes
        assert all(each)
        assert sum(map(bool, once)) == passes


def each_loads(step, name, conv, which, tensors, repeats, offsets):
    kernel = rounded_weights._product(step, name, conv, which, tensors, offsets)
    return rounded_weights._Choice(kernel, repeats.count)


def all_keep(step, name, conv, which, tensors, repeats, offsets):
    if repeats.count == 1:
        return each_loads(step, name, conv, which, tensors, repeats, offsets)
    kernel = rounded_weights._product(step, name, conv, which, tensors, offsets, is_repeated=True)
    return rounded_weights._Choice(replace(kernel, is_repeat=repeats.number > 0), 0)


def test_weights_that_do_not_fit_are_loaded_at_each_position():
    """The second of the two layers has no room for its weights forward, in either direction."""
    program = build_step(whole_blocks(3), CORE, tasks=single_device(1, train=True))
    found = reads_of(program, ".recurrent")
    assert not all(found[:5])
    assert len(found[5:]) == 10
    assert all(found[5:])


def test_weights_stay_in_each_lane(monkeypatch):
    """Under fbp-as, forward and backward passes run concurrently, each with weights of its own."""
    monkeypatch.setattr(rounded_weights, "_repeated", all_keep)
    graph = language(SAMPLES)
    pipeline = built(graph, 2)
    kept = [part for part in pipeline.parts if not all(reads_of(part, ".recurrent"))]
    assert kept
    found, left = ran(pipeline, "stores late")
    assert left == [0, 0]
    expected = on_one_engine(graph)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_another_product_between_repeats_is_an_error():
    """It would find the tiles of another weight on chip."""
    program = [
        ProductKernel(name, tiled, {"x": "x", "w": weight, "y": "y"}, "y", REGION, {}, is_repeat)
        for name, weight, is_repeat in (("one", "v", False), ("two", "w", True))
        for tiled in (TILED,)
    ]
    places = {name: Placed(at << 16, at + 1 << 16) for at, name in enumerate("xyvw")}
    with pytest.raises(AssertionError, match="another kernel took the place of a weight"):
        assemble(program, places, CORE)


@pytest.mark.sim
@pytest.mark.slow  # a core with vector engine and two links
@pytest.mark.parametrize(
    "network", [language, both_ways, bare, gated, learned, decoder, whole_blocks]
)
def test_hardware_equals_the_model(network):
    assert_hardware_equals_the_model(network)
