"""Options of a training step besides its network, and the registers that a host sets for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, ElementFormat
from fpgapipe.lowering.kernels.optimiser import adam_numbers
from fpgapipe.network.losses import CROSS_ENTROPY, Loss, total_of
from fpgapipe.network.parameter_groups import matching, small_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

PARAMETERS, GRADIENTS, MOMENTUM, SECOND_MOMENT = "parameters", "gradients", "momenta", "squares"
"""Tensors that hold these values of all layers together, so that one kernel updates them all.

The second moments are Adam's.
"""

SUFFIXES = {PARAMETERS: "", GRADIENTS: ".gradient", MOMENTUM: ".momentum", SECOND_MOMENT: ".square"}
"""Suffix that a parameter's name has in each of these tensors."""

UPDATE = "update"
"""Layer of the update's kernels."""

NORM = "gradient norm"
"""Tensor of the norm of the gradients, 16 copies of it, if a step clips gradients; of stages, the
first has it."""


Optimiser = Literal["sgd", "adam", "adamw"]

OPTIMISERS: tuple[Optimiser, ...] = get_args(Optimiser)

MAX_EPSILON, MAX_NORM = 1.0, 1e30
"""Largest epsilon of Adam, and largest norm to which gradients are clipped."""


COUNTER_REGISTERS = 2
"""Registers of each output whose labels are counted; the first are those of `Scalar.LABELS`."""


class Scalar(IntEnum):
    """Scalar registers that a step's program reads; a host may set them anew for each step."""

    LEARNING_RATE = 0
    MOMENTUM = 1
    WEIGHT_DECAY = 2
    MAX_NORM = 3
    STEP_SIZE = 4
    INVERSE_CORRECTION = 5
    KEPT_SHARE = 6
    LABELS = 7
    MINUS_LABEL_SHARE = 8
    SECOND_LABELS = 9
    SECOND_MINUS_LABEL_SHARE = 10
    THIRD_LABELS = 11
    THIRD_MINUS_LABEL_SHARE = 12
    RANDOM_SEED = 14
    RANDOM_STEP = 15


def scalar_bits(
    *,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    max_norm: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    labels: int = 1,
    seed: int = 0,
    step: int = 0,
) -> list[int]:
    """Contents of the scalar registers in a step.

    Parameters
    ----------
    learning_rate, momentum, weight_decay, max_norm : float
        Hyperparameters; the momentum is that of SGD, and `max_norm` matters only if the step clips.
    betas : (float, float)
        Those of Adam and AdamW, which must be those of the programs (`StepOptions.betas`).
    labels : int
        Labels of the mini-batch that count, if the step ignores some; backends set it anew.
    seed : int
        Seed of the random numbers.
    step : int
        Number of the step, from 0; random numbers and Adam's bias corrections depend on it.
    """
    bits = [0] * NUM_SCALARS
    step_size, correction, kept = adam_numbers(step + 1, learning_rate, betas, weight_decay)
    for register, value in (
        (Scalar.LEARNING_RATE, learning_rate),
        (Scalar.MOMENTUM, momentum),
        (Scalar.WEIGHT_DECAY, weight_decay),
        (Scalar.MAX_NORM, max_norm),
        (Scalar.STEP_SIZE, step_size),
        (Scalar.INVERSE_CORRECTION, correction),
        (Scalar.KEPT_SHARE, kept),
        (Scalar.LABELS, labels),
        (Scalar.MINUS_LABEL_SHARE, -1 / labels),
    ):
        bits[register] = int(np.float32(value).view(np.uint32))
    bits[Scalar.RANDOM_SEED] = seed & 0xFFFFFFFF
    bits[Scalar.RANDOM_STEP] = step & 0xFFFFFFFF
    return bits


def counting_labels(
    scalars: Sequence[int],
    labels: NDArray[Any],
    counter: int = 0,
    weight: float = 1.0,
    class_weights: Sequence[float] = (),
) -> list[int]:
    """Contents of the scalar registers for the labels of a mini-batch.

    Some labels may be ignored, and those of classes may have weights.

    Parameters
    ----------
    scalars : sequence of int
    labels : array
    counter : int
        Number of the output among those whose labels may be ignored.
    weight : float
        Weight of the output's loss.
    class_weights : sequence of float
        Weights of the output's classes; empty if they have none.

    Raises
    ------
    ValueError
        If no label counts.
    """
    count = total_of(labels, class_weights)
    if not count:
        raise ValueError("a mini-batch must have a label that is not ignored")
    found = list(scalars)
    for first, value in (
        (Scalar.LABELS, count / weight),
        (Scalar.MINUS_LABEL_SHARE, -weight / count),
    ):
        register = first + COUNTER_REGISTERS * counter
        found[register] = int(np.float32(value).view(np.uint32))
    return found


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
    loss : Loss
        What the network is trained for.
    optimiser : str
        ``sgd``, which has momentum, ``adam``, or ``adamw``, whose weight decay does not go through
        the moments.
    betas : (float, float)
        Shares of their last values that the moments of Adam and AdamW keep in a step.
    epsilon : float
        Number that Adam and AdamW add to the root of the second moment.
    clip_norm : float or None
        Largest norm of all gradients together, to which they are scaled down; None for any. The
        programs read it from a register, so that a host may set another one.
    decays : str
        What the weight decay applies to: ``all`` parameters, or ``weights`` alone, without biases,
        normalisations and embeddings (`fpgapipe.network.parameter_groups.small_parameters`).
    undecayed : tuple of str
        Patterns of names of further parameters that it does not apply to.
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
    loss: Loss = CROSS_ENTROPY
    optimiser: Optimiser = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip_norm: float | None = None
    decays: Literal["all", "weights"] = "all"
    undecayed: tuple[str, ...] = ()
    late_gradients: bool = True
    apart: bool = False
    rounded_weights: bool = True

    def __post_init__(self) -> None:
        if self.activations not in (BF16, FP32):
            raise ValueError(f"step activations must be BF16 or FP32, not {self.activations!r}")
        if self.optimiser not in OPTIMISERS:
            raise ValueError(f"step optimiser must be sgd, adam or adamw, not {self.optimiser!r}")
        if self.decays not in ("all", "weights"):
            raise ValueError(f"step decays must be all or weights, not {self.decays!r}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"step betas must be at least 0 and below 1, not {self.betas!r}")
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise ValueError(f"step epsilon must be in (0, {MAX_EPSILON:g}], not {self.epsilon!r}")
        if self.clip_norm is not None and not 0 < self.clip_norm <= MAX_NORM:
            raise ValueError(f"step clip_norm must be in (0, {MAX_NORM:g}], not {self.clip_norm!r}")

    def format_of_input(self, graph: Graph, name: str) -> ElementFormat:
        """Format in memory of a network's input; numbers that must be exact are FP32."""
        exact = not graph.inputs[name].dtype.is_float or graph.reads_exactly(name)
        return FP32 if exact else self.activations

    @property
    def keeps_results(self) -> bool:
        """Whether the host can read the network's results after a step.

        A step that trains gives losses and counts of right labels alone, and a micro-batch's
        results make room when they have been read: logits of words may take more than all else.
        """
        return self.apart or not self.train

    @property
    def clips(self) -> bool:
        """Whether all gradients together are scaled down to a largest norm."""
        return self.clip_norm is not None

    def without_decay(self, graph: Graph) -> set[str]:
        """Names of a network's parameters that the weight decay does not apply to.

        Raises
        ------
        NetworkError
            If a pattern matches no learned parameter.
        """
        small = small_parameters(graph) if self.decays == "weights" else set()
        return small | matching(graph, self.undecayed)

    @property
    def has_second_moment(self) -> bool:
        """Whether the optimiser keeps a second moment of each weight."""
        return self.optimiser != "sgd"
