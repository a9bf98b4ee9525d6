"""Weights that layers of several stages share: their gradients are added up before the update.

Each stage with such a layer has the weight, with the gradient of its own layers. At the end of a
step these stages add up their gradients, and all update their weights by the same sum, so that the
weights stay equal. The stages between pass the gradients on. Of a stage with several devices, each
of which has all of the weight and the stage's gradient, the last one adds, and all get the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from fpgapipe.lowering.sums.all_reduce import Member, Team, all_reduce, buffers_of, chunks_of
from fpgapipe.lowering.sums.on_chip_sum import adds_on_chip
from fpgapipe.lowering.tiling.kernel import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.tiling.kernel import Kernel, Region
    from fpgapipe.network.graph import Graph, Layer, Parameter

NAME = "tied"
"""Name of the kernels and buffers of the sums."""


@dataclass(frozen=True)
class Tie:
    """A weight that layers of several stages share.

    Attributes
    ----------
    parameter : str
    elements : int
    stages : tuple of int
        Stages with such a layer, in ascending order.
    layers : tuple of str
        A layer of each of these stages.
    team : Team
        Devices of the chain that add up the gradients, and that get the sum.
    """

    parameter: str
    elements: int
    stages: tuple[int, ...]
    layers: tuple[str, ...]
    team: Team

    def __str__(self) -> str:
        """The shared weight and its stages, for errors."""
        names = " and ".join(
            f"layer {layer!r} of stage {stage}"
            for layer, stage in zip(self.layers, self.stages, strict=True)
        )
        return f"{names} share parameter {self.parameter!r}"


def ties_of(
    graph: Graph, stages: Sequence[Collection[str]], sizes: Sequence[int] | None = None
) -> tuple[Tie, ...]:
    """The learned weights that layers of several stages share.

    Parameters
    ----------
    graph : Graph
    stages : sequence of collection of str
        Names of the layers of each stage.
    sizes : sequence of int, optional
        Number of devices of each stage; one if left out.

    Raises
    ------
    NotImplementedError
        If layers of several stages share running averages, each of which would have its own.
    """
    ends = list(accumulate(sizes or [1] * len(stages), initial=0))
    devices = [range(*each) for each in pairwise(ends)]
    stage_of = {name: number for number, names in enumerate(stages) for name in names}
    readers: dict[str, tuple[Parameter, dict[int, Layer]]] = {}
    for layer in graph.layers.values():
        for parameter in layer.parameters:
            _, known = readers.setdefault(parameter.name, (parameter, {}))
            known.setdefault(stage_of[layer.name], layer)
    found = []
    for name, (parameter, known) in readers.items():
        if len(known) == 1:
            continue
        numbers = tuple(sorted(known))
        layers = tuple(known[number].name for number in numbers)
        adders = tuple(devices[number][-1] for number in numbers)
        keepers = tuple(device for number in numbers for device in devices[number])
        tie = Tie(name, parameter.spec.elements, numbers, layers, Team(adders, keepers))
        if parameter.spec.trainable:
            found.append(tie)
        elif any(parameter.spec.role in layer.operator.averages for layer in known.values()):
            raise NotImplementedError(
                f"{tie}, an average that each stage would keep by itself; put them in one stage"
            )
    return tuple(found)


def check_untied(ties: Sequence[Tie], what: str) -> None:
    """Refuse a kind of plan for networks whose stages share weights.

    Parameters
    ----------
    ties : sequence of Tie
    what : str
        Kind of the plan, and what to take instead.

    Raises
    ------
    NotImplementedError
        If there are ties.
    """
    if ties:
        raise NotImplementedError(f"{ties[0]}, and no programs add up gradients {what}")


def tied_sums(
    tie: Tie,
    member: Member,
    core: CoreSpec,
    region: Region,
    part_of: Callable[[Tensor, int, tuple[int, ...]], Tensor],
) -> tuple[list[Kernel], list[Tensor]]:
    """Kernels of a device that add up the gradients of a weight, in an order that must be kept.

    Parameters
    ----------
    tie : Tie
    member : Member
        The device's place in the chain.
    core : CoreSpec
    region : Region
        Part of the scratchpad for the additions.
    part_of : callable
        Names a part of the device's gradient, given that, the first element and the part's shape.

    Returns
    -------
    kernels : list of Kernel
    received : list of Tensor
        Tensors that need a place in memory besides the gradient.
    """
    team = tie.team
    if not team.keepers[0] <= member.index <= team.adders[-1]:
        return [], []
    chunks = chunks_of(NAME, tie.elements)
    coming = buffers_of(f"{tie.parameter}.{NAME}", chunks)
    passing = buffers_of(f"{tie.parameter}.{NAME} back", chunks)
    received: list[Tensor] = []
    on_chip = adds_on_chip(core, region, chunks)
    if team.needs_buffers(member.index, on_chip=on_chip):
        received += dict.fromkeys(coming)
    if team.passes_on(member.index):
        received += dict.fromkeys(passing)
    if member.index in team.keepers:
        chunks = list(_parts(Tensor(f"{tie.parameter}.gradient", (tie.elements,)), chunks, part_of))
    kernels = all_reduce(NAME, member, chunks, coming, region, team, passing, on_chip=on_chip)
    return list(kernels), received


def _parts(
    gradient: Tensor,
    chunks: Sequence[Tensor],
    part_of: Callable[[Tensor, int, tuple[int, ...]], Tensor],
) -> Iterator[Tensor]:
    """The parts of a gradient that are as large as some chunks."""
    first = 0
    for chunk in chunks:
        yield part_of(gradient, first, chunk.shape)
        first += chunk.elements
