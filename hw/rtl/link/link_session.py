"""Gateware of a link's sessions: HELLO frames, and the state of the other end."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import (
    DELIVERED_BITS,
    HELLO,
    HELLO_CONFIG,
    HELLO_DELIVERED,
    LINK_VERSION,
    NUM_CHANNELS,
    SESSION_BITS,
    FrameKind,
    LinkState,
)
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.rtl.lib.layouts import layout_of

HELLO_CYCLES = 64
"""Cycles between two HELLO frames of an end that is not up."""

HELLO_LAYOUT = layout_of(HELLO)
DELIVERED_LAYOUT = layout_of(HELLO_DELIVERED)

VERSION_BITS, DIGEST_BITS = (field.bits for field in HELLO_CONFIG.fields[:2])
TAG_BITS = HELLO_DELIVERED.fields[2].bits


class LinkHandshake(wiring.Component):
    """Agrees with the other end on a session, and notices when the other end begins another one.

    Members
    -------
    session : In(16)
        The session of this end.
    last_delivered : In(48).array(3)
    last_known : In(1)
    last_session : In(7)
        Data for HELLO frames about the previous session: words delivered by channel, whether they
        are known, and the lower bits of its number.
    met : In(7)
        Lower bits of the other end's session with which this end was up last.
    peer_sends : In(1)
        A DATA or CONTROL frame of the other end's session has come.
    hello_valid : In(1)
    hello : In(HELLO_LAYOUT)
        A sound HELLO frame that has come.
    due : Out(1)
        A HELLO frame is to be sent.
    take : In(1)
        The transmitter is going to send it; only with `due`.
    next_hello : Out(HELLO_LAYOUT)
        Contents of a HELLO frame that is sent now.
    sent : In(1)
        A frame has been built from `next_hello`, which shows the next page from the next cycle on.
    state : Out(3)
        A LinkState other than OFF.
    up : Out(1)
        Whether the end is up.
    joins : Out(1)
        The end becomes up in the next cycle.
    peer_up : Out(1)
        Whether the other end is known to be up in this session.
    peer : Out(16)
        Session of the other end, 0 if none is known.
    peer_delivered : Out(48).array(3)
    peer_delivered_known : Out(1)
        Words that the other end delivered in its previous session, as it reports, and whether it
        knows them.
    """

    def __init__(self, spec: LinkEndSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "session": In(SESSION_BITS),
                "last_delivered": In(DELIVERED_BITS).array(NUM_CHANNELS),
                "last_known": In(1),
                "last_session": In(TAG_BITS),
                "met": In(TAG_BITS),
                "peer_sends": In(1),
                "hello_valid": In(1),
                "hello": In(HELLO_LAYOUT),
                "due": Out(1),
                "take": In(1),
                "next_hello": Out(HELLO_LAYOUT),
                "sent": In(1),
                "state": Out(3, init=LinkState.HELLO),
                "up": Out(1),
                "joins": Out(1),
                "peer_up": Out(1),
                "peer": Out(SESSION_BITS),
                "peer_delivered": Out(DELIVERED_BITS).array(NUM_CHANNELS),
                "peer_delivered_known": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        hello, state = self.hello, self.state
        m.d.comb += self.up.eq(state == LinkState.UP)

        # The version and the digest of the other end must be equal to those of this one.
        config = HELLO_CONFIG.pack(
            {"version": LINK_VERSION, "digest": self.spec.digest, "reserved": 0}
        )
        fits = hello.data[: VERSION_BITS + DIGEST_BITS] == config
        last = data.View(DELIVERED_LAYOUT, hello.data)

        # An end is up when it has received all pages and its own session number in one of them.
        heard, heard_now = Signal(NUM_CHANNELS + 1), Signal(NUM_CHANNELS + 1)
        known, known_before = Signal(NUM_CHANNELS), Signal(NUM_CHANNELS)
        is_peer, listens, answers, peer_up = Signal(), Signal(), Signal(), self.peer_up
        m.d.comb += [
            is_peer.eq((hello.session == self.peer) & (self.peer != 0)),
            heard_now.eq(Mux(is_peer, heard, 0) | (1 << hello.page)),
            known_before.eq(Mux((state == LinkState.HELLO) & ~is_peer, 0, known)),
            self.peer_delivered_known.eq(known.all()),
        ]
        with m.If(self.peer_sends):
            m.d.sync += peer_up.eq(1)
        with m.If(self.hello_valid):
            with m.If(state == LinkState.HELLO):
                with m.If((hello.page == 0) & ~fits):
                    m.d.sync += [state.eq(LinkState.MISMATCH), self.peer.eq(0)]
                with m.Elif((hello.page == 0) | is_peer):
                    m.d.comb += [
                        listens.eq(1),
                        self.joins.eq(heard_now.all() & (hello.peer == self.session)),
                    ]
                    m.d.sync += [self.peer.eq(hello.session), heard.eq(heard_now)]
                    with m.If(self.joins):
                        m.d.sync += [state.eq(LinkState.UP), peer_up.eq(hello.is_up)]
            with m.Elif((state == LinkState.UP) & is_peer):
                with m.If(hello.is_up):
                    m.d.sync += peer_up.eq(1)
                with m.Elif(peer_up | self.peer_sends):
                    # The peer was up and begins again, maybe with the same number, or gave up.
                    m.d.sync += [state.eq(LinkState.PEER_RESET), known.eq(0)]
                with m.Else():
                    m.d.comb += answers.eq(1)
            with m.Elif((state == LinkState.UP) | (state == LinkState.PEER_RESET)):
                m.d.comb += listens.eq(~is_peer)
                m.d.sync += state.eq(LinkState.PEER_RESET)
        with m.If(listens):
            m.d.sync += known.eq(Mux(state == LinkState.UP, 0, known_before))
            # If the peer reports another session, it was never up in the one that is known here.
            words_now = Mux(last.session == self.met, last.words, 0)
            for channel, words in enumerate(self.peer_delivered):
                with m.If(hello.page == 1 + channel):
                    m.d.sync += [words.eq(words_now), known[channel].eq(last.is_known)]

        # HELLO frames are sent at once, then every `HELLO_CYCLES` cycles, and as answers.
        timer = Signal(range(HELLO_CYCLES))
        due = Signal(init=1)
        m.d.comb += self.due.eq(due)
        with m.If(~self.up):
            m.d.sync += timer.eq(timer + 1)
        with m.If(answers | (~self.up & (timer == HELLO_CYCLES - 1))):
            m.d.sync += due.eq(1)
        with m.Elif(self.take):
            m.d.sync += due.eq(0)

        page = Signal(2)
        pages = Array(
            [
                config,
                *(Cat(words, self.last_known, self.last_session) for words in self.last_delivered),
            ]
        )
        m.d.comb += [
            self.next_hello.kind.eq(FrameKind.HELLO),
            self.next_hello.page.eq(page),
            self.next_hello.session.eq(self.session),
            # A peer that lost this session must not join it again if it uses its old number.
            self.next_hello.peer.eq(Mux(state == LinkState.PEER_RESET, 0, self.peer)),
            self.next_hello.is_up.eq(self.up),
            self.next_hello.data.eq(pages[page]),
        ]
        with m.If(self.sent):
            m.d.sync += page.eq(page + 1)
        return m
