"""Gateware of a FIFO whose words lie in block RAMs."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec


class BlockFifo(wiring.Component):
    """First-in, first-out buffer in a block memory without initial contents.

    The latency is 2 cycles and the throughput one word per cycle. The buffer holds `depth` words
    and one more at its output. ``i.ready`` depends on registers alone.

    Parameters
    ----------
    bits : int
        Width of a word, bits.
    depth : int
        Number of words, a power of two.

    Members
    -------
    i, o : stream of `bits`
        Words in and out.
    """

    def __init__(self, bits, depth):
        self._bits, self._depth = bits, depth
        shape = stream.Signature(unsigned(bits))
        super().__init__({"i": In(shape), "o": Out(shape)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = BlockMemorySpec(self._depth, self._bits, self._bits)
        m.submodules.memory = memory = BlockMemory(spec)
        level = Signal(range(self._depth + 1))
        push, pull = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(level != self._depth),
            push.eq(self.i.valid & self.i.ready),
            pull.eq((level != 0) & (~self.o.valid | self.o.ready)),
            memory.write.eq(push),
            memory.write_data.eq(self.i.payload),
            memory.read.eq(pull),
            self.o.payload.eq(memory.read_data),
        ]
        with m.If(push):
            m.d.sync += memory.write_row.eq(memory.write_row + 1)
        with m.If(pull):
            m.d.sync += memory.read_row.eq(memory.read_row + 1)
        m.d.sync += [
            level.eq(level + push - pull),
            self.o.valid.eq(pull | (self.o.valid & ~self.o.ready)),
        ]
        return m
