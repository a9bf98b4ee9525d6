"""Semaphores between the kernels of a program: what waits for what in memory.

Within a kernel, products and vectors have semaphores of their own. Between kernels all goes through
memory: a load waits for the store, or the transfer over a link, whose bytes it reads, and so on.
Each queue ends its instructions in the order of the program, so whoever waits for the latest of
several waits for all, and need not wait twice for the same.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fpgapipe.hw.hls_models.isa.instructions import (
    NUM_SEMAPHORES,
    Instruction,
    Opcode,
    Span,
    span_of,
)
from fpgapipe.lowering.program.last_writer import LastWriters

STORED = 10
"""Semaphore by which a STORE lets a LOAD of another kernel begin; those below are kernels' own, and
so are some behind it in a program of two lanes."""

Queue = tuple[Opcode, int]

STORES: Queue = (Opcode.STORE, 0)
LOADS: Queue = (Opcode.LOAD, 0)

READS = frozenset({Opcode.LOAD, Opcode.SEND})
WRITES = frozenset({Opcode.STORE, Opcode.RECEIVE})


class Hazards:
    """Lets the instructions of a program wait for each other.

    Parameters
    ----------
    instructions : sequence of Instruction
        Without END.
    kernel_of : sequence of int
        Of each instruction, the number of its kernel.
    before : sequence of int or None
        For each kernel the one whose part of the chip it takes over, which has to have stored all.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        kernel_of: Sequence[int],
        before: Sequence[int | None],
    ) -> None:
        self._instructions = list(instructions)
        self._kernel_of = kernel_of
        self._before = before
        self._semaphores: dict[tuple[Queue, Queue], int] = {(STORES, LOADS): STORED}
        own = max((max((*each.wait, *each.signal), default=0) for each in instructions), default=0)
        self._last_taken = max(own, STORED)
        self._waited: dict[tuple[Queue, Queue], int] = {}
        self._writes: dict[Queue, LastWriters] = {}
        self._reads: dict[Queue, LastWriters] = {}
        self._last_store: dict[int, int] = {}
        self._stores_of: dict[int, list[Span]] = {}
        for at, (number, each) in enumerate(zip(kernel_of, self._instructions, strict=True)):
            if each.opcode is Opcode.STORE:
                self._last_store[number] = at
                self._stores_of.setdefault(number, []).append(span_of(each))

    def add(self) -> list[Instruction]:
        """Return the instructions with all semaphores between kernels."""
        begun: set[int] = set()
        for at, number in enumerate(self._kernel_of):
            instruction = self._instructions[at]
            opcode = instruction.opcode
            if opcode not in READS | WRITES:
                continue
            span = span_of(instruction)
            queue = (opcode, instruction.engine)
            if opcode is Opcode.LOAD:
                self._wait_for_load(at, number, span, first=number not in begun)
                begun.add(number)
            elif opcode is Opcode.SEND:
                self._wait_for(at, self._last(self._writes, [span]))
            elif opcode is Opcode.RECEIVE:
                self._wait_for_room(at, span)
            known = self._reads if opcode in READS else self._writes
            known.setdefault(queue, LastWriters()).add(span, at)
        return self._instructions

    def _wait_for_load(self, at: int, number: int, span: Span, *, first: bool) -> None:
        """Let a load wait for what it reads and, if a kernel begins, for what that overwrites.

        Loads before are none of what it overwrites: a kernel stores after its first load, and loads
        come in order. Nor are stores.
        """
        needed = self._last(self._writes, [span], lambda at: self._kernel_of[at] != number)
        if first:
            before = self._before[number]
            if before is not None and before in self._last_store:
                _latest(needed, STORES, self._last_store[before])
            stores = self._stores_of.get(number, [])
            for known in (self._reads, self._writes):
                for queue, other in self._last(known, stores).items():
                    if queue not in (LOADS, STORES):
                        _latest(needed, queue, other)
        self._wait_for(at, needed)

    def _wait_for_room(self, at: int, span: Span) -> None:
        """Let what comes over a link wait until nobody needs what it overwrites."""
        needed = self._last(self._writes, [span])
        for queue, other in self._last(self._reads, [span]).items():
            if queue == LOADS:
                # A kernel has loaded all when it has stored all.
                _latest(needed, STORES, self._last_store[self._kernel_of[other]])
            else:
                _latest(needed, queue, other)
        self._wait_for(at, needed)

    def _last(
        self,
        known: dict[Queue, LastWriters],
        spans: Iterable[Span],
        counts: Callable[[int], bool] = lambda at: True,
    ) -> dict[Queue, int]:
        """Of each queue, the last instruction that counts and touched one of some spans."""
        found: dict[Queue, int] = {}
        for span in spans:
            for queue, last_writers in known.items():
                last = last_writers.last(span, counts)
                if last is not None:
                    _latest(found, queue, last)
        return found

    def _wait_for(self, at: int, needed: dict[Queue, int]) -> None:
        """Let an instruction wait until these others are done."""
        instruction = self._instructions[at]
        mine = (instruction.opcode, instruction.engine)
        for queue, other in needed.items():
            edge = (queue, mine)
            if queue == mine or other <= self._waited.get(edge, -1):
                continue
            assert other < at, "what is waited for must come before in the program"
            self._waited[edge] = other
            number = self._semaphores.setdefault(edge, self._last_taken + len(self._semaphores))
            if number >= NUM_SEMAPHORES:
                raise ValueError(
                    f"program needs over {NUM_SEMAPHORES} semaphores, for "
                    f"{', '.join(f'{_name(a)} -> {_name(b)}' for a, b in self._semaphores)}"
                )
            producer = self._instructions[other]
            self._instructions[other] = replace(producer, signal=(*producer.signal, number))
            waiter = self._instructions[at]
            self._instructions[at] = replace(waiter, wait=(*waiter.wait, number))


def _latest(needed: dict[Queue, int], queue: Queue, at: int) -> None:
    needed[queue] = max(needed.get(queue, -1), at)


def _name(queue: Queue) -> str:
    opcode, engine = queue
    return opcode.name if opcode in (Opcode.LOAD, Opcode.STORE) else f"{opcode.name}[{engine}]"
