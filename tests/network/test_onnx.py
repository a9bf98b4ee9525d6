"""ONNX models: structure-only networks, exports of PyTorch, and hand-made models with traps."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fpgapipe.errors import FileError
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.load import load_network
from fpgapipe.network.operators import Lstm

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import agrees_with_onnx, node, random, save  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Layers with parameters, MACs and parameters; those of VGG-19 and ResNet-50 are the published ones.
LIGHT_TOTALS = {
    "light_bvlc_alexnet": (654_560_384, 60_965_224),
    "light_densenet121": (2_834_161_664, 8_062_504),
    "light_inception_v1": (1_431_556_352, 6_998_552),
    "light_inception_v2": (2_018_851_840, 11_214_888),
    "light_resnet50": (4_089_184_256, 25_557_032),
    "light_shufflenet": (124_664_528, 1_393_320),
    "light_squeezenet": (349_151_936, 1_235_496),
    "light_vgg19": (19_632_062_464, 143_667_240),
    "light_zfnet512": (1_481_727_008, 87_250_536),
}


def weights_of(model) -> int:
    """Learned elements by the initializers' own shapes: no translation involved."""
    shapes = {
        each.name: [int(size) for size in numpy_helper.to_array(each)]
        for each in model.graph.initializer
        if each.name.endswith("__SHAPE")
    }
    sizes = {each.name: int(np.prod(each.dims)) for each in model.graph.initializer}
    for each in model.graph.node:
        if each.op_type == "ConstantOfShape":
            sizes[each.output[0]] = int(np.prod(shapes[each.input[0]]))
    for each in model.graph.node:
        if each.op_type in ("Unsqueeze", "Reshape") and each.input[0] in sizes:
            sizes[each.output[0]] = sizes[each.input[0]]
    total = 0
    counted = set()
    for each in model.graph.node:
        roles = each.input[1:3] if each.op_type in ("BatchNormalization", "Conv", "Gemm") else ()
        if each.op_type in ("Mul", "Add"):
            roles = [name for name in each.input if name in sizes]
        for name in roles:
            if name not in counted:
                total += sizes[name]
            counted.add(name)
    return total


@pytest.mark.parametrize("name", LIGHT_TOTALS)
def test_structure_only_networks_import(name):
    path = LIGHT / f"{name}.onnx"
    graph = load_network(str(path))
    assert (graph.totals.macs, graph.totals.parameters) == LIGHT_TOTALS[name]
    model = onnx.load(path)
    assert graph.totals.parameters == weights_of(model)
    wanted = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert list(graph.layers[graph.outputs[0]].output.shape) == wanted


def test_all_structure_only_networks_are_tried():
    assert {path.stem for path in LIGHT.glob("*.onnx")} == set(LIGHT_TOTALS)


# Models made by hand ---------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_in_both_layouts(tmp_path, transposed):
    w = random(5, 4) if transposed else random(4, 5)
    path = save(
        tmp_path / "m.onnx",
        [node("Gemm", ["x", "w", "b"], ["y"], transB=int(transposed), alpha=0.5, beta=2.0)],
        {"x": ["N", 4]},
        weights={"w": w, "b": random(5, seed=1)},
    )
    graph = agrees_with_onnx(path, x=random(3, 4))
    assert [layer.op for layer in graph.layers.values()] == ["linear"]


def test_matmul_and_add_become_one_linear_layer(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "w"], ["h"]), node("Add", ["b", "h"], ["y"])],
        {"x": ["N", 3, 4]},
        weights={"w": random(4, 5), "b": random(5)},
    )
    graph = agrees_with_onnx(path, x=random(2, 3, 4))
    (layer,) = graph.layers.values()
    assert (layer.op, layer.num_parameters) == ("linear", 25)


def test_a_matmul_whose_product_is_read_twice_stays_apart(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["i"])]
    path = save(
        tmp_path / "m.onnx",
        [*nodes, node("Mul", ["h", "i"], ["y"])],
        {"x": ["N", 4]},
        weights={"w": random(4, 5), "b": random(5)},
    )
    agrees_with_onnx(path, x=random(2, 4))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_gates_are_reordered(tmp_path, direction):
    d = 2 if direction == "bidirectional" else 1
    outputs = ["y", "h"]
    path = save(
        tmp_path / "m.onnx",
        [node("LSTM", ["x", "w", "r", "b"], outputs, hidden_size=3, direction=direction)],
        {"x": [5, "N", 4]},
        outputs=outputs,
        weights={"w": random(d, 12, 4), "r": random(d, 12, 3, seed=1), "b": random(d, 24, seed=2)},
    )
    # The batch is the second axis of ONNX's LSTM, so it must be fixed for the file to be read.
    with pytest.raises(FileError, match=r"input 'x': axis 1 is dynamic \(N\); only the first"):
        load_network(path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
    fixed = tmp_path / "m--fixed.onnx"
    onnx.save(model, fixed)
    graph = agrees_with_onnx(str(fixed), x=random(5, 2, 4))
    assert any(isinstance(layer.operator, Lstm) for layer in graph.layers.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "strides": [3, 2]},
        {"auto_pad": "VALID", "dilations": [1, 2]},
        {"group": 2},
    ],
    ids=str,
)
def test_convolutions(tmp_path, settings):
    groups = settings.get("group", 1)
    path = save(
        tmp_path / "m.onnx",
        [node("Conv", ["x", "w", "b"], ["y"], **settings)],
        {"x": ["N", 4, 9, 8]},
        weights={"w": random(6, 4 // groups, 3, 2), "b": random(6)},
    )
    agrees_with_onnx(path, x=random(2, 4, 9, 8))


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [1, 2], "auto_pad": "SAME_UPPER"},
    ],
    ids=str,
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling(tmp_path, op, settings):
    path = save(tmp_path / "m.onnx", [node(op, ["x"], ["y"], **settings)], {"x": ["N", 2, 7, 7]})
    agrees_with_onnx(path, x=random(2, 2, 7, 7))


def test_normalisations(tmp_path):
    nodes = [
        node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h"], epsilon=0.01),
        node("LRN", ["h"], ["i"], size=3, alpha=0.1, bias=2.0),
        node("LayerNormalization", ["i", "g"], ["y"], axis=-1),
    ]
    weights = {"s": random(4), "b": random(4, seed=1), "m": random(4, seed=2), "g": random(5)}
    weights["v"] = np.abs(random(4, seed=3))
    path = save(tmp_path / "m.onnx", nodes, {"x": ["N", 4, 3, 5]}, weights=weights)
    # ONNX's evaluation of LRN covers as many channels as the batch has samples (1.23), hence 4.
    agrees_with_onnx(path, x=random(4, 4, 3, 5))


def test_functions_and_numbers(tmp_path):
    nodes = []
    last = "x"
    functions = ["Sigmoid", "Exp", "Tanh", "Relu", "Neg", "Elu", "LeakyRelu", "Abs", "Sqrt", "Erf"]
    for i, op in enumerate([*functions, "HardSwish"]):
        nodes.append(node(op, [last], [f"h{i}"]))
        last = f"h{i}"
    for i, (op, inputs) in enumerate(
        [
            ("Add", ["one", last]),
            ("Sub", ["one", "t0"]),
            ("Div", ["t1", "three"]),
            ("Pow", ["t2", "three"]),
            ("Mul", ["t3", "three"]),
            ("Div", ["one", "t4"]),
            ("Sum", ["t5", "t4", "t4"]),
        ]
    ):
        nodes.append(node(op, inputs, [f"t{i}"]))
    nodes.append(node("Clip", ["t6", "zero", "six"], ["y"]))
    numbers = {"zero": 0.0, "one": 1.0, "three": 3.0, "six": 6.0}
    weights = {name: np.float32(value) for name, value in numbers.items()}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["N", 6]}, weights=weights)
    graph = agrees_with_onnx(path, x=random(3, 6))
    assert graph.totals.parameters == 0  # numbers are not weights


def test_layout(tmp_path):
    nodes = [
        node("Transpose", ["x"], ["a"]),  # reversed without perm
        node("Split", ["a", "sizes"], ["b", "unused", "c"], axis=0),
        node("Concat", ["b", "c", "w"], ["d"], axis=0),
        node("Slice", ["d", "starts", "ends", "axes", "steps"], ["e"]),
        node("Unsqueeze", ["e", "axes0"], ["f"]),
        node("Squeeze", ["f", "axes0"], ["g"]),
        node("Pad", ["g", "pads"], ["h"]),
        node("Gather", ["h", "index"], ["i"], axis=1),
        node("Flatten", ["i"], ["j"], axis=0),
        node("ReduceMax", ["j"], ["k"], axes=[1], keepdims=0),
        node("Identity", ["i"], ["l"]),
        node("Expand", ["l", "shape"], ["y"]),
    ]
    ints = {
        "sizes": [1, 2, 2],
        "starts": [0, -3],
        "ends": [4, 100],
        "axes": [0, 1],
        "steps": [2, 1],
        "axes0": [0],
        "pads": [0, 1, 0, 0, 0, 2],
        "shape": [2, 2, 4],
    }
    weights = {name: np.array(value, np.int64) for name, value in ints.items()}
    weights |= {"index": np.int64(-1), "w": random(2, 4, 2)}
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4, 5]}, ("y", "k"), weights)
    fixed = tmp_path / "m--fixed.onnx"
    Path(path).rename(fixed)
    agrees_with_onnx(str(fixed), x=random(2, 4, 5))


def test_entries_at_fixed_indices(tmp_path):
    """Gathers along any axis; indices that follow one another become slices."""
    nodes = [
        node("Gather", ["x", "places"], ["a"], axis=2),
        node("Gather", ["a", "rows"], ["b"]),
        node("Gather", ["b", "same"], ["c"], axis=-1),
        node("Gather", ["c", "next"], ["y"], axis=1),
    ]
    ints = {"places": [[-1, 0], [2, 2]], "rows": [1, 0, 1], "same": [1, 1, 1], "next": [1, 2]}
    weights = {name: np.array(value, np.int64) for name, value in ints.items()}
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 4, 3]}, weights=weights)
    graph = agrees_with_onnx(path, x=random(2, 4, 3))
    kinds = [layer.op for layer in graph.layers.values()]
    assert kinds.count("select") == 2  # of the columns and rows; others follow or repeat
    assert {"slice", "expand"} <= set(kinds)


def test_shapes_computed_by_little_programs(tmp_path):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "first"], ["n1"]),
        node("Concat", ["n1", "minus"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["h"]),
        node("MatMul", ["h", "w"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "first": np.array([0]), "minus": np.array([-1])}
    weights["w"] = random(12, 5)
    path = save(tmp_path / "m.onnx", nodes, {"x": ["batch", 3, 4]}, weights=weights)
    graph = agrees_with_onnx(path, x=random(4, 3, 4))
    assert graph.layers["h"].output.shape == (4, 12)


def test_a_causal_mask_is_folded(tmp_path):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Expand", ["one", "s"], ["ones"]),
        node("Trilu", ["ones"], ["mask"], upper=0),
        node("Add", ["x", "mask"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 4]}, weights={"one": np.float32(1)})
    assert agrees_with_onnx(path, x=random(4, 4)).totals.parameters == 0


def test_embedding_and_loss(tmp_path):
    nodes = [
        node("Gather", ["table", "x"], ["e"]),
        node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        node("SoftmaxCrossEntropyLoss", ["m", "labels"], ["y"]),
    ]
    inputs = {"x": (["N", 3], TensorProto.INT64), "labels": (["N"], TensorProto.INT64)}
    path = save(tmp_path / "m.onnx", nodes, inputs, weights={"table": random(7, 4)})
    tokens = np.array([[0, 3, 6], [1, 1, 2]])
    graph = agrees_with_onnx(path, x=tokens, labels=np.array([3, 0]))
    assert [layer.op for layer in graph.layers.values()] == [
        "embedding",
        "reduce_mean",
        "cross_entropy",
    ]


@pytest.mark.parametrize(
    ("opset", "ops"), [(9, ["flatten", "softmax", "reshape"]), (13, ["softmax"])]
)
def test_softmax_meant_all_trailing_axes_until_opset_12(tmp_path, opset, ops):
    path = save(
        tmp_path / "m.onnx",
        [node("Softmax", ["x"], ["y"], axis=1)],
        {"x": ["N", 2, 3]},
        opset=opset,
    )
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from fpgapipe.host.backends.torch_reference import forward

    graph = load_network(path, 2)
    assert [layer.op for layer in graph.layers.values()] == ops
    (name,) = graph.outputs
    x = torch.from_numpy(random(2, 2, 3))
    expected = x.flatten(1).softmax(1).reshape(2, 2, 3) if opset == 9 else x.softmax(1)
    torch.testing.assert_close(forward(graph, {}, {"x": x})[name], expected)


def test_shared_weights_count_once(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["N", 4]}, weights={"w": random(4, 4)})
    assert agrees_with_onnx(path, x=random(2, 4)).totals.parameters == 16


def test_local_functions_are_inlined(tmp_path):
    function = helper.make_function(
        "local",
        "twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node("twice", ["x"], ["y"], domain="local")],
        {"x": ["N", 4]},
        imports=[helper.make_opsetid("local", 1)],
        functions=[function],
    )
    assert [layer.op for layer in load_network(path).layers.values()] == ["add"]


def test_external_weights_are_read_and_missed(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": ["N", 64]},
        weights={"w": random(64, 64)},
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert load_network(path).values["w"].shape == (64, 64)
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(FileError, match=r"w\.bin: must have 16,384 bytes from byte 0 on$"):
        load_network(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FileError, match=r"w\.bin: there is no such file$"):
        load_network(path)
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(FileError, match=r"w\.bin: is no ordinary file but a pipe"):
        load_network(path)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"location": "../w.bin"}, "weights must lie in a file in the model's folder, not in "),
        ({"location": "/etc/passwd"}, "weights must lie in a file in the model's folder, not in "),
        ({"location": "link"}, "weights must lie in the model's folder; 'link' leads to /etc/"),
        ({"location": "w.bin", "length": "7"}, "its shape [4] needs 16 bytes, not 7"),
        ({"location": "w.bin", "offset": "-1"}, "offset and length must be whole numbers, not "),
        ({"length": "16"}, "must name the file of its values"),
    ],
)
def test_external_weights_of_elsewhere_are_refused(tmp_path, said, fault):
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in said.items():
        weight.external_data.add(key=key, value=value)
    path = save(tmp_path / "m.onnx", [node("Add", ["x", "w"], ["y"])], {"x": ["N", 4]})
    model = onnx.load(path)
    model.graph.initializer.append(weight)
    Path(path).write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(FileError) as error:
        load_network(path)
    assert fault in str(error.value)


# Refusals --------------------------------------------------------------------------------------


def test_all_unsupported_operators_are_named_at_once(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Det", ["x"], ["b"]),
        helper.make_node("NonZero", ["x"], ["c"], name="second"),
        node("Relu", ["x"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 2]})
    with pytest.raises(FileError) as error:
        load_network(path)
    first, second, supported = error.value.faults
    assert first == "operator Det is not supported (nodes b)"
    assert second == "operator NonZero is not supported (nodes first, second)"
    assert re.fullmatch(
        r"of \d+ that are, the nearest are (\w+, ){9}\w+; all are in docs/networks.md, 'Operators'",
        supported,
    )
    assert "Not, " in supported


def test_faults_of_attributes_are_gathered(tmp_path):
    nodes = [
        node("LSTM", ["x", "w", "w"], ["a"], hidden_size=1, clip=1.0),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["x"], ["c", "indices"], kernel_shape=[2]),
        node("Cast", ["indices"], ["y"], to=TensorProto.FLOAT),
    ]
    weights = {"w": np.zeros((1, 4, 1), np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3, 4]}, ("y", "b"), weights)
    with pytest.raises(FileError) as error:
        load_network(path)
    assert error.value.faults == (
        "node 'a' (LSTM): only without clip",
        "node 'c' (MaxPool): its further output 'indices' is read",
    )


def test_a_fixed_batch_is_kept_and_not_overridden(tmp_path):
    path = save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], {"x": [7, 2]})
    assert load_network(path).batch == 7
    assert load_network(path, 7).batch == 7
    with pytest.raises(NetworkError, match="the model's batch is fixed at 7, which --batch 8"):
        load_network(path, 8)


def test_a_dynamic_batch_is_bound_everywhere_it_stands(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "z"], ["y"])],
        {"x": ["N", 3, 4], "z": ["N", 4, "N"]},
    )
    graph = load_network(path, 5)
    assert graph.batch == 5
    assert graph.layers["y"].output.shape == (5, 3, 5)
    assert load_network(path).batch == 1


@pytest.mark.parametrize(
    ("inputs", "opset", "message"),
    [
        ({"x": ["N", "T"]}, 17, "input 'x': axis 1 is dynamic (T); only the first, the batch, may"),
        ({"x": ["N", None]}, 17, "input 'x': axis 1 is dynamic (no name); only the first"),
        ({"x": (["N"], TensorProto.STRING)}, 17, "input 'x': element type STRING is not supported"),
        ({"x": ["N", 0]}, 17, "input 'x': each dimension must be a positive integer, not [1, 0]"),
        ({"x": None}, 17, "is no valid ONNX model: Field 'shape' of 'type' is required"),
        ({"x": [1]}, 8, "opset must be in 9.."),
    ],
)
def test_refused_inputs(tmp_path, inputs, opset, message):
    path = save(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], inputs, opset=opset)
    with pytest.raises(FileError) as error:
        load_network(path)
    assert error.value.faults[0].startswith(message)


# PyTorch's exporter ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_dynamo_export_with_dynamic_batch(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    from torch_models import Residual

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2, 1),
        torch.nn.BatchNorm2d(8),
        torch.nn.SiLU(),
        Residual(8, 4, 1, True),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 5),
    ).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model,
        (torch.randn(2, 3, 12, 12),),
        path,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    graph = agrees_with_onnx(str(path), input=random(4, 3, 12, 12))
    assert graph.batch == 4
    # The exporter folds batch normalisation into the convolutions, here without a remaining bias.
    norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    folded = sum(p.numel() for norm in norms for p in norm.parameters())
    assert graph.totals.parameters == sum(p.numel() for p in model.parameters()) - folded
