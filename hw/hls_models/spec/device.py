"""What a device offers, and how devices are wired: all that planner and generator know of boards.

A board file has more (where each number comes from, the shell, what a vendor calls things); the
planner gets a `DeviceSpec` with shell and usable share already taken off, and never a board.
"""

import math
from dataclasses import dataclass

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
    """What a design may use of one die (an SLR, or a whole monolithic part).

    Parameters
    ----------
    name : str
        The vendor's name of the die, ``SLR0``.
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
        If a count is negative or no whole number.
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
class MemorySpec:
    """A group of equal memories beside the fabric: DDR channels, HBM pseudo-channels.

    Parameters
    ----------
    name : str
        Unique on the device.
    kind : str
        ``hbm2``, ``ddr4``, ``sdram``.
    count : int
        Independent channels.
    size_bytes : int
        Capacity of one channel.
    bandwidth_bytes_per_s : float
        Peak of one channel, reads and writes together.
    latency_s : float
        From a read request at the controller to its first data.
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
        Unique on the device; a port of the group is ``name/index``.
    count : int
        Ports in the group.
    protocol : str
        What the ports speak; only ports of one protocol can be wired together.
    line_rate_bits_per_s : float
        All lanes of one port together, per direction, before line coding.
    payload_efficiency : float
        Share of the line rate that carries payload.
    latency_s : float
        From the sender's stream to the receiver's stream, cable included.
    """

    name: str
    count: int
    protocol: str
    line_rate_bits_per_s: float
    payload_efficiency: float
    latency_s: float

    def __post_init__(self) -> None:
        _check_whole(f"link port {self.name} count", self.count, 1)
        _check_positive(f"link port {self.name} line rate", self.line_rate_bits_per_s, "bits/s")
        _check_efficiency(f"link port {self.name}", self.payload_efficiency)
        _check_latency(f"link port {self.name}", self.latency_s)

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload of one port in one direction."""
        return self.line_rate_bits_per_s * self.payload_efficiency / 8


@dataclass(frozen=True)
class DeviceSpec:
    """What one device offers to planner and generator, shell and reserve already taken off.

    Parameters
    ----------
    name : str
        The board's name.
    part : str
        The vendor's part number, for the vendor's tools.
    dsp_kind : str
        ``DSP48E2``, ``DSP48E1``, ``MULT18X18D``.
    clk_hz : float
        The clock that a design on this device should aim for.
    dies : tuple of DieResources
        In the order in which they are connected; at least one.
    memories : tuple of MemorySpec
        Memory beside the fabric; may be empty.
    ports : tuple of LinkPortSpec
        Links to other devices; may be empty.
    host_bytes_per_s : float
        Payload between host and device, per direction.
    """

    name: str
    part: str
    dsp_kind: str
    clk_hz: float
    dies: tuple[DieResources, ...]
    memories: tuple[MemorySpec, ...]
    ports: tuple[LinkPortSpec, ...]
    host_bytes_per_s: float

    def __post_init__(self) -> None:
        _check_positive(f"device {self.name} clock", self.clk_hz, "Hz")
        _check_positive(f"device {self.name} host bandwidth", self.host_bytes_per_s, "bytes/s")
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
        """Block RAM and UltraRAM of all dies."""
        return self.bram36 * BRAM36_BYTES + self.uram * URAM_BYTES

    @property
    def memory_bytes(self) -> int:
        """Memory beside the fabric, all channels."""
        return sum(memory.count * memory.size_bytes for memory in self.memories)

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak bandwidth of that memory, all channels at once."""
        return sum(memory.count * memory.bandwidth_bytes_per_s for memory in self.memories)

    @property
    def num_ports(self) -> int:
        """Link ports of all groups."""
        return sum(port.count for port in self.ports)


@dataclass(frozen=True)
class LinkSpec:
    """A full-duplex link between two devices of a cluster.

    ``source`` to ``destination`` is the direction in which a pipeline's features flow; gradients
    take the other direction of the same link, which is equally fast.

    Parameters
    ----------
    source, destination : int
        Indices into `ClusterSpec.devices`.
    source_port, destination_port : str
        ``qsfp/0``: the port group's name, and which port of it.
    protocol : str
        What both ends speak.
    line_rate_bits_per_s, payload_efficiency, latency_s : float
        As in `LinkPortSpec`; the slower end decides.
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
        """Payload in one direction."""
        return self.line_rate_bits_per_s * self.payload_efficiency / 8


@dataclass(frozen=True)
class ClusterSpec:
    """Devices and the links between them.

    Parameters
    ----------
    name : str
        For messages and reports.
    device_names : tuple of str
        One for each device, unique.
    devices : tuple of DeviceSpec
        Equal boards share one object.
    links : tuple of LinkSpec
        Two devices may share several links.
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

    def links_between(self, source: int, destination: int) -> tuple[LinkSpec, ...]:
        """Return the links that join two devices, whichever way they are listed."""
        ends = {source, destination}
        return tuple(link for link in self.links if {link.source, link.destination} == ends)
