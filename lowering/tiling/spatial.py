"""Kernels on tensors of images, cut by images, rows and channels."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS, Source, Target
from fpgapipe.lowering.tiling.channels import padded
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
from fpgapipe.lowering.tiling.nest import VectorLoop
from fpgapipe.lowering.tiling.tile import Tile, tile_of

BOX_ELEMENTS = 1 << 16
"""Elements of a piece of the largest tensor, at most, if a row has no more."""

Range = tuple[int, int]
"""The first, and the one behind the last."""


@dataclass(frozen=True)
class SpatialTile:
    """What a piece is of: images, rows and channels; columns are all there.

    Attributes
    ----------
    images, rows, channels : Range
    is_first : bool
        Whether it is of the first piece.
    """

    images: Range
    rows: Range
    channels: Range
    is_first: bool = False

    @property
    def num_images(self) -> int:
        """Images."""
        return self.images[1] - self.images[0]

    @property
    def num_rows(self) -> int:
        """Rows of each."""
        return self.rows[1] - self.rows[0]

    @property
    def depth(self) -> int:
        """Channels."""
        return self.channels[1] - self.channels[0]

    @property
    def groups(self) -> int:
        """Vectors of channels."""
        return padded(self.depth) // LANES


@dataclass(frozen=True)
class View:
    """A box of a tensor on chip, by positions in the whole image.

    Parameters
    ----------
    base : int
        Where row 0 and column 0 of the first image would be, in bytes from the buffer's beginning.
    pitches : (int, int, int)
        Bytes from column to column, row to row, image to image.
    size : int
        Bytes of an element.
    depth : int
        Channels on chip.
    limits : (int, int)
        Rows and columns of the image; positions outside are not there.
    broadcast : bool
        One number for all channels.
    """

    base: int
    pitches: tuple[int, int, int]
    size: int
    depth: int
    limits: tuple[int, int]
    broadcast: bool = False

    @classmethod
    def of(cls, tensor: Tensor, tile: Tile, spatial_tile: SpatialTile) -> "View":
        """View of a tile."""
        pixel, row, image = tile.pitches
        return cls(
            tile.shift - spatial_tile.rows[0] * row,
            (pixel, row, image),
            tensor.element_bytes,
            spatial_tile.depth,
            (tensor.shape[1], tensor.shape[2]),
        )

    def moves(self, images: int, rows: int, columns: int, channels: int) -> tuple[int, int, int]:
        """Address in bytes, y and u."""
        pixel, row, image = self.pitches
        lanes = 0 if self.broadcast else channels
        address = images * image + rows * row + columns * pixel + lanes * self.size
        return address, rows, columns * self.depth + lanes

    def source(self, row: int, column: int) -> Source:
        """Begin reading at a position."""
        address, y, u = self.moves(0, row, column, 0)
        return Source(
            self.base + address,
            y=y,
            u=u,
            y_limit=self.limits[0],
            u_limit=self.limits[1] * self.depth,
            format=Format.of(self.size),
            broadcast=self.broadcast,
        )

    def target(self, row: int, column: int) -> Target:
        """Begin writing at a position."""
        address = self.base + self.moves(0, row, column, 0)[0]
        return Target(address, u_limit=self.depth, format=Format.of(self.size))


@dataclass(frozen=True)
class Delta:
    """What a step of a loop moves within a tensor."""

    images: int = 0
    rows: int = 0
    columns: int = 0
    channels: int = 0


def loop_of(
    count: int,
    x: View,
    moved: Delta,
    target: View | None = None,
    moved_target: Delta | None = None,
    y: View | None = None,
    moved_y: Delta | None = None,
    counter: int = 0,
) -> VectorLoop:
    """Make a loop of what it moves in each tensor."""

    def moves(view: View | None, delta: Delta | None) -> tuple[int, int, int]:
        if view is None or delta is None:
            return (0, 0, 0)
        return view.moves(delta.images, delta.rows, delta.columns, delta.channels)

    address = moves(target, moved_target)[0]
    channels = moved_target.channels if moved_target else 0
    return VectorLoop(count, moves(x, moved), moves(y, moved_y), (address, channels), counter)


@dataclass(frozen=True)
class _Cut:
    """Images, rows and channels of a piece."""

    images: int
    rows: int
    depth: int

    def smaller(self, multiple: int) -> "_Cut | None":
        """Halve what costs the least, or give None."""
        if self.images > 1:
            return replace(self, images=self.images // 2)
        if self.rows > multiple:
            return replace(self, rows=max(self.rows // 2 // multiple, 1) * multiple)
        if self.rows > 1 and multiple > 1:
            return replace(self, rows=1)
        if self.depth > LANES:
            return replace(self, depth=padded(-(-self.depth // 2)))
        return None


def spatial_kernel(
    name: str,
    region: Region,
    along: str,
    sources: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    reach: Mapping[str, Callable[[Range], Range]],
    steps: Callable[[SpatialTile, Mapping[str, View]], Iterable[Step]],
    *,
    kept: Mapping[str, int] | None = None,
    kept_of: Mapping[str, Callable[[int, int], int]] | None = None,
    multiple: int = 1,
) -> VectorKernel:
    """Make a kernel of pieces that are boxes of images.

    Parameters
    ----------
    name : str
    region : Region
    along : str
        The tensor that is cut.
    sources, targets : mapping of str to Tensor
        ``batch x rows x columns x channels`` each.
    reach : mapping of str to callable
        Rows of the other tensors that go with rows of that one; there must be some. Of a target,
        which is stored when the last rows are done, they are all. Targets that are missing are cut
        like `along`.
    steps : callable
        Gives the instructions of a piece, from its box and the views of all tensors.
    kept : mapping of str to int
        Further buffers, and their bytes.
    kept_of : mapping of str to callable
        The same, by the images and channels of a piece.
    multiple : int
        Pieces should have a multiple of so many rows.

    Raises
    ------
    ValueError
        If the region is too small.
    """
    tensors = {**sources, **targets}
    batch, rows, _, channels = tensors[along].shape
    cut: _Cut | None = _first_cut(tensors, along, multiple)
    while True:
        assert cut is not None
        spatial_tiles = _spatial_tiles((batch, rows, channels), cut)
        tiles = [
            {
                each: _tile_of_piece(
                    tensor, _reached(spatial_tile, reach.get(each)), stored=each in targets
                )
                for each, tensor in tensors.items()
            }
            for spatial_tile in spatial_tiles
        ]
        buffers = {each: Buffer(max(tile[each].size_bytes for tile in tiles)) for each in tensors}
        for each, size in (kept or {}).items():
            buffers[each] = Buffer(size, kept=True)
        for each, size_of in (kept_of or {}).items():
            buffers[each] = Buffer(size_of(cut.images, cut.depth), kept=True)
        smaller = cut.smaller(multiple)
        if room_of(buffers) <= region.size_bytes or smaller is None:
            break
        cut = smaller

    pieces = []
    for spatial_tile, tile in zip(spatial_tiles, tiles, strict=True):
        views = {
            each: View.of(tensor, tile[each], _reached(spatial_tile, reach.get(each)))
            for each, tensor in tensors.items()
        }
        done = [each for each in targets if each not in reach or spatial_tile.rows[1] == rows]
        pieces.append(
            Piece(
                tuple(steps(spatial_tile, views)),
                tuple(Move(tile[each], each) for each in sources),
                tuple(Move(tile[each], each) for each in done),
            )
        )
    return VectorKernel(name, buffers, tuple(pieces), region)


def _first_cut(tensors: Mapping[str, Tensor], along: str, multiple: int) -> _Cut:
    """Cut into pieces of about `BOX_ELEMENTS`."""
    batch, rows, _, channels = tensors[along].shape
    of_image = max(tensor.elements for tensor in tensors.values()) // batch
    # Wide rows need a loop more for their columns than leaves one for images.
    wide = max(tensor.shape[2] for tensor in tensors.values()) > MAX_SUMS
    images = 1 if wide else min(max(BOX_ELEMENTS // of_image, 1), batch)
    few = max(rows * BOX_ELEMENTS // of_image // multiple, 1) * multiple
    return _Cut(images, min(rows, few), channels)


def _spatial_tiles(shape: tuple[int, int, int], cut: _Cut) -> list[SpatialTile]:
    """Cut images, rows and channels, with rows innermost."""
    images, rows, channels = (
        [(first, min(first + part, total)) for first in range(0, total, part)]
        for total, part in zip(shape, (cut.images, cut.rows, cut.depth), strict=True)
    )
    spatial_tiles = [SpatialTile(n, y, c) for c in channels for n in images for y in rows]
    return [replace(spatial_tiles[0], is_first=True), *spatial_tiles[1:]]


def _reached(spatial_tile: SpatialTile, reach: Callable[[Range], Range] | None) -> SpatialTile:
    return replace(spatial_tile, rows=reach(spatial_tile.rows)) if reach else spatial_tile


def _tile_of_piece(tensor: Tensor, spatial_tile: SpatialTile, *, stored: bool) -> Tile:
    """Lay a box of a tensor out."""
    _, rows, columns, channels = tensor.shape
    pixel = channels * tensor.element_bytes
    (image, _), (row, _), (channel, _) = (
        spatial_tile.images,
        spatial_tile.rows,
        spatial_tile.channels,
    )
    return tile_of(
        tensor.name,
        (image * rows + row) * columns * pixel + channel * tensor.element_bytes,
        spatial_tile.depth * tensor.element_bytes,
        [
            (columns, pixel),
            (spatial_tile.num_rows, columns * pixel),
            (spatial_tile.num_images, rows * columns * pixel),
        ],
        stored=stored,
        # A vector that begins in the padding begins before the first element.
        lead_bytes=0 if stored else WORD_BYTES,
    )
