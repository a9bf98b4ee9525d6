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
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Samples.")
@click.option("--micro-batches", type=click.IntRange(min=1), help="Instead of trying several.")
@click.option("--schedule", default="1f1b-as", show_default=True, help="A kind, or auto.")
@click.option("--array", "array", metavar="RxC", default="8x8", show_default=True, help="Cells.")
@click.option("-o", "--output", "folder", metavar="DIR", help="Folder [default: out/NETWORK].")
def build(
    cluster: Cluster,
    network: str,
    batch: int,
    micro_batches: int | None,
    schedule: str,
    array: str,
    folder: str | None,
) -> None:
    """Plan a network for the boards and generate their hardware.

    So far the hardware is the systolic array alone; programs, training and links are to come
    (docs/limits.md).
    """
    from pathlib import Path

    from fpgapipe.host.build import write_build
    from fpgapipe.host.commands.planning import loader, parse_array, print_plan, run_exploration
    from fpgapipe.partition.explorer import AUTO_SCHEDULES, Request, as_plan

    load = loader(network)
    kinds = AUTO_SCHEDULES if schedule == "auto" else (schedule,)
    request = Request(load, batch, cluster.spec, kinds, micro_batches, array=parse_array(array))
    best = run_exploration(request).best
    assert best.microbatch is not None
    graph = load(best.microbatch)
    plan = as_plan(best, graph, network, batch, cluster.spec)
    built = write_build(plan, Path(folder or f"out/{graph.name}"))
    print_plan(plan, cluster.spec)
    print(f"written to {built.folder}")
