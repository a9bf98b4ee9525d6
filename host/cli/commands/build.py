"""``fpgapipe build``: turns a network and a cluster into a folder of programs and hardware."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.arrays import parse_array
from fpgapipe.host.cli.options.cluster_options import chosen_cluster, place_options
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.shared import (
    array_option,
    cells_option,
    micro_batches_option,
    strategy_option,
    trained_batch_option,
)
from fpgapipe.host.cli.options.training_options import training_options
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.result import show
from fpgapipe.jobs import other_processors

DEVICES = 2
"""Boards that are built for if neither their number nor that of their nodes is given."""


@command(
    "build",
    example="fpgapipe build --board u280 --array 8x8 --batch 8 -o out/digits-cnn",
    lowers=True,
)
@partial(place_options, default_devices=DEVICES, searches=True)
@training_options
@click.option(
    "--network",
    shell_complete=networks_that_begin,
    help="Network to build: a name or a file, as for 'inspect' [default: digits-cnn].",
)
@click.option(
    "--mode",
    type=click.Choice(["train", "infer"]),
    default="train",
    help="Training steps, or forward passes only.",
)
@click.option(
    "--parameters",
    type=click.Path(dir_okay=False),
    help="Begin with the parameters of a checkpoint, or of a file that 'export' writes or "
    "PyTorch's packages do (.safetensors, .npz, .pt), instead of random ones.",
)
@click.option(
    "--from",
    "source",
    metavar="RUN",
    type=click.Path(),
    help="Take network and weights of a build that was trained, or of the folder of one of its "
    "runs, for --mode infer.",
)
@click.option(
    "--int8",
    metavar="DATA",
    help="Quantise the trained network to INT8, with scales from these samples (as for 'run "
    "--data'); for --mode infer.",
)
@click.option(
    "--int8-percentile",
    type=ranges.PERCENTILE,
    default=100,
    help="Percentage of the elements of each activation that INT8 represents without saturation; "
    "rare large ones then cost the others no precision.",
)
@trained_batch_option
@micro_batches_option
@strategy_option
@click.option(
    "--schedule",
    default="1f1b-as",
    help="Order of the passes, a kind that 'schedule' knows, or auto for the best of several.",
)
@array_option
@cells_option
@click.option(
    "--seed",
    type=ranges.SEED,
    default=0,
    help="Number that decides the random parameters to begin with.",
)
@click.option(
    "--freeze",
    multiple=True,
    metavar="PATTERN",
    help="Parameters, such as 'conv1.*', that training leaves unchanged; may be repeated.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Compare an imported network with its source, and the programs of its layers with "
    "PyTorch; refuse what differs.",
)
@click.option(
    "--hardware/--no-hardware",
    default=True,
    help="Make the cores' Verilog, which the simulator and packages need; the bit-exact model "
    "('run --backend model') needs none.",
)
@click.option(
    "--package",
    "package",
    type=Names(FLOWS.names),
    help="Write for each device, into the folder's 'package', what the vendor's tools need.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    help="Folder to write the build to [default: out/NETWORK].",
)
@other_processors()
def build(
    board: str | None,
    devices: int | None,
    nodes: int | str | None,
    cluster_file: str | None,
    network: str | None,
    array: str | None,
    folder: str | None,
    **options: Any,
) -> None:
    """Plan a network for the boards and make their hardware and programs.

    All boards that are named are used. Their cores have the smallest array that reaches 99 % of the
    throughput of the best; --array says which instead. The folder has everything that 'fpgapipe
    run' needs; nothing is written if a layer does not fit.
    """
    name = "digits-cnn" if network is None and options["source"] is None else network
    settings = {
        **options,
        "array": parse_array(array, options["cells"]),
        "on_note": print,
        "progress": progress,
    }
    if isinstance(nodes, str):
        if board is None or cluster_file is not None:
            raise fpgapipe.UserError(
                "--nodes auto needs --board; a cluster file says which nodes its boards have"
            )
        context = click.get_current_context()
        for each in ("strategy", "schedule"):
            if context.get_parameter_source(each) is ParameterSource.DEFAULT:
                del settings[each]
        kind = fpgapipe.load_board(board)
        show(fpgapipe.build_board(name, kind, devices or 1, folder, **settings))
    else:
        cluster = chosen_cluster(board, devices, cluster_file, nodes, DEVICES)
        show(fpgapipe.build(name, cluster, folder, **settings))
