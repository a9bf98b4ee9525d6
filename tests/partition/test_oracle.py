"""The oracle: ParaDL's figures to every printed digit, and its command."""

import json
import runpy
from pathlib import Path

import pytest

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.make.oracle import read_platform
from fpgapipe.partition.oracle.paradl import (
    Image,
    LayerRow,
    Question,
    data,
    data_filter,
    data_spatial,
    filters,
    pipeline,
    serial,
    spatial,
)
from fpgapipe.partition.oracle.platform import Platform

BENCH = Path(__file__).parents[2] / "bench/bench_oracle_paradl.py"
"""Has the paper's layers and figures."""

PLATFORM = Platform.model_validate(
    {
        "bytes_per_element": 4,
        "samples": 1000,
        "links": [
            {"up_to": 4, "bytes_per_s": 1e9, "latency_s": 1e-6},
            {"bytes_per_s": 1e8, "latency_s": 1e-5},
        ],
    }
)


@pytest.fixture(scope="module")
def paper():
    return runpy.run_path(str(BENCH))


def test_the_papers_figures(paper):
    found = paper["figures"]()
    assert found["memory_bytes"] == paper["MEMORY_BYTES"]
    assert len(found["figures"]) == len(paper["PRINTED"]) == 12
    assert all(each["agrees"] for each in found["figures"])


def test_the_papers_layers(paper):
    rows = paper["resnet50"]()
    assert sum(each.input_elements for each in rows) == 14_971_596
    assert sum(each.output_elements for each in rows) == 14_819_368
    assert sum(each.weight_elements for each in rows) == 22_734_016


def rows():
    return [LayerRow(f"l{n}", 10, 20, 40, 1e-3 * (n + 1), 2e-3 * (n + 1)) for n in range(4)]


def test_formulas_by_hand():
    question = Question(rows(), PLATFORM, batch=10)
    found = data(question, 2)
    assert found.compute_s == pytest.approx(500 * 0.03)
    assert found.communication_s == pytest.approx(2 * 50 * (1e-6 + 160 / 2 * 4 / 1e9))
    assert found.memory_bytes == 8 * (10 * 120 + 160)
    found = filters(question, 4)
    assert found.compute_s == pytest.approx(1000 * 0.03 / 4)
    assert found.communication_s == pytest.approx(3 * 100 * 3 * 3 * (1e-6 + 10 * 20 / 4 * 4 / 1e9))
    found = pipeline(question, 2)  # the last layer takes as long as the second and third
    assert found.compute_s == pytest.approx(1000 * 5 / 4 * (6e-3 + 12e-3))
    assert found.communication_s == pytest.approx(
        2 * 1000 * 4 / 10 * (1e-6 + 10 / 4 * 20 * 4 / 1e9)
    )
    assert found.max_devices == 4
    found = data_filter(question, 8)
    assert found.compute_s == pytest.approx(1000 * 0.03 / 8)
    assert found.memory_bytes == 8 * (10 * 120 + 160 / 4)


def image_rows():
    image = Image(read=(3, 8, 8), written=(4, 8, 8), kernel=(3, 3))
    first = LayerRow("conv", 192, 256, 108, 1e-3, 2e-3, update_s=1e-4, image=image)
    return [first, LayerRow("linear", 256, 10, 2560, 1e-3, 1e-3)]


def test_formulas_of_images_by_hand():
    question = Question(image_rows(), PLATFORM, batch=10)
    # Halves of the columns: a column of 8 pixels of 3 channels, and of the gradient's 4 channels.
    found = spatial(question, 2)
    halos = 2 * (2e-6 + 10 * (8 * 3 + 8 * 4) * 4 / 1e9)
    exchange = 2 * (1e-6 + 2668 / 2 * 4 / 1e9)
    assert found.compute_s == pytest.approx(1000 / 2 * 5e-3 + 100 * 1e-4)
    assert found.communication_s == pytest.approx(100 * (halos + exchange))
    assert found.memory_bytes == 8 * (10 * (192 + 256 + 256 + 10) / 2 + 2668)
    assert found.max_devices == 64
    # Quarters have half a row and half a column each; the middle of three strips has two sides.
    assert image_rows()[0].image.halo((2, 2)) == 4 * 7 + 4 * 7
    assert image_rows()[0].image.halo((3, 1)) == 2 * 8 * 7
    # Two nodes of four devices: quarters in the node, sums in it and between nodes.
    found = data_spatial(question, 8)
    halos = 2 * (2e-6 + 10 * 56 * 4 / 1e9)
    gathers = 2 * 3 * (1e-6 + 10 * 256 / 4 * 4 / 1e9)
    inside = 2 * 3 * (1e-6 + 2668 / 4 * 4 / 1e9)
    between = 2 * (1e-5 + 2668 / 2 * 4 / (1e8 / 8))
    assert found.compute_s == pytest.approx(500 * (3e-3 / 4 + 2e-3) + 50 * 1e-4)
    assert found.communication_s == pytest.approx(50 * (halos + gathers + inside + between))
    assert found.memory_bytes == 8 * (10 * 714 / 4 + 2668)


def test_what_images_cannot_be_cut_into():
    with pytest.raises(UserError, match="spatial: 22 devices make no grid of at most 8 rows by 8"):
        spatial(Question(image_rows(), PLATFORM, batch=10), 22)
    with pytest.raises(UserError, match="data\\+spatial needs a multiple of 4 devices, not 6"):
        data_spatial(Question(image_rows(), PLATFORM, batch=10), 6)
    with pytest.raises(UserError, match="needs rows and columns of images"):
        spatial(Question(rows(), PLATFORM, batch=10), 2)


def test_one_device_moves_nothing():
    question = Question(rows(), PLATFORM, batch=10)
    for ask in (data, filters):
        assert ask(question, 1).communication_s == 0
        assert ask(question, 1).limiter == "number of devices"


def test_what_a_strategy_cannot_use():
    question = Question(rows(), PLATFORM, batch=10)
    with pytest.raises(UserError, match="pipeline has at most 4 devices"):
        pipeline(question, 5)
    with pytest.raises(UserError, match="multiple of 4 devices, not 6"):
        data_filter(question, 6)
    assert data_filter(question, 4).communication_s == filters(question, 4).communication_s
    with pytest.raises(UserError, match="serial has at most 1 device,"):
        serial(question, 2)
    assert serial(question, 1).compute_s == pytest.approx(1000 * 0.03)


@pytest.fixture
def files(tmp_path):
    profile, platform = tmp_path / "p.csv", tmp_path / "p.yaml"
    profile.write_text(
        "layer,forward_s,backward_input_s,backward_weight_s,output_bytes,weight_bytes\n"
        "a,1e-3,1e-3,1e-3,400,4000\nb,2e-3,1e-3,1e-3,200,0\nc,1e-3,1e-3,1e-3,40,800\n"
    )
    platform.write_text(
        "bytes_per_element: 4\nsamples: 6400\n"
        "links:\n  - {up_to: 4, bytes_per_s: 1.0e+9, latency_s: 1.0e-6}\n"
        "  - {bytes_per_s: 1.0e+8, latency_s: 1.0e-5}\n"
    )
    return profile, platform


def test_command(cli, files):
    profile, platform = files
    options = ("--profile", profile, "--platform", platform, "--model", "paradl")
    code, out, _ = cli("oracle", *options, "--batch-per-device", 32, "--devices", "2,8", "--json")
    assert code == 0
    value = json.loads(out)
    first = value["strategies"][0]
    assert first["samples_per_s"] == first["batch"] / first["minibatch_s"]
    assert first.keys() == {
        "name",
        "devices",
        "compute_s",
        "communication_s",
        "memory_bytes",
        "max_devices",
        "limiter",
        "batch",
        "level",
        "minibatch_s",
        "epoch_s",
        "efficiency",
        "samples_per_s",
        "sentence",
    }
    assert (first["name"], first["devices"]) == ("data", 2)
    assert first["compute_s"] == pytest.approx(6400 / 2 * 10e-3)
    assert first["communication_s"] == pytest.approx(2 * 100 * (1e-6 + 1200 / 2 * 4 / 1e9))
    assert {each["name"] for each in value["strategies"]} == {
        "data", "pipeline", "filter", "channel", "data+filter"
    }  # fmt: skip
    assert any("spatial" in each for each in value["refused"])
    memory = first["memory_bytes"]
    assert memory == 8 * (32 * (160 + 150) + 1200)  # outputs, inputs but the first, weights
    platform.write_text(platform.read_text() + "input_elements: 10\n")
    _, out, _ = cli("oracle", *options, "--batch-per-device", 32, "--devices", 2, "--json")
    assert json.loads(out)["strategies"][0]["memory_bytes"] == memory + 8 * 32 * 10
    code, out, _ = cli("oracle", *options, "--strategies", "data,filter")
    assert "limited by" in out


def test_a_network_on_a_board(cli):
    options = ("--board", "u280", "--model", "paradl", "--batch-per-device", 8, "--samples", 800)
    code, out, _ = cli("oracle", "digits-cnn", *options, "--devices", "2,16", "--json")
    assert code == 0
    found = {(each["name"], each["devices"]): each for each in json.loads(out)["strategies"]}
    assert found["data", 2]["compute_s"] > found["data", 16]["compute_s"]
    assert found["filter", 2]["max_devices"] == 32  # the least filters of a layer that is cut
    assert ("channel", 2) not in found  # the first convolution has one input channel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet50"], "need a network and a --board"),
        (["resnet50", "--model", "paradl"], "a network needs a --board"),
        (["--model", "paradl"], "name a network and a --board, or give --profile"),
        (["--strategies", "date"], "there is no strategy 'date'"),
        (["--strategies", "spatial"], "needs rows and columns of images"),
        (["--devices", "2,x"], "must be numbers such as 2,4,8"),
        (["--devices", "0"], "must be in 1..65,536, not 0"),
    ],
)
def test_bad_questions(cli, files, arguments, message):
    profile, platform = files
    whole = ["--profile", profile, "--platform", platform, "--model", "paradl"]
    given = arguments if "--model" in arguments or "resnet50" in arguments else whole + arguments
    code, _, fault = cli("oracle", *given)
    assert code == 2
    assert message in fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("samples: 1", "bytes_per_element"),
        ("bytes_per_element: 4\nsamples: 0\nlinks: [{bytes_per_s: 1, latency_s: 0}]", "samples"),
        ("bytes_per_element: 4\nsamples: 1\nlinks: []", "links"),
        (
            "bytes_per_element: 4\nsamples: 1\nlinks: [{bytes_per_s: -1, latency_s: 0}]",
            "bytes_per_s",
        ),
        ("[", "line 1"),
    ],
)
def test_bad_platforms(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        read_platform(path)
