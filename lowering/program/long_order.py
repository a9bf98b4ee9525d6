"""The order and the waits of long programs, found as machine code where numba is installed.

:mod:`fpgapipe.lowering.program.assemble` and :mod:`fpgapipe.lowering.program.hazards` are the
definition, and what runs without numba; no instruction differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import (
    NUM_SEMAPHORES,
    Instruction,
    Opcode,
    Span,
    span_of,
)
from fpgapipe.lowering.program.hazards import LOADS, READS, STORED, STORES, WRITES, Queue
from fpgapipe.lowering.program.last_writer import COARSE_BITS, FINE_BITS, FINE_BYTES
from fpgapipe.two_speeds import has_compiler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.lowering.program.compiled_order import Table
    from fpgapipe.lowering.program.group import Group
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
    groups : sequence of Group
        The groups of all kernels, in the order of the kernels.
    num_kernels : int
    """

    def __init__(self, groups: Sequence[Group], num_kernels: int) -> None:
        self._groups = groups
        self._num_kernels = num_kernels
        self._instructions = [each for group in groups for each in group.instructions]
        self._sizes = np.array([len(group.instructions) for group in groups], np.int64)
        self._kernel = np.array([group.kernel for group in groups], np.int64)
        self._begin, self._end = _spans(self._instructions)
        self._stores = np.array([each.opcode in WRITES for each in self._instructions])

    def merged(
        self,
        tasks: Sequence[int],
        asked_in: Mapping[tuple[int, Track], int],
        cycles: Sequence[int],
        turnaround_cycles: int,
    ) -> Numbers:
        """Numbers of the first groups in the order in which they are issued.

        Parameters
        ----------
        tasks : sequence of int
            Number of the task of each kernel.
        asked_in : mapping of (int, Track) to int
            For each task and link, the task during which its RECEIVEs may first be issued.
        cycles : sequence of int
            Estimated cycles of each of the first groups; others are not ordered.
        turnaround_cycles : int
            Estimated cycles from the end of a group to the start of one that reads its results.
        """
        from fpgapipe.lowering.program import compiled_order

        own = self._groups[: len(cycles)]
        tracks = sorted({group.track for group in own})
        number = {track: index for index, track in enumerate(tracks)}
        engines = [number.get(track.engine, number[track]) for track in tracks]
        known = {task: index for index, task in enumerate(sorted(set(tasks)))}
        moves = np.flatnonzero(self._begin[: self._sizes[: len(own)].sum()] >= 0)
        of_group = np.repeat(np.arange(len(own)), self._sizes[: len(own)])[moves]
        firsts = np.searchsorted(of_group, np.arange(len(own) + 1))
        begin, end, stores = self._begin[moves], self._end[moves], self._stores[moves]
        groups = compiled_order.Groups(
            np.array([number[group.track] for group in own], np.int64),
            self._kernel[: len(own)],
            np.array([known[tasks[group.kernel]] for group in own], np.int64),
            np.array(
                [
                    known[asked_in.get((tasks[group.kernel], group.track), tasks[group.kernel])]
                    for group in own
                ],
                np.int64,
            ),
            np.array([group.first for group in own], np.bool_),
            np.array(cycles, np.int64),
            firsts.astype(np.int64),
            begin,
            end,
            stores,
            np.array([track.is_link for track in tracks], np.bool_),
            np.array(engines, np.int64),
        )
        reads, writes = (
            _table(len(tracks), begin[which], end[which], end) for which in (~stores, stores)
        )
        after = compiled_order.find_order(groups, reads, writes, self._num_kernels, len(known))
        order: Numbers = compiled_order.merge(groups, after, turnaround_cycles)
        assert len(order) == len(own), "kernels must come in an order in which they can run"
        return order

    def finished(
        self, order: Numbers, before: Sequence[int | None], limit: int = NUM_SEMAPHORES
    ) -> tuple[list[Instruction], list[int]] | None:
        """Instructions with all waits, and the kernel of each; None if semaphores are too few.

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

        firsts = np.cumsum(self._sizes) - self._sizes
        sizes = self._sizes[order]
        # Each group's first instruction, less the number of instructions before it, and a count.
        places = np.repeat(firsts[order] - (np.cumsum(sizes) - sizes), sizes)
        places += np.arange(len(places))
        instructions = [self._instructions[place] for place in places.tolist()]
        kernel_of = np.repeat(self._kernel[order], sizes)
        begin, end = self._begin[places], self._end[places]
        at = np.flatnonzero(begin >= 0)
        begin, end, kernels = begin[at], end[at], kernel_of[at]
        queues: dict[Queue, int] = {LOADS: 0, STORES: 1}
        moving = [instructions[index] for index in at.tolist()]
        queue = np.array(
            [queues.setdefault((each.opcode, each.engine), len(queues)) for each in moving],
            np.int64,
        )
        kind = np.array([KINDS.index(each.opcode) for each in moving], np.int64)
        transfers = compiled_order.Transfers(at, queue, kernels, begin, end, kind)
        is_read = (kind == KINDS.index(Opcode.LOAD)) | (kind == KINDS.index(Opcode.SEND))
        reads, writes = (
            _table(len(queues), begin[which], end[which], end) for which in (is_read, ~is_read)
        )
        stores = np.flatnonzero(kind == KINDS.index(Opcode.STORE))
        last_store = np.full(self._num_kernels, -1, np.int64)
        last_store[kernels[stores]] = at[stores]
        stores = stores[np.argsort(kernels[stores], kind="stable")]
        named = {(each.wait, each.signal) for each in instructions}
        own = max((number for both in named for each in both for number in each), default=0)
        waits = compiled_order.find_waits(
            transfers,
            reads,
            writes,
            kernel_of,
            np.array([-1 if each is None else each for each in before], np.int64),
            last_store,
            np.searchsorted(kernels[stores], np.arange(self._num_kernels + 1)).astype(np.int64),
            stores,
            max(own, STORED),
            STORED,
            (len(queues), limit),
        )
        if len(waits) and waits[-1, 2] >= limit:
            return None
        for waiter, producer, semaphore in waits.tolist():
            instructions[waiter] = instructions[waiter].with_semaphores(wait=semaphore)
            instructions[producer] = instructions[producer].with_semaphores(signal=semaphore)
        return instructions, kernel_of.tolist()


def is_long(groups: Sequence[Group]) -> bool:
    """Whether the order of a program is found as machine code."""
    return sum(len(group.instructions) for group in groups) >= MANY and has_compiler()


def _spans(instructions: Sequence[Instruction]) -> tuple[Numbers, Numbers]:
    """First byte of each instruction's memory span, and the byte after its last; -1 for none."""
    begin, end = (np.full(len(instructions), -1, np.int64) for _ in range(2))
    known: dict[int, Span] = {}  # of origins, which many instructions share
    at, first, last = [], [], []
    for index, each in enumerate(instructions):
        if each.opcode not in READS and each.opcode not in WRITES:
            continue
        origin = each.origin
        if origin is None:
            span, distance = span_of(each), 0
        else:
            if id(origin) not in known:
                known[id(origin)] = span_of(origin)
            span, distance = known[id(origin)], each.body["memory"] - origin.body["memory"]
        at.append(index)
        first.append(span[0] + distance)
        last.append(span[1] + distance)
    begin[at], end[at] = first, last
    return begin, end


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
