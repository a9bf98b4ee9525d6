"""Bytes that move between the shards of two layers, and the time that a chain of devices takes.

A shard of the layer that reads needs a box of its input: a range of indices along each axis. The
shards of the layer that writes have boxes that cover the tensor without overlap. What a device
needs and does not have itself comes over the links from those that have it; devices in between pass
it on. In the backward pass the gradients of the same elements go back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.shards.degrees import CHANNELWISE, part
from fpgapipe.lowering.shards.windows import needed_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.shards.degrees import Degrees
    from fpgapipe.network.operators import Operator

    Boxes = NDArray[np.int64]


def written_boxes(
    shape: Sequence[int],
    batch: int,
    choices: Sequence[Degrees],
    num_devices: int,
    *,
    spread: bool = False,
) -> Boxes:
    """Box of a tensor that each device writes.

    Parameters
    ----------
    shape : sequence of int
    batch : int
    choices : sequence of Degrees
    num_devices : int
    spread : bool
        Whether fewer shards than devices are each on the first of a group of devices, instead of on
        the first devices.

    Returns
    -------
    array, shape (choices, devices, 4, 2)
        First index and the one after the last along samples, channels, rows and columns; devices
        without a shard have empty boxes.
    """
    sizes = _sizes(shape, batch)
    found = np.zeros((len(choices), num_devices, 4, 2), np.int64)
    for number, degrees in enumerate(choices):
        counts = degrees.sample, degrees.channel, degrees.height, degrees.width
        step = num_devices // degrees.num_devices if spread else 1
        for shard in range(math.prod(counts)):
            for axis, at in enumerate(np.unravel_index(shard, counts)):
                found[number, step * shard, axis] = part(sizes[axis], counts[axis], int(at))
    return found


def needed_boxes(
    shape: Sequence[int],
    written: Sequence[int],
    batch: int,
    operator: Operator,
    choices: Sequence[Degrees],
    num_devices: int,
    *,
    spread: bool = False,
) -> Boxes:
    """Box of a tensor that each device reads, in the form of `written_boxes`.

    Parameters
    ----------
    shape : sequence of int
        Shape of the tensor.
    written : sequence of int
        Shape of what the layer that reads it writes.
    batch : int
    operator : Operator
        The operator that reads it.
    choices : sequence of Degrees
        Degrees of the layer that reads it.
    num_devices, spread
        As for `written_boxes`.
    """
    sizes = _sizes(shape, batch)
    found = written_boxes(written, batch, choices, num_devices, spread=spread)
    own = _sizes(written, batch)
    used = found[..., 0, 1] > found[..., 0, 0]
    for axis in range(4):
        whole = axis == 1 and not isinstance(operator, CHANNELWISE)
        whole |= axis == 0 and own[0] != sizes[0]
        if axis >= 2 and len(shape) == 4 and len(written) == 4:
            for index in np.argwhere(used):
                low, high = found[(*index, axis)]
                rows = (int(low), int(high))
                found[(*index, axis)] = needed_rows(operator, axis - 2, sizes[axis], rows)
        elif whole or axis >= 2 or own[axis] != sizes[axis]:
            found[..., axis, :] = np.where(used[..., None], (0, sizes[axis]), 0)
    return found


def busiest_elements(written: Boxes, needed: Boxes) -> NDArray[np.int64]:
    """Elements that go over the busiest link of a chain, in one direction.

    Parameters
    ----------
    written, needed : array
        Results of `written_boxes` and `needed_boxes`, for the same devices.

    Returns
    -------
    array, shape (choices of the writer, choices of the reader)
    """
    low = np.maximum(written[:, None, :, None, :, 0], needed[None, :, None, :, :, 0])
    high = np.minimum(written[:, None, :, None, :, 1], needed[None, :, None, :, :, 1])
    moved = np.maximum(high - low, 0).prod(axis=-1)  # writer's and reader's choice, source, target
    devices = np.arange(moved.shape[-1])
    most = np.zeros(moved.shape[:2], np.int64)
    for link in range(len(devices) - 1):
        before, after = devices <= link, devices > link
        for sources, targets in ((before, after), (after, before)):
            most = np.maximum(most, moved[:, :, sources][..., targets].sum(axis=(2, 3)))
    return most


def _sizes(shape: Sequence[int], batch: int) -> tuple[int, int, int, int]:
    """Sizes of a tensor along samples, channels, rows and columns.

    What has further axes, or no samples, is one channel as long as the rest.
    """
    if len(shape) == 4 and shape[0] == batch:
        return (shape[0], shape[1], shape[2], shape[3])
    total = int(np.prod(shape, dtype=np.int64))
    if shape and shape[0] == batch:
        return (batch, total // batch, 1, 1)
    return (1, total, 1, 1)
