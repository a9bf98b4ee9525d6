"""Gateware of the load engine, from AXI reads to the scratchpad: `hls_models.model.dma`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
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
from fpgapipe.hw.rtl.link.link_beats import word_layout


class LoadEngine(wiring.Component):
    """Runs LOAD instructions: reads rows from memory and writes them to the scratchpad.

    Whole words of 64 bytes are read and written. The first request is on the bus 7 cycles after the
    instruction was taken, and `done` comes 2 cycles after the instruction's last beat was taken or,
    while `held` is high then, in the first cycle in which it is low; see
    :func:`fpgapipe.hw.hls_models.model.dma.load_cycles`. The throughput is one beat and one
    request per cycle, also across rows and instructions, with at most `spec.outstanding` bursts
    under way. Beats wait on the bus only while the scratchpad does not accept the words.

    An error is reported when everything before it is done: the words before it have been written,
    and no word after it will be. Beats that are still under way are taken and dropped. There is at
    most one error; after it, the engine takes no instruction until reset. A high `halt` stops the
    engine in the same way, at once and without an error; at most two more words are written.

    Parameters
    ----------
    spec : CoreSpec
    has_scratchpad : bool
        Whether words go to the scratchpad. Otherwise they go to a stream, and a gate tells when
        there is room for the words of a burst.

    Members
    -------
    i : In(stream.Signature(TRANSFER_LAYOUT))
        Instructions: their number in the program and their fields.
    memory_base, memory_limit : In(64)
        The first byte of memory that may be read, and the first byte after it that may not;
        constant from two cycles before the first instruction.
    halt : In(1)
        Stops the engine; one high cycle is enough.
    axi : Out(AxiRead(bus_bytes))
        Read port of the memory bus.
    write : Out(WritePort)
        Words for the scratchpad. Addresses are multiples of 64 and masks are full.
    held : In(1)
        Only with a scratchpad: a word that was written in an earlier cycle is not in it yet.
    o : Out(stream.Signature(word_layout(link_port_bytes)))
        Without a scratchpad, in place of `write`: words as they are in memory, or the parts that
        links take; the last one of an instruction is marked.
    gate : Out(BurstGate)
        Only without a scratchpad: asks whether there is room for a burst.
    done : Out(1)
        High for one cycle when an instruction is done, in their order: its words are on chip.
    busy, idle : Out(1)
        `idle` is the opposite of `busy`: no burst is under way on the bus, no word is on its way to
        the scratchpad, and no instruction is inside, unless the engine has stopped.
    bytes_moved : Out
        Number of bytes that came over the bus in the cycle before.
    error_valid : Out(1)
        High for one cycle when there is an error.
    error_code : Out(8)
        BAD_FIELD, MEMORY_RANGE, SCRATCHPAD_RANGE or AXI_READ.
    error_index : Out(32)
        Number of the instruction that failed.
    """

    def __init__(self, spec: CoreSpec, *, has_scratchpad: bool = True) -> None:
        self.spec = spec
        self._has_scratchpad = has_scratchpad
        burst_words(spec)  # refuses bursts that are too short
        target = {"write": Out(WritePort(spec.scratchpad.address_bits)), "held": In(1)}
        if not has_scratchpad:
            target = {
                "o": Out(stream.Signature(word_layout(spec.link_port_bytes))),
                "gate": Out(BurstGate()),
            }
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

        # `halted` and `failed` stop words. `closed` stops requests, also while an error still waits
        # in the queue.
        halted, failed, closed = Signal(), Signal(), Signal()
        with m.If(self.halt):
            m.d.sync += [halted.eq(1), closed.eq(1)]

        # A burst goes to the bus and, in the same cycle, to the queue of bursts under way. An error
        # goes only to the queue, so that it keeps its place.
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

        # Beats are joined into words, unless these go on in parts.
        passes = not self._has_scratchpad and spec.link_port_bytes < WORD_BYTES
        word = data.StructLayout(
            {
                "scratchpad": pad_bits,
                "data": 8 * (spec.bus_bytes if passes else WORD_BYTES),
                "end": 1,
                "code": 8,
                "index": 32,
            }
        )
        m.submodules.words = words = Slice(word)
        head = data.View(under_way, queue.r_data)
        number = Signal(OFFSET_BITS)  # number of the word in its burst
        beat, bad, complete, last, marker = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            marker.eq(queue.r_rdy & (head.code != ErrorCode.NONE)),
            # All data belong to bursts in the queue, and an error is behind all bursts.
            axi.rready.eq(words.i.ready),
            beat.eq(axi.rvalid & axi.rready),
            last.eq(complete & (number == head.words)),
            queue.r_en.eq(last | (marker & words.i.ready)),
        ]
        if passes:
            part = Signal(range(word_beats))
            m.d.comb += [
                complete.eq(beat & (part == word_beats - 1)),
                bad.eq(axi.rresp[1]),
                words.i.payload.data.eq(axi.rdata),
            ]
            with m.If(beat):
                m.d.sync += part.eq(part + 1)
        elif word_beats == 1:
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
        goes = beat if passes else complete
        with m.If(last):
            m.d.sync += number.eq(0)
        with m.Elif(complete):
            m.d.sync += number.eq(number + 1)
        m.d.comb += [
            words.i.valid.eq((goes | marker) & ~halted & ~failed),
            words.i.payload.scratchpad.eq(head.scratchpad + number),
            words.i.payload.end.eq(last & head.end),
            words.i.payload.code.eq(
                Mux(marker, head.code, Mux(bad, ErrorCode.AXI_READ, ErrorCode.NONE))
            ),
            words.i.payload.index.eq(head.index),
        ]
        with m.If(words.i.ready & (marker | (goes & bad))):
            m.d.sync += [failed.eq(1), closed.eq(1)]

        # Words go to the scratchpad or to the stream, and an error goes to the sequencer.
        ready_word = words.o.payload
        error, last_word, held = Signal(), Signal(), Const(0)
        if self._has_scratchpad:
            target, held = self.write, self.held
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
            words.o.ready.eq(Mux(error, ~held, target.ready)),
            self.done.eq(last_word & ~held),
        ]
        m.d.sync += [
            last_word.eq((target.valid & target.ready & ready_word.end) | (last_word & held)),
            self.bytes_moved.eq(Mux(beat, spec.bus_bytes, 0)),
            self.error_valid.eq(words.o.valid & error & ~held),
        ]
        with m.If(words.o.valid & error):
            m.d.sync += [self.error_code.eq(ready_word.code), self.error_index.eq(ready_word.index)]

        m.d.comb += [
            self.busy.eq(
                (queue.level != 0)
                | (requesting | words.o.valid | held)
                | ~(closed | generator.idle)
            ),
            self.idle.eq(~self.busy),
        ]
        return m
