"""The SoC of a device, made with LiteX: the core, its SDRAM, its links, and a bridge to a host.

Packages have a copy of this file, ``soc.py``, which runs with LiteX alone. All that it knows of the
board and of the core is in ``device.json`` beside it. The SoC has no processor: a host reaches its
bus over the serial port by LiteX's UARTBone, and brings up the SDRAM.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

try:
    from litedram import modules
    from litedram.frontend.axi import LiteDRAMAXI2Native
    from litedram.init import get_sdram_phy_init_sequence
    from litedram.phy import GENSDRPHY
    from litex.build.generic_platform import IOStandard, Misc, Pins, Subsignal
    from litex.build.io import DDROutput
    from litex.build.lattice import LatticeECP5Platform
    from litex.build.sim import SimPlatform
    from litex.soc.cores.clock import ECP5PLL
    from litex.soc.cores.uart import UARTPHY, RS232PHYModel, UARTBone
    from litex.soc.integration.builder import Builder
    from litex.soc.integration.soc import SoCRegion
    from litex.soc.integration.soc_core import SoCCore
    from litex.soc.interconnect import stream
    from litex.soc.interconnect.axi import AXIInterface, AXILiteInterface
    from migen import ClockDomain, ClockSignal, Instance, Module, ResetSignal, Signal
except ImportError as error:
    sys.exit(f"soc.py: {error.name} is missing; README.md has the command that installs the tools")

REGISTERS, MEMORY, CSR = 0x30000000, 0x40000000, 0xF0000000
"""Places on the bus: the core's registers, the SDRAM, and the registers of LiteX."""

NAME = "fpgapipe"
"""Name of the region of the registers, and of the files that are made."""

COMMANDS = {"DFII_COMMAND_CS": 1, "DFII_COMMAND_WE": 2, "DFII_COMMAND_CAS": 4}
COMMANDS |= {"DFII_COMMAND_RAS": 8}
CONTROLS = {"DFII_CONTROL_CKE": 2, "DFII_CONTROL_ODT": 4, "DFII_CONTROL_RESET_N": 8}
"""Bits of LiteDRAM's registers, by the names in its list of steps."""

LINK_PINS = ("clock", "valid", "last", "data")
"""Pins of a link, each way."""


def platform_io(board: dict[str, Any], *, simulated: bool) -> list[Any]:
    """Pins of the board; a simulated one has bytes where the serial port is."""
    standard = IOStandard(board["standard"])
    io: list[Any] = [
        ("clock", 0, Pins(board["clock_pin"]), standard),
        ("reset", 0, Pins(board["reset_pin"]), standard),
        ("sdram_clock", 0, Pins(board["sdram"]["clock"]), standard),
        (
            "sdram",
            0,
            *(
                Subsignal(name, Pins(" ".join(pins)))
                for name, pins in board["sdram"]["pins"].items()
            ),
            standard,
            Misc("SLEWRATE=FAST"),
        ),
    ]
    for pin in board["constant_pins"]:
        io.append((pin["name"], 0, Pins(pin["pin"]), standard))
    for link in board["links"]:
        pins = [
            Subsignal(f"{way}_{name}", Pins(" ".join(link[way][name])))
            for way in ("out", "in")
            for name in LINK_PINS
        ]
        io.append(("link", link["number"], *pins, standard))
    if not simulated:
        serial = [Subsignal(way, Pins(board["serial"][way])) for way in ("tx", "rx")]
        return [*io, ("serial", 0, *serial, standard)]
    names = {"source_valid": 1, "source_ready": 1, "source_data": 8}
    names |= {"sink_valid": 1, "sink_ready": 1, "sink_data": 8}
    return [*io, ("serial", 0, *(Subsignal(name, Pins(bits)) for name, bits in names.items()))]


class Clocks(Module):
    """The clock of the SoC and that of the SDRAM, a quarter of a period later."""

    def __init__(self, platform: Any, board: dict[str, Any], clk_hz: float, *, simulated: bool):
        self.clock_domains.cd_sys = ClockDomain()
        clock, reset = platform.request("clock"), platform.request("reset")
        if simulated:
            self.comb += [self.cd_sys.clk.eq(clock), self.cd_sys.rst.eq(reset)]
            # The chip takes commands and gives data half a period later, as with a shifted clock.
            self.comb += platform.request("sdram_clock").eq(~clock)
            return
        self.clock_domains.cd_sys_ps = ClockDomain(reset_less=True)
        self.submodules.pll = pll = ECP5PLL()
        self.comb += pll.reset.eq(reset)
        pll.register_clkin(clock, board["clock_hz"])
        pll.create_clkout(self.cd_sys, clk_hz)
        pll.create_clkout(self.cd_sys_ps, clk_hz, phase=90, with_reset=False)
        self.specials += DDROutput(1, 0, platform.request("sdram_clock"), ClockSignal("sys_ps"))
        platform.add_period_constraint(clock, 1e9 / board["clock_hz"])


class Soc(SoCCore):
    """The SoC.

    Parameters
    ----------
    device : dict
        Contents of ``device.json``.
    folder : Path
        Folder of the Verilog files.
    simulated : bool
        Whether it is for a simulator: the serial port is then a stream of bytes, the clock comes
        from a pin, and pins are plain registers.
    """

    def __init__(self, device: dict[str, Any], folder: Path, *, simulated: bool = False):
        board, core, clk_hz = device["board"], device["core"], device["clk_hz"]
        io = platform_io(board, simulated=simulated)
        if simulated:
            platform = SimPlatform("SIM", io)
        else:
            platform = LatticeECP5Platform(board["part"], io, toolchain="trellis")
        self.crg = Clocks(platform, board, clk_hz, simulated=simulated)
        SoCCore.__init__(
            self,
            platform,
            clk_hz,
            cpu_type=None,
            ident=f"{NAME} {device['device']} {core['digest']}",
            with_uart=False,
            with_timer=False,
            integrated_sram_size=0,
        )
        self.mem_map["csr"] = CSR
        self._add_bridge(board, clk_hz, simulated=simulated)
        self._add_memory(board, clk_hz)
        self._add_core(core, board)
        for name in device["sources"]:
            platform.add_source(str(folder / name), copy=not simulated)
        for pin in board["constant_pins"]:
            self.comb += platform.request(pin["name"]).eq(pin["value"])

    def _add_bridge(self, board: dict[str, Any], clk_hz: float, *, simulated: bool) -> None:
        pads = self.platform.request("serial")
        phy = RS232PHYModel(pads) if simulated else UARTPHY(pads, clk_hz, board["serial"]["baud"])
        self.add_module("bridge_phy", phy)
        bridge = UARTBone(phy, clk_hz, address_width=self.bus.address_width)
        self.add_module("bridge", bridge)
        self.bus.add_master("bridge", bridge.wishbone)

    def _add_memory(self, board: dict[str, Any], clk_hz: float) -> None:
        """Add the SDRAM, with no cache before the bridge: the core has a port of its own."""
        module = getattr(modules, board["sdram"]["module"])(clk_hz, "1:1")
        self.add_module("sdrphy", GENSDRPHY(self.platform.request("sdram"), clk_hz))
        self.add_sdram("sdram", self.sdrphy, module, origin=MEMORY, l2_cache_size=0)
        steps, _ = get_sdram_phy_init_sequence(self.sdrphy.settings, module.timing_settings)
        self.add_constant("FPGAPIPE_SDRAM_SEQUENCE", " ".join(map(step_text, steps)))

    def _add_core(self, core: dict[str, Any], board: dict[str, Any]) -> None:
        memory = AXIInterface(
            data_width=8 * core["bus_bytes"], address_width=32, id_width=core["id_bits"]
        )
        registers = AXILiteInterface(data_width=32, address_width=32)
        port = self.sdram.crossbar.get_port(data_width=memory.data_width)
        self.submodules.core_memory = LiteDRAMAXI2Native(self._registered(memory), port)
        region = SoCRegion(origin=REGISTERS, size=0x1000, cached=False)
        self.bus.add_slave(NAME, registers, region)
        # A register of the core's own: the SoC's is far from the tens of thousands that it resets.
        reset = Signal(reset=1, reset_less=True)
        self.sync += reset.eq(ResetSignal())
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": reset}
        streams: dict[str, Any] = {}
        for each in core["ports"]:
            name, bits = each["name"], each["bits"]
            outer = self._outer(name, memory, registers, streams, bits)
            if not each["is_input"]:
                wire = Signal(bits, name=name)
                ports[f"o_{name}"] = wire
                if outer is not None:
                    self.comb += outer.eq(wire)
            else:
                assert outer is not None, name
                ports[f"i_{name}"] = outer[:bits] if len(outer) > bits else outer
        self.specials += Instance("top", name="core", **ports)
        for link in board["links"]:
            self._add_link(link, streams)

    def _registered(self, near: Any) -> Any:
        """The far side of an AXI bus behind registers, each way, in every channel.

        Without them the slowest paths of the SoC go from LiteDRAM's counters through its crossbar
        into the core's engines, and on to their clock enables.
        """
        far = AXIInterface(
            data_width=near.data_width, address_width=near.address_width, id_width=near.id_width
        )
        for channel in ("aw", "w", "ar", "b", "r"):
            begin, end = getattr(near, channel), getattr(far, channel)
            if channel in ("b", "r"):
                begin, end = end, begin
            buffer = stream.Buffer(begin.description, pipe_valid=True, pipe_ready=True)
            self.add_module(f"core_memory_{channel}", buffer)
            self.comb += [begin.connect(buffer.sink), buffer.source.connect(end)]
        return far

    @staticmethod
    def _outer(name: str, memory: Any, registers: Any, streams: dict[str, Any], bits: int) -> Any:
        """The signal that a port of the core is joined to; None if there is none."""
        if "_axis_" in name:
            return streams.setdefault(name, Signal(bits, name=f"phy_{name}"))
        bus = memory if name.startswith("m_axi_") else registers
        signal = name.split("_")[2]
        channel = signal[:2] if signal[0] == "a" else signal[0]
        field = signal.removeprefix(channel)
        return getattr(getattr(bus, channel), field, None)

    def _add_link(self, link: dict[str, Any], streams: dict[str, Any]) -> None:
        """Add the gateware between a link and its pins."""
        number = link["number"]
        pads = self.platform.request("link", number)
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for way, kind in (("m", "i"), ("s", "o")):
            for part in ("tdata", "tkeep", "tlast", "tvalid", "tready"):
                is_back = part == "tready"
                inner = {"m": "s_axis", "s": "m_axis"}[way]
                direction = {"i": "o", "o": "i"}[kind] if is_back else kind
                ports[f"{direction}_{inner}_{part}"] = streams[f"{way}_axis_link{number}_{part}"]
        for part, kind in (("tdata", "o"), ("tvalid", "o"), ("tready", "i")):
            ports[f"{kind}_m_axis_clock_{part}"] = streams[f"s_axis_clock{number}_{part}"]
        for name in LINK_PINS:
            ports[f"o_out_{name}"] = getattr(pads, f"out_{name}")
            ports[f"i_in_{name}"] = getattr(pads, f"in_{name}")
        self.specials += Instance(link["module"], name=f"pins{number}", **ports)
        if isinstance(self.platform, LatticeECP5Platform):
            self.platform.add_period_constraint(pads.in_clock, 1e9 / link["clock_hz"])


def step_text(step: tuple[str, int, int, str, int]) -> str:
    """A step of LiteDRAM's list as fpgapipe's transport reads it."""
    _, address, bank, names, cycles = step
    words = names.split("|")
    table = CONTROLS if words[0] in CONTROLS else COMMANDS
    kind = "control" if table is CONTROLS else "command"
    return f"{kind}:{address}:{bank}:{sum(table[word] for word in words)}:{cycles}"


def main() -> None:
    """Make the Verilog and the map of the bus, and the settings of the tools for a bitstream."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--simulated", action="store_true", help="for a simulator, to sim/")
    arguments = parser.parse_args()
    folder = Path(__file__).resolve().parent
    device = json.loads((folder / "device.json").read_text())
    out = folder / ("sim" if arguments.simulated else "build")
    soc = Soc(device, folder, simulated=arguments.simulated)
    builder = Builder(
        soc,
        output_dir=str(out),
        compile_software=False,
        compile_gateware=False,
        csr_csv=str(out / "csr.csv"),
    )
    if arguments.simulated:
        out.mkdir(parents=True, exist_ok=True)
        soc.finalize()
        builder._generate_csr_map()
        soc.platform.get_verilog(soc, name=NAME).write(str(out / f"{NAME}.v"))
        return
    builder.build(build_name=NAME, timingstrict=True, run=False)


if __name__ == "__main__":
    main()
