"""Delay lines that make a vector a wave and a wave a vector, around the cells of an array."""

from typing import Any, NamedTuple

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.lib.modules import makes_modules


class Entering(NamedTuple):
    """What enters the cells of an array in a cycle.

    Attributes
    ----------
    advance : Value
        Clock enable of all cells.
    vector, weights : data.View
        Activations, and a column of weights, one element per row.
    marks : Value
        Marks of ``load``, one bit per column: the column that the weights are for.
    swap : Value
        Mark ``swap``.
    """

    advance: Any
    vector: Any
    weights: Any
    marks: Any
    swap: Any


class Skew(wiring.Component):
    """Delay line that skews a vector into a wave: element `i` is delayed by `i` cycles.

    Only cycles with ``advance`` high count. Elements that have waited for the same number of cycles
    share a register, so that a simulator copies a few words; with one register per element, it
    would copy hundreds.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(ArrayLayout(width, n))
        Vector.
    o : Out(width).array(n)
        Elements of the wave.
    """

    def __init__(self, width: int, n: int) -> None:
        self._width = width
        self._n = n
        elements = data.ArrayLayout(width, n)
        super().__init__({"advance": In(1), "i": In(elements), "o": Out(width).array(n)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        width = self._width
        # Registers begin at multiples of 32 bits, so that a simulator need not shift to copy them.
        # Their surplus bits are not used, and synthesis removes them.
        group = 32 // width if 32 % width == 0 else 1
        vector, first = self.i.as_value(), 0
        m.d.comb += self.o[0].eq(vector[:width])
        for index in range(1, self._n):
            keep = index - index % group
            # A delay line without reset fits the shift registers of an FPGA. None is needed, since
            # outputs before the first vector are not valid.
            delayed = Signal(width * (self._n - keep), name=f"delayed{index}", reset_less=True)
            with m.If(self.advance):
                m.d.sync += delayed.eq(vector[width * (keep - first) :])
            vector, first = delayed, keep
            m.d.comb += self.o[index].eq(vector[width * (index - first) :][:width])
        return m


class Deskew(wiring.Component):
    """Delay line that makes a vector of a wave: element `i` is delayed by ``n - 1 - i`` cycles.

    Members
    -------
    advance : In(1)
        Clock enable.
    i : In(width).array(n)
        Elements of the wave.
    o : Out(ArrayLayout(width, n))
        Vector.
    """

    def __init__(self, width: int, n: int) -> None:
        self._width = width
        self._n = n
        elements = data.ArrayLayout(width, n)
        super().__init__({"advance": In(1), "i": In(width).array(n), "o": Out(elements)})

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            name = f"deskew_{self._n}x{self._width}"
            platform.add_file(f"{name}.il", _deskew_rtlil(name, self._width, self._n))
            inputs = {f"i_i__{index}": element for index, element in enumerate(self.i)}
            return Instance(
                name, i_clk=ClockSignal(), i_advance=self.advance, **inputs, o_o=self.o.as_value()
            )

        m = Module()
        vector = self.i[0]
        for index in range(1, self._n):
            delayed = Signal(self._width * index, name=f"delayed{index}", reset_less=True)
            with m.If(self.advance):
                m.d.sync += delayed.eq(vector)
            vector = Cat(delayed, self.i[index])
        m.d.comb += self.o.as_value().eq(vector)
        return m


def _deskew_rtlil(name, width, n):
    """RTLIL text of the module of a `Deskew`, equal to what Amaranth would make.

    The work of Amaranth grows with the bits of the registers, about ``width * n**2 / 2``, and takes
    seconds for 128 columns.
    """
    lines = [f"module \\{name}", "  wire input 0 \\clk", "  wire input 1 \\advance"]
    for index in range(n):
        lines.append(f"  wire width {width} input {index + 2} \\i__{index}")
    lines.append(f"  wire width {width * n} output {n + 2} \\o")
    vector = "\\i__0"
    for index in range(1, n):
        bits = width * index
        lines += [
            f"  attribute \\init {bits}'0",
            f"  wire width {bits} \\delayed{index}",
            f"  wire width {bits} $next{index}",
            f"  cell $mux $choose{index}",
            f"    parameter \\WIDTH {bits}",
            f"    connect \\A \\delayed{index}",
            f"    connect \\B {vector}",
            "    connect \\S \\advance",
            f"    connect \\Y $next{index}",
            "  end",
            f"  cell $dff $delay{index}",
            f"    parameter \\WIDTH {bits}",
            "    parameter \\CLK_POLARITY 1",
            "    connect \\CLK \\clk",
            f"    connect \\D $next{index}",
            f"    connect \\Q \\delayed{index}",
            "  end",
        ]
        vector = f"{{ \\i__{index} \\delayed{index} }}"
    lines += [f"  connect \\o {vector}", "end", ""]
    return "\n".join(lines)
