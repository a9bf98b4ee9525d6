"""Options that every sub-command shares."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from fpgapipe.stopwatch import phases

LONG_S = 5.0
"""Seconds from which on a command says where they went."""


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["fpgapipe.verbosity"] = -1 if param.name == "quiet" else 1


def verbosity_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--quiet`` and ``--verbose``."""
    flag = functools.partial(
        click.option, is_flag=True, expose_value=False, callback=_set_verbosity
    )
    flag("-v", "--verbose", help="Show more of what is done.")(function)
    flag("-q", "--quiet", help="Show results and errors alone.")(function)
    return function


def discard_output() -> None:
    """Let what is left of standard output go nowhere, since where it went takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_phases(seconds: dict[str, float]) -> None:
    """Say where the time went, if it was long enough to wonder."""
    if sum(seconds.values()) < LONG_S:
        return
    from fpgapipe.host.terminal.progress import span

    largest = sorted(seconds.items(), key=lambda item: -item[1])
    text = ", ".join(f"{span(each)} {name}" for name, each in largest if each >= 0.5)
    logging.getLogger("fpgapipe").info("the time went into %s", text)


def build_folders(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """The same as `build_folder` of one or more."""
    build_folder(ctx, param, next(iter(value), None))
    return value


def build_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The folder of a build that a command needs; without one, how to make one is said."""
    if value is None:
        from pathlib import Path

        from fpgapipe.host.build.build import how_to_build

        example = Path("out/digits-cnn")
        raise click.UsageError(
            f"name the folder of a build; {how_to_build(example)}, and then there is "
            f"'fpgapipe {ctx.info_name} {example}'",
            ctx,
        )
    return value


def command(name: str, *, example: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a sub-command with ``--quiet``, ``--verbose`` and an example in its help.

    Where its parameter ``as_json`` is set, standard output has its JSON and nothing else.

    Parameters
    ----------
    name : str
        The sub-command's name.
    example : str
        A command line that works; tests/host/test_cli.py runs it.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        def run(*args: Any, **kwargs: Any) -> Any:
            from fpgapipe.host.terminal.console import json_alone, set_up_logging

            set_up_logging(click.get_current_context().meta.get("fpgapipe.verbosity", 0))
            phases()  # what went before in this process is no part of the command
            try:
                with json_alone() if kwargs.get("as_json") else contextlib.nullcontext():
                    result = function(*args, **kwargs)
                sys.stdout.flush()
                _say_phases(phases())
                return result
            except BrokenPipeError:
                discard_output()  # the reader (head, less) has gone, which is its right

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return click.command(name, epilog=f"Example: {example}")(verbosity_options(run))

    return decorate
