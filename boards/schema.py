"""The schema of board files.

Every block of numbers names its source: an entry of ``sources``, or ``estimate: reason`` if no
document has the number.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from fpgapipe.boards.block import Block, duplicates
from fpgapipe.boards.packaging import SYSTEMS, Packaging, PinPort, Transceiver
from fpgapipe.boards.quantities import Source, one_of, quantity, share, text, whole, word
from fpgapipe.boards.yaml_file import Fault, Loc
from fpgapipe.errors import nearest, shown
from fpgapipe.hw.hls_models.spec.device import (
    DeviceSpec,
    DieResources,
    LinkPortSpec,
    MemoryGroupSpec,
)

ESTIMATE = "estimate:"
"""Prefix of a source that is a reason and not an entry of ``sources``."""

MAX_SOURCES = 64

DSP_KINDS = ("DSP48E1", "DSP48E2", "DSP58", "MULT18X18D")

_JUMBO = 9000 / 9038  # 9,000 bytes of payload; preamble 8, header 14, check sum 4, gap 12 bytes

PROTOCOLS = {
    "aurora-64b66b": 64 / 66,
    "aurora-8b10b": 8 / 10,
    "1g-ethernet": 8 / 10 * _JUMBO,
    "10g-ethernet": 64 / 66 * _JUMBO,
    "100g-ethernet": 64 / 66 * _JUMBO,
    "200g-ethernet": 200 / 212.5 * _JUMBO,
    "gpio": 1.0,
}
"""For each link protocol, the share of the line rate that coding and framing leave for payload.

``200g-ethernet`` has 256b/257b and RS(544,514); ``gpio`` is source-synchronous on plain pins.
"""

MEMORY_KINDS = ("ddr3", "ddr4", "ddr5", "gddr6", "hbm2", "hbm2e", "lpddr4", "sdram", "sram")

HOST_INTERFACES = (
    "axi-on-chip",
    "ethernet-1g",
    "jtag",
    "pcie-gen3-x16",
    "pcie-gen3-x8",
    "pcie-gen4-x8",
    "usb-uart",
)

Lut = Annotated[int, whole(0, 20_000_000, "look-up tables")]
FlipFlops = Annotated[int, whole(0, 40_000_000, "flip-flops")]
Bram36 = Annotated[int, whole(0, 100_000, "36 kbit block RAMs")]
Bram18 = Annotated[int, whole(0, 200_000, "18 kbit block RAMs")]
Uram = Annotated[int, whole(0, 100_000, "UltraRAMs")]
Dsp = Annotated[int, whole(0, 100_000, "DSP slices")]
Bandwidth = Annotated[float, quantity("bytes/s", "1 kB/s", "100 TB/s", "bandwidth")]
LineRate = Annotated[
    float, quantity("bits/s", "1 kb/s", "10 Tb/s", "line rate, all lanes together")
]
Latency = Annotated[float, quantity("s", "0 s", "1 s", "latency")]


class Resources(Block):
    """Counts of the fabric's resources; block RAM is given as ``bram36`` or as ``bram18``."""

    lut: Lut
    ff: FlipFlops
    bram36: Bram36 | None = None
    bram18: Bram18 | None = None
    uram: Uram = 0
    dsp: Dsp

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that block RAM is given exactly once."""
        if (self.bram36 is None) == (self.bram18 is None):
            yield (), "must have one of the keys 'bram36' and 'bram18'"

    @property
    def half_brams(self) -> int:
        """Number of 18 kbit block RAMs, which is exact for both spellings."""
        return 2 * self.bram36 if self.bram36 is not None else self.bram18 or 0

    def count_of(self, resource: str) -> int:
        """Return the count of a resource; ``bram`` is in blocks of 18 kbit."""
        return self.half_brams if resource == "bram" else int(getattr(self, resource))


RESOURCES = ("lut", "ff", "bram", "uram", "dsp")


class Part(Resources):
    """The part, with the numbers of its data sheet."""

    name: Annotated[
        str, text("the vendor's part number", longest=64, pattern=r"[A-Za-z0-9._-]+", rule="a word")
    ]
    dsp_kind: Annotated[str, one_of(DSP_KINDS, "kind of DSP slice")]
    source: Source


class Die(Resources):
    """One die: an SLR, or the whole of a monolithic part."""

    name: Annotated[
        str, text("the vendor's name of the die", longest=32, pattern=r"[\w.-]+", rule="a word")
    ]


class Fabric(Block):
    """The dies, in the order in which they are connected."""

    counted: Annotated[
        str, one_of(("raw", "after-shell"), "with the shell in the numbers, or taken out")
    ]
    source: Source
    dies: list[Die] = Field(min_length=1, max_length=16)

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that names are unique."""
        for index, name in duplicates([die.name for die in self.dies]):
            yield ("dies", index, "name"), f"must be unique, and {name!r} was there before"


class UsableShare(Block):
    """Shares of what the shell leaves that a design may use before timing and routing suffer."""

    lut: Annotated[float, share("usable share")]
    ff: Annotated[float, share("usable share")]
    bram: Annotated[float, share("usable share")]
    uram: Annotated[float, share("usable share")]
    dsp: Annotated[float, share("usable share")]
    source: Source


class ShellItem(Resources):
    """Logic that every design on the board contains, such as a memory controller or PCIe engine."""

    name: Annotated[str, text("what it is")]
    die: Annotated[str, text("the die that it lies on", longest=32)]
    source: Source


class Clock(Block):
    """The clock frequency that designs on this board should aim for."""

    clk_target_hz: Annotated[float, quantity("Hz", "1 MHz", "2 GHz", "clock target")]
    source: Source


class Memory(Block):
    """A group of equal memories outside the fabric."""

    name: Annotated[str, word("the memory's name")]
    kind: Annotated[str, one_of(MEMORY_KINDS, "kind of memory")]
    count: Annotated[int, whole(1, 1024, "channels")]
    size_bytes: Annotated[
        int, quantity("bytes", "1 B", "16 TiB", "size of one channel", is_whole=True)
    ]
    bandwidth_bytes_per_s: Bandwidth
    source: Source
    sustained_bytes_per_s: Bandwidth | None = None
    sustained_source: Source | None = None
    latency_s: Latency
    latency_source: Source

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that the sustained rate has a source, and is none that the memory cannot have."""
        sustained = self.sustained_bytes_per_s
        if (sustained is None) != (self.sustained_source is None):
            yield (), "must have both 'sustained_bytes_per_s' and 'sustained_source', or neither"
        if sustained is not None and sustained > self.bandwidth_bytes_per_s:
            yield (
                ("sustained_bytes_per_s",),
                f"must be at most bandwidth_bytes_per_s, {self.bandwidth_bytes_per_s:g} bytes/s",
            )

    @property
    def rate_bytes_per_s(self) -> float:
        """Rate of one channel in bytes/s: as it was measured, or the peak where nobody did."""
        return self.sustained_bytes_per_s or self.bandwidth_bytes_per_s

    def spec(self) -> MemoryGroupSpec:
        """Return the memories as the planner sees them."""
        return MemoryGroupSpec(
            name=self.name,
            kind=self.kind,
            count=self.count,
            size_bytes=self.size_bytes,
            bandwidth_bytes_per_s=self.rate_bytes_per_s,
            latency_s=self.latency_s,
        )


class LinkGroup(Block):
    """A group of equal link ports, each full duplex."""

    name: Annotated[str, word("the ports' name")]
    count: Annotated[int, whole(1, 256, "ports")]
    protocol: Annotated[str, one_of(tuple(PROTOCOLS), "protocol")]
    line_rate_bits_per_s: LineRate
    payload_efficiency: Annotated[float, share("payload of the line rate")] | None = None
    source: Source
    latency_s: Latency
    latency_source: Source
    die: Annotated[str, text("the die at which the ports lie", longest=32)] | None = None
    die_source: Source | None = None

    @property
    def efficiency(self) -> float:
        """Share of the line rate that is payload: the given one, or that of the protocol."""
        return self.payload_efficiency or PROTOCOLS[self.protocol]

    def spec(self) -> LinkPortSpec:
        """Return the ports as the planner sees them."""
        return LinkPortSpec(
            name=self.name,
            count=self.count,
            protocol=self.protocol,
            line_rate_bits_per_s=self.line_rate_bits_per_s,
            payload_efficiency=self.efficiency,
            latency_s=self.latency_s,
            die=self.die,
        )


class Host(Block):
    """The connection from a host to the device."""

    interface: Annotated[str, one_of(HOST_INTERFACES, "host interface")]
    bandwidth_bytes_per_s: Bandwidth
    source: Source


class SourceEntry(Block):
    """A document that numbers come from."""

    title: Annotated[str, text("title of the document")]
    document: Annotated[str, text("its number, such as DS890", longest=100)] | None = None
    note: Annotated[str, text("which part of it, or how the numbers follow")] | None = None


class Board(Block):
    """A board: the numbers of its data sheets, and the source of each number."""

    format: Annotated[int, whole(1, 1, "version of the file format")]
    name: Annotated[str, word("the board's name")]
    title: Annotated[str, text("maker and model")]
    part: Part
    fabric: Fabric
    usable_share: UsableShare
    shell: list[ShellItem] = Field(default_factory=list, max_length=64)
    clock: Clock
    memory: list[Memory] = Field(default_factory=list, max_length=64)
    links: list[LinkGroup] = Field(default_factory=list, max_length=64)
    host: Host
    packaging: Packaging | None = None
    sources: dict[str, SourceEntry] = Field(min_length=1, max_length=MAX_SOURCES)

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that dies fit the part, that the shell fits the dies, and that names are unique."""
        for resource in RESOURCES:
            total = sum(die.count_of(resource) for die in self.fabric.dies)
            if total > self.part.count_of(resource):
                unit = "18 kbit blocks" if resource == "bram" else resource.upper()
                yield (
                    ("fabric", "dies"),
                    f"must together have at most the part's {self.part.count_of(resource)} {unit}, "
                    f"not {total}",
                )
        names = [die.name for die in self.fabric.dies]
        for index, item in enumerate(self.shell):
            if item.die not in names:
                yield (
                    ("shell", index, "die"),
                    f"must be one of {', '.join(names)} (the dies), not {shown(item.die)}"
                    f"{nearest(item.die, names)}",
                )
        for die in self.fabric.dies:
            for resource in RESOURCES:
                taken = self.shell_on(die, resource)
                if taken > die.count_of(resource):
                    unit = "18 kbit blocks" if resource == "bram" else resource.upper()
                    yield (
                        ("shell",),
                        f"must take at most the {die.count_of(resource)} {unit} of die {die.name}, "
                        f"not {taken}",
                    )
        for key, named in (("memory", self.memory), ("links", self.links)):
            for index, name in duplicates([each.name for each in named]):
                yield (key, index, "name"), f"must be unique, and {name!r} was there before"
        for index, group in enumerate(self.links):
            if (group.die is None) != (group.die_source is None):
                yield ("links", index), "must have both 'die' and 'die_source', or neither"
            if group.die is not None and group.die not in names:
                yield (
                    ("links", index, "die"),
                    f"must be one of {', '.join(names)} (the dies), not {shown(group.die)}"
                    f"{nearest(group.die, names)}",
                )
        if self.packaging:
            yield from self._packaging_faults(self.packaging)

    def _packaging_faults(self, packaging: Packaging) -> Iterator[tuple[Loc, str]]:
        """Check that packaging names memories, dies and ports that the board has."""
        memories = [memory.name for memory in self.memory]
        if packaging.memory not in memories:
            yield (
                ("packaging", packaging.flow, "memory"),
                f"must be one of {', '.join(memories)} (the memories), not "
                f"{shown(packaging.memory)}{nearest(packaging.memory, memories)}",
            )
        dies = [die.name for die in self.fabric.dies]
        if packaging.vitis and packaging.vitis.memory_die not in dies:
            yield (
                ("packaging", "vitis", "memory_die"),
                f"must be one of {', '.join(dies)} (the dies), not "
                f"{shown(packaging.vitis.memory_die)}",
            )
        counts = {group.name: group.count for group in self.links}
        listed: list[tuple[str, int, Transceiver | PinPort]] = [
            *(("transceivers", index, each) for index, each in enumerate(packaging.transceivers)),
            *(("pin_ports", index, each) for index, each in enumerate(packaging.pin_ports)),
        ]
        for key, index, each in listed:
            if each.port >= counts.get(each.link, 0):
                ports = ", ".join(f"{count} of {name}" for name, count in counts.items())
                yield (
                    ("packaging", key, index, "port"),
                    f"must be a port of the board ({ports}), not {each.name}",
                )

    def shell_on(self, die: Die, resource: str) -> int:
        """Return how much of a die's resource the shell takes; ``bram`` counts 18 kbit blocks."""
        return sum(item.count_of(resource) for item in self.shell if item.die == die.name)

    def usable(self, die: Die, resource: str) -> int:
        """Return how much of a die's resource a design may use, less the shell and the reserve."""
        left = die.count_of(resource) - self.shell_on(die, resource)
        return int(left * getattr(self.usable_share, resource) + 1e-6)

    def reached_memories(self) -> tuple[MemoryGroupSpec, ...]:
        """Return the memory that a core on the board reaches.

        A core has one bus. Where builds of the board are packaged, the package connects it to one
        port of one group, and this is the memory behind that port at the rate of the port: all
        channels of a platform's memory at the rate of one, one channel of a board without a
        platform, and the memory of a processing system at the rate of its port, which is as fast as
        the core. Otherwise it is all memory that the board has.
        """
        packaging = self.packaging
        if packaging is None:
            return tuple(memory.spec() for memory in self.memory)
        memory = self.packaged_memory.spec()
        size_bytes, rate = memory.size_bytes, memory.bandwidth_bytes_per_s
        if packaging.vitis or packaging.pynq:
            size_bytes *= memory.count
        if packaging.vivado:
            size_bytes = min(size_bytes, 1 << packaging.vivado.memory_address_bits)
        if packaging.pynq:
            port_bytes = SYSTEMS[packaging.pynq.system]
            rate = min(rate * memory.count, port_bytes * self.clock.clk_target_hz)
        return (
            dataclasses.replace(memory, count=1, size_bytes=size_bytes, bandwidth_bytes_per_s=rate),
        )

    @property
    def packaged_memory(self) -> Memory:
        """The memory that packaged cores are connected to, of a board that can be packaged."""
        assert self.packaging is not None, "no values for packaging"
        name = self.packaging.memory
        return next(each for each in self.memory if each.name == name)

    def device_spec(self) -> DeviceSpec:
        """Return the resources for planner and generator, less those of shell and reserve."""
        return DeviceSpec(
            name=self.name,
            part=self.part.name,
            dsp_kind=self.part.dsp_kind,
            clk_hz=self.clock.clk_target_hz,
            dies=tuple(
                DieResources(
                    name=die.name,
                    lut=self.usable(die, "lut"),
                    ff=self.usable(die, "ff"),
                    bram36=self.usable(die, "bram") // 2,
                    uram=self.usable(die, "uram"),
                    dsp=self.usable(die, "dsp"),
                )
                for die in self.fabric.dies
            ),
            memories=self.reached_memories(),
            ports=tuple(group.spec() for group in self.links),
            host_bytes_per_s=self.host.bandwidth_bytes_per_s,
        )


def source_faults(value: Any) -> list[Fault]:
    """Check that every source is known and every entry of ``sources`` is used.

    The check uses the file's plain values, so that its faults are reported with all others.
    """
    if not isinstance(value, dict) or not isinstance(value.get("sources"), dict):
        return []
    known = value["sources"]
    faults, used = [], set()
    for loc, source in _sources_within(value, ()):
        used.add(source)
        if source.startswith(ESTIMATE):
            if not source.removeprefix(ESTIMATE).strip():
                faults.append(Fault(loc, "must give a reason after 'estimate:'"))
        elif source not in known:
            hint = nearest(source, known) if len(known) <= MAX_SOURCES else ""
            hint = hint or "; an estimate is written 'estimate: reason'"
            faults.append(Fault(loc, f"must be a key of 'sources', not {shown(source)}{hint}"))
    for key in known:
        if key not in used:
            faults.append(Fault(("sources", key), "must be the source of some number, but is not"))
    return faults


def _sources_within(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _sources_within(item, (*loc, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if (key == "source" or key.endswith("_source")) and isinstance(item, str):
                yield (*loc, key), item
            elif loc or key != "sources":
                yield from _sources_within(item, (*loc, key))
