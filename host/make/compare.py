"""Ways to train a network on a cluster, as ``fpgapipe compare`` compares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fpgapipe.boards.cluster import Cluster
from fpgapipe.host.make.networks import Load, loader
from fpgapipe.host.make.planning import spec_of
from fpgapipe.host.terminal.console import Table, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import ENDED, Result
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.schedule.schedule_kinds import compared_schedules
from fpgapipe.partition.strategies.comparison import Comparison
from fpgapipe.partition.strategies.comparison import compare as compare_ways


@dataclass(frozen=True)
class Compared(Result):
    """Ways to train a network, with their times.

    Attributes
    ----------
    network : str
    batch : int
    cluster : ClusterSpec
    found : Comparison
    """

    RECORDS: ClassVar[str] = "entries"

    network: str
    batch: int
    cluster: ClusterSpec
    found: Comparison

    def to_dict(self) -> dict[str, Any]:
        """The ways, and why others are impossible."""
        parallel, alone = self.found.find("data parallel"), self.found.find("one device")
        return {
            "network": self.network,
            "batch": self.batch,
            "cluster": self.cluster.name,
            "entries": [
                {
                    **dataclasses.asdict(entry),
                    "samples_per_s": self.batch / entry.minibatch_s,
                    "over_data_parallel": entry.over(parallel),
                    "over_one_device": entry.over(alone),
                }
                for entry in self.found.entries
            ],
            "refused": list(self.found.refused),
            "is_whole": self.found.is_whole,
        }

    def shown(self) -> Iterator[Table | str]:
        """A row for each way, and why others are impossible."""
        parallel, alone = self.found.find("data parallel"), self.found.find("one device")
        columns = "way|>devices|>micro-batches|>mini-batch|>samples/s|>over data parallel"
        columns += "|>over one device|>bubble|>memory|>link load|prices"
        yield Table(
            columns,
            [
                (
                    entry.name,
                    entry.num_devices,
                    entry.num_microbatches,
                    scaled(entry.minibatch_s, "s"),
                    f"{self.batch / entry.minibatch_s:,.1f}",
                    _times(entry.over(parallel)),
                    _times(entry.over(alone)),
                    f"{entry.bubble_rate:.1%}",
                    scaled(entry.memory_bytes, "B", 1024),
                    f"{entry.link_load:.1%}",
                    entry.level,
                )
                for entry in self.found.entries
            ],
            f"{self.network}, batch {self.batch}, on {self.cluster.name}",
        )
        for reason in self.found.refused:
            yield f"left out: {reason}"
        if not self.found.is_whole:
            yield ENDED


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def compare(
    network: str | Load,
    cluster: Cluster | ClusterSpec,
    *,
    batch: int = 64,
    progress: Progress = silent,
) -> Compared:
    """Compare one device, data parallelism, an even split and pipeline schedules.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    cluster : Cluster or ClusterSpec
    batch : int
        Samples in a mini-batch.
    progress : callable
        Shows the progress.
    """
    load, spec = loader(network), spec_of(cluster)
    count = load.micro_batches(batch, None)
    request = Request(load, batch, spec, compared_schedules(), count)
    with progress() as display:
        display.add_task("comparing")
        found = compare_ways(request, load.name, display.count)
    return Compared(load.name, batch, spec, found)
