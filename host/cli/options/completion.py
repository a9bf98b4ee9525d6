"""Completions of boards for a shell."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def boards_that_begin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of built-in boards that begin with the typed text."""
    names = (entry.name for entry in files("fpgapipe.boards").iterdir())
    stems = (name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))
    return sorted(stem for stem in stems if stem.startswith(incomplete))
