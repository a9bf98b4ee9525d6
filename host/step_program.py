"""The program of a training step: where its tensors are, and how values get there and back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np

from fpgapipe.hw.hls_models import fp32
from fpgapipe.hw.hls_models.isa import encode
from fpgapipe.hw.hls_models.kernels import loss
from fpgapipe.hw.hls_models.kernels.optimiser import adam_numbers
from fpgapipe.hw.hls_models.vector_op import NUM_SCALARS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.host.step_units import Value
    from fpgapipe.hw.hls_models.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.isa import Instruction
    from fpgapipe.hw.hls_models.kernels.assemble import Placed
    from fpgapipe.hw.hls_models.kernels.kernel import Tensor
    from fpgapipe.partition.graph import Graph, Parameter

LABELS = "labels"
"""Tensor of the class numbers."""

LOSS = "loss"
"""Tensor of the batch's mean loss."""

PARAMETERS, GRADIENTS, MOMENTA, SQUARES = "parameters", "gradients", "momenta", "squares"
"""Tensors that hold those of all layers, so that an update is one kernel; squares are Adam's."""

SUFFIXES = {PARAMETERS: "", GRADIENTS: ".gradient", MOMENTA: ".momentum", SQUARES: ".square"}
"""What is added to a parameter's name for its part of each."""

NORM = "gradient norm"
"""Tensor of the gradients' norm, 16 times, if a step clips."""

CORRECT = "correct"
"""Tensor of the number of samples whose class was found."""


class Scalar(IntEnum):
    """Registers that a step's program reads numbers from; a host may set them for each step."""

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
    """What the scalar registers hold in a step.

    Parameters
    ----------
    learning_rate, momentum, weight_decay, max_norm : float
        The momentum is SGD's; `max_norm` matters if the step clips.
    seed : int
        Of the random numbers.
    step : int
        From 0; random numbers and Adam's corrections depend on it.
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
    """What a step is made of besides its network.

    Attributes
    ----------
    feature_bytes : int
        Of an element of features and their gradients in memory: 2 (BF16) or 4 (FP32).
    train : bool
        Whether there are loss, backward pass and update; else there is but the forward pass of
        inference.
    optimiser : str
        ``sgd``, with momentum, or ``adam``.
    clips : bool
        Whether gradients are scaled down to a largest norm, together.
    """

    feature_bytes: int = 2
    train: bool = True
    optimiser: Literal["sgd", "adam"] = "sgd"
    clips: bool = False

    def __post_init__(self) -> None:
        if self.feature_bytes not in (2, 4):
            raise ValueError(f"step feature_bytes must be 2 or 4, not {self.feature_bytes!r}")
        if self.optimiser not in ("sgd", "adam"):
            raise ValueError(f"step optimiser must be sgd or adam, not {self.optimiser!r}")


@dataclass(frozen=True)
class Stored:
    """How a parameter lies in memory.

    Attributes
    ----------
    parameter : Parameter
    tensor : Tensor
        Shaped as it lies there.
    shape : tuple of int
        As the network has it.
    order : tuple of int
        Axes of `split` in the order of the memory.
    split : tuple of int
        The network's shape, with features that were images taken apart.
    """

    parameter: Parameter
    tensor: Tensor
    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]

    def to_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values as they lie in memory."""
        moved = values.reshape(self.split).transpose(self.order)
        return np.ascontiguousarray(moved, np.float32).reshape(self.tensor.shape)

    def from_memory(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Inverse of `to_memory`."""
        shape = tuple(self.split[axis] for axis in self.order)
        back = np.argsort(self.order)
        return np.ascontiguousarray(values.reshape(shape).transpose(back)).reshape(self.shape)


@dataclass(frozen=True)
class StepProgram:
    """A step's program, and where everything is.

    Attributes
    ----------
    graph : Graph
    core : CoreSpec
    options : StepOptions
    instructions : list of Instruction
    kernel_of : list of int
        Of each instruction but END, the number of its kernel.
    kernels : list of str
        Their names.
    places : dict of str to Placed
        Of all tensors.
    tensors : dict of str to Tensor
        All but parameters and what goes with them.
    stored : dict of str to Stored
        The parameters.
    values : dict of str to Value
        Of the first micro-batch.
    gradients : dict of str to str
        Tensor of the gradient of each of its values that has one.
    num_microbatches : int
    entry : int
        Byte address of the program.
    memory_bytes : int
        Of the whole.
    """

    graph: Graph
    core: CoreSpec
    options: StepOptions
    instructions: list[Instruction]
    kernel_of: list[int]
    kernels: list[str]
    places: dict[str, Placed]
    tensors: dict[str, Tensor]
    stored: dict[str, Stored]
    values: dict[str, Value]
    gradients: dict[str, str]
    num_microbatches: int
    entry: int
    memory_bytes: int

    def image(self, parameters: Mapping[str, NDArray[np.float32]]) -> NDArray[np.uint8]:
        """Memory before the first step: program, parameters and constants; zeros elsewhere."""
        image = np.zeros(self.memory_bytes, np.uint8)
        program = np.frombuffer(encode(self.instructions), np.uint8)
        image[self.entry : self.entry + program.size] = program
        self.set_parameters(image, parameters)
        for tensor, values in self.constants.items():
            self.write(image, tensor, values)
        return image

    @property
    def constants(self) -> dict[str, NDArray[np.float32]]:
        """Tensors that never change."""
        if not self.options.train:
            return {}
        (output,) = self.graph.outputs
        classes = self.values[output].tensor.shape[-1]
        return {loss.class_numbers(classes).name: loss.class_numbers_content(classes)}

    def set_parameters(
        self, memory: NDArray[np.uint8], parameters: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Write all parameters.

        Raises
        ------
        ValueError
            If one is missing or has another shape.
        """
        for name, stored in self.stored.items():
            if name not in parameters or parameters[name].shape != stored.shape:
                came = parameters[name].shape if name in parameters else "nothing"
                raise ValueError(f"parameter {name} must have shape {stored.shape}, not {came}")
            self.write(memory, name, stored.to_memory(parameters[name]))

    def parameters(
        self, memory: NDArray[np.uint8], suffix: str = ""
    ) -> dict[str, NDArray[np.float32]]:
        """Read all parameters; with a suffix, what goes with the learned ones, as ``.gradient``."""
        return {
            name: stored.from_memory(self.read(memory, name + suffix))
            for name, stored in self.stored.items()
            if not suffix or stored.parameter.spec.trainable
        }

    def of_microbatch(self, name: str, index: int) -> str:
        """Tensor of a micro-batch: of an input, the labels, the loss or the correct ones."""
        return name if self.num_microbatches == 1 else f"{name}@{index}"

    def set_batch(
        self,
        memory: NDArray[np.uint8],
        inputs: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.integer] | None = None,
    ) -> None:
        """Write a mini-batch: inputs as the network has them, and class numbers.

        Its samples are those of the first micro-batch, then those of the second, and so on.
        """
        count = self.num_microbatches
        for name, tensor in self.graph.inputs.items():
            shape = (tensor.shape[0] * count, *tensor.shape[1:])
            if name not in inputs or inputs[name].shape != shape:
                came = inputs[name].shape if name in inputs else "nothing"
                raise ValueError(f"input {name} must have shape {shape}, not {came}")
            for index, part in enumerate(np.split(channels_last(inputs[name]), count)):
                self.write(memory, self.of_microbatch(name, index), part)
        if labels is not None:
            if not self.options.train:
                raise ValueError("a program of inference takes no labels")
            for index, part in enumerate(np.split(np.asarray(labels, np.float32), count)):
                self.write(memory, self.of_microbatch(LABELS, index), part)

    def outcome(self, memory: NDArray[np.uint8]) -> tuple[float, int]:
        """Mean loss of the mini-batch, and how many samples it had right."""
        found = [
            [
                float(self.read(memory, self.of_microbatch(name, index))[0])
                for name in (LOSS, CORRECT)
            ]
            for index in range(self.num_microbatches)
        ]
        losses, correct = zip(*found, strict=True)
        return sum(losses) / len(losses), round(sum(correct))

    def write(self, memory: NDArray[np.uint8], name: str, values: NDArray[np.float32]) -> None:
        """Write a tensor, rounded to BF16 where that is its format."""
        place = self.places[name]
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        wide = place.end - place.begin == 4 * flat.size
        raw = flat.view(np.uint8) if wide else fp32.to_bf16(flat).view(np.uint8)
        memory[place.begin : place.end] = raw

    def read(self, memory: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        """Read a tensor, shaped as it lies in memory; of parameters, flat."""
        place = self.places[name]
        raw = np.ascontiguousarray(memory[place.begin : place.end])
        tensor = self.tensors.get(name)
        if tensor is None or tensor.fp32:
            values = raw.view(np.float32)
        else:
            values = fp32.from_bf16(raw.view(np.uint16))
        return values if tensor is None else values.reshape(tensor.shape)


def channels_last(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Images with their channels as the last axis; all else as it is."""
    return np.moveaxis(values, 1, -1) if values.ndim == 4 else values


def channels_first(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inverse of `channels_last`."""
    return np.moveaxis(values, -1, 1) if values.ndim == 4 else values
