"""Gateware of the weight-stationary systolic array, :mod:`fpgapipe.hw.hls_models.systolic`.

The array is `rows` instances of one row, and that row is elaborated once: Amaranth itself would do
so for every instance, which takes four times as long for 32 rows.
"""

from amaranth.back import rtlil
from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, ResetSignal, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.systolic import SystolicSpec


class Skew(wiring.Component):
    """Delay line that turns a vector into a wave, or a wave back into a vector.

    Element `i` of `n` is delayed by `i` cycles in which ``advance`` is high; with `reverse`, by
    ``n - 1 - i``.

    Members
    -------
    advance : In(1)
        Clock enable.
    i, o : n elements of `shape`
    """

    def __init__(self, shape, n, *, reverse=False):
        self._shape = shape
        self._delays = [n - 1 - index if reverse else index for index in range(n)]
        super().__init__({"advance": In(1), "i": In(shape).array(n), "o": Out(shape).array(n)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        steps = []
        for index, delay in enumerate(self._delays):
            value = self.i[index]
            for stage in range(delay):
                # No reset: what comes out before the first vector is not valid, and a delay line
                # without reset fits the shift registers of an FPGA.
                delayed = Signal(self._shape, name=f"d{index}_{stage}", reset_less=True)
                steps.append(delayed.eq(value))
                value = delayed
            m.d.comb += self.o[index].eq(value)
        with m.If(self.advance):
            m.d.sync += steps
        return m


class SystolicRow(wiring.Component):
    """One row of cells.

    In a cycle with ``advance`` high, a cell multiplies the activation from its left neighbour by
    its weight, adds the product of the cycle before to the sum from above, and hands both on. This
    is the three registers of a DSP block: operand, product, sum.

    The marks travel with the activations. ``load`` makes a cell take the column's weight into its
    spare register; ``swap`` makes the spare weight the active one for all later activations.

    Members
    -------
    advance : In(1)
        Clock enable.
    activation_i, activation_o : signed(operand_bits)
        From the left and to the right.
    load_i, load_o, swap_i, swap_o : 1
        The marks.
    weight : In(signed(operand_bits)).array(cols)
        Weights to load, those of column `c` `c` cycles after those of column 0.
    sum_i, sum_o : array(cols) of signed(acc_bits)
        From above and to below.
    """

    def __init__(self, spec: SystolicSpec) -> None:
        self.spec = spec
        operand, acc = signed(spec.operand_bits), signed(spec.acc_bits)
        super().__init__(
            {
                "advance": In(1),
                "activation_i": In(operand),
                "load_i": In(1),
                "swap_i": In(1),
                "weight": In(operand).array(spec.cols),
                "sum_i": In(acc).array(spec.cols),
                "activation_o": Out(operand),
                "load_o": Out(1),
                "swap_o": Out(1),
                "sum_o": Out(acc).array(spec.cols),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        spec = self.spec
        if platform is not None:
            name = f"systolic_row_{spec.cols}x{spec.operand_bits}_{spec.acc_bits}"
            return instance_of(self, name, platform)

        m = Module()
        operand = signed(self.spec.operand_bits)
        activation, load, swap = self.activation_i, self.load_i, self.swap_i
        for col in range(self.spec.cols):
            spare = Signal(operand, name=f"spare{col}", reset_less=True)
            weight = Signal(operand, name=f"weight{col}", reset_less=True)
            product = Signal(
                signed(2 * self.spec.operand_bits), name=f"product{col}", reset_less=True
            )
            total = Signal(signed(self.spec.acc_bits), name=f"sum{col}", reset_less=True)
            next_activation = Signal(operand, name=f"activation{col}", reset_less=True)
            next_load = Signal(name=f"load{col}")
            next_swap = Signal(name=f"swap{col}")
            with m.If(self.advance):
                with m.If(load):
                    m.d.sync += spare.eq(self.weight[col])
                with m.If(swap):
                    m.d.sync += weight.eq(spare)
                m.d.sync += [
                    product.eq(activation * weight),
                    # The spec's acc_bits hold the largest sum of a whole column: no carry is lost.
                    total.eq(self.sum_i[col] + product),
                    next_activation.eq(activation),
                    next_load.eq(load),
                    next_swap.eq(swap),
                ]
            m.d.comb += self.sum_o[col].eq(total)
            activation, load, swap = next_activation, next_load, next_swap
        m.d.comb += [
            self.activation_o.eq(activation),
            self.load_o.eq(load),
            self.swap_o.eq(swap),
        ]
        return m


def instance_of(component, name, platform):
    """Instance of a component's module, which is elaborated once however many instances there are.

    The module goes to the platform by ``add_file``, in RTLIL.

    Parameters
    ----------
    component : wiring.Component
        The ports of the instance. What is elaborated is a fresh ``type(component)(component.spec)``
        with None as its platform; it has the one clock domain ``sync``.
    name : str
        Of the module; stands for the class and the spec.
    platform
        Where the module belongs.
    """
    filename = f"{name}.il"
    if filename not in platform.extra_files:
        twin = type(component)(component.spec)
        platform.add_file(filename, rtlil.convert(twin, name=name, emit_src=False))
    ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
    for path, member, value in component.signature.flatten(component):
        direction = "i" if member.flow == In else "o"
        ports[f"{direction}_{'__'.join(map(str, path))}"] = value
    return Instance(name, **ports)


class SystolicArray(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.systolic.SystolicSpec`.

    Latency ``spec.latency_cycles``, throughput one vector a cycle, full backpressure: while a
    result waits at ``o``, neither input is taken, from the second cycle on.

    Weights are double-buffered. The tile's ``rows`` rows arrive one a beat, row 0 first, while the
    tile before streams; the vector marked ``last`` ends its tile. No vector is taken until the
    weights of its tile are complete, and tiles of at least ``rows`` vectors lose no cycle between
    them. This works without waiting for the array to drain since both load and swap travel through
    it as waves, one cycle a row and a column: a load that begins no earlier than a swap never
    overtakes it.

    Members
    -------
    i_weights : In(stream.Signature(ArrayLayout(signed(operand_bits), cols)))
        A row of weights.
    i_activations : In(stream.Signature(StructLayout({"data": ..., "last": 1})))
        A vector, ``ArrayLayout(signed(operand_bits), rows)``, and whether it is its tile's last.
    o : Out(stream.Signature(ArrayLayout(signed(acc_bits), cols)))
        The sums of a vector.
    """

    def __init__(self, spec: SystolicSpec) -> None:
        self.spec = spec
        operand = signed(spec.operand_bits)
        activations = data.StructLayout({"data": data.ArrayLayout(operand, spec.rows), "last": 1})
        super().__init__(
            {
                "i_weights": In(stream.Signature(data.ArrayLayout(operand, spec.cols))),
                "i_activations": In(stream.Signature(activations)),
                "o": Out(stream.Signature(data.ArrayLayout(signed(spec.acc_bits), spec.cols))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        operand, acc = signed(spec.operand_bits), signed(spec.acc_bits)

        # One enable moves everything, so that a result that waits stops the waves where they are.
        # It is the state of a register: there is no path from o.ready to the cells, which follow a
        # cycle late. The result that comes out in that cycle is put aside.
        sums = Signal(self.o.payload.shape())
        valid = Signal(spec.latency_cycles)
        aside = Signal(self.o.payload.shape(), reset_less=True)
        has_aside = Signal()
        advance = Signal()
        m.d.comb += [
            advance.eq(~has_aside),
            self.o.valid.eq(has_aside | valid[-1]),
            self.o.payload.eq(Mux(has_aside, aside, sums)),
        ]
        with m.If(advance):
            m.d.sync += [aside.eq(sums), has_aside.eq(valid[-1] & ~self.o.ready)]
        with m.Elif(self.o.ready):
            m.d.sync += has_aside.eq(0)

        # Weights fill the spare registers row by row; a swap empties them.
        loaded = Signal(range(spec.rows + 1))
        complete = Signal()
        load = Signal()
        load_row = Signal(range(spec.rows))
        swap = Signal()
        m.d.comb += [
            complete.eq(loaded == spec.rows),
            self.i_weights.ready.eq(advance & (swap | ~complete)),
            load.eq(self.i_weights.valid & self.i_weights.ready),
            load_row.eq(Mux(complete, 0, loaded)),
        ]
        with m.If(swap):
            m.d.sync += loaded.eq(load)
        with m.Elif(load):
            m.d.sync += loaded.eq(loaded + 1)

        # A swap goes in with the last vector of a tile or, if the weights are late, after it.
        active = Signal()
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

        # Row r meets everything r cycles after row 0; a row of weights is loaded as it comes.
        m.submodules.skew = skew = Skew(operand, spec.rows)
        m.submodules.skew_weights = skew_weights = Skew(operand, spec.cols)
        m.submodules.deskew = deskew = Skew(acc, spec.cols, reverse=True)
        swaps = Signal(spec.rows)  # bit r: the swap is at row r
        later_swaps = Signal(spec.rows - 1)
        m.d.comb += [
            skew.advance.eq(advance),
            skew_weights.advance.eq(advance),
            deskew.advance.eq(advance),
            swaps.eq(Cat(swap, later_swaps)),
        ]
        with m.If(advance):
            m.d.sync += [later_swaps.eq(swaps), valid.eq(Cat(accept, valid))]
        for row in range(spec.rows):
            m.d.comb += skew.i[row].eq(self.i_activations.payload.data[row])
        for col in range(spec.cols):
            m.d.comb += skew_weights.i[col].eq(self.i_weights.payload[col])
            m.d.comb += sums[col].eq(deskew.o[col])

        partial_sums = [Const(0, acc)] * spec.cols
        for row in range(spec.rows):
            m.submodules[f"row{row}"] = cells = SystolicRow(spec)
            m.d.comb += [
                cells.advance.eq(advance),
                cells.activation_i.eq(skew.o[row]),
                cells.load_i.eq(load & (load_row == row)),
                cells.swap_i.eq(swaps[row]),
            ]
            for col in range(spec.cols):
                m.d.comb += cells.weight[col].eq(skew_weights.o[col])
                m.d.comb += cells.sum_i[col].eq(partial_sums[col])
            partial_sums = cells.sum_o
        for col in range(spec.cols):
            m.d.comb += deskew.i[col].eq(partial_sums[col])
        return m
