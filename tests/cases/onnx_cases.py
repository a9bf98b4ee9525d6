"""ONNX's own cases of operators, run on a core: collected, lowered, and held to what ONNX expects.

A case is a model of one node with inputs and expected outputs. Most go the whole way: the model is
imported, made a program by `build_step`, and run. What a network has no layer for (optimisers,
statistics of a batch) is run as kernels.
"""

import warnings
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache

import numpy as np
import onnx
from kernel_cases import CORE, bits_of, place, values_of
from onnx import helper, numpy_helper

from fpgapipe.host.bench.step_check import product_errors, steps_of, unfolded
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import Constant
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.kernels import activation, normalisation, optimiser, pointwise
from fpgapipe.lowering.kernels.loss import (
    class_numbers,
    class_numbers_content,
    cross_entropy,
)
from fpgapipe.lowering.kernels.products import product_kernel
from fpgapipe.lowering.kernels.softmax import softmax
from fpgapipe.lowering.memory.memory_map import channels_first, channels_last
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.program.assemble import assemble
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.tiling.channels import small
from fpgapipe.lowering.tiling.kernel import Region, Tensor
from fpgapipe.lowering.units.attention.matmul_unit import MatMulUnit
from fpgapipe.lowering.units.layers.conv_of_layer import conv_of
from fpgapipe.lowering.units.layers.step_units import ProductUnit
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.frontends.onnx.onnx_model import read_onnx
from fpgapipe.sim_tb.native.core_device import build_device, run_program

VECTOR_TOLERANCE = 1e-6
"""Of results without matrix products, relative to the largest magnitude."""

FEW_DIGITS = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 5e-4}
"""Cases whose numbers ONNX has with four digits only."""


class Machine:
    """Runs programs on the bit-exact model of a core."""

    def __init__(self, core=CORE):
        self.core = core
        half = replace(core.scratchpad, banks=core.scratchpad.banks // 2)
        self.product_core = replace(core, scratchpad=half)
        self.region = Region(half.size_bytes, half.size_bytes)

    def run(self, memory, instructions, entry):
        """Let a program, which lies at `entry` of the memory, take effect on the memory."""
        CoreModel(self.core, memory).run(instructions)

    def run_kernels(self, kernels, tensors, values):
        """Run kernels; gives the contents of all tensors afterwards."""
        places, entry = place(tensors)
        instructions = assemble(kernels, places).instructions
        program = np.frombuffer(encode(instructions), np.uint8)
        memory = np.zeros(entry + -(-program.size // 4096) * 4096, np.uint8)
        memory[entry : entry + program.size] = program
        for name, content in values.items():
            tensor = next(each for each in tensors if each.name == name)
            memory[places[name].begin : places[name].end] = bits_of(tensor, content)
        self.run(memory, instructions, entry)
        return {
            tensor.name: values_of(
                tensor, memory[places[tensor.name].begin : places[tensor.name].end]
            )
            for tensor in tensors
        }


class SimulatedMachine(Machine):
    """Runs programs on the gateware, and finds the same in memory as on the model."""

    def __init__(self, core):
        super().__init__(core)
        self._library = build_device(core)[0]

    def run(self, memory, instructions, entry):
        """See `Machine`."""
        from fpgapipe.sim_tb.native.native import NativeDevice

        timing = MemorySpec()
        with NativeDevice(
            self._library,
            memory_bytes=memory.size,
            bytes_per_cycle=timing.bytes_per_cycle,
            latency_cycles=timing.latency_cycles,
        ) as device:
            device.reset()
            device.memory[:] = memory
            run_program(device, RegisterMap(self.core), entry, memory.size)
            super().run(memory, instructions, entry)
            np.testing.assert_array_equal(device.memory, memory)


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes
    ----------
    name : str
    model : onnx.ModelProto
    inputs, outputs : list of array
        Those expected, of the outputs.
    """

    name: str
    model: onnx.ModelProto
    inputs: list
    outputs: list

    @property
    def node(self):
        return self.model.graph.node[0]

    @property
    def attributes(self):
        return {each.name: helper.get_attribute_value(each) for each in self.node.attribute}

    @property
    def names(self):
        return [each.name for each in self.model.graph.input]


@lru_cache(maxsize=1)
def collect():
    """All cases by operator; those that write an operator as others, its expansion, left out."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about numbers that make no difference here
        cases = collect_testcases(None)
    found = {}
    for case in cases:
        if not fnmatch(case.name, "*_expanded*"):
            (node,) = case.model.graph.node
            found.setdefault(node.op_type, []).append(case)
    return found


def cases_of(operator):
    """Cases of an operator, by name."""
    found = {}
    for case in collect()[operator]:
        ((inputs, outputs),) = case.data_sets
        found[case.name] = Case(case.name, case.model, list(inputs), list(outputs))
    return found


@dataclass(frozen=True)
class Result:
    """Results of a case, and by how much each element may be off; None for a vector's tolerance."""

    found: list
    allowed: object = None

    def check(self, case):
        """Compare with what ONNX expects."""
        assert len(self.found) == len(case.outputs)
        for found, expected in zip(self.found, case.outputs, strict=True):
            assert found.shape == expected.shape
            allowed = self.allowed
            if allowed is None:
                relative = FEW_DIGITS.get(case.name, VECTOR_TOLERANCE)
                allowed = relative * np.abs(expected).max(initial=0)
            wrong = np.abs(found.astype(np.float64) - expected)
            assert (wrong <= allowed).all(), f"{case.name}: off by up to {wrong.max()}"


# ---------------------------------------------------------------------- as networks


def run_network(case, machine, path, constants=(), *, exact=False):
    """Import a case's model and run it; the inputs numbered `constants` are weights."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = case.names
    weights = [names[number] for number in constants if number < len(names)]
    kept = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    given = dict(zip(names, case.inputs, strict=True))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(given[name]), name) for name in weights
    )
    onnx.save(model, path)
    graph = read_onnx(path)
    program = build_step(graph, machine.core, options=StepOptions(activations=FP32, train=False))
    memory = program.image({name: np.asarray(v, np.float32) for name, v in graph.values.items()})
    program.set_batch(memory, {name: given[name] for name in graph.inputs})
    machine.run(memory, program.instructions, program.entry)
    (output,) = graph.outputs
    found = program.results(memory)[output].reshape(graph.layers[output].output.shape)
    if exact:
        return Result([found], 0)
    units = units_of(graph)
    if any(isinstance(unit, MatMulUnit) for unit in units):
        return Result([found], _matmul_bound(case))
    products = [unit for unit in units if isinstance(unit, ProductUnit)]
    if not products:
        return Result([found])
    (error,) = product_errors(program, memory)
    assert error.of_bound <= 1
    return Result([found], _network_bound(case, program, products[0], memory))


def _network_bound(case, program, unit, memory):
    """Bound of the error of a network of one product, which is computed in MXINT8."""
    layer = unit.layers[0]
    conv = conv_of(layer)
    operand = program.operands[unit.name, layer.inputs[0]]
    x = program.read(memory, operand).reshape(conv.batch, conv.h, conv.w, conv.cin)
    weight = next(each.name for each in layer.parameters if each.spec.role == "weight")
    w = program.read(memory, weight).reshape(conv.cout, -1)
    bound = product_bound(unfolded(conv, x), w, conv.depth).reshape(
        conv.batch, conv.oh, conv.ow, -1
    )
    (expected,) = case.outputs
    shape = layer.output.shape
    bound = channels_first(bound) if len(shape) == 4 else bound.reshape(shape)
    return bound + 2**-22 * np.abs(expected)


def _matmul_bound(case):
    """Bound of the error of matrix products in MXINT8, one for each index of the axes before."""
    (expected,) = case.outputs
    ones, others = case.inputs
    bound = np.empty(expected.shape)
    for index in np.ndindex(expected.shape[:-2]):
        one, other = ones[index], others[index]
        bound[index] = product_bound(one, other.T, one.shape[1])
    return bound + 2**-22 * np.abs(expected)


def product_bound(a, b, depth):
    """Bound of the error of ``a @ b.T``, as `fpgapipe.host.bench.step_check` derives it."""
    a, b = (np.ascontiguousarray(each, np.float64) for each in (a, b))
    step_a, step_b = steps_of(a, depth), steps_of(b, depth)
    bound = np.abs(a) @ step_b.T + step_a @ np.abs(b).T + step_a @ step_b.T
    return bound + a.shape[1] * 2.0**-23 * (np.abs(a) @ np.abs(b).T + bound)


# ---------------------------------------------------------------------- as kernels


def run_gemm(case, machine, path):
    """As a network where a linear layer is meant, else as kernels.

    What is transposed in memory already, ``A.T @ B``, is what a weight gradient is.
    """
    a, b, *c = case.inputs
    given = case.attributes
    features = b.shape[0 if given.get("transB") else 1]
    fits = not c or c[0].shape in ((features,), (1, features))
    if fits and not given.get("transA"):
        return run_network(case, machine, path, (1, 2))
    weight = b.T if given.get("transB") else b
    weight = np.ascontiguousarray(weight * np.float32(given.get("alpha", 1)))
    bias = np.float32(given.get("beta", 1)) * c[0] if c else np.zeros((), np.float32)
    tensors = [Tensor("a", a.shape), Tensor("b", weight.shape)]
    if given.get("transA"):
        k, m = a.shape
        shape = (m, features)
        conv, which = ConvSpec.linear(k, m, features), "weight"
        operands = (tensors[1], tensors[0])
        bound = product_bound(a.T, weight.T, k)
    else:
        m, k = a.shape
        shape = (m, features)
        conv, which = ConvSpec.linear(m, k, features), "input"
        operands = tensors
        bound = product_bound(a, weight.T, k)
    sums, result = Tensor("sums", shape), Tensor("y", shape)
    product = product_kernel(
        "gemm", conv, which, (*operands, sums), machine.product_core, MemorySpec()
    )
    # One number, or one for each element: both are a tensor of the result's shape here.
    added = Tensor("c", shape)
    addition = activation.add("c", sums, added, result, machine.region)
    values = {"a": a, "b": weight, "c": np.broadcast_to(bias, shape)}
    found = machine.run_kernels([product, addition], [*tensors, sums, added, result], values)
    return Result([found["y"]], bound + 2**-22 * np.abs(case.outputs[0]))


def run_binary(function, *, exact=False):
    """Runner of a function of two tensors, or one after the other of several."""

    def run(case, machine, path):
        first, *others = case.inputs
        tensors, kernels = [Tensor("x0", first.shape)], []
        values = {"x0": first}
        result = tensors[0]
        for number, other in enumerate(others, 1):
            x, y = Tensor(f"x{number}", other.shape), Tensor(f"y{number}", first.shape)
            values[x.name] = other
            tensors += [x, y]
            operands = (y.name, function, result, x, y, machine.region)
            if other.shape == first.shape:
                kernels.append(pointwise.binary(*operands))
            else:
                factors = small(f"factors{number}", 2, first.shape[-1])
                tensors.append(factors)
                kernels += pointwise.by_channel(*operands, factors=factors)
            result = y
        found = machine.run_kernels(kernels, tensors, values)
        return Result([found[result.name]], 0 if exact else None)

    return run


def run_add(case, machine, path):
    """As a network, or, of a number for each channel, as a kernel."""
    if len({each.shape for each in case.inputs}) == 1:
        return run_network(case, machine, path, exact=True)
    return run_binary("add", exact=True)(case, machine, path)


def run_softmax(case, machine, path):
    """The axis lies last in memory."""
    (x,) = case.inputs
    axis = case.attributes.get("axis", -1)
    moved = np.moveaxis(x, axis, -1)
    shape = (moved.size // moved.shape[-1], moved.shape[-1])
    tensors = [Tensor("x", shape), Tensor("y", shape)]
    log = case.node.op_type == "LogSoftmax"
    kernel = softmax("softmax", *tensors, machine.region, log=log)
    found = machine.run_kernels([kernel], tensors, {"x": moved})["y"]
    return Result([np.moveaxis(found.reshape(moved.shape), -1, axis)])


def run_cross_entropy(case, machine, path):
    """Loss, and logarithms of probabilities; classes lie last in memory."""
    x, labels = case.inputs
    moved = np.moveaxis(x, 1, -1)
    shape = (labels.size, x.shape[1])
    tensors = [Tensor("x", shape), Tensor("labels", shape[:1]), Tensor("loss", (1,))]
    kernels = [cross_entropy("loss", *tensors, machine.region)]
    table = class_numbers(shape[1])
    values = {"x": moved, "labels": labels, table.name: class_numbers_content(shape[1])}
    tensors.append(table)
    if len(case.outputs) > 1:
        tensors.append(Tensor("y", shape))
        kernels.append(softmax("softmax", tensors[0], tensors[-1], machine.region, log=True))
    found = machine.run_kernels(kernels, tensors, values)
    results = [found["loss"].reshape(())]
    if "y" in found:
        results.append(np.moveaxis(found["y"].reshape(moved.shape), -1, 1))
    return Result(results)


def run_batch_norm(case, machine, path):
    """As a network, or in training mode as kernels."""
    if not case.attributes.get("training_mode"):
        return run_network(case, machine, path, (1, 2, 3, 4))
    x, *rest = case.inputs
    channels = x.shape[1]
    moved = channels_last(x)
    names = ("gamma", "beta", "mean", "variance")
    rows = [Tensor(name, (channels,)) for name in names]
    norm = normalisation.BatchNorm(
        "norm",
        Tensor("x", moved.shape),
        *rows,
        epsilon=case.attributes.get("epsilon", 1e-5),
        momentum=1 - case.attributes.get("momentum", 0.9),
    )
    y = Tensor("y", moved.shape)
    kernels = normalisation.forward(norm, y, machine.region)
    values = {"x": moved} | dict(zip(names, rest, strict=True))
    found = machine.run_kernels(kernels, [norm.x, y, *rows, *norm.kept], values)
    # The running variance takes the sample's, as PyTorch's does; ONNX's takes the population's.
    number = x.size // channels
    before = rest[3] * (1 - norm.momentum)
    variance = before + (found["variance"] - before) * (number - 1) / number
    return Result([channels_first(found["y"]), found["mean"], variance.astype(np.float32)])


def run_optimiser(case, machine, path):
    """A kernel for each weight; rate, step and coefficients are values."""
    kind, given = case.node.op_type, {"norm_coefficient": 0.0} | case.attributes
    rate, step, *tensors = (np.asarray(each) for each in case.inputs)
    rate, step = float(rate), int(step)
    decay = Constant(given["norm_coefficient"])
    states = {"Momentum": 1, "Adam": 2}[kind]
    number = len(tensors) // (2 + states)
    results = []
    for index in range(number):
        own = tensors[index::number]
        weights, gradient, *moments = (
            Tensor(f"{name}{index}", each.shape) for name, each in zip("xgvh", own, strict=False)
        )
        at = (weights, gradient)
        if kind == "Momentum":
            # From the second step on, ONNX's beta multiplies what is added to the momentum.
            scale = given["beta"] if step > 0 else 1.0
            nesterov = given["mode"] == b"nesterov"
            assert scale == 1 or not nesterov
            settings = optimiser.Sgd(
                Constant(rate),
                Constant(given["alpha"]),
                Constant(given["norm_coefficient"] * scale),
                nesterov=nesterov,
                scale=Constant(scale),
            )
            kernel = optimiser.sgd(kind, settings, *at, machine.region, velocity=moments[0])
        else:
            first, second = given["alpha"], given["beta"]
            # ONNX adds its epsilon before the correction, so the rate takes both corrections.
            corrected = 1.0 if step == 0 else np.sqrt(1 - second**step) / (1 - first**step)
            settings = optimiser.Adam(
                Constant(rate * corrected),
                Constant(1.0),
                betas=(first, second),
                epsilon=given["epsilon"],
                weight_decay=decay,
            )
            kernel = optimiser.adam(kind, settings, *at, tuple(moments), machine.region)
        values = {tensor.name: each for tensor, each in zip((*at, *moments), own, strict=True)}
        found = machine.run_kernels([kernel], [*at, *moments], values)
        results.append([found[tensor.name] for tensor in (weights, *moments)])
    return Result([result[output] for output in range(1 + states) for result in results])
