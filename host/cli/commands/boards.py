"""Descriptions: ``fpgapipe boards`` and ``fpgapipe cluster`` show boards and their links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.cluster_options import with_cluster
from fpgapipe.host.cli.options.completion import boards_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.result import show

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command("boards", example="fpgapipe boards u280")
@click.argument("board", metavar="[NAME|FILE]", required=False, shell_complete=boards_that_begin)
@click.option(
    "--nodes",
    metavar="N",
    type=ranges.NODES,
    help="Show what each of N cores on the board gets, and what binds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def boards(board: str | None, nodes: int | None, as_json: bool) -> None:
    """List the boards, or show one in full with the source of its numbers."""
    if board is None and nodes is not None:
        raise fpgapipe.UserError("--nodes shares one board; name it")
    found = fpgapipe.list_boards() if board is None else fpgapipe.describe_board(board, nodes)
    show(found, as_json=as_json)


@command("cluster", example="fpgapipe cluster --board u280 --devices 4")
@with_cluster
@click.argument("cluster_file", metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def cluster(cluster: Cluster, as_json: bool) -> None:
    """Show the devices and links of a cluster.

    The cluster is a FILE, or a chain of --devices equal boards.
    """
    show(fpgapipe.describe_cluster(cluster), as_json=as_json)
