"""Averages over all positions of an image, forward and backward."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Constant, Factor
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel
from fpgapipe.lowering.tiling.nest import nest, spans
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.spatial import Delta, SpatialTile, View, loop_of, spatial_kernel

_NONE = Constant(0.0)


@made_once
def global_average(name: str, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Average over all positions of each image.

    The pixels of each row are summed, then the sums of the rows. The sums of the rows stay on chip
    until an image is complete, so an image may have more rows than a piece.

    Parameters
    ----------
    name : str
    x : Tensor
    y : Tensor
        Tensor of ``batch x channels``.
    region : Region

    Raises
    ------
    ValueError
        If the region is too small for a row.
    """
    _, height, width, channels = x.shape
    y = replace(y, shape=(x.shape[0], 1, 1, channels))

    def parts(depth: int) -> View:
        pitch = 4 * padded(depth)
        return View(0, (0, pitch, height * pitch), FP32, depth, (height, 1))

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        part, first = parts(spatial_tile.depth), spatial_tile.rows[0]
        x, target = views["x"], views["y"]
        down, images, groups = (
            loop_of(count, x, delta, part, delta)
            for count, delta in (
                (spatial_tile.num_rows, Delta(rows=1)),
                (spatial_tile.num_images, Delta(images=1)),
                (spatial_tile.groups, Delta(channels=LANES)),
            )
        )
        across = loop_of(width, x, Delta(columns=1))
        for begin, end in spans(spatial_tile.num_rows):
            op = nest(
                [replace(down, count=end - begin), images, groups],
                [across],
                x.source(first + begin, 0),
                part.target(first + begin, 0),
            )
            yield Step(op, "x", "parts")
        if spatial_tile.rows[1] == height:
            whole = (
                loop_of(count, part, delta, target, delta)
                for count, delta in (
                    (spatial_tile.num_images, Delta(images=1)),
                    (spatial_tile.groups, Delta(channels=LANES)),
                )
            )
            op = nest(
                list(whole),
                [loop_of(height, part, Delta(rows=1))],
                part.source(0, 0),
                target.target(0, 0),
                factor=Factor.CONSTANT,
                constants=(_NONE, Constant(1 / (height * width))),
            )
            yield Step(op, "parts", "y")

    return spatial_kernel(
        name,
        region,
        "x",
        {"x": x},
        {"y": y},
        {"y": lambda rows: (0, 1)},
        steps,
        kept_of={"parts": lambda images, depth: images * height * 4 * padded(depth)},
    )


@made_once
def global_average_gradient(name: str, dy: Tensor, dx: Tensor, region: Region) -> VectorKernel:
    """Give each pixel its share of `dy`, which is ``batch x channels``."""
    batch, height, width, channels = dx.shape
    dy = replace(dy, shape=(batch, 1, 1, channels))

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        source, target = views["dy"], views["dx"]
        buffer_count = [
            loop_of(width, source, Delta(), target, Delta(columns=1)),
            loop_of(spatial_tile.num_rows, source, Delta(), target, Delta(rows=1)),
            loop_of(spatial_tile.num_images, source, Delta(images=1), target, Delta(images=1)),
            loop_of(
                spatial_tile.groups, source, Delta(channels=LANES), target, Delta(channels=LANES)
            ),
        ]
        op = nest(
            buffer_count,
            [],
            source.source(0, 0),
            target.target(spatial_tile.rows[0], 0),
            factor=Factor.CONSTANT,
            constants=(_NONE, Constant(1 / (height * width))),
        )
        yield Step(op, "dy", "dx")

    return spatial_kernel(
        name, region, "dx", {"dy": dy}, {"dx": dx}, {"dy": lambda rows: (0, 1)}, steps
    )
