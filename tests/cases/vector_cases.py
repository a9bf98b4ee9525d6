"""Random VECTOR instructions, and scratchpads for them to work on."""

import dataclasses
from math import prod

import numpy as np

from fpgapipe.hw.hls_models.isa.vector_fields import Format
from fpgapipe.hw.hls_models.isa.vector_op import (
    LANES,
    MAX_SUMS,
    NUM_SCALARS,
    Addend,
    Choice,
    Coefficients,
    Constant,
    Counter,
    Factor,
    Initial,
    Left,
    Outcome,
    Random,
    Right,
    Second,
    Source,
    Target,
    VectorOp,
)
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.hw.hls_models.numerics.mx import BLOCK_BYTES

NUM_LOOPS = 6

# Zeros, a subnormal, infinities, NaN, the largest and the smallest normal number, one.
EDGES = [
    *(0x00000000, 0x80000000, 0x00000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF),
    *(0x7F7FFFFF, 0xFF7FFFFF, 0x00800000, 0x3F800000, 0xBF800000),
]


def random_scratchpad(size_bytes, rng):
    """Numbers of moderate size as BF16, and so as FP32, some zeros and edge values among them."""
    draw = np.random.default_rng(rng.getrandbits(32))
    number = size_bytes // 2
    halves = (draw.normal(size=number).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    halves[draw.random(number) < 0.05] = 0
    edges = np.array(EDGES, np.uint32).view(np.uint16)
    some = draw.random(number) < 0.03
    halves[some] = draw.choice(edges, some.sum())
    wild = draw.random(number) < 0.01
    halves[wild] = draw.integers(0, 1 << 16, wild.sum())
    return halves.view(np.uint8).copy()


def random_scalars(rng):
    """Bits of the registers."""
    return [random_bits(rng) for _ in range(NUM_SCALARS)]


def random_bits(rng):
    """Bits of a number: of moderate size, an edge value, or any."""
    kind = rng.random()
    if kind < 0.6:
        return int(np.float32(rng.gauss(0, 2)).view(np.uint32))
    return rng.choice(EDGES) if kind < 0.8 else rng.getrandbits(32)


def random_op(rng, size_bytes, *, most=60, function=None):
    """A legal instruction of at most so many vectors, which stays inside the scratchpad.

    It writes to one half of the scratchpad, and reads the other one.

    Parameters
    ----------
    rng : random.Random
    size_bytes : int
        Of the scratchpad.
    most : int
    function : bool, optional
        Whether there is one; drawn if left out.
    """
    while True:
        counts = random_counts(rng, most)
        inner, reduced = random_reduction(rng, counts)
        if reduced == 0 or prod(counts[:inner]) <= MAX_SUMS:
            break
    has_k = inner + reduced < NUM_LOOPS and rng.random() < 0.6
    takes_maximum = reduced > 0 and rng.random() < 0.4
    halves = [(0, size_bytes // 2), (size_bytes // 2, size_bytes)]
    rng.shuffle(halves)
    reads, writes = halves
    if function is None:
        function = rng.random() < 0.25
    return VectorOp(
        counts=counts,
        x=random_source(rng, counts, reads),
        y=random_source(rng, counts, reads) if rng.random() < 0.6 else None,
        target=random_target(rng, counts, range(inner, inner + reduced), writes),
        inner=inner,
        reduced=reduced,
        takes_maximum=takes_maximum,
        gives_index=takes_maximum and rng.random() < 0.4,
        negate_x=rng.random() < 0.3,
        addend=rng.choice(list(Addend)),
        negate_addend=rng.random() < 0.3,
        factor=rng.choice(list(Factor)),
        second=rng.choice(list(Second)),
        negate_second=rng.random() < 0.3,
        test=random_test(rng),
        then=rng.choice(list(Choice)),
        otherwise=rng.choice([Choice.S, *Choice]),
        initial=Initial.NOTHING if takes_maximum else rng.choice(list(Initial)),
        relu=rng.random() < 0.2,
        function=rng.choice(list(Function)) if function else None,
        constants=tuple(random_constant(rng) for _ in range(rng.randrange(6))),
        coefficients=random_coefficients(rng, counts[-1] if len(counts) == NUM_LOOPS else 1, reads)
        if has_k
        else Coefficients(),
        counter=Counter(
            rng.randrange(256), tuple(rng.randint(-200, 300) for _ in range(rng.randrange(7)))
        ),
    )


def with_blocks(rng, op, size_bytes):
    """A legal instruction some of which is MXINT8, made of one of `random_op`.

    Its innermost loop over results, if it writes blocks, has fewer iterations.
    """
    steps = list(op.target.steps) + [0] * (NUM_LOOPS - len(op.target.steps))
    reduced = range(op.inner, op.inner + op.reduced)
    loops = [k for k, count in enumerate(op.counts) if count > 1 and k not in reduced]
    parts = {}
    counts = list(op.counts)
    if loops and rng.random() < 0.6:
        counts[loops[0]] = 2
        steps = [2 * (step // 2) for step in steps]
        steps[loops[0]] = 1
        base = _block(rng, counts, steps, size_bytes, op.target.base)
        if base is None:
            return op
        parts["target"] = dataclasses.replace(
            op.target, base=base, steps=tuple(steps), format=Format.MXINT8
        )
    for name in ("x", "y"):
        source = getattr(op, name)
        if source and rng.random() < 0.5:
            base = _block(rng, counts, source.steps, size_bytes, source.base)
            if base is not None:
                base += rng.randrange(2)
                parts[name] = dataclasses.replace(
                    source, base=base, format=Format.MXINT8, broadcast=False
                )
    return dataclasses.replace(op, counts=tuple(counts), **parts)


def _block(rng, counts, steps, size_bytes, base):
    """A base for blocks in the half of the scratchpad that another lies in."""
    half = size_bytes // 2
    region = (0, half) if base < half else (half, size_bytes)
    return placed(rng, counts, steps, region, BLOCK_BYTES + 2)


def random_counts(rng, most):
    """Iterations of the loops."""
    while True:
        number = rng.choice([1, 2, 3, 6, 6, 6])
        counts = tuple(rng.choice([1, 1, 2, 3, 4, 7, 20]) for _ in range(number))
        if prod(counts) <= most:
            return counts


def random_reduction(rng, counts):
    """Loops inside those that are reduced, and these."""
    if rng.random() < 0.5:
        return 0, 0
    inner = rng.randrange(NUM_LOOPS) if rng.random() < 0.3 else rng.randrange(len(counts))
    return inner, rng.randint(1, NUM_LOOPS - inner)


def random_steps(rng, counts, unit, most):
    """Of a number: up or down, now and then none."""
    return tuple(
        unit * rng.choice([0, 1, LANES, rng.randint(-most, most)])
        for _ in range(rng.randint(0, len(counts)))
    )


def extent(counts, steps):
    """The least and the most that a number moves by."""
    far = [(count - 1) * step for count, step in zip(counts, steps, strict=False)]
    return sum(min(each, 0) for each in far), sum(max(each, 0) for each in far)


def placed(rng, counts, steps, region, last_bytes):
    """A base with which a vector's bytes lie in a region, or None."""
    low, high = extent(counts, steps)
    first, end = region[0] - low, region[1] - last_bytes - high
    return 2 * rng.randint(-(-first // 2), end // 2) if end - first >= 2 else None


def random_coordinate(rng, counts, limit):
    """Start and steps of a coordinate that is inside, or leaves its limits at either side."""
    if rng.random() < 0.5:
        return 0, ()
    return rng.randint(-limit // 4, limit // 2), random_steps(rng, counts, 1, max(limit // 3, 1))


def random_source(rng, counts, region):
    """Where a vector is read."""
    while True:
        element, broadcast = 4 if rng.random() < 0.5 else 2, rng.random() < 0.2
        steps = random_steps(rng, counts, element if rng.random() < 0.8 else 2, 40)
        base = placed(rng, counts, steps, region, LANES * element)
        if base is not None:
            break
    y_limit, u_limit = rng.choice([1, 2, 5]), rng.choice([1, 16, 16, 20, 50, 0])
    y, y_steps = random_coordinate(rng, counts, y_limit)
    u, u_steps = random_coordinate(rng, counts, u_limit)
    layout = Format.FP32 if element == 4 else Format.BF16
    return Source(base, steps, y, u, y_steps, u_steps, y_limit, u_limit, layout, broadcast)


def random_target(rng, counts, reduced, region):
    """Where results go."""

    def kept(steps):
        return tuple(0 if loop in reduced else step for loop, step in enumerate(steps))

    while True:
        element = 4 if rng.random() < 0.5 else 2
        steps = kept(random_steps(rng, counts, element, 40))
        base = placed(rng, counts, steps, region, LANES * element)
        if base is not None:
            break
    u_limit = rng.choice([1, 16, 16, 20, 50])
    u, u_steps = random_coordinate(rng, counts, u_limit)
    return Target(
        base, steps, u, kept(u_steps), u_limit, Format.FP32 if element == 4 else Format.BF16
    )


def random_coefficients(rng, steps, region):
    """Coefficients for some steps of the outermost loop."""
    number = rng.randint(1, 4)
    while True:
        pitch, step = (2 * rng.randint(-200, 200) for _ in range(2))
        base = placed(rng, (number, steps), (pitch, step), region, 4 * LANES)
        if base is not None:
            return Coefficients(base, pitch, step, number)


def random_constant(rng):
    """A value or a register."""
    if rng.random() < 0.4:
        return Constant(register=rng.randrange(NUM_SCALARS))
    return Constant(float(np.uint32(random_bits(rng)).view(np.float32)))


def random_test(rng):
    """A test that chooses between `then` and `otherwise`, or None."""
    kind = rng.random()
    if kind < 0.3:
        return None
    if kind < 0.5:
        return Random(
            rng.choice([0, 1, 20_000, 65_535]), rng.getrandbits(48), rng.randrange(NUM_SCALARS - 1)
        )
    outcomes = Outcome(rng.randint(1, 15))
    return rng.choice(list(Left)), outcomes, rng.choice(list(Right))


def beyond(rng, op, which, size_bytes):
    """An instruction of which `which` ("x", "y" or "target") reaches outside the scratchpad."""
    part = (
        dataclasses.replace(
            getattr(op, which), y=0, u=0, y_steps=(), u_steps=(), y_limit=1, u_limit=LANES
        )
        if which != "target"
        else dataclasses.replace(op.target, u=0, u_steps=(), u_limit=LANES)
    )
    low, high = extent(op.counts, part.steps)
    written = {Format.BF16: 2 * LANES, Format.FP32: 4 * LANES, Format.MXINT8: BLOCK_BYTES}
    last = size_bytes - (written[part.format] if which == "target" else 2)
    if part.format is Format.MXINT8 and which == "target":
        high -= 1  # to the second half of a block, which is written as a whole
    base = rng.choice([-2 - low, last + 2 - high])
    return dataclasses.replace(op, **{which: dataclasses.replace(part, base=base)})
