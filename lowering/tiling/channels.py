"""Kernels along the channels of a tensor, with one number per channel or sums per channel.

A tensor is treated as a matrix of positions by channels. Small arrays have one or several rows of
one FP32 number per channel, padded to whole vectors; they stay on chip for the whole kernel. Where
there are too many channels for that, a kernel goes over blocks of them, one after the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
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
from fpgapipe.lowering.tiling.tile import Tile, tile_of

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

BLOCK_CHANNELS = 32
"""Divisor of the channels of a block: whole words of BF16 and whole vectors."""


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
    formats = {name: t.format for name, t in (*sources.items(), *targets.items())}
    formats |= temporaries
    num_sums = sum(isinstance(step, SumStep) for step in steps)
    small_rows = dict(small_temporaries or {}) | _rows_of(channels, small_sources, small_targets)

    pitches = {
        each: channels * tensor.element_bytes
        for each, tensor in (*sources.items(), *targets.items())
    }

    @cache
    def view_of(block: _Block, first: int, count: int) -> _View:
        tiles = {
            each: block.tile(tensor, first, count, stored=each in targets)
            for each, tensor in (*sources.items(), *targets.items())
        }
        return _View(formats, tiles, small_rows, count, block.width)

    def buffers_for(block: _Block, number: int) -> dict[str, Buffer]:
        tiles = view_of(block, 0, number).tiles
        wide = padded(block.width)
        # A tensor's piece may begin anywhere within a word; a temporary begins at a whole word.
        found = {
            name: Buffer(tiles[name].span_bytes + WORD_BYTES)
            if name in tiles
            else Buffer(number * block.width * each.element_bytes)
            for name, each in formats.items()
        }
        found |= {each: Buffer(4 * wide * count, kept=True) for each, count in small_rows.items()}
        for index in range(num_sums):
            found[_parts(index)] = Buffer(4 * wide * SLICES, kept=True)
        if num_sums and number < positions:
            found[_PART] = Buffer(4 * wide * SLICES, kept=True)
        return found | _second_copies(found, block, small_sources, small_targets)

    def number_for(block: _Block) -> int:
        number = min(piece_positions(block.width), positions)
        room = region.size_bytes * region.lanes
        while room_of(buffers_for(block, number)) > room and number > SLICES:
            number = -(-number // (2 * SLICES)) * SLICES
        return number

    def fits(block: _Block) -> bool:
        buffers = buffers_for(block, number_for(block))
        return _copies(buffers, region) is not None

    blocks = _blocks(channels, fits)
    number = number_for(blocks[0])
    buffers = buffers_for(blocks[0], number)
    firsts = range(0, positions, number)

    # Pieces that differ only in their places share their steps.
    known: dict[tuple[Any, ...], tuple[Step, ...]] = {}

    def work_of(view: _View, first: bool, last: bool) -> tuple[Step, ...]:
        key = (
            view.channels,
            view.count,
            first,
            last,
            *((t.shift, t.pitches) for t in view.tiles.values()),
        )
        if key not in known:
            known[key] = tuple(_work(view, steps, rows, first=first, last=last))
        return known[key]

    pieces = []
    for block in blocks:
        for index, first in enumerate(firsts):
            # What begins at whole words has the tiles of the first piece.
            like = first if any(first * pitch % WORD_BYTES for pitch in pitches.values()) else 0
            view = view_of(block, like, min(number, positions - first))
            last = index == len(firsts) - 1
            work = work_of(view, index == 0, last)
            moves = {
                each: Move(tile, each, (first - like) * pitches[each])
                for each, tile in view.tiles.items()
            }
            loads = [moves[each] for each in sources]
            stores = [moves[each] for each in targets]
            if index == 0:
                loads = [Move(block.small(t), each) for each, t in small_sources.items()] + loads
            if last:
                stores += [Move(block.small(t), each) for each, t in small_targets.items()]
            restarts = index == 0 and block.first > 0
            piece = Piece(work, tuple(loads), tuple(stores), restarts)
            pieces.append(_alternating(piece, block, small_sources, small_targets))
    return VectorKernel(name, buffers, tuple(pieces), region, _copies(buffers, region) or 1)


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
    counts = dict(temporaries or {}) | _rows_of(channels, sources, targets)

    def buffers_for(block: _Block) -> dict[str, Buffer]:
        wide = padded(block.width)
        found = {each: Buffer(4 * wide * count, kept=True) for each, count in counts.items()}
        return found | _second_copies(found, block, sources, targets)

    blocks = _blocks(channels, lambda block: room_of(buffers_for(block)) <= region.size_bytes)
    pieces = []
    for block in blocks:
        piece = Piece(
            tuple(row_step(step, block.width) for step in rows),
            tuple(Move(block.small(tensor), each) for each, tensor in sources.items()),
            tuple(Move(block.small(tensor), each) for each, tensor in targets.items()),
            block.first > 0,
        )
        pieces.append(_alternating(piece, block, sources, targets))
    return VectorKernel(name, buffers_for(blocks[0]), tuple(pieces), region)


@dataclass(frozen=True)
class _Block:
    """Neighbouring channels that a kernel processes before the others; usually all of them.

    Attributes
    ----------
    first, width : int
        First channel, and number of channels.
    channels : int
        Number of all channels.
    index : int
        Number of the block.
    """

    first: int
    width: int
    channels: int
    index: int = 0

    def tile(self, tensor: Tensor, first: int, count: int, *, stored: bool) -> Tile:
        """The block's channels at some positions."""
        size = tensor.element_bytes
        pitch = self.channels * size
        offset = first * pitch + self.first * size
        return tile_of(tensor.name, offset, self.width * size, [(count, pitch)], stored=stored)

    def small(self, tensor: Tensor) -> Tile:
        """The block's part of a small array, whose rows lie one behind the other on chip."""
        pitch, wide = 4 * padded(self.channels), padded(self.width)
        if self.width == self.channels:
            return flat_tile(tensor, 0, tensor.elements)
        rows = -(-4 * tensor.elements // pitch)
        run = 4 * (wide if 4 * tensor.elements == rows * pitch else self.width)
        return tile_of(tensor.name, 4 * self.first, run, [(rows, pitch)], stored=True)


def _blocks(channels: int, fits: Callable[[_Block], bool]) -> list[_Block]:
    """As few blocks as possible of which the first and largest fits on chip, if any does.

    Blocks begin at whole words. No sum depends on what other channels a kernel processes.
    """
    width = channels
    while not fits(_Block(0, width, channels)) and width > BLOCK_CHANNELS:
        number = -(-channels // width) + 1
        width = min(-(-channels // number // BLOCK_CHANNELS) * BLOCK_CHANNELS, width - 1)
        width = max(width // BLOCK_CHANNELS, 1) * BLOCK_CHANNELS
    return [
        _Block(first, min(width, channels - first), channels, index)
        for index, first in enumerate(range(0, channels, width))
    ]


def _rows_of(channels: int, *tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of rows of small arrays in memory."""
    wide = padded(channels)
    return {name: -(-each.elements // wide) for some in tensors for name, each in some.items()}


def _copies(buffers: Mapping[str, Buffer], region: Region) -> int | None:
    """Number of copies of each buffer of a piece, or None if not even one has room."""
    if room_of(buffers) <= region.size_bytes:
        return 2
    return 1 if region.lanes > 1 and room_of(buffers, 1) <= region.size_bytes else None


def _second(name: str) -> str:
    """Second buffer of a small array that every block loads and stores."""
    return f"{name}, second"


def _second_copies(
    buffers: Mapping[str, Buffer],
    block: _Block,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
) -> dict[str, Buffer]:
    """Second buffers of the small arrays that are loaded and stored, if there are several blocks.

    Otherwise the next block would load what a store may still read.
    """
    both = sources.keys() & targets.keys() if block.width < block.channels else ()
    return {_second(each): buffers[each] for each in buffers if each in both}


def _alternating(
    piece: Piece, block: _Block, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> Piece:
    """The piece with second buffers in every other block; see `_second_copies`."""
    if block.index % 2 == 0:
        return piece
    names = {each: _second(each) for each in sources.keys() & targets.keys()}

    def named(name: str) -> str:
        return names.get(name, name)

    def moved(moves: Sequence[Move]) -> tuple[Move, ...]:
        return tuple(replace(each, buffer=named(each.buffer)) for each in moves)

    steps = tuple(
        Step(
            each.op,
            named(each.x),
            named(each.target),
            each.y and named(each.y),
            each.coefficients and named(each.coefficients),
        )
        for each in piece.steps
    )
    return replace(piece, steps=steps, loads=moved(piece.loads), stores=moved(piece.stores))


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
        tile = self.tiles.get(name)
        pitch = tile.pitches[0] if tile else self.channels * size
        return {
            "base": tile.shift if tile else 0,
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


def _work(
    view: _View,
    steps: Sequence[EachStep | SumStep],
    rows: Sequence[RowStep],
    *,
    first: bool,
    last: bool,
) -> Iterator[Step]:
    """Instructions of a piece, the first or the last one of its block or one between them."""
    sums = [step for step in steps if isinstance(step, SumStep)]
    names = map(_parts, range(len(sums)))
    for step in steps:
        if isinstance(step, EachStep):
            yield view.each(step)
        elif first:
            yield view.partial(step, next(names))
        else:
            yield view.partial(step, _PART)
            yield _added(next(names), view.channels)
    if last:
        for number, total in enumerate(sums):
            yield _total(total, _parts(number), view.channels)
        for row in rows:
            yield row_step(row, view.channels)
