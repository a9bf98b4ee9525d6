"""Weights that an ONNX model keeps in other files (external data)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpgapipe.errors import FileError, shown
from fpgapipe.files import open_file, size_text

MAX_BYTES = 1 << 31
"""Most bytes of all weights of a model; a model in a single file cannot have more."""


def read_external(onnx: Any, path: Path, model: Any) -> None:
    """Read a model's weights from other files into the model.

    Only ordinary files in the model's own folder are read, and of them only as many bytes as the
    tensors have.

    Raises
    ------
    FileError
        If a file lies elsewhere, cannot be read or is too short, or a tensor's description is
        invalid.
    """
    left = MAX_BYTES
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        try:
            name, offset, size = _extent(onnx, tensor)
        except ValueError as error:
            raise FileError(path, [f"tensor {shown(tensor.name)}: {error}"]) from None
        left -= size
        if left < 0:
            limit = size_text(MAX_BYTES)
            raise FileError(path, [f"its weights must be at most {limit} in all"])
        tensor.raw_data = _read(path, name, offset, size)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer:
                    yield from _tensors(inner)


def _extent(onnx: Any, tensor: Any) -> tuple[str, int, int]:
    """File, offset and number of bytes of a tensor's values.

    Raises
    ------
    ValueError
        If the tensor's description of them is invalid.
    """
    said = {each.key: each.value for each in tensor.external_data}
    offset, length = (_whole(said.get(key)) for key in ("offset", "length"))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.hasobject:
        raise ValueError("texts are not read from other files")
    size = math.prod(tensor.dims) * dtype.itemsize
    if size < 0 or (length is not None and length != size):
        raise ValueError(f"its shape {list(tensor.dims)} needs {size:,} bytes, not {length}")
    if "location" not in said:
        raise ValueError("must name the file of its values")
    return said["location"], offset or 0, size


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(f"offset and length must be whole numbers, not {shown(text)}")
    return int(text)


def _read(path: Path, name: str, offset: int, size: int) -> bytes:
    """Read some bytes of a file in a model's folder."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or os.pardir in parts:
        raise FileError(
            path, [f"weights must lie in a file in the model's folder, not in {shown(name)}"]
        )
    file = path.parent / name
    with open_file(file, MAX_BYTES) as opened:
        real = file.resolve()
        # In a download cache, the model and its weights may be links to files in one other folder.
        if not any(real.is_relative_to(each.resolve()) for each in (path.parent, _home(path))):
            raise FileError(
                path, [f"weights must lie in the model's folder; {shown(name)} leads to {real}"]
            )
        try:
            opened.seek(offset)
            data = opened.read(size)
        except (OSError, ValueError) as error:
            raise FileError(file, [f"cannot be read: {error}"]) from None
    if len(data) != size:
        raise FileError(file, [f"must have {size:,} bytes from byte {offset:,} on"])
    return data


def _home(path: Path) -> Path:
    """Folder of the file to which a path leads, links resolved."""
    return path.resolve().parent
