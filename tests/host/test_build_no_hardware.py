"""Builds without Verilog, which train in the bit-exact model."""

import pytest

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.hw.rtl import core_verilog


@pytest.fixture
def folder(cli, tmp_path, monkeypatch):
    def elaborated(core):
        raise AssertionError("hardware is elaborated")

    monkeypatch.setattr(core_verilog, "device_verilog", elaborated)
    folder = tmp_path / "build"
    command = ("build", "--board", "u280", "--devices", 2, "--batch", 8, "--micro-batches", 2)
    code, out, _ = cli(*command, "--no-hardware", "-o", folder)
    assert code == 0
    assert f"'fpgapipe run {folder} --backend model' runs it" in out
    return folder


def test_it_trains_in_the_model_and_elaborates_nothing(folder, cli):
    assert not list((folder / "hardware").glob("*.v"))
    assert list((folder / "hardware").glob("*.json"))
    code, out, _ = cli(
        "run", folder, "--backend", "model", "--steps", 1, "--data", "random", "--json"
    )
    assert code == 0
    assert '"loss"' in out


def test_what_needs_hardware_is_refused(folder, cli):
    message = (
        f"error: {folder} was built with --no-hardware, so it has no cores to simulate or to "
        "package; build it again without that option, or use --backend model\n"
    )
    for command in (
        ("run", folder, "--backend", "sim", "--steps", 1, "--data", "random"),
        ("report", folder, "--measure"),
    ):
        code, _, err = cli(*command)
        assert (code, err) == (2, message)
    code, _, err = cli("build", "--board", "u280", "--no-hardware", "--package", "vitis")
    assert code == 2
    assert err == ("error: --package packages the cores' Verilog, so it excludes --no-hardware\n")


def test_a_lost_file_is_still_damage(folder):
    open_build(folder)
    (path,) = (folder / "hardware").glob("*.json")
    path.unlink()
    with pytest.raises(UserError, match=r"is damaged \(hardware/"):
        open_build(folder)
