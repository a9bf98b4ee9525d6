"""The thin path from network to checked numbers: plan, build folder, Verilog, Verilator."""

import json
import threading

import numpy as np
import pytest

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.build import holding, open_build, write_build
from fpgapipe.host.lowering import Product, forward_products
from fpgapipe.host.runtime import MismatchError, run_forward_products
from fpgapipe.hw.hls_models.systolic import SystolicSpec
from fpgapipe.partition.explorer import Request, as_plan, explore
from fpgapipe.partition.load import load_network
from fpgapipe.partition.networks import built_in
from fpgapipe.partition.plan import Plan


def plan_of(network="lenet5", devices=2, array=(4, 4), batch=1, load=None):
    """A plan on a chain of small boards, with one array shape and one micro-batch."""
    cluster = chain_of(load_board("kv260"), devices).spec
    load = load or (lambda samples: built_in(network, samples))
    request = Request(load, batch, cluster, ("1f1b-as",), 1, array=array)
    return as_plan(explore(request).best, load(batch), network, batch, cluster)


# Tiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 4), (2, 9, 5), (5, 3, 11)])
def test_tiles_add_up_to_the_product(shape):
    m, k, n = shape
    spec = SystolicSpec(4, 3)
    product = Product("layer", 0, m, k, n, spec)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
    weights, activations = product.tiles(x, w)
    assert weights.shape == (product.num_tiles, 3, 4)
    assert activations.shape == (product.num_tiles, m, 4)
    sums = np.stack([spec.compute(a, b.T) for a, b in zip(activations, weights, strict=True)])
    np.testing.assert_array_equal(product.gather(sums), x @ w)


def test_every_product_of_a_layer_is_there():
    graph = built_in("lenet5", 2)
    spec = SystolicSpec(8, 8)
    products = list(forward_products(graph, graph.layers, spec))
    assert [(p.layer, p.m, p.k, p.n) for p in products][:2] == [
        ("conv1", 2 * 784, 25, 6),
        ("conv2", 2 * 100, 150, 16),
    ]
    assert sum(p.m * p.k * p.n for p in products) == graph.totals.macs


# The folder ------------------------------------------------------------------------------------


def test_one_process_at_a_time_uses_a_build(tmp_path):
    folder = tmp_path / "net"
    write_build(plan_of(), folder)
    order = []

    def replace():
        write_build(plan_of("digits-cnn"), folder)
        order.append("replaced")

    with holding(folder):
        thread = threading.Thread(target=replace)
        thread.start()
        thread.join(3)  # more than a build takes
        order.append("used")
        assert open_build(folder).plan.network == "lenet5"
    thread.join()
    assert order == ["used", "replaced"]
    with holding(folder):
        assert open_build(folder).plan.network == "digits-cnn"
    with holding(tmp_path / "none"):
        assert not (tmp_path / "none").exists()


def test_a_name_that_no_folder_can_have(tmp_path):
    name = "x" * 300
    with pytest.raises(UserError, match=rf"^.*{name} cannot be written: File name too long$"):
        write_build(plan_of(), tmp_path / name)


def test_equal_plans_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        write_build(plan_of(), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_build_is_read_back(tmp_path):
    plan = plan_of()
    assert write_build(plan, tmp_path / "b") == open_build(tmp_path / "b")
    assert plan.stages[0].layers[0] == "conv1"
    assert sum(stage.macs for stage in plan.stages) == built_in("lenet5").totals.macs


def test_an_earlier_build_is_replaced_and_other_folders_are_not(tmp_path):
    write_build(plan_of(), tmp_path / "b")
    write_build(plan_of(devices=1), tmp_path / "b")
    assert len(open_build(tmp_path / "b").plan.stages) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="mine is there and is no build of fpgapipe"):
        write_build(plan_of(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_build(plan_of(), tmp_path / "file" / "b")


@pytest.mark.parametrize("name", ["plan.json", "array_4x4.v"])
def test_damage_is_seen(tmp_path, name):
    write_build(plan_of(), tmp_path / "b")
    path = tmp_path / "b" / name
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(UserError, match=rf"b is damaged \({name}\); build it again"):
        open_build(tmp_path / "b")
    path.unlink()
    with pytest.raises(UserError, match=rf"b is damaged \({name}\); build it again"):
        open_build(tmp_path / "b")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": "fpgapipe-build"}', "\0", "[" * 10_000]
)
def test_manifests_that_are_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FileError, match="is no manifest of a build"):
        open_build(tmp_path)


def test_versions_and_missing_folders(tmp_path):
    with pytest.raises(UserError, match="nowhere is no build folder"):
        open_build(tmp_path / "nowhere")
    write_build(plan_of(), tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    manifest["version"] = 99
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has format version 99, not 2; build it again"):
        open_build(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"batch": 0}, "batch: Input should be greater than or equal to 1, not 0"),
        ({"version": 1}, "version: Input should be 2, not 1"),
        (
            {"num_microbatches": 3},
            "file: Value error, a batch of 1 cannot be cut into 3",
        ),
        ({"stages": []}, "stages: Tuple should have at least 1 item"),
        ({"speed": 1}, "speed: Extra inputs are not permitted, not 1"),
        ({"batch": "8"}, "batch: Input should be a valid integer, not '8'"),
    ],
)
def test_plans_with_faults(tmp_path, change, fault):
    value = json.loads(plan_of().to_json()) | change
    (tmp_path / "plan.json").write_text(json.dumps(value))
    with pytest.raises(FileError) as error:
        Plan.read(tmp_path / "plan.json")
    assert error.value.faults[0].startswith(fault)


# Simulation ------------------------------------------------------------------------------------


@pytest.fixture
def odd_network(tmp_path, monkeypatch):
    """A network of products that fit no array, as module:function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_network_for_test.py").write_text(
        "from fpgapipe.partition.graph import GraphBuilder\n"
        "from fpgapipe.partition.operators import Linear\n"
        "from fpgapipe.partition.tensors import Tensor\n"
        "def net(batch):\n"
        "    b = GraphBuilder('odd', batch)\n"
        "    x = b.input('x', Tensor((batch, 7)))\n"
        "    b.add('two', Linear(1), b.add('one', Linear(5), x))\n"
        "    return b.build()\n"
    )
    return "odd_network_for_test:net"


@pytest.mark.sim
def test_numbers_and_cycles_agree(tmp_path, odd_network):
    plan = plan_of(odd_network, batch=3, load=lambda samples: load_network(odd_network, samples))
    write_build(plan, tmp_path / "b")
    results = run_forward_products(open_build(tmp_path / "b"), seed=1)
    assert [(each.layer, each.num_tiles) for each in results] == [("one", 4), ("two", 2)]
    assert all(each.predicted_cycles == each.simulated_cycles for each in results)


@pytest.mark.sim
def test_a_fault_in_the_hardware_is_seen(tmp_path, odd_network):
    plan = plan_of(odd_network, batch=3, load=lambda samples: load_network(odd_network, samples))
    build = write_build(plan, tmp_path / "b")
    (text,) = build.verilog.values()
    assert text.count(" * ") == 4  # the products of a row's cells
    broken = {"array_4x4.v": text.replace(" * ", " + ", 1)}
    with pytest.raises(MismatchError, match=r"^stage 0, layer 'one', product 0: sum \[0, 0\] is"):
        run_forward_products(type(build)(build.folder, build.plan, broken))


def test_long_simulations_are_not_started_by_accident(tmp_path):
    write_build(plan_of("resnet18", array=(8, 8)), tmp_path / "b")
    with pytest.raises(UserError, match=r"^resnet18 takes [\d,]+ cycles, over the 2,000,000"):
        run_forward_products(open_build(tmp_path / "b"))


@pytest.mark.sim
def test_the_commands(tmp_path, cli, odd_network):
    code, out, err = cli(
        *("build", "--board", "kv260", "--network", odd_network, "--batch", 2, "--array", "4x4"),
        *("--micro-batches", 1),
        *("-o", "folder"),
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("batch 2 in 1 micro-batches of 2, 1f1b-as over kv260-x1")
    code, out, err = cli("run", "folder", "--json", "--tiles", 1)
    assert code == 0, err
    value = json.loads(out)
    assert [layer["num_tiles"] for layer in value["layers"]] == [1, 1]
    code, out, _ = cli("run", "folder")
    assert code == 0
    assert out.splitlines()[-1].startswith("every sum equals the exact product")


@pytest.mark.parametrize("array", ["8", "8x", "x", "0x8", "8x8x8", "-1x8", "2000x8", "axb"])
def test_senseless_arrays(cli, array):
    code, _, err = cli("build", "--board", "u280", "--array", array)
    assert code == 2
    assert err == f"error: --array must be ROWSxCOLS, each 1..1024, such as 8x8, not {array!r}\n"


@pytest.mark.parametrize("array", ["3x8", "1024x1024"])
def test_arrays_that_no_core_can_have(cli, array):
    code, _, err = cli("build", "--board", "u280", "--array", array)
    assert code == 2
    assert len(err.splitlines()) == 1


def test_more_devices_than_layers_leave_devices_idle(tmp_path):
    plan = plan_of(devices=30)
    assert 1 <= len(plan.stages) <= 12


@pytest.mark.parametrize("row", ["other,4,8,8", "fc,4,8,16", None])
def test_a_network_that_changed_after_it_was_built(tmp_path, row):
    path = tmp_path / "net.csv"
    path.write_text("Layer,M,N,K\nfc,4,8,8\n")
    plan = plan_of(str(path), 1, load=lambda samples: load_network(str(path)))
    build = write_build(plan, tmp_path / "out")
    if row is None:
        path.unlink()
        message = f"{build.folder} needs the network it was built from: {path}: no such file"
    else:
        path.write_text(f"Layer,M,N,K\n{row}\n")
        message = f"{path} has changed since {build.folder} was built from it; build it again"
    with pytest.raises(UserError) as error:
        run_forward_products(build)
    assert str(error.value) == message
