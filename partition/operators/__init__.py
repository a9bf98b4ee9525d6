"""The operators of a network: frozen descriptions that know shapes, parameters and products."""

from fpgapipe.partition.operators.base import Gemm, Operator, ParameterSpec, Pass
from fpgapipe.partition.operators.layout import (
    Cast,
    Concat,
    Expand,
    Flatten,
    Pad,
    Reshape,
    Slice,
    Split,
    Transpose,
    Unlisted,
)
from fpgapipe.partition.operators.measured import Measured
from fpgapipe.partition.operators.pointwise import (
    ACTIVATIONS,
    Activation,
    Affine,
    Binary,
    Constant,
    Dropout,
    Unary,
)
from fpgapipe.partition.operators.products import Conv, Embedding, Linear, Lstm, MatMul
from fpgapipe.partition.operators.reductions import (
    BatchNorm,
    CrossEntropy,
    GlobalPool,
    LayerNorm,
    LocalResponseNorm,
    Pool,
    Reduce,
    Softmax,
)

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Affine",
    "BatchNorm",
    "Binary",
    "Cast",
    "Concat",
    "Constant",
    "Conv",
    "CrossEntropy",
    "Dropout",
    "Embedding",
    "Expand",
    "Flatten",
    "Gemm",
    "GlobalPool",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "Lstm",
    "MatMul",
    "Measured",
    "Operator",
    "Pad",
    "ParameterSpec",
    "Pass",
    "Pool",
    "Reduce",
    "Reshape",
    "Slice",
    "Softmax",
    "Split",
    "Transpose",
    "Unary",
    "Unlisted",
]
