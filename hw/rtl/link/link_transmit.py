"""Gateware of a link's transmitter.

It turns words into frames, and keeps each frame until the other end has delivered its words.
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import (
    NUM_CHANNELS,
    NUMBER_BITS,
    SEQUENCE_BITS,
    SESSION_BITS,
    TRAILER,
    FrameKind,
    LinkEngineSpec,
)
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec
from fpgapipe.hw.rtl.link.crc import TRAILER_BODY_BITS, FrameCrc
from fpgapipe.hw.rtl.link.link_beats import (
    FEEDBACK,
    FRAME_BEAT_LAST_KEEP,
    beat_layout,
    word_layout,
)
from fpgapipe.hw.rtl.link.link_receive import chosen
from fpgapipe.hw.rtl.link.link_session import HELLO_LAYOUT
from fpgapipe.hw.rtl.link.link_window import FillWindow, TransmissionWindow

TRAILER_LAYOUT = layout_of(TRAILER)


def ring_places(slots):
    """Return the first place of each channel's ring in the memory.

    The longest ring comes first, so that each ring begins at a multiple of its length. The place of
    a frame is then the ring's first place with the lower bits of the sequence number put in.
    """
    places, place = [0] * len(slots), 0
    for channel in sorted(range(len(slots)), key=lambda channel: -slots[channel]):
        places[channel] = place
        place += slots[channel]
    return places


class FramePacker(wiring.Component):
    """Builds frames: it reads words, splits them into beats, and adds the trailer and its CRC.

    The first beat of a frame of any kind is at `o` 5 cycles after its job. The throughput is one
    beat per cycle, also from frame to frame.

    Members
    -------
    job : In(stream.Signature(job_layout(spec)))
        A frame to build. It is accepted while the frame before is still being built.
    busy : Out(1)
        There is a job inside whose trailer has not been built.
    read : Out(1)
    read_row : Out
    read_data : In(8 * port_bytes)
        Read port of the memory of words or their parts.
    answer : In(FEEDBACK)
    hello : In(HELLO_LAYOUT)
    session : In(8)
        Contents of trailers and of HELLO frames.
    makes_trailer, makes_hello : Out(1)
        In this cycle, a trailer or a HELLO frame is built from these contents.
    o : Out(stream.Signature(beat_layout(beat_bytes)))
        Beats. No stage moves without `ready`, which should come from a register.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        self.rows = BlockMemorySpec(sum(spec.slots) * spec.frame_parts, 8 * spec.port_bytes, 8)
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(spec))),
                "busy": Out(1),
                "read": Out(1),
                "read_row": Out(self.rows.row_bits),
                "read_data": In(8 * spec.port_bytes),
                "answer": In(FEEDBACK),
                "hello": In(HELLO_LAYOUT),
                "session": In(SESSION_BITS // 2),
                "makes_trailer": Out(1),
                "makes_hello": Out(1),
                "o": Out(stream.Signature(beat_layout(spec.beat_bytes))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        word_bits = spec.frame_parts.bit_length() - 1
        at_end = Const(spec.parts - 1, spec.parts.bit_length() - 1)
        advance = self.o.ready

        # What is fetched next: a word, or the frame's trailer, which needs no read.
        fetching, at_trailer = Signal(), Signal()
        word = Signal(range(max(spec.frame_parts, 2)))
        job = Signal(job_layout(spec), reset_less=True)
        # What has been fetched: a word, at the memory's output, or a trailer, which is built now.
        fetched, is_trailer = Signal(), Signal()
        part = Signal(range(max(spec.part_beats, spec.trailer_beats, 2)))
        made = Signal(job_layout(spec), reset_less=True)
        moves, leaves, job_ends = Signal(), Signal(), Signal()
        last_of_trailer, payload = is_trailer, self.read_data
        at_last_beat = is_trailer | (part == spec.part_beats - 1)
        if spec.trailer_beats > 1:
            last_of_trailer = is_trailer & (part == spec.trailer_beats - 1)
            at_last_beat = ~is_trailer | last_of_trailer
        elif spec.parts == 1:
            payload = self.read_data.word_select(part, 8 * spec.beat_bytes)
        m.d.comb += [
            leaves.eq(fetched & advance & at_last_beat),
            moves.eq(fetching & (~fetched | leaves)),
            job_ends.eq(moves & at_trailer),
            self.job.ready.eq(~fetching | job_ends),
            self.busy.eq(fetching | (fetched & is_trailer)),
            self.read.eq(moves & ~at_trailer),
            self.read_row.eq(Cat(word[:word_bits], job.place)),
        ]
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [
                fetching.eq(1),
                at_trailer.eq(self.job.payload.kind != FrameKind.DATA),
                word.eq(0),
                job.eq(self.job.payload),
            ]
        with m.Elif(job_ends):
            m.d.sync += fetching.eq(0)
        with m.Elif(moves):
            m.d.sync += [word.eq(word + 1), at_trailer.eq(word == Cat(at_end, job.words))]
        with m.If(moves):
            m.d.sync += [fetched.eq(1), is_trailer.eq(at_trailer), part.eq(0)]
            with m.If(at_trailer):
                m.d.sync += made.eq(job)
        with m.Elif(leaves):
            m.d.sync += fetched.eq(0)
        with m.Elif(fetched & advance):
            m.d.sync += part.eq(part + 1)

        # The trailer reports what is known in the cycle in which it is built.
        trailer = Signal(TRAILER_LAYOUT)
        is_hello = made.kind == FrameKind.HELLO
        makes = fetched & is_trailer & advance
        built = Mux(is_hello, self.hello.as_value(), trailer)
        if spec.trailer_beats > 1:
            makes, built = self._in_parts(m, built, part, makes)
        m.d.comb += [
            trailer.kind.eq(made.kind),
            trailer.session.eq(self.session),
            trailer.number.eq(made.number),
            trailer.seen.eq(self.answer.seen),
            trailer.received.eq(self.answer.received),
            trailer.channel.eq(made.channel),
            trailer.sequence.eq(made.sequence),
            trailer.words.eq(made.words),
            trailer.last.eq(made.last),
            Cat(trailer.freed).eq(Cat(self.answer.freed)),
            trailer.probe.eq(made.probe),
            self.makes_trailer.eq(makes & ~is_hello),
            self.makes_hello.eq(makes & is_hello),
        ]

        # Beats wait in registers while the CRC is computed.
        m.submodules.crc = crc = FrameCrc(spec.beat_bytes)
        beats = [
            Signal(8 * spec.beat_bytes, name=f"beat{stage}", reset_less=True) for stage in range(3)
        ]
        valid = [Signal(name=f"valid{stage}") for stage in range(3)]
        ends = [Signal(name=f"ends{stage}", reset_less=True) for stage in range(3)]
        keep = Signal(spec.beat_bytes, reset_less=True)
        with m.If(advance):
            m.d.sync += valid[0].eq(fetched)
            with m.If(fetched):
                m.d.sync += ends[0].eq(last_of_trailer)
                with m.If(is_trailer):
                    m.d.sync += beats[0].eq(built)
                with m.Else():
                    m.d.sync += beats[0].eq(payload)
            # `valid` and `ends` are signals of one bit each, since simulators take a signal whose
            # bits drive each other for a loop.
            with m.If(valid[1]):
                m.d.sync += keep.eq(Mux(ends[1], FRAME_BEAT_LAST_KEEP, ~0))
            for stage in range(2):
                m.d.sync += valid[stage + 1].eq(valid[stage])
                with m.If(valid[stage]):
                    m.d.sync += [
                        beats[stage + 1].eq(beats[stage]),
                        ends[stage + 1].eq(ends[stage]),
                    ]
        body = min(TRAILER_BODY_BITS, 8 * spec.beat_bytes - len(crc.crc))
        behind = beats[2][body + len(crc.crc) :]
        m.d.comb += [
            crc.advance.eq(advance),
            crc.valid.eq(valid[0]),
            crc.ends.eq(ends[0]),
            crc.data.eq(beats[0]),
            self.o.valid.eq(valid[2]),
            self.o.payload.last.eq(ends[2]),
            self.o.payload.keep.eq(keep),
            self.o.payload.data.eq(
                Cat(
                    beats[2][:body],
                    Mux(ends[2], crc.crc, beats[2][body : body + len(crc.crc)]),
                    behind,
                )
            ),
        ]
        return m

    def _in_parts(self, m, built, part, makes):
        """Return whether the first part of a trailer is made, and the part that is made.

        All parts are those of the trailer as it was when its first part was made. In place of its
        CRC, which is known later, come zeros.
        """
        bits = 8 * self.spec.beat_bytes
        left = Signal(TRAILER_BODY_BITS - bits, reset_less=True)
        first = part == 0
        with m.If(makes):
            m.d.sync += left.eq(Mux(first, built[bits:], left >> bits))
        return makes & first, Mux(first, built[:bits], left[:bits])


def job_layout(spec):
    """Layout of a frame to build: the fields of its trailer, and the place of its words."""
    return data.StructLayout(
        {
            "kind": 2,
            "number": NUMBER_BITS,
            "channel": 2,
            "sequence": SEQUENCE_BITS,
            "words": 5,
            "last": 1,
            "probe": 1,
            "place": (sum(spec.slots) - 1).bit_length(),
        }
    )


class LinkTransmitter(wiring.Component):
    """Accepts words, and transmits their frames until the other end has received them.

    A frame's first beat is at `o` 8 cycles after its last word at `i`, if no frame is before it.
    One word, or one part of a word, per cycle enters the memory. The channels that have words and
    room for them take turns. `i.ready` depends on the other channels' `valid`.

    Members
    -------
    i : In(stream.Signature(word_layout(port_bytes))).array(3)
        Words or their parts, by channel.
    o : Out(stream.Signature(beat_layout(beat_bytes)))
        Beats of `FramePacker`.
    up : In(1)
        Whether words are accepted, and frames other than HELLO are sent.
    session : In(8)
        Lower bits of this end's session.
    hello_due : In(1)
    hello_take : Out(1)
    hello : In(HELLO_LAYOUT)
    hello_sent : Out(1)
        `due`, `take`, `next_hello` and `sent` of `LinkHandshake`.
    answer : In(FEEDBACK)
    news : In(1)
    feedback_valid : In(1)
    feedback : In(FEEDBACK)
        The members of `LinkReceiver`.
    entered, framed, replayed, waits : Out(1)
        A word was accepted; a frame with words was started; that frame had been sent before; a word
        waits for room at the other end.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        self.fills = [FillWindow(slots, spec.frame_parts) for slots in spec.slots]
        self.window = TransmissionWindow()
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(spec.port_bytes))).array(NUM_CHANNELS),
                "o": Out(stream.Signature(beat_layout(spec.beat_bytes))),
                "up": In(1),
                "session": In(SESSION_BITS // 2),
                "hello_due": In(1),
                "hello_take": Out(1),
                "hello": In(HELLO_LAYOUT),
                "hello_sent": Out(1),
                "answer": In(FEEDBACK),
                "news": In(1),
                "feedback_valid": In(1),
                "feedback": In(FEEDBACK),
                "entered": Out(1),
                "framed": Out(1),
                "replayed": Out(1),
                "waits": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.packer = packer = FramePacker(self.spec)
        m.submodules.memory = memory = BlockMemory(
            BlockMemorySpec(packer.rows.rows, packer.rows.bits, packer.rows.bits)
        )
        wiring.connect(m, packer.o, wiring.flipped(self.o))
        m.d.comb += [
            memory.read.eq(packer.read),
            memory.read_row.eq(packer.read_row),
            packer.read_data.eq(memory.read_data),
            packer.answer.eq(self.answer),
            packer.hello.eq(self.hello),
            packer.session.eq(self.session),
            self.hello_sent.eq(packer.makes_hello),
        ]
        shapes = self._fill(m, memory)
        self._schedule(m, packer, shapes)
        return m

    def _place(self, channel, sequence):
        """Return the place of a frame; `channel` is a number or a signal."""
        firsts = ring_places(self.spec.slots)
        places = Array(
            first | sequence[: slots.bit_length() - 1]
            for first, slots in zip(firsts, self.spec.slots, strict=True)
        )
        return places[channel]

    def _fill(self, m, memory):
        """Write words to `memory` and the shapes of complete frames to another one; return that."""
        spec, fills = self.spec, self.fills
        word_bits, part_bits = spec.frame_parts.bit_length() - 1, spec.parts.bit_length() - 1
        shape = data.StructLayout({"words": max(word_bits - part_bits, 1), "last": 1})
        m.submodules.shapes = shapes = Memory(shape=shape, depth=sum(spec.slots), init=[])
        write = shapes.write_port()

        may, takes = Signal(NUM_CHANNELS), Signal(NUM_CHANNELS)
        turn = Signal(NUM_CHANNELS, init=1)
        row = Signal(memory.spec.row_bits, reset_less=True)
        word = Signal(8 * spec.port_bytes, reset_less=True)
        entered, completed = Signal(), Signal()
        last = Signal(reset_less=True)
        m.d.comb += takes.eq(chosen(may, turn))
        m.d.sync += [
            entered.eq(takes.any()),
            completed.eq(Cat(fill.complete for fill in fills).any()),
        ]
        blocked = []
        for number, (fill, source) in enumerate(zip(fills, self.i, strict=True)):
            m.submodules[f"fill{number}"] = fill
            m.d.comb += [
                may[number].eq(source.valid & fill.room & self.up),
                source.ready.eq(takes[number]),
                fill.take.eq(takes[number]),
                fill.last.eq(source.payload.last),
                fill.freed_valid.eq(self.feedback_valid),
                fill.freed.eq(self.feedback.freed[number]),
            ]
            blocked.append(source.valid & ~fill.room)
            with m.If(takes[number]):
                m.d.sync += [
                    row.eq(Cat(fill.word[:word_bits], self._place(number, fill.fill))),
                    word.eq(source.payload.data),
                    last.eq(source.payload.last),
                    turn.eq(1 << (number + 1) % NUM_CHANNELS),
                ]
        m.d.comb += [
            self.waits.eq(Cat(blocked).any() & self.up),
            self.entered.eq(entered & row[:part_bits].all() if part_bits else entered),
            memory.write.eq(entered),
            memory.write_row.eq(row),
            memory.write_data.eq(word),
            write.addr.eq(row[word_bits:]),
            write.data.words.eq(row[part_bits:word_bits]),
            write.data.last.eq(last),
            write.en.eq(completed),
        ]
        return shapes

    def _schedule(self, m, packer, shapes):
        """Choose the frame that is sent next."""
        spec, window = self.spec, self.window
        m.submodules.window = window
        m.d.comb += [
            window.feedback_valid.eq(self.feedback_valid),
            window.seen.eq(self.feedback.seen),
            window.received.eq(self.feedback.received),
        ]

        # The trailer of any frame brings the other end the news. If no other frame is to be sent,
        # a CONTROL frame does.
        owes, owes_probe = Signal(), Signal()
        timer = Signal(range(spec.probe_cycles + 1))
        expired = timer == spec.probe_cycles
        with m.If(packer.makes_trailer):
            m.d.sync += [owes.eq(0), owes_probe.eq(0), timer.eq(0)]
        with m.Elif(~expired):
            m.d.sync += timer.eq(timer + 1)
        with m.If(expired & ~packer.makes_trailer):
            m.d.sync += owes_probe.eq(window.unresolved | self.waits)
        with m.If(self.news):
            m.d.sync += owes.eq(1)

        # A frame is chosen in one cycle, and its shape is looked up in the next.
        named, ready = Signal(), Signal()
        name, job = Signal(job_layout(spec), reset_less=True), packer.job.payload
        shaped = Signal(job_layout(spec), reset_less=True)
        look_up = shapes.read_port(domain="comb")
        m.d.comb += [
            look_up.addr.eq(self._place(name.channel, name.sequence)),
            packer.job.valid.eq(ready),
            job.eq(shaped),
        ]
        with m.If(ready):
            m.d.sync += ready.eq(~packer.job.ready)
        with m.Elif(named):
            m.d.sync += [named.eq(0), ready.eq(1), shaped.eq(name)]
            m.d.sync += shaped.place.eq(look_up.addr)
            with m.If(name.kind == FrameKind.DATA):
                m.d.sync += [
                    shaped.words.eq(look_up.data.words if spec.frame_words > 1 else 0),
                    shaped.last.eq(look_up.data.last),
                ]

        # A new frame may start only when none is to be repeated: `TransmissionWindow` needs that.
        sent = [Signal(SEQUENCE_BITS, name=f"sent{number}") for number in range(NUM_CHANNELS)]
        waiting, fresh = Signal(NUM_CHANNELS), Signal(NUM_CHANNELS)
        turn = Signal(NUM_CHANNELS, init=1)
        m.d.comb += [
            waiting.eq(Cat(mine != fill.fill for mine, fill in zip(sent, self.fills, strict=True))),
            fresh.eq(chosen(waiting, turn)),
        ]
        m.d.sync += [self.framed.eq(0), self.replayed.eq(0)]
        with m.If(~named):
            with m.If(self.hello_due):
                m.d.comb += self.hello_take.eq(1)
                m.d.sync += [named.eq(1), name.eq(0), name.kind.eq(FrameKind.HELLO)]
            with m.Elif(self.up & window.open & (window.replay_valid | waiting.any())):
                m.d.comb += window.start.eq(1)
                m.d.sync += [
                    named.eq(1),
                    name.kind.eq(FrameKind.DATA),
                    name.number.eq(window.number),
                    name.channel.eq(window.frame.channel),
                    name.sequence.eq(window.frame.sequence),
                    name.probe.eq(0),
                    self.framed.eq(1),
                    self.replayed.eq(window.replay_valid),
                ]
                with m.If(window.replay_valid):
                    m.d.comb += [window.replay_take.eq(1), window.frame.eq(window.replay)]
                with m.Else():
                    for number, mine in enumerate(sent):
                        with m.If(fresh[number]):
                            m.d.comb += [
                                window.frame.channel.eq(number),
                                window.frame.sequence.eq(mine),
                            ]
                            m.d.sync += [
                                mine.eq(mine + 1),
                                turn.eq(1 << (number + 1) % NUM_CHANNELS),
                            ]
            with m.Elif(self.up & (owes | owes_probe) & ~ready & ~packer.busy):
                m.d.sync += [
                    named.eq(1),
                    name.eq(0),
                    name.kind.eq(FrameKind.CONTROL),
                    name.number.eq(window.number - 1),
                    name.probe.eq(owes_probe),
                ]
