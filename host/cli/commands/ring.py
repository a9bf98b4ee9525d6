"""``fpgapipe ring``: trains several models that travel around devices whose samples stay."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.arrays import parse_array
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.shared import (
    array_option,
    momentum_option,
    threads_option,
    trained_batch_option,
)
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.result import show

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command(
    "ring",
    example="fpgapipe ring digits-cnn digits-cnn --board u280 --array 4x4 --batch 8 --plan",
    lowers=True,
)
@click.argument("networks", metavar="MODEL MODEL ...", nargs=-1, shell_complete=networks_that_begin)
@partial(cluster_options, default_devices=2)
@click.option(
    "--data",
    default="digits",
    metavar="digits|random|FILE.npz|FOLDER",
    help="Samples, of which each device gets a part that never leaves it; as for 'run'.",
)
@click.option(
    "--epochs",
    type=ranges.EPOCHS,
    default=1,
    help="Passes of each model through all samples: visits to all devices.",
)
@trained_batch_option
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Equal parts of a mini-batch [default: the best of several].",
)
@array_option
@click.option(
    "--learning-rate",
    "learning_rates",
    type=ranges.LEARNING_RATE,
    multiple=True,
    help="Learning rate of SGD; give it once for all models, or once for each [default: as 'run'].",
)
@momentum_option
@click.option(
    "--weight-decay",
    type=ranges.WEIGHT_DECAY,
    default=1e-4,
    help="Share of each weight that is added to its gradient.",
)
@click.option(
    "--seed",
    type=ranges.SEED,
    default=0,
    help="Seed of the order of the samples and of the first model's random parameters; each "
    "further model has the next number.",
)
@click.option(
    "--backend",
    type=click.Choice(["model", "sim"]),
    default="model",
    help="What runs: the bit-exact model, or simulated devices.",
)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Run the other backend beside, and compare all memories.",
)
@click.option(
    "--shuffled",
    is_flag=True,
    help="Also train each model alone on shuffled samples of all, and compare the accuracies.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Compare an imported network with its source first; refuse one that differs.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Only plan; train nothing.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    help="With --plan: samples of the training set, instead of those of --data.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint of the last whole round.")
@threads_option
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    default="out/ring",
    help="Folder for the plan, the Verilog, programs, the log, checkpoints and trained parameters.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ring(
    networks: tuple[str, ...],
    cluster: Cluster,
    folder: str,
    array: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Train several models in a ring: each device keeps its part of the samples, models travel.

    Each MODEL is a network, by name or file, as for 'inspect'; the same name may come several
    times. A model visits one device after the other, is trained there on the samples of the device,
    and hops to the next one with its weights and the optimiser's values.
    """
    found = fpgapipe.ring(
        networks,
        cluster,
        folder,
        array=parse_array(array),
        on_note=print,
        progress=progress,
        **options,
    )
    show(found, as_json=as_json)
    if found.difference is None:
        return 0
    if not as_json:
        print(f"difference: {found.difference}", file=sys.stderr)
    return 1
