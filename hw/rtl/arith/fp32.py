"""Gateware of the FP32 arithmetic, :mod:`fpgapipe.hw.hls_models.numerics.fp32`.

Each component is a pipeline of fixed latency. It accepts a value and gives one in every cycle with
``advance`` high, and stands still in the others. The registers have no reset: outputs before the
first value are not valid, and the user of a pipeline counts its cycles.

The signals are few and wide, and bits are selected by shifts of a variable amount. Verilator needs
one machine instruction for such a shift, where an FPGA has a tree of multiplexers.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.numerics import fp32
from fpgapipe.hw.hls_models.numerics.fp32 import NAN_BITS, SumSpec
from fpgapipe.hw.rtl.lib.modules import instance_of, makes_modules

INFINITY_BITS = 0x7F800000

INFINITE = 255
"""Biased exponent of infinity and NaN."""


class _Binary(wiring.Component):
    """Pipeline of two FP32 operands and one FP32 result."""

    spec = None

    def __init__(self, spec: None = None) -> None:
        super().__init__({"advance": In(1), "a": In(32), "b": In(32), "o": Out(32)})


def shared(component, name, platform):
    """Elaborate a component as an instance of the one module that all of its kind share.

    See :func:`~fpgapipe.hw.rtl.lib.modules.instance_of`. Unlike an instance, the result may be a
    whole design, as it is in tests.
    """
    m = Module()
    m.submodules.shared = instance_of(component, name, platform)
    return m


class Pipeline:
    """Makes the registers of a pipeline, which keep values for later stages.

    Parameters
    ----------
    m : Module
    advance : Signal
        Clock enable.
    """

    def __init__(self, m, advance) -> None:
        self._m = m
        self._advance = advance

    def register(self, value, name, instead=()):
        """Hold a value for the next stage.

        Parameters
        ----------
        value : Value
        name : str
        instead : dict of int to Value, optional
            Numbers that are held instead of the value where a condition is high; of several, the
            last one counts. An FPGA's register has a pin for that.
        """
        held = Signal(value.shape(), name=name, reset_less=True)
        with self._m.If(self._advance):
            self._m.d.sync += held.eq(value)
            for number in instead:
                with self._m.If(instead[number]):
                    self._m.d.sync += held.eq(number)
        return held


def first_exponent(spec):
    """Biased exponent of a sum whose magnitude takes all bits, if both codes are 0.

    Parameters
    ----------
    spec : SumSpec
    """
    return spec.acc_bits - 1 - fp32.CODE_BIAS - fp32.SUM_FRACTION_BITS


def leading_nibble(m, word, name):
    """Number of leading zero nibbles of a word of 32 bits, 0 to 7.

    Returns
    -------
    Value of 3 bits
        7 if at most the last nibble has a one.
    """
    skip = Signal(3, name=f"{name}_skip")
    # All bytes and nibbles are compared at once, and then one is selected; a search is slower.
    zero = [word[bit : bit + 8] == 0 for bit in (0, 8, 16, 24)]
    m.d.comb += [
        skip[2].eq(zero[3] & zero[2]),
        skip[1].eq(Mux(skip[2], zero[1], zero[3])),
        skip[0].eq(
            Mux(
                skip[2],
                Mux(zero[1], word[4:8] == 0, word[12:16] == 0),
                Mux(zero[3], word[20:24] == 0, word[28:32] == 0),
            )
        ),
    ]
    return skip


def leading_zeros(word):
    """Number of zeros before the first one bit of a word, 0 to 3."""
    first, second, third = word[-1], word[-2], word[-3]
    return Cat(~first & (second | ~third), ~first & ~second)


def normalized(m, word, skip, name):
    """Shift a word of 32 bits until its first bit is one.

    Parameters
    ----------
    skip : Value
        The word's `leading_nibble`.

    Returns
    -------
    Value of 32 bits, Value of 5 bits
        The word and the shift. If the first bit is zero nevertheless, the word has no ones.
    """
    coarse = Signal(32, name=f"{name}_coarse")
    fine = Signal(2, name=f"{name}_fine")
    shifted = Signal(32, name=f"{name}_shifted")
    m.d.comb += [
        coarse.eq(word << Cat(Const(0, 2), skip)),
        fine.eq(leading_zeros(coarse)),
        shifted.eq(coarse << fine),
    ]
    return shifted, Cat(fine, skip)


class Fp32Adder(_Binary):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.fp32.add`.

    Latency ``latency_cycles``, throughput one sum in every cycle with ``advance`` high.

    The larger magnitude comes first, so that the smaller significand is shifted and a difference is
    never negative. Three bits below the significand are enough for rounding: a guard bit, since a
    difference of numbers with distant exponents may have to move up by one place, a round bit, and
    a sticky bit for all bits that were shifted out.

    Members
    -------
    advance : In(1)
        Clock enable.
    a, b : In(32)
    o : Out(32)
    """

    latency_cycles = fp32.ADD_CYCLES

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "fp32_adder", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        # Stage 1 finds the larger operand and the distance of the exponents. A distance above 31
        # has the same effect as 31.
        swap = Signal()
        large = Signal(32)
        small = Signal(32)
        distance = Signal(8)
        m.d.comb += [
            swap.eq(self.b[0:31] > self.a[0:31]),
            large.eq(Mux(swap, self.b, self.a)),
            small.eq(Mux(swap, self.a, self.b)),
            distance.eq(large[23:31] - small[23:31]),
        ]
        # The larger operand's exponent and sign and a flag go through the stages as one word.
        context1 = register(Cat(large[23:32], large[31] ^ small[31]), "context1")
        # A subnormal operand is zero.
        one = Const(1, 1)
        large1 = register(Cat(large[0:23], one), "large1", {0: large[23:31] == 0})
        small1 = register(Cat(small[0:23], one), "small1", {0: small[23:31] == 0})
        distance1 = register(distance[0:5], "distance1", {31: distance[5:8] != 0})

        # Stage 2 moves the smaller significand down, but for the last place; first by 0 to 6
        # places, then by 0 to 24. Two bits below the larger one's significand stay. Of what is
        # below them, it matters whether there is a one.
        near = Signal(30)
        far = Signal(26)
        lost = Signal()
        m.d.comb += [
            near.eq(Cat(Const(0, 6), small1) >> Cat(Const(0, 1), distance1[1:3])),
            far.eq(near[4:30] >> Cat(Const(0, 3), distance1[3:5])),
            lost.eq(
                (near[0:4] != 0)
                | ((distance1[3:5] != 0) & (near[4:12] != 0))
                | (distance1[4] & (near[12:20] != 0))
                | ((distance1[3:5] == 3) & (near[20:28] != 0))
            ),
        ]
        # The larger operand is NaN if one of them is. Infinity less infinity is NaN as well.
        infinite = context1[0:8] == INFINITE
        nan = infinite & ((large1[0:23] != 0) | (context1[9] & (distance1 == 0)))
        context2 = register(Cat(context1, nan), "context2")
        large2 = register(large1, "large2")
        far2 = register(far, "far2")
        marks2 = register(Cat(distance1[0], lost), "marks2")

        # Stage 3 moves by the last place, adds or subtracts, and begins to look for the first one
        # bit.
        subtract = context2[9]
        small3 = Signal(27)
        total = Signal(28)
        m.d.comb += [
            small3.eq(Cat(marks2[1] | (marks2[0] & far2[0]), Mux(marks2[0], far2[1:26], far2))),
            total.eq(
                Cat(Const(0, 3), large2)
                + (Cat(small3, Const(0, 1)) ^ subtract.replicate(28))
                + subtract
            ),
        ]
        context3 = register(context2, "context3")
        word3 = register(total, "word3")
        skip3 = register(leading_nibble(m, Cat(Const(0, 4), total), "lead"), "skip3")

        # Stage 4 moves the first one bit up by whole nibbles. The exponent becomes smaller by all
        # places, down to 1 - 31, but that of infinity stays. Infinity has a fraction of zero.
        coarse = Signal(28)
        fine = Signal(2)
        exponent = Signal(signed(9))
        m.d.comb += [
            coarse.eq(word3 << Cat(Const(0, 2), skip3)),
            fine.eq(leading_zeros(coarse)),
            exponent.eq(context3[0:8] + 1 - Cat(fine, skip3)),
        ]
        infinite = context3[0:8] == INFINITE
        overflow = infinite | ((context3[0:8] == 254) & word3[27])
        zero = (skip3 == 7) & ~infinite
        # The sign of the larger operand is that of the result, but a difference of zero is +0.
        negative = context3[8] & ~(context3[9] & zero) & ~context3[10]
        marks4 = register(Cat(fine, negative, context3[10], zero), "marks4")
        exponent4 = register(exponent, "exponent4", {INFINITE: infinite})
        coarse4 = register(coarse, "coarse4", {0: overflow})

        # Stage 5 moves by the last places, and rounds. A sum below the least normal number has no
        # bits that are rounded away.
        places4, negative, nan, zero = marks4[0:2], marks4[2], marks4[3], marks4[4]
        word = Signal(28)
        m.d.comb += word.eq(coarse4 << places4)
        up = word[3] & (word[4] | (word[0:3] != 0))
        tiny = (exponent4 <= 0) | zero
        rounded = Signal(31)
        m.d.comb += rounded.eq(Cat(word[4:27], exponent4[0:8]) + up)
        number = register(rounded | Cat(Const(0, 22), nan), "number5", {0: tiny})
        m.d.comb += self.o.eq(Cat(number, register(negative, "negative5")))
        return m


class Fp32Multiplier(_Binary):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.fp32.multiply`.

    Latency ``latency_cycles``, throughput one product in every cycle with ``advance`` high.

    The significands have a register, and their product has two, which are the registers inside the
    DSP blocks of the multiplication.

    Members
    -------
    advance : In(1)
        Clock enable.
    a, b : In(32)
    o : Out(32)
    """

    latency_cycles = fp32.MULTIPLY_CYCLES

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "fp32_multiplier", platform)

        m = Module()
        register = Pipeline(m, self.advance).register
        a, b = self.a, self.b

        # Stage 1 takes the operands. A product with infinity is infinite, except that infinity
        # times zero is NaN; one with zero is tiny.
        biased = Signal(10)
        infinite = Signal()
        zero = Signal()
        nan = Signal()
        m.d.comb += [
            biased.eq(a[23:31] + b[23:31] + 1),
            infinite.eq((a[23:31] == INFINITE) | (b[23:31] == INFINITE)),
            zero.eq((a[23:31] == 0) | (b[23:31] == 0)),
            nan.eq(is_nan(a) | is_nan(b) | (infinite & zero)),
        ]
        # The bias is 128 - 1, and the first two bits are enough to subtract 128.
        exponent = Cat(biased[0:7], (biased[7:10] - 1)[0:3]).as_signed()
        marks1 = register(Cat(a[31] ^ b[31], nan), "marks1")
        exponent1 = register(exponent, "exponent1", {-1: zero, INFINITE: infinite})
        # The first bit of a significand is one even if the number is zero.
        a1 = register(Cat(a[0:23], Const(1, 1)), "a1")
        b1 = register(Cat(b[0:23], Const(1, 1)), "b1")

        # Stage 2 multiplies. The product is at least 1.0 and below 4.0, with 46 fraction bits.
        product = Signal(48)
        m.d.comb += product.eq(a1 * b1)
        marks2 = register(marks1, "marks2")
        exponent2 = register(exponent1, "exponent2")
        product2 = register(product, "product2")

        # In stage 3, DSP blocks add the parts of the product.
        marks3 = register(marks2, "marks3")
        exponent3 = register(exponent2, "exponent3")
        product3 = register(product2, "product3")

        # Stage 4 finds which bit is the first one, and whether to round up. Infinity has a fraction
        # of zero.
        carry = product3[47]
        last = Mux(carry, product3[24], product3[23])
        half = Mux(carry, product3[23], product3[22])
        rest = (product3[0:22] != 0) | (carry & product3[22])
        exponent = Signal(signed(10))
        infinite = Signal()
        m.d.comb += [exponent.eq(exponent3 + carry), infinite.eq(exponent >= INFINITE)]
        marks4 = register(marks3, "marks4")
        exponent4 = register(exponent, "exponent4", {INFINITE: infinite})
        word4 = register(Cat(carry, half & (rest | last), product3[23:47]), "word4", {0: infinite})

        # Stage 5 moves the first bit to the top, and rounds. The carry may lift a product to the
        # least normal number.
        rounded = Signal(signed(33))
        fraction = Mux(word4[0], word4[3:26], word4[2:25])
        m.d.comb += rounded.eq(Cat(fraction, exponent4).as_signed() + word4[1])
        negative, nan = marks4[0], marks4[1]
        number = rounded[0:31] | Cat(Const(0, 22), nan)
        tiny = rounded < (1 << 23)
        number5 = register(number, "number5", {0: tiny})
        m.d.comb += self.o.eq(Cat(number5, register(negative & ~nan, "negative5")))
        return m


class SumConverter(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.fp32.from_sum`.

    Latency ``latency_cycles``, throughput one value in every cycle with ``advance`` high.

    Members
    -------
    advance : In(1)
        Clock enable.
    sum : In(signed(acc_bits))
        Partial sum.
    exponent : In(signed(10))
        Biased exponent of a sum whose magnitude takes all bits: the sum of the two codes, and
        `first_exponent`.
    nan : In(1)
        Whether a code was that of NaN.
    o : Out(32)
        Sum as FP32.
    """

    latency_cycles = fp32.FROM_SUM_CYCLES

    def __init__(self, spec: SumSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "advance": In(1),
                "sum": In(signed(spec.acc_bits)),
                "exponent": In(signed(10)),
                "nan": In(1),
                "o": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, f"sum_converter_{self.spec.acc_bits}", platform)

        m = Module()
        register = Pipeline(m, self.advance).register
        acc_bits = self.spec.acc_bits

        # Stage 1 makes the magnitude; that of the least sum takes all bits.
        magnitude = Signal(acc_bits)
        word = Signal(32)
        m.d.comb += [
            magnitude.eq((self.sum ^ self.sum[-1].replicate(acc_bits)) + self.sum[-1]),
            word.eq(Cat(Const(0, 32 - acc_bits), magnitude)),
        ]
        marks1 = register(Cat(self.sum[-1], self.nan), "marks1")
        word1 = register(word, "word1")
        skip1 = register(leading_nibble(m, word, "lead"), "skip1")
        exponent1 = register(self.exponent, "exponent1")

        # Stage 2 moves the first one bit up by whole nibbles.
        coarse = Signal(24)
        fine = Signal(2)
        exponent = Signal(signed(11))
        m.d.comb += [
            coarse.eq((word1 << Cat(Const(0, 2), skip1))[8:32]),
            fine.eq(leading_zeros(coarse)),
            exponent.eq(exponent1 - Cat(fine, skip1)),
        ]
        zero = (skip1 == 7) & ~marks1[1]
        marks2 = register(Cat(fine, marks1, zero), "marks2")
        exponent2 = register(exponent, "exponent2", {INFINITE: marks1[1]})
        coarse2 = register(coarse, "coarse2")

        # Stage 3 moves by the last places. It has nothing to round, but the exponent may be out of
        # range on either side.
        places2, negative, nan, zero = marks2[0:2], marks2[2], marks2[3], marks2[4]
        word = Signal(24)
        tiny = Signal()
        infinite = Signal()
        m.d.comb += [
            word.eq(coarse2 << places2),
            tiny.eq((exponent2 <= 0) | zero),
            infinite.eq(exponent2 >= INFINITE),
        ]
        fraction = register(word[0:23], "fraction3", {0: tiny | infinite})
        code = register(exponent2[0:8] | infinite.replicate(8), "code3", {0: tiny})
        marks3 = register(Cat(nan, negative & ~nan), "marks3")
        m.d.comb += self.o.eq(Cat(fraction[0:22], fraction[22] | marks3[0], code, marks3[1]))
        return m


class Bf16Rounder(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.fp32.to_bf16`.

    Latency ``latency_cycles``, throughput one value in every cycle with ``advance`` high.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(32)
        FP32.
    o : Out(16)
        BF16.
    """

    spec = None
    latency_cycles = fp32.TO_BF16_CYCLES

    def __init__(self, spec: None = None) -> None:
        super().__init__({"advance": In(1), "i": In(32), "o": Out(16)})

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "bf16_rounder", platform)

        m = Module()
        register = Pipeline(m, self.advance).register
        # A carry continues into the exponent, up to infinity; infinity itself has nothing to round.
        rounded = Signal(15)
        up = self.i[15] & (self.i[16] | (self.i[0:15] != 0))
        m.d.comb += rounded.eq(self.i[16:31] + up)
        nan = self.i[0:31] > INFINITY_BITS
        magnitude = Mux(nan, NAN_BITS >> 16, Mux(self.i[23:31] == 0, 0, rounded))
        m.d.comb += self.o.eq(register(Cat(magnitude[0:15], self.i[31] & ~nan), "result1"))
        return m


def is_nan(value):
    """Whether a word is a NaN."""
    return (value[23:31] == INFINITE) & (value[0:23] != 0)
