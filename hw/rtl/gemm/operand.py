"""Gateware that reads operands from the scratchpad and quantises them for the array."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.address import BLOCK
from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.arith.mx import BlockQuantiser
from fpgapipe.hw.rtl.dma.scratchpad import READ_LATENCY, ReadPort
from fpgapipe.hw.rtl.gemm.address import AddressGenerator, descriptor_layout
from fpgapipe.hw.rtl.gemm.narrow_quantiser import NarrowQuantiser
from fpgapipe.hw.rtl.gemm.narrow_transposer import NarrowTransposer
from fpgapipe.hw.rtl.gemm.transposer import TURN_LANES, Transposer
from fpgapipe.hw.rtl.lib.queue import WordFifo
from fpgapipe.hw.rtl.lib.rotator import rotated, selected

DEPTH = 16
"""Number of words from the scratchpad that can wait, and of reads that can be under way.

A word frees its place ``READ_LATENCY + 4`` cycles after its read. With at least as many places,
reads follow each other without a pause.
"""

assert DEPTH >= READ_LATENCY + 4

TAG_LAYOUT = data.StructLayout(
    {
        "mask": BLOCK,
        "empty": 1,
        "fp32": 1,
        "transposed": 1,
        "emit": 6,
        "sub": 5,
        "last": 1,
        "turn": 4,
    }
)
"""Layout of the data kept of a word while its bytes are being read.

The word and its mask are rotated to the left by `turn` pairs of elements.
"""


def vector_layout(rows):
    """Layout of a vector for the array: its elements, and the code of their block's scale."""
    return data.StructLayout({"data": data.ArrayLayout(signed(8), rows), "code": 8})


class OperandReader(wiring.Component):
    """Reads operands from the scratchpad and makes their vectors, ``OperandPattern.vectors``.

    Words are read in the order of an operand's pattern, with zeros for elements that are not read.
    Squares are transposed, the blocks of 32 are quantised, and `rows` elements of each block leave.

    Words come in ``parts`` parts, as many as a port of the scratchpad takes cycles for 64 bytes. Of
    ports of 64 bytes, those of squares come rotated as the transposer wants them.

    If nothing waits, the throughput is one vector per `parts` cycles, or half of that in FP32, also
    from one instruction to the next. A transposed square takes as long as its 32 words, even if
    fewer columns leave. There is full backpressure; ``o.ready`` reaches other ports only through
    registers.

    Members
    -------
    i : In(stream.Signature(descriptor_layout()))
        Operands of instructions. The numbers of parts of a block, ``subs`` and ``subs_last``, must
        be at most ``32 / rows``, and a transposed operand must consist of whole squares.
    read : Out(ReadPort(address_bits))
        Read port of the scratchpad, whose lowest ``port_bytes`` bytes count. A word takes `parts`
        reads, one of four-byte elements twice as many.
    o : Out(stream.Signature(vector_layout(rows)))
        Vectors, with the codes of their blocks.
    done : Out(1)
        A pulse in the cycle in which the last vector of an instruction leaves.
    halt : In(1)
        While this is high, no word goes on, and no read begins except one that already waits.
    error_valid, error_code, error_index : Out(1), Out(8), Out(32)
        A pulse for each word that has elements to be read and begins outside the scratchpad, with
        `ErrorCode.SCRATCHPAD_RANGE`; zeros take its place.

    Attributes
    ----------
    latency_cycles : int
        Cycles from a descriptor's arrival to its first vector, if the operand is BF16 and not
        transposed.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        # These are the generator, the register of requests, the scratchpad, the FIFO, the
        # transposer, and the quantiser with its selection of a part.
        parts = spec.scratchpad.parts
        self.latency_cycles = AddressGenerator.latency_cycles + 1 + READ_LATENCY + 2 + 1
        if parts == 1:
            self.latency_cycles += BlockQuantiser.latency_cycles + int(spec.rows < BLOCK)
        else:
            self.latency_cycles += parts - 1 + NarrowQuantiser.latency_cycles
        super().__init__(
            {
                "i": In(stream.Signature(descriptor_layout())),
                "read": Out(ReadPort(spec.scratchpad.address_bits)),
                "o": Out(stream.Signature(vector_layout(spec.rows))),
                "done": Out(1),
                "halt": In(1),
                "error_valid": Out(1),
                "error_code": Out(8),
                "error_index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.addresses = addresses = AddressGenerator(self.spec)
        m.submodules.tags = tags = WordFifo(TAG_LAYOUT, DEPTH)
        m.submodules.words = words = WordFifo(8 * self.spec.scratchpad.port_bytes, DEPTH)
        transposer: Transposer | NarrowTransposer
        if self.spec.scratchpad.parts == 1:
            transposer = Transposer(TransposerSpec(BLOCK, (16, 1), side_bits=5))
        else:
            lanes = self.spec.scratchpad.port_bytes // 2
            transposer = NarrowTransposer(TransposerSpec(BLOCK, (16, 1), 5, lanes))
        m.submodules.transposer = transposer
        wiring.connect(m, wiring.flipped(self.i), addresses.i)
        self._request(m, addresses.o, tags.i, words)
        self._assemble(m, tags.o, words.o, transposer.i)
        self._leave(m, transposer.o)
        return m

    def _request(self, m, requests, tags, words):
        """Request the parts of words if there is a place for each; FP32 has twice as many."""
        request = requests.payload
        pad = self.spec.scratchpad
        reads = Signal()
        part = Signal(range(2 * pad.parts))  # the number of the part that is requested next
        final = Signal()
        may = Signal()
        go = Signal()
        issue = Signal()
        places = Signal(range(DEPTH + 1), init=DEPTH)
        address = Signal.like(self.read.address, reset_less=True)
        turn = Signal.like(self.read.turn, reset_less=True)
        pairs = Signal(4)  # by which the word is to be rotated
        mask = request.mask
        if pad.parts == 1:
            number = Signal(range(BLOCK))  # of the next word in its square
            m.d.comb += pairs.eq(Mux(request.transposed, number[1:], 0))
            with m.If(requests.valid & requests.ready & request.transposed):
                m.d.sync += number.eq(number + 1)
            mask = rotated(m, mask, pairs, 2, "mask_turn")
        error_index = Signal(32, reset_less=True)
        m.d.comb += [
            reads.eq(~request.empty & ~request.out_of_range),
            final.eq(~reads | (part == Mux(request.fp32, 2 * pad.parts - 1, pad.parts - 1))),
            may.eq(
                ~self.halt
                & tags.ready
                & (~reads | ((places != 0) & (self.read.ready | ~self.read.valid)))
            ),
            go.eq(requests.valid & may),
            issue.eq(go & reads),
            requests.ready.eq(may & final),
            tags.valid.eq(go & (part == 0)),
            tags.payload.mask.eq(Mux(reads, mask, 0)),
            tags.payload.empty.eq(~reads),
            tags.payload.turn.eq(pairs),
            *(
                tags.payload[name].eq(request[name])
                for name in ("fp32", "transposed", "emit", "sub", "last")
            ),
            # There is a place for each word that comes.
            words.i.payload.eq(self.read.data[: 8 * pad.port_bytes]),
            words.i.valid.eq(self.read.data_valid),
        ]
        m.d.sync += [
            places.eq(places - issue + (words.o.valid & words.o.ready)),
            self.error_valid.eq(go & request.out_of_range),
        ]
        with m.If(go):
            m.d.sync += [part.eq(Mux(final, 0, part + 1)), error_index.eq(request.index)]
        m.d.comb += [
            self.read.address.eq(address),
            self.read.turn.eq(turn),
            self.error_code.eq(ErrorCode.SCRATCHPAD_RANGE),
            self.error_index.eq(error_index),
        ]
        with m.If(issue):
            m.d.sync += [
                self.read.valid.eq(1),
                address.eq(request.address + (part << (pad.port_bytes.bit_length() - 1))),
                turn.eq(pairs << Mux(request.fp32, 2, 1)),
            ]
        with m.Elif(self.read.ready):
            m.d.sync += self.read.valid.eq(0)

    def _assemble(self, m, tags, words, out):
        """Make lanes of the parts that were read, with zeros for elements that are not read.

        Of an FP32 number, the quantiser needs only the upper half, which is a BF16 number, and
        whether the lower half is zero. These are 17 bits per lane, one of which is zero for BF16.

        Where a word of FP32 is to be rotated, both of its parts come rotated by as many elements.
        What gets from one part to the other in the rotation of the whole is then exchanged.
        """
        tag = tags.payload
        pad = self.spec.scratchpad
        lanes = pad.port_bytes // 2
        size = lanes // 2
        part = Signal(range(pad.parts))
        mask = tag.mask.word_select(part, lanes) if pad.parts > 1 else tag.mask
        elements = [words.payload.word_select(k, 32) for k in range(size)]
        upper = Cat(element[16:] for element in elements)
        more = Cat(element[:16].any() for element in elements)
        low = Signal(16 * size, reset_less=True)  # the first half of a word of FP32
        low_more = Signal(size, reset_less=True)
        has_low = Signal()
        takes_low = Signal()
        taken = Signal()
        m.d.comb += [
            takes_low.eq(tags.valid & ~tag.empty & tag.fp32 & ~has_low & words.valid),
            out.valid.eq(tags.valid & (tag.empty | (words.valid & (has_low | ~tag.fp32)))),
            taken.eq(out.valid & out.ready),
            tags.ready.eq(taken & (part == pad.parts - 1)),
            words.ready.eq(takes_low | (taken & ~tag.empty)),
            out.payload.side.eq(tag.sub),
            out.payload.last.eq(tag.last),
            out.payload.transposed.eq(tag.transposed),
            out.payload.emit.eq(tag.emit),
        ]
        with m.If(takes_low):
            m.d.sync += [low.eq(upper), low_more.eq(more), has_low.eq(1)]
        with m.Elif(taken):
            m.d.sync += has_low.eq(0)
        if pad.parts > 1:
            with m.If(taken):
                m.d.sync += part.eq(part + 1)
        crosses = Signal(8)  # pairs of elements that get to the other half
        ones = Const((1 << 8) - 1, 8)
        m.d.comb += crosses.eq(~(ones << tag.turn[:3])[:8] ^ tag.turn[3].replicate(8))
        first, second = self._halves(m, low, upper, crosses, "value")
        first_more, second_more = self._halves(m, low_more, more, crosses, "more")
        value = Signal(16 * lanes)
        m.d.comb += [
            value.eq(Mux(tag.fp32, Cat(first, second), words.payload)),
            out.payload.word.plane0.eq(
                Cat(Mux(mask[k], value.word_select(k, 16), 0) for k in range(lanes))
            ),
            out.payload.word.plane1.eq(Mux(tag.fp32, Cat(first_more, second_more) & mask, 0)),
        ]

    def _halves(self, m, low, upper, crosses, name):
        """Halves of a word of FP32, of which each eighth may be exchanged."""
        if self.spec.scratchpad.parts > 1:
            return low, upper
        exchange = Signal(len(low), name=f"{name}_crosses")
        m.d.comb += exchange.eq(Cat(each.replicate(len(low) // 8) for each in crosses))
        return (
            (low & ~exchange) | (upper & exchange),
            (low & exchange) | (upper & ~exchange),
        )

    def _leave(self, m, words):
        """Quantise blocks, and let the part of each that leaves go.

        One enable, which comes from a register, moves all stages. A vector that is not accepted at
        once goes to the skid buffer.
        """
        layout = data.StructLayout({"vector": vector_layout(self.spec.rows), "last": 1})
        result = Signal(layout)
        skid = Signal(layout, reset_less=True)
        has_skid = Signal()
        advance = Signal(init=1)  # ~has_skid, as a register of its own, since its way is long
        m.d.comb += words.ready.eq(advance)
        if self.spec.scratchpad.parts == 1:
            ends, stages = self._quantise(m, words, advance, result)
        else:
            ends, stages = self._quantise_parts(m, words, advance, result)
        valid = Signal(stages)
        last = Signal(stages, reset_less=True)
        shown = data.View(layout, Mux(has_skid, skid.as_value(), result.as_value()))
        m.d.comb += [
            result.last.eq(last[-1]),
            self.o.valid.eq(has_skid | valid[-1]),
            self.o.payload.eq(shown.vector),
            self.done.eq(self.o.valid & self.o.ready & shown.last),
        ]
        with m.If(advance):
            m.d.sync += [
                valid.eq(Cat(ends, valid)),
                last.eq(Cat(words.payload.last, last)),
                skid.eq(result),
                has_skid.eq(valid[-1] & ~self.o.ready),
                advance.eq(~valid[-1] | self.o.ready),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += [has_skid.eq(0), advance.eq(1)]

    def _quantise_parts(self, m, words, advance, result):
        """Quantise blocks that come in parts; return what `_quantise` does."""
        lanes = self.spec.scratchpad.port_bytes // 2
        m.submodules.quantiser = quantiser = NarrowQuantiser(self.spec.rows, lanes)
        m.d.comb += [
            quantiser.advance.eq(advance),
            quantiser.valid.eq(words.valid),
            *(quantiser.i[lane].eq(words.payload.word.plane0[lane]) for lane in range(lanes)),
            quantiser.more.eq(words.payload.word.plane1),
            quantiser.sub.eq(words.payload.side),
            result.vector.data.eq(quantiser.o),
            result.vector.code.eq(quantiser.code),
        ]
        return words.valid & quantiser.ends, quantiser.latency_cycles

    def _quantise(self, m, words, advance, result):
        """Quantise blocks, and select the part of each that leaves.

        Returns
        -------
        ends : Value
            Whether a block enters, or its last part.
        stages : int
            Cycles until its vector is in `result`.
        """
        rows = self.spec.rows
        m.submodules.quantiser = quantiser = BlockQuantiser()
        stages = BlockQuantiser.latency_cycles + int(rows < BLOCK)
        m.d.comb += [
            quantiser.advance.eq(advance),
            *(quantiser.i[lane].eq(words.payload.word.plane0[lane]) for lane in range(BLOCK)),
            quantiser.more.eq(words.payload.word.plane1),
        ]
        # The block is still to be rotated. A vector of a part of it consists of some of its units.
        unit = min(rows, TURN_LANES)
        if rows == BLOCK:
            begin = words.payload.turn
        else:
            begin = words.payload.side * (rows // unit) - words.payload.turn * (TURN_LANES // unit)
        for stage in range(BlockQuantiser.latency_cycles):
            later = Signal(range(BLOCK // unit), name=f"begin{stage}", reset_less=True)
            with m.If(advance):
                m.d.sync += later.eq(begin)
            begin = later
        if rows == BLOCK:
            vector = rotated(m, Cat(*quantiser.o), begin, 8 * TURN_LANES, "vector_turn")
            m.d.comb += [result.vector.data.eq(vector), result.vector.code.eq(quantiser.code)]
            return words.valid, stages
        units = [Cat(quantiser.o[k : k + unit]) for k in range(0, BLOCK, unit)]
        chosen = Signal(vector_layout(rows), reset_less=True)
        m.d.comb += result.vector.eq(chosen)
        with m.If(advance):
            m.d.sync += [
                chosen.data.eq(
                    Cat(selected(begin, units[k:] + units[:k]) for k in range(rows // unit))
                ),
                chosen.code.eq(quantiser.code),
            ]
        return words.valid, stages
