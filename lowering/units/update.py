"""The kernels of the optimiser's update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.lowering.kernels import optimiser
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import (
    Scalar,
    StepOptions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fpgapipe.lowering.tiling.kernel import Kernel, Region


def update_kernel(
    options: StepOptions,
    tensors: Sequence[Tensor],
    region: Region,
    clip: Tensor | None = None,
    updated: Tensor | None = None,
    *,
    decays: bool = True,
) -> Kernel:
    """Kernel that updates some weights.

    Parameters
    ----------
    options : StepOptions
    tensors : sequence of Tensor
        The weights, their gradients, momentum and second moments, in the order of `SUFFIXES`, all
        of one size; the second moments matter for Adam and AdamW only.
    region : Region
    clip : Tensor, optional
        Factor of the gradients, 16 copies of it.
    updated : Tensor, optional
        Where the updated weights go, if not in the place of the weights; for SGD only.
    decays : bool
        Whether the weight decay applies to them.
    """
    weights, gradient, momentum, second = tensors
    decay = Constant(register=Scalar.WEIGHT_DECAY) if decays else None
    if options.has_second_moment:
        decoupled = options.optimiser == "adamw"
        adam = optimiser.Adam(
            Constant(register=Scalar.STEP_SIZE),
            Constant(register=Scalar.INVERSE_CORRECTION),
            Constant(register=Scalar.KEPT_SHARE) if decoupled and decays else Constant(1.0),
            options.betas,
            options.epsilon,
            None if decoupled else decay,
        )
        moments = (momentum, second)
        return optimiser.adam("update", adam, weights, gradient, moments, region, clip=clip)
    sgd = optimiser.Sgd(
        Constant(register=Scalar.LEARNING_RATE), Constant(register=Scalar.MOMENTUM), decay
    )
    return optimiser.sgd(
        "update", sgd, weights, gradient, region, velocity=momentum, clip=clip, updated=updated
    )
