"""Reading of ONNX models, which are checked and then translated node by node.

`onnx_constants` folds constants, `onnx_translation` is the machinery of the translation, and
the other modules have one for each operator.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fpgapipe.errors import FileError
from fpgapipe.files import read_bytes
from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.onnx import (  # noqa: F401 (they register their translations)
    onnx_composed,
    onnx_integers,
    onnx_layout,
    onnx_masks,
    onnx_pointwise,
    onnx_products,
    onnx_qonnx,
    onnx_recurrent,
    onnx_resize,
)
from fpgapipe.network.frontends.onnx.onnx_constants import Constants
from fpgapipe.network.frontends.onnx.onnx_external import MAX_BYTES, read_external
from fpgapipe.network.frontends.onnx.onnx_readings import ReadTwoWays
from fpgapipe.network.frontends.onnx.onnx_translation import (
    DOMAINS,
    DTYPES,
    HANDLERS,
    Translation,
    node_name,
)
from fpgapipe.network.frontends.source import OnnxSource, Place
from fpgapipe.network.frontends.supported import MAX_SHOWN, likeliest, unsupported
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators.others import load_operators
from fpgapipe.network.operators.tensors import ShapeError, Tensor
from fpgapipe.optional import require

MIN_OPSET = 9
"""Oldest opset that is read; the operators of older ones have other meanings."""


def read_onnx(path: Path, batch: int | None = None) -> Graph:
    """Read an ONNX model of opset 9 or newer.

    Parameters
    ----------
    path : Path
        File of the model; its weights in other files (external data) are read as well.
    batch : int, optional
        Size of the inputs' first axis if that is dynamic, by default 1. For a model with a fixed
        batch, no other number is accepted.

    Raises
    ------
    FileError
        If the file is broken, uses operators that are not supported (all of them are named), or has
        dynamic axes other than the batch.
    NetworkError
        If `batch` contradicts the model, or its shapes do not fit together.
    UserError
        If the onnx library is not installed.
    """
    onnx = require("onnx", f"reading {path}")
    load_operators()
    model = load_model(onnx, path)
    opset = _opset(onnx, path, model)
    constants = Constants(onnx, model.graph, opset)
    _refuse_unsupported(path, model.graph, constants)
    inputs, batch = _bind_inputs(onnx, path, model.graph, constants, batch)
    apart: frozenset[str] = frozenset()
    while True:
        try:
            graph, places = _translate(path, model.graph, opset, constants, inputs, batch, apart)
            break
        except ReadTwoWays as error:
            apart |= error.tensors
            constants = Constants(onnx, model.graph, opset)
    return dataclasses.replace(graph, source=OnnxSource(path, graph.outputs, places))


def load_model(onnx: Any, path: Path) -> Any:
    """Parse and check a model, and inline its local functions.

    Raises
    ------
    FileError
        If the model is broken.
    """
    data = read_bytes(path, MAX_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = onnx.load_model_from_string(data)
            read_external(onnx, path, model)
            if not model.graph.node:
                raise FileError(path, ["is no ONNX model, or one without nodes"])
            _check(onnx, model)
            if model.functions:
                from onnx import inliner

                model = inliner.inline_local_functions(model)
    except FileError:
        raise
    except Exception as error:  # protobuf, onnx and the file system have no common base class
        text = " ".join(str(error).split())
        reason = text[:400] or type(error).__name__
        raise FileError(path, [f"is no valid ONNX model: {reason}"]) from None
    return model


def _check(onnx: Any, model: Any) -> None:
    """Run ONNX's checker, which refuses the first form of GroupNormalization as deprecated."""
    from fpgapipe.network.frontends.onnx.onnx_kernels import opset_of

    deprecated = [
        (node, onnx.NodeProto.FromString(node.SerializeToString()))
        for node in model.graph.node
        if node.op_type == "GroupNormalization" and not node.domain
    ]
    if opset_of(model) >= 21:
        deprecated = []
    for node, _ in deprecated:  # an operator with the same operands takes its place
        node.op_type = "InstanceNormalization"
        del node.attribute[:]
    try:
        onnx.checker.check_model(model)
    finally:
        for node, own in deprecated:
            node.CopyFrom(own)


def _opset(onnx: Any, path: Path, model: Any) -> int:
    """The version of ONNX's own operators that a model uses; others than the known are refused."""
    from fpgapipe.network.frontends.onnx.onnx_kernels import opset_of

    newest, version = onnx.defs.onnx_opset_version(), opset_of(model)
    if not MIN_OPSET <= version <= newest:
        raise FileError(
            path,
            [
                f"opset must be in {MIN_OPSET}..{newest}, not {version}; "
                "onnx.version_converter.convert_version converts it"
            ],
        )
    return version


def _refuse_unsupported(path: Path, graph: Any, constants: Constants) -> None:
    """Refuse a model with operators that have no translation; the error names all such nodes."""
    refused = [node for node in graph.node if not constants.folds(node) and not _is_known(node)]
    if not refused:
        return
    by_op: dict[str, list[str]] = {}
    for node in refused:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        by_op.setdefault(op, []).append(node_name(node))
    raise FileError(path, [*unsupported(by_op), likeliest(by_op, HANDLERS)])


def _is_known(node: Any) -> bool:
    domains = DOMAINS.get(node.op_type, ("",))
    return node.domain in (*domains, "ai.onnx") and node.op_type in HANDLERS


def _bind_inputs(
    onnx: Any, path: Path, graph: Any, constants: Constants, batch: int | None
) -> tuple[dict[str, Tensor], int]:
    """Determine the shape of every input and the batch, which replaces a dynamic first axis."""
    inputs = [each for each in graph.input if not constants.is_constant(each.name)]
    batch_names = set()
    fixed = None
    for each in inputs:
        sizes = each.type.tensor_type.shape.dim
        if sizes and not sizes[0].HasField("dim_value"):
            batch_names.add(sizes[0].dim_param)
        elif sizes and fixed is None:
            fixed = sizes[0].dim_value
    if batch_names:
        batch = 1 if batch is None else batch
    elif batch is not None and batch != fixed:
        raise NetworkError(
            f"{path}: the model's batch is fixed at {fixed}, which --batch {batch} contradicts; "
            "export it with a dynamic first axis"
        )

    faults = []
    tensors = {}
    for each in inputs:
        type_ = each.type.tensor_type
        name = onnx.TensorProto.DataType.Name(type_.elem_type)
        if name not in DTYPES or not each.type.HasField("tensor_type"):
            faults.append(f"input {each.name!r}: element type {name} is not supported")
            continue
        shape = []
        for axis, size in enumerate(type_.shape.dim):
            if size.HasField("dim_value"):
                shape.append(size.dim_value)
            elif axis == 0 or (size.dim_param and size.dim_param in batch_names):
                assert batch is not None
                shape.append(batch)
            else:
                faults.append(
                    f"input {each.name!r}: axis {axis} is dynamic ({size.dim_param or 'no name'}); "
                    "only the first, the batch, may be: export it with a fixed size"
                )
        try:
            tensors[each.name] = Tensor(tuple(shape), DTYPES[name])
        except ShapeError as error:
            faults.append(f"input {each.name!r}: {error}")
    if faults:
        raise FileError(path, faults)
    return tensors, batch or fixed or 1


def _translate(
    path: Path,
    graph: Any,
    opset: int,
    constants: Constants,
    inputs: dict[str, Tensor],
    batch: int,
    apart: Collection[str],
) -> tuple[Graph, dict[str, Place]]:
    """Translate all nodes; faults are collected, except of nodes that depend on faulty ones.

    Returns the network, and where the values of its parameters lie in the model.
    """
    consumers = Counter(name for node in graph.node for name in set(node.input))
    consumers.update(each.name for each in graph.output)
    translation = Translation(path.stem, batch, opset, constants, graph, consumers, apart)
    for name, tensor in inputs.items():
        translation.add_input(name, tensor)
    faults = []
    lost: set[str] = set()  # results of nodes with faults, and of nodes that depend on them
    for node in graph.node:
        if lost.intersection(node.input):
            lost.update(node.output)
            continue
        try:
            if constants.fold(node, translation.static_shape):
                continue
            if node.op_type not in HANDLERS:
                raise Unsupported("its inputs are not constant here")
            translation.translate(node)
        except (Unsupported, ShapeError) as error:
            faults.append(f"node {node_name(node)!r} ({node.op_type}): {error}")
            lost.update(node.output)
    if faults:
        hidden = len(faults) - MAX_SHOWN
        raise FileError(path, faults[:MAX_SHOWN] + [f"and {hidden} more"] * (hidden > 0))
    try:
        return translation.build(), translation.places
    except (Unsupported, ShapeError) as error:
        raise FileError(path, [str(error)]) from None
