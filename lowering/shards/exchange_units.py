"""Units of the operators by which devices exchange values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.kernels import activation
from fpgapipe.lowering.kernels.parts import Rows, copy_rows
from fpgapipe.lowering.shards.collectives import Chain, all_gather, reduce_scatter
from fpgapipe.lowering.shards.exchange import Exchange, Gather, Scatter, Take
from fpgapipe.lowering.units.layouts import PLAIN, Layout, channels_last, with_channels_last
from fpgapipe.lowering.units.registry import runs_alone
from fpgapipe.lowering.units.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch


@dataclass(frozen=True)
class ExchangeUnit(Unit):
    """A layer that exchanges a value.

    A value that is cut by samples may have any layout within a sample. One that is cut otherwise
    has its channels last if it consists of images, and the network's order if not.
    """

    @property
    def operator(self) -> Exchange:
        """The layer's operator."""
        operator = self.layers[0].operator
        assert isinstance(operator, Exchange)
        return operator

    @property
    def parts(self) -> tuple[int, tuple[int, ...]]:
        """Axis along which the value is cut, and the sizes of the parts."""
        operator = self.operator
        assert isinstance(operator, Gather | Take | Scatter)
        return getattr(operator, "axis", 1), operator.sizes

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        (name,) = self.inputs
        axis, _ = self.parts
        if axis == 0:
            within = given[name].within(prod(self.in_shape[1:]))
            return {name: PLAIN if within is None else within}
        return {name: channels_last(self.in_shape)}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        axis, _ = self.parts
        return wanted[self.inputs[0]] if axis == 0 else channels_last(self.out_shape)

    def _resized(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the result in memory; samples keep the axes of the input in memory."""
        axis, _ = self.parts
        if axis:
            return with_channels_last(self.out_shape)
        return (x.shape[0] * self.out_shape[0] // self.in_shape[0], *x.shape[1:])

    def chain(self, name: str, channel: Channel) -> Chain:
        """The device's place in an exchange."""
        operator = self.operator
        return Chain(operator.member, operator.number, channel, name)

    def pieces(self, step: MicroBatch, name: str, whole: Tensor) -> tuple[list[Tensor], bool]:
        """Tensors for the parts of a tensor, and whether they lie within it.

        Parts by samples do, if each begins at a word; others get places of their own.
        """
        axis, sizes = self.parts
        other = whole.elements // sum(sizes)
        starts = [other * sum(sizes[:number]) for number in range(len(sizes))]
        shapes = [(size * other,) for size in sizes]
        if axis == 0 and all(start * whole.element_bytes % WORD_BYTES == 0 for start in starts):
            parts = zip(starts, shapes, strict=True)
            return [step.view(whole, start, shape) for start, shape in parts], True
        return [
            step.tensor(f"{name}{number}", shape, whole.format)
            for number, shape in enumerate(shapes)
        ], False

    def copy(
        self, step: MicroBatch, whole: Tensor, number: int, part: Tensor, *, joins: bool
    ) -> None:
        """Add the kernel that copies a part out of the whole tensor, or into it."""
        axis, sizes = self.parts
        first, total = sum(sizes[:number]), sum(sizes)
        rows = {0: 1, 1: whole.elements // total, 2: self.in_shape[0]}[axis]
        other = whole.elements // (rows * total)
        size = rows, sizes[number] * other
        inside, alone = Rows(first * other, total * other), Rows(0, size[1])
        name = f"{self.name}.{'join' if joins else 'part'}"
        if joins:
            kernel = copy_rows(name, part, whole, size, alone, inside, step.region)
        else:
            kernel = copy_rows(name, whole, part, size, inside, alone, step.region)
        step.add(kernel)

    def gathered(
        self, step: MicroBatch, name: str, own: Tensor, whole: Tensor, channel: Channel
    ) -> None:
        """Add the kernels by which all parts come together in a tensor."""
        pieces, inside = self.pieces(step, f"{name}.piece", whole)
        index = self.operator.member.index
        pieces[index] = replace(own, shape=pieces[index].shape)
        all_gather(step, self.chain(name, channel), pieces)
        for number, piece in enumerate(pieces):
            if number == index or not inside:
                self.copy(step, whole, number, piece, joins=True)

    def summed(self, step: MicroBatch, dy: Tensor, channel: Channel = Channel.GRADIENTS) -> Tensor:
        """Add the kernels that sum up the device's part of a value over all devices."""
        pieces, inside = self.pieces(step, f"{self.name}.summand", dy)
        if not inside:
            for number, piece in enumerate(pieces):
                self.copy(step, dy, number, piece, joins=False)
        coming = [
            step.tensor(f"{self.name}.coming{number}", each.shape, each.format)
            for number, each in enumerate([*pieces, pieces[self.operator.member.index]])
        ]
        name = self.name if channel is Channel.ACTIVATIONS else f"{self.name}.gradient"
        chain = self.chain(name, channel)
        return reduce_scatter(step, chain, pieces, coming)


@runs_alone("gather")
class GatherUnit(ExchangeUnit):
    """The whole of a value of which each device has a part."""

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        y = step.activation(self.name, self._resized(x))
        self.gathered(step, self.name, x, y, Channel.ACTIVATIONS)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        operator = self.operator
        assert isinstance(operator, Gather)
        x = step.take(self, self.inputs[0])
        if operator.sums:
            dx = replace(self.summed(step, dy), shape=x.shape)
        else:
            dx = step.activation(f"{self.name}.dx", x.shape)
            self.copy(step, dy, operator.member.index, dx, joins=False)
        step.give_gradient(self, self.inputs[0], dx)


@runs_alone("take")
class TakeUnit(ExchangeUnit):
    """The device's part of a value that all devices have."""

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        index = self.operator.member.index
        y = step.activation(self.name, self._resized(x))
        self.copy(step, x, index, y, joins=False)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        dx = step.tensor(f"{self.name}.dx", x.shape, dy.format)
        self.gathered(step, f"{self.name}.gradient", dy, dx, Channel.GRADIENTS)
        step.give_gradient(self, self.inputs[0], dx)


@runs_alone("scatter")
class ScatterUnit(ExchangeUnit):
    """The device's channels of a sum over all devices, and a bias."""

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.take(self, self.inputs[0])
        shape = self._resized(x)
        total = replace(self.summed(step, x, Channel.ACTIVATIONS), shape=shape)
        bias = step.parameter(layer, "bias")
        if bias is None:
            return total
        y = step.activation(self.name, shape)
        rows = replace(total, shape=(total.elements // shape[-1], shape[-1]))
        step.add(activation.add_bias(f"{self.name}.bias", rows, bias, y, step.region))
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.take(self, self.inputs[0])
        bias = step.parameter(self.layers[0], "bias")
        db = step.gradient_of(bias) if bias else None
        if db:
            channels = self.parts[1][self.operator.member.index]
            rows = replace(dy, shape=(dy.elements // channels, channels))
            step.add(activation.bias_gradient(f"{self.name}.db", rows, db, step.region),
                     is_weight=True)  # fmt: skip
        dx = step.tensor(f"{self.name}.dx", x.shape, dy.format)
        self.gathered(step, f"{self.name}.gradient", dy, dx, Channel.GRADIENTS)
        step.give_gradient(self, self.inputs[0], dx)


@runs_alone("sum-gradients")
class SumGradientsUnit(ExchangeUnit):
    """A value that all devices have, of whose gradient each has a summand.

    The gradient is cut into equal pieces, each device gets the sum of one of them, and all gather
    the sums.
    """

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return {name: given[name] for name in self.inputs}

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return wanted[self.inputs[0]]

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        return step.take(self, self.inputs[0])

    @property
    def parts(self) -> tuple[int, tuple[int, ...]]:
        """Equal parts of all elements, which are cut as one axis, at words if there are many."""
        elements = prod(self.out_shape)
        count = self.operator.member.num_devices
        grain = WORD_BYTES // 2 if elements >= WORD_BYTES * count else 1
        ends = [elements * n // count // grain * grain for n in range(count)] + [elements]
        return 0, tuple(end - begin for begin, end in pairwise(ends))

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        total = self.summed(step, dy)
        dx = step.tensor(f"{self.name}.dx", dy.shape, dy.format)
        self.gathered(step, f"{self.name}.sum", total, dx, Channel.ACTIVATIONS)
        step.give_gradient(self, self.inputs[0], dx)
