"""The kernels of the optimiser's update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Constant
from fpgapipe.lowering.kernels import optimiser
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import (
    GRADIENTS,
    NORM,
    SUFFIXES,
    Scalar,
    StepOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.lowering.tiling.kernel import Kernel, Region


def update_kernels(
    options: StepOptions, elements: int, region: Region, declare: Callable[[Tensor], Tensor]
) -> list[Kernel]:
    """Kernels that update all weights whose gradients are kept.

    Parameters
    ----------
    options : StepOptions
    elements : int
        Elements of all these gradients together.
    region : Region
        Part of the scratchpad that they may use.
    declare : callable
        Called with each further tensor that needs a place in memory; returns it.
    """
    size = (elements,)
    tensors = tuple(Tensor(name, size) for name in SUFFIXES)
    found: list[Kernel] = []
    clip = None
    if options.clips:
        clip, norm = (declare(Tensor(name, (LANES,))) for name in ("clip", NORM))
        limit = Constant(register=Scalar.MAX_NORM)
        found.append(
            optimiser.clip_coefficient(
                "clip", [Tensor(GRADIENTS, size)], clip, region, max_norm=limit, norm=norm
            )
        )
    if elements:
        found.append(update_kernel(options, tensors, region, clip))
    return found


def update_kernel(
    options: StepOptions,
    tensors: Sequence[Tensor],
    region: Region,
    clip: Tensor | None = None,
    updated: Tensor | None = None,
) -> Kernel:
    """Kernel that updates some weights.

    Parameters
    ----------
    options : StepOptions
    tensors : sequence of Tensor
        The weights, their gradients, momentum and second moments, in the order of `SUFFIXES`, all
        of one size; the second moments matter for Adam only.
    region : Region
    clip : Tensor, optional
        Factor of the gradients, 16 copies of it.
    updated : Tensor, optional
        Where the updated weights go, if not in the place of the weights; for SGD only.
    """
    weights, gradient, momentum, second = tensors
    decay = Constant(register=Scalar.WEIGHT_DECAY)
    if options.optimiser == "adam":
        adam = optimiser.Adam(
            Constant(register=Scalar.STEP_SIZE),
            Constant(register=Scalar.INVERSE_CORRECTION),
            weight_decay=decay,
        )
        moments = (momentum, second)
        return optimiser.adam("update", adam, weights, gradient, moments, region, clip=clip)
    sgd = optimiser.Sgd(
        Constant(register=Scalar.LEARNING_RATE), Constant(register=Scalar.MOMENTUM), decay
    )
    return optimiser.sgd(
        "update", sgd, weights, gradient, region, velocity=momentum, clip=clip, updated=updated
    )
