"""Gateware of the registers, :mod:`fpgapipe.hw.hls_models.model.registers`, on an AXI4-Lite bus."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.model.registers import (
    ADDRESS_BITS,
    DATA_BITS,
    SEED_BITS,
    Kind,
    RegisterMap,
)
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import DELIVERED_BITS, NUM_CHANNELS, SESSION_BITS
from fpgapipe.hw.hls_models.spec.link_clock import METER_BITS
from fpgapipe.hw.rtl.lib.queue import QueueState
from fpgapipe.hw.rtl.lib.rotator import selected

OKAY, SLVERR = 0, 2
"""Codes of AXI responses."""

_STATUS = ("idle", "running", "done", "error", "nan")


def axil_members():
    """Ports of an AXI4-Lite slave, by their customary names without a prefix."""
    return {
        "awaddr": In(ADDRESS_BITS),
        "awprot": In(3),
        "awvalid": In(1),
        "awready": Out(1),
        "wdata": In(DATA_BITS),
        "wstrb": In(DATA_BITS // 8),
        "wvalid": In(1),
        "wready": Out(1),
        "bresp": Out(2),
        "bvalid": Out(1),
        "bready": In(1),
        "araddr": In(ADDRESS_BITS),
        "arprot": In(3),
        "arvalid": In(1),
        "arready": Out(1),
        "rdata": Out(DATA_BITS),
        "rresp": Out(2),
        "rvalid": Out(1),
        "rready": In(1),
    }


class LinkPort(wiring.Signature):
    """Signals between the registers and the engine of a link, as the registers see them.

    Members
    -------
    enable : Out(1)
        Contents of the link's ENABLE register.
    seed : Out(15)
        Contents of the link's SEED register.
    clear : Out(1)
        A pulse when the link's CONTROL.reset is written.
    state : In(3)
        State of the link, a `fpgapipe.hw.hls_models.spec.link.LinkState`.
    session, peer : In(16)
        Numbers of the sessions of this end and of the other end.
    delivered, peer_delivered : In(48).array(3)
        Words that this end has handed out in this session, and words that the other end had handed
        out when it was reset, for each channel.
    peer_delivered_known : In(1)
        Whether `peer_delivered` is known.
    ticks : In
    ticks_known : In(1)
        What a `fpgapipe.hw.rtl.link.link_clock.ClockMeter` says of the PHY's clock.
    """

    def __init__(self):
        super().__init__(
            {
                "enable": Out(1),
                "seed": Out(SEED_BITS),
                "clear": Out(1),
                "state": In(3),
                "session": In(SESSION_BITS),
                "peer": In(SESSION_BITS),
                "delivered": In(DELIVERED_BITS).array(NUM_CHANNELS),
                "peer_delivered": In(DELIVERED_BITS).array(NUM_CHANNELS),
                "peer_delivered_known": In(1),
                "ticks": In(METER_BITS),
                "ticks_known": In(1),
            }
        )


class Registers(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.model.registers.RegisterMap`.

    The component is an AXI4-Lite slave. It accepts one write and one read at a time, and the
    address and data of a write in any order. It answers an access to a register with OKAY and any
    other access with SLVERR; the lowest two bits of an address are ignored. All outputs are
    registers or functions of registers alone.

    Members
    -------
    s_axil_* : In, Out
        Ports of the bus, see `axil_members`.
    start, cancel : Out(1)
        Pulses when CONTROL.start and CONTROL.abort are written.
    program, memory_base, memory_limit : Out(64)
    scalars : Out(32).array(16)
        Contents of these registers; `scalars` is present only with a vector engine.
    links : Out(LinkPort).array(len(spec.links))
    queues : In(QueueState).array(num_queues)
        Signals of links, and states of queues; present only with links.
    irq : Out(1)
        Interrupt.
    running, done, error : In(1)
        State of the core. STATUS.done and STATUS.error are set when these rise.
    error_code : In(8)
    error_engine : In(4)
    error_index : In(32)
        Data of the error; they are captured when `error` rises.
    nan : In(1)
        Event: a block of an operand is not a number.
    load_bytes, store_bytes : In(range(bus_bytes + 1))
        Bytes by which these counters rise.
    instructions, load_busy, ..., gemm0_busy, ... : In(1)
        Events that the counters of these names in `RegisterMap.counters` count. CYCLES has no
        event, since it counts `running`.

    Attributes
    ----------
    events : tuple of str
        Names of the events.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self._map = RegisterMap(spec)
        self.events = tuple(name.lower() for name in self._map.counters if name != "CYCLES")
        super().__init__(
            {
                **{f"s_axil_{name}": member for name, member in axil_members().items()},
                "start": Out(1),
                "cancel": Out(1),
                "program": Out(64),
                "memory_base": Out(64),
                "memory_limit": Out(64),
                "irq": Out(1),
                "running": In(1),
                "done": In(1),
                "error": In(1),
                "error_code": In(8),
                "error_engine": In(4),
                "error_index": In(32),
                "nan": In(1),
                **({"scalars": Out(DATA_BITS).array(NUM_SCALARS)} if spec.vector else {}),
                **(self._link_members() if spec.links else {}),
                **{name: In(self._map.amount_bits(name.upper())) for name in self.events},
            }
        )

    def _link_members(self):
        sequencer = SequencerSpec.of(self.spec)
        return {
            "links": Out(LinkPort()).array(len(self.spec.links)),
            "queues": In(QueueState(sequencer.num_semaphores)).array(sequencer.num_queues),
        }

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        all_commands = {
            register.name: {
                field.name: Signal(
                    name=f"{register.name.removesuffix('CONTROL').lower()}command_{field.name}"
                )
                for field in register.fields
            }
            for register in self._map
            if register.kind is Kind.COMMAND
        }
        commands = all_commands["CONTROL"]
        m.d.comb += [self.start.eq(commands["start"]), self.cancel.eq(commands["abort"])]

        values = {
            register.name: Const(register.reset, DATA_BITS)
            for register in self._map
            if register.kind is Kind.CONSTANT
        }
        values |= dict.fromkeys(all_commands, Const(0, DATA_BITS))
        values |= self._status(m, commands)
        counters = self._counters(m, commands["clear_counters"])
        upper = Signal(DATA_BITS)  # upper half of the number whose lower half was read last
        wide = counters | self._delivered()
        for name, number in wide.items():
            values[f"{name}_LO"] = number[:DATA_BITS]
            values[f"{name}_HI"] = upper
        stored = {
            register.name: Signal(DATA_BITS, name=register.name.lower())
            for register in self._map
            if register.kind is Kind.STORED
        }
        values |= stored
        for name in ("program", "memory_base", "memory_limit"):
            halves = [stored[f"{name.upper()}_{half}"] for half in ("LO", "HI")]
            m.d.comb += getattr(self, name).eq(Cat(halves))
        if self.spec.vector:
            m.d.comb += [
                scalar.eq(stored[f"SCALAR{number}"]) for number, scalar in enumerate(self.scalars)
            ]
        if self.spec.links:
            values |= self._shown()
            self._control_links(m, stored, all_commands)
        enable = stored["IRQ_ENABLE"]
        m.d.sync += self.irq.eq((values["STATUS"] & enable).any())

        self._writes(m, stored, all_commands)
        self._reads(m, values, wide, upper)
        return m

    def _delivered(self):
        """Numbers of words that links have delivered, by the name of the register."""
        return {
            f"LINK{number}_{name.upper()}{channel}": count
            for number in range(len(self.spec.links))
            for name in ("delivered", "peer_delivered")
            for channel, count in enumerate(getattr(self.links[number], name))
        }

    def _shown(self):
        """Values of STATUS, SESSIONS and CLOCK of links, and states of queues, by register name."""
        values = {}
        for number, link in enumerate(self.links):
            values[f"LINK{number}_STATUS"] = Cat(link.state, link.peer_delivered_known)
            values[f"LINK{number}_SESSIONS"] = Cat(link.session, link.peer)
            values[f"LINK{number}_CLOCK"] = Cat(link.ticks, link.ticks_known)
        for number, queue in enumerate(self.queues):
            values[f"QUEUE{number}_HEAD"] = queue.head
            values[f"QUEUE{number}_OLDEST"] = queue.oldest
            values[f"QUEUE{number}_MISSING"] = queue.missing
            values[f"QUEUE{number}_WAIT"] = Cat(
                getattr(queue, field.name) for field in self._map[f"QUEUE{number}_WAIT"].fields
            )
        return values

    def _control_links(self, m, stored, commands):
        for number, link in enumerate(self.links):
            m.d.comb += [
                link.enable.eq(stored[f"LINK{number}_ENABLE"]),
                link.seed.eq(stored[f"LINK{number}_SEED"]),
                link.clear.eq(commands[f"LINK{number}_CONTROL"]["reset"]),
            ]

    def _status(self, m, commands):
        """Make STATUS, ERROR and ERROR_INDEX; return their values by name."""
        done, error, nan = (Signal(name=f"status_{name}") for name in ("done", "error", "nan"))
        was_done, was_error = Signal(), Signal()
        code = Signal(DATA_BITS, name="status_code")
        index = Signal(DATA_BITS, name="status_index")
        m.d.sync += [was_done.eq(self.done), was_error.eq(self.error)]
        with m.If(commands["clear_status"]):
            m.d.sync += nan.eq(0)
        with m.If(commands["clear_status"] | (commands["start"] & ~self.running)):
            m.d.sync += [done.eq(0), error.eq(0), code.eq(0), index.eq(0)]
        # An event in the cycle in which STATUS is cleared is not lost.
        with m.If(self.nan):
            m.d.sync += nan.eq(1)
        with m.If(self.done & ~was_done):
            m.d.sync += done.eq(1)
        with m.If(self.error & ~was_error):
            m.d.sync += [
                error.eq(1),
                code.eq(Cat(self.error_code, self.error_engine)),
                index.eq(self.error_index),
            ]
        bits = dict(zip(_STATUS, (~self.running, self.running, done, error, nan), strict=True))
        status = Signal(DATA_BITS, name="status")
        for field in self._map["STATUS"].fields:
            m.d.comb += status[field.low].eq(bits[field.name])
        return {"STATUS": status, "ERROR": code, "ERROR_INDEX": index}

    def _counters(self, m, clear):
        """Make the counters; return them by name, each a Signal of 64 bits."""
        counters = {}
        for name in self._map.counters:
            event = self.running if name == "CYCLES" else getattr(self, name.lower())
            amount = Signal(len(event), name=f"{name.lower()}_amount")
            counter = Signal(64, name=f"{name.lower()}_count")
            m.d.sync += amount.eq(event)
            with m.If(clear):
                m.d.sync += counter.eq(0)
            with m.Elif(amount.any()):
                m.d.sync += counter.eq(counter + amount)
            counters[name] = counter
        return counters

    def _writes(self, m, stored, commands):
        address = Signal(ADDRESS_BITS - 2)
        data = Signal(DATA_BITS)
        strobe = Signal(DATA_BITS // 8)
        has_address, has_data = Signal(), Signal()
        write = Signal()
        m.d.comb += [
            self.s_axil_awready.eq(~has_address),
            self.s_axil_wready.eq(~has_data),
            write.eq(has_address & has_data & ~self.s_axil_bvalid),
        ]
        with m.If(self.s_axil_awvalid & self.s_axil_awready):
            m.d.sync += [has_address.eq(1), address.eq(self.s_axil_awaddr[2:])]
        with m.If(self.s_axil_wvalid & self.s_axil_wready):
            m.d.sync += [has_data.eq(1), data.eq(self.s_axil_wdata), strobe.eq(self.s_axil_wstrb)]
        with m.If(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        m.d.sync += [command.eq(0) for group in commands.values() for command in group.values()]

        written = Signal(DATA_BITS)  # mask of the bits that are written
        m.d.comb += written.eq(Cat(bit.replicate(8) for bit in strobe))
        with m.If(write):
            m.d.sync += [has_address.eq(0), has_data.eq(0), self.s_axil_bvalid.eq(1)]
            m.d.sync += self.s_axil_bresp.eq(SLVERR)
            with m.Switch(address):
                for register in self._map:
                    with m.Case(register.offset >> 2):
                        m.d.sync += self.s_axil_bresp.eq(OKAY)
                        if register.kind is Kind.STORED:
                            # Each byte has an enable; a choice for each bit would take a LUT.
                            new = data & register.writable
                            for low, strobed in enumerate(strobe):
                                byte = slice(8 * low, 8 * low + 8)
                                with m.If(strobed):
                                    m.d.sync += stored[register.name][byte].eq(new[byte])
                        elif register.kind is Kind.COMMAND:
                            m.d.sync += [
                                commands[register.name][field.name].eq(
                                    data[field.low] & written[field.low]
                                )
                                for field in register.fields
                            ]

    def _reads(self, m, values, wide, upper):
        address = Signal(ADDRESS_BITS - 2)
        has_address = Signal()
        m.d.comb += self.s_axil_arready.eq(~has_address & ~self.s_axil_rvalid)
        with m.If(self.s_axil_arvalid & self.s_axil_arready):
            m.d.sync += [has_address.eq(1), address.eq(self.s_axil_araddr[2:])]
        with m.If(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        is_known = Signal()
        numbers = {register.offset >> 2: register for register in self._map}
        with m.Switch(address), m.Case(*numbers):
            m.d.comb += is_known.eq(1)
        shown = {number: values[register.name] for number, register in numbers.items()}
        uppers = {
            number: wide[register.name.removesuffix("_LO")][DATA_BITS:]
            for number, register in numbers.items()
            if register.kind in (Kind.COUNTER_LO, Kind.STATUS_LO)
        }
        is_lower = Signal()
        with m.Switch(address), m.Case(*uppers):
            m.d.comb += is_lower.eq(1)
        with m.If(has_address):
            m.d.sync += [
                has_address.eq(0),
                self.s_axil_rvalid.eq(1),
                self.s_axil_rdata.eq(_of_number(address, shown)),
                self.s_axil_rresp.eq(Mux(is_known, OKAY, SLVERR)),
            ]
            with m.If(~is_known):
                m.d.sync += self.s_axil_rdata.eq(0)
            with m.If(is_lower):
                m.d.sync += upper.eq(_of_number(address, uppers))


def _of_number(number, values):
    """Return the value with a number, or any value if there is none.

    It chooses among four at a time, as a LUT does.
    """
    if len(values) == 1:
        return next(iter(values.values()))
    groups: dict[int, dict[int, Value]] = {}
    for key, value in values.items():
        groups.setdefault(key >> 2, {})[key & 3] = value
    chosen = {}
    for key, group in groups.items():
        # What does not exist is replaced by what differs from it in as few bits as may be.
        candidates = [[k, k ^ 2, k ^ 1, k ^ 3] for k in range(4)]
        filled = [next(group[k] for k in each if k in group) for each in candidates]
        chosen[key] = selected(number[:2], [_padded(value) for value in filled])
    return _of_number(number[2:], chosen)


def _padded(value):
    """Extend a value to the width of a register."""
    return Cat(value, Const(0, DATA_BITS - len(value)))
