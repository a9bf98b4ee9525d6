"""Explains why a cluster makes no progress: which engine of each device waits for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fpgapipe.hw.hls_models.model.core_state import CoreState
from fpgapipe.sim_tb.cluster.cluster_nodes import Node
from fpgapipe.sim_tb.native.native import NativeDevice

_PROGRAM_BYTES = 1 << 26
"""Most bytes of a program that are read to name its instructions; if it is longer, messages have
numbers only."""


def explain(
    what: str, cycle: int, nodes: Sequence[Node], read_register: Callable[[int, int], int]
) -> str:
    """Describe the state of a cluster that has made no progress.

    This reads registers, for which the devices run some cycles. The programs are read from the
    memories at the addresses that are in the registers.

    Parameters
    ----------
    what : str
        Problem, for the first line, such as "nothing has moved for 2000 cycles".
    cycle : int
        Current cycle of the cluster.
    nodes : sequence of Node
    read_register : callable of (int, int) to int
        Function that reads a register, given the number of a node and the register's offset.

    Returns
    -------
    str
        Text of several lines; the first one has the cycle and the problem.
    """
    lines = [f"cycle {cycle}: {what}"]
    for number, node in enumerate(nodes):
        said = described(node.device)
        lines.append(f"{node.name}: {said.pop(0)}" if node.device.has_irq else f"{node.name}:")
        lines += [f"  {line}" for line in said]
        if node.registers:
            reads = partial(read_register, number), partial(_program_at, node.device)
            lines += [f"  {line}" for line in CoreState(node.registers, *reads).lines()]
    return "\n".join(lines)


def described(device: NativeDevice) -> list[str]:
    """Description of a device without its registers: its interrupt and its memory bus."""
    now = device.statistics
    lines = [f"interrupt {'high' if now.irq else 'low'}"] if device.has_irq else []
    if device.bus_bytes:
        last = "never" if now.active_cycle is None else f"last at cycle {now.active_cycle}"
        lines.append(
            f"memory bus: active {last}, {now.reads_in_flight} reads and "
            f"{now.writes_in_flight} writes in flight"
        )
    return lines


def _program_at(device: NativeDevice, entry: int) -> bytes:
    return device.memory[entry : entry + _PROGRAM_BYTES].tobytes()
