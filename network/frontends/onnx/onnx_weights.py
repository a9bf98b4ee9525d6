"""Writing of ONNX models with other weights, each put where the import has read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.network.frontends.onnx.onnx_external import MAX_BYTES
from fpgapipe.network.frontends.onnx.onnx_model import load_model
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.network.frontends.source import OnnxSource, Place
    from fpgapipe.network.graph import Graph


def model_with(graph: Graph, source: OnnxSource, parameters: Mapping[str, NDArray[Any]]) -> bytes:
    """Contents of an ONNX file of a model with other weights.

    Weights are rounded to the types that they have in the model.

    Parameters
    ----------
    graph : Graph
        The network that was read from the model.
    source : OnnxSource
    parameters : mapping of str to array
        Values of the network's parameters.

    Raises
    ------
    FileError
        If a weight cannot be put back, because the model computes it from others or has it in
        several places with values that differ now.
    """
    onnx = require("onnx", "writing .onnx")
    model = load_model(onnx, source.path)
    tensors = {each.name: each for each in model.graph.initializer}
    values: dict[str, NDArray[Any]] = {}
    written: dict[str, NDArray[np.bool_]] = {}
    faults = []
    for name, given in parameters.items():
        before = graph.values.get(name)
        if before is not None and np.array_equal(given, np.asarray(before, np.float32)):
            given = np.asarray(before)  # what has not changed keeps all its bits
        place = source.places.get(name)
        if place is None or place.tensor not in tensors:
            if before is None or not np.array_equal(given, before):
                faults.append(f"{name} is computed from other tensors, where it cannot be put back")
            continue
        if place.tensor not in values:
            values[place.tensor] = onnx.numpy_helper.to_array(tensors[place.tensor]).copy()
            written[place.tensor] = np.zeros(values[place.tensor].shape, np.bool_)
        if not _put(values[place.tensor], written[place.tensor], place, given):
            faults.append(f"{name} has other values than another part of {place.tensor}")
    if faults:
        raise FileError(source.path, faults[:20])
    for name, value in values.items():
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(value, name))
    if model.ByteSize() >= MAX_BYTES:
        raise FileError(source.path, ["would be larger than an ONNX file may be"])
    packed: bytes = model.SerializeToString()
    return packed


def _put(
    whole: NDArray[Any], written: NDArray[np.bool_], place: Place, given: NDArray[Any]
) -> bool:
    """Write a parameter into a tensor; return whether it agrees with what was written before."""

    def part_of(array: NDArray[Any], item_bytes: int) -> NDArray[Any]:
        step = whole.itemsize // item_bytes
        # Along axes that are read backwards, the first index has the last byte.
        reach = zip(place.shape, place.strides, strict=True)
        first = place.first_byte - sum(min((size - 1) * each, 0) for size, each in reach)
        flat = array.reshape(-1)[first // whole.itemsize :]
        strides = tuple(each // step for each in place.strides)
        return np.lib.stride_tricks.as_strided(flat, place.shape, strides)

    read = given.transpose(place.order) if place.order else given
    value = (place.back(read) if place.back else read).astype(whole.dtype)
    part, done = part_of(whole, whole.itemsize), part_of(written, 1)
    agrees = bool((part == value)[done].all())
    part[...] = value
    done[...] = True
    return agrees
