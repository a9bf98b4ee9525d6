"""Units of products of two activations, with what moves elements in front of them and behind.

Operands that are parts of a value, or have another order of axes (the heads of an attention), are
read where they lie, and results written where they belong, if their rows are whole words of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.lowering.kernels.parts import Rows
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.tiling.rows import WORD_ELEMENTS
from fpgapipe.lowering.units.attention.views import MOVERS, View, view_of
from fpgapipe.lowering.units.gradient_parts import Stretch
from fpgapipe.lowering.units.layers.matrix_parts import Part, multiply_parts
from fpgapipe.lowering.units.layers.transpose_unit import TransposeUnit
from fpgapipe.lowering.units.layouts import PLAIN, Layout
from fpgapipe.lowering.units.registry import Surroundings, runs, takes
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fpgapipe.lowering.products.conv import Pass
    from fpgapipe.lowering.tiling.kernel import Tensor
    from fpgapipe.lowering.units.microbatch import MicroBatch
    from fpgapipe.network.graph import Layer

MOVES = tuple(each.kind for each in (*MOVERS, ops.Split))
"""Kinds of operators that may be part of a product's unit."""


@dataclass(frozen=True)
class Operand:
    """An operand of the products of a unit, or their result.

    Attributes
    ----------
    source : str
        Name of the value that it is a part of.
    view : View
        Where it lies there; the last two axes are those of the matrices.
    """

    source: str
    view: View

    @property
    def is_turned(self) -> bool:
        """Whether the columns of the matrices, not their rows, are contiguous."""
        return _is_turned(self.view)

    def part(self, tensor: Tensor, index: Sequence[int]) -> Part:
        """One of the matrices, in a tensor that has the source; `index` is that of other axes."""
        *_, down, across = self.view.steps
        rows, width = self.view.shape[-2:]
        if self.is_turned:
            rows, width, down = width, rows, across
        first = self.view.first + sum(
            at * step for at, step in zip(index, self.view.steps, strict=False)
        )
        if rows == 1 or down == width:
            return Part(tensor, (1, rows * width), Rows(first, rows * width))
        return Part(tensor, (rows, width), Rows(first, down))


@dataclass(frozen=True)
class MatMulUnit(Unit):
    """Products of matrices that are both activations, one for each index of the axes before.

    The first operand is ``m x k`` and the second ``k x n``, or ``n x k`` in memory: an array's
    reader transposes as it reads. Both operands are quantised along the axis of the reduction, in
    all three passes: as a linear layer's whose weight is the second operand.
    """

    engine: ClassVar = "array"

    @property
    def product(self) -> Layer:
        """The layer of the product."""
        return next(each for each in self.layers if isinstance(each.operator, ops.MatMul))

    @cached_property
    def operands(self) -> tuple[Operand, Operand]:
        """The two operands."""
        by_name = {layer.name: layer for layer in self.layers}

        def operand(name: str, shape: tuple[int, ...]) -> Operand:
            chain: list[Layer] = []
            while name in by_name:
                chain.insert(0, by_name[name])
                (name,) = chain[0].inputs
                shape = chain[0].input_tensors[0].shape
            view = view_of(chain, shape)
            assert view is not None, "operands must be views"
            return Operand(name, view)

        one, other = (
            operand(name, tensor.shape)
            for name, tensor in zip(self.product.inputs, self.product.input_tensors, strict=True)
        )
        return one, other

    @cached_property
    def result(self) -> Operand:
        """The result."""
        behind = self.layers[self.layers.index(self.product) + 1 :]
        view = _written(self.product, behind)
        assert view is not None, "the result must be a view"
        return Operand(self.name, view)

    @property
    def is_turned(self) -> bool:
        """Whether the second operand is read transposed."""
        return self.operands[1].is_turned

    @property
    def matrices(self) -> Iterator[tuple[int, ...]]:
        """Indices of the products."""
        return product(*map(range, self.product.output.shape[:-2]))

    @property
    def conv(self) -> ConvSpec:
        """The linear layer that a product is, with the second operand as its weight."""
        one, _ = self.product.input_tensors
        m, n = self.product.output.shape[-2:]
        k = one.shape[-1]
        return ConvSpec.linear(m, n, k) if self.is_turned else ConvSpec.linear(m, k, n)

    @property
    def passes(self) -> tuple[Pass, Pass]:
        """Passes of that layer that give the result, and the gradient of the first operand."""
        return ("forward", "input") if self.is_turned else ("input", "forward")

    def check(self, *, train: bool) -> None:
        """See `Unit`."""
        one, other = (tensor.shape for tensor in self.product.input_tensors)
        if len(one) < 2 or one[:-2] != other[:-2]:
            raise NotImplementedError(
                "products of activations must be of matrices whose axes before the last two are "
                f"the same, not {list(one)} and {list(other)}"
            )

    def wants(self, given: Mapping[str, Layout], rigid: Collection[str]) -> dict[str, Layout]:
        """See `Unit`."""
        return dict.fromkeys(self.inputs, PLAIN)

    def gives(self, wanted: Mapping[str, Layout]) -> Layout:
        """See `Unit`."""
        return PLAIN

    def forward(self, step: MicroBatch) -> Tensor:
        """See `Unit`."""
        one, other = self.operands
        a, b = (step.take(self, each.source) for each in (one, other))
        y = step.activation(self.name, self.out_shape)
        tensors = (one, a), (other, b), (self.result, y)
        self._multiply(step, self.name, self.passes[0], tensors)
        return y

    def backward(self, step: MicroBatch, dy: Tensor) -> None:
        """See `Unit`."""
        one, other = self.operands
        a, b = ((each, step.take(self, each.source)) for each in (one, other))
        y = self.result, dy
        needed = step.graph.input_gradients(self.product.name)
        for number, ((operand, tensor), factor) in enumerate(((a, b[1]), (b, a[1]))):
            if number not in needed:
                continue
            stretch = self._stretch(operand)
            name = f"{self.name}.{('da', 'db')[number]}"
            if stretch is None:
                dx = step.activation(name, tensor.shape)
            else:
                dx = step.part_of_gradient(self, operand.source, stretch)
            name = f"{self.name}.{('first', 'second')[number]}"
            if number == 0:
                self._multiply(step, name, self.passes[1], (y, (other, factor), (operand, dx)))
            else:
                operands = ((one, factor), y) if self.is_turned else (y, (one, factor))
                self._multiply(step, name, "weight", (*operands, (operand, dx)))
            if stretch is None:
                step.give_gradient(self, operand.source, dx)

    def _stretch(self, operand: Operand) -> Stretch | None:
        """Part of the source that an operand is; None if it is all of it."""
        for layer in self.layers:
            if isinstance(layer.operator, ops.Slice) and operand is self._operand_of(layer):
                shape = layer.input_tensors[0].shape
                return Stretch.of_slice(layer.operator, shape, last=False)
        return None

    def _operand_of(self, layer: Layer) -> Operand:
        """The operand that a layer in front of the product is on the way to."""
        readers = {name: each for each in self.layers for name in each.inputs}
        while readers[layer.name] is not self.product:
            layer = readers[layer.name]
        return self.operands[self.product.inputs.index(layer.name)]

    def _multiply(
        self, step: MicroBatch, name: str, which: Pass, tensors: Sequence[tuple[Operand, Tensor]]
    ) -> None:
        """Add the kernels of a pass of all products."""
        for number, index in enumerate(self.matrices):
            one, other, result = (operand.part(tensor, index) for operand, tensor in tensors)
            multiply_parts(step, f"{name}.{number}", self.conv, which, (one, other, result))


def _is_turned(view: View) -> bool:
    """Whether the columns of matrices are contiguous, and not their rows."""
    rows, width = view.shape[-2:]
    down, across = view.steps[-2:]
    return across != 1 and down == 1 and rows > 1 and width > 1


def _is_aligned(view: View) -> bool:
    """Whether the rows or columns of all matrices are whole words of memory."""
    if 1 not in view.steps[-2:]:
        return False
    contiguous = len(view.steps) - (1 if view.steps[-1] == 1 else 2)
    others = [step for axis, step in enumerate(view.steps) if axis != contiguous]
    return all(each % WORD_ELEMENTS == 0 for each in (view.first, *others))


def _written(product: Layer, behind: Sequence[Layer]) -> View | None:
    """Where a product's result lies in that of the layers behind it; None if it is no view."""
    order = tuple(range(len(product.output.shape)))
    if behind and isinstance(behind[0].operator, ops.Transpose):
        order = behind[0].operator.order
        behind = behind[1:]
    if not all(isinstance(each.operator, ops.Reshape | ops.Flatten) for each in behind):
        return None
    whole = View.whole([product.output.shape[axis] for axis in order])
    steps = tuple(whole.steps[order.index(axis)] for axis in range(len(order)))
    return View(product.output.shape, steps)


def _behind(matmul: Layer, around: Surroundings) -> tuple[Layer, ...]:
    """Layers behind a product as whose result it can be written."""
    found: list[Layer] = []
    accepted = 0
    layer = matmul
    while (reader := around.only_reader(layer.name)) is not None:
        if not isinstance(reader.operator, MOVERS):
            break
        view = _written(matmul, [*found, reader])
        if view is None:
            break
        found.append(reader)
        layer = reader
        if isinstance(found[0].operator, ops.Transpose) and view.steps[-1] == 1:
            accepted = len(found) if _is_aligned(view) else 0
    return tuple(found[:accepted])


def _in_front(matmul: Layer, index: int, around: Surroundings) -> tuple[Layer, ...]:
    """Layers in front of a product's operand that need not run, since it is read where it lies."""
    chain: list[Layer] = []
    name = matmul.inputs[index]
    layers = around.graph.layers
    while name in layers and isinstance(layers[name].operator, MOVERS):
        if around.only_reader(name) is None:
            break
        chain.insert(0, layers[name])
        (name,) = chain[0].inputs
    if name in layers and isinstance(layers[name].operator, ops.MatMul):
        chain = chain[len(_behind(layers[name], around)) :]
    while chain:
        view = view_of(chain, chain[0].input_tensors[0].shape)
        first = all(
            not isinstance(each.operator, ops.Slice)
            or (each is chain[0] and each.operator.step == 1)
            for each in chain
        )
        if view is not None and first and len(view.shape) > 1:
            plain = view.steps[-1] == 1 and not _is_turned(view)
            turned = index == 1 and _is_turned(view)
            if _is_aligned(view) and (plain or turned):
                return tuple(chain)
            if turned and len(chain) == 1 and isinstance(chain[0].operator, ops.Transpose):
                order = chain[0].operator.order
                if order[:-2] == tuple(range(len(order) - 2)):
                    return tuple(chain)
        chain = chain[1:]
    return ()


def _unit(matmul: Layer, around: Surroundings) -> MatMulUnit:
    layers = [matmul, *_behind(matmul, around)]
    if len(set(matmul.inputs)) > 1:
        layers += [*_in_front(matmul, 0, around), *_in_front(matmul, 1, around)]
    return MatMulUnit(tuple(sorted(layers, key=lambda each: around.order[each.name])))


@runs("matmul")
def _matmul(layer: Layer, around: Surroundings) -> Unit:
    return _unit(layer, around)


@takes(*MOVES)
def _moved(layer: Layer, around: Surroundings) -> Unit | None:
    """The product that a layer is in front of, if it goes with it."""
    reader = around.only_reader(layer.name)
    while reader is not None and isinstance(reader.operator, MOVERS):
        reader = around.only_reader(reader.name)
    if reader is None or not isinstance(reader.operator, ops.MatMul):
        return None
    unit = _unit(reader, around)
    return unit if layer in unit.layers else None


@runs("transpose")
def _transpose(layer: Layer, around: Surroundings) -> Unit:
    return TransposeUnit((layer,))
