"""Files from which a network's parameters are read: checkpoints and ``.npz``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError
from fpgapipe.host.data.npz_file import NpzFile
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.lowering.memory.memory_map import LASTING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

MAX_FAULTS = 20
"""Most faults of a file of parameters that are listed; of the others only the number is given."""


def read_parameters(path: Path, graph: Graph) -> dict[str, NDArray[np.float32]]:
    """Read parameters of a network from a checkpoint, or from a ``.npz`` with an array for each.

    Raises
    ------
    UserError
        If the file is neither, or a parameter is missing, has another shape or is not finite.
    """
    wanted = {
        parameter.name: parameter.shape
        for layer in graph.layers.values()
        for parameter in layer.parameters
    }
    if path.suffix.lower() == ".npz":
        with NpzFile(path) as archive:
            every = graph.by_every_name(wanted)
            present = archive.names & every.keys()
            # A parameter may be there under one or several of its names.
            expected = {name: every[name] for name in wanted.keys() | present}
            for alias, name in graph.aliases.items():
                if alias in present and name not in present:
                    expected.pop(name, None)
            _refuse_shapes(path, expected, {name: archive.header(name) for name in present})
            values = {name: archive.array(name) for name in expected}
        values = _by_own_name(path, graph, values)
    else:
        state_bytes = 4 * len(LASTING) * sum(map(math.prod, wanted.values()))
        checkpoint = Checkpoint.read(path, state_bytes)
        values = dict(checkpoint.state)
        if not checkpoint.has_own_layout:
            values |= _in_own_layout(path, graph, values)
        _refuse_shapes(path, wanted, {key: (it.shape, it.dtype) for key, it in values.items()})
    with np.errstate(over="ignore"):  # values too large for FP32 become infinite and are refused
        found = {name: values[name].astype(np.float32) for name in wanted}
    _refuse(
        path,
        [
            f"parameter {name} must be finite in FP32"
            for name, value in found.items()
            if not np.isfinite(value).all()
        ],
    )
    return found


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


def _refuse_shapes(
    path: Path,
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> None:
    """Refuse parameters of wrong shapes or types, before memory is allocated for them."""
    faults = []
    for name, shape in wanted.items():
        numbers = f"floating-point numbers of shape {shape}"
        if name not in found:
            faults.append(f"lacks parameter {name}, {numbers}")
            continue
        came, dtype = found[name]
        if came != shape or dtype.kind != "f":
            faults.append(f"parameter {name} must be {numbers}, not {dtype} of shape {came}")
    _refuse(path, faults)


def _refuse(path: Path, faults: list[str]) -> None:
    """Raise an error that lists the first `MAX_FAULTS` faults of the parameters, if any."""
    if more := faults[MAX_FAULTS:]:
        faults = [*faults[:MAX_FAULTS], f"and {len(more):,} faults more"]
    if faults:
        raise FileError(path, faults)
