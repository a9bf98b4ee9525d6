"""ONNX models of a few nodes, made by hand, and their comparison with ONNX's own evaluation."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from step_cases import SMALL_CORE

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


def gradients_agree(graph, run, names, **inputs):
    """Gradients of the imported graph, in FP64, are those of PyTorch.

    `run` computes the outputs from inputs and weights, by their names in the model; `names` has the
    parameter of the graph for each weight, or several that together have its elements.
    """
    import torch

    from fpgapipe.host.backends.torch_reference import gradients_of

    def double(values):
        return {
            name: torch.from_numpy(np.array(value)).double()
            if np.asarray(value).dtype.kind == "f"
            else torch.from_numpy(np.array(value))
            for name, value in values.items()
        }

    def loss_of(*outputs):
        generator = torch.Generator().manual_seed(3)
        drawn = [torch.randn(each.shape, generator=generator).double() for each in outputs]
        return sum((one * two).sum() for one, two in zip(outputs, drawn, strict=True))

    given = double(inputs)
    found = gradients_of(graph, double(graph.values), given, {}, loss_of)
    learned = {name: graph.values[parameter] for name, (parameter, _) in names.items()}
    own = {
        name: back(torch.from_numpy(np.array(learned[name])).double()).detach().requires_grad_()
        for name, (_, back) in names.items()
    }
    results = run(**given, **own)
    loss_of(*(results if isinstance(results, tuple) else (results,))).backward()
    assert {parameter for parameter, _ in names.values()} == found.keys()
    for name, (parameter, back) in names.items():
        expected = own[name].grad
        np.testing.assert_allclose(
            back(found[parameter]), expected, rtol=0, atol=1e-9 * float(expected.norm()) + 1e-12
        )


def step_agrees(graph, **inputs):
    """A training step in the bit-exact model is that of PyTorch with the core's numbers."""
    from fpgapipe.host.backends.model import ModelBackend
    from fpgapipe.host.backends.torch_backend import TorchBackend
    from fpgapipe.host.backends.torch_reference import initial_weights
    from fpgapipe.host.runtime.numeric_check import NumericCheck
    from fpgapipe.hw.hls_models.numerics.element_format import FP32
    from fpgapipe.lowering.lower import build_pipeline
    from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
    from fpgapipe.network.logits import Logits
    from fpgapipe.partition.schedule.schedule_kinds import make_schedule

    options = StepOptions(activations=FP32)
    schedule = make_schedule("1f1b", 1, 1)
    pipeline = build_pipeline(graph, [SMALL_CORE], [list(graph.layers)], schedule, options=options)
    values = {name: each.numpy() for name, each in initial_weights(graph).items()}
    logits = Logits.of(graph)
    labels = np.random.default_rng(5).integers(0, logits.classes, logits.label_shape)
    scalars = scalar_bits(learning_rate=0.05)
    reference = TorchBackend(graph, values, options=options, precision="mxint8", device="cpu")
    with ModelBackend(pipeline, values) as backend:
        before = backend.state()
        result = backend.step(inputs, labels, scalars)
        check = NumericCheck(reference)
        difference = check.after(0, backend, result, before, inputs, labels, scalars)
        assert difference is None, str(difference)
        after = backend.state()
    learned = {
        p.name for layer in graph.layers.values() for p in layer.parameters if p.spec.trainable
    }
    assert [name for name in learned if (before[name] == after[name]).all()] == []
    return after
