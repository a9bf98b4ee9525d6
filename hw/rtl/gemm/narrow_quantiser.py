"""Gateware that quantises the blocks of an operand, whose elements come a few at a time."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.numerics.fp32 import CODE_NAN
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.rtl.arith.fp32 import Pipeline
from fpgapipe.hw.rtl.arith.mx import element_of, larger_of, word_of


class NarrowQuantiser(wiring.Component):
    """Quantises blocks, of which `rows` elements leave.

    A block comes in ``32 / lanes`` parts, those of the lowest elements first. Only the elements
    that leave are kept and quantised; of the others, the exponents count. Its numbers are those of
    :func:`~fpgapipe.hw.hls_models.numerics.mx.quantise`.

    Parameters
    ----------
    rows : int
        Elements of a block that leave.
    lanes : int
        Elements of a part, less than those of a block.

    Members
    -------
    advance : In(1)
        Clock enable.
    valid : In(1)
        Whether a part enters.
    i : In(16).array(lanes)
        Upper halves of FP32, which are BF16.
    more : In(lanes)
        Whether the lower halves are not zero, one bit per number.
    sub : In(5)
        Number of the `rows` elements that leave, the same for all parts of a block.
    ends : Out(1)
        The part that enters ends its block.
    o : Out(ArrayLayout(8, rows)), code : Out(8)
        Elements, and the E8M0 code of their block, `latency_cycles` cycles with `advance` high
        after the last part.
    """

    latency_cycles = 4

    def __init__(self, rows: int, lanes: int) -> None:
        self._rows, self._lanes = rows, lanes
        super().__init__(
            {
                "advance": In(1),
                "valid": In(1),
                "i": In(16).array(lanes),
                "more": In(lanes),
                "sub": In(5),
                "ends": Out(1),
                "o": Out(data.ArrayLayout(8, rows)),
                "code": Out(8),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        rows, lanes = self._rows, self._lanes
        register = Pipeline(m, self.advance).register
        enters = Signal()
        part = Signal(range(MX_BLOCK // lanes))
        m.d.comb += [enters.eq(self.advance & self.valid), self.ends.eq(part.all())]
        with m.If(enters):
            m.d.sync += part.eq(part + 1)

        # The elements that leave are kept until the scale of their block is known.
        words = Cat(word_of(self.i[lane], self.more[lane]) for lane in range(lanes))
        size = len(words) // lanes
        kept = Signal(rows * size, reset_less=True)
        if rows >= lanes:
            shift = (rows // lanes).bit_length() - 1
            takes = part[shift:] == self.sub if rows < MX_BLOCK else 1
            moved = Cat(kept, words)[lanes * size :]
        else:
            shift = (lanes // rows).bit_length() - 1
            takes = part == self.sub[shift:]
            moved = words.word_select(self.sub[:shift], rows * size)
        with m.If(enters & takes):
            m.d.sync += kept.eq(moved)

        # Stage 1 has the largest of each four exponents of a part, stage 2 that of all parts so
        # far, which after the last part is the block's code.
        level = [self.i[lane][7:15] for lane in range(lanes)]
        for name in ("a", "b"):
            level = larger_of(m, level, name) if len(level) > 1 else level
        level = [register(exponent, f"exponent1_{k}") for k, exponent in enumerate(level)]
        number = 0
        while len(level) > 1:
            level = larger_of(m, level, f"c{number}")
            number += 1
        entered = register(enters, "entered1")
        begins = register(part == 0, "begins1")
        largest = Signal(8, reset_less=True)
        code = Signal(8)
        nan = Signal()
        m.d.comb += [
            code.eq(Mux(~begins & (largest > level[0]), largest, level[0])),
            nan.eq(code == CODE_NAN),
        ]
        with m.If(self.advance & entered):
            m.d.sync += largest.eq(code)
        leaving = code
        for stage in (2, 3, 4):
            leaving = register(leaving, f"code{stage}")
        m.d.comb += self.code.eq(leaving)
        for row in range(rows):
            word = kept.word_select(row, size)
            m.d.comb += self.o[row].eq(element_of(m, register, 2, row, word, code, nan))
        return m
