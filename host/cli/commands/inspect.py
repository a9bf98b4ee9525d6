"""``fpgapipe inspect``: prints the layers of a network."""

from __future__ import annotations

import click

import fpgapipe
from fpgapipe.errors import UserError
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.result import show
from fpgapipe.network.zoo import NETWORKS


@command(
    "inspect",
    example="fpgapipe inspect resnet50 --batch 8",
    epilog=f"Built-in networks: {', '.join(NETWORKS)}",
)
@click.argument("network", shell_complete=networks_that_begin)
@click.option(
    "--batch",
    type=ranges.SAMPLES_SHOWN,
    help="Samples in a batch [default: that of the file, else 1].",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare it with what it was imported from, the module or the ONNX model.",
)
@click.option(
    "--hardware",
    is_flag=True,
    help="List what a core runs of each layer, forward and backward, and every reason against.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def inspect(network: str, batch: int | None, verify: bool, hardware: bool, as_json: bool) -> int:
    """Print the layers of NETWORK: shapes, MACs, parameters, features, totals.

    NETWORK is a built-in name (below), a file (.onnx, SCALE-Sim or per-layer times .csv, PipeDream
    .txt), or module:function, which gives a torch module or torch.export program.

    MACs are those of the forward pass over the whole batch; features are the elements of a layer's
    output; passes are what it computes in training (F forward, dX input gradient, dW weight
    gradient).

    --verify runs the network and its source on random inputs, and prints the largest differences of
    results, gradients and statistics instead; the exit code is 1 if they are not the same.

    --hardware lists which engine of a core runs each layer (the systolic array, the vector engine,
    or none where nothing has to be computed), in inference and training, with all reasons why not.
    """
    if verify and hardware:
        raise UserError("--verify and --hardware print different things; give one of them")
    if verify:
        found = fpgapipe.verify(network, batch)
        show(found, as_json=as_json)
        return 1 if found.found.verified is False else 0
    show((fpgapipe.coverage if hardware else fpgapipe.inspect)(network, batch), as_json=as_json)
    return 0
