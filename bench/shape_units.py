"""Units that networks of shape classes are drawn around, by their operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from fpgapipe.network import operators as ops
from fpgapipe.network.operators.axis_map import averages, interpolation, selection
from fpgapipe.network.zoo.layers import Network

BORDERS = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 47, 48, 49),
    *(63, 64, 65, 80, 95, 96, 97, 112, 127, 128, 129, 130),
)
"""Numbers of channels beside and at multiples of vectors (16), blocks (32) and words of memory."""

MOST_CHANNELS = BORDERS[-1]


@dataclass
class Draw(random.Random):
    """Random numbers for shapes."""

    seed_text: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.seed_text)

    __hash__ = None  # type: ignore[assignment]

    def channels(self, most: int = MOST_CHANNELS) -> int:
        """A number of channels, most often at a border."""
        if self.random() < 0.7:
            return self.choice([each for each in BORDERS if each <= most])
        return self.randint(1, most)

    def size(self, most: int = 8) -> int:
        """A size of an axis of positions."""
        return min(self.choice((1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 16, 17, 33)), most)

    def likely(self, share: float = 0.5) -> bool:
        """Whether something happens that happens with a share."""
        return self.random() < share

    def rank(self) -> int:
        """A number of spatial axes."""
        return self.choice((1, 2, 2, 2, 3))

    def sizes(self, rank: int) -> tuple[int, ...]:
        """Sizes of spatial axes."""
        return tuple(self.size({1: 33, 2: 9, 3: 4}[rank]) for _ in range(rank))

    def each(self, rank: int, *choices: int) -> tuple[int, ...]:
        """A number for each axis."""
        return tuple(self.choice(choices) for _ in range(rank))

    def pairs(self, rank: int, most: int = 2) -> tuple[tuple[int, int], ...]:
        """Paddings: none, the same on all sides, or any."""
        kind = self.random()
        if kind < 0.3:
            return ((0, 0),) * rank
        if kind < 0.6:
            return ((1, 1),) * rank
        return tuple((self.randint(0, most), self.randint(0, most)) for _ in range(rank))


Adds = Callable[[Network, list[str]], str]


@dataclass(frozen=True)
class Unit:
    """A unit that was drawn: shapes of its inputs, without samples, and how it is added."""

    shapes: tuple[tuple[int, ...], ...]
    add: Adds
    text: str
    is_positive: bool = False
    tokens: int = 0


Drawer = Callable[[Draw], Unit]

UNITS: dict[str, Drawer] = {}
"""Functions that draw a unit, by its operator."""


def unit(*names: str) -> Callable[[Any], Any]:
    """Register a function that draws units; it is given the name if there are several."""

    def register(function: Any) -> Any:
        for name in names:
            UNITS[name] = (
                function if len(names) == 1 else lambda draw, name=name: function(draw, name)
            )
        return function

    return register


def layer(operator: ops.Operator, *shapes: tuple[int, ...], **options: Any) -> Unit:
    """A unit of one layer."""

    def add(net: Network, values: list[str]) -> str:
        return net.add("unit", operator, *values)

    return Unit(shapes, add, f"{operator} of {' and '.join(map(str, shapes))}", **options)


# ---------------------------------------------------------------------------------- products


def _windows(draw: Draw, rank: int) -> dict[str, tuple[int, ...]]:
    dilated = draw.likely(0.25)
    return {
        "kernel": draw.each(rank, 1, 2, 3, 3, 3, 4 if rank < 3 else 2, 5 if rank < 3 else 1),
        "stride": draw.each(rank, 1, 1, 1, 2, 3),
        "dilation": draw.each(rank, 1, 2, 3) if dilated else (1,) * rank,
    }


@unit("conv")
def _conv(draw: Draw) -> Unit:
    rank = draw.rank()
    operator = ops.Conv(
        draw.channels(), padding=draw.pairs(rank), bias=draw.likely(), **_windows(draw, rank)
    )
    return layer(operator, (draw.channels(), *draw.sizes(rank)))


def _groups(draw: Draw) -> tuple[int, int, int]:
    """Groups, and the channels of each before and behind."""
    groups = draw.choice((2, 2, 3, 4, 4, 6, 8, 16))
    most = MOST_CHANNELS // groups
    return groups, draw.channels(most), draw.channels(most)


@unit("grouped conv")
def _grouped(draw: Draw) -> Unit:
    rank = draw.rank()
    groups, before, behind = _groups(draw)
    operator = ops.Conv(
        groups * behind, padding=draw.pairs(rank), groups=groups, bias=draw.likely(),
        **_windows(draw, rank),
    )  # fmt: skip
    return layer(operator, (groups * before, *draw.sizes(rank)))


@unit("depthwise conv")
def _depthwise(draw: Draw) -> Unit:
    rank = draw.rank()
    more = draw.choice((1, 1, 1, 2))
    channels = draw.channels(MOST_CHANNELS if more == 1 else 32)
    operator = ops.Conv(
        more * channels, padding=draw.pairs(rank), groups=channels, bias=draw.likely(),
        **_windows(draw, rank),
    )  # fmt: skip
    return layer(operator, (channels, *draw.sizes(rank)))


@unit("conv_transpose")
def _conv_transpose(draw: Draw) -> Unit:
    rank = draw.rank()
    groups, before, behind = _groups(draw) if draw.likely(0.4) else (
        1, draw.channels(), draw.channels()
    )  # fmt: skip
    windows = _windows(draw, rank)
    more = tuple(draw.randrange(stride) if draw.likely(0.3) else 0 for stride in windows["stride"])
    operator = ops.ConvTranspose(
        groups * behind, padding=draw.pairs(rank, 1), output_padding=more, groups=groups,
        bias=draw.likely(), **windows,
    )  # fmt: skip
    return layer(operator, (groups * before, *draw.sizes(rank)))


@unit("linear")
def _linear(draw: Draw) -> Unit:
    before = tuple(draw.size(9) for _ in range(draw.choice((0, 0, 1, 2))))
    return layer(ops.Linear(draw.channels(), draw.likely()), (*before, draw.channels()))


@unit("matmul")
def _matmul(draw: Draw) -> Unit:
    """A product of activations, with or without what moves their elements around it."""
    if draw.likely(0.4):
        return _heads(draw)
    before = tuple(draw.size(3) for _ in range(draw.choice((0, 1, 1))))
    m, k, n = draw.size(33), draw.channels(), draw.channels()
    turned = draw.likely()
    shapes = (*before, m, k), (*before, n, k) if turned else (*before, k, n)
    rank = len(shapes[0]) + 1

    def add(net: Network, values: list[str]) -> str:
        one, other = values
        if turned:
            other = net.transpose(other, *range(rank - 2), rank - 1, rank - 2)
        return net.add("unit", ops.MatMul(), one, other)

    return Unit(shapes, add, f"matmul of {shapes}{' turned' if turned else ''}")


def _heads(draw: Draw) -> Unit:
    """Attention of several heads, whose operands are parts of one tensor."""
    heads, width, tokens = draw.choice((1, 2, 3, 4)), draw.channels(40), draw.size(17)
    joined, causal = draw.likely(), draw.likely(0.3)
    size = heads * width
    shapes = ((tokens, 3 * size),) if joined else ((tokens, size),) * 3

    def add(net: Network, values: list[str]) -> str:
        parts = net.split(values[0], 3, 2, "parts") if joined else values
        samples = net.tensor(values[0]).shape[0]
        q, k, v = (
            net.transpose(net.reshape(each, samples, tokens, heads, width), 0, 2, 1, 3)
            for each in parts
        )
        scores = net.matmul(q, net.transpose(k, 0, 1, 3, 2))
        weights = net.softmax(net.scale(scores, width**-0.5), causal=causal)
        y = net.transpose(net.matmul(weights, v), 0, 2, 1, 3)
        return net.reshape(y, samples, tokens, size, name="unit")

    return Unit(shapes, add, f"attention of {heads} heads of {tokens} x {width}, joined={joined}")


@unit("embedding")
def _embedding(draw: Draw) -> Unit:
    number, positions = draw.channels(), draw.size(17)
    operator = ops.Embedding(number, draw.channels())
    return layer(operator, (positions,), tokens=number)


@unit("lstm", "gru")
def _recurrent(draw: Draw, name: str) -> Unit:
    both, hidden = draw.likely(0.4), draw.channels(48)
    x = (draw.size(5), draw.channels(70))
    kind = {"lstm": ops.Lstm, "gru": ops.Gru}[name]
    more = {"final_cell": True} if name == "lstm" and draw.likely(0.3) else {}
    operator = kind(hidden, both, draw.likely(0.7), **more)
    states = ((hidden * (1 + both),),) * (len(kind.states) if draw.likely(0.4) else 0)
    return layer(operator, x, *states)


# ------------------------------------------------------------------------- windows and axes


@unit("max_pool", "average_pool")
def _pool(draw: Draw, name: str) -> Unit:
    rank = draw.rank()
    kernel = draw.each(rank, 1, 2, 3, 3)
    dilation = draw.each(rank, 1, 2) if name == "max_pool" and draw.likely(0.2) else (1,) * rank
    padding = tuple(
        (draw.randint(0, size // 2), draw.randint(0, size // 2)) if draw.likely() else (0, 0)
        for size in kernel
    )
    operator = ops.Pool(
        name.removesuffix("_pool"), kernel, draw.each(rank, 1, 1, 2, 3), padding, dilation,
        ceil_mode=draw.likely(0.2), count_include_pad=draw.likely(),
    )  # fmt: skip
    return layer(operator, (draw.channels(), *draw.sizes(rank)))


@unit("global_max_pool", "global_average_pool")
def _global_pool(draw: Draw, name: str) -> Unit:
    operator = ops.GlobalPool(name.split("_")[1])
    return layer(operator, (draw.channels(), *draw.sizes(draw.rank())))


@unit("axis_map")
def _axis_map(draw: Draw) -> Unit:
    shape = (draw.channels(), *draw.sizes(draw.rank()))
    axis = draw.randrange(2, len(shape) + 1)
    size = shape[axis - 1]
    wanted = draw.size(9)
    taps = draw.choice(
        (
            averages(size, wanted),
            interpolation([(i + 0.5) * size / wanted - 0.5 for i in range(wanted)], size),
            selection([draw.randrange(size) for _ in range(wanted)]),
        )
    )
    return layer(ops.AxisMap(axis, taps), shape)


@unit("pad")
def _pad(draw: Draw) -> Unit:
    shape = (draw.channels(), *draw.sizes(draw.rank()))
    channels = draw.pairs(1)[0] if draw.likely(0.2) else (0, 0)
    padding = ((0, 0), channels, *draw.pairs(len(shape) - 1))
    return layer(ops.Pad(padding, draw.choice((0.0, 0.0, 1.5))), shape)


@unit("upsample")
def _upsample(draw: Draw) -> Unit:
    rank = draw.rank()
    shape = (draw.channels(), *draw.sizes(rank))
    return layer(ops.Upsample(draw.each(rank, 1, 2, 3)), shape)


# ---------------------------------------------------------------------------- normalisations


@unit("batch_norm")
def _batch_norm(draw: Draw) -> Unit:
    rank = draw.choice((0, 1, 2, 2, 3))
    shape = (draw.channels(), *(draw.sizes(rank) if rank else ()))
    return layer(ops.BatchNorm(draw.choice((1e-5, 1e-3))), shape)


@unit("layer_norm")
def _layer_norm(draw: Draw) -> Unit:
    shape = (*(draw.size(9) for _ in range(draw.choice((0, 1, 1, 2)))), draw.channels())
    affine = draw.likely(0.8)
    operator = ops.LayerNorm(
        draw.randint(1, len(shape)), affine=affine, bias=affine and draw.likely(0.8),
        centred=draw.likely(0.8),
    )  # fmt: skip
    return layer(operator, shape)


@unit("softmax", "log_softmax")
def _softmax(draw: Draw, name: str) -> Unit:
    shape = (*(draw.size(9) for _ in range(draw.choice((0, 1, 2)))), draw.channels())
    causal = name == "softmax" and len(shape) > 1 and draw.likely(0.3)
    axis = -1 if causal or draw.likely(0.7) else 1
    return layer(ops.Softmax(axis, log=name == "log_softmax", causal=causal), shape)


# ------------------------------------------------------------------------------ elementwise


def _shape(draw: Draw) -> tuple[int, ...]:
    """Features, tokens of features, or images."""
    if draw.likely(0.4):
        return (*(draw.size(9) for _ in range(draw.choice((0, 1, 2)))), draw.channels())
    return (draw.channels(), *draw.sizes(draw.rank()))


@unit("add", "sub", "mul", "div", "max", "min")
def _binary(draw: Draw, name: str) -> Unit:
    shape = _shape(draw)
    other = shape
    if name in ("add", "sub", "mul") and draw.likely():
        other = tuple(1 if draw.likely() else size for size in shape)
    shapes = (shape, other) if draw.likely(0.8) else (other, shape)
    return layer(ops.Binary(name), *shapes, is_positive=name == "div")


@unit(*ops.ACTIVATIONS)
def _activation(draw: Draw, name: str) -> Unit:
    return layer(ops.Activation(name, draw.choice((0.01, 0.2, 1.0))), _shape(draw))


POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


@unit(*ops.UNARIES)
def _unary(draw: Draw, name: str) -> Unit:
    return layer(ops.Unary(name), _shape(draw), is_positive=name in POSITIVE)


@unit("affine")
def _affine(draw: Draw) -> Unit:
    return layer(ops.Affine(draw.choice((1.0, -0.5, 3.0)), draw.choice((0.0, 0.7))), _shape(draw))


@unit("clamp")
def _clamp(draw: Draw) -> Unit:
    low, high = draw.choice(((None, 0.3), (-0.2, None), (-0.3, 0.4), (0.0, 6.0)))
    return layer(ops.Clamp(low, high, draw.likely()), _shape(draw))


@unit("power")
def _power(draw: Draw) -> Unit:
    return layer(
        ops.Power(draw.choice((2.0, 3.0, 0.5, -1.0, 1.75, -0.25))), _shape(draw), is_positive=True
    )


@unit("dropout")
def _dropout(draw: Draw) -> Unit:
    return layer(ops.Dropout(draw.choice((0.1, 0.5, 0.75))), _shape(draw))


@unit("compare")
def _compare(draw: Draw) -> Unit:
    shape = _shape(draw)
    operator = ops.Compare(draw.choice(("lt", "ge", "ne")), 0.1, 2.0, -1.0)

    def add(net: Network, values: list[str]) -> str:
        return net.add("unit", ops.Binary("mul"), values[0], net.add("mask", operator, values[0]))

    return Unit((shape,), add, f"product with {operator} of {shape}")


@unit("masked_fill")
def _masked_fill(draw: Draw) -> Unit:
    shape = _shape(draw)
    other = tuple(1 if draw.likely(0.4) else size for size in shape)
    operator = ops.MaskedFill(draw.choice((0.0, -2.0)), draw.likely())

    def add(net: Network, values: list[str]) -> str:
        mask = net.add("mask", ops.Compare("lt", 0.1, 0.0, 1.0), values[1])
        return net.add("unit", operator, values[0], mask)

    return Unit((shape, other), add, f"{operator} of {shape} by {other}")


# ---------------------------------------------------------------- reductions and movements


@unit("reduce_sum", "reduce_mean")
def _reduce(draw: Draw, name: str) -> Unit:
    shape = _shape(draw)
    axes = [axis for axis in range(1, len(shape) + 1) if draw.likely()] or [len(shape)]
    return layer(ops.Reduce(name.removeprefix("reduce_"), tuple(axes), draw.likely()), shape)


@unit("transpose")
def _transpose(draw: Draw) -> Unit:
    shape = _shape(draw)
    order = draw.sample(range(1, len(shape) + 1), len(shape))
    return layer(ops.Transpose((0, *order)), shape)


@unit("reshape", "flatten")
def _reshape(draw: Draw, name: str) -> Unit:
    shape = _shape(draw)
    if name == "flatten":
        return layer(ops.Flatten(draw.randint(1, len(shape))), shape)
    elements = prod(shape)
    first = draw.choice([size for size in range(1, elements + 1) if elements % size == 0])

    def add(net: Network, values: list[str]) -> str:
        samples = net.tensor(values[0]).shape[0]
        return net.reshape(values[0], samples, first, elements // first, name="unit")

    return Unit((shape,), add, f"reshape of {shape} to {first} x {elements // first}")


@unit("expand")
def _expand(draw: Draw) -> Unit:
    shape = _shape(draw)
    ones = tuple(1 if draw.likely() else size for size in shape)

    def add(net: Network, values: list[str]) -> str:
        samples = net.tensor(values[0]).shape[0]
        return net.add("unit", ops.Expand((samples, *shape)), values[0])

    return Unit((ones,), add, f"expand of {ones} to {shape}")


@unit("concat")
def _concat(draw: Draw) -> Unit:
    shape = _shape(draw)
    axis = draw.randint(1, len(shape))
    shapes = [
        (*shape[: axis - 1], size, *shape[axis:])
        for size in draw.each(draw.choice((1, 2, 3)), *BORDERS if axis == 1 else range(1, 6))
    ]
    return layer(ops.Concat(axis), *shapes)


@unit("slice")
def _slice(draw: Draw) -> Unit:
    shape = _shape(draw)
    axis = draw.randint(1, len(shape))
    size = shape[axis - 1]
    start = draw.randrange(size)
    return layer(
        ops.Slice(axis, start, draw.randint(start + 1, size), draw.choice((1, 1, 2))), shape
    )


@unit("split")
def _split(draw: Draw) -> Unit:
    shape = _shape(draw)
    axis, parts = draw.randint(1, len(shape)), draw.choice((2, 3))
    shape = (*shape[: axis - 1], parts * draw.channels(40), *shape[axis:])

    def add(net: Network, values: list[str]) -> str:
        return net.concat(net.split(values[0], parts, axis, "part")[::-1], axis, name="unit")

    return Unit((shape,), add, f"split of {shape} along {axis} in {parts}")


@unit("constant", "select")
def _constant(draw: Draw, name: str) -> Unit:
    """A table that is learned, or rows of it, and added."""
    shape = _shape(draw)
    rows = draw.channels(40) if name == "select" else shape[0]
    learned, indices = draw.likely(0.8), [draw.randrange(rows) for _ in range(shape[0])]
    table = (rows, *(size if draw.likely(0.8) else 1 for size in shape[1:]))

    def add(net: Network, values: list[str]) -> str:
        own = net.add("table", ops.Constant(table, trainable=learned))
        if name == "select":
            own = net.add("rows", ops.Select(tuple(indices)), own)
        own = net.reshape(own, 1, *net.tensor(own).shape)
        return net.add("unit", ops.Binary("add"), values[0], own)

    return Unit((shape,), add, f"{name} of {table} added to {shape}")
