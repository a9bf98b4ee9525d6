"""Depthwise convolutions on the vector engine, forward and backward, in FP32.

Each channel has a window of its own, so an array, which adds up products over channels, would use
one of its columns. The vector engine multiplies 16 channels of a pixel by those of a tap in a
cycle, and adds up the taps. Tensors are ``batch x rows x columns x channels``; weights are ``1 x
rows x columns x channels``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Addend, Factor, Initial
from fpgapipe.lowering.kernels.pooling import (
    Phase,
    Pool,
    phases_of,
    rows_of,
    rows_of_windows,
)
from fpgapipe.lowering.tiling.kernel import Step
from fpgapipe.lowering.tiling.nest import nest, spans
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.spatial import Delta, SpatialTile, View, loop_of, spatial_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel


@made_once
def depthwise(
    name: str, window: Pool, x: Tensor, weight: Tensor, y: Tensor, region: Region
) -> VectorKernel:
    """Compute the convolution of each channel with its window.

    Parameters
    ----------
    name : str
    window : Pool
        Taps, stride and padding.
    x, weight, y, region

    Raises
    ------
    ValueError
        If shapes do not agree, or the region is too small.
    """
    _check(window, x, weight, y)
    (down, across), (top, left) = window.stride, window.pad[:2]

    def steps(tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        image, taps, out = views["x"], views["weight"], views["y"]
        by_channel = Delta(channels=LANES)
        columns = loop_of(out.limits[1], image, Delta(columns=across), out, Delta(columns=1))
        positions = [
            loop_of(tile.num_rows, image, Delta(rows=down), out, Delta(rows=1)),
            loop_of(tile.num_images, image, Delta(images=1), out, Delta(images=1)),
            loop_of(tile.groups, image, by_channel, out, by_channel, taps, by_channel),
        ]
        reduced = [
            loop_of(count, image, moved, y=taps, moved_y=delta)
            for count, moved, delta in (
                (window.kernel[1], Delta(columns=window.dilation[1]), Delta(columns=1)),
                (window.kernel[0], Delta(rows=window.dilation[0]), Delta(rows=1)),
            )
        ]
        row = tile.rows[0]
        for begin, end in spans(columns.count):
            op = nest(
                [replace(columns, count=end - begin), *positions],
                reduced,
                image.source(row * down - top, begin * across - left),
                out.target(row, begin),
                taps.source(0, 0),
                factor=Factor.Y,
            )
            yield Step(op, "x", "y", "weight")

    return spatial_kernel(
        name,
        region,
        "y",
        {"x": x},
        {"y": y},
        {"x": lambda rows: rows_of(window, rows, x)},
        steps,
        small_sources={"weight": weight},
    )


@made_once
def depthwise_input(
    name: str, window: Pool, dy: Tensor, weight: Tensor, dx: Tensor, region: Region
) -> VectorKernel:
    """Compute `dx`: each pixel gets the products of its taps and `dy` of the windows that have it.

    Parameters and errors are those of `depthwise`.
    """
    _check(window, dx, weight, dy)

    def steps(tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        across = phases_of(window, 1, (0, dx.shape[2]), apart=True)
        down = phases_of(window, 0, tile.rows, apart=True)
        for vertical, horizontal in product(down, across):
            yield from _pixels(window, tile, views, vertical, horizontal)

    return spatial_kernel(
        name,
        region,
        "dx",
        {"dy": dy},
        {"dx": dx},
        {"dy": lambda rows: rows_of_windows(window, rows, dy)},
        steps,
        small_sources={"weight": weight},
        multiple=window.stride[0],
    )


def _pixels(
    window: Pool,
    tile: SpatialTile,
    views: Mapping[str, View],
    vertical: Phase,
    horizontal: Phase,
) -> Iterator[Step]:
    """Instructions for the pixels of a phase."""
    dy, dx, taps = views["dy"], views["dx"], views["weight"]
    down, across = window.stride
    by_channel = Delta(channels=LANES)
    columns = loop_of(horizontal.count, dy, Delta(columns=1), dx, Delta(columns=across))
    positions = [
        loop_of(vertical.count, dy, Delta(rows=1), dx, Delta(rows=down)),
        loop_of(tile.num_images, dy, Delta(images=1), dx, Delta(images=1)),
        loop_of(tile.groups, dy, by_channel, dx, by_channel, taps, by_channel),
    ]
    # Windows are added in their order, in which the numbers of taps decrease.
    reduced = [
        loop_of(max(phase.taps, 1), dy, moved, y=taps, moved_y=back)
        for phase, moved, back in (
            (horizontal, Delta(columns=horizontal.ahead), Delta(columns=-horizontal.every)),
            (vertical, Delta(rows=vertical.ahead), Delta(rows=-vertical.every)),
        )
    ]
    nobody = horizontal.taps == 0 or vertical.taps == 0
    for begin, end in spans(horizontal.count):
        source = dy.source(vertical.window, horizontal.window + begin)
        op = nest(
            [replace(columns, count=end - begin), *positions],
            reduced,
            replace(source, y_limit=0) if nobody else source,
            dx.target(vertical.first, horizontal.first + begin * across),
            taps.source(0 if nobody else vertical.tap, 0 if nobody else horizontal.tap),
            factor=Factor.Y,
            # An empty sum must be +0.
            initial=Initial.CONSTANT,
        )
        yield Step(op, "dy", "dx", "weight")


@made_once
def depthwise_weight(
    name: str, window: Pool, x: Tensor, dy: Tensor, dw: Tensor, region: Region
) -> VectorKernel:
    """Compute `dw`: each tap gets the products of its pixels and `dy`, added up over windows.

    Parameters and errors are those of `depthwise`.
    """
    _check(window, x, dw, dy)
    (down, across), (top, left) = window.stride, window.pad[:2]
    high, wide = window.kernel

    def steps(tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        image, given = views["x"], views["dy"]
        is_first = tile.images[0] == 0 and tile.rows[0] == 0
        target = "dw" if is_first else "part"
        # What is added on chip lies as what is stored.
        taps = views["dw"]
        by_channel = Delta(channels=LANES)
        positions = [
            loop_of(wide, image, Delta(columns=window.dilation[1]), taps, Delta(columns=1)),
            loop_of(high, image, Delta(rows=window.dilation[0]), taps, Delta(rows=1)),
            loop_of(tile.groups, image, by_channel, taps, by_channel, given, by_channel),
        ]
        reduced = [
            loop_of(count, image, moved, y=given, moved_y=own)
            for count, moved, own in (
                (given.limits[1], Delta(columns=across), Delta(columns=1)),
                (tile.num_rows, Delta(rows=down), Delta(rows=1)),
                (tile.num_images, Delta(images=1), Delta(images=1)),
            )
        ]
        row = tile.rows[0]
        op = nest(
            positions,
            reduced,
            image.source(row * down - top, -left),
            taps.target(0, 0),
            given.source(row, 0),
            factor=Factor.Y,
            # A tap that meets only padding gets +0.
            initial=Initial.CONSTANT,
        )
        yield Step(op, "x", target, "dy")
        if not is_first:
            each = [
                loop_of(count, taps, moved, taps, moved, taps, moved)
                for count, moved in (
                    (wide, Delta(columns=1)),
                    (high, Delta(rows=1)),
                    (tile.groups, by_channel),
                )
            ]
            add = nest(
                each, [], taps.source(0, 0), taps.target(0, 0), taps.source(0, 0),
                addend=Addend.Y,
            )  # fmt: skip
            yield Step(add, "dw", "dw", "part")

    return spatial_kernel(
        name,
        region,
        "dy",
        {"dy": dy, "x": x},
        {},
        {"x": lambda rows: rows_of(window, rows, x)},
        steps,
        kept_of={"part": lambda images, depth: 4 * high * wide * -(-depth // LANES) * LANES + 128},
        small_targets={"dw": dw},
    )


def _check(window: Pool, x: Tensor, weight: Tensor, y: Tensor) -> None:
    """Refuse tensors whose shapes do not fit together."""
    window.check(x, y)
    expected = (1, *window.kernel, x.shape[-1])
    if weight.shape != expected:
        raise ValueError(f"weight {weight.name} must have shape {expected}, not {weight.shape}")
