"""Into how many nodes each board of a chain is shared, where the user leaves that open."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from fpgapipe.errors import UserError
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import DeviceSpec


@dataclass(frozen=True)
class Way:
    """A number of nodes of each board, and what it gives.

    Attributes
    ----------
    nodes : int
    ideal_per_s : float or None
        Samples a second by formulas if all nodes were always at work; None if that was not asked.
    planned_per_s : float or None
        Samples a second of which the prices of the fastest plan can be sure: those of its programs,
        fewer than formulas say. None if it was not planned.
    fits : bool
        Whether its programs fit the memory of their boards; true if none was planned.
    """

    nodes: int
    ideal_per_s: float | None
    planned_per_s: float | None = None
    fits: bool = True


class Rated(Protocol):
    """An answer that has a rate, in samples per second."""

    @property
    def sure_per_s(self) -> float:
        """Samples a second of which its prices can be sure."""

    @property
    def fits(self) -> bool:
        """Whether its programs fit the memory of their boards, as far as that is known."""


Place = TypeVar("Place")
Answer = TypeVar("Answer", bound=Rated)


def fastest_sharing(
    clusters: Sequence[Place],
    num_dies: int,
    request_on: Callable[[Place], Request],
    planned_on: Callable[[Place], Answer],
) -> tuple[Answer, tuple[Way, ...]]:
    """Plan a network on boards with the number of nodes that is fastest.

    The search begins with a node a die, and goes to more nodes, and to fewer ones, until that is
    slower. Numbers are not planned that by formulas cannot be faster: fewer nodes, if they would
    not do as much as the best plan even if each were always at work; and more nodes, if they would
    not do more than the best number then, since they are no nearer to that. Where programs do not
    fit the memory, more nodes are not asked, of which each has less.

    Parameters
    ----------
    clusters : sequence
        The boards with one node each, with two, and so on.
    num_dies : int
        Dies of a board.
    request_on : callable
        The question for a cluster.
    planned_on : callable
        Its answer.

    Returns
    -------
    planned
        The best answer.
    ways : tuple of Way
        All numbers of nodes that the board may have.

    Raises
    ------
    UserError
        If the network fits no number of nodes.
    """
    rates: dict[DeviceSpec, float] = {}
    ideals: dict[int, float] = {}
    planned: dict[int, Answer] = {}

    def rank(at: int) -> tuple[bool, float]:
        return (planned[at].fits, planned[at].sure_per_s) if at in planned else (False, 0.0)

    reason: UserError | None = None
    start = min(num_dies, len(clusters)) - 1
    best = start
    for way in (range(start, len(clusters)), range(start - 1, -1, -1)):
        for at in way:
            ideals[at] = _ideal_per_s(request_on(clusters[at]), rates)
            fits, per_s = rank(best)
            if planned and at > best and not fits:
                break
            if fits and ideals[at] <= (ideals[best] if at > best else per_s):
                break
            try:
                planned[at] = planned_on(clusters[at])
            except UserError as error:
                reason = reason or error
                continue
            if rank(at) >= rank(best):
                best = at
            elif fits:
                break
    if not planned:
        assert reason is not None, "something was planned"
        raise reason
    ways = (
        Way(at + 1, ideals.get(at), planned[at].sure_per_s, planned[at].fits)
        if at in planned
        else Way(at + 1, ideals.get(at))
        for at in range(len(clusters))
    )
    return planned[best], tuple(ways)


def ways_told(ways: Sequence[Way]) -> str:
    """Say which numbers of nodes were planned, and why others were not."""
    best = max(ways, key=lambda way: (way.fits, way.planned_per_s or 0))
    rates = ", ".join(
        f"{way.nodes}: {way.planned_per_s:,.1f}{'' if way.fits else ', too large'}"
        for way in ways
        if way.planned_per_s is not None
    )
    rest = sum(way.planned_per_s is None for way in ways)
    text = f"nodes a board: {best.nodes}, the fastest in samples/s of those planned ({rates})"
    if rest:
        text += (
            f"; the other {rest} of 1 to {len(ways)} are slower by formulas, or next to a slower"
        )
    return text


def _ideal_per_s(request: Request, rates: dict[DeviceSpec, float]) -> float:
    """Samples a second of all devices together, each with the whole network in enough memory."""
    for device in set(request.cluster.devices) - rates.keys():
        memories = tuple(
            dataclasses.replace(each, size_bytes=each.size_bytes * len(request.cluster.devices))
            for each in device.memories
        )
        alone = dataclasses.replace(
            request.cluster,
            device_names=(request.cluster.device_names[0],),
            devices=(dataclasses.replace(device, memories=memories),),
            links=(),
        )
        try:
            found = explore(dataclasses.replace(request, cluster=alone))
        except PlanError:
            rates[device] = 0.0
        else:
            rates[device] = request.batch / found.best.steady_s
    return sum(rates[device] for device in request.cluster.devices)
