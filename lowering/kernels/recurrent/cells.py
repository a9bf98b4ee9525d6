"""Common parts of the steps of recurrent cells: their tensors, and vectors over samples.

A tensor of a whole sequence has its positions first, so that the samples of a position lie
together; of states there is one more, the initial one. What the array multiplies, the inputs and
the hidden states by their weights, comes from memory in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
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
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, Tensor, VectorKernel
from fpgapipe.lowering.tiling.rows import piece_rows

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Region

_NONE = Constant(0.0)
_ONE_LAST = (_NONE, _NONE, _NONE, _NONE, Constant(1.0))
"""Constants of which the initial one is 1."""

Place = str | tuple[str, int]
"""A buffer, and the number of the gate in it if it is not the first."""


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
        FP32, shape ``positions x samples x gates * hidden``: products of the inputs and their
        weights.
    kept : Tensor
        FP32, shape ``positions x samples x kept * hidden``: the gates, which the backward pass
        needs.
    cells : Tensor
        FP32, shape ``positions + 1 x samples x hidden``: what a cell adds up from position to
        position.
    hidden : Tensor
        The hidden states, shape ``positions + 1 x samples x hidden``.
    """

    sums: Tensor
    kept: Tensor
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


@dataclass(frozen=True)
class Gradients:
    """Gradients that a backward step reads and writes.

    Attributes
    ----------
    dy : Tensor
        Gradients of the results of all positions, ``positions x samples x hidden``.
    dsums : Tensor
        Gradients of the products of the inputs of all positions, ``positions x samples x gates *
        hidden``; those of the step's position are written.
    drecurrent : Tensor
        The same of the products of the hidden states. It is `dsums` where both are only added up.
    dcell, dbefore : Tensor
        FP32, ``samples x hidden``: gradient of the cell, without what comes by way of the hidden
        state, and that of the cell before, which is written.
    dhidden : Tensor, optional
        FP32, ``samples x hidden``: gradient of the hidden state by way of the next position's
        product.
    """

    dy: Tensor
    dsums: Tensor
    drecurrent: Tensor
    dcell: Tensor
    dbefore: Tensor
    dhidden: Tensor | None = None

    def with_loads(self, position: Position, loads: Mapping[str, Part]) -> dict[str, Part]:
        """The gradients that a position reads, besides what else it does."""
        samples, width = self.dcell.shape
        found = {"dy": Part(self.dy, position.at * samples, width), **loads}
        found["dcell"] = Part(self.dcell, 0, width)
        if self.dhidden is not None:
            found["dhidden"] = Part(self.dhidden, 0, width)
        return found


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes
    ----------
    gates : int
        Products of the input, and of the hidden state, for each feature of the hidden state.
    added : int
        How many of the gates, the first ones, add up both products; of the others both are needed.
    kept : int
        Numbers that the backward pass needs, for each feature of the hidden state.
    forward, backward : callable
        Kernels of a position; see `lstm.forward` and `lstm.backward`.
    """

    gates: int
    added: int
    kept: int
    forward: Callable[..., VectorKernel]
    backward: Callable[..., VectorKernel]

    @property
    def biases(self) -> int:
        """Biases for each feature of the hidden state.

        The two of the gates that are added up are one, then come those of the inputs, and those of
        the hidden states.
        """
        return self.added + 2 * (self.gates - self.added)


@dataclass(frozen=True)
class Part:
    """Rows of a tensor from one of them on.

    Attributes
    ----------
    tensor : Tensor
    first : int
        The first row.
    width : int
        Elements of a row.
    """

    tensor: Tensor
    first: int
    width: int

    def tile(self, begin: int, count: int) -> Any:
        """The tile of some rows."""
        return flat_tile(self.tensor, (self.first + begin) * self.width, count * self.width)


def cell_kernel(
    name: str,
    region: Region,
    size: tuple[int, int],
    loads: Mapping[str, Part],
    stores: Mapping[str, Part],
    work: tuple[str, ...],
    steps: Callable[[View], Iterator[Step]],
    bias: Tensor | None = None,
) -> VectorKernel:
    """Build the kernel of a position, whose pieces are some of the samples.

    Parameters
    ----------
    name : str
    region : Region
    size : (int, int)
        Samples, and features of the hidden state.
    loads, stores : mapping of str to Part
        What is read and written, by the name of its buffer.
    work : tuple of str
        Buffers in FP32 of a sample's hidden state.
    steps : callable
        Gives the steps of a piece.
    bias : Tensor, optional
        The table ``bias``, in FP32.

    Raises
    ------
    NoRoom
        If the region is too small for a sample.
    """
    samples, width = size
    parts = {**loads, **stores}

    def buffers(rows: int) -> dict[str, Buffer]:
        found = {
            each: Buffer(rows * part.width * part.tensor.element_bytes + WORD_BYTES)
            for each, part in parts.items()
        }
        found |= {each: Buffer(4 * rows * width, kept=True) for each in work}
        if bias is not None:
            found["bias"] = Buffer(4 * padded(bias.elements) + VECTOR_BYTES, kept=True)
        return found

    rows = piece_rows(samples, max(part.width for part in parts.values()), buffers, region)
    formats = {each: part.tensor.format for each, part in parts.items()}
    pitches = {each: part.width for each, part in parts.items()}
    pieces = []
    for first in range(0, samples, rows):
        count = min(rows, samples - first)
        tiles = {each: part.tile(first, count) for each, part in parts.items()}
        shifts = {each: tile.shift for each, tile in tiles.items()}
        view = View(count, width, shifts, formats, pitches, bias is not None)
        moves = [Move(tiles[each], each) for each in loads]
        if bias is not None and first == 0:
            moves.append(Move(flat_tile(bias, 0, bias.elements), "bias"))
        pieces.append(
            Piece(tuple(steps(view)), tuple(moves), tuple(Move(tiles[e], e) for e in stores))
        )
    return VectorKernel(name, buffers(rows), tuple(pieces), region)


@dataclass(frozen=True)
class View:
    """The samples of a piece.

    Attributes
    ----------
    count, width : int
        Samples of the piece, and features of the hidden state.
    shifts : mapping of str to int
        Byte at which each tensor begins in its buffer; 0 if it is not named.
    formats : mapping of str to ElementFormat
        Format of each buffer; FP32 if it is not named.
    pitches : mapping of str to int
        Elements of a sample; those of a hidden state if it is not named.
    has_bias : bool
    """

    count: int
    width: int
    shifts: Mapping[str, int]
    formats: Mapping[str, ElementFormat]
    pitches: Mapping[str, int]
    has_bias: bool

    def _along(self, place: Place, width: int) -> tuple[str, dict[str, Any]]:
        """A buffer, and the settings to access a gate; the first loop is over samples."""
        name, gate = (place, 0) if isinstance(place, str) else place
        element = self.formats.get(name, FP32)
        size = element.element_bytes
        return name, {
            "base": self.shifts.get(name, 0) + gate * self.width * size,
            "steps": (self.pitches.get(name, self.width) * size, 0, 0, 0, 0, LANES * size),
            "u_steps": (0, 0, 0, 0, 0, LANES),
            "u_limit": width,
            "format": Format.of(element),
        }

    def step(
        self,
        x: Place | None,
        y: Place | None,
        target: Place,
        *,
        gates: int = 1,
        bias: int | None = None,
        **settings: Any,
    ) -> Step:
        """Process a gate, or some that follow one another, of all samples.

        Parameters
        ----------
        x, y, target : Place
            Operands and result; an operand that is missing is zero.
        gates : int
            Number of gates.
        bias : int, optional
            Number of the biases that are added, if there are any.
        **settings
            As for `VectorOp`.
        """
        width = gates * self.width
        read, source = (None, None) if y is None else self._along(y, width)
        written, target_settings = self._along(target, width)
        # No lane of a source without a limit is valid, so that all elements are zeros.
        given, source_x = written, Source(base=0, u_limit=0)
        if x is not None:
            given, along = self._along(x, width)
            source_x = Source(**along)
        if bias is not None and self.has_bias:
            settings["initial"] = Initial.COEFFICIENT
            settings["coefficients"] = Coefficients(4 * bias * self.width, 0, VECTOR_BYTES, 4)
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, padded(width) // LANES),
            x=source_x,
            y=None if source is None else Source(**source),
            target=Target(**target_settings),
            **settings,
        )
        return Step(op, given, written, read, "bias" if op.coefficients.number else None)

    def complement_of_square(self, x: Place, target: str) -> Step:
        """Compute ``1 - x**2``, the derivative of a tanh by its result."""
        return self.step(x, x, target, negate_x=True, factor=Factor.Y,
                         initial=Initial.CONSTANT, constants=_ONE_LAST)  # fmt: skip

    def through_sigmoid(self, gate: int) -> Iterator[Step]:
        """From the gradient of a gate, in ``own``, to that of its sum: times ``s - s**2``."""
        place = ("kept", gate)
        yield self.step(place, place, "slope", second=Second.SQUARE, negate_second=True)
        yield self.step("own", "slope", ("dsums", gate), factor=Factor.Y)
