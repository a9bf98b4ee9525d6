"""Two ends of a link in one module with few ports, for testbenches that simulate the wire."""

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link import DELIVERED_BITS, NUM_CHANNELS
from fpgapipe.hw.hls_models.spec.on_chip import LinkEndSpec
from fpgapipe.hw.rtl.link.link import EVENTS, SEED_BITS
from fpgapipe.hw.rtl.link.link_beats import word_layout
from fpgapipe.hw.rtl.link.on_chip import engine_class
from fpgapipe.sim_tb.worlds.whole_words import WholeWords

CONTROL = data.StructLayout(
    {
        "i_valid": NUM_CHANNELS,
        "o_ready": NUM_CHANNELS,
        "tx_ready": 1,
        "rx_valid": 1,
        "enable": 1,
        "clear": 1,
    }
)
"""Signals that a testbench drives at an end, except for payloads."""

STATUS = data.StructLayout(
    {
        "i_ready": NUM_CHANNELS,
        "o_valid": NUM_CHANNELS,
        "tx_valid": 1,
        "rx_ready": 1,
        "state": 3,
        "known": 1,
        "events": data.StructLayout(EVENTS),
    }
)
"""Signals that a testbench reads at an end, except for payloads. Inputs and outputs are packed in
one port each, because an access from Python takes as long for one bit as for many."""


class LinkPair(wiring.Component):
    """Two ends of a link, numbered 0 and 1.

    Members
    -------
    control0, control1 : In(CONTROL)
    status0, status1 : Out(STATUS)
    i00 ... i12, o00 ... o12 : In(word_layout()), Out(word_layout())
        Words of the channels; the digits are the end and the channel.
    rx0, rx1, tx0, tx1 : In(beat), Out(beat)
        Beats, in the layout of the engine.
    seed0, seed1, session0, session1, peer0, peer1
    delivered0, peer_delivered0, last_delivered0, ... : Out(3 * 48)
    """

    def __init__(self, spec: LinkEndSpec) -> None:
        self.spec = spec
        beat, word = engine_class(spec).beat_layout(spec), word_layout()
        members: dict[str, Any] = {}
        for end in range(2):
            members |= {f"control{end}": In(CONTROL), f"status{end}": Out(STATUS)}
            members |= {f"i{end}{channel}": In(word) for channel in range(NUM_CHANNELS)}
            members |= {f"o{end}{channel}": Out(word) for channel in range(NUM_CHANNELS)}
            members |= {f"rx{end}": In(beat), f"tx{end}": Out(beat), f"seed{end}": In(SEED_BITS)}
            members |= {f"{name}{end}": Out(16) for name in ("session", "peer")}
            for name in ("delivered", "peer_delivered", "last_delivered"):
                members[f"{name}{end}"] = Out(NUM_CHANNELS * DELIVERED_BITS)
        super().__init__(members)

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        for end in range(2):
            m.submodules[f"end{end}"] = engine = WholeWords(self.spec)
            control, status = getattr(self, f"control{end}"), getattr(self, f"status{end}")
            for channel in range(NUM_CHANNELS):
                m.d.comb += [
                    engine.i[channel].payload.eq(getattr(self, f"i{end}{channel}")),
                    engine.i[channel].valid.eq(control.i_valid[channel]),
                    status.i_ready[channel].eq(engine.i[channel].ready),
                    getattr(self, f"o{end}{channel}").eq(engine.o[channel].payload),
                    engine.o[channel].ready.eq(control.o_ready[channel]),
                    status.o_valid[channel].eq(engine.o[channel].valid),
                ]
            m.d.comb += [
                engine.rx.payload.eq(getattr(self, f"rx{end}")),
                engine.rx.valid.eq(control.rx_valid),
                status.rx_ready.eq(engine.rx.ready),
                getattr(self, f"tx{end}").eq(engine.tx.payload),
                engine.tx.ready.eq(control.tx_ready),
                status.tx_valid.eq(engine.tx.valid),
                engine.enable.eq(control.enable),
                engine.clear.eq(control.clear),
                engine.seed.eq(getattr(self, f"seed{end}")),
                getattr(self, f"session{end}").eq(engine.session),
                getattr(self, f"peer{end}").eq(engine.peer),
                status.state.eq(engine.state),
                status.known.eq(engine.peer_delivered_known),
                *(getattr(status.events, name).eq(getattr(engine, name)) for name in EVENTS),
                *(
                    getattr(self, f"{name}{end}").eq(Cat(getattr(engine, name)))
                    for name in ("delivered", "peer_delivered", "last_delivered")
                ),
            ]
        return m
