"""The network of one device of several that compute a network together.

The devices may be groups, each of which has samples of its own; what follows is about one of these.
Layers that run together are cut by samples, by output channels, by rows, or whole. Whole layers are
computed by every device, all of them in the same way. Exchanges are inserted where layers need of a
value what their device does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.program.share import Share
from fpgapipe.lowering.shards.cuts import (
    Cut,
    check_together,
    cut_of,
    num_groups_of,
    ranges_of,
    sizes_of,
    why_not_shared,
)
from fpgapipe.lowering.shards.degrees import Degrees, Range
from fpgapipe.lowering.shards.exchange import (
    Exchange,
    Gather,
    Halo,
    Scatter,
    SharedBatchNorm,
    SumGradients,
    Take,
)
from fpgapipe.lowering.shards.rebatched import with_samples
from fpgapipe.lowering.shards.windows import needed_rows, with_rows
from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import GraphBuilder
from fpgapipe.network.operators import BatchNorm, Conv, Linear

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fpgapipe.network.graph import Graph, Layer
    from fpgapipe.network.operators import Operator


@dataclass(frozen=True)
class _Spread:
    """How a value is divided: its cut and, where channels or rows are cut, the parts' sizes."""

    cut: Cut
    sizes: tuple[int, ...] = ()


@dataclass
class _Local:
    """State of a device's network while it is made; `member` is its place in its group."""

    graph: Graph
    member: Member
    sharers: int
    builder: GraphBuilder
    stage: Collection[str]
    spreads: dict[str, _Spread] = field(default_factory=dict)
    exchanged: dict[tuple[str, Cut, bool], str] = field(default_factory=dict)
    halos: dict[tuple[str, tuple[Range, ...]], str] = field(default_factory=dict)
    same: set[str] = field(default_factory=set)
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    numbers: int = 0

    def exchange(self, name: str, to: Cut, *, sums: bool = False) -> str:
        """Name of a value with a given cut, exchanged if necessary.

        Parameters
        ----------
        name : str
        to : Cut
        sums : bool
            Whether the device will have only a summand of the whole value's gradient.
        """
        spread = self.spreads[name]
        if spread.cut is to and not sums:
            return name
        key = (name, to, sums)
        if key in self.exchanged:
            return self.exchanged[key]
        count = self.member.num_devices
        batch = self.graph.batch or 1
        if spread.cut is not Cut.WHOLE and to is not Cut.WHOLE:
            found = self.exchange(self.exchange(name, Cut.WHOLE), to)
        elif spread.cut is Cut.SAMPLES:
            found = self._add(name, "gathered", Gather(axis=0, sizes=(batch,) * count, sums=sums))
        elif spread.cut is Cut.CHANNELS:
            found = self._add(name, "gathered", Gather(axis=1, sizes=spread.sizes, sums=sums))
        elif spread.cut is Cut.ROWS:
            found = self._add(name, "gathered", Gather(axis=2, sizes=spread.sizes, sums=sums))
        elif to is Cut.WHOLE:
            found = self._add(name, "shared", SumGradients())
        elif to is Cut.SAMPLES:
            found = self._add(name, "shared out", Take(axis=0, sizes=(batch,) * count))
        else:
            axis = 1 if to is Cut.CHANNELS else 2
            sizes = sizes_of(self.builder.tensor(name).shape[axis], count)
            found = self._add(name, "cut", Take(axis=axis, sizes=sizes))
            self.spreads[found] = _Spread(to, sizes)
        if found not in self.spreads:
            self.spreads[found] = _Spread(to)
        self.exchanged[key] = found
        return found

    def halo(self, name: str, needs: tuple[Range, ...]) -> str:
        """Name of the rows of a value, cut by rows, that each device needs."""
        has = ranges_of(self.spreads[name].sizes)
        if has == needs:
            return name
        key = (name, needs)
        if key not in self.halos:
            self.halos[key] = self._add(name, "with neighbours' rows", Halo(has=has, needs=needs))
        return self.halos[key]

    def _add(self, name: str, how: str, operator: Exchange) -> str:
        wanted = f"{name} {how}"
        own = wanted if self.builder.is_free(wanted) else self.builder.fresh_name(wanted)
        placed = replace(operator, member=self.member, number=self.next_number())
        self.sources[own] = name
        return self.builder.add(own, placed, name)

    def computes(self, layer: str) -> bool:
        """Whether the device computes a layer of the whole network, or its part of it."""
        return layer in self.stage

    def claim(self, found: str, source: str) -> None:
        """Note that the exchanges that led from one name of a value to another are the device's."""
        while found != source:
            self.own.add(found)
            found = self.sources[found]

    def next_number(self, count: int = 1) -> int:
        """Number of the next exchange, the first of some."""
        self.numbers += count
        return self.numbers - count


@dataclass(frozen=True)
class StageNetwork:
    """The network of a device of several that compute a stage of a pipeline.

    It has all layers of the network, but those of other stages are only there for the shapes and
    the layouts of values.

    Attributes
    ----------
    network : Graph
    share : Share
    layers : frozenset of str
        Names of the layers that the device computes.
    whole : mapping of str to str
        Names of the whole values that the stage gives, in the network, by their names in the whole
        one.
    """

    network: Graph
    share: Share
    layers: frozenset[str]
    whole: Mapping[str, str]


def stage_network(
    graph: Graph,
    degrees: Mapping[str, Degrees],
    whole: Member,
    layers: Collection[str],
) -> StageNetwork:
    """Make the network of one device of several that compute a stage.

    Parameters
    ----------
    graph : Graph
        The network for the samples of a micro-batch: if layers of the stage are cut by samples,
        those of one device, of which layers that are not cut by samples then have as many as all
        devices.
    degrees : mapping of str to Degrees
        Degrees of each layer of the stage; those of the first of layers that run together are
        those of all of them.
    whole : Member
        The device's place among those of the stage.
    layers : collection of str
        Names of the layers of the stage; those that run together are in one stage.

    Raises
    ------
    UserError
        If a layer has no degrees.
    NotImplementedError
        If no programs are made for such degrees of a layer.
    """
    index, num_devices = whole.index, whole.num_devices
    if num_devices == 1:
        return StageNetwork(graph, Share(), frozenset(layers), {})
    groups = {names: names[0] in layers for names in layers_together(graph)}
    own = {names[0]: degrees.get(names[0]) for names, is_own in groups.items() if is_own}
    for name, given in own.items():
        if given is None:
            raise UserError(f"the strategy says nothing about layer {name!r}")
    is_whole = all(groups.values())
    known = {name: given for name, given in own.items() if given is not None}
    num_groups = num_groups_of(known, num_devices) if is_whole else 1
    cuts = {
        names: cut_of(names[0], known[names[0]], num_devices, num_groups) if is_own else Cut.WHOLE
        for names, is_own in groups.items()
    }
    if set(cuts.values()) == {Cut.SAMPLES}:
        return StageNetwork(graph, Share(whole, sharers=num_devices), frozenset(layers), {})
    if not is_whole and Cut.SAMPLES in cuts.values():
        for names, cut in cuts.items():
            if cut is Cut.SAMPLES:
                _check_no_statistics(graph, names)
        if why := why_not_shared(graph, layers):
            raise NotImplementedError(why)
    size = num_devices // num_groups
    local = _local(graph, cuts, replace(whole, index=index % size, num_devices=size), layers)
    given_whole = {
        name: found
        for (name, cut, sums), found in local.exchanged.items()
        if name in layers and cut is Cut.WHOLE and not sums
    }
    sharers = num_groups * local.sharers
    share = Share(whole, num_groups, sharers, frozenset(local.same), local.parts, local.axes)
    network = local.builder.build(graph.outputs, graph.auxiliary)
    return StageNetwork(network, share, frozenset({*layers, *local.own}), given_whole)


def _local(
    graph: Graph,
    cuts: Mapping[tuple[str, ...], Cut],
    member: Member,
    stage: Collection[str],
) -> _Local:
    """Make the network of a device of a group; see `stage_network`."""
    size = member.num_devices
    sharers = size if Cut.SAMPLES in cuts.values() else 1
    local = _Local(graph, member, sharers, GraphBuilder(graph.name, graph.batch), stage)
    for names, cut in cuts.items():
        if local.computes(names[0]):
            check_together(graph, names, cut, size, sharers)
    for name, tensor in graph.inputs.items():
        local.builder.input(name, tensor)
        local.spreads[name] = _Spread(Cut.SAMPLES if sharers > 1 else Cut.WHOLE)
    group_of = {name: names for names in cuts for name in names}
    for layer in graph.layers.values():
        names = group_of[layer.name]
        if layer.name == names[0]:
            _exchange_early(local, names, cuts[names])
        _add_layer(local, layer, cuts[names])
    return local


def _check_no_statistics(graph: Graph, names: Sequence[str]) -> None:
    """Raise if layers would have statistics of a device's samples instead of a micro-batch's."""
    for name in names:
        if isinstance(graph.layers[name].operator, BatchNorm):
            raise NotImplementedError(
                f"layer {name!r} is a batch normalisation, which a stage of several devices cannot "
                "cut by samples: its statistics are those of a micro-batch; cut it by rows or "
                "channels, or leave it whole"
            )


def _exchange_early(local: _Local, names: Sequence[str], cut: Cut) -> None:
    """Exchange what a group reads before its first layer, behind which others may be computed."""
    for name in names:
        layer = local.graph.layers[name]
        for source in layer.inputs:
            if source in local.spreads:
                _read(local, layer, source, cut)


def _read(local: _Local, layer: Layer, source: str, cut: Cut) -> str:
    """Name of the value that a layer reads."""
    found = _exchanged(local, layer, source, cut)
    if local.computes(layer.name) or local.computes(source):
        local.claim(found, source)
    return found


def _exchanged(local: _Local, layer: Layer, source: str, cut: Cut) -> str:
    """Name of the value that a layer reads, exchanged if necessary."""
    if cut is Cut.CHANNELS and isinstance(layer.operator, Conv | Linear):
        gives = source in local.graph.layers  # inputs of the network need no gradient
        return local.exchange(source, Cut.WHOLE, sums=gives)
    found = local.exchange(source, Cut.CHANNELS if cut is Cut.INPUTS else cut)
    if cut is Cut.ROWS:
        needs = _rows_needed(local.graph, layer, local.member.num_devices)
        return local.halo(found, needs)
    return found


def _rows_needed(graph: Graph, layer: Layer, num_devices: int) -> tuple[Range, ...]:
    """Rows of its first input that each device needs for its rows of a layer's output."""
    height = layer.input_tensors[0].shape[2]
    rows = ranges_of(sizes_of(layer.output.shape[2], num_devices))
    return tuple(needed_rows(layer.operator, 0, height, each) for each in rows)


def _add_layer(local: _Local, layer: Layer, cut: Cut) -> None:
    """Add a layer's part."""
    operator = layer.operator
    count = local.member.num_devices
    inputs = [_read(local, layer, name, cut) for name in layer.inputs]
    if cut is Cut.INPUTS:
        if isinstance(operator, Conv | Linear):
            _add_summand(local, layer, inputs[0])
            return
        cut = Cut.CHANNELS
    spread = _Spread(cut)
    if cut is Cut.CHANNELS:
        sizes = _channel_sizes(local, layer, inputs[0])
        spread = _Spread(cut, sizes)
        operator = _with_channels(operator, sizes[local.member.index])
    elif cut is Cut.ROWS:
        sizes = sizes_of(layer.output.shape[2], count)
        spread = _Spread(cut, sizes)
        rows = ranges_of(sizes)[local.member.index]
        operator = with_rows(operator, layer.input_tensors[0].shape[2], rows)
        if isinstance(operator, BatchNorm):
            has = rows[1] - rows[0], sum(sizes)
            shared = SharedBatchNorm(**vars(operator), member=local.member, rows=has)
            operator = replace(shared, number=local.next_number(SharedBatchNorm.SUMS))
    elif cut is Cut.WHOLE and local.sharers > 1:
        batch = local.graph.batch or 1
        operator = with_samples(layer, batch, batch * count)
    names = {each.spec.role: each.name for each in layer.parameters}
    local.builder.add(
        layer.name, operator, *inputs, shared=names, frozen=layer.frozen, orders=layer.orders
    )
    local.spreads[layer.name] = spread
    if not local.computes(layer.name):
        return  # another stage's layer may share a parameter
    for parameter in layer.parameters:
        if local.cuts.setdefault(parameter.name, cut) is not cut:
            raise _shared_otherwise(parameter.name)
        if cut is Cut.WHOLE or isinstance(operator, SharedBatchNorm):
            local.same.add(parameter.name)
        if cut is Cut.CHANNELS:
            local.parts[parameter.name] = spread.sizes


def _add_summand(local: _Local, layer: Layer, source: str) -> None:
    """Add a product over the device's input channels, and the sum over all devices."""
    operator = layer.operator
    assert isinstance(operator, Conv | Linear)
    names = {each.spec.role: each.name for each in layer.parameters}
    wanted = f"{layer.name} summand"
    own = wanted if local.builder.is_free(wanted) else local.builder.fresh_name(wanted)
    weight = {"weight": names["weight"]}
    local.builder.add(
        own,
        replace(operator, bias=False),
        source,
        shared=weight,
        frozen=layer.frozen,
        orders=layer.orders,
    )
    local.own.add(own)
    sizes = sizes_of(layer.output.shape[1], local.member.num_devices)
    total = Scatter(local.member, local.next_number(), sizes, "bias" in names)
    rest = {role: name for role, name in names.items() if role != "weight"}
    local.builder.add(layer.name, total, own, shared=rest, frozen=layer.frozen, orders=layer.orders)
    local.spreads[layer.name] = _Spread(Cut.CHANNELS, sizes)
    for parameter in layer.parameters:
        if local.cuts.setdefault(parameter.name, Cut.INPUTS) is not Cut.INPUTS:
            raise _shared_otherwise(parameter.name)
    local.parts[names["weight"]] = local.spreads[source].sizes
    local.axes[names["weight"]] = 1
    for name in rest.values():
        local.parts[name] = sizes


def _shared_otherwise(parameter: str) -> NotImplementedError:
    return NotImplementedError(
        f"parameter {parameter!r} is shared by layers that are cut in different ways"
    )


def _channel_sizes(local: _Local, layer: Layer, source: str) -> tuple[int, ...]:
    """Sizes of the devices' parts of a layer's channels."""
    if isinstance(layer.operator, Conv | Linear):
        return sizes_of(layer.output.shape[1], local.member.num_devices)
    sizes = local.spreads[source].sizes
    grown = layer.output.shape[1] // sum(sizes)  # more than 1 where images are flattened
    return tuple(grown * size for size in sizes)


def _with_channels(operator: Operator, channels: int) -> Operator:
    if isinstance(operator, Conv):
        return replace(operator, out_channels=channels)
    if isinstance(operator, Linear):
        return replace(operator, out_features=channels)
    return operator
