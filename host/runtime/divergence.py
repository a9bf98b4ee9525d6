"""Trainings that diverge: how this is recognised, and from which checkpoint one can continue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.network.operators import Constant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

LIMIT = 2.0**63
"""Largest magnitude that is accepted in a state.

A sum of a few squares of larger values overflows FP32, and results soon are NaN.
"""


class Diverged(UserError):
    """A training has diverged; it cannot continue from its present state."""


def fixed_numbers(graph: Graph) -> frozenset[str]:
    """Names of the parameters that no training changes, such as masks, which may hide by -inf."""
    return frozenset(
        parameter.name
        for layer in graph.layers.values()
        if isinstance(layer.operator, Constant) and not layer.operator.trainable
        for parameter in layer.parameters
    )


def explosion(state: Mapping[str, NDArray[np.float32]], fixed: Collection[str] = ()) -> str:
    """Name a tensor of a state that has exploded, and its value; empty if there is none.

    Parameters
    ----------
    state : mapping of str to float32 array
        State of a backend (`StepRunner.state`).
    fixed : collection of str
        Names of tensors that are not looked at (`fixed_numbers`).
    """
    for name, values in state.items():
        if name in fixed:
            continue
        worst = float(np.abs(values).max(initial=0.0))
        if not worst <= LIMIT:  # true for NaN, too
            return f"{name} has {f'values up to {worst:.3g}' if math.isfinite(worst) else worst}"
    return ""


def diverged(what: str, rate: float, good: Path | None) -> Diverged:
    """The error for a training that has diverged.

    Parameters
    ----------
    what : str
        First clause of the message, which says what is wrong: "the loss of step 3 is nan".
    rate : float
        Learning rate of the step.
    good : Path or None
        The last good checkpoint.
    """
    lower = f"{rate / 10:.2g}"
    mend = (
        f"there is no good checkpoint; begin anew with --learning-rate {lower} or so"
        if good is None
        else f"the last good checkpoint is {good}; '--parameters {good} --learning-rate {lower}' "
        "begins anew with its weights"
    )
    return Diverged(f"{what}: training has diverged at a learning rate of {rate:g}; {mend}")
