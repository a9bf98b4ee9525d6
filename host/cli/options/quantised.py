"""The network of a command that builds it with trained parameters, or quantised to INT8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.network.graph import Graph


def with_parameters(
    load: Callable[[int], Graph], file: str | None, batch: int
) -> Callable[[int], Graph]:
    """A function that gives the network with the parameters of a file, if one is named.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    file : str or None
        A checkpoint, or a ``.npz`` with an array for each parameter.
    batch : int
        Samples for which the network is loaded.
    """
    if file is None:
        return load
    from dataclasses import replace

    from fpgapipe.host.runtime.parameters_file import read_parameters

    values = read_parameters(Path(file), load(batch))

    def loaded(count: int) -> Graph:
        return replace(load(count), values=values, source=None)

    return loaded


def with_integers(
    load: Callable[[int], Graph], data: str | None, batch: int, percentile: float = 100.0
) -> Callable[[int], Graph]:
    """A function that gives the INT8 network, if samples are named that its scales come from.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    data : str or None
        As for ``fpgapipe run --data``.
    batch : int
        Samples for which the network is loaded.
    percentile : float
        Percentage of the elements of activations that are within the scale; others saturate.

    Raises
    ------
    UserError
        If the network comes without values for some parameters.
    """
    if data is None:
        return load
    from fpgapipe.errors import UserError
    from fpgapipe.host.backends.calibration import calibrated
    from fpgapipe.host.data.data import load_data

    graph = load(batch)
    names = {each.name for layer in graph.layers.values() for each in layer.parameters}
    missing = sorted(names - graph.values.keys())
    if missing:
        raise UserError(
            f"{graph.name} must be trained before it is quantised, and has no values for "
            f"{', '.join(missing[:3])}: name a checkpoint, or a file, with --parameters"
        )
    samples = load_data(data, graph).train
    values = {name: graph.values[name] for name in names}
    return calibrated(load, values, samples, percentile=percentile)
