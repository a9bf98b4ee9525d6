"""The event loop as plain Python and as machine code: the same bits, the same errors."""

import random
from dataclasses import replace
from math import inf

import pytest

pytest.importorskip("numba")

from fpgapipe.hw.hls_models.cycles import simulation
from fpgapipe.hw.hls_models.cycles.cluster_cycles import predict_cluster
from fpgapipe.hw.hls_models.cycles.core_cycles import CoreRun, MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.cycles.run_tables import Held
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.vector_op import Source, Target, VectorOp
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.two_speeds import machine_code

END = Instruction(Opcode.END)


@pytest.fixture
def both(monkeypatch):
    """Call a function with plain Python and with machine code: two results, or errors."""

    def call(function):
        found = []
        for least in (10**12, 0):
            monkeypatch.setattr(simulation, "COMPILED_FROM", least)
            monkeypatch.setattr(simulation, "machine_code", machine_code if not least else None)
            try:
                found.append(function())
            except ValueError as error:
                found.append(str(error))
        return found

    return call


def random_core(rng, **more):
    bus_bytes = rng.choice((4, 8, 16, 32, 64))
    links = tuple(
        LinkEngineSpec(
            rng.choice((4, 16, 64)), rng.choice((1, 2, 8, 16, 32)), (rng.choice((2, 4, 16)),) * 3
        )
        for _ in range(rng.randrange(4))
    )
    return CoreSpec(
        *(8, rng.choice((8, 24, 64))),
        **{
            "num_engines": rng.choice((1, 1, 2)),
            "bus_bytes": bus_bytes,
            "burst_beats": rng.randint(64 // bus_bytes, 256),
            "outstanding": rng.choice((1, 2, 7, 64)),
            "vector": rng.choice((None, VectorSpec(16), VectorSpec(4))),
            "links": links,
            **more,
        },
    )


def random_memory(rng):
    rate = rng.choice((64, 64, 48, 19.2, 200, 7 / 3, 1 / 7, 1e-3, 1e-9, 1e9, 1e-300))
    return MemorySpec(rate, rng.choice((0, 1, 30, 100, 137.25, 5000, 10**9, 10**12)))


def moves(rng, *, most=3000):
    """Rows that begin anywhere."""
    body = {"memory": rng.randrange(1 << 20), "row_bytes": rng.randint(1, most)}
    body |= {"rows": rng.choice((0, 0, 3)), "row_memory": rng.randrange(-4000, 4000)}
    return body | {"planes": rng.choice((0, 1)), "plane_memory": rng.randrange(9000)}


def product(rng):
    def loops():
        return [{"count": rng.randrange(3), "address": 0} for _ in range(3)]

    def operand(base):
        flags = {name: rng.randrange(2) for name in ("transposed", "walks_blocks")}
        left = {"pos0_left": 0, "pos1_left": 0, "emit_last": rng.randint(1, 32)}
        nests = {name: loops() for name in ("outer", "tap", "pos")}
        return {"fp32": 0, "base": base, **flags, **left, **nests}

    sizes = {name: rng.randrange(most) for name, most in (("m", 70), ("k", 5), ("n", 3))}
    extent = {**sizes, "first": rng.randrange(2), "last": rng.randrange(2)}
    operands = {"a": operand(0), "b": operand(1 << 19)}
    return {"extent": extent, **operands, "result": {"fp32": rng.randrange(2)}}


def vector(rng):
    steps = (64,)
    y = rng.choice((None, Source(rng.choice((1 << 12, 1 << 21)), steps)))
    return VectorOp((rng.randint(1, 99),), Source(0, steps), Target(1 << 18, steps), y=y).encoded()


def random_program(rng, core, *, deadlocks):
    """Instructions that wait for what has been signalled, and now and then for nothing."""
    opcodes = [Opcode.LOAD, Opcode.STORE, Opcode.GEMM]
    opcodes += [Opcode.VECTOR] * (core.vector is not None)
    opcodes += [Opcode.SEND, Opcode.RECEIVE] * bool(core.links)
    bodies = {
        Opcode.GEMM: [product(rng) for _ in range(5)],
        Opcode.VECTOR: [vector(rng) for _ in range(5)],
    }
    signalled = []
    found = []
    for _ in range(rng.randint(1, 120)):
        opcode = rng.choice(opcodes)
        engines = {Opcode.GEMM: core.num_engines, Opcode.SEND: len(core.links)}
        engines[Opcode.RECEIVE] = len(core.links)
        if opcode in (Opcode.SEND, Opcode.RECEIVE):
            body = packet(rng.randrange(1 << 20), rng.randint(1, 3000), channel=rng.randrange(3))
        else:
            body = rng.choice(bodies[opcode]) if opcode in bodies else moves(rng)
        # Few instructions take what another one waits for: most programs end.
        own = range(2 * opcode, 2 * opcode + 2)
        wait = {number for number in own if number in signalled and rng.random() < 0.4}
        if deadlocks and rng.random() < 0.02:
            wait.add(20)
        for number in wait - {20}:
            signalled.remove(number)
        signal = tuple(number for number in range(4, 16) if rng.random() < 0.1)
        signalled += signal
        engine = rng.randrange(engines.get(opcode, 1))
        found.append(Instruction(opcode, tuple(wait), signal, engine, body))
    return [*found, END, *found[:2]]


def outcome(run):
    """All that a run finds."""
    return repr((run.run(), run.starts, run.ends, run.gemm_cycles, run.written))


@pytest.mark.parametrize("seed", range(4))
def test_machine_code_changes_no_bit(both, seed):
    rng = random.Random(seed)
    ended = 0
    for number in range(60):
        core, memory = random_core(rng), random_memory(rng)
        program = random_program(rng, core, deadlocks=number % 4 == 0)
        rates = [rng.choice((4, 16, 15.7, 1e-6, 1e9)) for _ in core.links]
        begins = rng.choice((0, 17.3, 1000))
        given = program, core, memory, rates, float(begins)
        one, other = both(lambda given=given: outcome(CoreRun(*given)))
        assert one == other, given
        ended += one.startswith("(Prediction")
    assert 30 < ended < 60


@pytest.mark.parametrize("seed", range(2))
def test_what_is_held_back_comes_alike(both, seed):
    rng = random.Random(seed)
    ended = 0
    for number in range(40):
        core = random_core(rng)
        program = random_program(rng, core, deadlocks=number % 8 == 0)
        tasks = sorted(rng.randrange(6) for _ in program)
        waiters = {
            index: rng.randrange(len(program))
            for index, each in enumerate(program)
            if each.opcode is Opcode.RECEIVE and rng.random() < 0.8
        }
        given = program, core, MemorySpec(), [inf] * len(core.links)
        held = Held(tasks, waiters)
        one, other = both(lambda given=given, held=held: outcome(CoreRun(*given, held=held)))
        assert one == other, given
        ended += one.startswith("(Prediction")
    assert 10 < ended < 40


def random_cluster(rng):
    """Devices in a row that send each other packets, and what else they do."""
    count = rng.choice((1, 2, 2, 3))
    packets = [
        [(rng.randint(1, 9000), rng.randrange(3)) for _ in range(rng.randrange(9))]
        for _ in range(2 * count - 2)
    ]
    cores, programs = [], []
    for device in range(count):
        wires = [(device - 1, 1, 0)] * (device > 0) + [(device, 0, 1)] * (device < count - 1)
        links = [
            LinkEngineSpec(16, rng.choice((1, 2, 16)), (rng.choice((2, 16)),) * 3)
            for _ in range(len(wires) + rng.randrange(2))
        ]
        cores.append(random_core(rng, links=tuple(links)))
        alone = replace(cores[-1], links=())
        streams = [random_program(rng, alone, deadlocks=rng.random() < 0.1)[:-3]]
        for link, (wire, sends, receives) in enumerate(wires):
            for opcode, way in ((Opcode.SEND, sends), (Opcode.RECEIVE, receives)):
                bodies = [
                    packet(rng.randrange(1 << 16), size, channel=channel)
                    for size, channel in packets[2 * wire + way]
                ]
                streams.append([Instruction(opcode, engine=link, body=body) for body in bodies])
        order = [number for number, stream in enumerate(streams) for _ in stream]
        rng.shuffle(order)
        left = [iter(stream) for stream in streams]
        programs.append([*(next(left[number]) for number in order), END])
    wiring = [((at, int(at > 0)), (at + 1, 0)) for at in range(count - 1)]
    timings = [
        WireTiming(rng.choice((16, 64, 5.3, 1e-4)), rng.choice((1, 64, 128.5, 9000)))
        for _ in wiring
    ]
    memories = [random_memory(rng) for _ in range(count)]
    begins = [rng.choice((0.0, 1000.5)) for _ in range(count)]
    return (programs, cores, wiring), {"memories": memories, "wires": timings, "begins": begins}


@pytest.mark.parametrize("seed", range(3))
def test_clusters_change_no_bit(both, seed):
    rng = random.Random(seed)
    ended = 0
    for _ in range(40):
        given, more = random_cluster(rng)
        one, other = both(lambda given=given, more=more: repr(predict_cluster(*given, **more)))
        assert one == other, (given, more)
        ended += one.startswith("ClusterPrediction")
    assert 5 < ended < 40


def test_missing_engines_fail_alike(both):
    core = CoreSpec(8, 8)
    for wrong in (
        Instruction(Opcode.GEMM, engine=1, body={}),
        Instruction(Opcode.VECTOR, body={}),
    ):
        program = random_program(random.Random(1), core, deadlocks=False)[:-3]
        message = f"instruction {len(program)} is for an engine that the core does not have: "
        program += [wrong, END]
        one, other = both(lambda program=program: CoreRun(program, core, MemorySpec(), []).run())
        assert one == other
        assert one.startswith(message)


@pytest.mark.parametrize("least", [10**12, 0])
def test_tables_grow(least, monkeypatch):
    monkeypatch.setattr(simulation, "COMPILED_FROM", least)
    rng = random.Random(5)
    core = replace(random_core(rng), outstanding=1)
    program = random_program(rng, core, deadlocks=False)
    given = program, core, MemorySpec(), [16] * len(core.links)
    expected = outcome(CoreRun(*given))
    monkeypatch.setattr(simulation, "ROOM", room := {"events": 2, "flows": 2})
    assert outcome(CoreRun(*given)) == expected
    assert min(room.values()) > 2


def test_a_transfer_of_nothing_is_refused():
    body = {"memory": 0, "row_bytes": 0, "rows": 0, "planes": 0}
    body |= {"row_memory": 0, "plane_memory": 0}
    program = [Instruction(Opcode.LOAD, body=body), END]
    with pytest.raises(ValueError, match=r"^a transfer must have at least 1 burst, not 0$"):
        CoreRun(program, CoreSpec(8, 8), MemorySpec(), []).run()
