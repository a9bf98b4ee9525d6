"""Gateware that reads the operands of VECTOR instructions from the scratchpad for the lanes."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, ErrorCode
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR, Format
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.arith.mx import ElementDequantiser
from fpgapipe.hw.rtl.dma.scratchpad import READ_LATENCY, ReadPort
from fpgapipe.hw.rtl.lib.layouts import layout_of
from fpgapipe.hw.rtl.lib.queue import WordFifo
from fpgapipe.hw.rtl.vector.vector_lanes import beat_layout, coefficient_layout
from fpgapipe.hw.rtl.vector.vector_positions import FLAGS, SOURCES, VectorPositions

DEPTH = 16
"""Number of words from the scratchpad that can wait, and of reads that can be under way.

A word frees its place ``READ_LATENCY + 4`` cycles after its read. With at least as many places,
reads follow each other without a pause.
"""

assert DEPTH >= READ_LATENCY + 4


def tag_layout(spec):
    """Layout of the data kept of a vector, or of a coefficient, while its bytes are being read.

    Parameters
    ----------
    spec : VectorSpec
    """
    return data.StructLayout(
        {
            "is_coefficient": 1,
            "number": 2,
            **{f"{name}_reads": 1 for name in SOURCES},
            **{f"{name}_mask": LANES for name in SOURCES},
            **{f"{name}_half": 1 for name in SOURCES if spec.mx},  # second half of a block
            **FLAGS,
        }
    )


def reads_parts(spec: CoreSpec) -> bool:
    """Whether the engine reads as much as a port of the scratchpad gives in a cycle.

    Otherwise it reads 64 bytes at a time. Blocks of MXINT8 are always read as a whole.
    """
    return spec.scratchpad.parts > 1 and not (spec.vector and spec.vector.mx)


class VectorReader(wiring.Component):
    """Reads vectors and coefficients from the scratchpad, and makes beats for the lanes.

    Coefficients are read at the port of X, before the first vector and before each vector at which
    the outermost loop steps. The throughput is one beat per cycle, for vectors and coefficients
    alike, with full backpressure.

    Members
    -------
    take : In(1)
        A pulse for a new instruction, after the last beat of the one before has left.
    index : In(32)
    body : In(layout_of(VECTOR))
        The instruction's number and fields, while `take` is high.
    read_x, read_y : Out(ReadPort(address_bits))
        Read ports of the scratchpad.
    k_write : Out(coefficient_layout(spec.vector))
        Beats of coefficients, which are always accepted.
    uses : In(2)
        Banks of coefficients that beats in the lanes need: nothing is written there.
    o : Out(stream.Signature(beat_layout(lanes)))
        Beats for the lanes.
    halt : In(1)
        While this is high, no vector goes on, and no read begins except those that already wait at
        a port.
    error_valid, error_code, error_index : Out(1), Out(8), Out(32)
        A pulse for an error, after which nothing is read until reset. SCRATCHPAD_RANGE: a vector
        with a valid lane, or a coefficient, begins outside the scratchpad. BAD_FIELD: this engine
        does not have the format of a source or of the target or random numbers, or blocks are
        broadcast.
    fed : Out(1)
        Event: the last beat of a vector leaves.
    wait_x, wait_y : Out(1)
        Events: the lanes wait for a word of this source.
    """

    latency_cycles = VectorPositions.latency_cycles + 1 + READ_LATENCY + 2 + 1
    """Cycles from `take` to the first beat, without coefficients."""

    def __init__(self, spec: CoreSpec) -> None:
        assert spec.vector is not None
        self.spec, self._vector = spec, spec.vector
        self._is_narrow = reads_parts(spec)
        bits = spec.scratchpad.address_bits
        super().__init__(
            {
                "take": In(1),
                "index": In(32),
                "body": In(layout_of(VECTOR)),
                "read_x": Out(ReadPort(bits)),
                "read_y": Out(ReadPort(bits)),
                "k_write": Out(coefficient_layout(self._vector)),
                "uses": In(2),
                "o": Out(stream.Signature(beat_layout(self._vector))),
                "halt": In(1),
                "error_valid": Out(1),
                "error_code": Out(8, init=ErrorCode.SCRATCHPAD_RANGE),
                "error_index": Out(32),
                "fed": Out(1),
                "wait_x": Out(1),
                "wait_y": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        m.submodules.positions = positions = VectorPositions(self.spec)
        m.submodules.tags = tags = WordFifo(tag_layout(self._vector), DEPTH)
        size = self.spec.scratchpad.port_bytes if self._is_narrow else WORD_BYTES
        words = {name: WordFifo(8 * size, DEPTH) for name in SOURCES}
        m.d.comb += [positions.take.eq(self.take), positions.body.eq(self.body)]
        for name, fifo in words.items():
            m.submodules[f"words_{name}"] = fifo
        self._request(m, positions.o, tags.i, words)
        self._assemble(m, tags.o, {name: fifo.o for name, fifo in words.items()})
        return m

    def _request(self, m, positions, tags, words):
        """Request the words of coefficients and vectors, if there is a place for each word.

        With a narrow port, these are the parts of a word that have elements: half of them have
        those of a vector in BF16, the first one a broadcast element.
        """
        number = Signal(range(self.spec.scratchpad.parts))  # of the part
        body, position = self.body, positions.payload
        bits = self.spec.scratchpad.address_bits
        failed = Signal()
        done = Signal()  # the last part is requested
        go = Signal()
        goes_on = Signal()  # the position is done and the next one follows
        is_coefficient = Signal()
        k_number = Signal(3, reset_less=True)  # number of coefficients
        k_done = Signal(3, reset_less=True)
        k_pitch = Signal(32, reset_less=True)
        k_step = Signal(32, reset_less=True)
        k_first = Signal(32, reset_less=True)  # address after the next step of the outermost loop
        k_address = Signal(32, reset_less=True)
        m.d.comb += [
            is_coefficient.eq(position.renews & (k_done != k_number)),
            goes_on.eq(go & ~is_coefficient & done),
        ]
        with m.If(self.take):
            fields = body["coefficients"]
            m.d.sync += [
                k_number.eq(fields["number"]),
                k_pitch.eq(fields["pitch"]),
                k_step.eq(fields["step"]),
                k_address.eq(fields["base"]),
                k_first.eq(fields["base"] + fields["step"]),
                k_done.eq(0),
                self.error_index.eq(self.index),
            ]
        with m.Elif(go & is_coefficient & done):
            m.d.sync += [k_address.eq(k_address + k_pitch), k_done.eq(k_done + 1)]
        with m.Elif(goes_on & position.renews):
            m.d.sync += [k_address.eq(k_first), k_first.eq(k_first + k_step), k_done.eq(0)]

        may = [~self.halt, ~failed, tags.ready]
        outside, tag = [], tags.payload
        finals = []  # for each source, whether no further part is to be read
        for name, port in (("x", self.read_x), ("y", self.read_y)):
            reads = Signal(name=f"{name}_reads")
            issue = Signal(name=f"{name}_issue")
            places = Signal(range(DEPTH + 1), init=DEPTH, name=f"{name}_places")
            address = Signal(bits, name=f"{name}_read_address", reset_less=True)
            is_outside = position[f"{name}_outside"]
            target = position[f"{name}_address"]
            if name == "x":
                is_outside = Mux(is_coefficient, k_address[bits:].any(), is_outside)
                target = Mux(is_coefficient, k_address[:bits], target)
                m.d.comb += reads.eq(is_coefficient | position.x_used)
            else:
                is_outside = is_outside & ~is_coefficient
                m.d.comb += reads.eq(~is_coefficient & position.y_used)
            outside.append(is_outside)
            final: Value = Const(1)
            if self._is_narrow:
                final, part_reads = self._parts(m, name, number, is_coefficient)
                reads, wanted = Signal(name=f"{name}_part_reads"), reads
                m.d.comb += reads.eq(wanted & part_reads)
                final = final | ~wanted
                step = self.spec.scratchpad.port_bytes.bit_length() - 1
                target = (target + (number << step))[:bits]
                m.d.comb += tag[f"{name}_reads"].eq(wanted)
            else:
                m.d.comb += tag[f"{name}_reads"].eq(reads)
            finals.append(final)
            word = words[name]
            may.append(~reads | ((places != 0) & (port.ready | ~port.valid)))
            m.d.comb += [
                issue.eq(go & reads),
                port.address.eq(address),
                # There is a place for each word that comes.
                word.i.payload.eq(port.data[: len(word.i.payload)]),
                word.i.valid.eq(port.data_valid),
                tag[f"{name}_mask"].eq(position[f"{name}_mask"]),
            ]
            if self._vector.mx:
                m.d.comb += tag[f"{name}_half"].eq(position[f"{name}_address"][0])
            m.d.sync += places.eq(places - issue + (word.o.valid & word.o.ready))
            with m.If(issue):
                m.d.sync += [port.valid.eq(1), address.eq(Cat(Const(0, 1), target[1:]))]
            with m.Elif(port.ready):
                m.d.sync += port.valid.eq(0)

        is_outside, may_go = Signal(), Signal()
        if self._is_narrow:
            with m.If(self.take):
                m.d.sync += number.eq(0)
            with m.Elif(go):
                m.d.sync += number.eq(Mux(done, 0, number + 1))
        m.d.comb += [
            is_outside.eq(Cat(outside).any()),
            may_go.eq(Cat(may).all()),
            go.eq(positions.valid & may_go & ~is_outside),
            done.eq(Cat(finals).all()),
            positions.ready.eq(may_go & ~is_outside & ~is_coefficient & done),
            tags.valid.eq(go & (number == 0)),
            tag.is_coefficient.eq(is_coefficient),
            tag.number.eq(k_done),
            *(tag[name].eq(position[name]) for name in FLAGS),
        ]
        m.d.sync += self.error_valid.eq(0)
        with m.If(positions.valid & is_outside & ~self.halt & ~failed):
            m.d.sync += [failed.eq(1), self.error_valid.eq(1)]
        with m.If(self.take & self._is_refused()):
            m.d.sync += [
                failed.eq(1),
                self.error_valid.eq(1),
                self.error_code.eq(ErrorCode.BAD_FIELD),
            ]

    def _parts(self, m, name, number, is_coefficient):
        """Return whether a part is the last one of a source, and whether it is one of them."""
        parts = self.spec.scratchpad.parts
        source = self.body["x" if name == "x" else "source_y"]
        most = Signal(range(parts), name=f"{name}_parts", reset_less=True)
        with m.If(self.take):
            fp32 = source["format"] == Format.FP32
            m.d.sync += most.eq(Mux(source["broadcast"], 0, Mux(fp32, parts - 1, parts // 2 - 1)))
        limit = Mux(is_coefficient, parts - 1, most)
        return number >= limit, number <= limit

    def _is_refused(self):
        """Whether this engine lacks what the instruction needs, or blocks are broadcast."""

        def is_wrong(part, broadcast):
            if not self._vector.mx:
                return part["format"][1]
            return part["format"][1] & (part["format"][0] | broadcast)

        draws = Const(0) if self._vector.random else self.body["is_random"]
        x, y, target = (self.body[name] for name in ("x", "source_y", "target"))
        return (
            draws
            | is_wrong(x, x["broadcast"])
            | (is_wrong(y, y["broadcast"]) & self.body["uses_y"])
            | is_wrong(target, 0)
        )

    def _assemble(self, m, tags, words):
        """Make beats of the words that were read, in FP32, with zeros in invalid lanes."""
        spec = self._vector
        tag = tags.payload
        beats = LANES // spec.lanes
        beat = Signal(range(beats))
        held = Signal(beat_layout(spec), reset_less=True)  # the beat that is to leave
        has_held = Signal()
        lacks, loads, writes, leaves, goes, is_last_beat = (
            Signal(bits, name=name)
            for name, bits in (
                *(("lacks", 2), ("loads", 1), ("writes", 1), ("leaves", 1)),
                *(("goes", 1), ("is_last_beat", 1)),
            )
        )
        # While nothing is held, the registers may take anything; this keeps long logic off their
        # many enables.
        is_free = Signal()
        in_use = Mux(tag.bank, self.uses[1], self.uses[0])
        m.d.comb += [
            lacks.eq(Cat(tag[f"{name}_reads"] & ~words[name].valid for name in SOURCES)),
            is_last_beat.eq(beat == beats - 1),
            self.o.valid.eq(has_held),
            leaves.eq(has_held & self.o.ready),
            is_free.eq(~has_held | self.o.ready),
            loads.eq(tags.valid & ~tag.is_coefficient & ~lacks.any() & is_free),
            # Only the last of the beats before may still be here, and it needs the other bank.
            writes.eq(tags.valid & tag.is_coefficient & ~lacks[0] & ~in_use),
            goes.eq((loads | writes) & is_last_beat),
            tags.ready.eq(goes),
            *(
                words[name].ready.eq(
                    self._ends_part(m, name, beat, tag.is_coefficient, loads | writes, goes)
                    & tag[f"{name}_reads"]
                )
                for name in SOURCES
            ),
            self.fed.eq(leaves & (held.beat == beats - 1)),
            self.wait_x.eq(tags.valid & lacks[0]),
            self.wait_y.eq(tags.valid & lacks[1] & ~lacks[0]),
            self.k_write.valid.eq(writes),
            self.k_write.bank.eq(tag.bank),
            self.k_write.number.eq(tag.number),
            self.k_write.beat.eq(beat),
            self.k_write.data.eq(_part(words["x"].payload, beat, 32 * spec.lanes)),
        ]
        with m.If(self.take):
            m.d.sync += beat.eq(0)
        with m.Elif(loads | writes):
            m.d.sync += beat.eq(Mux(is_last_beat, 0, beat + 1))
        with m.If(is_free):
            m.d.sync += has_held.eq(loads)
        flags = [name for name in held.shape().members if name not in SOURCES]
        m.d.comb += [self.o.payload[name].eq(held[name]) for name in flags]
        with m.If(is_free):
            m.d.sync += [
                held.beat.eq(beat),
                held.there.eq(_part(tag.x_mask, beat, spec.lanes)),
                *(held[name].eq(tag[name]) for name in ("counter", "bank", "first", "last", "sum")),
            ]
        for name, field in (("x", "x"), ("y", "source_y")):
            word = words[name].payload
            elements = self._elements(m, name, field, word, beat)
            there = _part(tag[f"{name}_mask"], beat, spec.lanes)
            numbers = [held[name][lane] for lane in range(spec.lanes)]
            if spec.mx:
                part = Cat(beat, tag[f"{name}_half"])
                there, upper = self._blocks(m, name, field, word, part, there, loads)
                numbers = [number | upper[lane] for lane, number in enumerate(numbers)]
            m.d.comb += [self.o.payload[name][k].eq(number) for k, number in enumerate(numbers)]
            with m.If(is_free):
                m.d.sync += [
                    held[name][lane].eq(Mux(there[lane], elements[lane], 0))
                    for lane in range(spec.lanes)
                ]

    def _ends_part(self, m, name, beat, is_coefficient, moves, goes):
        """Whether a beat leaves that is the last one of the word, or part, at the front."""
        if not self._is_narrow:
            return goes
        source = self.body["x" if name == "x" else "source_y"]
        fp32 = Signal(name=f"{name}_exact", reset_less=True)
        single = Signal(name=f"{name}_single", reset_less=True)
        with m.If(self.take):
            m.d.sync += [
                fp32.eq(source["format"] == Format.FP32),
                single.eq(source["broadcast"]),
            ]
        lanes, size = self._vector.lanes, self.spec.scratchpad.port_bytes
        exact, short = (
            beat[: (size // bytes_of // lanes - 1).bit_length()].all() for bytes_of in (4, 2)
        )
        ends = Mux(is_coefficient | (fp32 & ~single), exact, short)
        return Mux(single & ~is_coefficient, goes, moves & ends)

    def _blocks(self, m, name, field, word, part, there, loads):
        """Dequantise blocks in two steps, the second of which follows the register of the beat.

        Returns
        -------
        Value
            Valid lanes, or none if the source has blocks.
        list of Value
            Numbers of the block's elements, or zeros if the source has no blocks.
        """
        lanes = self._vector.lanes
        is_block = Signal(name=f"{name}_is_block", reset_less=True)
        code = Signal(8, name=f"{name}_code", reset_less=True)
        with m.If(self.take):
            m.d.sync += is_block.eq(self.body[field]["format"] == Format.MXINT8)
        with m.If(loads & is_block):
            m.d.sync += code.eq(word[8 * MX_BLOCK :][:8])
        elements = Signal(8 * lanes, name=f"{name}_elements")
        m.d.comb += elements.eq(_part(word[: 8 * MX_BLOCK], part, 8 * lanes))
        numbers = []
        for lane in range(lanes):
            dequantiser = ElementDequantiser()
            m.submodules[f"{name}_dequantiser{lane}"] = dequantiser
            m.d.comb += [
                dequantiser.advance.eq(loads),
                dequantiser.i.eq(elements.word_select(lane, 8)),
                dequantiser.there.eq(there[lane] & is_block),
                dequantiser.code.eq(code),
            ]
            numbers.append(Cat(Const(0, 16), dequantiser.o))
        return there & ~is_block.replicate(lanes), numbers

    def _elements(self, m, name, field, word, beat):
        """Elements of a beat, including those of invalid lanes."""
        lanes = self._vector.lanes
        fp32 = Signal(name=f"{name}_fp32", reset_less=True)
        broadcast = Signal(name=f"{name}_broadcast", reset_less=True)
        with m.If(self.take):
            m.d.sync += [
                fp32.eq(self.body[field]["format"] == Format.FP32),
                broadcast.eq(self.body[field]["broadcast"]),
            ]
        exact = _part(word, beat, 32 * lanes)
        short = _part(word[: min(16 * LANES, len(word))], beat, 16 * lanes)
        part = Signal(32 * lanes, name=f"{name}_part")
        only = Signal(32, name=f"{name}_only")
        zeros = Const(0, 16)
        shorts = [Cat(zeros, short.word_select(lane, 16)) for lane in range(lanes)]
        m.d.comb += [
            only.eq(Mux(fp32, word[:32], Cat(zeros, word[:16]))),
            part.eq(Mux(broadcast, only.replicate(lanes), Mux(fp32, exact, Cat(shorts)))),
        ]
        return [part.word_select(lane, 32) for lane in range(lanes)]


def _part(word, beat, bits):
    """Select a beat's part of a word, or of a part of a word."""
    number = (len(word) // bits - 1).bit_length()
    return word.word_select(beat[:number], bits) if len(word) > bits else word
