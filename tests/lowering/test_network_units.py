"""Refusals of layers and inputs: known at once, complete, and the same that lowering finds."""

import json

import pytest
from step_cases import SMALL_CORE, every_operator

from fpgapipe.errors import UserError
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.network_units import (
    RefusedNetwork,
    check_network,
    refusals_of,
    units_of,
)
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network import operators as ops
from fpgapipe.network.operators.tensors import DType, Tensor
from fpgapipe.network.zoo.layers import Network


def many_faults():
    net = Network("faulty", 4)
    x = net.image(6, 40, 40)
    x = net.add("norm", ops.BatchNorm(affine=False), net.local_response_norm(x, 3, name="local"))
    x = net.max_pool(x, 30, stride=1, name="large")
    x = net.activation(x, "leaky_relu", alpha=-0.1, name="steep")
    net.add("one", ops.Reduce("min", (2,)), x)
    y = net.add("halves", ops.Dropout(0.5, (2,)), x)
    net.add("shares", ops.Softmax(1), net.flatten(y))
    return net.build(["shares"])


FAULTS = {
    "local": ("local_response_norm", "the core has no local_response_norm"),
    "norm": ("batch_norm", "batch normalisation must have a scale and a bias"),
    "large": ("max_pool", "max pool window must have at most 256 pixels, not 900"),
    "steep": ("leaky_relu", "a leaky ReLU that trains must have a slope of at least 0, not -0.1"),
    "one": ("reduce_min", "the core has no reduce_min"),
    "halves": (
        "dropout",
        "dropout must drop single elements, channels or samples, not all along axes [2] of "
        "[4, 6, 11, 11]",
    ),
    "shares": (
        "softmax",
        "a network that trains must not end in a softmax; leave it out, since the loss has a "
        "softmax of its own",
    ),
}


def test_all_faults_are_named_at_once():
    graph = many_faults()
    found = {each.layer: (each.op, each.reason) for each in refusals_of(graph, train=True)}
    assert found == FAULTS
    inference = {each.layer for each in refusals_of(graph, train=False)}
    assert inference == FAULTS.keys() - {"steep", "shares", "halves"}
    with pytest.raises(RefusedNetwork) as caught:
        check_network(graph, train=True)
    first, *lines = str(caught.value).splitlines()
    assert first == "the core does not run 7 layers of faulty (docs/limits.md):"
    assert lines == [f"  {op} {layer!r}: {reason}" for layer, (op, reason) in FAULTS.items()]
    for run in (
        lambda: units_of(graph),
        lambda: build_step(graph, SMALL_CORE, options=StepOptions(train=False)),
    ):
        with pytest.raises(RefusedNetwork) as caught:
            run()
        assert {each.layer for each in caught.value.refusals} == inference


def test_what_passes_has_no_faults():
    graph = every_operator(2)
    assert refusals_of(graph, train=True) == []
    check_network(graph, train=True)


def test_inputs_of_integers_are_refused():
    net = Network("tokens", 4)
    x = net.tokens("tokens", 3)
    net.plus(net.add("numbers", ops.Cast(DType.FLOAT32), x), x, "sum")
    found = [str(each) for each in refusals_of(net.build(), train=False)]
    assert found[0] == (
        "input 'tokens': must have floating-point numbers for layer 'numbers', not int64"
    )


def test_indices_that_are_refused():
    net = Network("indices", 4)
    tokens = net.input("images", Tensor((4, 2, 3, 5), DType.INT64))
    net.embedding(tokens, 7, 3)
    x = net.add("computed", ops.Slice(1, 0, 1), net.tokens("more", 3))
    net.embedding(x, 7, 3, "late")
    net.embedding(net.tokens("others", 2), (1 << 16) + 1, 3, "table")
    found = [str(each) for each in refusals_of(net.build(), train=False)]
    assert found == [
        "input 'images': must have at most 3 axes of indices, not 4",
        "input 'more': must have floating-point numbers for layer 'computed', not int64",
        "layer 'late': the indices of an embedding must be an input of the network, and "
        "'computed' is computed",
        "layer 'table': an embedding must have a table of 1..65536 rows, not 65537",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: net.conv(net.image(3, 8), 5, 3, name="conv"),
         r"^layer 'conv': the loss takes the classes of tokens from the last axis, and a "
         r"convolution has them in the middle one of \[4, 5, 6\]: transpose its result \("),
        (lambda net: net.add("rows", ops.Reshape((8, 6)), net.image(3, 4)),
         r"^layer 'rows': the loss needs logits of samples x classes, samples x tokens x classes, "
         r"or samples x classes x height x width, with 4 samples, not \[8, 6\] \(docs"),
        (lambda net: net.linear(net.image(2, 2, 2, 3), 5, name="fc"),
         r"^layer 'fc': the loss needs logits of .* with 4 samples, not \[4, 2, 2, 2, 5\] \(docs"),
        (lambda net: net.linear(net.image(1 << 14 | 1, 1), 2, name="many"),
         r"^layer 'many': cross-entropy must have 1..65536 labels in a micro-batch, not 65540 \("),
    ],
)  # fmt: skip
def test_logits_that_no_loss_takes(make, message):
    net = Network("logits", 4)
    make(net)
    graph = net.build()
    with pytest.raises(UserError, match=message):
        build_step(graph, SMALL_CORE)
    build_step(graph, SMALL_CORE, options=StepOptions(train=False))


def plan(cli, network, *more):
    arguments = (network, "--board", "u280", "--devices", "2", "--batch", "4", "--array", "8x8")
    code, out, _ = cli("plan", *arguments, "--micro-batches", "2", *more)
    assert code == 0
    return out


NORMS = """
from fpgapipe.network.zoo.layers import Network
def net(batch=4):
    net = Network("local", batch)
    x = net.image(3, 8, 8)
    for number in (1, 2):
        x = net.local_response_norm(net.conv(x, 8, 3, padding=1), 3, name=f"norm{number}")
    net.linear(net.flatten(x), 5)
    return net.build()
"""


def test_a_plan_says_that_it_cannot_be_built(cli, monkeypatch, tmp_path):
    (tmp_path / "local_norms.py").write_text(NORMS)
    monkeypatch.chdir(tmp_path)
    note = "note: 'fpgapipe build' cannot make this plan: "
    out = plan(cli, "local_norms:net", "--schedule", "1f1b-as")
    assert f"{note}the core does not run 2 layers of local" in out
    found = json.loads(plan(cli, "local_norms:net", "--schedule", "1f1b-as", "--json"))
    assert found["build"]["possible"] is False
    assert found["build"]["reason"].startswith("the core does not run 2 layers of local (docs")
    assert found["build"]["refused"][0] == {
        "layer": "norm1",
        "op": "local_response_norm",
        "reason": "the core has no local_response_norm",
    }
    assert f"{note}schedule zb-auto has no order of its own" in plan(
        cli, "digits-cnn", "--schedule", "zb-auto"
    )
    for kind in ("1f1b-as", "pipedream", "pipedream-newest"):
        assert note not in plan(cli, "digits-cnn", "--schedule", kind)
    found = json.loads(plan(cli, "digits-cnn", "--schedule", "1f1b-as", "--json"))["build"]
    assert found == {"possible": True, "reason": None, "refused": []}
