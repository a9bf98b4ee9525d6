"""The model in C++ against the definition, bit for bit."""

import dataclasses
import itertools
import logging
import random
import re
import threading

import numpy as np
import pytest
from device_programs import changed, layer, middle
from native_cases import (
    END,
    EXPONENTS,
    SIZE,
    SPEC,
    WAYS,
    Counted,
    check,
    product,
    random_case,
    random_result,
    random_sizes,
    simple,
)
from vector_cases import beyond, random_op, random_scratchpad, with_blocks

from fpgapipe.errors import ToolError, UserError
from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode, ProgramError, decode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.isa.vector_op import Factor, Format, Source, Target, VectorOp
from fpgapipe.hw.hls_models.model import core as core_module
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.native import native_library
from fpgapipe.hw.hls_models.native.native_library import build_library, library, loaded
from fpgapipe.hw.hls_models.native.native_program import NativeProgram
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.lowering.products.conv import PASSES
from fpgapipe.sim_tb.testbenches.tb_address import edge_patterns, random_pattern

FAULTS = 12
"""Deliberate faults that a library for tests can have, from 1 on."""


@pytest.mark.parametrize("seed", range(4))
def test_products_of_random_patterns(seed):
    kinds = itertools.cycle(EXPONENTS)
    rng = random.Random(seed)
    spec = dataclasses.replace(SPEC, rows=(8, 32, 4, 16)[seed], num_engines=1 + seed % 2)
    narrow = dataclasses.replace(spec, cols=1)
    patterns = [random_pattern(rng, spec, in_range=True) for _ in range(30)]
    for number, pattern in enumerate(patterns):
        vectors = len(pattern.vectors(np.zeros(SIZE, np.uint8))[0])
        if vectors > 1 << 14:
            continue
        m, k, n = random_sizes(rng, vectors)
        result = rng.choice([None, random_result(rng, spec, (m, k, n))])
        b = simple(rng, spec, n * k * spec.cols)
        program = product(spec, rng, pattern, b, (m, k, n), result)
        exponents = next(kinds)
        check(spec, program, np.zeros(64, np.uint8), 100 * seed + number, exponents=exponents)
        sizes = rng.choice([(3, vectors, 1), (2, 1, vectors)])
        if 3 * vectors < SIZE // 4:
            a = simple(rng, narrow, sizes[0] * vectors)
            result = rng.choice([None, random_result(rng, narrow, sizes)])
            program = product(narrow, rng, a, pattern, sizes, result)
            check(narrow, program, np.zeros(64, np.uint8), 100 * seed + number, exponents=exponents)


def test_sums_next_to_the_least_normal_number():
    rng = random.Random(0)
    for seed in range(10):
        a, b = simple(rng, SPEC, 2 * 5 * 6), simple(rng, SPEC, 2 * 5 * SPEC.cols)
        program = product(SPEC, rng, a, b, (6, 5, 2), None)
        check(SPEC, program, np.zeros(64, np.uint8), seed, exponents=(58,))


@pytest.mark.parametrize("number", range(len(edge_patterns())))
def test_edge_patterns(number):
    pattern = edge_patterns()[number]
    spec = CoreSpec(4, 2, acc_depth=16, scratchpad=ScratchpadSpec(2, 1 << 13))
    try:
        vectors = len(pattern.vectors(np.zeros(SIZE, np.uint8))[0])
    except IndexError:
        vectors = 1
    rng = random.Random(number)
    program = product(spec, rng, pattern, simple(rng, spec, 2), (vectors, 1, 1), None)
    check(spec, program, np.zeros(64, np.uint8), number, left=None)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("rows", [4, 32])
def test_layers(which, rows):
    spec = CoreSpec(rows, 4, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 13))
    for seed in range(6):
        program = layer(spec, which, seed, most=400)
        memory = program.memory
        if seed % 2:
            # What is no number, or a tiny one, among the rest.
            memory = random_scratchpad(memory.size, random.Random(seed))
        check(spec, program.instructions, memory, seed)


def test_vectors():
    stopped = 0
    for seed in range(250):
        rng = random.Random(seed)
        op = random_op(rng, SIZE)
        if seed % 3 == 0:
            op = with_blocks(rng, op, SIZE)
        part = rng.choice(["x", "y", "target"])
        if seed % 5 == 0 and getattr(op, part):
            op = beyond(rng, op, part, SIZE)
        program = [Instruction(Opcode.VECTOR, body=op.encoded()), END]
        exponents = EXPONENTS[seed % 7] if seed % 7 < len(EXPONENTS) else None
        result = check(SPEC, program, np.zeros(64, np.uint8), seed, exponents=exponents)
        stopped += result is not None
    assert stopped > 25


@pytest.mark.parametrize("number_format", [Format.BF16, Format.FP32])
def test_one_element_for_all_lanes(number_format):
    """Up to the scratchpad's end, beyond which the last one of FP32 goes on at the beginning."""
    x = Source(SIZE - 16, (2,), format=number_format, broadcast=True, u=-3, u_limit=11)
    op = VectorOp((8,), x, Target(1024, (64,), format=Format.FP32))
    program = [Instruction(Opcode.VECTOR, body=op.encoded()), END]
    for seed in range(5):
        assert check(SPEC, program, np.zeros(64, np.uint8), seed) is None


@pytest.mark.parametrize("function", Function)
def test_functions_of_numbers_of_all_sizes(function):
    op = VectorOp((100,), Source(0, (64,)), Target(8192, (64,)), function=function)
    program = [Instruction(Opcode.VECTOR, body=op.encoded()), END]
    check(SPEC, program, np.zeros(64, np.uint8), 1, exponents=(0, 60, 127, 134, 190, 250))


def test_a_product_next_to_the_least_normal_number():
    """A unit of 24 bits below it is zero, though FP32 with subnormals would round it up."""
    op = VectorOp((1,), Source(0), Target(128), Source(64), factor=Factor.Y)
    model = CoreModel(SPEC, np.zeros(64, np.uint8))
    values = model.scratchpad.view(np.float32)
    values[:16] = np.float32(1 - 2.0**-24) * np.float32(2.0**-63)
    values[16:32:2], values[17:32:2] = 2.0**-63, 2.0**-63 * (1 + 2.0**-23)
    NativeProgram(library(), SPEC, [Instruction(Opcode.VECTOR, body=op.encoded()), END]).run(model)
    np.testing.assert_array_equal(values[32:48], [0, 2.0**-126] * 8)


def test_overlapping_results_of_a_vector():
    """The later of two writes to a byte counts, lower halves of FP32 before upper ones."""
    for seed in range(60):
        rng = random.Random(seed)
        op = random_op(rng, SIZE, function=False)
        steps = tuple(2 * rng.randint(-3, 3) if step else 0 for step in op.target.steps)
        op = dataclasses.replace(op, target=dataclasses.replace(op.target, steps=steps))
        program = [Instruction(Opcode.VECTOR, body=op.encoded()), END]
        check(SPEC, program, np.zeros(64, np.uint8), seed, left=None)


def test_transfers():
    rng = random.Random(3)
    memory = random_scratchpad(1 << 13, rng)
    stopped = 0
    for seed in range(80):
        body = transfer(
            rng.randrange(0, memory.size),
            rng.randrange(0, SIZE),
            rng.randint(0, 300),
            rng.randint(1, 5),
            rng.randint(-400, 700),
            rng.randint(-400, 700),
            rng.randint(1, 3),
            rng.randint(-1000, 2000),
            rng.randint(-1000, 2000),
        )
        opcode = rng.choice([Opcode.LOAD, Opcode.STORE])
        stopped += check(SPEC, [Instruction(opcode, body=body), END], memory, seed, left=None) is (
            None
        )
    assert 10 < stopped < 70


def test_errors_are_those_of_the_definition():
    spec = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 12))
    size = spec.scratchpad.size_bytes
    program = layer(spec, "forward", 1)
    load, store = middle(program, Opcode.LOAD), middle(program, Opcode.STORE)
    gemm = middle(program, Opcode.GEMM)
    last = middle(program, Opcode.GEMM, lambda body: body["extent"]["last"])
    changes = [
        (load, {"memory": 1 << 47}),
        (load, {"scratchpad": size}),
        (store, {"memory": program.memory.size + 64}),
        (store, {"scratchpad": size}),
        *((gemm, {f"{name}__base": base}) for name in "ab" for base in (size, -size)),
        (gemm, {"a__lanes_last": 0}),
        (gemm, {"extent__m": 60_000}),
        (gemm, {"a__subs": 32, "a__subs_last": 32}),
        (last, {"result__base": size}),
        (last, {"result__base": -64}),
    ]
    for index, change in changes:
        other = changed(program, index, **change)
        assert check(spec, other.instructions, other.memory, 1, left=1), change
    other = changed(program, last, result__base=-64)
    with pytest.raises(CoreError) as caught:
        NativeProgram(library(), spec, other.instructions).run(CoreModel(spec, other.memory.copy()))
    assert caught.value.index == last


def test_damaged_programs_stop_as_in_the_definition():
    """A program with flipped bits ends, or stops with an error that names its instruction."""
    spec = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 12))
    program = layer(spec, "forward", 1)
    whole = encode(program.instructions)
    rng = random.Random(1)
    stopped = 0
    for number in range(40):
        bits = bytearray(whole)
        for _ in range(rng.choice([1, 4])):
            bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
        try:
            instructions = decode(bytes(bits))
        except ProgramError:
            continue
        outcome = check(spec, instructions, program.memory, number, left=None)
        assert outcome is None or outcome[0] is CoreError, outcome
        stopped += outcome is not None
    assert stopped > 5


def test_an_engine_that_the_core_does_not_have():
    spec = CoreSpec(4, 4, acc_depth=64, scratchpad=ScratchpadSpec(4, 1 << 12))
    program = layer(spec, "forward", 1)
    index = middle(program, Opcode.GEMM)
    instructions = list(program.instructions)
    instructions[index] = dataclasses.replace(instructions[index], engine=1)
    message = f"instruction {index}: BAD_FIELD: GEMM engine must be in 0..0, not 1"
    assert check(spec, instructions, program.memory, 1, left=1) == (CoreError, message)


def test_odd_steps():
    rng = random.Random(0)
    a = dataclasses.replace(simple(rng, SPEC, 5), pos=LoopNest((Loop(5, 3),)))
    program = product(SPEC, rng, a, simple(rng, SPEC, SPEC.cols), (5, 1, 1), None)
    check(SPEC, program, np.zeros(64, np.uint8), 0)


def test_read_only_memory_is_left_to_the_definition():
    memory = np.arange(256, dtype=np.uint8)
    memory.setflags(write=False)
    model = Counted(SPEC, memory)
    NativeProgram(library(), SPEC, [Instruction(Opcode.LOAD, body=transfer(0, 64, 128)), END]).run(
        model
    )
    assert model.left == 1
    np.testing.assert_array_equal(model.scratchpad[64:192], memory[:128])


def test_refuses_a_model_of_another_core():
    spec = CoreSpec(4, 4)
    model = CoreModel(CoreSpec(4, 8), np.zeros(64, np.uint8))
    message = f"program is prepared for {spec}, not for {model.spec}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NativeProgram(library(), spec, [END]).run(model)


@pytest.fixture(scope="module")
def cases():
    """Random programs, and what the definition makes of them."""
    return [random_case(seed) for seed in range(300)]


def check_all_ways(cases):
    """All ways give what the definition gives; returns how many programs were stopped."""
    stopped = 0
    for case in cases:
        for instruction_set, threads in WAYS:
            differ, _ = case.differences(library(), instruction_set, threads)
            assert not differ, (case.seed, instruction_set, threads)
        stopped += case.outcome is not None
    return stopped


def test_random_programs(cases):
    assert 20 < check_all_ways(cases) < 150


@pytest.mark.slow
def test_two_thousand_random_programs():
    assert check_all_ways(map(random_case, range(1000, 3000))) > 100


def test_faults_are_found(cases):
    """Each deliberate fault makes a difference; without one, the same library makes none."""
    faulty = loaded(build_library(faults=True))
    missed = []
    for fault in range(FAULTS + 1):
        faulty.fpgapipe_model_fault(fault)
        found = any(case.differences(faulty, "", 1)[0] for case in cases)
        if found != bool(fault):
            missed.append(fault)
    assert not missed


@pytest.mark.parametrize("has_compiler", [False, True])
def test_long_programs_are_prepared_once(monkeypatch, has_compiler):
    monkeypatch.setattr(core_module, "_LONG", 3)
    if not has_compiler:
        monkeypatch.setattr(core_module, "library", lambda: None)
    made = []

    class Counting(NativeProgram):
        def __init__(self, lib, spec, program):
            made.append(len(program))
            super().__init__(lib, spec, program)

    monkeypatch.setattr(core_module, "NativeProgram", Counting)
    move = Instruction(Opcode.LOAD, body=transfer(0, 64, 128))
    program = [move, move, END]
    model = CoreModel(SPEC, np.arange(256, dtype=np.uint8))
    model.run(program)
    model.run(list(program))
    model.run([move, END])
    assert made == [3] * has_compiler
    model.run([move, Instruction(Opcode.LOAD, body=transfer(0, 0, 64)), END])
    assert made == [3, 3] * has_compiler
    assert model.scratchpad[63] == 63
    assert model.scratchpad[191] == 127


def test_without_a_compiler_it_is_said_once_that_the_model_is_slow(monkeypatch, caplog):
    monkeypatch.setattr(native_library, "COMPILER", "no-such-compiler")
    monkeypatch.setattr(core_module, "_LONG", 1)
    library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                CoreModel(SPEC, np.zeros(64, np.uint8)).run([END])
    finally:
        library.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "there is no no-such-compiler on PATH, so the bit-exact model runs without machine code, "
        "which takes tens of times as long"
    ]


@pytest.mark.parametrize("error", [None, ToolError("g++ failed", [], "log"), UserError("no g++")])
def test_the_library_is_compiled_ahead(error, monkeypatch):
    """A thread does it, and its failure is told when the library is asked for."""
    asked = []

    def build():
        asked.append(threading.current_thread())
        if error is not None:
            raise error

    monkeypatch.setattr(native_library, "build_library", build)
    monkeypatch.setattr(native_library, "num_processors", lambda: 2)
    thread = native_library.begin_library()
    thread.join(60)
    assert asked == [thread]
    assert thread is not threading.main_thread()
    monkeypatch.setattr(native_library, "num_processors", lambda: 1)
    assert native_library.begin_library() is None
