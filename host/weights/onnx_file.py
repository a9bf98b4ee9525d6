"""ONNX models with a network's weights, made of the model or module that was built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.host.weights.parameters_file import shapes_of
from fpgapipe.network.frontends.onnx.onnx_weights import model_with
from fpgapipe.network.frontends.source import OnnxSource, TorchSource
from fpgapipe.network.frontends.torch.torch_export import exported_onnx
from fpgapipe.network.load import load_network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph


def onnx_bytes(
    graph: Graph,
    tensors: Mapping[str, NDArray[Any]],
    parameters: Mapping[str, NDArray[Any]],
    network: str | None,
) -> bytes:
    """Contents of an ONNX file of a network's source with other weights.

    Parameters
    ----------
    graph : Graph
        The network of the build.
    tensors : mapping of str to array
        All that the source keeps by name.
    parameters : mapping of str to array
        Values of the network's parameters.
    network : str or None
        What was built, as for `load_network`.

    Raises
    ------
    UserError
        If it is not what was built, or is neither an ONNX file nor a PyTorch module.
    """
    if network is None:
        raise UserError(
            "a build has the network's layers, not the model that they came from; name the ONNX "
            "file or the module:function that was built with --network"
        )
    found = load_network(network, graph.batch)
    _refuse_other(graph, found, network)
    if isinstance(found.source, OnnxSource):
        return model_with(found, found.source, parameters)
    if isinstance(found.source, TorchSource):
        return exported_onnx(found, found.source, tensors)
    raise UserError(
        f"{network} is neither an ONNX file nor a PyTorch module, so there is no model to write; "
        "take .safetensors, .npz or .pt"
    )


def _refuse_other(graph: Graph, found: Graph, network: str) -> None:
    """Refuse a source whose parameters are not those of the build."""
    built, there = shapes_of(graph), shapes_of(found)
    faults = [
        f"it has {name} of shape {there[name]}, not {shape}"
        if name in there
        else f"it lacks {name} of shape {shape}"
        for name, shape in built.items()
        if there.get(name) != shape
    ]
    faults += [f"it has {name}, which was not built" for name in there if name not in built]
    known = {*found.state.names}
    faults += [f"it lacks {name}" for name in graph.state.names if name not in known]
    if faults:
        raise UserError(f"{network} is not what was built: {'; '.join(faults[:5])}")
