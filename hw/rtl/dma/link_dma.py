"""Gateware of the engines between memory or scratchpad and a link: `hls_models.model.link_dma`.

Memory and links wait for each other only at the buffers of these engines. A word is read from
memory when there is room for it, and a burst to memory begins when its words are there. So the
memory bus never waits for a link or for another device.

An instruction with words of the scratchpad has its engine to itself, since words that come from
memory, or go there, take longer. Its fields are looked at a cycle before it is taken.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import LINK, WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.model.dma import burst_words
from fpgapipe.hw.hls_models.model.link_dma import STREAM_BYTES, send_words
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import NUM_CHANNELS
from fpgapipe.hw.rtl.dma.dma import OFFSET_BITS
from fpgapipe.hw.rtl.dma.load import LoadEngine
from fpgapipe.hw.rtl.dma.scratchpad import GRANULES, ReadPort, WritePort
from fpgapipe.hw.rtl.dma.store import StoreEngine
from fpgapipe.hw.rtl.lib.axi import AxiRead, AxiWrite, Slice
from fpgapipe.hw.rtl.lib.block_fifo import BlockFifo
from fpgapipe.hw.rtl.lib.parts import last_part
from fpgapipe.hw.rtl.lib.queue import WordFifo, issue_layout
from fpgapipe.hw.rtl.link.link_beats import word_layout

NUM_PACKETS = 8
"""Largest number of instructions inside an engine; the sequencer issues no more."""

_PACKET = data.StructLayout({"channel": 2, "stream": 8 * STREAM_BYTES, "index": 32})


def _members(spec):
    """Return the members that both engines have."""
    return {
        "i": In(stream.Signature(issue_layout(LINK))),
        "memory_base": In(64),
        "memory_limit": In(64),
        "halt": In(1),
        "down": In(1),
        "done": Out(1),
        "busy": Out(1),
        "idle": Out(1),
        "waits": Out(1),
        "error_valid": Out(1),
        "error_code": Out(8),
        "error_index": Out(32),
    }


def link_parts(spec: CoreSpec) -> int:
    """Parts in which a word enters or leaves the links of a core."""
    return WORD_BYTES // spec.link_port_bytes


class _OnChip:
    """The words of the scratchpad that an engine's instruction names, if it has such a one.

    Attributes
    ----------
    taken, active : Signal
        Such an instruction is taken in this cycle; one has been taken before.
    word, left, more : Signal
        Number of the next word in the scratchpad, how many are left, and whether any are.
    index : Signal
        Number of the instruction.
    """

    def __init__(self, m, spec, done):
        bits = spec.scratchpad.address_bits - OFFSET_BITS
        self.taken, self.active = Signal(), Signal()
        self.word = Signal(bits, reset_less=True)
        self.left = Signal(bits + 1, reset_less=True)
        self.index = Signal(32, reset_less=True)
        self.more = Signal()
        with m.If(self.taken):
            m.d.sync += [self.active.eq(1), self.more.eq(1)]
        with m.Elif(done):
            m.d.sync += self.active.eq(0)

    def take(self, m, spec, instruction, inside):
        """Look at an instruction; return whether it may be taken, and whether its words exist."""
        body = instruction.payload.body
        top, bits = spec.scratchpad.address_bits, len(self.word)
        looked, good, is_on_chip = Signal(), Signal(), Signal()
        word, words = body.memory[OFFSET_BITS:top], body.row_bytes[OFFSET_BITS : top + 1]
        is_whole = ~(body.memory[:OFFSET_BITS].any() | body.row_bytes[:OFFSET_BITS].any())
        is_row = ~(body.rows.any() | body.planes.any()) & (words != 0)
        fits = ~(body.memory[top:].any() | body.row_bytes[top + 1 :].any())
        fits &= word + words <= spec.scratchpad.size_bytes // WORD_BYTES
        # Nothing depends on the fields of an instruction that is not there.
        m.d.comb += is_on_chip.eq(instruction.valid & body.in_scratchpad)
        m.d.sync += [
            looked.eq(is_on_chip & ~instruction.ready & (inside == 0)),
            good.eq(is_whole & is_row & fits & (body.channel < NUM_CHANNELS)),
        ]
        with m.If(self.taken):
            m.d.sync += [
                self.word.eq(word),
                self.left.eq(words),
                self.index.eq(instruction.payload.index),
            ]
        assert len(words) == bits + 1
        return Mux(is_on_chip, looked, ~self.active), is_on_chip & good

    def step(self, m, moves):
        """Go on to the next word when one moves."""
        with m.If(moves):
            m.d.sync += [
                self.word.eq(self.word + 1),
                self.left.eq(self.left - 1),
                self.more.eq(self.left != 1),
            ]


def _take(m, engine, inner, packets, inside, on_chip):
    """Pass an engine's instructions to the engine inside it and to the queue of packets.

    One with words of the scratchpad goes to the queue alone, and one whose words do not exist to
    the inner engine as well, which refuses it.
    """
    body, transfer = engine.i.payload.body, inner.i.payload.body
    may, has_words = 1, 0
    if on_chip is not None:
        may, has_words = on_chip.take(m, engine.spec, engine.i, inside)
        m.d.comb += on_chip.taken.eq(engine.i.valid & engine.i.ready & has_words)
    wrong = (body.channel >= NUM_CHANNELS) | body.in_scratchpad
    m.d.comb += [
        *(
            getattr(transfer, name).eq(getattr(body, name))
            for name in ("memory", "rows", "row_memory", "planes", "plane_memory")
        ),
        # The inner engine refuses rows of no bytes, and in this way a channel that does not exist.
        transfer.row_bytes.eq(Mux(wrong, 0, body.row_bytes)),
        inner.i.payload.index.eq(engine.i.payload.index),
        inner.i.valid.eq(engine.i.valid & packets.i.ready & may & ~has_words),
        packets.i.payload.channel.eq(body.channel),
        packets.i.payload.stream.eq(body.stream),
        packets.i.payload.index.eq(engine.i.payload.index),
        packets.i.valid.eq(engine.i.valid & (inner.i.ready | has_words) & may),
        engine.i.ready.eq((inner.i.ready | has_words) & packets.i.ready & may),
        inner.memory_base.eq(engine.memory_base),
        inner.memory_limit.eq(engine.memory_limit),
    ]


class SendEngine(wiring.Component):
    """Runs SEND instructions: reads rows from memory or scratchpad and sends them as packets.

    The first request is on the bus 7 cycles after the instruction was taken. A packet's first word
    is at the link 4 cycles after its first beat was taken, if the link has taken all words before.
    A packet takes one cycle more than it has words. At most `send_words` words and
    `spec.outstanding` bursts are requested or buffered, so the bus never waits for the link.

    A packet from the scratchpad is taken when all before have been sent, and its tag is at the link
    8 cycles later, followed by a word a cycle. No instruction is taken until it has been sent. With
    `fpgapipe.hw.rtl.dma.shared_ports.SharedPort`, the first word may wait a cycle more.

    An error is reported at once. The words in the buffer are not sent, so packets before the error
    may be incomplete, and the host has to reset the link. There is at most one error; after it, the
    engine takes no instruction until reset. A high `halt` stops the engine in the same way without
    an error: from the second cycle on, no word is sent, and a word that waits is withdrawn.

    Members
    -------
    i : In(stream.Signature(issue_layout(LINK)))
        Instructions.
    memory_base, memory_limit : In(64)
        The same as for `fpgapipe.hw.rtl.dma.load.LoadEngine`.
    halt : In(1)
        Stops the engine; one high cycle is enough.
    down : In(1)
        The link is off or has stopped, which is an error while an instruction is under way.
    axi : Out(AxiRead(bus_bytes))
        Read port of the memory bus.
    read : Out(ReadPort)
        Words of the scratchpad, if words pass the link in one part.
    o : Out(stream.Signature(word_layout(link_port_bytes))).array(3)
        Channels of the link.
    done : Out(1)
        High for one cycle when an instruction is done: the link has taken its last word.
    busy, idle : Out(1)
        `idle` is the opposite of `busy`: no burst is under way on the bus, and no instruction is
        inside, unless the engine has stopped.
    waits : Out(1)
        Event: a word waits for the link.
    error_valid : Out(1)
        High for one cycle when there is an error.
    error_code : Out(8)
        BAD_FIELD, MEMORY_RANGE, AXI_READ or LINK_DOWN.
    error_index : Out(32)
        Number of the instruction that failed; for LINK_DOWN, that of the oldest one.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                **_members(spec),
                **(
                    {"read": Out(ReadPort(spec.scratchpad.address_bits))}
                    if spec.links_reach_scratchpad
                    else {}
                ),
                "axi": Out(AxiRead(spec.bus_bytes)),
                "o": Out(stream.Signature(word_layout(spec.link_port_bytes))).array(NUM_CHANNELS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.load = load = LoadEngine(self.spec, has_scratchpad=False)
        m.submodules.packets = packets = WordFifo(_PACKET, NUM_PACKETS)
        layout, parts = word_layout(self.spec.link_port_bytes), link_parts(self.spec)
        most = send_words(self.spec)
        m.submodules.words = words = BlockFifo(layout.size, parts * most)
        item = data.StructLayout({"word": layout, "channel": 2, "index": 32})
        m.submodules.out = out = Slice(item)
        wiring.connect(m, load.axi, wiring.flipped(self.axi))
        inside = Signal(range(2 * NUM_PACKETS + 1))
        ends, fails = Signal(), Signal()
        on_chip = _OnChip(m, self.spec, ends) if self.spec.links_reach_scratchpad else None
        asks = Const(0)
        _take(m, self, load, packets, inside, on_chip)

        # There is always room in the buffer for all words that are requested.
        room = Signal(range(most + 1), init=most)
        asked = Signal(range(WORD_BYTES + 1))
        stopped = Signal()
        m.d.comb += [
            load.gate.allow.eq(room > load.gate.words),
            asked.eq(Mux(load.gate.taken, load.gate.words + 1, 0)),
            words.i.payload.eq(load.o.payload),
            words.i.valid.eq(load.o.valid),
            load.o.ready.eq(1),
            load.halt.eq(self.halt | stopped),
        ]
        if on_chip is not None:
            asks = self._read_scratchpad(m, on_chip, words, asked, room, stopped)
        moves = Signal()
        at_end, at_begin = last_part(m, moves, parts)
        m.d.sync += room.eq(room - asked + (words.o.valid & words.o.ready & at_end))

        # The tag is sent before a packet's first word, and is in the first part of its own word.
        head, word = packets.o.payload, data.View(layout, words.o.payload)
        in_words = Signal()
        m.d.comb += [
            out.i.payload.channel.eq(head.channel),
            out.i.payload.index.eq(head.index),
            out.i.payload.word.data.eq(Mux(in_words, word.data, Mux(at_begin, head.stream, 0))),
            out.i.payload.word.last.eq(in_words & word.last),
            out.i.valid.eq(words.o.valid & packets.o.valid),
            moves.eq(out.i.valid & out.i.ready),
            words.o.ready.eq(packets.o.valid & out.i.ready & in_words),
            packets.o.ready.eq(moves & in_words & word.last),
        ]
        with m.If(moves & at_end):
            m.d.sync += in_words.eq(~(in_words & word.last))

        goes, ready = Signal(), 0
        for channel, o in enumerate(self.o):
            mine = out.o.payload.channel == channel
            m.d.comb += [
                o.payload.eq(out.o.payload.word),
                o.valid.eq(out.o.valid & mine & ~stopped),
            ]
            ready = ready | (mine & o.ready)
        m.d.comb += [
            out.o.ready.eq(ready & ~stopped),
            goes.eq(out.o.valid & out.o.ready),
            self.waits.eq(out.o.valid & ~ready & ~stopped),
        ]

        m.d.comb += [
            ends.eq(goes & out.o.payload.word.last),
            fails.eq(self.down & (out.o.valid | packets.o.valid) & ~ends),
            self.busy.eq(load.busy | ((inside != 0) & ~stopped) | asks),
            self.idle.eq(~self.busy),
        ]
        m.d.sync += [
            inside.eq(inside + (self.i.valid & self.i.ready) - ends),
            self.done.eq(ends),
            self.error_valid.eq((load.error_valid | fails) & ~stopped),
        ]
        with m.If((load.error_valid | fails) & ~stopped):
            m.d.sync += [
                self.error_code.eq(Mux(load.error_valid, load.error_code, ErrorCode.LINK_DOWN)),
                self.error_index.eq(
                    Mux(
                        load.error_valid,
                        load.error_index,
                        Mux(out.o.valid, out.o.payload.index, head.index),
                    )
                ),
            ]
        with m.If(self.halt | load.error_valid | fails):
            m.d.sync += stopped.eq(1)
        return m

    def _read_scratchpad(self, m, on_chip, words, asked, room, stopped):
        """Give the words of the scratchpad to the buffer; return whether one is asked for."""
        waits = Signal()  # a request that has been made stays
        has_room = Signal()  # for the word that is requested next, and one that is on its way
        coming = Signal.like(on_chip.left)
        word = Signal(words.i.payload.shape())
        step = Signal()
        m.d.comb += [
            self.read.address.eq(on_chip.word << OFFSET_BITS),
            self.read.valid.eq(on_chip.more & ((has_room & ~stopped) | waits)),
            step.eq(self.read.valid & self.read.ready),
            word.eq(Cat(self.read.data, coming == 1)),
        ]
        m.d.sync += [waits.eq(self.read.valid & ~self.read.ready), has_room.eq(room > 1)]
        on_chip.step(m, step)
        with m.If(on_chip.taken):
            m.d.sync += coming.eq(self.i.payload.body.row_bytes >> OFFSET_BITS)
        with m.Elif(self.read.data_valid):
            m.d.sync += coming.eq(coming - 1)
        with m.If(on_chip.active):
            m.d.comb += [
                asked.eq(step),
                words.i.payload.eq(word),
                words.i.valid.eq(self.read.data_valid),
            ]
        return self.read.valid


class ReceiveEngine(wiring.Component):
    """Runs RECEIVE instructions: takes packets from a link into memory or scratchpad.

    A burst begins when all its words are there, so it never waits on the bus. Its request is on the
    bus 2 cycles after its last word was taken, and its first beat 4 cycles after that. `done` comes
    a cycle after the response to the instruction's last burst. The throughput is one word per cycle
    within a packet. Between two packets, about as many cycles are lost as the last burst has words;
    the link meanwhile buffers the words that arrive.

    A packet for the scratchpad is taken when all before have been written, and no instruction is
    taken until it has been. Its words are written 2 cycles after they were taken, or 3 if the port
    of the scratchpad is shared, and `done` comes a cycle after the last of them or, while `held` is
    high then, in the first cycle in which it is low.

    An error is reported when everything before it is done, as
    `fpgapipe.hw.hls_models.model.link_dma.receive` defines it. There is at most one error; after
    it, the engine takes no instruction and no word until reset, and the host has to reset the link.
    A high `halt` stops the engine in the same way as `fpgapipe.hw.rtl.dma.store.StoreEngine`.

    Members
    -------
    i : In(stream.Signature(issue_layout(LINK)))
        Instructions.
    memory_base, memory_limit : In(64)
        The same as for `fpgapipe.hw.rtl.dma.store.StoreEngine`.
    halt : In(1)
        Stops the engine; one high cycle is enough.
    down : In(1)
        The link is off or has stopped, if only for a cycle, which is an error while an instruction
        waits for words.
    axi : Out(AxiWrite(bus_bytes))
        Write port of the memory bus.
    write : Out(WritePort)
        Words for the scratchpad, if words pass the link in one part.
    held : In(1)
        Only with `write`: a word that was written in an earlier cycle is not in the scratchpad yet.
    i_words : In(stream.Signature(word_layout(link_port_bytes))).array(3)
        Channels of the link.
    done : Out(1)
        High for one cycle when an instruction is done, in their order: all its bytes are in memory.
    busy, idle : Out(1)
        `idle` is the opposite of `busy`: no burst is under way, and no instruction is inside,
        unless the engine has stopped.
    waits : Out(1)
        Event: an instruction waits for a word.
    error_valid : Out(1)
        High for one cycle when there is an error.
    error_code : Out(8)
        BAD_FIELD, MEMORY_RANGE, AXI_WRITE, LINK_STREAM or LINK_DOWN.
    error_index : Out(32)
        Number of the instruction that failed.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                **_members(spec),
                **(
                    {"write": Out(WritePort(spec.scratchpad.address_bits)), "held": In(1)}
                    if spec.links_reach_scratchpad
                    else {}
                ),
                "axi": Out(AxiWrite(spec.bus_bytes)),
                "i_words": In(stream.Signature(word_layout(spec.link_port_bytes))).array(
                    NUM_CHANNELS
                ),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        depth = max(2 * burst_words(self.spec), 4)
        m.submodules.store = store = StoreEngine(self.spec, has_scratchpad=False)
        m.submodules.packets = packets = WordFifo(_PACKET, NUM_PACKETS)
        layout, parts = word_layout(self.spec.link_port_bytes), link_parts(self.spec)
        m.submodules.words = words = BlockFifo(8 * self.spec.link_port_bytes, parts * depth)
        wiring.connect(m, store.axi, wiring.flipped(self.axi))
        stopped, ended, code = Signal(), Signal(), Signal(8)  # of words for the scratchpad
        inside = Signal(range(2 * NUM_PACKETS + 1))
        on_chip = None
        active, gives, index, held = Const(0), Const(0), Const(0, 32), Const(0)
        if self.spec.links_reach_scratchpad:
            on_chip = _OnChip(m, self.spec, ended)
            active, gives, index = on_chip.active, self.write.valid, on_chip.index
            held = self.held
        # An error is reported when the words before it are in the scratchpad.
        failed = (code != ErrorCode.NONE) & ~held
        _take(m, self, store, packets, inside, on_chip)
        m.d.sync += inside.eq(inside + (self.i.valid & self.i.ready) - self.done)
        with m.If(self.halt | store.error_valid | failed):
            m.d.sync += stopped.eq(1)
        m.d.comb += [
            store.halt.eq(self.halt | failed),
            store.i_words.payload.eq(words.o.payload),
            store.i_words.valid.eq(words.o.valid & ~active),
            words.o.ready.eq(store.i_words.ready),
            self.done.eq(store.done | ended),
            self.busy.eq(store.busy | (active & ~stopped) | gives | held),
            self.idle.eq(~self.busy),
            self.error_valid.eq(store.error_valid | (failed & ~stopped)),
            self.error_code.eq(Mux(store.error_valid, store.error_code, code)),
            self.error_index.eq(Mux(store.error_valid, store.error_index, index)),
        ]

        # Words come from the channel of the oldest packet.
        head, gate = packets.o.payload, store.gate
        valid, ready, awaited = Signal(), Signal(), Signal()
        word = Signal(layout)
        for channel, i in enumerate(self.i_words):
            mine = head.channel == channel
            m.d.comb += i.ready.eq(ready & mine)
            with m.If(mine):
                m.d.comb += [valid.eq(i.valid), word.eq(i.payload)]
        m.d.comb += [words.i.payload.eq(word.data), self.waits.eq(awaited & ~valid & ~stopped)]

        # `have` is the number of buffered words that belong to no burst that was taken; `complete`
        # says that the packet's last word is among them. The words of the next packet stay in the
        # link until the last burst of this packet was taken.
        have = Signal(range(depth + 1))
        complete = Signal()
        lost = Signal()
        tag = Signal(8 * STREAM_BYTES, reset_less=True)
        is_short = Signal()
        wrong_tag = Signal()
        enough, exact = Signal(), Signal()
        m.d.comb += [
            enough.eq(have > gate.words),
            exact.eq(complete & (have == gate.words + 1)),
            gate.allow.eq(enough | complete | wrong_tag | lost),
        ]
        misfits = wrong_tag | Mux(enough, gate.end & ~exact, complete)
        m.d.comb += gate.refused.eq(misfits | lost)
        with m.If(misfits):
            m.d.comb += gate.refusal.eq(ErrorCode.LINK_STREAM)
        with m.Elif(lost):
            m.d.comb += gate.refusal.eq(ErrorCode.LINK_DOWN)
        # Even if the link is down for a cycle only, the words after that belong to no packet here.
        with m.If(self.down & packets.o.valid & ~complete):
            m.d.sync += lost.eq(1)
        push, claimed = Signal(), Signal(range(WORD_BYTES + 1))
        m.d.comb += [
            push.eq(words.i.valid & words.i.ready),
            claimed.eq(Mux(gate.taken, gate.words + 1, 0)),
        ]
        if on_chip is not None:
            writes, last_word = Signal(), Signal()
            self._write_scratchpad(m, on_chip, words.o, writes, stopped | lost)
            # The last word for which there is room has to be the packet's last one.
            m.d.comb += ended.eq(last_word & ~held)
            with m.If(~held):
                m.d.sync += [last_word.eq(0), code.eq(0)]
            fits = complete & (have == 1) & ~lost
            with m.If(writes):
                m.d.comb += claimed.eq(1)
                with m.If(on_chip.left == 1):
                    m.d.sync += [
                        last_word.eq(fits),
                        code.eq(
                            Mux(
                                fits,
                                ErrorCode.NONE,
                                Mux(lost, ErrorCode.LINK_DOWN, ErrorCode.LINK_STREAM),
                            )
                        ),
                    ]
            with m.Elif(active & ~stopped & (code == ErrorCode.NONE) & ~last_word):
                with m.If(wrong_tag | (complete & (have == 0) & on_chip.more)):
                    m.d.sync += code.eq(ErrorCode.LINK_STREAM)
                with m.Elif(lost):
                    m.d.sync += code.eq(ErrorCode.LINK_DOWN)
        at_end, at_begin = last_part(m, valid & ready, parts)
        m.d.sync += have.eq(have + (push & at_end) - claimed)

        with m.FSM():
            with m.State("TAG"):
                m.d.comb += [
                    awaited.eq(packets.o.valid),
                    ready.eq(packets.o.valid & ~stopped & ~lost),
                ]
                with m.If(ready & valid & at_begin):
                    m.d.sync += tag.eq(word.data)
                with m.If(ready & valid & at_end):
                    m.d.sync += is_short.eq(word.last)
                    m.next = "CHECK"
            with m.State("CHECK"):
                with m.If((tag != head.stream) | is_short):
                    m.next = "REFUSE"
                with m.Else():
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.comb += [
                    awaited.eq(1),
                    words.i.valid.eq(valid & ~stopped),
                    ready.eq(words.i.ready & ~stopped),
                ]
                with m.If(push & word.last):
                    # Nothing needs this packet any more, and the next one is not looked at yet.
                    m.d.comb += packets.o.ready.eq(1)
                    m.d.sync += complete.eq(1)
                    m.next = "COMPLETE"
            with m.State("COMPLETE"), m.If((gate.taken & gate.end) | ended):
                m.d.sync += complete.eq(0)
                m.next = "TAG"
            with m.State("REFUSE"):
                m.d.comb += wrong_tag.eq(1)
        return m

    def _write_scratchpad(self, m, on_chip, came, writes, stopped):
        """Write the words that have come for the scratchpad, as many as the instruction names."""
        waits = Signal()  # a word that has been given stays
        m.d.comb += [
            self.write.address.eq(on_chip.word << OFFSET_BITS),
            self.write.data.eq(came.payload),
            self.write.mask.eq((1 << GRANULES) - 1),
            self.write.valid.eq(on_chip.more & came.valid & (~stopped | waits)),
            writes.eq(self.write.valid & self.write.ready),
        ]
        m.d.sync += waits.eq(self.write.valid & ~self.write.ready)
        on_chip.step(m, writes)
        with m.If(on_chip.active):
            m.d.comb += came.ready.eq(writes)
