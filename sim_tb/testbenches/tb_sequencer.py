"""Checks the sequencer against its model: order, semaphores, errors, restarts, cycles."""

import random
from itertools import pairwise
from typing import Any

import cocotb

from fpgapipe.hw.hls_models.isa.instructions import (
    MAX_SEMAPHORE,
    NUM_SEMAPHORES,
    WORD_BYTES,
    Engine,
    ErrorCode,
    Instruction,
    Opcode,
)
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.sequencer import Execution, SequencerSpec
from fpgapipe.sim_tb.drivers.stream import parameters, start
from fpgapipe.sim_tb.worlds.sequencer_world import (
    GEMM,
    LOAD,
    PROGRAM,
    STORE,
    World,
    instruction_of,
    random_program,
)


async def world_of(dut: Any, offset: int = 0) -> World:
    """Start clock and reset, and create the environment of the design."""
    spec = SequencerSpec(**parameters())
    world = World(dut, spec, random.Random(cocotb.RANDOM_SEED + offset))
    await start(dut)
    return world


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def runs_random_programs(dut: Any) -> None:
    """Every instruction reaches its engine once, in order, when its semaphores are available."""
    world = await world_of(dut)
    rng = world.rng
    for number in range(10):
        world.read_latency = rng.choice([(1, 1), (2, 12), (30, 60)])
        world.read_pauses = rng.choice([0.0, 0.3])
        for player in world.players:
            player.latency = rng.choice([(1, 1), (1, 20), (10, 60)])
            player.depth = rng.choice([1, 2, 8, 12])
            player.pauses = rng.choice([0.0, 0.5, 0.9])
        await world.run(random_program(world.spec, rng, rng.randint(0, 50), contested=number > 7))


def chain(spec: SequencerSpec, rng: random.Random, length: int) -> list[Instruction]:
    """Draw a program in which each instruction waits for the preceding one."""
    program = []
    for number in range(length):
        opcode, engine = [(LOAD, 0), (GEMM, spec.num_engines - 1), (STORE, 0)][number % 3]
        wait = [number % 3] if number else []
        program.append(instruction_of(opcode, rng, wait, [(number + 1) % 3], engine))
    program.append(Instruction(Opcode.END))
    return program


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def stops_at_faulty_programs(dut: Any) -> None:
    """A wrong header stops the core with its code; no instruction from there on is issued."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    words = {LOAD: 1, STORE: 1, GEMM: 5, Opcode.END: 1}
    good = chain(spec, rng, 9)
    offsets = [WORD_BYTES * sum(words[i.opcode] for i in good[:n]) for n in range(len(good))]
    # These headers are errors only if the core has fewer semaphores than an instruction can name.
    no_semaphore = [(3, (5, 128)), (4, (9, 128)), (9, (5, 128))]
    unknown = next(opcode for opcode in range(1, 9) if opcode not in spec.engines)
    bad_header = [
        (index, change, code)
        for code, cases in {
            ErrorCode.BAD_OPCODE: [
                *[(4, (0, 0)), (5, (0, unknown)), (0, (0, 255)), (7, (0, 132))],
            ],
            ErrorCode.BAD_LENGTH: [
                (3, (1, 2)),
                (4, (1, 4)),
                (4, (1, 69)),
                (5, (1, 0)),
                (9, (1, 0)),
            ],
            ErrorCode.BAD_FIELD: [
                *[(3, (10, 1)), (5, (10, 8)), (4, (10, spec.num_engines)), (4, (10, 15))],
                *[(9, (10, 1)), (3, (10, 16)), (4, (10, 128)), (9, (10, 32))],
                *[(9, (6, 1)), (9, (7, 128))],
                *(no_semaphore if spec.num_semaphores < NUM_SEMAPHORES else []),
            ],
        }.items()
        for index, change in cases
    ]
    for index, (byte, value), code in bad_header:
        program = bytearray(encode(good))
        program[offsets[index] + byte] = value
        await world.begin(good, bytes(program))
        await world.end()
        check_error(world, code, Engine.SEQUENCER, index)
    await world.run(good)


def check_error(world: World, code: ErrorCode, engine: int, index: int) -> None:
    """Check registers after an error, and that no instruction from `index` on was issued."""
    dut = world.dut
    status = (dut.running.value, dut.done.value, dut.error.value, dut.halt.value)
    assert status == (0, 0, 1, 1)
    registers = (dut.error_code, dut.error_engine, dut.error_index)
    found = tuple(int(register.value) for register in registers)
    assert found == (code, engine, index), f"error {found}, not {(code, engine, index)}"
    assert all(issued < index for issued in world.issued) or engine, "a late instruction"
    assert world.reads_under_way == 0


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def stops_where_memory_ends(dut: Any) -> None:
    """A missing word is an error of the instruction that needs it, and of no other one."""
    world = await world_of(dut)
    spec, rng, good = world.spec, world.rng, None
    good = chain(spec, rng, 9)
    program = encode(good)
    # Words of the instructions: 0; 1 to 5; 6; 7; 8 to 12; 13; 14; 15 to 19; 20; END.
    for word, index in [(0, 0), (1, 1), (3, 1), (5, 1), (6, 2), (12, 4), (20, 8), (21, 9)]:
        await world.begin(good, program[: word * WORD_BYTES])
        await world.end()
        check_error(world, ErrorCode.MEMORY_RANGE, Engine.SEQUENCER, index)
        # An error in any beat of the word.
        beat = rng.randrange(WORD_BYTES // spec.bus_bytes)
        world.bad_addresses = {PROGRAM + word * WORD_BYTES + beat * spec.bus_bytes}
        await world.begin(good)
        await world.end()
        check_error(world, ErrorCode.AXI_READ, Engine.SEQUENCER, index)
        world.bad_addresses = set()
    # Errors of words that are fetched beyond END are ignored.
    world.bad_addresses = {PROGRAM + len(program), PROGRAM + len(program) + WORD_BYTES}
    world.players[0].latency = (100, 200)
    await world.begin(good, program + bytes(5 * WORD_BYTES))
    await world.end()
    assert dut.done.value == 1
    # Programs outside of the window of allowed addresses.
    for base, limit in [(PROGRAM + 64, PROGRAM + 6400), (64, PROGRAM), (0, 0)]:
        await world.begin(good)
        dut.memory_base.value, dut.memory_limit.value = base, limit
        await world.end()
        check_error(world, ErrorCode.MEMORY_RANGE, Engine.SEQUENCER, 0)
    await world.run(good)


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def keeps_the_first_error(dut: Any) -> None:
    """Errors of engines stop the core; the first one is kept, or that of the lowest engine."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    last = spec.num_engines - 1
    load, store = "load_failures__0", f"store_failures__{spec.store_units - 1}"
    gemm = f"gemm_failures__{last}__{spec.gemm_units - 1}"
    read, write = ErrorCode.AXI_READ, ErrorCode.AXI_WRITE
    outside = ErrorCode.SCRATCHPAD_RANGE
    cases: list[tuple[dict[int, list[tuple[str, int, int]]], tuple[ErrorCode, int, int]]] = [
        ({0: [(load, read, 7)]}, (read, Engine.LOAD, 7)),
        ({0: [(store, write, 8)]}, (write, Engine.STORE, 8)),
        ({0: [(gemm, outside, 1 << 31)]}, (outside, Engine.GEMM + last, 1 << 31)),
        ({0: [(gemm, outside, 1), (store, write, 2)]}, (write, Engine.STORE, 2)),
        ({0: [(gemm, outside, 1)], 1: [(load, read, 2)]}, (outside, Engine.GEMM + last, 1)),
        ({0: [(store, write, 3)], 1: [(store, read, 4)], 2: [(load, read, 5)]},
         (write, Engine.STORE, 3)),
    ]  # fmt: skip
    if spec.has_vector:
        vector = f"vector_failures__{spec.vector_units - 1}"
        cases += [
            ({0: [(vector, outside, 9)]}, (outside, Engine.VECTOR, 9)),
            ({0: [(vector, outside, 1), (gemm, outside, 2)]}, (outside, Engine.GEMM + last, 2)),
        ]
    for pulses, first in cases:
        # Engines rarely accept an instruction, so that offers wait when the core stops.
        for player in world.players:
            player.pauses = 0.8
        program = random_program(spec, rng, 60)
        await world.begin(program)
        at = world.now + rng.randint(20, 100)
        world.failures = {at + delay: faults for delay, faults in pulses.items()}
        await world.end()
        check_error(world, *first)
        assert world.halt_cycle == at + 2
        assert len(world.issued) < 60
        await world.run(chain(spec, rng, 6))


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def sees_overflows(dut: Any) -> None:
    """A semaphore can count to 255; one more is an error of the instruction that signals it."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    for player in world.players:
        player.latency = (1, 3)
    for more in (0, 1):
        loads = [instruction_of(LOAD, rng, signal=[15]) for _ in range(MAX_SEMAPHORE + more)]
        end = Instruction(Opcode.END, (15,))
        program = [*loads, end]
        assert Execution(program, spec).overflow == ((15,) if more else ())
        if not more:
            await world.run(program)
            continue
        await world.begin(program)
        await world.end()
        dut_error = [int(getattr(dut, f"error_{n}").value) for n in ("code", "engine", "index")]
        assert dut_error == [ErrorCode.SEMAPHORE_OVERFLOW, Engine.SEQUENCER, MAX_SEMAPHORE]
    # If the semaphore is taken in between, it does not overflow.
    loads = [instruction_of(LOAD, rng, signal=[15]) for _ in range(300)]
    stores = [instruction_of(STORE, rng, wait=[15]) for _ in range(300)]
    program = [x for pair in zip(loads, stores, strict=True) for x in pair]
    await world.run([*program, Instruction(Opcode.END)])


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def can_be_cancelled(dut: Any) -> None:
    """A cancel in any phase leaves a core that runs the next program."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    for delay in (0, 1, 2, 3, 5, 9, 20, 33, 60):
        world.read_latency = (20, 40) if delay % 2 else (2, 8)
        await world.begin(chain(spec, rng, 60), early=delay == 0)
        for _ in range(delay):
            await world.step()
        dut.cancel.value = 1
        await world.step()
        dut.cancel.value = 0
        # A start during the cancellation is ignored.
        dut.start.value = 1
        await world.step()
        dut.start.value = 0
        await world.end()
        assert (dut.done.value, dut.error.value) == (0, 0)
        assert dut.halt.value == 1
        await world.run(chain(spec, rng, 5))
    dut.cancel.value = 1
    await world.step()
    dut.cancel.value = 0
    await world.run(chain(spec, rng, 5))


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def gets_stuck_where_the_model_does(dut: Any) -> None:
    """Programs that deadlock stop where the model says, and full queues block the dispatch."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    for room in range(spec.load_words - 1, spec.load_words + 3):
        # The first LOAD waits for a STORE after `room` more LOADs, which fit in the queue or not.
        program = [instruction_of(LOAD, rng, [3], [5])]
        program += [instruction_of(LOAD, rng) for _ in range(room)]
        program += [instruction_of(STORE, rng, [], [3]), Instruction(Opcode.END)]
        execution = Execution(program, spec)
        assert bool(execution.deadlock) == (room > spec.load_words)
        if not execution.deadlock:
            await world.run(program)
            continue
        await check_stuck(world, program, execution)
    # GEMMs have several words, so a part of the last one fits.
    room = spec.gemm_words // 5
    for extra in (0, 1):
        program = [instruction_of(GEMM, rng, [1])]
        program += [instruction_of(GEMM, rng) for _ in range(room + extra)]
        program += [instruction_of(LOAD, rng, [], [1]), Instruction(Opcode.END)]
        execution = Execution(program, spec)
        assert bool(execution.deadlock) == bool(extra)
        if not extra:
            await world.run(program)
            continue
        await check_stuck(world, program, execution)
    # END waits for a semaphore that no instruction signals.
    program = [*chain(spec, rng, 3)[:-1], Instruction(Opcode.END, (7,))]
    execution = Execution(program, spec)
    assert [w.semaphores for w in execution.deadlock] == [(7,)]
    await check_stuck(world, program, execution)
    await world.run(chain(spec, rng, 5))


async def check_stuck(world: World, program: list[Instruction], execution: Execution) -> None:
    """Run a program that gets stuck, compare with the model, and cancel it."""
    dut, spec = world.dut, world.spec
    await world.begin(program)
    for _ in range(600):
        await world.step()
    waiting = execution.deadlock
    heads = [w for w in waiting if w.instruction.opcode is not Opcode.END and w.semaphores]
    expected = sum(1 << spec.queue_of(w.instruction) for w in heads)
    assert int(dut.waits.value) == expected
    assert len(world.dispatch_cycles) == waiting[-1].index
    assert sorted(world.issued) == sorted(execution.order)
    dut.cancel.value = 1
    await world.step()
    dut.cancel.value = 0
    await world.end()


@cocotb.test(timeout_time=2000, timeout_unit="us")
async def takes_predicted_cycles(dut: Any) -> None:
    """Dispatch takes a cycle per part of a header and one per part; a token takes five cycles."""
    world = await world_of(dut)
    spec, rng = world.spec, world.rng
    world.read_pauses, world.read_latency = 0.0, (2, 2)
    for player in world.players:
        player.latency, player.depth = (2, 2), 8
    # Opcodes are interleaved, so that no engine is the bottleneck.
    for opcodes in ([LOAD, STORE], [LOAD, STORE, GEMM]):
        program = [instruction_of(opcode, rng) for opcode in 20 * opcodes]
        await world.run([*program, Instruction(Opcode.END)])
        cycles = [b - a for a, b in pairwise(world.dispatch_cycles)]
        predicted = [spec.dispatch_cycles(each) for each in program[1:]]
        if spec.word_parts > 1 or 2 * spec.bus_bytes >= WORD_BYTES:
            assert cycles == predicted
        else:
            # The bus is the bottleneck, because a word takes several beats.
            beats = WORD_BYTES // spec.bus_bytes * sum(each.words for each in program[1:])
            assert sum(predicted) <= sum(cycles) <= beats + 8
    # A single engine starts an instruction as often as it is dispatched.
    loads = [instruction_of(LOAD, rng) for _ in range(40)]
    await world.run([*loads, Instruction(Opcode.END)])
    starts = world.issue_cycles
    if spec.word_parts > 1 or 2 * spec.bus_bytes >= WORD_BYTES:
        assert {b - a for a, b in pairwise(starts)} == {spec.dispatch_cycles(loads[0])}
    # Dependent instructions are all in their queues, so only the token determines the delay.
    for player in world.players:
        player.latency = (40, 40)
    await world.run(chain(spec, rng, 12))
    tokens = {world.issue_cycles[n + 1] - world.done_cycles[n] for n in range(1, 10)}
    assert tokens == {spec.token_cycles}, tokens
