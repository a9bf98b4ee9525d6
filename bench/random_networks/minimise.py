"""Makes a failing network smaller while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .checks import WRONG, Subject, Verdict
from .levels import verdicts_of
from .networks import Description, Invalid, Network, keep, realise, without_dead
from .operators import OPERATORS

SMALLER = ("out", "hidden", "layers", "rows")
"""Options that are numbers which can be smaller."""

Found = tuple[Network, str, Verdict]


def minimise(
    network: Network, seed: int, levels: tuple[str, ...], progress: Callable[[str], object]
) -> Found | None:
    """Return the smallest network found that fails as a network does; None if that does not fail.

    Parameters
    ----------
    network : Network
    seed : int
        Seed of the network's checks.
    levels : tuple of str
        Levels that are checked.
    progress : callable
        Takes a line of text for each smaller network.
    """
    wanted = fault_of(network, seed, levels)
    if wanted is None:
        return None
    level, first = wanted
    best: Found = (network, level, first)
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in smaller(best[0].description):
            try:
                tried = realise(candidate, seed)
            except Invalid:
                continue
            found = fault_of(tried, seed, (level,))
            if found is not None and found[0] == level and alike(found[1], first):
                best, shrunk = (tried, *found), True
                progress(
                    f"{len(candidate.layers)} layers, {list(candidate.shape)}: {found[1].kind}"
                )
                break
    return best


def fault_of(network: Network, seed: int, levels: tuple[str, ...]) -> tuple[str, Verdict] | None:
    """The first level that fails, with its verdict."""
    found = verdicts_of(Subject(network, seed), levels)
    return next(((level, each) for level, each in found.items() if each.is_fault), None)


def alike(one: Verdict, other: Verdict) -> bool:
    """Whether two faults are of one kind: both wrong, or the same error."""
    return one.outcome == other.outcome and (one.outcome == WRONG or one.kind == other.kind)


def smaller(description: Description) -> Iterator[Description]:
    """Networks that are a little smaller or simpler, the most promising first."""
    layers = description.layers
    numbers = list(range(len(layers)))
    for output in description.outputs if len(description.outputs) > 1 else ():
        yield without_dead(replace(description, outputs=(output,)))
    half = len(numbers) // 2
    parts = [(half, len(numbers)), (0, half)] if half > 1 else []
    parts += [(number, number + 1) for number in reversed(numbers)]
    for begin, end in parts:
        left = [number for number in numbers if not begin <= number < end]
        if left:
            yield without_dead(keep(description, left))
    for axis, size in enumerate(description.shape):
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if (2 if axis == 0 else 1) <= less < size:
                shape = (*description.shape[:axis], less, *description.shape[axis + 1 :])
                yield replace(description, shape=shape)
    for number, layer in enumerate(layers):
        for options in simpler(layer.operator, layer.options):
            changed = replace(layer, options=options)
            yield replace(description, layers=(*layers[:number], changed, *layers[number + 1 :]))


def simpler(operator: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Options of a layer that are a little simpler."""
    if "frozen" in options:
        yield {name: value for name, value in options.items() if name != "frozen"}
    plain = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "kernel": 1}
    for name, value in options.items():
        wanted = OPERATORS[operator].simple.get(name)
        if name in OPERATORS[operator].simple and name not in plain and value != wanted:
            yield options | {name: wanted}
        if name in plain and isinstance(value, list):
            for axis, each in enumerate(value):
                for less in dict.fromkeys((plain[name], each - 1)):
                    if plain[name] <= less < each:
                        yield options | {name: [*value[:axis], less, *value[axis + 1 :]]}
        if name in SMALLER and isinstance(value, int):
            for less in dict.fromkeys((1, 2, value // 2, value - 1)):
                if 0 < less < value:
                    yield options | {name: less}
