"""Gateware of the elementary functions, :mod:`fpgapipe.hw.hls_models.numerics.function`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.numerics import function as model
from fpgapipe.hw.hls_models.numerics.fp32 import NAN_BITS
from fpgapipe.hw.hls_models.numerics.function import Function
from fpgapipe.hw.rtl.arith.fp32 import (
    INFINITY_BITS,
    Pipeline,
    leading_nibble,
    leading_zeros,
    normalized,
    shared,
)
from fpgapipe.hw.rtl.lib.modules import makes_modules

_ONE_BITS = 0x3F800000

_VALUE_BITS = 35
"""Width of a result before it is rounded: 7 bits before the binary point, and 28 after it."""

# Marks of an element for stages 4 and 5. For RECIPROCAL, the roots and LOG, the operand's fraction
# selects the segment; for the other functions, an argument in fixed point does.
_MARKS = data.StructLayout(
    {
        "roots": 1,  # RSQRT or SQRT
        "octave": 1,  # the mantissa of a root's operand is in [2, 4)
        "logarithm": 1,
        "whole": 1,  # LOG of an operand whose exponent has a logarithm other than zero
        "opposed": 1,  # the logarithms of exponent and mantissa have different signs
        "exponential": 1,
        "small": 1,  # TANH below 1/2
        "large": 1,  # TANH from 1/2 on
        "sigmoid": 1,
        "negative": 1,  # sign of the operand
        "by_operand": 1,  # the segment's value is to be multiplied by the operand's significand
        "by_fraction": 1,  # the fraction selects the segment
    }
)

# Sign of the result, and the special result that takes the place of a computed one.
_OUTCOME = data.StructLayout({"negative": 1, "zero": 1, "one": 1, "infinite": 1, "nan": 1})

# How a segment's value becomes the result. The value times a factor is shifted right by `shift` and
# added to a base or subtracted from it. With `square`, factor and base are the value itself.
# `power` is the biased exponent of the result.
_ENDS = data.StructLayout({"power": signed(10), "shift": 5, "subtract": 1, "square": 1})


class FunctionUnit(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.function.compute`.

    The latency is ``latency_cycles`` for every function, and the throughput is one element in every
    cycle with ``advance`` high; the unit stands still in the others. The registers have no reset:
    outputs before the first element are not valid.

    The function goes through the stages with its element, so functions may follow each other in any
    order. For a code that is no function, the result has no meaning.

    The table's 1024 rows of 70 bits are a ROM in two block RAMs of 36 Kbit. Seven products fit the
    multipliers of DSP blocks and have registers around them: 24 x 17 bits twice, 17 x 17, 26 x 17
    and 26 x 6, 24 x 17 and 24 x 12.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(32)
        FP32.
    function : In(4)
        A `Function`.
    o : Out(32)
        FP32.
    """

    spec = None
    latency_cycles = model.FUNCTION_CYCLES

    def __init__(self, spec: None = None) -> None:
        super().__init__({"advance": In(1), "i": In(32), "function": In(4), "o": Out(32)})

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "function_unit", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        def delayed(value, name, begin, end):
            """Carry a value of stage `begin` on to stage `end`."""
            for stage in range(begin + 1, end + 1):
                value = register(value, f"{name}{stage}")
            return value

        # Stage 1 decodes the element. The operand of the product with a constant is the significand
        # or, for LOG, the exponent.
        fraction, exponent = self.i[0:23], self.i[23:31]
        marks, distance = _marks(m, self.i, self.function)
        outcome = _outcome(m, self.i, self.function, distance)
        whole = Signal(8)
        places = Signal(signed(9))
        constant = Signal(model.CONSTANT_BITS)
        m.d.comb += [
            whole.eq(Mux(distance[8], 127 - exponent - fraction[22], distance)),
            # The product is shifted right by these places. Distances from 64 on count as 63, which
            # shifts out every bit. If the distance is negative, the result is a special one.
            places.eq(model.SATURATED_EXPONENT - 1 - exponent - (marks.small | marks.large)),
            constant.eq(
                Mux(marks.logarithm, model.LN_2, Mux(marks.small, model.ONE, model.LOG2_E))
            ),
        ]
        in_sight = Mux(places[6:8] != 0, 63, places[0:6])
        places2 = delayed(Mux(marks.logarithm, 0, in_sight), "places", 0, 2)
        operand = Mux(marks.logarithm, Cat(Const(0, 16), whole), Cat(fraction, Const(1, 1)))
        operand1 = register(operand, "operand1")
        constant1 = register(constant, "constant1")
        # LOG takes the upper half of mantissas for [3/4, 1), so that t is small if the result is.
        t1 = register(Mux(fraction[22], (1 << 23) - fraction, fraction)[0:23], "t1")
        fraction3 = delayed(fraction, "fraction", 0, 3)
        marks3 = delayed(marks, "marks", 0, 3)
        power4 = delayed(_power(m, self.i, self.function, marks), "power", 0, 4)
        outcome12 = delayed(outcome, "outcome", 0, 12)

        # Stage 2 makes the product in two parts, and begins to look for the first one bit of t.
        low2 = register(operand1 * constant1[0:17], "constant_low2")
        high2 = register(operand1 * constant1[17:34], "constant_high2")
        word = Signal(32)
        m.d.comb += word.eq(Cat(Const(0, 8), t1))
        skip2 = register(leading_nibble(m, word, "lead"), "skip2")
        word2 = register(word, "word2")

        # Stage 3 adds the parts of the product, and moves the first one bit of t to the top.
        product = Signal(58)
        m.d.comb += product.eq(low2 + Cat(Const(0, 17), high2))
        product3 = register(product[22:58], "product3")
        places3 = register(places2, "places3")
        shifted, lead = normalized(m, word2, skip2, "norm")
        t4 = delayed(shifted[8:32], "t", 2, 4)
        lead4 = delayed(lead, "lead", 2, 4)

        # Stage 4 makes the argument in fixed point, and finds the segment that it is in.
        argument = Signal(36)
        m.d.comb += argument.eq(product3 >> places3)
        row, offset = _segment(m, marks3, argument, fraction3)
        argument4 = register(argument, "argument4")
        offset5 = delayed(offset, "offset", 3, 5)
        marks4 = register(marks3, "marks4")
        fraction4 = register(fraction3, "fraction4")
        m.submodules.table = table = Memory(
            shape=unsigned(model.ROW_BITS), depth=model.TABLE_ROWS, init=model.table_words()
        )
        port = table.read_port()
        m.d.comb += [port.en.eq(self.advance), port.addr.eq(row)]

        # Stage 5 reads the row of the table, and finds how the segment's value becomes the result:
        # the factor, the shift and the base.
        row5 = register(port.data, "row5")
        base, ends = _ends(m, marks4, argument4, lead4 + fraction4[22], power4)
        base8 = delayed(base, "base", 4, 8)
        ends8 = delayed(ends, "ends", 4, 8)
        significand = Cat(Mux(marks4.by_operand, fraction4, 0)[0:23], Const(1, 1))
        factor8 = delayed(Mux(marks4.logarithm, t4, significand), "factor", 4, 8)

        # Stage 6 makes the slope, c1 + c2 * offset, with two more fraction bits.
        c1_begin, c2_begin = (sum(model.COEFFICIENT_BITS[:count]) for count in (1, 2))
        slope = Signal(signed(26))
        c1, c2 = row5[c1_begin:c2_begin].as_signed(), row5[c2_begin:].as_signed()
        m.d.comb += slope.eq((c1 << 2) + ((c2 * offset5[6:23]) >> 15))
        slope6 = register(slope, "slope6")
        offset6 = register(offset5, "offset6")
        c0_7 = delayed(row5[0:c1_begin], "c0_", 5, 7)

        # Stage 7 multiplies the slope by the offset, in two parts.
        low7 = register(slope6 * offset6[0:6], "slope_low7")
        high7 = register(slope6 * offset6[6:23], "slope_high7")

        # Stage 8 makes the segment's value.
        rise = Signal(signed(50))
        m.d.comb += rise.eq(low7 + (high7 << 6))
        value8 = register((c0_7 + (rise >> 25))[0:29], "value8")

        # Stage 9 multiplies the value by a factor, or by itself, in two parts.
        factor = Signal(24)
        m.d.comb += factor.eq(Mux(ends8.square, value8[5:29], factor8))
        low9 = register(factor * value8[0:12], "factor_low9")
        high9 = register(factor * value8[12:29], "factor_high9")
        base10 = delayed(Mux(ends8.square, value8, base8), "base", 8, 10)
        ends10 = delayed(ends8, "ends", 8, 10)

        # Stage 10 adds the parts.
        scaled = Signal(53)
        m.d.comb += scaled.eq(low9 + Cat(Const(0, 12), high9))
        scaled10 = register(scaled[23:53], "scaled10")

        # Stage 11 adds the base: zero, one, the logarithm of the exponent, or the value. No total
        # is negative.
        part = Signal(30)
        total = Signal(_VALUE_BITS)
        m.d.comb += [
            part.eq(scaled10 >> ends10.shift),
            total.eq(Mux(ends10.subtract, base10 - part, base10 + part)),
        ]
        total11 = register(total, "total11")
        power11 = register(ends10.power, "power11")

        # Stage 12 moves the first one bit up by whole nibbles, and stage 13 by the rest. The bit is
        # one of the upper nine, since no total is below 1/4.
        coarse = Signal(_VALUE_BITS)
        skip, fine = Signal(2), Signal(2)
        m.d.comb += [
            skip[1].eq(total11[27:35] == 0),
            skip[0].eq((total11[31:35] == 0) & ~skip[1]),
            coarse.eq(total11 << Cat(Const(0, 2), skip)),
            fine.eq(leading_zeros(coarse)),
        ]
        coarse12 = register(coarse, "coarse12")
        fine12 = register(fine, "fine12")
        power12 = register((power11 + 6 - Cat(fine, skip))[0:10], "power12")

        # Stage 13 rounds. The carry may lift a result to the least normal number, or to infinity.
        # Below exponent 1 the result is zero, and from 255 on it is infinite.
        value = Signal(_VALUE_BITS - 1)
        rounded = Signal(signed(34))
        m.d.comb += value.eq(coarse12 << fine12)
        up = value[10] & (value[11] | (value[0:10] != 0))
        m.d.comb += rounded.eq(Cat(value[11:34], power12).as_signed() + up)
        instead = {
            0: (rounded < (1 << 23)) | outcome12.zero,
            INFINITY_BITS: outcome12.infinite | ((rounded >= INFINITY_BITS) & ~outcome12.zero),
            _ONE_BITS: outcome12.one,
            NAN_BITS: outcome12.nan,
        }
        number = register(rounded[0:31], "number13", instead)
        negative = register(outcome12.negative & ~outcome12.nan, "negative13")
        m.d.comb += self.o.eq(Cat(number, negative))
        return m


def _marks(m, operand, function):
    """Decode a function and its operand.

    Returns
    -------
    View of _MARKS, Value of 9 bits, signed
        The marks, and for LOG the exponent of the power of two in the operand.
    """
    fraction, exponent, negative = operand[0:23], operand[23:31], operand[31]
    marks = Signal(_MARKS)
    distance = Signal(signed(9))
    tanh = function == Function.TANH
    reciprocal = function == Function.RECIPROCAL
    m.d.comb += [
        distance.eq(exponent + fraction[22] - 127),
        marks.roots.eq((function == Function.RSQRT) | (function == Function.SQRT)),
        marks.octave.eq(~exponent[0]),
        marks.logarithm.eq(function == Function.LOG),
        marks.whole.eq(marks.logarithm & (distance != 0)),
        marks.opposed.eq(fraction[22] ^ distance[8]),
        marks.exponential.eq(function == Function.EXP),
        marks.small.eq(tanh & (exponent < 126)),
        marks.large.eq(tanh & (exponent >= 126)),
        marks.sigmoid.eq(function == Function.SIGMOID),
        marks.negative.eq(negative),
        marks.by_operand.eq((function == Function.SQRT) | marks.small),
        marks.by_fraction.eq(reciprocal | marks.roots | marks.logarithm),
    ]
    return marks, distance


def _outcome(m, operand, function, distance):
    """Find the sign of a result, and the results that are not computed."""
    fraction, exponent, negative = operand[0:23], operand[23:31], operand[31]
    outcome = Signal(_OUTCOME)
    zero, largest = exponent == 0, exponent == 255
    saturated = exponent >= model.SATURATED_EXPONENT
    positive_only = function.matches(Function.RSQRT, Function.SQRT, Function.LOG)
    m.d.comb += outcome.nan.eq((largest & (fraction != 0)) | (positive_only & negative & ~zero))
    with m.Switch(function):
        with m.Case(Function.RECIPROCAL):
            m.d.comb += [
                outcome.negative.eq(negative),
                outcome.infinite.eq(zero),
                outcome.zero.eq(largest),
            ]
        with m.Case(Function.RSQRT):
            m.d.comb += [outcome.negative.eq(negative), outcome.infinite.eq(zero)]
            m.d.comb += outcome.zero.eq(largest)
        with m.Case(Function.SQRT):
            m.d.comb += [outcome.negative.eq(negative), outcome.infinite.eq(largest)]
            m.d.comb += outcome.zero.eq(zero)
        with m.Case(Function.EXP):
            m.d.comb += [
                outcome.infinite.eq(saturated & ~negative),
                outcome.zero.eq(saturated & negative),
            ]
        with m.Case(Function.LOG):
            near = distance == 0
            m.d.comb += [
                outcome.negative.eq(distance[8] | (near & fraction[22])),
                outcome.infinite.eq(zero | largest),
                outcome.zero.eq(near & (fraction == 0)),
            ]
        with m.Case(Function.TANH):
            large = exponent >= model.SATURATED_EXPONENT - 1
            m.d.comb += [outcome.negative.eq(negative), outcome.one.eq(large)]
        with m.Case(Function.SIGMOID):
            m.d.comb += [
                outcome.one.eq(saturated & ~negative),
                outcome.zero.eq(saturated & negative),
            ]
    return outcome


def _power(m, operand, function, marks):
    """Find a result's biased exponent, as far as the operand's exponent and sign determine it."""
    exponent = operand[23:31]
    power = Signal(8)
    m.d.comb += power.eq(Mux(marks.small, exponent, 127))
    with m.Switch(function):
        with m.Case(Function.RECIPROCAL):
            m.d.comb += power.eq(254 - exponent)
        with m.Case(Function.RSQRT):
            m.d.comb += power.eq(191 - ((exponent + 1) >> 1))
        with m.Case(Function.SQRT):
            m.d.comb += power.eq(64 + (exponent >> 1))
        with m.Case(Function.EXP):
            # 2**(k + f) is 2**(k + 1) * 2**-(1 - f).
            m.d.comb += power.eq(Mux(operand[31], 127, 128))
    return power


def _segment(m, marks, argument, fraction):
    """Find the row of the table, of 10 bits, and the offset in its segment, of 23 bits."""
    k = argument[28:36]
    place = Signal(28)  # position in the function's range
    row = Signal(10)
    offset = Signal(model.OFFSET_BITS)
    inverse = marks.exponential & ~marks.negative
    upper = fraction[22]
    near = (marks.sigmoid | marks.large) & (k < model.FAR)
    # Each part of the table begins at a multiple of its size, so its address needs no addition.
    tail = Mux(upper, Cat(place[22:27], Const(0b01, 2)), Cat(place[21:27], Const(1, 1)))
    m.d.comb += [
        place.eq(
            Mux(marks.by_fraction, Cat(Const(0, 5), fraction), Mux(inverse, ~argument, argument))
        ),
        row.eq(
            Mux(
                marks.by_fraction,
                Mux(
                    marks.logarithm,
                    Cat(tail, Const(0b111, 3)),
                    Cat(place[21:28], marks.roots & marks.octave, marks.roots),
                ),
                Mux(
                    near,
                    Cat(place[23:28], k[0:4], Const(1, 1)),
                    Cat(place[22:28], marks.small, Const(1, 1)),
                ),
            )
        ),
        # The offset has the bits below the row's number, moved to the top. A segment of LOG in the
        # upper half is twice as wide as one in the lower half.
        offset.eq(
            Mux(
                near,
                place,
                Mux(
                    marks.by_fraction & ~(marks.logarithm & upper),
                    Cat(Const(0, 2), place[0:21]),
                    Cat(Const(0, 1), place[0:22]),
                ),
            )
        ),
    ]
    return row, offset


def _ends(m, marks, argument, lead, power):
    """Decide how a segment's value becomes the result.

    Parameters
    ----------
    marks : View of _MARKS
    argument : Value of 36 bits
        Argument in fixed point, with the whole number k in the upper 8 bits; for LOG, the first
        summand of the result.
    lead : Value of 5 bits
        Number of places by which t of LOG has moved up.
    power : Value of 8 bits
        Exponent of the result, as far as it is known.

    Returns
    -------
    Value of 35 bits, View of _ENDS
        The base, and what happens to the value.
    """
    k = argument[28:36]
    base = Signal(_VALUE_BITS)
    ends = Signal(_ENDS)
    below = marks.sigmoid & marks.negative
    from_one = marks.large | (marks.sigmoid & ~marks.negative)
    lower = Signal(8)  # correction of the exponent
    m.d.comb += [
        base.eq(Mux(marks.whole, argument, Cat(Const(0, model.POINT_BITS), from_one))),
        ends.square.eq(below & (k >= model.FAR)),
        ends.subtract.eq((marks.whole & marks.opposed) | from_one | ends.square),
        lower.eq(
            Mux(
                marks.logarithm,
                Mux(marks.whole, 0, lead),
                Mux(marks.exponential | below, k, 0),
            )
        ),
        ends.power.eq(Mux(marks.exponential & ~marks.negative, power + lower, power - lower)),
    ]
    shift = Signal(8)
    m.d.comb += [
        shift.eq(k - marks.large),
        ends.shift.eq(
            Mux(
                marks.logarithm,
                Mux(marks.whole, lead, 0),
                Mux(from_one | ends.square, Mux(shift[5:8] != 0, 31, shift[0:5]), 0),
            )
        ),
    ]
    return base, ends
