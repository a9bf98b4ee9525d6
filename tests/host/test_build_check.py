"""Build folders from elsewhere: whatever somebody changed, its digests renewed, is refused."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from build_cases import plan_of, tiny
from build_tampering import change_json, flip, renew

from fpgapipe.errors import UserError
from fpgapipe.host.build import build as module
from fpgapipe.host.build import build_check
from fpgapipe.host.build.build import open_build, write_build
from fpgapipe.host.report.pages.page import write_report
from fpgapipe.host.runtime.runtime import RunOptions, open_backend
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.network.zoo.layers import Network


@pytest.fixture(autouse=True)
def _quick_verilog(monkeypatch):
    monkeypatch.setattr(core_verilog, "device_verilog", lambda core: f"module top; // {core}\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A build of two devices that no test changes."""
    folder = tmp_path_factory.mktemp("builds") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_verilog, "device_verilog", lambda core: f"module top; // {core}\n")
        write_build(*plan_of(2), folder)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(whole, tmp_path, monkeypatch):
    """Nothing is known of what was made before."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(build_check, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def refused(folder):
    with pytest.raises(UserError) as error:
        open_build(folder)
    return str(error.value)


def test_an_honest_one_is_opened_and_remembered(copy, monkeypatch):
    asked = []
    check = module.check_design
    monkeypatch.setattr(module, "check_design", lambda *each: asked.append(each) or check(*each))
    first, second = open_build(copy), open_build(copy)
    assert len(asked) == 1
    assert first == second
    for one, other in zip(first.pipeline.parts, second.pipeline.parts, strict=True):
        assert encode(one.instructions) == encode(other.instructions)
        np.testing.assert_array_equal(one.image(first.parameters), other.image(second.parameters))
    flip(copy / "devices/0/program.bin", 100)
    assert "is damaged (devices/0/program.bin)" in refused(copy)


def test_one_that_was_made_here_is_not_made_again(tmp_path, monkeypatch):
    write_build(*plan_of(1), tmp_path / "own")
    monkeypatch.setattr(module, "check_design", None)
    assert open_build(tmp_path / "own").seed == 0


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("devices/0/program.bin", 8),  # semaphores
        ("devices/1/program.bin", -100),
        ("devices/0/image.bin", 5),
        ("devices/1/image.bin", -1),
        ("README.md", 40),
    ],
)
def test_a_changed_bit(copy, name, at):
    flip(copy / name, at)
    renew(copy)
    assert f"makes of its plan: {name} would differ; it was changed" in refused(copy)


def set_place(value):
    value["places"]["input@0"]["begin"] = 1 << 40


CHANGES = [
    ("devices/0/device.json", lambda d: d["core"].update(rows=2), "devices/0/device.json"),
    ("devices/0/device.json", lambda d: d.update(index=1), "devices/0/device.json"),
    ("devices/0/device.json", lambda d: d["map"].update(memory_bytes=1 << 60), "device.json"),
    ("devices/0/device.json", lambda d: d["registers"].update(MEMORY_BASE=64), "device.json"),
    ("plan.json", lambda d: d.update(network="other"), "README.md would differ"),
    ("plan.json", lambda d: d.update(schedule="gpipe"), "README.md would differ"),
    ("plan.json", lambda d: d["predicted"].update(minibatch_s=1.0), "devices/0/device.json"),
    ("plan.json", lambda d: d.update(schedule="none"), "README.md would differ"),
    (
        "plan.json",
        lambda d: d["stages"][0]["nodes"][0]["spec"]["core"].update(acc_depth=512),
        "without hardware/core",
    ),
    ("plan.json", lambda d: d["stages"].pop(), "manifest.json with devices/1/device.json"),
    ("plan.json", lambda d: d.update(batch=8), "is for 2 samples, its plan for 4"),
    ("plan.json", lambda d: d.update(batch=2**40, num_microbatches=2**39), "too short for its mi"),
    (
        "plan.json",
        lambda d: d["stages"][1]["nodes"][0]["spec"].update(memory_latency_cycles=10**30),
        "the memory of device 1 is slower than any board's",
    ),
    (
        "plan.json",
        lambda d: d["stages"][0]["nodes"][0]["spec"].update(memory_bytes_per_cycle=1e-300),
        "the memory of device 0 is slower than any board's",
    ),
    ("network.json", lambda d: d["layers"][0].update(name="other"), "reads 'conv1', which nothing"),
    ("network.json", lambda d: d["layers"].pop(), "output 'linear2' is no layer of the network"),
    ("network.json", lambda d: d.update(batch=2**40), "is no build of its plan"),
    (
        "network.json",
        lambda d: d["inputs"]["input"].update(shape=[2, 2, 60_000, 60_000]),
        "is no build of its plan",
    ),
    ("cluster.json", lambda d: d["devices"][0]["dies"][0].update(lut=1), "device.json"),
    ("cluster.json", lambda d: d["devices"][0]["dies"][0].update(lut=10**300), "device.json"),
    ("cluster.json", lambda d: d["device_names"].reverse(), "device.json"),
    ("cluster.json", lambda d: d.update(links=[]), "no link between u280-0 and u280-1"),
]


@pytest.mark.parametrize(("name", "change", "fault"), CHANGES, ids=range(len(CHANGES)))
def test_a_changed_value(copy, name, change, fault):
    change_json(copy / name, change)
    renew(copy)
    assert fault in refused(copy)


def test_a_renewed_manifest_alone_changes_nothing(copy):
    renew(copy)
    assert open_build(copy).graph == tiny(2)
    renew(copy, seed=1)
    assert "devices/0/image.bin, devices/1/image.bin would differ" in refused(copy)
    for fields in ({"seed": -1}, {"seed": "0"}, {"own_values": [1]}, {"seed": 1e9}):
        renew(copy, **{"seed": 0} | fields)
        assert "is no manifest of a build" in refused(copy)
    renew(copy, seed=0, own_values=["no such parameter"])
    assert "its network has no parameter 'no such parameter'" in refused(copy)
    renew(copy, own_values=[], options={"train": True, "activations": "FP32"})
    assert "device.json" in refused(copy)


def test_files_that_no_build_has(copy):
    (copy / "devices/0/notes.txt").write_text("notes")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["devices/0/notes.txt"] = {}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    renew(copy)
    assert "(manifest.json with devices/0/notes.txt)" in refused(copy)


@pytest.mark.parametrize(
    "name", ["manifest.json", "plan.json", "devices/0/image.bin", "devices/1", "hardware"]
)
def test_links_are_not_followed(copy, tmp_path, name):
    """Not even to the same bytes."""
    (copy / name).rename(tmp_path / "outside")
    (copy / name).symlink_to(tmp_path / "outside")
    assert re.search("is damaged|is a link", refused(copy))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("plan.json", "is damaged"),
        ("devices/0/program.bin", "is damaged"),
        ("devices/0/image.bin", "are not of the size"),
    ],
)
def test_giants_are_not_read(copy, name, fault):
    """Not even for their digests, which take long."""
    os.truncate(copy / name, 10 << 30)
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name]["bytes"] = 10 << 30
    path.write_text(json.dumps(manifest))
    assert fault in refused(copy)


@pytest.mark.parametrize("name", ["run", "run/model", "run/report.html", "run/model/checkpoints"])
def test_nothing_is_written_through_links(copy, tmp_path, name, cli):
    (tmp_path / "outside").mkdir()
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).symlink_to(tmp_path / "outside")
    for command in (("run", copy, "--backend", "model", "--steps", 1), ("report", copy)):
        code, _, err = cli(*command)
        message = f"error: {copy / name} is a link, and fpgapipe writes through none in a build; "
        assert (code, err) == (2, f"{message}remove it\n")
    assert list((tmp_path / "outside").iterdir()) == []


def test_more_memory_than_the_machine_has(copy, monkeypatch):
    monkeypatch.setattr(build_check.os, "sysconf", lambda name: 100)
    assert "of memory, of which this machine has 9.77 KiB" in refused(copy)


def test_values_of_the_network_itself(tmp_path, monkeypatch):
    """They follow from nothing, so they are taken from the images; all else is compared."""
    graph = tiny(2)
    name = "conv1.weight"
    value = np.linspace(-1, 1, graph.layers["conv1"].parameters[0].spec.shape[0] * 18)
    value = value.reshape(graph.layers["conv1"].parameters[0].spec.shape).astype(np.float32)
    graph = dataclasses.replace(graph, values={name: value})
    plan, _, cluster = plan_of()
    folder = tmp_path / "own"
    write_build(plan, graph, cluster, folder)
    shutil.rmtree(tmp_path / "cache/builds")
    np.testing.assert_array_equal(open_build(folder).parameters[name], value)
    with open_backend(open_build(folder), "model", RunOptions("model")) as backend:
        np.testing.assert_array_equal(backend.parameters()[name], value)

    described = json.loads((folder / "devices/0/device.json").read_text())
    sizes = {each["tensor"]: each["size_bytes"] for each in described["segments"]}
    at = sum(sizes[each] for each in list(sizes)[: list(sizes).index(name)])
    flip(folder / "devices/0/image.bin", at)
    renew(folder)
    found = open_build(folder).parameters[name]
    assert (found != value).sum() == 1
    path = folder / "devices/0/device.json"
    before = path.read_text()
    change_json(path, lambda d: d["segments"][0].update(address=64))
    renew(folder)
    assert "device.json: has segments that its program does not have" in refused(folder)
    path.write_text(before)
    data = bytearray((folder / "devices/0/image.bin").read_bytes())
    data[at : at + 4] = np.float32(np.inf).tobytes()
    (folder / "devices/0/image.bin").write_bytes(data)
    renew(folder)
    assert "image.bin: parameter conv1.weight must be finite" in refused(folder)


def test_other_verilog_is_not_simulated(copy, cli, monkeypatch):
    (path,) = (copy / "hardware").glob("*.v")
    open_build(copy).check_verilog()
    path.write_text(path.read_text() + 'initial $system("touch here");\n')
    renew(copy)
    build = open_build(copy)
    assert write_report(build).is_file()
    for command in (("run", copy, "--steps", 1, "--data", "random"), ("report", copy, "--measure")):
        code, _, err = cli(*command)
        assert code == 2
        assert err.endswith("it was changed, or made by another version; build it again\n")
        assert err.startswith(f"error: {path} is not what fpgapipe ")


@pytest.mark.parametrize("load", ["dropout", "infer"])
def test_builds_of_all_kinds_are_opened(tmp_path, load):
    def network(batch):
        net = Network("other", batch)
        x = net.average_pool(net.relu(net.conv(net.image(1, 8, 8), 4, 3, bias=False)), 2)
        net.linear(net.dropout(net.flatten(x), 0.25), 10)
        return net.build()

    train = load == "dropout"
    schedules = ("1f1b-as" if train else "gpipe",)
    plan, graph, cluster = plan_of(1, network, train=train, schedules=schedules)
    write_build(plan, graph, cluster, tmp_path / "b", seed=3)
    shutil.rmtree(tmp_path / "cache/builds")
    assert open_build(tmp_path / "b").seed == 3
