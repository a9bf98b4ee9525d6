"""Programs of several devices, their engines run in any order that queues and semaphores allow."""

from collections import Counter, deque

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode, Opcode
from fpgapipe.hw.hls_models.model import link_dma
from fpgapipe.hw.hls_models.model.core import CoreModel

QUEUE = 8
"""Instructions that a queue holds: fewer than hardware's, so that dispatch stands still often."""

LINK_PACKETS = 1
"""Packets under way on a channel: fewer than hardware's."""


class RunningDevice:
    """A device in the course of its program."""

    def __init__(self, core, memory, instructions, scalars):
        self.model = CoreModel(core, memory)
        self.model.scalars[:] = scalars
        # Junk on chip is NaN: what reads it by mistake shows.
        self.model.scratchpad[:] = 0xFF
        self.instructions = instructions
        self.dispatched = 0
        self.queues = {}
        self.counts = Counter()

    @property
    def ended(self):
        return not any(self.queues.values()) and (
            self.instructions[self.dispatched].opcode is Opcode.END
        )

    def dispatch(self):
        """Hand instructions out in the order of the program while their queues have room."""
        while True:
            instruction = self.instructions[self.dispatched]
            if instruction.opcode is Opcode.END:
                return
            queue = self.queues.setdefault((instruction.opcode, instruction.engine), deque())
            if len(queue) == QUEUE:
                return
            queue.append((self.dispatched, instruction))
            self.dispatched += 1

    def ready(self):
        """Queues whose first instruction has its semaphores."""
        return [
            queue
            for queue, waiting in sorted(self.queues.items())
            if waiting and all(self.counts[number] for number in waiting[0][1].wait)
        ]


def run_devices(cores, memories, programs, scalars, choose):
    """Run a chain of devices: link 0 goes to the one before, the other to the next.

    Parameters
    ----------
    choose : callable
        Picks one of the (device, queue) that could go on.

    Returns
    -------
    list of int
        Instructions of each device that never began: all 0 unless they wait for each other.
    """
    devices = [
        RunningDevice(core, memory, program, scalars)
        for core, memory, program in zip(cores, memories, programs, strict=True)
    ]
    wires = {}

    def wire(device, queue, channel):
        opcode, link = queue
        peer = device - 1 if device > 0 and link == 0 else device + 1
        ends = (device, peer) if opcode is Opcode.SEND else (peer, device)
        return wires.setdefault((*ends, channel), deque())

    def can(number, queue):
        instruction = devices[number].queues[queue][0][1]
        if instruction.opcode is Opcode.SEND:
            return len(wire(number, queue, instruction.body["channel"])) < LINK_PACKETS
        if instruction.opcode is Opcode.RECEIVE:
            return bool(wire(number, queue, instruction.body["channel"]))
        return True

    while True:
        for device in devices:
            device.dispatch()
        ready = [
            (number, queue)
            for number, device in enumerate(devices)
            for queue in device.ready()
            if can(number, queue)
        ]
        if not ready:
            break
        number, queue = choose(ready)
        device = devices[number]
        index, instruction = device.queues[queue].popleft()
        device.counts.subtract(instruction.wait)
        device.counts.update(instruction.signal)
        body, model = instruction.body, device.model
        spaces = model.memory, model.scratchpad
        if instruction.opcode is Opcode.SEND:
            packet, code = link_dma.send(model.spec, body, *spaces)
            assert code is ErrorCode.NONE
            copy = link_dma.Packet(packet.stream, np.copy(packet.words))
            wire(number, queue, body["channel"]).append(copy)
        elif instruction.opcode is Opcode.RECEIVE:
            packet = wire(number, queue, body["channel"]).popleft()
            code = link_dma.receive(model.spec, body, packet, *spaces)
            assert code is ErrorCode.NONE, f"device {number}, {instruction}: {code.name}"
        else:
            model.execute(index, instruction)
    if all(device.ended for device in devices):
        assert not any(wires.values()), "all that is sent must be received"
        for device in devices:
            assert not any(device.counts.values()), "semaphores must come back to zero"
    return [
        len(device.instructions) - 1 - device.dispatched + sum(map(len, device.queues.values()))
        for device in devices
    ]
