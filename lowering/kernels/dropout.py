"""Dropout: elements are kept by chance; the factors of many elements can be drawn together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    Choice,
    Constant,
    Factor,
)
from fpgapipe.hw.hls_models.numerics.threefry import lane_bits
from fpgapipe.lowering.tiling.draw import kept_of
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel
from fpgapipe.lowering.tiling.once import made_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.tiling.draw import Draw
    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel

_NONE = Constant(0.0)


@made_once
def drop(
    name: str,
    x: Tensor,
    y: Tensor,
    region: Region,
    draw: Draw,
) -> VectorKernel:
    """Apply dropout: keep an element with probability ``1 - rate``, and divide it by that.

    The gradient is the same operation on `dy`.
    """
    settings = {
        "factor": Factor.CONSTANT,
        "constants": (_NONE, Constant(draw.factor)),
        **draw.settings(),
    }
    return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, settings)], region)


@made_once
def draw_factors(
    name: str,
    x: Tensor,
    factors: Tensor,
    region: Region,
    draw: Draw,
) -> VectorKernel:
    """Draw factors as those by which `drop` multiplies.

    Parameters
    ----------
    name : str
    x : Tensor
        Any tensor of as many elements or more: the vector engine reads while it draws.
    factors : Tensor
        FP32.
    region : Region
    draw : Draw
    """
    settings = {
        **draw.settings(),
        "constants": (_NONE, _NONE, _NONE, Constant(draw.factor)),
        "then": Choice.CONSTANT,
    }
    read = replace(x, shape=factors.shape)
    step = FlatStep("x", "factors", None, settings)
    return flat_kernel(name, {"x": read}, {"factors": factors}, [step], region)


def drop_factors(
    elements: int, rate: float, stream: int, key: Sequence[int], *, first: int = 0
) -> NDArray[np.float32]:
    """Compute the factor by which `drop` multiplies each element.

    Parameters
    ----------
    elements : int
    rate, stream, first
        See `Draw`.
    key : sequence of int
        Contents of the two scalar registers.
    """
    kept = kept_of(rate)
    bits = lane_bits((key[0], key[1]), (stream << 36) + first, -(-elements // LANES)).reshape(-1)
    factors = np.where(bits[:elements] < kept, np.float32((1 << 16) / kept), np.float32(0))
    return factors.astype(np.float32)
