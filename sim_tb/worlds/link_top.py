"""A link's end as a separate design, for the sources and sinks of ``native_channels.hpp``."""

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import (
    DELIVERED_BITS,
    NUM_CHANNELS,
    SESSION_BITS,
    LinkEngineSpec,
)
from fpgapipe.hw.rtl.link.link import EVENTS, SEED_BITS
from fpgapipe.sim_tb.worlds.whole_words import WholeWords


def _axis(prefix: str, num_bytes: int, source: bool, keep: bool) -> dict[str, Any]:
    """Members of an AXI4-Stream port, of which the component is the source or the sink."""
    forward, back = (Out, In) if source else (In, Out)
    return {
        f"{prefix}_tdata": forward(8 * num_bytes),
        **({f"{prefix}_tkeep": forward(num_bytes)} if keep else {}),
        f"{prefix}_tlast": forward(1),
        f"{prefix}_tvalid": forward(1),
        f"{prefix}_tready": back(1),
    }


class LinkTop(wiring.Component):
    """A `WholeWords` whose ports have the names that the native simulator expects.

    Members
    -------
    m_axis_link0_*, s_axis_link0_*
        Streams of the PHY.
    s_axis_channel{c}_*, m_axis_channel{c}_*
        Words to send, and received words; `c` is 0..2.
    link_*
        Other members of the engine; its events are concatenated in ``link_events``.
    """

    def __init__(self, spec: LinkEngineSpec) -> None:
        self.spec = spec
        counts = {
            f"link_{name}{channel}": Out(DELIVERED_BITS)
            for name in ("delivered", "peer_delivered")
            for channel in range(NUM_CHANNELS)
        }
        channels = [
            _axis(f"{side}_axis_channel{channel}", WORD_BYTES, side == "m", False)
            for channel in range(NUM_CHANNELS)
            for side in "ms"
        ]
        super().__init__(
            {
                **_axis("m_axis_link0", spec.phy_bytes, True, True),
                **_axis("s_axis_link0", spec.phy_bytes, False, True),
                **{name: member for ports in channels for name, member in ports.items()},
                "link_enable": In(1),
                "link_clear": In(1),
                "link_seed": In(SEED_BITS),
                "link_state": Out(3),
                "link_session": Out(SESSION_BITS),
                "link_peer": Out(SESSION_BITS),
                "link_peer_delivered_known": Out(1),
                "link_events": Out(sum(EVENTS.values())),
                **counts,
            }
        )

    def elaborate(self, platform: Any) -> Any:  # noqa: D102
        m = Module()
        m.submodules.engine = engine = WholeWords(self.spec)
        pairs = [
            (self._port("m_axis_link0"), engine.tx),
            (self._port("s_axis_link0"), engine.rx),
        ]
        for channel in range(NUM_CHANNELS):
            pairs += [
                (self._port(f"m_axis_channel{channel}"), engine.o[channel]),
                (self._port(f"s_axis_channel{channel}"), engine.i[channel]),
            ]
            for name in ("delivered", "peer_delivered"):
                count = getattr(self, f"link_{name}{channel}")
                m.d.comb += count.eq(getattr(engine, name)[channel])
        for port, inner in pairs:
            names = [name for name in ("data", "keep", "last") if f"t{name}" in port]
            outer = [port["tvalid"], *(port[f"t{name}"] for name in names)]
            fields = [inner.valid, *(getattr(inner.payload, name) for name in names)]
            if port["is_source"]:
                m.d.comb += [Cat(*outer).eq(Cat(*fields)), inner.ready.eq(port["tready"])]
            else:
                m.d.comb += [Cat(*fields).eq(Cat(*outer)), port["tready"].eq(inner.ready)]
        m.d.comb += [
            engine.enable.eq(self.link_enable),
            engine.clear.eq(self.link_clear),
            engine.seed.eq(self.link_seed),
            self.link_state.eq(engine.state),
            self.link_session.eq(engine.session),
            self.link_peer.eq(engine.peer),
            self.link_peer_delivered_known.eq(engine.peer_delivered_known),
            self.link_events.eq(Cat(getattr(engine, name) for name in EVENTS)),
        ]
        return m

    def _port(self, prefix: str) -> dict[str, Any]:
        """Members of a port by their short names, and whether the port is a source."""
        members = {
            name.removeprefix(f"{prefix}_"): getattr(self, name)
            for name in self.signature.members
            if name.startswith(f"{prefix}_")
        }
        return members | {"is_source": prefix.startswith("m")}
