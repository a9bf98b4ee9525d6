"""``fpgapipe compare``: compares several ways to train a network on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command(
    "compare", example="fpgapipe compare resnet50 --board u280 --devices 4 --batch 64", lowers=True
)
@click.argument("network", shell_complete=networks_that_begin)
@cluster_options
@click.option(
    "--batch", type=ranges.SAMPLES, default=64, show_default=True, help="Samples in a mini-batch."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(network: str, cluster: Cluster, batch: int, as_json: bool) -> None:
    """Compare one device, data parallel, an even split and pipeline schedules for NETWORK.

    The times of layers are those of the program of the whole network, or estimates where the core
    does not run a layer; the table says which, and has no ratio of one to the other. 'plan' times
    the programs of all devices. The schedules of BaPipe (1f1b-sno, 1f1b-so, 1f1b-as, fbp-as) are a
    re-implementation from its abstract.
    """
    import dataclasses

    from fpgapipe.host.make.networks import loader
    from fpgapipe.host.terminal.console import Column, print_json, print_table, progress, scaled
    from fpgapipe.partition.pricing.machine_comparison import compare_on_machine

    load = loader(network)
    count = load.micro_batches(batch, None)
    with progress() as display:
        display.add_task("comparing")
        found = compare_on_machine(
            load,
            batch,
            cluster.spec,
            microbatch=None if count is None else batch // count,
            on_step=lambda done, total: display.update(completed=done, total=total),
        )
    parallel, alone = found.find("data parallel"), found.find("one device")

    if as_json:
        entries = [
            {
                **dataclasses.asdict(entry),
                "over_data_parallel": entry.over(parallel),
                "over_one_device": entry.over(alone),
            }
            for entry in found.entries
        ]
        print_json(
            {
                "network": network,
                "batch": batch,
                "cluster": cluster.spec.name,
                "entries": entries,
                "refused": list(found.refused),
            }
        )
        return
    headings = ["devices", "micro-batches", "mini-batch", "over data parallel"]
    headings += ["over one device", "bubble", "memory by formula", "link load"]
    print_table(
        [Column("way"), *(Column(text, True) for text in headings), Column("prices")],
        [
            (
                entry.name,
                entry.num_devices,
                entry.num_microbatches,
                scaled(entry.minibatch_s, "s"),
                _times(entry.over(parallel)),
                _times(entry.over(alone)),
                f"{entry.bubble_rate:.1%}",
                scaled(entry.memory_bytes, "B", 1024),
                f"{entry.link_load:.1%}",
                entry.level,
            )
            for entry in found.entries
        ],
        f"{network}, batch {batch}, on {cluster.spec.name}",
    )
    for reason in found.refused:
        print(f"left out: {reason}")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
