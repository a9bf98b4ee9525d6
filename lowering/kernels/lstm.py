"""A step of long short-term memory, forward and backward, on the gates' sums.

The gates are in PyTorch's order: input, forget, cell, output. A tensor of a whole sequence has its
positions first, so that the samples of a position lie together; of states there is one more, the
initial one. What the array multiplies, the inputs and the hidden states by their weights, comes
from memory in FP32.

Source: S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 1997, with the
forget gate of F. Gers, J. Schmidhuber, F. Cummins, "Learning to forget", 1999.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Coefficients,
    Constant,
    Factor,
    Initial,
    Second,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32, ElementFormat
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, Tensor, VectorKernel
from fpgapipe.lowering.tiling.rows import piece_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Region

GATES = 4
"""Gates of a cell; each has as many numbers as the hidden state."""

INPUT, FORGET, CELL, OUTPUT = range(GATES)

_NONE = Constant(0.0)
_ONE_LAST = (_NONE, _NONE, _NONE, _NONE, Constant(1.0))
"""Constants of which the initial one is 1."""


@dataclass(frozen=True)
class Position:
    """Where a step is in its sequence.

    Attributes
    ----------
    at : int
        Position among the inputs.
    before, after : int
        Numbers of the states that the step reads and writes.
    """

    at: int
    before: int
    after: int


@dataclass(frozen=True)
class Sequence:
    """Tensors of a layer for a whole sequence of ``positions``, with ``samples`` each.

    Attributes
    ----------
    sums : Tensor
        FP32, shape ``positions x samples x 4 hidden``: products of the inputs and their weights.
    gates : Tensor
        FP32, of the same shape: the gates, which the backward pass needs.
    cells : Tensor
        FP32, shape ``positions + 1 x samples x hidden``.
    hidden : Tensor
        The hidden states, shape ``positions + 1 x samples x hidden``.
    """

    sums: Tensor
    gates: Tensor
    cells: Tensor
    hidden: Tensor

    @property
    def samples(self) -> int:
        """Samples of a position."""
        return self.cells.shape[1]

    @property
    def width(self) -> int:
        """Features of the hidden state."""
        return self.cells.shape[2]


def cell_forward(
    name: str,
    sequence: Sequence,
    position: Position,
    region: Region,
    *,
    recurrent: Tensor | None = None,
    bias: Tensor | None = None,
) -> VectorKernel:
    """Compute the gates, the cell and the hidden state of a position.

    ``c = f * c_before + i * g`` and ``h = o * tanh(c)``, where ``i``, ``f`` and ``o`` are sigmoids
    and ``g`` is the tanh of the sums of both products and the bias.

    Parameters
    ----------
    name : str
    sequence : Sequence
    position : Position
    region : Region
    recurrent : Tensor, optional
        FP32, shape ``samples x 4 hidden``: products of the hidden state before and its weights;
        none where that state is zero.
    bias : Tensor, optional
        FP32, shape ``(4 hidden,)``.

    Raises
    ------
    NoRoom
        If the region is too small for a sample.
    """
    width, samples = sequence.width, sequence.samples
    wide = GATES * width
    loads = {"sums": (sequence.sums, position.at * samples, wide)}
    if recurrent is not None:
        loads["recurrent"] = (recurrent, 0, wide)
    loads["before"] = (sequence.cells, position.before * samples, width)
    stores = {
        "gates": (sequence.gates, position.at * samples, wide),
        "cell": (sequence.cells, position.after * samples, width),
        "hidden": (sequence.hidden, position.after * samples, width),
    }
    cell = _Cells(width, bias is not None, {"hidden": sequence.hidden.format})

    def steps(view: _View) -> Iterator[Step]:
        for first, count, function in (
            (INPUT, 2, Function.SIGMOID),
            (CELL, 1, Function.TANH),
            (OUTPUT, 1, Function.SIGMOID),
        ):
            yield view.sums(first, count, function, is_recurrent=recurrent is not None)
        yield view.each("gates", "before", "kept", FORGET, factor=Factor.Y)
        yield view.both("gates", INPUT, "gates", CELL, "new", factor=Factor.Y)
        yield view.each("kept", "new", "cell", addend=Addend.Y)
        yield view.each("cell", None, "new", function=Function.TANH)
        yield view.each("gates", "new", "hidden", OUTPUT, factor=Factor.Y)

    return cell.kernel(name, region, samples, loads, stores, ("kept", "new"), steps, bias)


def cell_backward(
    name: str,
    sequence: Sequence,
    position: Position,
    region: Region,
    *,
    dy: Tensor,
    dgates: Tensor,
    dcell: Tensor,
    dbefore: Tensor,
    dhidden: Tensor | None = None,
) -> VectorKernel:
    """Compute the gradients of the sums of a position's gates, and of the cell before.

    Parameters
    ----------
    name, sequence, position, region
        As for `cell_forward`.
    dy : Tensor
        Gradients of the results of all positions, ``positions x samples x hidden``.
    dgates : Tensor
        Gradients of the sums of all positions, ``positions x samples x 4 hidden``; those of this
        one are written.
    dcell, dbefore : Tensor
        FP32, ``samples x hidden``: gradient of the cell, without what comes by way of the hidden
        state, and that of the cell before, which is written.
    dhidden : Tensor, optional
        FP32, ``samples x hidden``: gradient of the hidden state that comes from the next position.

    Raises
    ------
    NoRoom
        If the region is too small for a sample.
    """
    width, samples = sequence.width, sequence.samples
    wide = GATES * width
    loads = {
        "dy": (dy, position.at * samples, width),
        "gates": (sequence.gates, position.at * samples, wide),
        "cell": (sequence.cells, position.after * samples, width),
        "before": (sequence.cells, position.before * samples, width),
        "dcell": (dcell, 0, width),
    }
    if dhidden is not None:
        loads["dhidden"] = (dhidden, 0, width)
    stores = {
        "dgates": (dgates, position.at * samples, wide),
        "dbefore": (dbefore, 0, width),
    }
    cell = _Cells(width, False, {"dy": dy.format, "dgates": dgates.format})

    def steps(view: _View) -> Iterator[Step]:
        if dhidden is None:
            yield view.each("dy", None, "dh")
        else:
            yield view.each("dy", "dhidden", "dh", addend=Addend.Y)
        yield view.each("cell", None, "turned", function=Function.TANH)
        yield view.each("dh", "turned", "own", factor=Factor.Y)
        yield from view.through_sigmoid(OUTPUT)
        # 1 - tanh(c)**2, times the output gate and the hidden state's gradient
        yield view.squares("turned", "own")
        yield view.each("gates", "dh", "turned", OUTPUT, factor=Factor.Y)
        yield view.each("turned", "own", "turned", factor=Factor.Y)
        yield view.each("turned", "dcell", "dc", addend=Addend.Y)
        yield view.each("gates", "dc", "own", CELL, factor=Factor.Y)
        yield from view.through_sigmoid(INPUT)
        yield view.each("before", "dc", "own", factor=Factor.Y)
        yield from view.through_sigmoid(FORGET)
        yield view.each("gates", "dc", "own", INPUT, factor=Factor.Y)
        yield view.squares("gates", "turned", CELL)
        yield view.each("own", "turned", "dgates", to=CELL, factor=Factor.Y)
        yield view.each("gates", "dc", "dbefore", FORGET, factor=Factor.Y)

    work = ("dh", "turned", "own", "dc", "slope")
    return cell.kernel(name, region, samples, loads, stores, work, steps, None)


@dataclass(frozen=True)
class _Cells:
    """Kernels whose pieces are some samples.

    Attributes
    ----------
    width : int
        Features of the hidden state.
    has_bias : bool
    formats : mapping of str to ElementFormat
        Format of each buffer; what is not named is FP32.
    """

    width: int
    has_bias: bool
    formats: Mapping[str, ElementFormat]

    def kernel(
        self,
        name: str,
        region: Region,
        samples: int,
        loads: Mapping[str, tuple[Tensor, int, int]],
        stores: Mapping[str, tuple[Tensor, int, int]],
        work: tuple[str, ...],
        steps: Any,
        bias: Tensor | None,
    ) -> VectorKernel:
        """Build a kernel; of each tensor the first row, and the elements of a row, are given."""

        def buffers(rows: int) -> dict[str, Buffer]:
            found = {
                each: Buffer(rows * size * tensor.element_bytes + WORD_BYTES)
                for each, (tensor, _, size) in (loads | stores).items()  # type: ignore[operator]
            }
            found |= {each: Buffer(4 * rows * self.width, kept=True) for each in work}
            if bias is not None:
                found["bias"] = Buffer(4 * padded(bias.elements) + VECTOR_BYTES, kept=True)
            return found

        rows = piece_rows(samples, GATES * self.width, buffers, region)
        pieces = []
        for first in range(0, samples, rows):
            count = min(rows, samples - first)
            tiles = {
                each: flat_tile(tensor, (row + first) * size, count * size)
                for each, (tensor, row, size) in (loads | stores).items()  # type: ignore[operator]
            }
            view = _View(self, count, {each: tile.shift for each, tile in tiles.items()})
            moves = [Move(tiles[each], each) for each in loads]
            if bias is not None and first == 0:
                moves.append(Move(flat_tile(bias, 0, bias.elements), "bias"))
            pieces.append(
                Piece(tuple(steps(view)), tuple(moves), tuple(Move(tiles[e], e) for e in stores))
            )
        return VectorKernel(name, buffers(rows), tuple(pieces), region)


@dataclass(frozen=True)
class _View:
    """The samples of a piece."""

    cells: _Cells
    count: int
    shifts: Mapping[str, int]

    def _along(self, name: str, gate: int, width: int) -> dict[str, Any]:
        """Settings to access a gate, or a matrix; the first loop is over samples."""
        element = self.cells.formats.get(name, FP32)
        size = element.element_bytes
        has_gates = name in ("sums", "recurrent", "gates", "dgates")
        pitch = (GATES if has_gates else 1) * self.cells.width
        return {
            "base": self.shifts.get(name, 0) + gate * self.cells.width * size,
            "steps": (pitch * size, 0, 0, 0, 0, LANES * size),
            "u_steps": (0, 0, 0, 0, 0, LANES),
            "u_limit": width,
            "format": Format.of(element),
        }

    def _step(
        self,
        x: tuple[str, int],
        y: tuple[str, int] | None,
        target: tuple[str, int],
        width: int | None = None,
        **settings: Any,
    ) -> Step:
        width = width or self.cells.width
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, padded(width) // LANES),
            x=Source(**self._along(*x, width)),
            y=Source(**self._along(*y, width)) if y else None,
            target=Target(**self._along(*target, width)),
            **settings,
        )
        table = "bias" if op.coefficients.number else None
        return Step(op, x[0], target[0], y[0] if y else None, table)

    def each(
        self, x: str, y: str | None, target: str, gate: int = 0, to: int = 0, **settings: Any
    ) -> Step:
        """Process a gate of `x`, or all of a matrix."""
        return self._step((x, gate), (y, 0) if y else None, (target, to), **settings)

    def both(
        self, x: str, gate: int, y: str, other: int, target: str, to: int = 0, **settings: Any
    ) -> Step:
        """Process a gate of `x` and a gate of `y`."""
        return self._step((x, gate), (y, other), (target, to), **settings)

    def sums(self, gate: int, count: int, function: Function, *, is_recurrent: bool) -> Step:
        """Apply a function to the sums of some gates."""
        settings: dict[str, Any] = {}
        if self.cells.has_bias:
            base = 4 * gate * self.cells.width
            settings["initial"] = Initial.COEFFICIENT
            settings["coefficients"] = Coefficients(base, 0, VECTOR_BYTES, 4)
        if is_recurrent:
            settings["addend"] = Addend.Y
        y = ("recurrent", gate) if is_recurrent else None
        width = count * self.cells.width
        return self._step(("sums", gate), y, ("gates", gate), width, function=function, **settings)

    def squares(self, x: str, target: str, gate: int = 0) -> Step:
        """Compute ``1 - x**2``."""
        return self.both(x, gate, x, gate, target, negate_x=True, factor=Factor.Y,
                         initial=Initial.CONSTANT, constants=_ONE_LAST)  # fmt: skip

    def through_sigmoid(self, gate: int) -> Iterator[Step]:
        """From the gradient of a gate, in ``own``, to that of its sum: times ``s - s**2``."""
        yield self.both("gates", gate, "gates", gate, "slope", second=Second.SQUARE,
                        negate_second=True)  # fmt: skip
        yield self.each("own", "slope", "dgates", to=gate, factor=Factor.Y)
