"""Masks that are computed from inputs of the network: what frontends make of them.

Devices read an input of booleans or whole numbers in comparisons alone, whose results are numbers.
A value that can have two levels only is a comparison with views behind it; what is computed from it
with fixed numbers is the same comparison with other levels, so that no layer is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpgapipe.network.frontends.builder import FrontendBuilder, Unsupported
from fpgapipe.network.mask_inputs import VIEWS, holds
from fpgapipe.network.operators import Binary, Compare, Embedding, Expand, MaskedFill, Operator
from fpgapipe.network.operators.tensors import DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

HIDDEN = -1e30
"""Largest summand that makes an element's share of a softmax zero, whatever the element is."""

LOWEST = -(2.0**100)
"""Replacement of finite numbers from `HIDDEN` down in a mask; BF16 has this number."""

Levels = tuple[float, float]


class Masks:
    """Masks of a network that a frontend builds.

    Parameters
    ----------
    builder : FrontendBuilder
    """

    def __init__(self, builder: FrontendBuilder) -> None:
        self._builder = builder
        self._flags: set[str] = set()  # products of zeros and ones
        self._known: dict[tuple[str, Operator], str] = {}
        self._taken: set[str] = set()  # inputs whose values are taken for zeros and ones

    # Values with two levels.

    def levels(self, layer: str) -> Levels | None:
        """The two levels of a layer, if a comparison makes it; the first where that holds."""
        source = self._source(layer)
        operator = self._operator(source)
        if isinstance(operator, Compare):
            return operator.then, operator.otherwise
        return (1.0, 0.0) if source in self._flags else None

    def numbers(self, layer: str) -> str:
        """The layer that gives a tensor's values as floating-point numbers.

        Raises
        ------
        Unsupported
            If it is computed, and has no floating-point numbers.
        """
        if self._builder.tensor(layer).dtype.is_float:
            return layer
        source = self._source(layer)
        if source not in self._builder.inputs:
            raise Unsupported(f"reads whole numbers or booleans that {source!r} computes")
        if self._builder.tensor(source).dtype is not DType.BOOL:
            self._taken.add(source)
        return self.compared(layer, "ne", 0.0)

    def mapped(self, layer: str, function: Callable[[float], float]) -> str | None:
        """A layer with other levels, a function of the present ones; None if it has no levels."""
        levels = self.levels(layer)
        if levels is None:
            return None
        return self._with_levels(layer, (function(levels[0]), function(levels[1])))

    def paired(self, one: str, other: str, function: Callable[[float, float], float]) -> str | None:
        """A layer whose levels are a function of those of two layers.

        None unless both are the same views of the same comparison.
        """
        pair = self.levels(one), self.levels(other)
        if None in pair or self._skeleton(one) != self._skeleton(other):
            return None
        then, otherwise = (function(*levels) for levels in zip(*pair, strict=True))  # type: ignore[arg-type]
        return self._with_levels(one, (then, otherwise))

    def _with_levels(self, layer: str, levels: Levels) -> str:
        then, otherwise = (_lowest(each) for each in levels)
        if (then, otherwise) == self.levels(layer):
            return layer
        source = self._source(layer)
        operator = self._operator(source)
        if isinstance(operator, Compare):
            operator = replace(operator, then=then, otherwise=otherwise)
            (source,) = self._layer(source).inputs
        else:
            operator = Compare("ne", 0.0, then, otherwise)
        return self._seen_as(layer, self._put(f"{layer}.levels", operator, source))

    def _skeleton(self, layer: str) -> tuple[object, ...]:
        """Common part of a layer with two levels and the same one of other levels."""
        views: list[object] = []
        while isinstance(operator := self._operator(layer), VIEWS):
            views.append(operator)
            (layer,) = self._layer(layer).inputs
        if isinstance(operator, Compare):
            (source,) = self._layer(layer).inputs
            return (*views, source, operator.function, operator.number)
        return (*views, layer, "ne", 0.0)

    def compared(self, layer: str, function: str, number: float) -> str:
        """A layer that is 1 where a comparison holds, and 0 elsewhere."""
        as_one = Compare(function, number)
        found = self.mapped(layer, lambda level: holds(as_one, level))
        if found is not None:
            return found
        # Views of whole numbers become views of the comparison's result.
        is_float = self._builder.tensor(layer).dtype.is_float
        source = layer if is_float else self._source(layer)
        if not is_float and source not in self._builder.inputs:
            raise Unsupported(f"compares whole numbers that {source!r} computes")
        name = f"{source}.{function}" if source in self._builder.inputs else f"{layer}.{function}"
        result = self._put(name, as_one, source)
        return result if is_float else self._seen_as(layer, result)

    def inverted(self, layer: str) -> str:
        """A layer that is 1 where the given one is 0, and 0 elsewhere."""
        return self.compared(layer, "eq", 0.0)

    def both(self, name: str, one: str, other: str) -> str:
        """A layer that is 1 where neither of two is 0."""
        pair = [self.narrow(self.flag(each)) for each in (one, other)]
        shape = Binary("mul").output([self._builder.tensor(each) for each in (one, other)]).shape
        result = self._builder.add_with_values(name, Binary("mul"), *pair, values={})
        self._flags.add(result)
        return self.repeated(result, shape)

    def either(self, name: str, one: str, other: str) -> str:
        """A layer that is 1 where one of two is not 0."""
        neither = self.both(f"{name}.neither", self.inverted(one), self.inverted(other))
        return self.inverted(neither)

    def flag(self, layer: str) -> str:
        """A layer of zeros and ones that says where the given one is not 0."""
        return layer if self._is_flag(layer) else self.compared(layer, "ne", 0.0)

    def fixed_flag(self, layer: str) -> str:
        """Note that a layer of fixed numbers has zeros and ones only."""
        self._flags.add(layer)
        return layer

    # Where masks are applied.

    def fill(self, name: str, x: str, mask: str, value: float) -> str:
        """Add a layer with a number in the place of the elements where a mask is not 0."""
        levels = self.levels(mask)
        keeps = False
        if levels is not None and (levels[0] == 0) != (levels[1] == 0):
            # The comparison itself is read, so that all layers share it.
            keeps = levels[0] == 0
            mask = self.mapped(mask, lambda level: float((level != 0) != keeps)) or mask
        else:
            mask = self.flag(mask)
        mask = self.narrow(mask)
        shape = self._builder.tensor(x).shape
        wanted = Binary("mul").output([self._builder.tensor(each) for each in (x, mask)]).shape
        if wanted != shape:
            x = self.repeated(x, wanted)
        operator = MaskedFill(_lowest(value), keeps)
        return self._builder.add_with_values(name, operator, x, mask, values={})

    def added(self, name: str, x: str, mask: str) -> str | None:
        """Add a mask to scores; None if its levels are not 0 and one that hides."""
        levels = self.levels(mask)
        if levels is None or 0 not in levels or min(levels) > HIDDEN:
            return None
        hidden = min(levels)
        where = self.mapped(mask, lambda level: float(level == hidden))
        assert where is not None
        return self.fill(name, x, where, hidden)

    def narrow(self, layer: str) -> str:
        """A layer without what repeats it, for an operator that repeats it again."""
        while isinstance(self._operator(layer), Expand):
            (inner,) = self._layer(layer).inputs
            if len(self._builder.tensor(inner).shape) != len(self._builder.tensor(layer).shape):
                break
            layer = inner
        return layer

    def check(self, graph: Graph) -> None:
        """Refuse inputs that are taken for zeros and ones, and for something else as well.

        Raises
        ------
        Unsupported
            If there is such an input.
        """
        for each in graph.layers.values():
            for name in self._taken.intersection(each.inputs):
                operator = each.operator
                others = isinstance(operator, Compare) and not 0 <= operator.number <= 1
                if others or isinstance(operator, Embedding):
                    raise Unsupported(
                        f"input {name!r} is computed with as a mask of zeros and ones, and layer "
                        f"{each.name!r} reads other numbers from it; give the mask as an input of "
                        "its own, or compare the input with a number"
                    )

    # Views.

    def _layer(self, name: str) -> Any:
        layer = self._builder.layer(name)
        assert layer is not None, f"{name} is no layer"
        return layer

    def _operator(self, name: str) -> Operator | None:
        layer = self._builder.layer(name)
        return None if layer is None else layer.operator

    def _source(self, layer: str) -> str:
        """Layer of which a layer is a view."""
        while isinstance(self._operator(layer), VIEWS):
            (layer,) = self._layer(layer).inputs
        return layer

    def _seen_as(self, view: str, source: str) -> str:
        """A source through the views through which `view` sees another source of its shape."""
        operator = self._operator(view)
        if not isinstance(operator, VIEWS):
            return source
        (inner,) = self._layer(view).inputs
        return self._put(f"{view}.view", operator, self._seen_as(inner, source))

    def _put(self, name: str, operator: Operator, source: str) -> str:
        """Add a layer, unless there is one."""
        found = self._known.get((source, operator))
        if found is None:
            found = self._builder.add_with_values(name, operator, source, values={})
            self._known[source, operator] = found
        return found

    def repeated(self, layer: str, shape: Sequence[int]) -> str:
        """A layer that is repeated to a shape."""
        if self._builder.tensor(layer).shape == tuple(shape):
            return layer
        return self._put(f"{layer}.expand", Expand(tuple(shape)), layer)

    def _is_flag(self, layer: str) -> bool:
        return self.levels(layer) in ((1.0, 0.0), (0.0, 1.0))


def _lowest(value: float) -> float:
    """A level, which is a number of BF16 if it hides."""
    return LOWEST if -math.inf < value <= HIDDEN else value


def hides(value: NDArray[Any]) -> bool:
    """Whether a fixed tensor is a mask: it has numbers, or -infinity, that hide what is summed."""
    return bool((value <= HIDDEN).any())


def is_flag(value: NDArray[np.generic]) -> bool:
    """Whether a fixed tensor has zeros and ones only."""
    return bool(((value == 0) | (value == 1)).all())
