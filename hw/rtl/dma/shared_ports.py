"""Gateware by which the engines of transfers share a port of the scratchpad."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.dma.scratchpad import READ_LATENCY, ReadPort, WritePort
from fpgapipe.hw.rtl.lib.turns import by_turns


class SharedPort(wiring.Component):
    """Lets several engines use one port of the scratchpad by turns.

    The engine that has the turn uses the port in the same cycle. Whenever it asks for nothing, or
    an access of its has been accepted, the turn goes to the next one that asks. So the throughput
    is an access per cycle, of all engines together, and an access waits one cycle for a turn that
    an idle engine has. No choice is on the paths between the engines and the scratchpad.

    Parameters
    ----------
    port : ReadPort or WritePort
        Signature of the port.
    count : int
        Number of engines; the first one has the turn after a reset.

    Members
    -------
    engines : In(port).array(count)
    o : Out(port)
    """

    def __init__(self, port: ReadPort | WritePort, count: int) -> None:
        self._port, self._count = port, count
        super().__init__({"engines": In(port).array(count), "o": Out(port)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        asks, turn = Signal(self._count), Signal(self._count, init=1)
        goes, moves = Signal(), Signal()
        following = by_turns(m, asks, moves)
        m.d.comb += [
            asks.eq(Cat(each.valid for each in self.engines)),
            self.o.valid.eq((asks & turn).any()),
            goes.eq(~self.o.valid | self.o.ready),
            moves.eq(goes & asks.any()),
        ]
        with m.If(moves):
            m.d.sync += turn.eq(following)
        is_read = isinstance(self._port, ReadPort)
        for name in ("address",) if is_read else ("address", "data", "mask"):
            first, *others = (getattr(each, name) for each in self.engines)
            for number, value in enumerate(others, 1):
                first = Mux(turn[number], value, first)
            m.d.comb += getattr(self.o, name).eq(first)
        for number, each in enumerate(self.engines):
            m.d.comb += each.ready.eq(self.o.ready & turn[number])
        if is_read:
            # The data come in the order of the accesses, so many cycles behind them.
            owners = [turn]
            for cycle in range(READ_LATENCY):
                owner = Signal(self._count, name=f"owner{cycle}", reset_less=True)
                m.d.sync += owner.eq(owners[-1])
                owners.append(owner)
            for number, each in enumerate(self.engines):
                m.d.comb += [
                    each.data.eq(self.o.data),
                    each.data_valid.eq(self.o.data_valid & owners[-1][number]),
                ]
        return m
