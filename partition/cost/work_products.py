"""The matrix products of a layer's passes, in the form in which the array computes them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from fpgapipe.hw.hls_models.cycles.gemm import Axis, ProductSpec
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, MXINT8, ElementFormat
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.units.layers.depthwise_unit import is_depthwise
from fpgapipe.network.graph import Graph, Layer
from fpgapipe.network.operators import Conv, Embedding, Gemm, Pass
from fpgapipe.network.operators.tensors import Tensor


@dataclass(frozen=True)
class Formats:
    """Formats of the tensors in memory and on links.

    Parameters
    ----------
    activations : ElementFormat
        Format of activations and their gradients, BF16 or FP32.
    state : ElementFormat
        Format of master weights, their gradients and the optimiser's state, BF16 or FP32.
    """

    activations: ElementFormat = BF16
    state: ElementFormat = FP32

    def __post_init__(self) -> None:
        for name in ("activations", "state"):
            if getattr(self, name) not in (BF16, FP32):
                raise ValueError(f"{name} must be BF16 or FP32, not {getattr(self, name)}")

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of activations and their gradients."""
        return self.activations.element_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of an element of master weights, their gradients and the optimiser's state."""
        return self.state.element_bytes

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor in device memory; indices and labels keep their own types."""
        if tensor.dtype.is_float:
            return tensor.elements * self.activation_bytes
        return tensor.size_bytes

    @staticmethod
    def operand_bytes(elements: int) -> int:
        """Bytes that are set aside for a copy of weights, as if it were MXINT8 with its scales."""
        return elements + -(-elements // MXINT8.block)


def products(graph: Graph, layer: Layer, formats: Formats) -> dict[Pass, tuple[ProductSpec, ...]]:
    """The matrix products of each pass that a layer has."""
    passes = graph.passes(layer.name)
    if is_depthwise(layer.operator, layer.input_tensors[0].shape if layer.inputs else ()):
        return dict.fromkeys(passes, ())  # the vector engine runs it
    if isinstance(layer.operator, Conv):
        by_pass = {
            Pass.FORWARD: _conv_forward,
            Pass.INPUT_GRADIENT: _conv_input_gradient,
            Pass.WEIGHT_GRADIENT: _conv_weight_gradient,
        }
        return {each: by_pass[each](layer, layer.operator, formats) for each in passes}
    if isinstance(layer.operator, Embedding):
        rows = math.prod(layer.input_tensors[0].shape)
        table = Gemm(rows, layer.operator.num_embeddings, layer.operator.features)
        passes = {
            each: table.weight_gradients() if each is Pass.WEIGHT_GRADIENT else (table,)
            for each in passes
        }
    return {
        each: tuple(
            _plain_product(each, gemm, position, formats) for position, gemm in enumerate(gemms)
        )
        for each, gemms in passes.items()
    }


def _plain_product(which: Pass, gemm: Gemm, position: int, formats: Formats) -> ProductSpec:
    weights = which is not Pass.WEIGHT_GRADIENT and gemm.weights
    gradient = which is Pass.WEIGHT_GRADIENT
    # In a product of two activations, the second factor's gradient is X^T dY, like dW.
    transposed = gradient or (which is Pass.INPUT_GRADIENT and not gemm.weights and position > 0)
    streamed, across = gemm.m, gemm.n
    if gradient or (transposed and gemm.n > gemm.m):
        streamed, across = across, streamed  # dY passes tiles of X, and the longer of two factors
    right = gemm.k * across
    return ProductSpec(
        Axis(streamed),
        Axis(gemm.k),
        Axis(across),
        streamed * gemm.k * formats.activation_bytes,
        right * (formats.state_bytes if weights else formats.activation_bytes),
        gemm.m * gemm.n * (formats.state_bytes if gradient else formats.activation_bytes),
        gemm.count,
        gemm.steps,
        transposed=transposed,
        weights=weights,
    )


def _conv_shape(layer: Layer, conv: Conv) -> tuple[int, int, int, int, int]:
    """Numbers of output positions, taps, taps in a block, and channels in and out of a group."""
    (gemm,) = layer.gemms
    taps = math.prod(conv.kernel)
    channels = gemm.k // taps
    packed = channels < MX_BLOCK and conv.dilation[-1] == 1  # as `ConvSpec.is_packed`
    return gemm.m, taps, conv.kernel[-1] if packed else 1, channels, gemm.n


def _conv_forward(layer: Layer, conv: Conv, formats: Formats) -> tuple[ProductSpec, ...]:
    positions, taps, run, channels, outputs = _conv_shape(layer, conv)
    reads = _conv_input_elements(layer, conv)
    return (
        ProductSpec(
            Axis(positions),
            Axis(channels, taps, run),
            Axis(outputs),
            reads * formats.activation_bytes,
            taps * channels * outputs * formats.state_bytes,
            positions * outputs * formats.activation_bytes,
            conv.groups,
            weights=True,
        ),
    )


def _conv_input_elements(layer: Layer, conv: Conv) -> int:
    """Elements of a group's input that windows cover; a strided 1x1 kernel skips most."""
    (gemm,) = layer.gemms
    return min(layer.input_tensors[0].elements // conv.groups, gemm.m * gemm.k)


def _conv_weight_gradient(layer: Layer, conv: Conv, formats: Formats) -> tuple[ProductSpec, ...]:
    positions, taps, run, channels, outputs = _conv_shape(layer, conv)
    return (
        ProductSpec(
            Axis(outputs),
            Axis(positions),
            Axis(channels, taps, run),
            positions * outputs * formats.activation_bytes,
            _conv_input_elements(layer, conv) * formats.activation_bytes,
            taps * channels * outputs * formats.state_bytes,
            conv.groups,
            transposed=True,
        ),
    )


def _conv_input_gradient(layer: Layer, conv: Conv, formats: Formats) -> tuple[ProductSpec, ...]:
    """The input gradient of a convolution: one product for each phase of the stride.

    Input positions with the same remainder modulo the stride meet the same taps, and no others. A
    stride of 2 in two dimensions thus gives four products, and none multiplies by inserted zeros.
    Each product is complete in the accumulators, so nothing is scattered and added in memory.
    """
    positions, taps, _, channels, outputs = _conv_shape(layer, conv)
    batch = layer.output.shape[0]
    axes = [_phases(layer, conv, axis) for axis in range(len(conv.kernel))]
    result = []
    for phase in itertools.product(*axes):
        count = batch * math.prod(each[0] for each in phase)
        phase_taps = math.prod(each[1] for each in phase)
        share = phase_taps / taps
        result.append(
            ProductSpec(
                Axis(count),
                Axis(outputs, phase_taps),
                Axis(channels),
                # The phases of a region run while its gradients are on chip, so each phase pays
                # for its share of the reads.
                math.ceil(positions * outputs * formats.activation_bytes * share),
                phase_taps * channels * outputs * formats.state_bytes,
                count * channels * formats.activation_bytes,
                conv.groups,
                weights=True,
            )
        )
    return tuple(result)


def _phases(layer: Layer, conv: Conv, axis: int) -> list[tuple[int, int]]:
    """Numbers of positions and of taps, along one axis, of each phase that has any."""
    size = layer.input_tensors[0].shape[axis + 2]
    stride, before = conv.stride[axis], conv.padding[axis][0]
    taps = [0] * stride
    for tap in range(conv.kernel[axis]):
        taps[tap * conv.dilation[axis] % stride] += 1
    found = []
    for phase in range(stride):
        first = (phase - before) % stride
        number = -(-(size - first) // stride) if first < size else 0
        if number and taps[phase]:
            found.append((number, taps[phase]))
    return found


def untouched_inputs(layer: Layer) -> int:
    """Number of elements of a convolution's input that no window reads; their gradient is 0."""
    conv = layer.operator
    if not isinstance(conv, Conv):
        return 0
    x = layer.input_tensors[0]
    read = math.prod(
        sum(number for number, _ in _phases(layer, conv, axis)) for axis in range(len(conv.kernel))
    )
    return x.elements - math.prod(x.shape[:2]) * read
