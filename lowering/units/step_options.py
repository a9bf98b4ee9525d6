"""Options of a training step besides its network, and the registers that a host sets for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, ElementFormat
from fpgapipe.lowering.kernels.optimiser import adam_numbers

PARAMETERS, GRADIENTS, MOMENTUM, SECOND_MOMENT = "parameters", "gradients", "momenta", "squares"
"""Tensors that hold these values of all layers together, so that one kernel updates them all.

The second moments are Adam's.
"""

SUFFIXES = {PARAMETERS: "", GRADIENTS: ".gradient", MOMENTUM: ".momentum", SECOND_MOMENT: ".square"}
"""Suffix that a parameter's name has in each of these tensors."""

UPDATE = "update"
"""Layer of the update's kernels."""

NORM = "gradient norm"
"""Tensor of the norm of the gradients, 16 copies of it, if a step clips gradients."""


class Scalar(IntEnum):
    """Scalar registers that a step's program reads; a host may set them anew for each step."""

    LEARNING_RATE = 0
    MOMENTUM = 1
    WEIGHT_DECAY = 2
    MAX_NORM = 3
    STEP_SIZE = 4
    INVERSE_CORRECTION = 5
    RANDOM_SEED = 14
    RANDOM_STEP = 15


def scalar_bits(
    *,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    max_norm: float = 1.0,
    seed: int = 0,
    step: int = 0,
) -> list[int]:
    """Contents of the scalar registers in a step.

    Parameters
    ----------
    learning_rate, momentum, weight_decay, max_norm : float
        Hyperparameters; the momentum is that of SGD, and `max_norm` matters only if the step clips.
    seed : int
        Seed of the random numbers.
    step : int
        Number of the step, from 0; random numbers and Adam's bias corrections depend on it.
    """
    bits = [0] * NUM_SCALARS
    step_size, correction, _ = adam_numbers(step + 1, learning_rate)
    for register, value in (
        (Scalar.LEARNING_RATE, learning_rate),
        (Scalar.MOMENTUM, momentum),
        (Scalar.WEIGHT_DECAY, weight_decay),
        (Scalar.MAX_NORM, max_norm),
        (Scalar.STEP_SIZE, step_size),
        (Scalar.INVERSE_CORRECTION, correction),
    ):
        bits[register] = int(np.float32(value).view(np.uint32))
    bits[Scalar.RANDOM_SEED] = seed & 0xFFFFFFFF
    bits[Scalar.RANDOM_STEP] = step & 0xFFFFFFFF
    return bits


@dataclass(frozen=True)
class StepOptions:
    """Options of a training step, other than its network.

    Attributes
    ----------
    activations : ElementFormat
        Format of activations and their gradients in memory, BF16 or FP32.
    train : bool
        Whether the step has a loss, a backward pass and an update. Otherwise it is only the forward
        pass of inference.
    optimiser : str
        ``sgd``, which has momentum, or ``adam``.
    clips : bool
        Whether all gradients together are scaled down to a largest norm.
    late_gradients : bool
        Whether weight gradients may be computed once for all micro-batches, where this takes less
        time (`lowering.units.late_gradients`). The results are the same.
    apart : bool
        Whether every tensor keeps a place of its own, so that all can be read after a step.
        Otherwise tensors share memory when they are not needed at the same time.
    rounded_weights : bool
        Whether products may read copies of weights that are rounded once for all micro-batches,
        where this takes less time (`lowering.units.rounded_weights`). The results are the same.
    """

    activations: ElementFormat = BF16
    train: bool = True
    optimiser: Literal["sgd", "adam"] = "sgd"
    clips: bool = False
    late_gradients: bool = True
    apart: bool = False
    rounded_weights: bool = True

    def __post_init__(self) -> None:
        if self.activations not in (BF16, FP32):
            raise ValueError(f"step activations must be BF16 or FP32, not {self.activations!r}")
        if self.optimiser not in ("sgd", "adam"):
            raise ValueError(f"step optimiser must be sgd or adam, not {self.optimiser!r}")
