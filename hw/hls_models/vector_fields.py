"""Fields of the VECTOR instruction; :mod:`fpgapipe.hw.hls_models.vector` says what they mean."""

from fpgapipe.hw.hls_models.fields import Field, Group

NUM_VECTOR_LOOPS = 6
"""Loops of the nest of a VECTOR instruction."""

NUM_COEFFICIENTS = 4
"""Vectors that are read once for each step of the outermost loop."""

NUM_CONSTANTS = 5
"""Numbers that all lanes of all vectors share."""

ADDRESS_BITS, Y_BITS, U_BITS = 32, 16, 24
"""Two's complement numbers in which hardware keeps what the loops move."""

COUNTER_BITS = 8

_SOURCE = (
    Field("base", ADDRESS_BITS, signed=True),
    Field("y", Y_BITS, signed=True),
    Field("u", U_BITS, signed=True),
    Field("y_limit", Y_BITS),
    Field("u_limit", U_BITS),
    Field("fp32", 1),
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
                Field("fp32", 1),
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
            (Field("threshold", 16), Field("first", 48), Field("key", 4)),
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
