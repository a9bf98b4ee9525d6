"""Partition of a network over all devices of a chain, even if fewer devices would be faster.

The partitioner uses only as many devices as are worth it, but a user who names the devices to build
for wants all of them used. The partition here follows the network's order of layers and has the
smallest bottleneck of all such partitions, transfers included. It does not consider memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.partition.search.problem import PartitionProblem, PlanError, Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence


def over_all_devices(
    problem: PartitionProblem, may_begin: Sequence[bool]
) -> tuple[tuple[str, ...], ...]:
    """Names of each device's layers, in the order of the network, at least one per device.

    Parameters
    ----------
    problem : PartitionProblem
    may_begin : sequence of bool
        For each layer, whether a stage may begin with it. It may not if the layer runs together
        with a layer before it, because it is fused into that layer or takes no time.

    Raises
    ------
    PlanError
        If the network cannot be cut into as many stages as there are devices, or devices that
        follow one another have no link.
    """
    starts = [0, *(at for at in range(1, problem.num_layers) if may_begin[at])]
    ends = [*starts[1:], problem.num_layers]
    num_runs, num_devices = len(starts), problem.num_devices
    if num_runs < num_devices:
        raise PlanError(
            f"the network has {num_runs} runs of layers that can stand alone, too few for "
            f"{num_devices} devices; use at most {num_runs}"
        )
    before = np.concatenate([np.zeros((1, num_devices)), problem.device_compute_s.cumsum(axis=0)])
    before = before[[0, *ends]]
    crossing = np.array(
        [problem.cut_bytes(np.arange(problem.num_layers) < end) for end in ends[:-1]]
    )
    # best[i] is the smallest bottleneck of the first i runs on the devices so far.
    best = np.full(num_runs + 1, np.inf)
    best[0] = 0.0
    chosen = []
    for device in range(num_devices):
        wire = np.zeros(num_runs + 1)
        if device and problem.schedule.transfer is not Transfer.NONE:
            seconds = problem.transfer_s(crossing, device - 1)
            wire[1:num_runs] = problem.schedule.transfers_per_period * seconds
        load = before[None, :, device] - before[:, None, device]  # seconds of runs i..j - 1
        value = np.maximum(np.maximum(best, wire)[:, None], load)
        value[np.tril_indices(num_runs + 1)] = np.inf
        chosen.append(value.argmin(axis=0))
        best = value.min(axis=0)
    if not np.isfinite(best[num_runs]):
        raise PlanError("the network cannot be cut where all devices are joined by links")
    stages = []
    end = num_runs
    for came_from in reversed(chosen):
        begin = int(came_from[end])
        stages.append(problem.names[starts[begin] : ends[end - 1]])
        end = begin
    return tuple(reversed(stages))
