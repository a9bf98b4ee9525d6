"""Cycle model of several cores joined by links: when each instruction of each starts and ends.

Every core is a run of :mod:`fpgapipe.hw.hls_models.cycles.core_cycles`. The cores exchange frames
(:mod:`fpgapipe.hw.hls_models.cycles.port_cycles`). All runs advance together, in windows no longer
than it takes the other end of a wire to hear anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from fpgapipe.hw.hls_models.cycles.core_cycles import CoreRun, MemorySpec, Prediction
from fpgapipe.hw.hls_models.cycles.end_cycles import end_cycles
from fpgapipe.hw.hls_models.cycles.engine_cycles import SIGNAL_CYCLES
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.cycles.run_tables import Port
from fpgapipe.hw.hls_models.cycles.simulation import simulate
from fpgapipe.hw.hls_models.isa.instructions import Instruction
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

End = tuple[int, int]
"""End of a link: number of the device, and number of its link."""


@dataclass(frozen=True)
class Transfers:
    """Traffic of a wire in one direction.

    Attributes
    ----------
    words : int
        Number of words, packets' tags included.
    frames : int
        Number of frames with words.
    busy_cycles : float
        Cycles in which the wire carried a frame with words.
    """

    words: int
    frames: int
    busy_cycles: float


@dataclass(frozen=True)
class ClusterPrediction:
    """Times at which the programs of several cores run, in cycles.

    Attributes
    ----------
    cycles : int
        Cycles from the start of the first core to the interrupt of the last.
    devices : tuple of Prediction
        Prediction of each device; its times count from the start of the first core.
    wires : dict of End to Transfers
        Traffic of each wire, by the end that sends.
    """

    cycles: int
    devices: tuple[Prediction, ...]
    wires: dict[End, Transfers]


def predict_cluster(
    programs: Sequence[Sequence[Instruction]],
    cores: Sequence[CoreSpec],
    wiring: Sequence[tuple[End, End]],
    *,
    memories: Sequence[MemorySpec] | None = None,
    wires: Sequence[WireTiming] | None = None,
    begins: Sequence[float] | None = None,
) -> ClusterPrediction:
    """Predict the cycles of the programs of several cores.

    Parameters
    ----------
    programs, cores
        One program and one core for each device.
    wiring : sequence of pairs of (device, link)
        Pairs of ends that are joined; each end occurs once.
    memories : sequence of MemorySpec, optional
        One memory for each device.
    wires : sequence of WireTiming, optional
        One wire for each pair of `wiring`.
    begins : sequence of float, optional
        Time at which each device is started, 0 by default.

    Raises
    ------
    ValueError
        If devices wait for each other or for packets that nobody sends, or for the reasons of
        `fpgapipe.hw.hls_models.cycles.core_cycles.predict`.
    """
    count = len(programs)
    memories = memories or [MemorySpec()] * count
    wires = wires or [WireTiming()] * len(wiring)
    begins = begins or [0.0] * count
    ports = _ports(cores, wiring, wires)
    runs = [
        # A link takes and gives words as fast as the bus.
        CoreRun(program, core, memory, [inf] * len(core.links), begin, ports=own)
        for program, core, memory, begin, own in zip(
            programs, cores, memories, begins, ports, strict=True
        )
    ]
    # What an end sends, and what it frees, is heard at the other end no sooner than this.
    heard = [
        port.latency_cycles + end_cycles(port.spec).arrive
        for own in ports
        for port in own
        if port.other >= 0
    ]
    simulate(runs, min(heard, default=1))
    waiting = [
        f"device {number}: {each}" for number, run in enumerate(runs) for each in run.waiting()
    ]
    if waiting:
        raise ValueError("the devices wait for what never comes: " + "; ".join(waiting))
    devices = tuple(run.prediction() for run in runs)
    last = max(max(each.ends, default=0.0) for each in devices)
    sent = {
        (number, link): Transfers(port.words, port.frames, port.busy_cycles)
        for number, own in enumerate(ports)
        for link, port in enumerate(own)
        if port.other >= 0
    }
    return ClusterPrediction(round(last + SIGNAL_CYCLES), devices, sent)


def _ports(
    cores: Sequence[CoreSpec], wiring: Sequence[tuple[End, End]], wires: Sequence[WireTiming]
) -> list[list[Port]]:
    """Return the ends of each device's links, joined by the wires."""
    ports = [[Port(spec, spec.phy_bytes, 0) for spec in core.links] for core in cores]
    firsts = [0, *accumulate(map(len, ports))]
    for pair, wire in zip(wiring, wires, strict=True):
        found = [_port(ports, end) for end in pair]
        for port, (device, link) in zip(found, reversed(pair), strict=True):
            port.other = firsts[device] + link
            port.rate = min(wire.bytes_per_cycle, port.spec.phy_bytes)
            port.latency_cycles = wire.latency_cycles
    return ports


def _port(ports: Sequence[Sequence[Port]], end: End) -> Port:
    device, link = end
    if not 0 <= device < len(ports) or not 0 <= link < len(ports[device]):
        raise ValueError(f"wiring must be of links that exist, not link {link} of device {device}")
    if ports[device][link].other >= 0:
        raise ValueError(f"wiring must name link {link} of device {device} once")
    return ports[device][link]
