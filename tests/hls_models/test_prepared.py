"""Prepared programs against the definition, bit for bit."""

import dataclasses
import importlib.util
import itertools
import random
import re

import numpy as np
import pytest
from device_programs import changed, layer, middle
from vector_cases import beyond, random_op, random_scalars, random_scratchpad, with_blocks

from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.vector_op import Factor, Source, Target, VectorOp
from fpgapipe.hw.hls_models.model import core as core_module
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.lowering.products.conv import PASSES
from fpgapipe.sim_tb.testbenches.tb_address import edge_patterns, random_pattern

pytest.importorskip("numba", reason="needs the fast extra")

from fpgapipe.hw.hls_models.model.prepared import Prepared

SPEC = CoreSpec(
    8, 4, acc_depth=16, scratchpad=ScratchpadSpec(2, 1 << 13), vector=VectorSpec(mx=True)
)
SIZE = SPEC.scratchpad.size_bytes
END = Instruction(Opcode.END)

# Of the data: any; elements, then products and their sums that vanish; sums that overflow.
EXPONENTS = (None, (0, 0, 240), (3, 58, 200), (58,), (190,))


class Counted(CoreModel):
    """Counts what prepared programs leave to the definition."""

    left = 0

    def execute(self, index, instruction):
        self.left += 1
        super().execute(index, instruction)


def state(model):
    """All that a program changes, as bits."""
    return {
        "memory": model.memory,
        "scratchpad": model.scratchpad,
        "accumulators": np.stack(model.accumulators).view(np.uint32),
        "nan": model.nan,
    }


def outcome(run):
    """What stopped a program."""
    try:
        run()
    except (CoreError, ValueError, IndexError) as error:
        return type(error), str(error)
    return None


def of_exponents(size_bytes, rng, exponents):
    """Numbers, as BF16 and so as FP32, whose biased exponents are near these."""
    draw = np.random.default_rng(rng.getrandbits(32))
    around = np.repeat(draw.choice(exponents, size_bytes // 256), 128)
    near = np.clip(around + draw.integers(-6, 7, around.size), 0, 255)
    others = draw.integers(0, 1 << 9, near.size)
    bits = (others >> 8 << 15) | (near << 7) | (others & 127)
    return bits.astype(np.uint16).view(np.uint8)


def check(spec, program, memory, seed, *, left=0, exponents=None):
    """Both ways from the same random state give the same state; returns what stopped them."""
    rng = random.Random(seed)
    draw = np.random.default_rng(seed)
    scratchpad, scalars = random_scratchpad(spec.scratchpad.size_bytes, rng), random_scalars(rng)
    if exponents:
        scratchpad = of_exponents(scratchpad.size, rng, exponents)
    sums = draw.integers(0, 1 << 32, (spec.num_engines, spec.acc_depth, spec.cols), np.uint32)
    sums[draw.random(sums.shape) < 0.8] >>= 2
    models = [kind(spec, memory.copy()) for kind in (CoreModel, Counted)]
    for model in models:
        model.scratchpad[:] = scratchpad
        model.scalars = list(scalars)
        model.accumulators = list(sums.view(np.float32).copy())
    plain, fast = models
    prepared = Prepared(spec, program)
    with np.errstate(all="ignore"):
        expected = outcome(lambda: plain.run(program))
        assert outcome(lambda: prepared.run(fast)) == expected
    found, wanted = state(fast), state(plain)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, seed {seed}")
    if left is not None:
        assert fast.left == (left or expected is not None)
    return expected


def product(spec, rng, a, b, sizes, result):
    """A program of one GEMM."""
    m, k, n = sizes
    extent = {
        "m": m - 1,
        "k": k - 1,
        "n": n - 1,
        "first": rng.randrange(2),
        "last": int(result is not None),
        "acc_base": rng.choice([0, 0, rng.randrange(1 << 16)]),
        "acc_step": rng.choice([0, m, rng.randrange(1 << 16)]),
    }
    body = {
        "extent": extent,
        "a": a.encoded(),
        "b": b.encoded(),
        "result": (result or ResultPattern(0)).encoded(),
    }
    return [Instruction(Opcode.GEMM, body=body, engine=rng.randrange(spec.num_engines)), END]


def random_result(rng, spec, sizes):
    """Where results go, in range."""
    m, _, n = sizes
    fp32 = rng.random() < 0.5
    size = 4 if fp32 else 2
    step, column = size * rng.choice([1, 3, spec.cols, spec.cols]), size * rng.randint(-8, 40)
    u = rng.choice([0, 0, spec.cols, -1])
    reach = step * m + abs(column) * n + size * spec.cols
    room = (spec.scratchpad.size_bytes - reach) // size
    if room < 0:
        return None
    base = size * rng.randint(0, room) + max(0, -column) * (n - 1)
    outer, pos = LoopNest((Loop(n, column, u=u),)), LoopNest((Loop(m, step),))
    return ResultPattern(base, outer, pos, rng.choice([1, spec.cols, 3 * spec.cols]), fp32)


def simple(rng, spec, vectors):
    """An operand of so many vectors."""
    return OperandPattern(
        2 * rng.randrange(spec.scratchpad.size_bytes // 4),
        pos=LoopNest((Loop(vectors, 2 * rng.choice([1, 8])),)),
        fp32=rng.random() < 0.3,
    )


def random_sizes(rng, total):
    """Three numbers with a product."""
    sizes = []
    for _ in range(2):
        sizes.append(rng.choice([d for d in range(1, total + 1) if total % d == 0]))
        total //= sizes[-1]
    sizes.append(total)
    rng.shuffle(sizes)
    return tuple(sizes)


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


def test_a_product_next_to_the_least_normal_number():
    """A unit of 24 bits below it is zero, though FP32 with subnormals would round it up."""
    op = VectorOp((1,), Source(0), Target(128), Source(64), factor=Factor.Y)
    model = CoreModel(SPEC, np.zeros(64, np.uint8))
    values = model.scratchpad.view(np.float32)
    values[:16] = np.float32(1 - 2.0**-24) * np.float32(2.0**-63)
    values[16:32:2], values[17:32:2] = 2.0**-63, 2.0**-63 * (1 + 2.0**-23)
    Prepared(SPEC, [Instruction(Opcode.VECTOR, body=op.encoded()), END]).run(model)
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
        Prepared(spec, other.instructions).run(CoreModel(spec, other.memory.copy()))
    assert caught.value.index == last


def test_odd_steps_are_left_to_the_definition():
    rng = random.Random(0)
    a = dataclasses.replace(simple(rng, SPEC, 5), pos=LoopNest((Loop(5, 3),)))
    program = product(SPEC, rng, a, simple(rng, SPEC, SPEC.cols), (5, 1, 1), None)
    check(SPEC, program, np.zeros(64, np.uint8), 0, left=1)


def test_read_only_memory_is_left_to_the_definition():
    memory = np.arange(256, dtype=np.uint8)
    memory.setflags(write=False)
    model = Counted(SPEC, memory)
    Prepared(SPEC, [Instruction(Opcode.LOAD, body=transfer(0, 64, 128)), END]).run(model)
    assert model.left == 1
    np.testing.assert_array_equal(model.scratchpad[64:192], memory[:128])


def test_refuses_a_model_of_another_core():
    spec = CoreSpec(4, 4)
    model = CoreModel(CoreSpec(4, 8), np.zeros(64, np.uint8))
    message = f"program is prepared for {spec}, not for {model.spec}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Prepared(spec, [END]).run(model)


@pytest.mark.parametrize("has_numba", [False, True])
def test_long_programs_are_prepared_once(monkeypatch, has_numba):
    monkeypatch.setattr(core_module, "_LONG", 3)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find_spec(name) if has_numba else None
    )
    made = []
    monkeypatch.setattr(
        "fpgapipe.hw.hls_models.model.prepared.Prepared.__init__",
        lambda self, spec, program, init=Prepared.__init__: (
            made.append(len(program)),
            init(self, spec, program),
        )[0],
    )
    move = Instruction(Opcode.LOAD, body=transfer(0, 64, 128))
    program = [move, move, END]
    models = [CoreModel(SPEC, np.arange(256, dtype=np.uint8)) for _ in range(2)]
    model = models[0]
    model.run(program)
    model.run(list(program))
    model.run([move, END])
    assert made == [3] * has_numba
    model.run([move, Instruction(Opcode.LOAD, body=transfer(0, 0, 64)), END])
    assert made == [3, 3] * has_numba
    assert model.scratchpad[63] == 63
    assert model.scratchpad[191] == 127
