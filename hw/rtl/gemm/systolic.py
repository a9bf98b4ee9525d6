"""Gateware of the weight-stationary systolic array, :mod:`fpgapipe.hw.hls_models.spec.systolic`.

The array consists of `rows` instances of one row, which is elaborated only once. Amaranth itself
would elaborate every instance, which takes four times as long for 32 rows.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.systolic import SystolicSpec
from fpgapipe.hw.rtl.gemm.packed import packed_cells
from fpgapipe.hw.rtl.gemm.skew import Deskew, Entering, Skew
from fpgapipe.hw.rtl.lib.modules import instance_of, makes_modules


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
    ``advance`` is low. `packed_cells` says why it holds for packed cells.

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

        valid = Signal(spec.latency_cycles)
        marks = Signal(spec.cols)
        m.d.comb += [self.valid.eq(valid[-1]), marks.eq(Mux(load, column, 0))]
        with m.If(advance):
            m.d.sync += valid.eq(Cat(accept, valid))
        cells = packed_cells if spec.is_packed else plain_cells
        vector, weights = self.i_activations.payload.data, self.i_weights.payload
        m.d.comb += self.sums.eq(cells(m, spec, Entering(advance, vector, weights, marks, swap)))
        return m


def plain_cells(m, spec, entering):
    """Add plain cells to a module, and return the sums of a vector."""
    # Activations, weights and marks reach row r by r cycles later than row 0.
    m.submodules.skew = skew = Skew(spec.operand_bits, spec.rows)
    m.submodules.skew_weights = skew_weights = Skew(spec.operand_bits, spec.rows)
    m.submodules.deskew = deskew = Deskew(spec.acc_bits, spec.cols)
    swaps = Signal(spec.rows)  # bit r: the swap is at row r
    later_swaps = Signal(spec.rows - 1)
    m.d.comb += [
        skew.advance.eq(entering.advance),
        skew.i.eq(entering.vector),
        skew_weights.advance.eq(entering.advance),
        skew_weights.i.eq(entering.weights),
        deskew.advance.eq(entering.advance),
        swaps.eq(Cat(entering.swap, later_swaps)),
    ]
    with m.If(entering.advance):
        m.d.sync += later_swaps.eq(swaps)

    partial_sums, marks = [Const(0, signed(spec.acc_bits))] * spec.cols, entering.marks
    for row in range(spec.rows):
        m.submodules[f"row{row}"] = cells = SystolicRow(spec)
        m.d.comb += [
            cells.advance.eq(entering.advance),
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
    return deskew.o


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
