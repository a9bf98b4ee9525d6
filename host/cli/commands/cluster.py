"""``fpgapipe cluster``: shows the devices and links of a cluster file or of a chain of boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import fpgapipe
from fpgapipe.host.cli.options.cluster_options import with_cluster
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.result import show

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command("cluster", example="fpgapipe cluster --board u280 --devices 4")
@with_cluster
@click.argument("cluster_file", metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def cluster(cluster: Cluster, as_json: bool) -> None:
    """Show the devices and links of a cluster.

    The cluster is a FILE, or a chain of --devices equal boards.
    """
    show(fpgapipe.describe_cluster(cluster), as_json=as_json)
