"""State of a core at this moment, read from its registers, in words.

It is said of simulated cores and of those on boards alike: which engine waits for which semaphore,
and which instruction will signal that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fpgapipe.hw.hls_models.isa.instructions import (
    Instruction,
    Opcode,
    ProgramError,
    decode,
    semaphores_of,
)
from fpgapipe.hw.hls_models.model.core_protocol import error_text
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.link import LinkState

_LINKS = {Opcode.SEND: "to", Opcode.RECEIVE: "from"}


class CoreState:
    """State of a core, read from its registers.

    Parameters
    ----------
    registers : RegisterMap
        Register map of the core.
    read_register : callable of int to int
        Function that reads a register, given its offset.
    program_at : callable of int to bytes
        Function that returns the program at a byte address, END included; what follows it does not
        matter. If it cannot be decoded, messages have numbers of instructions only.
    """

    def __init__(
        self,
        registers: RegisterMap,
        read_register: Callable[[int], int],
        program_at: Callable[[int], bytes],
    ) -> None:
        self._registers, self._program_at = registers, program_at
        self._read_register = read_register

    def _read(self, name: str) -> int:
        return self._read_register(self._registers.offset(name))

    def _field(self, register: str, name: str, value: int) -> int:
        return self._registers[register].field(name).of(value)

    def lines(self) -> Iterator[str]:
        """Describe the core: its program, each engine that works or waits, and its links."""
        status = self._read("STATUS")
        if not self._field("STATUS", "running", status):
            is_done, is_error = (self._field("STATUS", name, status) for name in ("done", "error"))
            yield f"no program runs{' (done)' if is_done else ''}"
            if is_error:
                yield error_text(self._read_register, self._registers)
        elif self._registers.spec.links:
            yield from self._queues()
        else:
            yield "a program runs"
        for link in range(len(self._registers.spec.links)):
            yield self._link(link)

    def _link(self, link: int) -> str:
        state = self._field(f"LINK{link}_STATUS", "state", self._read(f"LINK{link}_STATUS"))
        words = [self._read(f"LINK{link}_{name}_WORDS_LO") for name in ("TX", "RX")]
        told = (
            f"link {link}: {LinkState(state).name}, {words[0]} words have gone in and {words[1]} "
            "have come out"
        )
        for name, what in (("CRC_ERRORS", "came damaged"), ("REPLAYS", "were sent again")):
            if count := self._read(f"LINK{link}_{name}_LO"):
                told += f"; frames that {what}: {count}"
        return told

    def _queues(self) -> Iterator[str]:
        spec = SequencerSpec.of(self._registers.spec)
        program = self._program(spec)
        waits = [self._read(f"QUEUE{queue}_WAIT") for queue in range(spec.num_queues)]
        found = []
        for queue, wait in enumerate(waits):
            fields = self._registers[f"QUEUE{queue}_WAIT"]
            busy, empty, semaphores, offered = (
                fields.field(name).of(wait) for name in ("busy", "empty", "semaphores", "offered")
            )
            missing = self._read(f"QUEUE{queue}_MISSING") if semaphores else 0
            oldest = self._read(f"QUEUE{queue}_OLDEST") if busy else None
            head = self._read(f"QUEUE{queue}_HEAD") if semaphores or offered else None
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
        entry = self._read("PROGRAM_LO") | self._read("PROGRAM_HI") << 32
        try:
            return decode(
                self._program_at(entry),
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
