"""AXI4 ports of the core, their flat names at a top level, and arbiters for several masters.

Source: AMBA AXI and ACE Protocol Specification, ARM IHI 0022E.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.rtl.lib.turns import by_turns

ADDRESS_BITS = 64
"""Address bits of a port. Instructions have addresses of 48 bits, so the upper bits stay 0."""

INCR = 1
"""Burst type in which each beat has the next address."""

NORMAL_NON_CACHEABLE = 0b0011
"""ARCACHE and AWCACHE: requests may be merged and buffered, which suits memory controllers."""


def _request(prefix, id_bits):
    """Return the members of an address channel, without its handshake."""
    return {
        f"{prefix}id": Out(id_bits),
        f"{prefix}addr": Out(ADDRESS_BITS),
        f"{prefix}len": Out(8),
        f"{prefix}size": Out(3),
        f"{prefix}burst": Out(2),
        f"{prefix}lock": Out(1),
        f"{prefix}cache": Out(4),
        f"{prefix}prot": Out(3),
        f"{prefix}qos": Out(4),
    }


class AxiRead(wiring.Signature):
    """The read channels, as a master sees them.

    Parameters
    ----------
    bus_bytes : int
        Width of the data in bytes, a power of two.
    id_bits : int
        Width of an ID in bits, at least 1.
    """

    def __init__(self, bus_bytes, id_bits=1):
        self.bus_bytes, self.id_bits = bus_bytes, id_bits
        super().__init__(
            {
                **_request("ar", id_bits),
                "arvalid": Out(1),
                "arready": In(1),
                "rid": In(id_bits),
                "rdata": In(8 * bus_bytes),
                "rresp": In(2),
                "rlast": In(1),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )


class AxiWrite(wiring.Signature):
    """The write channels, as a master sees them.

    Parameters
    ----------
    bus_bytes, id_bits : int
        The same as for `AxiRead`.
    """

    def __init__(self, bus_bytes, id_bits=1):
        self.bus_bytes, self.id_bits = bus_bytes, id_bits
        super().__init__(
            {
                **_request("aw", id_bits),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(8 * bus_bytes),
                "wstrb": Out(bus_bytes),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
                "bid": In(id_bits),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
            }
        )


def flat_members(signature, prefix):
    """Return members of a top component that form a port with the names that tools look for.

    Amaranth names the port of a nested member ``m_axi__araddr``; Vivado and cocotbext.axi look for
    ``m_axi_araddr``.

    Parameters
    ----------
    signature : AxiRead or AxiWrite
    prefix : str
        Prefix of the names, such as ``m_axi``.

    Returns
    -------
    dict
        Members for the component's signature. Both signatures may have the same prefix.
    """
    return {f"{prefix}_{name}": member for name, member in signature.members.items()}


def connect_flat(m, component, prefix, master):
    """Connect a master inside a component to the component's port of `flat_members`.

    Parameters
    ----------
    m : Module
    component : wiring.Component
    prefix : str
    master : interface of `AxiRead` or `AxiWrite`
        Bus of a submodule, or one that logic in `m` drives.
    """
    for name, member in master.signature.members.items():
        port, inner = getattr(component, f"{prefix}_{name}"), getattr(master, name)
        m.d.comb += port.eq(inner) if member.flow == Out else inner.eq(port)


def drive_request(m, master, prefix):
    """Drive the fields that are equal in all requests of a master.

    Parameters
    ----------
    m : Module
    master : interface of `AxiRead` or `AxiWrite`
    prefix : str
        ``ar`` or ``aw``.
    """
    size = (master.signature.bus_bytes - 1).bit_length()
    m.d.comb += [
        getattr(master, f"{prefix}size").eq(size),
        getattr(master, f"{prefix}burst").eq(INCR),
        getattr(master, f"{prefix}cache").eq(NORMAL_NON_CACHEABLE),
    ]


class Slice(wiring.Component):
    """Skid buffer between two streams, without a path from `o.ready` to `i.ready`.

    The latency is 1 cycle and the throughput one word per cycle, with full backpressure. It holds
    two words.

    Members
    -------
    i, o : stream of `shape`
        Words in and out.

    Attributes
    ----------
    payload, valid, skid, has_skid
        Signals for proofs: the word at the output and the one behind it, and whether they are
        there.
    """

    def __init__(self, shape):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})
        self.payload = Signal(shape, reset_less=True)
        self.valid = Signal()
        self.skid = Signal(shape, reset_less=True)
        self.has_skid = Signal()

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        payload, valid, skid, has_skid = self.payload, self.valid, self.skid, self.has_skid
        free = Signal()
        m.d.comb += [
            self.i.ready.eq(~has_skid),
            self.o.payload.eq(payload),
            self.o.valid.eq(valid),
            free.eq(self.o.ready | ~valid),
        ]
        with m.If(free):
            m.d.sync += [valid.eq(self.i.valid | has_skid), has_skid.eq(0)]
            # The data registers keep their values while nothing comes.
            with m.If(has_skid):
                m.d.sync += payload.eq(skid)
            with m.Elif(self.i.valid):
                m.d.sync += payload.eq(self.i.payload)
        with m.Elif(self.i.valid & ~has_skid):
            m.d.sync += [skid.eq(self.i.payload), has_skid.eq(1)]
        return m


class ReadArbiter(wiring.Component):
    """Lets several read masters share a port; ARID and RID say which master a burst belongs to.

    The arbiter delays a request by one cycle and data by none. The throughput is one request per
    cycle. Of the masters that ask in the same cycle, the first one has priority, so it should be
    one that asks seldom, such as the reader of the program. A master must be able to take all data
    that it has requested without waiting for the data of another master, because the data of all
    masters come through one port in one order.

    AXI allows no combinational paths from inputs to outputs, so `rready` of the port cannot depend
    on the master that the data belong to; it is high while all masters are ready. So a master must
    hold its `rready` high whenever it has room, whether or not it has requested anything, and its
    `rready` must not depend on its `rvalid`.

    Parameters
    ----------
    num_masters : int
    bus_bytes : int

    Members
    -------
    masters : In(AxiRead(bus_bytes)).array(num_masters)
        The masters. Their `arid` is not used, and their `rid` is 0.
    o : Out(AxiRead(bus_bytes, id_bits))
        The port. Master `k` has ID `k`; `id_bits` is at least 1.
    """

    def __init__(self, num_masters, bus_bytes):
        if num_masters < 1:
            raise ValueError(f"read arbiter num_masters must be at least 1, not {num_masters!r}")
        self.num_masters = num_masters
        self.id_bits = max(1, (num_masters - 1).bit_length())
        super().__init__(
            {
                "masters": In(AxiRead(bus_bytes)).array(num_masters),
                "o": Out(AxiRead(bus_bytes, self.id_bits)),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        names = [name for name in _request("ar", 1) if name != "arid"]
        request = data.StructLayout(
            {"arid": self.id_bits} | {name: getattr(self.o, name).shape() for name in names}
        )
        m.submodules.requests = requests = Slice(request)
        taken = 0  # whether a master with a lower number asks
        for master in self.masters:
            m.d.comb += master.arready.eq(requests.i.ready & ~taken)
            taken = taken | master.arvalid
        m.d.comb += requests.i.valid.eq(taken)
        # The last assignment wins, so the first master is assigned last.
        for index in reversed(range(self.num_masters)):
            master = self.masters[index]
            with m.If(master.arvalid if index < self.num_masters - 1 else 1):
                m.d.comb += requests.i.payload.arid.eq(index)
                m.d.comb += [
                    getattr(requests.i.payload, name).eq(getattr(master, name)) for name in names
                ]
        m.d.comb += [getattr(self.o, name).eq(getattr(requests.o.payload, name)) for name in names]
        m.d.comb += [
            self.o.arid.eq(requests.o.payload.arid),
            self.o.arvalid.eq(requests.o.valid),
            requests.o.ready.eq(self.o.arready),
        ]

        m.d.comb += self.o.rready.eq(Cat(master.rready for master in self.masters).all())
        for index, master in enumerate(self.masters):
            m.d.comb += [
                # It is high only while data move, since another master may not be ready.
                master.rvalid.eq(self.o.rvalid & self.o.rready & (self.o.rid == index)),
                master.rdata.eq(self.o.rdata),
                master.rresp.eq(self.o.rresp),
                master.rlast.eq(self.o.rlast),
            ]
        return m


class WriteArbiter(wiring.Component):
    """Lets several write masters share a port; AWID and BID say which master a burst belongs to.

    The arbiter delays a request by one cycle, and data and responses by none. The throughput is one
    burst per cycle. The masters take turns. Data are sent in the order of the requests, so a master
    must be able to give all data of a requested burst without waiting for anything else, because
    the other masters wait for them. Masters must take responses at once: AXI allows no
    combinational paths from inputs to outputs, so `bready` of the port cannot depend on the master
    that the response belongs to, and is always high.

    Parameters
    ----------
    num_masters : int
    bus_bytes : int

    Members
    -------
    masters : In(AxiWrite(bus_bytes)).array(num_masters)
        The masters. Their `awid` and `bready` are not used, and their `bid` is 0.
    o : Out(AxiWrite(bus_bytes, id_bits))
        The port. Master `k` has ID `k`; `id_bits` is at least 1. The address of a burst never
        comes after its data.
    """

    _TURNS = 16
    """Largest number of bursts whose address was taken and whose data have not all been sent."""

    def __init__(self, num_masters, bus_bytes):
        if num_masters < 1:
            raise ValueError(f"write arbiter num_masters must be at least 1, not {num_masters!r}")
        self.num_masters = num_masters
        self.id_bits = max(1, (num_masters - 1).bit_length())
        super().__init__(
            {
                "masters": In(AxiWrite(bus_bytes)).array(num_masters),
                "o": Out(AxiWrite(bus_bytes, self.id_bits)),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        names = [name for name in _request("aw", 1) if name != "awid"]
        m.submodules.turns = turns = SyncFIFOBuffered(width=self.id_bits, depth=self._TURNS)

        asks, number = Signal(self.num_masters), Signal(self.id_bits)
        free, take = Signal(), Signal()
        chosen = by_turns(m, asks, take)
        layout = {"awid": self.id_bits} | {name: getattr(self.o, name).shape() for name in names}
        request = Signal(data.StructLayout(layout), reset_less=True)
        requesting = Signal()
        m.d.comb += [
            asks.eq(Cat(master.awvalid for master in self.masters)),
            free.eq(turns.w_rdy & (self.o.awready | ~requesting)),
            take.eq(asks.any() & free),
            turns.w_data.eq(number),
            turns.w_en.eq(take),
            *(getattr(self.o, name).eq(request[name]) for name in layout),
            self.o.awvalid.eq(requesting),
        ]
        with m.If(self.o.awready | ~requesting):
            m.d.sync += requesting.eq(take)
        for index, master in enumerate(self.masters):
            m.d.comb += master.awready.eq(free & chosen[index])
            with m.If(chosen[index]):
                m.d.comb += number.eq(index)
                with m.If(take):
                    m.d.sync += [request[name].eq(getattr(master, name)) for name in names]
                    m.d.sync += request.awid.eq(index)

        wvalid = 0
        last = Signal()
        for index, master in enumerate(self.masters):
            its_turn = Signal(name=f"turn{index}")
            m.d.comb += [
                its_turn.eq(turns.r_rdy & (turns.r_data == index)),
                master.wready.eq(self.o.wready & its_turn),
                master.bvalid.eq(self.o.bvalid & (self.o.bid == index)),
                master.bresp.eq(self.o.bresp),
            ]
            wvalid = wvalid | Mux(its_turn, master.wvalid, 0)
            with m.If(turns.r_data == index):
                m.d.comb += [
                    self.o.wdata.eq(master.wdata),
                    self.o.wstrb.eq(master.wstrb),
                    last.eq(master.wlast),
                ]
        m.d.comb += [
            self.o.wlast.eq(last),
            self.o.wvalid.eq(wvalid),
            self.o.bready.eq(1),
            turns.r_en.eq(self.o.wvalid & self.o.wready & last),
        ]
        return m
