"""Random programs for the model in C++, which are run by the definition as well."""

import dataclasses
import os
import random
from contextlib import contextmanager

import numpy as np
from vector_cases import beyond, random_op, random_scalars, random_scratchpad, with_blocks

from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.native.native_library import PAYS_NS, library, num_threads
from fpgapipe.hw.hls_models.native.native_program import NativeProgram
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.sim_tb.testbenches.tb_address import random_pattern

SPEC = CoreSpec(
    8, 4, acc_depth=16, scratchpad=ScratchpadSpec(2, 1 << 13), vector=VectorSpec(mx=True)
)
SIZE = SPEC.scratchpad.size_bytes
END = Instruction(Opcode.END)

# Exponents of the data: any numbers; numbers of which elements, and then products and their sums,
# vanish; and numbers whose sums overflow.
EXPONENTS = (None, (0, 0, 240), (3, 58, 200), (58,), (190,))


WAYS = (("", 1), ("", 4), ("avx2", 2), ("plain", 1), ("plain", 2))
"""Instruction sets, at most, and numbers of threads."""


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
    """Type and message of the error that stopped a program; None if it ran to its end."""
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


@contextmanager
def way(instruction_set, threads, lib):
    """Let programs be prepared for an instruction set, and run on threads whatever they take."""
    before = os.environ.get("FPGAPIPE_SIMD")
    os.environ["FPGAPIPE_SIMD"] = instruction_set
    lib.fpgapipe_model_threads(threads, 0)
    try:
        yield
    finally:
        lib.fpgapipe_model_threads(num_threads(), PAYS_NS)
        if before is None:
            del os.environ["FPGAPIPE_SIMD"]
        else:
            os.environ["FPGAPIPE_SIMD"] = before


class Case:
    """A program and a random state, and what the definition makes of it."""

    def __init__(self, spec, program, memory, seed, *, exponents=None):
        rng = random.Random(seed)
        draw = np.random.default_rng(seed)
        self.spec, self.program, self.memory, self.seed = spec, program, memory, seed
        self.scratchpad = random_scratchpad(spec.scratchpad.size_bytes, rng)
        self.scalars = random_scalars(rng)
        if exponents:
            self.scratchpad = of_exponents(self.scratchpad.size, rng, exponents)
        sums = draw.integers(0, 1 << 32, (spec.num_engines, spec.acc_depth, spec.cols), np.uint32)
        sums[draw.random(sums.shape) < 0.8] >>= 2
        self.sums = sums
        model = self.model(CoreModel)
        with np.errstate(all="ignore"):
            self.outcome = outcome(lambda: model.run(program))
        self.expected = state(model)

    def model(self, kind):
        """A model in the random state."""
        model = kind(self.spec, self.memory.copy())
        model.scratchpad[:] = self.scratchpad
        model.scalars = list(self.scalars)
        model.accumulators = list(self.sums.view(np.float32).copy())
        return model

    def differences(self, lib, instruction_set, threads):
        """Parts of the state that differ in C++, and the model."""
        model = self.model(Counted)
        with way(instruction_set, threads, lib), np.errstate(all="ignore"):
            prepared = NativeProgram(lib, self.spec, self.program)
            got = outcome(lambda: prepared.run(model))
        found = state(model)
        differ = [
            name for name, value in self.expected.items() if not np.array_equal(found[name], value)
        ]
        return differ + ["outcome"] * (got != self.outcome), model


def check(spec, program, memory, seed, *, left=0, exponents=None):
    """All ways from the same random state give the same state; returns what stopped them.

    `left` is the number of instructions that are left to the definition, or None.
    """
    case = Case(spec, program, memory, seed, exponents=exponents)
    for instruction_set, threads in WAYS:
        differ, model = case.differences(library(), instruction_set, threads)
        assert not differ, (seed, instruction_set, threads)
        if left is not None:
            assert model.left == (left or case.outcome is not None)
    return case.outcome


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


def random_product(rng, spec):
    """A program of one GEMM; one of its operands has a random pattern."""
    while True:
        pattern = random_pattern(rng, spec, in_range=rng.random() < 0.9)
        try:
            vectors = len(pattern.vectors(np.zeros(spec.scratchpad.size_bytes, np.uint8))[0])
        except IndexError:
            vectors = 16
        if vectors <= 1 << 12:
            break
    is_a = rng.random() < 0.6 or vectors % spec.cols
    sizes = random_sizes(rng, vectors if is_a else vectors // spec.cols)
    m, k, n = sizes if is_a else (rng.randint(1, 9), *sizes[:2])
    if not is_a:
        k *= sizes[2]
    count = n * k * (spec.cols if is_a else m)
    if count > 1 << 16:
        return random_product(rng, spec)
    other = simple(rng, spec, count)
    if rng.random() < 0.15:
        # A word that goes on at the beginning of the scratchpad.
        nest = LoopNest((Loop(other.pos.size, 0),))
        other = dataclasses.replace(other, base=SIZE - 2 * rng.randint(1, 31), pos=nest)
    result = rng.choice([None, random_result(rng, spec, (m, k, n))])
    a, b = (pattern, other) if is_a else (other, pattern)
    return product(spec, rng, a, b, (m, k, n), result)


def random_vector(rng, size):
    """A program of one VECTOR."""
    op = random_op(rng, size)
    if rng.random() < 0.3:
        op = with_blocks(rng, op, size)
    part = rng.choice(["x", "y", "target"])
    if rng.random() < 0.1 and getattr(op, part):
        op = beyond(rng, op, part, size)
    return [Instruction(Opcode.VECTOR, body=op.encoded()), END]


def random_transfer(rng, memory_bytes, size):
    """A program of one LOAD or STORE."""
    body = transfer(
        rng.randrange(0, memory_bytes // 2),
        rng.randrange(0, size // 2),
        rng.randint(0, 300),
        rng.randint(1, 5),
        rng.randint(-40, 700),
        rng.randint(-40, 700),
        rng.randint(1, 3),
        rng.randint(-100, 2000),
        rng.randint(-100, 2000),
    )
    return [Instruction(rng.choice([Opcode.LOAD, Opcode.STORE]), body=body), END]


def random_case(seed):
    """A random program of a few instructions on a random core."""
    rng = random.Random(seed)
    spec = dataclasses.replace(
        SPEC,
        rows=rng.choice([1, 2, 4, 8, 16, 32, 32]),
        cols=rng.choice([1, 3, 4, 16, 17, 32, 64]),
        num_engines=rng.randint(1, 2),
    )
    memory = random_scratchpad(1 << 13, rng)
    program = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.4:
            made = random_product(rng, spec)
        elif kind < 0.85:
            made = random_vector(rng, SIZE)
        else:
            made = random_transfer(rng, memory.size, SIZE)
        program += made[:-1]
    return Case(spec, [*program, END], memory, seed, exponents=rng.choice(EXPONENTS))
