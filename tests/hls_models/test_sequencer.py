"""The sequencer: the model against programs worked by hand, the gateware against the model."""

import random
import re
from dataclasses import replace

import pytest
from core_cases import some_of

from fpgapipe.hw.hls_models.isa.gemm_fields import GEMM
from fpgapipe.hw.hls_models.isa.instructions import (
    LINK,
    TRANSFER,
    Engine,
    ErrorCode,
    Group,
    Instruction,
    Opcode,
    ProgramError,
)
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.sequencer import Execution, SequencerSpec, check
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.rtl.control import sequencer as gateware
from fpgapipe.hw.rtl.control.sequencer import Sequencer
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate

SMALL = SequencerSpec(load_words=4, store_words=4, gemm_words=8, in_flight=4)
WIDE = SequencerSpec(
    num_engines=2, load_words=4, store_words=4, gemm_words=8, in_flight=4, prefetch_words=32,
    store_units=2, gemm_units=3, has_vector=True, vector_words=8, num_links=2, send_words=4,
)  # fmt: skip
NARROW = SequencerSpec(
    load_words=8, store_words=4, gemm_words=16, in_flight=8, prefetch_words=8, fetch_words=2,
    bus_bytes=16,
)  # fmt: skip
PARTS = {each: replace(NARROW, bus_bytes=each, part_bytes=each) for each in (4, 8, 16, 32)}
"""Sequencers whose program passes in parts: a header is in three, in two, or in one."""

# Yosys writes muxes of several one-hot cases as "casez" with the mark that they never overlap.
FLAGS = ("-Wno-CASEOVERLAP",)


def zeros(group):
    body = {}
    for member in group.fields:
        if not isinstance(member, Group):
            body[member.name] = 0
        else:
            body[member.name] = [zeros(member)] * member.times if member.times else zeros(member)
    return body


def load(wait=(), signal=()):
    return Instruction(Opcode.LOAD, wait, signal, body=zeros(TRANSFER))


def store(wait=(), signal=()):
    return Instruction(Opcode.STORE, wait, signal, body=zeros(TRANSFER))


def gemm(wait=(), signal=(), engine=0):
    return Instruction(Opcode.GEMM, wait, signal, engine, zeros(GEMM))


END = Instruction(Opcode.END)


def test_orders_a_program_by_its_semaphores():
    program = [load(signal=(0,)), gemm((0,), (1,)), store((1,)), load(signal=(0,)), END]
    execution = Execution(program, SMALL)
    assert execution.deadlock == ()
    assert sorted(execution.order) == [0, 1, 2, 3]
    assert execution.order.index(0) < execution.order.index(1) < execution.order.index(2)
    # The second LOAD need not wait for the GEMM, so semaphore 0 may come to 2.
    assert execution.peaks[:3] == (2, 1, 0)
    assert check(encode(program), SMALL) == program


def test_names_who_waits_for_whom():
    program = [load((1,), (0,)), store((0,), (1,)), Instruction(Opcode.END, (5,))]
    execution = Execution(program, SMALL)
    assert [str(waiting) for waiting in execution.deadlock] == [
        "instruction 0 (LOAD) waits for semaphore 1",
        "instruction 1 (STORE) waits for semaphore 0",
        "instruction 2 (END) waits for all engines",
    ]
    message = (
        "instruction 0: program never ends: instruction 0 (LOAD) waits for semaphore 1; "
        "instruction 1 (STORE) waits for semaphore 0; instruction 2 (END) waits for all engines"
    )
    with pytest.raises(ProgramError, match=f"^{re.escape(message)}$"):
        check(encode(program), SMALL)


def test_knows_that_queues_are_finite():
    # The STORE that the first LOAD waits for comes behind more LOADs.
    for behind, fits in [(4, True), (5, False)]:
        program = [load((3,)), *[load()] * behind, store((), (3,)), END]
        execution = Execution(program, SMALL)
        assert (execution.deadlock == ()) == fits
    assert [str(waiting) for waiting in execution.deadlock] == [
        "instruction 0 (LOAD) waits for semaphore 3",
        "instruction 5 (LOAD) waits for room in the queue of LOAD",
    ]
    # A GEMM has 5 words, the queue 8, and the first one is not in it.
    for behind, fits in [(1, True), (2, False)]:
        program = [gemm((3,)), *[gemm()] * behind, store((), (3,)), END]
        assert (Execution(program, SMALL).deadlock == ()) == fits


def test_end_waits_for_its_semaphores():
    program = [load(signal=(4,)), Instruction(Opcode.END, (4,))]
    assert Execution(program, SMALL).deadlock == ()
    (waiting,) = Execution([load(), program[1]], SMALL).deadlock
    assert str(waiting) == "instruction 1 (END) waits for semaphore 4"


def test_tries_all_orders_where_engines_compete():
    # If the STORE takes the only token, the GEMM waits for one that comes after the STORE's; but
    # the STORE needs it too if the GEMM was first.
    for ends, more in [(True, load(signal=(0,))), (False, load())]:
        program = [load(signal=(0,)), gemm((0,)), store((0,)), more, END]
        execution = Execution(program, SMALL)
        assert (execution.deadlock == ()) == ends
    # Only one of the two orders gets stuck: the STORE first leaves nothing for the GEMM.
    program = [load(signal=(0,)), gemm((0,), (0,)), store((0,)), END]
    assert [str(w) for w in Execution(program, SMALL).deadlock] == [
        "instruction 1 (GEMM) waits for semaphore 0",
        "instruction 3 (END) waits for all engines",
    ]


def test_says_what_may_overflow():
    assert Execution([*[load(signal=(7,))] * 255, END], SMALL).overflow == ()
    program = [*[load(signal=(7,))] * 256, END]
    assert Execution(program, SMALL).overflow == (7,)
    message = "instruction 0: semaphore 7 may come to 256, above 255"
    with pytest.raises(ProgramError, match=f"^{message}$") as caught:
        check(encode(program), SMALL)
    assert caught.value.code is ErrorCode.SEMAPHORE_OVERFLOW
    # A STORE that is late lets no more through than its queue: then dispatch waits for it.
    program = [*[load(signal=(7,)), store((7,))] * 300, END]
    execution = Execution(program, SMALL)
    assert execution.overflow == ()
    assert execution.peaks[7] == 6  # four queued, one at the head, and one on its way


def test_is_quick_for_long_programs():
    program = [load(signal=(0,)), gemm((0,), (1,)), store((1,))] * 2000
    assert Execution([*program, END], SMALL).deadlock == ()


def test_random_programs_in_order_never_get_stuck():
    rng = random.Random(0)
    for _ in range(50):
        tokens, program = [0] * 3, []
        for _ in range(40):
            queue = rng.randrange(3)
            wait = (queue,) if tokens[queue] and rng.random() < 0.7 else ()
            signal = tuple(rng.sample(range(3), rng.randrange(3)))
            for number in wait:
                tokens[number] -= 1
            for number in signal:
                tokens[number] += 1
            program.append((load, store, gemm)[queue](wait, signal))
        assert Execution([*program, END], SMALL).deadlock == ()


def test_refuses_a_program_without_end():
    with pytest.raises(ValueError, match=r"^program must end with END$"):
        Execution([load()], SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_engines": 5}, "sequencer num_engines must be in 1..4, not 5"),
        ({"load_words": 5}, "sequencer load_words must be a power of two in 4..512, not 5"),
        ({"gemm_words": 4}, "sequencer gemm_words must be a power of two in 8..512, not 4"),
        ({"bus_bytes": 3}, "sequencer bus_bytes must be 4, 8, 16, 32 or 64, not 3"),
        ({"vector_words": 4}, "sequencer vector_words must be a power of two in 8..512, not 4"),
        ({"gemm_units": 0}, "sequencer gemm_units must be in 1..16, not 0"),
        ({"num_links": 5}, "sequencer num_links must be in 0..4, not 5"),
        ({"send_words": 2}, "sequencer send_words must be a power of two in 4..512, not 2"),
        ({"bus_bytes": 4, "fetch_words": 32},
         "sequencer fetch_words must be at most 16 (256 beats of 4 bytes), not 32"),
    ],
)  # fmt: skip
def test_refuses_sizes(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SequencerSpec(**arguments)


def test_follows_the_core():
    spec = SequencerSpec.of(CoreSpec(8, 8, num_engines=2, bus_bytes=16, burst_beats=8))
    assert (spec.num_queues, spec.fetch_words, spec.bus_bytes) == (4, 2, 16)
    assert [spec.engine_of_queue(n) for n in range(4)] == [Engine.LOAD, Engine.STORE, 4, 5]
    spec = SequencerSpec.of(CoreSpec(8, 8, vector=VectorSpec()))
    assert [spec.name_of_queue(n) for n in range(4)] == ["LOAD", "STORE", "GEMM[0]", "VECTOR"]
    assert [spec.engine_of_queue(n) for n in range(4)] == [1, 2, 4, Engine.VECTOR]
    assert [spec.units_of_queue(n) for n in range(4)] == [1, 1, 4, 2]
    spec = SequencerSpec.of(CoreSpec(8, 8, vector=VectorSpec(), links=(LinkEngineSpec(),) * 2))
    assert [spec.name_of_queue(n) for n in range(4, 8)] == [
        "SEND[0]", "RECEIVE[0]", "SEND[1]", "RECEIVE[1]",
    ]  # fmt: skip
    assert [spec.engine_of_queue(n) for n in range(4, 8)] == [8, 12, 9, 13]
    assert [spec.units_of_queue(n) for n in range(4, 8)] == [1] * 4
    assert spec.queue_of(Instruction(Opcode.SEND, engine=1, body=zeros(LINK))) == 6


def test_packets_come_in_time():
    """The packet that a RECEIVE waits for is not in the program, so the wait does not count."""
    spec = SequencerSpec(num_links=1)
    body = zeros(LINK)
    program = [
        Instruction(Opcode.RECEIVE, (), (3,), body=body),
        Instruction(Opcode.SEND, (3,), body=body),
        END,
    ]
    assert check(encode(program), spec) == program
    assert [str(w) for w in Execution(program[1:], spec).deadlock] == [
        "instruction 0 (SEND) waits for semaphore 3",
        "instruction 1 (END) waits for all engines",
    ]


@pytest.mark.sim
@pytest.mark.parametrize(
    "spec",
    [WIDE, NARROW, *PARTS.values(), replace(WIDE, bus_bytes=4, part_bytes=4)],
    ids=["wide", "narrow", *(f"parts of {each}" for each in PARTS), "wide in parts"],
)
def test_gateware_matches_model(spec, tmp_path):
    simulate(Sequencer(spec), "tb_sequencer", tmp_path, flags=FLAGS)


def _starts_without_semaphores(queue, m):
    with m.If(queue.consumer.request):
        m.d.sync += queue.granted.eq(1)


def _signals_before_the_end(queue, m):
    m.d.comb += queue.producer.valid.eq(queue.started.o.valid)


def _offers_while_halted(queue, m):
    m.d.comb += queue.o.valid.eq(queue.granted)


def _forgets_bad_beats(reader, m):
    m.d.sync += reader.o.payload.error.eq(0)


def _ends_early(fetcher, m):
    m.d.comb += fetcher.idle.eq(1)


def _collects_without_counting(queue, m):
    with m.If(queue.collected == 2):
        m.d.sync += queue.collected.eq(queue.collected)


def _numbers_every_part(dispatcher, m):
    m.d.comb += dispatcher.o[0].payload[:16].eq(0)


def _forgets_the_engine(first, m):
    m.d.sync += first.engine.eq(0)


# A statement that overrules a part's own, and the test that has to see it.
FAULTS = {
    "starts without semaphores": ("EngineQueue", _starts_without_semaphores, "runs_random"),
    "signals before the end": ("EngineQueue", _signals_before_the_end, "runs_random"),
    "offers while halted": ("EngineQueue", _offers_while_halted, "keeps_the_first_error"),
    "forgets bad beats": ("ProgramReader", _forgets_bad_beats, "stops_where_memory_ends"),
    "forgets the engine": ("FirstFailure", _forgets_the_engine, "keeps_the_first_error"),
    "ends while reading": ("Fetcher", _ends_early, "can_be_cancelled"),
}
FAULTS_IN_PARTS = {
    "collects without counting": ("EngineQueue", _collects_without_counting, "runs_random"),
    "numbers every part": ("Dispatcher", _numbers_every_part, "runs_random"),
    "forgets bad parts": ("ProgramReader", _forgets_bad_beats, "stops_where_memory_ends"),
}


def sees(fault, spec, folder, monkeypatch):
    """Whether the testbench fails in the test that a fault is for."""
    name, change, test = fault

    class Twin(getattr(gateware, name)):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            change(self, m)
            return m

    monkeypatch.setattr(gateware, name, Twin)
    with pytest.raises(SimulationError) as caught:
        simulate(Sequencer(spec), "tb_sequencer", folder, flags=FLAGS, seed=1)
    return any(failed.startswith(test) for failed in caught.value.failures)


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS))
def test_testbench_sees(fault, tmp_path, monkeypatch):
    assert sees(FAULTS[fault], SMALL, tmp_path, monkeypatch)


@pytest.mark.sim
@pytest.mark.parametrize("fault", some_of(FAULTS_IN_PARTS))
def test_testbench_sees_faults_in_parts(fault, tmp_path, monkeypatch):
    assert sees(FAULTS_IN_PARTS[fault], PARTS[4], tmp_path, monkeypatch)
