"""Gateware that spreads an AXI4 master over two ports: `fpgapipe.hw.hls_models.spec.interleave`."""

from amaranth.hdl import Array, Cat, Module, Mux
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.spec.interleave import BUFFERED_WORDS, PORT_BITS
from fpgapipe.hw.rtl.lib.axi import AxiRead, AxiWrite
from fpgapipe.hw.rtl.lib.block_fifo import BlockFifo
from fpgapipe.hw.rtl.lib.queue import WordFifo

NUM_PORTS = 2

UNDER_WAY = 128
"""Largest number of bursts of a direction that are under way."""


def _bits(bus, fields):
    """Width of some signals together."""
    return sum(len(getattr(bus, name)) for name in fields)


def _route(m, prefix, i, ports, free):
    """Pass requests to the port that their address chooses; return the port and the handshake.

    All requests at a port have ID 0, so that their answers come in the order of the requests.
    """
    fields = ("addr", "len", "size", "burst", "lock", "cache", "prot", "qos")
    address = getattr(i, f"{prefix}addr")
    port = Cat(address[bit] for bit in PORT_BITS).xor()
    valid, ready = getattr(i, f"{prefix}valid"), getattr(i, f"{prefix}ready")
    for number, o in enumerate(ports):
        m.d.comb += [
            *(getattr(o, prefix + name).eq(getattr(i, prefix + name)) for name in fields),
            getattr(o, f"{prefix}valid").eq(valid & free & (port == number)),
        ]
    chosen = Array(getattr(o, f"{prefix}ready") for o in ports)[port]
    m.d.comb += ready.eq(chosen & free)
    return port, valid & ready


class ReadInterleaver(wiring.Component):
    """Spreads the reads of a master over two ports.

    Requests are not delayed, words by `WORD_CYCLES`. The throughput is one request and one word per
    cycle, if the ports together give as many. Words come in the order of the requests, whichever
    port and ID these have; a port reads up to `BUFFERED_WORDS` words ahead. At most `UNDER_WAY`
    bursts are under way.

    Parameters
    ----------
    bus_bytes, id_bits : int
        The same as for `AxiRead`.

    Members
    -------
    i : In(AxiRead(bus_bytes, id_bits))
        The master. No burst crosses a multiple of `BLOCK_BYTES`, and `arvalid` depends on registers
        alone.
    o : Out(AxiRead(bus_bytes)).array(2)
        The ports. All requests have ID 0.
    """

    def __init__(self, bus_bytes, id_bits):
        super().__init__(
            {
                "i": In(AxiRead(bus_bytes, id_bits)),
                "o": Out(AxiRead(bus_bytes)).array(NUM_PORTS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        i, ports = self.i, self.o
        burst = data.StructLayout({"port": 1, "id": len(i.arid)})
        m.submodules.bursts = bursts = WordFifo(burst, UNDER_WAY)
        port, taken = _route(m, "ar", i, ports, bursts.i.ready)
        m.d.comb += [
            bursts.i.payload.port.eq(port),
            bursts.i.payload.id.eq(i.arid),
            bursts.i.valid.eq(taken),
        ]
        fields = ("rdata", "rresp", "rlast")
        buffers = [BlockFifo(_bits(i, fields), BUFFERED_WORDS) for _ in ports]
        for number, (o, buffer) in enumerate(zip(ports, buffers, strict=True)):
            m.submodules[f"buffer{number}"] = buffer
            m.d.comb += [
                buffer.i.payload.eq(Cat(getattr(o, name) for name in fields)),
                buffer.i.valid.eq(o.rvalid),
                o.rready.eq(buffer.i.ready),
                buffer.o.ready.eq(i.rready & bursts.o.valid & (bursts.o.payload.port == number)),
            ]
        second, (even, odd) = bursts.o.payload.port, buffers
        m.d.comb += [
            i.rid.eq(bursts.o.payload.id),
            Cat(getattr(i, name) for name in fields).eq(Mux(second, odd.o.payload, even.o.payload)),
            i.rvalid.eq(bursts.o.valid & Mux(second, odd.o.valid, even.o.valid)),
            bursts.o.ready.eq(i.rvalid & i.rready & i.rlast),
        ]
        return m


class WriteInterleaver(wiring.Component):
    """Spreads the writes of a master over two ports.

    Requests and responses are not delayed, words by `WORD_CYCLES`, and at least until two cycles
    after their request was taken. The throughput is one request and one word per cycle, if the
    ports together take as many; up to `BUFFERED_WORDS` words wait at a port. Responses come in the
    order of the requests, whichever port and ID these have. At most `UNDER_WAY` bursts are under
    way.

    Parameters
    ----------
    bus_bytes, id_bits : int
        The same as for `AxiWrite`.

    Members
    -------
    i : In(AxiWrite(bus_bytes, id_bits))
        The master. No burst crosses a multiple of `BLOCK_BYTES`, and `awvalid` depends on registers
        alone.
    o : Out(AxiWrite(bus_bytes)).array(2)
        The ports. All requests have ID 0. The address of a burst never comes after its data.
    """

    def __init__(self, bus_bytes, id_bits):
        super().__init__(
            {
                "i": In(AxiWrite(bus_bytes, id_bits)),
                "o": Out(AxiWrite(bus_bytes)).array(NUM_PORTS),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        i, ports = self.i, self.o
        burst = data.StructLayout({"port": 1, "id": len(i.awid)})
        m.submodules.turns = turns = WordFifo(1, UNDER_WAY)
        m.submodules.bursts = bursts = WordFifo(burst, UNDER_WAY)
        port, taken = _route(m, "aw", i, ports, bursts.i.ready & turns.i.ready)
        m.d.comb += [
            turns.i.payload.eq(port),
            turns.i.valid.eq(taken),
            bursts.i.payload.port.eq(port),
            bursts.i.payload.id.eq(i.awid),
            bursts.i.valid.eq(taken),
        ]
        fields = ("wdata", "wstrb", "wlast")
        ready = 0
        for number, o in enumerate(ports):
            buffer = BlockFifo(_bits(i, fields), BUFFERED_WORDS)
            m.submodules[f"buffer{number}"] = buffer
            its_turn = turns.o.valid & (turns.o.payload == number)
            ready = ready | (its_turn & buffer.i.ready)
            m.d.comb += [
                buffer.i.payload.eq(Cat(getattr(i, name) for name in fields)),
                buffer.i.valid.eq(i.wvalid & its_turn),
                Cat(getattr(o, name) for name in fields).eq(buffer.o.payload),
                o.wvalid.eq(buffer.o.valid),
                buffer.o.ready.eq(o.wready),
                o.bready.eq(bursts.o.valid & (bursts.o.payload.port == number)),
            ]
        second, (even, odd) = bursts.o.payload.port, ports
        m.d.comb += [
            i.wready.eq(ready),
            turns.o.ready.eq(i.wvalid & i.wready & i.wlast),
            i.bid.eq(bursts.o.payload.id),
            i.bresp.eq(Mux(second, odd.bresp, even.bresp)),
            i.bvalid.eq(bursts.o.valid & Mux(second, odd.bvalid, even.bvalid)),
            # A master takes responses at once.
            bursts.o.ready.eq(i.bvalid),
        ]
        return m
