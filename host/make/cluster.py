"""The devices and links of a cluster, as ``fpgapipe cluster`` shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fpgapipe.boards.cluster import Cluster
from fpgapipe.errors import counted
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.result import Result


@dataclass(frozen=True)
class ClusterSheet(Result):
    """The devices and links of a cluster.

    Attributes
    ----------
    cluster : Cluster
    """

    RECORDS: ClassVar[str] = "devices"

    cluster: Cluster

    def to_dict(self) -> dict[str, Any]:
        """Devices, links, and what a board of each kind offers."""
        spec = self.cluster.spec
        boards = {device.name: dataclasses.asdict(device) for device in spec.devices}
        return {
            "name": spec.name,
            "devices": [
                {"name": name, "board": device.name}
                for name, device in zip(spec.device_names, spec.devices, strict=True)
            ],
            "links": [dataclasses.asdict(link) for link in spec.links],
            "boards": boards,
            "notes": list(self.cluster.notes),
        }

    def shown(self) -> Iterator[Table | str]:
        """A row for each device, and one for each link."""
        spec = self.cluster.spec
        yield Table(
            "device|board|>LUT|>BRAM36|>URAM|>DSP|>memory|>clock",
            [
                [
                    name,
                    device.name,
                    *(count(each) for each in (device.lut, device.bram36, device.uram, device.dsp)),
                    scaled(device.memory_bytes, "B", 1024) if device.memory_bytes else "-",
                    scaled(device.clk_hz, "Hz"),
                ]
                for name, device in zip(spec.device_names, spec.devices, strict=True)
            ],
            title=f"{spec.name}: {counted(len(spec.devices), 'device')}, usable resources",
        )
        if not spec.links:
            return
        yield ""
        yield Table(
            "link|ports|protocol|>line rate|>payload|>latency",
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
            title=f"{counted(len(spec.links), 'link')}, each in both directions at once",
        )
        for note in self.cluster.notes:
            yield f"note: {note}"


def describe_cluster(cluster: Cluster) -> ClusterSheet:
    """The devices and links of a cluster, and notes about links that run slower than they could.

    Parameters
    ----------
    cluster : Cluster
        What `load_cluster` and `chain_of` give.
    """
    return ClusterSheet(cluster)
