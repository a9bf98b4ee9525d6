"""Samples for training and validation: inputs and their labels."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.data.rows import Rows, extremes, joined
from fpgapipe.network.initial_values import num_indices
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import CROSS_ENTROPY, Loss, target_shape
from fpgapipe.network.mask_inputs import MaskInput, mask_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.network.graph import Graph

MOST_BYTES = 4 << 30
"""Most bytes that all inputs of a source may have in FP32."""

TRAINING_PART = 0.8
"""Share of samples that is for training if the source has none for validation."""


@dataclass(frozen=True)
class Samples:
    """Inputs of a network, one row for each sample, and their labels.

    Arrays of large data are `Rows`, which are read from their files mini-batch by mini-batch.

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
    of_outputs : mapping of str to array
        If the network has several outputs, labels or targets of each; `labels` are the first.
    names : str array, shape (samples,)
        Names of the samples' files; empty if they have none.
    """

    images: NDArray[Any] | Rows
    labels: NDArray[Any] | Rows
    others: tuple[NDArray[Any] | Rows, ...] = ()
    of_outputs: Mapping[str, NDArray[Any] | Rows] = field(default_factory=dict)
    names: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, np.str_))

    @property
    def targets(self) -> Labels:
        """The labels or targets, as steps take them, read from their files."""
        of_outputs = {name: np.asarray(each) for name, each in self.of_outputs.items()}
        return of_outputs or np.asarray(self.labels)

    def inputs(self, graph: Graph) -> dict[str, NDArray[Any]]:
        """The arrays by the names of a network's inputs, read from their files."""
        arrays = (self.images, *self.others)
        return {name: np.asarray(each) for name, each in zip(graph.inputs, arrays, strict=True)}

    def batches(
        self, size: int, seed: int | None = None, epoch: int = 0, first: int = 0
    ) -> Iterator[Samples]:
        """Batches, shuffled if there is a seed; samples that do not fill a batch are left out.

        So many of the `first` batches are left out as well.
        """
        order = np.arange(len(self.labels))
        if seed is not None:
            np.random.default_rng((seed, epoch)).shuffle(order)
        begins = range(first * size, len(order) - size + 1, size)
        return self.read_ahead(order[begin : begin + size] for begin in begins)

    def read_ahead(self, parts: Iterable[NDArray[np.integer]]) -> Iterator[Samples]:
        """Samples of several parts, in memory; each is read while the one before it is used."""
        if not any(isinstance(each, Rows) for each in self._arrays):
            yield from map(self.some, parts)
            return
        with ThreadPoolExecutor(1) as reader:
            before: Future[Samples] | None = None
            for part in parts:
                now = reader.submit(self.some(part).in_memory)
                if before:
                    yield before.result()
                before = now
            if before:
                yield before.result()

    def some(self, which: NDArray[np.integer] | slice) -> Samples:
        """The samples with these indices, in this order."""
        names = self.names[which] if len(self.names) else self.names
        return replace(self._changed(lambda each: each[which]), names=names)

    def in_memory(self) -> Samples:
        """The same samples, read from their files."""
        return self._changed(np.asarray)

    @property
    def _arrays(self) -> tuple[NDArray[Any] | Rows, ...]:
        return (self.images, self.labels, *self.others, *self.of_outputs.values())

    def _changed(self, change: Callable[[NDArray[Any] | Rows], NDArray[Any] | Rows]) -> Samples:
        """The same samples, each of whose arrays is another."""
        of_outputs = {name: change(each) for name, each in self.of_outputs.items()}
        others = tuple(map(change, self.others))
        return Samples(change(self.images), change(self.labels), others, of_outputs, self.names)

    def followed_by(self, other: Samples) -> Samples:
        """These samples, and others of the same kind behind them."""
        return Samples(
            joined(self.images, other.images),
            joined(self.labels, other.labels),
            tuple(map(joined, self.others, other.others)),
            {name: joined(each, other.of_outputs[name]) for name, each in self.of_outputs.items()},
            np.concatenate([self.names, other.names]),
        )


@dataclass(frozen=True)
class Dataset:
    """Samples for training, and others for validation.

    Attributes
    ----------
    train, validation : Samples
    note : str
        Sentence that says how they were split, if the source did not do so; else empty.
    classes : tuple of str
        Names of the classes in the order of their numbers; empty if they have none.
    """

    train: Samples
    validation: Samples
    note: str = ""
    classes: tuple[str, ...] = ()


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
    mask : MaskInput or None
        What values there are, if it is a mask or other numbers to compare.
    """

    name: str
    shape: tuple[int, ...]
    indices: int | None = None
    mask: MaskInput | None = None


@dataclass(frozen=True)
class WantedLabels:
    """The labels or targets that an output of a network takes.

    Attributes
    ----------
    output : str
        Name of the output.
    classes : int
        Number of classes; 0 for targets.
    shape : tuple of int
        Shape for one sample; empty if a sample has one label.
    loss : Loss
        The output's loss.
    """

    output: str
    classes: int
    shape: tuple[int, ...]
    loss: Loss

    @property
    def array(self) -> str:
        """Name of the labels in files."""
        return "labels" if self.loss.has_classes else "targets"

    def check(self, labels: NDArray[Any] | Rows, network: str, samples: int) -> None:
        """Refuse labels or targets that do not fit the output.

        Raises
        ------
        UserError
            If their shape or values do not fit.
        """
        if labels.shape != (samples, *self.shape):
            raise UserError(
                f"{samples} samples need {self.array} of shape {(samples, *self.shape)}, not "
                f"{labels.shape}"
            )
        labels = extremes(labels)
        if not self.loss.has_classes:
            if labels.dtype.kind != "f" or not np.isfinite(labels).all():
                raise UserError("targets must be finite floating-point numbers")
            return
        bad = labels[((labels < 0) & (not self.loss.ignores)) | (labels >= self.classes)]
        if bad.size:
            raise UserError(
                f"labels must be 0..{self.classes - 1}, the classes of {network}, not {bad[0]}"
            )


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
        Number of classes of the first output.
    label_shape : tuple of int
        Shape of the labels of one sample for the first output; empty if it has one.
    indices : int or None
        Number of tokens that there are, if a sample of the first input consists of tokens.
    several : tuple of WantedInput
        All inputs, if there are several.
    loss : Loss
        The first output's loss, which decides what labels are: class numbers, or targets.
    outputs : tuple of WantedLabels
        The labels of all outputs, if there are several.
    """

    network: str
    shape: tuple[int, ...]
    classes: int
    label_shape: tuple[int, ...] = ()
    indices: int | None = None
    several: tuple[WantedInput, ...] = ()
    loss: Loss = CROSS_ENTROPY
    outputs: tuple[WantedLabels, ...] = ()

    @property
    def labels(self) -> tuple[WantedLabels, ...]:
        """The labels or targets of all outputs; an only output has no name."""
        return self.outputs or (WantedLabels("", self.classes, self.label_shape, self.loss),)

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
            Unless the graph has inputs of floating-point numbers, of indices of embeddings, or
            masks, and its outputs have the samples first.
        """
        if not graph.inputs:
            raise UserError(f"{graph.name} must have an input to be trained with samples")
        indices, masks = num_indices(graph), mask_inputs(graph)
        found = []
        for name, tensor in graph.inputs.items():
            known = tensor.dtype.is_float or name in indices or name in masks
            if len(tensor.shape) < 2 or not known:
                raise UserError(
                    f"{graph.name} must have an input of floating-point numbers, of indices of "
                    f"embeddings, or a mask, of samples by their values to be trained with "
                    f"samples, not {tensor.dtype} {list(tensor.shape)} ({name})"
                )
            if graph.batch is not None and tensor.shape[0] != graph.batch:
                raise UserError(
                    f"input {name!r} of {graph.name} must have a row for each of {graph.batch} "
                    f"samples, not {tensor.shape[0]}"
                )
            found.append(WantedInput(name, tensor.shape[1:], indices.get(name), masks.get(name)))
        try:
            labels = [
                cls._labels_of(graph, output, own) for output, own in loss.of_each(graph).items()
            ]
        except ValueError as error:
            raise UserError(f"{graph.name} cannot be trained with samples: {error}") from None
        first = found[0]
        several = tuple(found) if len(found) > 1 else ()
        main = labels[0]
        return cls(
            graph.name,
            first.shape,
            main.classes,
            main.shape,
            first.indices,
            several,
            main.loss,
            tuple(labels) if len(labels) > 1 else (),
        )

    @staticmethod
    def _labels_of(graph: Graph, output: str, loss: Loss) -> WantedLabels:
        if not loss.has_classes:
            return WantedLabels(output, 0, target_shape(graph, output)[1:], loss)
        logits = Logits.of(graph, output)
        return WantedLabels(output, logits.classes, logits.labels_of_sample, loss)

    def sharing(self) -> Wanted:
        """The samples, if all outputs are to take the same labels.

        Raises
        ------
        UserError
            If the outputs take different ones.
        """
        if len({each.shape for each in self.labels}) > 1:
            raise UserError(
                f"the outputs of {self.network} take labels of different shapes: take a .npz file "
                f"with an array for each, such as 'labels.{self.labels[-1].output}'"
            )
        return replace(self, classes=min(each.classes for each in self.labels))

    def shared(self, samples: Samples) -> Samples:
        """Samples whose labels are those of all outputs."""
        of_outputs = {each.output: samples.labels for each in self.outputs}
        return replace(samples, of_outputs=of_outputs)

    def check_size(self, path: Path, what: str, samples: int, more: str) -> None:
        """Refuse samples that take more than `MOST_BYTES`, and say what can be done."""
        size = 4 * samples * sum(math.prod(each.shape) for each in self.inputs)
        if size > MOST_BYTES:
            raise FileError(
                path,
                [
                    f"{what} must be at most {MOST_BYTES >> 30} GiB as FP32, not "
                    f"{size / (1 << 30):.3g} GiB: {samples:,} samples of "
                    + " and ".join(shape_text(each.shape) for each in self.inputs)
                    + f"; {more}"
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
