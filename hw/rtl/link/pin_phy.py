"""Gateware between a link of a core and plain pins."""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.pins import PinsSpec
from fpgapipe.hw.rtl.link.link_clock import ClockTicks


class PinPhy(wiring.Component):
    """Gateware of :class:`PinsSpec`; the model of the bridge to Aurora is its model as well.

    A byte leaves in two cycles of the core, with full backpressure. The receiving side never makes
    the other board wait. A frame of a wrong number of bytes ends in a beat without valid bytes, so
    that the link sees that it is damaged.

    Members
    -------
    clk, rst : In(1)
        Clock of the core, and its synchronous reset.
    s_axis_*, m_axis_* :
        AXI4-Streams of `phy_bytes` from and to the link. `m_axis_tready` is not looked at, since a
        link is always ready.
    m_axis_clock_tvalid, m_axis_clock_tdata, m_axis_clock_tready :
        AXI4-Stream of ticks of `in_clock`, see `ClockTicks`. Its data are 0, and it does not wait.
    out_clock, out_valid, out_last, out_data : Out
        Pins to the other board. `out_valid`, `out_last` and `out_data` change when `out_clock`
        falls.
    in_clock, in_valid, in_last, in_data : In
        Pins from the other board, taken when `in_clock` rises.
    """

    def __init__(self, spec: PinsSpec) -> None:
        self.spec = spec
        size = spec.phy_bytes
        super().__init__(
            {
                "clk": In(1),
                "rst": In(1),
                "s_axis_tdata": In(8 * size),
                "s_axis_tkeep": In(size),
                "s_axis_tlast": In(1),
                "s_axis_tvalid": In(1),
                "s_axis_tready": Out(1),
                "m_axis_tdata": Out(8 * size),
                "m_axis_tkeep": Out(size),
                "m_axis_tlast": Out(1),
                "m_axis_tvalid": Out(1),
                "m_axis_tready": In(1),
                "m_axis_clock_tdata": Out(8),
                "m_axis_clock_tvalid": Out(1),
                "m_axis_clock_tready": In(1),
                "out_clock": Out(1),
                "out_valid": Out(1),
                "out_last": Out(1),
                "out_data": Out(8),
                "in_clock": In(1),
                "in_valid": In(1),
                "in_last": In(1),
                "in_data": In(8),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        core, wire = (ClockDomain(name, local=True) for name in ("core", "wire"))
        m.domains += core, wire
        m.d.comb += [
            ClockSignal("core").eq(self.clk),
            ResetSignal("core").eq(self.rst),
            ClockSignal("wire").eq(self.in_clock),
        ]
        m.submodules.wire_reset = ResetSynchronizer(self.rst, domain="wire")
        m.submodules.ticks = ticks = ClockTicks("wire", "core")
        m.d.comb += self.m_axis_clock_tvalid.eq(ticks.valid)
        self._send(m)
        self._receive(m)
        return m

    def _send(self, m):
        """Split beats into bytes; all pins come from registers."""
        spec = self.spec
        rises = Signal()
        part = Signal(range(spec.parts))
        at_end = part == spec.parts - 1
        m.d.core += [rises.eq(~rises), self.out_clock.eq(rises)]
        with m.If(~rises):
            m.d.core += [
                self.out_valid.eq(self.s_axis_tvalid),
                self.out_last.eq(self.s_axis_tlast & at_end),
                self.out_data.eq(self.s_axis_tdata.word_select(part, 8)),
            ]
            with m.If(self.s_axis_tvalid):
                m.d.core += part.eq(Mux(at_end, 0, part + 1))
        m.d.comb += self.s_axis_tready.eq(~rises & at_end)

    def _receive(self, m):
        """Bring bytes to the core's clock, and join them there."""
        spec = self.spec
        taken = Signal(10)
        fifo = AsyncFIFO(width=9, depth=spec.fifo_bytes, w_domain="wire", r_domain="core")
        m.submodules.fifo = fifo
        m.d.wire += taken.eq(Cat(self.in_data, self.in_last, self.in_valid))
        m.d.comb += [fifo.w_data.eq(taken[:9]), fifo.w_en.eq(taken[9]), fifo.r_en.eq(1)]
        part = Signal(range(spec.parts))
        byte, last = fifo.r_data[:8], fifo.r_data[8]
        at_end = part == spec.parts - 1
        m.d.core += self.m_axis_tvalid.eq(fifo.r_rdy & (last | at_end))
        with m.If(fifo.r_rdy):
            for index in range(spec.parts):
                with m.If(part == index):
                    m.d.core += self.m_axis_tdata.word_select(index, 8).eq(byte)
            m.d.core += [
                part.eq(Mux(last | at_end, 0, part + 1)),
                self.m_axis_tlast.eq(last),
                self.m_axis_tkeep.eq(Mux(at_end, ~0, 0)),
            ]
