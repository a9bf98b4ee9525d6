"""Pictures of a timetable that ``--svg``, ``--html`` and ``--trace`` ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.host.terminal.outputs import write_output

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("svg", "html", "trace")


def picture_files(options: dict[str, Any]) -> dict[str, str | None]:
    """Files that `write_pictures` will write, by option, for `check_outputs`."""
    return {f"--{name}": options[name] for name in KINDS}


def write_pictures(picture: Callable[[str], str], options: dict[str, Any]) -> None:
    """Write the pictures that are asked for; `picture` gives the text of a kind."""
    for name in KINDS:
        if options[name]:
            write_output(options[name], picture(name))
