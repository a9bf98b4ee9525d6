"""Gateware of the MXINT8 format, :mod:`fpgapipe.hw.hls_models.numerics.mx`.

The components are pipelines like those of :mod:`fpgapipe.hw.rtl.arith.fp32`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.numerics import mx
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_NAN, NAN_BITS
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.rtl.arith.fp32 import Pipeline, shared
from fpgapipe.hw.rtl.lib.modules import makes_modules


class BlockQuantiser(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.mx.quantise`.

    Latency ``latency_cycles``, throughput one block in every cycle with ``advance`` high.

    An FP32 number comes as its upper half, and one bit that says whether the lower half has a one.
    This is enough: the largest elements need 7 bits of their significands and one bit for rounding,
    and the others need fewer.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(16).array(MX_BLOCK)
        Upper halves of FP32, which are BF16.
    more : In(MX_BLOCK)
        Whether the lower halves are not zero, one bit per number.
    o : Out(signed(8)).array(MX_BLOCK)
        Elements.
    code : Out(8)
        E8M0 code of the block.
    """

    spec = None
    latency_cycles = mx.QUANTISE_CYCLES

    def __init__(self, spec: None = None) -> None:
        super().__init__(
            {
                "advance": In(1),
                "i": In(16).array(MX_BLOCK),
                "more": In(MX_BLOCK),
                "o": Out(signed(8)).array(MX_BLOCK),
                "code": Out(8),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "block_quantiser", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        # Stages 1 to 3 find the largest exponent of the block: they begin with 32, 8 and 2
        # exponents. Meanwhile, the elements wait.
        words = [
            register(word_of(self.i[index], self.more[index]), f"word1_{index}")
            for index in range(MX_BLOCK)
        ]
        level = [self.i[index][7:15] for index in range(MX_BLOCK)]
        level = larger_of(m, larger_of(m, level, "a"), "b")
        level = [register(exponent, f"exponent1_{index}") for index, exponent in enumerate(level)]
        words = [register(word, f"word2_{index}") for index, word in enumerate(words)]
        level = larger_of(m, larger_of(m, level, "c"), "d")
        level = [register(exponent, f"exponent2_{index}") for index, exponent in enumerate(level)]
        (code,) = larger_of(m, level, "e")
        code3 = register(code, "code3")
        code4 = register(code3, "code4")
        nan = Signal()
        m.d.comb += [nan.eq(code == CODE_NAN), self.code.eq(register(code4, "code5"))]

        for index, word in enumerate(words):
            element = element_of(m, register, 3, index, word, code, nan)
            m.d.comb += self.o[index].eq(element)
        return m


class HalfQuantiser(wiring.Component):
    """Gateware of `hls_models.numerics.mx.quantise`, for blocks that come in halves.

    A first half enters in a cycle with ``advance`` high, and its second half in the next such
    cycle. They leave in the same way, `latency_cycles` such cycles later. The component takes half
    the logic of a `BlockQuantiser`.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(16).array(MX_BLOCK // 2)
        Upper halves of FP32, which are BF16.
    more : In(MX_BLOCK // 2)
        Whether the lower halves are not zero, one bit per number.
    second : In(1)
        Whether a second half enters; low if nothing enters.
    o : Out(signed(8)).array(MX_BLOCK // 2)
        Elements.
    code : Out(8)
        E8M0 code of their block.
    """

    spec = None
    latency_cycles = mx.HALVES_CYCLES

    def __init__(self, spec: None = None) -> None:
        half = MX_BLOCK // 2
        super().__init__(
            {
                "advance": In(1),
                "i": In(16).array(half),
                "more": In(half),
                "second": In(1),
                "o": Out(signed(8)).array(half),
                "code": Out(8),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "half_quantiser", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        # Stages 1 and 2 find the largest exponent of a half: first of 4 elements, then of all 16.
        level = [self.i[index][7:15] for index in range(MX_BLOCK // 2)]
        level = larger_of(m, larger_of(m, level, "a"), "b")
        level = [register(exponent, f"exponent1_{index}") for index, exponent in enumerate(level)]
        (exponent,) = larger_of(m, larger_of(m, level, "c"), "d")
        exponent2 = register(exponent, "exponent2")
        second2 = register(register(self.second, "second1"), "second2")

        # In stage 3, a first half waits until the exponent of its second half is known. The code
        # that is found then is kept for the second half, which comes next.
        code = Signal(8)
        exponent3 = Signal(8, reset_less=True)
        nan = Signal()
        m.d.comb += [
            code.eq(Mux(second2 & (exponent2 > exponent3), exponent2, exponent3)),
            nan.eq(code == CODE_NAN),
        ]
        with m.If(self.advance):
            m.d.sync += exponent3.eq(Mux(second2, code, exponent2))
        code6 = register(register(register(code, "code4"), "code5"), "code6")
        m.d.comb += self.code.eq(code6)
        for index in range(MX_BLOCK // 2):
            word = word_of(self.i[index], self.more[index])
            for stage in (1, 2, 3):
                word = register(word, f"word{stage}_{index}")
            m.d.comb += self.o[index].eq(element_of(m, register, 4, index, word, code, nan))
        return m


class ElementDequantiser(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.numerics.mx.unpack`, for one element of a block.

    Latency 1 cycle, throughput one element in every cycle with ``advance`` high.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(signed(8))
        Element.
    there : In(1)
        Whether the element is valid; otherwise the number is +0.
    code : In(8)
        Scale code of the block whose element has entered before. It comes one cycle after its
        element, together with the number, since a whole block shares the register that keeps it.
    o : Out(16)
        Upper half of an FP32 number whose lower half is zero.
    """

    spec = None
    latency_cycles = 1

    def __init__(self, spec: None = None) -> None:
        super().__init__(
            {
                "advance": In(1),
                "i": In(signed(8)),
                "there": In(1),
                "code": In(8),
                "o": Out(16),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return shared(self, "element_dequantiser", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        # Stage 1 makes the magnitude, up to 128. To negate a number, each bit that has a one below
        # it is inverted, which is faster than an addition with its carry.
        negative = self.i[7]
        magnitude = Cat(self.i[k] ^ (negative & self.i[:k].any()) for k in range(8))
        magnitude1 = register(magnitude, "magnitude1")
        marks1 = register(Cat(negative & self.there, self.there), "marks1")

        # After stage 1, the first one bit moves to place 6, unless the magnitude is 128.
        skip = Signal(3)
        coarse = Signal(7)
        middle = Signal(7)
        is_largest = magnitude1[7]
        m.d.comb += [
            skip[2].eq(magnitude1[3:7] == 0),
            coarse.eq(Mux(skip[2], magnitude1[0:3] << 4, magnitude1[0:7])),
            skip[1].eq(coarse[5:7] == 0),
            middle.eq(Mux(skip[1], coarse << 2, coarse)),
            skip[0].eq(~middle[6]),
        ]
        fraction = Mux(skip[0], Cat(Const(0, 1), middle[0:5]), middle[0:6])
        # An element is in steps of 2**-6, so the code is the exponent of a one in place 6. As the
        # lower bits of 128 are zeros, `skip` is 7; with `is_largest` as its sign bit, it is -1.
        exponent = Signal(signed(10))
        m.d.comb += exponent.eq(self.code - Cat(skip, is_largest).as_signed())
        is_zero = (middle[5:7] == 0) & ~is_largest
        tiny = exponent[9] | ~exponent[0:8].any() | is_zero | ~marks1[1]
        nan = marks1[1] & (self.code == CODE_NAN)
        number = Mux(tiny, 0, Cat(Const(0, 1), fraction, exponent[0:8]))
        magnitude = Mux(nan, NAN_BITS >> 16, number)
        m.d.comb += self.o.eq(Cat(magnitude[0:15], marks1[0] & ~nan))
        return m


def word_of(value, more):
    """Word that a quantiser keeps of an FP32 number: `more`, significand, exponent and sign.

    Parameters
    ----------
    value : Value
        Upper half of the number.
    more : Value
        Whether there is a one in the lower half.
    """
    return Cat(more, value[0:7], value[7:15] != 0, value[7:16])


def element_of(m, register, stage, index, word, code, nan):
    """Make an element, in stage `stage` and the next two.

    Parameters
    ----------
    m : Module
    register : callable
        Function that makes the registers of the pipeline.
    stage, index : int
        Parts of names: the stage that the register ends, and the number of the element.
    word : Value
        Result of `word_of`.
    code : Value
        Largest exponent of the block.
    nan : Value
        Whether this exponent makes the block NaN.
    """
    # This is the distance from the largest exponent. From 8 on, the element rounds to zero with any
    # significand. The first bit of a subnormal's significand is zero.
    distance = Signal(8, name=f"distance{index}")
    m.d.comb += distance.eq(code - word[9:17])
    far = (distance[3:8] != 0) | ~word[8] | nan
    near = register(Cat(distance[0:3], far), f"distance{stage}_{index}")
    word = register(Cat(word[0:9], word[17]), f"word{stage}_{index}")

    # The next stage finds 7 bits before the point, one after it, and whether lower ones are lost,
    # all before the last step, which is one of four places.
    stage += 1
    kept = Signal(8, name=f"kept{index}")
    m.d.comb += kept.eq(word[1:9] >> near[0:2])
    lost = word[0] | Cat(word[1 + k] & (near[0:2] > k) for k in range(3)).any()
    kept = register(kept, f"kept{stage}_{index}", {0: near[3]})
    lost = register(lost, f"lost{stage}_{index}")
    by_four = register(near[2], f"by_four{stage}_{index}")
    negative = register(word[9], f"negative{stage}_{index}")

    # The last stage rounds ties to even, and saturates from 127.5 on. The negative of a number that
    # is rounded up, -(whole + 1), is the complement of `whole`. The last step shares its LUTs with
    # the complement.
    whole = Mux(by_four, kept[5:8], kept[1:8])
    full = Signal(name=f"full{index}")
    up = Signal(name=f"up{index}")
    rest = lost | (by_four & kept[0:4].any())
    m.d.comb += [
        full.eq(kept[1:8].all() & ~by_four),
        up.eq(Mux(by_four, kept[4] & (rest | kept[5]), kept[0] & (rest | kept[1])) & ~full),
    ]
    element = (Cat(whole, Const(0, 1)) ^ negative.replicate(8)) + (up ^ negative)
    return register(element[0:8], f"element{stage + 1}_{index}")


def larger_of(m, values, name):
    """Keep the larger of each two values."""
    kept = []
    for index, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True)):
        larger = Signal(8, name=f"larger_{name}{index}")
        m.d.comb += larger.eq(Mux(a > b, a, b))
        kept.append(larger)
    return kept
