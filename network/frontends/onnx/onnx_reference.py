"""ONNX's own reference evaluator, as a reference for the results of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import FileError
from fpgapipe.optional import require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[np.generic]"]


def evaluator(path: Path, *, double: bool) -> Callable[[Arrays], list[NDArray[np.generic]]]:
    """Make a function that runs a model.

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
    from fpgapipe.network.frontends.onnx.onnx_model import load_model

    onnx = require("onnx", f"reading {path}")
    model = load_model(onnx, path)
    if double:
        _widen(onnx, model.graph)
    from onnx.reference import ReferenceEvaluator

    try:
        session = ReferenceEvaluator(model)
    except Exception as error:  # the evaluator's errors have no common base class
        raise FileError(path, [_why(error)]) from None

    def run(inputs: Arrays) -> list[NDArray[np.generic]]:
        try:
            found: list[NDArray[np.generic]] = session.run(None, inputs)
        except Exception as error:
            raise FileError(path, [_why(error)]) from None
        return found

    return run


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"ONNX's reference evaluator does not run it: {type(error).__name__}: {text}"


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
