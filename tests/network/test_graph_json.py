"""Networks as JSON, both ways."""

import json

import numpy as np
import pytest

from fpgapipe.network import operators as ops
from fpgapipe.network.graph import GraphBuilder, NetworkError
from fpgapipe.network.graph_json import from_json, to_json
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo import NETWORKS, built_in


@pytest.mark.parametrize("name", NETWORKS)
def test_built_in_networks_come_back(name):
    graph = built_in(name, 2)
    text = to_json(graph)
    assert from_json(text) == graph
    assert to_json(from_json(text)) == text


def unusual():
    """Operators with attributes of every kind, a shared parameter, an unused input."""
    b = GraphBuilder("unusual", None)
    x = b.input("x", Tensor((2, 3, 4, 4)))
    b.input("mask", Tensor((2,), DType.BOOL))
    y = b.add("pad", ops.Pad(((0, 0), (0, 0), (1, 1), (1, 1)), float("-inf")), x)
    y = b.add("pool", ops.Pool("max", (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)), y)
    y = b.add("flat", ops.Flatten(), y)
    one = b.add("one", ops.Linear(48), y)
    two = b.add("two", ops.Linear(48), one, shared={"weight": "one.weight"})
    b.add("cast", ops.Cast(DType.BFLOAT16), two)
    b.add("out", ops.Activation("leaky_relu", 0.1), two)
    return b.build(["out", "one"])


def test_unusual_networks_come_back():
    graph = unusual()
    found = from_json(to_json(graph))
    assert found == graph
    assert found.layers["pad"].operator.value == float("-inf")
    assert found.totals == graph.totals


def test_every_operator_can_be_written():
    kinds = {
        getattr(ops, name)
        for name in ops.__all__
        if isinstance(getattr(ops, name), type) and issubclass(getattr(ops, name), ops.Operator)
    }
    used = {type(layer.operator) for name in NETWORKS for layer in built_in(name).layers.values()}
    used |= {type(layer.operator) for layer in unusual().layers.values()}
    assert len(used & kinds) > 15
    for kind in kinds - {ops.Operator}:
        assert getattr(ops, kind.__name__) is kind


def test_initial_values_are_left_out():
    graph = built_in("lenet5")
    values = {"conv1.weight": np.ones((6, 1, 5, 5), np.float32)}
    with_values = type(graph)(
        graph.name, graph.batch, graph.inputs, graph.layers, graph.outputs, values
    )
    assert to_json(with_values) == to_json(graph)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda v: v.update(version=2), "network unusual has format version 2, not 1"),
        (lambda v: v.pop("layers"), "no network: layers: Field required"),
        (lambda v: v.update(more=1), "no network: more: Extra inputs are not permitted"),
        (lambda v: v["layers"][0].update(operator="os"), "layer 'pad': there is no operator 'os'"),
        (
            lambda v: v["layers"][0].update(operator="Operator"),
            "layer 'pad': there is no operator 'Operator'",
        ),
        (
            lambda v: v["layers"][3]["attributes"].update(out_features=0),
            "layer 'one': Linear: Value error, linear out_features must be at least 1, not 0",
        ),
        (lambda v: v["layers"][3].update(inputs=["nowhere"]), "unusual: layer 'one' reads 'nowh"),
        (lambda v: v.update(outputs=["nothing"]), "unusual: output 'nothing' is no layer"),
    ],
)
def test_faults(change, fault):
    value = json.loads(to_json(unusual()))
    change(value)
    with pytest.raises(NetworkError) as error:
        from_json(json.dumps(value))
    assert str(error.value).startswith(fault)
