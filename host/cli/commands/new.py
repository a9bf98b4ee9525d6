"""``fpgapipe new``: writes a commented file to begin with."""

from pathlib import Path

import click

from fpgapipe.host.cli.options.options import command
from fpgapipe.host.setup.starting_files import write_starting_file


@command("new", example="fpgapipe new board lab")
@click.argument("kind", type=click.Choice(["board", "network", "testbench"]))
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write a commented file to begin with, which passes its own check, into this folder.

    A board is NAME.yaml, a network NAME.py with the function NAME:network, a testbench NAME.py with
    gateware and its tests. A file that is there already is never overwritten.
    """
    path, check = write_starting_file(kind, name, Path())
    print(f"written to {path}; '{check}' checks it")
