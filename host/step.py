"""A training step of a network as the program of one core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.step_units import Unit, Value, units_of
from fpgapipe.hw.hls_models import fp32
from fpgapipe.hw.hls_models.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.isa import WORD_BYTES, Instruction, encode
from fpgapipe.hw.hls_models.kernels import activation, loss, optimiser
from fpgapipe.hw.hls_models.kernels.assemble import Placed, assemble, page
from fpgapipe.hw.hls_models.kernels.kernel import Kernel, Region, Tensor
from fpgapipe.hw.hls_models.vector_op import NUM_SCALARS, Constant
from fpgapipe.partition import operators as ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.partition.graph import Graph, Layer, Parameter

LABELS = "labels"
"""Tensor of the class numbers."""

LOSS = "loss"
"""Tensor of the batch's mean loss."""

PARAMETERS, GRADIENTS, MOMENTA = "parameters", "gradients", "momenta"
"""Tensors that hold those of all layers, so that an update is one kernel."""

CORRECT = "correct"
"""Tensor of the number of samples whose class was found."""


class Scalar(IntEnum):
    """Registers that a step's program reads numbers from; a host may set them for each step."""

    LEARNING_RATE = 0
    MOMENTUM = 1
    WEIGHT_DECAY = 2
    RANDOM_SEED = 14
    RANDOM_STEP = 15


def scalar_bits(
    *,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    seed: int = 0,
    step: int = 0,
) -> list[int]:
    """What the scalar registers hold."""
    bits = [0] * NUM_SCALARS
    for register, value in (
        (Scalar.LEARNING_RATE, learning_rate),
        (Scalar.MOMENTUM, momentum),
        (Scalar.WEIGHT_DECAY, weight_decay),
    ):
        bits[register] = int(np.float32(value).view(np.uint32))
    bits[Scalar.RANDOM_SEED] = seed & 0xFFFFFFFF
    bits[Scalar.RANDOM_STEP] = step & 0xFFFFFFFF
    return bits


def _ceil_word(size_bytes: int) -> int:
    return -(-size_bytes // WORD_BYTES) * WORD_BYTES


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
    """

    feature_bytes: int = 2
    train: bool = True


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


class StepBuilder:
    """Collects the kernels and tensors of a step.

    Attributes
    ----------
    graph : Graph
    core : CoreSpec
    product_core : CoreSpec
        The core with the part of the scratchpad that is the products'.
    region : Region
        The part that is the vector engine's.
    memory : MemorySpec
    values : dict of str to Value
        Results of layers, and inputs of the network.
    kernels : list of (str, Kernel)
        Each with the name of its unit.
    tensors : dict of str to Tensor
    random_key : int
    gradients : dict of str to str
        Tensor of the gradient of each value that has one.
    """

    def __init__(
        self, graph: Graph, core: CoreSpec, memory: MemorySpec, options: StepOptions
    ) -> None:
        if core.vector is None:
            raise UserError("a training step needs a core with a vector engine")
        if core.scratchpad.banks < 2:
            raise UserError(
                f"a training step needs at least 2 banks of scratchpad, not {core.scratchpad.banks}"
            )
        self.graph = graph
        self.core = core
        self.memory = memory
        self.options = options
        half = replace(core.scratchpad, banks=core.scratchpad.banks // 2)
        self.product_core = replace(core, scratchpad=half)
        self.region = Region(half.size_bytes, half.size_bytes, half.bank_bytes)
        self.random_key = int(Scalar.RANDOM_SEED)
        self.values: dict[str, Value] = {}
        self.kernels: list[tuple[str, Kernel]] = []
        self.tensors: dict[str, Tensor] = {}
        self.stored: dict[str, Stored] = {}
        self._unit = ""
        self.gradients: dict[str, str] = {}
        self._gradients: dict[str, list[Tensor]] = {}

    def add(self, kernel: Kernel) -> None:
        """Take a kernel; kernels run in the order in which they come."""
        self.kernels.append((self._unit, kernel))

    def declare(self, tensor: Tensor) -> Tensor:
        """Take a tensor that needs a place in memory."""
        assert tensor.name not in self.tensors, f"tensor {tensor.name} is there already"
        self.tensors[tensor.name] = tensor
        return tensor

    def tensor(self, name: str, shape: tuple[int, ...], element_bytes: int) -> Tensor:
        """Make a tensor."""
        return self.declare(Tensor(name, shape, element_bytes))

    def feature(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Make a tensor of features or their gradients; what leaves the network is FP32."""
        size = 4 if name in self.graph.outputs else self.options.feature_bytes
        return self.tensor(name, shape, size)

    # ------------------------------------------------------------------ parameters

    def parameter(self, layer: Layer, role: str) -> Tensor | None:
        """A layer's parameter, or None if it has none of that role."""
        for parameter in layer.parameters:
            if parameter.spec.role == role:
                return self._store(parameter, None, None)
        return None

    def weight(self, layer: Layer, x: Value) -> Tensor:
        """The weight of a product, with the input channels last."""
        (parameter,) = (each for each in layer.parameters if each.spec.role == "weight")
        shape = parameter.spec.shape
        if isinstance(layer.operator, ops.Conv):
            return self._store(parameter, shape, (0, 2, 3, 1))
        if x.image is None:
            return self._store(parameter, None, None)
        return self._store(parameter, (shape[0], *x.image), (0, 2, 3, 1))

    def _store(
        self, parameter: Parameter, split: tuple[int, ...] | None, order: tuple[int, ...] | None
    ) -> Tensor:
        found = self.stored.get(parameter.name)
        shape = parameter.spec.shape
        split = split or shape
        order = order or tuple(range(len(shape)))
        lies = tuple(split[axis] for axis in order)
        if found is None:
            found = Stored(parameter, Tensor(parameter.name, lies, 4), shape, split, order)
            self.stored[parameter.name] = found
        elif (found.split, found.order) != (split, order):
            raise UserError(
                f"parameter {parameter.name!r} is shared by layers that need it in different orders"
            )
        return found.tensor

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """Where the gradient of a parameter goes."""
        return Tensor(f"{parameter.name}.gradient", parameter.shape, 4)

    # ------------------------------------------------------------------ gradients of features

    def give_gradient(self, name: str, gradient: Tensor) -> None:
        """Take a gradient of a value from one of those that read it."""
        if name in self.graph.layers:
            self._gradients.setdefault(name, []).append(gradient)

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of a value, summed over all that read it; None if nothing gave one."""
        given = self._gradients.pop(name, [])
        if not given:
            return None
        total = given[0]
        for number, other in enumerate(given[1:]):
            last = self.feature(f"{name}.gradient{number}", total.shape)
            self.add(activation.add(last.name, total, other, last, self.region))
            total = last
        return total

    # ------------------------------------------------------------------ the whole

    def build(self) -> StepProgram:
        """Make the program."""
        graph, options = self.graph, self.options
        units = list(units_of(graph))
        for name, tensor in graph.inputs.items():
            if not tensor.dtype.is_float:
                raise UserError(
                    f"input {name!r} must have floating-point numbers, not {tensor.dtype}"
                )
            shape = tensor.shape
            if len(shape) == 4:
                shape = (shape[0], *shape[2:], shape[1])
            self.values[name] = Value(self.tensor(name, shape, options.feature_bytes))
        for unit in units:
            self._unit = f"{unit.name} forward"
            self.values[unit.name] = unit.forward(self)
        if options.train:
            self._train(units)
        return self._placed()

    def _train(self, units: list[Unit]) -> None:
        if len(self.graph.outputs) != 1:
            raise UserError(
                f"training needs a network with one output, the logits, not "
                f"{len(self.graph.outputs)}"
            )
        (output,) = self.graph.outputs
        logits = self.values[output].tensor
        self._unit = "loss"
        dlogits = self.tensor(f"{output}.dlogits", logits.shape, 4)
        labels = self.tensor(LABELS, logits.shape[:1], 4)
        result = self.tensor(LOSS, (1,), 4)
        correct = self.tensor(CORRECT, (1,), 4)
        self.declare(loss.class_numbers(logits.shape[-1]))
        self.add(
            loss.cross_entropy(
                "loss", logits, labels, result, self.region, gradient=dlogits, correct=correct
            )
        )
        self._gradients[output] = [dlogits]
        carrying = self.graph.input_gradients
        for unit in reversed(units):
            self._unit = f"{unit.name} backward"
            dy = self.gradient(unit.name)
            learns = any(
                parameter.spec.trainable for layer in unit.layers for parameter in layer.parameters
            )
            if dy is not None:
                self.gradients[unit.name] = dy.name
            if dy is not None and (learns or any(carrying(each.name) for each in unit.layers)):
                unit.backward(self, dy)
        self._unit = "update"
        weights, gradient, velocity = (
            Tensor(name, (self._arena_elements(),), 4) for name in (PARAMETERS, GRADIENTS, MOMENTA)
        )
        settings = optimiser.Sgd(
            Constant(register=Scalar.LEARNING_RATE),
            Constant(register=Scalar.MOMENTUM),
            Constant(register=Scalar.WEIGHT_DECAY),
        )
        self.add(
            optimiser.sgd("update", settings, weights, gradient, self.region, velocity=velocity)
        )

    @property
    def _learned(self) -> list[Stored]:
        return [each for each in self.stored.values() if each.parameter.spec.trainable]

    def _arena_elements(self) -> int:
        """Elements of all learned parameters, each of which begins at a whole word."""
        return sum(_ceil_word(each.tensor.size_bytes) for each in self._learned) // 4

    def _placed(self) -> StepProgram:
        """Give everything its place in memory."""
        places: dict[str, Placed] = {}
        at = 0

        def put(name: str, size_bytes: int) -> None:
            nonlocal at
            places[name] = Placed(at, at + size_bytes)
            at = page(at + size_bytes)

        for each in self.stored.values():
            if not each.parameter.spec.trainable:
                put(each.tensor.name, each.tensor.size_bytes)
        arenas = {PARAMETERS: "{}"}
        if self.options.train:
            arenas |= {GRADIENTS: "{}.gradient", MOMENTA: "{}.momentum"}
        for arena, name in arenas.items():
            begin = at
            inside = 0
            for each in self._learned:
                first = begin + inside
                places[name.format(each.tensor.name)] = Placed(
                    first, first + each.tensor.size_bytes
                )
                inside += _ceil_word(each.tensor.size_bytes)
            put(arena, inside)
        for tensor in self.tensors.values():
            if tensor.name not in places:
                put(tensor.name, tensor.size_bytes)
        kernels = [kernel for _, kernel in self.kernels]
        assembled = assemble(kernels, places, self.core)
        entry = at
        size = page(entry + len(encode(assembled.instructions)))
        return StepProgram(
            self.graph,
            self.core,
            self.options,
            assembled.instructions,
            assembled.kernel_of,
            [kernel.name for kernel in kernels],
            places,
            dict(self.tensors),
            dict(self.stored),
            dict(self.values),
            dict(self.gradients),
            entry,
            size,
        )


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
    gradients : dict of str to str
        Tensor of the gradient of each value that has one.
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

    def set_batch(
        self,
        memory: NDArray[np.uint8],
        inputs: Mapping[str, NDArray[np.float32]],
        labels: NDArray[np.integer] | None = None,
    ) -> None:
        """Write a batch: inputs as the network has them, and class numbers."""
        for name, tensor in self.graph.inputs.items():
            if name not in inputs or inputs[name].shape != tensor.shape:
                came = inputs[name].shape if name in inputs else "nothing"
                raise ValueError(f"input {name} must have shape {tensor.shape}, not {came}")
            self.write(memory, name, channels_last(inputs[name]))
        if labels is not None:
            if LABELS not in self.places:
                raise ValueError("a program of inference takes no labels")
            self.write(memory, LABELS, np.asarray(labels, np.float32))

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


def build_step(
    graph: Graph,
    core: CoreSpec,
    memory: MemorySpec | None = None,
    options: StepOptions | None = None,
) -> StepProgram:
    """Make the program of a training step, or of inference.

    Raises
    ------
    UserError
        If the core does not run a layer.
    NotImplementedError
        If a layer does not fit the core.
    """
    return StepBuilder(graph, core, memory or MemorySpec(), options or StepOptions()).build()
