"""The places of a device's tensors in its memory, and how to write and read their values.

A map is data: a build stores it as JSON, so that a run needs neither the network nor the lowering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.json_faults import faults_of
from fpgapipe.lowering.memory.placed import Placed
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.network.losses import labels_of, weights_of

LABELS = "labels"
WEIGHTS = "label weights"
"""Name of the tensor of the class numbers."""

LOSS = "loss"
"""Name of the tensor of the batch's mean loss."""

CORRECT = "correct"
"""Name of the tensor of the number of correctly classified samples."""

Labels = NDArray[np.generic] | Mapping[str, NDArray[np.generic]]
"""Labels or targets that all outputs share, or those of each output by its name."""

Outcomes = Mapping[str, Mapping[int, tuple[float, float]]]
"""Mean loss and number of correct labels of each output and micro-batch."""

LASTING = ("", ".momentum", ".square")
"""Suffixes of a parameter's name for the tensors that last from step to step, unlike gradients."""


@dataclass(frozen=True)
class Stored:
    """How a parameter lies in memory.

    Attributes
    ----------
    trainable : bool
    tensor : Tensor
        The parameter, with its axes in the order of the memory.
    shape : tuple of int
        Shape in the network.
    split : tuple of int
        Shape in the network, with an axis of flattened images split into channels and positions.
    order : tuple of int
        Axes of `split` in the order of the memory.
    part : (int, int, int) or None
        Where the device has a part of a parameter, of which `shape` is the shape: the axis along
        which it is cut, the first index, and the size of the axis in the network.
    """

    trainable: bool
    tensor: Tensor
    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    part: tuple[int, int, int] | None = None

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Shape of the whole parameter in the network."""
        if self.part is None:
            return self.shape
        axis, _, size = self.part
        return (*self.shape[:axis], size, *self.shape[axis + 1 :])

    @property
    def _own(self) -> tuple[slice, ...]:
        if self.part is None:
            return ()
        axis, first, _ = self.part
        return (*(slice(None),) * axis, slice(first, first + self.shape[axis]))

    def taken(self, whole: NDArray[np.float32]) -> NDArray[np.float32]:
        """The device's part of the values of a whole parameter."""
        return whole[self._own] if self.part else whole

    def put(self, whole: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """Write the device's part into the values of a whole parameter."""
        whole[self._own] = values

    def to_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values in the order of the memory."""
        moved = values.reshape(self.split).transpose(self.order)
        return np.ascontiguousarray(moved, np.float32).reshape(self.tensor.shape)

    def from_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Inverse of `to_memory`."""
        shape = tuple(self.split[axis] for axis in self.order)
        back = np.argsort(self.order)
        return np.ascontiguousarray(values.reshape(shape).transpose(back)).reshape(self.shape)


@dataclass(frozen=True)
class LossTensors:
    """The tensors of the loss of an output.

    Attributes
    ----------
    output : str
        Name of the output.
    weight : float
        Factor with which the loss counts in the loss of the network.
    labels, loss : str
        Names of the tensors of labels or targets, and of the mean loss.
    correct : str or None
        Name of the tensor of the number of labels that are found right; None for a loss of targets.
    counter : int or None
        Number of the output among those whose labels are counted; None if all count alike.
    weights : str or None
        Name of the tensor of the weights of the labels' classes; None if they have none.
    class_weights : tuple of float
        Weights of the classes; empty if they have none.
    """

    output: str
    weight: float
    labels: str
    loss: str
    correct: str | None
    counter: int | None
    weights: str | None = None
    class_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class MemoryMap:
    """The places of all tensors and of the program in the memory of one device.

    Attributes
    ----------
    entry : int
        Byte address of the program.
    memory_bytes : int
        Size of the whole memory that is used.
    microbatches : tuple of int
        Numbers, within the mini-batch, of the micro-batches that the device computes.
    all_microbatches : int
        Number of micro-batches of the mini-batch, on all devices.
    inputs : dict of str to tuple of int
        Inputs of the network that the device reads, with the shape of one micro-batch in the
        network.
    outputs : tuple of str
        Outputs of the network that the device computes.
    losses : tuple of LossTensors
        Losses that the device computes, in the order of the network's outputs.
    places : dict of str to Placed
        Places of all tensors.
    tensors : dict of str to Tensor
        All tensors except the parameters and those that belong to parameters.
    stored : dict of str to Stored
        The parameters.
    shared : dict of str to int
        Tensors that share bytes with others, each with the number of the last kernel that writes
        it. What a step leaves of them cannot be read.
    account : dict of str to int
        Bytes of the whole memory by what they are used for.
    """

    entry: int
    memory_bytes: int
    microbatches: tuple[int, ...]
    all_microbatches: int
    inputs: dict[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    losses: tuple[LossTensors, ...]
    places: dict[str, Placed]
    tensors: dict[str, Tensor]
    stored: dict[str, Stored]
    shared: dict[str, int]
    account: dict[str, int]

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches that the device computes."""
        return len(self.microbatches)

    def set_parameters(
        self, memory: NDArray[np.uint8], parameters: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Write all parameters, of which the device may have a part.

        Raises
        ------
        ValueError
            If one is missing or has another shape.
        """
        for name, stored in self.stored.items():
            self._set_stored(memory, name, stored, parameters)

    def _set_stored(
        self,
        memory: NDArray[np.uint8],
        name: str,
        stored: Stored,
        values: Mapping[str, NDArray[np.float32]],
    ) -> None:
        if name not in values or values[name].shape != stored.whole_shape:
            came = values[name].shape if name in values else "nothing"
            raise ValueError(f"parameter {name} must have shape {stored.whole_shape}, not {came}")
        self.write(memory, name, stored.to_memory(stored.taken(values[name])))

    def state(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Read all that the next step needs: parameters, statistics and the optimiser's values.

        Of a parameter that is cut these are the values of the device's part; `joined` puts the
        parts of all devices together.
        """
        return {
            name: stored.from_memory(self.read(memory, name)).copy()
            for name, stored in self.lasting()
        }

    def set_state(
        self, memory: NDArray[np.uint8], state: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Write the state that `state` has read.

        Raises
        ------
        ValueError
            If something is missing or has another shape.
        """
        for name, stored in self.lasting():
            self._set_stored(memory, name, stored, state)

    def lasting(self) -> list[tuple[str, Stored]]:
        """Tensors that last from step to step, with their names."""
        return [
            (name + suffix, stored)
            for name, stored in self.stored.items()
            for suffix in LASTING
            if name + suffix in self.places
        ]

    def parameters(
        self, memory: NDArray[np.uint8], suffix: str = ""
    ) -> dict[str, NDArray[np.float32]]:
        """Read all parameters or, with a suffix, their companions, such as ``.gradient``.

        Companions that are not kept are left out.
        """
        return {
            name: stored.from_memory(self.read(memory, name + suffix))
            for name, stored in self.stored.items()
            if not suffix or (stored.trainable and name + suffix in self.places)
        }

    def of_microbatch(self, name: str, index: int) -> str:
        """Name of a micro-batch's tensor of an input, output, labels, loss or correct samples."""
        return name if self.num_microbatches == 1 else f"{name}@{index}"

    def set_batch(
        self,
        memory: NDArray[np.uint8],
        inputs: Mapping[str, NDArray[np.float32]],
        labels: Labels | None = None,
    ) -> None:
        """Write a mini-batch: inputs in the network's shapes, and class numbers or targets.

        The samples of the first micro-batch come first, then those of the second, and so on. Inputs
        that this part of the network does not need are ignored, and so are micro-batches of other
        devices.
        """
        count = self.all_microbatches
        for name, (samples, *rest) in self.inputs.items():
            shape = (samples * count, *rest)
            if name not in inputs or inputs[name].shape != shape:
                came = inputs[name].shape if name in inputs else "nothing"
                raise ValueError(f"input {name} must have shape {shape}, not {came}")
            parts = np.split(channels_last(inputs[name]), count)
            for index in self.microbatches:
                self.write(memory, self.of_microbatch(name, index), parts[index])
        for each in self.losses if labels is not None else ():
            given = labels_of(labels, each.output)
            own = self.tensors[self.of_microbatch(each.labels, self.microbatches[0])].elements
            if given.size != own * count:
                raise ValueError(f"{each.labels} must be {own * count} numbers, not {given.size}")
            written = {each.labels: np.asarray(given, np.float32)}
            if each.weights:
                written[each.weights] = weights_of(given, each.class_weights)
            for name, numbers in written.items():
                parts = np.split(channels_last(numbers).reshape(-1), count)
                for index in self.microbatches:
                    self.write(memory, self.of_microbatch(name, index), parts[index])

    def outcomes(self, memory: NDArray[np.uint8]) -> Outcomes:
        """Read the mean loss and the number of correct labels of each output and micro-batch.

        Where samples have targets instead of classes, none is correct.
        """

        def number(name: str | None, index: int) -> float:
            return float(self.read(memory, self.of_microbatch(name, index))[0]) if name else 0.0

        return {
            each.output: {
                index: (number(each.loss, index), number(each.correct, index))
                for index in self.microbatches
            }
            for each in self.losses
        }

    def outcome(self, memory: NDArray[np.uint8]) -> tuple[float, int]:
        """Read the loss of the device's micro-batches, and the number of correct labels."""
        return whole_outcome(self.losses, mean_outcomes([self.outcomes(memory)]))

    def results(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Read the network's results for the device's samples, in the network's shapes."""
        return all_results([self.results_of_each(memory)])

    def results_of_each(
        self, memory: NDArray[np.uint8]
    ) -> dict[str, dict[int, NDArray[np.float32]]]:
        """Read the network's results for each micro-batch, by its number."""
        return {
            name: {
                index: channels_first(self.read(memory, self.of_microbatch(name, index)))
                for index in self.microbatches
            }
            for name in self.outputs
        }

    def write(self, memory: NDArray[np.uint8], name: str, values: NDArray[np.float32]) -> None:
        """Write a tensor, rounded to its format."""
        place = self._own_place(name)
        tensor = self.tensors.get(name)
        values = np.asarray(values, np.float32)
        raw = (tensor.format if tensor else FP32).encode(values)
        memory[place.begin : place.end] = raw

    def read(self, memory: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        """Read a tensor in its shape in memory; a parameter is returned as one axis.

        Raises
        ------
        ValueError
            If the tensor shares its place with others, which may have overwritten it.
        """
        place = self._own_place(name)
        raw = np.ascontiguousarray(memory[place.begin : place.end])
        tensor = self.tensors.get(name)
        if tensor is None:
            return FP32.decode(raw, (raw.size // 4,))
        return tensor.format.decode(raw, tensor.shape)

    def _own_place(self, name: str) -> Placed:
        if name in self.shared:
            raise ValueError(
                f"tensor {name} shares its place in memory with others, which may have overwritten "
                "it; to read it, make the program with StepOptions(apart=True)"
            )
        return self.places[name]


def joined(
    parts: Iterable[tuple[MemoryMap, Mapping[str, NDArray[np.float32]]]],
) -> dict[str, NDArray[np.float32]]:
    """Put together what several devices have of the parameters, or of what belongs to them.

    Parameters
    ----------
    parts : iterable of (MemoryMap, mapping of str to array)
        Map of each device, and what `MemoryMap.parameters` or `MemoryMap.state` reads of it.
    """
    found: dict[str, NDArray[np.float32]] = {}
    for memory_map, values in parts:
        for name, value in values.items():
            stored = memory_map.stored.get(name) or memory_map.stored[name.rpartition(".")[0]]
            if stored.part is None:
                found[name] = value
                continue
            if name not in found:
                found[name] = np.zeros(stored.whole_shape, np.float32)
            stored.put(found[name], value)
    return found


_MAPS = TypeAdapter(MemoryMap)


def to_json(memory_map: MemoryMap) -> str:
    """Write a map as JSON that `from_json` reads back; fields of subclasses are left out."""
    names = [field.name for field in fields(MemoryMap)]
    plain = MemoryMap(**{name: getattr(memory_map, name) for name in names})
    return _MAPS.dump_json(plain, indent=1).decode() + "\n"


def from_json(text: str) -> MemoryMap:
    """Read a map from JSON.

    Raises
    ------
    ValueError
        If the text is not a memory map.
    """
    try:
        return _MAPS.validate_json(text)
    except ValidationError as error:
        raise ValueError(faults_of(error)[0]) from None


def mean_outcomes(parts: Iterable[Outcomes]) -> dict[str, tuple[float, int]]:
    """Mean loss and number of correct labels of each output, from what several devices have.

    The micro-batches count in the order of their numbers.
    """
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for part in parts:
        for output, values in part.items():
            found.setdefault(output, {}).update(values)
    means = {}
    for output, values in found.items():
        losses, correct = zip(*(values[index] for index in sorted(values)), strict=True)
        means[output] = sum(losses) / len(losses), round(sum(correct))
    return means


def whole_outcome(
    losses: Iterable[LossTensors], means: Mapping[str, tuple[float, int]]
) -> tuple[float, int]:
    """The loss of a network, and the correct labels of the first output that has classes.

    The loss is the sum of the outputs' losses times their weights.
    """
    total, right = 0.0, None
    for each in losses:
        value, correct = means[each.output]
        total += each.weight * value
        if right is None and each.correct is not None:
            right = correct
    return total, right or 0


def all_results(
    parts: Iterable[Mapping[str, Mapping[int, NDArray[np.float32]]]],
) -> dict[str, NDArray[np.float32]]:
    """Join the results of several devices, in the order of the micro-batches."""
    found: dict[str, dict[int, NDArray[np.float32]]] = {}
    for part in parts:
        for name, values in part.items():
            found.setdefault(name, {}).update(values)
    return {
        name: np.concatenate([values[index] for index in sorted(values)])
        for name, values in found.items()
    }


def channels_last(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Move the channels of images to the last axis; other arrays are returned unchanged."""
    return np.moveaxis(values, 1, -1) if values.ndim == 4 else values


def channels_first(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inverse of `channels_last`."""
    return np.moveaxis(values, -1, 1) if values.ndim == 4 else values
