"""Volumes as images whose channels are those of several planes, and the transposed of that.

A convolution with three axes is one with two axes on the planes of the result: each plane's image
has the channels of all planes that its taps read. Volumes are ``batch x planes x positions x
channels``; images are ``batch x result planes x positions x (groups x taps x channels of a
group)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Addend, Source, Target, VectorOp
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels.parts import Rows, copy_rows, zero_rows
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.tiling.elementwise import MANY_ELEMENTS, flat_tile
from fpgapipe.lowering.tiling.kernel import Buffer, Move, Piece, Step, VectorKernel, room_of
from fpgapipe.lowering.tiling.once import made_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.lowering.tiling.kernel import Region, Tensor


@dataclass(frozen=True)
class Depth:
    """The first axis of a window of three axes, and the sizes of what it is applied to.

    Parameters
    ----------
    batch, planes, results : int
        Number of volumes, planes of each, and planes of the result.
    positions, channels, groups : int
        Positions of a plane, channels of a position, and groups of these.
    taps, stride, dilation, before : int
        Number of taps, distances of windows and of taps, and planes of padding in front.
    """

    batch: int
    planes: int
    results: int
    positions: int
    channels: int
    groups: int
    taps: int
    stride: int
    dilation: int
    before: int

    @property
    def width(self) -> int:
        """Channels of an image."""
        return self.taps * self.channels

    @property
    def own(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    def column(self, group: int, tap: int) -> int:
        """First channel of a tap in the images."""
        return (group * self.taps + tap) * self.own

    def plane(self, result: int, tap: int) -> int | None:
        """The plane that a tap reads; None if it is padding."""
        found = result * self.stride + tap * self.dilation - self.before
        return found if 0 <= found < self.planes else None

    def readers(self, plane: int) -> list[tuple[int, int]]:
        """Planes of the result, with the tap by which each reads a plane."""
        return [
            (result, tap)
            for tap in range(self.taps)
            for result in range(self.results)
            if self.plane(result, tap) == plane
        ]


def unfold_depth(
    name: str, depth: Depth, x: Tensor, images: Tensor, region: Region
) -> Iterator[VectorKernel]:
    """Copy the planes that each plane of the result reads to the channels of its image."""
    own, size = depth.own, depth.positions
    for volume in range(depth.batch):
        for tap in range(depth.taps):
            for group in range(depth.groups):
                column = depth.column(group, tap)
                for first, end, plane in _spans(depth, tap):
                    rows = (end - first) * size, own
                    to = (volume * depth.results + first) * size * depth.width + column
                    written = Rows(to, depth.width)
                    if plane is None:
                        yield zero_rows(f"{name}.zeros", images, rows, written, region)
                        continue
                    begin = (volume * depth.planes + plane) * size * depth.channels
                    read = Rows(begin + group * own, depth.channels)
                    yield copy_rows(name, x, images, rows, read, written, region)


def _spans(depth: Depth, tap: int) -> list[tuple[int, int, int | None]]:
    """Planes of the result whose planes follow one another, or are padding: from, to, plane."""
    found: list[tuple[int, int, int | None]] = []
    for result in range(depth.results):
        plane = depth.plane(result, tap)
        if found:
            first, _, begin = found[-1]
            if plane == (None if begin is None else begin + result - first):
                found[-1] = first, result + 1, begin
                continue
        found.append((result, result + 1, plane))
    return found


@made_once
def fold_depth(name: str, depth: Depth, images: Tensor, x: Tensor, region: Region) -> VectorKernel:
    """Add up, for each plane of the volumes, what the images have of it, in FP32.

    Raises
    ------
    ValueError
        If the region is too small for a position.
    """
    readers = [depth.readers(plane) for plane in range(depth.planes)]
    most = max(map(len, readers))

    def buffers(rows: int) -> dict[str, Buffer]:
        found = {
            f"images{number}": Buffer(rows * depth.width * images.element_bytes + WORD_BYTES)
            for number in range(most)
        }
        found["x"] = Buffer(rows * depth.channels * x.element_bytes + WORD_BYTES)
        if most > 2:
            found["sums"] = Buffer(4 * rows * padded(depth.own), kept=True)
        return found

    rows = min(depth.positions, max(MANY_ELEMENTS // depth.width, 1))
    while rows > 1 and room_of(buffers(rows)) > region.size_bytes:
        rows = -(-rows // 2)
    pieces = []
    for volume in range(depth.batch):
        for plane, given in enumerate(readers):
            for first in range(0, depth.positions, rows):
                count = min(rows, depth.positions - first)
                begin = (volume * depth.planes + plane) * depth.positions + first
                target = flat_tile(x, begin * depth.channels, count * depth.channels)
                loads, shifts = [], []
                for number, (result, _) in enumerate(given):
                    at = (volume * depth.results + result) * depth.positions + first
                    tile = flat_tile(images, at * depth.width, count * depth.width)
                    loads.append(Move(tile, f"images{number}"))
                    shifts.append(tile.shift)
                steps = [
                    step
                    for group in range(depth.groups)
                    for step in _sums(
                        depth, group, [tap for _, tap in given], shifts, target.shift, count,
                        images, x,
                    )
                ]  # fmt: skip
                pieces.append(Piece(tuple(steps), tuple(loads), (Move(target, "x"),)))
    return VectorKernel(name, buffers(rows), tuple(pieces), region)


def _sums(
    depth: Depth,
    group: int,
    taps: list[int],
    shifts: list[int],
    target: int,
    count: int,
    images: Tensor,
    x: Tensor,
) -> Iterator[Step]:
    """Instructions that add up the parts of a group of channels."""
    counts = (-(-depth.own // LANES), count)
    lanes: dict[str, Any] = {"u_steps": (LANES,), "u_limit": depth.own}
    element = x.element_bytes
    result = Target(
        target + group * depth.own * element,
        (LANES * element, depth.channels * element),
        format=Format.of(x.format),
        **lanes,
    )
    if not taps:
        yield Step(VectorOp(counts, Source(target, u_limit=0), result), "x", "x")
        return
    wide = images.element_bytes

    def part(number: int) -> Source:
        return Source(
            shifts[number] + depth.column(group, taps[number]) * wide,
            (LANES * wide, depth.width * wide),
            format=Format.of(images.format),
            **lanes,
        )

    if len(taps) == 1:
        yield Step(VectorOp(counts, part(0), result), "images0", "x")
        return
    pitch = 4 * padded(depth.own)
    for number in range(1, len(taps)):
        last = number == len(taps) - 1
        given = part(0)
        if number > 1:
            given = Source(0, (4 * LANES, pitch), format=Format.of(FP32), **lanes)
        to = result if last else Target(0, (4 * LANES, pitch), **lanes)
        op = VectorOp(counts, given, to, y=part(number), addend=Addend.Y)
        source = "images0" if number == 1 else "sums"
        yield Step(op, source, "x" if last else "sums", f"images{number}")
