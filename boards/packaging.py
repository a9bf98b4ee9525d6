"""Data of a board for a vendor's flow: platform, interfaces, transceivers, pins.

These values have sources like all others of a board file. A board has them if its builds can be
packaged.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from fpgapipe.boards.block import Block, duplicates
from fpgapipe.boards.quantities import Source, one_of, quantity, text, whole, word
from fpgapipe.boards.yaml_file import Loc

FLOWS = ("vitis", "vivado", "pynq", "litex")
"""Flows that package builds; each is also the key of its values."""

SYSTEMS = {"zynq-7000": 8, "zynq-ultrascale": 16}
"""Processing systems, and how many bytes wide the widest port of each to its memory is.

Sources: Zynq-7000 Technical Reference Manual (UG585), S_AXI_HP; Zynq UltraScale+ Device Technical
Reference Manual (UG1085), S_AXI_HP_FPD.
"""

_NAME = r"[A-Za-z0-9_.:/\[\]-]+"


def _name(what: str) -> object:
    """Rule for a name in a vendor's tool."""
    return text(what, longest=120, pattern=_NAME, rule="a name without spaces")


Name = Annotated[str, _name("a name that the vendor's tools know")]
Pin = Annotated[
    str,
    text("a package pin", longest=6, pattern=r"[A-Z]{1,3}[0-9]{1,2}", rule="a pin such as AY24"),
]
Release = Annotated[
    str,
    text("a release of the tools", longest=6, pattern=r"20\d\d\.[1-9]", rule="such as '2022.1'"),
]
Address = Annotated[
    str, text("an address", longest=18, pattern=r"0x[0-9A-Fa-f]+", rule="a hexadecimal number")
]
Frequency = Annotated[float, quantity("Hz", "1 MHz", "2 GHz", "frequency")]
Site = Annotated[
    str, text("a transceiver's site", longest=8, pattern=r"X\d+Y\d+", rule="a site such as X1Y48")
]


class Tools(Block):
    """Releases of the vendor's tools that know the board."""

    first: Release | None = None
    last: Release | None = None
    source: Source

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check the order of the releases."""
        if self.first and self.last and self.last < self.first:
            yield ("last",), f"must not be before the first, {self.first}"


class Vitis(Block):
    """A platform of Vitis."""

    platform: Name
    memory: Annotated[str, word("a group of 'memory', to which the core is connected")]
    memory_die: Annotated[str, text("the die next to that memory", longest=32)]
    init_clock: Name
    init_clock_hz: Frequency
    source: Source


class Vivado(Block):
    """A board with PCIe, without a platform: interfaces as the board files of Vivado name them."""

    board_part: Name
    pcie: Name
    pcie_clock: Name
    pcie_reset: Name
    reset: Name
    memory: Annotated[str, word("a group of 'memory', to which the core is connected")]
    memory_interface: Name
    memory_clock: Name
    memory_clock_hz: Frequency
    memory_address_bits: Annotated[int, whole(12, 64, "address bits of one channel")]
    source: Source


class Pynq(Block):
    """A board with a processing system that PYNQ runs on."""

    board_part: Name
    system: Annotated[str, one_of(tuple(SYSTEMS), "processing system")]
    memory: Annotated[str, word("a group of 'memory', to which the core is connected")]
    registers: Address
    source: Source


Standard = Annotated[
    str, text("I/O standard", longest=20, pattern=r"[A-Z0-9_]+", rule="such as LVCMOS18")
]


class ConstantPin(Block):
    """A pin that needs a fixed level."""

    name: Annotated[str, word("the pin's name on the board")]
    pin: Pin
    standard: Standard
    value: Annotated[int, whole(0, 1, "level")]


class Transceiver(Block):
    """The transceivers of one port of a link group.

    With a platform the clock and the lanes are the names of its connections. Without one they are
    pins and sites: two pins of the clock, then for each lane its site and the pins of the positive
    and negative inputs and outputs.
    """

    link: Annotated[str, word("a group of 'links'")]
    port: Annotated[int, whole(0, 255, "index of the port")]
    lanes: Annotated[int, whole(1, 16, "lanes")]
    reference_clock_hz: Frequency
    platform_clock: Name | None = None
    platform_lanes: Name | None = None
    quad: Site | None = None
    sites: list[Site] | None = Field(default=None, max_length=16)
    clock_pins: list[Pin] | None = Field(default=None, min_length=2, max_length=2)
    input_pins: list[Pin] | None = Field(default=None, max_length=32)
    output_pins: list[Pin] | None = Field(default=None, max_length=32)
    constant_pins: list[ConstantPin] = Field(default_factory=list, max_length=8)
    source: Source

    @property
    def name(self) -> str:
        """Name of the port, as clusters have it."""
        return f"{self.link}/{self.port}"

    @property
    def pins(self) -> list[str]:
        """All package pins of the port."""
        listed = [*(self.clock_pins or []), *(self.input_pins or []), *(self.output_pins or [])]
        return [*listed, *(each.pin for each in self.constant_pins)]

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that there are names of a platform or pins, and as many as there are lanes."""
        names = (self.platform_clock, self.platform_lanes)
        places = (self.quad, self.sites, self.clock_pins, self.input_pins, self.output_pins)
        if not (all(names) and not any(places)) and not (all(places) and not any(names)):
            yield (
                (),
                "must have either 'platform_clock' and 'platform_lanes', or 'quad', 'sites', "
                "'clock_pins', 'input_pins' and 'output_pins'",
            )
            return
        if self.sites:
            for key, found, needed in (
                ("sites", self.sites, self.lanes),
                ("input_pins", self.input_pins or [], 2 * self.lanes),
                ("output_pins", self.output_pins or [], 2 * self.lanes),
            ):
                if len(found) != needed:
                    what = f"must have {needed} entries for {self.lanes} lanes, not {len(found)}"
                    yield (key,), what
            for index, pin in duplicates(self.pins):
                yield (), f"must have each pin once, but {pin} (number {index}) was there before"


class Sdram(Block):
    """The pins of an SDRAM chip, as LiteDRAM names them, and the chip."""

    module: Annotated[
        str, text("the chip, as LiteDRAM names it", longest=40, pattern=r"[A-Z0-9_]+")
    ]
    clock: Pin
    a: list[Pin] = Field(min_length=11, max_length=14)
    ba: list[Pin] = Field(min_length=1, max_length=3)
    dq: list[Pin] = Field(min_length=8, max_length=64)
    dm: list[Pin] = Field(min_length=1, max_length=8)
    cke: Pin
    cs_n: Pin
    ras_n: Pin
    cas_n: Pin
    we_n: Pin

    @property
    def pins(self) -> dict[str, list[str]]:
        """Pins by name, but for the clock."""
        single = {name: [getattr(self, name)] for name in ("cke", "cs_n", "ras_n", "cas_n", "we_n")}
        return {"a": self.a, "ba": self.ba, "dq": self.dq, "dm": self.dm, **single}


class Litex(Block):
    """A board for which LiteX makes a SoC without a processor, reached over a serial port."""

    memory: Annotated[str, word("a group of 'memory', to which the core is connected")]
    standard: Standard
    clock_pin: Pin
    clock_hz: Frequency
    reset_pin: Pin
    serial_tx: Pin
    serial_rx: Pin
    serial_baud: Annotated[int, whole(9600, 12_000_000, "baud of the serial port")]
    sdram: Sdram
    constant_pins: list[ConstantPin] = Field(default_factory=list, max_length=8)
    loader: Annotated[str, word("the board, as openFPGALoader names it")]
    source: Source

    @property
    def pins(self) -> list[str]:
        """All package pins."""
        own = [self.clock_pin, self.reset_pin, self.serial_tx, self.serial_rx, self.sdram.clock]
        chip = [pin for pins in self.sdram.pins.values() for pin in pins]
        return [*own, *chip, *(each.pin for each in self.constant_pins)]


class LinkPins(Block):
    """The pins of a link over plain pins, one way."""

    clock: Pin
    valid: Pin
    last: Pin
    data: list[Pin] = Field(min_length=8, max_length=8)

    @property
    def pins(self) -> list[str]:
        """All package pins."""
        return [self.clock, self.valid, self.last, *self.data]


class PinPort(Block):
    """The pins of one port of a link group that has no transceivers."""

    link: Annotated[str, word("a group of 'links'")]
    port: Annotated[int, whole(0, 255, "index of the port")]
    connector: Annotated[str, text("where the pins are, for whoever wires them", longest=120)]
    outputs: LinkPins
    inputs: LinkPins
    source: Source

    @property
    def name(self) -> str:
        """Name of the port, as clusters have it."""
        return f"{self.link}/{self.port}"


class Packaging(Block):
    """The values of a board for the flow that packages its builds."""

    tools: Tools
    vitis: Vitis | None = None
    vivado: Vivado | None = None
    pynq: Pynq | None = None
    litex: Litex | None = None
    transceivers: list[Transceiver] = Field(default_factory=list, max_length=64)
    pin_ports: list[PinPort] = Field(default_factory=list, max_length=64)

    @property
    def flow(self) -> str:
        """The one flow that has values."""
        return next(each for each in FLOWS if getattr(self, each) is not None)

    @property
    def memory(self) -> str:
        """The memory group that the core is connected to."""
        return str(getattr(self, self.flow).memory)

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that there is one flow, and that ports are unique and described for it."""
        given = [each for each in FLOWS if getattr(self, each) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            yield (), f"must have one of the keys {', '.join(FLOWS)}, not {found}"
        for index, name in duplicates([each.name for each in self.transceivers]):
            what = f"must be unique, and {name} was there before"
            yield ("transceivers", index, "port"), what
        for index, name in duplicates([each.name for each in self.pin_ports]):
            yield ("pin_ports", index, "port"), f"must be unique, and {name} was there before"
        if self.pin_ports and given != ["litex"]:
            yield ("pin_ports",), "must be left out unless the flow is litex"
        if self.litex:
            if self.transceivers:
                yield ("transceivers",), "must be left out, since the flow is litex"
            ports = [pin for each in self.pin_ports for pin in each.outputs.pins + each.inputs.pins]
            for _, pin in duplicates([*self.litex.pins, *ports]):
                yield (), f"must have each pin once, but {pin} was there before"
        for index, each in enumerate(self.transceivers):
            if given == ["vitis"] and each.sites:
                what = "must have names of the platform, since the flow is vitis"
                yield ("transceivers", index), what
            if given and given != ["vitis"] and not each.sites:
                what = f"must have sites and pins, since the flow is {given[0]}"
                yield ("transceivers", index), what
