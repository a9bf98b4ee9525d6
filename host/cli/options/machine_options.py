"""The options of a simulated core and its memory, and the figures that are printed of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from fpgapipe.errors import UserError
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.terminal.console import Table, count, print_json
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MACHINE = (
    ("--rows", ranges.Whole(1, 128), 32, "Rows of cells of the systolic array."),
    ("--cols", ranges.Whole(1, 128), 32, "Columns of cells of the systolic array."),
    (
        "--memory-bytes-per-cycle",
        ranges.Whole(1, 4096),
        64,
        "Bytes that the memory moves in a cycle, reads and writes together.",
    ),
    (
        "--memory-latency",
        ranges.Whole(1, 1 << 20),
        100,
        "Cycles from a read request to its first data.",
    ),
    (
        "--scratchpad-bytes",
        ranges.Whole(1024, 1 << 26),
        1 << 21,
        "Bytes of on-chip memory; a power of two.",
    ),
    (
        "--acc-depth",
        ranges.Whole(16, 65_536),
        1024,
        "Accumulators below each column; a power of two.",
    ),
    ("--seed", ranges.SEED, 0, "Number that decides the random data."),
)
"""Options of the simulated core and its memory: name, range, default, help."""


def number_options(options: Sequence[tuple[str, ranges.Whole, int, str]]) -> Decorator:
    """Give a command options that are numbers: name, range, default and help of each."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, kind, default, text in reversed(options):
            click.option(name, type=kind, default=default, help=text)(function)
        return function

    return decorate


def machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `_MACHINE`, and ``--json``."""
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)
    return number_options(_MACHINE)(function)


def print_figures(figures: Mapping[str, Any], matches: bool, title: str, as_json: bool) -> None:
    """Print all figures as JSON, or those that are numbers as a table."""
    if as_json:
        print_json(figures)
        return
    rows = [
        (name, count(value) if isinstance(value, int) else f"{value:.4g}")
        for name, value in figures.items()
        if not isinstance(value, (dict, bool, str))
    ]
    rows.append(("matches model", "yes" if matches else "NO"))
    Table("figure|>value", rows, title).print()


def machine_of(
    given: Mapping[str, int], banks: int, make: Callable[..., CoreSpec] = CoreSpec, **more: Any
) -> tuple[CoreSpec, MemorySpec]:
    """The core and the memory that `machine_options` say.

    Parameters
    ----------
    given : mapping of str to int
        The options.
    banks : int
        Banks of the scratchpad.
    make : callable
        Makes the core of these and `more` parameters.
    """
    try:
        scratchpad = ScratchpadSpec(banks, given["scratchpad_bytes"] // banks)
        sizes = {"acc_depth": given["acc_depth"], "scratchpad": scratchpad}
        core = make(given["rows"], given["cols"], **sizes, **more)
        return core, MemorySpec(given["memory_bytes_per_cycle"], given["memory_latency"])
    except ValueError as error:
        raise UserError(str(error)) from None
