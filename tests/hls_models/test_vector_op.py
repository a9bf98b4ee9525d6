"""VECTOR instructions with blocks of MXINT8: what may be said, and what the model makes of it."""

import random
import re

import numpy as np
import pytest
from vector_cases import random_op, with_blocks

from fpgapipe.hw.hls_models.cycles.vector_cycles import vector_cycles
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR, Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES, Source, Target, VectorOp
from fpgapipe.hw.hls_models.model import vector
from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.element_format import BF16, FP32, MXINT8
from fpgapipe.hw.hls_models.numerics.mx import BLOCK_BYTES, MX_BLOCK
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec

MX = Format.MXINT8


def target(base=0, steps=(1, BLOCK_BYTES), **fields):
    return Target(base, steps, format=MX, **fields)


HALVES = (
    "vector target of MXINT8 must have an innermost loop over the halves of a block (2 iterations, "
    "a step of 1 byte) and be even otherwise, not base {} and (count, step) of {}"
)


@pytest.mark.parametrize(
    ("counts", "to", "fields", "message"),
    [
        ((3, 2), target(), {}, HALVES.format(0, "[(3, 1), (2, 34)]")),
        ((2, 3), target(steps=(34, 1)), {}, HALVES.format(0, "[(2, 34), (3, 1)]")),
        ((2, 3), target(steps=(1, 33)), {}, HALVES.format(0, "[(2, 1), (3, 33)]")),
        ((2,), target(5), {}, HALVES.format(5, "[(2, 1)]")),
        ((1,), target(), {}, HALVES.format(0, "[]")),
        ((2, 2), target(steps=()), {"reduced": 1}, HALVES.format(0, "[(2, 0)]")),
        ((2,), Target(1), {}, "vector address must be even, not 1"),
        (
            (2,),
            Target(0),
            {"y": Source(0, format=MX, broadcast=True)},
            "vector source of MXINT8 must not be broadcast",
        ),
    ],
)
def test_refuses(counts, to, fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        VectorOp(counts, Source(0), to, **fields)


def test_halves_may_lie_in_any_loop_that_is_the_innermost_over_results():
    VectorOp((1, 2, 5), Source(1, format=MX), target(steps=(9, 1, 34)))
    VectorOp((3, 2, 5), Source(0), target(steps=(0, 1, 34)), reduced=1)
    VectorOp((2, 3), Source(0), target(steps=(1,)), inner=1, reduced=1)


def test_fields_come_back():
    rng = random.Random(1)
    formats = set()
    for _ in range(200):
        op = with_blocks(rng, random_op(rng, 1 << 14), 1 << 14)
        formats.add((op.x.format, op.target.format))
        fields = op.encoded()
        assert VectorOp.decoded(VECTOR.unpack(VECTOR.pack(fields))).encoded() == fields
    assert len(formats) == 9


def test_format_of_elements():
    assert [Format.of(each) for each in (BF16, FP32, MXINT8)] == list(Format)


def test_lanes_that_are_not_there_are_zeros_and_blocks_of_them_are_not_written():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(5, MX_BLOCK)).astype(np.float32)
    scratchpad = np.full(2048, 0xA5, np.uint8)
    scratchpad[: numbers.nbytes] = numbers.view(np.uint8).reshape(-1)
    op = VectorOp(
        (2, 5),
        Source(0, (64, 128)),
        target(1024, u=-40, u_steps=(LANES, MX_BLOCK), u_limit=70),
    )
    vector.run(op, scratchpad)
    numbers.reshape(-1)[:40] = 0
    numbers.reshape(-1)[110:] = 0
    expected = mx.pack(numbers)
    found = scratchpad[1024:][: 5 * BLOCK_BYTES].reshape(5, BLOCK_BYTES)
    np.testing.assert_array_equal(found[1:4], expected[1:4])
    assert (found[[0, 4]] == 0xA5).all()
    assert (scratchpad[1024 + 5 * BLOCK_BYTES :] == 0xA5).all()


def test_a_block_is_read_where_it_lies_round_the_end():
    block = mx.pack(np.arange(MX_BLOCK, dtype=np.float32))
    scratchpad = np.zeros(256, np.uint8)
    scratchpad[-20:], scratchpad[:14] = block[:20], block[20:]
    op = VectorOp((2,), Source(236, (1,), format=MX), Target(64, (64,)))
    vector.run(op, scratchpad)
    np.testing.assert_array_equal(scratchpad[64:192].view(np.float32), mx.unpack(block))
    with pytest.raises(IndexError, match=r"^vector address must be in 0\.\.255, not 256$"):
        vector.run(VectorOp((2,), Source(256, (1,), format=MX), Target(64, (64,))), scratchpad)


def test_only_writing_blocks_takes_longer():
    to_blocks = VectorOp((2, 9), Source(0), target())
    plain = VectorOp((2, 9), Source(0), Target(0))
    from_blocks = VectorOp((2, 9), Source(0, format=MX), Target(0))
    for spec in (VectorSpec(16, 4, mx=True), VectorSpec(2, 1, mx=True)):
        cycles = [vector_cycles(op, spec) for op in (plain, from_blocks, to_blocks)]
        assert cycles == [cycles[0], cycles[0], cycles[0] + mx.HALVES_CYCLES]
