"""Gateware between a link of a core and an Aurora 64B/66B core, which has a clock of its own."""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.aurora import RELEASE_CYCLES, AuroraSpec
from fpgapipe.hw.rtl.link.link_beats import FRAME_BEAT_LAST_KEEP
from fpgapipe.hw.rtl.link.link_clock import ClockTicks


class AuroraBridge(wiring.Component):
    """Gateware of :class:`AuroraSpec`, whose model is `fpgapipe.hw.hls_models.model.aurora`.

    Beats of the link are split for Aurora, the lowest bytes first, and joined behind it. All bytes
    of Aurora's beats count as valid: the last beat of a frame has 16 bytes by the frame format, so
    `tkeep` is made anew, and the byte order of Aurora does not matter.

    The sending side has full backpressure and waits while the channel is down. The receiving side
    never makes Aurora wait. If its queue is full, beats are lost, which the link notices by the CRC
    of the frame and repairs; a link that is as fast as Aurora never has a full queue.

    Members
    -------
    clk, rst : In(1)
        Clock of the core, and its synchronous reset, which resets all of the bridge and Aurora.
    user_clk, init_clk : In(1)
        Aurora's clock and its free-running clock.
    channel_up : In(1)
        Whether Aurora's channel is up, in its clock.
    reset_pb, pma_init : Out(1)
        Resets of Aurora: of the transceivers for `reset_cycles` cycles of the free-running clock,
        of the rest for `RELEASE_CYCLES` more.
    s_axis_*, m_axis_* :
        AXI4-Streams of `phy_bytes` from and to the link, in the core's clock.
    m_axis_clock_tvalid, m_axis_clock_tdata, m_axis_clock_tready :
        AXI4-Stream of ticks of `user_clk`, see `ClockTicks`. Its data are 0, and it does not wait.
    tx_*, rx_* :
        Streams to and from Aurora, in its clock.
    """

    def __init__(self, spec: AuroraSpec) -> None:
        self.spec = spec
        wide, narrow = spec.phy_bytes, spec.lane_bytes
        super().__init__(
            {
                "clk": In(1),
                "rst": In(1),
                "user_clk": In(1),
                "init_clk": In(1),
                "channel_up": In(1),
                "reset_pb": Out(1),
                "pma_init": Out(1),
                "s_axis_tdata": In(8 * wide),
                "s_axis_tkeep": In(wide),
                "s_axis_tlast": In(1),
                "s_axis_tvalid": In(1),
                "s_axis_tready": Out(1),
                "m_axis_tdata": Out(8 * wide),
                "m_axis_tkeep": Out(wide),
                "m_axis_tlast": Out(1),
                "m_axis_tvalid": Out(1),
                "m_axis_tready": In(1),
                "m_axis_clock_tdata": Out(8),
                "m_axis_clock_tvalid": Out(1),
                "m_axis_clock_tready": In(1),
                "tx_tdata": Out(8 * narrow),
                "tx_tkeep": Out(narrow),
                "tx_tlast": Out(1),
                "tx_tvalid": Out(1),
                "tx_tready": In(1),
                "rx_tdata": In(8 * narrow),
                "rx_tlast": In(1),
                "rx_tvalid": In(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        core, user, init = (ClockDomain(name, local=True) for name in ("core", "user", "init"))
        m.domains += core, user, init
        m.d.comb += [
            ClockSignal("core").eq(self.clk),
            ResetSignal("core").eq(self.rst),
            ClockSignal("user").eq(self.user_clk),
            ClockSignal("init").eq(self.init_clk),
        ]
        for domain in ("user", "init"):
            m.submodules[f"{domain}_reset"] = ResetSynchronizer(self.rst, domain=domain)
        m.submodules.ticks = ticks = ClockTicks("user", "core")
        m.d.comb += self.m_axis_clock_tvalid.eq(ticks.valid)
        self._hold_resets(m)
        self._send(m)
        self._receive(m)
        return m

    def _hold_resets(self, m):
        """Hold Aurora in reset for as long as it needs."""
        end = self.spec.reset_cycles + RELEASE_CYCLES
        count = Signal(range(end + 1))
        # The outputs come from registers, since a glitch would reset the transceivers.
        pma_init, reset_pb = Signal(init=1), Signal(init=1)
        with m.If(count != end):
            m.d.init += count.eq(count + 1)
        m.d.init += [
            pma_init.eq(count < self.spec.reset_cycles),
            reset_pb.eq(count < end),
        ]
        m.d.comb += [self.pma_init.eq(pma_init), self.reset_pb.eq(reset_pb)]

    def _send(self, m):
        """Bring beats of the link to Aurora's clock, and split them there."""
        spec = self.spec
        depth = spec.fifo_beats
        fifo = AsyncFIFO(
            width=8 * spec.phy_bytes + 1, depth=depth, w_domain="core", r_domain="user"
        )
        m.submodules.tx_fifo = fifo
        data, last = fifo.r_data[:-1], fifo.r_data[-1]
        part = Signal(range(spec.parts))
        at_end = part == Mux(last, spec.last_parts - 1, spec.parts - 1)
        taken = self.tx_tvalid & self.tx_tready
        m.d.comb += [
            fifo.w_data.eq(Cat(self.s_axis_tdata, self.s_axis_tlast)),
            fifo.w_en.eq(self.s_axis_tvalid),
            self.s_axis_tready.eq(fifo.w_rdy),
            self.tx_tvalid.eq(fifo.r_rdy & self.channel_up),
            self.tx_tdata.eq(data.word_select(part, 8 * spec.lane_bytes)),
            self.tx_tkeep.eq(~0),
            self.tx_tlast.eq(last & at_end),
            fifo.r_en.eq(taken & at_end),
        ]
        with m.If(taken):
            m.d.user += part.eq(Mux(at_end, 0, part + 1))

    def _receive(self, m):
        """Join beats of Aurora, and bring them to the core's clock."""
        spec = self.spec
        depth = spec.fifo_beats
        fifo = AsyncFIFO(
            width=8 * spec.phy_bytes + spec.phy_bytes + 1,
            depth=depth,
            w_domain="user",
            r_domain="core",
        )
        m.submodules.rx_fifo = fifo
        part = Signal(range(spec.parts))
        data = Signal(8 * spec.phy_bytes)
        keep = Signal(spec.phy_bytes)
        last, valid = Signal(), Signal()
        with m.If(self.rx_tvalid):
            for index in range(spec.parts):
                with m.If(part == index):
                    m.d.user += data.word_select(index, 8 * spec.lane_bytes).eq(self.rx_tdata)
            # A last beat of another number of parts gets another `keep`, so that the link sees
            # that its frame is damaged.
            last_keep = FRAME_BEAT_LAST_KEEP & ((1 << spec.phy_bytes) - 1)
            m.d.user += [
                part.eq(Mux(self.rx_tlast | (part == spec.parts - 1), 0, part + 1)),
                keep.eq(
                    Mux(
                        self.rx_tlast,
                        Mux(part == spec.last_parts - 1, last_keep, 0),
                        (1 << spec.phy_bytes) - 1,
                    )
                ),
                last.eq(self.rx_tlast),
            ]
        m.d.user += valid.eq(self.rx_tvalid & (self.rx_tlast | (part == spec.parts - 1)))
        m.d.comb += [
            fifo.w_data.eq(Cat(data, keep, last)),
            fifo.w_en.eq(valid),
            Cat(self.m_axis_tdata, self.m_axis_tkeep, self.m_axis_tlast).eq(fifo.r_data),
            self.m_axis_tvalid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.m_axis_tready),
        ]
