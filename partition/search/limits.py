"""The error message for a network that does not fit: what is too small, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fpgapipe.lowering.placement import Placement
from fpgapipe.partition.search.problem import PartitionProblem, PlanError, StageAssignment

Fit = Callable[[PartitionProblem], tuple[StageAssignment, ...] | None]
"""Function that returns stages within every limit, however slow, or None if there are none."""


def explain(problem: PartitionProblem, fit: Fit) -> PlanError:
    """The error for a problem that has no partition.

    A single stage needs no link, so it is memory that is too small. This finds the smallest equal
    addition to the memory of all devices with which a partition exists. That partition exceeds the
    limits least, and the error describes it.
    """
    low, high = (
        0.0,
        float(problem.num_devices + 1)
        * float(
            problem.kept_bytes(
                problem.state.sum(),
                problem.weight_bytes.sum(),
                problem.activation_bytes.sum(),
                problem.num_devices - 1,
            )
        ),
    )
    stages = fit(replace(problem, memory_bytes=problem.memory_bytes + high))
    assert stages is not None
    while high - low > max(0.5, 1e-9 * high):
        middle = (low + high) / 2
        found = fit(replace(problem, memory_bytes=problem.memory_bytes + middle))
        if found is None:
            low = middle
        else:
            stages, high = found, middle
    over = [each.memory_bytes - problem.memory_bytes[each.devices[0]] for each in stages]
    worst = int(np.argmax(over))
    return PlanError(_message(problem, stages, worst, over[worst], fit))


def _message(
    problem: PartitionProblem,
    stages: tuple[StageAssignment, ...],
    worst: int,
    over_bytes: float,
    fit: Fit,
) -> str:
    stage = stages[worst]
    device = stage.devices[0]
    usable = float(problem.memory_bytes[device])
    return (
        f"stage {worst} on {problem.device_names[device]} needs {stage.memory_bytes:,.0f} bytes of "
        f"memory ({_span(stage)}), {usable:,.0f} usable, {math.ceil(over_bytes):,} too few; "
        f"{_remedy(problem, stages, worst, over_bytes, fit)}"
    )


def _span(stage: StageAssignment) -> str:
    if len(stage.layers) == 1:
        return f"layer {stage.layers[0]}"
    return f"layers {stage.layers[0]}..{stage.layers[-1]}"


def _remedy(
    problem: PartitionProblem,
    stages: tuple[StageAssignment, ...],
    worst: int,
    over_bytes: float,
    fit: Fit,
) -> str:
    """A change that would help; the smaller changes are considered first."""
    stopped = np.flatnonzero(problem.link_bytes_per_s == 0)
    if len(stopped):
        joined = np.where(problem.link_bytes_per_s == 0, np.inf, problem.link_bytes_per_s)
        if fit(replace(problem, link_bytes_per_s=joined)) is not None:
            ends = Placement.chain(len(problem.device_names)).pairs[stopped[0]]
            first, second = (problem.device_names[each] for each in ends)
            return f"a link between {first} and {second} would help"
    names = {name: i for i, name in enumerate(problem.names)}
    activations = float(sum(problem.activation_bytes[names[name]] for name in stages[worst].layers))
    in_flight = problem.schedule.in_flight(len(stages) - 1 - worst)
    fewer = math.ceil(over_bytes / activations) if activations else in_flight
    if fewer < in_flight:
        return f"{fewer} fewer micro-batch{'es' if fewer > 1 else ''} in flight would make it fit"
    own = [names[name] for name in stages[worst].layers]
    state, weights = (each[own].sum() for each in (problem.state, problem.weight_bytes))
    kept = float(problem.kept_bytes(state, weights, 0.0, len(stages) - 1 - worst))
    usable = float(problem.memory_bytes[stages[worst].devices[0]])
    if activations and kept < usable:
        share = activations * in_flight / (usable - kept)
        return f"micro-batches of 1/{math.ceil(share)} of the size would make it fit"
    return (
        f"weights with gradients and optimiser state alone take {kept:,.0f} bytes there; devices "
        f"with {math.ceil(over_bytes):,} bytes more, or an optimiser with less state, would help"
    )
