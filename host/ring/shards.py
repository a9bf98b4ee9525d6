"""The samples of a ring's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from fpgapipe.host.data.samples import Samples


def shard_size(samples: int, num_devices: int, batch: int) -> int:
    """Samples of each device; the last ones are left out, if they are fewer than devices.

    Raises
    ------
    UserError
        If a shard does not fill a mini-batch.
    """
    size = samples // num_devices
    if size < batch:
        raise UserError(
            f"a mini-batch has {batch} samples, but each of {num_devices} devices has only {size} "
            f"of the {samples} of the training set; take a smaller --batch, fewer devices or more "
            "samples"
        )
    return size


def shards_of(train: Samples, num_devices: int, batch: int) -> list[Samples]:
    """Divide a training set: a shard for each device, all of the same size (`shard_size`).

    Device `s` has every sample whose number leaves the rest `s` when it is divided by the number of
    devices.
    """
    size = shard_size(len(train.labels), num_devices, batch)
    return [
        train.some(np.arange(device, size * num_devices, num_devices))
        for device in range(num_devices)
    ]
