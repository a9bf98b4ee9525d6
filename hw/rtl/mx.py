"""Gateware of the MXINT8 format, :mod:`fpgapipe.hw.hls_models.mx`.

A pipeline as those of :mod:`fpgapipe.hw.rtl.fp32`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models import mx
from fpgapipe.hw.hls_models.fp32 import CODE_NAN
from fpgapipe.hw.hls_models.mx import MX_BLOCK
from fpgapipe.hw.rtl.fp32 import Pipeline, shared


class BlockQuantiser(wiring.Component):
    """Gateware of :func:`~fpgapipe.hw.hls_models.mx.quantise`.

    Latency ``latency_cycles``, throughput one block in every cycle with ``advance`` high.

    Of an FP32 number come its upper half and one bit that says whether there is a one in the lower:
    the largest elements need 7 bits of their significands and one to round by, the others fewer.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(16).array(MX_BLOCK)
        Upper halves of FP32, which are BF16.
    more : In(MX_BLOCK)
        Which lower halves are not zero.
    o : Out(signed(8)).array(MX_BLOCK)
        Elements.
    code : Out(8)
        Their E8M0 code.
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
        if platform is not None:
            return shared(self, "block_quantiser", platform)

        m = Module()
        register = Pipeline(m, self.advance).register

        # Stages 1 to 3: the largest exponent, of 32, of 8, of 2; the elements wait.
        words = []  # bit 0: more bits, then the significand, the exponent and the sign
        for index in range(MX_BLOCK):
            value = self.i[index]
            word = Cat(self.more[index], value[0:7], value[7:15] != 0, value[7:16])
            words.append(register(word, f"word1_{index}"))
        level = [self.i[index][7:15] for index in range(MX_BLOCK)]
        level = self._larger(m, self._larger(m, level, "a"), "b")
        level = [register(exponent, f"exponent1_{index}") for index, exponent in enumerate(level)]
        words = [register(word, f"word2_{index}") for index, word in enumerate(words)]
        level = self._larger(m, self._larger(m, level, "c"), "d")
        level = [register(exponent, f"exponent2_{index}") for index, exponent in enumerate(level)]
        (code,) = self._larger(m, level, "e")
        code3 = register(code, "code3")
        code4 = register(code3, "code4")
        nan = Signal()
        m.d.comb += [nan.eq(code == CODE_NAN), self.code.eq(register(code4, "code5"))]

        for index, word in enumerate(words):
            # Still stage 3: how far the element is below the largest. From 8 places on, it rounds
            # to zero whatever its significand. The first bit of a subnormal's is zero.
            distance = Signal(8, name=f"distance{index}")
            m.d.comb += distance.eq(code - word[9:17])
            far = (distance[3:8] != 0) | ~word[8] | nan
            distance3 = register(Cat(distance[0:3], far), f"distance3_{index}")
            word3 = register(Cat(word[0:9], word[17]), f"word3_{index}")

            # Stage 4: 7 places before the point, one behind it, and whether there is more.
            kept = Signal(8, name=f"kept{index}")
            m.d.comb += kept.eq(word3[1:9] >> distance3[0:3])
            lost = Signal(name=f"lost{index}")
            gone = Cat(word3[1 + k] & (distance3[0:3] > k) for k in range(7))
            m.d.comb += lost.eq(word3[0] | gone.any())
            kept4 = register(kept, f"kept4_{index}")
            lost4 = register(lost, f"lost4_{index}")
            far4 = register(distance3[3], f"far4_{index}")
            negative4 = register(word3[9], f"negative4_{index}")

            # Stage 5: a tie goes to even, and 127.5 and more saturates. What is rounded up and
            # negated is the complement less one, plus one: the complement.
            whole = Mux(far4, 0, kept4[1:8])
            full = Signal(name=f"full{index}")
            up = Signal(name=f"up{index}")
            m.d.comb += [
                full.eq(kept4[1:8].all()),
                up.eq(kept4[0] & (lost4 | kept4[1]) & ~full & ~far4),
            ]
            element = (Cat(whole, Const(0, 1)) ^ negative4.replicate(8)) + (up ^ negative4)
            m.d.comb += self.o[index].eq(register(element[0:8], f"element5_{index}"))
        return m

    @staticmethod
    def _larger(m, values, name):
        """Keep the larger of each two values."""
        kept = []
        for index, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True)):
            larger = Signal(8, name=f"larger_{name}{index}")
            m.d.comb += larger.eq(Mux(a > b, a, b))
            kept.append(larger)
        return kept
