"""A training step of a network as the program of one core."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.host.step_program import (
    CORRECT,
    LABELS,
    LOSS,
    NORM,
    PARAMETERS,
    SQUARES,
    SUFFIXES,
    Scalar,
    StepOptions,
    StepProgram,
    Stored,
)
from fpgapipe.host.step_units import Unit, Value, units_of
from fpgapipe.hw.hls_models.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.isa import WORD_BYTES, encode
from fpgapipe.hw.hls_models.kernels import activation, loss, optimiser
from fpgapipe.hw.hls_models.kernels.assemble import Placed, assemble, page
from fpgapipe.hw.hls_models.kernels.kernel import Kernel, Region, Tensor
from fpgapipe.hw.hls_models.vector_op import LANES, Constant
from fpgapipe.partition import operators as ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.partition.graph import Graph, Layer, Parameter


@contextmanager
def _naming(unit: Unit) -> Iterator[None]:
    """Say which layer it is that a kernel or a product refuses."""
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        text = str(error)
        named = text if text.startswith("layer ") else f"layer {unit.layers[0].name!r}: {text}"
        raise NotImplementedError(named) from error


def _ceil_word(size_bytes: int) -> int:
    return -(-size_bytes // WORD_BYTES) * WORD_BYTES


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
            with _naming(unit):
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
                with _naming(unit):
                    unit.backward(self, dy)
        self._unit = "update"
        self._update()

    def _update(self) -> None:
        """Let the optimiser take its step."""
        size = (self._arena_elements(),)
        weights, gradient, momenta, squares = (Tensor(name, size, 4) for name in SUFFIXES)
        clip = None
        if self.options.clips:
            clip, norm = self.tensor("clip", (LANES,), 4), self.tensor(NORM, (LANES,), 4)
            limit = Constant(register=Scalar.MAX_NORM)
            self.add(
                optimiser.clip_coefficient(
                    "clip", [gradient], clip, self.region, max_norm=limit, norm=norm
                )
            )
        decay = Constant(register=Scalar.WEIGHT_DECAY)
        if self.options.optimiser == "adam":
            adam = optimiser.Adam(
                Constant(register=Scalar.STEP_SIZE),
                Constant(register=Scalar.INVERSE_CORRECTION),
                weight_decay=decay,
            )
            moments = (momenta, squares)
            self.add(
                optimiser.adam("update", adam, weights, gradient, moments, self.region, clip=clip)
            )
            return
        sgd = optimiser.Sgd(
            Constant(register=Scalar.LEARNING_RATE), Constant(register=Scalar.MOMENTUM), decay
        )
        self.add(
            optimiser.sgd(
                "update", sgd, weights, gradient, self.region, velocity=momenta, clip=clip
            )
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
        arenas = list(SUFFIXES) if self.options.train else [PARAMETERS]
        if self.options.optimiser != "adam" and SQUARES in arenas:
            arenas.remove(SQUARES)
        for arena in arenas:
            begin = at
            inside = 0
            for each in self._learned:
                first = begin + inside
                places[each.tensor.name + SUFFIXES[arena]] = Placed(
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
