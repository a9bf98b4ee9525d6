"""Transfers to bursts, what loads and stores have in common: `hls_models.model.dma`."""

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
"""Of the number of a word of 64 bytes in memory."""

TRANSFER_LAYOUT = data.StructLayout({"index": 32, "body": layout_of(TRANSFER)})
"""An instruction of a load or store engine: its number in the program, and what it moves."""


def scratchpad_bits(spec, has_scratchpad):
    """Bits of the number of a word in the scratchpad; 0 without one."""
    return spec.scratchpad.address_bits - OFFSET_BITS if has_scratchpad else 0


def burst_layout(spec, has_scratchpad=True):
    """Layout of a burst.

    Fields
    ------
    memory, scratchpad : int
        Numbers of its first word.
    words : int
        Number of its words, less one.
    low, high : int
        The first byte of its first word, and the last byte of its last word, that are in the row.
    end : bool
        Whether it is the instruction's last.
    code : ErrorCode
        If not NONE, there is no burst, but the instruction is wrong from here on.
    index : int
        The instruction.
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
    """Who else says when an engine takes a burst, as the engine sees it.

    Members
    -------
    valid : Out(1)
        There is a burst to take.
    words : Out(OFFSET_BITS)
        Number of its words, less one.
    end : Out(1)
        It is its instruction's last.
    allow : In(1)
        It may be taken.
    refusal : In(8)
        `ErrorCode`: if not NONE, the instruction is wrong from this burst on.
    taken : Out(1)
        It is taken in this cycle, and is right.
    """

    def __init__(self):
        super().__init__(
            {
                "valid": Out(1),
                "words": Out(OFFSET_BITS),
                "end": Out(1),
                "allow": In(1),
                "refusal": In(8),
                "taken": Out(1),
            }
        )


class BurstGenerator(wiring.Component):
    """Turns transfers to the bursts of :func:`fpgapipe.hw.hls_models.model.dma.bursts`.

    A row a cycle if it is one burst, else a burst a cycle; a cycle is lost between instructions.
    The first burst of an instruction is at `o` 6 cycles after the instruction was taken.

    Every row is checked before its first burst. In place of the first row that is wrong comes a
    burst with an error's code. What comes after that has no meaning: the user takes no more.

    Without a scratchpad only the memory's side counts: rows may lie anywhere in a word and have up
    to 2**32 - 1 bytes.

    Parameters
    ----------
    spec : CoreSpec
    has_scratchpad : bool

    Members
    -------
    i : In(stream.Signature(TRANSFER_LAYOUT))
    memory_base, memory_limit : In(64)
        First byte of memory that may be touched, and the first after it that may not. They are
        constant from two cycles before the first instruction.
    o : Out(stream.Signature(burst_layout(spec)))
    idle : Out(1)
        There is nothing inside.
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

        # Limits as numbers of words, at most that of the first which instructions cannot name.
        base, limit = Signal(WORD_BITS + 1), Signal(WORD_BITS + 1)
        up = self.memory_base + WORD_BYTES - 1
        for register, port in ((base, up), (limit, self.memory_limit)):
            words = port >> OFFSET_BITS
            m.d.sync += register.eq(Mux(words[WORD_BITS:].any(), 1 << WORD_BITS, words[:WORD_BITS]))

        # Every stage moves on if the one after it is empty or moves on.
        valid = Signal(5)
        moves = Signal(5)
        for stage in range(4):
            m.d.comb += moves[stage].eq(~valid[stage] | moves[stage + 1])
        with m.If(moves[1]):
            m.d.sync += valid[1].eq(valid[0])
        for stage in range(2, 5):
            with m.If(moves[stage]):
                m.d.sync += valid[stage].eq(valid[stage - 1])

        # Stage 0: the rows' starts. A row outside the memory ends all, so a start is never further
        # out than one step of 2**39 bytes from addresses of 48 bits: it fits in 50 bits, signed,
        # as that in the scratchpad does in 34.
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

        # Stage 1: words. The last byte counts from the start of the first word.
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
        words1 = Signal(33 - OFFSET_BITS, reset_less=True)  # less one
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

        # Stage 2: last words, and the starts' range.
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

        # Stages 3 and 4: the ends' range; how many bursts follow the first. A row that is in the
        # scratchpad has few words, so few bits of the difference matter.
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

        # Blocks are aligned: a burst goes to the end of its block, or of the row in the last one.
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
