"""Question to the oracle with prices of the machine: a network, boards and a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.partition.explore.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.network.graph import Graph

SCHEDULE = "1f1b-as"
"""Order of the passes of a pipeline, the one that ``fpgapipe build`` takes if none is named."""


@dataclass(frozen=True)
class Batch:
    """Samples of a mini-batch.

    Attributes
    ----------
    samples : int
    per_device : bool
        Whether each device of the data axis has so many, or else all devices together.
    """

    samples: int
    per_device: bool = True

    def of(self, sharers: int) -> int:
        """Samples of a mini-batch that some devices, or groups of them, share.

        Raises
        ------
        UserError
            If these cannot share it equally.
        """
        if self.per_device:
            return self.samples * sharers
        if self.samples % sharers:
            raise UserError(
                f"a batch of {self.samples} samples cannot be shared equally by {sharers}"
            )
        return self.samples


@dataclass(frozen=True)
class Machine:
    """A network, and boards of one kind in a chain.

    Attributes
    ----------
    load : callable
        Returns the network for a number of samples.
    network : str
    cluster_of : callable
        Returns the chain of a number of boards.
    batch : Batch
    num_microbatches : int or None
        Micro-batches of a mini-batch, of those devices that have the same samples; None for the
        best of several.
    array : tuple of int or None
        Rows and columns of the array; None for the best of several.
    group_devices : int or None
        Devices of a group in data+filter and data+spatial; None for the best of several.
    """

    load: Callable[[int], Graph]
    network: str
    cluster_of: Callable[[int], ClusterSpec]
    batch: Batch
    num_microbatches: int | None = None
    array: tuple[int, int] | None = None
    group_devices: int | None = None

    def request(self, devices: int, groups: int) -> Request:
        """Request to the planner, if groups of the devices share the samples."""
        number = self.num_microbatches
        return Request(
            self.load,
            self.batch.of(groups),
            self.cluster_of(devices),
            (SCHEDULE,),
            None if number is None else number * groups,
            array=self.array,
        )
