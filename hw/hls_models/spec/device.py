"""Resources of a device and the wiring of devices: all that planner and generator know of boards.

A board file says more: where each number comes from, what the shell takes, how the vendor names
things. The planner never sees a board. It gets a `DeviceSpec`, from which the shell and the share
that a design cannot use have been deducted already.
"""

import math
from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.interleave import MEMORY_PORTS
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP

BRAM36_BYTES = 36 * 1024 // 8
"""Bytes of one 36 kbit block RAM, parity bits included (they hold data in the wide shapes)."""

URAM_BYTES = 288 * 1024 // 8
"""Bytes of one 288 kbit UltraRAM, parity bits included."""


def _check_whole(subject: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{subject} must be a whole number of at least {low}, not {value!r}")


def _check_positive(subject: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{subject} must be finite and above 0 {unit}, not {value!r}")


def _check_latency(subject: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{subject} latency must be finite and at least 0 s, not {value!r}")


def _check_efficiency(subject: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{subject} payload efficiency must be above 0, at most 1, not {value!r}")


@dataclass(frozen=True)
class DieResources:
    """Resources that a design may use of one die (an SLR, or a whole monolithic part).

    Parameters
    ----------
    name : str
        The vendor's name of the die, such as ``SLR0``.
    lut, ff : int
        Look-up tables (six inputs on AMD parts, four on ECP5) and flip-flops.
    bram36 : int
        Block RAMs of 36 kbit; two blocks of 18 kbit count as one.
    uram : int
        UltraRAMs of 288 kbit.
    dsp : int
        DSP slices, of the kind that `DeviceSpec.dsp_kind` names.

    Raises
    ------
    ValueError
        If a count is negative or not a whole number.
    """

    name: str
    lut: int
    ff: int
    bram36: int
    uram: int
    dsp: int

    def __post_init__(self) -> None:
        for resource in ("lut", "ff", "bram36", "uram", "dsp"):
            _check_whole(f"die {self.name} {resource}", getattr(self, resource), 0)


@dataclass(frozen=True)
class MemoryGroupSpec:
    """A group of equal memories outside the fabric, such as DDR channels or HBM pseudo-channels.

    Parameters
    ----------
    name : str
        Name of the group, unique on the device.
    kind : str
        Kind of memory, such as ``hbm2``, ``ddr4`` or ``sdram``.
    count : int
        Number of independent channels.
    size_bytes : int
        Capacity of one channel.
    bandwidth_bytes_per_s : float
        Bandwidth of one channel, reads and writes together: what was measured, else the peak.
    latency_s : float
        Time from a read request at the controller to the first data.
    """

    name: str
    kind: str
    count: int
    size_bytes: int
    bandwidth_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        _check_whole(f"memory {self.name} count", self.count, 1)
        _check_whole(f"memory {self.name} size in bytes", self.size_bytes, 1)
        _check_positive(f"memory {self.name} bandwidth", self.bandwidth_bytes_per_s, "bytes/s")
        _check_latency(f"memory {self.name}", self.latency_s)


@dataclass(frozen=True)
class LinkPortSpec:
    """A group of equal full-duplex link ports.

    Parameters
    ----------
    name : str
        Name of the group, unique on the device; a port of the group is called ``name/index``.
    count : int
        Number of ports in the group.
    protocol : str
        Protocol of the ports; only ports of the same protocol can be wired together.
    line_rate_bits_per_s : float
        Line rate of all lanes of one port together, per direction, before line coding.
    payload_efficiency : float
        Share of the line rate that carries payload, above 0 and at most 1.
    latency_s : float
        Time from the sender's stream to the receiver's stream, cable included.
    die : str or None
        The die at which the ports lie, where that is known.
    """

    name: str
    count: int
    protocol: str
    line_rate_bits_per_s: float
    payload_efficiency: float
    latency_s: float
    die: str | None = None

    def __post_init__(self) -> None:
        _check_whole(f"link port {self.name} count", self.count, 1)
        _check_positive(f"link port {self.name} line rate", self.line_rate_bits_per_s, "bits/s")
        _check_efficiency(f"link port {self.name}", self.payload_efficiency)
        _check_latency(f"link port {self.name}", self.latency_s)

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload bandwidth of one port in one direction."""
        return self.line_rate_bits_per_s * self.payload_efficiency / 8


@dataclass(frozen=True)
class DeviceSpec:
    """Resources of one device for planner and generator, less those of the shell and the reserve.

    Parameters
    ----------
    name : str
        The board's name.
    part : str
        The vendor's part number, for the vendor's tools.
    dsp_kind : str
        Kind of the DSP slices: ``DSP48E2``, ``DSP48E1`` or ``MULT18X18D``.
    clk_hz : float
        Clock frequency that a design on this device should aim for, Hz.
    dies : tuple of DieResources
        The dies, in the order in which they are connected; at least one.
    memories : tuple of MemoryGroupSpec
        Memories outside the fabric; may be empty.
    ports : tuple of LinkPortSpec
        Ports for links to other devices; may be empty.
    host_bytes_per_s : float
        Payload bandwidth between host and device, per direction.
    memory_ports : int
        Ports of the memory that the device's core has.
    """

    name: str
    part: str
    dsp_kind: str
    clk_hz: float
    dies: tuple[DieResources, ...]
    memories: tuple[MemoryGroupSpec, ...]
    ports: tuple[LinkPortSpec, ...]
    host_bytes_per_s: float
    memory_ports: int = 1

    def __post_init__(self) -> None:
        _check_positive(f"device {self.name} clock", self.clk_hz, "Hz")
        _check_positive(f"device {self.name} host bandwidth", self.host_bytes_per_s, "bytes/s")
        if self.memory_ports not in MEMORY_PORTS:
            raise ValueError(
                f"device {self.name} must have 1 or 2 memory ports, not {self.memory_ports!r}"
            )
        if not self.dies:
            raise ValueError(f"device {self.name} must have at least one die")
        for what, group in (("die", self.dies), ("memory", self.memories), ("port", self.ports)):
            names = [each.name for each in group]
            if len(set(names)) != len(names):
                raise ValueError(f"device {self.name} has two of one {what} name: {names}")

    @property
    def lut(self) -> int:
        """Look-up tables of all dies."""
        return sum(die.lut for die in self.dies)

    @property
    def ff(self) -> int:
        """Flip-flops of all dies."""
        return sum(die.ff for die in self.dies)

    @property
    def bram36(self) -> int:
        """36 kbit block RAMs of all dies."""
        return sum(die.bram36 for die in self.dies)

    @property
    def uram(self) -> int:
        """UltraRAMs of all dies."""
        return sum(die.uram for die in self.dies)

    @property
    def dsp(self) -> int:
        """DSP slices of all dies."""
        return sum(die.dsp for die in self.dies)

    @property
    def on_chip_bytes(self) -> int:
        """Bytes of block RAM and UltraRAM of all dies."""
        return self.bram36 * BRAM36_BYTES + self.uram * URAM_BYTES

    @property
    def memory_bytes(self) -> int:
        """Capacity of the memory outside the fabric, all channels together."""
        return sum(memory.count * memory.size_bytes for memory in self.memories)

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak bandwidth of the memory outside the fabric, all channels together."""
        return sum(memory.count * memory.bandwidth_bytes_per_s for memory in self.memories)

    @property
    def is_share(self) -> bool:
        """Whether this is one of several nodes of a board."""
        return any(port.protocol == ON_CHIP for port in self.ports)

    @property
    def place(self) -> str:
        """Its board, and for a share of one the die with its LUTs, which tell shares apart."""
        return "/".join(
            (self.name, self.dies[0].name, str(self.lut)) if self.is_share else (self.name,)
        )

    @property
    def num_ports(self) -> int:
        """Link ports of all groups."""
        return sum(port.count for port in self.ports)


@dataclass(frozen=True)
class LinkSpec:
    """A full-duplex link between two devices of a cluster.

    A pipeline's activations flow from ``source`` to ``destination``; gradients take the other
    direction of the same link, which is equally fast.

    Parameters
    ----------
    source, destination : int
        Indices into `ClusterSpec.devices`.
    source_port, destination_port : str
        Name of the port group and index of the port in it, such as ``qsfp/0``.
    protocol : str
        Protocol of both ends.
    line_rate_bits_per_s, payload_efficiency, latency_s : float
        The same quantities as in `LinkPortSpec`; where the ends differ, the slower one decides.
    """

    source: int
    destination: int
    source_port: str
    destination_port: str
    protocol: str
    line_rate_bits_per_s: float
    payload_efficiency: float
    latency_s: float

    def __post_init__(self) -> None:
        subject = f"link {self.source} -> {self.destination}"
        _check_whole(f"{subject} source", self.source, 0)
        _check_whole(f"{subject} destination", self.destination, 0)
        if self.source == self.destination:
            raise ValueError(f"{subject} must join two devices, not one with itself")
        _check_positive(f"{subject} line rate", self.line_rate_bits_per_s, "bits/s")
        _check_efficiency(subject, self.payload_efficiency)
        _check_latency(subject, self.latency_s)

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload bandwidth in one direction."""
        return self.line_rate_bits_per_s * self.payload_efficiency / 8


@dataclass(frozen=True)
class ClusterSpec:
    """Devices and the links between them.

    Parameters
    ----------
    name : str
        Name of the cluster in messages and reports.
    device_names : tuple of str
        A unique name for each device.
    devices : tuple of DeviceSpec
        The devices; equal boards share one object.
    links : tuple of LinkSpec
        The links; two devices may be joined by several.
    """

    name: str
    device_names: tuple[str, ...]
    devices: tuple[DeviceSpec, ...]
    links: tuple[LinkSpec, ...]

    def __post_init__(self) -> None:
        num_devices = len(self.devices)
        if not num_devices:
            raise ValueError(f"cluster {self.name} must have at least one device")
        if len(self.device_names) != num_devices or len(set(self.device_names)) != num_devices:
            raise ValueError(f"cluster {self.name} must have one unique name for each device")
        used: set[tuple[int, str]] = set()
        for link in self.links:
            for device, port in (
                (link.source, link.source_port),
                (link.destination, link.destination_port),
            ):
                if device >= num_devices:
                    raise ValueError(
                        f"cluster {self.name} link ends must be devices 0..{num_devices - 1}, "
                        f"not {device}"
                    )
                if (device, port) in used:
                    raise ValueError(
                        f"cluster {self.name} uses port {port} of device {device} twice"
                    )
                used.add((device, port))

    def fastest_link(self, source: int, destination: int) -> LinkSpec | None:
        """The link that cores use between two devices: the fastest; None if they have none."""
        links = self.links_between(source, destination)
        return max(links, key=lambda each: each.payload_bytes_per_s, default=None)

    def links_between(self, source: int, destination: int) -> tuple[LinkSpec, ...]:
        """Return the links that join two devices, whichever way they are listed."""
        ends = {source, destination}
        return tuple(link for link in self.links if {link.source, link.destination} == ends)
