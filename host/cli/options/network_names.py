"""Completions of networks for a shell; apart from those of boards, which need no networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.zoo import NETWORKS

if TYPE_CHECKING:
    import click


def networks_that_begin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of built-in networks that begin with the typed text."""
    return sorted(name for name in NETWORKS if name.startswith(incomplete))
