"""Kernels on image tensors, which are tiled by images, rows and channels."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS, Source, Target
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
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

TILE_ELEMENTS = 1 << 16
"""Largest number of elements of a piece of the largest tensor, unless one row has more."""

Range = tuple[int, int]
"""First index, and the index after the last."""


@dataclass(frozen=True)
class SpatialTile:
    """The images, rows and channels of a piece, which has all columns.

    Attributes
    ----------
    images, rows, channels : Range
    is_first : bool
        Whether this is the tile of the first piece.
    """

    images: Range
    rows: Range
    channels: Range
    is_first: bool = False

    @property
    def num_images(self) -> int:
        """Number of images."""
        return self.images[1] - self.images[0]

    @property
    def num_rows(self) -> int:
        """Number of rows of each image."""
        return self.rows[1] - self.rows[0]

    @property
    def depth(self) -> int:
        """Number of channels."""
        return self.channels[1] - self.channels[0]

    @property
    def groups(self) -> int:
        """Number of vectors that hold the channels."""
        return padded(self.depth) // LANES


@dataclass(frozen=True)
class View:
    """A spatial tile on chip, addressed by positions in the whole image.

    Parameters
    ----------
    base : int
        Byte at which row 0 and column 0 of the first image would be, from the buffer's beginning.
    pitches : (int, int, int)
        Bytes from column to column, from row to row, and from image to image.
    format : ElementFormat
    depth : int
        Number of channels on chip.
    limits : (int, int)
        Rows and columns of the image; positions outside do not exist.
    broadcast : bool
        Whether there is only one number for all channels.
    """

    base: int
    pitches: tuple[int, int, int]
    format: ElementFormat
    depth: int
    limits: tuple[int, int]
    broadcast: bool = False

    @classmethod
    def of(cls, tensor: Tensor, tile: Tile, spatial_tile: SpatialTile) -> "View":
        """Return the view of a tile."""
        pixel, row, image = tile.pitches
        return cls(
            tile.shift - spatial_tile.rows[0] * row,
            (pixel, row, image),
            tensor.format,
            spatial_tile.depth,
            (tensor.shape[1], tensor.shape[2]),
        )

    def moves(self, images: int, rows: int, columns: int, channels: int) -> tuple[int, int, int]:
        """Return a movement as change of the address, in bytes, and of the coordinates y and u."""
        pixel, row, image = self.pitches
        lanes = 0 if self.broadcast else channels
        address = images * image + rows * row + columns * pixel + lanes * self.format.element_bytes
        return address, rows, columns * self.depth + lanes

    def source(self, row: int, column: int) -> Source:
        """Source that begins at a position."""
        address, y, u = self.moves(0, row, column, 0)
        return Source(
            self.base + address,
            y=y,
            u=u,
            y_limit=self.limits[0],
            u_limit=self.limits[1] * self.depth,
            format=Format.of(self.format),
            broadcast=self.broadcast,
        )

    def target(self, row: int, column: int) -> Target:
        """Target that begins at a position."""
        address = self.base + self.moves(0, row, column, 0)[0]
        return Target(address, u_limit=self.depth, format=Format.of(self.format))


@dataclass(frozen=True)
class Delta:
    """Movement within a tensor per iteration of a loop."""

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
    """Build a loop from its movement in each tensor."""

    def moves(view: View | None, delta: Delta | None) -> tuple[int, int, int]:
        if view is None or delta is None:
            return (0, 0, 0)
        return view.moves(delta.images, delta.rows, delta.columns, delta.channels)

    address = moves(target, moved_target)[0]
    channels = moved_target.channels if moved_target else 0
    return VectorLoop(count, moves(x, moved), moves(y, moved_y), (address, channels), counter)


@dataclass(frozen=True)
class _Tiling:
    """Numbers of images, rows and channels of a piece."""

    images: int
    rows: int
    depth: int

    def smaller(self, multiple: int) -> "_Tiling | None":
        """Halve the dimension that costs the least; return None if no dimension can be halved."""
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
    small_sources: Mapping[str, Tensor] | None = None,
    small_targets: Mapping[str, Tensor] | None = None,
    multiple: int = 1,
) -> VectorKernel:
    """Build a kernel whose pieces are spatial tiles.

    Parameters
    ----------
    name : str
    region : Region
    along : str
        Name of the tensor that is tiled.
    sources, targets : mapping of str to Tensor
        Tensors of ``batch x rows x columns x channels``.
    reach : mapping of str to callable
        For other tensors, the rows that belong to given rows of the tiled one; there must be at
        least one. For a target they are all rows, and it is stored when the last rows are done.
        Targets without an entry are tiled like `along`.
    steps : callable
        Returns the instructions of a piece, given its spatial tile and the views of all tensors.
    kept : mapping of str to int
        Names of further buffers, with their bytes.
    kept_of : mapping of str to callable
        Further buffers whose bytes depend on the numbers of images and channels of a piece.
    small_sources, small_targets : mapping of str to Tensor
        Tensors of ``1 x rows x columns x channels`` that are no images, such as weights. A piece
        has their rows and columns of its channels. Targets stay on chip from piece to piece, and
        are stored after the last piece with the same channels.
    multiple : int
        Preferred divisor of the number of rows of a piece.

    Raises
    ------
    ValueError
        If the region is too small.
    """
    tensors = {**sources, **targets}
    small = {**(small_sources or {}), **(small_targets or {})}
    batch, rows, _, channels = tensors[along].shape
    cut: _Tiling | None = _first_tiling(tensors, along, multiple)
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
            | {
                each: _tile_of_piece(
                    tensor, _all_of(tensor, spatial_tile), stored=each in (small_targets or {})
                )
                for each, tensor in small.items()
            }
            for spatial_tile in spatial_tiles
        ]
        buffers = {
            each: Buffer(
                max(tile[each].size_bytes for tile in tiles), kept=each in (small_targets or {})
            )
            for each in (*tensors, *small)
        }
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
        views |= {
            each: View.of(tensor, tile[each], _all_of(tensor, spatial_tile))
            for each, tensor in small.items()
        }
        done = [each for each in targets if each not in reach or spatial_tile.rows[1] == rows]
        if spatial_tile.images[1] == batch and spatial_tile.rows[1] == rows:
            done += small_targets or ()
        pieces.append(
            Piece(
                tuple(steps(spatial_tile, views)),
                tuple(Move(tile[each], each) for each in (*sources, *(small_sources or ()))),
                tuple(Move(tile[each], each) for each in done),
            )
        )
    return VectorKernel(name, buffers, tuple(pieces), region)


def _first_tiling(tensors: Mapping[str, Tensor], along: str, multiple: int) -> _Tiling:
    """Choose a tiling into pieces of about `TILE_ELEMENTS` elements."""
    batch, rows, _, channels = tensors[along].shape
    of_image = max(tensor.elements for tensor in tensors.values()) // batch
    # Wide rows need a second loop for their columns, which leaves no loop for images.
    wide = max(tensor.shape[2] for tensor in tensors.values()) > MAX_SUMS
    images = 1 if wide else min(max(TILE_ELEMENTS // of_image, 1), batch)
    few = max(rows * TILE_ELEMENTS // of_image // multiple, 1) * multiple
    return _Tiling(images, min(rows, few), channels)


def _spatial_tiles(shape: tuple[int, int, int], cut: _Tiling) -> list[SpatialTile]:
    """Divide images, rows and channels into tiles; rows are the innermost dimension."""
    images, rows, channels = (
        [(first, min(first + part, total)) for first in range(0, total, part)]
        for total, part in zip(shape, (cut.images, cut.rows, cut.depth), strict=True)
    )
    spatial_tiles = [SpatialTile(n, y, c) for c in channels for n in images for y in rows]
    return [replace(spatial_tiles[0], is_first=True), *spatial_tiles[1:]]


def _reached(spatial_tile: SpatialTile, reach: Callable[[Range], Range] | None) -> SpatialTile:
    return replace(spatial_tile, rows=reach(spatial_tile.rows)) if reach else spatial_tile


def _all_of(tensor: Tensor, spatial_tile: SpatialTile) -> SpatialTile:
    """All rows of a tensor that is no image, of a piece's channels."""
    return replace(spatial_tile, images=(0, 1), rows=(0, tensor.shape[1]))


def _tile_of_piece(tensor: Tensor, spatial_tile: SpatialTile, *, stored: bool) -> Tile:
    """Tile of a tensor for a piece."""
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
