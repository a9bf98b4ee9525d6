"""``fpgapipe build --package``: what is refused, and a whole build with its packages."""

import dataclasses
import json
from pathlib import Path

import pytest
from cases.package_cases import target_of
from cases.tcl_runs import run_tcl
from cases.vendor_commands import COMMANDS

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.cli.main import main
from fpgapipe.host.make import build as make_build
from fpgapipe.host.package import targets
from fpgapipe.host.package.clocks import ACHIEVED, CLOCKS, clocks_text, core_clocks, read_clocks
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.targets import check_boards


@pytest.mark.parametrize(
    ("board", "devices", "kind", "message"),
    [
        (
            "u280",
            2,
            "litex",
            "u280-0 cannot be packaged for litex: board u280 is packaged for vitis; use --package "
            "vitis",
        ),
        (
            "arty-a7-100t",
            2,
            "litex",
            "arty-a7-100t-0 cannot be packaged: the file of board arty-a7-100t lacks the key "
            "'packaging' with 'tools' and 'litex' (docs/boards.md)",
        ),
        (
            "arty-a7-100t",
            1,
            "vivado",
            "arty-a7-100t-0 cannot be packaged: the file of board arty-a7-100t lacks the key "
            "'packaging' with 'tools' and 'vivado' (docs/boards.md)",
        ),
        (
            "u280",
            2,
            "vivado",
            "u280-0 cannot be packaged for vivado: board u280 is packaged for vitis; use --package "
            "vitis",
        ),
        (
            "pynq-z2",
            2,
            "pynq",
            "pynq-z2-0 cannot be packaged: its link at pmod/0 is gpio, and only aurora-64b66b has "
            "a PHY here; build for one device, or for other ports",
        ),
        (
            "zcu102",
            3,
            "pynq",
            "zcu102-1 cannot be packaged: its links at sfp/0 and sfp/1 share the quad X1Y3 of "
            "transceivers, and an Aurora core needs a quad for itself; a chain may have such "
            "boards at its ends only",
        ),
        (
            "kv260",
            2,
            "pynq",
            "kv260-0 cannot be packaged: 'packaging.transceivers' of board kv260 does not have "
            "port sfp/0 (docs/boards.md)",
        ),
    ],
)
def test_refused_before_planning(board, devices, kind, message):
    with pytest.raises(UserError) as failure:
        check_boards(chain_of(load_board(board), devices), kind)
    assert str(failure.value) == message


def test_a_chain_of_boards_with_pins():
    check_boards(chain_of(load_board("ulx3s"), 4), "litex")


def test_the_command_refuses_before_planning(capsys):
    assert main(["build", "--board", "ulx3s", "--package", "vivado"]) == 2
    assert "board ulx3s is packaged for litex; use --package litex" in capsys.readouterr().err


def test_memory_that_the_core_does_not_reach():
    device = target_of("vcu118", ())
    large = dataclasses.replace(device, memory_bytes=3 << 30)
    with pytest.raises(UserError) as failure:
        targets._check_memory(large, large.board.device_spec())
    assert str(failure.value) == (
        "vcu118-1 cannot be packaged: its program needs 3,221,225,472 bytes of memory, and the "
        "core reaches 2,147,483,648 bytes of ddr4"
    )


def test_a_whole_build(tmp_path, capsys, monkeypatch):
    """A build for two boards with a package, which opens as any other build."""
    folder = tmp_path / "built"
    arguments = ["build", "--board", "zcu102", "--devices", "2", "--array", "2x2", "--batch", "4"]
    assert main([*arguments, "--package", "pynq", "-o", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"packaged for pynq in {folder}/package/pynq" in out
    built = open_build(folder)
    package = folder / "package"
    places = sorted(each for each in (package / "pynq").iterdir() if each.is_dir())
    assert [each.name for each in places] == ["0-zcu102-0", "1-zcu102-1"]
    # A lane of 10.3125 Gb/s, 64 bits a cycle.
    assert read_clocks(package, [1, 1]) == [[161.1328125e6]] * 2
    for index, place in enumerate(places):
        script = (place / "build.tcl").read_text()
        calls = run_tcl(script, COMMANDS)
        (sources,) = (each for each in calls if each[0] == "add_files" and "hardware" in each[-1])
        core = sources[-1].split()[0]
        assert (place / core).resolve().is_file()
        readme = (place / "README.md").read_text()
        assert f"{sum(built.memory_use[index].values()):,} bytes of memory" in readme
    before = (places[0] / "build.tcl").stat().st_mtime_ns
    assert main([*arguments, "--package", "pynq", "-o", str(folder)]) == 0
    assert (places[0] / "build.tcl").stat().st_mtime_ns > before
    assert open_build(folder).plan == built.plan

    def fails(*_):
        raise UserError("no space")

    monkeypatch.setattr(make_build, "write_package", fails)
    capsys.readouterr()
    assert main([*arguments, "--package", "pynq", "-o", str(folder)]) == 2
    assert f"no space; the build is in {folder}" in capsys.readouterr().err
    assert open_build(folder).plan == built.plan


def test_boards_that_nodes_share(tmp_path, monkeypatch):
    """Two boards of two nodes each: a target a board, joined within and between."""
    folder = tmp_path / "built"
    arguments = ["build", "--board", "u280", "--devices", "2", "--nodes", "2", "--array", "4x4"]
    given = [*arguments, "--batch", "4", "--no-hardware", "--no-verify", "-o", str(folder)]
    assert main(given) == 0
    monkeypatch.setattr(targets, "read_text", lambda path, limit: path.name)
    cluster = chain_of(load_board("u280"), 2, 2)
    check_boards(cluster, "vitis")
    built = open_build(folder)
    boards = targets.targets(built, cluster, FLOWS["vitis"])
    assert [each.folder for each in boards] == ["0-u280-0", "2-u280-1"]
    nodes = [node for each in boards for node in each.nodes]
    assert [(each.index, each.device) for each in nodes] == [
        (0, "u280-0.0"), (1, "u280-0.1"), (2, "u280-1.0"), (3, "u280-1.1"),
    ]  # fmt: skip
    assert [[(end.number, end.node, end.other) for end in each.on_chip] for each in nodes] == [
        [(0, 1, 0)], [(0, 0, 0)], [(1, 1, 0)], [(0, 0, 1)],
    ]  # fmt: skip
    ports = [[(end.number, end.transceiver.name) for end in each.links] for each in nodes]
    cables = [port for link in cluster.links for port in (link.source_port, link.destination_port)]
    (leaves, enters) = (port for port in cables if port.startswith("qsfp"))
    assert ports == [[], [(1, leaves)], [(0, enters)], []]
    assert all(each.verilog == Path(each.core_file).name for each in nodes)
    assert [each.die for each in nodes] == [node.die for node in cluster.nodes]
    package = tmp_path / "package"
    for each in boards:
        (package / "vitis" / each.folder).mkdir(parents=True)
    (package / "vitis" / CLOCKS).write_text(clocks_text(boards))
    assert [len(each) for each in read_clocks(package, [0, 1, 1, 0])] == [0, 1, 1, 0]
    made = package / "vitis" / "2-u280-1" / ACHIEVED
    frequencies = [{"m_freq_Mhz": "250", "m_type": "DATA"}]
    made.write_text(json.dumps({"clock_freq_topology": {"m_clock_freq": frequencies}}))
    assert core_clocks(package, built.plan) == [300e6, 300e6, 250e6, 250e6]
    text = json.loads((package / "vitis" / CLOCKS).read_text())
    for wrong in (["0-u280-0"] * 3, ["elsewhere"] * 4, 7):
        (package / "vitis" / CLOCKS).write_text(json.dumps(text | {"folders": wrong}))
        with pytest.raises(UserError, match="and the folder of each device; package the build"):
            core_clocks(package, built.plan)
