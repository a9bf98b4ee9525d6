"""Degrees: into how many equal parts the work of layers that run together is cut, axis by axis."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from fpgapipe.network.operators import (
    Activation,
    BatchNorm,
    Conv,
    Dropout,
    GlobalPool,
    Linear,
    Pool,
)
from fpgapipe.network.operators.pointwise import Elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.network.graph import Graph, Layer

Range = tuple[int, int]
"""First index and the index after the last."""


Axis = Literal["sample", "channel", "height", "width", "input"]
"""Name of an axis that can be cut."""

AXES: tuple[Axis, ...] = ("sample", "channel", "height", "width", "input")
"""Axes that can be cut, in the order in which devices are numbered."""


@dataclass(frozen=True)
class Degrees:
    """Number of parts along each axis of the work; their product is the number of devices in use.

    Attributes
    ----------
    sample : int
        Parts of the batch.
    channel : int
        Parts of the output channels, or of the features of a linear layer.
    height, width : int
        Parts of the rows and of the columns of an image.
    input : int
        Parts of the input channels, or of the input features, of a product, whose summands are
        added up and divided by output channels.
    """

    sample: int = 1
    channel: int = 1
    height: int = 1
    width: int = 1
    input: int = 1

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return self.sample * self.channel * self.height * self.width * self.input

    def __str__(self) -> str:
        """For example ``sample=2 height=2``; ``1`` for a single device."""
        parts = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return " ".join(parts) or "1"


SERIAL = Degrees()
"""Everything on the first device, or the same on all devices."""

CHANNELWISE = (Pool, GlobalPool, BatchNorm, Elementwise, Dropout)
"""Operators that need of their input only the channels that they write."""

IN_PLACE = (Elementwise, BatchNorm, Dropout)
"""Operators whose output has the shape of the input, and needs the same part of it."""


def part(size: int, count: int, number: int) -> Range:
    """Indices of one of `count` parts of an axis, which differ by one at most."""
    return size * number // count, size * (number + 1) // count


def largest(size: int, count: int) -> int:
    """Size of the largest of `count` parts."""
    return -(-size // count)


def common(one: Range, other: Range) -> Range:
    """Indices that are in both ranges; an empty range if there are none."""
    first = max(one[0], other[0])
    return first, max(first, min(one[1], other[1]))


def sharers_of(degrees: Mapping[str, Degrees]) -> int:
    """Devices among which the samples of a mini-batch are divided, by the degrees of all layers."""
    return max((each.sample for each in degrees.values()), default=1)


def degrees_of(graph: Graph, names: Sequence[str], num_devices: int) -> list[Degrees]:
    """All degrees of layers that run together, the single device first.

    Parameters
    ----------
    graph : Graph
    names : sequence of str
        Names of the layers.
    num_devices : int
        Devices at most. Every number of them up to this one is tried, not only powers of two.
    """
    most = [
        min(limits) for limits in zip(*(_most(graph, graph.layers[n]) for n in names), strict=True)
    ]
    sizes = [range(1, min(limit, num_devices) + 1) for limit in most]
    found = (Degrees(*each) for each in product(*sizes))
    return sorted(
        (each for each in found if each.num_devices <= num_devices),
        key=lambda each: (each.num_devices, astuple(each)),
    )


def _most(graph: Graph, layer: Layer) -> tuple[int, int, int, int]:
    """Most parts of a layer's output along each axis."""
    shape = layer.output.shape
    samples = shape[0] if shape and shape[0] == graph.batch else 1
    operator = layer.operator
    channels = height = width = 1
    own = isinstance(operator, Conv) and operator.groups == 1
    if len(shape) == 2 and isinstance(operator, Linear) and len(layer.input_tensors[0].shape) == 2:
        channels = shape[1]
    elif own or isinstance(operator, CHANNELWISE):
        channels = shape[1] if len(shape) in (2, 4) else 1
    windows = own or isinstance(operator, (Pool, *IN_PLACE))
    same = all(each.shape == shape for each in layer.input_tensors)
    if isinstance(operator, Elementwise) and not isinstance(operator, Activation) and not same:
        channels = 1  # some inputs are spread over others
        windows = False
    if windows and len(shape) == 4:
        height, width = shape[2:]
    return samples, channels, height, width
