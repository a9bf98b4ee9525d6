"""BaPipe's refinements: merged layers, memory fine-tuning, layers split by output channel.

They are re-implemented from the published abstract of X. Zhao et al., "BaPipe: Exploration of
Balanced Pipeline Parallelism for DNN Training", 2020. Rules that the abstract does not give are our
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fpgapipe.partition.search.chain import plan_chain
from fpgapipe.partition.search.cuts import Row
from fpgapipe.partition.search.problem import (
    Floats,
    Objective,
    Partition,
    PartitionProblem,
    PlanError,
    Transfer,
)
from fpgapipe.partition.search.search import Bounds, End, Ends, assignments, measure, partition

Groups = tuple[range, ...]


def mergeable(problem: PartitionProblem, threshold_s: float) -> Groups:
    """Runs of layers between the cuts whose transfer takes no longer than a threshold.

    Parameters
    ----------
    problem : PartitionProblem
    threshold_s : float
        Longest admitted transfer of a micro-batch, in seconds. A cut is dropped if its transfer
        takes longer than this on every link.

    Returns
    -------
    tuple of range
        Positions of each run's layers, in the network's order.
    """
    row = Row(problem)
    links = range(problem.num_devices - 1)
    transfers = [row.transfer_s(link) for link in links] or [np.zeros(row.size)]
    seconds = np.min(transfers, axis=0)
    bounds = [0, *(np.flatnonzero(seconds[1:-1] <= threshold_s) + 1).tolist(), problem.num_layers]
    return tuple(range(start, stop) for start, stop in pairwise(bounds))


def merge(problem: PartitionProblem, groups: Groups) -> PartitionProblem:
    """The chain whose layers are runs of a network's layers, with the same boundary tensors."""
    row = Row(problem)
    starts = np.array([group.start for group in groups])
    ends = np.array([group.stop for group in groups])
    return replace(
        problem,
        names=tuple(f"{problem.names[g.start]}..{problem.names[g.stop - 1]}" for g in groups),
        forward_s=np.add.reduceat(problem.forward_s, starts),
        backward_s=np.add.reduceat(problem.backward_s, starts),
        weight_bytes=np.add.reduceat(problem.weight_bytes, starts),
        activation_bytes=np.add.reduceat(problem.activation_bytes, starts),
        output_bytes=row.cut_bytes[ends],
        edges=tuple((i, i + 1) for i in range(len(groups) - 1)),
    )


def plan_coarse(
    problem: PartitionProblem, objective: Objective = Objective.BOTTLENECK
) -> tuple[Partition, Groups]:
    """Partition a network after merging layers between which a transfer would take too long.

    A cut whose transfers take longer than a period cannot be part of a partition with that period.
    The layers are merged for BaPipe's ideal period first. The period then found is at least the
    best one; it is the threshold of the next round, and so on until nothing changes. At that point
    no cut that the smallest bottleneck needs is missing. Cuts that the smallest mini-batch time
    needs may be missing, so for that objective only a bound is given.

    Returns
    -------
    Partition
        The partition, in terms of the layers of `problem` and in their order.
    tuple of range
        The runs of merged layers in the last round.

    Raises
    ------
    PlanError
        If no partition keeps the limits.
    """
    per_period = problem.schedule.transfers_per_period
    period_s = max(problem.ideal_period_s, problem.bound_s)
    groups: Groups = ()
    while True:
        following = mergeable(problem, period_s / per_period)
        if following == groups:
            break
        groups = following
        try:
            found = plan_chain(merge(problem, groups))
        except PlanError:
            if len(groups) == problem.num_layers or period_s == np.inf:
                raise
            period_s = period_s * 2 if np.isfinite(period_s * 2) and period_s else np.inf
            if mergeable(problem, period_s / per_period) == groups:
                period_s = np.inf
            continue
        period_s = found.period_s
    if objective is Objective.MINIBATCH:
        found = plan_chain(merge(problem, groups), objective)
    return _in_layers(problem, groups, found), groups


def _in_layers(problem: PartitionProblem, groups: Groups, found: Partition) -> Partition:
    ends: Ends = []
    count = 0
    for stage in found.stages:
        count += len(stage.layers)
        ends.append(End(stage.devices[0], groups[count - 1].stop))
    row = Row(problem)
    exact = problem.is_chain and problem.schedule.transfer is not Transfer.NONE
    bound = found.lower_bound_s if exact or len(groups) == problem.num_layers else 0.0
    if found.objective is Objective.MINIBATCH and len(groups) < problem.num_layers:
        bound = 0.0
    value = measure(row, ends)[found.objective is Objective.MINIBATCH]
    reason = f"{problem.num_layers} layers in {len(groups)} runs; {found.reason}"
    return partition(row, Bounds(ends, value, bound), found.objective, reason)


def tune_memory(problem: PartitionProblem, start: Partition) -> Partition:
    """Move layers at stage boundaries until every device can hold its stage.

    As long as a stage is too large, its first or last layer moves to the neighbouring stage. Only
    moves that reduce the missing memory, summed over all devices, are considered; of these, the one
    with the shortest period is taken. Stages stay on their devices. This is a heuristic;
    `plan_chain` with the same limits is exact.

    Parameters
    ----------
    problem : PartitionProblem
    start : Partition
        Partition of the same layers, found without memory limits.

    Raises
    ------
    PlanError
        If no move reduces the missing memory.
    """
    row = Row(problem)
    devices = [stage.devices[0] for stage in start.stages]
    cuts = np.cumsum([len(stage.layers) for stage in start.stages]).tolist()
    while True:
        missing = _missing(row, devices, cuts)
        if not missing.any():
            break
        worst = int(np.argmax(missing))
        moves = [
            moved
            for moved in _moves(cuts, worst)
            if _missing(row, devices, moved).sum() < missing.sum()
            and np.isfinite(measure(row, _ends(devices, moved))[0])
        ]
        if not moves:
            raise PlanError(_stuck(problem, row, devices, cuts, worst))
        cuts = min(moves, key=lambda moved: measure(row, _ends(devices, moved))[0])
    ends = _ends(devices, cuts)
    bounds = Bounds(ends, measure(row, ends)[0], problem.bound_s)
    return partition(row, bounds, Objective.BOTTLENECK, "layers moved until memory sufficed")


def _ends(devices: Sequence[int], cuts: Sequence[int]) -> Ends:
    return [End(device, cut) for device, cut in zip(devices, cuts, strict=True)]


def _missing(row: Row, devices: Sequence[int], cuts: Sequence[int]) -> Floats:
    needed = [stage.memory_bytes for stage in assignments(row, _ends(devices, cuts))]
    missing: Floats = np.maximum(np.array(needed) - row.memory_limit[list(devices)], 0.0)
    return missing


def _moves(cuts: list[int], stage: int) -> list[list[int]]:
    """The cuts after moving a stage's first or last layer away; no stage becomes empty."""
    start = cuts[stage - 1] if stage else 0
    if cuts[stage] - start < 2:
        return []
    moves = []
    if stage > 0:
        moves.append([*cuts[: stage - 1], start + 1, *cuts[stage:]])
    if stage < len(cuts) - 1:
        moves.append([*cuts[:stage], cuts[stage] - 1, *cuts[stage + 1 :]])
    return moves


def _stuck(
    problem: PartitionProblem, row: Row, devices: list[int], cuts: list[int], worst: int
) -> str:
    stage = assignments(row, _ends(devices, cuts))[worst]
    usable = problem.memory_bytes[devices[worst]]
    return (
        f"stage {worst} on {problem.device_names[devices[worst]]} needs {stage.memory_bytes:,.0f} "
        f"bytes of memory, {usable:,.0f} usable, and its neighbours have no room for its outer "
        "layers; try another schedule, a smaller micro-batch, or more devices"
    )


@dataclass(frozen=True)
class Piece:
    """Some output channels of a layer: ``first_channel..stop_channel - 1`` of `channels`."""

    layer: str
    first_channel: int
    stop_channel: int
    channels: int


@dataclass(frozen=True)
class FractionalPartition:
    """Stages that may share layers.

    Parameters
    ----------
    partition : Partition
        Partition whose layers are pieces, named ``layer[first:stop]``.
    pieces : tuple of tuple of Piece
        The pieces of each stage; adjacent pieces of one layer are joined.
    ideal_period_s : float
        Period that a split at any point would reach: BaPipe's T*.
    """

    partition: Partition
    pieces: tuple[tuple[Piece, ...], ...]
    ideal_period_s: float


def plan_fractional(
    problem: PartitionProblem,
    channels: Sequence[int],
    channel_tile: int = 1,
    objective: Objective = Objective.BOTTLENECK,
) -> FractionalPartition:
    """Partition a chain whose layers may be split by output channel, in whole tiles of channels.

    Every tile is treated as a layer of its own, with its share of the time, weights and output. A
    tile reads all inputs of its layer. So a cut through a layer sends the layer's inputs on to the
    next stage, together with the outputs that are ready, and both stages keep the inputs for their
    weight gradients.

    Parameters
    ----------
    problem : PartitionProblem
        A chain of layers; a layer may read further earlier layers as well.
    channels : sequence of int
        Output channels of each layer; 1 for a layer that cannot be split.
    channel_tile : int
        Number of channels that the array computes at a time.
    objective : Objective
        Time to minimise.

    Raises
    ------
    PlanError
        If no partition keeps the limits.
    ValueError
        If the network is no chain, or channels or tile are out of range.
    """
    if not problem.is_chain:
        raise ValueError("a fractional partition needs a chain of layers")
    if len(channels) != problem.num_layers or min(channels) < 1 or channel_tile < 1:
        raise ValueError("channels must be at least 1 for each layer, and channel_tile at least 1")
    tiles = [
        Piece(name, first, min(first + channel_tile, count), count)
        for name, count in zip(problem.names, channels, strict=True)
        for first in range(0, count, channel_tile)
    ]
    found = plan_chain(_tiled(problem, tiles), objective)
    spare = _kept_twice(problem, found)
    if (np.array([_over(problem, tiles, found, s) for s in range(len(found.stages))]) > 0).any():
        tight = replace(problem, memory_bytes=np.maximum(problem.memory_bytes - spare, 0.0))
        found = plan_chain(_tiled(tight, tiles), objective)
        found = replace(
            found,
            optimal=False,
            lower_bound_s=min(problem.bound_s, found.value_s),
            reason="memory held back for inputs that two stages keep; bound without limits",
        )
    return FractionalPartition(found, _pieces(tiles, found), problem.ideal_period_s)


def _kept_twice(problem: PartitionProblem, found: Partition) -> float:
    """Most bytes that a stage can need beyond its shares of layers of which it has only a part."""
    in_flight = problem.schedule.in_flight(problem.num_devices - 1)
    return 2 * in_flight * float(problem.activation_bytes.max())


def _stage_tiles(tiles: Sequence[Piece], found: Partition, stage: int) -> Sequence[Piece]:
    start = sum(len(each.layers) for each in found.stages[:stage])
    return tiles[start : start + len(found.stages[stage].layers)]


def _over(problem: PartitionProblem, tiles: Sequence[Piece], found: Partition, stage: int) -> float:
    """Bytes by which a stage exceeds its device's memory, counting shared layers' inputs whole."""
    index = {name: i for i, name in enumerate(problem.names)}
    mine = _stage_tiles(tiles, found, stage)
    weights = sum(
        problem.weight_bytes[index[t.layer]] * (t.stop_channel - t.first_channel) / t.channels
        for t in mine
    )
    activations = sum(problem.activation_bytes[index[name]] for name in {t.layer for t in mine})
    needed = problem.kept_bytes(weights, activations, len(found.stages) - 1 - stage)
    return float(needed - problem.memory_bytes[found.stages[stage].devices[0]])


def _tiled(problem: PartitionProblem, tiles: Sequence[Piece]) -> PartitionProblem:
    index = {name: i for i, name in enumerate(problem.names)}
    layer = np.array([index[tile.layer] for tile in tiles])
    share = np.array([(t.stop_channel - t.first_channel) / t.channels for t in tiles])
    last = {int(i): place for place, i in enumerate(layer)}
    readers: dict[int, list[int]] = {}
    for source, target in problem.edges:
        readers.setdefault(source, []).append(last[target])
    edges = {(i, i + 1) for i in range(len(tiles) - 1)}
    edges |= {(i, max(readers[k])) for i, k in enumerate(layer.tolist()) if k in readers}
    return replace(
        problem,
        names=tuple(f"{t.layer}[{t.first_channel}:{t.stop_channel}]" for t in tiles),
        forward_s=problem.forward_s[layer] * share[:, None],
        backward_s=problem.backward_s[layer] * share[:, None],
        weight_bytes=problem.weight_bytes[layer] * share,
        activation_bytes=problem.activation_bytes[layer] * share,
        output_bytes=problem.output_bytes[layer] * share,
        edges=tuple(sorted(edges)),
    )


def _pieces(tiles: Sequence[Piece], found: Partition) -> tuple[tuple[Piece, ...], ...]:
    """Pieces of each stage; adjacent tiles of one layer are joined."""
    stages = []
    for stage in range(len(found.stages)):
        joined: list[Piece] = []
        for tile in _stage_tiles(tiles, found, stage):
            if joined and joined[-1].layer == tile.layer:
                joined[-1] = replace(joined[-1], stop_channel=tile.stop_channel)
            else:
                joined.append(tile)
        stages.append(tuple(joined))
    return tuple(stages)
