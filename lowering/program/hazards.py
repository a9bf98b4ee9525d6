"""The waits between the kernels of a program, for the data hazards in memory.

Each pair of queues has a semaphore. Where values pass through a device, or tensors of several links
share memory, there may be more pairs than a core has semaphores. Then waits are left out that
others imply, which are many: a place in memory is often written by one queue after another, and
the last writer has waited for those before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.isa.program import READS
from fpgapipe.lowering.program import order
from fpgapipe.two_speeds import has_compiler, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.program import Program

    Numbers = NDArray[np.int64]

STORED = 10
"""Semaphore by which a STORE lets a LOAD of another kernel begin.

Kernels use the semaphores below it themselves and, in a program of two lanes or with sums over
devices, some above it.
"""

MANY = 10_000
"""Instructions of a program from which machine code is worth the time to load it."""

KINDS = (Opcode.LOAD, Opcode.STORE, Opcode.SEND, Opcode.RECEIVE)
"""Transfers, by the numbers of their kinds in `fpgapipe.lowering.program.order`."""


def waits_of(
    program: Program, kernel_of: Numbers, before: Sequence[int | None], limit: int
) -> Numbers:
    """Find the waits between the kernels of a program, as `Program.waiting` takes them.

    Parameters
    ----------
    program : Program
        The program without END.
    kernel_of : int array
        Number of the kernel of each instruction.
    before : sequence of int or None
        For each kernel, the one whose part of the chip it takes over. A kernel begins only when
        that one has stored all its results.
    limit : int
        Number of semaphores of the core.

    Raises
    ------
    NotImplementedError
        If the core has fewer semaphores than pairs of queues need.
    """
    for reduces in (False, True):
        waits = _waits(program, kernel_of, before, limit, reduces=reduces)
        if not len(waits) or waits[-1, 2] < limit:
            return waits
    pairs = {STORED: "STORE -> LOAD"}
    for waiter, producer, semaphore in waits.tolist():
        pairs.setdefault(semaphore, f"{_name(program, producer)} -> {_name(program, waiter)}")
    raise NotImplementedError(
        f"program needs over {limit} semaphores, for {', '.join(pairs.values())}; cut the "
        "network where fewer values pass through a device, or take another schedule"
    )


def _name(program: Program, place: int) -> str:
    """Name of an instruction's queue."""
    opcode, engine = Opcode(int(program.opcodes[place])), int(program.engines[place])
    return opcode.name if opcode in (Opcode.LOAD, Opcode.STORE) else f"{opcode.name}[{engine}]"


def _waits(
    program: Program,
    kernel_of: Numbers,
    before: Sequence[int | None],
    limit: int,
    *,
    reduces: bool,
) -> Numbers:
    """The waits up to the first for which there is no semaphore.

    With `reduces` those are left out that others imply.
    """
    begin, end = program.spans
    at = np.flatnonzero(begin >= 0)
    begin, end, kernels, opcodes = begin[at], end[at], kernel_of[at], program.opcodes[at]
    numbers = np.full(max(Opcode) + 1, -1, np.int64)
    numbers[list(KINDS)] = range(len(KINDS))
    kind = numbers[opcodes]
    # LOADs and STOREs have the first queues; each link's SENDs and RECEIVEs have two of others.
    queue = kind + 2 * program.engines[at].astype(np.int64)
    queues = int(queue.max(initial=len(KINDS))) + 1
    stores = np.flatnonzero(kind == order.STORE)
    last_store = np.full(len(before), -1, np.int64)
    last_store[kernels[stores]] = at[stores]
    stores = stores[np.argsort(kernels[stores], kind="stable")]
    place_of = np.full(len(program), -1, np.int64)
    place_of[at] = np.arange(len(at))
    transfers = order.Transfers(
        at,
        queue,
        kernels,
        begin,
        end,
        kind,
        place_of,
        kernel_of,
        np.array([-1 if each is None else each for each in before], np.int64),
        last_store,
        np.searchsorted(kernels[stores], np.arange(len(before) + 1)).astype(np.int64),
        stores,
    )
    is_read = np.isin(opcodes, list(READS))
    reads, writes = (
        new_table(queues, begin[which], end[which], end) for which in (is_read, ~is_read)
    )
    semaphores = np.full(queues * queues, -1, np.int64)
    semaphores[order.STORE * queues + order.LOAD] = STORED
    # A transfer waits for one of each queue at most.
    room = len(at) * queues
    waiter, producer, semaphore = (np.zeros(room, np.int64) for _ in range(3))
    found = order.Waits(
        waiter,
        producer,
        semaphore,
        waited=np.full(queues * queues, -1, np.int64),
        semaphores=semaphores,
        users=np.zeros(2 * queues, np.int64),
        needed=np.zeros(2 * queues, np.int64),
        first_load=np.full(len(before), -1, np.int64),
        done=np.full(queues * queues, -1, np.int64),
        done_at=np.full(room if reduces else 0, -1, np.int64),
    )
    named = int(np.bitwise_or.reduce(program.waits | program.signals)).bit_length() - 1
    first = max(named, STORED) + 1
    size = run(
        order.find_waits,
        *(transfers, reads, writes, first, limit, reduces, found),
        compiles=is_long(program),
    )
    return np.stack([waiter[:size], producer[:size], semaphore[:size]], axis=1)


def is_long(program: Program) -> bool:
    """Whether the order of a program and its waits are found as machine code."""
    return len(program) >= MANY and has_compiler()


def new_table(count: int, begin: Numbers, end: Numbers, asked: Numbers) -> order.Table:
    """Empty tables with room for these spans; spans with the ends `asked` are looked up."""
    largest = int(asked.max(initial=1))
    fine_bits, coarse_bits = order.FINE_BITS, order.FINE_BITS + order.PARTS
    bits = np.where(end - begin > order.FINE_BYTES, coarse_bits, fine_bits)
    room = int((((end - 1) >> bits) - (begin >> bits) + 1).sum())
    fine, coarse = ((largest >> bits) + 1 for bits in (fine_bits, coarse_bits))
    begins, ends, numbers, before = (np.zeros(room, np.int64) for _ in range(4))
    return order.Table(
        np.array([fine, coarse], np.int64),
        fine=np.full(count * fine, -1, np.int64),
        coarse=np.full(count * coarse, -1, np.int64),
        latest=np.full(count * coarse, -1, np.int64),
        begin=begins,
        end=ends,
        number=numbers,
        before=before,
        used=np.zeros(1, np.int64),
    )
