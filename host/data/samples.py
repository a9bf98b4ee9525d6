"""Samples for training and validation: inputs and their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError
from fpgapipe.network.initial_values import num_indices
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import CROSS_ENTROPY, Loss, target_shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

MOST_BYTES = 4 << 30
"""Most bytes that all inputs of a source may have in FP32."""

TRAINING_PART = 0.8
"""Share of samples that is for training if the source has none for validation."""


@dataclass(frozen=True)
class Samples:
    """Inputs of a network, one row for each sample, and their labels.

    Attributes
    ----------
    images : float32 array, shape (samples, channels, height, width)
        Inputs. The axes after the first are those of the network's input, which may be others;
        tokens are an int64 array.
    labels : int64 array, shape (samples,), (samples, tokens) or (samples, height, width)
        Number of the class of each sample, of each token or of each pixel; or targets, a float32
        array in the shape of the network's output.
    others : tuple of array
        Arrays of the network's further inputs, in their order.
    """

    images: NDArray[Any]
    labels: NDArray[Any]
    others: tuple[NDArray[Any], ...] = ()

    def inputs(self, graph: Graph) -> dict[str, NDArray[Any]]:
        """The arrays by the names of a network's inputs."""
        return dict(zip(graph.inputs, (self.images, *self.others), strict=True))

    def batches(self, size: int, seed: int | None = None, epoch: int = 0) -> Iterator[Samples]:
        """Batches, shuffled if there is a seed; samples that do not fill a batch are left out."""
        order = np.arange(len(self.labels))
        if seed is not None:
            np.random.default_rng((seed, epoch)).shuffle(order)
        for first in range(0, len(order) - size + 1, size):
            yield self.some(order[first : first + size])

    def some(self, which: NDArray[np.integer] | slice) -> Samples:
        """The samples with these indices, in this order."""
        others = tuple(each[which] for each in self.others)
        return Samples(self.images[which], self.labels[which], others)


@dataclass(frozen=True)
class Dataset:
    """Samples for training, and others for validation.

    Attributes
    ----------
    train, validation : Samples
    note : str
        Sentence that says how they were split, if the source did not do so; else empty.
    """

    train: Samples
    validation: Samples
    note: str = ""


@dataclass(frozen=True)
class WantedInput:
    """One of the inputs that a network takes.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Shape of one sample.
    indices : int or None
        Number of tokens that there are, if a sample consists of tokens.
    """

    name: str
    shape: tuple[int, ...]
    indices: int | None = None


@dataclass(frozen=True)
class Wanted:
    """The samples that a network takes.

    Attributes
    ----------
    network : str
        Name of the network.
    shape : tuple of int
        Shape of one sample of the first input.
    classes : int
        Number of classes.
    label_shape : tuple of int
        Shape of the labels of one sample; empty if it has one.
    indices : int or None
        Number of tokens that there are, if a sample of the first input consists of tokens.
    several : tuple of WantedInput
        All inputs, if there are several.
    loss : Loss
        The loss, which decides what labels are: class numbers, or targets.
    """

    network: str
    shape: tuple[int, ...]
    classes: int
    label_shape: tuple[int, ...] = ()
    indices: int | None = None
    several: tuple[WantedInput, ...] = ()
    loss: Loss = CROSS_ENTROPY

    @property
    def labels(self) -> str:
        """What the labels are called, in files."""
        return "labels" if self.loss.has_classes else "targets"

    @property
    def inputs(self) -> tuple[WantedInput, ...]:
        """All inputs; an only one is called by what it consists of, as arrays of samples are."""
        what = "images" if self.indices is None else "tokens"
        return self.several or (WantedInput(what, self.shape, self.indices),)

    @property
    def predicts_tokens(self) -> bool:
        """Whether the network predicts a token for each token of its input, a row of them."""
        tokens = self.indices is not None and len(self.shape) == 1 and not self.several
        alike = self.shape == self.label_shape and self.indices == self.classes
        return tokens and alike and self.loss.has_classes

    @classmethod
    def of(cls, graph: Graph, loss: Loss = CROSS_ENTROPY) -> Wanted:
        """Find the samples that a graph takes to be trained with a loss.

        Raises
        ------
        UserError
            Unless the graph has inputs of floating-point numbers or of indices of embeddings, and
            one output, logits with samples first.
        """
        if not graph.inputs or len(graph.outputs) != 1:
            raise UserError(
                f"{graph.name} must have one input or several and one output to be trained with "
                f"samples, not {len(graph.inputs)} and {len(graph.outputs)}"
            )
        indices = num_indices(graph)
        found = []
        for name, tensor in graph.inputs.items():
            if len(tensor.shape) < 2 or not (tensor.dtype.is_float or name in indices):
                raise UserError(
                    f"{graph.name} must have an input of floating-point numbers, or of indices of "
                    f"embeddings, of samples by their values to be trained with samples, not "
                    f"{tensor.dtype} {list(tensor.shape)} ({name})"
                )
            if graph.batch is not None and tensor.shape[0] != graph.batch:
                raise UserError(
                    f"input {name!r} of {graph.name} must have a row for each of {graph.batch} "
                    f"samples, not {tensor.shape[0]}"
                )
            found.append(WantedInput(name, tensor.shape[1:], indices.get(name)))
        try:
            if loss.has_classes:
                logits = Logits.of(graph)
                classes, rest = logits.classes, logits.labels_of_sample
            else:
                classes, rest = 0, target_shape(graph)[1:]
        except ValueError as error:
            raise UserError(f"{graph.name} cannot be trained with samples: {error}") from None
        first = found[0]
        several = tuple(found) if len(found) > 1 else ()
        return cls(graph.name, first.shape, classes, rest, first.indices, several, loss)

    def check_size(self, path: Path, what: str, samples: int) -> None:
        """Refuse samples that take more than `MOST_BYTES`."""
        size = 4 * samples * sum(math.prod(each.shape) for each in self.inputs)
        if size > MOST_BYTES:
            raise FileError(
                path,
                [
                    f"{what} must be at most {MOST_BYTES >> 30} GiB as FP32, not "
                    f"{size / (1 << 30):.3g} GiB: {samples:,} samples of "
                    + " and ".join(shape_text(each.shape) for each in self.inputs)
                ],
            )


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as ``3x32x32``."""
    return "x".join(map(str, shape))


def split(samples: Samples) -> Dataset:
    """Split samples: a fifth, drawn with a fixed seed, is for validation.

    Raises
    ------
    ValueError
        If there are fewer than two samples.
    """
    count = len(samples.labels)
    if count < 2:
        raise ValueError(f"samples to split must be at least 2, not {count}")
    order = np.random.default_rng(0).permutation(count)
    held_out = max(round(count * (1 - TRAINING_PART)), 1)
    return Dataset(
        samples.some(np.sort(order[held_out:])),
        samples.some(np.sort(order[:held_out])),
        f"{held_out:,} of {count:,} samples, drawn with a fixed seed, are for validation",
    )
