"""A network's parameters from checkpoints and files of tensors, and to files of tensors.

Both ways go by what the graph says of its parameters: their names and shapes in the source, the
further names of some (`Graph.aliases`), and what else the source keeps (`Graph.state`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError, nearest, shown
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.weights.tensor_files import is_tensor_file, open_tensors
from fpgapipe.lowering.memory.memory_map import LASTING
from fpgapipe.network.source_state import is_counter, mean_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.host.weights.tensor_files import Entry
    from fpgapipe.network.graph import Graph, Layer

MAX_FAULTS = 20
"""Most faults of a file of parameters that are listed; of the others only the number is given."""

MOST_POSITIONS = 1 << 13
"""Most rows of a causal mask that is looked for in a file."""

WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that parallel and compiled modules add to the names of the module that they hold."""


def read_parameters(
    path: Path, graph: Graph, before: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Read parameters of a network from a checkpoint, or from a file with a tensor for each.

    Parameters
    ----------
    path : Path
    graph : Graph
    before : mapping of str to array, optional
        Values of what the network has and its source does not keep by name, such as constants that
        the import has computed; by default the graph's.

    Raises
    ------
    UserError
        If the file is neither, a parameter is missing, has another shape or is not finite, or the
        file has tensors that the network's source has not.
    """
    return _read(path, graph, graph.values if before is None else before)[0]


def with_weights(path: Path, graph: Graph) -> Graph:
    """The network with the weights of a file, as `read_parameters` reads them."""
    values, unread = _read(path, graph, graph.values)
    state = dataclasses.replace(graph.state, unread={**graph.state.unread, **unread})
    return dataclasses.replace(graph, values=values, state=state, source=None)


def _read(
    path: Path, graph: Graph, before: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[Any]]]:
    """The parameters of a network, and what else its source keeps, as far as it is in a file."""
    wanted = shapes_of(graph)
    unread: dict[str, NDArray[Any]] = {}
    if is_tensor_file(path):
        with open_tensors(path) as found:
            present = _by_names_of(graph, wanted, _without_masks(found, {*wanted, *graph.aliases}))
            every = graph.by_every_name(wanted)
            # A parameter may be there under one or several of its names.
            kept = {graph.aliases.get(name, name) for name in graph.state.names} or {*wanted}
            expected = {
                name: every[name] for name in (wanted.keys() & kept) | (present.keys() & every)
            }
            for alias, name in graph.aliases.items():
                if alias in present and name not in present:
                    expected.pop(name, None)
            headers = {name: (each.shape, each.dtype) for name, each in present.items()}
            faults = _wrong_shapes(expected, headers) + _foreign(graph, wanted, present)
            _refuse(path, faults)
            values = {name: before[name] for name in wanted.keys() - kept}
            values |= _by_own_name(path, graph, {name: present[name].read() for name in expected})
            unread = _read_rest(path, graph, present)
    else:
        state_bytes = 4 * len(LASTING) * sum(map(math.prod, wanted.values()))
        checkpoint = Checkpoint.read(path, state_bytes)
        values = dict(checkpoint.state)
        if not checkpoint.has_own_layout:
            values |= _in_own_layout(path, graph, values)
        headers = {name: (each.shape, each.dtype) for name, each in values.items()}
        _refuse(path, _wrong_shapes(wanted, headers))
    with np.errstate(over="ignore"):  # values too large for FP32 become infinite and are refused
        parameters = {name: values[name].astype(np.float32) for name in wanted}
    _refuse(
        path,
        [
            f"parameter {name} must be finite in FP32"
            for name, value in parameters.items()
            if not np.isfinite(value).all()
        ],
    )
    return parameters, unread


def source_tensors(
    graph: Graph, parameters: Mapping[str, NDArray[Any]], num_batches: int
) -> dict[str, NDArray[Any]]:
    """All tensors that the network's source keeps, in its order; the inverse of `read_parameters`.

    Parameters
    ----------
    graph : Graph
    parameters : mapping of str to array
        Values of the network's parameters.
    num_batches : int
        Batches that the network was trained with, which each batch normalisation has counted.

    Raises
    ------
    UserError
        If the source keeps something of which the network has no values.
    """
    values: dict[str, NDArray[Any]] = graph.by_every_name(parameters)
    for name, value in graph.state.unread.items():
        values[name] = value
        if is_counter(name):
            mean = graph.aliases.get(mean_of(name), mean_of(name))
            uses = sum(mean in names_of(layer) for layer in graph.layers.values())
            values[name] = np.asarray(value + uses * num_batches, value.dtype)
    names = graph.state.names or tuple(values)
    if missing := [name for name in names if name not in values]:
        raise UserError(
            f"{graph.name} was built without {', '.join(missing[:3])}, which its source keeps"
        )
    return {name: values[name] for name in names}


def names_of(layer: Layer) -> set[str]:
    """Names of a layer's parameters."""
    return {each.name for each in layer.parameters}


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Shapes of a network's parameters as its source has them."""
    return {
        parameter.name: parameter.shape
        for layer in graph.layers.values()
        for parameter in layer.parameters
    }


def _without_masks(found: Mapping[str, Entry], known: Collection[str]) -> dict[str, Entry]:
    """A file's tensors without causal masks, which earlier versions of transformers kept."""
    return {name: each for name, each in found.items() if name in known or not _is_mask(name, each)}


def _is_mask(name: str, entry: Entry) -> bool:
    """Whether a tensor is a causal mask of zeros and ones, or the number that hides by it."""
    if name.endswith(".masked_bias"):
        return not entry.shape
    if not name.endswith(".bias") or len(entry.shape) != 4 or entry.shape[0] * entry.shape[1] != 1:
        return False
    rows, columns = entry.shape[2:]
    if rows != columns or rows > MOST_POSITIONS:
        return False
    return np.array_equal(entry.read()[0, 0], np.tri(rows, dtype=bool))


def _by_names_of(
    graph: Graph, wanted: Collection[str], found: Mapping[str, Entry]
) -> dict[str, Entry]:
    """The tensors of a file under the source's names.

    If no name is the source's, they may all lack the same beginning (a file of the trunk that the
    module has as a part), or all have one too much (of a wrapper).
    """
    known = {*wanted, *graph.aliases, *graph.state.names}
    if not found or not known.isdisjoint(found):
        return dict(found)
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in found):
            return {name.removeprefix(wrapper): each for name, each in found.items()}
    first = next(iter(found))
    for whole in sorted(known):
        start = whole.removesuffix(first)
        if (
            whole == start + first
            and start.endswith(".")
            and all(start + n in known for n in found)
        ):
            return {start + name: each for name, each in found.items()}
    return dict(found)


def _foreign(graph: Graph, wanted: Collection[str], found: Collection[str]) -> list[str]:
    """Faults of tensors that the network's source has not, but for counters of its statistics."""
    known = {*wanted, *graph.aliases, *graph.state.names}
    others = [
        name
        for name in found
        if name not in known and not (is_counter(name) and mean_of(name) in known)
    ]
    return [
        f"has {shown(name)}, which {graph.name} has not"
        + (nearest(name, sorted(known)) if number < MAX_FAULTS else "")
        for number, name in enumerate(others)
    ]


def _read_rest(path: Path, graph: Graph, found: Mapping[str, Entry]) -> dict[str, NDArray[Any]]:
    """Tensors that no layer has; those that the import has computed with must be as they were."""
    rest: dict[str, NDArray[Any]] = {}
    faults = []
    for name, before in graph.state.unread.items():
        if name not in found:
            continue
        if found[name].shape != before.shape or found[name].dtype.kind != before.dtype.kind:
            faults.append(
                f"{name} must be {before.dtype} of shape {before.shape}, not "
                f"{found[name].dtype} of shape {found[name].shape}"
            )
            continue
        rest[name] = found[name].read().astype(before.dtype)
        if name in graph.state.folded and not np.array_equal(rest[name], before):
            faults.append(
                f"{name} has other values than those with which {graph.name} was imported; import "
                "it with these"
            )
    _refuse(path, faults)
    return rest


def _in_own_layout(
    path: Path, graph: Graph, values: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Parameters of an earlier version's checkpoint that layers read in another order of axes.

    Their shapes tell whether they have the order of the network's source, or that of the layers,
    unless both have the same shape.
    """
    found: dict[str, NDArray[Any]] = {}
    unknown: set[str] = set()
    for layer in graph.layers.values():
        for parameter in layer.parameters:
            if not parameter.order or parameter.name not in values:
                continue
            value = values[parameter.name]
            if parameter.shape == parameter.spec.shape:
                unknown.add(parameter.name)
            elif value.shape == parameter.spec.shape:
                found[parameter.name] = value.transpose(parameter.back)
    _refuse(
        path,
        [
            f"parameter {name} of shape {values[name].shape} may be transposed, which checkpoints "
            "of earlier versions do not say; begin the training anew"
            for name in sorted(unknown)
        ],
    )
    return found


def _by_own_name(
    path: Path, graph: Graph, values: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Values under the names in the network; those under several names must be equal."""
    found = {name: value for name, value in values.items() if name not in graph.aliases}
    faults = []
    for alias, name in graph.aliases.items():
        if alias in values and not np.array_equal(
            found.setdefault(name, values[alias]), values[alias]
        ):
            faults.append(f"parameters {name} and {alias} are one, and must be equal")
    _refuse(path, faults)
    return found


def _wrong_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> list[str]:
    """Faults of parameters of wrong shapes or types, before memory is allocated for them."""
    faults = []
    for name, shape in wanted.items():
        numbers = f"floating-point numbers of shape {shape}"
        if name not in found:
            faults.append(f"lacks parameter {name}, {numbers}")
            continue
        came, dtype = found[name]
        if came != shape or dtype.kind != "f":
            faults.append(f"parameter {name} must be {numbers}, not {dtype} of shape {came}")
    return faults


def _refuse(path: Path, faults: list[str]) -> None:
    """Raise an error that lists the first `MAX_FAULTS` faults of the parameters, if any."""
    if more := faults[MAX_FAULTS:]:
        faults = [*faults[:MAX_FAULTS], f"and {len(more):,} faults more"]
    if faults:
        raise FileError(path, faults)
