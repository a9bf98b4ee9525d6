"""Several ways to train a network: ``fpgapipe compare`` by strategies, ``explore`` by cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.completion import boards_that_begin
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.plots import check_plots, parse_numbers, plot_option, write_plots
from fpgapipe.host.cli.options.shared import planned_batch_option
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.result import show
from fpgapipe.jobs import other_processors

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command(
    "compare", example="fpgapipe compare resnet50 --board u280 --devices 4 --batch 64", lowers=True
)
@click.argument("network", shell_complete=networks_that_begin)
@cluster_options
@planned_batch_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@other_processors()
def compare(network: str, cluster: Cluster, batch: int, as_json: bool) -> None:
    """Compare one device, data parallel, an even split and pipeline schedules for NETWORK.

    Each way is the plan that 'plan' finds for it, with the times of its programs, or estimates
    where the core does not run a layer; the table says which, and has no ratio of one to the other.
    The schedules of BaPipe are a re-implementation from its abstract.
    """
    show(fpgapipe.compare(network, cluster, batch=batch, progress=progress), as_json=as_json)


@command(
    "explore",
    example="fpgapipe explore resnet50 --board u280 --batch 96 --plot front.svg",
    lowers=True,
)
@click.argument("network", shell_complete=networks_that_begin)
@click.option(
    "--board",
    required=True,
    shell_complete=boards_that_begin,
    metavar="NAME|FILE",
    help="Kind of board; 'fpgapipe boards' lists the built-in ones.",
)
@click.option(
    "--devices",
    metavar="N",
    type=ranges.DEVICES,
    help="Boards of this kind, cabled in a chain [default: 1].",
)
@click.option(
    "--nodes",
    metavar="N,N,..",
    help="Numbers of cores of each board [default: one, and so on to one a die].",
)
@planned_batch_option
@click.option(
    "--target",
    metavar="SAMPLES_PER_S",
    type=ranges.SAMPLES_PER_S,
    help="Find how many boards train at this rate, by the programs of 'plan'.",
)
@plot_option("samples/s over LUTs")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, of all choices.")
def explore(
    network: str,
    board: str,
    devices: int | None,
    nodes: str | None,
    batch: int,
    target: float | None,
    plot: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what cores for NETWORK give and take on a board: throughput against area.

    Nodes of the board, arrays and micro-batches are timed by formulas, each in its best schedule.
    The table has the choices that no other one is better than in samples/s, LUTs, DSPs, BRAMs and
    memory. 'plan' finds the fastest by whole programs. Ctrl-C ends the search with what it has.

    With --target, 'plan' is asked for 1, 2, 4 boards and so on until they reach the rate, then for
    numbers between. The answer is how many boards, in which plan, and what binds.
    """
    numbers = None if nodes is None else parse_numbers("--nodes", nodes, ranges.NODES.max or 1)
    if target is not None:
        _explore_target(network, board, target, devices, numbers, batch, plot, as_json)
        return
    check_plots(plot, (network, board))
    found = fpgapipe.explore_board(
        network,
        fpgapipe.load_board(board),
        devices or 1,
        batch=batch,
        nodes=numbers,
        progress=progress,
    )
    write_plots(plot, found.plot)
    show(found, as_json=as_json)


def _explore_target(
    network: str,
    board: str,
    target: float,
    devices: int | None,
    numbers: list[int] | None,
    batch: int,
    plot: tuple[str, ...],
    as_json: bool,
) -> None:
    for name in (name for name, given in (("devices", devices), ("plot", plot)) if given):
        raise fpgapipe.UserError(f"--target finds the number of boards: leave out --{name}")
    if numbers and len(numbers) > 1:
        raise fpgapipe.UserError(f"--target takes one number of --nodes, not {len(numbers)}")
    found = fpgapipe.explore_target(
        network,
        fpgapipe.load_board(board),
        target,
        batch=batch,
        nodes=numbers[0] if numbers else None,
        progress=progress,
    )
    show(found, as_json=as_json)
