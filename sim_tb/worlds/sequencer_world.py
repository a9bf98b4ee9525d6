"""Environment of a sequencer: memory and engines with random latencies, and checks of its rules."""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from cocotb.triggers import FallingEdge, RisingEdge

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.instructions import BODIES, WORD_BYTES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.sequencer import Execution, SequencerSpec

PROGRAM = 0x8000_0001_0FC0
"""Address of programs: one word before a multiple of 4 KiB, and more than 32 bits."""

LOAD, STORE, GEMM = Opcode.LOAD, Opcode.STORE, Opcode.GEMM


class Player:
    """Model of an engine, which accepts several instructions at a time and ends them in order."""

    def __init__(self, rng: random.Random, latency: tuple[int, int], depth: int) -> None:
        self.rng, self.latency, self.depth = rng, latency, depth
        self.pauses = 0.0
        self.forget()

    def forget(self) -> None:
        """Restore the initial state."""
        self.running: deque[tuple[int, int]] = deque()  # index, first cycle in which it may end
        self.idle_from = 0
        self.busy_from: int | None = None

    def ready(self) -> bool:
        """Whether to accept an instruction in the coming cycle."""
        return len(self.running) < self.depth and self.rng.random() >= self.pauses

    def take(self, index: int, now: int) -> None:
        """Begin an instruction."""
        self.running.append((index, now + self.rng.randint(*self.latency)))
        if self.busy_from is None:
            self.busy_from = now + self.rng.randint(1, 4)

    def end(self, now: int) -> int | None:
        """Index of the instruction that ends in this cycle, if any."""
        if not self.running or self.running[0][1] > now:
            return None
        index, _ = self.running.popleft()
        if not self.running:
            self.busy_from = None
        return index

    def stop(self, now: int) -> None:
        """Stop work; the engine becomes idle within 30 cycles."""
        if self.idle_from == 0:
            self.idle_from = now + self.rng.randint(1, 30)

    def idle(self, now: int) -> bool:
        """Whether the engine reports that it is idle."""
        if self.idle_from:
            return now >= self.idle_from
        return self.busy_from is None or now < self.busy_from


class World:
    """Environment of a sequencer, which is simulated cycle by cycle and checks its rules."""

    def __init__(self, dut: Any, spec: SequencerSpec, rng: random.Random) -> None:
        self.dut, self.spec, self.rng = dut, spec, rng
        names = ["load", "store"] + [f"gemm__{e}" for e in range(spec.num_engines)]
        names += ["vector"] * spec.has_vector
        names += [f"{kind}__{n}" for n in range(spec.num_links) for kind in ("send", "receive")]
        self.ports = [
            [getattr(dut, f"{name}__{part}") for part in ("payload", "valid", "ready")]
            for name in names
        ]
        self.players = [Player(rng, (1, 20), 4) for _ in names]
        self.read_latency = (2, 12)
        self.read_pauses = 0.2
        self.bad_addresses: set[int] = set()
        self.failures: dict[int, list[tuple[str, int, int]]] = {}  # cycle: unit, code, index
        self.now = 0
        self.memory: dict[int, int] = {}
        self.limit = PROGRAM
        self._reads: deque[tuple[int, int]] = deque()  # address, cycle
        self._held: list[int | None] = [None] * len(names)
        self._pulsed: list[str] = []
        self.reads_under_way = 0
        self.running = False
        self._new_run([])
        for name in ("start", "cancel", "axi__rvalid", "axi__arready"):
            getattr(dut, name).value = 0
        self._tell("done", [0] * len(names))
        self._tell("idle", [1] * len(names))
        for unit in self.units():
            getattr(dut, f"{unit}__valid").value = 0

    def _tell(self, what: str, bits: Sequence[int]) -> None:
        """Drive the ports `what` of all engines with one bit each, in the order of the queues."""
        at = 2 + self.spec.num_engines
        gemms, links = bits[2:at], bits[at + self.spec.has_vector :]
        getattr(self.dut, f"load_{what}").value, getattr(self.dut, f"store_{what}").value = bits[:2]
        getattr(self.dut, f"gemm_{what}").value = sum(bit << e for e, bit in enumerate(gemms))
        if self.spec.has_vector:
            getattr(self.dut, f"vector_{what}").value = bits[at]
        for number, kind in enumerate(("send", "receive") if links else ()):
            mine = links[number::2]
            port = getattr(self.dut, f"{kind}_{what}")
            port.value = sum(bit << link for link, bit in enumerate(mine))

    def units(self) -> list[str]:
        """Names of all ports that report errors."""
        spec = self.spec
        return [
            *(f"load_failures__{unit}" for unit in range(spec.load_units)),
            *(f"store_failures__{unit}" for unit in range(spec.store_units)),
            *(
                f"gemm_failures__{engine}__{unit}"
                for engine in range(spec.num_engines)
                for unit in range(spec.gemm_units)
            ),
            *(f"vector_failures__{unit}" for unit in range(spec.vector_units * spec.has_vector)),
            *(
                f"{kind}_failures__{link}__{unit}"
                for link in range(spec.num_links)
                for kind, units in (("send", spec.send_units), ("receive", spec.receive_units))
                for unit in range(units)
            ),
        ]

    def _new_run(self, instructions: list[Instruction]) -> None:
        self.instructions = instructions
        self.expected: list[deque[int]] = [deque() for _ in self.ports]
        for index, instruction in enumerate(instructions):
            if instruction.opcode is not Opcode.END:
                self.expected[self.spec.queue_of(instruction)].append(index)
        self.counts = [0] * self.spec.num_semaphores
        self.issued: list[int] = []
        self.issue_cycles: list[int] = []
        self.done_cycles: dict[int, int] = {}
        self.dispatch_cycles: list[int] = []
        self.halt_cycle: int | None = None
        self.waits_seen: int = 0

    def place(self, program: bytes, at: int = PROGRAM) -> None:
        """Put a program into memory; the window of allowed addresses ends with its last word."""
        self.memory = {
            at + offset: int.from_bytes(program[offset : offset + WORD_BYTES], "little")
            for offset in range(0, len(program), WORD_BYTES)
        }
        self.limit = at + len(program)

    async def begin(
        self,
        instructions: list[Instruction],
        program: bytes | None = None,
        *,
        early: bool = False,
    ) -> None:
        """Start a program; returns after the cycle that clears the state, or before if `early`."""
        self.place(encode(instructions) if program is None else program)
        self._new_run(instructions)
        dut = self.dut
        dut.entry.value = PROGRAM
        dut.memory_base.value = PROGRAM - 0x40
        dut.memory_limit.value = self.limit
        dut.start.value = 1
        await self.step()
        dut.start.value = 0
        self.running = True
        if not early:
            await self.step()
            assert self.running

    async def end(self, most: int = 20_000) -> None:
        """Run until the program has ended."""
        begin = self.now
        while self.running:
            await self.step()
            assert self.now - begin < most, f"no end; waits {int(self.dut.waits.value):b}"

    async def run(self, instructions: list[Instruction]) -> None:
        """Run a program that must end without an error, and check that all of it was executed."""
        await self.begin(instructions)
        await self.end()
        dut = self.dut
        assert (dut.done.value, dut.error.value, dut.halt.value) == (1, 0, 0)
        assert not any(self.expected), "an instruction was not given out"
        assert len(self.done_cycles) == len(instructions) - 1, "ended before its engines"
        assert len(self.dispatch_cycles) == len(instructions) - 1
        assert self.reads_under_way == 0

    async def step(self) -> None:
        """Simulate one clock cycle: sample outputs in its middle, drive inputs after its end."""
        dut, now = self.dut, self.now
        await FallingEdge(dut.clk)
        halt = dut.halt.value == 1
        if halt and self.halt_cycle is None:
            self.halt_cycle = now
        taken = [self._issue(queue, halt) for queue in range(len(self.ports))]
        if dut.dispatched.value == 1:
            self.dispatch_cycles.append(now)
        self.waits_seen |= int(dut.waits.value)
        self.running = dut.running.value == 1
        if dut.clear.value == 1:
            for player in self.players:
                assert player.idle(now), "cleared while an engine was at work"
                player.forget()
            assert self.reads_under_way == 0, "cleared while the program was being read"
        if dut.axi__arvalid.value == 1 and dut.axi__arready.value == 1:
            self._request(int(dut.axi__araddr.value), int(dut.axi__arlen.value) + 1)
        if dut.axi__rvalid.value == 1:
            assert dut.axi__rready.value == 1, "data found no room"
            self.reads_under_way -= 1
        await RisingEdge(dut.clk)
        self.now = now = now + 1
        for queue, index in enumerate(taken):
            if index is not None:
                self.players[queue].take(index, now)
        self._drive(now, halt)

    def _issue(self, queue: int, halt: bool) -> int | None:
        """Check an engine's port; returns the index of the instruction that moves, if any."""
        payload, valid, ready = self.ports[queue]
        if valid.value == 0:
            assert self._held[queue] is None or halt, f"queue {queue} withdrew an instruction"
            self._held[queue] = None
            return None
        assert not halt, f"queue {queue} offers an instruction after an error"
        word = int(payload.value)
        assert self._held[queue] in (None, word), f"queue {queue} changed an instruction"
        self._held[queue] = word
        if ready.value == 0:
            return None
        self._held[queue] = None
        index = word & 0xFFFF_FFFF
        assert self.expected[queue], f"queue {queue} gave out instruction {index} unasked"
        wanted = self.expected[queue].popleft()
        assert index == wanted, f"queue {queue} gave out instruction {index}, not {wanted}"
        instruction = self.instructions[index]
        body = BODIES[instruction.opcode].pack(instruction.body)
        assert word >> 32 == body, f"instruction {index} changed"
        for number in instruction.wait:
            assert self.counts[number] > 0, f"instruction {index} did not wait for {number}"
            self.counts[number] -= 1
        self.issued.append(index)
        self.issue_cycles.append(self.now)
        return index

    def _request(self, address: int, beats: int) -> None:
        size = self.spec.bus_bytes
        end = address + beats * size
        assert 0 < beats <= 256
        assert address // 4096 == (end - 1) // 4096, "crosses 4 KiB"
        assert end <= self.limit, "read behind the window"
        for at in range(address, end, size):
            self._reads.append((at, self.now + self.rng.randint(*self.read_latency)))
            self.reads_under_way += 1

    def _drive(self, now: int, halt: bool) -> None:
        """Drive all inputs of the cycle that begins."""
        dut, rng = self.dut, self.rng
        dones, idles = [], []
        for queue, player in enumerate(self.players):
            if halt:
                player.stop(now)
            self.ports[queue][2].value = int(player.ready())
            index = player.end(now)
            dones.append(int(index is not None))
            if index is not None:
                self.done_cycles[index] = now
                for number in self.instructions[index].signal:
                    self.counts[number] += 1
            idles.append(int(player.idle(now)))
        self._tell("done", dones)
        self._tell("idle", idles)
        dut.axi__arready.value = int(rng.random() >= self.read_pauses)
        arrives = bool(self._reads) and self._reads[0][1] <= now
        arrives = arrives and rng.random() >= self.read_pauses
        dut.axi__rvalid.value = int(arrives)
        if arrives:
            at, _ = self._reads.popleft()
            size, offset = self.spec.bus_bytes, at % WORD_BYTES
            word = self.memory.get(at - offset, 0)
            dut.axi__rdata.value = word >> (8 * offset) & ((1 << (8 * size)) - 1)
            bad = at in self.bad_addresses
            dut.axi__rresp.value = rng.choice([2, 3]) if bad else 0

        for unit in self._pulsed:
            getattr(dut, f"{unit}__valid").value = 0
        self._pulsed = []
        for unit, code, index in self.failures.pop(now, []):
            getattr(dut, f"{unit}__valid").value = 1
            getattr(dut, f"{unit}__code").value = code
            getattr(dut, f"{unit}__index").value = index
            self._pulsed.append(unit)


def random_body(group: Group, rng: random.Random) -> dict[str, Any]:
    """Random values that fit the fields of a group."""
    values: dict[str, Any] = {}
    for member in group.fields:
        if isinstance(member, Field):
            low = -(1 << (member.bits - 1)) if member.signed else 0
            values[member.name] = rng.randrange(low, low + (1 << member.bits))
        elif member.times:
            values[member.name] = [random_body(member, rng) for _ in range(member.times)]
        else:
            values[member.name] = random_body(member, rng)
    return values


def instruction_of(
    opcode: Opcode,
    rng: random.Random,
    wait: Any = (),
    signal: Any = (),
    engine: int = 0,
) -> Instruction:
    """Make an instruction with a random body."""
    body = random_body(BODIES[opcode], rng)
    return Instruction(opcode, tuple(wait), tuple(signal), engine, body)


def random_program(
    spec: SequencerSpec, rng: random.Random, length: int, *, contested: bool = False
) -> list[Instruction]:
    """Draw a program that ends: each instruction waits only for semaphores signalled before it.

    With `contested`, engines compete for semaphores; programs that may deadlock according to the
    model are not used.
    """
    while True:
        count = spec.num_semaphores
        owner = [rng.randrange(spec.num_queues) for _ in range(count)]
        open_signals = [0] * count
        program = []
        for _ in range(length):
            queue = rng.choice([0, 0, 1, *range(2, spec.num_queues)])
            wait = [
                n
                for n in range(count)
                if open_signals[n] and rng.random() < 0.5 and (contested or owner[n] == queue)
            ]
            signal = rng.sample(range(count), rng.choice([0, 0, 1, 2, 3]))
            for number in wait:
                open_signals[number] -= 1
            for number in signal:
                open_signals[number] += 1
            opcode, engine = spec.queues[queue]
            program.append(instruction_of(opcode, rng, wait, signal, engine))
        wait = [n for n in range(count) if open_signals[n] and rng.random() < 0.5]
        program.append(Instruction(Opcode.END, tuple(wait)))
        execution = Execution(program, spec)
        if not execution.deadlock and not execution.overflow:
            return program
