"""Losses of targets, one for each element: mean squared error, and binary cross-entropy of logits.

The terms of all elements are added up in pieces of a fixed size, each as eight concurrent sums, so
that nothing but the order of the elements matters for the last bits of the loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Choice,
    Constant,
    Factor,
    Initial,
    Left,
    Outcome,
    Right,
    Source,
    Target,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
    room_of,
)
from fpgapipe.lowering.tiling.nest import VectorLoop, nest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PIECE_ELEMENTS = 1 << 12
"""Number of elements of a piece, fixed because the last bits of the loss depend on it.

A scratchpad that is too small for such pieces has pieces of half as many elements, and so on.
"""

LEAST_ELEMENTS = 1 << 7
"""Least number of elements of a piece: a vector for each of the concurrent sums."""

SLICES = 8
"""Number of concurrent sums."""

_ZERO = Constant(0.0)
_ONE = Constant(1.0)


def mean_squared_error(
    name: str,
    x: Tensor,
    target: Tensor,
    loss: Tensor,
    region: Region,
    *,
    gradient: Tensor,
    scale: float | None = None,
) -> VectorKernel:
    """Compute ``mean((x - target)**2)``, and ``gradient = 2 (x - target) * scale``.

    Parameters
    ----------
    name : str
    x : Tensor
        Results of the network.
    target : Tensor
        What they should be, FP32, with their elements in the same order.
    loss : Tensor
        FP32 tensor for one number.
    region : Region
    gradient : Tensor
        FP32 tensor of the shape of `x`.
    scale : float, optional
        Factor of the gradient, ``1 / elements`` if left out.

    Raises
    ------
    ValueError
        If a tensor has another format or number of elements.
    NoRoom
        If the region is too small.
    """
    factor = 2 * (1 / x.elements if scale is None else scale)

    def steps(each: _Elements) -> Iterator[Step]:
        yield each.step("x", "work", "target", addend=Addend.Y, negate_addend=True)
        yield each.sum("work", factor=Factor.SELF)
        times = (_ZERO, Constant(factor))
        yield each.step("work", "gradient", factor=Factor.CONSTANT, constants=times)

    return _kernel(name, x, target, loss, gradient, region, ("work",), steps)


def binary_cross_entropy(
    name: str,
    x: Tensor,
    target: Tensor,
    loss: Tensor,
    region: Region,
    *,
    gradient: Tensor,
    scale: float | None = None,
) -> VectorKernel:
    """Compute the binary cross-entropy of logits, and ``(sigmoid(x) - target) * scale``.

    The loss is the mean of ``log(1 + exp(-abs(x))) + max(x, 0) - x target``. Parameters and errors
    are those of `mean_squared_error`; a target is a probability.
    """
    factor = 1 / x.elements if scale is None else scale
    below = (Left.X, Outcome.LESS, Right.CONSTANT)

    def steps(each: _Elements) -> Iterator[Step]:
        # -abs(x) is x where that is below 0, else the negated x.
        sign: dict[str, Any] = {"negate_x": True, "test": below, "then": Choice.X}
        yield each.step("x", "work", function=Function.EXP, otherwise=Choice.S, **sign)
        one: dict[str, Any] = {
            "initial": Initial.CONSTANT,
            "constants": (_ZERO, _ZERO, _ZERO, _ZERO, _ONE),
        }
        yield each.step("work", "work", function=Function.LOG, **one)
        # max(x, 0) - x target is x (1 - target) where x is above 0, else -x target.
        less: dict[str, Any] = {"addend": Addend.CONSTANT, "constants": (Constant(-1.0), _ONE)}
        above: dict[str, Any] = {
            "test": (Left.Y, Outcome.GREATER, Right.CONSTANT),
            "then": Choice.S,
        }
        yield each.step("target", "more", "x", otherwise=Choice.X, **less, **above)
        yield each.step("x", "more", "more", factor=Factor.Y, negate_x=True)
        yield each.sum("more", "work", addend=Addend.Y)
        yield each.step("x", "work", function=Function.SIGMOID)
        times = (_ZERO, Constant(factor))
        yield each.step(
            "work",
            "gradient",
            "target",
            addend=Addend.Y,
            negate_addend=True,
            factor=Factor.CONSTANT,
            constants=times,
        )

    return _kernel(name, x, target, loss, gradient, region, ("work", "more"), steps)


class _Elements:
    """Instructions for the elements of a piece.

    Parameters
    ----------
    count : int
        Number of elements.
    shifts : mapping of str to int
        Byte at which each tensor begins in its buffer.
    element : ElementFormat
        Format of `x`; all else is FP32.
    """

    def __init__(self, count: int, shifts: Mapping[str, int], element: ElementFormat) -> None:
        self._count = count
        self._shifts = shifts
        self._element = element

    def _format(self, name: str) -> ElementFormat:
        return self._element if name == "x" else FP32

    def _along(self, name: str | None, vectors: int) -> tuple[int, int, int]:
        """Movement of a source by some vectors."""
        size = LANES * self._format(name or "").element_bytes
        return vectors * size, 0, vectors * LANES

    def step(self, x: str, target: str, y: str | None = None, **settings: Any) -> Step:
        """Process all elements."""
        vectors = VectorLoop(
            -(-self._count // LANES),
            self._along(x, 1),
            self._along(y, 1),
            (VECTOR_BYTES, LANES),
        )
        op = nest(
            [vectors],
            [],
            self._source(x),
            Target(self._shifts.get(target, 0), u_limit=self._count),
            self._source(y) if y else None,
            **settings,
        )
        return Step(op, x, target, y)

    def sum(self, x: str, y: str | None = None, **settings: Any) -> Step:
        """Add up a term of each element, in eight concurrent sums."""
        count = -(-self._count // (LANES * SLICES))
        op = nest(
            [VectorLoop(SLICES, self._along(x, 1), self._along(y, 1), (VECTOR_BYTES, 0))],
            [VectorLoop(count, self._along(x, SLICES), self._along(y, SLICES))],
            self._source(x),
            Target(0),
            self._source(y) if y else None,
            **settings,
        )
        return Step(op, x, "part", y)

    def _source(self, name: str) -> Source:
        element = Format.of(self._format(name))
        return Source(self._shifts.get(name, 0), u_limit=self._count, format=element)


def _kernel(
    name: str,
    x: Tensor,
    target: Tensor,
    loss: Tensor,
    gradient: Tensor,
    region: Region,
    temporaries: tuple[str, ...],
    steps: Callable[[_Elements], Iterator[Step]],
) -> VectorKernel:
    """A kernel that computes a gradient and the mean of some term over all elements."""
    for tensor in (target, loss, gradient):
        if tensor.format is not FP32:
            raise ValueError(f"loss tensor {tensor.name} must be FP32, not {tensor.format.value}")
    for tensor in (target, gradient):
        if tensor.elements != x.elements:
            raise ValueError(
                f"loss tensor {tensor.name} must have {x.elements} elements, not {tensor.elements}"
            )
    sources, total = {"x": x, "target": target}, x.elements

    def buffers(elements: int) -> dict[str, Buffer]:
        size = 4 * min(elements, total) + 64
        found = {each: Buffer(size) for each in (*sources, "gradient")}
        found |= {each: Buffer(size, kept=True) for each in temporaries}
        sums = {each: Buffer(SLICES * VECTOR_BYTES, kept=True) for each in ("part", "slices")}
        return found | sums | {each: Buffer(VECTOR_BYTES, kept=True) for each in ("lanes", "loss")}

    elements = PIECE_ELEMENTS
    while elements > LEAST_ELEMENTS and room_of(buffers(elements)) > region.size_bytes:
        elements //= 2
    pieces = []
    for first in range(0, total, elements):
        count = min(elements, total - first)
        tiles = {each: flat_tile(tensor, first, count) for each, tensor in sources.items()}
        tiles["gradient"] = flat_tile(gradient, first, count)
        shifts = {each: tile.shift for each, tile in tiles.items()}
        own = list(steps(_Elements(count, shifts, x.format)))
        own.append(_added_slices(is_first=first == 0))
        loads = tuple(Move(tiles[each], each) for each in sources)
        pieces.append(Piece(tuple(own), loads, (Move(tiles["gradient"], "gradient"),)))
    last = pieces[-1]
    pieces[-1] = replace(
        last,
        steps=(*last.steps, *_mean(total)),
        stores=(*last.stores, Move(flat_tile(loss, 0, 1), "loss")),
    )
    return VectorKernel(name, buffers(elements), tuple(pieces), region)


def _added_slices(*, is_first: bool) -> Step:
    """Add the sums of a piece to those of the pieces before."""
    vector = (VECTOR_BYTES, 0, 0)
    vectors = VectorLoop(SLICES, vector, vector, (VECTOR_BYTES, 0))
    if is_first:
        return Step(nest([vectors], [], Source(0), Target(0)), "part", "slices")
    op = nest([vectors], [], Source(0), Target(0), Source(0), addend=Addend.Y)
    return Step(op, "slices", "slices", "part")


def _mean(number: int) -> Iterator[Step]:
    """Add up slices, then lanes, and divide by the number of elements."""
    slices = VectorLoop(SLICES, (VECTOR_BYTES, 0, 0))
    yield Step(nest([], [slices], Source(0), Target(0)), "slices", "lanes")
    op = nest(
        [],
        [VectorLoop(LANES, (4, 0, 0))],
        Source(0, broadcast=True),
        Target(0, u_limit=1),
        factor=Factor.CONSTANT,
        constants=(_ZERO, Constant(1 / number)),
    )
    yield Step(op, "lanes", "loss")
