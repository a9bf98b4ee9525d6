"""Why a cluster stands still: for each device, which engine waits for what."""

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
"""Of a memory, read to name instructions: longer programs go without names."""

_LINKS = {Opcode.SEND: "to", Opcode.RECEIVE: "from"}


def explain(
    what: str, cycle: int, nodes: Sequence[Node], read_register: Callable[[int, int], int]
) -> str:
    """Describe a cluster that has not got on.

    Registers are read for it, so that its devices run some cycles. Programs are read from the
    memories, where the registers say that they are.

    Parameters
    ----------
    what : str
        What it has not done.
    cycle : int
        The cluster's present cycle.
    nodes : sequence of Node
    read_register : callable of (int, int) to int
        Reads a register, given the number of a node and the register's offset.

    Returns
    -------
    str
        Lines; the first says when.
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
    """A core of a cluster, as its registers show it."""

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
        # All of a queue that is empty has ended, as far as instructions were handed out.
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
        """What runs, if it can be read."""
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
    """An instruction as messages name it."""
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
    """A missing semaphore, and who is the next to signal it."""
    for index, item in enumerate(program):
        if number in item.signal and index >= begun[spec.queue_of(item)]:
            return f"semaphore {number}, which {_named(program, index)} signals"
    return f"semaphore {number}, which nothing will signal"
