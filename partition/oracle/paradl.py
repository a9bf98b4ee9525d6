"""Time and memory of parallel strategies by the formulas of ParaDL.

The formulas are those of Kahira et al., "An oracle for guiding large-scale model/hybrid parallel
training of convolutional neural networks" (HPDC 2021), per epoch of `D` samples, with ring
collectives: an all-reduce of `m` bytes over `p` devices takes ``2 (p-1) (a + m b / p)`` with the
start-up `a` and the seconds per byte `b` of a link, an all-gather of pieces of `m` bytes
``(p-1) (a + m b)``. Where the authors' program and the formulas of the paper differ, this follows
the program, whose figures the paper prints: the weights that data+filter sums between nodes are
those of all filters over the number of nodes, the devices of a node share its uplink, and an epoch
has a whole number of batches.

A batch has `b` samples for each device of the data axis: `b p` in data parallelism, `b` where the
batch is not cut, `b p / q` in data+filter with `q` devices of filters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.partition.oracle.forecast import Forecast, Loss, check_most, limiter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.partition.oracle.platform import Platform, PlatformLink

FILTER_PHASES = 3
"""Ring phases of filter parallelism: an all-gather forward, an all-reduce (two) backward."""


@dataclass(frozen=True)
class LayerRow:
    """A layer, per sample.

    Attributes
    ----------
    name : str
    input_elements, output_elements, weight_elements : float
        Elements of the input and of the output of a sample, and of the weights.
    forward_s, backward_s : float
        Seconds of a sample.
    update_s : float
        Seconds of the update of the weights, once for each batch.
    has_filters : bool
        Whether filter and channel parallelism cut the layer.
    filters, channels : int or None
        Output and input channels, where they are known.
    image : Image or None
        Shapes of a layer that spatial parallelism cuts, where they are known.
    """

    name: str
    input_elements: float
    output_elements: float
    weight_elements: float
    forward_s: float
    backward_s: float
    update_s: float = 0.0
    has_filters: bool = True
    filters: int | None = None
    channels: int | None = None
    image: Image | None = None


@dataclass(frozen=True)
class Image:
    """Shapes of a layer that works on images, for spatial parallelism.

    Attributes
    ----------
    read, written : tuple of int
        Channels, rows and columns of the input and of the output.
    kernel : tuple of int
        Rows and columns of the window.
    """

    read: tuple[int, int, int]
    written: tuple[int, int, int]
    kernel: tuple[int, int]

    def halo(self, grid: tuple[int, int]) -> float:
        """Elements of a sample that a device gets of its neighbours, forward and backward.

        Half a window on each side that has a neighbour, of the input, and of the gradient of the
        output.

        Parameters
        ----------
        grid : tuple of int
            Parts of the rows and of the columns.
        """
        total = 0.0
        for channels, *sizes in (self.read, self.written):
            for axis, parts in enumerate(grid):
                across = sizes[1 - axis] / grid[1 - axis]
                total += min(parts - 1, 2) * (self.kernel[axis] // 2) * across * channels
        return total


@dataclass(frozen=True)
class Question:
    """Question to the formulas.

    Attributes
    ----------
    layers : sequence of LayerRow
        The layers in their order.
    platform : Platform
    batch : int
        Samples of a batch for each device of the data axis.
    filter_devices : int
        Devices of filters in data+filter.
    num_microbatches : int
        Micro-batches of a pipeline.
    """

    layers: Sequence[LayerRow]
    platform: Platform
    batch: int
    filter_devices: int = 4
    num_microbatches: int = 4

    @property
    def sample_s(self) -> float:
        """Seconds of all passes of a sample on one device."""
        return sum(each.forward_s + each.backward_s for each in self.layers)

    @property
    def weights(self) -> float:
        """Elements of all weights."""
        return sum(each.weight_elements for each in self.layers)

    @property
    def activations(self) -> float:
        """Elements of all inputs and outputs of a sample."""
        return sum(each.input_elements + each.output_elements for each in self.layers)

    @property
    def update_s(self) -> float:
        """Seconds of an update of all weights."""
        return sum(each.update_s for each in self.layers)

    @property
    def cut_layers(self) -> list[LayerRow]:
        """Layers whose filters are cut; the last layer's outputs need not be gathered."""
        cut = [each for each in self.layers if each.has_filters]
        return [each for each in cut if each is not self.layers[-1]]

    def cut_s(self, count: int) -> float:
        """Seconds of a sample if the filters are cut into some parts."""
        whole = sum(
            each.forward_s + each.backward_s for each in self.layers if not each.has_filters
        )
        return whole + (self.sample_s - whole) / count

    def gathered_s(self, devices: int, batch: float, parts: int) -> float:
        """Seconds in which outputs and their gradients go round the devices, for one batch.

        Parameters
        ----------
        devices : int
            Devices of a ring.
        batch : float
            Samples of the batch.
        parts : int
            Parts into which the outputs of the batch are cut, on all devices.
        """
        link = self.platform.link(devices)
        rate = link.bytes_per_s / self.platform.bytes_per_element
        phase = sum(
            link.latency_s + batch * each.output_elements / parts / rate for each in self.cut_layers
        )
        return FILTER_PHASES * (devices - 1) * phase


def serial(question: Question, devices: int) -> Forecast:
    """The whole network on one device."""
    check_most("serial", devices, 1, "copies of the network")
    return replace(data(question, 1), name="serial", max_devices=1)


def data(question: Question, devices: int) -> Forecast:
    """Data parallelism: the whole network on each device, the gradients added up in a ring."""
    platform, samples = question.platform, question.platform.samples
    size, link = platform.bytes_per_element, platform.link(devices)
    steps = math.ceil(samples / (question.batch * devices))
    compute = samples / devices * question.sample_s + steps * question.update_s
    share = question.weights / devices * size / link.bytes_per_s
    exchange = 2 * steps * (devices - 1) * (link.latency_s + share)
    memory = 2 * size * (question.batch * question.activations + question.weights)
    most = int(samples / question.batch)
    return _forecast("data", devices, compute, exchange, memory, most, "gradient exchange")


def pipeline(question: Question, devices: int) -> Forecast:
    """A pipeline of groups of layers of about equal time, in the order of the network."""
    layers, platform = question.layers, question.platform
    most = len(layers)
    check_most("pipeline", devices, most, "layers")
    groups = _groups([each.forward_s + each.backward_s for each in layers], devices)
    size, link, count = (
        platform.bytes_per_element,
        platform.link(devices),
        question.num_microbatches,
    )
    samples, batch = platform.samples, question.batch

    def largest(value: Callable[[LayerRow], float]) -> float:
        return max(sum(value(layers[at]) for at in group) for group in groups)

    compute = samples * (devices + count - 1) / count
    compute *= largest(lambda each: each.forward_s) + largest(lambda each: each.backward_s)
    compute += samples / batch * largest(lambda each: each.update_s)
    sent = [layers[group[-1]].output_elements for group in groups[:-1]]
    hop = max(
        (link.latency_s + batch / count * each * size / link.bytes_per_s for each in sent),
        default=0.0,
    )
    transfers = 2 * samples * (devices + count - 2) / batch * hop
    memory = (
        2
        * size
        * largest(
            lambda each: batch * (each.input_elements + each.output_elements) + each.weight_elements
        )
    )
    ideal = samples * question.sample_s / devices
    idle = 1 - ideal / compute if compute else 0.0
    found = _forecast("pipeline", devices, compute, transfers, memory, most, "stage transfers")
    if idle * compute > transfers:
        words = f"load balance and the fill of the pipeline: {idle:.0%} of the time of computing"
        return replace(found, limiter=words)
    return found


def filters(question: Question, devices: int, name: str = "filter") -> Forecast:
    """Filter parallelism, or channel parallelism, whose figures are the same."""
    known = [each.filters if name == "filter" else each.channels for each in question.cut_layers]
    limits = [each for each in known if each is not None]
    most = min(limits) if limits and len(limits) == len(known) else None
    if most is not None:
        check_most(name, devices, most, "filters" if name == "filter" else "channels")
    samples, size = question.platform.samples, question.platform.bytes_per_element
    steps = math.ceil(samples / question.batch)
    compute = samples * question.cut_s(devices) + steps * question.update_s / devices
    moved = steps * question.gathered_s(devices, question.batch, devices)
    memory = 2 * size * (question.batch * question.activations + question.weights / devices)
    return _forecast(name, devices, compute, moved, memory, most, "layer-wise collectives")


def data_filter(question: Question, devices: int) -> Forecast:
    """Nodes share the samples of a batch, the devices of a node its filters."""
    inside = question.filter_devices
    if devices % inside:
        raise UserError(f"data+filter needs a multiple of {inside} devices, not {devices}")
    nodes = devices // inside
    platform, samples = question.platform, question.platform.samples
    size, link = platform.bytes_per_element, platform.link(devices)
    batch = question.batch * nodes
    steps = math.ceil(samples / batch)
    compute = steps * (question.batch * question.cut_s(inside) + question.update_s / inside)
    gathered = steps * question.gathered_s(inside, batch, devices)
    rate = link.bytes_per_s / (2 * inside if platform.shared_uplink else 1)
    share = question.weights / nodes * size / rate
    exchange = 2 * steps * (nodes - 1) * (link.latency_s + share)
    memory = 2 * size * (question.batch * question.activations + question.weights / inside)
    limiter = "gradient exchange" if exchange > gathered else "layer-wise collectives"
    return _forecast("data+filter", devices, compute, gathered + exchange, memory, None, limiter)


def spatial(question: Question, devices: int) -> Forecast:
    """Spatial parallelism: each device has a part of the rows and columns of all images."""
    most, grid = _grid("spatial", question, devices)
    platform, samples = question.platform, question.platform.samples
    size, link = platform.bytes_per_element, platform.link(devices)
    steps = math.ceil(samples / question.batch)
    compute = samples / devices * question.sample_s + steps * question.update_s
    share = question.weights / devices * size / link.bytes_per_s
    exchange = 2 * steps * (devices - 1) * (link.latency_s + share)
    halos = steps * _halos_s(question, grid, link) if devices > 1 else 0.0
    memory = 2 * size * (question.batch * question.activations / devices + question.weights)
    words = "halos" if halos > exchange else "gradient exchange"
    return _forecast("spatial", devices, compute, exchange + halos, memory, most, words)


def data_spatial(question: Question, devices: int) -> Forecast:
    """Nodes share the samples of a batch, the devices of a node the rows and columns of images.

    Layers behind the images are done whole by all devices of a node, which gather the last images
    and their gradient.
    """
    inside = question.filter_devices
    if devices % inside:
        raise UserError(f"data+spatial needs a multiple of {inside} devices, not {devices}")
    nodes = devices // inside
    _, grid = _grid("data+spatial", question, inside)
    platform, samples = question.platform, question.platform.samples
    size, near, far = platform.bytes_per_element, platform.link(inside), platform.link(devices)
    batch = question.batch * nodes
    steps = math.ceil(samples / batch)
    split = sum(each.forward_s + each.backward_s for each in question.layers if each.image)
    sample_s = split / inside + question.sample_s - split
    compute = math.ceil(samples / nodes) * sample_s + steps * question.update_s
    last = [each for each in question.layers if each.image][-1].output_elements
    piece = question.batch * last / inside * size / near.bytes_per_s
    gathers = 2 * (inside - 1) * (near.latency_s + piece)
    halos = _halos_s(question, grid, near) if inside > 1 else 0.0
    rate = far.bytes_per_s / (2 * inside if platform.shared_uplink else 1)
    sums = 0.0
    for count, each, bytes_per_s in ((inside, near, near.bytes_per_s), (nodes, far, rate)):
        share = question.weights / count * size / bytes_per_s
        sums += 2 * (count - 1) * (each.latency_s + share)
    images = question.batch * question.activations / inside
    memory = 2 * size * (images + question.weights)
    words = "halos and gathers" if halos + gathers > sums else "gradient exchange"
    moved = steps * (gathers + halos + sums)
    return _forecast("data+spatial", devices, compute, moved, memory, None, words)


def _halos_s(question: Question, grid: tuple[int, int], link: PlatformLink) -> float:
    """Seconds of the halos of all images, forward and backward, for one batch of a node."""
    rate = link.bytes_per_s / question.platform.bytes_per_element
    return 2 * sum(
        2 * link.latency_s + question.batch * each.image.halo(grid) / rate
        for each in question.layers
        if each.image
    )


def _grid(name: str, question: Question, devices: int) -> tuple[int, tuple[int, int]]:
    """Most devices that can cut the images, and parts of rows and columns for some of them."""
    images = [each.image.written for each in question.layers if each.image]
    if not images:
        raise UserError(f"{name} needs rows and columns of images, which the layers have not")
    rows, columns = (min(each[axis] for each in images) for axis in (1, 2))
    grids = [
        (height, devices // height)
        for height in range(1, min(devices, rows) + 1)
        if devices % height == 0 and devices // height <= columns
    ]
    if not grids:
        raise UserError(
            f"{name}: {devices} devices make no grid of at most {rows} rows by {columns} columns, "
            "the smallest image"
        )
    return rows * columns, min(grids, key=lambda each: abs(each[0] - each[1]))


STRATEGIES: dict[str, Callable[[Question, int], Forecast]] = {
    "serial": serial,
    "data": data,
    "spatial": spatial,
    "pipeline": pipeline,
    "filter": filters,
    "channel": lambda question, devices: filters(question, devices, "channel"),
    "data+filter": data_filter,
    "data+spatial": data_spatial,
}
"""Strategies by their names."""


def _forecast(
    name: str,
    devices: int,
    compute_s: float,
    communication_s: float,
    memory_bytes: float,
    max_devices: int | None,
    moves: str,
) -> Forecast:
    """A forecast that says whether computing or moving data takes longer."""
    limiter = limiter_of([Loss(moves, communication_s)], compute_s + communication_s)
    return Forecast(name, devices, compute_s, communication_s, memory_bytes, max_devices, limiter)


def _groups(times: Sequence[float], count: int) -> list[list[int]]:
    """Cut a chain into groups whose longest takes the least time."""
    size = len(times)
    sums = [0.0]
    for each in times:
        sums.append(sums[-1] + each)
    best = [[float("inf")] * (size + 1) for _ in range(count + 1)]
    cut = [[0] * (size + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for groups in range(1, count + 1):
        for end in range(groups, size + 1):
            for begin in range(groups - 1, end):
                longest = max(best[groups - 1][begin], sums[end] - sums[begin])
                if longest < best[groups][end]:
                    best[groups][end], cut[groups][end] = longest, begin
    found: list[list[int]] = []
    end = size
    for groups in range(count, 0, -1):
        begin = cut[groups][end]
        found.insert(0, list(range(begin, end)))
        end = begin
    return found
