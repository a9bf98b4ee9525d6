"""Gateware that turns transfers into bursts, for loads and stores.

The model is :mod:`fpgapipe.hw.hls_models.model.dma`.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import TRANSFER, WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import MEMORY_BITS, burst_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.lib.axi import Slice
from fpgapipe.hw.rtl.lib.layouts import layout_of

OFFSET_BITS = (WORD_BYTES - 1).bit_length()
WORD_BITS = MEMORY_BITS - OFFSET_BITS
"""Bits of the number of a 64-byte word in memory."""

TRANSFER_LAYOUT = data.StructLayout({"index": 32, "body": layout_of(TRANSFER)})
"""Instruction of a load or store engine: its number in the program, and its fields."""


def scratchpad_bits(spec, has_scratchpad):
    """Bits of the number of a word in the scratchpad; 0 without one."""
    return spec.scratchpad.address_bits - OFFSET_BITS if has_scratchpad else 0


def burst_layout(spec, has_scratchpad=True):
    """Layout of a burst.

    Fields
    ------
    memory, scratchpad : int
        Numbers of the burst's first word in memory and in the scratchpad.
    words : int
        Number of words of the burst, less one.
    low, high : int
        The first byte of the first word and the last byte of the last word that are in the row.
    end : bool
        Whether the burst is the last one of its instruction.
    code : ErrorCode
        If not NONE, this is not a burst; the instruction has an error from here on.
    index : int
        Number of the instruction.
    """
    return data.StructLayout(
        {
            "memory": WORD_BITS,
            "scratchpad": scratchpad_bits(spec, has_scratchpad),
            "words": OFFSET_BITS,
            "low": OFFSET_BITS,
            "high": OFFSET_BITS,
            "end": 1,
            "code": 8,
            "index": 32,
        }
    )


class BurstGate(wiring.Signature):
    """Asks the user of an engine whether a burst may be taken.

    Directions are as the engine sees them.

    Members
    -------
    valid : Out(1)
        There is a burst to take.
    words : Out(OFFSET_BITS)
        Number of words of the burst, less one.
    end : Out(1)
        Whether the burst is the last one of its instruction.
    allow : In(1)
        The burst may be taken, if only to end its instruction.
    refused : In(1)
        The instruction fails from this burst on. Like `allow`, it is a bit of its own, since these
        are there before a code is.
    refusal : In(8)
        The ErrorCode of the instruction if it is refused, or NONE.
    taken : Out(1)
        The burst is taken in this cycle, and it has no error.
    """

    def __init__(self):
        super().__init__(
            {
                "valid": Out(1),
                "words": Out(OFFSET_BITS),
                "end": Out(1),
                "allow": In(1),
                "refused": In(1),
                "refusal": In(8),
                "taken": Out(1),
            }
        )


class BurstGenerator(wiring.Component):
    """Turns transfers into the bursts of :func:`fpgapipe.hw.hls_models.model.dma.bursts`.

    The throughput is one burst per cycle; one cycle is lost between instructions. The first burst
    of an instruction is at `o` 6 cycles after the instruction was taken.

    Every row is checked before its first burst. In place of the first row with an error comes a
    burst with the error's code. Later bursts have no meaning, and the user takes none of them.

    Without a scratchpad, only the addresses in memory count: a row may begin at any byte of a word
    and have up to 2**32 - 1 bytes.

    Parameters
    ----------
    spec : CoreSpec
    has_scratchpad : bool
        Whether transfers have the addresses of a scratchpad.

    Members
    -------
    i : In(stream.Signature(TRANSFER_LAYOUT))
        Instructions.
    memory_base, memory_limit : In(64)
        The first byte of memory that may be used, and the first byte after it that may not. They
        are constant from two cycles before the first instruction.
    o : Out(stream.Signature(burst_layout(spec)))
        Bursts.
    idle : Out(1)
        There is no instruction and no burst inside.
    """

    def __init__(self, spec: CoreSpec, *, has_scratchpad: bool = True) -> None:
        self.spec = spec
        self._has_scratchpad = has_scratchpad
        super().__init__(
            {
                "i": In(stream.Signature(TRANSFER_LAYOUT)),
                "memory_base": In(64),
                "memory_limit": In(64),
                "o": Out(stream.Signature(burst_layout(spec, has_scratchpad))),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        scratchpad_words = self.spec.scratchpad.size_bytes // WORD_BYTES
        block_words = burst_words(self.spec)
        block_bits = (block_words - 1).bit_length()

        # The limits as numbers of words, at most the first number that instructions cannot express.
        base, limit = Signal(WORD_BITS + 1), Signal(WORD_BITS + 1)
        up = self.memory_base + WORD_BYTES - 1
        for register, port in ((base, up), (limit, self.memory_limit)):
            words = port >> OFFSET_BITS
            m.d.sync += register.eq(Mux(words[WORD_BITS:].any(), 1 << WORD_BITS, words[:WORD_BITS]))

        # A stage accepts a row if it is empty or if its row moves on.
        valid = Signal(5)
        moves = Signal(5)
        for stage in range(4):
            m.d.comb += moves[stage].eq(~valid[stage] | moves[stage + 1])
        with m.If(moves[1]):
            m.d.sync += valid[1].eq(valid[0])
        for stage in range(2, 5):
            with m.If(moves[stage]):
                m.d.sync += valid[stage].eq(valid[stage - 1])

        # Stage 0 computes the starts of the rows. The first row outside the memory ends the
        # transfer, so a start is at most one step of 2**39 bytes away from an address of 48 bits.
        # It therefore fits in 50 signed bits, and a start in the scratchpad fits in 34.
        body = Signal(layout_of(TRANSFER), reset_less=True)
        index0 = Signal(32, reset_less=True)
        memory = Signal(signed(MEMORY_BITS + 2), reset_less=True)
        plane_memory = Signal.like(memory)
        scratchpad = Signal(signed(34), reset_less=True)
        plane_scratchpad = Signal.like(scratchpad)
        rows, planes = Signal(16, reset_less=True), Signal(16, reset_less=True)
        last_row, end = Signal(), Signal()
        next_memory, next_scratchpad = Signal.like(memory), Signal.like(scratchpad)
        m.d.comb += [
            self.i.ready.eq(~valid[0]),
            last_row.eq(rows == 0),
            end.eq(last_row & (planes == 0)),
            next_memory.eq(
                Mux(last_row, plane_memory, memory)
                + Mux(last_row, body.plane_memory, body.row_memory)
            ),
            next_scratchpad.eq(
                Mux(last_row, plane_scratchpad, scratchpad)
                + Mux(last_row, body.plane_scratchpad, body.row_scratchpad)
            ),
        ]
        first = self.i.payload.body
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                valid[0].eq(1),
                body.eq(first),
                index0.eq(self.i.payload.index),
                memory.eq(first.memory),
                plane_memory.eq(first.memory),
                scratchpad.eq(first.scratchpad),
                plane_scratchpad.eq(first.scratchpad),
                rows.eq(first.rows),
                planes.eq(first.planes),
            ]
        with m.Elif(valid[0] & moves[1]):
            m.d.sync += [
                valid[0].eq(~end),
                memory.eq(next_memory),
                scratchpad.eq(next_scratchpad),
                rows.eq(rows - 1),
            ]
            with m.If(last_row):
                m.d.sync += [
                    plane_memory.eq(next_memory),
                    plane_scratchpad.eq(next_scratchpad),
                    rows.eq(body.rows),
                    planes.eq(planes - 1),
                ]

        # Stage 1 has the words of a row. `last_byte` counts from the start of the first word.
        low, last_byte = Signal(OFFSET_BITS), Signal(33)
        m.d.comb += [low.eq(memory), last_byte.eq(body.row_bytes + low - 1)]
        row = data.StructLayout(
            {
                "memory": signed(WORD_BITS + 2),
                "scratchpad": signed(28),
                "low": OFFSET_BITS,
                "high": OFFSET_BITS,
                "end": 1,
                "bad": 1,
                "index": 32,
            }
        )
        misaligned = (
            (low != scratchpad[:OFFSET_BITS])
            | (body.row_memory[:OFFSET_BITS] != body.row_scratchpad[:OFFSET_BITS])
            | (body.plane_memory[:OFFSET_BITS] != body.plane_scratchpad[:OFFSET_BITS])
        )
        row1, row2 = Signal(row, reset_less=True), Signal(row, reset_less=True)
        words1 = Signal(33 - OFFSET_BITS, reset_less=True)  # number of words, less one
        with m.If(valid[0] & moves[1]):
            m.d.sync += [
                row1.memory.eq(memory >> OFFSET_BITS),
                row1.scratchpad.eq(scratchpad >> OFFSET_BITS),
                row1.low.eq(low),
                row1.high.eq(last_byte),
                row1.end.eq(end),
                row1.bad.eq((misaligned if self._has_scratchpad else 0) | (body.row_bytes == 0)),
                row1.index.eq(index0),
                words1.eq(last_byte >> OFFSET_BITS),
            ]

        # Stage 2 computes the last words and checks the range of the starts.
        memory_last = Signal(signed(WORD_BITS + 3), reset_less=True)
        scratchpad_last = Signal(signed(29), reset_less=True)
        below = Signal(reset_less=True)
        with m.If(valid[1] & moves[2]):
            m.d.sync += [
                row2.eq(row1),
                memory_last.eq(row1.memory + words1),
                scratchpad_last.eq(row1.scratchpad + words1),
                below.eq(row1.memory < base),
            ]

        # Stage 3 checks the range of the ends, and counts the bursts that follow the first one.
        # Stage 4 splits the row. A row that fits in the scratchpad has few words, so only the lower
        # bits of the count are needed.
        burst = burst_layout(self.spec, self._has_scratchpad)
        left_bits = (scratchpad_bits(self.spec, True) if self._has_scratchpad else 26) + 1
        row3, row4 = Signal(burst, reset_less=True), Signal(burst, reset_less=True)
        left3, left4 = Signal(left_bits, reset_less=True), Signal(left_bits, reset_less=True)
        last3, last4 = Signal(block_bits, reset_less=True), Signal(block_bits, reset_less=True)
        with m.If(valid[2] & moves[3]):
            m.d.sync += [
                row3.memory.eq(row2.memory),
                row3.scratchpad.eq(row2.scratchpad),
                row3.low.eq(row2.low),
                row3.high.eq(row2.high),
                row3.end.eq(row2.end),
                row3.index.eq(row2.index),
                left3.eq((memory_last >> block_bits) - (row2.memory >> block_bits)),
                last3.eq(memory_last),
            ]
            with m.If(row2.bad):
                m.d.sync += row3.code.eq(ErrorCode.BAD_FIELD)
            with m.Elif(below | (memory_last >= limit)):
                m.d.sync += row3.code.eq(ErrorCode.MEMORY_RANGE)
            if self._has_scratchpad:
                with m.Elif((row2.scratchpad < 0) | (scratchpad_last >= scratchpad_words)):
                    m.d.sync += row3.code.eq(ErrorCode.SCRATCHPAD_RANGE)
            with m.Else():
                m.d.sync += row3.code.eq(ErrorCode.NONE)

        # Blocks are aligned. A burst ends with its block, and the last one ends with the row.
        m.submodules.bursts = bursts = Slice(burst)
        in_block = Signal(block_bits)
        to_end = Signal(OFFSET_BITS)  # words to the end of the block, less one
        final = Signal()
        m.d.comb += [
            in_block.eq(row4.memory),
            to_end.eq(block_words - 1 - in_block),
            final.eq((left4 == 0) | (row4.code != ErrorCode.NONE)),
            moves[4].eq(~valid[4] | (bursts.i.ready & final)),
            bursts.i.valid.eq(valid[4]),
            bursts.i.payload.eq(row4),
            bursts.i.payload.words.eq(Mux(final, last4 - in_block, to_end)),
            bursts.i.payload.high.eq(Mux(final, row4.high, WORD_BYTES - 1)),
            bursts.i.payload.end.eq(row4.end & final),
        ]
        with m.If(moves[4]):
            m.d.sync += [row4.eq(row3), left4.eq(left3), last4.eq(last3)]
        with m.Elif(bursts.i.ready):
            m.d.sync += [
                row4.memory.eq(((row4.memory >> block_bits) + 1) << block_bits),
                row4.scratchpad.eq(row4.scratchpad + to_end + 1),
                row4.low.eq(0),
                left4.eq(left4 - 1),
            ]
        wiring.connect(m, bursts.o, wiring.flipped(self.o))
        m.d.comb += self.idle.eq(~(valid.any() | bursts.o.valid))
        return m
