"""Gateware of a GEMM engine's datapath, :mod:`fpgapipe.hw.hls_models.model.datapath`."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.gemm_fields import SHAPE
from fpgapipe.hw.hls_models.model.datapath import ACC_CYCLES, ACC_READ_CYCLES, DatapathSpec
from fpgapipe.hw.hls_models.numerics.fp32 import (
    CODE_NAN,
    FROM_SUM_CYCLES,
    SumSpec,
)
from fpgapipe.hw.rtl.arith.fp32 import Fp32Adder, SumConverter, first_exponent
from fpgapipe.hw.rtl.gemm.systolic import SystolicCells
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec
from fpgapipe.hw.rtl.lib.modules import instance_of, makes_modules, own_module


class AccumulatorColumn(wiring.Component):
    """Logic below a column of the array, which converts sums to FP32 and accumulates them.

    Members
    -------
    advance : In(1)
        Clock enable.
    exponent_a : In(signed(9))
        Code of the vector and `first_exponent`, one cycle before the sum.
    code_b : In(8)
        Code of the column.
    nan_a, nan_b : In(1)
        Whether the codes are that of NaN.
    sum : In(signed(acc_bits))
        Sum of the array.
    old : In(32)
        Old value of the accumulator, ``FROM_SUM_CYCLES`` cycles after the sum.
    total : Out(32)
        New value of the accumulator, ``RESULT_CYCLES`` cycles after the sum.
    """

    def __init__(self, spec: SumSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "advance": In(1),
                "exponent_a": In(signed(9)),
                "code_b": In(8),
                "nan_a": In(1),
                "nan_b": In(1),
                "sum": In(signed(spec.acc_bits)),
                "old": In(32),
                "total": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        if makes_modules(platform):
            return instance_of(self, f"accumulator_column_{self.spec.acc_bits}", platform)

        m = Module()
        m.submodules.converter = converter = SumConverter(self.spec)
        m.submodules.adder = adder = Fp32Adder()
        exponent = Signal(signed(10), reset_less=True)
        nan = Signal(reset_less=True)
        with m.If(self.advance):
            m.d.sync += [
                exponent.eq(self.exponent_a + self.code_b),
                nan.eq(self.nan_a | self.nan_b),
            ]
        m.d.comb += [
            converter.advance.eq(self.advance),
            converter.sum.eq(self.sum),
            converter.exponent.eq(exponent),
            converter.nan.eq(nan),
            adder.advance.eq(self.advance),
            adder.a.eq(self.old),
            adder.b.eq(converter.o),
            self.total.eq(adder.o),
        ]
        return m


@dataclass(frozen=True)
class AccumulatorsSpec:
    """Size of `AccumulatorColumns`.

    Parameters
    ----------
    cols : int
        Columns of the array.
    sums : SumSpec
        Sums of the array.
    """

    cols: int
    sums: SumSpec


class AccumulatorColumns(wiring.Component):
    """The logic below all columns of the array, one `AccumulatorColumn` each.

    It is a module of its own, which a simulator may replace by a faster model of all columns.

    Members
    -------
    advance : In(1)
        Clock enable.
    code_a, nan_a : In(8), In(1)
        Code of the vector, one cycle before its sums, and whether it is that of NaN.
    codes_b, nans_b : In(8 * cols), In(cols)
        The same of the columns.
    sums : In(ArrayLayout(signed(acc_bits), cols))
        Sums of the array.
    old, totals : In(32 * cols), Out(32 * cols)
        Values of the accumulators; see `AccumulatorColumn`.
    """

    def __init__(self, spec: AccumulatorsSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "advance": In(1),
                "code_a": In(8),
                "nan_a": In(1),
                "codes_b": In(8 * spec.cols),
                "nans_b": In(spec.cols),
                "sums": In(data.ArrayLayout(signed(spec.sums.acc_bits), spec.cols)),
                "old": In(32 * spec.cols),
                "totals": Out(32 * spec.cols),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        exponent_a = Signal(signed(9))
        m.d.comb += exponent_a.eq(self.code_a + first_exponent(self.spec.sums))
        for col in range(self.spec.cols):
            m.submodules[f"column{col}"] = column = AccumulatorColumn(self.spec.sums)
            m.d.comb += [
                column.advance.eq(self.advance),
                column.exponent_a.eq(exponent_a),
                column.code_b.eq(self.codes_b.word_select(col, 8)),
                column.nan_a.eq(self.nan_a),
                column.nan_b.eq(self.nans_b[col]),
                column.sum.eq(self.sums[col]),
                column.old.eq(self.old.word_select(col, 32)),
                self.totals.word_select(col, 32).eq(column.total),
            ]
        return m


class ShapeCounter(wiring.Component):
    """Counts the vectors of one product after the other.

    Members
    -------
    i : In(stream.Signature(StructLayout({"index": 32, "body": layout_of(SHAPE)})))
        Shapes of products. One is accepted ahead, so that a product begins in the cycle after the
        last vector of the one before.
    present : Out(1)
        High while a vector is to be fed.
    step : In(1)
        The vector is fed in this cycle.
    address : Out(range(acc_depth))
        Address of the vector's accumulator.
    reads, stores : Out(1)
        Whether the vector needs the accumulator's value, and whether it stores a new one; sums that
        are not stored are results.
    last_of_tile, last_of_product : Out(1)
        Whether the vector is the last one of its tile, and of its product.
    """

    def __init__(self, spec: DatapathSpec) -> None:
        self.spec = spec
        shapes = data.StructLayout({"index": 32, "body": layout_of(SHAPE)})
        super().__init__(
            {
                "i": In(stream.Signature(shapes)),
                "present": Out(1),
                "step": In(1),
                "address": Out(range(spec.acc_depth)),
                "reads": Out(1),
                "stores": Out(1),
                "last_of_tile": Out(1),
                "last_of_product": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        address_bits = len(self.address)
        ahead = Signal(layout_of(SHAPE), reset_less=True)
        has_ahead = Signal()
        shape = Signal(layout_of(SHAPE), reset_less=True)
        present = Signal()
        take = Signal()
        m.d.comb += [self.i.ready.eq(~has_ahead), self.present.eq(present)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [ahead.eq(self.i.payload.body), has_ahead.eq(1)]
        with m.Elif(take):
            m.d.sync += has_ahead.eq(0)

        # These count the vectors, tiles and columns of tiles that are left after the present ones.
        # `last_vector` is a register, since the array needs it early in the cycle.
        vectors = Signal(16, reset_less=True)
        tiles = Signal(16, reset_less=True)
        columns = Signal(16, reset_less=True)
        last_vector = Signal(reset_less=True)
        one_vector = Signal(reset_less=True)
        first_tile = Signal(reset_less=True)
        base = Signal(address_bits, reset_less=True)
        address = Signal(address_bits, reset_less=True)
        last_tile, last_column, finish = Signal(), Signal(), Signal()
        next_base = Signal(address_bits)
        m.d.comb += [
            last_tile.eq(tiles == 0),
            last_column.eq(columns == 0),
            finish.eq(self.step & self.last_of_product),
            take.eq(has_ahead & (~present | finish)),
            next_base.eq(base + Mux(last_tile, shape.acc_step, 0)),
            self.address.eq(address),
            self.reads.eq(~(shape.first & first_tile)),
            self.stores.eq(~(shape.last & last_tile)),
            self.last_of_tile.eq(last_vector),
            self.last_of_product.eq(last_vector & last_tile & last_column),
        ]
        with m.If(self.step):
            m.d.sync += [
                vectors.eq(vectors - 1),
                last_vector.eq(vectors == 1),
                address.eq(address + 1),
            ]
            with m.If(last_vector):
                m.d.sync += [
                    vectors.eq(shape.m),
                    last_vector.eq(one_vector),
                    tiles.eq(Mux(last_tile, shape.k, tiles - 1)),
                    first_tile.eq(last_tile),
                    columns.eq(columns - last_tile),
                    base.eq(next_base),
                    address.eq(next_base),
                ]
        with m.If(take):
            m.d.sync += [
                present.eq(1),
                shape.eq(ahead),
                vectors.eq(ahead.m),
                tiles.eq(ahead.k),
                columns.eq(ahead.n),
                last_vector.eq(ahead.m == 0),
                one_vector.eq(ahead.m == 0),
                first_tile.eq(1),
                base.eq(ahead.acc_base),
                address.eq(ahead.acc_base),
            ]
        with m.Elif(finish):
            m.d.sync += present.eq(0)
        return m


def results_layout(cols):
    """Layout of a vector's results: they are in `aside` or, unless `is_aside`, in `sums`.

    While a vector waits, it moves from `sums` to `aside`. The receiver chooses, since that takes
    no LUTs of its own where it chooses among others, too.
    """
    vector = data.ArrayLayout(32, cols)
    return data.StructLayout({"sums": vector, "aside": vector, "is_aside": 1})


class GemmDatapath(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.model.datapath.DatapathSpec`.

    The latency from a vector to its result is ``spec.latency_cycles``, and the throughput is one
    vector per cycle, with full backpressure. One enable, which comes from a register, moves the
    whole pipeline. The pipeline stops while it is empty, and from the second cycle on in which a
    result waits at ``o``.

    Weights load as `SystolicCells` describes, also those of the next product's tiles: a column of
    weights does not belong to a product, and each tile takes the next ``cols`` columns. A vector
    that reads an accumulator waits at the array until no vector in the pipeline will change it, so
    the accumulators of products may overlap in any way.

    Members
    -------
    i_shape : In(stream.Signature(StructLayout({"index": 32, "body": layout_of(SHAPE)})))
        Shape of a product; the index is not used.
    i_a, i_b : In(stream.Signature(StructLayout({"data": ArrayLayout(signed(8), rows), "code": 8})))
        Vectors and columns of weights, with their codes.
    o : Out(stream.Signature(results_layout(cols)))
        Results of a vector, as FP32.
    done : Out(1)
        High for one cycle for each product, in order, after its last vector was accumulated or its
        last result was taken.
    fed : Out(1)
        High in a cycle in which a vector enters the array.
    wait_a, wait_b, wait_o : Out(1)
        Reason why no vector enters: there is none, its weights are missing, or a result waits. At
        most one of them is high, and none while there is no product or while a vector waits for its
        accumulator.
    nan : Out(1)
        High in the cycle after one in which a code of NaN came in.
    """

    def __init__(self, spec: DatapathSpec) -> None:
        self.spec = spec
        vector = data.ArrayLayout(signed(8), spec.rows)
        operand = stream.Signature(data.StructLayout({"data": vector, "code": 8}))
        shapes = data.StructLayout({"index": 32, "body": layout_of(SHAPE)})
        super().__init__(
            {
                "i_shape": In(stream.Signature(shapes)),
                "i_a": In(operand),
                "i_b": In(operand),
                "o": Out(stream.Signature(results_layout(spec.cols))),
                "done": Out(1),
                "fed": Out(1),
                "wait_a": Out(1),
                "wait_b": Out(1),
                "wait_o": Out(1),
                "nan": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        latency = spec.array.latency_cycles
        m.submodules.shapes = shapes = ShapeCounter(spec)
        m.submodules.cells = cells = own_module(SystolicCells(spec.array), "systolic_cells")
        wiring.connect(m, wiring.flipped(self.i_shape), shapes.i)
        advance = Signal()
        fed, load, hazard = Signal(), Signal(), Signal()
        m.d.comb += [
            cells.advance.eq(advance),
            cells.i_weights.valid.eq(self.i_b.valid),
            cells.i_weights.payload.eq(self.i_b.payload.data),
            self.i_b.ready.eq(cells.i_weights.ready),
            load.eq(self.i_b.valid & self.i_b.ready),
            cells.i_activations.valid.eq(self.i_a.valid & shapes.present & ~hazard),
            cells.i_activations.payload.data.eq(self.i_a.payload.data),
            cells.i_activations.payload.last.eq(shapes.last_of_tile),
            self.i_a.ready.eq(cells.i_activations.ready & shapes.present & ~hazard),
            fed.eq(self.i_a.valid & self.i_a.ready),
            shapes.step.eq(fed),
            self.fed.eq(fed),
        ]

        # The line has the data that go along with a vector and a column of weights; they are in
        # stage s after s cycles. Each stage is padded to whole words of 32 bits, so that a
        # simulator moves the line without shifting.
        entry = data.StructLayout(
            {
                "code_a": 8,
                "code_b": 8,
                "reads": 1,
                "stores": 1,
                "last": 1,
                "address": len(shapes.address),
            }
        )
        width = -(-entry.size // 32) * 32
        line = Signal(width * spec.latency_cycles, reset_less=True)
        feeds = Signal(spec.latency_cycles)
        loads = Signal(latency - 1)
        swaps = Signal(latency - 1)
        incoming = Signal(width)
        begin = data.View(entry, incoming[: entry.size])
        m.d.comb += [
            begin.code_a.eq(self.i_a.payload.code),
            begin.code_b.eq(self.i_b.payload.code),
            begin.reads.eq(shapes.reads),
            begin.stores.eq(shapes.stores),
            begin.last.eq(shapes.last_of_product),
            begin.address.eq(shapes.address),
        ]
        with m.If(advance):
            m.d.sync += [
                line.eq(Cat(incoming, line)),
                feeds.eq(Cat(fed, feeds)),
                loads.eq(Cat(load, loads)),
                swaps.eq(Cat(cells.swap, swaps)),
            ]

        def at(stage):
            """Entry of a stage, and whether there is a vector."""
            first = width * (stage - 1)
            return data.View(entry, line[first : first + entry.size]), feeds[stage - 1]

        # A vector reads its accumulator only after vectors before it have changed it.
        conflicts = []
        for stage in range(1, ACC_CYCLES):
            before, there = at(stage)
            conflicts.append(there & before.stores & (before.address == shapes.address))
        m.d.comb += hazard.eq(shapes.reads & Cat(conflicts).any())

        # The codes of columns arrive with their weights. They replace the codes before all at once,
        # with the first sums that they belong to, since the sums of a vector leave together.
        spare = Signal(8 * spec.cols, reset_less=True)
        codes = Signal(8 * spec.cols, reset_less=True)
        spare_nans = Signal(spec.cols, reset_less=True)
        nans = Signal(spec.cols, reset_less=True)
        early, _ = at(latency - 1)
        with m.If(advance & swaps[-1]):
            m.d.sync += [codes.eq(spare), nans.eq(spare_nans)]
        with m.If(advance & loads[-1]):
            m.d.sync += [
                spare.eq(Cat(spare, early.code_b)[8:]),
                spare_nans.eq(Cat(spare_nans, early.code_b == CODE_NAN)[1:]),
            ]

        # The old values of the accumulators arrive with the converted sums.
        values = Signal(32 * spec.cols)
        old = Signal(32 * spec.cols, reset_less=True)
        bits = 32 * spec.cols
        m.submodules.memory = memory = BlockMemory(BlockMemorySpec(spec.acc_depth, bits, bits))
        to_read, is_there = at(latency + FROM_SUM_CYCLES - ACC_READ_CYCLES)
        was_read, _ = at(latency + FROM_SUM_CYCLES - ACC_READ_CYCLES + 1)
        done, finished = at(spec.latency_cycles)
        m.d.comb += [
            memory.read.eq(advance & is_there & to_read.reads),
            memory.read_row.eq(to_read.address),
            memory.write.eq(advance & finished & done.stores),
            memory.write_row.eq(done.address),
            memory.write_data.eq(values),
        ]
        with m.If(advance):
            m.d.sync += old.eq(Mux(was_read.reads, memory.read_data, 0))

        columns = AccumulatorColumns(AccumulatorsSpec(spec.cols, SumSpec(spec.array.acc_bits)))
        m.submodules.columns = own_module(columns, "accumulator_columns")
        m.d.comb += [
            columns.advance.eq(advance),
            columns.code_a.eq(early.code_a),
            columns.nan_a.eq(early.code_a == CODE_NAN),
            columns.codes_b.eq(codes),
            columns.nans_b.eq(nans),
            columns.sums.eq(cells.sums),
            columns.old.eq(old),
            values.eq(columns.totals),
        ]

        # A result that is not taken in its cycle goes to the skid buffer, and the pipeline stops.
        skid = Signal(32 * spec.cols, reset_less=True)
        skid_last = Signal(reset_less=True)
        has_skid = Signal()
        keep = Signal()
        result = Signal()
        m.d.comb += [
            result.eq(advance & finished & ~done.stores),
            self.o.valid.eq(has_skid | result),
            self.o.payload.as_value().eq(Cat(values, skid, has_skid)),
            keep.eq(self.o.valid & ~self.o.ready),
        ]
        m.d.sync += has_skid.eq(keep)
        with m.If(result & ~self.o.ready):
            m.d.sync += [skid.eq(values), skid_last.eq(done.last)]
        taken = self.o.valid & self.o.ready & Mux(has_skid, skid_last, done.last)
        stored = advance & finished & done.stores & done.last
        m.d.sync += self.done.eq(taken | stored)

        # The pipeline moves only while it has a vector, or a vector or column of weights can enter.
        # Loads and swaps on their way may stop, since they need not arrive before a vector follows.
        wake = Signal()
        m.d.comb += wake.eq(
            feeds.any()
            | (self.i_b.valid & ~cells.complete)
            | (self.i_a.valid & shapes.present & (cells.active | cells.complete))
        )
        m.d.sync += advance.eq(wake & ~keep)

        m.d.comb += [
            self.wait_o.eq(shapes.present & has_skid),
            self.wait_b.eq(shapes.present & ~has_skid & ~cells.active),
            self.wait_a.eq(shapes.present & ~has_skid & cells.active & ~self.i_a.valid),
        ]
        nan_b = Signal()
        m.d.comb += nan_b.eq(self.i_b.payload.code == CODE_NAN)
        m.d.sync += self.nan.eq((fed & (self.i_a.payload.code == CODE_NAN)) | (load & nan_b))
        return m
