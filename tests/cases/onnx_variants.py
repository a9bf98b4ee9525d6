"""Small ONNX models of one operator each, in variants of attributes, opsets and operands."""

from dataclasses import dataclass, field
from itertools import product

import numpy as np
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx_models import node, random


@dataclass(frozen=True)
class Variant:
    """A model of an operator with one input, ``x``, and one result, ``y``."""

    nodes: list
    shape: tuple[int, ...]
    weights: dict = field(default_factory=dict)
    opset: int = 13

    def __str__(self):
        """The operator, its attributes and its constants."""
        (first, *_) = self.nodes
        given = {each.name: helper.get_attribute_value(each) for each in first.attribute}
        constants = {
            name: value.tolist() if np.size(value) < 9 else np.shape(value)
            for name, value in self.weights.items()
        }
        inputs = ",".join(first.input)
        return f"{first.op_type}-{self.opset}({inputs}) {given} {constants} of {self.shape}"

    def model(self):
        """The model, with the shapes that follow from its inputs."""
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in self.weights.items()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        return shape_inference.infer_shapes(model, data_prop=True)


def one(op, shape, opset=13, *, inputs=("x",), outputs=("y",), weights=None, **attributes):
    """A model of one node, whose constants are `weights`, after ``x`` if `inputs` has no others."""
    weights = weights or {}
    given = inputs if inputs != ("x",) else ("x", *weights)
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return Variant([node(op, given, outputs, **attributes)], shape, weights, opset)


def whole(*numbers):
    """Integers as ONNX has them."""
    return np.array(numbers, np.int64)


TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resizes():
    """Scales that give whole sizes and others, and sizes; shrinking, growing and both."""
    shape = (2, 3, 5, 7)
    scaled = ((2.0, 2.0), (1.5, 2.3), (0.5, 0.7), (0.2, 1.0), (3.3, 0.45))
    sized = ((10, 14), (1, 7), (3, 1), (8, 5), (4, 20))
    ways = [("scales", np.array([1, 1, *each], np.float32)) for each in scaled]
    ways += [("sizes", whole(2, 3, *each)) for each in sized]
    modes = [("nearest", rounding) for rounding in ROUNDINGS] + [("linear", None), ("cubic", None)]
    for transform, (mode, rounding), (how, s) in product(TRANSFORMS, modes, ways):
        inputs = ("x", "", "s") if how == "scales" else ("x", "", "", "s")
        opset = 19 if transform == "half_pixel_symmetric" else 13
        more = {"coordinate_transformation_mode": transform, "nearest_mode": rounding}
        yield one("Resize", shape, opset, inputs=inputs, weights={"s": s}, mode=mode, **more)
    for exclude, a, each in product((0, 1), (-0.75, -0.5), ((2.0, 2.0), (0.6, 1.7))):
        more = {"weights": {"s": np.array([1, 1, *each], np.float32)}, "inputs": ("x", "", "s")}
        yield one("Resize", shape, mode="cubic", exclude_outside=exclude, cubic_coeff_a=a, **more)
    for mode, each in product(("nearest", "linear"), ((2.0, 2.0), (1.5, 2.3), (0.5, 0.7))):
        weights = {"s": np.array([1, 1, *each], np.float32)}
        if each[0] > 1:
            yield one("Upsample", shape, 9, weights=weights, mode=mode)
        yield one("Resize", shape, 10, weights=weights, mode=mode)
    more = {"weights": {"s": np.array([2.0, 1.5], np.float32)}, "inputs": ("x", "", "s")}
    yield one("Resize", shape, 18, mode="linear", axes=[3, 2], **more)


def local_norms():
    """Windows of even and odd size, also larger than the channels."""
    for size, channels in product(range(1, 7), (1, 3, 8)):
        yield one("LRN", (2, channels, 3, 4), size=size, alpha=0.5, beta=0.6, bias=1.5)
    yield one("LRN", (2, 4, 3, 4), size=3)


def poolings():
    """Kernels, strides, paddings, rounding up, and whether padding counts."""
    shape = (2, 3, 9, 10)
    kernels, strides = ((3, 3), (3, 2), (4, 2)), ((1, 1), (2, 2), (3, 2))
    pads = (None, (1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0))
    counted = [("MaxPool", None), ("AveragePool", 0), ("AveragePool", 1)]
    for (op, count), kernel, stride, ceil in product(counted, kernels, strides, (0, 1)):
        own = {"kernel_shape": kernel, "strides": stride, "ceil_mode": ceil}
        own["count_include_pad"] = count
        for each in pads:
            yield one(op, shape, 11, pads=each, **own)
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            yield one(op, shape, 13, auto_pad=auto, **own)
    for (op, count), dilations, ceil, each in product(
        counted, ((2, 2), (1, 3)), (0, 1), (None, (1, 1, 1, 1), (0, 2, 1, 0))
    ):
        own = {"kernel_shape": (3, 3), "strides": (2, 1), "dilations": dilations}
        own |= {"ceil_mode": ceil, "count_include_pad": count, "pads": each}
        yield one(op, shape, 19, **own)
    for (op, count), auto in product(counted, ("SAME_UPPER", "SAME_LOWER", "VALID")):
        own = {"kernel_shape": (3, 3), "strides": (2, 1), "dilations": (2, 2)}
        yield one(op, shape, 19, auto_pad=auto, count_include_pad=count, **own)
    rooms = (((11,), (3,)), ((5, 6, 7), (2, 3, 2)))
    for (op, count), (sizes, kernel), ceil, side in product(counted, rooms, (0, 1), (0, 1)):
        own = {"kernel_shape": kernel, "strides": (2,) * len(kernel), "ceil_mode": ceil}
        own |= {"pads": (side,) * (2 * len(kernel)), "count_include_pad": count}
        yield one(op, (2, 3, *sizes), 22, **own)
    yield one("GlobalAveragePool", shape)
    yield one("GlobalMaxPool", shape)


def paddings():
    """Modes; sides of several axes; negative sides; axes."""
    shape = (2, 3, 5, 6)
    sides = ((0, 0, 1, 2, 0, 0, 2, 1), (0, 1, 0, 3, 0, 0, 2, 0), (1, 0, 4, 5, 1, 2, 4, 5))
    modes = ("constant", "reflect", "edge", "wrap")
    for mode, each, opset in product(modes, sides, (9, 11, 13, 18, 19, 21)):
        if opset < 11 and mode != "wrap":
            yield one("Pad", shape, opset, mode=mode, pads=each, value=0.5)
        elif mode != "wrap" or opset >= 19:
            value = {"v": np.float32(0.5)} if mode == "constant" else {}
            yield one("Pad", shape, opset, weights={"p": whole(*each)} | value, mode=mode)
    cut = ((0, 0, -1, 2, 0, 0, 1, -2), (-1, 0, 0, 0, 0, -1, 0, 0))
    for each, mode in product(cut, ("constant", "reflect", "edge")):
        yield one("Pad", shape, weights={"p": whole(*each)}, mode=mode)
    weights = {"p": whole(1, 2, 2, 0), "a": whole(-1, 2)}
    for mode in ("constant", "reflect"):
        yield one("Pad", shape, 18, inputs=("x", "p", "", "a"), weights=weights, mode=mode)


def softmaxes():
    """Up to opset 12 they run over all axes from the given one on."""
    places, opsets = (None, 0, 1, 2, 3, -1, -2), (9, 11, 12, 13, 18)
    for op, opset, axis in product(("Softmax", "LogSoftmax"), opsets, places):
        if axis is None or axis >= 0 or opset >= 11:
            yield one(op, (2, 3, 4, 5), opset, axis=axis)


def convolutions():
    """Paddings by number and by name; groups; output padding of transposed ones."""
    shape = (2, 3, 9, 10)
    autos = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    ways = product(autos, ((1, 1), (2, 3)), ((1, 1), (2, 1)), ((3, 3), (2, 4)))
    for auto, strides, dilations, kernel in ways:
        weights = {"w": random(4, 3, *kernel), "b": random(4, seed=2)}
        own = {"auto_pad": auto, "strides": strides, "dilations": dilations}
        yield one("Conv", shape, weights=weights, **own)
    for pads in ((1, 0, 0, 2), (2, 2, 2, 2)):
        yield one("Conv", shape, weights={"w": random(6, 1, 3, 3)}, pads=pads, group=3)
    sides = ((0, 0, 0, 0), (1, 0, 0, 1), (1, 1, 1, 1))
    ways = product(((1, 1), (2, 3)), sides, ((0, 0), (1, 1)), ((1, 1), (2, 1)), (1, 3))
    for strides, pads, more, dilations, group in ways:
        if more == (0, 0) or strides != (1, 1):
            own = {"strides": strides, "pads": pads, "output_padding": more}
            own |= {"dilations": dilations, "group": group}
            yield one("ConvTranspose", (2, 3, 4, 5), weights={"w": random(3, 2, 3, 3)}, **own)


def functions():
    """Element-wise ones with and without attributes, slopes and bounds of several shapes."""
    shape = (2, 3, 4, 5)
    plain = "Relu Sigmoid Tanh Softplus Softsign Neg Abs Exp Erf Reciprocal Selu Celu Elu"
    for op in (*plain.split(), "LeakyRelu", "HardSigmoid"):
        yield one(op, shape)
    for op, opset in (("Mish", 18), ("Gelu", 20), ("HardSwish", 14), ("Swish", 24)):
        yield one(op, shape, opset)
    yield one("Gelu", shape, 20, approximate="tanh")
    yield one("Selu", shape, alpha=1.2, gamma=0.7)
    yield one("Celu", shape, alpha=1.7)
    yield one("Elu", shape, alpha=1.7)
    yield one("LeakyRelu", shape, alpha=-0.3)
    yield one("HardSigmoid", shape, alpha=0.4, beta=0.3)
    for x, slopes in (
        (shape, ((1,), (3, 1, 1), (1, 3, 1, 1), (5,), (4, 5))),
        ((2, 5, 5, 5), ((5,), (5, 1), (5, 1, 1), (1, 5, 1))),
        ((2, 3), ((3,), (1,), (2, 3))),
    ):
        for each in slopes:
            yield one("PRelu", x, weights={"a": random(*each)})
    numbers = (np.float32(2.0), np.abs(random(5)) + 0.5, np.abs(random(3, 1, 1)) + 0.5)
    for op, number, inputs in product(("Add", "Sub", "Mul", "Div", "Pow"), numbers, ("ac", "ca")):
        nodes = [node("Abs", ["x"], ["a"]), node(op, list(inputs), ["y"])]
        yield Variant(nodes, shape, {"c": number})
    for low, high in ((-0.5, None), (None, 0.5), (-0.5, 0.5), (0.0, 6.0), (0.0, None), (0.7, -0.7)):
        bounds = {"l": low, "h": high}
        weights = {name: np.float32(each) for name, each in bounds.items() if each is not None}
        inputs = ("x", *(name if name in weights else "" for name in bounds))
        yield one("Clip", shape, inputs=inputs if high is not None else inputs[:2], weights=weights)
        yield one("Clip", shape, 9, min=low, max=high)


def reductions():
    """Axes as attributes and as operands, kept and not."""
    ops, axes = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), ((1,), (-1,), (0, 2), None)
    for op, each, keep, opset in product(ops, axes, (0, 1), (11, 13, 18)):
        if each is None or not (opset >= 18 or (op == "ReduceSum" and opset >= 13)):
            yield one(op, (2, 3, 4), opset, axes=each, keepdims=keep)
        else:
            yield one(op, (2, 3, 4), opset, weights={"a": whole(*each)}, keepdims=keep)


def norms():
    """Normalisations of rows, of channels, and with running statistics."""
    for axis, shape in ((1, (3, 4)), (2, (4,)), (-1, (4,)), (-2, (3, 4)), (None, (4,))):
        weights = {"s": random(*shape), "b": random(*shape, seed=2)}
        yield one("LayerNormalization", (2, 3, 4), 17, weights=weights, axis=axis)
    yield one("LayerNormalization", (2, 3, 4), 17, weights={"s": random(4)}, epsilon=0.1)
    weights = {"s": random(3), "b": random(3, seed=2)}
    yield one("InstanceNormalization", (2, 3, 4, 5), weights=weights, epsilon=0.1)
    weights = weights | {"m": random(3, seed=3), "v": np.abs(random(3, seed=4)) + 0.1}
    for opset, shape in product((9, 13, 14, 15), ((2, 3), (2, 3, 4, 5))):
        yield one("BatchNormalization", shape, opset, weights=weights, epsilon=0.1)


def products():
    """Transposed operands, factors, and third operands of several shapes."""
    biases = (None, (3,), (1, 3), (4, 1), (4, 3), (1,), ())
    for a, b, factors, bias in product((0, 1), (0, 1), ((1.0, 1.0), (0.5, 2.0)), biases):
        weights = {"w": random(*((3, 5) if b else (5, 3)))}
        weights |= {} if bias is None else {"b": random(*bias, seed=2)}
        own = {"transA": a, "transB": b, "alpha": factors[0], "beta": factors[1]}
        yield one("Gemm", (5, 4) if a else (4, 5), weights=weights, **own)
    for shape, weight in (
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
    ):
        yield one("MatMul", shape, weights={"w": random(*weight)})
    yield one("MatMul", (4, 5), inputs=("w", "x"), weights={"w": random(3, 4)})


def layouts():
    """Axes from either end, steps, and lists as attributes and as operands."""
    shape = (2, 3, 4, 6)
    for axis in range(-3, 5):
        yield one("Flatten", shape, axis=axis)
    for starts, ends, axes, steps in (
        ([1], [3], [3], None),
        ([-4], [-1], [-1], None),
        ([5], [0], [3], [-2]),
        ([-1], [-100], [2], [-1]),
        ([0, 1], [100, 2], [2, 1], [2, 1]),
        ([2], [2**31 - 1], [3], [3]),
        ([-1], [-(2**31)], [3], [-1]),
        ([1, 0, 0], [2, 2, 3], None, None),
    ):
        lists = {"s": starts, "e": ends, "a": axes, "t": steps}
        weights = {name: whole(*each) for name, each in lists.items() if each}
        yield one("Slice", shape, weights=weights)
        if steps is None:
            yield one("Slice", shape, 9, starts=starts, ends=ends, axes=axes)
    indices = (whole(1)[0], whole(1), whole(0, -1, 0), np.stack([whole(0, 1), whole(1, 0)]))
    for axis, index in product((0, 1, 3, -1), indices):
        yield one("Gather", shape, weights={"i": index}, axis=axis)
    for axis, outputs in product((1, -1), (("y", "z"), ("z", "y"))):
        parts = (1, shape[axis] - 1)
        yield one("Split", shape, 11, outputs=outputs, axis=axis, split=parts)
        yield one("Split", shape, 13, outputs=outputs, axis=axis, weights={"p": whole(*parts)})
        yield one("Split", shape, 18, outputs=outputs, axis=axis, num_outputs=2)
    for axes in ([0], [-1], [1, 3], [0, -1]):
        yield one("Unsqueeze", (3, 4), 11, axes=axes)
        yield one("Unsqueeze", (3, 4), 13, weights={"a": whole(*axes)})
    for axes in (None, [1], [-2]):
        yield one("Squeeze", (3, 1, 4), 11, axes=axes)
        yield one("Squeeze", (3, 1, 4), 13, weights={"a": whole(*axes)} if axes else {})
    for wanted in ([2, -1], [0, 0, -1], [0, 12, 6], [-1]):
        yield one("Reshape", shape, weights={"r": whole(*wanted)})
    for x, wanted in ((shape, [5, 2, 3, 4, 6]), ((2, 3, 4, 1), [3, 1, 1, 1, 6]), (shape, [1])):
        yield one("Expand", x, weights={"r": whole(*wanted)})
    for perm in (None, (0, 2, 3, 1), (3, 2, 1, 0)):
        yield one("Transpose", shape, perm=perm)
    for axis in (1, -1):
        nodes = [node("Abs", ["x"], ["a"]), node("Concat", ["x", "a"], ["y"], axis=axis)]
        yield Variant(nodes, shape)


def recurrent():
    """Directions, biases, first states, and which result is read."""
    steps, batch, features, hidden = 5, 2, 3, 4
    directions, extents = ("forward", "reverse", "bidirectional"), ("none", "bias", "states")
    ways = product((("LSTM", 4), ("GRU", 3)), directions, extents, (0, 1), (7, 14), (0, 1, 2))
    for (op, gates), direction, extent, before, opset, result in ways:
        if (op == "LSTM" and before) or (op == "GRU" and result == 2):
            continue
        count = 2 if direction == "bidirectional" else 1
        size = gates * hidden
        weights = {"w": random(count, size, features), "r": random(count, size, hidden, seed=2)}
        inputs = ["x", "w", "r"]
        if extent != "none":
            weights["b"] = random(count, 2 * size, seed=3)
            inputs.append("b")
        if extent == "states":
            states = ("h", "c") if op == "LSTM" else ("h",)
            weights |= {each: random(count, batch, hidden, seed=4) for each in states}
            inputs += ["", *states]
        own = {"hidden_size": hidden, "direction": direction}
        own |= {"linear_before_reset": before} if op == "GRU" else {}
        outputs = [""] * result + ["y"]
        nodes = [node(op, inputs, outputs, **own)]
        yield Variant(nodes, (steps, batch, features), weights, max(opset, 9))


FLOATS = random(3, 4) * 3
INTEGERS = np.array([[7, -7, 5, -5], [3, -3, 0, 9], [2, -8, 1, -1]], np.int64)
DIVISORS = np.array([[2, 2, -3, -3], [-2, 2, 5, 4], [3, 3, 2, 2]], np.int64)


def folded():
    """Constants that are computed by other nodes, and then added."""
    for opset in (9, 11, 13, 18, 21):
        for op, values, own in computed(opset):
            weights = {f"c{i}": np.asarray(value) for i, value in enumerate(values)}
            result = node(op, [*weights], ["k"], **own)
            shape = _shape_of(result, weights, opset)
            if shape is not None:
                cast = node("Cast", ["k"], ["f"], to=TensorProto.FLOAT)
                nodes = [result, cast, node("Add", ["x", "f"], ["y"])]
                yield Variant(nodes, shape or (1,), weights, opset)


def computed(opset):
    """Operators, operands and attributes, of which an opset may lack some."""
    for op in ("Abs", "Neg", "Ceil", "Floor", "Reciprocal", "Identity", "Transpose"):
        yield op, [FLOATS], {}
    yield "Sqrt", [np.abs(FLOATS)], {}
    yield "Not", [FLOATS > 0], {}
    pairs = ((FLOATS, random(3, 4, seed=5)), (INTEGERS, DIVISORS))
    names = "Add Sub Mul Div Max Min Equal Less Greater LessOrEqual GreaterOrEqual"
    for op, pair in product(names.split(), pairs):
        yield op, pair, {}
    for one_, two in pairs:
        yield "Pow", (np.abs(one_), np.abs(two)), {}
    yield "Mod", pairs[0], {"fmod": 1}
    yield "Mod", pairs[1], {"fmod": 1}
    yield "Mod", pairs[1], {}
    for op in ("And", "Or"):
        yield op, (FLOATS > 0, INTEGERS > 0), {}
    kinds = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT8, TensorProto.BOOL)
    for to, value in product(kinds, (FLOATS, INTEGERS, FLOATS > 0)):
        yield "Cast", [value], {"to": to}
    names = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    for op, axes, keep in product(names, ([0], [1], [0, 1]), (0, 1)):
        if opset >= 18 or (op == "ReduceSum" and opset >= 13):
            yield op, [FLOATS, whole(*axes)], {"keepdims": keep}
        else:
            yield op, [FLOATS], {"keepdims": keep, "axes": axes}
    for axis in (0, 1):
        yield "Gather", [FLOATS, whole(0, 2, 1)], {"axis": axis}
        yield "Concat", [FLOATS, FLOATS], {"axis": axis}
    yield "Range", [np.int64(3), np.int64(-4), np.int64(-2)], {}
    yield "Range", [np.float32(0.5), np.float32(3), np.float32(0.7)], {}
    yield "Where", [FLOATS > 0, FLOATS, np.float32(2)], {}
    yield "Expand", [FLOATS, whole(2, 1, 4)], {}
    yield "Tile", [FLOATS, whole(2, 1)], {}
    yield "Sum", [FLOATS, FLOATS[:1], FLOATS], {}
    for upper, k in product((0, 1), (-1, 0, 1)):
        yield "Trilu", [FLOATS, np.int64(k)], {"upper": upper}
    scales = np.array([0.1, 0.2, 0.3], np.float32)
    for kind in (np.int8, np.uint8):
        zero, zeros = np.array(3, kind), np.array([1, 2, 3], kind)
        yield "QuantizeLinear", [FLOATS, np.float32(0.02), zero], {}
        yield "DequantizeLinear", [INTEGERS.astype(kind), np.float32(0.02), zero], {}
        yield "QuantizeLinear", [FLOATS, scales, zeros], {"axis": 0}
        yield "DequantizeLinear", [INTEGERS.astype(kind), scales, zeros], {"axis": 0}


def _shape_of(computed_node, weights, opset):
    """Shape of a constant that a node computes; None if the opset has no such node."""
    values = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    inputs = [helper.make_tensor_value_info(v.name, v.data_type, v.dims) for v in values]
    output = helper.make_empty_tensor_value_info("k")
    graph = helper.make_graph([computed_node], "g", inputs, [output], values)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    try:
        model = shape_inference.infer_shapes(model, True, True, True)
    except shape_inference.InferenceError:
        return None
    return tuple(each.dim_value for each in model.graph.output[0].type.tensor_type.shape.dim)


VARIANTS = {
    "resizing": (resizes, 314),
    "local normalisation": (local_norms, 19),
    "pooling": (poolings, 440),
    "padding": (paddings, 60),
    "softmax": (softmaxes, 66),
    "convolution": (convolutions, 70),
    "functions": (functions, 60),
    "reductions": (reductions, 96),
    "normalisation": (norms, 15),
    "products": (products, 60),
    "layout": (layouts, 70),
    "recurrent": (recurrent, 60),
    "folded constants": (folded, 400),
}
"""For each kind, its models, and how many of them at least must be accepted."""
