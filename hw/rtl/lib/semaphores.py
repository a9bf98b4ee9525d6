"""Gateware of the semaphores that order the engines' instructions."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import CORE_SEMAPHORES, MAX_SEMAPHORE


class Consumer(wiring.Signature):
    """Port that takes from semaphores; directions are as its consumer sees them.

    Parameters
    ----------
    num_semaphores : int

    Members
    -------
    request : Out(1)
        High until the cycle of the grant; withdrawn only while `Semaphores.hold` is high.
    mask : Out(num_semaphores)
        Semaphores from each of which 1 is to be taken; constant while `request` is high.
    grant : In(1)
        All of them are taken in this cycle. It is high only while `request` is.
    """

    def __init__(self, num_semaphores=CORE_SEMAPHORES):
        super().__init__(
            {"request": Out(1), "mask": Out(num_semaphores), "grant": In(1)},
        )


class Producer(wiring.Signature):
    """Port that signals semaphores; directions are as its producer sees them.

    Parameters
    ----------
    num_semaphores : int

    Members
    -------
    valid : Out(1)
        High for one cycle per instruction.
    mask : Out(num_semaphores)
        Semaphores to each of which 1 is added.
    index : Out(32)
        Number of the instruction, for an error.
    """

    def __init__(self, num_semaphores=CORE_SEMAPHORES):
        super().__init__({"valid": Out(1), "mask": Out(num_semaphores), "index": Out(32)})


class Semaphores(wiring.Component):
    """Counters from which consumers take and to which producers add.

    A signal changes the count two cycles later. A grant follows at the earliest one cycle after its
    request and after the counts that it needs, and the next grant two cycles after that. Of the
    consumers that can get a grant, the one with the lowest number comes first. Any number of
    producers may signal in a cycle, also to the same semaphore. A count that would exceed
    `MAX_SEMAPHORE` stays there, and this is an error.

    The consumers that can get the next grant are found in the cycle before it, which is possible
    because requests are not withdrawn. So the path to a grant and the path from a grant to the
    counts are separate.

    Parameters
    ----------
    num_consumers, num_producers, num_semaphores : int

    Members
    -------
    consumers : In(Consumer).array(num_consumers)
    producers : In(Producer).array(num_producers)
    hold : In(1)
        While high, there are no grants.
    error_valid : Out(1)
        A pulse, four cycles after the signal that overflows.
    error_index : Out(32)
        Number of the instruction that signalled; that of the lowest producer if several overflow in
        one cycle.

    Attributes
    ----------
    counts : list of Signal
        Counts of the semaphores, for proofs.
    added : list of Signal
        Numbers by which the counts grow in this cycle, for proofs.
    """

    def __init__(self, num_consumers, num_producers, num_semaphores=CORE_SEMAPHORES):
        self._num_consumers, self._num_producers = num_consumers, num_producers
        self._num_semaphores = num_semaphores
        self.counts = [
            Signal(range(MAX_SEMAPHORE + 1), name=f"count{n}") for n in range(num_semaphores)
        ]
        self.added = [
            Signal(range(num_producers + 1), name=f"added{n}") for n in range(num_semaphores)
        ]
        super().__init__(
            {
                "consumers": In(Consumer(num_semaphores)).array(num_consumers),
                "producers": In(Producer(num_semaphores)).array(num_producers),
                "hold": In(1),
                "error_valid": Out(1),
                "error_index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()

        # `eligible` is found a cycle ahead, so a grant makes it out of date.
        count = self._num_semaphores
        zero = Signal(count)
        eligible = Signal(self._num_consumers)
        grants = Signal(self._num_consumers)
        taken = Signal(count)
        m.d.comb += zero.eq(Cat(each == 0 for each in self.counts))
        asks = Cat(consumer.request for consumer in self.consumers)
        enough = Cat(~(consumer.mask & zero).any() for consumer in self.consumers)
        anyone = Signal()
        m.d.comb += anyone.eq(eligible.any() & ~self.hold)
        m.d.sync += eligible.eq(Mux(anyone, 0, asks & enough))
        for number in range(self._num_consumers):
            others = Cat(eligible[:number], self.hold)
            m.d.comb += grants[number].eq(eligible[number] & ~others.any())
        granted_mask = 0
        for consumer, grant in zip(self.consumers, grants, strict=True):
            m.d.comb += consumer.grant.eq(grant)
            granted_mask |= Mux(grant, consumer.mask, 0)
        m.d.comb += taken.eq(granted_mask)

        # The first stage has the signals as they came. The second has the counts, and which of them
        # were too high.
        masks = [Signal(count, name=f"mask{n}") for n in range(self._num_producers)]
        late_masks = [Signal(count, name=f"late{n}") for n in range(self._num_producers)]
        indices = [
            Signal(32, name=f"index{n}", reset_less=True) for n in range(self._num_producers)
        ]
        late_indices = [
            Signal(32, name=f"late_index{n}", reset_less=True) for n in range(self._num_producers)
        ]
        for number, producer in enumerate(self.producers):
            m.d.sync += masks[number].eq(Mux(producer.valid, producer.mask, 0))
            with m.If(producer.valid):
                m.d.sync += indices[number].eq(producer.index)
            m.d.sync += late_masks[number].eq(masks[number])
            with m.If(masks[number].any()):
                m.d.sync += late_indices[number].eq(indices[number])
        over = Signal(count)
        over_next = Signal(count)
        for number, (count, added) in enumerate(zip(self.counts, self.added, strict=True)):
            total = Signal(range(MAX_SEMAPHORE + self._num_producers + 1), name=f"total{number}")
            m.d.comb += [
                added.eq(sum((mask[number] for mask in masks[1:]), masks[0][number])),
                total.eq(count + added - taken[number]),
                over_next[number].eq(total > MAX_SEMAPHORE),
            ]
            m.d.sync += count.eq(Mux(over_next[number], MAX_SEMAPHORE, total))
        m.d.sync += over.eq(over_next)

        guilty = Signal(self._num_producers)
        m.d.comb += guilty.eq(Cat((mask & over).any() for mask in late_masks))
        m.d.sync += self.error_valid.eq(guilty.any())
        for number in reversed(range(self._num_producers)):
            with m.If(guilty[number]):
                m.d.sync += self.error_index.eq(late_indices[number])
        return m
