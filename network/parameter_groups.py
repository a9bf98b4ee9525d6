"""Groups of a network's parameters, chosen by patterns of their names: frozen, or without decay."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fpgapipe.errors import shown
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.operators import Constant, Embedding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.network.graph import Graph


MOST_CHARACTERS = 1000
"""Longest pattern of names that is matched; long ones with many brackets take hours."""


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern with the wildcards ``*``, ``?`` and ``[...]``.

    Raises
    ------
    NetworkError
        If the pattern is longer than `MOST_CHARACTERS`.
    """
    if len(pattern) > MOST_CHARACTERS:
        raise NetworkError(
            f"{shown(pattern, 30)} has {len(pattern):,} characters; patterns of names have at most "
            f"{MOST_CHARACTERS:,}"
        )
    return fnmatchcase(name, pattern)


def matching(graph: Graph, patterns: Sequence[str]) -> set[str]:
    """Names of the learned parameters that match one of some patterns (``*.bias``, ``layer1.*``).

    A parameter matches by any of the names that it has in the network's source.

    Raises
    ------
    NetworkError
        If a pattern matches none.
    """
    learned = _learned(graph)
    names = graph.by_every_name({name: name for name in learned})
    found: set[str] = set()
    for pattern in patterns:
        own = {name for each, name in names.items() if matches(each, pattern)}
        if not own:
            raise NetworkError(
                f"no learned parameter of {graph.name} matches {pattern!r}; there are "
                f"{', '.join(sorted(names)[:4])}{', ...' if len(names) > 4 else ''}"
            )
        found |= own
    return found


def freeze(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The network with some parameters that training leaves unchanged.

    Raises
    ------
    NetworkError
        If a pattern matches no learned parameter, or nothing is left to learn.
    """
    frozen = matching(graph, patterns)
    if frozen == _learned(graph):
        raise NetworkError(f"{', '.join(patterns)} matches all learned parameters of {graph.name}")
    layers = {}
    for name, layer in graph.layers.items():
        parameters = tuple(
            replace(each, spec=replace(each.spec, trainable=False)) if each.name in frozen else each
            for each in layer.parameters
        )
        layers[name] = replace(layer, parameters=parameters)
    return replace(graph, layers=layers)


def small_parameters(graph: Graph) -> set[str]:
    """Learned parameters to which people apply no weight decay.

    They are those of one axis (biases, and scales and shifts of normalisations), the tables of
    embeddings, whatever else reads them, and learned tensors such as position embeddings.
    """
    return {
        parameter.name
        for layer in graph.layers.values()
        for parameter in layer.parameters
        if parameter.spec.trainable
        and (len(parameter.spec.shape) < 2 or isinstance(layer.operator, Embedding | Constant))
    }


def _learned(graph: Graph) -> set[str]:
    return {
        parameter.name
        for layer in graph.layers.values()
        for parameter in layer.parameters
        if parameter.spec.trainable
    }
