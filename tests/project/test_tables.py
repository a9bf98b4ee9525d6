"""Tables and profiles: SCALE-Sim topologies, PipeDream graphs, CSVs of per-layer times."""

import os

import pytest

from fpgapipe.errors import FileError
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.load import load_network
from fpgapipe.network.operators import Measured

CONVS = """\
Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
Conv1     ,224         ,224        ,11           ,11          ,3       ,96        ,4      ,
,,,,,,,
Conv2, 27, 27, 5, 5, 96, 256, 1,
FC6,1,1,1,1,256,10,1,,,
"""

GEMMS = "Layer,M,N,K\nQKT,1024,512,64\nQKTV,1024,64,512\n"

TIMES = """\
layer,forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes
conv1,1.5e-3,0.001,0.002,4096,400
relu, 0.0005, .0005, 0, 4096, 0
"""

# A profile in PipeDream's format: an input, a branch, and a node with several results.
PIPEDREAM = """\
node2 -- Conv2d(3, 8, kernel_size=(3, 3)) -- forward_compute_time=2.000, \
backward_compute_time=3.500, activation_size=1000.000, parameter_size=896.000
node1 -- Input -- forward_compute_time=9.000, backward_compute_time=0.000, \
activation_size=500.0, parameter_size=0.000
node3 -- LSTM(8, 8) -- forward_compute_time=1.000, backward_compute_time=1.000, \
activation_size=[600.0; 100.0; 100.0], parameter_size=0.000 -- stage_id=1
node10 -- Add -- forward_compute_time=0.000, backward_compute_time=0.000, \
activation_size=1000.0, parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node10
\tnode3 -- node10
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_scalesim_convolutions(write):
    graph = load_network(write(CONVS, "net.csv"), 2)
    assert (graph.name, graph.batch) == ("net", 2)
    assert [(layer.name, layer.op) for layer in graph.layers.values()] == [
        ("Conv1", "conv"),
        ("before Conv2", "unlisted"),
        ("Conv2", "conv"),
        ("before FC6", "unlisted"),
        ("FC6", "conv"),
    ]
    # SCALE-Sim rounds output sizes up: (224 - 11) / 4 + 1 = 54.25 gives 55.
    assert graph.layers["Conv1"].output.shape == (2, 96, 55, 55)
    assert graph.layers["Conv1"].macs == 2 * 96 * 55 * 55 * 11 * 11 * 3
    assert graph.totals.parameters == 96 * 363 + 256 * 2400 + 2560


@pytest.mark.parametrize("header", ["Strides,", "Stride Height,Stride Width", "strides,stride_w,"])
def test_scalesim_reads_a_second_stride(write, header):
    """SCALE-Sim takes an eighth number as that of the width, whether a column names it or not."""
    names = CONVS.splitlines()[0].removesuffix("Strides,")
    text = f"{names}{header}\na,16,21,3,3,4,8,3,2,\nb,5,9,1,1,8,8,2\n"
    graph = load_network(write(text, "net.csv"))
    assert graph.layers["a"].output.shape == (1, 8, 6, 10)
    assert graph.layers["b"].output.shape == (1, 8, 3, 5)


@pytest.mark.parametrize("table", [CONVS, GEMMS])
def test_scalesim_takes_dense_layers_only(write, table):
    header, first, *others = table.replace(",\n", "\n").splitlines()
    dense = "\n".join([f"{header}, Sparsity", f"{first},1:1", *others])
    assert load_network(write(dense, "net.csv")) == load_network(write(table, "net.csv"))
    with pytest.raises(FileError) as error:
        load_network(write(dense.replace("1:1", "2:4"), "net.csv"))
    name = first.split(",")[0].strip()
    assert list(error.value.faults) == [
        f"line 2: layer {name!r}: sparsity must be 1:1 (dense), not '2:4'"
    ]


def test_scalesim_products(write):
    graph = load_network(write(GEMMS, "net.csv"))
    assert graph.totals.macs == 1024 * 512 * 64 * 2
    assert list(graph.layers) == ["QKT", "QKTV"]  # the one's output is the other's input
    with pytest.raises(NetworkError, match="has its batch in M; --batch does not apply to it"):
        load_network(write(GEMMS, "net.csv"), 2)


def test_times(write):
    graph = load_network(write(TIMES, "net.csv"))
    assert graph.batch is None
    assert graph.layers["conv1"].operator == Measured(0.0015, 0.001, 0.002, 4096, 400, "conv1")
    assert graph.layers["relu"].inputs == ("conv1",)
    assert graph.totals.parameters == 100
    with pytest.raises(NetworkError, match="--batch does not apply"):
        load_network(write(TIMES, "net.csv"), 1)


def test_times_with_columns_in_another_order(write):
    columns = "weight_bytes,output_bytes,layer,backward_weight_s,forward_s,backward_input_s"
    text = f"{columns}\n1,2,a,3,4,5\n"
    graph = load_network(write(text, "net.csv"))
    assert graph.layers["a"].operator == Measured(4, 5, 3, 2, 1, "a")


def test_pipedream(write):
    graph = load_network(write(PIPEDREAM, "graph.txt"))
    assert list(graph.inputs) == ["node1"]
    assert list(graph.layers) == ["node2", "node3", "node10"]
    assert graph.layers["node10"].inputs == ("node2", "node3")
    assert graph.layers["node3"].operator == Measured(1e-3, 1e-3, 0.0, 800, 0, "LSTM(8, 8)")
    operator = graph.layers["node2"].operator
    assert isinstance(operator, Measured)
    assert (operator.forward_s, operator.backward_input_s) == (2e-3, 3.5e-3)
    # An input's time is loading data, not computing.
    assert sum(layer.operator.forward_s for layer in graph.layers.values()) == pytest.approx(3e-3)


def test_a_long_profile_needs_no_recursion(write):
    node = "node{} -- L -- {}"
    numbers = "forward_compute_time=1, backward_compute_time=1, activation_size=4, parameter_size=4"
    lines = [node.format(i, numbers) for i in range(5000)]
    lines += [f"\tnode{i} -- node{i + 1}" for i in range(4999)]
    assert len(load_network(write("\n".join(lines), "net.txt")).layers) == 5000


def pipedream(**changes):
    text = PIPEDREAM
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return text


REFUSED = [
    (
        CONVS.replace("27, 27", "27, x").replace("256,10,1", "256,-10,0"),
        "net.csv",
        [
            "line 4: layer 'Conv2': ifmap width must be an integer of 1..2**53, not 'x'",
            "line 5: layer 'FC6': num filter must be an integer of 1..2**53, not '-10'",
            "line 5: layer 'FC6': strides must be an integer of 1..2**53, not '0'",
        ],
    ),
    (
        CONVS.replace("27, 27, 5", "27, 27, 50").replace("FC6", "Conv1"),
        "net.csv",
        [
            "line 4: layer 'Conv2': filter 50x5 is larger than its input 27x27",
            "line 5: layer 'Conv1' is already on line 2",
        ],
    ),
    (CONVS.splitlines()[0], "net.csv", ["the table has no layers"]),
    (GEMMS + "x,1,2\n", "net.csv", ["line 4: layer 'x' has 3 columns, not 4"]),
    (GEMMS + ",1,2,3\n", "net.csv", ["line 4: the layer has no name"]),
    (
        CONVS.replace("Strides,", "Strides, Padding, Sparsity, sparsity"),
        "net.csv",
        [
            "line 1: column 'Padding' is not read; leave it out",
            "line 1: column 'Sparsity' is there twice",
            "line 1: column 'sparsity' is there twice",
        ],
    ),
    (
        CONVS.replace("256,10,1,", "256,10,1,2,3,extra").replace("96, 256, 1,", "96, 256, 1, x"),
        "net.csv",
        [
            "line 4: layer 'Conv2': stride of the width must be an integer of 1..2**53, not 'x'",
            "line 5: layer 'FC6': no column says what '3' is",
            "line 5: layer 'FC6': no column says what 'extra' is",
        ],
    ),
    (
        GEMMS.replace("K\n", "K, B\n", 1),
        "net.csv",
        ["line 1: column 'B' is not read; leave it out"],
    ),
    (
        GEMMS + "x,1,2,3,4\n",
        "net.csv",
        ["line 4: layer 'x': no column says what '4' is"],
    ),
    (
        TIMES.replace("forward_s,", "forward_s,,").replace("1.5e-3,", "1.5e-3,7,"),
        "net.csv",
        ["line 1: column 3 has no name"],
    ),
    (
        pipedream(
            a=("activation_size=1000.000,", "activation_size=1000.000, gradient_size=4, ="),
            b=("stage_id=1", "device_id=1 -- stage_id=2"),
            c=("500.0, ", "500.0, activation_size=1, "),
        ),
        "net.txt",
        [
            "line 1: node 'node2': 'gradient_size' is not read; leave it out",
            "line 1: node 'node2': '' is not read; leave it out",
            "line 1: node 'node2' has no parameter_size",
            "line 2: node 'node1': 'activation_size' is there twice",
            "line 3: node 'node3': 'device_id=1' is not read; leave it out",
        ],
    ),
    (
        TIMES.replace("forward_s", "foward_s").replace(",weight_bytes", ""),
        "net.csv",
        [
            "line 1: column 'forward_s' is missing",
            "line 1: column 'weight_bytes' is missing",
            "line 1: unknown column 'foward_s'; did you mean 'forward_s'?",
        ],
    ),
    (
        TIMES.replace("1.5e-3", "nan").replace("relu, 0.0005", "conv1, -1"),
        "net.csv",
        [
            "line 2: forward_s must be a number of 0..2**53 (seconds), not 'nan'",
            "line 3: layer 'conv1' is already on line 2",
        ],
    ),
    (
        TIMES.replace("4096, 0", "4096.5, 1e3"),
        "net.csv",
        [
            "line 3: output_bytes must be an integer of 0..2**53, not '4096.5'",
            "line 3: weight_bytes must be an integer of 0..2**53, not '1e3'",
        ],
    ),
    (
        "a,b\n1,2\n",
        "net.csv",
        [
            "line 1: is neither a SCALE-Sim topology ('Layer name, IFMAP Height, ...' or "
            "'Layer, M, N, K') nor a table of times ('layer,forward_s,backward_input_s,"
            "backward_weight_s,output_bytes,weight_bytes')"
        ],
    ),
    ('a,"b\n1', "net.csv", ["line 2: unexpected end of data"]),
    (
        pipedream(a=("2.000", "-2"), b=("activation_size=1000.0, ", "")),
        "net.txt",
        [
            "line 1: forward_compute_time must be a number of 0..2**53 (ms), not '-2'",
            "line 4: node 'node10' has no activation_size",
        ],
    ),
    (
        pipedream(a=("node3 -- node10", "node3 -- node2")),
        "net.txt",
        ["the layers form a cycle: node2 -> node3"],
    ),
    (
        pipedream(a=("\tnode3 -- node10", "\tnode3 -- node7\nhello\n\tnode3 --")),
        "net.txt",
        [
            "line 9: neither a node ('name -- what -- forward_compute_time=..., ...') nor an edge "
            "('\\tname -- name'): 'hello'",
            "line 10: neither a node ('name -- what -- forward_compute_time=..., ...') nor an edge "
            "('\\tname -- name'): '\\tnode3 --'",
            "line 8: edge names node 'node7', which is not defined",
        ],
    ),
    (pipedream(a=("node10 -- Add", "node2 -- Add")), "net.txt", None),
    (pipedream(a=("\tnode1 -- node2", "\tnode10 -- node1")), "net.txt", None),
    ("", "net.txt", ["the profile has no layers"]),
    ("\0", "net.txt", ["is not text (it has null characters)"]),
]


@pytest.mark.parametrize(("text", "name", "faults"), REFUSED)
def test_refusals(write, text, name, faults):
    path = write(text, name)
    with pytest.raises(FileError) as error:
        load_network(path)
    assert str(error.value).startswith(path)
    if faults is not None:
        assert list(error.value.faults) == faults


def test_many_faults_are_counted(write):
    with pytest.raises(FileError) as error:
        load_network(write(GEMMS + "".join(f"l{i},0,0,0\n" for i in range(100)), "net.csv"))
    assert len(error.value.faults) == 21
    assert error.value.faults[-1] == "and 280 more"


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.csv").write_bytes(b"Layer,M,N,K\n\xe9,1,2,3\n")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "model.h5").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.csv")
    for name, message in {
        "latin.csv": "line 2: must be UTF-8 text, not byte 0xe9",
        "folder.csv": "is a folder, not a file",
        "pipe.csv": "is no ordinary file",
        "absent.onnx": "there is no such file",
        "x" * 300 + ".csv": "cannot be read: File name too long",
        "null\0.csv": "cannot be read: embedded null byte",
        "model.h5": "is of no known format; there are .onnx (an ONNX model), ",
    }.items():
        with pytest.raises(FileError) as error:
            load_network(str(tmp_path / name))
        assert str(error.value).startswith(f"{tmp_path / name}: {message}")


def test_neither_name_nor_file():
    with pytest.raises(
        NetworkError, match=r"^no network 'vgg-61'; did you mean 'vgg16'\?; a network is"
    ):
        load_network("vgg-61")
    with pytest.raises(NetworkError, match=r"a file \(\.onnx, \.csv, \.txt\) or module:function$"):
        load_network("model.safetensors")
