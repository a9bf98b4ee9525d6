"""Random networks as data, from which their PyTorch code and modules are made."""

from __future__ import annotations

import dataclasses
import linecache
import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .operators import OPERATORS, PRELUDE, Draw, Operator, Options, Shape

MOST_VALUES, MOST_WEIGHTS, MOST_MACS = 9_000, 40_000, 1_500_000
"""Most elements of a value and of a module, and most multiply-accumulates of a layer."""


@dataclass(frozen=True)
class Layer:
    """A layer of a network.

    Attributes
    ----------
    operator : str
        Key of `OPERATORS`.
    values : tuple of int
        Numbers of the values that it reads. Value 0 is the input, value `i + 1` that of layer `i`.
    options : dict
        Options of the operator.
    shared : int or None
        Number of the layer whose module it uses; None if it has its own.
    """

    operator: str
    values: tuple[int, ...]
    options: Options
    shared: int | None = None


@dataclass(frozen=True)
class Description:
    """A network.

    Attributes
    ----------
    shape : tuple of int
        Shape of the input.
    rows : int
        Number of values of an input of whole numbers; 0 if the input has real numbers.
    layers : tuple of Layer
    outputs : tuple of int
        Numbers of the values that it returns.
    """

    shape: Shape
    rows: int
    layers: tuple[Layer, ...]
    outputs: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return dataclasses.asdict(self)

    @property
    def draws_random(self) -> bool:
        """Whether it draws random numbers in training."""
        return any(OPERATORS[each.operator].random for each in self.layers)


class Invalid(Exception):
    """PyTorch does not run such a network."""


class Builder:
    """A network that grows layer by layer, with the values that it computes for an example.

    Parameters
    ----------
    shape : tuple of int
    rows : int
        As in `Description`.
    """

    def __init__(self, shape: Shape, rows: int) -> None:
        self.rows = rows
        example = torch.randint(0, rows, shape) if rows else torch.randn(shape)
        self.values: list[torch.Tensor] = [example]
        self.modules: dict[str, Any] = {}
        self.makers: dict[str, str] = {}
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional}
        exec(PRELUDE, self.names)

    def add(self, number: int, layer: Layer) -> None:
        """Add a layer.

        Raises
        ------
        Invalid
            If PyTorch does not run it.
        """
        operator = OPERATORS[layer.operator]
        owner = number if layer.shared is None else layer.shared
        name = f"m{owner}"
        shape = tuple(self.values[layer.values[0]].shape)
        words = self._words(layer, shape, f"self.{name}")
        if layer.shared is None and operator.module:
            maker = filled(operator.module, words)
            if layer.options.get("frozen"):
                maker += ".requires_grad_(False)"
            self._try(lambda: self.modules.update({name: eval(maker, self.names)}))
            self.makers[name] = maker
        elif operator.module and name not in self.modules:
            raise Invalid(f"layer {number} shares a module that is not there")
        line = filled(operator.run, words)
        own = type("Self", (), self.modules)()
        scope = {"self": own} | {f"v{i}": each for i, each in enumerate(self.values)}
        found = self._try(lambda: eval(line, self.names | scope))
        if not isinstance(found, torch.Tensor) or not found.numel():
            raise Invalid("no tensor, or one without elements")
        if found.shape[:1] != self.values[0].shape[:1] or not found.isfinite().all():
            raise Invalid("samples are not first, or the result is not finite")
        self.values.append(found)
        self.lines.append(f"v{len(self.values) - 1} = {line}")

    def _words(self, layer: Layer, shape: Shape, module: str) -> Options:
        words: Options = {str(i): f"v{number}" for i, number in enumerate(layer.values)}
        words |= layer.options | {"m": module, "shape": shape, "rows": self.rows}
        if len(shape) > 1:
            words |= {"c": shape[1], "f": shape[-1]}
        return words

    def _try(self, function: Any) -> Any:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function()
        except Exception as error:  # any error of PyTorch
            raise Invalid(" ".join(str(error).split())[:200]) from None

    def weights_of(self, number: int) -> int:
        """Number of elements of a layer's own parameters."""
        module = self.modules.get(f"m{number}")
        if isinstance(module, nn.Module):
            return sum(each.numel() for each in module.parameters())
        return 0 if module is None else int(module.numel())

    def source(self, outputs: tuple[int, ...]) -> str:
        """Python code of the network."""
        used = "\n".join([*self.makers.values(), *self.lines])
        lines = ["import torch", "from torch import nn", "from torch.nn import functional as F", ""]
        if "Attention(" in used.replace("MultiheadAttention(", ""):
            lines += ["", *PRELUDE.splitlines()]
        lines += [
            "",
            "class Net(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]
        lines += [f"        self.{name} = {maker}" for name, maker in self.makers.items()]
        lines += ["", "    def forward(self, v0):"]
        lines += [f"        {line}" for line in self.lines]
        lines += ["        return " + ", ".join(f"v{number}" for number in outputs)]
        return "\n".join(lines) + "\n"


def filled(template: str, words: Options) -> str:
    """Fill in names in braces, also those that the values contain."""
    for _ in range(4):
        text = re.sub(r"\{(\w+)\}", lambda found: str(words[found[1]]), template)
        if text == template:
            break
        template = text
    return template


@dataclass(frozen=True)
class Network:
    """A network that can be run.

    Attributes
    ----------
    description : Description
    source : str
        Its Python code.
    module : nn.Module
    example : tensor
        An input.
    """

    description: Description
    source: str
    module: nn.Module
    example: torch.Tensor


def realise(description: Description, seed: int = 0) -> Network:
    """Make the module of a description; a seed gives it its values.

    Raises
    ------
    Invalid
        If PyTorch does not run it.
    """
    torch.manual_seed(seed)
    builder = Builder(description.shape, description.rows)
    for number, layer in enumerate(description.layers):
        builder.add(number, layer)
    source = builder.source(description.outputs)
    file = f"<network {hash(source):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "random_network"}
    exec(compile(source, file, "exec"), names)
    torch.manual_seed(seed)
    module = names["Net"]().train()
    with torch.no_grad():
        for each in module.modules():
            if isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                each.weight.add_(torch.randn_like(each.weight) * 0.1)
                each.bias.add_(torch.randn_like(each.bias) * 0.1)
    return Network(description, source, module, builder.values[0])


def without_dead(description: Description) -> Description:
    """Leave out the layers whose values nothing reads."""
    layers = description.layers
    live = {number - 1 for number in description.outputs}
    for number in reversed(range(len(layers))):
        if number in live:
            live |= {value - 1 for value in layers[number].values}
            owner = layers[number].shared
            if owner is not None:
                live.add(owner)
    return keep(description, [number for number in range(len(layers)) if number in live])


def keep(description: Description, numbers: list[int]) -> Description:
    """Keep some layers; the value of another one is replaced by the first that it reads."""
    layers = description.layers
    stands_for = [0]
    places = {number: place for place, number in enumerate(numbers)}
    for number, layer in enumerate(layers):
        if number in places:
            stands_for.append(places[number] + 1)
        else:
            stands_for.append(stands_for[layer.values[0]])
    kept = []
    owners: dict[int, int] = {}
    for place, number in enumerate(numbers):
        layer = layers[number]
        shared = None
        if layer.shared is not None:
            shared = places.get(layer.shared, owners.get(layer.shared))
            owners.setdefault(layer.shared, place)
        values = tuple(stands_for[value] for value in layer.values)
        kept.append(Layer(layer.operator, values, layer.options, shared))
    outputs = tuple(dict.fromkeys(stands_for[value] for value in description.outputs))
    return dataclasses.replace(description, layers=tuple(kept), outputs=outputs)


def draw_network(seed: int) -> Network:
    """Draw a network."""
    torch.manual_seed(seed)
    draw = Draw(seed)
    shape, rows = _input(draw)
    builder = Builder(shape, rows)
    layers: list[Layer] = []

    def add(layer: Layer) -> bool:
        try:
            builder.add(len(layers), layer)
        except Invalid:
            return False
        value = builder.values[-1]
        weights = builder.weights_of(len(layers))
        positions = value.numel() // max(1, value.shape[1] if value.ndim > 1 else 1)
        fits = (
            value.numel() <= MOST_VALUES
            and weights <= MOST_WEIGHTS
            and weights * positions <= MOST_MACS
            and 2 <= value.ndim <= 6
            and float(value.abs().max()) < 1e3
        )
        if not fits:
            builder.values.pop()
            builder.lines.pop()
            if layer.shared is None:
                builder.makers.pop(f"m{len(layers)}", None)
                builder.modules.pop(f"m{len(layers)}", None)
            return False
        layers.append(layer)
        return True

    if rows:
        name = "bag" if draw.chance(0.06) else "embedding"
        add(Layer(name, (0,), OPERATORS[name].draw(draw, [shape]) or {}))
    target = draw.randint(3, 11)
    for _ in range(40):
        if len(layers) >= target:
            break
        layer = _layer(draw, builder, layers)
        if layer is not None:
            add(layer)
    last = len(builder.values) - 1
    ends = [last]
    if draw.chance(0.2):
        ends += draw.sample(range(1, last), min(draw.some(1, 1, 2), last - 1)) if last > 1 else []
    outputs = []
    for end in ends:
        for layer in _head(draw, builder.values[end], end, len(builder.values)):
            if not add(layer):
                break
        outputs.append(len(builder.values) - 1)
    description = Description(shape, rows, tuple(layers), tuple(dict.fromkeys(outputs)))
    return realise(without_dead(with_frozen(description, Draw(f"frozen {seed}"))), seed)


def with_frozen(description: Description, draw: Draw) -> Description:
    """Let some modules keep their values."""
    layers = [
        dataclasses.replace(layer, options=layer.options | {"frozen": True})
        if draw.chance(0.04) and number + 1 not in description.outputs
        else layer
        for number, layer in enumerate(description.layers)
    ]
    return dataclasses.replace(description, layers=tuple(layers))


def _input(draw: Draw) -> tuple[Shape, int]:
    """Shape of the input, and its number of rows if it has indices."""
    batch = draw.some(2, 2, 3, 4)
    kind = draw.random()
    if kind < 0.55:
        size = [draw.some(4, 5, 6, 7, 8, 9, 11, 13) for _ in range(2)]
        return (batch, draw.some(1, 3, 3, 4, 8, draw.channels()), *size), 0
    if kind < 0.75:
        return (batch, draw.some(3, 4, 5, 7, 8)), draw.some(5, 17, 32, 40)
    if kind < 0.87:
        return (batch, draw.some(3, 4, 5, 8, 9), draw.channels()), 0
    if kind < 0.95:
        return (batch, draw.channels()), 0
    return (batch, draw.some(1, 2, 3, 8), *(draw.some(3, 4, 5) for _ in range(3))), 0


def _layer(draw: Draw, builder: Builder, layers: list[Layer]) -> Layer | None:
    """Draw a layer that reads the last value, or now and then another one."""
    last = len(builder.values) - 1
    first = 1 if builder.rows else 0
    value = last if draw.chance(0.85) else draw.randint(first, last)
    shape = tuple(builder.values[value].shape)
    owners = [
        n for n, each in enumerate(layers) if f"m{n}" in builder.modules and each.shared is None
    ]
    if owners and draw.chance(0.08):
        owner = draw.choice(owners)
        whose = layers[owner]
        if OPERATORS[whose.operator].ranks and len(whose.values) == 1:
            return Layer(whose.operator, (value,), whose.options, owner)
    fitting = {n: each for n, each in OPERATORS.items() if len(shape) in each.ranks}
    if not fitting:
        return None
    weights = [each.weight * each.ranks.count(len(shape)) for each in fitting.values()]
    name = draw.choices(list(fitting), weights)[0]
    operator = fitting[name]
    values = [value, *_other(draw, builder, operator, value, first)]
    if len(values) < operator.values:
        return None
    options = operator.draw(draw, [tuple(builder.values[each].shape) for each in values])
    return None if options is None else Layer(name, tuple(values), options)


def _other(draw: Draw, builder: Builder, operator: Operator, value: int, first: int) -> list[int]:
    """The second value that an operator reads, preferably one of the same shape."""
    if operator.values < 2:
        return []
    shape = builder.values[value].shape
    others = [n for n in range(first, len(builder.values)) if n != value]
    same = [n for n in others if builder.values[n].shape == shape]
    others = [n for n in others if builder.values[n].ndim == len(shape)]
    chosen = same if same and draw.chance(0.8) else others
    return [draw.choice(chosen)] if chosen else []


def _head(draw: Draw, value: torch.Tensor, number: int, count: int) -> list[Layer]:
    """Layers that make logits of a value, which will have the numbers from `count` on."""
    classes = draw.some(2, 3, 5, 7, 10, 33)
    linear = {"out": classes, "bias": True}
    if value.ndim == 4 and draw.chance(0.3):
        options = {"axes": 2, "out": classes, "kernel": [1, 1], "stride": [1, 1], "padding": [0, 0],
                   "dilation": [1, 1], "groups": 1, "bias": True, "mode": "zeros"}  # fmt: skip
        return [Layer("conv", (number,), options)]
    if value.ndim == 2 or (value.ndim == 3 and draw.chance(0.6)):
        return [Layer("linear", (number,), linear)]
    flat = {"kind": "{0}.flatten(1)"}
    if value.ndim == 4 and draw.chance(0.5):
        flat = {"kind": "{0}.mean((2, 3))"}
    if math.prod(value.shape[1:]) * classes > MOST_WEIGHTS:
        flat = {"kind": "{0}.flatten(2).mean(-1)"}
    return [Layer("function", (number,), flat), Layer("linear", (count,), linear)]
