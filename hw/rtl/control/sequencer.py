"""Gateware of the sequencer, which runs programs; `hls_models.model.sequencer` is its model."""

from amaranth.hdl import C, Cat, Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.gemm_fields import GEMM
from fpgapipe.hw.hls_models.isa.instructions import (
    BODIES,
    HEADER,
    LINK,
    TRANSFER,
    Engine,
    ErrorCode,
    Opcode,
    has_one_engine,
    words_of,
)
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR
from fpgapipe.hw.hls_models.model.sequencer import INDEX_BITS, SequencerSpec
from fpgapipe.hw.rtl.control.fetch import Fault, Fetcher, ProgramReader, fetched_layout
from fpgapipe.hw.rtl.lib.axi import ADDRESS_BITS, AxiRead
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.queue import EngineQueue, QueueState, issue_layout
from fpgapipe.hw.rtl.lib.semaphores import Semaphores

QUIET_CYCLES = 8
"""Cycles without any activity after which a program has ended.

No pulse between the parts of a core takes as long.
"""


class Failure(wiring.Signature):
    """Signals by which a part of a core reports an error, as seen by that part.

    Members
    -------
    valid : Out(1)
        A pulse for an error.
    code : Out(8)
        Kind of the error, an `ErrorCode`.
    index : Out(32)
        Number of the instruction.
    """

    def __init__(self):
        super().__init__({"valid": Out(1), "code": Out(8), "index": Out(32)})


class Dispatcher(wiring.Component):
    """Checks instructions and hands them to the queues, in program order.

    An instruction takes :meth:`SequencerSpec.dispatch_cycles`: a cycle for each part of its header,
    in the last of which the header is checked, and one for each part of its words.

    Members
    -------
    i : In(stream.Signature(fetched_layout(spec)))
        Parts of the words of the program.
    o : Out(stream.Signature(8 * spec.part_bytes)).array(num_queues)
        Parts of words for each queue.
    halt : In(1)
        While this is high, nothing is handed out.
    ended : Out(1)
        High from when END has been reached until reset.
    end_wait : Out(spec.num_semaphores)
        Semaphores that END waits for.
    failure : Out(Failure)
        An error of the program, after which nothing is handed out until reset.
    dispatched : Out(1)
        A pulse for each instruction, when its last part is handed out.
    """

    def __init__(self, spec: SequencerSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "i": In(stream.Signature(fetched_layout(spec))),
                "o": Out(stream.Signature(unsigned(8 * spec.part_bytes))).array(spec.num_queues),
                "halt": In(1),
                "ended": Out(1),
                "end_wait": Out(spec.num_semaphores),
                "failure": Out(Failure()),
                "dispatched": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec, word = self.spec, self.i.payload.data
        # The parts of a header are kept until the last one has come, which is checked and handed
        # out while it is at the input. `place` is the number of a part among them.
        bits, last = 8 * spec.part_bytes, spec.header_parts - 1
        kept = Signal(bits * last, reset_less=True)
        place = Signal(range(spec.header_parts + 1))
        is_kept = place < last if last else C(0)
        header = data.View(layout_of(HEADER), Cat(kept, word)[: HEADER.bits])
        index = Signal(INDEX_BITS)
        select = Signal(spec.num_queues)  # one-hot
        known = spec.engines
        left = Signal(range(max(words_of(opcode) for opcode in known) * spec.word_parts))
        is_end = Signal()
        code = Signal(8)
        read_code = Signal(8)
        m.d.comb += [
            read_code.eq(
                Mux(
                    self.i.payload.fault == Fault.RANGE,
                    ErrorCode.MEMORY_RANGE,
                    ErrorCode.AXI_READ,
                )
            ),
            self.failure.index.eq(index),
            self.failure.code.eq(code),
        ]

        count = spec.num_semaphores
        # Some of the instruction's semaphores do not exist in this core.
        strange = (header.wait[count:] | header.signal[count:]).any()
        ready = Signal()
        m.d.comb += ready.eq(is_end | (select & Cat(queue.ready for queue in self.o)).any())
        push = Signal()
        part = Signal(bits)
        m.d.comb += part.eq(Mux(is_kept, kept[:bits], word) if last else word)
        # An instruction's number takes the place of its opcode and length, and of its engine.
        for at, value in ((0, index[:16]), (HEADER.bits - INDEX_BITS + 16, index[16:])):
            with m.If(place == at // bits):
                m.d.comb += part[at % bits : at % bits + len(value)].eq(value)
        for number, queue in enumerate(self.o):
            m.d.comb += [queue.valid.eq(push & select[number]), queue.payload.eq(part)]
        shifted = kept.eq(Cat(kept, word)[bits:])

        with m.FSM():
            with m.State("HEAD"), m.If(self.i.valid & ~self.halt):
                m.d.sync += [
                    place.eq(0),
                    code.eq(ErrorCode.NONE),
                    is_end.eq(header.opcode == Opcode.END),
                    self.end_wait.eq(header.wait),
                ]
                with m.Switch(header.opcode):
                    for opcode, engines in known.items():
                        with m.Case(opcode):
                            m.d.sync += [
                                left.eq(words_of(opcode) * spec.word_parts - 1),
                                select.eq(self._select(opcode, header.engine)),
                            ]
                            wrong = (header.engine >= engines) | (header.reserved != 0) | strange
                            if opcode is Opcode.END:
                                wrong |= header.signal != 0
                            with m.If(header.words != words_of(opcode)):
                                m.d.sync += code.eq(ErrorCode.BAD_LENGTH)
                            with m.Elif(wrong):
                                m.d.sync += code.eq(ErrorCode.BAD_FIELD)
                    with m.Default():
                        m.d.sync += code.eq(ErrorCode.BAD_OPCODE)
                m.next = "HAND OUT"
                with m.If(self.i.payload.fault != Fault.NONE):
                    m.d.sync += code.eq(read_code)
                with m.Elif(place != last):
                    m.d.comb += self.i.ready.eq(1)
                    m.d.sync += [place.eq(place + 1), shifted]
                    m.next = "HEAD"
            with m.State("HAND OUT"):
                with m.If(code != ErrorCode.NONE):
                    m.d.comb += self.failure.valid.eq(1)
                    m.next = "STOP"
                with m.Elif((self.i.valid | is_kept) & ~self.halt):
                    with m.If(~is_kept & (self.i.payload.fault != Fault.NONE)):
                        m.d.sync += code.eq(read_code)
                    with m.Else():
                        # END is read to its end, too: its last parts may be missing.
                        m.d.comb += [push.eq(~is_end), self.i.ready.eq(ready & ~is_kept)]
                        with m.If(ready):
                            m.d.sync += left.eq(left - 1)
                            with m.If(place <= last):
                                m.d.sync += [place.eq(place + 1), shifted]
                            with m.If(left == 0):
                                m.d.comb += self.dispatched.eq(~is_end)
                                m.d.sync += [index.eq(index + 1), place.eq(0)]
                                m.next = "HEAD"
                                with m.If(is_end):
                                    m.next = "END"
            with m.State("END"):
                m.d.comb += self.ended.eq(1)
            with m.State("STOP"):
                pass
        return m

    def _select(self, opcode, engine):
        """Number of an instruction's queue, one-hot."""
        if opcode is Opcode.END:
            return 0
        first = self.spec.queues.index((opcode, 0))
        if has_one_engine(opcode):
            return 1 << first
        # The queues of a link's two engines are neighbours.
        number = engine[:2] if opcode is Opcode.GEMM else Cat(C(0, 1), engine[:2])
        return C(1 << first, self.spec.num_queues) << number


class FirstFailure(wiring.Component):
    """Keeps the first of several errors; of errors in the same cycle, that of the lowest number.

    Members
    -------
    i : In(Failure).array(len(engines))
        Errors of the parts.
    any : Out(1)
        High from the cycle after the first error on.
    code : Out(8)
    engine : Out(4)
    index : Out(32)
        Data of the first error, from two cycles after it on.
    """

    def __init__(self, engines):
        self._engines = engines
        super().__init__(
            {
                "i": In(Failure()).array(len(engines)),
                "any": Out(1),
                "code": Out(8),
                "engine": Out(4),
                "index": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        came = Signal(len(self._engines))
        kept = Signal()
        m.d.comb += self.any.eq(came.any() | kept)
        codes, indices = [], []
        for number, failure in enumerate(self.i):
            codes.append(Signal(8, name=f"code{number}", reset_less=True))
            indices.append(Signal(32, name=f"index{number}", reset_less=True))
            m.d.sync += came[number].eq(failure.valid)
            with m.If(failure.valid):
                m.d.sync += [codes[-1].eq(failure.code), indices[-1].eq(failure.index)]
        with m.If(came.any()):
            m.d.sync += kept.eq(1)
        with m.If(came.any() & ~kept):
            for number in reversed(range(len(self._engines))):
                with m.If(came[number]):
                    m.d.sync += [
                        self.code.eq(codes[number]),
                        self.engine.eq(self._engines[number]),
                        self.index.eq(indices[number]),
                    ]
        return m


class Sequencer(wiring.Component):
    """Runs a program: reads it, orders the engines' instructions, and keeps the first error.

    A program begins with a pulse of ``start``. It has ended when END has been reached, all queues
    are empty, all engines are idle, and END has taken its semaphores. After an error or ``cancel``,
    no engine gets another instruction, and ``halt`` stops the engines that run. The program has
    then ended when all engines are idle and no read of the program is under way.

    Members
    -------
    start : In(1)
        A pulse that starts a program; it is ignored while `running`.
    cancel : In(1)
        A pulse that stops the program; it is ignored unless `running`.
    entry, memory_base, memory_limit : In(64)
        Byte addresses, multiples of 64, which are constant while `running`.
    axi : Out(AxiRead(spec.bus_bytes))
        Bus to the program; all data are accepted at once.
    load, store : Out(stream.Signature(issue_layout(TRANSFER)))
    gemm : Out(stream.Signature(issue_layout(GEMM))).array(num_engines)
    vector : Out(stream.Signature(issue_layout(VECTOR)))
        Instructions for the engines. None moves while `halt` is high, and offers are withdrawn when
        it rises. The members for VECTOR are present only with ``has_vector``.
    send, receive : Out(stream.Signature(issue_layout(LINK))).array(num_links)
        Instructions for each link. The members for links are present only with ``num_links``.
    load_done, store_done, vector_done : In(1)
    gemm_done : In(num_engines)
    send_done, receive_done : In(num_links)
        A pulse for each instruction that has ended, in order.
    load_idle, store_idle, vector_idle : In(1)
    gemm_idle : In(num_engines)
    send_idle, receive_idle : In(num_links)
        High while no memory transaction or write is under way, and none will begin without another
        instruction. While `halt` is high, none will begin at all. It is low at the latest four
        cycles after an instruction has moved.
    load_failures, store_failures, vector_failures : In(Failure).array(units)
    gemm_failures : In(Failure).array(num_engines, gemm_units)
    send_failures, receive_failures : In(Failure).array(num_links, units)
        Errors of the parts of engines.
    halt : Out(1)
        High from the second cycle after the first error, of a part or of the sequencer, until the
        next start; also high from ``cancel`` until then.
    clear : Out(1)
        A pulse at each start, while all engines are idle. It shall reset the engines.
    running, done, error : Out(1)
        Outcome of the last start. After a cancel without error, none is high.
    error_code : Out(8)
    error_engine : Out(4)
    error_index : Out(32)
        Data of the first error since the last start, while `error` is high.
    dispatched : Out(1)
        Event: an instruction has entered its queue.
    waits, busy : Out(num_queues)
        Events of each of `spec.queues`: its next instruction waits for semaphores; instructions are
        under way.
    queues : Out(QueueState).array(num_queues)
        States of the queues; present only with ``num_links``.
    """

    def __init__(self, spec: SequencerSpec) -> None:
        self.spec = spec
        of_vector = {
            "vector": Out(stream.Signature(issue_layout(VECTOR))),
            "vector_done": In(1),
            "vector_idle": In(1),
            "vector_failures": In(Failure()).array(spec.vector_units),
        }
        of_links = {
            "send": Out(stream.Signature(issue_layout(LINK))).array(spec.num_links),
            "receive": Out(stream.Signature(issue_layout(LINK))).array(spec.num_links),
            "send_done": In(spec.num_links),
            "receive_done": In(spec.num_links),
            "send_idle": In(spec.num_links),
            "receive_idle": In(spec.num_links),
            "send_failures": In(Failure()).array(spec.num_links, spec.send_units),
            "receive_failures": In(Failure()).array(spec.num_links, spec.receive_units),
            "queues": Out(QueueState(spec.num_semaphores)).array(spec.num_queues),
        }
        super().__init__(
            {
                **(of_vector if spec.has_vector else {}),
                **(of_links if spec.num_links else {}),
                "start": In(1),
                "cancel": In(1),
                "entry": In(ADDRESS_BITS),
                "memory_base": In(ADDRESS_BITS),
                "memory_limit": In(ADDRESS_BITS),
                "axi": Out(AxiRead(spec.bus_bytes)),
                "load": Out(stream.Signature(issue_layout(TRANSFER))),
                "store": Out(stream.Signature(issue_layout(TRANSFER))),
                "gemm": Out(stream.Signature(issue_layout(GEMM))).array(spec.num_engines),
                "load_done": In(1),
                "store_done": In(1),
                "gemm_done": In(spec.num_engines),
                "load_idle": In(1),
                "store_idle": In(1),
                "gemm_idle": In(spec.num_engines),
                "load_failures": In(Failure()).array(spec.load_units),
                "store_failures": In(Failure()).array(spec.store_units),
                "gemm_failures": In(Failure()).array(spec.num_engines, spec.gemm_units),
                "halt": Out(1),
                "clear": Out(1),
                "running": Out(1),
                "done": Out(1),
                "error": Out(1),
                "error_code": Out(8),
                "error_engine": Out(4),
                "error_index": Out(32),
                "dispatched": Out(1),
                "waits": Out(spec.num_queues),
                "busy": Out(spec.num_queues),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        anew = ResetInserter(self.clear)

        fetcher, dispatcher = Fetcher(spec), Dispatcher(spec)
        m.submodules.fetcher = anew(fetcher)
        m.submodules.dispatcher = anew(dispatcher)
        m.submodules.reader = reader = ProgramReader(spec)
        wiring.connect(m, fetcher.o_request, reader.i)
        wiring.connect(m, reader.o, fetcher.i_response)
        wiring.connect(m, reader.axi, wiring.flipped(self.axi))
        wiring.connect(m, fetcher.o, dispatcher.i)
        m.d.comb += [
            fetcher.entry.eq(self.entry),
            fetcher.memory_base.eq(self.memory_base),
            fetcher.memory_limit.eq(self.memory_limit),
            fetcher.stop.eq(dispatcher.ended | self.halt),
            dispatcher.halt.eq(self.halt),
            self.dispatched.eq(dispatcher.dispatched),
        ]

        # END takes semaphores as an engine does, but signals none.
        semaphores = Semaphores(spec.num_queues + 1, spec.num_queues, spec.num_semaphores)
        m.submodules.semaphores = anew(semaphores)
        m.d.comb += semaphores.hold.eq(self.halt)
        outputs = [self.load, self.store, *self.gemm]
        dones = [self.load_done, self.store_done, self.gemm_done]
        idles = [self.load_idle, self.store_idle, self.gemm_idle]
        units = [self.load_failures, self.store_failures, *self.gemm_failures]
        if spec.has_vector:
            outputs.append(self.vector)
            dones.append(self.vector_done)
            idles.append(self.vector_idle)
            units.append(self.vector_failures)
        for link in range(spec.num_links):
            outputs += [self.send[link], self.receive[link]]
            dones += [self.send_done[link], self.receive_done[link]]
            idles += [self.send_idle[link], self.receive_idle[link]]
            units += [self.send_failures[link], self.receive_failures[link]]
        dones = Cat(dones)
        empty = Signal(spec.num_queues)
        for number, output in enumerate(outputs):
            group = BODIES[spec.queues[number][0]]
            queue = EngineQueue(
                group,
                spec.words_of_queue(number),
                spec.in_flight,
                spec.num_semaphores,
                8 * spec.part_bytes,
            )
            m.submodules[f"queue{number}"] = anew(queue)
            wiring.connect(m, dispatcher.o[number], queue.i)
            wiring.connect(m, queue.o, wiring.flipped(output))
            wiring.connect(m, queue.consumer, semaphores.consumers[number])
            wiring.connect(m, queue.producer, semaphores.producers[number])
            m.d.comb += [
                queue.done.eq(dones[number]),
                queue.halt.eq(self.halt),
                self.waits[number].eq(queue.waiting),
                self.busy[number].eq(queue.busy),
                empty[number].eq(queue.empty),
            ]
            if spec.num_links:
                shown = self.queues[number]
                zero = Cat(count == 0 for count in semaphores.counts)
                m.d.comb += [
                    shown.head.eq(queue.o.payload.index),
                    shown.oldest.eq(queue.producer.index),
                    shown.missing.eq(Mux(queue.waiting, queue.consumer.mask & zero, 0)),
                    shown.semaphores.eq(queue.waiting),
                    shown.busy.eq(queue.busy),
                    shown.empty.eq(queue.empty),
                    shown.offered.eq(queue.o.valid),
                ]

        failures = [
            (int(Engine.SEQUENCER), semaphores.error_valid, C(ErrorCode.SEMAPHORE_OVERFLOW, 8),
             semaphores.error_index),
            (int(Engine.SEQUENCER), dispatcher.failure.valid, dispatcher.failure.code,
             dispatcher.failure.index),
        ]  # fmt: skip
        for number, failing in enumerate(units):
            engine = spec.engine_of_queue(number)
            failures += [(engine, unit.valid, unit.code, unit.index) for unit in failing]
        first = FirstFailure([failure[0] for failure in failures])
        m.submodules.first = anew(first)
        for source, (_, valid, code, index) in zip(first.i, failures, strict=True):
            m.d.comb += [
                source.valid.eq(valid & self.running),
                source.code.eq(code),
                source.index.eq(index),
            ]
        m.d.comb += [
            self.error_code.eq(first.code),
            self.error_engine.eq(first.engine),
            self.error_index.eq(first.index),
        ]

        idle = Signal()
        at_rest = Signal()  # all conditions for the program's end hold
        quiet = Signal(range(QUIET_CYCLES + 1))
        end = semaphores.consumers[spec.num_queues]
        m.d.comb += [
            idle.eq(fetcher.idle & Cat(idles).all()),
            at_rest.eq(idle & (self.halt | (dispatcher.ended & empty.all()))),
            end.mask.eq(dispatcher.end_wait),
        ]
        with m.If(~at_rest):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != QUIET_CYCLES):
            m.d.sync += quiet.eq(quiet + 1)

        cancelled = Signal()
        m.d.comb += self.running.eq(1)
        with m.If(self.cancel):
            m.d.sync += cancelled.eq(1)
        with m.FSM():
            with m.State("REST"):
                m.d.comb += self.running.eq(0)
                m.d.sync += cancelled.eq(0)
                with m.If(self.start):
                    m.d.sync += [self.done.eq(0), self.error.eq(0)]
                    m.next = "CLEAR"
            with m.State("CLEAR"):
                m.d.comb += self.clear.eq(1)
                m.d.sync += [self.halt.eq(0), quiet.eq(0)]
                m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += fetcher.start.eq(1)
                m.next = "RUN"
            with m.State("RUN"):
                # The request is also made in the cycle of an error; `halt` rises in the next one.
                m.d.comb += end.request.eq((quiet == QUIET_CYCLES) & end.mask.any())
                with m.If(first.any | self.cancel | cancelled):
                    m.d.sync += [self.halt.eq(1), quiet.eq(0)]
                    m.next = "HALT"
                with m.Elif((quiet == QUIET_CYCLES) & (end.grant | ~end.mask.any())):
                    m.d.sync += self.done.eq(1)
                    m.next = "REST"
            with m.State("HALT"), m.If(quiet == QUIET_CYCLES):
                m.d.sync += self.error.eq(first.any)
                m.next = "REST"
        return m
