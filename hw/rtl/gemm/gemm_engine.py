"""Gateware of a GEMM engine: two operand readers, the datapath, and the writer of results."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.gemm_fields import GEMM
from fpgapipe.hw.hls_models.model.datapath import DatapathSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.control.sequencer import Failure
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, WritePort
from fpgapipe.hw.rtl.gemm.datapath import GemmDatapath
from fpgapipe.hw.rtl.gemm.operand import OperandReader
from fpgapipe.hw.rtl.gemm.result import ResultWriter
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.hw.rtl.lib.queue import WordFifo, issue_layout

UNDER_WAY = 8
"""Depth of the FIFO of instructions that have been accepted and are not done."""


class Fork(wiring.Component):
    """Hands each word to several consumers, each when it is ready.

    The latency is 0. A word leaves the input in the cycle after the last consumer has taken it, so
    ``i_ready`` and ``ready`` have a register between them, and the throughput is one word every two
    cycles.

    Parameters
    ----------
    num_consumers : int

    Members
    -------
    i_valid : In(1)
    i_ready : Out(1)
    valid : Out(num_consumers)
    ready : In(num_consumers)
    skip : In(num_consumers)
        Consumers that do not get this word.

    Attributes
    ----------
    taken : Signal
        Consumers that have taken this word, for proofs.
    """

    def __init__(self, num_consumers):
        self.taken = Signal(num_consumers)
        super().__init__(
            {
                "i_valid": In(1),
                "i_ready": Out(1),
                "valid": Out(num_consumers),
                "ready": In(num_consumers),
                "skip": In(num_consumers),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        taken = self.taken
        m.d.comb += [
            self.valid.eq(~taken & ~self.skip & self.i_valid.replicate(len(self.valid))),
            self.i_ready.eq((taken | self.skip).all()),
        ]
        with m.If(self.i_valid):
            m.d.sync += taken.eq(Mux(self.i_ready, 0, taken | (self.valid & self.ready)))
        return m


class GemmEngine(wiring.Component):
    """Runs GEMM instructions; `CoreModel` in hw/hls_models defines what they compute.

    Instructions follow each other without a pause: while one streams, the operands of the next are
    read, and its first weights are loaded.

    Members
    -------
    i : In(stream.Signature(issue_layout(GEMM)))
        Instructions. One leaves in the cycle after the last part of the engine has taken it.
    read_a, read_b : Out(ReadPort(address_bits))
        Read ports of the scratchpad, for the streamed and the stationary operand.
    write : Out(WritePort(address_bits))
        Write port of the scratchpad, for results.
    halt : In(1)
        While this is high, nothing is written, and no read begins.
    done : Out(1)
        A pulse for each instruction that has ended, in order.
    idle : Out(1)
        High while no instruction is under way, or `halt` keeps it from going on.
    failures : Out(Failure).array(4)
        Failures of the two readers and of the writer; the fourth is never valid.
    fed, wait_a, wait_b, wait_result : Out(1)
        Pulses for counters: a vector entered the array in this cycle, or the reason why none did.
    nan : Out(1)
        A pulse for a block of an operand that is not a number.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        bits = spec.scratchpad.address_bits
        super().__init__(
            {
                "i": In(stream.Signature(issue_layout(GEMM))),
                "read_a": Out(ReadPort(bits)),
                "read_b": Out(ReadPort(bits)),
                "write": Out(WritePort(bits)),
                "halt": In(1),
                "done": Out(1),
                "idle": Out(1),
                "failures": Out(Failure()).array(4),
                "fed": Out(1),
                "wait_a": Out(1),
                "wait_b": Out(1),
                "wait_result": Out(1),
                "nan": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        m.submodules.reader_a = reader_a = own_module(OperandReader(spec), "operand_reader")
        m.submodules.reader_b = reader_b = own_module(OperandReader(spec), "operand_reader")
        datapath = GemmDatapath(DatapathSpec(spec.rows, spec.cols, spec.acc_depth, spec.form))
        m.submodules.datapath = own_module(datapath, "gemm_datapath")
        m.submodules.writer = writer = own_module(ResultWriter(spec), "result_writer")

        # Descriptors for later parts of the pipeline wait in FIFOs, so that readers can go ahead.
        body = self.i.payload.body
        m.submodules.shapes = shapes = WordFifo(datapath.i_shape.payload.shape(), 4)
        m.submodules.results = results = WordFifo(writer.i.payload.shape(), 4)
        m.submodules.lasts = lasts = WordFifo(1, UNDER_WAY)
        m.submodules.fork = fork = Fork(5)
        consumers = [
            (reader_a.i, body["a"]),
            (reader_b.i, body["b"]),
            (shapes.i, body["extent"]),
            (results.i, body["result"]),
        ]
        for number, (consumer, part) in enumerate(consumers):
            m.d.comb += [
                consumer.valid.eq(fork.valid[number]),
                consumer.payload.index.eq(self.i.payload.index),
                consumer.payload.body.as_value().eq(part.as_value()),
                fork.ready[number].eq(consumer.ready),
            ]
        m.d.comb += [
            lasts.i.valid.eq(fork.valid[4]),
            lasts.i.payload.eq(body["extent"]["last"]),
            fork.ready[4].eq(lasts.i.ready),
            fork.skip[3].eq(~body["extent"]["last"]),
            fork.i_valid.eq(self.i.valid & ~self.halt),
            self.i.ready.eq(fork.i_ready & ~self.halt),
        ]
        wiring.connect(m, shapes.o, datapath.i_shape)
        wiring.connect(m, results.o, writer.i)
        wiring.connect(m, reader_a.o, datapath.i_a)
        wiring.connect(m, reader_b.o, datapath.i_b)
        wiring.connect(m, datapath.o, writer.i_results)
        wiring.connect(m, reader_a.read, wiring.flipped(self.read_a))
        wiring.connect(m, reader_b.read, wiring.flipped(self.read_b))
        wiring.connect(m, writer.write, wiring.flipped(self.write))

        # An instruction is done when its sums are complete and, if they are results, written.
        summed = Signal(range(UNDER_WAY + 2))
        written = Signal(range(UNDER_WAY + 2))
        is_done = Signal()
        under_way = Signal(range(UNDER_WAY + 2))
        m.d.comb += [
            is_done.eq(lasts.o.valid & (summed != 0) & (~lasts.o.payload | (written != 0))),
            lasts.o.ready.eq(is_done),
            # A halted engine starts nothing more, even if instructions have not ended.
            self.idle.eq((under_way == 0) | self.halt),
        ]
        m.d.sync += [
            self.done.eq(is_done),
            summed.eq(summed + datapath.done - is_done),
            written.eq(written + writer.done - (is_done & lasts.o.payload)),
            under_way.eq(under_way + (self.i.valid & self.i.ready) - is_done),
        ]

        units: list[Any] = [reader_a, reader_b, writer]
        for unit, failure in zip(units, self.failures, strict=False):
            m.d.comb += [
                failure.valid.eq(unit.error_valid),
                failure.code.eq(unit.error_code),
                failure.index.eq(unit.error_index),
                unit.halt.eq(self.halt),
            ]
        m.d.comb += [
            self.fed.eq(datapath.fed),
            self.wait_a.eq(datapath.wait_a),
            self.wait_b.eq(datapath.wait_b),
            self.wait_result.eq(datapath.wait_o),
            self.nan.eq(datapath.nan),
        ]
        return m
