"""Inserts waits between the kernels of a program, for the data hazards in memory.

Within a kernel, products and vector operations have their own semaphores. Kernels communicate only
through memory: a load waits for the store, or the transfer over a link, whose bytes it reads, and
likewise for the other hazards. Each queue finishes its instructions in program order. An
instruction that waits for the latest of several instructions of a queue therefore waits for all of
them, and never has to wait for the same instruction twice.

Each pair of queues has a semaphore. Where values pass through a device, or tensors of several links
share memory, there may be more pairs than a core has semaphores. Then waits are left out that
others imply, which are many: a place in memory is often written by one queue after another, and
the last writer has waited for those before.
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
"""Semaphore by which a STORE lets a LOAD of another kernel begin.

Kernels use the semaphores below it themselves and, in a program of two lanes, some above it.
"""

Queue = tuple[Opcode, int]

STORES: Queue = (Opcode.STORE, 0)
LOADS: Queue = (Opcode.LOAD, 0)

Done = dict[Queue, int]
"""For each queue, the last instruction that is known to be done."""

READS = frozenset({Opcode.LOAD, Opcode.SEND})
WRITES = frozenset({Opcode.STORE, Opcode.RECEIVE})


class TooManyPairs(NotImplementedError):
    """A core has fewer semaphores than pairs of queues need."""


class Hazards:
    """Inserts the semaphores between the kernels of a program.

    Parameters
    ----------
    instructions : sequence of Instruction
        Instructions of the program without END.
    kernel_of : sequence of int
        Number of the kernel of each instruction.
    before : sequence of int or None
        For each kernel, the one whose part of the chip it takes over. A kernel begins only when
        that one has stored all its results.
    limit : int, optional
        Number of semaphores of the core; as many as instructions can name, if left out.
    reduces : bool
        Whether waits are left out that others imply.

    Raises
    ------
    TooManyPairs
        If there are too few semaphores; raised by `add`.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        kernel_of: Sequence[int],
        before: Sequence[int | None],
        limit: int | None = None,
        *,
        reduces: bool = False,
    ) -> None:
        self._instructions = list(instructions)
        self._kernel_of = kernel_of
        self._before = before
        self._limit = NUM_SEMAPHORES if limit is None else limit
        self._reduces = reduces
        self._done: dict[Queue, Done] = {}  # when the last instruction of a queue begins
        self._done_at: dict[int, Done] = {}  # when an instruction begins
        self._first_load: dict[int, int] = {}
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
        """Return the instructions with all waits and signals between kernels."""
        begun: set[int] = set()
        for at, number in enumerate(self._kernel_of):
            instruction = self._instructions[at]
            opcode = instruction.opcode
            if opcode not in READS | WRITES:
                continue
            span = span_of(instruction)
            queue = (opcode, instruction.engine)
            if self._reduces:
                self._begin(at, number, queue)
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

    def _begin(self, at: int, number: int, queue: Queue) -> None:
        """Note what is done when an instruction begins, apart from what it will wait for.

        Queues begin their instructions in order. A kernel stores only what it has computed from its
        first load at the earliest.
        """
        done = self._done.get(queue, {})
        if queue == LOADS:
            self._first_load.setdefault(number, at)
        elif queue == STORES:
            load = self._first_load[number]
            if done.get(LOADS, -1) < load:
                done = _merged(done, self._done_at[load], LOADS, load)
        self._done[queue] = self._done_at[at] = done

    def _is_implied(self, at: int, mine: Queue, queue: Queue, other: int) -> bool:
        """Whether an instruction is done when another begins; if it was not, it will be now."""
        done = self._done_at[at]
        if done.get(queue, -1) >= other:
            return True
        self._done[mine] = self._done_at[at] = _merged(done, self._done_at[other], queue, other)
        return False

    def _wait_for_load(self, at: int, number: int, span: Span, *, first: bool) -> None:
        """Make a load wait for what it reads; a kernel's first also for what the kernel overwrites.

        Neither earlier loads nor earlier stores need a wait for the second reason: a kernel stores
        only after its first load, and loads and stores each run in order.
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
        """Make a RECEIVE instruction wait until no earlier instruction needs what it overwrites."""
        needed = self._last(self._writes, [span])
        for queue, other in self._last(self._reads, [span]).items():
            if queue == LOADS:
                # A kernel that has stored all its results has loaded all its operands.
                _latest(needed, STORES, self._last_store[self._kernel_of[other]])
            else:
                _latest(needed, queue, other)
        self._wait_for(at, needed)

    def _last(
        self,
        known: dict[Queue, LastWriters],
        spans: Iterable[Span],
        counts: Callable[[int], bool] | None = None,
    ) -> dict[Queue, int]:
        """For each queue, the last instruction that counts and that accesses one of the spans."""
        found: dict[Queue, int] = {}
        for span in spans:
            for queue, last_writers in known.items():
                last = last_writers.last(span, counts)
                if last is not None:
                    _latest(found, queue, last)
        return found

    def _wait_for(self, at: int, needed: dict[Queue, int]) -> None:
        """Make an instruction wait until the given instruction of each queue is done."""
        instruction = self._instructions[at]
        mine = (instruction.opcode, instruction.engine)
        ordered = list(needed.items())
        if self._reduces:
            ordered.sort(key=lambda each: -each[1])  # the latest may imply others
        for queue, other in ordered:
            edge = (queue, mine)
            if queue == mine or other <= self._waited.get(edge, -1):
                continue
            if self._reduces and self._is_implied(at, mine, queue, other):
                continue
            assert other < at, "what is waited for must come before in the program"
            self._waited[edge] = other
            number = self._semaphores.setdefault(edge, self._last_taken + len(self._semaphores))
            if number >= self._limit:
                raise TooManyPairs(
                    f"program needs over {self._limit} semaphores, for "
                    f"{', '.join(f'{_name(a)} -> {_name(b)}' for a, b in self._semaphores)}; "
                    "cut the network where fewer values pass through a device, or take another "
                    "schedule"
                )
            producer = self._instructions[other]
            self._instructions[other] = replace(producer, signal=(*producer.signal, number))
            waiter = self._instructions[at]
            self._instructions[at] = replace(waiter, wait=(*waiter.wait, number))


def _latest(needed: dict[Queue, int], queue: Queue, at: int) -> None:
    needed[queue] = max(needed.get(queue, -1), at)


def _merged(one: Done, other: Done, queue: Queue, at: int) -> Done:
    """What is done when all of two lists is, and an instruction of a queue."""
    found = dict(one)
    for each, last in (*other.items(), (queue, at)):
        _latest(found, each, last)
    return found


def _name(queue: Queue) -> str:
    opcode, engine = queue
    return opcode.name if opcode in (Opcode.LOAD, Opcode.STORE) else f"{opcode.name}[{engine}]"
