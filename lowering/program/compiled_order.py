"""The order of a long program's groups, and its waits, as machine code.

What is found is defined by :mod:`fpgapipe.lowering.program.assemble` and
:mod:`fpgapipe.lowering.program.hazards`; :mod:`fpgapipe.lowering.program.long_order` makes the
arrays. This module needs numba.
"""

from typing import Any, NamedTuple

import numpy as np

from fpgapipe.machine_code import compiled, compiled_without_counts

FINE_BITS, PARTS = 16, 8
"""Address bits within a fine bucket, and those by which a coarse bucket has more."""

FINE_BYTES = 1 << 20
"""Spans of more bytes are found by coarse buckets."""


class Table(NamedTuple):
    """Several tables of spans, each a `LastWriters`; entries of a bucket are a list.

    Attributes
    ----------
    fine, coarse : int array, shape (tables, buckets)
        Latest entry of each bucket; -1 for none.
    latest : int array, shape (tables, coarse buckets)
        Latest number of fine spans.
    begin, end, number, before : int array
        Entries, each with the one before it in its bucket.
    used : int array, shape (1,)
        Number of entries.
    """

    fine: Any
    coarse: Any
    latest: Any
    begin: Any
    end: Any
    number: Any
    before: Any
    used: Any


class Groups(NamedTuple):
    """The groups of a program, in the order of its kernels, and their memory spans.

    Attributes
    ----------
    track, kernel, task, asked, first, cycles : int array
        For each group: its track, its kernel, the kernel's task, the task during which its RECEIVE
        may first be issued, whether it is the kernel's first, and estimated cycles.
    spans : int array
        Number of the first span of each group, and at last the number of all spans.
    begin, end, stores : int array
        Memory spans, and whether they are written.
    is_link, engine : int array
        For each track, whether it is that of a link, and number of its engine.
    """

    track: Any
    kernel: Any
    task: Any
    asked: Any
    first: Any
    cycles: Any
    spans: Any
    begin: Any
    end: Any
    stores: Any
    is_link: Any
    engine: Any


class Transfers(NamedTuple):
    """The transfers of a program in their order.

    Attributes
    ----------
    at, queue, kernel, begin, end : int array
        Number of each one's instruction, its queue, its kernel, and its memory span.
    kind : int array
        0 for LOAD, 1 for STORE, 2 for SEND and 3 for RECEIVE.
    """

    at: Any
    queue: Any
    kernel: Any
    begin: Any
    end: Any
    kind: Any


LOAD, STORE, SEND, RECEIVE = range(4)


@compiled_without_counts
def add(table: Table, which: int, begin: int, end: int, number: int) -> None:
    """Add a span, as `LastWriters.add` does."""
    bits, first = FINE_BITS, table.fine
    if end - begin > FINE_BYTES:
        bits, first = FINE_BITS + PARTS, table.coarse
    for bucket in range(begin >> bits, ((end - 1) >> bits) + 1):
        entry = table.used[0]
        table.used[0] += 1
        table.begin[entry], table.end[entry], table.number[entry] = begin, end, number
        table.before[entry] = first[which, bucket]
        first[which, bucket] = entry
    if bits == FINE_BITS:
        bits += PARTS
        for bucket in range(begin >> bits, ((end - 1) >> bits) + 1):
            table.latest[which, bucket] = number


@compiled_without_counts
def _counts(table: Table, entry: int, begin: int, end: int, kernel: int, kernels: Any) -> bool:
    """Whether an entry overlaps a span and counts."""
    if table.begin[entry] >= end or begin >= table.end[entry]:
        return False
    return bool(kernel < 0 or kernels[table.number[entry]] != kernel)


@compiled_without_counts
def last(
    table: Table, which: int, begin: int, end: int, found: int, kernel: int, kernels: Any
) -> int:
    """The highest number above `found` whose span overlaps, as `LastWriters.last` has it.

    If `kernel` is not negative, numbers with that value in `kernels` do not count.
    """
    if end <= begin:
        return found
    low, high = begin >> FINE_BITS, (end - 1) >> FINE_BITS
    for coarse in range(low >> PARTS, (high >> PARTS) + 1):
        entry = table.coarse[which, coarse]
        while entry >= 0 and table.number[entry] > found:
            if _counts(table, entry, begin, end, kernel, kernels):
                found = table.number[entry]
                break
            entry = table.before[entry]
        if table.latest[which, coarse] <= found:
            continue
        here = max(low, coarse << PARTS)
        until = min(high, ((coarse + 1) << PARTS) - 1)
        for fine in range(here, until + 1):
            entry = table.fine[which, fine]
            while entry >= 0 and table.number[entry] > found:
                if _counts(table, entry, begin, end, kernel, kernels):
                    found = table.number[entry]
                    break
                entry = table.before[entry]
    return found


@compiled
def find_order(
    groups: Groups, reads: Table, writes: Table, num_kernels: int, num_tasks: int
) -> Any:
    """For each group, how many groups of each track come before it, as `_find_order` has it."""
    size, tracks = len(groups.track), len(groups.is_link)
    after = np.zeros((size, tracks), np.int64)
    count = np.zeros(tracks, np.int64)
    kernel_end = np.zeros(num_kernels, np.int64)
    kernel_of = np.zeros((tracks, size + 1), np.int64)
    counts = np.zeros((num_tasks, tracks), np.int64)
    known = np.zeros(num_tasks, np.int64)
    head = 0
    for group in range(size):
        track, task, kernel = groups.track[group], groups.task[group], groups.kernel[group]
        if groups.first[group]:
            head = group
        if not known[task]:
            known[task] = 1
            counts[task, :] = count
        spans = range(groups.spans[group], groups.spans[group + 1])
        is_received = False
        for span in spans:
            if groups.is_link[track] and groups.stores[span]:
                is_received = True
        for other in range(tracks):
            if other == track:
                continue
            needed = overwritten = 0
            for span in spans:
                begin, end = groups.begin[span], groups.end[span]
                if groups.stores[span]:
                    overwritten = last(reads, other, begin, end, overwritten, -1, count)
                    overwritten = last(writes, other, begin, end, overwritten, -1, count)
                else:
                    needed = last(writes, other, begin, end, needed, -1, count)
            if needed:
                after[group, other] = max(after[group, other], needed)
                if groups.is_link[other]:
                    for each in range(tracks):
                        if each != track:
                            after[group, each] = max(after[group, each], counts[task, each])
            if overwritten and is_received:
                overwritten = kernel_end[kernel_of[other, overwritten]]
            if overwritten:
                after[head, other] = max(after[head, other], overwritten)
            if is_received:
                begun = counts[groups.asked[group], other]
                after[group, other] = max(after[group, other], begun)
        count[track] += 1
        kernel_end[kernel] = count[track]
        kernel_of[track, count[track]] = kernel
        for span in spans:
            table = writes if groups.stores[span] else reads
            add(table, track, groups.begin[span], groups.end[span], count[track])
    return after


@compiled
def merge(groups: Groups, after: Any, turnaround: int) -> Any:
    """Numbers of the groups in the order of `_merged`; too few if none can be next."""
    size, tracks = len(groups.track), len(groups.is_link)
    numbers = np.zeros((tracks, size), np.int64)  # groups of each track
    counts, done = np.zeros(tracks, np.int64), np.zeros(tracks, np.int64)
    for group in range(size):
        track = groups.track[group]
        numbers[track, counts[track]] = group
        counts[track] += 1
    free, engine_free = np.zeros(tracks, np.int64), np.zeros(tracks, np.int64)
    ends = np.zeros(size, np.int64)
    order = np.zeros(size, np.int64)
    for place in range(size):
        best, best_begin = -1, 0
        for track in range(tracks):
            if done[track] == counts[track]:
                continue
            group = numbers[track, done[track]]
            begin = free[track] + (turnaround if groups.first[group] else 0)
            begin = max(begin, engine_free[groups.engine[track]])
            waits = False
            for other in range(tracks):
                needed = after[group, other]
                if needed > done[other]:
                    waits = True
                    break
                if needed:
                    begin = max(begin, ends[numbers[other, needed - 1]] + turnaround)
            if not waits and (best < 0 or begin < best_begin):
                best, best_begin = track, begin
        if best < 0:
            return order[:place]
        group = numbers[best, done[best]]
        ends[group] = best_begin + groups.cycles[group]
        free[best] = engine_free[groups.engine[best]] = ends[group]
        done[best] += 1
        order[place] = group
    return order


@compiled_without_counts
def _later(queues: Any, needed: Any, size: int, queue: int, at: int) -> int:
    """Note that an instruction of a queue is needed; the number of queues, in order of mention."""
    for place in range(size):
        if queues[place] == queue:
            needed[place] = max(needed[place], at)
            return size
    queues[size], needed[size] = queue, at
    return size + 1


@compiled
def find_waits(
    transfers: Transfers,
    reads: Table,
    writes: Table,
    kernel_of: Any,
    kernel_before: Any,
    last_store: Any,
    stores: Any,
    store_order: Any,
    first_semaphore: int,
    stored: int,
    limits: Any,
) -> Any:
    """The waits that `Hazards.add` adds, in its order.

    Parameters
    ----------
    transfers : Transfers
        Queue 0 is that of the LOADs, queue 1 that of the STOREs.
    reads, writes : Table
        With a table for each queue.
    kernel_of : int array
        Kernel of each instruction.
    kernel_before, last_store : int array
        For each kernel, the one before it in its track, and its last STORE; -1 for none.
    stores, store_order : int array
        For each kernel the number of its first STORE in `store_order`, which lists transfers by
        their kernels; and at last the number of all.
    first_semaphore : int
        Number of the first semaphore of a pair of queues, less 1.
    stored : int
        Semaphore from the STOREs to the LOADs.
    limits : int array, shape (2,)
        Number of queues and of semaphores.

    Returns
    -------
    int array, shape (waits, 3)
        Waiting instruction, the one that it waits for, and the semaphore. One of the number of
        semaphores is the first that there is not, and the last wait.
    """
    queues, most = limits
    found = np.zeros((1024, 3), np.int64)
    size = 0
    waited = np.full((queues, queues), -1, np.int64)
    semaphores = np.full((queues, queues), -1, np.int64)
    semaphores[STORE, LOAD] = stored
    num_semaphores = 1
    read_queues, written_queues = np.zeros(queues, np.int64), np.zeros(queues, np.int64)
    num_read = num_written = 0
    begun = np.zeros(len(kernel_before), np.bool_)
    needed_queues, needed = np.zeros(queues, np.int64), np.zeros(queues, np.int64)
    for each in range(len(transfers.at)):
        at, queue, kernel = transfers.at[each], transfers.queue[each], transfers.kernel[each]
        begin, end, kind = transfers.begin[each], transfers.end[each], transfers.kind[each]
        num = 0
        if kind != STORE:
            for place in range(num_written):
                other = written_queues[place]
                own = kernel if kind == LOAD else -1
                what = last(writes, other, begin, end, -1, own, kernel_of)
                if what >= 0:
                    num = _later(needed_queues, needed, num, other, what)
        if kind == LOAD and not begun[kernel]:
            begun[kernel] = True
            before = kernel_before[kernel]
            if before >= 0 and last_store[before] >= 0:
                num = _later(needed_queues, needed, num, STORE, last_store[before])
            for is_write in range(2):
                table = writes if is_write else reads
                others = written_queues if is_write else read_queues
                count = num_written if is_write else num_read
                for store in store_order[stores[kernel] : stores[kernel + 1]]:
                    low, high = transfers.begin[store], transfers.end[store]
                    for place in range(count):
                        other = others[place]
                        if other > STORE:
                            what = last(table, other, low, high, -1, -1, kernel_of)
                            if what >= 0:
                                num = _later(needed_queues, needed, num, other, what)
        if kind == RECEIVE:
            for place in range(num_read):
                other = read_queues[place]
                what = last(reads, other, begin, end, -1, -1, kernel_of)
                if what >= 0 and other == LOAD:
                    num = _later(needed_queues, needed, num, STORE, last_store[kernel_of[what]])
                elif what >= 0:
                    num = _later(needed_queues, needed, num, other, what)
        for place in range(num):
            other, what = needed_queues[place], needed[place]
            if other == queue or what <= waited[other, queue]:
                continue
            waited[other, queue] = what
            if semaphores[other, queue] < 0:
                semaphores[other, queue] = first_semaphore + num_semaphores
                num_semaphores += 1
            if size == len(found):
                found = np.concatenate((found, np.zeros_like(found)))
            found[size] = at, what, semaphores[other, queue]
            size += 1
            if semaphores[other, queue] >= most:
                return found[:size]
        if kind in (LOAD, SEND):
            new = True
            for place in range(num_read):
                new = new and read_queues[place] != queue
            if new:
                read_queues[num_read] = queue
                num_read += 1
            add(reads, queue, begin, end, at)
        else:
            new = True
            for place in range(num_written):
                new = new and written_queues[place] != queue
            if new:
                written_queues[num_written] = queue
                num_written += 1
            add(writes, queue, begin, end, at)
    return found[:size]
