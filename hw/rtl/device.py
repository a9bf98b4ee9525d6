"""Gateware of a device: one training core with its registers and memory port."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, DomainRenamer, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import Opcode
from fpgapipe.hw.hls_models.model.registers import LINK_COUNTERS
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.hw.rtl.control.registers import Registers
from fpgapipe.hw.rtl.control.sequencer import Sequencer
from fpgapipe.hw.rtl.dma.link_dma import ReceiveEngine, SendEngine
from fpgapipe.hw.rtl.dma.load import LoadEngine
from fpgapipe.hw.rtl.dma.scratchpad import Scratchpad, ScratchpadPorts
from fpgapipe.hw.rtl.dma.shared_ports import SharedPort
from fpgapipe.hw.rtl.dma.store import StoreEngine
from fpgapipe.hw.rtl.gemm.gemm_engine import GemmEngine
from fpgapipe.hw.rtl.lib.axi import ReadArbiter, WriteArbiter, connect_flat, flat_members
from fpgapipe.hw.rtl.lib.interleaver import ReadInterleaver, WriteInterleaver
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.hw.rtl.link.link_clock import ClockMeter
from fpgapipe.hw.rtl.link.on_chip import engine_class
from fpgapipe.hw.rtl.vector.vector_engine import VectorEngine
from fpgapipe.hw.rtl.vector.vector_source import reads_parts

_MASTERS = ("m_axi", "m_axi1")
"""Names of the ports of the memory."""

_FROM_REGISTERS = ("enable", "seed", "clear")
_TO_REGISTERS = ("state", "session", "peer", "peer_delivered_known")

_EVENT_NAMES = {
    "TX_WORDS": "tx_word",
    "RX_WORDS": "rx_word",
    "TX_FRAMES": "tx_frame",
    "RX_FRAMES": "rx_frame",
    "CRC_ERRORS": "crc_error",
    "REPLAYS": "replay",
}
"""For counters of a link that are not named as the event of its engine, the name of the event."""


def _stream_members(number, link):
    """Return the ports of a link, with the names that tools look for."""
    members: dict[str, Any] = {}
    for prefix, to, back in ((f"m_axis_link{number}", Out, In), (f"s_axis_link{number}", In, Out)):
        members |= {
            f"{prefix}_tdata": to(8 * link.phy_bytes),
            **({f"{prefix}_tkeep": to(link.phy_bytes)} if link.has_phy else {}),
            **({f"{prefix}_tlast": to(1)} if link.has_phy else {}),
            f"{prefix}_tvalid": to(1),
            f"{prefix}_tready": back(1),
        }
    if not link.has_phy:
        return members
    prefix = f"s_axis_clock{number}"
    return members | {
        f"{prefix}_tdata": In(8),
        f"{prefix}_tvalid": In(1),
        f"{prefix}_tready": Out(1),
    }


def _narrow_reads(spec: CoreSpec) -> frozenset[int]:
    """Read ports of the scratchpad whose engines take what a port gives in a cycle.

    They are those of the GEMM engines and of the vector engine. Stores read 64 bytes.
    """
    first = 2 * spec.num_engines
    vector = (first, first + 1) if spec.vector and reads_parts(spec) else ()
    return frozenset((*range(first), *vector))


def scratchpad_ports(spec: CoreSpec) -> ScratchpadPorts:
    """Ports of a core's scratchpad: two reads and a write of each engine, then those of DMA."""
    engines = spec.num_engines + (spec.vector is not None)
    operands = 2 * spec.num_engines if spec.scratchpad.parts == 1 else 0
    return ScratchpadPorts(
        spec.scratchpad,
        2 * engines + 1,
        engines + 1,
        aligned_writes=frozenset({engines}),
        aligned_reads=frozenset({2 * engines}),
        narrow_reads=_narrow_reads(spec),
        turned_reads=frozenset(range(operands)),
    )


class Device(wiring.Component):
    """Top level of a device.

    The names of the ports are stable; they are those that tools look for.

    Members
    -------
    clk, rst : In(1)
        The only clock, and its synchronous reset.
    s_axil_* :
        AXI4-Lite slave of the registers (docs/registers.md).
    m_axi_*, m_axi1_* :
        AXI4 masters to the memory: one, or two among which addresses are shared
        (:mod:`fpgapipe.hw.hls_models.spec.interleave`). With one, reads have ID 0 for the program,
        1 for loads and ``2 + n`` for SENDs of link `n`, and writes ID 0 for stores and ``1 + n``
        for RECEIVEs of link `n`. With two, all have ID 0.
    m_axis_link{n}_*, s_axis_link{n}_* :
        AXI4-Streams of link `n` to and from its PHY: tdata, tkeep, tlast, tvalid and tready. tready
        of the stream from the PHY is always 1. A reset of the core or the start of a program does
        not change a link. An on-chip link leads to another core and has neither tkeep nor tlast.
    s_axis_clock{n}_* :
        AXI4-Stream of ticks of the clock of link `n`'s PHY (docs/links.md). tready is always 1, and
        tdata is not looked at. An on-chip link has none.
    irq : Out(1)
        High while a bit of IRQ_ENABLE and its bit of STATUS are 1.
    """

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self._registers = Registers(spec)
        self._arbiter = ReadArbiter(2 + len(spec.links), spec.bus_bytes)
        self._store = StoreEngine(spec)
        reads, writes = self._arbiter.o, self._store.axi
        if spec.links:
            self._writes = WriteArbiter(1 + len(spec.links), spec.bus_bytes)
            writes = self._writes.o
        self._bus, self._masters = (reads, writes), [(reads, writes)]
        if spec.memory_ports > 1:
            self._interleavers = (
                ReadInterleaver(spec.bus_bytes, reads.signature.id_bits),
                WriteInterleaver(spec.bus_bytes, writes.signature.id_bits),
            )
            self._masters = [*zip(*(each.o for each in self._interleavers), strict=True)]
        super().__init__(
            {
                "clk": In(1),
                "rst": In(1),
                **{
                    name: member
                    for name, member in self._registers.signature.members.items()
                    if name.startswith("s_axil_")
                },
                **{
                    name: member
                    for prefix, channels in zip(_MASTERS, self._masters, strict=False)
                    for each in channels
                    for name, member in flat_members(each.signature, prefix).items()
                },
                **{
                    name: member
                    for number, link in enumerate(spec.links)
                    for name, member in _stream_members(number, link).items()
                },
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        # The two domains have the same clock. The start of a program resets the core, but not the
        # registers. The domains are local to the device. Neither is called "sync", since Amaranth
        # would take it for the domain of that name in the design around the device.
        device, core = (ClockDomain(name, local=True) for name in ("device", "core"))
        clear = Signal()
        device.clk = core.clk = self.clk
        device.rst = self.rst
        m.domains += device, core
        m.d.comb += core.rst.eq(self.rst | clear)
        in_device, in_core = DomainRenamer("device"), DomainRenamer("core")

        # The largest blocks come first, because blocks are converted in this order.
        engines = [GemmEngine(spec) for _ in range(spec.num_engines)]
        for number, engine in enumerate(engines):
            m.submodules[f"gemm{number}"] = in_core(own_module(engine, "gemm_engine"))
        vector = VectorEngine(spec) if spec.vector else None
        if vector:
            m.submodules.vector = in_core(own_module(vector, "vector_engine"))
        scratchpad = Scratchpad(scratchpad_ports(spec))
        sequencer = Sequencer(SequencerSpec.of(spec))
        load, store, registers = LoadEngine(spec), self._store, self._registers
        m.submodules.scratchpad = in_core(own_module(scratchpad, "scratchpad"))
        m.submodules.sequencer = in_device(own_module(sequencer, "sequencer"))
        m.submodules.load = in_core(own_module(load, "load_engine"))
        m.submodules.store = in_core(own_module(store, "store_engine"))
        m.submodules.registers = in_device(own_module(registers, "registers"))
        for number, engine in enumerate(engines):
            wiring.connect(m, sequencer.gemm[number], engine.i)
            wiring.connect(m, engine.read_a, scratchpad.reads[2 * number])
            wiring.connect(m, engine.read_b, scratchpad.reads[2 * number + 1])
            wiring.connect(m, engine.write, scratchpad.writes[number])
            m.d.comb += [
                engine.halt.eq(sequencer.halt),
                sequencer.gemm_done[number].eq(engine.done),
                sequencer.gemm_idle[number].eq(engine.idle),
            ]
            for inner, outer in zip(engine.failures, sequencer.gemm_failures[number], strict=True):
                wiring.connect(m, inner, outer)

        if vector:
            wiring.connect(m, sequencer.vector, vector.i)
            wiring.connect(m, vector.read_x, scratchpad.reads[-3])
            wiring.connect(m, vector.read_y, scratchpad.reads[-2])
            wiring.connect(m, vector.write, scratchpad.writes[-2])
            m.d.comb += [
                vector.halt.eq(sequencer.halt),
                sequencer.vector_done.eq(vector.done),
                sequencer.vector_idle.eq(vector.idle),
                *(
                    inner.eq(outer)
                    for inner, outer in zip(vector.scalars, registers.scalars, strict=True)
                ),
            ]
            for inner, outer in zip(vector.failures, sequencer.vector_failures, strict=True):
                wiring.connect(m, inner, outer)

        # The ports of GEMM engines have priority over those of the vector engine, and both over
        # loads, stores and links: an engine that waits for an operand or a result's write stalls
        # its array or its lanes.
        links = [(SendEngine(spec), ReceiveEngine(spec)) for _ in spec.links]
        readers, writers = [store], [load]
        if spec.links_reach_scratchpad:
            readers += [send for send, _ in links]
            writers += [receive for _, receive in links]
        m.d.comb += [writer.held.eq(scratchpad.held) for writer in writers]
        for name, engines_of, port in (
            ("read", [reader.read for reader in readers], scratchpad.reads[-1]),
            ("write", [writer.write for writer in writers], scratchpad.writes[-1]),
        ):
            if len(engines_of) == 1:
                wiring.connect(m, engines_of[0], port)
                continue
            shared = SharedPort(port.signature.flip(), len(engines_of))
            m.submodules[f"shared_{name}"] = in_core(shared)
            wiring.connect(m, shared.o, port)
            for engine, own in zip(engines_of, shared.engines, strict=True):
                wiring.connect(m, engine, own)
        wiring.connect(m, sequencer.load, load.i)
        wiring.connect(m, sequencer.store, store.i)
        for name, engine in (("load", load), ("store", store)):
            failure = getattr(sequencer, f"{name}_failures")[0]
            m.d.comb += [
                engine.memory_base.eq(registers.memory_base),
                engine.memory_limit.eq(registers.memory_limit),
                engine.halt.eq(sequencer.halt),
                getattr(sequencer, f"{name}_done").eq(engine.done),
                getattr(sequencer, f"{name}_idle").eq(engine.idle),
                failure.valid.eq(engine.error_valid),
                failure.code.eq(engine.error_code),
                failure.index.eq(engine.error_index),
            ]

        m.d.comb += [
            sequencer.start.eq(registers.start),
            sequencer.cancel.eq(registers.cancel),
            sequencer.entry.eq(registers.program),
            sequencer.memory_base.eq(registers.memory_base),
            sequencer.memory_limit.eq(registers.memory_limit),
            clear.eq(sequencer.clear),
            registers.running.eq(sequencer.running),
            registers.done.eq(sequencer.done),
            registers.error.eq(sequencer.error),
            registers.error_code.eq(sequencer.error_code),
            registers.error_engine.eq(sequencer.error_engine),
            registers.error_index.eq(sequencer.error_index),
            self.irq.eq(registers.irq),
        ]
        for name, member in registers.signature.members.items():
            if name.startswith("s_axil_"):
                port, inner = getattr(self, name), getattr(registers, name)
                m.d.comb += inner.eq(port) if member.flow == In else port.eq(inner)
        events = {
            "instructions": sequencer.dispatched,
            "load_busy": sequencer.busy[0],
            "load_wait_semaphore": sequencer.waits[0],
            "load_bytes": load.bytes_moved,
            "store_busy": sequencer.busy[1],
            "store_wait_semaphore": sequencer.waits[1],
            "store_bytes": store.bytes_moved,
            "scratchpad_wait": scratchpad.waits,
        }
        for number, engine in enumerate(engines):
            for name, event in (
                ("busy", sequencer.busy[2 + number]),
                ("wait_semaphore", sequencer.waits[2 + number]),
                ("wait_a", engine.wait_a),
                ("wait_b", engine.wait_b),
                ("wait_result", engine.wait_result),
                ("vectors", engine.fed),
            ):
                events[f"gemm{number}_{name}"] = event
        if vector:
            events |= {
                "vector_busy": sequencer.busy[2 + spec.num_engines],
                "vector_wait_semaphore": sequencer.waits[2 + spec.num_engines],
                "vector_wait_x": vector.wait_x,
                "vector_wait_y": vector.wait_y,
                "vector_wait_result": vector.wait_result,
                "vector_vectors": vector.fed,
            }
        events |= self._add_links(m, sequencer, links)
        # Events of what an error or an abort left in the engines belong to no program.
        counts = Signal()
        m.d.comb += [
            counts.eq(sequencer.running & ~sequencer.clear),
            registers.nan.eq(counts & Cat(engine.nan for engine in engines).any()),
        ]
        m.d.comb += [
            getattr(registers, name).eq(Mux(counts, event, 0))
            for name, event in events.items()
            if name in registers.events
        ]

        # The reader of the program has priority, because it asks seldom.
        arbiter = self._arbiter
        m.submodules.arbiter = in_device(arbiter)
        wiring.connect(m, sequencer.axi, arbiter.masters[0])
        wiring.connect(m, load.axi, arbiter.masters[1])
        for prefix, (reads, _) in zip(_MASTERS, self._masters, strict=False):
            connect_flat(m, self, prefix, reads)
        if spec.links:
            m.submodules.writes = in_device(self._writes)
            wiring.connect(m, store.axi, self._writes.masters[0])
        for prefix, (_, writes) in zip(_MASTERS, self._masters, strict=False):
            connect_flat(m, self, prefix, writes)
        if spec.memory_ports > 1:
            read, write = self._interleavers
            m.submodules.read_interleaver = in_device(read)
            m.submodules.write_interleaver = in_device(write)
            wiring.connect(m, self._bus[0], read.i)
            wiring.connect(m, self._bus[1], write.i)
        return m

    def _add_links(self, m, sequencer, engines):
        """Add the links and their engines; return the events that count while a program runs."""
        spec, registers = self.spec, self._registers
        queues = SequencerSpec.of(spec).queues
        in_device, in_core = DomainRenamer("device"), DomainRenamer("core")
        events: dict[str, Any] = {}
        for number, (link, (send, receive)) in enumerate(zip(spec.links, engines, strict=True)):
            # Ends with equal specs share a module. They are not in the core's domain, so words that
            # are under way survive the start of a program.
            name = f"link_engine{spec.links.index(link)}"
            engine = engine_class(link)(link)
            m.submodules[f"link{number}"] = in_device(own_module(engine, name))
            m.submodules[f"send{number}"] = in_core(own_module(send, "send_engine"))
            m.submodules[f"receive{number}"] = in_core(own_module(receive, "receive_engine"))
            for sender, channel in zip(send.o, engine.i, strict=True):
                wiring.connect(m, sender, channel)
            for channel, receiver in zip(engine.o, receive.i_words, strict=True):
                wiring.connect(m, channel, receiver)
            wiring.connect(m, send.axi, self._arbiter.masters[2 + number])
            wiring.connect(m, receive.axi, self._writes.masters[1 + number])
            down = Signal(name=f"down{number}")
            gone = (LinkState.OFF, LinkState.PEER_RESET, LinkState.MISMATCH)
            m.d.device += down.eq(Cat(engine.state == state for state in gone).any())
            for opcode, client in ((Opcode.SEND, send), (Opcode.RECEIVE, receive)):
                kind = opcode.name.lower()
                queue = queues.index((opcode, number))
                wiring.connect(m, getattr(sequencer, kind)[number], client.i)
                failure = getattr(sequencer, f"{kind}_failures")[number][0]
                m.d.comb += [
                    client.memory_base.eq(registers.memory_base),
                    client.memory_limit.eq(registers.memory_limit),
                    client.halt.eq(sequencer.halt),
                    client.down.eq(down),
                    getattr(sequencer, f"{kind}_done")[number].eq(client.done),
                    getattr(sequencer, f"{kind}_idle")[number].eq(client.idle),
                    failure.valid.eq(client.error_valid),
                    failure.code.eq(client.error_code),
                    failure.index.eq(client.error_index),
                ]
                events |= {
                    f"link{number}_{kind}_busy": sequencer.busy[queue],
                    f"link{number}_{kind}_wait_semaphore": sequencer.waits[queue],
                    f"link{number}_{kind}_wait_link": client.waits,
                }

            port = registers.links[number]
            self._connect_phy(m, number, engine, port)
            m.d.comb += [
                *(getattr(engine, part).eq(getattr(port, part)) for part in _FROM_REGISTERS),
                *(getattr(port, part).eq(getattr(engine, part)) for part in _TO_REGISTERS),
            ]
            for shown, counted in (
                (port.delivered, engine.delivered),
                (port.peer_delivered, engine.peer_delivered),
            ):
                m.d.comb += [to.eq(count) for to, count in zip(shown, counted, strict=True)]
            m.d.comb += [
                getattr(registers, f"link{number}_{counter.lower()}").eq(
                    getattr(engine, _EVENT_NAMES.get(counter, counter.lower()))
                )
                for counter in LINK_COUNTERS
                if f"link{number}_{counter.lower()}" in registers.events
            ]
        if spec.links:
            for shown, queue in zip(sequencer.queues, registers.queues, strict=True):
                wiring.connect(m, shown, queue)
        return events

    def _connect_phy(self, m, number, engine, port):
        """Connect a link's streams to the ports, and the clock's ticks to the registers."""
        out, into, clock = (
            f"{prefix}{number}" for prefix in ("m_axis_link", "s_axis_link", "s_axis_clock")
        )
        m.d.comb += [
            getattr(self, f"{out}_tvalid").eq(engine.tx.valid),
            getattr(self, f"{into}_tready").eq(engine.rx.ready),
            engine.tx.ready.eq(getattr(self, f"{out}_tready")),
            engine.rx.valid.eq(getattr(self, f"{into}_tvalid")),
        ]
        if not engine.spec.has_phy:
            m.d.comb += [
                getattr(self, f"{out}_tdata").eq(engine.tx.payload),
                engine.rx.payload.eq(getattr(self, f"{into}_tdata")),
            ]
            return
        m.submodules[f"clock{number}"] = meter = DomainRenamer("device")(ClockMeter())
        m.d.comb += [
            meter.valid.eq(getattr(self, f"{clock}_tvalid")),
            getattr(self, f"{clock}_tready").eq(1),
            port.ticks.eq(meter.ticks),
            port.ticks_known.eq(meter.known),
        ]
        for part in ("data", "keep", "last"):
            m.d.comb += [
                getattr(self, f"{out}_t{part}").eq(getattr(engine.tx.payload, part)),
                getattr(engine.rx.payload, part).eq(getattr(self, f"{into}_t{part}")),
            ]
