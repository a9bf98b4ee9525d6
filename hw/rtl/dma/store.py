"""Gateware of the store engine, from the scratchpad to AXI writes: `hls_models.model.dma`."""

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
from fpgapipe.hw.rtl.dma.scratchpad import ReadPort
from fpgapipe.hw.rtl.lib.axi import AxiWrite, Slice, drive_request

BUFFER_WORDS = 16
"""Largest number of words that are requested from the scratchpad and not yet on the bus; it is more
than the 9 cycles of a round trip."""


class StoreEngine(wiring.Component):
    """Runs STORE instructions: reads rows from the scratchpad and writes them to memory.

    Exactly the bytes of the rows are written. The first request is on the bus 7 cycles after the
    instruction was taken, and its first beat 8 cycles after that. `done` comes a cycle after the
    response to the instruction's last burst; see
    :func:`fpgapipe.hw.hls_models.model.dma.store_cycles`. The throughput is one beat per cycle,
    also across rows and instructions, with at most `spec.outstanding` bursts that wait for their
    responses. The address of a burst never comes after its data, and at most `BUFFER_WORDS` words
    and one burst before them.

    An error is reported when everything before it is done. After an error of a row (BAD_FIELD,
    MEMORY_RANGE, SCRATCHPAD_RANGE), exactly the rows before it have been written. After AXI_WRITE,
    the bursts before it have been written, and perhaps some of those under way. There is at most
    one error; after it, the engine takes no instruction until reset. A high `halt` stops the engine
    at once and without an error. Bursts whose address was sent are completed, but all their beats
    that are not yet on the bus have no strobes, so nothing more is written.

    Parameters
    ----------
    spec : CoreSpec
    has_scratchpad : bool
        Whether words come from the scratchpad. Otherwise they come from a stream, and a gate tells
        when the words of a burst are there. All of them must then come without waiting for
        anything, because other masters of the bus wait meanwhile.

    Members
    -------
    i : In(stream.Signature(TRANSFER_LAYOUT))
        Instructions: their number in the program and their fields.
    memory_base, memory_limit : In(64)
        The first byte of memory whose word may be written, and the first byte after it whose word
        may not; constant from two cycles before the first instruction.
    halt : In(1)
        Stops the engine; one high cycle is enough.
    axi : Out(AxiWrite(bus_bytes))
        Write port of the memory bus.
    read : Out(ReadPort)
        Words from the scratchpad. Addresses are multiples of 64.
    i_words : In(stream.Signature(8 * link_port_bytes))
        Without a scratchpad, in place of `read`: words as they go to memory, or their parts.
    gate : Out(BurstGate)
        Only without a scratchpad: asks whether the words of a burst are there. A burst that it
        refuses is an error, which is reported in its order.
    done : Out(1)
        High for one cycle when an instruction is done, in their order: all its bytes are in memory.
    busy, idle : Out(1)
        `idle` is the opposite of `busy`: no burst is under way, and no instruction is inside,
        unless the engine has stopped.
    bytes_moved : Out
        Number of bytes that went over the bus in the cycle before, with or without strobes.
    error_valid : Out(1)
        High for one cycle when there is an error.
    error_code : Out(8)
        BAD_FIELD, MEMORY_RANGE, SCRATCHPAD_RANGE or AXI_WRITE.
    error_index : Out(32)
        Number of the instruction that failed.
    """

    def __init__(self, spec: CoreSpec, *, has_scratchpad: bool = True) -> None:
        self.spec = spec
        self._has_scratchpad = has_scratchpad
        burst_words(spec)  # refuses bursts that are too short
        source = {"read": Out(ReadPort(spec.scratchpad.address_bits))}
        if not has_scratchpad:
            source = {
                "i_words": In(stream.Signature(8 * spec.link_port_bytes)),
                "gate": Out(BurstGate()),
            }
        super().__init__(
            {
                "i": In(stream.Signature(TRANSFER_LAYOUT)),
                "memory_base": In(64),
                "memory_limit": In(64),
                "halt": In(1),
                "axi": Out(AxiWrite(spec.bus_bytes)),
                **source,
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
        # Words come whole, or in as many parts as they have beats.
        passes = not self._has_scratchpad and spec.link_port_bytes < WORD_BYTES

        generator = BurstGenerator(spec, has_scratchpad=self._has_scratchpad)
        m.submodules.generator = generator
        m.d.comb += [
            generator.i.payload.eq(self.i.payload),
            generator.i.valid.eq(self.i.valid),
            self.i.ready.eq(generator.i.ready),
            generator.memory_base.eq(self.memory_base),
            generator.memory_limit.eq(self.memory_limit),
        ]

        # `stopped` removes the strobes. `closed` stops requests, also while an error still waits in
        # the queue.
        stopped, closed = Signal(), Signal()
        with m.If(self.halt):
            m.d.sync += [stopped.eq(1), closed.eq(1)]

        # A burst goes in the same cycle to the bus, to the queue of bursts that wait for a response
        # and to the reader of the scratchpad. An error goes only to the queue, so that it keeps its
        # place.
        under_way = data.StructLayout({"end": 1, "code": 8, "index": 32})
        m.submodules.queue = queue = SyncFIFOBuffered(width=under_way.size, depth=spec.outstanding)
        burst = generator.o.payload
        next_burst = Signal(under_way)
        code = burst.code
        wrong = has_error = burst.code != ErrorCode.NONE
        if not self._has_scratchpad:
            code, wrong = Mux(has_error, code, self.gate.refusal), has_error | self.gate.refused
        take, reader_free = Signal(), Signal()
        address = Signal(burst.memory.shape(), reset_less=True)
        beats = Signal(8, reset_less=True)
        requesting = Signal()
        drive_request(m, axi, "aw")
        free = queue.w_rdy & ~closed & reader_free & (axi.awready | ~requesting)
        m.d.comb += [
            next_burst.end.eq(burst.end),
            next_burst.code.eq(code),
            next_burst.index.eq(burst.index),
            generator.o.ready.eq(
                free if self._has_scratchpad else free & (self.gate.allow | has_error)
            ),
            take.eq(generator.o.valid & generator.o.ready),
            queue.w_data.eq(next_burst),
            queue.w_en.eq(take),
            axi.awaddr.eq(address << OFFSET_BITS),
            axi.awlen.eq(beats),
            axi.awvalid.eq(requesting),
        ]
        with m.If(axi.awready | ~requesting):
            m.d.sync += requesting.eq(take & ~wrong)
        with m.If(take):
            m.d.sync += [
                address.eq(burst.memory),
                beats.eq((burst.words + 1) * word_beats - 1),
            ]
            with m.If(wrong):
                m.d.sync += closed.eq(1)

        # The reader requests a word per cycle while there is room for the words on their way.
        m.submodules.requests = requests = Slice(scratchpad_bits(spec, self._has_scratchpad))
        reading = Signal()
        next_word = Signal(requests.i.payload.shape(), reset_less=True)
        left = Signal(OFFSET_BITS, reset_less=True)
        low, high = Signal(OFFSET_BITS, reset_less=True), Signal(OFFSET_BITS, reset_less=True)
        room = Signal(range(BUFFER_WORDS + 1), init=BUFFER_WORDS)
        step, last_word, leaves = Signal(), Signal(), Signal()
        at_last, next_step = left == 0, step
        if passes:
            place = Signal(range(word_beats))
            at_last &= place == word_beats - 1
            next_step = step & (place == word_beats - 1)
            with m.If(step):
                m.d.sync += place.eq(place + 1)
        m.d.comb += [
            requests.i.payload.eq(next_word),
            requests.i.valid.eq(reading & (room != 0)),
            step.eq(requests.i.valid & requests.i.ready),
            last_word.eq(at_last),
            reader_free.eq(~reading | (step & last_word)),
        ]
        if self._has_scratchpad:
            read_data, data_valid = self.read.data, self.read.data_valid
            m.d.comb += [
                self.read.address.eq(requests.o.payload << OFFSET_BITS),
                self.read.valid.eq(requests.o.valid),
                requests.o.ready.eq(self.read.ready),
            ]
        else:
            read_data, data_valid = self.i_words.payload, Signal()
            m.d.comb += [
                self.i_words.ready.eq(requests.o.valid),
                requests.o.ready.eq(self.i_words.valid),
                data_valid.eq(requests.o.valid & self.i_words.valid),
                self.gate.valid.eq(generator.o.valid),
                self.gate.words.eq(burst.words),
                self.gate.end.eq(burst.end),
                self.gate.taken.eq(take & ~wrong),
            ]
        with m.If(step & ~leaves):
            m.d.sync += room.eq(room - 1)
        with m.Elif(leaves & ~step):
            m.d.sync += room.eq(room + 1)
        with m.If(reader_free):
            m.d.sync += reading.eq(take & ~wrong)
        with m.If(take):
            m.d.sync += [
                next_word.eq(burst.scratchpad),
                left.eq(burst.words),
                low.eq(burst.low),
                high.eq(burst.high),
            ]
        with m.Elif(next_step):
            m.d.sync += [next_word.eq(next_word + 1), left.eq(left - 1), low.eq(0)]

        # A queue has for each requested word the bytes to write, and whether it ends a burst. The
        # bytes of a part are known when it is requested.
        bits, about = 8 * WORD_BYTES, {"low": OFFSET_BITS, "high": OFFSET_BITS, "last": 1}
        if passes:
            bits, about = 8 * spec.bus_bytes, {"strobes": spec.bus_bytes, "last": 1}
        about = data.StructLayout(about)
        m.submodules.abouts = abouts = SyncFIFOBuffered(width=about.size, depth=BUFFER_WORDS)
        m.submodules.words = words = SyncFIFOBuffered(width=bits, depth=BUFFER_WORDS)
        asked = Signal(about)
        if passes:
            end = Mux(left == 0, high, WORD_BYTES - 1)
            wanted = [asked.strobes.eq(_strobes(place, low, end, spec.bus_bytes))]
        else:
            wanted = [asked.low.eq(low), asked.high.eq(Mux(last_word, high, WORD_BYTES - 1))]
        m.d.comb += [
            *wanted,
            asked.last.eq(last_word),
            abouts.w_data.eq(asked),
            abouts.w_en.eq(step),
            words.w_data.eq(read_data),
            words.w_en.eq(data_valid),
        ]

        # Words are split into beats. Each word that has come has its entry in `abouts`.
        head = data.View(about, abouts.r_data)
        sending, moves, ends_word = Signal(), Signal(), Signal()
        value = Signal(8 * spec.bus_bytes, reset_less=True)
        strobes = Signal(spec.bus_bytes, reset_less=True)
        last_beat = Signal(reset_less=True)
        # The bytes from `low` to `high`.
        wanted = Signal(WORD_BYTES)
        ones = Const((1 << WORD_BYTES) - 1, WORD_BYTES)
        m.d.comb += [
            moves.eq(words.r_rdy & (axi.wready | ~sending)),
            leaves.eq(moves & ends_word),
            words.r_en.eq(leaves),
            abouts.r_en.eq(leaves),
            *([] if passes else [wanted.eq((ones << head.low) & (ones >> ~head.high))]),
            axi.wdata.eq(value),
            axi.wstrb.eq(strobes),
            axi.wlast.eq(last_beat),
            axi.wvalid.eq(sending),
        ]
        part = Signal(range(max(word_beats, 2)))
        if passes:
            m.d.comb += ends_word.eq(1)
            beat, beat_strobes = words.r_data, head.strobes
        else:
            m.d.comb += ends_word.eq(part == word_beats - 1)
            beat = words.r_data.word_select(part, 8 * spec.bus_bytes)
            beat_strobes = wanted.word_select(part, spec.bus_bytes)
        with m.If(axi.wready | ~sending):
            m.d.sync += sending.eq(words.r_rdy)
        with m.If(moves):
            m.d.sync += [
                value.eq(beat),
                strobes.eq(Mux(stopped, 0, beat_strobes)),
                last_beat.eq(head.last & ends_word),
                part.eq(Mux(ends_word, 0, part + 1)),
            ]

        # Responses come in the order of the bursts.
        first = data.View(under_way, queue.r_data)
        marker, response, bad = Signal(), Signal(), Signal()
        m.d.comb += [
            marker.eq(queue.r_rdy & (first.code != ErrorCode.NONE)),
            axi.bready.eq(1),
            response.eq(axi.bvalid),
            bad.eq(response & axi.bresp[1]),
            queue.r_en.eq(response | marker),
        ]
        m.d.sync += [
            self.done.eq(response & ~bad & first.end & ~stopped),
            self.bytes_moved.eq(Mux(axi.wvalid & axi.wready, spec.bus_bytes, 0)),
            self.error_valid.eq((bad | marker) & ~stopped),
        ]
        with m.If((bad | marker) & ~stopped):
            m.d.sync += [
                stopped.eq(1),
                closed.eq(1),
                self.error_code.eq(Mux(marker, first.code, ErrorCode.AXI_WRITE)),
                self.error_index.eq(first.index),
            ]

        m.d.comb += [
            self.busy.eq((queue.level != 0) | ~(closed | generator.idle)),
            self.idle.eq(~self.busy),
        ]
        return m


def _strobes(part, low, high, num_bytes):
    """Return which bytes of a part of a word, with `num_bytes`, are from `low` to `high`."""
    lane_bits = (num_bytes - 1).bit_length()
    places = [Cat(Const(byte, lane_bits), part) for byte in range(num_bytes)]
    return Cat((place >= low) & (place <= high) for place in places)
