"""Gateware of a transposer whose words come in several parts, `TransposerSpec` with `lanes`.

There is a memory for each lane of a part. Lane `l` of word `w` is kept in memory
``(l + w) % lanes``, at a row that its word and its part give. So neither the lanes of a part nor
the same lane of as many consecutive words share a memory, and either can be accessed in a cycle.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.rtl.gemm.transposer import input_layout, output_layout, word_layout
from fpgapipe.hw.rtl.lib.rotator import rotated


class NarrowTransposer(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.model.transposer.TransposerSpec`, part by part.

    It does what :class:`~fpgapipe.hw.rtl.gemm.transposer.Transposer` does with words that come, and
    leave, in ``size / lanes`` parts, those of the lowest lanes first.

    The throughput is one part per cycle. The next square is accepted while one leaves. A part that
    is not transposed has a latency of 1 cycle, but it waits until all squares before it have left.
    The first part of a square's first column leaves `latency_cycles` after its last part has come.
    There is full backpressure; ``o.ready`` reaches ``i.ready`` through a gate.

    Members
    -------
    i : In(stream.Signature(input_layout(spec)))
        A part of a word, with the data of its word.
    o : Out(stream.Signature(output_layout(spec)))
        Parts of words and columns. The columns of a square have the side data of its last word, and
        all parts of the last column have that word's ``last``.
    """

    latency_cycles = 3

    def __init__(self, spec: TransposerSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "i": In(stream.Signature(input_layout(spec))),
                "o": Out(stream.Signature(output_layout(spec))),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        spec = self.spec
        lanes, bits = spec.width, spec.lane_bits
        index_bits = (spec.size - 1).bit_length()
        lane_bits = (lanes - 1).bit_length()
        part_bits = index_bits - lane_bits
        i, o = self.i, self.o

        # Two squares: each is empty, being filled, or full until its last column has been read.
        full = Signal(2)
        fill, drain = Signal(), Signal()  # the square to fill, the square to read
        part, word = Signal(part_bits), Signal(index_bits)  # numbers of what comes next
        read_part, column = Signal(part_bits), Signal(index_bits)  # numbers of what is read next
        emit = [Signal(spec.size.bit_length(), name=f"emit{k}", reset_less=True) for k in range(2)]
        side = [Signal(spec.side_bits, name=f"side{k}", reset_less=True) for k in range(2)]
        last = [Signal(name=f"last{k}", reset_less=True) for k in range(2)]

        move = Signal()  # the output takes something new
        take, store, passes, read, last_column, frees, completes = (
            Signal(name=name)
            for name in (*("take", "store", "passes", "read", "last_column", "frees", "completes"),)
        )
        reading = Signal()  # a part of a column has left the memories
        m.d.comb += [
            move.eq(o.ready | ~o.valid),
            # The square that is read last is free at once: what is written comes a cycle later.
            i.ready.eq(
                Mux(
                    i.payload.transposed,
                    ~full.bit_select(fill, 1) | (frees & (fill == drain)),
                    move & ~full.any() & ~reading,
                )
            ),
            take.eq(i.valid & i.ready),
            store.eq(take & i.payload.transposed),
            passes.eq(take & ~i.payload.transposed),
            completes.eq(store & part.all() & word.all()),
            # The last word of a square may still be on its way into the memories, but it is in no
            # column's first part.
            read.eq(move & full.bit_select(drain, 1)),
            last_column.eq(column == Mux(drain, emit[1], emit[0]) - 1),
            frees.eq(read & last_column & read_part.all()),
        ]
        with m.If(frees):
            m.d.sync += [full.bit_select(drain, 1).eq(0), drain.eq(~drain)]
            m.d.sync += Cat(read_part, column).eq(0)
        with m.Elif(read):
            m.d.sync += Cat(read_part, column).eq(Cat(read_part, column) + 1)
        with m.If(store):
            m.d.sync += Cat(part, word).eq(Cat(part, word) + 1)
        with m.If(completes):
            m.d.sync += [full.bit_select(fill, 1).eq(1), fill.eq(~fill)]
            for k in range(2):
                with m.If(fill == k):
                    m.d.sync += [
                        emit[k].eq(i.payload.emit),
                        side[k].eq(i.payload.side),
                        last[k].eq(i.payload.last),
                    ]

        # A part is rotated in the first cycle and written to the memories in the second.
        arrived = Cat(
            Cat(i.payload.word[f"plane{k}"][lane] for k in range(len(spec.planes)))
            for lane in range(lanes)
        )
        write = Signal()
        write_row = Signal(index_bits + part_bits + 1, reset_less=True)
        written = Signal(lanes * bits, reset_less=True)
        m.d.sync += write.eq(store)
        with m.If(store):
            m.d.sync += [
                write_row.eq(Cat(part, word, fill)),
                written.eq(rotated(m, arrived, word[:lane_bits], bits, "in_turn")),
            ]

        # A column is read with an address for each memory, and is then rotated back.
        parts = []
        for number in range(lanes):
            m.submodules[f"memory{number}"] = memory = Memory(
                shape=bits,
                depth=2 << (index_bits + part_bits),
                init=[],
                attrs={"ram_style": "block"},
            )
            port = memory.write_port()
            m.d.comb += [
                port.addr.eq(write_row),
                port.data.eq(written.word_select(number, bits)),
                port.en.eq(write),
            ]
            port = memory.read_port()
            lane = Signal(lane_bits, name=f"word{number}")
            m.d.comb += [
                lane.eq(number - column[:lane_bits]),
                port.addr.eq(Cat(column[lane_bits:], lane, read_part, drain)),
                port.en.eq(read),
            ]
            parts.append(port.data)
        back = Signal(lane_bits, reset_less=True)
        read_side = Signal(spec.side_bits, reset_less=True)
        read_last = Signal(reset_less=True)
        with m.If(read):
            m.d.sync += [
                back.eq(-column[:lane_bits]),
                read_side.eq(Mux(drain, side[1], side[0])),
                read_last.eq(Mux(drain, last[1], last[0]) & last_column),
            ]
        turned = rotated(m, Cat(parts), back, bits, "out_turn")
        shown = Signal(word_layout(spec))
        begin = 0
        for k, width in enumerate(spec.planes):
            for lane in range(lanes):
                at = lane * bits + begin
                m.d.comb += shown[f"plane{k}"][lane].eq(turned[at : at + width])
            begin += width
        leaving = Signal(output_layout(spec), reset_less=True)
        m.d.comb += o.payload.eq(leaving)
        with m.If(move):
            m.d.sync += [o.valid.eq(reading | passes), reading.eq(read)]
            with m.If(reading):
                m.d.sync += [
                    leaving.word.eq(shown),
                    leaving.side.eq(read_side),
                    leaving.last.eq(read_last),
                ]
            with m.Elif(passes):
                m.d.sync += [
                    leaving.word.eq(i.payload.word),
                    leaving.side.eq(i.payload.side),
                    leaving.last.eq(i.payload.last),
                ]
        return m
