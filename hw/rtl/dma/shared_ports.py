"""Gateware by which the engines of transfers share a port of the scratchpad."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.dma.scratchpad import READ_LATENCY, ReadPort, WritePort
from fpgapipe.hw.rtl.lib.turns import by_turns


class SharedPort(wiring.Component):
    """Lets several engines use one port of the scratchpad by turns.

    The latency is 0 and the throughput an access per cycle, of all engines together. An access that
    waits for the scratchpad keeps its turn.

    Parameters
    ----------
    port : ReadPort or WritePort
        Signature of the port.
    count : int
        Number of engines.

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
        asks, chosen, kept = (Signal(self._count, name=n) for n in ("asks", "chosen", "kept"))
        accept, waits = Signal(), Signal()
        following = by_turns(m, asks, accept)
        m.d.comb += [
            asks.eq(Cat(each.valid for each in self.engines)),
            chosen.eq(Mux(waits, kept, following)),
            self.o.valid.eq((asks & chosen).any()),
            accept.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += [waits.eq(self.o.valid & ~self.o.ready), kept.eq(chosen)]
        is_read = isinstance(self._port, ReadPort)
        for name in ("address",) if is_read else ("address", "data", "mask"):
            first, *others = (getattr(each, name) for each in self.engines)
            for number, value in enumerate(others, 1):
                first = Mux(chosen[number], value, first)
            m.d.comb += getattr(self.o, name).eq(first)
        for number, each in enumerate(self.engines):
            m.d.comb += each.ready.eq(self.o.ready & chosen[number])
        if is_read:
            # The data come in the order of the accesses, so many cycles behind them.
            owners = [asks & chosen]
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
