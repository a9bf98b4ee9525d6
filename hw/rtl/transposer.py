"""Gateware of the square transposer, :class:`~fpgapipe.hw.hls_models.transposer.TransposerSpec`.

Lane `j` of word `w` of a square lies in memory ``(j + w) % size`` at ``w``: a word and a column
both have one element in each memory. A word is turned by `w` lanes to be written; column `j`, whose
element of word `w` lies in memory ``(j + w) % size``, is turned back by `j` when it is read.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.transposer import TransposerSpec


def input_layout(spec: TransposerSpec):
    """Layout of a word that comes."""
    return data.StructLayout(
        {
            "word": data.ArrayLayout(spec.lane_bits, spec.size),
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
            "word": data.ArrayLayout(spec.lane_bits, spec.size),
            "side": spec.side_bits,
            "last": 1,
        }
    )


def rotated(m, lanes, amount, name):
    """Lanes turned, so that lane `j` becomes lane ``(j + amount) % len(lanes)``.

    Parameters
    ----------
    m : Module
        Gets the multiplexers, one of two inputs a lane and a bit of `amount`.
    lanes : list of Value
        A power of two of them.
    amount : Value
    name : str
        Prefix of signals.
    """
    size = len(lanes)
    for bit in range((size - 1).bit_length()):
        turned = [Signal.like(lane, name=f"{name}{bit}_{j}") for j, lane in enumerate(lanes)]
        for j in range(size):
            m.d.comb += turned[j].eq(Mux(amount[bit], lanes[(j - (1 << bit)) % size], lanes[j]))
        lanes = turned
    return lanes


class Transposer(wiring.Component):
    """Gateware of :class:`~fpgapipe.hw.hls_models.transposer.TransposerSpec`.

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

    latency_cycles = 4

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
        reading = Signal()  # a column is on its way from the memories to the output
        settling = Signal()  # the last word of a square is on its way into the memories
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
        turned = rotated(m, [i.payload.word[j] for j in range(size)], word, "in")
        write_row = Signal(index_bits + 1, reset_less=True)
        write = Signal()
        m.d.sync += write.eq(store)
        writes = [Signal(spec.lane_bits, name=f"write{j}", reset_less=True) for j in range(size)]
        with m.If(store):
            m.d.sync += write_row.eq(Cat(word, fill))
            m.d.sync += [writes[j].eq(turned[j]) for j in range(size)]

        # Out of them: an address for each, as wide as the memory, then turned back.
        reads = []
        for j in range(size):
            m.submodules[f"memory{j}"] = memory = Memory(
                shape=spec.lane_bits, depth=2 * size, init=[]
            )
            port = memory.write_port()
            m.d.comb += [port.addr.eq(write_row), port.data.eq(writes[j]), port.en.eq(write)]
            port = memory.read_port()
            row = Signal(index_bits, name=f"row{j}")
            m.d.comb += [row.eq(j - column), port.addr.eq(Cat(row, drain)), port.en.eq(read)]
            reads.append(port.data)
        back = Signal(index_bits, reset_less=True)
        read_side = Signal(spec.side_bits, reset_less=True)
        read_last = Signal(reset_less=True)
        with m.If(read):
            m.d.sync += [
                back.eq(-column),
                read_side.eq(Mux(drain, side[1], side[0])),
                read_last.eq(Mux(drain, last[1], last[0]) & last_column),
            ]
        turned_back = rotated(m, reads, back, "out")
        words = [Signal(spec.lane_bits, name=f"word{j}", reset_less=True) for j in range(size)]
        side_out = Signal(spec.side_bits, reset_less=True)
        last_out = Signal(reset_less=True)
        m.d.comb += [o.payload.word[j].eq(words[j]) for j in range(size)]
        m.d.comb += [o.payload.side.eq(side_out), o.payload.last.eq(last_out)]
        with m.If(move):
            m.d.sync += [o.valid.eq(reading | passes), reading.eq(read)]
            with m.If(reading):
                m.d.sync += [words[j].eq(turned_back[j]) for j in range(size)]
                m.d.sync += [side_out.eq(read_side), last_out.eq(read_last)]
            with m.Elif(passes):
                m.d.sync += [words[j].eq(i.payload.word[j]) for j in range(size)]
                m.d.sync += [side_out.eq(i.payload.side), last_out.eq(i.payload.last)]
        return m
