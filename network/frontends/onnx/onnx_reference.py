"""Runs ONNX models in ONNX's reference evaluator and in onnxruntime, as in evaluation."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import FileError
from fpgapipe.optional import require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[np.generic]"]
Evaluate = Callable[[Arrays], "list[NDArray[np.generic]]"]


def evaluator(path: Path, *, double: bool) -> Evaluate:
    """Make a function that runs a model in ONNX's reference evaluator.

    Parameters
    ----------
    path : Path
        File of the model.
    double : bool
        Whether the model computes in FP64 where it specifies FP32.

    Raises
    ------
    FileError
        If the model cannot be read. The returned function raises it if the model does not run.
    """
    onnx = require("onnx", f"reading {path}")
    model = _load(onnx, path)
    if double:
        _widen(onnx, model.graph)
    from fpgapipe.network.frontends.onnx.onnx_kernels import session

    return _checked(path, "ONNX's reference evaluator", lambda: session(model))


def has_runtime() -> bool:
    """Whether onnxruntime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


def runtime(path: Path) -> Evaluate:
    """Make a function that runs a model in onnxruntime, on the CPU.

    Raises
    ------
    FileError
        If the model cannot be read or does not run, as `evaluator` raises it.
    """
    onnx = require("onnx", f"reading {path}")
    onnxruntime = require("onnxruntime", f"running {path}")
    model = _load(onnx, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # faults only; what fails is raised, too

    def make() -> Any:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    return _checked(path, "onnxruntime", make)


def _load(onnx: Any, path: Path) -> Any:
    from fpgapipe.network.frontends.onnx.onnx_model import load_model

    model: Any = load_model(onnx, path)
    _evaluate_only(model.graph)
    return model


def _evaluate_only(graph: Any) -> None:
    """Let a model that was exported for training compute as in evaluation.

    Random numbers of dropout cannot be compared, and the network's running statistics are those
    that the model begins with.
    """
    for node in graph.node:
        if node.op_type == "BatchNormalization":  # up to opset 13, its outputs say how it computes
            kept = [each for each in node.attribute if each.name != "training_mode"]
            del node.attribute[:], node.output[1:]
            node.attribute.extend(kept)
        elif node.op_type == "Dropout":
            del node.input[2:]


def _checked(path: Path, name: str, make: Callable[[], Any]) -> Evaluate:
    """Make a session, and a function that runs it; both raise `FileError` whatever the error."""

    def attempt(call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:  # the errors of the evaluators have no common base class
            text = " ".join(str(error).split())[:200]
            reason = f"{name} does not run it: {type(error).__name__}: {text}"
            raise FileError(path, [reason]) from None

    session = attempt(make)
    return lambda inputs: attempt(session.run, None, inputs)


def _widen(onnx: Any, graph: Any) -> None:
    """Turn FP32 into FP64 in a model: weights, constants, conversions and declared types."""
    single, double = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for each in (*graph.input, *graph.output, *graph.value_info):
        if each.type.tensor_type.elem_type == single:
            each.type.tensor_type.elem_type = double
    for tensor in _tensors(graph):
        if tensor.data_type == single:
            value = onnx.numpy_helper.to_array(tensor).astype("float64")
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == single:
                attribute.i = double


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
