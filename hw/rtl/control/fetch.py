"""Gateware that reads a program ahead of its dispatch."""

from enum import IntEnum

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.rtl.lib.axi import ADDRESS_BITS, AxiRead, drive_request
from fpgapipe.hw.rtl.lib.parts import last_part
from fpgapipe.hw.rtl.lib.queue import WordFifo

WORD_SHIFT = WORD_BYTES.bit_length() - 1


class Fault(IntEnum):
    """Reason why a word is missing."""

    NONE = 0
    RANGE = 1
    READ = 2


def fetched_layout(spec: SequencerSpec) -> data.StructLayout:
    """Layout of a part of a word of the program, or of the reason why it is missing."""
    return data.StructLayout({"data": 8 * spec.part_bytes, "fault": Fault})


def response_layout(spec: SequencerSpec) -> data.StructLayout:
    """Layout of a part of a word, and whether it could not be read."""
    return data.StructLayout({"data": 8 * spec.part_bytes, "error": 1})


def request_layout(spec: SequencerSpec) -> data.StructLayout:
    """Layout of a request: the byte address, and the number of words of 64 bytes."""
    return data.StructLayout(
        {"address": unsigned(ADDRESS_BITS), "words": range(spec.fetch_words + 1)}
    )


class Fetcher(wiring.Component):
    """Reads the words of a program, part by part, as far ahead as its FIFO has room.

    A request asks for the words up to the next multiple of ``64 * fetch_words`` bytes, so it never
    crosses a multiple of 4 KiB. After the last word of the memory window comes a word with
    ``Fault.RANGE``, and nothing after it. There is always room for responses.

    Members
    -------
    start : In(1)
        A pulse that starts to read the program at `entry`; only while `idle`, and after a reset.
    stop : In(1)
        While this is high, no new request is made.
    entry, memory_base, memory_limit : In(64)
        Byte addresses, multiples of 64, which are constant from the start on. Only the bytes
        ``memory_base..memory_limit - 1`` are read.
    o_request : Out(stream.Signature(request_layout(spec)))
        Requests.
    i_response : In(stream.Signature(response_layout(spec)))
        Parts of the words of all requests, in order.
    o : Out(stream.Signature(fetched_layout(spec)))
        Parts of the words of the program.
    idle : Out(1)
        High while no request waits for its response.
    """

    def __init__(self, spec: SequencerSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "start": In(1),
                "stop": In(1),
                "entry": In(ADDRESS_BITS),
                "memory_base": In(ADDRESS_BITS),
                "memory_limit": In(ADDRESS_BITS),
                "o_request": Out(stream.Signature(request_layout(spec))),
                "i_response": In(stream.Signature(response_layout(spec))),
                "o": Out(stream.Signature(fetched_layout(spec))),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        parts = spec.word_parts
        m.submodules.fifo = fifo = WordFifo(fetched_layout(spec), spec.prefetch_words * parts)
        wiring.connect(m, fifo.o, wiring.flipped(self.o))

        # The words up to the window's end are counted at the start; requests only count down.
        address = Signal(ADDRESS_BITS - WORD_SHIFT)
        remaining = Signal(ADDRESS_BITS - WORD_SHIFT)
        active = Signal()
        end = Signal()  # the word after the window has not been put into the FIFO yet
        space = Signal(range(spec.prefetch_words + 1), init=spec.prefetch_words)
        outstanding = Signal(range(spec.prefetch_words + 1))

        chunk = Signal(range(spec.fetch_words + 1))
        to_boundary = Signal(range(spec.fetch_words + 1))
        fetch_bits = spec.fetch_words.bit_length() - 1
        asks = Signal()
        free = Signal()
        m.d.comb += [
            to_boundary.eq(spec.fetch_words - (address[:fetch_bits] if fetch_bits else 0)),
            chunk.eq(Mux(remaining < to_boundary, remaining, to_boundary)),
            free.eq(~self.o_request.valid | self.o_request.ready),
            # A request needs room for a whole chunk even if it is shorter: that room comes soon,
            # and the comparison is short.
            asks.eq(active & ~self.stop & free & (remaining != 0) & (space >= spec.fetch_words)),
        ]
        with m.If(self.start):
            m.d.sync += [
                active.eq(1),
                end.eq(1),
                address.eq(self.entry[WORD_SHIFT:]),
                remaining.eq(
                    Mux(
                        (self.entry >= self.memory_base) & (self.entry < self.memory_limit),
                        self.memory_limit[WORD_SHIFT:] - self.entry[WORD_SHIFT:],
                        0,
                    )
                ),
            ]
        with m.If(asks):
            m.d.sync += [
                address.eq(address + chunk),
                remaining.eq(remaining - chunk),
                self.o_request.payload.address.eq(address << WORD_SHIFT),
                self.o_request.payload.words.eq(chunk),
                self.o_request.valid.eq(1),
            ]
        with m.Elif(self.o_request.ready):
            m.d.sync += self.o_request.valid.eq(0)

        # Room and requests are counted in whole words.
        arrives = Signal()
        ends = Signal()
        came, _ = last_part(m, self.i_response.valid, parts)
        m.d.comb += [
            self.i_response.ready.eq(1),
            arrives.eq(self.i_response.valid & came),
            ends.eq(active & end & (remaining == 0) & (outstanding == 0) & (space != 0) & ~arrives),
            fifo.i.valid.eq(self.i_response.valid | ends),
            fifo.i.payload.data.eq(self.i_response.payload.data),
            fifo.i.payload.fault.eq(
                Mux(ends, Fault.RANGE, Mux(self.i_response.payload.error, Fault.READ, Fault.NONE))
            ),
            self.idle.eq((outstanding == 0) & ~self.o_request.valid),
        ]
        with m.If(ends):
            m.d.sync += end.eq(0)
        moves, leaves = Signal(), Signal()
        asked = Signal.like(chunk)
        went, _ = last_part(m, moves, parts)
        m.d.comb += [
            moves.eq(self.o.valid & self.o.ready),
            leaves.eq(moves & went),
            asked.eq(Mux(asks, chunk, 0)),
        ]
        m.d.sync += [
            space.eq(space - asked - ends + leaves),
            outstanding.eq(outstanding + asked - arrives),
        ]
        return m


class ProgramReader(wiring.Component):
    """Converts the requests of a `Fetcher` to AXI4 bursts, and the beats to parts of words.

    A request takes one cycle. A part comes in the cycle after its last beat. All data are accepted
    at once, so there must always be room for responses.

    Members
    -------
    i : In(stream.Signature(request_layout(spec)))
        Requests.
    o : Out(stream.Signature(response_layout(spec)))
        Parts of words; `ready` is ignored.
    axi : Out(AxiRead(spec.bus_bytes))
        Bus to the program.
    """

    def __init__(self, spec: SequencerSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "i": In(stream.Signature(request_layout(spec))),
                "o": Out(stream.Signature(response_layout(spec))),
                "axi": Out(AxiRead(spec.bus_bytes)),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        bus_bytes = self.spec.bus_bytes
        word_beats, beats = WORD_BYTES // bus_bytes, self.spec.part_bytes // bus_bytes
        axi = self.axi
        drive_request(m, axi, "ar")
        last_word = Signal(range(max(self.spec.fetch_words, 2)))
        m.d.comb += [
            last_word.eq(self.i.payload.words - 1),
            axi.arvalid.eq(self.i.valid),
            axi.araddr.eq(self.i.payload.address),
            axi.arlen.eq(last_word * word_beats + (word_beats - 1)),
            self.i.ready.eq(axi.arready),
            axi.rready.eq(1),
        ]
        number = Signal(range(max(beats, 2)))
        last = Signal()
        m.d.comb += last.eq(number == beats - 1)
        m.d.sync += self.o.valid.eq(axi.rvalid & last)
        with m.If(axi.rvalid):
            m.d.sync += [
                number.eq(Mux(last, 0, number + 1)),
                self.o.payload.data.eq(Cat(self.o.payload.data[8 * bus_bytes :], axi.rdata)),
                # SLVERR or DECERR in any beat is an error of the part.
                self.o.payload.error.eq(axi.rresp[1] | ((number != 0) & self.o.payload.error)),
            ]
        return m
