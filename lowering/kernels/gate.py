"""Sums and products of images with one number for each image and channel, both ways, in FP32.

They are the gates of squeeze-and-excitation blocks. Images are ``batch x rows x columns x
channels``, the numbers are ``batch x channels``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Addend, Factor
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.kernel import Step
from fpgapipe.lowering.tiling.nest import nest, spans
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.spatial import Delta, SpatialTile, View, loop_of, spatial_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

GATED: Mapping[str, Mapping[str, Any]] = {
    "add": {"addend": Addend.Y},
    "sub": {"addend": Addend.Y, "negate_addend": True},
    "mul": {"factor": Factor.Y},
}
"""Functions of an image's element and a number, with the settings of their instruction."""


@made_once
def gated(
    name: str, function: str, x: Tensor, numbers: Tensor, y: Tensor, region: Region
) -> VectorKernel:
    """Compute ``y = function(x, numbers)``, where each image and channel has a number.

    Parameters
    ----------
    name : str
    function : str
        A key of `GATED`.
    x, numbers, y, region

    Raises
    ------
    ValueError
        If the region is too small.
    """

    def steps(tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        image, own, out = views["x"], views["numbers"], views["y"]
        by_channel, by_image = Delta(channels=LANES), Delta(images=1)
        columns = loop_of(out.limits[1], image, Delta(columns=1), out, Delta(columns=1))
        positions = [
            loop_of(tile.num_rows, image, Delta(rows=1), out, Delta(rows=1)),
            loop_of(tile.num_images, image, by_image, out, by_image, own, by_image),
            loop_of(tile.groups, image, by_channel, out, by_channel, own, by_channel),
        ]
        row = tile.rows[0]
        for begin, end in spans(columns.count):
            op = nest(
                [replace(columns, count=end - begin), *positions],
                [],
                image.source(row, begin),
                out.target(row, begin),
                own.source(0, 0),
                **GATED[function],
            )
            yield Step(op, "x", "y", "numbers")

    return spatial_kernel(
        name,
        region,
        "x",
        {"x": x, "numbers": _pixels(numbers)},
        {"y": y},
        {"numbers": lambda rows: (0, 1)},
        steps,
    )


@made_once
def gate_gradient(
    name: str, dy: Tensor, x: Tensor | None, numbers: Tensor, region: Region
) -> VectorKernel:
    """Add up `dy`, or ``dy * x``, over the positions of each image: the gradient of the numbers.

    The pixels of each row are added up, then the sums of the rows.

    Parameters
    ----------
    name : str
    dy : Tensor
    x : Tensor, optional
    numbers : Tensor
        What is written.
    region : Region

    Raises
    ------
    ValueError
        If the region is too small.
    """
    _, height, width, _ = dy.shape
    settings: Mapping[str, Any] = {"factor": Factor.Y} if x else {}

    def parts(depth: int) -> View:
        pitch = 4 * padded(depth)
        return View(0, (0, pitch, height * pitch), FP32, depth, (height, 1))

    def steps(tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        part, first = parts(tile.depth), tile.rows[0]
        given, other, target = views["dy"], views["x"] if x else None, views["numbers"]
        down, images, groups = (
            loop_of(count, given, delta, part, delta, other, delta)
            for count, delta in (
                (tile.num_rows, Delta(rows=1)),
                (tile.num_images, Delta(images=1)),
                (tile.groups, Delta(channels=LANES)),
            )
        )
        across = loop_of(width, given, Delta(columns=1), y=other, moved_y=Delta(columns=1))
        for begin, end in spans(tile.num_rows):
            op = nest(
                [replace(down, count=end - begin), images, groups],
                [across],
                given.source(first + begin, 0),
                part.target(first + begin, 0),
                other.source(first + begin, 0) if other else None,
                **settings,
            )
            yield Step(op, "dy", "parts", "x" if other else None)
        if tile.rows[1] == height:
            whole = [
                loop_of(count, part, delta, target, delta)
                for count, delta in (
                    (tile.num_images, Delta(images=1)),
                    (tile.groups, Delta(channels=LANES)),
                )
            ]
            down = loop_of(height, part, Delta(rows=1))
            op = nest(whole, [down], part.source(0, 0), target.target(0, 0))
            yield Step(op, "parts", "numbers")

    return spatial_kernel(
        name,
        region,
        "dy",
        {"dy": dy, **({"x": x} if x else {})},
        {"numbers": _pixels(numbers)},
        {"numbers": lambda rows: (0, 1), **({"x": lambda rows: rows} if x else {})},
        steps,
        kept_of={"parts": lambda images, depth: images * height * 4 * padded(depth)},
    )


def _pixels(numbers: Tensor) -> Tensor:
    """View numbers as images of one pixel."""
    return replace(numbers, shape=(numbers.shape[0], 1, 1, numbers.elements // numbers.shape[0]))
