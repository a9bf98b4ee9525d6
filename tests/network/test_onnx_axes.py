"""Every operator of ONNX along every axis of tensors of 1 to 5 axes, negative ones included."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx_models import agrees_with_onnx, node, random, save  # noqa: E402

from fpgapipe.host.backends.torch_reference import forward  # noqa: E402
from fpgapipe.network.frontends.onnx.onnx_kernels import session  # noqa: E402
from fpgapipe.network.load import load_network  # noqa: E402

SIZES = (4, 2, 6, 2, 3)


def one(rank):
    """All axes of so many."""
    return list(range(-rank, rank))


def ends(rank):
    """All axes, and the one behind the last."""
    return list(range(-rank, rank + 1))


def new(rank):
    """All places of a further axis."""
    return one(rank + 1)


def new_two(rank):
    """Some pairs of places of two further axes."""
    return [
        list(each) for each in itertools.permutations(one(rank + 2), 2) if apart(each, rank + 2)
    ][::7]


def some(rank):
    """Some pairs of unlike axes."""
    return [list(each) for each in itertools.permutations(one(rank), 2) if apart(each, rank)][::2]


def apart(axes, rank):
    return len({axis % rank for axis in axes}) == len(axes)


def integers(*values):
    return np.array(values, np.int64)


def squeezed(x, y, axes):
    """An axis that becomes one of a single element, and goes."""
    narrow = node("Slice", [x, "zero", "one", f"{y}.axes"], [f"{y}.narrow"])
    return [narrow, node("Squeeze", [f"{y}.narrow", f"{y}.axes"], [y])], {
        f"{y}.axes": integers(axes)
    }


def plain(op, **more):
    return lambda x, y, axis: ([node(op, [x], [y], axis=axis, **more)], {})


def with_axes(op, *before):
    def make(x, y, axes):
        axes = integers(*(axes if isinstance(axes, list) else [axes]))
        return [node(op, [x, *before, f"{y}.axes"], [y])], {f"{y}.axes": axes}

    return make


def normalised(x, y, axis):
    rank = len(x_shape(x))
    shape = SIZES[:rank][axis:] if axis < 0 else SIZES[axis:rank]
    inputs = [x, f"{y}.scale", f"{y}.bias"]
    values = {f"{y}.scale": random(*shape, seed=1), f"{y}.bias": random(*shape, seed=2)}
    return [node("LayerNormalization", inputs, [y], axis=axis)], values


def x_shape(name):
    """The shape of the input, whose rank is in the names of its multiples."""
    return SIZES[: int(name.partition("r")[2])]


def resized(x, y, axis):
    return [node("Resize", [x, "", "twice"], [y], axes=[axis], mode="linear")], {}


RUNS = {
    "Flatten": (17, ends, plain("Flatten")),
    "Softmax": (17, one, plain("Softmax")),
    "LogSoftmax": (17, one, plain("LogSoftmax")),
    "LayerNormalization": (17, one, normalised),
    "Concat": (17, one, lambda x, y, a: ([node("Concat", [x, "x", x], [y], axis=a)], {})),
    "Gather": (17, one, lambda x, y, a: ([node("Gather", [x, "last"], [y], axis=a)], {})),
    "Gather several": (17, one, lambda x, y, a: ([node("Gather", [x, "some"], [y], axis=a)], {})),
    "Split": (
        17,
        one,
        lambda x, y, a: (
            [node("Split", [x, f"{y}.parts"], [f"{y}.first", y], axis=a)],
            {f"{y}.parts": integers(1, SIZES[: len(x_shape(x))][a] - 1)},
        ),
    ),
    "Unsqueeze": (17, new, with_axes("Unsqueeze")),
    "Unsqueeze two": (17, new_two, with_axes("Unsqueeze")),
    "Squeeze": (17, one, squeezed),
    "Slice": (17, one, with_axes("Slice", "minus_two", "far")),
    "Slice back": (
        17,
        one,
        lambda x, y, a: (
            [node("Slice", [x, "last", "before", f"{y}.axes", "last"], [y])],
            {f"{y}.axes": integers(a)},
        ),
    ),
    "ReduceSum": (17, one, with_axes("ReduceSum")),
    "ReduceSum two": (17, some, with_axes("ReduceSum")),
    "ReduceMean": (17, one, lambda x, y, a: ([node("ReduceMean", [x], [y], axes=[a])], {})),
    "ReduceMax": (
        17,
        one,
        lambda x, y, a: ([node("ReduceMax", [x], [y], axes=[a], keepdims=0)], {}),
    ),
    "ReduceMin": (18, one, with_axes("ReduceMin")),
    "Pad": (18, one, with_axes("Pad", "sides", "half")),
    "Pad reflect": (
        18,
        one,
        lambda x, y, a: (
            [node("Pad", [x, "sides", "", f"{y}.axes"], [y], mode="edge")],
            {f"{y}.axes": integers(a)},
        ),
    ),
    "Resize": (18, range, resized),
}  # fmt: skip
"""For each operator, the opset, which axes it is given, and how its nodes are made."""

NUMBERS = {
    "zero": integers(0), "one": integers(1), "last": integers(-1), "some": integers(1, 0, 1),
    "minus_two": integers(-2), "far": integers(99), "before": integers(-3),
    "sides": integers(1, 2), "half": np.float32(0.5), "twice": np.float32([2]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUNS))
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_along_every_axis(tmp_path, name, rank):
    opset, choices, make = RUNS[name]
    nodes, weights, outputs = [], dict(NUMBERS), []
    for number, axis in enumerate(choices(rank)):
        x, y = f"x{number}r{rank}", f"y{number}"
        weights[f"factor{number}"] = np.float32(1 + number / 8)
        own, values = make(x, y, axis)
        nodes += [node("Mul", ["x", f"factor{number}"], [x]), *own]
        weights |= values
        outputs.append(y)
    if not outputs:
        return
    read = {each for one_node in nodes for each in one_node.input}
    weights = {key: value for key, value in weights.items() if key in read}
    path = save(tmp_path / "m.onnx", nodes, {"x": list(SIZES[:rank])}, outputs, weights, opset)
    agrees_with_onnx(path, x=random(*SIZES[:rank]))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resized_axes_may_be_negative(tmp_path, mode):
    """The evaluator of the verification agrees with onnxruntime, and so does the import."""
    runtime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
    x = random(*SIZES[:4])
    for axes, scales in (([-2, -1], [2, 1.5]), ([-1, -2], [3, 2]), ([-1, 2], [2, 2]), ([-1], [2])):
        weights = {"scales": np.float32(scales)}
        nodes = [node("Resize", ["x", "", "scales"], ["y"], axes=axes, mode=mode)]
        path = save(tmp_path / "m.onnx", nodes, {"x": list(x.shape)}, ["y"], weights, 18)
        (want,) = runtime.InferenceSession(path).run(None, {"x": x})
        (evaluated,) = session(onnx.load(path)).run(None, {"x": x})
        np.testing.assert_allclose(evaluated, want, atol=1e-5)
        graph = load_network(path, len(x))
        found = forward(graph, {}, {"x": torch.from_numpy(x)})["y"]
        np.testing.assert_allclose(found.numpy(), want, atol=1e-5)
