"""The two modes of a module, which must compute the same except for dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fpgapipe.network.graph import Graph, Layer, NetworkError
from fpgapipe.network.operators import Dropout


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


def check_modes(training: Graph, evaluation: Graph) -> None:
    """Refuse a module that computes something else in evaluation than in training.

    One graph represents both modes, since batch normalisation and dropout know what to do in each.

    Parameters
    ----------
    training, evaluation : Graph
        The graphs to which the module was translated in the two modes.

    Raises
    ------
    NetworkError
        If the graphs differ in more than dropout. The message names the first layer that differs.
    """
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
