"""Settings that a run which goes on may change, ``NAME=VALUE``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.errors import UserError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANGEABLE = (
    *("clip-norm", "data", "epochs", "learning-rate", "momentum", "rate-every", "rate-factor"),
    *("rate-schedule", "seed", "warm-up", "weight-decay"),
)
"""Options that may be changed."""


def parse_changes(texts: Sequence[str], options: Sequence[click.Parameter]) -> dict[str, Any]:
    """Settings by the names of `fpgapipe.run`; a value is what it is as an option.

    Parameters
    ----------
    texts : sequence of str
    options : sequence of click.Parameter
        Those of the command, the ones that may be changed among them.

    Raises
    ------
    UserError
        If a text is no setting with a value, or a setting occurs twice.
    """
    types = {option.opts[0].removeprefix("--"): option.type for option in options}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UserError(
                f"--change must be a setting, '=' and a value, such as learning-rate=0.001, not "
                f"{shown(text)}"
            )
        if name not in CHANGEABLE:
            raise UserError(
                f"--change takes {', '.join(CHANGEABLE)}, not {shown(name)}"
                f"{nearest(name, CHANGEABLE)}"
            )
        key = name.replace("-", "_")
        if key in found:
            raise UserError(f"--change names {name} twice")
        try:
            found[key] = types[name].convert(value, None, None)
        except click.BadParameter as error:
            raise UserError(f"--change {name}: {error.message}") from None
    return found
