"""The order in which a core runs its program: queues, semaphores, and whether the program ends.

A sequencer dispatches instructions in program order, each to the queue of its engine. An engine
begins the instructions of its queue in order. It begins an instruction as soon as all semaphores
that the instruction waits for are above 0, and decrements each of them by one. Timing is left open:
two engines may proceed in any order that the semaphores allow. `Execution` finds what holds for all
of these orders.

The packet of a RECEIVE comes from another device and is assumed to arrive in time. Only
`fpgapipe.hw.hls_models.model.cluster` finds out whether several devices wait for each other.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fpgapipe.hw.hls_models.isa.instructions import (
    HEADER,
    LINK_OPCODES,
    MAX_LINKS,
    MAX_SEMAPHORE,
    NUM_SEMAPHORES,
    WORD_BYTES,
    Engine,
    ErrorCode,
    Instruction,
    Opcode,
    ProgramError,
    decode,
    engines_of,
    has_one_engine,
    semaphores_of_core,
)
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec

INDEX_BITS = 24
"""Bits of an instruction's number in an engine; 2**24 instructions are a program of a gigabyte."""

MAX_ORDERS = 100_000
"""Largest number of orders that `Execution` tries."""


@dataclass(frozen=True)
class SequencerSpec:
    """Queues and fetching of a sequencer.

    Parameters
    ----------
    num_engines : int
        Number of GEMM engines, 1 to 4.
    has_vector : bool
        Whether there is a vector engine; without one, VECTOR is not a valid opcode.
    num_links : int
        Number of links, 0 to 4; without links, SEND and RECEIVE are not valid opcodes.
    load_words, store_words, gemm_words, vector_words, send_words, receive_words : int
        Program words that a queue holds in addition to the instruction that waits at its head;
        powers of two and at least 4, or 8 for GEMM and VECTOR, whose instructions have 5 words.
    in_flight : int
        Instructions that an engine may have begun and not ended, a power of two, at least 2.
    prefetch_words : int
        Program words that are fetched ahead, a power of two, at least 8.
    fetch_words : int
        Program words that are requested at once: a power of two, at most `prefetch_words`, and at
        most 64, so that no request crosses a multiple of 4 KiB.
    bus_bytes : int
        Width of the AXI4 bus to the program in bytes: 4, 8, 16, 32 or 64.
    part_bytes : int
        Bytes of the program that pass in a cycle: 64, or those of the bus.
    load_units, store_units, gemm_units, vector_units, send_units, receive_units : int
        Number of parts of an engine that report errors, 1 to 16.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    num_engines: int = 1
    has_vector: bool = False
    num_links: int = 0
    load_words: int = 16
    store_words: int = 16
    gemm_words: int = 32
    vector_words: int = 16
    send_words: int = 16
    receive_words: int = 16
    in_flight: int = 8
    prefetch_words: int = 32
    fetch_words: int = 4
    bus_bytes: int = 64
    part_bytes: int = WORD_BYTES
    load_units: int = 1
    store_units: int = 1
    gemm_units: int = 4
    vector_units: int = 2
    send_units: int = 1
    receive_units: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_engines <= 4:
            raise ValueError(f"sequencer num_engines must be in 1..4, not {self.num_engines!r}")
        if not 0 <= self.num_links <= MAX_LINKS:
            raise ValueError(
                f"sequencer num_links must be in 0..{MAX_LINKS}, not {self.num_links!r}"
            )
        for name, least, most in (
            ("load_words", 4, 512),
            ("store_words", 4, 512),
            ("gemm_words", 8, 512),
            ("vector_words", 8, 512),
            ("send_words", 4, 512),
            ("receive_words", 4, 512),
            ("in_flight", 2, 64),
            ("prefetch_words", 8, 512),
            ("fetch_words", 1, min(64, self.prefetch_words)),
        ):
            value = getattr(self, name)
            if not least <= value <= most or value & (value - 1):
                raise ValueError(
                    f"sequencer {name} must be a power of two in {least}..{most}, not {value!r}"
                )
        if self.bus_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(
                f"sequencer bus_bytes must be 4, 8, 16, 32 or 64, not {self.bus_bytes!r}"
            )
        if self.part_bytes not in (self.bus_bytes, WORD_BYTES):
            raise ValueError(
                f"sequencer part_bytes must be {WORD_BYTES} or those of the bus, "
                f"{self.bus_bytes}, not {self.part_bytes!r}"
            )
        beats = self.fetch_words * WORD_BYTES // self.bus_bytes
        if beats > 256:
            raise ValueError(
                f"sequencer fetch_words must be at most {4 * self.bus_bytes} (256 beats of "
                f"{self.bus_bytes} bytes), not {self.fetch_words}"
            )
        for kind in ("load", "store", "gemm", "vector", "send", "receive"):
            units = getattr(self, f"{kind}_units")
            if not 1 <= units <= 16:
                raise ValueError(f"sequencer {kind}_units must be in 1..16, not {units!r}")

    @classmethod
    def of(cls, core: CoreSpec) -> "SequencerSpec":
        """Return the spec of a core's sequencer."""
        found = cls.sized(
            core.num_engines,
            core.links,
            core.bus_bytes,
            core.scratchpad.port_bytes,
            has_vector=core.vector is not None,
        )
        return replace(found, fetch_words=min(4, burst_words(core)))

    @classmethod
    def sized(
        cls,
        num_engines: int,
        links: Sequence[LinkEndSpec],
        bus_bytes: int,
        scratchpad_port_bytes: int,
        *,
        has_vector: bool,
    ) -> "SequencerSpec":
        """Return the spec of the sequencer of a core of some size, whatever it requests at once.

        Where the scratchpad's ports are narrow, the program passes in parts as wide as the bus.
        """
        few = 16 if any(link.port_bytes < WORD_BYTES for link in links) else 32
        return cls(
            num_engines=num_engines,
            has_vector=has_vector,
            num_links=len(links),
            gemm_words=few,
            prefetch_words=few,
            fetch_words=1,
            bus_bytes=bus_bytes,
            part_bytes=bus_bytes if scratchpad_port_bytes < WORD_BYTES else WORD_BYTES,
        )

    @property
    def queues(self) -> tuple[tuple[Opcode, int], ...]:
        """Opcode and engine number of each queue.

        The order is LOAD, STORE, the GEMM engines, VECTOR, then SEND and RECEIVE of each link.
        """
        gemms = [(Opcode.GEMM, engine) for engine in range(self.num_engines)]
        vectors = [(Opcode.VECTOR, 0)] * self.has_vector
        links = [(opcode, link) for link in range(self.num_links) for opcode in LINK_OPCODES]
        return ((Opcode.LOAD, 0), (Opcode.STORE, 0), *gemms, *vectors, *links)

    @property
    def engines(self) -> dict[Opcode, int]:
        """Valid opcodes, each with the number of its engines; 1 for END."""
        return engines_of(self.num_engines, has_vector=self.has_vector, num_links=self.num_links)

    @property
    def num_semaphores(self) -> int:
        """Number of semaphores that instructions may name."""
        return semaphores_of_core(self.num_links, self.num_engines)

    @property
    def num_queues(self) -> int:
        """Number of queues, one for each engine."""
        return len(self.queues)

    def queue_of(self, instruction: Instruction) -> int:
        """Return the number of the queue that an instruction goes to.

        Raises
        ------
        ValueError
            If it is END, which goes to no queue.
        """
        if instruction.opcode is Opcode.END:
            raise ValueError("END goes to no queue")
        if instruction.opcode is Opcode.GEMM:
            return 2 + instruction.engine
        return self.queues.index((instruction.opcode, instruction.engine))

    @property
    def word_parts(self) -> int:
        """Parts of a program word."""
        return WORD_BYTES // self.part_bytes

    @property
    def header_parts(self) -> int:
        """Parts of a word that have the header of an instruction."""
        return -(-HEADER.bits // (8 * self.part_bytes))

    def dispatch_cycles(self, instruction: Instruction) -> int:
        """Cycles to dispatch an instruction whose queue has room: its header's parts and its parts.

        The last cycle for the header checks it. END is not dispatched to a queue. No instruction is
        dispatched before it has been read from memory.
        """
        return self.header_parts + self.word_parts * instruction.words

    @property
    def token_cycles(self) -> int:
        """Cycles from the end of an instruction to the start of one that only waits for it.

        They are counted from the cycle of the pulse `done` to the cycle in which the waiting
        instruction moves to its engine.
        """
        return 5

    def words_of_queue(self, queue: int) -> int:
        """Number of words that a queue holds in addition to the instruction at its head."""
        words: int = getattr(self, f"{self.queues[queue][0].name.lower()}_words")
        return words

    def units_of_queue(self, queue: int) -> int:
        """Number of parts of a queue's engine that report errors."""
        units: int = getattr(self, f"{self.queues[queue][0].name.lower()}_units")
        return units

    def engine_of_queue(self, queue: int) -> int:
        """Return the number of a queue's engine in the ERROR register."""
        opcode, engine = self.queues[queue]
        return Engine[opcode.name] + engine

    def name_of_queue(self, queue: int) -> str:
        """Return the name of a queue in messages."""
        opcode, engine = self.queues[queue]
        return opcode.name if has_one_engine(opcode) else f"{opcode.name}[{engine}]"


@dataclass(frozen=True)
class Waiting:
    """An instruction that never starts.

    Attributes
    ----------
    index : int
        Number of the instruction in the program.
    instruction : Instruction
    semaphores : tuple of int
        Semaphores that it waits for and that are 0; empty if it waits for room in its queue.
    engine : str
        Name of the queue's engine.
    """

    index: int
    instruction: Instruction
    semaphores: tuple[int, ...]
    engine: str

    def __str__(self) -> str:
        if self.semaphores:
            names = ", ".join(map(str, self.semaphores))
            what = f"semaphore{'s' * (len(self.semaphores) > 1)} {names}"
        elif self.instruction.opcode is Opcode.END:
            what = "all engines"
        else:
            what = f"room in the queue of {self.engine}"
        return f"instruction {self.index} ({self.instruction.opcode.name}) waits for {what}"


@dataclass(frozen=True)
class _State:
    """Progress of a program: the number of dispatched instructions, and of those begun per queue.

    An instruction that has begun counts as done. How long it takes decides which of the possible
    orders happens, but not which orders are possible.
    """

    dispatched: int
    begun: tuple[int, ...]


class Execution:
    """Analysis of all orders in which a program may run.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program, which ends with END.
    spec : SequencerSpec

    Attributes
    ----------
    order : tuple of int
        Numbers of the instructions in one order in which they may begin.
    deadlock : tuple of Waiting
        Empty if the program ends in every order. Otherwise the instructions that wait when it gets
        stuck: those at the heads of the queues, then the one that is to be dispatched next.
    peaks : tuple of int
        Highest count that each semaphore may reach. It is exact for a semaphore that only one
        engine takes; for one that several engines take, it is the highest count in `order`.
    overflow : tuple of int
        Semaphores whose count may exceed `MAX_SEMAPHORE`.

    Raises
    ------
    ValueError
        If the last instruction is not END, or engines compete for semaphores in too many orders to
        try all of them.
    """

    def __init__(self, instructions: Sequence[Instruction], spec: SequencerSpec) -> None:
        if not instructions or instructions[-1].opcode is not Opcode.END:
            raise ValueError("program must end with END")
        self._instructions = tuple(instructions)
        self._spec = spec
        self._queues: list[list[int]] = [[] for _ in range(spec.num_queues)]
        for index, instruction in enumerate(instructions[:-1]):
            self._queues[spec.queue_of(instruction)].append(index)
        consumers: list[set[int]] = [set() for _ in range(NUM_SEMAPHORES)]
        for queue, members in enumerate(self._queues):
            for index in members:
                for semaphore in instructions[index].wait:
                    consumers[semaphore].add(queue)
        self._contested = {number for number, queues in enumerate(consumers) if len(queues) > 1}
        stuck, order = self._explore()
        self.order = tuple(order)
        self.deadlock = self._waiting(stuck) if stuck is not None else ()
        self.peaks = tuple(self._peak(number) for number in range(NUM_SEMAPHORES))
        self.overflow = tuple(
            number for number, peak in enumerate(self.peaks) if peak > MAX_SEMAPHORE
        )

    def _counts(self, state: _State) -> list[int]:
        counts = [0] * NUM_SEMAPHORES
        for queue, begun in enumerate(state.begun):
            for index in self._queues[queue][:begun]:
                for semaphore in self._instructions[index].wait:
                    counts[semaphore] -= 1
                for semaphore in self._instructions[index].signal:
                    counts[semaphore] += 1
        return counts

    def _explore(self) -> tuple[_State | None, list[int]]:
        """Find a stuck state, if there is one, and an order that leads to it or to END."""
        pending = [_Run(self)]
        seen: set[tuple[int, ...]] = set()
        order: list[int] | None = None
        while pending:
            run = pending.pop()
            choices = run.advance(self._contested)
            if not choices:
                if not run.ended():
                    return run.state(), run.order
                order = order or run.order
                continue
            key = tuple(run.begun)
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MAX_ORDERS:
                raise ValueError(
                    f"program lets engines compete for semaphores "
                    f"{', '.join(map(str, sorted(self._contested)))} in more than {MAX_ORDERS} "
                    "orders; let each semaphore be taken by one engine"
                )
            # Each copy lets another queue go first; the last copy is tried first.
            for queue in reversed(choices):
                follower = run.copy()
                follower.begin(queue)
                pending.append(follower)
        return None, order or []

    def _peak(self, semaphore: int) -> int:
        """Find the highest count of a semaphore, by delaying its consumer as long as possible."""
        if semaphore in self._contested:
            counts, peak = [0] * NUM_SEMAPHORES, 0
            for index in self.order:
                for number in self._instructions[index].wait:
                    counts[number] -= 1
                for number in self._instructions[index].signal:
                    counts[number] += 1
                peak = max(peak, counts[semaphore])
            return peak
        run = _Run(self)
        peak = 0
        while True:
            choices = run.advance({semaphore} | self._contested)
            free = [queue for queue in choices if semaphore not in run.head(queue).wait]
            peak = max(peak, run.counts[semaphore])
            if not choices:
                return peak
            run.begin((free or choices)[0])

    def _waiting(self, state: _State) -> tuple[Waiting, ...]:
        counts = self._counts(state)
        waiting = []
        for queue, begun in enumerate(state.begun):
            members = self._queues[queue]
            if begun < len(members) and members[begun] < state.dispatched:
                instruction = self._instructions[members[begun]]
                missing = tuple(n for n in instruction.wait if not counts[n])
                waiting.append(
                    Waiting(members[begun], instruction, missing, self._spec.name_of_queue(queue))
                )
        instruction = self._instructions[state.dispatched]
        if instruction.opcode is Opcode.END:
            missing = tuple(n for n in instruction.wait if not counts[n]) if not waiting else ()
            waiting.append(Waiting(state.dispatched, instruction, missing, "END"))
        else:
            engine = self._spec.name_of_queue(self._spec.queue_of(instruction))
            waiting.append(Waiting(state.dispatched, instruction, (), engine))
        return tuple(waiting)


class _Run:
    """One order of a program's instructions, as far as they have begun."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.counts = [0] * NUM_SEMAPHORES
        self.begun = [0] * len(execution._queues)
        self.order: list[int] = []
        self._dispatched = 0
        self._held = [0] * len(execution._queues)  # words in each queue, including the head's
        self._waiting: list[deque[int]] = [deque() for _ in execution._queues]

    def copy(self) -> "_Run":
        other = _Run.__new__(_Run)
        other._execution = self._execution
        other.counts = self.counts.copy()
        other.begun = self.begun.copy()
        other.order = self.order.copy()
        other._dispatched = self._dispatched
        other._held = self._held.copy()
        other._waiting = [queue.copy() for queue in self._waiting]
        return other

    def state(self) -> _State:
        return _State(self._dispatched, tuple(self.begun))

    def head(self, queue: int) -> Instruction:
        return self._execution._instructions[self._waiting[queue][0]]

    def ended(self) -> bool:
        """Whether END can take its semaphores; to be called when nothing else can begin."""
        instruction = self._execution._instructions[self._dispatched]
        return (
            instruction.opcode is Opcode.END
            and not any(self._waiting)
            and all(self.counts[number] for number in instruction.wait)
        )

    def _dispatch(self) -> None:
        instructions, spec = self._execution._instructions, self._execution._spec
        while instructions[self._dispatched].opcode is not Opcode.END:
            instruction = instructions[self._dispatched]
            queue = spec.queue_of(instruction)
            # The instruction at the head does not use the queue's memory, even while it waits.
            head = self.head(queue).words if self._waiting[queue] else instruction.words
            room = spec.words_of_queue(queue) + head
            if self._held[queue] + instruction.words > room:
                return
            self._held[queue] += instruction.words
            self._waiting[queue].append(self._dispatched)
            self._dispatched += 1

    def begin(self, queue: int) -> None:
        instruction = self.head(queue)
        self.order.append(self._waiting[queue].popleft())
        self._held[queue] -= instruction.words
        self.begun[queue] += 1
        for number in instruction.wait:
            self.counts[number] -= 1
        for number in instruction.signal:
            self.counts[number] += 1

    def advance(self, chosen: set[int]) -> list[int]:
        """Dispatch and begin all instructions that take none of the `chosen` semaphores.

        Their order does not matter: they take no signal that another engine could take, so no other
        order has to be tried.

        Returns
        -------
        list of int
            Queues whose heads could begin now, and take one of the chosen semaphores.
        """
        while True:
            self._dispatch()
            ready = [
                queue
                for queue, waiting in enumerate(self._waiting)
                if waiting and all(self.counts[number] for number in self.head(queue).wait)
            ]
            free = [queue for queue in ready if chosen.isdisjoint(self.head(queue).wait)]
            if not free:
                return ready
            for queue in free:
                self.begin(queue)


def check(program: bytes, spec: SequencerSpec) -> list[Instruction]:
    """Decode a program, and raise an error if it could stop a core.

    Returns
    -------
    list of Instruction

    Raises
    ------
    ProgramError
        If an instruction is invalid, the program may get stuck, or a semaphore may overflow.
    ValueError
        For the reasons of `Execution`.
    """
    instructions = decode(
        program, spec.num_engines, has_vector=spec.has_vector, num_links=spec.num_links
    )
    execution = Execution(instructions, spec)
    if execution.deadlock:
        first = execution.deadlock[0]
        raise ProgramError(
            first.index,
            ErrorCode.NONE,
            f"program never ends: {'; '.join(map(str, execution.deadlock))}",
        )
    if execution.overflow:
        number = execution.overflow[0]
        index = next(i for i, item in enumerate(instructions) if number in item.signal)
        raise ProgramError(
            index,
            ErrorCode.SEMAPHORE_OVERFLOW,
            f"semaphore {number} may come to {execution.peaks[number]}, above {MAX_SEMAPHORE}",
        )
    return instructions
