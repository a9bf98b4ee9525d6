"""Settings that a run which goes on may change, ``NAME=VALUE``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.errors import UserError, nearest, shown
from fpgapipe.host.cli.options import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE_SCHEDULES = ("constant", "cosine", "step")

KINDS: dict[str, click.ParamType] = {  # type: ignore[type-arg]
    "clip-norm": ranges.NORM,
    "data": click.STRING,
    "epochs": ranges.EPOCHS,
    "learning-rate": ranges.LEARNING_RATE,
    "momentum": ranges.MOMENTUM,
    "rate-every": ranges.EPOCHS,
    "rate-factor": ranges.SHARE,
    "rate-schedule": click.Choice(RATE_SCHEDULES),
    "seed": ranges.SEED,
    "warm-up": ranges.WARM_UP,
    "weight-decay": ranges.WEIGHT_DECAY,
}
"""The settings and their values."""


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Settings by the names of `fpgapipe.run`.

    Raises
    ------
    UserError
        If a text is no setting with a value, or a setting occurs twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UserError(
                f"--change must be a setting, '=' and a value, such as learning-rate=0.001, not "
                f"{shown(text)}"
            )
        if name not in KINDS:
            raise UserError(
                f"--change takes {', '.join(KINDS)}, not {shown(name)}{nearest(name, KINDS)}"
            )
        key = name.replace("-", "_")
        if key in found:
            raise UserError(f"--change names {name} twice")
        try:
            found[key] = KINDS[name].convert(value, None, None)
        except click.BadParameter as error:
            raise UserError(f"--change {name}: {error.message}") from None
    return found
