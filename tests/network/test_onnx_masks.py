"""Masks of ONNX models that are computed from inputs of the network."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx import TensorProto
from onnx_models import agrees_with_onnx, node, random, save

from fpgapipe.errors import FileError
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.network.load import load_network
from fpgapipe.network.mask_inputs import mask_inputs

SAMPLES, POSITIONS, FEATURES = 3, 5, 4
LOWEST = np.finfo(np.float32).min
INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def model(path, nodes, kind=INT, **weights):
    """Attention over `x` whose `scores` some nodes make `hidden`, given `mask` and `m`.

    `m` is the mask with an axis more.
    """
    given = {
        "q": random(FEATURES, FEATURES, seed=1),
        "k": random(FEATURES, FEATURES, seed=2),
        "axes": np.int64([1]),
        **weights,
    }
    whole = [
        node("MatMul", ["x", "q"], ["queries"]),
        node("MatMul", ["x", "k"], ["keys"]),
        node("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["queries", "turned"], ["scores"]),
        node("Unsqueeze", ["mask", "axes"], ["m"]),
        *nodes,
        node("Softmax", ["hidden"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["y"]),
    ]
    inputs = {
        "x": [SAMPLES, POSITIONS, FEATURES],
        "mask": ([SAMPLES, POSITIONS], kind),
    }
    return save(path / "n.onnx", whole, inputs, weights=given)


HUGGINGFACE = [
    node("Cast", ["m"], ["real"], to=FLOAT),
    node("Sub", ["one", "real"], ["inverted"]),
    node("Mul", ["inverted", "low"], ["added"]),
    node("Add", ["scores", "added"], ["hidden"]),
]
WITH_WHERE = [
    node("Equal", ["m", "zero"], ["is"]),
    node("Where", ["is", "low", "scores"], ["hidden"]),
]
EXPANDED = [
    node("Cast", ["m"], ["is"], to=BOOL),
    node("Expand", ["is", "shape"], ["wide"]),
    node("Where", ["wide", "scores", "low"], ["hidden"]),
]
CAUSAL = [
    node("Greater", ["m", "zero"], ["is"]),
    node("And", ["is", "seen"], ["both"]),
    node("Not", ["both"], ["not"]),
    node("Where", ["not", "small", "scores"], ["hidden"]),
]
OF_TWO_NUMBERS = [
    node("Cast", ["m"], ["is"], to=BOOL),
    node("Where", ["is", "nothing", "less"], ["levels"]),
    node("Where", ["seen", "scores", "less"], ["causal"]),
    node("Add", ["levels", "causal"], ["hidden"]),
]
PRODUCTS = [
    node("Cast", ["m"], ["real"], to=FLOAT),
    node("Neg", ["real"], ["negative"]),
    node("Or", ["seen", "is"], ["either"]),
    node("Cast", ["either"], ["weights"], to=FLOAT),
    node("Mul", ["scores", "weights"], ["product"]),
    node("Sub", ["product", "negative"], ["hidden"]),
]
PRODUCTS.insert(2, node("Less", ["m", "one64"], ["is"]))
CASES = {
    "as transformers do": (HUGGINGFACE, {"masked_fill": 1, "compare": 1}),
    "where": (WITH_WHERE, {"masked_fill": 1, "compare": 1}),
    "expanded": (EXPANDED, {"masked_fill": 1, "compare": 1, "expand": 0}),
    "causal": (CAUSAL, {"masked_fill": 1}),
    "of two numbers": (OF_TWO_NUMBERS, {"masked_fill": 2}),
    "products": (PRODUCTS, {"masked_fill": 0, "mul": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mask_is_that_of_onnx(tmp_path, case):
    nodes, counts = CASES[case]
    path = model(
        tmp_path, nodes, one=np.float32(1), zero=np.int64(0), low=LOWEST, one64=np.int64(1),
        nothing=np.float32(0), less=np.float32(-1e30), small=np.float32(-1e4),
        seen=np.tri(POSITIONS, dtype=bool),
        shape=np.int64([SAMPLES, POSITIONS, POSITIONS]),
    )  # fmt: skip
    mask = np.int64([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    graph = agrees_with_onnx(path, x=random(SAMPLES, POSITIONS, FEATURES), mask=mask)
    ops = [layer.op for layer in graph.layers.values()]
    for op, count in counts.items():
        assert ops.count(op) == count, (op, ops)
    assert not refusals_of(graph, train=True), refusals_of(graph, train=True)
    assert mask_inputs(graph)["mask"].hides == 0


def test_refuses(tmp_path):
    nodes = [
        node("Transpose", ["m"], ["other"], perm=[0, 2, 1]),
        node("Less", ["m", "other"], ["is"]),
        node("Where", ["is", "low", "scores"], ["hidden"]),
    ]
    with pytest.raises(FileError, match="only a comparison of what is computed with one fixed num"):
        load_network(model(tmp_path, nodes, low=LOWEST), SAMPLES)


def attention(path, mask):
    """Attention with a fixed mask, in which rows that are no numbers become zeros."""
    nodes = [
        node("MatMul", ["x", "q"], ["scores"]),
        node("Add", ["scores", "fixed"], ["hidden"]),
        node("Softmax", ["hidden"], ["shares"], axis=-1),
        node("IsNaN", ["shares"], ["is"]),
        node("Where", ["is", "nothing", "shares"], ["kept"]),
        node("MatMul", ["kept", "q"], ["y"]),
    ]
    weights = {"q": random(POSITIONS, POSITIONS), "fixed": mask, "nothing": np.float32(0)}
    return save(path / "m.onnx", nodes, {"x": [SAMPLES, POSITIONS, POSITIONS]}, weights=weights)


def test_rows_that_no_fixed_mask_hides_wholly_are_not_asked_for(tmp_path):
    mask = np.where(np.eye(POSITIONS, dtype=bool), 0, -np.inf).astype(np.float32)
    mask[:, 0] = 0
    graph = agrees_with_onnx(attention(tmp_path, mask), x=random(SAMPLES, POSITIONS, POSITIONS))
    assert [layer.op for layer in graph.layers.values()].count("softmax") == 1
    assert not refusals_of(graph, train=True)


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_rows_that_a_fixed_mask_makes_no_numbers_are_refused(tmp_path, value):
    mask = np.zeros((POSITIONS, POSITIONS), np.float32)
    mask[1] = value
    with pytest.raises(FileError, match=r"only of a softmax whose rows|holds inf"):
        load_network(attention(tmp_path, mask), SAMPLES)
