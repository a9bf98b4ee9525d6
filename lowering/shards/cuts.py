"""The ways in which layers can be cut so that programs are made of the parts."""

from __future__ import annotations

from enum import Enum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from fpgapipe.lowering.shards.degrees import CHANNELWISE, Degrees, Range, common, part
from fpgapipe.lowering.shards.windows import needed_rows
from fpgapipe.network.operators import BatchNorm, Conv, Dropout, Flatten, Linear, Pool
from fpgapipe.network.operators.pointwise import Elementwise

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fpgapipe.network.graph import Graph, Layer


class Cut(Enum):
    """How a value or the work of some layers is divided among the devices of a group."""

    SAMPLES = "samples"
    """Each device has some samples."""
    CHANNELS = "channels"
    """Each device has some channels of all samples."""
    INPUTS = "inputs"
    """Each device has some input channels of a product, and then some channels of the result."""
    ROWS = "rows"
    """Each device has some rows of all images."""
    WHOLE = "whole"
    """Every device of the group has all."""


def num_groups_of(degrees: Mapping[str, Degrees], num_devices: int) -> int:
    """Number of groups of neighbours, each of which has samples of its own.

    Parameters
    ----------
    degrees : mapping of str to Degrees
        Degrees of layers.
    num_devices : int

    Raises
    ------
    NotImplementedError
        If layers have different groups, or the groups are not equal.
    """
    found: dict[int, str] = {}
    for name, each in degrees.items():
        if each.sample != num_devices:
            found.setdefault(each.sample, name)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise NotImplementedError(
            f"layer {first!r} has sample={one} and layer {second!r} sample={other}: layers that "
            f"are not cut by samples into {num_devices} parts must all have the same"
        )
    count, name = next(iter(found.items()), (1, ""))
    if num_devices % count:
        raise NotImplementedError(
            f"layer {name!r} has sample={count}, but {num_devices} devices are not {count} equal "
            "groups"
        )
    return count


def cut_of(name: str, degrees: Degrees, num_devices: int, num_groups: int) -> Cut:
    """The cut that degrees stand for, within a group of devices.

    Parameters
    ----------
    name : str
        The first of the layers with these degrees.
    degrees : Degrees
    num_devices, num_groups : int
        Number of devices, and of groups by `num_groups_of`.

    Raises
    ------
    NotImplementedError
        If no programs are made for such degrees.
    """
    for cut in Cut:
        if degrees == degrees_of_cut(cut, num_devices, num_groups):
            return cut
    groups = f" in {num_groups} groups" if num_groups > 1 else ""
    raise NotImplementedError(
        f"layer {name!r} has degrees {degrees}: on {num_devices} devices{groups}, layers can be "
        f"cut into {num_devices // num_groups} parts by samples, channels, input channels or rows, "
        "or be whole"
    )


def degrees_of_cut(cut: Cut, num_devices: int, num_groups: int) -> Degrees:
    """The degrees of a cut within groups."""
    size = num_devices // num_groups
    if cut is Cut.SAMPLES:
        return Degrees(num_devices)
    return {
        Cut.WHOLE: Degrees(num_groups),
        Cut.CHANNELS: Degrees(num_groups, channel=size),
        Cut.INPUTS: Degrees(num_groups, input=size),
        Cut.ROWS: Degrees(num_groups, height=size),
    }[cut]


def sizes_of(size: int, count: int) -> tuple[int, ...]:
    """Sizes of parts that differ by one at most."""
    ranges = (part(size, count, number) for number in range(count))
    return tuple(end - begin for begin, end in ranges)


def ranges_of(sizes: Sequence[int]) -> tuple[Range, ...]:
    """Ranges of parts that follow one another."""
    ends = list(accumulate(sizes, initial=0))
    return tuple(pairwise(ends))


def check_together(
    graph: Graph, names: Sequence[str], cut: Cut, num_devices: int, sharers: int
) -> None:
    """Raise if layers that run together have no such cut; see `check_cut`."""
    first = graph.layers[names[0]]
    if cut is Cut.INPUTS and not isinstance(first.operator, Conv | Linear):
        raise NotImplementedError(
            f"layer {first.name!r} ({first.op}) cannot be cut by input channels: it is neither a "
            "convolution nor a linear layer"
        )
    for name in names:
        check_cut(graph, graph.layers[name], cut, num_devices, sharers)


def can_be_cut(
    graph: Graph, names: Sequence[str], cut: Cut, num_devices: int, sharers: int
) -> bool:
    """Whether layers that run together have a cut; see `check_cut`."""
    return not why_not_cut(graph, names, cut, num_devices, sharers)


def why_not_cut(
    graph: Graph, names: Sequence[str], cut: Cut, num_devices: int, sharers: int
) -> str:
    """Why layers that run together have no such cut; empty if they have it."""
    try:
        check_together(graph, names, cut, num_devices, sharers)
    except NotImplementedError as error:
        return str(error)
    return ""


def check_cut(graph: Graph, layer: Layer, cut: Cut, num_devices: int, sharers: int) -> None:
    """Raise if a layer has no such cut within a group of devices.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a micro-batch.
    layer : Layer
    cut : Cut
    num_devices, sharers : int
        Number of devices of a group, and of those among which samples are divided: 1 or all.

    Raises
    ------
    NotImplementedError
        The message is the reason.
    """
    operator, shape = layer.operator, layer.output.shape
    many = sharers > 1
    if many or cut is Cut.SAMPLES:
        for each in (*layer.input_tensors, layer.output):
            if not each.shape or each.shape[0] != graph.batch:
                raise NotImplementedError(
                    f"layer {layer.name!r} ({layer.op}) has no samples by which it can be cut: the "
                    f"first axis of shape {list(each.shape)} is not that of {graph.batch} samples"
                )
    whole_numbers = [each.dtype for each in layer.input_tensors if not each.dtype.is_float]
    if many and cut is not Cut.SAMPLES and whole_numbers:
        raise NotImplementedError(
            f"layer {layer.name!r} ({layer.op}) reads {whole_numbers[0]}, which devices that share "
            "samples do not exchange: it must be cut by samples"
        )
    drops = isinstance(operator, Dropout) and operator.rate > 0
    by_channels = cut in (Cut.CHANNELS, Cut.INPUTS)
    if drops and (by_channels or (cut is Cut.WHOLE and many)):
        raise NotImplementedError(
            f"layer {layer.name!r} is a dropout, whose random numbers belong to samples: it must "
            f"be {'cut by samples' if many else 'whole'}"
        )
    if layer.name in graph.outputs and cut is not (Cut.SAMPLES if many else Cut.WHOLE):
        raise NotImplementedError(
            f"layer {layer.name!r} gives the network's result, so it must be "
            f"{'cut by samples, as other layers are' if many else 'whole'}"
        )
    if cut is Cut.ROWS:
        _check_rows(layer, num_devices)
    if not by_channels:
        return
    if any(len(each.shape) > 4 for each in (*layer.input_tensors, layer.output)):
        raise NotImplementedError(f"layer {layer.name!r} has volumes: they have no cut by channels")
    if cut is Cut.INPUTS:
        _check_inputs(layer, num_devices)
    known = (*CHANNELWISE, Conv, Linear)
    flattens = isinstance(operator, Flatten) and operator.start == 1 and len(shape) == 2
    own = not isinstance(operator, Conv) or operator.groups == 1
    spread = len({each.shape for each in layer.input_tensors}) > 1
    # Heads or positions may be folded into the samples, which make up the first axis then.
    folded = len(shape) > 1 and shape[0] % (graph.batch or 1) == 0
    of_samples = folded and layer.name in graph.depends_on_inputs
    learned = layer.parameters and not isinstance(operator, Conv | Linear | BatchNorm)
    if (
        not ((isinstance(operator, known) and own) or flattens)
        or spread
        or learned
        or not of_samples
    ):
        raise NotImplementedError(f"layer {layer.name!r} ({layer.op}) cannot be cut by channels")
    if isinstance(operator, Linear) and len(shape) != 2:
        raise NotImplementedError(f"layer {layer.name!r} has positions: it has no cut by features")
    channels = layer.input_tensors[0].shape[1] if flattens else shape[1]
    if channels < num_devices:
        raise NotImplementedError(
            f"layer {layer.name!r} has {channels} channels, which cannot be cut into {num_devices} "
            "parts"
        )


def why_not_shared(graph: Graph, layers: Collection[str]) -> str:
    """Why the devices of a stage with some layers cannot share samples; empty if they can.

    The network of each of them has the layers of other stages as well, with whole values.
    """
    for layer in graph.layers.values():
        for each in layer.input_tensors:
            if layer.name not in layers and not each.dtype.is_float:
                return (
                    f"layer {layer.name!r} ({layer.op}) reads {each.dtype}: devices of a stage "
                    "without it cannot share samples"
                )
    return ""


def _check_inputs(layer: Layer, num_devices: int) -> None:
    """Raise if the input channels of a product cannot be divided among the devices."""
    if isinstance(layer.operator, Conv | Linear):
        channels = layer.input_tensors[0].shape[1]
        if channels < num_devices:
            raise NotImplementedError(
                f"layer {layer.name!r} has {channels} input channels, which cannot be cut into "
                f"{num_devices} parts"
            )


def _check_rows(layer: Layer, num_devices: int) -> None:
    """Raise if the rows of a layer's images cannot be divided among the devices."""
    operator, shape = layer.operator, layer.output.shape
    windows = isinstance(operator, Conv | Pool)
    own = not isinstance(operator, Conv) or operator.groups == 1
    ceil = isinstance(operator, Pool) and operator.ceil_mode
    alike = all(each.shape == shape for each in layer.input_tensors)
    known = (windows and own and not ceil) or (isinstance(operator, Elementwise) and alike)
    known |= isinstance(operator, BatchNorm)
    learns = layer.parameters and not isinstance(operator, Conv | BatchNorm)
    if len(shape) != 4 or not known or learns:
        raise NotImplementedError(f"layer {layer.name!r} ({layer.op}) cannot be cut by rows")
    height = layer.input_tensors[0].shape[2]
    if min(shape[2], height) < num_devices:
        raise NotImplementedError(
            f"layer {layer.name!r} has {min(shape[2], height)} rows, which cannot be cut into "
            f"{num_devices} parts"
        )
    has = ranges_of(sizes_of(height, num_devices))
    rows = ranges_of(sizes_of(shape[2], num_devices))
    needs = [needed_rows(operator, 0, height, each) for each in rows]
    for device, own_rows in enumerate(has):
        near = range(max(device - 1, 0), min(device + 2, num_devices))
        got = [common(needs[device], has[other]) for other in near]
        if sum(end - begin for begin, end in got) < needs[device][1] - needs[device][0]:
            raise NotImplementedError(
                f"layer {layer.name!r} needs rows of devices that are no neighbours, in "
                f"{num_devices} parts"
            )
        used = [common(needs[other], own_rows) for other in near]
        used = [each for each in used if each[0] < each[1]] or [(0, 0)]
        first, last = min(each[0] for each in used), max(each[1] for each in used)
        if (first, last) != own_rows:
            raise NotImplementedError(
                f"layer {layer.name!r} leaves out rows that part {device} of {num_devices} has"
            )


def possible_degrees(
    graph: Graph, names: Sequence[str], num_devices: int, sharers: int, num_groups: int = 1
) -> list[Degrees]:
    """Degrees of layers that run together of which programs are made, but for input channels.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a micro-batch.
    names : sequence of str
        Names of the layers.
    num_devices, sharers : int
        Number of devices, and of the parts into which samples are divided: the number of groups
        or of devices.
    num_groups : int
        Number of groups of devices, each of which has samples of its own.
    """
    found = []
    size, inner = num_devices // num_groups, sharers // num_groups
    for cut in (Cut.WHOLE, Cut.CHANNELS, Cut.ROWS, Cut.SAMPLES):
        alone = cut is Cut.SAMPLES and inner == 1
        if not alone and can_be_cut(graph, names, cut, size, inner):
            found.append(degrees_of_cut(cut, num_devices, num_groups))
    return found
