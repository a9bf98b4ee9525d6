"""Trainings that diverge: how one is told, and what can be gone on from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

LIMIT = 2.0**63
"""The square of a larger value is beyond FP32: what is computed with it is no number soon."""


class Diverged(UserError):
    """A training that has diverged; the state that it is in is nothing to go on from."""


def explosion(state: Mapping[str, NDArray[np.float32]]) -> str:
    """What of a state has exploded: a name and a value, or nothing.

    Parameters
    ----------
    state : mapping of str to float32 array
        As `StepRunner.state` gives it.
    """
    for name, values in state.items():
        worst = float(np.abs(values).max(initial=0.0))
        if not worst <= LIMIT:  # also where it is no number
            return f"{name} has {f'values up to {worst:.3g}' if math.isfinite(worst) else worst}"
    return ""


def diverged(what: str, rate: float, good: Path | None) -> Diverged:
    """The error for a training that has diverged.

    Parameters
    ----------
    what : str
        The subject and what is wrong with it: "the loss of step 3 is nan".
    rate : float
        Learning rate of the step.
    good : Path or None
        The last checkpoint of which nothing is wrong.
    """
    lower = f"{rate / 10:.2g}"
    mend = (
        f"there is no good checkpoint; begin anew with --learning-rate {lower} or so"
        if good is None
        else f"the last good checkpoint is {good}; '--parameters {good} --learning-rate {lower}' "
        "begins anew with its weights"
    )
    return Diverged(f"{what}: training has diverged at a learning rate of {rate:g}; {mend}")
