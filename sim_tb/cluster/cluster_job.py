"""Jobs for a cluster, which run either natively or in cocotb.

A job is a sequence of steps that write and read registers and let the devices run. Each step begins
in the cycle in which the preceding one has ended. So both ways take the same cycles and give the
same results.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpgapipe.hw.hls_models.model.registers import SEED_BITS, RegisterMap
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Connection, Node
from fpgapipe.sim_tb.cluster.cluster_top import TOP, cluster_verilog
from fpgapipe.sim_tb.drivers.simulate import simulate_verilog
from fpgapipe.sim_tb.drivers.timed_memory import MemoryTiming
from fpgapipe.sim_tb.native.native import NativeDevice, Statistics, build_native
from fpgapipe.sim_tb.native.phy import WireCounts

RESET_CYCLES = 4
"""Cycles of the reset, as many as for a native device."""

SETTLE_CYCLES = 2048
"""Cycles for which a cluster continues to run after the last interrupt.

A native cluster can end a run only between two rounds, each of which has fewer cycles than this.
Running on to a fixed cycle makes the end independent of the rounds.
"""


def _no_memory() -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8)


@dataclass(frozen=True)
class JobNode:
    """A device of a job.

    Parameters
    ----------
    verilog : str
        Verilog of the device, as `fpgapipe.hw.rtl.verilog.verilog_of` generates it.
    memory : uint8 array
        Initial contents of its memory; a run works on a copy.
    timing : MemoryTiming
        Timing of its memory.
    registers : RegisterMap, optional
        Register map, needed for steps that name registers.
    awaited : bool
        Whether `UntilIrq` waits for the interrupt of the device, if it has one.
    """

    verilog: str
    memory: NDArray[np.uint8] = field(default_factory=_no_memory)
    timing: MemoryTiming = field(default_factory=MemoryTiming)
    registers: RegisterMap | None = None
    awaited: bool = True


class Write(NamedTuple):
    """Step that writes a register of a node, given by name or address."""

    node: int
    register: str | int
    value: int


class Read(NamedTuple):
    """Step that reads a register of a node, given by name or address."""

    node: int
    register: str | int


class Run(NamedTuple):
    """Step in which all devices run for a number of cycles."""

    cycles: int


class UntilIrq(NamedTuple):
    """Step that ends `SETTLE_CYCLES` after the last of all awaited interrupts has risen."""

    most_cycles: int


Step = Write | Read | Run | UntilIrq


@dataclass(frozen=True)
class ClusterJob:
    """A cluster and the steps that it is to run.

    Parameters
    ----------
    nodes : sequence of JobNode
    connections : sequence of Connection
    steps : sequence of Step
    """

    nodes: Sequence[JobNode]
    connections: Sequence[Connection]
    steps: Sequence[Step]

    def address(self, step: Write | Read) -> int:
        """Address of a step's register.

        Raises
        ------
        KeyError
            If the node has no register of that name.
        """
        if isinstance(step.register, int):
            return step.register
        registers = self.nodes[step.node].registers
        if registers is None:
            raise KeyError(f"node {step.node} has no map of its registers")
        return registers.offset(step.register)


@dataclass(frozen=True)
class ClusterResult:
    """State of a cluster one cycle after the last step of a job.

    Attributes
    ----------
    step_cycles : tuple of int
        Cycles in which the steps have ended.
    values : mapping of (int, str or int) to int
        Values that were read last, by node and register.
    irq_cycles : tuple of (int or None)
        For each node, the first cycle since which its interrupt is high; None if it is low.
    memories : tuple of uint8 array
        Contents of the nodes' memories.
    statistics : tuple of (Statistics or None)
        Statistics of the nodes' memory buses; None for a node without one.
    wires : tuple of WireCounts
        Event counts of the connections.
    """

    step_cycles: tuple[int, ...]
    values: Mapping[tuple[int, str | int], int]
    irq_cycles: tuple[int | None, ...]
    memories: tuple[NDArray[np.uint8], ...]
    statistics: tuple[Statistics | None, ...]
    wires: tuple[WireCounts, ...]

    def counter(self, node: int, name: str) -> int:
        """Value of a counter of which both halves were read."""
        return self.values[node, f"{name}_LO"] | self.values[node, f"{name}_HI"] << 32

    def differences(self, other: "ClusterResult") -> list[str]:
        """Names of the parts in which two results differ."""
        found = [
            name
            for name in ("step_cycles", "irq_cycles", "statistics", "wires")
            if getattr(self, name) != getattr(other, name)
        ]
        found += [
            f"register {register} of node {node}"
            for node, register in sorted({*self.values, *other.values}, key=str)
            if self.values.get((node, register)) != other.values.get((node, register))
        ]
        found += [
            f"memory of node {node}"
            for node, (one, two) in enumerate(zip(self.memories, other.memories, strict=True))
            if not np.array_equal(one, two)
        ]
        return found


def program_steps(
    nodes: Sequence[JobNode],
    connections: Sequence[Connection],
    entries: Sequence[int],
    most_cycles: int,
) -> list[Step]:
    """Steps that run a program on each device and then read all counters.

    Parameters
    ----------
    nodes : sequence of JobNode
        Devices, each with its registers. A program may use all of its device's memory.
    connections : sequence of Connection
        Connections, whose links are enabled, each with a different seed.
    entries : sequence of int
        Address of each device's program.
    most_cycles : int
        Limit for all programs, which run concurrently, cycles.
    """
    steps: list[Step] = []
    for count, (number, port) in enumerate(sorted({each.source for each in connections})):
        steps.append(Write(number, f"LINK{port}_SEED", (count + 1) * 257 % (1 << SEED_BITS)))
        steps.append(Write(number, f"LINK{port}_ENABLE", 1))
    for number, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        for name, value in (("PROGRAM", entry), ("MEMORY_LIMIT", node.memory.size)):
            steps.append(Write(number, f"{name}_LO", value % (1 << 32)))
            steps.append(Write(number, f"{name}_HI", value >> 32))
        steps.append(Write(number, "IRQ_ENABLE", 0b1100))
    steps += [Write(number, "CONTROL", 1) for number in range(len(nodes))]
    steps.append(UntilIrq(most_cycles))
    for number, node in enumerate(nodes):
        if node.registers is None:
            raise KeyError(f"node {number} has no map of its registers")
        steps.append(Read(number, "STATUS"))
        for name in node.registers.counters:
            steps += [Read(number, f"{name}_LO"), Read(number, f"{name}_HI")]
    return steps


def run_natively(job: ClusterJob, *, threads: int | None = None) -> ClusterResult:
    """Run a job with native devices.

    Parameters
    ----------
    job : ClusterJob
    threads : int, optional
        See `Cluster`.

    Raises
    ------
    ValueError
        See `Cluster`.
    DeviceError, StallError
        If a device breaks a rule, or if the interrupts do not come.
    """
    nodes = []
    for number, node in enumerate(job.nodes):
        device = NativeDevice(
            build_native(node.verilog), memory_bytes=node.memory.size, **asdict(node.timing)
        )
        device.memory[:] = node.memory
        nodes.append(Node(f"d{number}", device, node.registers, node.awaited))
    with Cluster(nodes, job.connections, threads=threads) as cluster:
        step_cycles, values = [], {}
        for step in job.steps:
            if isinstance(step, Write):
                cluster.write_register(step.node, job.address(step), step.value)
            elif isinstance(step, Read):
                value = cluster.read_register(step.node, job.address(step))
                values[step.node, step.register] = value
            elif isinstance(step, Run):
                cluster.run(step.cycles, until_irq=False)
            else:
                cluster.run(step.most_cycles)
                highs = [
                    node.device.statistics.irq_cycle or 0 for node in cluster.nodes if node.awaited
                ]
                if (left := max(highs) + SETTLE_CYCLES - cluster.cycle) > 0:
                    cluster.run(left, until_irq=False)
            step_cycles.append(cluster.cycle)
        cluster.run(1, until_irq=False)
        statistics = [node.device.statistics for node in nodes]
        return ClusterResult(
            tuple(step_cycles),
            values,
            tuple(one.irq_cycle for one in statistics),
            tuple(node.device.memory.copy() for node in nodes),
            tuple(
                one if node.device.bus_bytes else None
                for node, one in zip(nodes, statistics, strict=True)
            ),
            tuple(cluster.wire_counts(number) for number in range(len(job.connections))),
        )


def run_cluster_in_cocotb(
    job: ClusterJob, work: Path, *, waves: bool = False, timeout_s: float = 600
) -> ClusterResult:
    """Run a job in cocotb: one simulator contains all devices, and a testbench drives them.

    Parameters
    ----------
    job : ClusterJob
    work : Path
        Folder for the files of the simulation, among them job and result; see `simulate_verilog`.
    waves, timeout_s
        See `simulate_verilog`.

    Raises
    ------
    SimulationError, ToolError, UserError
        See `simulate_verilog`. SimulationError is also raised if the interrupts do not come.
    NotImplementedError
        If a device has two memory ports.
    """
    for number, node in enumerate(job.nodes):
        if "m_axi1_araddr" in node.verilog:
            raise NotImplementedError(
                f"device {number} has two memory ports, and a cluster in cocotb has one a device; "
                "run_natively takes two"
            )
    work = Path(work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    path, result = work / "job.pickle", work / "result.pickle"
    result.unlink(missing_ok=True)
    nodes = [replace(node, verilog="") for node in job.nodes]
    path.write_bytes(pickle.dumps(replace(job, nodes=nodes)))
    simulate_verilog(
        cluster_verilog([node.verilog for node in job.nodes]),
        "tb_cluster",
        work,
        top=TOP,
        parameters={"job": str(path), "result": str(result)},
        waves=waves,
        seed=0,
        timeout_s=timeout_s,
    )
    found: ClusterResult = pickle.loads(result.read_bytes())
    return found
