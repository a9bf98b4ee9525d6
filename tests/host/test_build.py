"""The build folder: what is in it, the same bytes again, damage, and what is refused."""

import dataclasses
import hashlib
import json
import shutil
import threading
from itertools import count as numbers
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from build_cases import plan_of, request_for, tiny

from fpgapipe.boards.cluster import load_cluster
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.build.build import FORMAT_VERSION, holding, open_build, write_build
from fpgapipe.host.build.build_parts import initial_values
from fpgapipe.host.build.device_file import DEVICE, IMAGE, PROGRAM, read_device
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
from fpgapipe.hw.rtl import core_verilog
from fpgapipe.hw.rtl.core_verilog import device_verilog
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.machine import price_plan
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

MIXED = Path(__file__).parents[2] / "examples/clusters/vcu118-vcu129-chain.yaml"


@pytest.fixture(autouse=True)
def _quick_verilog(monkeypatch):
    """Verilog of a core takes seconds; most tests only need some text for it."""
    monkeypatch.setattr(core_verilog, "device_verilog", lambda core: f"module top; // {core}\n")


def write(folder, devices=2, **fields):
    settings = {name: fields.pop(name) for name in ("seed", "options") if name in fields}
    return write_build(*plan_of(devices, **fields), folder, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A build of two devices that no test changes."""
    folder = tmp_path_factory.mktemp("builds") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_verilog, "device_verilog", lambda core: f"module top; // {core}\n")
        write(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def files_of(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


EXPECTED = [
    "README.md",
    "cluster.json",
    *(f"devices/{n}/{name}" for n in (0, 1) for name in sorted((DEVICE, IMAGE, PROGRAM))),
    "manifest.json",
    "network.json",
    "plan.json",
]


# What is in it


def test_the_folder_has_what_its_readme_says(whole):
    found = files_of(whole)
    hardware = [name for name in found if name.startswith("hardware/")]
    assert [name for name in found if name not in hardware] == EXPECTED
    (core,) = {Path(name).stem for name in hardware}
    assert [Path(name).suffix for name in hardware] == [".json", ".v"]
    text = (whole / "README.md").read_text()
    assert f"`hardware/{core}.v`: stage 0 on u280-0, stage 1 on u280-1" in text
    manifest = json.loads((whole / "manifest.json").read_text())
    for name in [each for each in found if each != "manifest.json"]:
        digest = hashlib.sha256((whole / name).read_bytes()).hexdigest()
        assert manifest["files"][name] == {"bytes": (whole / name).stat().st_size, "sha256": digest}


def test_a_build_is_read_back(whole):
    plan, graph, cluster = plan_of()
    build = open_build(whole)
    assert build.plan == price_plan(plan, graph, cluster, build.pipeline)[0]
    assert (build.cluster, build.seed) == (cluster, 0)
    assert build.options == StepOptions()
    assert build.graph == graph
    cores = plan.cores
    assert build.cores == cores
    schedule = make_schedule("1f1b-as", 2, 2)
    layers = [stage.layers for stage in plan.stages]
    expected = build_pipeline(graph, cores, layers, schedule, build.memories[0])
    parameters = initial_parameters(graph, 0)
    assert build.pipeline.wiring == expected.wiring
    for found, made in zip(build.pipeline.parts, expected.parts, strict=True):
        for field in dataclasses.fields(found):
            if field.name != "constants":
                assert getattr(found, field.name) == getattr(made, field.name), field.name
        assert found.constants.keys() == made.constants.keys()
        np.testing.assert_array_equal(found.image(build.parameters), made.image(parameters))
    assert build.parameters.keys() == parameters.keys()
    for name, value in parameters.items():
        np.testing.assert_array_equal(build.parameters[name], value)


def test_the_image_has_nothing_but_what_is_not_zero(whole):
    build = open_build(whole)
    for part in build.pipeline.parts:
        folder = whole / "devices" / str(part.index)
        described = json.loads((folder / "device.json").read_text())
        rest = part.image(build.parameters)
        program = encode(part.instructions)
        assert (folder / "program.bin").read_bytes() == program
        assert bytes(rest[part.entry : part.entry + len(program)]) == program
        rest[part.entry : part.entry + len(program)] = 0
        data, at = (folder / "image.bin").read_bytes(), 0
        for each in described["segments"]:
            begin, end = each["address"], each["address"] + each["size_bytes"]
            assert bytes(rest[begin:end]) == data[at : at + each["size_bytes"]]
            assert rest[begin:end].any()
            rest[begin:end] = 0
            at += each["size_bytes"]
        assert at == len(data)
        assert not rest.any()
        assert described["registers"] == {
            "PROGRAM": part.entry, "MEMORY_BASE": 0, "MEMORY_LIMIT": part.memory_bytes,
        }  # fmt: skip


def test_resources_are_those_of_the_board(whole):
    one, other = open_build(whole).resources
    assert one == other
    assert one["board"] == "u280"
    assert one["headroom"]["dsp"] == one["limits"]["dsp"] - one["used"]["dsp"] > 0
    assert sum(each["dsp"] for each in one["blocks"].values()) == one["used"]["dsp"]
    assert [each["die"] for each in one["dies"]] == ["SLR0", "SLR1", "SLR2"]
    for name, limit in one["limits"].items():
        assert sum(each["limits"][name] for each in one["dies"]) == limit
        assert all(each["headroom"][name] >= 0 for each in one["dies"])


def test_unlike_boards(tmp_path):
    """Equal cores share one Verilog, whatever the boards; what they take is said for each."""
    cluster = load_cluster(MIXED).spec
    best = explore(request_for(cluster)).best
    plan = as_plan(best, tiny(2), "tiny", 4, cluster)
    write_build(plan, tiny(2), cluster, tmp_path / "b")
    build = open_build(tmp_path / "b")
    assert [each["board"] for each in build.resources] == ["vcu118", "vcu118", "vcu129", "vcu129"]
    assert len({json.dumps(each["limits"]) for each in build.resources}) == 2
    hardware = list((tmp_path / "b" / "hardware").iterdir())
    assert len(hardware) == 2 * len(set(build.cores))
    for one, other, wire in zip(build.cores, build.cores[1:], build.wires, strict=False):
        assert one.links[-1] == other.links[0]
        assert one.links[-1].phy_bytes == wire.phy_bytes


def test_a_build_trains(whole):
    build = open_build(whole)
    rng = np.random.default_rng(0)
    inputs = {"input": rng.standard_normal((4, 2, 6, 6), np.float32)}
    with ModelBackend(build.pipeline, build.parameters) as backend:
        losses = [
            backend.step(inputs, np.array([0, 1, 2, 0]), scalar_bits(step=step)).loss
            for step in range(4)
        ]
    assert losses[-1] < losses[0]


def test_inference(tmp_path):
    build = write(tmp_path / "b", train=False)
    assert open_build(tmp_path / "b") == build
    assert build.plan.mode == "infer"
    assert not build.options.train
    assert {task.kind.token for part in build.pipeline.parts for task in part.tasks} == {"F"}
    assert not any(part.losses for part in build.pipeline.parts)
    with pytest.raises(UserError, match=r"^a plan to infer needs options for it$"):
        write(tmp_path / "c", train=False, options=StepOptions())


def test_values_of_the_network_are_taken(tmp_path):
    graph = tiny(2)
    name = "conv1.weight"
    value = np.full(graph.layers["conv1"].parameters[0].spec.shape, 0.25, np.float64)
    graph = dataclasses.replace(graph, values={name: value})
    assert initial_values(graph, 3)[name].dtype == np.float32
    plan, _, cluster = plan_of()
    build = write_build(plan, graph, cluster, tmp_path / "b", seed=3)
    np.testing.assert_array_equal(build.parameters[name], value)
    other = "conv2.weight"
    np.testing.assert_array_equal(build.parameters[other], initial_parameters(graph, 3)[other])


@pytest.mark.slow
def test_the_verilog_is_that_of_the_simulator(tmp_path, monkeypatch):
    monkeypatch.setattr(core_verilog, "device_verilog", device_verilog)
    build = write(tmp_path / "b", devices=1)
    (path,) = (tmp_path / "b" / "hardware").glob("*.v")
    assert path.read_text() == device_verilog(build.cores[0])
    assert "module top(" in path.read_text()


# Bytes and files


def test_equal_input_gives_equal_bytes(whole, tmp_path):
    write(tmp_path / "again")
    assert files_of(whole) == files_of(tmp_path / "again")
    for name in files_of(whole):
        assert (whole / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    write(tmp_path / "other", seed=1)
    different = [
        name
        for name in files_of(whole)
        if (whole / name).read_bytes() != (tmp_path / "other" / name).read_bytes()
    ]
    assert different == ["devices/0/image.bin", "devices/1/image.bin", "manifest.json"]


def test_every_file_is_guarded(copy):
    for name in files_of(copy):
        path = copy / name
        data = path.read_bytes()
        if name != "manifest.json":
            changed = bytearray(data)
            changed[len(data) // 2] ^= 1
            path.write_bytes(changed)
            with pytest.raises(UserError) as error:
                open_build(copy)
            assert str(error.value) == f"{copy} is damaged ({name}); build it again"
        path.unlink()
        with pytest.raises(UserError, match=r"is damaged \(|is no build folder \("):
            open_build(copy)
        path.write_bytes(data)
    assert open_build(copy).graph == tiny(2)


def test_a_manifest_that_lacks_files(copy):
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in files_of(copy):
        if name in ("manifest.json", "README.md"):
            continue
        files = {key: value for key, value in manifest["files"].items() if key != name}
        path.write_text(json.dumps(manifest | {"files": files}))
        with pytest.raises(UserError) as error:
            open_build(copy)
        assert (
            str(error.value) == f"{copy} is damaged (manifest.json without {name}); build it again"
        )


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 1}', '{"format": "fpgapipe-build"}', "\0", "[" * 10_000,
     f'{{"format": "fpgapipe-build", "version": {FORMAT_VERSION}, "options": {{"train": 3}}, '
     '"seed": 0, "files": {}}'],
)  # fmt: skip
def test_manifests_that_are_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FileError, match="is no manifest of a build"):
        open_build(tmp_path)


def test_versions_and_missing_folders(copy, tmp_path):
    with pytest.raises(UserError, match="nowhere is no build folder"):
        open_build(tmp_path / "nowhere")
    for version in (4, 99):
        manifest = json.loads((copy / "manifest.json").read_text()) | {"version": version}
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match=f"version {version}, not {FORMAT_VERSION}; build"):
            open_build(copy)


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("device.json", lambda d: d.replace(b'"kernel_runs"', b'"runs"'), "kernel_runs: Field req"),
        (
            "device.json",
            lambda d: d.replace(b'"rows": 4,', b'"rows": 5,'),
            "core: Value error, core rows must divide 32, not 5",
        ),
        ("program.bin", lambda d: d[:64], "instruction "),
        ("image.bin", lambda d: d[:-1], "ends before tensor "),
        ("image.bin", lambda d: d + b"\0", "has more than the segments of device.json"),
    ],
)
def test_files_of_a_device_that_do_not_fit_together(copy, name, change, fault):
    """Someone wrote these files: no damage gives such ones, since digests tell."""
    path = copy / "devices/0" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FileError) as error:
        read_device(copy / "devices/0")
    assert error.value.path.name == name
    assert error.value.faults[0].startswith(fault)


# Writing


def test_an_earlier_build_is_replaced_and_other_folders_are_not(copy, tmp_path):
    write(copy, devices=1)
    assert len(open_build(copy).plan.stages) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="mine is there and is no build of fpgapipe"):
        write(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_runs_are_not_thrown_away(copy):
    (copy / "run").mkdir()
    (copy / "run" / "log.jsonl").write_text("days of training")
    write(copy)  # the same build
    assert (copy / "run" / "log.jsonl").exists()
    with pytest.raises(UserError, match=r"copy holds runs of another build; move or remove .*/run"):
        write(copy, seed=1)
    assert (copy / "run" / "log.jsonl").exists()
    assert open_build(copy).seed == 0


def test_a_damaged_build_is_made_anew(copy):
    (copy / "plan.json").write_text("{}")
    write(copy)
    assert open_build(copy).graph == tiny(2)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "file" / "b")
    name = "x" * 300
    with pytest.raises(UserError, match=rf"^.*{name} cannot be written: File name too long$"):
        write(tmp_path / name)


@pytest.mark.parametrize("before", [False, True], ids=["nothing there", "a build there"])
def test_what_is_interrupted_leaves_nothing_behind(tmp_path, copy, before):
    """Ctrl-C before each part."""
    folder = copy if before else tmp_path / "fresh"
    there = sorted(tmp_path.iterdir())
    for part in numbers():
        steps = numbers()

        def stop(what, steps=steps, part=part):
            if next(steps) == part:
                raise KeyboardInterrupt

        try:
            write_build(*plan_of(1), folder, on_part=stop)
        except KeyboardInterrupt:
            assert sorted(tmp_path.iterdir()) == there
            if before:
                assert len(open_build(folder).plan.stages) == 2
        else:
            assert part == 5  # programs, times, hardware, a device, manifest
            break
    assert len(open_build(folder).plan.stages) == 1


def test_one_process_at_a_time_uses_a_build(copy, tmp_path):
    order = []

    def replace():
        write(copy, devices=1)
        order.append("replaced")

    with holding(copy):
        thread = threading.Thread(target=replace)
        thread.start()
        thread.join(3)  # more than a build takes
        order.append("used")
        assert len(open_build(copy).plan.stages) == 2
    thread.join()
    assert order == ["used", "replaced"]
    with holding(copy):
        assert len(open_build(copy).plan.stages) == 1
    with holding(tmp_path / "none"):
        assert not (tmp_path / "none").exists()


# What is refused


def test_a_layer_that_no_core_runs(tmp_path):
    def three_axes(batch):
        net = Network("three_axes", batch)
        net.conv(net.image(4, 8, 8, 8), 4, 3)
        return net.build()

    with pytest.raises(UserError, match=r"^layer 'conv1': "):
        write(tmp_path / "b", devices=1, load=three_axes)
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_is_too_large_for_its_core(tmp_path):
    plan, graph, cluster = plan_of(1)
    spec = plan.nodes[0].spec
    scratchpad = dataclasses.replace(spec.core.scratchpad, bank_bytes=512)
    core = dataclasses.replace(spec.core, scratchpad=scratchpad)
    small = plan.nodes[0].model_copy(update={"spec": dataclasses.replace(spec, core=core)})
    with pytest.raises(UserError, match=r"^layer '\w+': .* [\d,]+ bytes of scratchpad"):
        write_build(plan.with_nodes([small]), graph, cluster, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_too_large_for_the_memory(tmp_path):
    plan, graph, cluster = plan_of(1)
    (memory, *_) = cluster.devices[0].memories
    tight = dataclasses.replace(memory, count=1, size_bytes=10_000)
    device = dataclasses.replace(cluster.devices[0], memories=(tight,))
    cluster = dataclasses.replace(cluster, devices=(device,))
    with pytest.raises(
        UserError, match=r"^device 0 needs [\d,]+ bytes of memory, u280-0 has 10,000; more micro-"
    ):
        write_build(plan, graph, cluster, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"batch": 0}, "batch: Input should be greater than or equal to 1, not 0"),
        ({"version": 2}, "version: Input should be 4, not 2"),
        ({"mode": "guess"}, "mode: Input should be 'train' or 'infer', not 'guess'"),
        ({"num_microbatches": 3}, "file: Value error, a batch of 4 cannot be cut into 3"),
        ({"stages": []}, "stages: Tuple should have at least 1 item"),
        ({"speed": 1}, "speed: Extra inputs are not permitted, not 1"),
        ({"batch": "8"}, "batch: Input should be a valid integer, not '8'"),
    ],
)
def test_plans_with_faults(tmp_path, change, fault):
    value = json.loads(plan_of()[0].to_json()) | change
    (tmp_path / "plan.json").write_text(json.dumps(value))
    with pytest.raises(FileError) as error:
        Plan.read(tmp_path / "plan.json")
    assert error.value.faults[0].startswith(fault)


# The command


def test_the_command(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny_network_for_test.py").write_text(
        "from fpgapipe.network.zoo.layers import Network\n"
        "def net(batch):\n"
        "    net = Network('tiny', batch)\n"
        "    x = net.relu(net.conv(net.image(2, 6, 6), 4, 3))\n"
        "    net.linear(net.flatten(x), 3)\n"
        "    return net.build()\n"
    )
    network = ("--network", "tiny_network_for_test:net", "--batch", 4, "--array", "4x4")
    code, out, err = cli("build", "--board", "u280", *network)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].endswith("1f1b-as over u280-x2")
    assert "what the cores take of what a design may use" in lines
    assert "what the memory of each device is used for, at the fullest moment" in lines
    assert lines[-1] == "written to out/tiny; 'fpgapipe run out/tiny' runs it"
    assert len(open_build(Path("out/tiny")).plan.stages) == 2
    code, out, err = cli(
        "build", "--board", "u280", "--devices", 1, *network, "--mode", "infer", "-o", "forward"
    )
    assert code == 0, err
    assert open_build(Path("forward")).plan.mode == "infer"
    code, _, err = cli("build", "--board", "u280", "--devices", 5, *network)
    assert code == 2
    assert err == (
        "error: the network has 2 runs of layers that can stand alone, too few for 5 devices; use "
        "at most 2\n"
    )


@pytest.mark.parametrize("array", ["8", "8x", "x", "0x8", "8x8x8", "-1x8", "2000x8", "axb"])
def test_senseless_arrays(cli, array):
    code, _, err = cli("build", "--board", "u280", "--array", array)
    assert code == 2
    assert err == f"error: --array must be ROWSxCOLS, each 1..1024, such as 8x8, not {array!r}\n"


@pytest.mark.parametrize(
    ("command", "array", "why"),
    [
        ("build --network no_such", "5x5", "core rows must divide 32, not 5"),
        ("plan no_such", "5x5", "core rows must divide 32, not 5"),
        ("oracle no_such", "5x5", "core rows must divide 32, not 5"),
        ("plan no_such", "8x33", "core cols must be in 1..32 or a multiple of 32, not 33"),
        (
            "build --network no_such --cells packed",
            "4x3",
            "packed cols must be even and at least 4, not 3",
        ),
        ("plan no_such --cells packed", "4x3", "packed cols must be even and at least 4, not 3"),
    ],
)
def test_arrays_that_no_core_can_have(cli, command, array, why):
    code, out, err = cli(*command.split(), "--board", "u280", "--array", array)
    assert (code, out) == (2, "")
    assert err == f"error: no core has the array of --array {array}: {why}\n"


def test_an_array_that_no_device_has_room_for(cli):
    code, _, err = cli("build", "--board", "u280", "--array", "32x1024")
    assert code == 2
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seed", -1), "-1 is not in the range 0<=x<="),
        (("--schedule", "data-parallel"), "is no order of a pipeline: take --strategy data"),
        (("--schedule", "interleaved"), "has other than one stage on each device (those that can"),
        (("--schedule", "chimera"), "has other than one stage on each device (those that can be"),
        (
            ("--schedule", "zb-auto"),
            "searches one for given times (those that can be built: gpipe, ",
        ),
        (
            ("--schedule", "1f1b-az"),
            "there is no schedule named '1f1b-az'; did you mean '1f1b-as'?",
        ),
    ],
)
def test_refused_before_there_is_a_plan(arguments, message, cli, monkeypatch, tmp_path):
    def plans(*arguments):
        raise AssertionError("a plan was searched for")

    monkeypatch.setattr("fpgapipe.host.make.planning.best_plan", plans)
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("build", "--board", "u280", *arguments)
    assert code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_what_to_take_in_place_of_an_array(cli):
    big = ("build", "--board", "u280", "--network", "digits-cnn", "--array", "32x512")
    code, _, err = cli(*big)
    assert code == 2
    shape = err.split("; ")[-1].removesuffix(" does\n")
    rows, cols = map(int, shape.split("x"))
    assert rows * cols < 32 * 512
    code, _, err = cli("build", "--board", "ulx3s", "--devices", "3", "--array", "1x1")
    assert (code, err.split("; ")[-1]) == (2, "nor does any other\n")


@pytest.mark.parametrize(
    ("fits", "why"),
    [(True, NoRoom()), (False, NoRoom()), (False, NotImplementedError()), (False, None)],
)
def test_a_layer_that_does_not_fit_gets_a_larger_scratchpad(fits, why, cli, monkeypatch, tmp_path):
    from fpgapipe.host.make import build

    sizes = []
    write_build = build.write_build

    def write(plan, *args, **options):
        core = plan.nodes[0].core
        sizes.append(core.scratchpad.size_bytes)
        if not fits or len(sizes) == 1:
            raise UserError("layer 'conv9' is too large") from why
        return write_build(plan, *args, **options)

    monkeypatch.setattr(build, "write_build", write)
    monkeypatch.setattr(core_verilog, "device_verilog", lambda core: "module top; endmodule")
    options = ("--board", "u280", "--array", "8x8", "--batch", "8", "-o", tmp_path / "b")
    code, _, err = cli("build", *options)
    assert all(after == 2 * before for before, after in pairwise(sizes))
    if fits:
        assert (code, len(sizes)) == (0, 2)
    else:
        # On a busy machine there are lines of progress before.
        assert (code, err.splitlines()[-1]) == (2, "error: layer 'conv9' is too large")
        assert 2 < len(sizes) < 8 if isinstance(why, NoRoom) else len(sizes) == 1
