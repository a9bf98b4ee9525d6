"""The losses that networks are trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fpgapipe.network.logits import Logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

LossKind = Literal["cross-entropy", "mse", "bce"]

LOSS_KINDS: tuple[LossKind, ...] = get_args(LossKind)

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
"""Limits of a loss's weight."""

MOST_COUNTERS = 3
"""Most outputs of a network whose labels may be ignored."""

IGNORED = -100
"""Label that is ignored, as in PyTorch; so is every other label below 0."""


@dataclass(frozen=True)
class Loss:
    """A loss, as the mean over all labels, or all elements, of a mini-batch.

    Attributes
    ----------
    kind : str
        ``cross-entropy``, of softmax and class numbers; ``mse``, the mean squared error; or
        ``bce``, binary cross-entropy from logits.
    smoothing : float
        For cross-entropy, the share of each label that all classes have in equal parts.
    ignores : bool
        For cross-entropy, whether labels below 0 are ignored. The mean is over the others then.
    weight : float
        Factor with which the loss counts; a network is trained for the sum over all its outputs.
    others : tuple of (str, Loss)
        Losses of the outputs that have one of their own, with the output's name. Every other output
        has this one.
    class_weights : tuple of float
        For cross-entropy, a factor for the labels of each class, as PyTorch's ``weight``: the sum
        of the losses is divided by that of the labels' factors. Empty if all classes count alike.

    Raises
    ------
    ValueError
        If there is no such loss, or it has a setting of another one.
    """

    kind: LossKind = "cross-entropy"
    smoothing: float = 0.0
    ignores: bool = False
    weight: float = 1.0
    others: tuple[tuple[str, Loss], ...] = ()
    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in LOSS_KINDS:
            raise ValueError(f"loss must be {', '.join(LOSS_KINDS)}, not {self.kind!r}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(
                f"label smoothing must be at least 0 and below 1, not {self.smoothing}"
            )
        if not self.has_classes and (self.smoothing or self.ignores):
            raise ValueError(f"loss {self.kind} has targets, no labels to smooth or to ignore")
        if self.class_weights and (self.smoothing or not self.has_classes):
            other = "label smoothing" if self.smoothing else f"loss {self.kind}"
            raise ValueError(f"classes with weights cannot be combined with {other}")
        wrong = [each for each in self.class_weights if not LEAST_WEIGHT <= each <= MOST_WEIGHT]
        if wrong:
            raise ValueError(
                f"the weight of a class must be in {LEAST_WEIGHT:g}..{MOST_WEIGHT:g}, not "
                f"{wrong[0]:g}; a class that is not to count has labels below 0, which are ignored"
            )
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            raise ValueError(
                f"the weight of a loss must be in {LEAST_WEIGHT:g}..{MOST_WEIGHT:g}, not "
                f"{self.weight:g}"
            )
        names = [name for name, _ in self.others]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"output {twice!r} must have one loss, not several")
        if any(loss.others for _, loss in self.others):
            raise ValueError("the loss of an output has no losses of other outputs")

    def of(self, output: str) -> Loss:
        """The loss of an output."""
        own = dict(self.others).get(output)
        return replace(self, others=()) if own is None else own

    def of_each(self, graph: Graph) -> dict[str, Loss]:
        """The loss of each output of a network, in their order.

        Raises
        ------
        ValueError
            If there is a loss of something that is no output, or more losses ignore labels than
            there are registers for.
        """
        for name, _ in self.others:
            if name not in graph.outputs:
                raise ValueError(
                    f"{name!r} has a loss and is no output of {graph.name}; its outputs are "
                    f"{', '.join(graph.outputs)}"
                )
        found = {output: self.of(output) for output in graph.outputs}
        counting = sum(loss.is_counted for loss in found.values())
        if counting > MOST_COUNTERS:
            raise ValueError(
                f"labels can be ignored, or classes have weights, for {MOST_COUNTERS} outputs, not "
                f"for {counting}: the numbers of labels are in registers"
            )
        for output, loss in found.items():
            if loss.class_weights:
                classes, given = Logits.of(graph, output).classes, len(loss.class_weights)
                if given != classes:
                    raise ValueError(
                        f"there must be weights for {classes} classes, those of {output}, not for "
                        f"{given}"
                    )
        return found

    @property
    def is_counted(self) -> bool:
        """Whether the number of labels that count, or their weights, depends on the labels."""
        return self.ignores or bool(self.class_weights)

    @property
    def has_classes(self) -> bool:
        """Whether the host gives the number of a class for each label, not a target."""
        return self.kind == "cross-entropy"


CROSS_ENTROPY = Loss()
"""Softmax with cross-entropy, in which every label counts."""


def target_shape(graph: Graph, output: str | None = None) -> tuple[int, ...]:
    """Shape of the targets of an output, the first if none is named, which is the output's.

    Raises
    ------
    ValueError
        If the output does not have the samples first.
    """
    shape = graph.layers[output or graph.outputs[0]].output.shape
    if len(shape) < 2 or shape[0] != graph.batch:
        raise ValueError(
            f"the loss needs an output of {graph.batch} samples by their values, not {list(shape)}"
        )
    return shape


def count_of(labels: NDArray[Any]) -> int:
    """Labels that are not ignored; all elements of targets."""
    return int((labels >= 0).sum()) if np.issubdtype(labels.dtype, np.integer) else labels.size


def weights_of(labels: NDArray[Any], class_weights: Sequence[float]) -> NDArray[np.float32]:
    """The weight of each label's class; 0 for labels that are ignored, which are below 0."""
    weights = np.array([*class_weights, 0], np.float32)
    return weights[np.where(labels < 0, len(class_weights), labels).astype(np.int64)]


def total_of(labels: NDArray[Any], class_weights: Sequence[float] = ()) -> float:
    """What the sum of losses is divided by: labels that are not ignored, or their weights."""
    if not len(class_weights):
        return count_of(labels)
    return float(weights_of(labels, class_weights).sum(dtype=np.float64))


def labels_of(labels: Any, output: str) -> Any:
    """The labels or targets of an output.

    Parameters
    ----------
    labels : array, or mapping of str to array
        Labels that all outputs share, or those of each output by its name.
    output : str

    Raises
    ------
    ValueError
        If the output has none.
    """
    if not isinstance(labels, Mapping):
        return labels
    if output not in labels:
        raise ValueError(f"there must be labels or targets for output {output!r}")
    return labels[output]
