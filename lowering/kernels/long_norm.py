"""Normalisation of rows that have no room on chip, forward and backward, in FP32.

The kernels go over the matrix in memory several times: they are sums over the rows, and functions
of all elements and one number for each row. :mod:`fpgapipe.lowering.kernels.layer_norm` says what
they compute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Addend, Constant, Factor
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.lowering.kernels.broadcast import broadcast, sum_of_repeated
from fpgapipe.lowering.tiling.elementwise import FlatStep, flat_kernel

if TYPE_CHECKING:
    from fpgapipe.lowering.tiling.kernel import Region, Tensor, VectorKernel


def long_layer_norm(
    name: str,
    x: Tensor,
    y: Tensor,
    mean: Tensor | None,
    deviation: Tensor,
    work: Tensor,
    region: Region,
    *,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> list[VectorKernel]:
    """Normalise each row, then scale and shift its elements.

    Parameters
    ----------
    name : str
    x, y : Tensor
        Matrices.
    mean, deviation : Tensor
        FP32 tensors of one number for each row, which are written: the mean, if it is subtracted,
        and one over the standard deviation.
    work : Tensor
        FP32 matrix, which is overwritten.
    region, gamma, beta, epsilon
        As for `layer_norm`.
    """
    width = x.shape[-1]
    each = _column(deviation)
    last = [("mul", each), *(("mul", _row(t)) for t in (gamma,) if t)]
    last += [("add", _row(t)) for t in (beta,) if t]
    found = []
    given = x
    if mean:
        sums, given = _column(mean), work
        found = [
            sum_of_repeated(f"{name}.sum", x, None, each, region, negate=False),
            _scaled(f"{name}.mean", each, sums, 1 / width, region),
            broadcast(f"{name}.centred", "sub", x, sums, work, region),
        ]
    found += [
        sum_of_repeated(f"{name}.squares", given, given, each, region, negate=False),
        _inverse(f"{name}.deviation", each, width, epsilon, region),
    ]
    for number, (function, other) in enumerate(last, 1):
        target = y if number == len(last) else work
        found.append(broadcast(f"{name}.{number}", function, given, other, target, region))
        given = work
    return found


def long_layer_norm_gradient(
    name: str,
    x: Tensor,
    dy: Tensor,
    normalised: Tensor,
    dx: Tensor,
    mean: Tensor | None,
    deviation: Tensor,
    work: tuple[Tensor, Tensor],
    number: Tensor,
    region: Region,
    *,
    gamma: Tensor | None = None,
) -> list[VectorKernel]:
    """Compute the gradient of the rows, and write the normalised rows.

    Parameters
    ----------
    name : str
    x, dy, normalised, dx : Tensor
        Matrices; the last two are written, the normalised one in FP32.
    mean, deviation : Tensor
        What the forward pass has written.
    work : (Tensor, Tensor)
        FP32 matrices, which are overwritten; the second only if there is a scale.
    number : Tensor
        FP32 tensor of one number for each row, which is overwritten.
    region, gamma
        As for `layer_norm_gradient`.
    """
    width = x.shape[-1]
    each, deviations = _column(number), _column(deviation)
    part, scaled = work
    given = scaled if gamma else dy
    centred, found = x, []
    if mean:
        centred = normalised
        found.append(broadcast(f"{name}.centred", "sub", x, _column(mean), centred, region))
    found.append(broadcast(f"{name}.normalised", "mul", centred, deviations, normalised, region))
    if gamma:
        found.append(broadcast(f"{name}.given", "mul", dy, _row(gamma), scaled, region))
    found += [
        sum_of_repeated(f"{name}.products", given, normalised, each, region, negate=False),
        _scaled(f"{name}.share", each, each, 1 / width, region),
        broadcast(f"{name}.shares", "mul", normalised, each, part, region),
        broadcast(f"{name}.rest", "sub", given, part, part, region),
    ]
    if mean:
        found += [
            sum_of_repeated(f"{name}.sum", given, None, each, region, negate=False),
            _scaled(f"{name}.shift", each, each, 1 / width, region),
            broadcast(f"{name}.shifted", "sub", part, each, part, region),
        ]
    return [*found, broadcast(f"{name}.dx", "mul", part, deviations, dx, region)]


def _column(numbers: Tensor) -> Tensor:
    """One number for each row, as a matrix."""
    return replace(numbers, shape=(numbers.elements, 1))


def _row(numbers: Tensor) -> Tensor:
    """One number for each column, as a matrix."""
    return replace(numbers, shape=(1, numbers.elements))


def _scaled(name: str, x: Tensor, y: Tensor, factor: float, region: Region) -> VectorKernel:
    settings = {"factor": Factor.CONSTANT, "constants": (Constant(), Constant(factor))}
    return flat_kernel(name, {"x": x}, {"y": y}, [FlatStep("x", "y", None, settings)], region)


def _inverse(name: str, sums: Tensor, width: int, epsilon: float, region: Region) -> VectorKernel:
    """One over the standard deviations, in place of the sums of squares."""
    settings = {
        "addend": Addend.CONSTANT,
        "factor": Factor.CONSTANT,
        "constants": (Constant(width * epsilon), Constant(1 / width)),
        "function": Function.RSQRT,
    }
    steps = [FlatStep("x", "y", None, settings)]
    return flat_kernel(name, {"x": sums}, {"y": sums}, steps, region)
