"""``fpgapipe oracle``: what parallel strategies take over numbers of devices."""

from __future__ import annotations

from typing import Any

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.arrays import parse_array
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.plots import check_plots, parse_numbers, plot_option, write_plots
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.result import show
from fpgapipe.jobs import other_processors

MOST_DEVICES = 65_536
"""Most devices that may be asked for."""


@command(
    "oracle",
    example="fpgapipe oracle digits-cnn --board u280 --array 8x8 --devices 1,2,4 --plot speed.svg",
    lowers=True,
)
@click.argument("network", required=False)
@click.option("--board", metavar="NAME", help="Board whose core and links a network has.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    help="Samples of an epoch, for a network; seconds are then those of an epoch.",
)
@click.option("--profile", metavar="FILE", help="Measured times and bytes of a sample, as CSV.")
@click.option(
    "--model",
    type=click.Choice(["paradl", "machine"]),
    default="machine",
    help="The formulas of the paper, or prices of the machine.",
)
@click.option("--platform", metavar="FILE", help="Links, element size and samples, as YAML.")
@click.option(
    "--batch-per-device",
    type=ranges.SAMPLES,
    help="Samples of a mini-batch for each device of the data axis [default: 64].",
)
@click.option(
    "--batch", type=ranges.SAMPLES, help="Samples of a mini-batch, of all devices together."
)
@click.option("--array", metavar="RxC", help="Rows and columns of each device's array of cells.")
@click.option(
    "--devices",
    metavar="N,N,..",
    default="1,2,4,8",
    help="Numbers of devices that are asked about.",
)
@click.option(
    "--filter-devices",
    type=ranges.MICROBATCHES,
    help="Devices that share the filters, or an image, in data+filter and data+spatial [default: "
    "the fastest of several; of formulas, 4].",
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Micro-batches of a mini-batch [default: the best of several; of formulas, 4].",
)
@click.option(
    "--strategies",
    metavar="NAME,..",
    help="Names of the strategies that are asked about [default: all].",
)
@plot_option("speed over the number of devices")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@other_processors()
def oracle(
    network: str | None,
    devices: str,
    array: str | None,
    strategies: str | None,
    plot: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Foretell time, memory and limits of parallel strategies over numbers of devices.

    NETWORK is as for 'inspect', on boards of one kind in a chain: data parallelism and pipelines
    take what their plans take, shards of layers are priced by programs. Seconds are those of a
    mini-batch, or of an epoch of --samples. --model paradl takes the formulas of the paper, with
    times of layers by formulas for the core of a --board, or of a --profile with the columns of
    'plan --profile', per sample.
    """
    numbers = parse_numbers("--devices", devices, MOST_DEVICES)
    check_plots(plot, (network, options["profile"], options["platform"]))
    answers = fpgapipe.oracle(
        network,
        numbers,
        array=parse_array(array),
        strategies=[each.strip() for each in strategies.split(",")] if strategies else None,
        progress=progress,
        **options,
    )
    write_plots(plot, answers.plot)
    show(answers, as_json=as_json)
