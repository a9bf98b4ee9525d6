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

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import NUM_SEMAPHORES, Opcode
from fpgapipe.hw.hls_models.isa.program import READS, WRITES
from fpgapipe.lowering.program.last_writer import LastWriters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.instructions import Span
    from fpgapipe.hw.hls_models.isa.program import Program

STORED = 10
"""Semaphore by which a STORE lets a LOAD of another kernel begin.

Kernels use the semaphores below it themselves and, in a program of two lanes, some above it.
"""

Queue = tuple[Opcode, int]

STORES: Queue = (Opcode.STORE, 0)
LOADS: Queue = (Opcode.LOAD, 0)

Done = dict[Queue, int]
"""For each queue, the last instruction that is known to be done."""


class TooManyPairs(NotImplementedError):
    """A core has fewer semaphores than pairs of queues need."""


class Hazards:
    """Inserts the semaphores between the kernels of a program.

    Parameters
    ----------
    program : Program
        The program without END.
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
        If there are too few semaphores; raised by `waits`.
    """

    def __init__(
        self,
        program: Program,
        kernel_of: Sequence[int],
        before: Sequence[int | None],
        limit: int | None = None,
        *,
        reduces: bool = False,
    ) -> None:
        self._kernel_of = kernel_of
        self._before = before
        self._limit = NUM_SEMAPHORES if limit is None else limit
        self._reduces = reduces
        self._done: dict[Queue, Done] = {}  # when the last instruction of a queue begins
        self._done_at: dict[int, Done] = {}  # when an instruction begins
        self._first_load: dict[int, int] = {}
        self._semaphores: dict[tuple[Queue, Queue], int] = {(STORES, LOADS): STORED}
        self._last_taken = max(last_semaphore(program), STORED)
        self._waited: dict[tuple[Queue, Queue], int] = {}
        self._waits: list[tuple[int, int, int]] = []
        self._writes: dict[Queue, LastWriters] = {}
        self._reads: dict[Queue, LastWriters] = {}
        self._last_store: dict[int, int] = {}
        self._stores_of: dict[int, list[Span]] = {}
        begins, ends = (each.tolist() for each in program.spans)
        self._spans: list[Span] = list(zip(begins, ends, strict=True))
        opcodes = map(Opcode, program.opcodes.tolist())
        self._queues: list[Queue] = list(zip(opcodes, program.engines.tolist(), strict=True))
        for at, (number, queue) in enumerate(zip(kernel_of, self._queues, strict=True)):
            if queue == STORES:
                self._last_store[number] = at
                self._stores_of.setdefault(number, []).append(self._spans[at])

    def waits(self) -> NDArray[np.int64]:
        """Return all waits between kernels, as `Program.waiting` takes them."""
        begun: set[int] = set()
        for at, number in enumerate(self._kernel_of):
            span, queue = self._spans[at], self._queues[at]
            opcode, _ = queue
            if opcode not in READS | WRITES:
                continue
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
        return np.array(self._waits, np.int64).reshape(-1, 3)

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
        mine = self._queues[at]
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
            self._waits.append((at, other, number))


def last_semaphore(program: Program) -> int:
    """The highest number of a semaphore that a program names; 0 if it names none."""
    return max(int(np.bitwise_or.reduce(program.waits | program.signals)).bit_length() - 1, 0)


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
