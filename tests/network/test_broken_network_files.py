"""Files that are no networks: each a user error in a sentence, none a traceback, and none hangs."""

import random
from pathlib import Path

import pytest
from hang_guard import hang_guard
from test_tables import CONVS, GEMMS, PIPEDREAM, TIMES

from fpgapipe.errors import UserError
from fpgapipe.network.load import load_network

HUGE = "9" * 400

BROKEN_TABLES = {
    # SCALE-Sim
    "header only": CONVS.splitlines()[0],
    "header cut": CONVS[:40],
    "row cut": CONVS[:170],
    "words": CONVS.replace("224", "many"),
    "negative": CONVS.replace("224", "-224"),
    "zero": CONVS.replace(",1,1,1,1,", ",1,1,0,1,"),
    "huge": CONVS.replace("27, 27", f"{HUGE}, 27"),
    "over 2**53 elements": GEMMS.replace("1024", "9007199254740992"),
    "float": CONVS.replace("224", "224.5"),
    "nan": CONVS.replace("224", "nan"),
    "infinity": CONVS.replace("224", "inf"),
    "hexadecimal": CONVS.replace("224", "0xE0"),
    "arabic digits": CONVS.replace("224", "٢٢٤"),
    "filter too large": CONVS.replace("5, 5", "500, 5"),
    "same name": CONVS.replace("Conv2", "Conv1"),
    "no name": CONVS.replace("Conv2", ""),
    "gemm words": GEMMS.replace("512", "x"),
    "gemm short": GEMMS.replace(",64", ""),
    "gemm negative": GEMMS.replace("64", "-64"),
    "unclosed quote": GEMMS + '"a,1,2,3',
    "quote in a cell": GEMMS + 'a"b,1,2"3",3',
    "semicolons": GEMMS.replace(",", ";"),
    "tabs": GEMMS.replace(",", "\t"),
    "no header": "\n".join(GEMMS.splitlines()[1:]),
    "html": "<!DOCTYPE html><html><body>404</body></html>",
    "json": '{"layers": [1, 2, 3]}',
    "yaml": "!!python/object/apply:os.system ['echo hello']",
    "one cell": "Layer",
    "commas": ",,,,\n,,,\n",
    "spaces": "   \n \n",
    "empty": "",
    # Times
    "times header only": TIMES.splitlines()[0],
    "times negative": TIMES.replace("0.001", "-0.001"),
    "times nan": TIMES.replace("0.001", "NaN"),
    "times infinity": TIMES.replace("0.001", "1e999"),
    "times huge": TIMES.replace("0.001", HUGE),
    "times word": TIMES.replace("0.001", "fast"),
    "times unit": TIMES.replace("0.001", "1 ms"),
    "times comma": TIMES.replace("0.001", '"0,001"'),
    "times missing cell": TIMES.replace(",4096,400", ",4096"),
    "times extra cell": TIMES.replace(",400", ",400,5"),
    "times missing column": TIMES.replace("output_bytes", "outputs"),
    "times column twice": TIMES.replace("output_bytes", "layer"),
    "times unknown column": TIMES.replace("weight_bytes\n", "weight_bytes,color\n"),
    "times same layer": TIMES.replace("relu", "conv1"),
    "times no layer": TIMES.replace("relu", ""),
    "times bytes float": TIMES.replace("4096", "4096.0"),
    "times bytes negative": TIMES.replace("4096", "-1"),
    "times bytes huge": TIMES.replace("4096", HUGE),
}
BROKEN_PROFILES = {
    "empty": "",
    "prose": "This is not a profile.\n",
    "cut in a node": PIPEDREAM[:120],
    "cut in an edge": PIPEDREAM[:-8],
    "edges only": "\n".join(PIPEDREAM.splitlines()[4:]),
    "input only": PIPEDREAM.splitlines()[1],
    "two nodes of a name": PIPEDREAM.replace("node10 -- Add", "node3 -- Add"),
    "self loop": PIPEDREAM + "\tnode3 -- node3\n",
    "cycle": PIPEDREAM + "\tnode10 -- node2\n",
    "edge into an input": PIPEDREAM + "\tnode3 -- node1\n",
    "edge from nowhere": PIPEDREAM + "\tnode99 -- node3\n",
    "negative time": PIPEDREAM.replace("2.000", "-2.000"),
    "nan time": PIPEDREAM.replace("2.000", "nan"),
    "infinite time": PIPEDREAM.replace("2.000", "inf"),
    "huge time": PIPEDREAM.replace("2.000", HUGE),
    "word time": PIPEDREAM.replace("2.000", "slow"),
    "no time": PIPEDREAM.replace("forward_compute_time=2.000, ", "forward_compute_time=, "),
    "no size": PIPEDREAM.replace(", parameter_size=896.000", ""),
    "list of words": PIPEDREAM.replace("[600.0; 100.0; 100.0]", "[a; b]"),
    "list cut": PIPEDREAM.replace("[600.0; 100.0; 100.0]", "[600.0;"),
    "negative size": PIPEDREAM.replace("896.000", "-896.000"),
    "huge size": PIPEDREAM.replace("896.000", "1e300"),
    "equals signs": PIPEDREAM.replace("=", ":"),
    "one dash": PIPEDREAM.replace(" -- ", " - "),
    "windows text": PIPEDREAM.replace("\n", "\r").replace("--", "—"),
}
BROKEN_BYTES = {
    "png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "zip": b"PK\x03\x04" + bytes(100),
    "gzip": b"\x1f\x8b\x08" + bytes(50),
    "elf": b"\x7fELF" + bytes(200),
    "pickle": b"cos\nsystem\n(S'echo hello'\ntR.",
    "utf-16": "Layer,M,N,K\na,1,2,3\n".encode("utf-16"),
    "latin-1": "Schicht,M,N,K\nerste Öse,1,2,3\n".encode("latin-1"),
    "nulls": bytes(1000),
    "noise": random.Random(1).randbytes(5000),
}


def refuses(path: Path) -> str:
    """The message of the user error that loading a file gives."""
    with hang_guard(), pytest.raises(UserError) as error:
        load_network(str(path))
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", BROKEN_TABLES)
def test_broken_tables(tmp_path, name):
    path = tmp_path / "net.csv"
    path.write_text(BROKEN_TABLES[name])
    refuses(path)


@pytest.mark.parametrize("name", BROKEN_PROFILES)
def test_broken_profiles(tmp_path, name):
    path = tmp_path / "net.txt"
    path.write_text(BROKEN_PROFILES[name], newline="")
    refuses(path)


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".onnx"])
@pytest.mark.parametrize("name", BROKEN_BYTES)
def test_binary_junk(tmp_path, name, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx", reason="needs the onnx extra")
    path = tmp_path / f"net{suffix}"
    path.write_bytes(BROKEN_BYTES[name])
    refuses(path)


def test_a_file_that_is_too_large(tmp_path):
    path = tmp_path / "net.csv"
    with path.open("wb") as file:
        file.truncate(10**9)
    assert refuses(path).endswith("is too large: it must be at most 64 MiB, not 954 MiB")


def test_a_file_that_cannot_be_opened(tmp_path):
    path = tmp_path / "net.csv"
    path.symlink_to(path)
    refuses(path)


# The fuzzer: good files with random damage. What is still a network is fine; what is not must be a
# user error and nothing else.


def damaged(good: bytes, rng: random.Random) -> bytes:
    """A copy with one to four random injuries."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(7):
            case 0:
                del data[at:]
            case 1:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del data[at : at + rng.randint(1, 30)]
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 60)]
            case 4:
                data[at:at] = rng.choice(
                    [b"-", b"nan", b"1e400", b"9" * 30, b",", b"\n", b"\xff", b'"']
                )
            case 5:
                other = rng.randrange(len(data)) if data else 0
                data[at : at + 8], data[other : other + 8] = (
                    data[other : other + 8],
                    data[at : at + 8],
                )
            case 6:
                data[at : at + 4] = rng.randbytes(4)
    return bytes(data)


def survives(path: Path, data: bytes) -> bool:
    """Whether damaged data are still a network; anything but a user error fails the test."""
    path.write_bytes(data)
    try:
        with hang_guard():
            load_network(str(path)).to_dict()
        return True
    except UserError:
        return False


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("good", "name"),
    [(CONVS, "a.csv"), (GEMMS, "b.csv"), (TIMES, "c.csv"), (PIPEDREAM, "d.txt")],
    ids=["convs", "gemms", "times", "pipedream"],
)
def test_damaged_tables(tmp_path, good, name, seed):
    rng = random.Random(f"{name}{seed}")
    alive = [survives(tmp_path / name, damaged(good.encode(), rng)) for _ in range(150)]
    assert not all(alive)  # the damage was real


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "vgg19"])
def test_damaged_models(tmp_path, name, seed):
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    good = (folder / f"light_{name}.onnx").read_bytes()
    rng = random.Random(f"{name}{seed}")
    alive = [survives(tmp_path / "m.onnx", damaged(good, rng)) for _ in range(40)]
    assert not all(alive)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v2"])
def test_models_whose_parts_are_mixed_up(tmp_path, name, seed):
    """Well-formed protobuf, senseless network: edits of nodes, attributes, shapes, names."""
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    rng = random.Random(f"{name}{seed}")
    operators = ["Relu", "Conv", "Gemm", "Concat", "Reshape", "MaxPool", "LSTM", "Gather", "Split"]
    operators += [
        "Slice",
        "Pad",
        "Clip",
        "Squeeze",
        "Transpose",
        "BatchNormalization",
        "ReduceMean",
    ]
    for _ in range(40):
        model = onnx.load(folder / f"light_{name}.onnx")
        graph = model.graph
        for _ in range(rng.randint(1, 5)):
            node = rng.choice(graph.node)
            other = rng.choice(graph.node)
            match rng.randrange(9):
                case 0:
                    node.op_type = rng.choice(operators)
                case 1 if node.input:
                    node.input[rng.randrange(len(node.input))] = rng.choice(
                        ["", "nothing", other.output[0], *other.input]
                    )
                case 2 if node.attribute:
                    attribute = rng.choice(node.attribute)
                    attribute.i = rng.choice([-(2**63), -1, 0, 1, 2**31, 2**62])
                case 3 if node.attribute:
                    attribute = rng.choice(node.attribute)
                    del attribute.ints[:]
                    attribute.ints.extend(rng.choice([[], [0], [-1, 5], [2**62] * 2, [1] * 9]))
                case 4:
                    node.output[0] = rng.choice([other.output[0], "x", ""])
                case 5:
                    graph.node.remove(node)
                case 6 if graph.input:
                    shape = rng.choice(graph.input).type.tensor_type.shape
                    for size in shape.dim:
                        size.dim_value = rng.choice([0, -1, 1, 3, 10**9, 2**62])
                case 7 if graph.initializer:
                    tensor = rng.choice(graph.initializer)
                    tensor.data_type = rng.randrange(30)
                case 8:
                    node.attribute.extend(list(other.attribute))
        survives(tmp_path / "m.onnx", model.SerializeToString())
