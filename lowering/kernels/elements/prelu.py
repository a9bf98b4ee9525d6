"""The parametric ReLU, whose slopes are learned: one for each channel or one for all, both ways."""

from __future__ import annotations

from typing import Any

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    VECTOR_BYTES,
    Choice,
    Factor,
    Left,
    Outcome,
    Right,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.lowering.kernels.activation import positions_by_channels
from fpgapipe.lowering.tiling.channels import EachStep, SumStep, channel_kernel
from fpgapipe.lowering.tiling.elementwise import flat_tile
from fpgapipe.lowering.tiling.kernel import (
    Buffer,
    Move,
    Piece,
    Region,
    Step,
    Tensor,
    VectorKernel,
)
from fpgapipe.lowering.tiling.nest import VectorLoop, nest
from fpgapipe.lowering.tiling.once import made_once

ROWS = 2
"""Rows of the array of slopes; the factor of an instruction is its second coefficient."""


@made_once
def spread_slopes(name: str, slopes: Tensor, rows: Tensor, region: Region) -> VectorKernel:
    """Write the slopes to each row of an array.

    Parameters
    ----------
    name : str
    slopes : Tensor
        One number for each channel, or one for all.
    rows : Tensor
        `ROWS` rows of one number for each channel, padded to whole vectors.
    region : Region

    Raises
    ------
    ValueError
        If the region is too small.
    """
    wide = rows.shape[1]
    one = slopes.elements == 1
    op = VectorOp(
        counts=(wide // LANES, ROWS),
        x=Source(0, broadcast=True)
        if one
        else Source(0, (VECTOR_BYTES,), u_steps=(LANES,), u_limit=slopes.elements),
        target=Target(0, (VECTOR_BYTES, 4 * wide)),
    )
    return _small(name, Step(op, "slopes", "rows"), {"slopes": slopes}, {"rows": rows}, region)


def prelu(name: str, x: Tensor, rows: Tensor, y: Tensor, region: Region) -> VectorKernel:
    """Compute ``y = x`` where `x` is above 0, else `x` times the slope of its channel.

    Parameters
    ----------
    name : str
    x : Tensor
        Its last axis has the channels.
    rows : Tensor
        The slopes as of `spread_slopes`.
    y, region
    """
    step = EachStep("x", "y", None, "rows", _sloped(Left.X))
    return channel_kernel(
        name,
        positions_by_channels(x),
        region,
        sources={"x": x},
        steps=[step],
        targets={"y": y},
        small_sources={"rows": rows},
    )


def prelu_gradient(
    name: str,
    dy: Tensor,
    x: Tensor,
    rows: Tensor,
    dx: Tensor,
    region: Region,
    *,
    slopes: Tensor | None = None,
) -> VectorKernel:
    """Compute the gradient of `x` and, of the slope of each channel, `slopes`.

    Parameters
    ----------
    name : str
    dy, x, rows, dx, region
        See `prelu`.
    slopes : Tensor, optional
        FP32 tensor of one number for each channel.
    """
    steps: list[EachStep | SumStep] = [EachStep("dy", "dx", "x", "rows", _sloped(Left.Y))]
    if slopes is not None:
        settings = {
            "factor": Factor.Y,
            "test": (Left.X, Outcome.GREATER, Right.CONSTANT),
            "then": Choice.ZERO,
            "otherwise": Choice.S,
        }
        steps.append(SumStep("x", "slopes", y="dy", settings=settings))
    return channel_kernel(
        name,
        positions_by_channels(x),
        region,
        sources={"dy": dy, "x": x},
        steps=steps,
        targets={"dx": dx},
        small_sources={"rows": rows},
        small_targets={"slopes": slopes} if slopes is not None else {},
    )


@made_once
def total(name: str, numbers: Tensor, result: Tensor, region: Region) -> VectorKernel:
    """Add up FP32 numbers, one after the other, to a single one.

    Raises
    ------
    ValueError
        If the region is too small for the numbers.
    """
    loop = VectorLoop(numbers.elements, (4, 0, 0))
    op = nest([], [loop], Source(0, broadcast=True), Target(0, u_limit=1))
    step = Step(op, "numbers", "result")
    return _small(name, step, {"numbers": numbers}, {"result": result}, region)


def _sloped(tested: Left) -> dict[str, Any]:
    """Settings that give X where what is tested is above 0, and X times the slope elsewhere."""
    return {
        "factor": Factor.COEFFICIENT,
        "test": (tested, Outcome.GREATER, Right.CONSTANT),
        "then": Choice.X,
        "otherwise": Choice.S,
    }


def _small(
    name: str,
    step: Step,
    sources: dict[str, Tensor],
    targets: dict[str, Tensor],
    region: Region,
) -> VectorKernel:
    """A kernel of one instruction on tensors that fit the scratchpad as a whole."""
    buffers = {
        each: Buffer(-(-tensor.size_bytes // VECTOR_BYTES) * VECTOR_BYTES, kept=True)
        for each, tensor in {**sources, **targets}.items()
    }
    loads, stores = (
        tuple(Move(flat_tile(tensor, 0, tensor.elements), each) for each, tensor in tensors.items())
        for tensors in (sources, targets)
    )
    return VectorKernel(name, buffers, (Piece((step,), loads, stores),), region)
