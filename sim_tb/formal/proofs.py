"""Proofs of the sequencer's parts, FIFO, semaphores and queue, and of the fork behind a queue."""

from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.isa.instructions import CORE_SEMAPHORES, MAX_SEMAPHORE
from fpgapipe.hw.rtl.gemm.gemm_engine import Fork
from fpgapipe.hw.rtl.lib.queue import WORD_BITS, EngineQueue, WordFifo
from fpgapipe.hw.rtl.lib.semaphores import Semaphores


class Marker:
    """Tracks an arbitrary word, chosen by the stimulus, on its way through a FIFO-like circuit.

    Parameters
    ----------
    m : Module
    name : str
    choose : Value
        Whether the word that enters now is to be tracked; only the first choice counts.
    enters, leaves : Value
        Whether a word enters or leaves in this cycle.
    count : Value
        Number of words inside.
    value : Value
        Word that enters.
    """

    def __init__(
        self, m: Any, name: str, choose: Any, enters: Any, leaves: Any, count: Any, value: Any
    ) -> None:
        self.inside = Signal(name=f"{name}_inside")
        self.seen = Signal(name=f"{name}_seen")
        self.ahead = Signal(range(1024), name=f"{name}_ahead")
        self.value = Signal(len(value), name=f"{name}_value")
        self.out = Signal(name=f"{name}_out")
        m.d.comb += self.out.eq(self.inside & leaves & (self.ahead == 0))
        with m.If(choose & enters & ~self.seen):
            m.d.sync += [
                self.inside.eq(1),
                self.seen.eq(1),
                self.value.eq(value),
                self.ahead.eq(count - leaves),
            ]
        with m.Elif(self.inside & leaves):
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.inside.eq(self.ahead != 0)]
        m.d.comb += [
            Assert(~self.inside | self.seen, f"{name}: what is inside has come"),
            Assert(~self.inside | (self.ahead < count), f"{name}: what is inside is counted"),
        ]


def fifo_holds(m: Any, fifo: Any, marker: Marker, depth: int, name: str) -> None:
    """Assert that a tracked word is at its place in a FIFO, and that the pointers agree."""
    port = fifo.memory.read_port(domain="comb")
    at_output = Signal(name=f"{name}_at_output")
    m.d.comb += [
        at_output.eq(fifo.o.valid & (marker.ahead == 0)),
        port.addr.eq((fifo.consume + marker.ahead - fifo.o.valid)[: len(port.addr)]),
    ]
    kept = port.data if isinstance(port.data, Signal) else port.data.as_value()
    offered = fifo.o.payload if isinstance(fifo.o.payload, Signal) else fifo.o.payload.as_value()
    with m.If(marker.inside):
        m.d.comb += Assert(
            Mux(at_output, offered, kept) == marker.value, f"{name}: a word keeps its value"
        )
    m.d.comb += [
        Assert(fifo.level <= depth, f"{name}: never holds more than it can"),
        Assert(
            ~(fifo.writes & fifo.reads) | (fifo.produce != fifo.consume),
            f"{name}: never reads the row that it writes",
        ),
        Assert(
            fifo.produce == (fifo.consume + fifo.level)[: len(fifo.produce)],
            f"{name}: its pointers are as far apart as it holds words",
        ),
    ]


class FifoProof(wiring.Component):
    """Proof that a `WordFifo` outputs every word once, in order, and holds words that wait."""

    def __init__(self, fifo: Any, depth: int, width: int) -> None:
        self._fifo, self._depth, self._width = fifo, depth, width
        super().__init__(
            {"payload": In(width), "valid": In(1), "ready": In(1), "choose": In(2)},
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.fifo = fifo = self._fifo
        enters, leaves = Signal(), Signal()
        count = Signal(range(self._depth + 4))
        m.d.comb += [
            fifo.i.payload.eq(self.payload),
            fifo.i.valid.eq(self.valid),
            fifo.o.ready.eq(self.ready),
            enters.eq(fifo.i.valid & fifo.i.ready),
            leaves.eq(fifo.o.valid & fifo.o.ready),
        ]
        m.d.sync += count.eq(count + enters - leaves)
        markers = [
            Marker(m, name, choose, enters, leaves, count, self.payload)
            for name, choose in zip("ab", self.choose, strict=True)
        ]
        a, b = markers
        for name, marker in zip("ab", markers, strict=True):
            fifo_holds(m, fifo, marker, self._depth, name)
            with m.If(marker.out):
                m.d.comb += Assert(
                    fifo.o.payload == marker.value, f"{name}: a word leaves as it came"
                )
        # Word b is chosen after word a, so it must stay behind a and leave later.
        with m.If(self.choose[1]):
            m.d.comb += Assume(a.seen)
        with m.If(a.inside & b.inside):
            m.d.comb += Assert(a.ahead < b.ahead, "words stay in order")
        m.d.comb += [
            Assert(~b.seen | a.seen, "b comes after a"),
            Assert(~(b.out & a.inside), "words leave in order"),
            Assert(count == fifo.level + fifo.o.valid, "what came less what went is inside"),
            Assert(count <= self._depth + 1, "never holds more than it can"),
            Assert(~fifo.o.valid | (count != 0), "gives nothing that did not come"),
        ]
        waited = Signal()
        before = Signal(self._width)
        m.d.sync += [waited.eq(fifo.o.valid & ~fifo.o.ready), before.eq(fifo.o.payload)]
        with m.If(waited):
            m.d.comb += Assert(
                fifo.o.valid & (fifo.o.payload == before), "a word that waits is held"
            )
        return m


class SemaphoresProof(wiring.Component):
    """Proof that a semaphore counts signals minus takes, and never falls below 0.

    It assumes that consumers follow their protocol: a consumer keeps its mask while it requests,
    and it keeps requesting until it is granted, unless `hold` is high.
    """

    def __init__(self, semaphores: Any, num_consumers: int, num_producers: int) -> None:
        self._semaphores = semaphores
        self._num_consumers, self._num_producers = num_consumers, num_producers
        super().__init__(
            {
                "request": In(num_consumers),
                "wait": In(CORE_SEMAPHORES).array(num_consumers),
                "valid": In(num_producers),
                "signal": In(CORE_SEMAPHORES).array(num_producers),
                "index": In(32).array(num_producers),
                "hold": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.semaphores = semaphores = self._semaphores
        grants = Signal(self._num_consumers)
        m.d.comb += [
            grants.eq(Cat(consumer.grant for consumer in semaphores.consumers)),
            semaphores.hold.eq(self.hold),
        ]
        for number, consumer in enumerate(semaphores.consumers):
            m.d.comb += [
                consumer.request.eq(self.request[number]),
                consumer.mask.eq(self.wait[number]),
            ]
            asked, mask = Signal(name=f"asked{number}"), Signal(CORE_SEMAPHORES, name=f"m{number}")
            m.d.sync += [asked.eq(consumer.request & ~consumer.grant), mask.eq(consumer.mask)]
            with m.If(asked & consumer.request):
                m.d.comb += Assume(consumer.mask == mask)
            with m.If(asked & ~self.hold):
                m.d.comb += Assume(consumer.request)
            zero = Cat(count == 0 for count in semaphores.counts)
            with m.If(consumer.grant):
                m.d.comb += [
                    Assert(consumer.request, "a grant answers a request"),
                    Assert((consumer.mask & zero) == 0, "a grant takes what is there"),
                ]
        m.d.comb += [
            Assert((grants & (grants - 1)) == 0, "one grant at a time"),
            Assert((grants == 0) | ~self.hold, "none is granted while they are held"),
        ]

        for number, producer in enumerate(semaphores.producers):
            m.d.comb += [
                producer.valid.eq(self.valid[number]),
                producer.mask.eq(self.signal[number]),
                producer.index.eq(self.index[number]),
            ]
        # Reference counts, to which signals are added two cycles late, as in the gateware.
        over = Signal(CORE_SEMAPHORES)
        late_over = Signal(CORE_SEMAPHORES)
        for number, count in enumerate(semaphores.counts):
            ideal = Signal(range(MAX_SEMAPHORE + 1), name=f"ideal{number}")
            came = Signal(range(self._num_producers + 1), name=f"came{number}")
            taken = Signal(range(self._num_consumers + 1), name=f"taken{number}")
            total = Signal(12, name=f"sum{number}")
            m.d.comb += [
                taken.eq(
                    sum(
                        grant & consumer.mask[number]
                        for grant, consumer in zip(grants, semaphores.consumers, strict=True)
                    )
                ),
                total.eq(ideal + came - taken),
                over[number].eq(total > MAX_SEMAPHORE),
                Assert(taken <= ideal, "never comes below 0"),
                Assert(count == ideal, "is what was signalled less what was taken"),
            ]
            m.d.sync += [
                came.eq(
                    sum(
                        valid & producer.mask[number]
                        for valid, producer in zip(self.valid, semaphores.producers, strict=True)
                    )
                ),
                ideal.eq(Mux(over[number], MAX_SEMAPHORE, total)),
            ]
        # An error is reported two cycles after the sum, with the instruction index of the
        # lowest-numbered producer that signalled an overflowing semaphore.
        was_over = Signal()
        masks, indices, blamed = [], [], Signal(32)
        for number in range(self._num_producers):
            mask = [Signal(CORE_SEMAPHORES, name=f"mask{number}_{age}") for age in range(2)]
            index = [Signal(32, name=f"index{number}_{age}") for age in range(2)]
            m.d.sync += [
                mask[0].eq(Mux(self.valid[number], self.signal[number], 0)),
                index[0].eq(self.index[number]),
                mask[1].eq(mask[0]),
                index[1].eq(index[0]),
            ]
            masks.append(mask)
            indices.append(index)
        m.d.sync += [late_over.eq(over), was_over.eq(late_over.any())]
        for mask, index in reversed(list(zip(masks, indices, strict=True))):
            with m.If((mask[1] & late_over).any()):
                m.d.sync += blamed.eq(index[1])
        m.d.comb += Assert(
            semaphores.error_valid == was_over, "more than the most is an error, and nothing else"
        )
        with m.If(was_over):
            m.d.comb += Assert(semaphores.error_index == blamed, "the error names who signalled")
        return m


BODY = Group("body", (Field("a", 8),))
"""A short body of instructions for proofs."""

LONG_BODY = Group("long_body", (Field("a", 8), Field("b", WORD_BITS)))
"""A body that extends into a further word."""


class QueueProof(wiring.Component):
    """Proof that a queue starts instructions with their semaphores and signals them when done.

    Both happen once per instruction and in order. It assumes that the engine completes only
    instructions that it has begun.
    """

    def __init__(self, queue: Any, depth: int, in_flight: int) -> None:
        self._queue, self._depth, self._in_flight = queue, depth, in_flight
        super().__init__(
            {
                "part": In(len(queue.i.payload)),
                "valid": In(1),
                "ready": In(1),
                "done": In(1),
                "grant": In(1),
                "halt": In(1),
                "choose": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.queue = queue = self._queue
        moves = Signal()
        m.d.comb += [
            queue.i.payload.eq(self.part),
            queue.i.valid.eq(self.valid),
            queue.o.ready.eq(self.ready),
            queue.done.eq(self.done),
            queue.halt.eq(self.halt),
            queue.consumer.grant.eq(self.grant & queue.consumer.request),
            moves.eq(queue.o.valid & queue.o.ready),
        ]
        running = Signal(range(self._in_flight + 2))  # instructions begun, but not done
        unsignalled = Signal(range(self._in_flight + 2))  # instructions begun, but not signalled
        signals = queue.producer.valid
        m.d.sync += [
            running.eq(running + moves - self.done),
            unsignalled.eq(unsignalled + moves - signals),
        ]
        with m.If(self.done):
            m.d.comb += Assume(running != 0)

        # Semaphores are taken once for each instruction that needs any.
        took = Signal()
        with m.If(moves):
            m.d.sync += took.eq(0)
        with m.Elif(queue.consumer.grant):
            m.d.sync += took.eq(1)
        payload = queue.o.payload.as_value()
        with m.If(queue.granted):
            m.d.comb += Assert(took | ~queue.consumer.mask.any(), "starts with its semaphores only")
        with m.If(queue.consumer.request):
            m.d.comb += [
                Assert(~took, "takes its semaphores once"),
                Assert(~queue.o.valid, "asks before it offers"),
            ]
        m.d.comb += [
            Assert(~took | queue.granted, "what has its semaphores will be offered"),
            Assert(~(queue.o.valid & self.halt), "offers nothing while halted"),
            Assert(~(moves & queue.consumer.grant), "starts after its grant"),
        ]

        # An offered instruction is held until it is accepted, unless halt withdraws it.
        offered = Signal()
        before = Signal(len(payload))
        m.d.sync += [offered.eq(queue.o.valid & ~queue.o.ready), before.eq(payload)]
        with m.If(offered & ~self.halt):
            m.d.comb += Assert(queue.o.valid & (payload == before), "an offer is held")

        # Each instruction's mask and number are signalled in the order in which they have started.
        mark = Marker(
            m, "mark", self.choose, moves, signals, unsignalled, queue.started.i.payload.as_value()
        )
        fifo_holds(m, queue.started, mark, self._in_flight, "started")
        with m.If(mark.out):
            m.d.comb += Assert(
                Cat(queue.producer.mask, queue.producer.index) == mark.value,
                "an instruction signals its own semaphores, in its turn",
            )
        m.d.comb += [
            Assert(queue.started.i.payload.index == payload[:32], "remembers its number"),
            Assert(unsignalled <= self._in_flight, "no more are under way than may be"),
            Assert(queue.begun == unsignalled, "counts what is under way"),
            Assert(running + queue.num_done == unsignalled, "signals what is done, and all of it"),
            Assert(
                queue.started.level + queue.started.o.valid == unsignalled,
                "remembers all that is under way",
            ),
            Assert(~signals | (queue.num_done != 0), "signals nothing before it is done"),
            # The following invariants relate the parts of the state; induction needs them.
            Assert(queue.fifo.level <= self._depth, "keeps no more words than it can"),
            Assert(
                queue.fifo.produce
                == (queue.fifo.consume + queue.fifo.level)[: len(queue.fifo.produce)],
                "its pointers are as far apart as it keeps words",
            ),
            Assert(
                ~queue.granted | (queue.fifo.o.valid & (queue.collected == queue.parts - 1)),
                "only a whole instruction is offered",
            ),
            Assert(queue.collected < queue.parts, "collects all parts but one"),
            Assert(~queue.granted | (unsignalled != self._in_flight), "offers where there is room"),
        ]
        return m


class ForkProof(wiring.Component):
    """Proof that each consumer of a `Fork` gets each word once, unless it is to be skipped.

    It assumes that a word stays until it leaves, with the consumers that it skips.
    """

    def __init__(self, fork: Any, num_consumers: int) -> None:
        self._fork = fork
        super().__init__(
            {"valid": In(1), "ready": In(num_consumers), "skip": In(num_consumers)},
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.fork = fork = self._fork
        count = len(self.ready)
        waits, leaves = Signal(), Signal()
        skipped, got, gets = (Signal(count, name=name) for name in ("skipped", "got", "gets"))
        m.d.comb += [
            fork.i_valid.eq(self.valid),
            fork.ready.eq(self.ready),
            fork.skip.eq(self.skip),
            leaves.eq(self.valid & fork.i_ready),
            gets.eq(fork.valid & self.ready),
            Assume(~waits | (self.valid & (self.skip == skipped))),
            Assert(self.valid | ~fork.valid.any(), "offers nothing that did not come"),
            Assert(~(fork.valid & (got | self.skip)).any(), "offers a word once"),
            Assert(~leaves | (got | self.skip).all(), "a word leaves when all have it"),
            Assert(~self.valid | leaves | (fork.valid | got | self.skip).all(), "offers to all"),
            Assert(waits | ~got.any(), "nobody has the next word"),
            Assert(fork.taken == got, "knows who has the word"),
        ]
        m.d.sync += [
            waits.eq(self.valid & ~leaves),
            skipped.eq(self.skip),
            got.eq(Mux(leaves, 0, got | gets)),
        ]
        return m


def fork_proof(fork: Any = Fork, num_consumers: int = 3) -> ForkProof:
    """Proof of a fork."""
    return ForkProof(fork(num_consumers), num_consumers)


def fifo_proof(fifo: Any = WordFifo, depth: int = 4, width: int = 8) -> FifoProof:
    """Proof of a FIFO; `fifo` is a class, and tests pass one with a fault."""
    return FifoProof(fifo(unsigned(width), depth), depth, width)


def semaphores_proof(
    semaphores: Any = Semaphores, num_consumers: int = 3, num_producers: int = 2
) -> SemaphoresProof:
    """Proof of semaphores."""
    return SemaphoresProof(semaphores(num_consumers, num_producers), num_consumers, num_producers)


def queue_proof(
    queue: Any = EngineQueue,
    body: Group = BODY,
    depth: int = 4,
    in_flight: int = 4,
    part_bits: int = WORD_BITS,
) -> QueueProof:
    """Proof of an engine's queue."""
    made = queue(body, depth, in_flight, part_bits=part_bits)
    return QueueProof(made, depth * WORD_BITS // part_bits, in_flight)
