"""Gateware of the weight-stationary systolic array, :mod:`fpgapipe.hw.hls_models.spec.systolic`.

The array consists of `rows` instances of one row, which is elaborated only once. Amaranth itself
would elaborate every instance, which takes four times as long for 32 rows.
"""

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
from fpgapipe.hw.rtl.lib.modules import instance_of, makes_modules


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


class SystolicRow(wiring.Component):
    """One row of cells.

    In a cycle with ``advance`` high, a cell multiplies the activation from its left neighbour by
    its weight, adds the product of the cycle before to the sum from above, and passes on the
    activation and the sum. It uses the three registers of a DSP block: operand, product and sum.

    The marks of ``load``, one bit per column, travel downwards: a cell with a mark takes the row's
    weight into its spare register. The mark ``swap`` travels to the right with the activations and
    makes the spare weight the active one for all later activations.

    Members
    -------
    advance : In(1)
        Clock enable.
    activation : In(signed(operand_bits))
        Activation from the left.
    swap : In(1)
        Mark ``swap`` from the left.
    weight : In(signed(operand_bits))
        Weight for the cells that have a mark of ``load``.
    load_i, load_o : cols
        Marks of ``load``, from above and to below.
    sum_i, sum_o : array(cols) of signed(acc_bits)
        Sums, from above and to below.
    """

    def __init__(self, spec: SystolicSpec) -> None:
        self.spec = spec
        operand, acc = signed(spec.operand_bits), signed(spec.acc_bits)
        super().__init__(
            {
                "advance": In(1),
                "activation": In(operand),
                "swap": In(1),
                "weight": In(operand),
                "load_i": In(spec.cols),
                "sum_i": In(acc).array(spec.cols),
                "load_o": Out(spec.cols),
                "sum_o": Out(acc).array(spec.cols),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        spec = self.spec
        if makes_modules(platform):
            name = f"systolic_row_{spec.cols}x{spec.operand_bits}_{spec.acc_bits}"
            return instance_of(self, name, platform)

        m = Module()
        operand = signed(spec.operand_bits)
        activation = self.activation
        swaps = Signal(spec.cols)  # bit c: the swap is at column c
        later_swaps = Signal(spec.cols - 1)
        m.d.comb += swaps.eq(Cat(self.swap, later_swaps))
        for col in range(spec.cols):
            spare = Signal(operand, name=f"spare{col}", reset_less=True)
            weight = Signal(operand, name=f"weight{col}", reset_less=True)
            product = Signal(signed(2 * spec.operand_bits), name=f"product{col}", reset_less=True)
            total = Signal(signed(spec.acc_bits), name=f"sum{col}", reset_less=True)
            with m.If(self.advance):
                with m.If(self.load_i[col]):
                    m.d.sync += spare.eq(self.weight)
                with m.If(swaps[col]):
                    m.d.sync += weight.eq(spare)
                m.d.sync += [
                    product.eq(activation * weight),
                    # The spec's acc_bits hold the largest sum of a whole column. So no carry is
                    # lost, and the sum from above needs no sign extension.
                    total.eq(self.sum_i[col].as_unsigned() + product),
                ]
            m.d.comb += self.sum_o[col].eq(total)
            if col < spec.cols - 1:
                right = Signal(operand, name=f"activation{col}", reset_less=True)
                with m.If(self.advance):
                    m.d.sync += right.eq(activation)
                activation = right
        with m.If(self.advance):
            m.d.sync += [later_swaps.eq(swaps), self.load_o.eq(self.load_i)]
        return m


class SystolicCells(wiring.Component):
    """The cells and the logic that feeds them: an array whose sums cannot wait.

    Everything moves in cycles with ``advance`` high and stands still in the others.

    Weights are double-buffered. The ``cols`` columns of a tile arrive one per beat, column 0 first,
    while the tile before streams; the vector marked ``last`` ends its tile. No vector is accepted
    until the weights of its tile are complete. No cycle is lost between tiles of at least ``cols``
    vectors.

    The array need not drain between tiles, because loads and swaps travel through it as waves. The
    load of column c enters no earlier than c cycles after the swap, since columns enter one per
    cycle, and it reaches row r after another r cycles. The swap has passed the cell of row r and
    column c by then, or is there in the same cycle, in which the cell makes its spare weight the
    active one while it takes the new one. All waves stop together, so this holds however long
    ``advance`` is low.

    Members
    -------
    advance : In(1)
        Clock enable; no stream is ready while it is low.
    i_weights : In(stream.Signature(ArrayLayout(signed(operand_bits), rows)))
        A column of weights.
    i_activations : In(stream.Signature(StructLayout({"data": ..., "last": 1})))
        A vector, ``ArrayLayout(signed(operand_bits), rows)``, and whether it is its tile's last.
    swap : Out(1)
        The weights accepted before this cycle become those of all vectors after this cycle. A
        column that moves in this cycle is for a later tile, and a vector that moves in it still has
        the old weights.
    complete, active : Out(1)
        Whether all weights of the next tile are there, and whether those of the present tile are.
    sums : Out(ArrayLayout(signed(acc_bits), cols))
        Sums of the vector accepted ``spec.latency_cycles`` cycles before.
    valid : Out(1)
        Whether there was such a vector.
    """

    def __init__(self, spec: SystolicSpec) -> None:
        self.spec = spec
        vector = data.ArrayLayout(signed(spec.operand_bits), spec.rows)
        super().__init__(
            {
                "advance": In(1),
                "i_weights": In(stream.Signature(vector)),
                "i_activations": In(
                    stream.Signature(data.StructLayout({"data": vector, "last": 1}))
                ),
                "swap": Out(1),
                "complete": Out(1),
                "active": Out(1),
                "sums": Out(data.ArrayLayout(signed(spec.acc_bits), spec.cols)),
                "valid": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        acc = signed(spec.acc_bits)
        advance, swap = self.advance, self.swap
        complete, active = self.complete, self.active

        # Weights fill the spare registers column by column; a swap empties them.
        load = Signal()
        column = Signal(spec.cols, init=1)  # bit c: the next column is c
        m.d.comb += [
            self.i_weights.ready.eq(advance & (swap | ~complete)),
            load.eq(self.i_weights.valid & self.i_weights.ready),
        ]
        with m.If(load):
            m.d.sync += column.eq(column.rotate_left(1))
        with m.If(load & column[-1]):
            m.d.sync += complete.eq(1)
        with m.Elif(swap):
            m.d.sync += complete.eq(0)

        # A swap enters with the last vector of a tile or, if the weights are late, after it.
        accept = Signal()
        last = Signal()
        m.d.comb += [
            self.i_activations.ready.eq(advance & active),
            accept.eq(self.i_activations.valid & self.i_activations.ready),
            last.eq(accept & self.i_activations.payload.last),
            swap.eq(advance & complete & (last | ~active)),
        ]
        with m.If(swap):
            m.d.sync += active.eq(1)
        with m.Elif(last):
            m.d.sync += active.eq(0)

        # Activations, weights and marks reach row r by r cycles later than row 0.
        m.submodules.skew = skew = Skew(spec.operand_bits, spec.rows)
        m.submodules.skew_weights = skew_weights = Skew(spec.operand_bits, spec.rows)
        m.submodules.deskew = deskew = Deskew(spec.acc_bits, spec.cols)
        valid = Signal(spec.latency_cycles)
        swaps = Signal(spec.rows)  # bit r: the swap is at row r
        later_swaps = Signal(spec.rows - 1)
        marks = Signal(spec.cols)
        m.d.comb += [
            skew.advance.eq(advance),
            skew.i.eq(self.i_activations.payload.data),
            skew_weights.advance.eq(advance),
            skew_weights.i.eq(self.i_weights.payload),
            deskew.advance.eq(advance),
            self.sums.eq(deskew.o),
            self.valid.eq(valid[-1]),
            swaps.eq(Cat(swap, later_swaps)),
            marks.eq(Mux(load, column, 0)),
        ]
        with m.If(advance):
            m.d.sync += [later_swaps.eq(swaps), valid.eq(Cat(accept, valid))]

        partial_sums = [Const(0, acc)] * spec.cols
        for row in range(spec.rows):
            m.submodules[f"row{row}"] = cells = SystolicRow(spec)
            m.d.comb += [
                cells.advance.eq(advance),
                cells.activation.eq(skew.o[row]),
                cells.weight.eq(skew_weights.o[row]),
                cells.load_i.eq(marks),
                cells.swap.eq(swaps[row]),
            ]
            for col in range(spec.cols):
                m.d.comb += cells.sum_i[col].eq(partial_sums[col])
            partial_sums, marks = cells.sum_o, cells.load_o
        for col in range(spec.cols):
            m.d.comb += deskew.i[col].eq(partial_sums[col])
        return m


class SystolicArray(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.spec.systolic.SystolicSpec`.

    The latency is ``spec.latency_cycles``, and the throughput is one vector per cycle. There is
    full backpressure: while a result waits at ``o``, neither input is accepted from the second
    cycle on. `SystolicCells` explains how tiles follow each other.

    Members
    -------
    i_weights : In(stream.Signature(ArrayLayout(signed(operand_bits), rows)))
        A column of weights.
    i_activations : In(stream.Signature(StructLayout({"data": ..., "last": 1})))
        A vector, ``ArrayLayout(signed(operand_bits), rows)``, and whether it is its tile's last.
    o : Out(stream.Signature(ArrayLayout(signed(acc_bits), cols)))
        Sums of a vector.
    """

    def __init__(self, spec: SystolicSpec) -> None:
        self.spec = spec
        vector = data.ArrayLayout(signed(spec.operand_bits), spec.rows)
        activations = data.StructLayout({"data": vector, "last": 1})
        super().__init__(
            {
                "i_weights": In(stream.Signature(vector)),
                "i_activations": In(stream.Signature(activations)),
                "o": Out(stream.Signature(data.ArrayLayout(signed(spec.acc_bits), spec.cols))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.cells = cells = SystolicCells(self.spec)
        wiring.connect(m, wiring.flipped(self.i_weights), cells.i_weights)
        wiring.connect(m, wiring.flipped(self.i_activations), cells.i_activations)

        # One enable moves everything, so that a result that waits stops all waves together. The
        # enable comes from a register, so there is no path from o.ready to the cells. They stop one
        # cycle late, and the result that comes out in that cycle goes to the skid buffer.
        skid = Signal(self.o.payload.shape(), reset_less=True)
        has_skid = Signal()
        m.d.comb += [
            cells.advance.eq(~has_skid),
            self.o.valid.eq(has_skid | cells.valid),
            self.o.payload.eq(Mux(has_skid, skid, cells.sums)),
        ]
        with m.If(~has_skid):
            m.d.sync += [skid.eq(cells.sums), has_skid.eq(cells.valid & ~self.o.ready)]
        with m.Elif(self.o.ready):
            m.d.sync += has_skid.eq(0)
        return m
