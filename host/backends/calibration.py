"""Calibration: the magnitudes that tensors of a network have with samples, for its INT8 scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.network.quantisation import quantised
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from fpgapipe.host.data.samples import Samples
    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[Any]]

MOST_SAMPLES = 512
"""Most samples that scales are taken from."""


def magnitudes(
    graph: Graph, values: Values, batches: Iterable[Mapping[str, NDArray[Any]]], percentile: float
) -> dict[str, float]:
    """Magnitudes of the inputs and of all layers' results, in FP32 and in evaluation.

    Parameters
    ----------
    graph : Graph
    values : mapping of str to array
        Values of all parameters.
    batches : iterable of mapping of str to array
        Inputs of the network.
    percentile : float
        Percentage of a batch's elements that are not above the magnitude, which is the largest over
        the batches; 100 for the largest element, which also counts if nearly all others are 0.

    Raises
    ------
    UserError
        If there is no batch, or PyTorch is not installed.
    """
    torch = require("torch", "calibrating a network")
    weights = {name: torch.from_numpy(np.float32(value)) for name, value in values.items()}
    largest: dict[str, float] = {}
    for inputs in batches:
        given = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}
        with torch.no_grad():
            found = {**given, **forward(graph, weights, given)}
        for name, tensor in found.items():
            sizes = np.abs(np.asarray(tensor, np.float32))
            own = float(np.percentile(sizes, percentile)) if percentile < 100 else 0.0
            largest[name] = max(largest.get(name, 0.0), own or float(sizes.max()))
    if not largest:
        raise UserError("calibration needs at least one batch of samples")
    return largest


def calibrated(
    load: Callable[[int], Graph],
    values: Values,
    samples: Samples,
    *,
    percentile: float = 100.0,
) -> Callable[[int], Graph]:
    """A function that gives the INT8 network for a number of samples.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    values : mapping of str to array
        Trained values of all parameters.
    samples : Samples
        Samples that the scales are taken from, the first `MOST_SAMPLES` of them.
    percentile : float
        As for `magnitudes`.
    """
    found: dict[str, float] = {}

    def quantised_for(count: int) -> Graph:
        graph = load(count)
        if not found:
            most = samples.some(slice(0, max(MOST_SAMPLES, count)))
            batches = (each.inputs(graph) for each in most.batches(count))
            found.update(magnitudes(graph, values, batches, percentile))
        return quantised(graph, values, found)

    return quantised_for
