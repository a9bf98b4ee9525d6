"""Explains why a cluster makes no progress: which engine of each device waits for what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fpgapipe.hw.hls_models.isa.instructions import (
    Instruction,
    Opcode,
    ProgramError,
    decode,
    semaphores_of,
)
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.sim_tb.cluster.cluster_nodes import Node
from fpgapipe.sim_tb.native.native import NativeDevice

_PROGRAM_BYTES = 1 << 26
"""Most bytes of a program that are read to name its instructions; if it is longer, messages have
numbers only."""

_LINKS = {Opcode.SEND: "to", Opcode.RECEIVE: "from"}


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
        now = node.device.statistics
        if node.device.has_irq:
            lines.append(f"{node.name}: interrupt {'high' if now.irq else 'low'}")
        else:
            lines.append(f"{node.name}:")
        if node.device.bus_bytes:
            last = "never" if now.active_cycle is None else f"last at cycle {now.active_cycle}"
            lines.append(
                f"  memory bus: active {last}, {now.reads_in_flight} reads and "
                f"{now.writes_in_flight} writes in flight"
            )
        if node.registers:
            core = _Core(node.device, node.registers, partial(read_register, number))
            lines += [f"  {line}" for line in core.lines()]
    return "\n".join(lines)


class _Core:
    """State of a core of a cluster, read from its registers."""

    def __init__(
        self, device: NativeDevice, registers: RegisterMap, read_register: Callable[[int], int]
    ) -> None:
        self.device, self.registers, self.read_register = device, registers, read_register

    def read(self, name: str) -> int:
        return self.read_register(self.registers.offset(name))

    def field(self, register: str, name: str, value: int) -> int:
        return self.registers[register].field(name).of(value)

    def lines(self) -> Iterator[str]:
        status = self.read("STATUS")
        if not self.field("STATUS", "running", status):
            ends = [name for name in ("done", "error") if self.field("STATUS", name, status)]
            yield f"no program runs{''.join(f' ({name})' for name in ends)}"
        elif self.registers.spec.links:
            yield from self._queues()
        else:
            yield "a program runs"
        for link in range(len(self.registers.spec.links)):
            yield self._link(link)

    def _link(self, link: int) -> str:
        state = self.field(f"LINK{link}_STATUS", "state", self.read(f"LINK{link}_STATUS"))
        words = [self.read(f"LINK{link}_{name}_WORDS_LO") for name in ("TX", "RX")]
        return (
            f"link {link}: {LinkState(state).name}, {words[0]} words have gone in and {words[1]} "
            "have come out"
        )

    def _queues(self) -> Iterator[str]:
        spec = SequencerSpec.of(self.registers.spec)
        program = self._program(spec)
        waits = [self.read(f"QUEUE{queue}_WAIT") for queue in range(spec.num_queues)]
        found = []
        for queue, wait in enumerate(waits):
            fields = self.registers[f"QUEUE{queue}_WAIT"]
            busy, empty, semaphores, offered = (
                fields.field(name).of(wait) for name in ("busy", "empty", "semaphores", "offered")
            )
            missing = self.read(f"QUEUE{queue}_MISSING") if semaphores else 0
            oldest = self.read(f"QUEUE{queue}_OLDEST") if busy else None
            head = self.read(f"QUEUE{queue}_HEAD") if semaphores or offered else None
            found.append((empty, semaphores, missing, oldest, head))
        begun = [head if oldest is None else oldest for *_, oldest, head in found]
        # A queue that is neither busy nor waiting has completed all instructions that have been
        # handed out so far, so it is treated as having reached the last of them.
        last = max((number for number in begun if number is not None), default=-1)
        reached = [last + 1 if number is None else number for number in begun]
        for queue, (empty, semaphores, missing, oldest, head) in enumerate(found):
            name = spec.name_of_queue(queue)
            if oldest is not None:
                yield f"{name}: {_named(program, oldest)} is under way"
            if head is not None and semaphores:
                numbers = semaphores_of(missing)
                yield (
                    f"{name}: {_named(program, head)} waits for "
                    f"{', '.join(_semaphore(program, spec, reached, each) for each in numbers)}"
                )
            elif head is not None:
                yield f"{name}: {_named(program, head)} waits for its engine"
            elif oldest is None and not empty:
                yield f"{name}: has an instruction on its way"

    def _program(self, spec: SequencerSpec) -> Sequence[Instruction]:
        """Instructions of the running program; empty if they cannot be decoded."""
        entry = self.read("PROGRAM_LO") | self.read("PROGRAM_HI") << 32
        memory = self.device.memory
        try:
            return decode(
                memory[entry : entry + _PROGRAM_BYTES].tobytes(),
                spec.num_engines,
                has_vector=spec.has_vector,
                num_links=spec.num_links,
            )
        except ProgramError:
            return ()


def _named(program: Sequence[Instruction], index: int) -> str:
    """Name of an instruction in messages."""
    if index >= len(program):
        return f"instruction {index}"
    item = program[index]
    if item.opcode in _LINKS:
        body = item.body
        return (
            f"instruction {index} ({item.opcode.name} {_LINKS[item.opcode]} link {item.engine}, "
            f"channel {body['channel']}, stream {body['stream']})"
        )
    return f"instruction {index} ({item.opcode.name})"


def _semaphore(
    program: Sequence[Instruction], spec: SequencerSpec, begun: Sequence[int], number: int
) -> str:
    """Name of a missing semaphore, and of the instruction that will signal it next."""
    for index, item in enumerate(program):
        if number in item.signal and index >= begun[spec.queue_of(item)]:
            return f"semaphore {number}, which {_named(program, index)} signals"
    return f"semaphore {number}, which nothing will signal"
