"""What a layer makes a core do: matrix products, element-wise passes, bytes to keep.

All of it follows from shapes and holds for any device; :mod:`fpgapipe.partition.cost.cost` turns it
into cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fpgapipe.hw.hls_models.cycles.gemm import ProductSpec
from fpgapipe.network.graph import Graph, Layer
from fpgapipe.network.operators import Lstm, Pass, Pool, Slice
from fpgapipe.partition.cost.work_products import Formats, products, untouched_inputs


@dataclass(frozen=True)
class VectorWork:
    """Element-wise work: operations of one lane each, and bytes over the memory.

    Parameters
    ----------
    operations : int
        Add, multiply, multiply-add, compare, select or look up a function: one a lane and cycle.
    read_bytes, write_bytes : int
    """

    operations: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def __add__(self, other: VectorWork) -> VectorWork:
        return VectorWork(
            self.operations + other.operations,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
        )


NO_WORK = VectorWork()


@dataclass(frozen=True)
class PassWork:
    """One pass of one layer.

    Parameters
    ----------
    products : tuple of ProductSpec
        One after the other.
    vector : VectorWork
        After the products, or beside them.
    beside : bool
        Whether the vector engine works while the array does (a bias's gradient), not after it.
    """

    products: tuple[ProductSpec, ...] = ()
    vector: VectorWork = NO_WORK
    beside: bool = False


# Lane operations for an element of the output: forward, backward. Functions from a table (exp,
# tanh, sigmoid, reciprocal, logarithm) count as one. Counted from the formulas.
POINTWISE_OPERATIONS = {
    "relu": (1, 1),
    "relu6": (1, 1),
    "leaky_relu": (1, 1),
    "prelu": (1, 3),
    "elu": (3, 2),
    "hardsigmoid": (2, 1),
    "hardswish": (3, 3),
    "sigmoid": (1, 2),
    "tanh": (1, 2),
    "gelu": (3, 6),
    "gelu_tanh": (5, 8),
    "silu": (2, 4),
    "add": (1, 0),
    "sub": (1, 1),
    "mul": (1, 2),
    "div": (2, 4),
    "pow": (3, 5),
    "neg": (1, 1),
    "abs": (1, 1),
    "exp": (1, 1),
    "log": (1, 2),
    "sqrt": (1, 2),
    "reciprocal": (1, 2),
    "erf": (2, 3),
    "affine": (1, 1),
    "dropout": (1, 1),
    "cast": (1, 1),
    "transpose": (1, 1),
    "expand": (1, 1),
    "pad": (1, 1),
    "softmax": (4, 3),
    "log_softmax": (4, 3),
    # Mean and variance in one pass over rows that stay on chip, normalise, scale.
    "layer_norm": (4, 8),
    "local_response_norm": (6, 10),
}

RELU_LIKE = ("relu", "relu6", "leaky_relu")
"""Activations that the drain of a product or the end of a vector pass applies in passing; backward
they need one bit an element."""

FREE = ("reshape", "flatten", "slice", "split", "concat", "constant", "unlisted")
"""Layers that only say where elements lie: producers and consumers use other addresses."""

_KEEP_OUTPUT = ("sigmoid", "tanh", "softmax", "log_softmax", "exp", "sqrt", "reciprocal")
_KEEP_INPUTS = (
    "prelu", "elu", "hardsigmoid", "hardswish", "gelu", "gelu_tanh", "silu", "log", "erf", "abs",
    "mul", "div", "pow", "layer_norm", "local_response_norm", "batch_norm", "linear", "conv",
    "lstm", "matmul", "embedding",
)  # fmt: skip


def fused_layers(graph: Graph) -> dict[str, str]:
    """ReLU-like layers that their producer applies in passing, and which layer that is.

    The producer is a product, an addition or a normalisation, and nothing else reads it.
    """
    readers = consumers(graph)
    fused = {}
    for layer in graph.layers.values():
        if layer.op not in RELU_LIKE:
            continue
        producer = graph.layers.get(layer.inputs[0])
        if producer is None or len(readers[producer.name]) != 1 or producer.name in graph.outputs:
            continue
        if producer.gemms or producer.op in ("add", "batch_norm", "layer_norm"):
            fused[layer.name] = producer.name
    return fused


def consumers(graph: Graph) -> dict[str, list[Layer]]:
    """Who reads a layer's output; a layer that reads it twice stands there twice."""
    readers: dict[str, list[Layer]] = {name: [] for name in graph.layers}
    for layer in graph.layers.values():
        for name in layer.inputs:
            if name in readers:
                readers[name].append(layer)
    return readers


@dataclass(frozen=True)
class LayerWork:
    """What a layer makes a core do and keep.

    Attributes
    ----------
    layer : Layer
    passes : dict of Pass to PassWork
        Those that the layer has.
    update : VectorWork
        The optimiser's step, once for each mini-batch.
    kept : tuple of (str, int)
        What the backward pass needs of the forward pass: names and bytes. A name is a layer's or
        network input's, meaning its output, or says what else it is.
    owned : int
        Learned elements that no earlier layer has: shared ones count in the first layer.
    operands : int
        Learned elements that the array takes as operands, shared ones included.
    fused_into : str or None
        The layer that does this one's work in passing.
    """

    layer: Layer
    passes: dict[Pass, PassWork]
    update: VectorWork
    kept: tuple[tuple[str, int], ...]
    owned: int
    operands: int
    fused_into: str | None


def network_work(graph: Graph, formats: Formats) -> tuple[LayerWork, ...]:
    """Everything that training on a network makes a core do, layer by layer."""
    readers, fused = consumers(graph), fused_layers(graph)
    masks = {into: mask_bytes(graph.layers[name]) for name, into in fused.items()}
    seen: set[str] = set()
    result = []
    for layer in graph.layers.values():
        learned = {p.name: p.spec.elements for p in layer.parameters if p.spec.trainable}
        owned = sum(size for name, size in learned.items() if name not in seen)
        seen |= set(learned)
        matrix = products(graph, layer, formats)
        vector = dict.fromkeys(matrix, NO_WORK)
        if layer.name not in fused:
            _add_own_work(layer, formats, vector)
        _add_others_work(
            vector,
            _gradient_sum(graph, layer, readers[layer.name], formats),
            masks.get(layer.name, 0),
        )
        beside = not isinstance(layer.operator, Lstm)
        operands = weight_elements(layer)
        result.append(
            LayerWork(
                layer,
                {each: PassWork(matrix[each], vector[each], beside) for each in matrix},
                update_work(owned, operands, formats),
                kept_tensors(layer, formats) if len(matrix) > 1 else (),
                owned,
                operands,
                fused.get(layer.name),
            )
        )
    return tuple(result)


def _add_others_work(vector: dict[Pass, VectorWork], gradient_sum: VectorWork, mask: int) -> None:
    """What a layer does for its readers: sum their gradients, apply the ReLU fused into it."""
    backward = [each for each in vector if each is not Pass.FORWARD]
    if backward:
        vector[backward[0]] += gradient_sum
    vector[Pass.FORWARD] += VectorWork(0, 0, mask)  # written beside the result
    for each in backward:
        vector[each] += VectorWork(0, mask)  # read with its gradient


def _add_own_work(layer: Layer, formats: Formats, vector: dict[Pass, VectorWork]) -> None:
    """Element-wise work of each pass that a layer has."""
    vector[Pass.FORWARD] = _forward(layer, formats)
    wants_input = Pass.INPUT_GRADIENT in vector
    backward = [each for each in vector if each is not Pass.FORWARD]
    if backward:
        # What is computed once for all gradients stands with the first that the layer has.
        vector[backward[0]] = _backward(layer, formats, wants_input)
    if wants_input:
        zeros = untouched_inputs(layer) * formats.activation_bytes
        vector[Pass.INPUT_GRADIENT] += VectorWork(0, 0, zeros)
    has_bias = any(p.spec.role.startswith("bias") for p in layer.parameters)
    if layer.gemms and has_bias and Pass.WEIGHT_GRADIENT in vector:
        # Column sums of the output's gradient, which passes by anyway.
        vector[Pass.WEIGHT_GRADIENT] += VectorWork(layer.output.elements)


def _gradient_sum(
    graph: Graph, layer: Layer, readers: Sequence[Layer], formats: Formats
) -> VectorWork:
    """Sum of the gradients from several readers; pieces of a split do not overlap."""
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


def _forward(layer: Layer, formats: Formats) -> VectorWork:
    x = layer.input_tensors[0] if layer.input_tensors else layer.output
    reads = sum(map(formats.tensor_bytes, layer.input_tensors))
    writes = formats.tensor_bytes(layer.output)
    out = layer.output.elements
    op = layer.op
    if op in FREE or (layer.gemms and not isinstance(layer.operator, Lstm)):
        return NO_WORK
    if isinstance(layer.operator, Lstm):
        # Four gate functions, two multiply-adds for the cell, its tanh, the output gate; the gates
        # and the cell are written for the backward pass.
        return VectorWork(9 * out, 0, 5 * out * formats.activation_bytes)
    if op == "batch_norm":
        # First pass: sum and sum of squares. Second: multiply-add.
        return VectorWork(3 * x.elements, 2 * reads, writes)
    if isinstance(layer.operator, Pool):
        taps = math.prod(layer.operator.kernel)
        return VectorWork(out * taps, reads, writes + _index_bytes(layer))
    if op == "embedding":
        return VectorWork(out, out * formats.state_bytes, writes)
    if op == "cross_entropy":
        return VectorWork(5 * x.elements, reads, formats.tensor_bytes(x))
    if op in POINTWISE_OPERATIONS:
        mask = mask_bytes(layer)
        return VectorWork(POINTWISE_OPERATIONS[op][0] * out, reads, writes + mask)
    return VectorWork(x.elements, reads, writes)  # global pooling, reductions


def _backward(layer: Layer, formats: Formats, wants_input: bool) -> VectorWork:
    x = layer.input_tensors[0] if layer.input_tensors else layer.output
    given = formats.tensor_bytes(layer.output)
    reads = sum(map(formats.tensor_bytes, layer.input_tensors))
    out = layer.output.elements
    op = layer.op
    if op in (*FREE, "add") or (layer.gemms and not isinstance(layer.operator, Lstm)):
        return NO_WORK
    if isinstance(layer.operator, Lstm):
        return VectorWork(
            18 * out, 6 * out * formats.activation_bytes, 4 * out * formats.activation_bytes
        )
    if op == "batch_norm":
        # First pass: sums of dY and of dY times the normalised input. Second: dX from both.
        first = VectorWork(3 * x.elements, reads + given)
        second = VectorWork(2 * x.elements, reads + given, reads)
        return first + second if wants_input else first
    if isinstance(layer.operator, Pool):
        if layer.operator.function == "max":
            # A window's gradient goes to one place; all places are written.
            return VectorWork(x.elements + out, given + _index_bytes(layer), reads)
        return VectorWork(out * math.prod(layer.operator.kernel), given, reads)
    if op == "embedding":
        # Rows of the table's gradient are read, added to and written back.
        return VectorWork(out, given + out * formats.state_bytes, out * formats.state_bytes)
    if op == "cross_entropy":
        return VectorWork(2 * x.elements, formats.tensor_bytes(x), formats.tensor_bytes(x))
    if op in POINTWISE_OPERATIONS:
        kept = sum(size for name, size in kept_tensors(layer, formats))
        written = sum(formats.tensor_bytes(t) for t in layer.input_tensors if t.dtype.is_float)
        return VectorWork(POINTWISE_OPERATIONS[op][1] * out, given + kept, written)
    return VectorWork(x.elements, given, reads)


def kept_tensors(layer: Layer, formats: Formats) -> tuple[tuple[str, int], ...]:
    """What the layer's backward pass needs of its forward pass: names and bytes.

    A name is a layer's (or network input's), meaning its output, or says what else it is.
    """
    op = layer.op
    inputs = tuple(
        (name, formats.tensor_bytes(tensor))
        for name, tensor in zip(layer.inputs, layer.input_tensors, strict=True)
    )
    if op in RELU_LIKE:
        return ((f"{layer.name}.mask", mask_bytes(layer)),)
    if op == "max_pool":
        return ((f"{layer.name}.indices", _index_bytes(layer)),)
    if op == "cross_entropy":
        return ((f"{layer.name}.softmax", formats.tensor_bytes(layer.input_tensors[0])), inputs[1])
    if isinstance(layer.operator, Lstm):
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
    return inputs if op in _KEEP_INPUTS else ()


def mask_bytes(layer: Layer) -> int:
    """One bit an element, of layers like ReLU."""
    return -(-layer.output.elements // 8) if layer.op in RELU_LIKE else 0


def _index_bytes(layer: Layer) -> int:
    """Which tap of its window was the largest, in as few bits as tell the taps apart."""
    if layer.op != "max_pool" or not isinstance(layer.operator, Pool):
        return 0
    bits = max(math.prod(layer.operator.kernel) - 1, 1).bit_length()
    return -(-layer.output.elements * bits // 8)


def update_work(owned: int, operands: int, formats: Formats) -> VectorWork:
    """SGD with momentum and weight decay over `owned` learned elements.

    Three multiply-adds an element; master weight, momentum and gradient are read, the first two
    written and the gradient cleared; the array's `operands` are written twice, blocked along either
    axis.
    """
    state = 3 * formats.state_bytes * owned
    return VectorWork(3 * owned, state, state + 2 * formats.operand_bytes(operands))


def weight_elements(layer: Layer) -> int:
    """Learned elements that the array takes as operands."""
    if not layer.gemms:
        return 0
    return sum(
        p.spec.elements
        for p in layer.parameters
        if p.spec.trainable and p.spec.role.startswith("weight")
    )
