"""Fields of the VECTOR instruction; `hls_models.isa.vector_op` explains their meaning."""

from enum import IntEnum

from fpgapipe.hw.hls_models.isa.fields import Field, Group
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat

NUM_VECTOR_LOOPS = 6
"""Number of loops in the loop nest of a VECTOR instruction."""

NUM_COEFFICIENTS = 4
"""Largest number of coefficient vectors; they are read in each iteration of the outermost loop."""

NUM_CONSTANTS = 5
"""Number of constants, which all lanes of all vectors share."""

ADDRESS_BITS, Y_BITS, U_BITS = 32, 16, 24
"""Widths of the two's complement numbers in which hardware keeps the address and coordinates."""

COUNTER_BITS = 8

RANDOM_BITS = 48
"""Width of the number of random vectors that an instruction skips."""


class Format(IntEnum):
    """Code of the format of a vector's elements in the scratchpad.

    A vector in MXINT8, which needs `VectorSpec.mx`, is half of a block. The address of the first
    half is that of the block (`fpgapipe.hw.hls_models.numerics.mx.pack`); the address of the second
    half is one more.
    """

    BF16 = 0
    FP32 = 1
    MXINT8 = 2

    @classmethod
    def of(cls, element_format: ElementFormat) -> "Format":
        """Code of a format of elements."""
        return cls[element_format.name]


_SOURCE = (
    Field("base", ADDRESS_BITS, signed=True),
    Field("y", Y_BITS, signed=True),
    Field("u", U_BITS, signed=True),
    Field("y_limit", Y_BITS),
    Field("u_limit", U_BITS),
    Field("format", 2),
    Field("broadcast", 1),
    Group(
        "jumps",
        (
            Field("address", ADDRESS_BITS, signed=True),
            Field("y", Y_BITS, signed=True),
            Field("u", U_BITS, signed=True),
        ),
        NUM_VECTOR_LOOPS,
    ),
)

VECTOR = Group(
    "vector",
    (
        Group("loops", (Field("count", 16),), NUM_VECTOR_LOOPS),
        Field("inner", 3),
        Field("reduced", 3),
        Field("takes_maximum", 1),
        Field("uses_y", 1),
        Group("x", _SOURCE),
        Group("source_y", _SOURCE),
        Group(
            "target",
            (
                Field("base", ADDRESS_BITS, signed=True),
                Field("u", U_BITS, signed=True),
                Field("u_limit", U_BITS),
                Field("format", 2),
                Group(
                    "jumps",
                    (
                        Field("address", ADDRESS_BITS, signed=True),
                        Field("u", U_BITS, signed=True),
                    ),
                    NUM_VECTOR_LOOPS,
                ),
            ),
        ),
        Group(
            "coefficients",
            (
                Field("base", ADDRESS_BITS, signed=True),
                Field("pitch", ADDRESS_BITS, signed=True),
                Field("step", ADDRESS_BITS, signed=True),
                Field("number", 3),
            ),
        ),
        Group("constants", (Field("value", 32), Field("is_register", 1)), NUM_CONSTANTS),
        Group(
            "counter",
            (
                Field("base", COUNTER_BITS),
                Group("jumps", (Field("step", COUNTER_BITS),), NUM_VECTOR_LOOPS),
            ),
        ),
        Group(
            "random",
            (Field("threshold", 16), Field("first", RANDOM_BITS), Field("key", 4)),
        ),
        Field("negate_x", 1),
        Field("negate_addend", 1),
        Field("addend", 2),
        Field("factor", 3),
        Field("negate_second", 1),
        Field("second", 3),
        Field("is_random", 1),
        Field("outcomes", 4),
        Field("left", 2),
        Field("right", 2),
        Field("then", 3),
        Field("otherwise", 3),
        Field("initial", 2),
        Field("relu", 1),
        Field("function", 4),
        Field("gives_index", 1),
    ),
)
"""VECTOR: an element-wise operation or a reduction, from scratchpad to scratchpad."""
