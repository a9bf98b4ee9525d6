"""Reading of PyTorch modules with example inputs, and of programs that torch.export made.

`torch_translation` is the machinery; `torch_attention`, `torch_complex`, `torch_composed`,
`torch_compute`, `torch_layout`, `torch_masks`, `torch_pointwise`, `torch_recurrent`,
`torch_resize`, `torch_selection` and `torch_statistics` have one for each operator.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from fpgapipe.errors import FileError
from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.source import TorchSource
from fpgapipe.network.frontends.torch import (  # noqa: F401, register translations
    torch_attention,
    torch_complex,
    torch_composed,
    torch_compute,
    torch_layout,
    torch_masks,
    torch_pointwise,
    torch_recurrent,
    torch_resize,
    torch_selection,
    torch_statistics,
)
from fpgapipe.network.frontends.torch.torch_modes import auxiliary_outputs, training_modes
from fpgapipe.network.frontends.torch.torch_translation import Translation
from fpgapipe.network.frontends.torch.torch_values import array
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators.others import load_operators
from fpgapipe.network.operators.tensors import ShapeError
from fpgapipe.network.source_state import SourceState, is_counter
from fpgapipe.optional import require


def read_exported(path: Path, batch: int | None = None) -> Graph:
    """Refuse a saved ``torch.export`` program, since loading it unpickles and so may run code.

    Raises
    ------
    FileError
        Always. The message names the two alternatives.
    """
    raise FileError(
        path,
        [
            "a saved torch.export program is not opened, since torch.export.load unpickles and a "
            "file must not run code; load it in a function of yours and name that as "
            "module:function, or export to ONNX"
        ],
    )


def from_torch(source: Any, *, name: str) -> Graph:
    """Translate a PyTorch program.

    Parameters
    ----------
    source : ExportedProgram, or tuple of (Module, inputs)
        Program, or module with the tensor or tuple of tensors with which it is called. The first
        axis of the inputs is the batch.
    name : str
        The network's name.

    Raises
    ------
    NetworkError
        If `source` is neither, cannot be exported, or uses operators that are not supported. The
        message names all of these.
    UserError
        If torch is not installed.
    """
    torch = require("torch", f"reading {name}")
    if isinstance(source, torch.export.ExportedProgram):
        training = any(_acts_in_training(node) for node in source.graph.nodes)
        unread = _unread_dropouts(source, name)
        graph = _translated(torch, source, name, training=training)
        inputs = tuple(source.example_inputs[0]) if source.example_inputs else ()
        module = source.module(check_guards=False)
        kept = TorchSource(module, inputs, training, graph.outputs, unread)
        return _with_names(torch, module, source, dataclasses.replace(graph, source=kept))
    if isinstance(source, torch.nn.Module):
        raise NetworkError(f"{name}: a module alone has no shapes; return (module, example_inputs)")
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], torch.nn.Module):
        module, inputs = source
        if isinstance(inputs, torch.Tensor):
            inputs = (inputs,)
        elif not isinstance(inputs, tuple | list):
            raise NetworkError(
                f"{name}: example inputs must be a tensor or a tuple of them, not "
                f"{type(inputs).__name__}"
            )
        return _of_module(torch, module, tuple(inputs), name)
    raise NetworkError(
        f"{name}: gives {type(source).__name__}; a Graph, a torch.export.ExportedProgram or "
        "(torch.nn.Module, example_inputs) is needed"
    )


def _translated(torch: Any, program: Any, name: str, *, training: bool) -> Graph:
    """Translate an exported program; see `Translation`."""
    load_operators()
    try:
        return Translation(torch, program, name, training).run()
    except ShapeError as error:
        raise NetworkError(f"{name}: {error}") from None


def _of_module(torch: Any, module: Any, inputs: tuple[Any, ...], name: str) -> Graph:
    """Translate a module in both modes, and check that one network represents both."""
    modes = {each: each.training for each in module.modules()}
    try:
        training_modes(module, modes)
        program = _exported(torch, module, inputs, name)
        unread = _unread_dropouts(program, name)
        graph = _translated(torch, program, name, training=True)
        module.eval()
        program = _exported(torch, module, inputs, name)
        evaluation = _translated(torch, program, name, training=False)
        auxiliary = auxiliary_outputs(graph, evaluation)
    finally:
        for each, training in modes.items():
            each.training = training
    source = TorchSource(module, inputs, None, graph.outputs, unread)
    graph = dataclasses.replace(graph, auxiliary=auxiliary, source=source)
    return _with_names(torch, module, program, graph)


def _with_names(torch: Any, module: Any, program: Any, graph: Graph) -> Graph:
    """The graph with the further names of its parameters, and the rest of the module's state."""
    aliases = _aliases(module, graph)
    own = {each.name for layer in graph.layers.values() for each in layer.parameters} | {*aliases}
    kept = module.state_dict(keep_vars=True).items()
    state = {name: value for name, value in kept if isinstance(value, torch.Tensor)}
    try:
        # Copies, since a module changes its counters in place.
        unread = {
            name: array(torch, value).copy() for name, value in state.items() if name not in own
        }
    except Unsupported as error:
        raise NetworkError(f"{graph.name}: {error}") from None
    signature = program.graph_signature
    sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    read = {sources.get(node.name) for node in program.graph.nodes if node.users}
    folded = tuple(
        name
        for name in unread
        if name in read and not state[name].requires_grad and not is_counter(name)
    )
    return dataclasses.replace(
        graph, aliases=aliases, state=SourceState(tuple(state), folded, unread)
    )


def _aliases(module: Any, graph: Graph) -> dict[str, str]:
    """Further names of the graph's parameters in a module, which may have one under several."""
    names: dict[int, list[str]] = {}
    for each in (module.named_parameters, module.named_buffers):
        for name, value in each(remove_duplicate=False):
            names.setdefault(id(value), []).append(name)
    own = {each.name for layer in graph.layers.values() for each in layer.parameters}
    return {
        name: kept
        for several in names.values()
        for kept in own.intersection(several)
        for name in several
        if name not in own
    }


def _exported(torch: Any, module: Any, inputs: tuple[Any, ...], name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own code
            return torch.export.export(module, inputs)
    except Exception as error:  # errors of modules and of the exporter have no common base class
        reason = " ".join(str(error).split())[:400]
        raise NetworkError(f"{name}: torch.export failed: {reason}") from error


def _acts_in_training(node: Any) -> bool:
    """Whether a node computes otherwise in training, and was exported for it."""
    target = str(node.target)
    if target.startswith("aten.batch_norm"):
        return bool(node.args[5])
    return target.startswith(("aten.dropout", "aten.feature_dropout")) and bool(node.args[2])


def _unread_dropouts(program: Any, name: str) -> tuple[str, ...]:
    """Names of the nodes of dropouts whose results nobody reads.

    Raises
    ------
    NetworkError
        If nobody reads the result of a batch normalisation whose statistics training changes.
    """

    def writes(node: Any) -> bool:
        schema = getattr(node.target, "_schema", None)
        return schema is not None and schema.is_mutable

    read: set[Any] = set()
    waiting = [node for node in program.graph.nodes if node.op == "output" or writes(node)]
    while waiting:
        node = waiting.pop()
        if node not in read:
            read.add(node)
            waiting.extend(node.all_input_nodes)
    unread = [n for n in program.graph.nodes if _acts_in_training(n) and n not in read]
    counted = [n.name for n in unread if "batch_norm" in str(n.target) and n.args[3] is not None]
    if counted:
        raise NetworkError(
            f"{name}: nobody reads the result of {', '.join(map(repr, counted))}, but in training "
            "the module counts it in the statistics of its batch normalisation, which devices do "
            "not; read the result, or leave it out"
        )
    return tuple(node.name for node in unread if "dropout" in str(node.target))
