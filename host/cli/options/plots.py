"""Options of commands that draw what they find over a range of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fpgapipe.errors import UserError, shown
from fpgapipe.host.terminal.outputs import check_outputs, write_output


def plot_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a sub-command ``--plot``, which may be repeated."""
    return click.option(
        "--plot", multiple=True, metavar="FILE", help=f"Draw {what}, as .svg or .html."
    )


def check_plots(files: Sequence[str], read: Sequence[str | None]) -> None:
    """Refuse files that cannot be written, or whose kind is not known, before the work.

    Parameters
    ----------
    files : sequence of str
        What ``--plot`` names.
    read : sequence of str or None
        Files that the command reads.
    """
    check_outputs({f"--plot ({number})": name for number, name in enumerate(files)}, read)
    for name in files:
        if not name.endswith((".svg", ".html")):
            raise UserError(f"--plot must name an .svg or .html file, not {name}")


def write_plots(files: Sequence[str], plot: Callable[..., str]) -> None:
    """Write the pictures and pages that are asked for; `plot` takes ``as_page`` and gives one."""
    for name in files:
        write_output(name, plot(as_page=name.endswith(".html")))


def parse_numbers(option: str, text: str, most: int) -> list[int]:
    """Read an option's whole numbers, from 1 to a largest one, with commas between them."""
    found = []
    for part in text.split(","):
        if not part.strip().isascii() or not part.strip().isdecimal() or len(part) > 9:
            raise UserError(f"{option} must be numbers such as 2,4,8, not {shown(text)}")
        number = int(part)
        if not 1 <= number <= most:
            raise UserError(f"{option} must be in 1..{most:,}, not {number}")
        found.append(number)
    return found
