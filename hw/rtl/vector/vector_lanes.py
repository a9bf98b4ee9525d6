"""Gateware of the vector engine's lanes, from the elements that were read to the results.

The model is :func:`~fpgapipe.hw.hls_models.model.vector.results`.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.cycles.vector_cycles import (
    CHOICE_STAGE,
    ELEMENT_STAGE,
    FACTOR_STAGE,
    MAXIMUM_STAGE,
    RANDOM_CYCLES,
    SUM_CYCLES,
    TOTAL_STAGE,
)
from fpgapipe.hw.hls_models.isa.vector_fields import COUNTER_BITS, NUM_COEFFICIENTS
from fpgapipe.hw.hls_models.isa.vector_op import LANES, MAX_SUMS
from fpgapipe.hw.hls_models.numerics.function import FUNCTION_CYCLES
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec
from fpgapipe.hw.rtl.arith.function import FunctionUnit
from fpgapipe.hw.rtl.arith.threefry import Threefry, ThreefrySpec
from fpgapipe.hw.rtl.lib.memory import BlockMemory, BlockMemorySpec
from fpgapipe.hw.rtl.lib.modules import own_module
from fpgapipe.hw.rtl.vector.vector_lane import (
    LANE_CONFIG,
    TOTAL,
    LaneArraySpec,
    VectorLaneArray,
    whole_number,
)

LANES_CONFIG = data.StructLayout(
    {
        "lane": LANE_CONFIG,
        "key": data.ArrayLayout(32, 2),  # key of random numbers
        "first": 48,
        "coefficients": 3,  # how many there are; the others are zeros
        "function": 4,  # 0 if none
    }
)
"""Fields of an instruction for the lanes, in which registers' contents replace their numbers."""


def beat_layout(spec: VectorSpec):
    """Layout of a beat: the elements of some lanes, and where they belong."""
    return data.StructLayout(
        {
            "x": data.ArrayLayout(32, spec.lanes),
            "y": data.ArrayLayout(32, spec.lanes),
            "there": spec.lanes,  # valid lanes of X
            "counter": COUNTER_BITS,
            "bank": 1,  # bank of coefficients
            "beat": range(LANES // spec.lanes),  # number of the beat in its vector
            "first": 1,  # first element of its sum; every one is if no loop is reduced
            "last": 1,
            "sum": range(MAX_SUMS),  # number of the sum; 0 if no loop is reduced
        }
    )


def coefficient_layout(spec: VectorSpec):
    """Layout of a beat of coefficients."""
    return data.StructLayout(
        {
            "valid": 1,
            "bank": 1,
            "number": range(NUM_COEFFICIENTS),
            "beat": range(LANES // spec.lanes),
            "data": data.ArrayLayout(32, spec.lanes),
        }
    )


def random_spec(spec: VectorSpec) -> ThreefrySpec:
    """How the random numbers of some lanes are computed: they are drawn once for each vector."""
    return ThreefrySpec(shares=spec.lanes < LANES)


class FunctionLanes(wiring.Component):
    """Applies a function to the results of all lanes, in parts of `function_lanes` results.

    The results of all lanes come and leave together. The latency is `function_cycles`, and the
    throughput is one result of all lanes every `cycles_per_result` cycles, with full backpressure.
    With function 0, results pass unchanged in the same cycle, and only then ``o.ready`` reaches
    ``i.ready``.

    Members
    -------
    function : In(4)
        Number of the function, 0 for none; it changes only while ``idle`` is high.
    soon : In(1)
        High one cycle before a result comes, so that the units move when it is there.
    i, o : stream.Signature(ArrayLayout(32, lanes))
        Results of the lanes, and values of the function.
    idle : Out(1)
        High while nothing is inside.
    """

    def __init__(self, spec: VectorSpec) -> None:
        self.spec = spec
        words = stream.Signature(data.ArrayLayout(32, spec.lanes))
        super().__init__(
            {"function": In(4), "soon": In(1), "i": In(words), "o": Out(words), "idle": Out(1)}
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        part_bits = 32 * self.spec.function_lanes
        parts = self.spec.lanes // self.spec.function_lanes
        i, o = self.i, self.o
        is_used = Signal()
        advance = Signal()
        m.d.comb += is_used.eq(self.function != 0)

        # The word of results moves down by one part per cycle; the lowest part enters the units.
        word = Signal(parts * part_bits, reset_less=True)
        left = Signal(range(parts + 1))  # parts that have not entered yet
        takes = Signal()
        # A single part enters in the cycle after it has come, so the next word may always come.
        m.d.comb += takes.eq(advance & i.valid & (left <= 1 if parts > 1 else 1))
        with m.If(takes):
            m.d.sync += [word.eq(i.payload), left.eq(parts)]
        with m.Elif(advance & (left != 0)):
            m.d.sync += [word.eq(word >> part_bits), left.eq(left - 1)]
        values = []
        for lane in range(self.spec.function_lanes):
            m.submodules[f"unit{lane}"] = unit = FunctionUnit()
            m.d.comb += [
                unit.advance.eq(advance),
                unit.function.eq(self.function),
                unit.i.eq(word.word_select(lane, 32)),
            ]
            values.append(unit.o)

        # The values are gathered in the same way: the gathered word moves down part by part.
        feeds = Signal(FUNCTION_CYCLES)
        ends = Signal(FUNCTION_CYCLES)
        gathered = Signal(parts * part_bits, reset_less=True)
        complete = Signal()
        with m.If(advance):
            m.d.sync += [
                feeds.eq(Cat(left != 0, feeds)),
                ends.eq(Cat(left == 1, ends)),
                complete.eq(ends[-1]),
            ]
        with m.If(advance & feeds[-1]):
            m.d.sync += gathered.eq(Cat(gathered, *values)[part_bits:])

        finished = stream.Signature(o.payload.shape()).create(path=("finished",))
        keep, has_skid = _put_in_skid(m, advance & complete, gathered, finished)
        wake = Signal()
        m.d.comb += [
            finished.ready.eq(o.ready),
            o.valid.eq(Mux(is_used, finished.valid, i.valid)),
            o.payload.eq(Mux(is_used, finished.payload.as_value(), i.payload.as_value())),
            i.ready.eq(Mux(is_used, takes, o.ready)),
            wake.eq((is_used & (self.soon | i.valid)) | (left != 0) | feeds.any() | complete),
            self.idle.eq(~((left != 0) | feeds.any() | complete | has_skid)),
        ]
        m.d.sync += advance.eq(wake & ~keep)
        return m


class VectorLanes(wiring.Component):
    """All lanes of a vector engine, from elements to results.

    The latency is `LANES_CYCLES`, or `MAXIMUM_CYCLES` for a maximum, and `function_cycles` more
    with a function; after a pause, a beat first waits for one cycle. The throughput is one beat per
    cycle, and with a function one result every `cycles_per_result` cycles. There is full
    backpressure; neither ``i.valid`` nor ``o.ready`` reaches ``i.ready`` in the same cycle. One
    enable, which is a register, moves the whole pipeline. The pipeline stops while a result waits,
    and while it is empty.

    A beat that adds to a sum waits until the previous beat of that sum has written it. It does not
    wait if it comes at least `SUM_CYCLES` after that beat. The sums take turns: as often as there
    are reduced elements, each of them gets the beats of a vector, in the order of their numbers.

    Members
    -------
    config : In(LANES_CONFIG)
        The instruction; it changes only while ``idle`` is high.
    start : In(1)
        A pulse for a new instruction, with which random numbers begin anew. It comes no later than
        the cycle in which the instruction's first beat moves.
    i : In(stream.Signature(beat_layout(spec)))
        Beats. All beats of a vector come one after the other. Elements of invalid lanes are zeros.
    k_write : In(coefficient_layout(spec))
        Writes a beat of coefficients, for beats that move in later cycles.
    uses : Out(2)
        One bit per bank of coefficients: beats in the pipeline need it, so it must not be written.
    o : Out(stream.Signature(ArrayLayout(32, lanes)))
        Results, in the order of the beats that are the last of their sums.
    idle : Out(1)
        High while nothing is in the pipeline.
    """

    def __init__(self, spec: VectorSpec) -> None:
        self.spec = spec
        super().__init__(
            {
                "config": In(LANES_CONFIG),
                "start": In(1),
                "i": In(stream.Signature(beat_layout(spec))),
                "k_write": In(coefficient_layout(spec)),
                "o": Out(stream.Signature(data.ArrayLayout(32, spec.lanes))),
                "uses": Out(2),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        config, i = self.config, self.i
        payload = i.payload
        reduces = config.lane.reduces
        takes_maximum = config.lane.takes_maximum
        bits = 32 * self.spec.lanes

        # Bit s of `at` says whether stage s has a beat.
        advance = Signal()
        fed = Signal()
        hazard = Signal()
        feeds = Signal(TOTAL_STAGE)
        at = Cat(fed, feeds)
        banks = Signal(ELEMENT_STAGE - 2)
        m.d.comb += [
            i.ready.eq(advance & ~hazard),
            fed.eq(i.valid & i.ready),
            self.uses.eq(Cat((feeds & ~banks).any(), (feeds & banks).any())),
        ]
        with m.If(advance):
            m.d.sync += [feeds.eq(Cat(fed, feeds)), banks.eq(Cat(payload.bank, banks))]

        # `early` has the places of beats up to the stage before the first factor; `late` has all
        # data of beats but their elements, from the stage before the choice on.
        names = ("beat", "sum", "bank")
        place = _fields(payload, names)
        about = _fields(payload, (*names, "there", "counter", "first", "last"))
        delays = _Delays(m, advance, at)
        early = _Line(m, advance, 0, FACTOR_STAGE - 1, place, "early")
        waited = delays.to(CHOICE_STAGE - 1, about.as_value(), "about")
        waited = data.View(about.shape(), waited)
        late = _Line(m, advance, CHOICE_STAGE - 1, TOTAL_STAGE, waited, "late")

        # A beat that adds to a sum waits for the beat before that has not written it yet. That one
        # came as many beats before as all sums have, since the sums take turns in the order of
        # their numbers. So it has not written yet if so many are in the stages up to the writing.
        # Whether they are is known a cycle before, so `i.ready` needs little logic.
        unwritten = Signal(range(SUM_CYCLES))
        last_sum = Signal.like(payload.sum, reset_less=True)
        blocks = Signal()
        next_unwritten, next_last_sum = Signal.like(unwritten), Signal.like(payload.sum)
        beats = LANES // self.spec.lanes
        last_beat = Const(beats - 1, (beats - 1).bit_length())
        m.d.comb += [
            next_unwritten.eq(unwritten + fed - (advance & at[SUM_CYCLES - 1])),
            # The last beat that begins a sum belongs to the sum with the highest number.
            next_last_sum.eq(Mux(fed & payload.first, payload.sum, last_sum)),
            hazard.eq(reduces & ~payload.first & blocks),
        ]
        m.d.sync += [
            unwritten.eq(next_unwritten),
            last_sum.eq(next_last_sum),
            blocks.eq(next_unwritten > Cat(last_beat, next_last_sum)),
        ]

        # Operands wait in circular memories, with one row per cycle.
        xs, ys = Signal(bits, reset_less=True), Signal(bits, reset_less=True)
        with m.If(advance):
            m.d.sync += [xs.eq(payload.x), ys.eq(payload.y)]
        factor_ys = delays.to(FACTOR_STAGE, payload.y.as_value(), "factor_y")
        operands = delays.to(CHOICE_STAGE, Cat(payload.x, payload.y), "operands")

        # Each coefficient is read where it is needed, the last one for the choice and for the sum.
        coefficients = []
        for number, name, stage, place in (
            (0, "k0", 1, payload),
            (1, "k1", FACTOR_STAGE, early(FACTOR_STAGE - 1)),
            (2, "k2", FACTOR_STAGE, early(FACTOR_STAGE - 1)),
            (3, "k3", CHOICE_STAGE, late(CHOICE_STAGE - 1)),
            (3, "initial", ELEMENT_STAGE - 1, late(ELEMENT_STAGE - 2)),
        ):
            read = advance & at[stage - 1] if stage > 1 else advance
            words = self._coefficients(m, number, name, read, Cat(place.beat, place.bank))
            coefficients.append(words)

        # This memory keeps the sums and maxima that are not complete.
        m.submodules.sums = sums = BlockMemory(
            BlockMemorySpec(
                MAX_SUMS * LANES // self.spec.lanes,
                *(TOTAL.size * self.spec.lanes,) * 2,
            )
        )
        source = late(ELEMENT_STAGE - 2)
        found, summed = late(MAXIMUM_STAGE), late(TOTAL_STAGE)
        target = Mux(takes_maximum, found.as_value(), summed.as_value())
        target = data.View(found.shape(), target)
        has_total = Signal()
        totals = Signal(TOTAL.size * self.spec.lanes)
        m.d.comb += [
            has_total.eq(Mux(takes_maximum, at[MAXIMUM_STAGE], at[TOTAL_STAGE])),
            sums.read.eq(advance & at[ELEMENT_STAGE - 2] & reduces & ~source.first),
            sums.read_row.eq(Cat(source.beat, source.sum)),
            sums.write.eq(advance & has_total & reduces & ~target.last),
            sums.write_row.eq(Cat(target.beat, target.sum)),
            sums.write_data.eq(totals),
        ]

        # Random numbers are drawn once for each vector, when its first beat is `RANDOM_CYCLES`
        # before the stage that compares them.
        drawn = Signal(16 * self.spec.lanes)
        if self.spec.random:
            numbers = random_spec(self.spec)
            name = "threefry_shared" if numbers.shares else "threefry"
            m.submodules.random = random = own_module(Threefry(numbers), name)
            stage = CHOICE_STAGE + 1 - RANDOM_CYCLES
            m.d.comb += [
                random.advance.eq(advance),
                random.start.eq(self.start),
                random.first.eq(config.first),
                random.key.eq(config.key),
                random.draw.eq(at[stage] & config.lane.is_random & (early(stage).beat == 0)),
                drawn.eq(random.o >> (late(CHOICE_STAGE + 1).beat * len(drawn))),
            ]

        counter = Signal(32, reset_less=True)
        number = whole_number(m, late(CHOICE_STAGE - 1).counter, "counter")
        with m.If(advance):
            m.d.sync += counter.eq(number)
        finish = Signal()
        has_result = Signal()
        m.d.comb += finish.eq(has_total & target.last)
        with m.If(advance):
            m.d.sync += has_result.eq(finish)

        there = late(ELEMENT_STAGE - 1)
        k0, k1, k2, k3, initial = coefficients
        array = VectorLaneArray(LaneArraySpec(self.spec.lanes))
        m.submodules.array = array = own_module(array, "vector_lane_array")
        m.d.comb += [
            array.advance.eq(advance),
            array.lane_config.eq(config.lane),
            array.x.eq(xs),
            array.y.eq(ys),
            array.k0.eq(k0),
            array.factor_y.eq(factor_ys),
            array.k1.eq(k1),
            array.k2.eq(k2),
            array.choice_x.eq(operands[:bits]),
            array.choice_y.eq(operands[bits:]),
            array.k3.eq(k3),
            array.counter.eq(counter),
            array.bits.eq(drawn),
            array.there.eq(there.there),
            array.first.eq(there.first),
            array.initials.eq(initial),
            array.previous.eq(sums.read_data),
            array.index.eq(late(ELEMENT_STAGE + 1).counter),
            array.finish.eq(finish),
            totals.eq(array.totals),
        ]

        m.submodules.functions = functions = FunctionLanes(self.spec)
        wiring.connect(m, functions.o, wiring.flipped(self.o))
        keep, has_skid = _put_in_skid(m, advance & has_result, array.results, functions.i)
        m.d.comb += [
            functions.function.eq(config.function),
            functions.soon.eq(advance & finish),
            self.idle.eq(~(feeds.any() | has_result | has_skid) & functions.idle),
        ]
        # The pipeline moves only while something is in it or waits to enter it.
        m.d.sync += advance.eq((i.valid | feeds.any() | has_result) & ~keep)
        return m

    def _coefficients(self, m, number, name, read, row):
        """Read a beat of a coefficient, for the next cycle; zeros if the instruction lacks it."""
        bits = 32 * self.spec.lanes
        memory = Memory(shape=unsigned(bits), depth=2 * LANES // self.spec.lanes, init=[])
        m.submodules[name] = memory
        source, target = memory.read_port(domain="comb"), memory.write_port()
        write = self.k_write
        words = Signal(bits, name=f"{name}_words", reset_less=True)
        m.d.comb += [
            source.addr.eq(row),
            target.en.eq(write.valid & (write.number == number)),
            target.addr.eq(Cat(write.beat, write.bank)),
            target.data.eq(write.data),
        ]
        # The zeros are a synchronous reset of the register; a block RAM would need gates for them.
        with m.If(read):
            with m.If(self.config.coefficients > number):
                m.d.sync += words.eq(source.data)
            with m.Else():
                m.d.sync += words.eq(0)
        return words


def _fields(view, names):
    """View that has only some fields of a view."""
    layout = data.StructLayout({name: view.shape().members[name] for name in names})
    return data.View(layout, Cat(view[name] for name in names))


class _Delays:
    """Delays of words by some stages, in circular memories with a row per stage.

    Parameters
    ----------
    m : Module
    advance : Value
        Clock enable.
    at : Value
        Stages that have a beat, one bit per stage.
    """

    def __init__(self, m, advance, at) -> None:
        self._m = m
        self._advance = advance
        self._at = at
        self._slot = Signal(CHOICE_STAGE.bit_length())
        with m.If(advance):
            m.d.sync += self._slot.eq(self._slot + 1)

    def to(self, stage, word, name):
        """Word at a stage, given the `word` at stage 0."""
        m = self._m
        spec = BlockMemorySpec(1 << (stage - 1).bit_length(), len(word), len(word))
        m.submodules[name] = memory = BlockMemory(spec)
        m.d.comb += [
            # A row without a beat is never read, so the long logic of `at[0]` is not needed here.
            memory.write.eq(self._advance),
            memory.write_row.eq(self._slot),
            memory.write_data.eq(word),
            memory.read.eq(self._advance & self._at[stage - 1]),
            memory.read_row.eq(self._slot - (stage - 1)),
        ]
        return memory.read_data


class _Line:
    """Registers that pass narrow words from stage to stage.

    Each stage is padded to whole words of 32 bits, or to half of one, so that a simulator need not
    shift them.

    Parameters
    ----------
    m : Module
    advance : Value
        Clock enable.
    begin, end : int
        Stage of `view`, and stage of the last register.
    view : data.View
        Word at stage `begin`.
    name : str
        Prefix of the names of signals.
    """

    def __init__(self, m, advance, begin, end, view, name) -> None:
        self._layout = view.shape()
        self._begin = begin
        size = self._layout.size
        self._width = 16 if size <= 16 else -(-size // 32) * 32
        self._words = Signal(self._width * (end - begin), name=name, reset_less=True)
        self._first = Signal(self._width, name=f"{name}_first")
        m.d.comb += self._first.eq(view.as_value())
        with m.If(advance):
            m.d.sync += self._words.eq(Cat(self._first, self._words))

    def __call__(self, stage):
        """Word at a stage in ``begin..end``."""
        word = Cat(self._first, self._words).word_select(stage - self._begin, self._width)
        return data.View(self._layout, word[: self._layout.size])


def _put_in_skid(m, comes, word, o):
    """Offer a word at a stream; keep it in a skid buffer if it is not taken at once.

    Returns
    -------
    keep, has_skid : Signal
        Whether the offered word waits, so that no other may come in the next cycle; and whether the
        skid buffer has a word.
    """
    skid = Signal(len(word), reset_less=True)
    has_skid = Signal()
    keep = Signal()
    m.d.comb += [
        o.valid.eq(has_skid | comes),
        o.payload.as_value().eq(Mux(has_skid, skid, word)),
        keep.eq(o.valid & ~o.ready),
    ]
    m.d.sync += has_skid.eq(keep)
    with m.If(comes & ~o.ready):
        m.d.sync += skid.eq(word)
    return keep, has_skid
