"""``fpgapipe compare``: compares several ways to train a network on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import fpgapipe
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.shared import planned_batch_option
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.result import show

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command(
    "compare", example="fpgapipe compare resnet50 --board u280 --devices 4 --batch 64", lowers=True
)
@click.argument("network", shell_complete=networks_that_begin)
@cluster_options
@planned_batch_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(network: str, cluster: Cluster, batch: int, as_json: bool) -> None:
    """Compare one device, data parallel, an even split and pipeline schedules for NETWORK.

    The times of layers are those of the program of the whole network, or estimates where the core
    does not run a layer; the table says which, and has no ratio of one to the other. 'plan' times
    the programs of all devices. The schedules of BaPipe are a re-implementation from its abstract.
    """
    show(fpgapipe.compare(network, cluster, batch=batch, progress=progress), as_json=as_json)
