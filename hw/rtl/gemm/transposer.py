"""Gateware of the square transposer, `hls_models.model.transposer.TransposerSpec`.

The transposer has ``size / 2`` memories for the even words of a square and as many for the odd
words. A memory keeps pairs of lanes: lane ``2 * g`` and the next one are pair `g`. Pair `g` of word
``2 * v`` or ``2 * v + 1`` lies at address `v` of memory ``(g + v) % (size / 2)``.

So a word has one pair in each memory of its kind, and must come rotated by `v` pairs: the
scratchpad, which rotates all words that it reads, does this, too. A column has one lane in each
memory of both kinds. When column ``2 * g`` or the next one is read, every memory gives a pair, one
lane of each pair is selected, and the lanes are rotated back by `g`. The last stages of that are
left to the component behind the quantiser, where a lane has half as many bits. Memories of pairs
instead of single lanes save a stage of that rotation. The memories are block RAM and are mostly
empty, because LUTs run out first.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.model.transposer import TransposerSpec

_TURN_STAGES = 2
"""Stages of the rotation of a column that the transposer has: steps of two and of four lanes."""

TURN_LANES = 2 << _TURN_STAGES
"""Lanes of a step of the rotation that is left."""


def word_layout(spec: TransposerSpec):
    """Layout of the lanes that move in a cycle, plane by plane: whole planes move together."""
    return data.StructLayout(
        {f"plane{k}": data.ArrayLayout(bits, spec.width) for k, bits in enumerate(spec.planes)}
    )


def input_layout(spec: TransposerSpec):
    """Layout of an input word and of the data that comes with it."""
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
    """Layout of an output word and of the data that leaves with it.

    The word is still to be rotated to the left by `turn` steps of `TURN_LANES` lanes.
    """
    turn_bits = 0 if spec.lanes else max(0, (spec.size // TURN_LANES).bit_length() - 1)
    return data.StructLayout(
        {"word": word_layout(spec), "side": spec.side_bits, "last": 1, "turn": turn_bits}
    )


def _step(word, amount, step_bits):
    """One stage of a rotation; `amount` has one bit, or none if there is no such stage."""
    return Mux(amount, word.rotate_left(step_bits), word) if len(amount) else word


class Transposer(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.model.transposer.TransposerSpec`.

    Words marked ``transposed`` form squares of `size` words. The first columns of a square leave;
    ``emit`` of its last word says how many. Other words leave unchanged. The order is kept.

    The throughput is one word per cycle. The next square is accepted while one leaves, so squares
    of which all `size` columns leave follow each other without a pause. A word that is not
    transposed has a latency of 1 cycle, but it waits until all squares before it have left. The
    first column of a square leaves `latency_cycles` after the square's last word has come. There
    is full backpressure; ``o.ready`` reaches ``i.ready`` through a gate, so one of the two
    neighbours must have registers there.

    Members
    -------
    i : In(stream.Signature(input_layout(spec)))
        A word, its side data, a flag for the last word of an operand, a flag for a word of a
        square, and the number of columns that leave. All words of a square must come before any
        other word. Word `w` of a square comes rotated to the left by ``w // 2`` pairs of lanes.
    o : Out(stream.Signature(output_layout(spec)))
        Words and columns, and by how much they are still to be rotated. The columns of a square
        have the side data of its last word, and the last column has that word's ``last``.
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
        word = Signal(index_bits)  # number of the word that comes next
        column = Signal(index_bits)  # number of the column that is read next
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
        reading = Signal(2)  # a column has left the memories; it has been rotated half way
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

        # A word comes in the first cycle and is written to the memories in the second.
        write_row = Signal(index_bits, reset_less=True)
        write = Signal(2)  # to the memories of even words, to those of odd words
        m.d.sync += write.eq(Cat(store & ~word[0], store & word[0]))
        with m.If(store):
            m.d.sync += write_row.eq(Cat(word[1:], fill))
        writes = []
        for name, bits in planes:
            writes.append(Signal(size * bits, name=f"write_{name}", reset_less=True))
            with m.If(store):
                m.d.sync += writes[-1].eq(i.payload.word[name].as_value())

        # A column is read with an address for each memory, and is then rotated back. The lane of
        # each pair is selected and rotated by the first stage in one cycle, and by the second stage
        # in the next, which shares its LUTs with the choice of a word that bypasses.
        reads: list[list[Signal]] = [[], []]  # data of the memories of even and of odd words
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
        second = Signal(reset_less=True)  # whether the second lane of each pair is taken
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
            m.d.comb += (
                turned_back[name].as_value().eq(_step(half_rotated, back_later[:1], 4 * bits))
            )
        turn_out = Signal(len(o.payload.turn), reset_less=True)
        side_out = Signal(spec.side_bits, reset_less=True)
        last_out = Signal(reset_less=True)
        m.d.comb += [
            o.payload.word.eq(words),
            o.payload.side.eq(side_out),
            o.payload.last.eq(last_out),
            o.payload.turn.eq(turn_out),
        ]
        with m.If(move):
            m.d.sync += [o.valid.eq(reading[1] | passes), reading.eq(Cat(read, reading))]
            with m.If(reading[1]):
                m.d.sync += [words.eq(turned_back)]
                m.d.sync += [side_out.eq(later_side), last_out.eq(later_last)]
                m.d.sync += turn_out.eq(back_later[1:])
            with m.Elif(passes):
                m.d.sync += words.eq(i.payload.word)
                m.d.sync += [side_out.eq(i.payload.side), last_out.eq(i.payload.last)]
                m.d.sync += turn_out.eq(0)
        return m
