"""Gateware of the vector engine, which runs VECTOR instructions one at a time."""

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.vector_fields import NUM_CONSTANTS, VECTOR
from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.control.sequencer import Failure
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort, WritePort
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.hw.rtl.lib.queue import issue_layout
from fpgapipe.hw.rtl.vector.vector_lanes import VectorLanes
from fpgapipe.hw.rtl.vector.vector_source import VectorReader
from fpgapipe.hw.rtl.vector.vector_target import VectorWriter

NUM_KEYS = 2
"""Number of 32-bit words in a key of random numbers; they are in consecutive scalar registers."""


class VectorEngine(wiring.Component):
    """Runs VECTOR instructions; its model is :mod:`fpgapipe.hw.hls_models.model.vector`.

    An instruction begins to read after the last write of the one before it. The cycles that an
    instruction takes are in `fpgapipe.hw.hls_models.cycles.vector_cycles`.

    Members
    -------
    i : In(stream.Signature(issue_layout(VECTOR)))
    scalars : In(32).array(16)
        Contents of the scalar registers; they are read in the first cycles of an instruction.
    read_x, read_y : Out(ReadPort(address_bits))
        Read ports of the scratchpad; coefficients are read at `read_x`.
    write : Out(WritePort(address_bits))
        Write port of the scratchpad, for results.
    halt : In(1)
        While this is high, nothing is written except up to two writes that already wait, and no
        read begins.
    done : Out(1)
        A pulse for each instruction that has ended, in order.
    idle : Out(1)
        High while no instruction is under way, or `halt` keeps it from going on.
    failures : Out(Failure).array(2)
        Failures of the reader and of the writer.
    fed, wait_x, wait_y, wait_result : Out(1)
        Pulses for counters: a vector has entered the lanes in this cycle; the lanes wait for words
        of X; they wait for words of Y; they do not accept a beat that is offered.
    """

    def __init__(self, spec: CoreSpec) -> None:
        assert spec.vector is not None
        self.spec, self._vector = spec, spec.vector
        bits = spec.scratchpad.address_bits
        super().__init__(
            {
                "i": In(stream.Signature(issue_layout(VECTOR))),
                "scalars": In(32).array(NUM_SCALARS),
                "read_x": Out(ReadPort(bits)),
                "read_y": Out(ReadPort(bits)),
                "write": Out(WritePort(bits)),
                "halt": In(1),
                "done": Out(1),
                "idle": Out(1),
                "failures": Out(Failure()).array(2),
                "fed": Out(1),
                "wait_x": Out(1),
                "wait_y": Out(1),
                "wait_result": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        reader, writer = VectorReader(spec), VectorWriter(spec)
        lanes = VectorLanes(self._vector)
        m.submodules.lanes = own_module(lanes, "vector_lanes")
        m.submodules.reader = own_module(reader, "vector_reader")
        m.submodules.writer = own_module(writer, "vector_writer")
        wiring.connect(m, reader.o, lanes.i)
        wiring.connect(m, lanes.o, writer.i)
        wiring.connect(m, reader.read_x, wiring.flipped(self.read_x))
        wiring.connect(m, reader.read_y, wiring.flipped(self.read_y))
        wiring.connect(m, writer.write, wiring.flipped(self.write))

        busy = Signal()
        take = Signal()
        m.d.comb += [
            self.i.ready.eq((~busy | writer.done) & ~self.halt),
            take.eq(self.i.valid & self.i.ready),
            lanes.k_write.eq(reader.k_write),
            reader.uses.eq(lanes.uses),
            self.done.eq(writer.done),
            self.idle.eq(~busy | self.halt),
            self.fed.eq(reader.fed),
            self.wait_x.eq(reader.wait_x),
            self.wait_y.eq(reader.wait_y),
            self.wait_result.eq(lanes.i.valid & ~lanes.i.ready),
        ]
        with m.If(take):
            m.d.sync += busy.eq(1)
        with m.Elif(writer.done):
            m.d.sync += busy.eq(0)
        for unit, failure in ((reader, self.failures[0]), (writer, self.failures[1])):
            m.d.comb += [
                unit.take.eq(take),
                unit.index.eq(self.i.payload.index),
                unit.body.eq(self.i.payload.body),
                unit.halt.eq(self.halt),
                failure.valid.eq(unit.error_valid),
                failure.code.eq(unit.error_code),
                failure.index.eq(unit.error_index),
            ]
        self._configure(m, lanes, take)
        return m

    def _configure(self, m, lanes, take):
        """Keep the fields for the lanes, and replace register numbers by the registers' contents.

        The replacement takes one cycle for each constant and word of the key. It ends before the
        first vector reaches the lanes.
        """
        body = self.i.payload.body
        first_key = body["random"]["key"]
        words = [constant["value"] for constant in body["constants"]]
        are_scalars = [constant["is_register"] for constant in body["constants"]]
        words += [first_key + number for number in range(NUM_KEYS)]
        are_scalars += [1] * NUM_KEYS
        # The values rotate through this list once; each is replaced when it is the first.
        values = [Signal(32, name=f"value{k}", reset_less=True) for k in range(len(words))]
        are_registers = Signal(len(words), reset_less=True)
        left = Signal(range(len(words) + 1))
        scalar = Signal(32)
        m.d.comb += scalar.eq(Cat(self.scalars).word_select(values[0][:4], 32))
        with m.If(take):
            m.d.sync += [value.eq(word) for value, word in zip(values, words, strict=True)]
            m.d.sync += [are_registers.eq(Cat(are_scalars)), left.eq(len(words))]
        with m.Elif(left != 0):
            m.d.sync += [value.eq(later) for value, later in pairwise(values)]
            m.d.sync += [
                values[-1].eq(Mux(are_registers[0], scalar, values[0])),
                are_registers.eq(are_registers >> 1),
                left.eq(left - 1),
            ]
        m.d.sync += lanes.start.eq(left == 1)
        config = lanes.config
        m.d.comb += [
            config.lane.constants.as_value().eq(Cat(values[:NUM_CONSTANTS])),
            config.key.as_value().eq(Cat(values[NUM_CONSTANTS:])),
        ]
        taken = [
            (config.first, body["random"]["first"]),
            (config.coefficients, body["coefficients"]["number"]),
            (config.function, body["function"]),
            (config.lane.threshold, body["random"]["threshold"]),
            (config.lane.reduces, body["reduced"] != 0),
        ]
        names = set(config.lane.shape().members) - {"constants", "threshold", "reduces"}
        taken += [(config.lane[name], body[name]) for name in sorted(names)]
        for number, (field, value) in enumerate(taken):
            kept = Signal(len(value), name=f"field{number}", reset_less=True)
            with m.If(take):
                m.d.sync += kept.eq(value)
            m.d.comb += field.eq(kept)
