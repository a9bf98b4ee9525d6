"""``fpgapipe cluster``: shows the devices and links of a cluster file or of a chain of boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options.cluster_options import with_cluster
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


@command("cluster", example="fpgapipe cluster --board u280 --devices 4")
@with_cluster
@click.argument("cluster_file", metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def cluster(cluster: Cluster, as_json: bool) -> None:
    """Show the devices and links of a cluster.

    The cluster is a FILE, or a chain of --devices equal boards.
    """
    from fpgapipe.host.terminal.console import Column, count, print_json, print_table, scaled

    spec = cluster.spec
    if as_json:
        print_json(_as_json(cluster))
        return
    print_table(
        [
            Column("device"),
            Column("board"),
            *(Column(heading, True) for heading in ("LUT", "BRAM36", "URAM", "DSP")),
            Column("memory", True),
            Column("clock", True),
        ],
        [
            [
                name,
                device.name,
                count(device.lut),
                count(device.bram36),
                count(device.uram),
                count(device.dsp),
                scaled(device.memory_bytes, "B", 1024) if device.memory_bytes else "-",
                scaled(device.clk_hz, "Hz"),
            ]
            for name, device in zip(spec.device_names, spec.devices, strict=True)
        ],
        title=f"{spec.name}: {len(spec.devices)} devices, usable resources",
    )
    if not spec.links:
        return
    print()
    print_table(
        [
            Column("link"),
            Column("ports"),
            Column("protocol"),
            Column("line rate", True),
            Column("payload", True),
            Column("latency", True),
        ],
        [
            [
                f"{spec.device_names[link.source]} -> {spec.device_names[link.destination]}",
                f"{link.source_port} -> {link.destination_port}",
                link.protocol,
                scaled(link.line_rate_bits_per_s, "b/s"),
                scaled(link.payload_bytes_per_s, "B/s"),
                f"{link.latency_s * 1e9:g} ns",
            ]
            for link in spec.links
        ],
        title=f"{len(spec.links)} links, each in both directions at once",
    )
    for note in cluster.notes:
        print(f"note: {note}")


def _as_json(cluster: Cluster) -> dict[str, object]:
    import dataclasses

    spec = cluster.spec
    boards = {device.name: dataclasses.asdict(device) for device in spec.devices}
    return {
        "name": spec.name,
        "devices": [
            {"name": name, "board": device.name}
            for name, device in zip(spec.device_names, spec.devices, strict=True)
        ],
        "links": [dataclasses.asdict(link) for link in spec.links],
        "boards": boards,
        "notes": list(cluster.notes),
    }
