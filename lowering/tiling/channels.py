"""Kernels along the channels of a tensor, with one number per channel or sums per channel.

A tensor is treated as a matrix of positions by channels. Small arrays have one or several rows of
one FP32 number per channel, padded to whole vectors; they stay on chip for the whole kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_fields import NUM_COEFFICIENTS, NUM_VECTOR_LOOPS, Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Addend,
    Coefficients,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
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
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.tile import Tile

PIECE_ELEMENTS = 1 << 14
"""Approximate number of elements of a piece, if they fit.

The last bits of sums depend on this number. It therefore depends neither on the scratchpad, unless
that is too small, nor on what else the device does. Where two lanes share the scratchpad that one
lane would have alone, pieces have the same size, and buffers have only one copy if necessary.
"""

SLICES = 8
"""Number of concurrent partial sums of a piece, each over every eighth position.

They hide the latency of an adder.
"""

MOST_POSITIONS = 1 << 14


def padded(channels: int) -> int:
    """Number of channels, rounded up to whole vectors."""
    return -(-channels // LANES) * LANES


def small(name: str, rows: int, channels: int) -> Tensor:
    """Tensor of a small array in memory."""
    return Tensor(name, (rows, padded(channels)))


@dataclass(frozen=True)
class EachStep:
    """An instruction that processes all elements of a piece.

    Attributes
    ----------
    x, target : str
        Names of source and target, which may be temporaries.
    y : str or None
        Name of the second source.
    coefficients : str or None
        Name of a small array whose first rows are k0, k1, ...
    settings : mapping
        Further arguments of `VectorOp`.
    """

    x: str
    target: str
    y: str | None = None
    coefficients: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SumStep:
    """An instruction that sums over the positions; at the end `target` has the sums in `row`."""

    x: str
    target: str
    row: int = 0
    y: str | None = None
    coefficients: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowStep:
    """An instruction on rows of small arrays, run after all pieces; places are (name, row)."""

    x: tuple[str, int]
    target: tuple[str, int]
    y: tuple[str, int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@made_once
def channel_kernel(
    name: str,
    shape: tuple[int, int],
    region: Region,
    *,
    sources: Mapping[str, Tensor],
    steps: Sequence[EachStep | SumStep],
    targets: Mapping[str, Tensor] | None = None,
    temporaries: Mapping[str, ElementFormat] | None = None,
    small_sources: Mapping[str, Tensor] | None = None,
    small_targets: Mapping[str, Tensor] | None = None,
    small_temporaries: Mapping[str, int] | None = None,
    rows: Sequence[RowStep] = (),
) -> VectorKernel:
    """Build a kernel along channels.

    Parameters
    ----------
    name : str
    shape : (int, int)
        Number of positions and of channels.
    region : Region
    sources, targets : mapping of str to Tensor
        Tensors of ``positions x channels`` by the names that the steps use.
    steps : sequence of EachStep or SumStep
        Steps that each piece runs, in this order.
    temporaries : mapping of str to ElementFormat
        Names of temporaries, with their formats.
    small_sources, small_targets : mapping of str to Tensor
        Small arrays, or tensors of one number per channel. Sources are loaded before everything
        else and targets are stored after it; a name may be in both mappings.
    small_temporaries : mapping of str to int
        Names of further small arrays, with their numbers of rows.
    rows : sequence of RowStep
        Steps on small arrays that run after the last piece.

    Raises
    ------
    ValueError
        If the region is too small.
    """
    positions, channels = shape
    targets, temporaries = targets or {}, temporaries or {}
    small_sources, small_targets = small_sources or {}, small_targets or {}
    wide = padded(channels)
    formats = {name: t.format for name, t in (*sources.items(), *targets.items())}
    formats |= temporaries
    sums = [step for step in steps if isinstance(step, SumStep)]
    small_rows = dict(small_temporaries or {})
    for each, tensor in (*small_sources.items(), *small_targets.items()):
        small_rows[each] = -(-tensor.elements // wide)

    def buffers_for(number: int) -> dict[str, Buffer]:
        # A tensor's piece may begin anywhere within a word; a temporary begins at a whole word.
        found = {
            name: Buffer(number * channels * each.element_bytes + 64 * (name not in temporaries))
            for name, each in formats.items()
        }
        for each, count in small_rows.items():
            found[each] = Buffer(4 * wide * count, kept=True)
        for index in range(len(sums)):
            found[_parts(index)] = Buffer(4 * wide * SLICES, kept=True)
        if sums and number < positions:
            found[_PART] = Buffer(4 * wide * SLICES, kept=True)
        return found

    number = min(piece_positions(channels), positions)
    while room_of(buffers_for(number)) > region.size_bytes * region.lanes and number > SLICES:
        number = -(-number // (2 * SLICES)) * SLICES
    buffers = buffers_for(number)
    buffer_count = 2 if region.lanes == 1 or room_of(buffers) <= region.size_bytes else 1
    firsts = range(0, positions, number)

    pieces = []
    for index, first in enumerate(firsts):
        count = min(number, positions - first)
        tiles = {
            each: flat_tile(tensor, first * channels, count * channels)
            for each, tensor in (*sources.items(), *targets.items())
        }
        view = _View(formats, tiles, small_rows, count, channels)
        work: list[Step] = []
        names = map(_parts, range(len(sums)))
        for step in steps:
            if isinstance(step, EachStep):
                work.append(view.each(step))
            elif index == 0:
                work.append(view.partial(step, next(names)))
            else:
                work += [view.partial(step, _PART), _added(next(names), channels)]
        loads = [Move(tiles[each], each) for each in sources]
        stores = [Move(tiles[each], each) for each in targets]
        if index == 0:
            loads = [Move(_whole(t), each) for each, t in small_sources.items()] + loads
        if index == len(firsts) - 1:
            work += [_total(step, _parts(number), channels) for number, step in enumerate(sums)]
            work += [row_step(step, channels) for step in rows]
            stores += [Move(_whole(t), each) for each, t in small_targets.items()]
        pieces.append(Piece(tuple(work), tuple(loads), tuple(stores)))
    return VectorKernel(name, buffers, tuple(pieces), region, buffer_count)


@made_once
def rows_kernel(
    name: str,
    channels: int,
    region: Region,
    *,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    rows: Sequence[RowStep],
    temporaries: Mapping[str, int] | None = None,
) -> VectorKernel:
    """Build a kernel of steps on small arrays only; see `channel_kernel` for the arguments."""
    wide = padded(channels)
    counts = dict(temporaries or {})
    for each, tensor in (*sources.items(), *targets.items()):
        counts[each] = -(-tensor.elements // wide)
    buffers = {each: Buffer(4 * wide * count, kept=True) for each, count in counts.items()}
    piece = Piece(
        tuple(row_step(step, channels) for step in rows),
        tuple(Move(_whole(tensor), each) for each, tensor in sources.items()),
        tuple(Move(_whole(tensor), each) for each, tensor in targets.items()),
    )
    return VectorKernel(name, buffers, (piece,), region)


def piece_positions(channels: int) -> int:
    """Number of positions of a piece, a multiple of `SLICES`."""
    wanted = min(-(-PIECE_ELEMENTS // channels), MOST_POSITIONS)
    return -(-wanted // SLICES) * SLICES


def row_step(step: RowStep, channels: int) -> Step:
    """Build the instruction of a step on small arrays."""
    wide = padded(channels)
    groups = wide // LANES

    def along(place: tuple[str, int]) -> dict[str, Any]:
        return {
            "base": 4 * wide * place[1],
            "steps": (4 * LANES,),
            "u_steps": (LANES,),
            "u_limit": channels,
        }

    op = VectorOp(
        counts=(groups,),
        x=Source(**along(step.x)),
        y=Source(**along(step.y)) if step.y else None,
        target=Target(**along(step.target)),
        **step.settings,
    )
    return Step(op, step.x[0], step.target[0], step.y[0] if step.y else None)


_PART = "part"
"""Name of the buffer for the partial sums of one piece, which are then added to the others."""


def _parts(index: int) -> str:
    """Name of the buffer for the partial sums of a sum, one row per slice."""
    return f"parts {index}"


def _whole(tensor: Tensor) -> Tile:
    return flat_tile(tensor, 0, tensor.elements)


def _added(parts: str, channels: int) -> Step:
    """Add the partial sums of a piece to those of the pieces before."""
    vectors = SLICES * padded(channels) // LANES
    op = VectorOp(
        counts=(vectors,),
        x=Source(0, (VECTOR_BYTES,)),
        y=Source(0, (VECTOR_BYTES,)),
        target=Target(0, (VECTOR_BYTES,)),
        addend=Addend.Y,
    )
    return Step(op, parts, parts, _PART)


def _total(step: SumStep, parts: str, channels: int) -> Step:
    """Add the partial sums of a sum, in order."""
    wide = padded(channels)
    op = VectorOp(
        counts=(1, SLICES, 1, 1, 1, wide // LANES),
        inner=1,
        reduced=1,
        x=Source(0, (0, 4 * wide, 0, 0, 0, 4 * LANES), u_steps=_by_group(LANES), u_limit=channels),
        target=Target(
            4 * wide * step.row, _by_group(4 * LANES), u_steps=_by_group(LANES), u_limit=channels
        ),
    )
    return Step(op, parts, step.target)


def _by_group(step: int) -> tuple[int, ...]:
    """Steps of a loop nest in which only the outermost loop moves."""
    return (*(0,) * (NUM_VECTOR_LOOPS - 1), step)


@dataclass(frozen=True)
class _View:
    """The positions of one piece."""

    formats: Mapping[str, ElementFormat]
    tiles: Mapping[str, Tile]
    rows: Mapping[str, int]
    count: int
    channels: int

    @property
    def _groups(self) -> int:
        return -(-self.channels // LANES)

    def _along(self, name: str, inner: tuple[int, int]) -> dict[str, Any]:
        """Base, steps and limits; `inner` has the two inner loops' movements, in positions."""
        size = self.formats[name].element_bytes
        pitch = self.channels * size
        return {
            "base": self.tiles[name].shift if name in self.tiles else 0,
            "steps": (inner[0] * pitch, inner[1] * pitch, 0, 0, 0, LANES * size),
            "u_steps": _by_group(LANES),
            "u_limit": self.channels,
            "format": Format.of(self.formats[name]),
        }

    def _coefficients(self, name: str | None, rows: Mapping[str, int]) -> Coefficients:
        """Read the coefficients from the rows of a small array."""
        if name is None:
            return Coefficients()
        return Coefficients(
            0, 4 * padded(self.channels), 4 * LANES, min(rows[name], NUM_COEFFICIENTS)
        )

    def each(self, step: EachStep) -> Step:
        """Build the instruction of a step on all elements."""
        moves = (1, 0)
        op = VectorOp(
            counts=(self.count, 1, 1, 1, 1, self._groups),
            x=Source(**self._along(step.x, moves)),
            y=Source(**self._along(step.y, moves)) if step.y else None,
            target=Target(**self._along(step.target, moves)),
            coefficients=self._coefficients(step.coefficients, self.rows),
            **step.settings,
        )
        return Step(op, step.x, step.target, step.y, step.coefficients)

    def partial(self, step: SumStep, parts: str) -> Step:
        """Build the instruction that computes the partial sums of this piece."""
        wide = padded(self.channels)
        moves = (1, SLICES)
        positions: dict[str, Any] = {"y_steps": moves, "y_limit": self.count}
        op = VectorOp(
            counts=(SLICES, -(-self.count // SLICES), 1, 1, 1, self._groups),
            inner=1,
            reduced=1,
            x=Source(**self._along(step.x, moves), **positions),
            y=Source(**self._along(step.y, moves), **positions) if step.y else None,
            target=Target(
                0,
                (4 * wide, 0, 0, 0, 0, 4 * LANES),
                u_steps=_by_group(LANES),
                u_limit=self.channels,
            ),
            coefficients=self._coefficients(step.coefficients, self.rows),
            **step.settings,
        )
        return Step(op, step.x, parts, step.y, step.coefficients)
