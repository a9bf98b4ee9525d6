"""Files that commands write where users say."""

import json

import pytest

from fpgapipe.host.build.build import MANIFEST
from fpgapipe.host.terminal import outputs

SCHEDULE = ("schedule", "gpipe", "--stages", 2, "--micro-batches", 2)
PLAN = ("plan", "lenet5", "--board", "u280", "--batch", 1)


@pytest.mark.parametrize("option", ["--svg", "--html", "--trace", "--csv"])
def test_what_cannot_be_written_is_refused_before_the_work(cli, tmp_path, monkeypatch, option):
    monkeypatch.setattr("fpgapipe.schedule", None)
    output = tmp_path / "no" / "file"
    fault = f"error: {output}: cannot be written: No such file or directory\n"
    assert cli(*SCHEDULE, option, output) == (2, "", fault)
    if option != "--csv":
        monkeypatch.setattr("fpgapipe.host.cli.commands.plan.chosen_cluster", None)
        assert cli(*PLAN, option, output) == (2, "", fault)
        assert cli(*PLAN, "-o", output) == (2, "", fault)


def test_a_file_for_two_things_and_one_that_is_read(cli, tmp_path):
    output = tmp_path / "a"
    (tmp_path / "b").mkdir()
    _, _, err = cli(*SCHEDULE, "--svg", output, "--html", tmp_path / "b" / ".." / "a")
    assert err == f"error: --svg and --html name the same file, {tmp_path / 'b' / '..' / 'a'}\n"
    network = tmp_path / "network.csv"
    network.write_text("Layer, M, N, K\nx, 1, 1, 1\n")
    _, _, err = cli("plan", network, *PLAN[2:], "-o", network)
    what = "is read by this command; name another file with --output"
    assert err == f"error: {network}: {what}\n"
    assert network.read_text().startswith("Layer")


def test_written_whole_or_not_at_all(cli, tmp_path, monkeypatch):
    output = tmp_path / "a.json"
    assert cli(*SCHEDULE, "--trace", output)[0] == 0
    good = output.read_bytes()
    json.loads(good)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = cli(*SCHEDULE, "--trace", output)
    assert (code, err) == (2, f"error: {output}: cannot be written: No space left on device\n")
    assert output.read_bytes() == good
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["[]", "{", '{"format": 1}', '{"format": "fpgapipe-build"}'])
def test_a_manifest_of_something_else_guards_nothing(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    outputs.check_output(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("file", "is there and is no build of fpgapipe; name another with -o"),
        ("file/build", "cannot be written: Not a directory"),
        ("link", "cannot be written: it is a link that leads nowhere"),
        ("full", "is there and is no build of fpgapipe; name another with -o"),
        ("n" * 300, "cannot be written: File name too long"),
    ],
)
def test_where_no_build_can_be_is_known_before_the_plan(cli, tmp_path, monkeypatch, name, fault):
    monkeypatch.setattr("fpgapipe.host.make.build.loader", None)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "full/of").mkdir(parents=True)
    path = tmp_path / name
    assert cli("build", "--board", "u280", "-o", path) == (2, "", f"error: {path} {fault}\n")


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "link", "--cycles", 1000),
        ("bench", "core", "--layer", "gemm:m=8,n=8,k=8", "--rows", 4, "--cols", 4),
    ],
)
def test_a_cache_that_cannot_be_written_is_found_before_the_work(
    cli, tmp_path, monkeypatch, command
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path / "file"))
    for module in (
        "fpgapipe.sim_tb.worlds.link_world.verilog_of",
        "fpgapipe.hw.rtl.core_verilog.device_verilog",
    ):
        monkeypatch.setattr(module, None)
    code, _, err = cli(*command)
    remedy = "set FPGAPIPE_CACHE to a folder that can be written"
    assert (code, err) == (
        2,
        f"error: cannot write {tmp_path / 'file'}: Not a directory; {remedy}\n",
    )
