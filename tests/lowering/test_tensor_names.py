"""Networks whose names are those that a step has for its own tensors."""

import dataclasses

import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.network_units import check_network
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.lowering.units.tensor_names import TensorNames
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.operators import (
    Activation,
    BatchNorm,
    Binary,
    Linear,
    Lstm,
    Reshape,
    Select,
    Slice,
)
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.partition.schedule.schedule_kinds import make_schedule


def network(names, batch=2):
    """A network of a recurrent layer, a residual, and layers with constants of their own."""
    a, b, c, d, e, f, g, h, end = names
    net = GraphBuilder("names", batch)
    x = net.input("x", Tensor((batch, 4, 6)))
    x = net.add(a, Lstm(5, bidirectional=True, final_cell=True), x)
    x = net.add(b, Slice(1, 4, 5), x)
    x = net.add(c, Reshape((batch, 10)), x)
    x = net.add(d, Linear(8), x)
    y = net.add(e, BatchNorm(), x)
    x = net.add(f, Binary("add"), x, net.add(g, Activation("relu"), y))
    x = net.add(h, Select((1, 0)), x)
    net.add(end, Linear(3), x)
    return net.build()


CORE = dataclasses.replace(SMALL_CORE, links=(LinkEngineSpec(),))
PLAIN = ("a", "b", "c", "d", "e", "f", "g", "h", "end")
ODD = [
    ("e", "e.hidden", "e_reverse", "a", "a.weight", "a.dx", "a.weight.gradient", "e.cells", "end"),
    ("identity", "parameters", "labels", "loss", "clip", "gradients", "momenta", "squares", "y"),
    ("a", "a.gates#1", "a.gates@0", "a|gates", "a.moved1", "a_reverse.sums", "d[0:]", "d|", "a||"),
    ("d", "d#1", "d@1", "d.gradient", "d.gradient1", "d.norm", "d.norm.mean", "d.bias", "d@0"),
]


def trained(graph, microbatches):
    options = StepOptions()
    pipeline = build_pipeline(
        graph, [CORE] * 2, [list(graph.layers)[:4], list(graph.layers)[4:]],
        make_schedule("1f1b-as", 2, microbatches), options=options,
    )  # fmt: skip
    values = initial_parameters(graph, 0)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2 * microbatches, 4, 6), np.float32)}
    with ModelBackend(pipeline, values) as backend:
        backend.step(inputs, rng.integers(0, 3, 2 * microbatches), scalar_bits(learning_rate=0.1))
        return backend.state()


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("names", ODD, ids=lambda names: names[1])
def test_names_change_no_number(names, microbatches):
    plain = trained(network(PLAIN), microbatches)
    odd = trained(network(names), microbatches)
    assert len(odd) == len(plain)
    for one, two in zip(plain.values(), odd.values(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["d.weight", "d.weight.momentum", "labels", "loss", "identity"])
def test_outputs_and_inputs_that_would_be_mistaken(name):
    graph = network((*PLAIN[:-1], name))
    with pytest.raises(UserError, match=f"layer '{name}': needs another name; this one is that of"):
        check_network(graph, train=True)
    renamed = {name: graph.inputs["x"]}
    layers = {
        key: dataclasses.replace(each, inputs=tuple(name if i == "x" else i for i in each.inputs))
        for key, each in network(PLAIN).layers.items()
    }
    graph = dataclasses.replace(network(PLAIN), inputs=renamed, layers=layers)
    with pytest.raises(UserError, match=f"input '{name}': needs another name"):
        check_network(graph, train=False)


def test_inner_names_are_apart():
    names = TensorNames(network(ODD[2]))
    owners = {(owner, own) for owner in ODD[2] for own in ("dx", f"{owner}.dx", f"{owner}dx")}
    found = {names.inner(*each) for each in owners}
    assert len(found) == 3 * len(ODD[2])
    assert not found & {*map(names.value, ODD[2]), *ODD[2]}
