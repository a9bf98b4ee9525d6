"""Gateware of the load engine: AXI reads to the scratchpad, `hls_models.model.dma`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.dma.dma import (
    OFFSET_BITS,
    TRANSFER_LAYOUT,
    BurstGate,
    BurstGenerator,
    scratchpad_bits,
)
from fpgapipe.hw.rtl.dma.scratchpad import WritePort
from fpgapipe.hw.rtl.lib.axi import AxiRead, Slice, drive_request
from fpgapipe.hw.rtl.link.link_beats import WORD


class LoadEngine(wiring.Component):
    """Runs LOAD instructions: reads rows from memory and writes them to the scratchpad.

    Whole words of 64 bytes are read and written. The first request is on the bus 7 cycles after the
    instruction was taken, and its `done` comes 3 cycles after its last beat was taken: see
    :func:`fpgapipe.hw.hls_models.model.dma.load_cycles`. A beat a cycle is sustained, a burst's
    request a cycle, across rows and instructions, while `spec.outstanding` bursts are under way at
    most. Beats wait on the bus only if the scratchpad refuses its words.

    An error is reported when all before it is done: the words before it have been written, none
    after it ever is, beats that are still under way are taken and dropped. There is one at most.
    The engine then takes no instruction until reset. A high `halt` stops it in the same way, at
    once and without an error: two words at most are written after it.

    Parameters
    ----------
    spec : CoreSpec
    has_scratchpad : bool
        If not, words go to a stream, and a gate says when there is room for those of a burst.

    Members
    -------
    i : In(stream.Signature(TRANSFER_LAYOUT))
        Instructions: their number in the program and their fields.
    memory_base, memory_limit : In(64)
        First byte of memory that may be read, and the first after it that may not; constant from
        two cycles before the first instruction.
    halt : In(1)
        Kept once it was high.
    axi : Out(AxiRead(bus_bytes))
    write : Out(WritePort)
        Addresses are multiples of 64 and masks are full.
    o : Out(stream.Signature(WORD))
        In place of `write` without a scratchpad: words as they are in memory, the instruction's
        last one marked.
    gate : Out(BurstGate)
        Without a scratchpad alone.
    done : Out(1)
        High for one cycle when an instruction is done, in their order: its words are on chip.
    busy, idle : Out(1)
        Idle is not busy: no burst is under way on the bus and no word to the scratchpad, and there
        is no instruction inside, unless the engine has stopped.
    bytes_moved : Out
        Bytes that came over the bus in the cycle before.
    error_valid : Out(1)
        High for one cycle when there is an error.
    error_code : Out(8)
        BAD_FIELD, MEMORY_RANGE, SCRATCHPAD_RANGE or AXI_READ.
    error_index : Out(32)
        The instruction that failed.
    """

    def __init__(self, spec: CoreSpec, *, has_scratchpad: bool = True) -> None:
        self.spec = spec
        self._has_scratchpad = has_scratchpad
        burst_words(spec)  # refuses bursts that are too short
        target = {"write": Out(WritePort(spec.scratchpad.address_bits))}
        if not has_scratchpad:
            target = {"o": Out(stream.Signature(WORD)), "gate": Out(BurstGate())}
        super().__init__(
            {
                "i": In(stream.Signature(TRANSFER_LAYOUT)),
                "memory_base": In(64),
                "memory_limit": In(64),
                "halt": In(1),
                "axi": Out(AxiRead(spec.bus_bytes)),
                **target,
                "done": Out(1),
                "busy": Out(1),
                "idle": Out(1),
                "bytes_moved": Out(range(spec.bus_bytes + 1)),
                "error_valid": Out(1),
                "error_code": Out(8),
                "error_index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec, axi = self.spec, self.axi
        word_beats = WORD_BYTES // spec.bus_bytes
        pad_bits = scratchpad_bits(spec, self._has_scratchpad)

        generator = BurstGenerator(spec, has_scratchpad=self._has_scratchpad)
        m.submodules.generator = generator
        m.d.comb += [
            generator.i.payload.eq(self.i.payload),
            generator.i.valid.eq(self.i.valid),
            self.i.ready.eq(generator.i.ready),
            generator.memory_base.eq(self.memory_base),
            generator.memory_limit.eq(self.memory_limit),
        ]

        # `halted` and `failed` stop words; `closed`, requests, also behind an error that waits for
        # its turn.
        halted, failed, closed = Signal(), Signal(), Signal()
        with m.If(self.halt):
            m.d.sync += [halted.eq(1), closed.eq(1)]

        # A burst goes to the bus and, at once, to the queue of those under way. An error goes only
        # to the queue, in its turn.
        under_way = data.StructLayout(
            {
                "scratchpad": pad_bits,
                "words": OFFSET_BITS,
                "end": 1,
                "code": 8,
                "index": 32,
            }
        )
        m.submodules.queue = queue = SyncFIFOBuffered(width=under_way.size, depth=spec.outstanding)
        burst = generator.o.payload
        next_burst = Signal(under_way)
        wrong = burst.code != ErrorCode.NONE
        take = Signal()
        address = Signal(burst.memory.shape(), reset_less=True)
        beats = Signal(8, reset_less=True)
        requesting = Signal()
        drive_request(m, axi, "ar")
        free = queue.w_rdy & ~closed & (axi.arready | ~requesting)
        m.d.comb += [
            *(getattr(next_burst, name).eq(getattr(burst, name)) for name in under_way.members),
            generator.o.ready.eq(
                free if self._has_scratchpad else free & (self.gate.allow | wrong)
            ),
            take.eq(generator.o.valid & generator.o.ready),
            queue.w_data.eq(next_burst),
            queue.w_en.eq(take),
            axi.araddr.eq(address << OFFSET_BITS),
            axi.arlen.eq(beats),
            axi.arvalid.eq(requesting),
        ]
        with m.If(axi.arready | ~requesting):
            m.d.sync += requesting.eq(take & ~wrong)
        with m.If(take):
            m.d.sync += [
                address.eq(burst.memory),
                beats.eq((burst.words + 1) * word_beats - 1),
            ]
            with m.If(wrong):
                m.d.sync += closed.eq(1)

        # Beats make words.
        word = data.StructLayout(
            {
                "scratchpad": pad_bits,
                "data": 8 * WORD_BYTES,
                "end": 1,
                "code": 8,
                "index": 32,
            }
        )
        m.submodules.words = words = Slice(word)
        head = data.View(under_way, queue.r_data)
        number = Signal(OFFSET_BITS)  # of the word in its burst
        beat, bad, complete, last, marker = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            marker.eq(queue.r_rdy & (head.code != ErrorCode.NONE)),
            # Data come for nothing but what is in the queue, and an error in it is behind all data.
            axi.rready.eq(words.i.ready),
            beat.eq(axi.rvalid & axi.rready),
            last.eq(complete & (number == head.words)),
            queue.r_en.eq(last | (marker & words.i.ready)),
        ]
        if word_beats == 1:
            m.d.comb += [
                complete.eq(beat),
                bad.eq(axi.rresp[1]),
                words.i.payload.data.eq(axi.rdata),
            ]
        else:
            part = Signal(range(word_beats))
            was_bad = Signal()
            earlier = Signal(8 * (WORD_BYTES - spec.bus_bytes), reset_less=True)
            collected = Cat(earlier, axi.rdata)
            m.d.comb += [
                complete.eq(beat & (part == word_beats - 1)),
                bad.eq(was_bad | axi.rresp[1]),
                words.i.payload.data.eq(collected),
            ]
            with m.If(beat):
                m.d.sync += [
                    part.eq(part + 1),
                    was_bad.eq(bad & ~complete),
                    earlier.eq(collected[8 * spec.bus_bytes :]),
                ]
        with m.If(last):
            m.d.sync += number.eq(0)
        with m.Elif(complete):
            m.d.sync += number.eq(number + 1)
        m.d.comb += [
            words.i.valid.eq((complete | marker) & ~halted & ~failed),
            words.i.payload.scratchpad.eq(head.scratchpad + number),
            words.i.payload.end.eq(last & head.end),
            words.i.payload.code.eq(
                Mux(marker, head.code, Mux(bad, ErrorCode.AXI_READ, ErrorCode.NONE))
            ),
            words.i.payload.index.eq(head.index),
        ]
        with m.If(words.i.ready & (marker | (complete & bad))):
            m.d.sync += [failed.eq(1), closed.eq(1)]

        # Words go to the scratchpad, or on; an error to the sequencer.
        ready_word = words.o.payload
        error = Signal()
        if self._has_scratchpad:
            target = self.write
            m.d.comb += [
                target.address.eq(ready_word.scratchpad << OFFSET_BITS),
                target.data.eq(ready_word.data),
                target.mask.eq(-1),
            ]
        else:
            target, gate = self.o, self.gate
            m.d.comb += [
                target.payload.data.eq(ready_word.data),
                target.payload.last.eq(ready_word.end),
                gate.valid.eq(generator.o.valid),
                gate.words.eq(burst.words),
                gate.end.eq(burst.end),
                gate.taken.eq(take & ~wrong),
            ]
        m.d.comb += [
            error.eq(ready_word.code != ErrorCode.NONE),
            target.valid.eq(words.o.valid & ~error),
            words.o.ready.eq(target.ready | error),
        ]
        m.d.sync += [
            self.done.eq(target.valid & target.ready & ready_word.end),
            self.bytes_moved.eq(Mux(beat, spec.bus_bytes, 0)),
            self.error_valid.eq(words.o.valid & error),
        ]
        with m.If(words.o.valid & error):
            m.d.sync += [self.error_code.eq(ready_word.code), self.error_index.eq(ready_word.index)]

        m.d.comb += [
            self.busy.eq(
                (queue.level != 0) | requesting | words.o.valid | ~(closed | generator.idle)
            ),
            self.idle.eq(~self.busy),
        ]
        return m
