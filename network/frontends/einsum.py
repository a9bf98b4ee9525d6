"""Sums of products of tensors whose axes have letters, as transpositions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters

from fpgapipe.network.frontends.builder import FrontendBuilder, Unsupported
from fpgapipe.network.operators import Binary, MatMul, Operator, Reduce, Reshape, Transpose


def einsum(builder: FrontendBuilder, name: str, equation: str, layers: Sequence[str]) -> str:
    """Add the layers of a sum of products; return the last one.

    Tensors are multiplied one after the other. Axes that no later tensor and not the result has are
    summed over as soon as they can be.

    Parameters
    ----------
    builder : FrontendBuilder
    name : str
        Name of the result.
    equation : str
        A letter for each axis of each tensor, and of the result after an arrow; without an arrow,
        the result has the letters that are there once. Three dots are the axes that are left.
    layers : sequence of str
        Layers of the tensors.

    Raises
    ------
    Unsupported
        If the equation does not fit the tensors, or names an axis of a tensor twice.
    """
    ranks = [len(builder.tensor(layer).shape) for layer in layers]
    return _Sum(builder, name, *_terms(equation, ranks)).run(list(layers))


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str, str]:
    """Axes of the tensors and of the result, and letters of the axes that dots stand for."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"{equation!r} is of {len(terms)} tensors, not of {len(ranks)}")
    counts = [
        rank - len(term.replace("...", ""))
        for term, rank in zip(terms, ranks, strict=True)
        if "..." in term
    ]
    free = [each for each in ascii_letters if each not in equation]
    dots = "".join(free[: max([*counts, 0])])
    if not arrow:
        named = given.replace("...", "").replace(",", "")
        result = ("..." if counts else "") + "".join(
            sorted(each for each in set(named) if named.count(each) == 1)
        )
    spelt = []
    for term, rank in zip(terms, ranks, strict=True):
        own = rank - len(term.replace("...", ""))
        spelt.append(term.replace("...", dots[len(dots) - max(own, 0) :], 1))
        if len(spelt[-1]) != rank or (rank and not spelt[-1].isalpha()):
            raise Unsupported(f"{term!r} of {equation!r} does not fit a tensor of {rank} axes")
    result = result.replace("...", dots, 1)
    for each in (*spelt, result):
        if len(set(each)) < len(each):
            raise Unsupported(f"only with each axis of a tensor once, not {equation!r}")
    if set(result) - set("".join(spelt)):
        raise Unsupported(f"the result of {equation!r} has axes that no tensor has")
    return spelt, result, dots


class _Sum:
    """A sum of products whose equation is spelt out."""

    def __init__(
        self, builder: FrontendBuilder, name: str, terms: list[str], result: str, dots: str
    ) -> None:
        self._builder = builder
        self._name = name
        self._terms = terms
        self._result = result
        self._dots = dots
        self._sizes: dict[str, int] = {}

    def run(self, layers: list[str]) -> str:
        """Add the layers."""
        self._measure(layers)
        layers = [self._without_ones(*each) for each in enumerate(layers)]
        term, layer = self._terms[0], layers[0]
        for number, other in enumerate(layers[1:], 1):
            later = {*self._result, *"".join(self._terms[number + 1 :])}
            pair = [term, self._terms[number]]
            operands = [
                self._summed(f"{number}.{side}", pair, side, each, later)
                for side, each in enumerate((layer, other))
            ]
            term, layer = self._product(str(number), pair, operands, later)
        pair = [term]
        layer = self._summed("sum", pair, 0, layer, set(self._result))
        return self._ordered(self._name, pair[0], self._result, layer)

    def _measure(self, layers: list[str]) -> None:
        """Find the size of each axis; what dots stand for may be repeated from one element."""
        for term, layer in zip(self._terms, layers, strict=True):
            for axis, size in zip(term, self._builder.tensor(layer).shape, strict=True):
                known = self._sizes.setdefault(axis, size)
                if known == 1 and axis in self._dots:
                    self._sizes[axis] = size
                elif size not in (known, 1) or (size != known and axis not in self._dots):
                    raise Unsupported(f"axis {axis!r} has {known} and {size} elements")

    def _without_ones(self, number: int, layer: str) -> str:
        """Leave out the axes of dots along which a tensor is repeated."""
        shape, term = self._builder.tensor(layer).shape, self._terms[number]
        kept = [size == self._sizes[axis] for axis, size in zip(term, shape, strict=True)]
        if all(kept):
            return layer
        self._terms[number] = "".join(axis for axis, stays in zip(term, kept, strict=True) if stays)
        rest = tuple(size for size, stays in zip(shape, kept, strict=True) if stays)
        return self._add(f"{self._name}.{number}.rest", Reshape(rest), layer)

    def _summed(self, name: str, pair: list[str], side: int, layer: str, later: set[str]) -> str:
        """Sum over the axes that nothing but this tensor has."""
        others = {*later, *(each for i, term in enumerate(pair) if i != side for each in term)}
        axes = tuple(place for place, axis in enumerate(pair[side]) if axis not in others)
        if not axes:
            return layer
        pair[side] = "".join(axis for axis in pair[side] if axis in others)
        return self._add(f"{self._name}.{name}.sum", Reduce("sum", axes, keep_axes=False), layer)

    def _product(
        self, number: str, pair: list[str], operands: list[str], later: set[str]
    ) -> tuple[str, str]:
        """Multiply two tensors, and sum over the axes of both that nothing reads later."""
        one, other = pair
        batch = "".join(axis for axis in one if axis in other and axis in later)
        inner = "".join(axis for axis in one if axis in other and axis not in later)
        left = "".join(axis for axis in one if axis not in other)
        right = "".join(axis for axis in other if axis not in one)
        name = f"{self._name}.{number}"
        if not inner and not left and not right:
            operands[1] = self._ordered(f"{name}.order", other, one, operands[1])
            return one, self._add(f"{name}.product", Binary("mul"), *operands)
        leading = tuple(self._sizes[axis] for axis in batch)
        matrices = []
        for side, (term, rows, columns) in enumerate(((one, left, inner), (other, inner, right))):
            own = f"{name}.{side}"
            layer = self._ordered(f"{own}.order", term, batch + rows + columns, operands[side])
            shape = (*leading, self._size(rows), self._size(columns))
            if self._builder.tensor(layer).shape != shape:
                layer = self._add(f"{own}.matrices", Reshape(shape), layer)
            matrices.append(layer)
        layer = self._add(f"{name}.product", MatMul(), *matrices)
        found = batch + left + right
        shape = tuple(self._sizes[axis] for axis in found)
        if self._builder.tensor(layer).shape != shape:
            layer = self._add(f"{name}.axes", Reshape(shape), layer)
        return found, layer

    def _size(self, axes: str) -> int:
        return math.prod(self._sizes[axis] for axis in axes)

    def _ordered(self, name: str, term: str, wanted: str, layer: str) -> str:
        if term == wanted:
            return layer
        return self._add(name, Transpose(tuple(term.index(axis) for axis in wanted)), layer)

    def _add(self, name: str, operator: Operator, *inputs: str) -> str:
        return self._builder.add_with_values(name, operator, *inputs, values={})
