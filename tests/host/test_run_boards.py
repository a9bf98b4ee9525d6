"""`run` and `bringup` with boards: files of the XDMA driver in front of models."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_cases import small_build
from transport_cases import Faulty, XdmaFiles

from fpgapipe.boards.address import Address
from fpgapipe.boards.library import load_board
from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.host.transports.pynq_board import PynqTransport
from fpgapipe.host.transports.xdma import XdmaTransport
from fpgapipe.hw.hls_models.model.registers import RegisterMap

DATA = ("--data", "random", "--no-validation")
BOARDS = ("--backend", "xdma", "--cluster", "lab.yaml")


def cluster_file(boards, *, entries=None):
    lines = entries or [
        f"  - {{name: card-{index}, board: {board}, address: "
        f"{{device: {index}, registers: 0x1000, memory: 0x200_000}}}}"
        for index, board in enumerate(boards)
    ]
    return "\n".join(["format: 1", "name: lab", "devices:", *lines, "topology: chain", ""])


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A build, a cluster file with addresses, and cards behind them; returns how cards fail."""
    small_build(tmp_path / "b", monkeypatch)
    monkeypatch.chdir(tmp_path)
    build = open_build(tmp_path / "b")
    (tmp_path / "lab.yaml").write_text(cluster_file([node.board for node in build.plan.nodes]))
    sizes = [part.memory_bytes + (1 << 22) for part in build.pipeline.parts]
    cluster = ModelledCluster(build.cores, sizes, build.pipeline.wiring)
    faults = {}

    def opened(address, board, folder):
        inner = Faulty(ModelledTransport(cluster, int(address.device), 0x200000), **faults)
        files = XdmaFiles(inner, address.registers)
        files.open = lambda path, flags, /, open=files.open: open(
            path.replace(f"xdma{address.device}", "xdma0"), flags
        )
        return XdmaTransport(
            int(address.device),
            registers=address.registers,
            memory=address.memory,
            memory_bytes=1 << 24,
            files=files,
        )

    monkeypatch.setattr(XdmaTransport, "open", opened)
    return build, faults


def newest(folder):
    return max((folder / "checkpoints").glob("*.ckpt"))


def test_boards_train_as_the_model_does(lab, cli):
    build, _ = lab
    code, out, err = cli("run", "b", *DATA, *BOARDS, "--steps", 3, "--check", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["backend"], found["check"], found["steps"]) == ("xdma", "model", 3)
    assert found["difference"] is None
    assert cli("run", "b", *DATA, "--backend", "model", "--steps", 3)[0] == 0
    states = [Checkpoint.read(newest(build.run_folder / name)).state for name in ("xdma", "model")]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


def test_a_fault_loses_no_checkpoint(lab, cli):
    """The card goes away in the third step; the run goes on from the second one's checkpoint."""
    build, faults = lab
    status = RegisterMap(build.cores[0]).offset("STATUS")
    looks = iter(range(10_000))
    entry = {"read": lambda at, value: 0xFFFFFFFF if at == status and next(looks) >= 12 else value}
    faults.update(entry)
    every = ("--checkpoint-every", 1)
    code, _, err = cli("run", "b", *DATA, *BOARDS, *every, "--steps", 5)
    assert code == 2
    assert "register STATUS reads as 0xffffffff, which no core answers: the device is gone" in err
    kept = newest(build.run_folder / "xdma")
    assert 0 < Checkpoint.read(kept).step < 5
    faults.clear()
    assert cli("run", "b", *BOARDS, *every, "--resume", "--no-validation")[0] == 0
    assert cli("run", "b", *DATA, "--backend", "model", "--steps", 5)[0] == 0
    states = [Checkpoint.read(newest(build.run_folder / name)).state for name in ("xdma", "model")]
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


def test_a_device_that_is_out_of_reach_leaves_the_states_of_all(lab, cli):
    """An access to the first card fails in its second look: what all cards do is told."""
    build, faults = lab
    status = RegisterMap(build.cores[0]).offset("STATUS")
    looks = iter(range(10_000))

    def read(at, value):
        if at == status and next(looks) == 2:
            raise TransportError("/dev/xdma0_user: read of 4 bytes failed: Input/output error")
        return value

    faults["read"] = read
    code, _, err = cli("run", "b", *DATA, *BOARDS, "--steps", 5)
    assert code == 2
    message, *states = err[err.index("error: ") :].splitlines()
    assert "Input/output error" in message
    devices = [node.device for node in build.plan.nodes]
    assert [line for line in states if not line.startswith(" ")] == [f"{x}:" for x in devices]
    assert states.count("  no program runs (done)") == len(devices)  # models end at once


def test_registers_of_a_processing_system_are_where_the_package_has_them(monkeypatch):
    """An address in the cluster file goes before."""
    opened = []
    monkeypatch.setattr(PynqTransport, "__init__", lambda self, *given: opened.append(given))
    board = load_board("kv260")
    for address in (Address(), Address(registers=0xB0000000)):
        PynqTransport.open(address, board, Path())
    assert opened == [(0xA0000000, None), (0xB0000000, None)]


def test_bringup_says_what_is_wrong(lab, cli):
    _, faults = lab
    code, out, err = cli("bringup", "b", *BOARDS, "--watch", 0.01)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 9
    faults["store"] = lambda address, data: data | 1
    code, out, _ = cli("bringup", "b", *BOARDS, "--watch", 0.01, "--json")
    assert code == 1
    found = json.loads(out)
    assert not found["passed"]
    wrong = [each for each in found["checks"] if not each["passed"]]
    assert [each["check"] for each in wrong] == ["memory", "memory", "links"]


def test_bringup_compares_the_clocks_of_links(lab, cli):
    """The model's PHY has the core's clock, here 300 MHz; a package says what it should have."""
    build, _ = lab
    package = build.folder / "package" / "vivado"
    package.mkdir(parents=True)
    core_hz = [node.spec.clk_hz for node in build.plan.nodes]
    shown = " at .*, ".join(f"{each / 1e6:.4g} MHz" for each in core_hz)

    def last(text=None):
        if text is not None:
            (package / "clocks.json").write_text(text)
        code, out, err = cli("bringup", "b", *BOARDS, "--watch", 0.01)
        return code, out.splitlines()[-1] if out else err

    code, line = last()
    assert code == 0
    assert re.search(f"; clocks of the PHYs: {shown} at", line), line
    assert last(json.dumps({"phy_clock_hz": [[each] for each in core_hz]}))[0] == 0
    code, line = last(json.dumps({"phy_clock_hz": [[each * 1.0313] for each in core_hz]}))
    assert code == 1
    assert "its PHY's clock has" in line
    for text in ("", "{", "[]", "{}", '{"phy_clock_hz": [[1]]}', '{"phy_clock_hz": [[1], [-1]]}',
                 '{"phy_clock_hz": [[1], [NaN]]}', '{"phy_clock_hz": [["x"], [1]]}',
                 '{"phy_clock_hz": 3}', '{"phy_clock_hz": [[1, 2], [1]]}'):  # fmt: skip
        code, line = last(text)
        assert code == 2, text
        assert "clocks.json does not have the frequency of each link's clock" in line


def test_models_can_be_brought_up_without_boards(lab, cli):
    code, out, err = cli("bringup", "b", "--backend", "model", "--watch", 0)
    assert code == 0, err
    assert "FAILED" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "xdma"), "--backend xdma needs --cluster FILE, which says at which address"),
        (("--backend", "model", "--cluster", "lab.yaml"), "--cluster has addresses of boards, and"),
        (("--backend", "xdma", "--cluster", "none.yaml"), "none.yaml"),
    ],
)
def test_options_that_do_not_fit(arguments, message, lab, cli):
    code, _, err = cli("run", "b", *DATA, *arguments, "--steps", 1)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: a, board: BOARD, count: 2}", "a0 has no address, by which xdma would reach it"),
        (
            "{name: a, board: BOARD, count: 2, address: {}}",
            "devices[0].address: must be left out where 'count' is: give each device an entry",
        ),
        ("{name: a, board: BOARD, address: {}}", "has 1 device, and the build needs 2"),
        ("{name: a, board: kv260, count: 2}", "a0 is a kv260, and device 0 of the build is for a"),
        ("{name: a, board: BOARD, address: {registers: -1}}", "registers: must be 0..0xffffff"),
        ("{name: a, board: BOARD, address: {registers: 0xG}}", "registers: must be 0..0xffffff"),
        ("{name: a, board: BOARD, address: {memory_bytes: 1}}", "memory_bytes: must be 4 KiB.."),
        ("{name: a, board: BOARD, address: {device: [1]}}", "address.device: must be text"),
        ("{name: a, board: BOARD, address: {slot: 1}}", "slot"),
    ],
)
def test_cluster_files_that_do_not_fit(entry, message, lab, cli, tmp_path):
    build, _ = lab
    entry = entry.replace("BOARD", build.plan.nodes[0].board)
    (tmp_path / "lab.yaml").write_text(cluster_file([], entries=[f"  - {entry}"]))
    code, _, err = cli("run", "b", *DATA, *BOARDS, "--steps", 1)
    assert code == 2
    assert message in err, err


def test_pynq_with_a_numpy_that_it_does_not_know_is_named(monkeypatch):
    def allocate(**given):
        raise AttributeError("attribute 'device' of 'numpy.ndarray' objects is not writable")

    pynq = SimpleNamespace(allocate=allocate, MMIO=lambda *given, **named: None)
    monkeypatch.setitem(sys.modules, "pynq", pynq)
    with pytest.raises(UserError, match=r"PYNQ's buffers do not go with NumPy \d.*pip install"):
        PynqTransport(0xA0000000).allocate(64)
    monkeypatch.setitem(sys.modules, "pynq", None)
    with pytest.raises(UserError, match=r"not installed here \(.*pynq"):
        PynqTransport(0xA0000000)
