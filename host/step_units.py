"""The layers of a network as kernels: which ones go together, and their passes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.conv import ConvSpec
from fpgapipe.hw.hls_models.kernels import activation, global_pooling, normalisation, pooling
from fpgapipe.hw.hls_models.kernels.kernel import Tensor
from fpgapipe.hw.hls_models.kernels.products import product_kernel
from fpgapipe.hw.hls_models.vector_op import LANES
from fpgapipe.partition import operators as ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.microbatch import MicroBatch
    from fpgapipe.partition.graph import Graph, Layer


@dataclass(frozen=True)
class Value:
    """A layer's result in memory.

    Attributes
    ----------
    tensor : Tensor
        Channels last.
    image : tuple of int or None
        Channels, height and width, of features that were images once: they still lie channels last.
    """

    tensor: Tensor
    image: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Unit(ABC):
    """Layers that run together.

    Attributes
    ----------
    layers : tuple of Layer
        In the order of the network; only the last one's result is kept.
    """

    layers: tuple[Layer, ...]

    @property
    def name(self) -> str:
        """Of its result."""
        return self.layers[-1].name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values that it takes: those of its layers that none of them makes."""
        own = {layer.name for layer in self.layers}
        return tuple(name for layer in self.layers for name in layer.inputs if name not in own)

    @abstractmethod
    def forward(self, step: MicroBatch) -> Value:
        """Add the kernels of the forward pass; returns the result."""

    @abstractmethod
    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """Add the kernels of the backward pass; gives its inputs their gradients."""

    def passes_gradient(self, name: str) -> bool:
        """Whether an input's gradient is the result's, the same tensor."""
        return False


def conv_of(layer: Layer, value: Value) -> ConvSpec:
    """Return the convolution that a convolution or linear layer is.

    Raises
    ------
    NotImplementedError
        If the core does not have it.
    """
    operator = layer.operator
    shape = value.tensor.shape
    if isinstance(operator, ops.Linear):
        return ConvSpec.linear(value.tensor.elements // shape[-1], operator.out_features, shape[-1])
    assert isinstance(operator, ops.Conv)
    if len(operator.kernel) != 2:
        raise NotImplementedError(
            f"layer {layer.name!r}: convolutions must have two axes, not {len(operator.kernel)}"
        )
    if operator.groups != 1:
        raise NotImplementedError(
            f"layer {layer.name!r}: convolutions must have one group, not {operator.groups}"
        )
    (top, bottom), (left, right) = operator.padding
    batch, height, width, channels = shape
    return ConvSpec(
        cin=channels,
        cout=operator.out_channels,
        kernel=(operator.kernel[0], operator.kernel[1]),
        stride=(operator.stride[0], operator.stride[1]),
        pad=(top, left, bottom, right),
        h=height,
        w=width,
        batch=batch,
        dilation=(operator.dilation[0], operator.dilation[1]),
    )


@dataclass(frozen=True)
class ProductUnit(Unit):
    """A convolution or linear layer, its bias, and the activation behind it."""

    slope: float | None = None

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.values[layer.inputs[0]]
        conv = conv_of(layer, x)
        shape = (*x.tensor.shape[:-1], conv.cout) if isinstance(layer.operator, ops.Linear) else (
            conv.batch, conv.oh, conv.ow, conv.cout
        )  # fmt: skip
        weight = step.weight(layer, x)
        bias = step.parameter(layer, "bias")
        y = step.feature(self.name, shape)
        after = bias is not None or self.slope is not None
        z = step.tensor(f"{layer.name}.sums", shape, 4) if after else y
        step.add(product_kernel(f"{layer.name}.forward", conv, "forward",
                                (x.tensor, weight, z), step.product_core, step.memory,
                                step.product_region))  # fmt: skip
        if bias is not None:
            plain = self.slope in (None, 0)
            to = y if plain else step.tensor(f"{layer.name}.biased", shape, 4)
            step.add(activation.add_bias(f"{layer.name}.bias", z, bias, to, step.region,
                                         relu=self.slope == 0))  # fmt: skip
            z = to
        if self.slope is not None and (bias is None or self.slope):
            step.add(activation.activate(self.name, z, y, step.region, slope=self.slope))
        return Value(y)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        layer = self.layers[0]
        x = step.values[layer.inputs[0]]
        conv = conv_of(layer, x)
        bias = step.parameter(layer, "bias")
        db = bias and step.gradient_of(bias)
        if self.slope is not None:
            dz = step.feature(f"{layer.name}.dsums", dy.shape)
            step.add(activation.activation_gradient(
                f"{self.name}.gradient", dy, step.values[self.name].tensor, dz, step.region,
                slope=self.slope, db=db))  # fmt: skip
            dy = dz
        elif db:
            step.add(activation.bias_gradient(f"{layer.name}.db", dy, db, step.region),
                     is_weight=True)  # fmt: skip
        weight = step.weight(layer, x)
        if 0 in step.graph.input_gradients(layer.name):
            dx = step.feature(f"{layer.name}.dx", x.tensor.shape)
            step.add(product_kernel(f"{layer.name}.input", conv, "input", (dy, weight, dx),
                                    step.product_core, step.memory,
                                    step.product_region))  # fmt: skip
            step.give_gradient(layer.inputs[0], dx)
        step.add(product_kernel(f"{layer.name}.weight", conv, "weight",
                                (x.tensor, dy, step.gradient_of(weight)),
                                step.product_core, step.memory, step.product_region),
                 is_weight=True)  # fmt: skip


@dataclass(frozen=True)
class NormUnit(Unit):
    """Batch normalisation, the residual sum and the ReLU behind it."""

    residual: str | None = None
    relu: bool = False

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return name == self.residual and not self.relu

    def _norm(self, step: MicroBatch) -> normalisation.BatchNorm:
        layer = self.layers[0]
        operator = layer.operator
        assert isinstance(operator, ops.BatchNorm)
        roles = ("weight", "bias", "running_mean", "running_var")
        found = [step.parameter(layer, role) for role in roles]
        gamma, beta, mean, variance = found
        if gamma is None or beta is None or mean is None or variance is None:
            raise NotImplementedError(
                f"layer {layer.name!r}: batch normalisation must have learned scale and bias"
            )
        return normalisation.BatchNorm(
            step.named(layer.name), step.values[layer.inputs[0]].tensor, gamma, beta, mean,
            variance, operator.epsilon, operator.momentum,
        )  # fmt: skip

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        norm = self._norm(step)
        y = step.feature(self.name, norm.x.shape)
        other = step.values[self.residual].tensor if self.residual else None
        for tensor in norm.kept:
            step.declare(tensor)
        run = normalisation.forward if step.options.train else normalisation.infer
        for kernel in run(norm, y, step.region, residual=other, relu=self.relu):
            step.add(kernel)
        return Value(y)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        norm = self._norm(step)
        masked = step.feature(f"{self.name}.masked", dy.shape) if self.relu else None
        dx = step.feature(f"{self.layers[0].name}.dx", dy.shape)
        for kernel in normalisation.backward(
            norm, dy, dx, (step.gradient_of(norm.gamma), step.gradient_of(norm.beta)), step.region,
            activated=step.values[self.name].tensor if self.relu else None, masked=masked,
        ):  # fmt: skip
            step.add(kernel)
        step.give_gradient(self.layers[0].inputs[0], dx)
        if self.residual:
            step.give_gradient(self.residual, masked or dy)


@dataclass(frozen=True)
class AddUnit(Unit):
    """The sum of two values, and the ReLU behind it."""

    relu: bool = False

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return not self.relu

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        a, b = (step.values[name] for name in self.layers[0].inputs)
        y = step.feature(self.name, a.tensor.shape)
        step.add(activation.add(self.name, a.tensor, b.tensor, y, step.region, relu=self.relu))
        return Value(y, a.image)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        if self.relu:
            dx = step.feature(f"{self.name}.masked", dy.shape)
            step.add(activation.activation_gradient(
                f"{self.name}.gradient", dy, step.values[self.name].tensor, dx, step.region
            ))  # fmt: skip
            dy = dx
        for name in self.layers[0].inputs:
            step.give_gradient(name, dy)


@dataclass(frozen=True)
class ActivationUnit(Unit):
    """ReLU or leaky ReLU behind what it does not go together with."""

    slope: float = 0

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        x = step.values[self.inputs[0]]
        y = step.feature(self.name, x.tensor.shape)
        step.add(activation.activate(self.name, x.tensor, y, step.region, slope=self.slope))
        return Value(y, x.image)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        dx = step.feature(f"{self.name}.dx", dy.shape)
        step.add(activation.activation_gradient(
            f"{self.name}.gradient", dy, step.values[self.name].tensor, dx, step.region,
            slope=self.slope))  # fmt: skip
        step.give_gradient(self.inputs[0], dx)


@dataclass(frozen=True)
class DropoutUnit(Unit):
    """Dropout; each has random numbers of its own."""

    stream: int = 0

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return not self._rate()

    def _rate(self) -> float:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Dropout)
        return operator.rate

    def factors(
        self, shape: tuple[int, ...], scalars: Sequence[int], microbatch: int = 0
    ) -> NDArray[np.float32]:
        """What it multiplies a micro-batch by, in training; shaped as the network has it."""
        if not self._rate():
            return np.ones(shape, np.float32)
        elements = math.prod(shape)
        first = microbatch * math.ceil(elements / LANES)
        drawn = activation.drop_factors(elements, self._rate(), self.stream, scalars, first=first)
        if len(shape) != 4:
            return drawn.reshape(shape)
        batch, channels, height, width = shape
        return np.moveaxis(drawn.reshape(batch, height, width, channels), -1, 1)

    def _drop(self, step: MicroBatch, name: str, x: Tensor, y: Tensor) -> None:
        first = step.random_vectors(x.elements)
        step.add(activation.drop(name, x, y, step.region, rate=self._rate(), stream=self.stream,
                                 first=first, key=step.random_key))  # fmt: skip

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        x = step.values[self.inputs[0]]
        if not (step.options.train and self._rate()):
            return x
        y = step.feature(self.name, x.tensor.shape)
        self._drop(step, self.name, x.tensor, y)
        return Value(y, x.image)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        if not self._rate():
            step.give_gradient(self.inputs[0], dy)
            return
        dx = step.feature(f"{self.name}.dx", dy.shape)
        self._drop(step, f"{self.name}.gradient", dy, dx)
        step.give_gradient(self.inputs[0], dx)


@dataclass(frozen=True)
class FlattenUnit(Unit):
    """Images become features: nothing moves."""

    def passes_gradient(self, name: str) -> bool:
        """See `Unit`."""
        return True

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        x = step.values[self.inputs[0]]
        batch = x.tensor.shape[0]
        image = x.image
        if len(x.tensor.shape) == 4:
            _, height, width, channels = x.tensor.shape
            image = (channels, height, width)
        return Value(replace(x.tensor, shape=(batch, x.tensor.elements // batch)), image)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        shape = step.values[self.inputs[0]].tensor.shape
        step.give_gradient(self.inputs[0], replace(dy, shape=shape))


@dataclass(frozen=True)
class PoolUnit(Unit):
    """Pooling over windows, or over all positions."""

    def _pool(self, step: MicroBatch) -> pooling.Pool | None:
        """The windows; None if there is but one, of all positions."""
        layer = self.layers[0]
        operator = layer.operator
        height, width = step.values[self.inputs[0]].tensor.shape[1:3]
        if isinstance(operator, ops.GlobalPool):
            whole = pooling.Pool((height, width), (height, width))
            return None if operator.function == "average" else whole
        assert isinstance(operator, ops.Pool)
        if len(operator.kernel) != 2 or operator.dilation != (1, 1):
            raise NotImplementedError(
                f"layer {layer.name!r}: pooling must have two axes and no dilation"
            )
        rows, columns = layer.output.shape[2:]
        kernel = operator.kernel[0], operator.kernel[1]
        stride = operator.stride[0], operator.stride[1]
        (top, bottom), (left, right) = operator.padding
        # A window that is rounded up to reaches over the padding.
        down = (rows - 1) * stride[0] + kernel[0] - height - top
        across = (columns - 1) * stride[1] + kernel[1] - width - left
        counted = (top, left, bottom, right) if operator.count_include_pad else (0, 0, 0, 0)
        pad = (top, left, max(bottom, down), max(right, across))
        return pooling.Pool(kernel, stride, pad, counted)

    @property
    def _is_maximum(self) -> bool:
        operator = self.layers[0].operator
        assert isinstance(operator, ops.Pool | ops.GlobalPool)
        return operator.function == "max"

    def forward(self, step: MicroBatch) -> Value:
        """See `Unit`."""
        x = step.values[self.inputs[0]].tensor
        pool = self._pool(step)
        _, channels, *sizes = self.layers[0].output.shape
        y = step.feature(self.name, (x.shape[0], *sizes, channels))
        if pool is None:
            step.add(global_pooling.global_average(self.name, x, y, step.region))
        elif self._is_maximum:
            trains = step.options.train
            index = step.tensor(f"{self.name}.index", y.shape, 2) if trains else None
            step.add(pooling.max_pool(self.name, pool, x, y, step.region, index=index))
        else:
            step.add(pooling.average_pool(self.name, pool, x, y, step.region))
        return Value(y)

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        x = step.values[self.inputs[0]].tensor
        pool = self._pool(step)
        name = f"{self.name}.gradient"
        dx = step.feature(f"{self.name}.dx", x.shape)
        if pool is None:
            step.add(global_pooling.global_average_gradient(name, dy, dx, step.region))
        elif self._is_maximum:
            index = step.made_before(f"{self.name}.index")
            step.add(pooling.max_pool_gradient(name, pool, dy, index, dx, step.region))
        else:
            step.add(pooling.average_pool_gradient(name, pool, dy, dx, step.region))
        step.give_gradient(self.inputs[0], dx)


def units_of(graph: Graph) -> Iterator[Unit]:
    """Group a network's layers.

    Raises
    ------
    UserError
        If the core does not run a layer.
    """
    readers: dict[str, list[Layer]] = {}
    for layer in graph.layers.values():
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)

    def only_reader(name: str) -> Layer | None:
        found = readers.get(name, [])
        return found[0] if len(found) == 1 and name not in graph.outputs else None

    taken: set[str] = set()
    order = {name: index for index, name in enumerate(graph.layers)}
    num_dropouts = 0
    for layer in graph.layers.values():
        if layer.name in taken:
            continue
        chain = [layer]
        residual = None
        operator = layer.operator
        if isinstance(operator, ops.BatchNorm):
            follower = only_reader(chain[-1].name)
            if follower is not None and _is_sum(follower):
                other = [name for name in follower.inputs if name != layer.name]
                # The other summand must be there when the normalisation runs.
                if other and order.get(other[0], -1) < order[layer.name]:
                    chain.append(follower)
                    residual = other[0]
        slope = None
        if isinstance(operator, ops.Conv | ops.Linear | ops.BatchNorm) or _is_sum(layer):
            follower = only_reader(chain[-1].name)
            if follower is not None and _slope(follower) is not None:
                slope = _slope(follower)
                if isinstance(operator, ops.Conv | ops.Linear) or slope == 0:
                    chain.append(follower)
                else:
                    slope = None
        taken |= {each.name for each in chain}
        layers = tuple(chain)
        if isinstance(operator, ops.Conv | ops.Linear):
            yield ProductUnit(layers, slope)
        elif isinstance(operator, ops.BatchNorm):
            yield NormUnit(layers, residual, slope is not None)
        elif _is_sum(layer):
            yield AddUnit(layers, slope is not None)
        elif _slope(layer) is not None:
            yield ActivationUnit(layers, _slope(layer) or 0)
        elif isinstance(operator, ops.Dropout):
            num_dropouts += 1
            yield DropoutUnit(layers, num_dropouts)
        elif _flattens(layer):
            yield FlattenUnit(layers)
        elif isinstance(operator, ops.Pool | ops.GlobalPool):
            yield PoolUnit(layers)
        else:
            raise UserError(f"layer {layer.name!r}: the core has no {layer.op} (docs/limits.md)")


def _is_sum(layer: Layer) -> bool:
    operator = layer.operator
    same = len({tensor.shape for tensor in layer.input_tensors}) == 1
    return isinstance(operator, ops.Binary) and operator.function == "add" and same


def _flattens(layer: Layer) -> bool:
    """Whether all axes but the first become one, which some exporters write as a reshape."""
    if not isinstance(layer.operator, ops.Flatten | ops.Reshape):
        return False
    samples, *sizes = layer.input_tensors[0].shape
    return layer.output.shape == (samples, math.prod(sizes))


def _slope(layer: Layer) -> float | None:
    """Factor of negative values; None if the layer is not a ReLU."""
    operator = layer.operator
    if isinstance(operator, ops.Activation):
        if operator.function == "relu":
            return 0
        if operator.function == "leaky_relu":
            return operator.alpha
    return None
