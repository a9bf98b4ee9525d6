"""``fpgapipe bringup``: checks boards step by step before anything runs on them."""

from __future__ import annotations

from functools import partial

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import build_folder, command
from fpgapipe.host.cli.options.shared import addresses_option
from fpgapipe.host.terminal.console import print_json
from fpgapipe.host.transports.opening import TRANSPORTS
from fpgapipe.host.transports.without_boards import SIMULATED


@command("bringup", example="fpgapipe bringup out/digits-cnn --backend model")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--backend",
    type=Names(lambda: [*SIMULATED, *TRANSPORTS.names()]),
    required=True,
    help="How devices are reached: boards, or simulated devices or models to see what is checked.",
)
@addresses_option
@click.option(
    "--watch",
    "watch_s",
    type=ranges.WATCH,
    default=1.0,
    help="Seconds for which packets go over each link and its errors are counted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bringup(
    folder: str, backend: str, cluster_file: str | None, watch_s: float, as_json: bool
) -> int:
    """Check the devices of the build in DIR, one step after the other.

    The steps are: the loaded core is that of the build; registers keep what is written; so does
    memory; the core reads and writes the memory that the host sees; each link comes up, carries a
    packet each way, has no errors, and its PHY has the clock that the package was made for. What
    fails is said with what to do about it, and the exit code is 1. What the memory of the devices
    holds is lost.
    """
    on_line = (lambda text: None) if as_json else partial(print, flush=True)
    found = fpgapipe.bringup(folder, backend, cluster_file, watch_s=watch_s, on_line=on_line)
    if as_json:
        print_json(found.to_dict())
    return 0 if found.passed else 1
