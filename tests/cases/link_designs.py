"""Gateware with link ports for the tests of wires and clusters, and what it does, in Python."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from native_designs import REGISTER_PORTS

from fpgapipe.sim_tb.native.phy import Beat

DIGEST, RECEIVED, SENT, UNTIL, SENDS, VALUE, FAULT = range(0, 28, 4)
"""Registers of a link's part; those of link `n` begin at ``STEP * n``."""

STEP = 0x20

FAULTS = ("valid", "data", "ready")

WIDTHS = (4, 16, 64, 16)
"""Of the links, in bytes."""

TOKEN = 3
"""The link that passes a token on."""

FACTOR = 0x9E3779B1
_SEED = 0xACE1


def link_ports(number, phy_bytes):
    """Both streams of a link."""
    ports = {}
    for prefix, out, back in ((f"m_axis_link{number}", Out, In), (f"s_axis_link{number}", In, Out)):
        ports |= {
            f"{prefix}_tdata": out(8 * phy_bytes),
            f"{prefix}_tkeep": out(phy_bytes),
            f"{prefix}_tlast": out(1),
            f"{prefix}_tvalid": out(1),
            f"{prefix}_tready": back(1),
        }
    return ports


def registers(m, component, readable, writable):
    """Answer reads and writes of AXI4-Lite; `readable` and `writable` by address."""
    c = component
    write = Signal()
    m.d.comb += [
        write.eq(c.s_axil_awvalid & c.s_axil_wvalid & ~c.s_axil_bvalid),
        c.s_axil_awready.eq(write),
        c.s_axil_wready.eq(write),
        c.s_axil_arready.eq(~c.s_axil_rvalid),
    ]
    with m.If(write):
        m.d.sync += c.s_axil_bvalid.eq(1)
        with m.Switch(c.s_axil_awaddr):
            for address, register in writable.items():
                with m.Case(address):
                    m.d.sync += register.eq(c.s_axil_wdata)
    with m.Elif(c.s_axil_bready):
        m.d.sync += c.s_axil_bvalid.eq(0)
    with m.If(c.s_axil_arvalid & c.s_axil_arready):
        m.d.sync += c.s_axil_rvalid.eq(1)
        with m.Switch(c.s_axil_araddr):
            for address, value in readable.items():
                with m.Case(address):
                    m.d.sync += c.s_axil_rdata.eq(value)
    with m.Elif(c.s_axil_rready):
        m.d.sync += c.s_axil_rvalid.eq(0)


class LinkDesign(wiring.Component):
    """A load on each of links 0 to 2, and a token's stop on link 3.

    A load sends beats at odd times and digests those that come, with the cycles they come in. Its
    SENDS bounds the beats that it sends, none at first; irq is high when UNTIL have come. Bits of
    FAULT make load 0 break the rules that `FAULTS` names: let tvalid fall, change data that wait,
    not be ready.

    The token's stop passes a number on, with 1 added, in the cycle after it comes. Writing VALUE
    sends it; irq is high while the last that came is UNTIL or more, which then is not passed on.
    """

    def __init__(self):
        ports = {}
        for number, width in enumerate(WIDTHS):
            ports |= link_ports(number, width)
        super().__init__(REGISTER_PORTS | ports | {"irq": Out(1)})

    def elaborate(self, platform):
        m = Module()
        cycle, lfsr = Signal(32), Signal(16, init=_SEED)
        m.d.sync += [
            cycle.eq(cycle + 1),
            lfsr.eq(Cat(lfsr[0] ^ lfsr[2] ^ lfsr[3] ^ lfsr[5], lfsr[:15])),
        ]
        fault = Signal(3)
        readable, writable, irqs = {}, {FAULT: fault}, []
        for number in range(TOKEN):
            faults = dict(zip(FAULTS, fault if number == 0 else (0, 0, 0), strict=True))
            self._load(m, number, faults, cycle, lfsr, readable, writable, irqs)
        self._token(m, readable, writable, irqs)
        registers(m, self, readable, writable)
        m.d.comb += self.irq.eq(Cat(irqs).any())
        return m

    def _port(self, number, name):
        return getattr(self, f"{'m' if name[0] == 't' else 's'}_axis_link{number}_t{name[3:]}")

    def _load(self, m, number, faults, cycle, lfsr, readable, writable, irqs):
        width = WIDTHS[number]
        sent, sends, digest, received, until = (Signal(32) for _ in range(5))
        base = STEP * number
        readable |= {base + DIGEST: digest, base + RECEIVED: received, base + SENT: sent}
        writable |= {base + UNTIL: until, base + SENDS: sends}
        irqs.append((until != 0) & (received >= until))

        valid, moves, waits = self._port(number, "tx_valid"), Signal(), Signal()
        m.d.comb += [
            moves.eq(valid & self._port(number, "tx_ready")),
            waits.eq(valid & ~moves),
        ]
        m.d.sync += [
            sent.eq(sent + moves),
            valid.eq((waits & ~faults["valid"]) | ((sent + moves < sends) & lfsr[:2].any())),
        ]
        words = [Signal(32, name=f"word{number}_{k}") for k in range(width // 4)]
        counted = sent + Mux(faults["data"], cycle, 0)
        m.d.comb += [word.eq((counted + k) * FACTOR) for k, word in enumerate(words)]
        last = words[0][27:32] == 0
        odd = Cat(words)[16 : 16 + width]
        m.d.comb += [
            self._port(number, "tx_data").eq(Cat(words)),
            self._port(number, "tx_last").eq(last),
            self._port(number, "tx_keep").eq(
                Mux(sent[4:7] == 7, odd, Mux(last, (1 << (width // 4)) - 1, (1 << width) - 1))
            ),
        ]

        m.d.comb += self._port(number, "rx_ready").eq(~faults["ready"])
        data = self._port(number, "rx_data")
        folded = self._port(number, "rx_keep")[:32] ^ cycle
        for at in range(0, 8 * width, 32):
            folded = folded ^ data[at : at + 32]
        with m.If(self._port(number, "rx_valid")):
            m.d.sync += [
                received.eq(received + 1),
                digest.eq((digest.rotate_left(1) ^ folded) + self._port(number, "rx_last")),
            ]

    def _token(self, m, readable, writable, irqs):
        value, inserted, last = Signal(32), Signal(32), Signal(32)
        until = Signal(32, init=2**32 - 1)
        base = STEP * TOKEN
        readable[base + VALUE] = last
        writable |= {base + VALUE: inserted, base + UNTIL: until}
        irqs.append(last >= until)
        m.d.comb += [
            self._port(TOKEN, "rx_ready").eq(1),
            self._port(TOKEN, "tx_data").eq(value),
            self._port(TOKEN, "tx_keep").eq((1 << WIDTHS[TOKEN]) - 1),
            self._port(TOKEN, "tx_last").eq(1),
            self._port(TOKEN, "tx_valid").eq(value != 0),
        ]
        with m.If(self._port(TOKEN, "tx_ready")):
            m.d.sync += value.eq(0)
        with m.If(self._port(TOKEN, "rx_valid")):
            number = self._port(TOKEN, "rx_data")[:32]
            m.d.sync += [last.eq(number), value.eq(Mux(number >= until, 0, number + 1))]
        with m.If(inserted != 0):
            m.d.sync += [value.eq(inserted), inserted.eq(0)]


def load_beats(phy_bytes):
    """Beats that a load sends."""
    number = 0
    while True:
        words = [(number + k) * FACTOR % 2**32 for k in range(phy_bytes // 4)]
        data = sum(word << 32 * k for k, word in enumerate(words))
        last = words[0] >> 27 == 0
        keep = (1 << (phy_bytes // 4 if last else phy_bytes)) - 1
        if number >> 4 & 7 == 7:
            keep = data >> 16 & (1 << phy_bytes) - 1
        yield Beat(data, keep, last)
        number += 1


def load_on_wire(wire, phy_bytes, begin, sends, cycles):
    """Put what a load sends on a wire.

    `begin` is the first cycle in which its register SENDS has the value.
    """
    lfsr, valid, sent = _SEED, False, 0
    beats = load_beats(phy_bytes)
    beat = next(beats)
    for cycle in range(cycles):
        if wire.tready(cycle) and valid:
            wire.accept(cycle, beat)
            beat = next(beats)
            valid, sent = False, sent + 1
        valid = valid or (cycle >= begin and sent < sends and lfsr & 3 > 0)
        new = (lfsr ^ lfsr >> 2 ^ lfsr >> 3 ^ lfsr >> 5) & 1
        lfsr = (lfsr << 1 | new) & 0xFFFF


def digest_of(arrivals, phy_bytes):
    """Digest that a load makes of beats that arrive."""
    digest = 0
    for cycle, beat in arrivals:
        folded = (beat.keep ^ cycle) & 0xFFFFFFFF
        for at in range(phy_bytes // 4):
            folded ^= beat.data >> 32 * at & 0xFFFFFFFF
        rotated = (digest << 1 | digest >> 31) & 0xFFFFFFFF
        digest = ((rotated ^ folded) + beat.last) & 0xFFFFFFFF
    return digest
