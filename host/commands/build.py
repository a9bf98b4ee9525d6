"""``fpgapipe build``: from network and cluster to a folder with plan and hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.commands.cluster_options import cluster_options
from fpgapipe.host.commands.options import command

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command("build", example="fpgapipe build --board u280 --devices 2 -o out/digits-cnn")
@cluster_options
@click.option("--network", default="digits-cnn", show_default=True, help="As for 'inspect'.")
@click.option("--batch", type=click.IntRange(min=1), help="Samples in a micro-batch.")
@click.option("--array", "array", metavar="RxC", default="8x8", show_default=True, help="Cells.")
@click.option("-o", "--output", "folder", metavar="DIR", help="Folder [default: out/NETWORK].")
def build(
    cluster: Cluster, network: str, batch: int | None, array: str, folder: str | None
) -> None:
    """Lay a network out over the boards and generate their hardware.

    So far the layers are dealt out by their forward MACs, and the hardware is the systolic array
    alone; schedules, training and links are to come (docs/limits.md).
    """
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.build import make_plan, write_build
    from fpgapipe.host.console import Column, count, print_table
    from fpgapipe.partition.load import load_network
    from fpgapipe.partition.plan import ArrayPlan

    try:
        rows, cols = (int(side) for side in array.lower().split("x"))
        shape = ArrayPlan(rows=rows, cols=cols)
    except ValueError:
        raise UserError(
            f"--array must be ROWSxCOLS, each 1..1024, such as 8x8, not {array!r}"
        ) from None
    graph = load_network(network, batch)
    spec = cluster.spec
    plan = make_plan(graph, network, spec.name, spec.device_names, shape)
    built = write_build(plan, Path(folder or f"out/{graph.name}"))
    print_table(
        [
            Column("stage", number=True),
            Column("device"),
            Column("layers", number=True),
            Column("from"),
            Column("to"),
            Column("forward MACs", number=True),
        ],
        [
            (
                i,
                stage.device,
                len(stage.layers),
                stage.layers[0],
                stage.layers[-1],
                count(stage.macs),
            )
            for i, stage in enumerate(plan.stages)
        ],
        title=f"{graph.name}, batch {plan.batch}, over {spec.name}, arrays of {array}",
    )
    print(f"written to {built.folder}")
