import networkx as nx
import numpy as np
import pytest

from fpgapipe.network.graph import GraphBuilder, NetworkError
from fpgapipe.network.operators import (
    Activation,
    Binary,
    Constant,
    CrossEntropy,
    Embedding,
    Gemm,
    Linear,
    Lstm,
    MatMul,
    Pass,
)
from fpgapipe.network.operators.tensors import DType, Tensor


def diamond():
    """Two linear layers side by side, added: input -> a -> (b, c) -> d."""
    net = GraphBuilder("diamond", 2)
    x = net.input("x", Tensor((2, 4)))
    a = net.add("a", Activation("relu"), x)
    b = net.add("b", Linear(3), a)
    c = net.add("c", Linear(3, bias=False), a)
    net.add("d", Binary("add"), b, c)
    return net


def test_layers_keep_their_order_and_shapes():
    graph = diamond().build()
    assert list(graph.layers) == ["a", "b", "c", "d"]
    assert graph.outputs == ("d",)
    assert graph.layers["d"].output == Tensor((2, 3))
    assert graph.totals.macs == 2 * (2 * 4 * 3)
    assert graph.totals.parameters == 15 + 12
    assert graph.totals.features == 8 + 3 * 6


def test_gradients_flow_only_where_a_parameter_lies_before():
    graph = diamond().build()
    assert list(graph.passes("a")) == [Pass.FORWARD]  # nothing to learn before it or in it
    assert list(graph.passes("b")) == [Pass.FORWARD, Pass.WEIGHT_GRADIENT]
    assert graph.input_gradients("d") == (0, 1)


def test_one_sided_matmul_computes_one_gradient():
    net = GraphBuilder("net", 1)
    x = net.input("x", Tensor((2, 3)))
    w = net.add("w", Constant((3, 4), trainable=True))
    net.add("y", MatMul(), x, w)
    passes = net.build().passes("y")
    assert passes[Pass.INPUT_GRADIENT] == (Gemm(m=3, k=2, n=4, weights=False),)


def test_a_first_recurrent_layer_still_goes_back_through_time():
    net = GraphBuilder("net", 1)
    net.add("y", Lstm(3), net.input("x", Tensor((1, 5, 4))))
    assert net.build().passes("y")[Pass.INPUT_GRADIENT] == (Gemm(m=1, k=12, n=3, steps=5),)


def test_gradients_of_a_recurrent_layer_and_its_states():
    net = GraphBuilder("net", 2)
    state = net.add("h", Constant((2, 3), trainable=True))
    net.add("y", Lstm(3), net.input("x", Tensor((2, 5, 4))), state, state)
    graph = net.build()
    assert graph.input_gradients("y") == (1, 2)
    back = Gemm(m=2, k=12, n=3, steps=5)
    assert graph.passes("y")[Pass.INPUT_GRADIENT] == (back,)
    net = GraphBuilder("net", 2)
    x = net.add("x", Constant((2, 5, 4), trainable=True))
    net.add("y", Lstm(3), x)
    passes = net.build().passes("y")
    assert passes[Pass.INPUT_GRADIENT] == (Gemm(m=10, k=12, n=4), back)


def test_no_gradient_to_indices_and_labels():
    net = GraphBuilder("net", 2)
    tokens = net.input("tokens", Tensor((2,), DType.INT64))
    labels = net.input("labels", Tensor((2,), DType.INT64))
    logits = net.add("e", Embedding(5, 4), tokens)
    net.add("loss", CrossEntropy(), logits, labels)
    graph = net.build()
    assert graph.input_gradients("e") == ()
    assert graph.input_gradients("loss") == (0,)


def test_networkx_has_the_layers_and_their_dependencies():
    graph = diamond().build().to_networkx()
    assert set(graph.edges) == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.nodes["b"]["layer"].op == "linear"


def test_values_must_have_the_parameters_shape():
    net = diamond()
    net.set_value("b.weight", np.zeros((3, 4), np.float32))
    with pytest.raises(NetworkError, match=r"^diamond: 'c.weight' has shape \[3, 4\], its value"):
        net.set_value("c.weight", np.zeros((4, 3), np.float32))
    assert list(net.build().values) == ["b.weight"]


def test_sharing_needs_equal_sizes():
    net = diamond()
    net.add("e", Linear(3, bias=False), "a", shared={"weight": "b.weight"})
    assert net.build().totals.parameters == 27
    with pytest.raises(NetworkError) as error:
        net.add("f", Linear(5, bias=False), "a", shared={"weight": "b.weight"})
    assert str(error.value) == (
        "diamond: layer 'f': weight of shape [5, 4] cannot share 'b.weight' of shape [3, 4]"
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda net: net.add("a", Linear(1), "x"), "diamond: the name 'a' stands for two tensors"),
        (lambda net: net.add("", Linear(1), "x"), "diamond: a layer has an empty name"),
        (
            lambda net: net.add("e", Linear(1), "z"),
            "diamond: layer 'e' reads 'z', which nothing gives",
        ),
        (
            lambda net: net.add("e", Linear(1), "a", "b"),
            "diamond: layer 'e': linear takes 1 inputs, not 2",
        ),
        (
            lambda net: net.add("e", Binary("add"), "a", "b"),
            "diamond: layer 'e': shapes [2, 4] and [2, 3] do not broadcast",
        ),
        (lambda net: net.build(["z"]), "diamond: output 'z' is no layer of the network"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(NetworkError) as error:
        build(diamond())
    assert str(error.value) == message


def test_an_empty_network_is_refused():
    with pytest.raises(NetworkError, match=r"^net: the network has no layers$"):
        GraphBuilder("net", 1).build()


def test_a_long_chain_needs_no_recursion():
    net = GraphBuilder("long", 1)
    x = net.input("x", Tensor((1, 2)))
    for i in range(20_000):
        x = net.add(f"l{i}", Linear(2), x)
    graph = net.build()
    assert graph.totals.parameters == 20_000 * 6
    assert Pass.INPUT_GRADIENT in graph.passes(x)
    assert len(graph.to_dict()["layers"]) == 20_000
