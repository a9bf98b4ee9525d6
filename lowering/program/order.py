"""The order of a program's groups, and the waits between its kernels.

Kernels are merged group by group, each as early as it can begin by estimates of run times. Then
semaphores are inserted for the data hazards in memory. Within a kernel, products and vector
operations have their own semaphores. Kernels communicate only through memory: a load waits for the
store, or the transfer over a link, whose bytes it reads, and likewise for the other hazards. Each
queue finishes its instructions in program order. An instruction that waits for the latest of
several instructions of a queue therefore waits for all of them, and never has to wait for the same
instruction twice.

The functions run as plain Python and as machine code (:mod:`fpgapipe.two_speeds`), on flat lists or
arrays; :mod:`fpgapipe.lowering.program.assemble` makes these.
"""

from typing import Any, NamedTuple

from fpgapipe.two_speeds import compilable

FINE_BITS, PARTS = 16, 8
"""Address bits within a fine bucket, by which spans are found, 64 KiB; and those by which a coarse
bucket, 16 MiB, has more."""

FINE_BYTES = 1 << 20
"""Spans of more bytes are found by coarse buckets.

For example, the span of a transfer of some columns of a large matrix has almost its whole size.
"""

LOAD, STORE, SEND, RECEIVE = range(4)
"""Kinds of transfers, and the queues of the first two."""


class Table(NamedTuple):
    """Several tables that find the last of many numbered spans that overlap a span of memory.

    Attributes
    ----------
    buckets : int array, shape (2,)
        Number of fine and of coarse buckets of each table.
    fine, coarse : int array, shape (tables * buckets,)
        Latest entry of each bucket; -1 for none.
    latest : int array, shape (tables * coarse buckets,)
        Latest number of fine spans.
    begin, end, number, before : int array
        Entries, each with the one before it in its bucket.
    used : int array, shape (1,)
        Number of entries.
    """

    buckets: Any
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


class Before(NamedTuple):
    """Predecessors of the groups of a program, and the counts by which they are found.

    Attributes
    ----------
    after : int array, shape (groups * tracks,)
        For each group, how many groups of each track come before it.
    count : int array, shape (tracks,)
    kernel_end : int array, shape (kernels,)
        Number of groups of its track up to the end of a kernel.
    kernel_of : int array, shape (tracks * (groups + 1),)
        Kernel of each group of a track, by its number from 1.
    counts : int array, shape (tasks * tracks,)
        Number of groups of each track when a task begins; -1 before.
    """

    after: Any
    count: Any
    kernel_end: Any
    kernel_of: Any
    counts: Any


class Merge(NamedTuple):
    """The order of the groups, and what is counted to find it.

    Attributes
    ----------
    order : int array, shape (groups,)
        Numbers of the groups in their order.
    numbers : int array, shape (tracks * groups,)
        Numbers of the groups of each track.
    ends : int array, shape (groups,)
        Estimated time at which each group ends.
    counts, done, free, engine_free : int array, shape (tracks,)
        Groups of a track, those that are in the order, and times at which it and its engine are
        free.
    """

    order: Any
    numbers: Any
    ends: Any
    counts: Any
    done: Any
    free: Any
    engine_free: Any


class Transfers(NamedTuple):
    """The transfers of a program in their order, and its kernels.

    Attributes
    ----------
    at, queue, kernel, begin, end : int array
        Number of each one's instruction, its queue, its kernel, and its memory span. Queue 0 is
        that of the LOADs, queue 1 that of the STOREs.
    kind : int array
        `LOAD`, `STORE`, `SEND` or `RECEIVE`.
    place_of, kernel_of : int array
        For each instruction, its place among the transfers, and its kernel.
    kernel_before, last_store : int array
        For each kernel, the one whose part of the chip it takes over, and its last STORE; -1 for
        none.
    stores, store_order : int array
        For each kernel the number of its first STORE in `store_order`, which lists transfers by
        their kernels; and at last the number of all.
    """

    at: Any
    queue: Any
    kernel: Any
    begin: Any
    end: Any
    kind: Any
    place_of: Any
    kernel_of: Any
    kernel_before: Any
    last_store: Any
    stores: Any
    store_order: Any


class Waits(NamedTuple):
    """The waits between kernels, and what is counted to find them.

    Attributes
    ----------
    waiter, producer, semaphore : int array
        Waiting instruction, the one that it waits for, and the semaphore. One of the number of
        semaphores is the first that there is not, and the last wait.
    waited, semaphores : int array, shape (queues * queues,)
        Last instruction of a queue that another has waited for, and the semaphore between them; -1
        for none.
    users : int array, shape (2 * queues,)
        Queues that have read memory, and those that have written any, in the order of mention.
    needed : int array, shape (2 * queues,)
        Queues that a transfer waits for, in the order of mention, and their instructions.
    first_load : int array, shape (kernels,)
        Place of the first LOAD of a kernel among the transfers; -1 before it.
    done : int array, shape (queues * queues,)
        For each queue, the last instruction of each other that is done when its last one begins.
    done_at : int array, shape (transfers * queues,)
        The same for each transfer; empty if waits that others imply are kept.
    """

    waiter: Any
    producer: Any
    semaphore: Any
    waited: Any
    semaphores: Any
    users: Any
    needed: Any
    first_load: Any
    done: Any
    done_at: Any


@compilable
def add(table: Table, which: int, begin: int, end: int, number: int) -> None:
    """Add a span, with a number that is at least as high as all before."""
    bits, first, offset = FINE_BITS, table.fine, which * table.buckets[0]
    coarse = which * table.buckets[1]
    if end - begin > FINE_BYTES:
        bits, first, offset = FINE_BITS + PARTS, table.coarse, coarse
    for bucket in range(begin >> bits, ((end - 1) >> bits) + 1):
        entry = table.used[0]
        table.used[0] += 1
        table.begin[entry], table.end[entry], table.number[entry] = begin, end, number
        table.before[entry] = first[offset + bucket]
        first[offset + bucket] = entry
    if bits == FINE_BITS:
        bits += PARTS
        for bucket in range(begin >> bits, ((end - 1) >> bits) + 1):
            table.latest[coarse + bucket] = number


@compilable
def _counts(table: Table, entry: int, begin: int, end: int, kernel: int, kernels: Any) -> bool:
    """Whether an entry overlaps a span and counts."""
    if table.begin[entry] >= end or begin >= table.end[entry]:
        return False
    return bool(kernel < 0 or kernels[table.number[entry]] != kernel)


@compilable
def last(
    table: Table, which: int, begin: int, end: int, found: int, kernel: int, kernels: Any
) -> int:
    """Return the highest number above `found` of a span that overlaps this one, or else `found`.

    If `kernel` is not negative, numbers with that value in `kernels` do not count.
    """
    if end <= begin:
        return found
    fine_offset, coarse_offset = which * table.buckets[0], which * table.buckets[1]
    low, high = begin >> FINE_BITS, (end - 1) >> FINE_BITS
    for coarse in range(low >> PARTS, (high >> PARTS) + 1):
        entry = table.coarse[coarse_offset + coarse]
        while entry >= 0 and table.number[entry] > found:
            if _counts(table, entry, begin, end, kernel, kernels):
                found = table.number[entry]
                break
            entry = table.before[entry]
        if table.latest[coarse_offset + coarse] <= found:
            continue
        here = max(low, coarse << PARTS)
        until = min(high, ((coarse + 1) << PARTS) - 1)
        for fine in range(here, until + 1):
            entry = table.fine[fine_offset + fine]
            while entry >= 0 and table.number[entry] > found:
                if _counts(table, entry, begin, end, kernel, kernels):
                    found = table.number[entry]
                    break
                entry = table.before[entry]
    return found


@compilable
def find_order(groups: Groups, reads: Table, writes: Table, before: Before) -> None:
    """Find for each group how many groups of each other track have to come before it.

    If a group overwrites bytes that a group of another track reads or writes, its whole kernel
    comes after that group. All loads and stores of the kernel then come after those of the other
    group. If the overwriting group is a transfer, it comes after the whole other kernel.

    A group that reads data received from another device comes after all groups of earlier tasks.
    Loads keep their order, so a load that waits for another device must hold up neither the work
    that the other device is waiting for nor work that could be done in the meantime.
    """
    size, tracks = len(groups.track), len(groups.is_link)
    after, count, counts = before.after, before.count, before.counts
    head = 0
    for group in range(size):
        track, task, kernel = groups.track[group], groups.task[group], groups.kernel[group]
        if groups.first[group]:
            head = group
        if counts[task * tracks] < 0:
            for other in range(tracks):
                counts[task * tracks + other] = count[other]
        first_span, end_span = groups.spans[group], groups.spans[group + 1]
        is_received = False
        for span in range(first_span, end_span):
            if groups.is_link[track] and groups.stores[span]:
                is_received = True
        own = group * tracks
        for other in range(tracks):
            if other == track:
                continue
            needed = overwritten = 0
            for span in range(first_span, end_span):
                begin, end = groups.begin[span], groups.end[span]
                if groups.stores[span]:
                    overwritten = last(reads, other, begin, end, overwritten, -1, count)
                    overwritten = last(writes, other, begin, end, overwritten, -1, count)
                else:
                    needed = last(writes, other, begin, end, needed, -1, count)
            if needed:
                after[own + other] = max(after[own + other], needed)
                if groups.is_link[other]:
                    for each in range(tracks):
                        if each != track:
                            begun = counts[task * tracks + each]
                            after[own + each] = max(after[own + each], begun)
            if overwritten and is_received:
                overwritten = before.kernel_end[before.kernel_of[other * (size + 1) + overwritten]]
            if overwritten:
                at = head * tracks + other
                after[at] = max(after[at], overwritten)
            if is_received:
                begun = counts[groups.asked[group] * tracks + other]
                after[own + other] = max(after[own + other], begun)
        count[track] += 1
        before.kernel_end[kernel] = count[track]
        before.kernel_of[track * (size + 1) + count[track]] = kernel
        for span in range(first_span, end_span):
            if groups.stores[span]:
                add(writes, track, groups.begin[span], groups.end[span], count[track])
            else:
                add(reads, track, groups.begin[span], groups.end[span], count[track])


@compilable
def merge(groups: Groups, after: Any, turnaround: int, found: Merge) -> int:
    """Order the groups of all tracks by the estimated time at which they can begin.

    Returns
    -------
    int
        Number of groups in the order, which are too few if none can be next.
    """
    size, tracks = len(groups.track), len(groups.is_link)
    done, ends = found.done, found.ends
    for group in range(size):
        track = groups.track[group]
        found.numbers[track * size + found.counts[track]] = group
        found.counts[track] += 1
    for place in range(size):
        best, best_begin = -1, 0
        for track in range(tracks):
            if done[track] == found.counts[track]:
                continue
            group = found.numbers[track * size + done[track]]
            begin = found.free[track] + (turnaround if groups.first[group] else 0)
            begin = max(begin, found.engine_free[groups.engine[track]])
            waits = False
            for other in range(tracks):
                needed = after[group * tracks + other]
                if needed > done[other]:
                    waits = True
                    break
                if needed:
                    comes = ends[found.numbers[other * size + needed - 1]] + turnaround
                    begin = max(begin, comes)
            if not waits and (best < 0 or begin < best_begin):
                best, best_begin = track, begin
        if best < 0:
            return place
        group = found.numbers[best * size + done[best]]
        ends[group] = best_begin + groups.cycles[group]
        found.free[best] = found.engine_free[groups.engine[best]] = ends[group]
        done[best] += 1
        found.order[place] = group
    return size


@compilable
def _mentioned(users: Any, offset: int, size: int, queue: int) -> int:
    """Note that a queue uses memory; the number of queues."""
    for place in range(size):
        if users[offset + place] == queue:
            return size
    users[offset + size] = queue
    return size + 1


@compilable
def _later(needed: Any, size: int, queue: int, at: int) -> int:
    """Note that an instruction of a queue is needed; the number of queues, in order of mention."""
    half = len(needed) // 2
    for place in range(size):
        if needed[place] == queue:
            needed[half + place] = max(needed[half + place], at)
            return size
    needed[size], needed[half + size] = queue, at
    return size + 1


@compilable
def _latest_first(needed: Any, size: int) -> None:
    """Put the queues that are needed in the order of their instructions, the latest first."""
    half = len(needed) // 2
    for place in range(1, size):
        at = place
        while at and needed[half + at - 1] < needed[half + at]:
            for row in (0, half):
                kept = needed[row + at]
                needed[row + at] = needed[row + at - 1]
                needed[row + at - 1] = kept
            at -= 1


@compilable
def _learn(
    found: Waits, each: int, queue: int, queues: int, other: int, what: int, at: int
) -> None:
    """Note that, when a transfer begins, an instruction is done, and what was done before it.

    Parameters
    ----------
    each, queue : int
        The transfer's place, and its queue.
    other, what, at : int
        Queue of the instruction that is done, its number, and its place among the transfers.
    """
    for one in range(queues):
        known = found.done_at[at * queues + one]
        found.done[queue * queues + one] = max(found.done[queue * queues + one], known)
    found.done[queue * queues + other] = max(found.done[queue * queues + other], what)
    for one in range(queues):
        found.done_at[each * queues + one] = found.done[queue * queues + one]


@compilable
def _begin(transfers: Transfers, found: Waits, each: int, queues: int) -> None:
    """Note what is done when a transfer begins, apart from what it will wait for.

    Queues begin their instructions in order. A kernel stores only what it has computed from its
    first LOAD at the earliest.
    """
    queue, kernel = transfers.queue[each], transfers.kernel[each]
    for one in range(queues):
        found.done_at[each * queues + one] = found.done[queue * queues + one]
    if transfers.kind[each] == STORE:
        first = found.first_load[kernel]
        if found.done[queue * queues + LOAD] < transfers.at[first]:
            _learn(found, each, queue, queues, LOAD, transfers.at[first], first)


@compilable
def find_waits(
    transfers: Transfers,
    reads: Table,
    writes: Table,
    first_semaphore: int,
    most: int,
    reduces: bool,
    found: Waits,
) -> int:
    """Find all waits between kernels.

    A LOAD waits for what it reads; a kernel's first also for what the kernel overwrites, and for
    the results of the kernel whose part of the chip it takes over. Neither earlier LOADs nor
    earlier STOREs need a wait for what is overwritten: a kernel stores only after its first LOAD,
    and LOADs and STOREs each run in order. A RECEIVE waits until no earlier instruction needs what
    it overwrites; a kernel that has stored all its results has loaded all its operands. It does not
    wait for one that stores nothing: a sum comes back only after the values in its place have gone.

    Parameters
    ----------
    transfers : Transfers
    reads, writes : Table
        With a table for each queue.
    first_semaphore : int
        Number of the first semaphore of a pair of queues; the pair of STOREs and LOADs has one.
    most : int
        Number of semaphores.
    reduces : bool
        Whether waits are left out that others imply.
    found : Waits

    Returns
    -------
    int
        Number of waits.
    """
    queues = len(found.users) // 2
    size, semaphore = 0, first_semaphore
    num_read = num_written = 0
    users, needed, kernel_of = found.users, found.needed, transfers.kernel_of
    for each in range(len(transfers.at)):
        at, queue, kernel = transfers.at[each], transfers.queue[each], transfers.kernel[each]
        begin, end, kind = transfers.begin[each], transfers.end[each], transfers.kind[each]
        num = 0
        begins_kernel = kind == LOAD and found.first_load[kernel] < 0
        if begins_kernel:
            found.first_load[kernel] = each
        if reduces:
            _begin(transfers, found, each, queues)
        if kind != STORE:
            own = kernel if kind == LOAD else -1
            for place in range(num_written):
                other = users[queues + place]
                what = last(writes, other, begin, end, -1, own, kernel_of)
                if what >= 0:
                    num = _later(needed, num, other, what)
        if begins_kernel:
            before = transfers.kernel_before[kernel]
            if before >= 0 and transfers.last_store[before] >= 0:
                num = _later(needed, num, STORE, transfers.last_store[before])
            for is_write in range(2):
                for number in range(transfers.stores[kernel], transfers.stores[kernel + 1]):
                    store = transfers.store_order[number]
                    low, high = transfers.begin[store], transfers.end[store]
                    for place in range(num_written if is_write else num_read):
                        other = users[is_write * queues + place]
                        if other <= STORE:
                            continue
                        if is_write:
                            what = last(writes, other, low, high, -1, -1, kernel_of)
                        else:
                            what = last(reads, other, low, high, -1, -1, kernel_of)
                        if what >= 0:
                            num = _later(needed, num, other, what)
        if kind == RECEIVE:
            for place in range(num_read):
                other = users[place]
                what = last(reads, other, begin, end, -1, -1, kernel_of)
                if what >= 0 and other == LOAD:
                    num = _later(needed, num, STORE, transfers.last_store[kernel_of[what]])
                elif what >= 0:
                    num = _later(needed, num, other, what)
        if reduces:
            _latest_first(needed, num)  # the latest may imply others
        for place in range(num):
            other, what = needed[place], needed[queues + place]
            edge = other * queues + queue
            if other == queue or what <= found.waited[edge]:
                continue
            if reduces:
                if found.done[queue * queues + other] >= what:
                    continue
                _learn(found, each, queue, queues, other, what, transfers.place_of[what])
            found.waited[edge] = what
            if found.semaphores[edge] < 0:
                found.semaphores[edge] = semaphore
                semaphore += 1
            found.waiter[size], found.producer[size] = at, what
            found.semaphore[size] = found.semaphores[edge]
            size += 1
            if found.semaphores[edge] >= most:
                return size
        if kind in (LOAD, SEND):
            num_read = _mentioned(users, 0, num_read, queue)
            add(reads, queue, begin, end, at)
        else:
            num_written = _mentioned(users, queues, num_written, queue)
            add(writes, queue, begin, end, at)
    return size
