"""Quantised ONNX models on a core: ONNX's own cases, QOperator and QDQ networks, and QONNX."""

from functools import partial

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_cases import Machine, SimulatedMachine, cases_of, run_network  # noqa: E402
from onnx_models import node  # noqa: E402
from step_cases import SMALL_CORE  # noqa: E402

from fpgapipe.errors import FileError  # noqa: E402
from fpgapipe.hw.hls_models.model.core import CoreModel  # noqa: E402
from fpgapipe.lowering.program.step import build_step  # noqa: E402
from fpgapipe.lowering.units.network_units import refusals_of  # noqa: E402
from fpgapipe.lowering.units.step_options import StepOptions  # noqa: E402
from fpgapipe.network import operators as ops  # noqa: E402
from fpgapipe.network.frontends.onnx.onnx_model import read_onnx  # noqa: E402

run_case = partial(run_network, constants=tuple(range(1, 9)), exact=True)

OTHERS = (
    "e4m3fn", "e5m2", "int16", "uint16", "int4", "uint4", "int2", "uint2", "float4", "blocked",
)  # fmt: skip
"""Parts of the names of cases with numbers of other formats."""

OPERATORS = {
    "QLinearConv": 1,
    "QLinearMatMul": 8,
    "ConvInteger": 2,
    "MatMulInteger": 1,
    "QuantizeLinear": 2,
    "DequantizeLinear": 2,
}
"""Operators, and the number of ONNX's cases of eight bits."""


def cases(operator):
    """Cases of eight bits."""
    found = cases_of(operator)
    chosen = [case for name, case in found.items() if not any(each in name for each in OTHERS)]
    assert len(chosen) == OPERATORS[operator], f"onnx {onnx.__version__} has other cases"
    return chosen


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator, tmp_path):
    """Every integer is the one that ONNX expects."""
    for case in cases(operator):
        run_case(case, Machine(), tmp_path / "case.onnx").check(case)


@pytest.mark.sim
@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearMatMul"])
def test_operator_on_gateware(operator, tmp_path):
    machine = SimulatedMachine(SMALL_CORE)
    for case in cases(operator):
        run_case(case, machine, tmp_path / "case.onnx").check(case)


def test_other_formats_are_refused(tmp_path):
    for operator in ("QuantizeLinear", "DequantizeLinear"):
        for name, case in cases_of(operator).items():
            if name.endswith(("int16", "blocked", "blocked_symmetric")):
                with pytest.raises(FileError, match=r"only|element type UINT16"):
                    run_case(case, Machine(), tmp_path / "case.onnx")


# ---------------------------------------------------------------------- networks


def write(path, nodes, inputs, output, weights, imports=()):
    """Write a model with one output."""
    kinds = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, kinds[kind], shape)
            for name, (kind, shape) in inputs.items()
        ],
        [helper.make_tensor_value_info(output[0], kinds[output[1]], [None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 19), *imports]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, path)
    return path


def run(path, inputs, options=None):
    """Results of a model's only output on the bit-exact model of a core."""
    graph = read_onnx(path)
    program = build_step(graph, SMALL_CORE, options=options or StepOptions(train=False))
    memory = program.image({name: np.float32(value) for name, value in graph.values.items()})
    program.set_batch(memory, inputs)
    CoreModel(SMALL_CORE, memory).run(program.instructions)
    (found,) = program.results(memory).values()
    return graph, found.reshape(graph.layers[graph.outputs[0]].output.shape)


def integers(rng, kind, *shape):
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return rng.integers(low, high + 1, shape).astype(kind)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_qoperator_network(kind, tmp_path):
    """Two convolutions, pooling and a product between them have ONNX's integers, all of them."""
    rng = np.random.default_rng(0)
    zero = {"int8": (-5, 3, 0, 17), "uint8": (120, 131, 0, 99)}[kind]
    scales = [np.float32(each) for each in (0.02, 0.05, 0.04, 0.3)]
    weights = {f"s{i}": scale for i, scale in enumerate(scales)}
    weights |= {f"z{i}": np.asarray(each, kind) for i, each in enumerate(zero)}
    weights |= {
        "w1": integers(rng, kind, 6, 3, 3, 3),
        "v1": np.float32(2.0 ** rng.uniform(-8, -6, 6)),
        "c1": np.asarray([0] * 6 if kind == "int8" else [128] * 6, kind),
        "b1": rng.integers(-3000, 3000, 6).astype(np.int32),
        "w2": integers(rng, "int8", 4, 6, 1, 2),
        "v2": np.float32(0.006),
        "c2": np.asarray(0, "int8"),
        "w3": integers(rng, kind, 4 * 3 * 3, 10),
        "v3": np.float32(2.0 ** rng.uniform(-9, -7, 10)),
        "c3": integers(rng, kind, 10),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s0", "z0"], ["q0"]),
        node("QLinearConv", ["q0", "s0", "z0", "w1", "v1", "c1", "s1", "z1", "b1"], ["q1"],
             pads=[1, 0, 1, 1], strides=[1, 2]),
        node("MaxPool", ["q1"], ["p1"], kernel_shape=[2, 2], strides=[2, 1], pads=[0, 0, 0, 0]),
        node("QLinearConv", ["p1", "s1", "z1", "w2", "v2", "c2", "s2", "z2"], ["q2"],
             auto_pad="SAME_UPPER"),
        node("Flatten", ["q2"], ["f2"]),
        node("QLinearMatMul", ["f2", "s2", "z2", "w3", "v3", "c3", "s3", "z3"], ["q3"]),
        node("DequantizeLinear", ["q3", "s3", "z3"], ["y"]),
    ]  # fmt: skip
    path = write(tmp_path / "q.onnx", nodes, {"x": ("float32", (2, 3, 6, 8))}, ("y", "float32"),
                 weights)  # fmt: skip
    x = np.float32(rng.uniform(-3, 3, (2, 3, 6, 8)))
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    graph, found = run(path, {"x": x})
    np.testing.assert_array_equal(found, expected)
    assert np.unique(expected).size > 5
    assert "quantise" in {layer.op for layer in graph.layers.values()}


def test_integers_come_and_leave(tmp_path):
    """Inputs and outputs of eight bits; another zero point than that of the layer before."""
    rng = np.random.default_rng(1)
    weights = {
        "s": np.float32(0.5), "z": np.uint8(7), "r": np.float32(0.9), "y": np.int8(-4),
        "o": np.uint8(9), "w": integers(rng, "uint8", 12, 5), "v": np.float32(0.01),
        "c": np.uint8(77),
    }  # fmt: skip
    nodes = [
        node("QLinearMatMul", ["x", "s", "z", "w", "v", "c", "r", "z"], ["q"]),
        node("DequantizeLinear", ["q", "r", "o"], ["d"]),
        node("QuantizeLinear", ["d", "s", "y"], ["p"]),
    ]
    path = write(tmp_path / "q.onnx", nodes, {"x": ("uint8", (4, 12))}, ("p", "int8"), weights)
    x = integers(rng, "uint8", 4, 12)
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    _, found = run(path, {"x": x})
    np.testing.assert_array_equal(found, expected)


def pair(name, source, weights, scale, zero):
    """QuantizeLinear and DequantizeLinear of a tensor."""
    weights[f"{name}.s"], weights[f"{name}.z"] = np.float32(scale), zero
    ends = [f"{name}.s", f"{name}.z"]
    return [
        node("QuantizeLinear", [source, *ends], [f"{name}.q"]),
        node("DequantizeLinear", [f"{name}.q", *ends], [name]),
    ]


def qdq_nodes(rng, weights):
    """A residual network of QDQ pairs, with weights of integers for each channel."""

    def weight(name, *shape, axis=0):
        weights[f"{name}.q"] = integers(rng, "int8", *shape)
        count = shape[axis]
        weights[f"{name}.s"] = np.float32(2.0 ** rng.uniform(-9, -7, count))
        weights[f"{name}.z"] = np.zeros(count, np.int8)
        return node("DequantizeLinear", [f"{name}.{each}" for each in "qsz"], [name], axis=axis)

    weights["b1"] = np.float32(rng.standard_normal(8))
    weights["b3"] = np.float32(rng.standard_normal(5))
    return [
        *pair("x0", "x", weights, 0.03, np.int8(4)),
        weight("w1", 8, 3, 3, 3),
        node("Conv", ["x0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        *pair("x1", "r1", weights, 0.05, np.int8(-128)),
        weight("w2", 8, 8, 1, 1),
        node("Conv", ["x1", "w2"], ["c2"]),
        *pair("x2", "c2", weights, 0.06, np.int8(3)),
        node("Add", ["x2", "x1"], ["a"]),
        node("Relu", ["a"], ["ar"]),
        *pair("x3", "ar", weights, 0.07, np.uint8(0)),
        node("MaxPool", ["x3"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        *pair("x4", "m", weights, 0.07, np.uint8(0)),
        node("GlobalAveragePool", ["x4"], ["g"]),
        *pair("x5", "g", weights, 0.03, np.uint8(0)),
        node("Flatten", ["x5"], ["f"]),
        weight("w3", 5, 8),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
        *pair("z", "y", weights, 0.01, np.int8(0)),
    ]


def test_qdq_network(tmp_path):
    """Between pairs there are exact integers; ONNX's FP32 is off by a step where it rounds."""
    rng = np.random.default_rng(2)
    weights = {}
    nodes = qdq_nodes(rng, weights)
    path = write(tmp_path / "q.onnx", nodes, {"x": ("float32", (8, 3, 6, 6))}, ("z", "float32"),
                 weights)  # fmt: skip
    x = np.float32(rng.uniform(-4, 4, (8, 3, 6, 6)))
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    graph, found = run(path, {"x": x})
    assert np.mean(found == expected) > 0.9
    assert np.abs(found - expected).max() < 2.5 * 0.01
    kinds = [layer.op for layer in graph.layers.values()]
    assert kinds.count("quantise") == 1  # all else is rescaled
    assert kinds.count("dequantise") == 1
    assert kinds.count("rescale") == 4
    assert kinds.count("integer_add") == 1
    assert refusals_of(graph, train=False) == []


def test_qdq_network_is_the_torch_reference(tmp_path):
    """The reference computes the integers in FP64, and gives the same numbers."""
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from fpgapipe.host.backends.torch_reference import forward, initial_weights

    rng = np.random.default_rng(3)
    weights = {}
    nodes = qdq_nodes(rng, weights)
    path = write(tmp_path / "q.onnx", nodes, {"x": ("float32", (4, 3, 6, 6))}, ("z", "float32"),
                 weights)  # fmt: skip
    x = np.float32(rng.uniform(-4, 4, (4, 3, 6, 6)))
    graph, found = run(path, {"x": x})
    results = forward(graph, initial_weights(graph), {"x": torch.from_numpy(x)})
    np.testing.assert_array_equal(found, results[graph.outputs[0]].numpy())


QONNX = "qonnx.custom_op.general"


def quant(x, scale, zero=0.0, low=-128, high=127):
    """QONNX's Quant, by its definition."""
    return (np.rint(np.clip(np.float32(x) / scale + zero, low, high)) - zero) * scale


@pytest.mark.parametrize("bits", [8, 4])
def test_qonnx_network(bits, tmp_path):
    """Quant of weights and activations; other widths are refused by their number."""
    rng = np.random.default_rng(4)
    weights = {
        "w": np.float32(rng.standard_normal((10, 6))), "b": np.float32(rng.standard_normal(6)),
        "ws": np.float32(2.0 ** rng.uniform(-6, -5, (1, 6))), "zero": np.float32(0),
        "xs": np.float32(0.03), "ys": np.float32(0.05), "bits": np.float32(bits),
    }  # fmt: skip
    full = {"domain": QONNX, "signed": 1, "rounding_mode": "ROUND"}
    nodes = [
        node("Quant", ["w", "ws", "zero", "bits"], ["wq"], narrow=1, **full),
        node("Quant", ["x", "xs", "zero", "bits"], ["xq"], narrow=0, **full),
        node("MatMul", ["xq", "wq"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Quant", ["r", "ys", "zero", "bits"], ["y"], narrow=0, **{**full, "signed": 0}),
    ]
    path = write(tmp_path / "q.onnx", nodes, {"x": ("float32", (5, 10))}, ("y", "float32"),
                 weights, [helper.make_opsetid(QONNX, 1)])  # fmt: skip
    x = np.float32(rng.uniform(-3, 3, (5, 10)))
    if bits != 8:
        with pytest.raises(FileError, match=r"Quant must have 8 bits, not 4; other widths"):
            read_onnx(path)
        return
    graph, found = run(path, {"x": x}, StepOptions(train=False))
    product = quant(x, np.float32(0.03)) @ quant(weights["w"], weights["ws"], low=-127)
    expected = quant(np.maximum(product + weights["b"], 0), np.float32(0.05), low=0, high=255)
    np.testing.assert_allclose(found, expected, atol=0.051)
    assert np.mean(np.abs(found - expected) < 1e-5) > 0.9
    (rescale,) = (each.operator for each in graph.layers.values() if each.op == "rescale")
    assert len(rescale.bias) == len(rescale.multipliers) == 6


def test_what_is_read_otherwise_is_dequantised(tmp_path):
    """A sigmoid between pairs has real numbers."""
    weights = {}
    nodes = [
        *pair("a", "x", weights, 0.1, np.int8(0)),
        node("Sigmoid", ["a"], ["s"]),
        *pair("y", "s", weights, 1 / 128, np.int8(0)),
    ]
    path = write(tmp_path / "q.onnx", nodes, {"x": ("float32", (3, 40))}, ("y", "float32"),
                 weights)  # fmt: skip
    graph, found = run(path, {"x": np.float32(np.linspace(-6, 6, 120)).reshape(3, 40)})
    (expected,) = ReferenceEvaluator(str(path)).run(
        None, {"x": np.float32(np.linspace(-6, 6, 120)).reshape(3, 40)}
    )
    np.testing.assert_allclose(found, expected, atol=1 / 128)
    operators = [type(layer.operator) for layer in graph.layers.values()]
    assert operators.count(ops.Dequantise) == 2
