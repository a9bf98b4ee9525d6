"""ONNX models of a few nodes, made by hand, and their comparison with ONNX's own evaluation."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fpgapipe.network.load import load_network


def save(path, nodes, inputs, outputs=("y",), weights=None, opset=17, **extra):
    """Write a model; inputs are name to shape (or (shape, type)), weights name to array."""
    infos = []
    for name, shape in inputs.items():
        kind = TensorProto.FLOAT
        if isinstance(shape, tuple):
            shape, kind = shape
        infos.append(helper.make_tensor_value_info(name, kind, shape))
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *extra.pop("imports", [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, **extra)
    onnx.save(model, path)
    return str(path)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agrees_with_onnx(path, *, atol=1e-4, **inputs):
    """The imported graph, run by the PyTorch reference, equals ONNX's own evaluation."""
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from onnx.reference import ReferenceEvaluator

    from fpgapipe.host.backends.torch_reference import forward, initial_weights

    batch = next(iter(inputs.values())).shape[0]
    graph = load_network(path, None if "--fixed" in path else batch)
    tensors = {k: torch.from_numpy(v) for k, v in inputs.items() if k in graph.inputs}
    results = forward(graph, initial_weights(graph), tensors)
    expected = ReferenceEvaluator(path).run(None, inputs)
    assert len(graph.outputs) == len(expected)
    for name, want in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(results[name].numpy(), want, rtol=1e-4, atol=atol)
        assert graph.layers[name].output.shape == want.shape
    return graph


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)
