"""Proves of a program that no kernel reads what another tensor has overwritten.

Nothing here asks the allocator, the assembler or its hazards. What is known of an instruction when
it begins follows from the queues, which work in order, and from the semaphores.
"""

from collections import defaultdict, deque

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode

READS = (Opcode.LOAD, Opcode.SEND)
WRITES = (Opcode.STORE, Opcode.RECEIVE)


class Order:
    """How many instructions of each queue are done for certain when each instruction begins."""

    def __init__(self, instructions):
        self.queues = {}
        self.queue_of, self.place, self.begins = [], [], []
        for each in instructions:
            queue = self.queues.setdefault((each.opcode, each.engine), len(self.queues))
            self.queue_of.append(queue)
        number = len(self.queues)
        began, done = (np.zeros((number, number), np.int64) for _ in range(2))
        count = [0] * number
        signalled = defaultdict(deque)
        for each, queue in zip(instructions, self.queue_of, strict=True):
            begin = began[queue].copy()
            for semaphore in each.wait:
                np.maximum(begin, signalled[semaphore].popleft(), out=begin)
            count[queue] += 1
            began[queue] = begin
            np.maximum(done[queue], begin, out=done[queue])
            done[queue, queue] = count[queue]
            for semaphore in each.signal:
                signalled[semaphore].append(done[queue].copy())
            self.begins.append(begin)
            self.place.append(count[queue])

    def is_done(self, first, second):
        """Whether an instruction is done, for certain, when another one begins; or is before it in
        its queue, which works in order."""
        queue = self.queue_of[first]
        if queue == self.queue_of[second]:
            return self.place[first] < self.place[second]
        return self.begins[second][queue] >= self.place[first]


def words(instruction):
    """Numbers of the words of memory that a transfer reads or writes."""
    body = instruction.body
    for plane in range(body["planes"] + 1):
        for row in range(body["rows"] + 1):
            start = body["memory"] + plane * body["plane_memory"] + row * body["row_memory"]
            yield from range(start // WORD_BYTES, -(-(start + body["row_bytes"]) // WORD_BYTES))


def check_sharing(program):
    """Raise unless every byte that is read in a shared place is the last that its tensor got.

    Whatever writes it, reads it and overwrites it must do so one after the other, for certain.

    Returns
    -------
    int
        Words that were read in shared places.
    """
    instructions = program.instructions[:-1]
    order = Order(instructions)
    owners = {}  # of each word in a shared place, its tensor and the instruction that wrote it
    readers = defaultdict(list)  # instructions that have read a word since
    lies = {}
    for name in program.shared:
        place = program.places[name]
        for word in range(place.begin // WORD_BYTES, -(-place.end // WORD_BYTES)):
            lies.setdefault(word, set()).add(name)
    read = 0
    for at, each in enumerate(instructions):
        if each.opcode not in READS + WRITES:
            continue
        use = program.demand.uses[program.kernel_of[at]]
        for word in words(each):
            if word not in lies:
                continue
            names = lies[word] & (use.reads if each.opcode in READS else use.writes)
            kernel = program.kernels[program.kernel_of[at]].name
            assert len(names) == 1, f"{kernel}: {names or 'no tensor'} at word {word}"
            (name,) = names
            owner, writer = owners.get(word, (None, None))
            if each.opcode in READS:
                assert owner == name, f"{kernel} reads {name}, overwritten by {owner}"
                assert order.is_done(writer, at), f"{kernel} reads {name} before it is written"
                readers[word].append(at)
                read += 1
                continue
            before = readers.pop(word, [])
            assert all(order.is_done(one, at) for one in before), f"{kernel} overwrites {owner}"
            assert writer in (None, at) or order.is_done(writer, at), f"{kernel} races with {owner}"
            owners[word] = name, at
    return read
