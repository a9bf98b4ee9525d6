"""Networks of one operator each, whose gradients are compared with those of PyTorch's autograd.

Each network reads a learned tensor, so that the gradient of the operator's argument is that of a
parameter, and gives the operator's result as its logits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fpgapipe.network.graph import Graph
from fpgapipe.network.operators import (
    Activation,
    Affine,
    AxisMap,
    Binary,
    Clamp,
    Compare,
    Constant,
    Conv,
    ConvTranspose,
    Expand,
    GlobalPool,
    MaskedFill,
    Operator,
    Pad,
    Pool,
    Power,
    Reduce,
    Select,
    Slice,
    Softmax,
    Unary,
)
from fpgapipe.network.operators.axis_map import averages, cubic, interpolation, selection
from fpgapipe.network.operators.tensors import Tensor
from fpgapipe.network.zoo.layers import Network

IMAGE, ROWS, VOLUME = (3, 5, 7, 6), (3, 7, 10), (3, 4, 5, 4, 6)
"""Shapes of images, rows of features, and volumes, whose first axis is that of samples."""

Body = Callable[[Network, list[str]], str]


@dataclass(frozen=True)
class Case:
    """An operator with the shapes of its arguments.

    Attributes
    ----------
    name : str
    shapes : tuple of shapes
        Shape of each argument, which is a learned tensor.
    body : callable
        Adds the operator to a network, given the names of the arguments.
    products : int
        Matrix products that follow one another in its forward or backward pass; 0 if all is
        computed in FP32 by the vector engine.
    of_tokens : int
        Number of indices if the operator reads an input of the network instead, and 0 if not.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    body: Body
    products: int = 0
    of_tokens: int = 0

    def network(self) -> Graph:
        """The network: the sum of inputs and learned tensors, the operator, and its logits."""
        samples = 4 if self.of_tokens else self.shapes[0][0]
        net = Network(self.name, samples)
        if self.of_tokens:
            arguments = [net.tokens("input", self.of_tokens)]
        else:
            arguments = []
            for number, shape in enumerate(self.shapes):
                learned = net.add(f"p{number}", Constant(shape, trainable=True))
                if number == 0:
                    learned = net.plus(learned, net.input("input", Tensor(shape)))
                arguments.append(learned)
        y = self.body(net, arguments)
        if len(net.tensor(y).shape) != 2:
            net.flatten(y, name="logits")
        return net.build()


def one(operator: Operator) -> Body:
    """Add an operator with all arguments."""
    return lambda net, xs: net.add("operator", operator, *xs)


def conv(channels: int, kernel: int, *, dilation: int = 1, axes: int = 2, **more: int) -> Body:
    """Add a convolution with a dilation."""
    stride, padding, groups = (more.get(name, n) for name, n in
                               (("stride", 1), ("padding", 0), ("groups", 1)))  # fmt: skip
    return one(
        Conv(
            channels,
            (kernel,) * axes,
            (stride,) * axes,
            ((padding, padding),) * axes,
            (dilation,) * axes,
            groups,
        )
    )


def pool(function: str, kernel: int, stride: int, padding: int, **more: bool) -> Body:
    """Add a pooling layer."""
    return one(Pool(function, (kernel,) * 2, (stride,) * 2, ((padding, padding),) * 2, (1, 1),
                    **more))  # fmt: skip


def positive(function: Operator) -> Body:
    """Add a function of numbers of at least 1/2, which has no pole there."""

    def body(net: Network, xs: list[str]) -> str:
        *others, x = xs
        sizes = net.add("sizes", Affine(1.0, 0.5), net.unary(x, "abs"))
        return net.add("operator", function, *others, sizes)

    return body


def masked(net: Network, xs: list[str]) -> str:
    """Add a tensor of which a comparison of some of its elements hides others."""
    mask = net.add("mask", Compare("gt", 0.25), net.add("some", Slice(1, 0, 1), xs[0]))
    return net.add("operator", MaskedFill(0.5), xs[0], mask)


def hidden(net: Network, xs: list[str]) -> str:
    """Add a softmax of scaled scores, some of which are hidden, and all of some rows."""
    some = net.add("some", Slice(1, 0, 1), net.add("column", Slice(3, 0, 1), xs[0]))
    mask = net.add("mask", Compare("le", -1.0), some)
    ends = net.add("ends", Compare("lt", 0.5), xs[0])
    mask = net.add("masks", Binary("mul"), ends, net.add("rows", Compare("eq", 0.0), mask))
    scores = net.add("scaled", Affine(0.375), xs[0])
    scores = net.add("hidden", MaskedFill(-math.inf), scores, mask)
    return net.add("operator", Softmax(-1, empty=True), scores)


def _cases() -> Sequence[Case]:
    functions = (
        "relu", "relu6", "leaky_relu", "elu", "hardsigmoid", "hardswish", "sigmoid", "tanh", "gelu",
        "gelu_tanh", "silu", "softplus", "mish", "prelu",
    )  # fmt: skip
    half = [0.5 * place - 0.25 for place in range(14)]
    gates = (3, 5, 1, 1)
    return (
        *(Case(name, (IMAGE,), one(Activation(name))) for name in functions),
        Case("add", (IMAGE, IMAGE), one(Binary("add"))),
        Case("sub", (IMAGE, IMAGE), one(Binary("sub"))),
        Case("mul", (IMAGE, IMAGE), one(Binary("mul"))),
        Case("mul, gates of channels", (IMAGE, gates), one(Binary("mul"))),
        Case("add, repeated along the first axes", (ROWS, (7, 10)), one(Binary("add"))),
        Case("max", (IMAGE, IMAGE), one(Binary("max"))),
        Case("min", (IMAGE, IMAGE), one(Binary("min"))),
        Case("div", (IMAGE, IMAGE), positive(Binary("div"))),
        Case("add, both repeated", ((3, 7, 1, 10), (3, 1, 6, 10)), one(Binary("add"))),
        Case("mul, both repeated", ((3, 7, 1, 10), (1, 6, 1)), one(Binary("mul"))),
        *(Case(name, (IMAGE,), one(Unary(name))) for name in ("neg", "abs", "exp", "erf")),
        *(
            Case(name, (IMAGE,), positive(Unary(name)))
            for name in ("log", "sqrt", "rsqrt", "reciprocal")
        ),
        *(Case(f"power {n}", (IMAGE,), positive(Power(n))) for n in (2.0, 3.0, -2.0, 0.75)),
        Case("clamp", (IMAGE,), one(Clamp(-0.7, 1.1))),
        Case("prelu, one slope", (IMAGE,), one(Activation("prelu", one_slope=True))),
        Case("interpolation", (IMAGE,), one(AxisMap(2, interpolation(half, 7)))),
        Case("interpolation, cubic", (IMAGE,), one(AxisMap(3, cubic(half[:11], 6, -0.75)))),
        Case("adaptive averages", (IMAGE,), one(AxisMap(3, averages(6, 4)))),
        Case("mirrored", (ROWS,), one(AxisMap(-1, selection([2, 1, 0, *range(10), 8])))),
        Case("pad", (IMAGE,), one(Pad(((0, 0), (1, 0), (2, 1), (0, 3)), 0.5))),
        Case("affine", (IMAGE,), one(Affine(-1.5, 0.25))),
        Case("expand", (IMAGE, (1, 1, 7, 6)),
             lambda net, xs: net.plus(xs[0], net.add("operator", Expand(IMAGE), xs[1]))),
        Case("batch_norm", (IMAGE,), lambda net, xs: net.batch_norm(xs[0])),
        Case("layer_norm", (ROWS,), lambda net, xs: net.layer_norm(xs[0])),
        Case("softmax", (ROWS,), one(Softmax(-1))),
        Case("softmax, causal", ((3, 7, 7),), one(Softmax(-1, causal=True))),
        Case("masked_fill", ((3, 2, 7, 6),), masked),
        Case("softmax of what a mask hides", ((3, 2, 7, 6),), hidden),
        Case("log_softmax", (ROWS,), one(Softmax(-1, log=True))),
        Case("max_pool", (IMAGE,), pool("max", 3, 2, 1)),
        Case("average_pool", (IMAGE,), pool("average", 3, 2, 1)),
        Case("average_pool, padding not counted", (IMAGE,),
             pool("average", 3, 2, 1, count_include_pad=False)),
        Case("global_average_pool", (IMAGE,), one(GlobalPool("average"))),
        Case("reduce_mean over positions", (IMAGE,), one(Reduce("mean", (2, 3)))),
        Case("reduce_mean over features", (ROWS,), one(Reduce("mean", (2,), keep_axes=True))),
        Case("reduce_sum over channels", (IMAGE,), one(Reduce("sum", (1,)))),
        Case("concat", (IMAGE, (3, 2, 7, 6)), lambda net, xs: net.concat(xs, 1)),
        Case("slice", (IMAGE,), one(Slice(1, 1, 4))),
        Case("slice with a step", (IMAGE,), one(Slice(2, 1, 7, 2))),
        Case("pad", (IMAGE,), one(Pad(((0, 0), (0, 1), (2, 0), (1, 1))))),
        Case("transpose", (ROWS,), lambda net, xs: net.transpose(xs[0], 0, 2, 1)),
        Case("upsample", (IMAGE,), lambda net, xs: net.upsample(xs[0], 2, 3)),
        Case("conv, depthwise", (IMAGE,), conv(5, 3, padding=1, groups=5)),
        Case("linear", ((6, 40),), lambda net, xs: net.linear(xs[0], 33), 1),
        Case("linear of rows", ((2, 17, 70),), lambda net, xs: net.linear(xs[0], 9), 1),
        Case("conv 1x1", (IMAGE,), conv(9, 1), 1),
        Case("conv 3x3, stride 2", (IMAGE,), conv(9, 3, stride=2, padding=1), 1),
        Case("conv 3x3, dilated", (IMAGE,), conv(4, 3, padding=2, dilation=2), 1),
        Case("conv, groups", ((3, 6, 7, 6),), conv(4, 3, padding=1, groups=2), 1),
        Case("max_pool, dilated", (IMAGE,),
             one(Pool("max", (2, 3), (1, 2), ((1, 1),) * 2, (2, 2)))),
        Case("max_pool, volumes", (VOLUME,),
             one(Pool("max", (2,) * 3, (2, 1, 2), ((1, 0),) * 3, (1, 2, 1)))),
        Case("average_pool, volumes", (VOLUME,),
             one(Pool("average", (2,) * 3, (2, 1, 2), ((1, 1),) * 3, (1,) * 3, True, False))),
        Case("upsample, volumes", (VOLUME,), lambda net, xs: net.upsample(xs[0], 2, 1, 3)),
        Case("conv, depthwise and dilated", (IMAGE,), conv(5, 3, padding=2, dilation=2, groups=5)),
        Case("conv, volumes", (VOLUME,), conv(6, 2, padding=1, stride=2, axes=3), 1),
        Case("conv, groups of volumes", (VOLUME,), conv(6, 2, dilation=2, groups=2, axes=3), 1),
        Case("conv_transpose, volumes", (VOLUME,),
             lambda net, xs: net.conv_transpose(xs[0], 3, 3, stride=2, padding=1), 1),
        Case("conv_transpose, groups", ((3, 6, 5, 4),),
             one(ConvTranspose(4, (3, 2), (2, 1), ((1, 1),) * 2, (1, 0), (1, 2), 2)), 1),
        Case("conv, one axis", (ROWS,), conv(6, 3, padding=1, axes=1), 1),
        Case("conv_transpose", (IMAGE,),
             lambda net, xs: net.conv_transpose(xs[0], 4, 3, stride=2, padding=1), 1),
        Case("matmul", ((3, 7, 40), (3, 40, 9)), lambda net, xs: net.matmul(*xs), 1),
        Case("select", ((5, 20),), one(Select((4, 0, 4, 2, 4))), 1),
        Case("embedding", (), lambda net, xs: net.embedding(xs[0], 12, 20), 1, of_tokens=7),
        Case("lstm, one position", ((3, 1, 10),), lambda net, xs: net.lstm(xs[0], 6), 2),
        Case("lstm, both directions", ((3, 5, 10),),
             lambda net, xs: net.lstm(xs[0], 6, bidirectional=True), 6),
        Case("lstm, with states", ((3, 3, 10), (3, 12), (3, 12)),
             lambda net, xs: net.lstm(xs[0], 6, *xs[1:], bidirectional=True, final_cell=True), 5),
        Case("gru, one position", ((3, 1, 10),), lambda net, xs: net.gru(xs[0], 6), 2),
        Case("gru, both directions", ((3, 5, 10),),
             lambda net, xs: net.gru(xs[0], 6, bidirectional=True), 6),
        Case("gru, with a state", ((3, 3, 10), (3, 6)), lambda net, xs: net.gru(xs[0], 6, xs[1]),
             5),
    )  # fmt: skip


CASES = _cases()
