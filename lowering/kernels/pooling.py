"""Max and average pooling, forward and backward.

Tensors are ``batch x rows x columns x channels``. A vector of the result holds channels of one
position; loops of the instruction reduce its window. Input gradients are computed in the opposite
direction, like those of convolutions: each pixel adds up the windows that contain it, in order.
Therefore the division of tensors into pieces changes no bit of a result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Choice,
    Constant,
    Factor,
    Initial,
    Left,
    Outcome,
    Right,
    Source,
    Target,
)
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.tiling.kernel import Region, Step, Tensor, VectorKernel
from fpgapipe.lowering.tiling.nest import VectorLoop, nest, spans
from fpgapipe.lowering.tiling.once import made_once
from fpgapipe.lowering.tiling.spatial import (
    Delta,
    Range,
    SpatialTile,
    View,
    loop_of,
    spatial_kernel,
)

MOST_TAPS = 256
"""Largest number of taps of a window that the counter of an instruction can distinguish."""

_NONE = Constant(0.0)


@dataclass(frozen=True)
class Pool:
    """A sliding window.

    Parameters
    ----------
    kernel, stride : (int, int)
        Rows and columns of the window, and of its steps.
    pad : (int, int, int, int)
        Rows and columns of padding around the image: top, left, bottom, right.
    counted : (int, int, int, int), optional
        Padding that counts in the number of pixels by which an average divides; all padding if left
        out. With PyTorch's ``ceil_mode``, windows reach further down and to the right than they
        count; without ``count_include_pad``, no padding counts.
    dilation : (int, int)
        Rows and columns from one tap to the next.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    counted: tuple[int, int, int, int] | None = None
    dilation: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if min(*self.kernel, *self.stride, *self.dilation) < 1:
            raise ValueError(
                "pool kernel, stride and dilation must be at least 1, not "
                f"{self.kernel}, {self.stride} and {self.dilation}"
            )
        if min(self.pad) < 0:
            raise ValueError(f"pool pad must be at least 0, not {self.pad}")

    @property
    def taps(self) -> int:
        """Number of pixels of a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first pixel of a window to the last."""
        down, across = (
            (taps - 1) * distance + 1
            for taps, distance in zip(self.kernel, self.dilation, strict=True)
        )
        return down, across

    def output(self, rows: int, columns: int) -> tuple[int, int]:
        """Number of rows and columns of the result."""
        top, left, bottom, right = self.pad
        return (
            (rows + top + bottom - self.reach[0]) // self.stride[0] + 1,
            (columns + left + right - self.reach[1]) // self.stride[1] + 1,
        )

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse tensors whose shapes do not fit together."""
        batch, rows, columns, channels = x.shape
        expected = (batch, *self.output(rows, columns), channels)
        if y.shape != expected:
            raise ValueError(f"pooled tensor {y.name} must have shape {expected}, not {y.shape}")

    def check_maximum(self) -> None:
        """Refuse a window that is too large for a maximum."""
        if self.taps > MOST_TAPS:
            raise ValueError(
                f"max pool window must have at most {MOST_TAPS} pixels, not {self.taps}"
            )


@made_once
def max_pool(
    name: str,
    pool: Pool,
    x: Tensor,
    y: Tensor,
    region: Region,
    *,
    index: Tensor | None = None,
) -> VectorKernel:
    """Take the largest element of each window; NaN counts as larger than all numbers.

    Parameters
    ----------
    name, pool, x, y, region
    index : Tensor, optional
        Tensor for the tap of each largest element, numbered row by row from 0. It is the first tap
        of several equal ones, or the last NaN. The tensor may be BF16.

    Raises
    ------
    ValueError
        If shapes do not agree, the window has more than `MOST_TAPS` pixels, or the region is too
        small.
    """
    pool.check_maximum()
    targets = {"y": y} | ({"index": index} if index else {})
    for target in targets.values():
        pool.check(x, target)

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        for target in targets:
            yield from _windows(
                pool, spatial_tile, views, target, takes_maximum=True, gives_index=target == "index"
            )

    return spatial_kernel(
        name, region, "y", {"x": x}, targets, {"x": lambda rows: rows_of(pool, rows, x)}, steps
    )


@made_once
def max_pool_gradient(
    name: str, pool: Pool, dy: Tensor, index: Tensor, dx: Tensor, region: Region
) -> VectorKernel:
    """Compute `dx`: each pixel gets the sum of `dy` of the windows whose largest element it was.

    Parameters
    ----------
    name, pool
        See `max_pool`, also for `index`.
    dy, index, dx, region

    Raises
    ------
    ValueError
        In the same cases as for `max_pool`.
    """
    pool.check_maximum()
    chosen = {
        "test": (Left.Y, Outcome.EQUAL, Right.COUNTER),
        "then": Choice.X,
        "otherwise": Choice.ZERO,
    }
    return _gradient(name, pool, {"dy": dy, "index": index}, dx, region, "index", chosen)


@made_once
def average_pool(name: str, pool: Pool, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Average each window.

    Raises
    ------
    ValueError
        If shapes do not agree, or the region is too small.
    """
    pool.check(x, y)
    table = _Table.of(pool, x, y)

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        if table:
            yield from table.steps(spatial_tile)
            views = {**views, "table": table.view}
        divisor = "table" if table else None
        yield from _windows(pool, spatial_tile, views, "y", divisor, **_share(pool, table))

    return spatial_kernel(
        name,
        region,
        "y",
        {"x": x},
        {"y": y},
        {"x": lambda rows: rows_of(pool, rows, x)},
        steps,
        kept={"table": table.size_bytes} if table else {},
    )


@made_once
def average_pool_gradient(
    name: str, pool: Pool, dy: Tensor, dx: Tensor, region: Region
) -> VectorKernel:
    """Compute `dx`: each pixel gets its share of `dy` of all windows that contain it.

    Errors are those of `average_pool`.
    """
    table = _Table.of(pool, dx, dy)
    return _gradient(
        name,
        pool,
        {"dy": dy},
        dx,
        region,
        "table" if table else None,
        _share(pool, table),
        table,
    )


@made_once
def sum_pool(name: str, pool: Pool, x: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Add up each window.

    Errors are those of `average_pool`.
    """
    pool.check(x, y)

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        yield from _windows(pool, spatial_tile, views, "y")

    reads = {"x": lambda rows: rows_of(pool, rows, x)}
    return spatial_kernel(name, region, "y", {"x": x}, {"y": y}, reads, steps)


@made_once
def sum_pool_gradient(
    name: str, pool: Pool, dy: Tensor, dx: Tensor, region: Region
) -> VectorKernel:
    """Compute `dx`: each pixel gets `dy` of all windows that contain it.

    Errors are those of `average_pool`.
    """
    return _gradient(name, pool, {"dy": dy}, dx, region, None, {})


def rows_of(pool: Pool, rows: Range, x: Tensor) -> Range:
    """Rows of `x` that rows of windows contain."""
    first = rows[0] * pool.stride[0] - pool.pad[0]
    end = (rows[1] - 1) * pool.stride[0] - pool.pad[0] + pool.reach[0]
    return _within(first, end, x.shape[1])


def rows_of_windows(pool: Pool, rows: Range, dy: Tensor) -> Range:
    """Rows of windows that contain rows of pixels."""
    first = -((pool.reach[0] - 1 - rows[0] - pool.pad[0]) // pool.stride[0])
    end = (rows[1] - 1 + pool.pad[0]) // pool.stride[0] + 1
    return _within(first, end, dy.shape[1])


def _within(first: int, end: int, number: int) -> Range:
    """Clip a range to existing rows, but keep one row at least, so that a piece loads something."""
    first = min(max(first, 0), number - 1)
    return first, max(min(end, number), first + 1)


def _windows(
    pool: Pool,
    spatial_tile: SpatialTile,
    views: Mapping[str, View],
    target: str,
    y: str | None = None,
    **settings: Any,
) -> Iterator[Step]:
    """Instructions that reduce the windows of a tile of results; `y` is read per result."""
    x, out, other = views["x"], views[target], views[y] if y else None
    (down, across), (top, left) = pool.stride, pool.pad[:2]
    counts = (out.limits[1], spatial_tile.num_rows, spatial_tile.num_images, spatial_tile.groups)
    deltas = (
        (Delta(columns=across), Delta(columns=1)),
        (Delta(rows=down), Delta(rows=1)),
        (Delta(images=1), Delta(images=1)),
        (Delta(channels=LANES), Delta(channels=LANES)),
    )
    positions = [
        loop_of(count, x, moved, out, result, other, result)
        for count, (moved, result) in zip(counts, deltas, strict=True)
    ]
    taps = [
        loop_of(pool.kernel[1], x, Delta(columns=pool.dilation[1]), counter=1),
        loop_of(pool.kernel[0], x, Delta(rows=pool.dilation[0]), counter=pool.kernel[1]),
    ]
    row = spatial_tile.rows[0]
    for begin, end in spans(counts[0]):
        op = nest(
            [replace(positions[0], count=end - begin), *positions[1:]],
            taps,
            x.source(row * down - top, begin * across - left),
            out.target(row, begin),
            other.source(row, begin) if other else None,
            **settings,
        )
        yield Step(op, "x", target, y)


def _gradient(
    name: str,
    pool: Pool,
    sources: Mapping[str, Tensor],
    dx: Tensor,
    region: Region,
    y: str | None,
    settings: Mapping[str, Any],
    table: "_Table | None" = None,
) -> VectorKernel:
    """Build the kernel of an input gradient; `y` is read at the positions of `dy`."""
    for source in sources.values():
        pool.check(dx, source)

    def steps(spatial_tile: SpatialTile, views: Mapping[str, View]) -> Iterator[Step]:
        if table:
            yield from table.steps(spatial_tile)
            views = {**views, "table": table.view}
        across = phases_of(pool, 1, (0, dx.shape[2]))
        down = phases_of(pool, 0, spatial_tile.rows)
        # If every pixel is in exactly one window, phases can be iterations of a loop.
        whole = all(len(phases) == 1 and phases[0].together > 1 for phases in (across, down))
        if not whole:
            across = phases_of(pool, 1, (0, dx.shape[2]), apart=True)
            down = phases_of(pool, 0, spatial_tile.rows, apart=True)
        for vertical, horizontal in product(down, across):
            yield from _pixels(pool, spatial_tile, views, vertical, horizontal, y, settings)

    return spatial_kernel(
        name,
        region,
        "dx",
        sources,
        {"dx": dx},
        {each: lambda rows: rows_of_windows(pool, rows, sources["dy"]) for each in sources},
        steps,
        kept={"table": table.size_bytes} if table else {},
        multiple=pool.stride[0],
    )


@dataclass(frozen=True)
class Phase:
    """Pixels along an axis that are a stride apart, and the windows that contain them.

    Pixel ``i`` is tap ``t`` of window ``o`` if ``i + pad = stride * o + dilation * t``.

    Attributes
    ----------
    first, count : int
        First pixel, and number of pixels.
    taps : int
        Number of windows that contain each pixel.
    window, tap : int
        The first window that contains the first pixel, and which of its taps that pixel is.
    ahead, every : int
        Distance of the next window that contains a pixel, and by how much its tap is lower.
    together : int
        Number of phases that this one stands for; the tap of each is one more than of the last.
    """

    first: int
    count: int
    taps: int
    window: int
    tap: int
    ahead: int
    every: int
    together: int = 1


def phases_of(pool: Pool, axis: int, pixels: Range, *, apart: bool = False) -> list[Phase]:
    """Group pixels along an axis by the taps that they are in their windows."""
    kernel, stride, pad = pool.kernel[axis], pool.stride[axis], pool.pad[axis]
    dilation = pool.dilation[axis]
    every = stride // gcd(stride, dilation)
    ahead = every * dilation // stride
    begin, end = pixels
    aligned = dilation == 1 and (begin + pad) % stride == 0 and (end - begin) % stride == 0
    if kernel == stride and aligned and not apart:
        count, window = (end - begin) // stride, (begin + pad) // stride
        return [Phase(begin, count, 1, window, 0, ahead, every, stride)]
    found = []
    for first in range(begin, min(begin + stride, end)):
        taps = [tap for tap in range(kernel) if (first + pad - tap * dilation) % stride == 0]
        last = taps[-1] if taps else 0
        window = (first + pad - last * dilation) // stride
        count = -(-(end - first) // stride)
        found.append(Phase(first, count, len(taps), window, last, ahead, every))
    return found


def _pixels(
    pool: Pool,
    spatial_tile: SpatialTile,
    views: Mapping[str, View],
    vertical: Phase,
    horizontal: Phase,
    y: str | None,
    settings: Mapping[str, Any],
) -> Iterator[Step]:
    """Instructions for the pixels of a phase."""
    dy, dx, other = views["dy"], views["dx"], views[y] if y else None

    def loop(count: int, moved: Delta, result: Delta | None = None, counter: int = 0) -> VectorLoop:
        return loop_of(count, dy, moved, dx, result, other, moved, counter)

    (down, across), pitch = pool.stride, pool.kernel[1]
    columns = loop(horizontal.count, Delta(columns=1), Delta(columns=across))
    positions = [
        loop(vertical.count, Delta(rows=1), Delta(rows=down)),
        loop(spatial_tile.num_images, Delta(images=1), Delta(images=1)),
        loop(spatial_tile.groups, Delta(channels=LANES), Delta(channels=LANES)),
        loop(horizontal.together, Delta(), Delta(columns=1), 1),
        loop(vertical.together, Delta(), Delta(rows=1), pitch),
    ]
    # Windows are added in their order, in which the numbers of taps decrease.
    taps = [
        loop(max(horizontal.taps, 1), Delta(columns=horizontal.ahead), counter=-horizontal.every),
        loop(max(vertical.taps, 1), Delta(rows=vertical.ahead), counter=-vertical.every * pitch),
    ]
    reduced = [] if horizontal.together > 1 else taps
    nobody = horizontal.taps == 0 or vertical.taps == 0
    for begin, end in spans(horizontal.count) if reduced else [(0, horizontal.count)]:
        source = dy.source(vertical.window, horizontal.window + begin)
        op = nest(
            [replace(columns, count=end - begin), *positions],
            reduced,
            replace(source, y_limit=0) if nobody else source,
            dx.target(vertical.first, horizontal.first + begin * across),
            other.source(vertical.window, horizontal.window + begin) if other else None,
            counter=vertical.tap * pitch + horizontal.tap,
            # An empty sum must be +0, and so must a sum of -0.
            initial=Initial.CONSTANT,
            **settings,
        )
        yield Step(op, "dy", "dx", y)


def _share(pool: Pool, table: "_Table | None") -> dict[str, Any]:
    """Settings that divide by the number of pixels of a window."""
    if table:
        return {"factor": Factor.Y}
    return {"factor": Factor.CONSTANT, "constants": (_NONE, Constant(1 / pool.taps))}


@dataclass(frozen=True)
class _Table:
    """A table with 1 over the number of counted pixels of each window."""

    pool: Pool
    inputs: tuple[int, int]
    outputs: tuple[int, int]

    @classmethod
    def of(cls, pool: Pool, x: Tensor, y: Tensor) -> "_Table | None":
        """Return the table of a pooling, or None if all windows count the same number of pixels."""
        counted = pool.counted or pool.pad
        outputs = (y.shape[1], y.shape[2])
        ends = (
            (number - 1) * stride + kernel - pad
            for number, stride, kernel, pad in zip(
                outputs, pool.stride, pool.reach, pool.pad, strict=False
            )
        )
        inside = all(
            pad <= before and end <= size + behind
            for pad, before, behind, end, size in zip(
                pool.pad, counted[:2], counted[2:], ends, x.shape[1:3], strict=False
            )
        )
        return None if inside else cls(pool, (x.shape[1], x.shape[2]), outputs)

    @property
    def size_bytes(self) -> int:
        """Bytes of the table on chip."""
        return 4 * self.outputs[0] * self.outputs[1]

    @property
    def view(self) -> View:
        """View through which the table is read."""
        return View(0, (4, 4 * self.outputs[1], 0), FP32, LANES, self.outputs, broadcast=True)

    def steps(self, spatial_tile: SpatialTile) -> Iterator[Step]:
        """Instructions that compute the table before the first piece, by counting ones."""
        if not spatial_tile.is_first:
            return
        (down, across), (top, left) = self.pool.stride, self.pool.pad[:2]
        before, concurrent, below, behind = self.pool.counted or self.pool.pad
        rows, columns = self.inputs[0] + before + below, self.inputs[1] + concurrent + behind
        for begin, end in spans(self.outputs[1]):
            # Only the coordinates matter; the bytes that are read are the table's own first bytes.
            x = Source(
                0,
                y=before - top,
                u=(begin * across + concurrent - left) * LANES,
                y_limit=rows,
                u_limit=columns * LANES,
            )
            op = nest(
                [
                    VectorLoop(end - begin, (0, 0, across * LANES), target=(4, 0)),
                    VectorLoop(self.outputs[0], (0, down, 0), target=(4 * self.outputs[1], 0)),
                ],
                [
                    VectorLoop(self.pool.kernel[1], (0, 0, LANES * self.pool.dilation[1])),
                    VectorLoop(self.pool.kernel[0], (0, self.pool.dilation[0], 0)),
                ],
                x,
                Target(4 * begin, u_limit=1),
                otherwise=Choice.CONSTANT,
                constants=(_NONE, _NONE, _NONE, Constant(1.0)),
                function=Function.RECIPROCAL,
            )
            yield Step(op, "table", "table")
