"""The order and the waits of long programs, found as machine code where numba is installed.

:mod:`fpgapipe.lowering.program.assemble` and :mod:`fpgapipe.lowering.program.hazards` are the
definition, and what runs without numba; no instruction differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import NUM_SEMAPHORES, Opcode
from fpgapipe.hw.hls_models.isa.program import READS, WRITES
from fpgapipe.lowering.program.hazards import STORED, last_semaphore
from fpgapipe.lowering.program.last_writer import COARSE_BITS, FINE_BITS, FINE_BYTES
from fpgapipe.two_speeds import has_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.lowering.program.compiled_order import Table
    from fpgapipe.lowering.program.group import Groups
    from fpgapipe.lowering.tiling.kernel import Track

    Numbers = NDArray[np.int64]

MANY = 10_000
"""Instructions of a program from which machine code is worth the time to load it."""

KINDS = (Opcode.LOAD, Opcode.STORE, Opcode.SEND, Opcode.RECEIVE)
"""Transfers, by the numbers that the machine code has for them."""


class LongOrder:
    """Order and waits of a long program.

    Parameters
    ----------
    groups : Groups
        The groups of all kernels.
    num_free : int
        Number of the first groups, which are ordered; others are not.
    tasks : sequence of int
        Number of the task of each kernel.
    asked_in : mapping of (int, Track) to int
        For each task and link, the task during which its RECEIVEs may first be issued.
    """

    def __init__(
        self,
        groups: Groups,
        num_free: int,
        tasks: Sequence[int],
        asked_in: Mapping[tuple[int, Track], int],
    ) -> None:
        self._groups = groups
        self._num_free = num_free
        self._tasks = tasks
        self._asked_in = asked_in

    def merged(self, cycles: Numbers, turnaround_cycles: int) -> Numbers:
        """Numbers of the first groups in the order in which they are issued.

        Parameters
        ----------
        cycles : int array
            Estimated cycles of each of the first groups.
        turnaround_cycles : int
            Estimated cycles from the end of a group to the start of one that reads its results.
        """
        from fpgapipe.lowering.program import compiled_order

        count, program = self._num_free, self._groups.program
        kernel = self._groups.kernel[:count]
        of_kernel = self._groups.tracks[: int(kernel[-1]) + 1]
        tracks = sorted(set(of_kernel))
        number = {track: index for index, track in enumerate(tracks)}
        known = {task: index for index, task in enumerate(sorted(set(self._tasks)))}
        own = list(zip(self._tasks, of_kernel, strict=False))
        task = np.array([known[each] for each, _ in own], np.int64)
        asked = np.array([known[self._asked_in.get(each, each[0])] for each in own], np.int64)
        begin, end = program.spans
        moves = np.flatnonzero(begin[: self._groups.begins[count]] >= 0)
        begin, end = begin[moves], end[moves]
        stores = _is_one_of(program.opcodes[moves], WRITES)
        groups = compiled_order.Groups(
            np.array([number[track] for track in of_kernel], np.int64)[kernel],
            kernel,
            task[kernel],
            asked[kernel],
            self._groups.is_first[:count],
            cycles,
            np.searchsorted(moves, self._groups.begins[: count + 1]).astype(np.int64),
            begin,
            end,
            stores,
            np.array([track.is_link for track in tracks], np.bool_),
            np.array([number.get(track.engine, number[track]) for track in tracks], np.int64),
        )
        reads, writes = (
            _table(len(tracks), begin[which], end[which], end) for which in (~stores, stores)
        )
        num_kernels = len(self._groups.tracks)
        after = compiled_order.find_order(groups, reads, writes, num_kernels, len(known))
        order: Numbers = compiled_order.merge(groups, after, turnaround_cycles)
        assert len(order) == count, "kernels must come in an order in which they can run"
        return order

    def waits(
        self, order: Numbers, before: Sequence[int | None], limit: int = NUM_SEMAPHORES
    ) -> Numbers | None:
        """All waits between kernels, as `Program.waiting` takes them.

        None if there are too few semaphores.

        Parameters
        ----------
        order : int array
            Numbers of the groups in the order in which they are issued.
        before : sequence of int or None
            For each kernel, the one before it in its track.
        limit : int
            Number of semaphores of the core.
        """
        from fpgapipe.lowering.program import compiled_order

        program = self._groups.program.taken(self._groups.places(order))
        kernel_of = np.repeat(self._groups.kernel[order], self._groups.sizes[order])
        num_kernels = len(self._groups.tracks)
        begin, end = program.spans
        at = np.flatnonzero(begin >= 0)
        begin, end, kernels, opcodes = begin[at], end[at], kernel_of[at], program.opcodes[at]
        numbers = np.full(max(Opcode) + 1, -1, np.int64)
        numbers[list(KINDS)] = range(len(KINDS))
        kind = numbers[opcodes]
        # LOADs and STOREs have the first queues; each link's SENDs and RECEIVEs have two of others.
        queue = kind + 2 * program.engines[at].astype(np.int64)
        num_queues = int(queue.max(initial=len(KINDS))) + 1
        transfers = compiled_order.Transfers(at, queue, kernels, begin, end, kind)
        is_read = _is_one_of(opcodes, READS)
        reads, writes = (
            _table(num_queues, begin[which], end[which], end) for which in (is_read, ~is_read)
        )
        stores = np.flatnonzero(kind == KINDS.index(Opcode.STORE))
        last_store = np.full(num_kernels, -1, np.int64)
        last_store[kernels[stores]] = at[stores]
        stores = stores[np.argsort(kernels[stores], kind="stable")]
        waits: Numbers = compiled_order.find_waits(
            transfers,
            reads,
            writes,
            kernel_of,
            np.array([-1 if each is None else each for each in before], np.int64),
            last_store,
            np.searchsorted(kernels[stores], np.arange(num_kernels + 1)).astype(np.int64),
            stores,
            max(last_semaphore(program), STORED),
            STORED,
            (num_queues, limit),
        )
        return None if len(waits) and waits[-1, 2] >= limit else waits


def is_long(groups: Groups) -> bool:
    """Whether the order of a program is found as machine code."""
    return len(groups.program) >= MANY and has_compiler()


def _is_one_of(opcodes: NDArray[np.uint8], which: frozenset[Opcode]) -> NDArray[np.bool_]:
    return np.isin(opcodes, list(which))


def _table(count: int, begin: Numbers, end: Numbers, asked: Numbers) -> Table:
    """Empty tables with room for these spans; spans with the ends `asked` are looked up."""
    from fpgapipe.lowering.program.compiled_order import Table

    largest = int(asked.max(initial=1))
    bits = np.where(end - begin > FINE_BYTES, COARSE_BITS, FINE_BITS)
    room = int((((end - 1) >> bits) - (begin >> bits) + 1).sum())
    fine, coarse = ((largest >> bits) + 1 for bits in (FINE_BITS, COARSE_BITS))
    begins, ends, numbers, earlier = (np.zeros(room, np.int64) for _ in range(4))
    return Table(
        np.full((count, fine), -1, np.int64),
        np.full((count, coarse), -1, np.int64),
        np.full((count, coarse), -1, np.int64),
        begins,
        ends,
        numbers,
        earlier,
        np.zeros(1, np.int64),
    )
