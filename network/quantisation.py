"""Quantises a trained network to INT8 with static scales, for inference.

Weights have a scale for each output channel, activations one for each tensor. Both are symmetric,
-127..127 without a zero point, so that cores multiply them without splitting. The scale of a tensor
comes from the largest magnitude that it has been seen with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network import operators as ops
from fpgapipe.network.graph import Graph, GraphBuilder, Layer, NetworkError
from fpgapipe.network.operators.integers import exact_factor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = Mapping[str, NDArray[Any]]

LARGEST = 127
"""Largest integer of weights and activations; -128 is not used."""

_KEEPING = (ops.Flatten, ops.Reshape, ops.Transpose)
"""Operators that only move elements."""


@dataclass(frozen=True)
class _Integers:
    """The layer of a tensor's integers, their scale, and their least and greatest."""

    layer: str
    scale: np.float32
    limits: tuple[int, int]


def quantised(graph: Graph, values: Values, largest: Mapping[str, float]) -> Graph:
    """Make the network whose layers compute with integers.

    Convolutions with one group, linear layers, batch normalisation and ReLU behind them, sums of
    two tensors, pooling, and what moves elements compute with integers. Everything else keeps its
    real numbers. Results of the network are real numbers, those of a last product from its exact
    sums.

    Parameters
    ----------
    graph : Graph
    values : mapping of str to array
        Trained values of all parameters.
    largest : mapping of str to float
        Largest magnitude of each layer's result, and of each input of the network.

    Raises
    ------
    NetworkError
        If an input of the network holds integers, or a magnitude is no number.
    """
    return _Quantiser(graph, values, largest).run()


def scale_of(largest: float) -> np.float32:
    """The scale with which numbers up to a magnitude become -127..127; 1 if all are zeros."""
    if not 0 <= largest < math.inf:
        raise NetworkError(f"magnitudes to quantise must be finite, not {largest}")
    return np.float32(largest / LARGEST) if largest > 0 else np.float32(1)


class _Quantiser:
    """The translation of a network; see `quantised`."""

    def __init__(self, graph: Graph, values: Values, largest: Mapping[str, float]) -> None:
        self._graph, self._values, self._largest = graph, values, largest
        self._builder = GraphBuilder(f"{graph.name}-int8", graph.batch)
        self._integers: dict[str, _Integers] = {}
        self._reals: dict[str, str] = {}
        self._done: set[str] = set()
        self._readers: dict[str, list[Layer]] = {}
        for layer in graph.layers.values():
            for name in layer.inputs:
                self._readers.setdefault(name, []).append(layer)

    def run(self) -> Graph:
        """Translate all layers."""
        for name, tensor in self._graph.inputs.items():
            if not tensor.dtype.is_float:
                raise NetworkError(f"input {name!r} of an INT8 network must not be {tensor.dtype}")
            self._reals[name] = self._builder.input(name, tensor)
        for layer in self._graph.layers.values():
            if layer.name not in self._done:
                self._translate(layer)
        for name in self._graph.outputs:
            self._real(name)
        return self._builder.build([self._reals[name] for name in self._graph.outputs])

    def _translate(self, layer: Layer) -> None:
        if _is_product(layer):
            self._product(layer)
        elif self._is_sum(layer):
            self._sum(layer)
        elif _keeps_order(layer):
            self._on_integers(layer)
        elif isinstance(layer.operator, ops.Dropout):
            self._integers[layer.name] = self._quantised(layer.inputs[0])
        elif window := _window(layer):
            self._average(layer, window)
        else:
            inputs = [self._real(name) for name in layer.inputs]
            self._reals[layer.name] = self._copied(layer.name, layer, inputs)

    # ------------------------------------------------------------------ values, both ways

    def _named(self, name: str) -> str:
        """Name for the layer of a value's integers; an output's own name is for real numbers."""
        return f"{name}.integers" if name in self._graph.outputs else name

    def _quantised(self, name: str) -> _Integers:
        """A value's integers."""
        if name not in self._integers:
            scale, limits = self._grid(name)
            layer = self._builder.add(
                f"{name}.quantised", ops.Quantise(float(scale), limits), self._reals[name]
            )
            self._integers[name] = _Integers(layer, scale, limits)
        return self._integers[name]

    def _grid(self, name: str, least: int = -LARGEST) -> tuple[np.float32, tuple[int, int]]:
        return scale_of(self._largest[name]), (least, LARGEST)

    def _real(self, name: str) -> str:
        """A value's real numbers."""
        if name not in self._reals:
            integers = self._integers[name]
            own = name if name in self._graph.outputs else f"{name}.real"
            operator = ops.Dequantise((float(integers.scale),))
            self._reals[name] = self._builder.add(own, operator, integers.layer)
        return self._reals[name]

    def _follower(self, name: str) -> Layer | None:
        """The only layer that reads a value, unless the value is a result of the network."""
        found = self._readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self._graph.outputs else None

    def _with_relu(self, last: Layer) -> tuple[Layer, int]:
        """The ReLU behind a layer or the layer itself, and the least integer of the result."""
        follower = self._follower(last.name)
        if follower is not None and follower.op == "relu":
            self._done.add(follower.name)
            return follower, 0
        return last, -LARGEST

    # ------------------------------------------------------------------ layers

    def _copied(self, name: str, layer: Layer, inputs: list[str]) -> str:
        """A layer with its own operator and parameters, which are never changed."""
        roles = [each.spec.role for each in layer.parameters]
        own = self._builder.add(name, layer.operator, *inputs, frozen=roles)
        for role, each in zip(roles, layer.parameters, strict=True):
            self._builder.set_value(
                f"{name}.{role}", np.asarray(self._values[each.name], np.float32)
            )
        return own

    def _on_integers(self, layer: Layer) -> None:
        """An operator that moves or compares elements."""
        x = self._quantised(layer.inputs[0])
        name = self._copied(self._named(layer.name), layer, [x.layer])
        low, high = x.limits
        limits = (0, high) if layer.op == "relu" else (low, high)
        self._integers[layer.name] = replace(x, layer=name, limits=limits)

    def _product(self, layer: Layer) -> None:
        """A convolution or linear layer, with the normalisation and the ReLU behind it."""
        x = self._quantised(layer.inputs[0])
        weights, bias = self._learned(layer)
        last = layer
        follower = self._follower(layer.name)
        if follower is not None and isinstance(follower.operator, ops.BatchNorm):
            weights, bias = self._folded(follower, weights, bias)
            self._done.add(follower.name)
            last = follower
        last, least = self._with_relu(last)
        flat = weights.reshape(len(weights), -1)
        scales = np.array([scale_of(float(each)) for each in np.abs(flat).max(axis=1)])
        integers = np.rint(flat / scales[:, None]).astype(np.int64)
        sums = np.asarray(x.scale * scales, np.float32)
        whole_bias = np.rint(bias / sums.astype(np.float64)).astype(np.int64)

        operator = layer.operator
        assert isinstance(operator, ops.Conv | ops.Linear)
        product = self._builder.add(
            f"{layer.name}.sums", replace(operator, bias=False), x.layer, frozen=("weight",)
        )
        self._builder.set_value(
            f"{product}.weight", integers.astype(np.float32).reshape(weights.shape)
        )
        axis = 1 if isinstance(operator, ops.Conv) else len(layer.output.shape) - 1
        rescale = ops.Rescale(
            x.limits,
            (-LARGEST, LARGEST),
            int(np.abs(integers).sum(axis=1).max()),
            flat.shape[1],
            (0, 0),
            tuple(int(each) for each in whole_bias) if bias.any() else (),
            axis=axis,
        )
        if last.name in self._graph.outputs and least:
            exact = self._builder.add(f"{last.name}.exact", rescale, product)
            operator_back = ops.Dequantise(tuple(float(each) for each in sums), axis)
            self._reals[last.name] = self._builder.add(last.name, operator_back, exact)
            return
        scale, limits = self._grid(last.name, least)
        pairs = [exact_factor(float(each)) for each in np.asarray(sums / scale, np.float32)]
        rescale = replace(
            rescale,
            range=limits,
            multipliers=tuple(multiplier for multiplier, _ in pairs),
            shifts=tuple(shift for _, shift in pairs),
        )
        name = self._builder.add(self._named(last.name), rescale, product)
        self._integers[last.name] = _Integers(name, scale, limits)

    def _learned(self, layer: Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weight and bias of a layer."""
        found = {
            each.spec.role: np.asarray(self._values[each.name], np.float64)
            for each in layer.parameters
        }
        return found["weight"], found.get("bias", np.zeros(len(found["weight"])))

    def _folded(
        self, norm: Layer, weights: NDArray[np.float64], bias: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weight and bias with those of a batch normalisation, and its statistics."""
        operator = norm.operator
        assert isinstance(operator, ops.BatchNorm)
        found = {
            each.spec.role: np.asarray(self._values[each.name], np.float64)
            for each in norm.parameters
        }
        factor = found.get("weight", 1.0) / np.sqrt(found["running_var"] + operator.epsilon)
        shape = (-1,) + (1,) * (weights.ndim - 1)
        shift = (bias - found["running_mean"]) * factor + found.get("bias", 0.0)
        return weights * np.reshape(factor, shape), shift

    @staticmethod
    def _is_sum(layer: Layer) -> bool:
        is_add = isinstance(layer.operator, ops.Binary) and layer.operator.function == "add"
        return is_add and len({each.shape for each in layer.input_tensors}) == 1

    def _sum(self, layer: Layer) -> None:
        """A sum of two tensors, and the ReLU behind it."""
        a, b = (self._quantised(name) for name in layer.inputs)
        last, least = self._with_relu(layer)
        scale, limits = self._grid(last.name, least)
        operator = ops.IntegerAdd((float(a.scale), float(b.scale)), float(scale), limits)
        name = self._builder.add(self._named(last.name), operator, a.layer, b.layer)
        self._integers[last.name] = _Integers(name, scale, limits)

    def _average(self, layer: Layer, window: ops.WindowSum) -> None:
        """An average over windows."""
        x = self._quantised(layer.inputs[0])
        taps = math.prod(window.kernel)
        sums = self._builder.add(f"{layer.name}.sums", window, x.layer)
        scale, limits = self._grid(layer.name, min(x.limits[0], 0))
        multiplier, shift = exact_factor(float(np.float32(x.scale / (taps * float(scale)))))
        operator = ops.Rescale(x.limits, (1, 1), taps, taps, limits, (), (multiplier,), (shift,))
        name = self._builder.add(self._named(layer.name), operator, sums)
        self._integers[layer.name] = _Integers(name, scale, limits)


def _is_product(layer: Layer) -> bool:
    """Whether a layer is a product that the array computes with integers."""
    operator = layer.operator
    if isinstance(operator, ops.Conv):
        return operator.groups == 1 and len(operator.kernel) < 3
    return isinstance(operator, ops.Linear)


def _keeps_order(layer: Layer) -> bool:
    """Whether a layer only moves or compares elements, so that integers will do."""
    operator = layer.operator
    if isinstance(operator, ops.Pool):
        return operator.function == "max"
    is_relu = isinstance(operator, ops.Activation) and operator.function == "relu"
    return is_relu or isinstance(operator, _KEEPING)


def _window(layer: Layer) -> ops.WindowSum | None:
    """The windows of an average of images whose windows all count as many elements."""
    operator = layer.operator
    if not layer.input_tensors or len(layer.input_tensors[0].shape) != 4:
        return None
    if isinstance(operator, ops.GlobalPool) and operator.function == "average":
        return ops.WindowSum(layer.input_tensors[0].shape[2:], (1, 1), ((0, 0), (0, 0)))
    if not isinstance(operator, ops.Pool) or operator.function != "average":
        return None
    counts = operator.count_include_pad or not any(map(any, operator.padding))
    if operator.ceil_mode or set(operator.dilation) != {1} or not counts:
        return None
    return ops.WindowSum(operator.kernel, operator.stride, operator.padding)
