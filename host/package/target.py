"""The object of a package: a device of a build with its board, its core and its links' ports.

A device is a board, or one of several nodes that share a board and its bitstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.host.build.build_hardware import core_name
from fpgapipe.host.build.build_parts import HARDWARE
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec, user_clock_hz

if TYPE_CHECKING:
    from fpgapipe.boards.packaging import Packaging, PinPort, Transceiver
    from fpgapipe.boards.schema import Board, Memory
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.pins import PinsSpec


def core_file(core: CoreSpec) -> str:
    """Path of a core's Verilog within a build."""
    return f"{HARDWARE}/{core_name(core)}.v"


INIT_CLOCK_HZ = 100e6
"""Frequency of Aurora's free-running clock in designs without a platform."""


@dataclass(frozen=True)
class LinkEnd:
    """An end of a link, and the transceivers behind it.

    Attributes
    ----------
    number : int
        Number of the link in the core.
    transceiver : Transceiver
    line_rate_bits_per_s : float
        Line rate of all lanes together.
    bridge : AuroraSpec
        Parameters of the gateware between the core's link and Aurora.
    """

    number: int
    transceiver: Transceiver
    line_rate_bits_per_s: float
    bridge: AuroraSpec

    @property
    def lane_rate_gbits_per_s(self) -> float:
        """Line rate of a lane, in Gb/s."""
        return self.line_rate_bits_per_s / self.transceiver.lanes / 1e9

    @property
    def user_clock_hz(self) -> float:
        """Frequency of Aurora's own clock."""
        return user_clock_hz(self.line_rate_bits_per_s / self.transceiver.lanes)


@dataclass(frozen=True)
class PinEnd:
    """An end of a link over plain pins.

    Attributes
    ----------
    number : int
        Number of the link in the core.
    port : PinPort
    spec : PinsSpec
        Parameters of the gateware between the core's link and the pins.
    """

    number: int
    port: PinPort
    spec: PinsSpec


@dataclass(frozen=True)
class OnChipEnd:
    """An end of a link to another node of the same board.

    Attributes
    ----------
    number : int
        Number of the link in the core.
    node : int
        Number on the board of the node at the other end.
    other : int
        Number of the link in that node's core.
    """

    number: int
    node: int
    other: int


@dataclass(frozen=True)
class Target:
    """A device to package.

    Attributes
    ----------
    index : int
        Number of the device in the chain.
    device : str
    board : Board
    core : CoreSpec
    verilog : str
        Verilog of the core.
    clk_hz : float
        Clock frequency that the core was planned for.
    memory_bytes : int
        Memory that its program uses.
    links : tuple of LinkEnd
        Links over transceivers.
    die : str or None
        The die that holds the whole core, if one does.
    pin_links : tuple of PinEnd
        Links over plain pins.
    number : int
        Number of the node on its board.
    channels : range
        Channels of the board's memory that the node has; empty if it has all.
    on_chip : tuple of OnChipEnd
        Links to other nodes of the board.
    others : tuple of Target
        The other nodes of the board, which are packaged with the first one.
    """

    index: int
    device: str
    board: Board
    core: CoreSpec
    verilog: str
    clk_hz: float
    memory_bytes: int
    links: tuple[LinkEnd, ...]
    die: str | None
    pin_links: tuple[PinEnd, ...] = ()
    number: int = 0
    channels: range = range(0)
    on_chip: tuple[OnChipEnd, ...] = ()
    others: tuple[Target, ...] = ()

    @property
    def nodes(self) -> tuple[Target, ...]:
        """All nodes of the board that have cores: this one and the others."""
        return (self, *self.others)

    @property
    def board_name(self) -> str:
        """Name of the board in its cluster."""
        return self.device.rpartition(".")[0] if self.channels else self.device

    @property
    def packaging(self) -> Packaging:
        """The board's values for the flow."""
        assert self.board.packaging is not None, "Flow.check refuses others"
        return self.board.packaging

    @property
    def memory(self) -> Memory:
        """The board's memory that cores are connected to."""
        return self.board.packaged_memory

    @property
    def reached_channels(self) -> range:
        """Channels of the memory that the core is connected to."""
        return self.channels or range(self.memory.count)

    @property
    def reached_bytes(self) -> int:
        """Size of these channels."""
        return len(self.reached_channels) * self.memory.size_bytes

    @property
    def folder(self) -> str:
        """Name of the board's folder in a package."""
        return f"{self.index}-{self.board_name}"

    @property
    def core_file(self) -> str:
        """Path of the core's Verilog within the build."""
        return core_file(self.core)

    @property
    def clock_mhz(self) -> str:
        """Clock frequency in MHz, as tools take it."""
        return f"{self.clk_hz / 1e6:g}"
