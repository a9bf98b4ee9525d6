"""Gateware for the tests of the native simulator: an engine that copies memory, and faulty ones."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

CONTROL, STATUS, SOURCE, TARGET, BURSTS, BEATS, STROBES = 0x00, 0x04, 0x08, 0x10, 0x18, 0x1C, 0x20
FAULT = 0x28
START, READ_ONLY = 1, 2
FAULTS = ("address", "valid", "data", "last", "early last", "size", "fixed", "mute", "deaf")

REGISTER_PORTS = {
    "s_axil_awaddr": In(12),
    "s_axil_awvalid": In(1),
    "s_axil_awready": Out(1),
    "s_axil_wdata": In(32),
    "s_axil_wstrb": In(4),
    "s_axil_wvalid": In(1),
    "s_axil_wready": Out(1),
    "s_axil_bresp": Out(2),
    "s_axil_bvalid": Out(1),
    "s_axil_bready": In(1),
    "s_axil_araddr": In(12),
    "s_axil_arvalid": In(1),
    "s_axil_arready": Out(1),
    "s_axil_rdata": Out(32),
    "s_axil_rresp": Out(2),
    "s_axil_rvalid": Out(1),
    "s_axil_rready": In(1),
}


def memory_ports(bus_bytes):
    """AXI4 master without the signals that no memory looks at."""
    ports = {
        "m_axi_rdata": In(8 * bus_bytes),
        "m_axi_rresp": In(2),
        "m_axi_rlast": In(1),
        "m_axi_rid": In(2),
        "m_axi_rvalid": In(1),
        "m_axi_rready": Out(1),
        "m_axi_wdata": Out(8 * bus_bytes),
        "m_axi_wstrb": Out(bus_bytes),
        "m_axi_wlast": Out(1),
        "m_axi_wvalid": Out(1),
        "m_axi_wready": In(1),
        "m_axi_bresp": In(2),
        "m_axi_bid": In(2),
        "m_axi_bvalid": In(1),
        "m_axi_bready": Out(1),
    }
    for channel in ("ar", "aw"):
        ports |= {
            f"m_axi_{channel}addr": Out(64),
            f"m_axi_{channel}len": Out(8),
            f"m_axi_{channel}size": Out(3),
            f"m_axi_{channel}burst": Out(2),
            f"m_axi_{channel}id": Out(2),
            f"m_axi_{channel}valid": Out(1),
            f"m_axi_{channel}ready": In(1),
        }
    return ports


class CopyEngine(wiring.Component):
    """Copies BURSTS bursts of BEATS beats from SOURCE to TARGET, then raises irq.

    All addresses are issued as fast as they are taken, and a beat goes from the read channel to the
    write channel without a register, so that outputs depend on inputs within a cycle. STATUS holds
    all error responses ORed; a register at or above 0x800 answers SLVERR.

    Bit `i` of register FAULT makes it do wrong what ``FAULTS[i]`` names: change an address, drop a
    request, or change data while it waits; never raise wlast, or always; ask for single bytes, or
    for a burst of type FIXED; never raise irq; not answer the registers.
    """

    def __init__(self, bus_bytes):
        self.bus_bytes = bus_bytes
        super().__init__(REGISTER_PORTS | memory_ports(bus_bytes) | {"irq": Out(1)})

    def elaborate(self, platform):
        m = Module()
        words = [Signal(32, name=f"register{index}") for index in range(11)]
        source, target = Cat(words[2:4]), Cat(words[4:6])
        bursts, beats, strobes = words[6], words[7], Cat(words[8:10])
        fault = {name: words[10][index] for index, name in enumerate(FAULTS)}
        start, running, read_only, responses = Signal(), Signal(), Signal(), Signal(2)

        write = Signal()
        m.d.comb += [
            write.eq(self.s_axil_awvalid & self.s_axil_wvalid & ~self.s_axil_bvalid),
            self.s_axil_awready.eq(write),
            self.s_axil_wready.eq(write),
            start.eq(write & (self.s_axil_awaddr == CONTROL)),
            self.s_axil_arready.eq(~self.s_axil_rvalid & ~fault["deaf"]),
        ]
        with m.If(write):
            m.d.sync += [
                self.s_axil_bvalid.eq(1),
                self.s_axil_bresp.eq(Mux(self.s_axil_awaddr[-1], 2, 0)),
            ]
            with m.Switch(self.s_axil_awaddr):
                for index, word in enumerate(words):
                    with m.Case(4 * index):
                        m.d.sync += word.eq(self.s_axil_wdata)
        with m.Elif(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(self.s_axil_arvalid & self.s_axil_arready):
            m.d.sync += [
                self.s_axil_rvalid.eq(1),
                self.s_axil_rresp.eq(Mux(self.s_axil_araddr[-1], 2, 0)),
                self.s_axil_rdata.eq(0),
            ]
            with m.Switch(self.s_axil_araddr):
                for index, word in enumerate(words):
                    with m.Case(4 * index):
                        m.d.sync += self.s_axil_rdata.eq(responses if 4 * index == STATUS else word)
        with m.Elif(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)

        left = {name: Signal(32, name=f"{name}_left") for name in ("ar", "aw", "r", "b")}
        burst_bytes = beats * self.bus_bytes
        size = (self.bus_bytes - 1).bit_length()
        for channel in ("ar", "aw"):
            valid, ready = (getattr(self, f"m_axi_{channel}{end}") for end in ("valid", "ready"))
            address = getattr(self, f"m_axi_{channel}addr")
            m.d.comb += [
                valid.eq(left[channel] != 0),
                getattr(self, f"m_axi_{channel}len").eq(beats - 1),
                getattr(self, f"m_axi_{channel}size").eq(Mux(fault["size"], 0, size)),
                getattr(self, f"m_axi_{channel}burst").eq(~fault["fixed"]),
                getattr(self, f"m_axi_{channel}id").eq(left[channel]),
            ]
            with m.If(valid & ready):
                m.d.sync += [
                    address.eq(address + burst_bytes),
                    left[channel].eq(left[channel] - 1),
                ]
            with m.Elif(valid & fault["address"]):
                m.d.sync += address.eq(address + self.bus_bytes)
            with m.Elif(valid & fault["valid"]):
                m.d.sync += left[channel].eq(0)

        beat = Signal(8)
        take = Signal()
        ticks = Signal(8)
        m.d.sync += ticks.eq(Mux(fault["data"], ticks + 1, 0))
        m.d.comb += [
            self.m_axi_wvalid.eq(self.m_axi_rvalid & ~read_only),
            self.m_axi_rready.eq(self.m_axi_wready | read_only),
            self.m_axi_wdata.eq(self.m_axi_rdata ^ ticks),
            self.m_axi_wstrb.eq(strobes),
            self.m_axi_wlast.eq((beat == beats - 1) & ~fault["last"] | fault["early last"]),
            take.eq(self.m_axi_rvalid & self.m_axi_rready),
            self.m_axi_bready.eq(1),
        ]
        with m.If(take):
            m.d.sync += [
                beat.eq(Mux(beat == beats - 1, 0, beat + 1)),
                left["r"].eq(left["r"] - (beat == beats - 1)),
                responses.eq(responses | self.m_axi_rresp),
            ]
        with m.If(self.m_axi_bvalid):
            m.d.sync += [
                left["b"].eq(left["b"] - 1),
                responses.eq(responses | self.m_axi_bresp),
            ]

        idle = Signal()
        m.d.comb += idle.eq((left["r"] == 0) & (left["b"] == 0))
        with m.If(start):
            no_writes = self.s_axil_wdata[1]
            m.d.sync += [
                running.eq(1),
                read_only.eq(no_writes),
                self.irq.eq(0),
                responses.eq(0),
                beat.eq(0),
                self.m_axi_araddr.eq(source),
                self.m_axi_awaddr.eq(target),
                left["ar"].eq(bursts),
                left["r"].eq(bursts),
                left["aw"].eq(Mux(no_writes, 0, bursts)),
                left["b"].eq(Mux(no_writes, 0, bursts)),
            ]
        with m.Elif(running & idle):
            m.d.sync += [running.eq(0), self.irq.eq(~fault["mute"])]
        return m
