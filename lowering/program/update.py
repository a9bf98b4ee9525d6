"""The kernels of the optimiser's update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.vector_op import LANES, Constant
from fpgapipe.lowering.kernels import optimiser
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.step_options import NORM, SUFFIXES, Scalar, StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.lowering.tiling.kernel import Kernel, Region


def update_kernels(
    options: StepOptions, elements: int, region: Region, declare: Callable[[Tensor], Tensor]
) -> list[Kernel]:
    """Kernels that update all weights from the sums of their gradients.

    Parameters
    ----------
    options : StepOptions
    elements : int
        Elements of all trainable parameters together.
    region : Region
        Part of the scratchpad that they may use.
    declare : callable
        Called with each further tensor that needs a place in memory; returns it.
    """
    size = (elements,)
    weights, gradient, momentum, second = (Tensor(name, size) for name in SUFFIXES)
    found: list[Kernel] = []
    clip = None
    if options.clips:
        clip, norm = (declare(Tensor(name, (LANES,))) for name in ("clip", NORM))
        limit = Constant(register=Scalar.MAX_NORM)
        found.append(
            optimiser.clip_coefficient("clip", [gradient], clip, region, max_norm=limit, norm=norm)
        )
    decay = Constant(register=Scalar.WEIGHT_DECAY)
    if options.optimiser == "adam":
        adam = optimiser.Adam(
            Constant(register=Scalar.STEP_SIZE),
            Constant(register=Scalar.INVERSE_CORRECTION),
            weight_decay=decay,
        )
        moments = (momentum, second)
        found.append(optimiser.adam("update", adam, weights, gradient, moments, region, clip=clip))
        return found
    sgd = optimiser.Sgd(
        Constant(register=Scalar.LEARNING_RATE), Constant(register=Scalar.MOMENTUM), decay
    )
    found.append(
        optimiser.sgd("update", sgd, weights, gradient, region, velocity=momentum, clip=clip)
    )
    return found
