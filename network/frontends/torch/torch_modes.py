"""The two modes of a module, which must compute the same except for dropout."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from fpgapipe.network.graph import Graph, Layer, NetworkError
from fpgapipe.network.operators import Dropout

MOST_OUTPUTS = 8
"""Most outputs in training of which evaluation may have fewer; which ones, is found by trying."""


def training_modes(module: Any, given: Mapping[Any, bool]) -> None:
    """Put a module into training mode.

    If the module was given in training mode, each part gets its given mode, so parts may stay in
    evaluation mode.

    Parameters
    ----------
    module : torch.nn.Module
    given : mapping of torch.nn.Module to bool
        Whether each part of the module was in training mode when it was given.
    """
    if given[module]:
        for each, training in given.items():
            each.training = training
    else:
        module.train()


def auxiliary_outputs(training: Graph, evaluation: Graph) -> tuple[str, ...]:
    """Find the outputs that a module has in training alone, such as auxiliary classifiers.

    One graph represents both modes, since batch normalisation and dropout know what to do in each.
    Without those outputs it must be the graph of the evaluation.

    Parameters
    ----------
    training, evaluation : Graph
        The graphs to which the module was translated in the two modes.

    Raises
    ------
    NetworkError
        If the graphs differ in more than dropout and such outputs. The message names the first
        layer that differs.
    """
    surplus = len(training.outputs) - len(evaluation.outputs)
    if surplus <= 0 or len(training.outputs) > MOST_OUTPUTS:
        _check_alike(training, evaluation)
        return ()
    first: NetworkError | None = None
    # The outputs of the evaluation mostly come first, and the others behind them.
    for kept in itertools.combinations(training.outputs, len(evaluation.outputs)):
        others = tuple(name for name in training.outputs if name not in kept)
        try:
            _check_alike(dataclasses.replace(training, auxiliary=others).evaluated, evaluation)
        except NetworkError as error:
            first = first or error
        else:
            return others
    assert first is not None, "there is a combination, which failed"
    raise first


def _check_alike(training: Graph, evaluation: Graph) -> None:
    """Refuse graphs that differ in more than dropout."""
    # Names of layers and inputs of `training`, and what they are called in `evaluation`.
    names: dict[str, str] = {name: name for name in training.inputs}
    left = iter(evaluation.layers.values())
    for layer in training.layers.values():
        if isinstance(layer.operator, Dropout):
            names[layer.name] = names[layer.inputs[0]]
            continue
        other = next(left, None)
        if other is None or not _are_alike(training, layer, evaluation, other, names):
            raise _another(training, layer.name, layer.op, "training")
        names[layer.name] = other.name
    surplus = next(left, None)
    if surplus is not None:
        raise _another(training, surplus.name, surplus.op, "evaluation")
    if tuple(names[each] for each in training.outputs) != evaluation.outputs:
        raise NetworkError(
            f"{training.name}: gives other results in evaluation than in training, which one "
            "network cannot"
        )


def _another(graph: Graph, name: str, op: str, mode: str) -> NetworkError:
    return NetworkError(
        f"{graph.name}: computes something else in training than in evaluation, from layer "
        f"{name!r} ({op}, in {mode}) on; only batch normalisation and dropout may"
    )


def _are_alike(
    training: Graph, layer: Layer, evaluation: Graph, other: Layer, names: dict[str, str]
) -> bool:
    if layer.operator != other.operator or other.inputs != tuple(names[i] for i in layer.inputs):
        return False
    for one, two in zip(layer.parameters, other.parameters, strict=True):
        if one.spec != two.spec:
            return False
        if one.name != two.name:
            mine, others = training.values.get(one.name), evaluation.values.get(two.name)
            if mine is None or others is None or (mine != others).any():
                return False
    return True
