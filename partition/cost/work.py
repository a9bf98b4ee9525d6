"""The work of a layer: matrix products, element-wise operations, bytes to keep.

All of it follows from the shapes and holds for any device; :mod:`fpgapipe.partition.cost.cost`
turns it into cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.cycles.gemm import ProductSpec
from fpgapipe.lowering.kernels.elements.formula import Formula
from fpgapipe.lowering.tiling.channels import padded
from fpgapipe.lowering.units.images.volume_unit import depth_of
from fpgapipe.lowering.units.layers.depthwise_unit import is_depthwise
from fpgapipe.lowering.units.layers.function_units import formula_of
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import Graph, Layer
from fpgapipe.network.operators import (
    AxisMap,
    Conv,
    ConvTranspose,
    Embedding,
    Linear,
    Pass,
    Pool,
    Recurrent,
    Slice,
    Softmax,
)
from fpgapipe.partition.cost.work_products import Formats, products, untouched_inputs


@dataclass(frozen=True)
class VectorWork:
    """Element-wise work: lane operations and memory traffic.

    Parameters
    ----------
    operations : int
        Number of additions, multiplications, multiply-adds, comparisons, selections and function
        lookups. A lane does one of them per cycle.
    read_bytes, write_bytes : int
        Bytes read from memory and written to it.
    functions : int
        Number of operations that are function lookups, which fewer lanes do.
    """

    operations: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    functions: int = 0

    def __add__(self, other: VectorWork) -> VectorWork:
        return VectorWork(
            self.operations + other.operations,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
            self.functions + other.functions,
        )


NO_WORK = VectorWork()


@dataclass(frozen=True)
class PassWork:
    """Work of one pass of one layer.

    Parameters
    ----------
    products : tuple of ProductSpec
        Matrix products, which run one after the other.
    vector : VectorWork
        Element-wise work, which runs after the products or concurrently with them.
    concurrent : bool
        Whether the vector engine works concurrently with the array (as for a bias's gradient) and
        not after it.
    """

    products: tuple[ProductSpec, ...] = ()
    vector: VectorWork = NO_WORK
    concurrent: bool = False


# Lane operations per element of the output in the forward and in the backward pass of operators
# that have no formula.
POINTWISE_OPERATIONS = {
    "relu": (1, 1),
    "leaky_relu": (1, 1),
    "prelu": (1, 3),
    "add": (1, 0),
    "sub": (1, 1),
    "mul": (1, 2),
    "div": (2, 5),
    "max": (2, 5),
    "min": (2, 5),
    "pow": (3, 5),
    # That of a square, for powers that the core does not compute.
    "power": (1, 3),
    "affine": (1, 1),
    "dropout": (1, 1),
    "cast": (1, 1),
    "compare": (1, 0),
    "masked_fill": (1, 1),
    "transpose": (1, 1),
    "expand": (1, 1),
    "pad": (1, 1),
    "softmax": (4, 3),
    "log_softmax": (4, 3),
    # Mean and variance in one pass over rows that stay on chip; then normalisation and scaling.
    "layer_norm": (4, 8),
    "local_response_norm": (6, 10),
    # Clipping, and a quotient that is rounded as a division would be.
    "quantise": (13, 0),
    "integer_add": (14, 0),
    "dequantise": (1, 0),
    "rescale": (2, 0),
}

# Those among them that are functions from a table.
TABLE_FUNCTIONS = {"softmax": (1, 0), "log_softmax": (1, 1)}

RELU_LIKE = ("relu", "relu6", "leaky_relu")
"""Activation functions whose gradient follows from the result."""

FREE = ("reshape", "flatten", "slice", "split", "concat", "constant", "unlisted")
"""Layers that move no data: their producers and consumers only use other addresses."""

MOVED = ("transpose", "expand", "pad")
"""Layers that only move elements."""

LOSS_OPERATIONS = 7
"""Operations on each logit: select the label's, add it up, maximum, exponential, sum, share, and
the label's own share of the gradient."""

_KEEP_OUTPUT = (
    *RELU_LIKE,
    "softmax",
    "log_softmax",
)
_KEEP_INPUTS = (
    "prelu", "mul", "div", "max", "min", "pow", "power", "layer_norm",
    "local_response_norm", "batch_norm", "linear", "conv", "lstm", "gru", "matmul", "embedding",
)  # fmt: skip


def fused_layers(graph: Graph) -> dict[str, str]:
    """Layers that run together with a layer before them, with that layer's name."""
    return {name: names[0] for names in layers_together(graph) for name in names[1:]}


def consumers(graph: Graph) -> dict[str, list[Layer]]:
    """The layers that read each layer's output; a layer that reads it twice is listed twice."""
    readers: dict[str, list[Layer]] = {name: [] for name in graph.layers}
    for layer in graph.layers.values():
        for name in layer.inputs:
            if name in readers:
                readers[name].append(layer)
    return readers


@dataclass(frozen=True)
class LayerWork:
    """Work that a layer gives a core, and the data that it keeps.

    Attributes
    ----------
    layer : Layer
    passes : dict of Pass to PassWork
        Work of each pass that the layer has.
    update : VectorWork
        The optimiser's step, once per mini-batch.
    kept : tuple of (str, int)
        Names and bytes of the tensors of the forward pass that the backward pass needs. The name
        of a layer or network input stands for its output; other names say what the tensor is.
    owned : int
        Learned elements that no earlier layer has; shared ones count in the first layer.
    operands : int
        Learned elements that the array takes as operands, shared ones included.
    fused_into : str or None
        The layer that does this layer's work along with its own.
    """

    layer: Layer
    passes: dict[Pass, PassWork]
    update: VectorWork
    kept: tuple[tuple[str, int], ...]
    owned: int
    operands: int
    fused_into: str | None


def network_work(
    graph: Graph, formats: Formats, *, accumulates: bool = False
) -> tuple[LayerWork, ...]:
    """The work of training a network, layer by layer.

    If it `accumulates`, weight gradients are added to those of earlier micro-batches.
    """
    readers, fused = consumers(graph), fused_layers(graph)
    followers: dict[str, list[Layer]] = {}
    for name, into in fused.items():
        followers.setdefault(into, []).append(graph.layers[name])
    seen: set[str] = set()
    result = []
    for layer in graph.layers.values():
        learned = {p.name: p.spec.elements for p in layer.parameters if p.spec.trainable}
        owned = sum(size for name, size in learned.items() if name not in seen)
        seen |= set(learned)
        matrix = products(graph, layer, formats)
        if accumulates and Pass.WEIGHT_GRADIENT in matrix:
            added = [replace(each, accumulates=True) for each in matrix[Pass.WEIGHT_GRADIENT]]
            matrix[Pass.WEIGHT_GRADIENT] = tuple(added)
        vector = dict.fromkeys(matrix, NO_WORK)
        behind = followers.get(layer.name, [])
        if layer.name not in fused:
            _add_own_work(layer, formats, vector)
            _add_gradient(vector, _fused_gradient(layer, behind, formats))
            vector[Pass.FORWARD] += _fused_sums(behind, formats)
            for each in behind:
                vector[Pass.FORWARD] += _on_chip(each, _forward(each, formats))
                _add_gradient(vector, _on_chip(each, _backward(each, formats, wants_input=True)))
        if _is_followed(layer, behind):
            matrix[Pass.FORWARD] = _exact_results(matrix[Pass.FORWARD], formats)
            vector[Pass.FORWARD] += _after_product(layer, formats)
        _add_gradient(vector, _gradient_sum(graph, layer, readers[layer.name], formats))
        if layer.name in graph.outputs and layer.op != "cross_entropy":
            _add_gradient(vector, _loss(layer, formats))
        concurrent = not isinstance(layer.operator, Recurrent) and not _is_followed(layer, behind)
        operands = weight_elements(layer)
        result.append(
            LayerWork(
                layer,
                {each: PassWork(matrix[each], vector[each], concurrent) for each in matrix},
                update_work(owned, formats),
                _kept(layer, readers[layer.name], formats) if len(matrix) > 1 else (),
                owned,
                operands,
                fused.get(layer.name),
            )
        )
    return tuple(result)


def _add_gradient(vector: dict[Pass, VectorWork], work: VectorWork) -> None:
    """Add work to the first backward pass of a layer, if it has one."""
    for each in vector:
        if each is not Pass.FORWARD:
            vector[each] += work
            return


def _is_followed(layer: Layer, behind: Sequence[Layer]) -> bool:
    """Whether the sums of a product go through the vector engine: for a bias or a ReLU."""
    return isinstance(layer.operator, Conv | Linear) and (_has_bias(layer) or bool(behind))


def _has_bias(layer: Layer) -> bool:
    return any(p.spec.role.startswith("bias") for p in layer.parameters)


def _exact_results(found: Sequence[ProductSpec], formats: Formats) -> tuple[ProductSpec, ...]:
    """Products that write their sums in FP32, to be read by a pass of the vector engine."""
    wider = formats.state_bytes // formats.activation_bytes
    return tuple(replace(each, out_bytes=wider * each.out_bytes) for each in found)


def _after_product(layer: Layer, formats: Formats) -> VectorWork:
    """The pass that adds the bias to a product's sums and applies the ReLU."""
    out = layer.output.elements
    return VectorWork(out, formats.state_bytes * out, formats.activation_bytes * out)


def _fused_sums(behind: Sequence[Layer], formats: Formats) -> VectorWork:
    """Work of sums that run together with a normalisation: the other summand is read."""
    work = NO_WORK
    for layer in behind:
        if layer.op == "add":
            work += VectorWork(layer.output.elements, formats.tensor_bytes(layer.output))
    return work


def _on_chip(layer: Layer, work: VectorWork) -> VectorWork:
    """Work of a layer that runs in the kernels of one before it, which keep its operands on chip.

    Sums and ReLUs have work of their own (`_fused_sums`, `_fused_gradient`), and what is moved has
    another order from the beginning.
    """
    if layer.op in (*RELU_LIKE, *MOVED, "add"):
        return NO_WORK
    return VectorWork(work.operations, functions=work.functions)


def _loss(layer: Layer, formats: Formats) -> VectorWork:
    """Work of the loss of an output and its gradient: cross-entropy with a label for each row."""
    size, moved = layer.output.elements, formats.tensor_bytes(layer.output)
    return VectorWork(LOSS_OPERATIONS * size, moved, moved, size)


def _fused_gradient(layer: Layer, behind: Sequence[Layer], formats: Formats) -> VectorWork:
    """Work of the gradient of a ReLU that runs together with the layer before it.

    The result's gradient and the result, whose sign tells where the argument was positive, are
    read, and the gradient of the argument is written. It comes before the gradients of a product,
    and along with the first of two passes of a normalisation.
    """
    if not any(each.op in RELU_LIKE for each in behind):
        return NO_WORK
    size = formats.tensor_bytes(layer.output)
    reads = size if layer.op == "batch_norm" else 2 * size
    return VectorWork(layer.output.elements, reads, size)


def _add_own_work(layer: Layer, formats: Formats, vector: dict[Pass, VectorWork]) -> None:
    """Add the layer's own element-wise work to each of its passes."""
    vector[Pass.FORWARD] = _forward(layer, formats)
    wants_input = Pass.INPUT_GRADIENT in vector
    backward = [each for each in vector if each is not Pass.FORWARD]
    if backward:
        # Work that is done once for all gradients counts in the layer's first backward pass.
        vector[backward[0]] = _backward(layer, formats, wants_input)
    if wants_input:
        zeros = untouched_inputs(layer) * formats.activation_bytes
        vector[Pass.INPUT_GRADIENT] += VectorWork(0, 0, zeros)
    if layer.gemms and _has_bias(layer) and Pass.WEIGHT_GRADIENT in vector:
        # A bias's gradient is the column sums of the output's gradient.
        vector[Pass.WEIGHT_GRADIENT] += VectorWork(
            layer.output.elements, formats.tensor_bytes(layer.output)
        )


def _gradient_sum(
    graph: Graph, layer: Layer, readers: Sequence[Layer], formats: Formats
) -> VectorWork:
    """Work of adding the gradients from several readers; slices of a split do not overlap."""
    if len(readers) < 2:
        return NO_WORK
    addends = 0
    for reader in readers:
        wanted = graph.input_gradients(reader.name)
        if not isinstance(reader.operator, Slice) and layer.name in {
            reader.inputs[i] for i in wanted
        }:
            addends += 1
    size = formats.tensor_bytes(layer.output)
    sums = max(addends - 1, 0)
    return VectorWork(sums * layer.output.elements, 2 * sums * size, sums * size)


def _windows_by_channel(layer: Layer) -> int:
    """Taps of a depthwise convolution, which runs on the vector engine; 0 for other layers."""
    if not layer.input_tensors or not is_depthwise(layer.operator, layer.input_tensors[0].shape):
        return 0
    assert isinstance(layer.operator, Conv)
    return math.prod(layer.operator.kernel)


def _copied(layer: Layer) -> int:
    """Elements, in whole vectors, of the images of a convolution with three axes; 0 for others."""
    operator = layer.operator
    if not isinstance(operator, Conv | ConvTranspose) or len(operator.kernel) < 3:
        return 0
    depth = depth_of(layer)
    pixels = depth.batch * depth.results * depth.positions
    return pixels * depth.taps * depth.groups * padded(depth.own)


def _forward(layer: Layer, formats: Formats) -> VectorWork:
    x = layer.input_tensors[0] if layer.input_tensors else layer.output
    reads = sum(map(formats.tensor_bytes, layer.input_tensors))
    writes = formats.tensor_bytes(layer.output)
    out = layer.output.elements
    op = layer.op
    if windows := _windows_by_channel(layer):
        return VectorWork(windows * out, reads, writes)
    if copied := _copied(layer):
        return VectorWork(copied, reads, copied * formats.activation_bytes)
    if op in FREE or (layer.gemms and not isinstance(layer.operator, Recurrent)):
        return NO_WORK
    if isinstance(layer.operator, Recurrent):
        # The gates' functions and what becomes of them are nine instructions. Four numbers and the
        # cell are written for the backward pass.
        functions = 5 if op == "lstm" else 3
        return VectorWork(9 * out, 0, 5 * out * formats.activation_bytes, functions * out)
    if op == "batch_norm":
        # Mean, variance and result take a pass each; the variance is of differences to the mean.
        return VectorWork(4 * x.elements, 3 * reads, writes)
    if isinstance(layer.operator, AxisMap):
        return VectorWork(_products(layer), reads, writes)
    if isinstance(layer.operator, Pool):
        # The maximum and its place in the window take a pass each.
        passes = 2 if layer.operator.function == "max" else 1
        work = passes * out * math.prod(layer.operator.kernel)
        return VectorWork(work, reads, writes + _index_bytes(layer, formats))
    if op == "embedding":
        return _one_hot(layer, formats)
    if op == "select":
        return VectorWork(out, out * formats.state_bytes, writes)
    if op == "cross_entropy":
        return VectorWork(5 * x.elements, reads, formats.tensor_bytes(x), functions=x.elements)
    if counts := _lane_counts(layer):
        return _on_each(layer, counts[0], reads, writes)
    return VectorWork(x.elements, reads, writes)  # global pooling, reductions


def _backward(layer: Layer, formats: Formats, wants_input: bool) -> VectorWork:
    x = layer.input_tensors[0] if layer.input_tensors else layer.output
    given = formats.tensor_bytes(layer.output)
    reads = sum(map(formats.tensor_bytes, layer.input_tensors))
    out = layer.output.elements
    op = layer.op
    if windows := _windows_by_channel(layer):
        # The weight's gradient reads both, the input's gradient what is given.
        own = VectorWork(windows * out, given + reads, 0)
        back = VectorWork(windows * x.elements, given, reads)
        return own + back if wants_input else own
    if copied := _copied(layer):
        return VectorWork(copied, copied * formats.state_bytes, reads)
    shorter = [each for each in layer.input_tensors if each.elements < out]
    if op in ("add", "sub", "mul") and shorter:
        # Each is a sum of the result's gradient over the axes along which it was repeated.
        factors = reads if op == "mul" else 0
        written = sum(map(formats.tensor_bytes, shorter))
        work = VectorWork(out * len(shorter), given * len(shorter) + factors, written)
        if op == "mul" and len(shorter) == 1:
            work += VectorWork(out, given, given)
        return work
    if op in (*FREE, "add") or (layer.gemms and not isinstance(layer.operator, Recurrent)):
        return NO_WORK
    if isinstance(layer.operator, Recurrent):
        # Gradients of both products are written unless they are the same.
        written = 4 if op == "lstm" else 6
        read, write = (count * out * formats.activation_bytes for count in (6, written))
        return VectorWork(18 * out, read, write, functions=out if op == "lstm" else 0)
    if op == "batch_norm":
        # The first pass sums dY and dY times the normalised input; the second computes dX from
        # both sums.
        first = VectorWork(3 * x.elements, reads + given)
        second = VectorWork(2 * x.elements, reads + given, reads)
        return first + second if wants_input else first
    if isinstance(layer.operator, AxisMap):
        return VectorWork(_products(layer), given, reads)
    if isinstance(layer.operator, Pool):
        if layer.operator.function == "max":
            # A window's gradient goes to one input element, but all elements are written.
            return VectorWork(x.elements + out, given + _index_bytes(layer, formats), reads)
        return VectorWork(out * math.prod(layer.operator.kernel), given, reads)
    if op == "embedding":
        return _one_hot(layer, formats)
    if op == "select":
        # Rows of the table's gradient are read, added to and written back to memory.
        return VectorWork(out, given + out * formats.state_bytes, out * formats.state_bytes)
    if op == "cross_entropy":
        return VectorWork(2 * x.elements, formats.tensor_bytes(x), formats.tensor_bytes(x))
    if counts := _lane_counts(layer):
        kept = sum(size for name, size in kept_tensors(layer, formats))
        written = sum(formats.tensor_bytes(t) for t in layer.input_tensors if t.dtype.is_float)
        return _on_each(layer, counts[1], given + kept, written)
    return VectorWork(x.elements, given, reads)


def _one_hot(layer: Layer, formats: Formats) -> VectorWork:
    """Rows with a single one, by which the array multiplies an embedding's table."""
    assert isinstance(layer.operator, Embedding)
    size = math.prod(layer.input_tensors[0].shape) * layer.operator.num_embeddings
    return VectorWork(size, 0, size * formats.activation_bytes)


def _formula(layer: Layer) -> Formula | None:
    """The formula of a layer's operator; None if it has none, or the core does not run it."""
    try:
        return formula_of(layer.operator)
    except NotImplementedError:
        return None


def _lane_counts(layer: Layer) -> list[tuple[int, int]] | None:
    """Vector operations on each element, and those that look a function up, of both passes.

    None if these are not all of a layer's work.
    """
    if formula := _formula(layer):
        operations, functions = formula.lane_operations, formula.table_functions
    elif layer.op in POINTWISE_OPERATIONS:
        operations = POINTWISE_OPERATIONS[layer.op]
        functions = TABLE_FUNCTIONS.get(layer.op, (0, 0))
    else:
        return None
    return list(zip(operations, functions, strict=True))


def _on_each(
    layer: Layer, counts: tuple[int, int], read_bytes: int, write_bytes: int
) -> VectorWork:
    """Work of a pass on each element that a layer's rows have."""
    elements = layer.output.elements
    if isinstance(layer.operator, Softmax) and layer.operator.causal:
        rows, columns = layer.output.shape[-2:]  # row i has the first i + 1 columns
        elements = elements * (2 * columns - rows + 1) // (2 * columns)
    operations, functions = (count * elements for count in counts)
    return VectorWork(operations, read_bytes, write_bytes, functions)


def _products(layer: Layer) -> int:
    """Multiply-adds of a map of an axis."""
    operator = layer.operator
    assert isinstance(operator, AxisMap)
    return layer.output.elements // len(operator.taps) * operator.products


def _kept(layer: Layer, readers: Sequence[Layer], formats: Formats) -> tuple[tuple[str, int], ...]:
    """Tensors that a layer keeps; a ReLU's result is kept by a reader if it needs it, too."""
    if layer.op in RELU_LIKE and any(
        name == layer.name for reader in readers for name, _ in kept_tensors(reader, formats)
    ):
        return ()
    return kept_tensors(layer, formats)


def kept_tensors(layer: Layer, formats: Formats) -> tuple[tuple[str, int], ...]:
    """Names and bytes of the tensors of the forward pass that the backward pass needs.

    The name of a layer or network input stands for its output; other names say what the tensor is.
    """
    op = layer.op
    inputs = tuple(
        (name, formats.tensor_bytes(tensor))
        for name, tensor in zip(layer.inputs, layer.input_tensors, strict=True)
    )
    if op == "max_pool":
        return ((f"{layer.name}.indices", _index_bytes(layer, formats)),)
    if op == "cross_entropy":
        return ((f"{layer.name}.softmax", formats.tensor_bytes(layer.input_tensors[0])), inputs[1])
    if isinstance(layer.operator, Recurrent):
        gates = 5 * layer.output.elements * formats.activation_bytes
        return (
            *inputs,
            (f"{layer.name}.gates", gates),
            (layer.name, formats.tensor_bytes(layer.output)),
        )
    if op in ("global_max_pool", "reduce_max", "reduce_min"):
        return (*inputs, (layer.name, formats.tensor_bytes(layer.output)))
    if op in _KEEP_OUTPUT:
        return ((layer.name, formats.tensor_bytes(layer.output)),)
    formula = _formula(layer)
    return inputs if op in _KEEP_INPUTS or (formula and formula.keeps_argument) else ()


def _index_bytes(layer: Layer, formats: Formats) -> int:
    """Bytes that record which element of each window was the largest, a number for each."""
    return formats.tensor_bytes(layer.output) if layer.op == "max_pool" else 0


def update_work(owned: int, formats: Formats) -> VectorWork:
    """Work of SGD with momentum and weight decay on `owned` learned elements.

    Each element takes three multiply-adds. Master weight, momentum and gradient are read, and the
    first two are written.
    """
    state = formats.state_bytes * owned
    return VectorWork(3 * owned, 3 * state, 2 * state)


def weight_elements(layer: Layer) -> int:
    """Learned elements that the array takes as operands."""
    if not layer.gemms:
        return 0
    return sum(
        p.spec.elements
        for p in layer.parameters
        if p.spec.trainable and p.spec.role.startswith("weight")
    )
