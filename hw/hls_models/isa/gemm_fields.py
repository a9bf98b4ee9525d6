"""Fields of the GEMM instruction; `hls_models.isa.address` explains operands and results."""

from fpgapipe.hw.hls_models.isa.fields import Field, Group

NUM_LOOPS = 3
"""Number of loops of a loop nest."""

_LOOP = (
    Field("count", 16),
    Field("address", 32, signed=True),
    Field("y", 16, signed=True),
    Field("u", 24, signed=True),
)


def _loop_nest(name: str) -> Group:
    return Group(name, _LOOP, NUM_LOOPS)


OPERAND = Group(
    "operand",
    (
        Field("base", 32, signed=True),
        Field("y", 16, signed=True),
        Field("u", 24, signed=True),
        Field("y_limit", 16),
        Field("u_limit", 24),
        Field("lanes_last", 6),
        Field("lanes_by_outer", 1),
        Field("emit", 6),
        Field("emit_last", 6),
        Field("subs", 6),
        Field("subs_last", 6),
        Field("blocks", 16),
        Field("pos0_left", 16),
        Field("pos1_left", 16),
        Field("walks_blocks", 1),
        Field("transposed", 1),
        Field("fp32", 1),
        _loop_nest("outer"),
        _loop_nest("tap"),
        _loop_nest("pos"),
    ),
)
"""How an operand of a product is read; see `fpgapipe.hw.hls_models.isa.address.OperandPattern`.

The first position may lie in the middle of a row: `pos0_left` and `pos1_left` are the iterations
that the inner two loops of `pos` have left there, in place of their counts."""

RESULT = Group(
    "result",
    (
        Field("base", 32, signed=True),
        Field("u_limit", 24),
        Field("fp32", 1),
        Group("outer", (Field("count", 16), Field("address", 32, True), Field("u", 24, True)), 3),
        Group("pos", (Field("count", 16), Field("address", 32, True)), 3),
    ),
)
"""Where results of a product go; see `fpgapipe.hw.hls_models.isa.address.ResultPattern`."""

SHAPE = Group(
    "extent",
    (
        Field("m", 16),
        Field("k", 16),
        Field("n", 16),
        Field("first", 1),
        Field("last", 1),
        Field("acc_base", 16),
        Field("acc_step", 16),
    ),
)
"""Extent of a product, and its accumulators.

`m` vectors per tile, `k` tiles that are added up, and `n` columns of tiles; each of these fields
holds one less than the number. `first`: whether sums start from zero. `last`: whether the sums are
written as results. `acc_base`: accumulator of the first vector of the first column of tiles, and
`acc_step`: its distance to that of the next column."""

OPERAND_A = Group("a", OPERAND.fields)
OPERAND_B = Group("b", OPERAND.fields)

GEMM = Group("gemm", (SHAPE, OPERAND_A, OPERAND_B, RESULT))
"""GEMM: vectors of operand A stream past tiles of operand B."""
