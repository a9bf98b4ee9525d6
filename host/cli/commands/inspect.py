"""``fpgapipe inspect``: prints the layers of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.network.graph import Graph


@command("inspect", example="fpgapipe inspect resnet50 --batch 8")
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
def inspect(
    network: str, batch: int | None, verify: bool, hardware: bool, as_json: bool
) -> int | None:
    """Print the layers of NETWORK: shapes, MACs, parameters, features, totals.

    NETWORK is a built-in name (digits-cnn, resnet-mini, vgg-mini, lenet5, alexnet, vgg16, resnet18,
    resnet50, resnet152, inception_v3, mobilenet_v2, gnmt8, gnmt16, cosmoflow, bert_base, vit_b,
    gpt2_small), a file (.onnx, SCALE-Sim or per-layer times .csv, PipeDream .txt), or
    module:function, which gives a torch module or torch.export program.

    MACs are those of the forward pass over the whole batch; features are the elements of a layer's
    output; passes are what it computes in training (F forward, dX input gradient, dW weight
    gradient).

    --verify runs the network and its source on random inputs, and prints the largest differences of
    results, gradients and statistics instead; the exit code is 1 if they are not the same.

    --hardware lists which engine of a core runs each layer (the systolic array, the vector engine,
    or none where nothing has to be computed), in inference and training, with all reasons why not.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.terminal.console import Column, count, print_json, print_table
    from fpgapipe.network.load import load_network

    if verify and hardware:
        raise UserError("--verify and --hardware print different things; give one of them")
    graph = load_network(network, batch)
    if hardware:
        _print_coverage(graph, as_json)
        return None
    if verify:
        return _verify(graph, as_json)
    if as_json:
        print_json(graph.to_dict())
        return None
    columns = [
        Column("layer"),
        Column("op"),
        Column("inputs"),
        Column("output shape"),
        Column("MACs", number=True),
        Column("parameters", number=True),
        Column("features", number=True),
        Column("passes"),
    ]
    rows = [
        (
            layer.name,
            layer.op,
            " ".join(layer.inputs),
            "x".join(map(str, layer.output.shape)) or "scalar",
            count(layer.macs),
            count(layer.num_parameters),
            count(layer.features),
            " ".join(graph.passes(layer.name)),
        )
        for layer in graph.layers.values()
    ]
    totals = graph.totals
    rows.append(
        (
            "total",
            "",
            "",
            "",
            count(totals.macs),
            count(totals.parameters),
            count(totals.features),
            "",
        )
    )
    batch_text = "as measured" if graph.batch is None else graph.batch
    title = f"{graph.name}, batch {batch_text}, {len(graph.layers)} layers"
    print_table(columns, rows, title)
    if len(graph.outputs) > 1:
        names = [
            f"{name} (only in training)" if name in graph.auxiliary else name
            for name in graph.outputs
        ]
        print(f"outputs: {', '.join(names)}")
    return None


def _print_coverage(graph: Graph, as_json: bool) -> None:
    """Print what a core runs of a network."""
    from fpgapipe.host.terminal.console import Column, print_json, print_table
    from fpgapipe.lowering.units.coverage import coverage_of

    found = coverage_of(graph)
    if as_json:
        print_json({"network": graph.name, "batch": graph.batch, **found.to_dict()})
        return
    columns = [Column(title) for title in ("layer", "op", "with", "engine", "forward", "backward")]
    rows = [
        (
            each.layer,
            each.op,
            each.unit if each.unit != each.layer else "",
            each.engine if each.unit else "",
            "yes" if each.forward else "no",
            "yes" if each.backward else "no",
        )
        for each in found.layers
    ]
    print_table(columns, rows, f"{graph.name}, batch {graph.batch}, on a core")
    alike: dict[str, list[str]] = {}
    for each in found.layers:
        for reason in each.reasons:
            alike.setdefault(reason, []).append(each.layer)
    for reason, names in alike.items():
        print(f"{', '.join(names)}: {reason}")
    if found.trains:
        print(f"A core of enough room runs and trains {graph.name}.")
    else:
        runs = "runs but does not train" if found.infers else "does not run"
        print(f"The core {runs} {graph.name} (docs/limits.md).")


def _verify(graph: Graph, as_json: bool) -> int:
    """Print how a network compares with its source; return 1 if they differ, else 0."""
    from fpgapipe.host.backends.verification import verify
    from fpgapipe.host.terminal.console import Column, print_json, print_table

    found = verify(graph)
    if as_json:
        print_json({"network": graph.name, "batch": graph.batch, **found.to_dict()})
    else:
        rows = [
            (kind, name, f"{error:.1e}")
            for kind, each in found.errors.items()
            for name, error in each.items()
        ]
        if rows:
            columns = [Column("compared"), Column("name"), Column("difference", True)]
            print_table(columns, rows, f"{graph.name}, batch {graph.batch}")
        print(f"{graph.name} {found}" if found.verified is False else str(found))
    return 1 if found.verified is False else 0
