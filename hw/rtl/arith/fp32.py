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

    def register(self, value, name):
        """Hold a value for the next stage."""
        held = Signal(value.shape(), name=name, reset_less=True)
        with self._m.If(self._advance):
            self._m.d.sync += held.eq(value)
        return held


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
        fine[1].eq(coarse[30:32] == 0),
        fine[0].eq(~Mux(fine[1], coarse[29], coarse[31])),
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
        nan = Signal()
        subtract = Signal()
        m.d.comb += [
            swap.eq(self.b[0:31] > self.a[0:31]),
            large.eq(Mux(swap, self.b, self.a)),
            small.eq(Mux(swap, self.a, self.b)),
            distance.eq(large[23:31] - small[23:31]),
            subtract.eq(large[31] ^ small[31]),
            # Infinity less infinity is NaN; the larger magnitude is that of a NaN if there is one.
            nan.eq((large[0:31] > INFINITY_BITS) | (subtract & (small[0:31] == INFINITY_BITS))),
        ]
        # The larger operand's exponent and sign and two flags go through the stages as one word.
        context1 = register(Cat(large[23:32], nan, subtract), "context1")
        large1 = register(_significand(large), "large1")
        small1 = register(_significand(small), "small1")
        distance1 = register(Mux(distance[5:8] != 0, 31, distance[0:5]), "distance1")

        # Stage 2 moves the smaller significand down.
        aligned = Signal(50)
        m.d.comb += aligned.eq(Cat(Const(0, 26), small1) >> distance1)
        context2 = register(context1, "context2")
        large2 = register(large1, "large2")
        small2 = register(Cat(aligned[0:24] != 0, aligned[24:50]), "small2")

        # Stage 3 adds or subtracts, and begins to look for the first one bit.
        total = Signal(28)
        word = Signal(32)
        minuend = Cat(Const(0, 3), large2)
        m.d.comb += [
            total.eq(Mux(context2[10], minuend - small2, minuend + small2)),
            word.eq(Cat(Const(0, 4), total)),
        ]
        context3 = register(context2, "context3")
        word3 = register(word, "word3")
        skip3 = register(leading_nibble(m, word, "lead"), "skip3")

        # Stage 4 moves the first one bit to the top. The exponent becomes smaller accordingly, down
        # to 1 - 31, but that of infinity stays.
        shifted, shift = normalized(m, word3, skip3, "norm")
        exponent = Signal(signed(9))
        largest = context3[0:8] == 255
        m.d.comb += exponent.eq(Mux(largest, 255, context3[0:8] + 1 - shift))
        # The sign of the larger operand is that of the result, but a difference of zero is +0.
        negative = context3[8] & ~(context3[10] & (word3 == 0))
        marks4 = register(Cat(negative, context3[9]), "marks4")
        exponent4 = register(exponent, "exponent4")
        word4 = register(shifted, "word4")

        # Stage 5 rounds. A sum below the least normal number has no bits that are rounded away.
        rounded = Signal(32)
        up = word4[7] & (word4[8] | (word4[0:7] != 0))
        m.d.comb += rounded.eq(Cat(word4[8:31], exponent4[0:8]) + up)
        tiny = (exponent4 <= 0) | ~word4[31]
        m.d.comb += self.o.eq(register(_result(m, marks4, rounded, tiny), "result5"))
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
        # times zero is NaN.
        exponent = Signal(signed(10))
        infinite = Signal()
        zero = Signal()
        nan = Signal()
        m.d.comb += [
            exponent.eq(a[23:31] + b[23:31] - fp32.CODE_BIAS),
            infinite.eq((a[23:31] == 255) | (b[23:31] == 255)),
            zero.eq((a[23:31] == 0) | (b[23:31] == 0)),
            nan.eq((a[0:31] > INFINITY_BITS) | (b[0:31] > INFINITY_BITS) | (infinite & zero)),
        ]
        marks1 = register(Cat(a[31] ^ b[31], nan, infinite, zero), "marks1")
        exponent1 = register(exponent, "exponent1")
        # The first bit of a significand is one even if the number is zero; a mark says whether it
        # is.
        a1 = register(Cat(a[0:23], Const(1, 1)), "a1")
        b1 = register(Cat(b[0:23], Const(1, 1)), "b1")

        # Stage 2 multiplies. The product is at least 1.0 and below 4.0, with 46 fraction bits.
        product = Signal(48)
        m.d.comb += product.eq(a1 * b1)
        marks2 = register(marks1, "marks2")
        exponent2 = register(exponent1, "exponent2")
        product2 = register(product, "product2")

        # In stage 3, DSP blocks add the parts of the product. Zero and infinity get exponents.
        range3 = Signal(signed(10))
        m.d.comb += range3.eq(Mux(marks2[2], 255, Mux(marks2[3], -1, exponent2)))
        marks3 = register(marks2[0:2], "marks3")
        exponent3 = register(range3, "exponent3")
        product3 = register(product2, "product3")

        # Stage 4 moves the first bit to the top, and finds whether to round up.
        carry = product3[47]
        fraction = Mux(carry, product3[24:47], product3[23:46])
        half = Mux(carry, product3[23], product3[22])
        rest = (product3[0:22] != 0) | (carry & product3[22])
        marks4 = register(marks3, "marks4")
        exponent4 = register(exponent3 + carry, "exponent4")
        fraction4 = register(Cat(half & (rest | fraction[0]), fraction), "fraction4")

        # Stage 5 rounds. The carry may lift a product to the least normal number.
        rounded = Signal(signed(35))
        m.d.comb += rounded.eq(Cat(fraction4[1:24], exponent4).as_signed() + fraction4[0])
        tiny = rounded < (1 << 23)
        m.d.comb += self.o.eq(register(_result(m, marks4, rounded, tiny), "result5"))
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
        Exponent of the last place: the sum of the two codes, less 254 and less 12.
    nan : In(1)
        Whether a code was that of NaN.
    o : Out(32)
        ``sum * 2**exponent``.
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
            magnitude.eq(Mux(self.sum[-1], -self.sum, self.sum)),
            word.eq(Cat(Const(0, 32 - acc_bits), magnitude)),
        ]
        marks1 = register(Cat(self.sum[-1], self.nan), "marks1")
        word1 = register(word, "word1")
        skip1 = register(leading_nibble(m, word, "lead"), "skip1")
        exponent1 = register(self.exponent, "exponent1")

        # Stage 2 moves the first one bit to the top.
        shifted, shift = normalized(m, word1, skip1, "norm")
        exponent = Signal(signed(11))
        m.d.comb += exponent.eq(exponent1 + (fp32.CODE_BIAS + acc_bits - 1) - shift)
        marks2 = register(marks1, "marks2")
        exponent2 = register(exponent, "exponent2")
        word2 = register(shifted[8:32], "word2")

        # Stage 3 has nothing to round, but the exponent may be out of range on either side.
        exact = Signal(signed(34))
        m.d.comb += exact.eq(Cat(word2[0:23], exponent2).as_signed())
        tiny = (exponent2 <= 0) | ~word2[23]
        m.d.comb += self.o.eq(register(_result(m, marks2, exact, tiny), "result3"))
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


def _significand(value):
    """Significand of a value, 24 bits; zero for a subnormal."""
    normal = value[23:31] != 0
    return Mux(normal, Cat(value[0:23], Const(1, 1)), Const(0, 24))


def _result(m, marks, value, tiny):
    """Put a result together.

    Parameters
    ----------
    m : Module
    marks : Value
        Whether the result is negative, and whether it is NaN.
    value : Value
        Rounded exponent and fraction; from exponent 255 on, the result is infinite.
    tiny : Value
        Whether the result is zero, or too small for a normal number.
    """
    negative, nan = marks[0], marks[1]
    is_tiny = Signal()
    magnitude = Signal(31)
    m.d.comb += [
        is_tiny.eq(tiny),
        magnitude.eq(Mux(value >= INFINITY_BITS, INFINITY_BITS, value)),
    ]
    number = Mux(is_tiny, Const(0, 31), magnitude)
    return Cat(Mux(nan, Const(NAN_BITS, 31), number), negative & ~nan)
