"""Gateware that tells a core the frequency of the clock of a link's PHY."""

from amaranth.hdl import DomainRenamer, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.link_clock import METER_BITS, METER_CYCLES, TICK_CYCLES


class ClockTicks(wiring.Component):
    """Ticks of the PHY's clock, one for `TICK_CYCLES` of its cycles, in the core's clock.

    A tick arrives 2 to 3 cycles of the core after it was made. There are none while the PHY's clock
    stands still. Two ticks that are less than two cycles of the core apart are lost, so the PHY's
    clock must be less than `TICK_CYCLES` / 2 times as fast as the core's.

    Parameters
    ----------
    phy, core : str
        Names of the clock domains. Neither needs a reset.

    Members
    -------
    valid : Out(1)
        Whether a tick comes, in the core's clock.
    """

    def __init__(self, phy: str, core: str) -> None:
        self._phy, self._core = phy, core
        super().__init__({"valid": Out(1)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        count = Signal(range(2 * TICK_CYCLES), reset_less=True)
        # The highest bit changes once in TICK_CYCLES, and comes from a register.
        near, before = (Signal(name=name, reset_less=True) for name in ("near", "before"))
        m.submodules.cross = FFSynchronizer(count[-1], near, o_domain="core")
        m.d.phy += count.eq(count + 1)
        m.d.core += before.eq(near)
        m.d.comb += self.valid.eq(near ^ before)
        return DomainRenamer({"phy": self._phy, "core": self._core})(m)


class ClockMeter(wiring.Component):
    """Gateware of :class:`fpgapipe.hw.hls_models.model.link_clock.ClockMeter`.

    Members
    -------
    valid : In(1)
        Whether a tick comes.
    ticks : Out
        Ticks of the last `METER_CYCLES` cycles that are over.
    known : Out(1)
        Whether there were as many since the reset.
    """

    def __init__(self) -> None:
        super().__init__({"valid": In(1), "ticks": Out(METER_BITS), "known": Out(1)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        cycle = Signal(range(METER_CYCLES))
        count = Signal(METER_BITS)
        total = Signal(METER_BITS)
        m.d.comb += total.eq(count + self.valid)
        m.d.sync += [cycle.eq(cycle + 1), count.eq(total)]
        with m.If(cycle == METER_CYCLES - 1):
            m.d.sync += [self.ticks.eq(total), self.known.eq(1), count.eq(0)]
        return m
