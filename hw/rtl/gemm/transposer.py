"""Gateware of the square transposer, `hls_models.model.transposer.TransposerSpec`.

Lanes are kept by two, lane ``2 * g`` and the next, and words by two, word ``2 * v`` and the next:
of an even word, pair `g` lies at `v` in memory ``(g + v) % (size / 2)`` of the even words, and so
do those of odd words in memories of their own. A word has a pair in each memory of its kind, a
column a lane in each of both. A word is turned by `v` pairs to be written. Column ``2 * g`` or the
next, whose elements of words ``2 * v`` and ``2 * v + 1`` lie in the memories
``(g + v) % (size / 2)``, is turned back by `g` when it is read, and of each pair one lane is taken:
pairs spare a stage of the first turn. The memories are block RAM, of which they fill little, since
LUTs run out first.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.model.transposer import TransposerSpec
from fpgapipe.hw.rtl.lib.rotator import rotated


def word_layout(spec: TransposerSpec):
    """Layout of a word: of every plane the bits of all lanes, since whole planes move together."""
    return data.StructLayout(
        {f"plane{k}": data.ArrayLayout(bits, spec.size) for k, bits in enumerate(spec.planes)}
    )


def input_layout(spec: TransposerSpec):
    """Layout of a word that comes."""
    return data.StructLayout(
        {
            "word": word_layout(spec),
            "side": spec.side_bits,
            "last": 1,
            "transposed": 1,
            "emit": spec.size.bit_length(),
        }
    )


def output_layout(spec: TransposerSpec):
    """Layout of a word that leaves."""
    return data.StructLayout(
        {
            "word": word_layout(spec),
            "side": spec.side_bits,
            "last": 1,
        }
    )


def _step(word, amount, step_bits):
    """A stage of a turn; `amount` has one bit, or none if there is no such stage."""
    return Mux(amount, word.rotate_left(step_bits), word) if len(amount) else word


class Transposer(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.model.transposer.TransposerSpec`.

    Words marked ``transposed`` form squares, of which columns leave: ``emit`` of them, as the last
    word of the square says. Other words leave as they came. All leave in order.

    Throughput a word a cycle: the next square is taken while one leaves, so squares of which
    `size` columns leave follow each other without a pause.
    Latency: a word that is not transposed leaves 1 cycle after it came, and waits until all squares
    before it have left; the first column leaves `latency_cycles` after the last word of its
    square. Full backpressure; ``o.ready`` reaches ``i.ready`` through a gate, so one of the two
    neighbours has to have registers there.

    Members
    -------
    i : In(stream.Signature(input_layout(spec)))
        A word, what goes along, whether it is the last of something, whether it is part of a
        square, and the columns that leave. A square must be whole before another word follows.
    o : Out(stream.Signature(output_layout(spec)))
        The words and columns. Side data and ``last`` of a square are those of its last word;
        ``last`` goes with the last column.
    """

    latency_cycles = 5

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
        size = spec.size
        index_bits = (size - 1).bit_length()
        i, o = self.i, self.o
        planes = [(f"plane{k}", bits) for k, bits in enumerate(spec.planes)]

        # Two squares: each is empty, being filled, or full until its last column has been read.
        full = Signal(2)
        fill, drain = Signal(), Signal()  # the square to fill, the square to read
        word = Signal(index_bits)  # to come next
        column = Signal(index_bits)  # to be read next
        emit = [Signal(spec.size.bit_length(), name=f"emit{k}", reset_less=True) for k in range(2)]
        side = [Signal(spec.side_bits, name=f"side{k}", reset_less=True) for k in range(2)]
        last = [Signal(name=f"last{k}", reset_less=True) for k in range(2)]

        move = Signal()  # the output takes something new
        take = Signal()
        store = Signal()
        passes = Signal()
        read = Signal()
        last_column = Signal()
        frees = Signal()
        reading = Signal(2)  # a column has left the memories, has been turned half way
        settling = Signal()  # the last word of a square is on its way into the memories
        m.d.comb += [
            move.eq(o.ready | ~o.valid),
            # The square that is read last is free at once: what is written comes a cycle later.
            i.ready.eq(
                Mux(
                    i.payload.transposed,
                    ~full.bit_select(fill, 1) | (frees & (fill == drain)),
                    move & ~full.any() & ~reading.any(),
                )
            ),
            take.eq(i.valid & i.ready),
            store.eq(take & i.payload.transposed),
            passes.eq(take & ~i.payload.transposed),
            read.eq(move & full.bit_select(drain, 1) & ~settling),
            last_column.eq(column == Mux(drain, emit[1], emit[0]) - 1),
            frees.eq(read & last_column),
        ]
        m.d.sync += settling.eq(store & word.all() & (~full.any() | frees))
        with m.If(frees):
            m.d.sync += [full.bit_select(drain, 1).eq(0), drain.eq(~drain), column.eq(0)]
        with m.Elif(read):
            m.d.sync += column.eq(column + 1)
        with m.If(store):
            m.d.sync += word.eq(word + 1)
            with m.If(word.all()):
                m.d.sync += [full.bit_select(fill, 1).eq(1), fill.eq(~fill)]
                for k in range(2):
                    with m.If(fill == k):
                        m.d.sync += [
                            emit[k].eq(i.payload.emit),
                            side[k].eq(i.payload.side),
                            last[k].eq(i.payload.last),
                        ]

        # Into the memories: turned in the first cycle, written in the second.
        write_row = Signal(index_bits, reset_less=True)
        write = Signal(2)  # to the memories of even words, to those of odd words
        m.d.sync += write.eq(Cat(store & ~word[0], store & word[0]))
        with m.If(store):
            m.d.sync += write_row.eq(Cat(word[1:], fill))
        writes = []
        for name, bits in planes:
            plane = i.payload.word[name].as_value()
            turn = rotated(m, plane, word[1:], 2 * bits, f"in_{name}_turn")
            writes.append(Signal(len(plane), name=f"write_{name}", reset_less=True))
            with m.If(store):
                m.d.sync += writes[-1].eq(turn)

        # Out of them: an address for each, as wide as the memory, then turned back.
        reads: list[list[Signal]] = [[], []]  # of even words, of odd words
        for pair in range(size // 2):
            row = Signal(index_bits - 1, name=f"row{pair}")
            m.d.comb += row.eq(pair - column[1:])
            parts = [
                plane.word_select(pair, 2 * bits)
                for plane, bits in zip(writes, spec.planes, strict=True)
            ]
            for odd in range(2):
                m.submodules[f"memory{odd}_{pair}"] = memory = Memory(
                    shape=2 * spec.lane_bits, depth=size, init=[], attrs={"ram_style": "block"}
                )
                port = memory.write_port()
                m.d.comb += [port.addr.eq(write_row), port.data.eq(Cat(parts))]
                m.d.comb += port.en.eq(write[odd])
                port = memory.read_port()
                m.d.comb += [port.addr.eq(Cat(row, drain)), port.en.eq(read)]
                reads[odd].append(port.data)
        second = Signal(reset_less=True)  # of each pair
        back = Signal(index_bits - 1, reset_less=True)
        read_side = Signal(spec.side_bits, reset_less=True)
        read_last = Signal(reset_less=True)
        with m.If(read):
            m.d.sync += [
                second.eq(column[0]),
                back.eq(-column[1:]),
                read_side.eq(Mux(drain, side[1], side[0])),
                read_last.eq(Mux(drain, last[1], last[0]) & last_column),
            ]
        # The lane of each pair and the turn's first stage in a cycle, the others in the next.
        back_later = Signal(max(index_bits - 2, 0), reset_less=True)
        later_side = Signal.like(read_side, name="later_side")
        later_last = Signal.like(read_last, name="later_last")
        with m.If(move & reading[0]):
            m.d.sync += back_later.eq(back[1:])
            m.d.sync += [later_side.eq(read_side), later_last.eq(read_last)]
        words = Signal(word_layout(spec), reset_less=True)
        turned_back = Signal(word_layout(spec))
        begin = 0
        for name, bits in planes:
            lanes = []
            for pair in range(size // 2):
                for odd in range(2):
                    both = reads[odd][pair][begin : begin + 2 * bits]
                    lanes.append(Mux(second, both[bits:], both[:bits]))
            begin += 2 * bits
            column_lanes = Signal(size * bits, name=f"column_{name}")
            half_rotated = Signal(size * bits, name=f"half_{name}", reset_less=True)
            m.d.comb += column_lanes.eq(Cat(lanes))
            with m.If(move & reading[0]):
                m.d.sync += half_rotated.eq(_step(column_lanes, back[:1], 2 * bits))
            turn = rotated(m, half_rotated, back_later[:-1], 4 * bits, f"out_{name}_turn")
            turn = _step(turn, back_later[-1:], bits * size // 2)
            m.d.comb += turned_back[name].as_value().eq(turn)
        side_out = Signal(spec.side_bits, reset_less=True)
        last_out = Signal(reset_less=True)
        m.d.comb += [
            o.payload.word.eq(words),
            o.payload.side.eq(side_out),
            o.payload.last.eq(last_out),
        ]
        with m.If(move):
            m.d.sync += [o.valid.eq(reading[1] | passes), reading.eq(Cat(read, reading))]
            with m.If(reading[1]):
                m.d.sync += [words.eq(turned_back)]
                m.d.sync += [side_out.eq(later_side), last_out.eq(later_last)]
            with m.Elif(passes):
                m.d.sync += words.eq(i.payload.word)
                m.d.sync += [side_out.eq(i.payload.side), last_out.eq(i.payload.last)]
        return m
