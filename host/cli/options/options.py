"""Options and behaviour that all sub-commands share."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fpgapipe.garbage import rare_collections
from fpgapipe.host.cli.options.suggestions import Command
from fpgapipe.host.terminal.console import json_alone, set_up_logging
from fpgapipe.host.terminal.outputs import how_to_build
from fpgapipe.host.terminal.progress import span
from fpgapipe.stopwatch import phases

LONG_S = 5.0
"""Least duration, in seconds, of a command that reports where its time went."""


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
    """Send the rest of standard output to nowhere, since its reader or disk takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_phases(seconds: dict[str, float]) -> None:
    """Log where the time went, if the command took at least `LONG_S`."""
    if sum(seconds.values()) < LONG_S:
        return
    largest = sorted(seconds.items(), key=lambda item: -item[1])
    text = ", ".join(f"{span(each)} {name}" for name, each in largest if each >= 0.5)
    logging.getLogger("fpgapipe").info("the time went into %s", text)


def build_folders(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Check as `build_folder` does that at least one folder is given."""
    build_folder(ctx, param, next(iter(value), None))
    return value


def build_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return the build folder of a command; the error if there is none says how to make one."""
    if value is None:
        example = Path("out/digits-cnn")
        raise click.UsageError(
            f"name the folder of a build; {how_to_build(example)}, and then there is "
            f"'fpgapipe {ctx.info_name} {example}'",
            ctx,
        )
    return value


def command(
    name: str, *, example: str, epilog: str = "", lowers: bool = False
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a sub-command with ``--quiet``, ``--verbose`` and an example in its help.

    If its parameter ``as_json`` is set, standard output has only its JSON.

    Parameters
    ----------
    name : str
        Name of the sub-command.
    example : str
        A complete command line that works; tests/host/test_cli.py runs it.
    epilog : str
        What the help says before the example.
    lowers : bool
        Whether most of its time goes into programs, millions of objects that stay to its end.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        def run(*args: Any, **kwargs: Any) -> Any:
            set_up_logging(click.get_current_context().meta.get("fpgapipe.verbosity", 0))
            phases()  # discards the times of earlier commands in this process
            try:
                with contextlib.ExitStack() as stack:
                    if lowers:
                        stack.enter_context(rare_collections(last=True))
                    if kwargs.get("as_json"):
                        stack.enter_context(json_alone())
                    result = function(*args, **kwargs)
                sys.stdout.flush()
                _say_phases(phases())
                return result
            except BrokenPipeError:
                discard_output()  # the reader, such as head or less, has ended, which is no error

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        shows = {"show_default": True}
        made = click.command(
            name, Command, epilog=f"{epilog}\n\nExample: {example}", context_settings=shows
        )
        return made(verbosity_options(run))

    return decorate
