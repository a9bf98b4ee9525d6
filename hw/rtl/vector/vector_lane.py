"""Gateware of one lane of the vector engine."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.vector_fields import COUNTER_BITS, NUM_CONSTANTS
from fpgapipe.hw.hls_models.isa.vector_op import Choice, Factor, Initial, Second
from fpgapipe.hw.hls_models.numerics.fp32 import CODE_BIAS, NAN_BITS
from fpgapipe.hw.rtl.arith.fp32 import Fp32Adder, Fp32Multiplier, Pipeline, is_nan
from fpgapipe.hw.rtl.lib.modules import own_module

LANE_CONFIG = data.StructLayout(
    {
        "constants": data.ArrayLayout(32, NUM_CONSTANTS),
        "threshold": 16,
        "negate_x": 1,
        "addend": 2,
        "negate_addend": 1,
        "factor": 3,
        "second": 3,
        "negate_second": 1,
        "is_random": 1,
        "outcomes": 4,
        "left": 2,
        "right": 2,
        "then": 3,
        "otherwise": 3,
        "initial": 2,
        "reduces": 1,
        "takes_maximum": 1,
        "gives_index": 1,
        "relu": 1,
    }
)
"""Fields of an instruction, by their names there; `reduces` says that it has reduced loops."""

TOTAL = data.StructLayout({"value": 32, "index": COUNTER_BITS})
"""Layout of a partial sum or maximum; `index` is the counter's value at the maximum."""

_ONE = 0x3F800000
_NEGATIVE = 0x80000000


class VectorLane(wiring.Component):
    """A lane: two sums and products, a choice, and a sum or maximum of the chosen elements.

    The lane is a pipeline that moves in cycles with ``advance`` high. Its inputs come at different
    stages, which are numbered as in :mod:`fpgapipe.hw.hls_models.cycles.vector_cycles`.

    Members
    -------
    advance : In(1)
        Clock enable.
    config : In(LANE_CONFIG)
    x, y, k0 : In(32)
        Operands of the first sum, at stage 1.
    factor_y, k1, k2 : In(32)
        Operands of the products, at `FACTOR_STAGE`; `factor_y` is the element of Y again.
    choice_x, choice_y, k3, counter : In(32)
        Operands of the choice and its test, at `CHOICE_STAGE`; the counter is an FP32 number.
    bits : In(16)
        Random bits, at ``CHOICE_STAGE + 1``.
    there, first : In(1)
        Whether the lane is valid, and whether the element is the first of its sum or maximum, at
        ``ELEMENT_STAGE - 1``.
    initial : In(32)
        Coefficient that a sum begins with, at ``ELEMENT_STAGE - 1``.
    previous : In(TOTAL)
        Sum or maximum of the earlier elements, at ``ELEMENT_STAGE - 1``.
    index : In(COUNTER_BITS)
        The counter, at ``ELEMENT_STAGE + 1``.
    total : Out(TOTAL)
        Sum with this element at `TOTAL_STAGE`, or maximum with it at `MAXIMUM_STAGE`.
    finish : In(1)
        Whether the element in `total` is the last of its sum or maximum.
    result : Out(32)
        Result of the `total` of the stage before, if `finish` was high there.
    """

    spec = None

    def __init__(self, spec: None = None) -> None:
        inputs = {
            **dict.fromkeys(("x", "y", "k0", "factor_y", "k1", "k2"), 32),
            **dict.fromkeys(("choice_x", "choice_y", "k3", "counter", "initial"), 32),
            **{"advance": 1, "config": LANE_CONFIG, "bits": 16, "there": 1, "first": 1},
            **{"previous": TOTAL, "index": COUNTER_BITS, "finish": 1},
        }
        super().__init__(
            {
                **{name: In(shape) for name, shape in inputs.items()},
                "total": Out(TOTAL),
                "result": Out(32),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        config = self.config
        constants = config.constants
        register = Pipeline(m, self.advance).register
        m.submodules.first_adder = first_adder = Fp32Adder()
        m.submodules.multiplier = multiplier = Fp32Multiplier()
        m.submodules.second_multiplier = second_multiplier = Fp32Multiplier()
        m.submodules.second_adder = second_adder = Fp32Adder()
        for unit in (first_adder, multiplier, second_multiplier, second_adder):
            m.d.comb += unit.advance.eq(self.advance)

        # These are the operands of the first sum.
        addend = _chosen(
            config.addend,
            Const(_NEGATIVE, 32),
            _signed(self.y, config.negate_addend),
            self.k0,
            constants[0],
        )
        m.d.comb += [
            first_adder.a.eq(register(_signed(self.x, config.negate_x), "augend2")),
            first_adder.b.eq(register(addend, "addend2")),
        ]

        # These are the products. If there is no second one, it is zero times -0, which is -0 and
        # leaves a sum as it is.
        total, y = first_adder.o, self.factor_y
        one = Const(_ONE, 32)
        factor = _chosen(config.factor[0:2], constants[1], total, y, self.k1)
        second = _chosen(config.second, Const(_NEGATIVE, 32), one, y, self.k2, constants[2])
        multiplicand = _signed(y, config.negate_second)
        no_factor, no_second = config.factor == Factor.ONE, config.second == Second.NOTHING
        m.d.comb += [
            multiplier.a.eq(register(total, "sum8")),
            multiplier.b.eq(register(factor, "factor8", {_ONE: no_factor})),
            second_multiplier.a.eq(register(multiplicand, "multiplicand8", {0: no_second})),
            second_multiplier.b.eq(register(second, "second8")),
            second_adder.a.eq(multiplier.o),
            second_adder.b.eq(second_multiplier.o),
        ]

        element = self._choose(m, register, second_adder.o)
        self._accumulate(m, register, element)
        return m

    def _choose(self, m, register, s):
        """Choose an element by a test; in a reduction, the element of an invalid lane is -0."""
        config, constants = self.config, self.config.constants
        x, y, k3 = self.choice_x, self.choice_y, self.k3

        # There are two candidates, and two numbers that are compared.
        # A constant comes in later.
        then = register(
            _chosen(config.then[0:2], s, x, y, k3), "then19", {0: config.then == Choice.ZERO}
        )
        otherwise = register(
            _chosen(config.otherwise[0:2], s, x, y, k3),
            "otherwise19",
            {0: config.otherwise == Choice.ZERO},
        )
        left = Signal(32, reset_less=True)
        right = Signal(32, reset_less=True)
        compares = Signal()
        m.d.comb += compares.eq(self.advance & (config.outcomes != 0))
        with m.If(compares):
            m.d.sync += [
                left.eq(_chosen(config.left, x, y, s)),
                right.eq(_chosen(config.right, y, k3, constants[3], self.counter)),
            ]

        # The test compares the two numbers, or the random bits with their threshold.
        less, equal, unordered, drawn = (
            Signal(name=name, reset_less=True) for name in ("less", "equal", "unordered", "drawn")
        )
        with m.If(compares):
            m.d.sync += [
                less.eq(_is_larger(right, left)),
                equal.eq((left == right) | (_is_zero(left) & _is_zero(right))),
                unordered.eq(is_nan(left) | is_nan(right)),
            ]
        with m.If(self.advance & config.is_random):
            m.d.sync += drawn.eq(self.bits < config.threshold)
        then = register(then, "then20")
        otherwise = register(otherwise, "otherwise20")

        outcomes = config.outcomes
        ordered = Mux(equal, outcomes[1], Mux(less, outcomes[0], outcomes[2]))
        test = Signal()
        is_constant = Signal()
        element = Signal(32)
        m.d.comb += [
            test.eq(Mux(config.is_random, drawn, Mux(unordered, outcomes[3], ordered))),
            is_constant.eq(Mux(test, config.then, config.otherwise) == Choice.CONSTANT),
            element.eq(Mux(is_constant, constants[3], Mux(test, then, otherwise))),
        ]
        return register(element, "element21", {_NEGATIVE: config.reduces & ~self.there})

    def _accumulate(self, m, register, element):
        """Add an element to a sum or compare it with a maximum, and make the result of a total."""
        config = self.config
        # Before the first element, a maximum is a negative NaN with all bits set. All numbers are
        # larger than it. No later maximum equals it, since a NaN is kept as `NAN_BITS`.
        initial = Mux(config.initial[1], config.constants[4], self.initial)
        nothing = self.first & (config.initial == Initial.NOTHING)
        previous = register(
            Mux(self.first, initial, self.previous.value),
            "previous21",
            {_NEGATIVE: nothing, 0xFFFFFFFF: nothing & config.takes_maximum},
        )
        m.submodules.adder = adder = Fp32Adder()
        maximum = Signal()  # enable of the comparison; only sums use the adder
        m.d.comb += [
            adder.advance.eq(self.advance & ~config.takes_maximum),
            adder.a.eq(previous),
            adder.b.eq(element),
            maximum.eq(self.advance & config.takes_maximum),
        ]
        keep = Pipeline(m, maximum).register
        there = keep(self.there, "there21")
        index = keep(Mux(self.first, 0, self.previous.index), "index21")

        # Of equal numbers the first one stays, and a NaN stays until another one comes: as whole
        # numbers, a NaN in the total is larger than everything that is not NaN.
        nan, zero, better = Signal(), Signal(), Signal()
        larger = _is_larger(element, previous)
        m.d.comb += [
            nan.eq(is_nan(element)),
            zero.eq(_is_zero(element)),
            better.eq(there & (nan | (larger & ~(zero & _is_zero(previous))))),
        ]
        better = keep(better, "better22")
        nan, zero = keep(nan, "nan22"), keep(zero, "zero22")
        element, previous = keep(element, "element22"), keep(previous, "previous22")
        index = keep(index, "index22")

        magnitude = Mux(nan, Const(NAN_BITS, 31), Mux(zero, 0, element[0:31]))
        flushed = Cat(magnitude[0:31], element[31] & ~nan)
        best = keep(Mux(better, flushed, previous), "best23")
        chosen = Signal(COUNTER_BITS)
        m.d.comb += chosen.eq(Mux(better, self.index, index))
        index = keep(chosen, "index23")
        # All other bits of a whole number of 8 bits are zero in FP32.
        number = keep(whole_number(m, chosen, "index")[16:31], "number23")

        total = self.total.value
        m.d.comb += [
            total.eq(Mux(config.takes_maximum, best, adder.o)),
            self.total.index.eq(index),
        ]
        # If no element was found, the total is still the negative NaN; with a fraction of zero it
        # becomes -inf.
        is_lowest = total[23:32] == 0x1FF
        fraction = Mux(is_lowest, 0, total[0:23])
        value = Signal(32)
        result = Signal(32, reset_less=True)
        m.d.comb += [
            value.eq(Mux(config.gives_index, Cat(Const(0, 16), number), Cat(fraction, total[23:]))),
            self.result.eq(result),
        ]
        with m.If(self.advance & self.finish):
            m.d.sync += result.eq(Mux(config.relu & value[31], 0, value))


@dataclass(frozen=True)
class LaneArraySpec:
    """Number of lanes of a `VectorLaneArray`."""

    lanes: int


class VectorLaneArray(wiring.Component):
    """All lanes of a vector engine, one `VectorLane` each.

    It is a module of its own, which a simulator may replace by a faster model of all lanes.

    Members
    -------
    advance, lane_config, first, counter, index, finish : In
        Inputs that all lanes share; `lane_config` is the lane's ``config``.
    x, y, k0, factor_y, k1, k2, choice_x, choice_y, k3, initials : In(32 * lanes)
    bits : In(16 * lanes)
    there : In(lanes)
    previous : In(TOTAL.size * lanes)
    totals : Out(TOTAL.size * lanes)
    results : Out(32 * lanes)
        Inputs and outputs of the lanes, side by side.
    """

    def __init__(self, spec: LaneArraySpec) -> None:
        self.spec = spec
        lanes = spec.lanes
        words = ("x", "y", "k0", "factor_y", "k1", "k2", "choice_x", "choice_y", "k3")
        inputs = {
            **{"advance": 1, "lane_config": LANE_CONFIG, "first": 1, "counter": 32},
            **{"index": COUNTER_BITS, "finish": 1, "bits": 16 * lanes, "there": lanes},
            **{
                "previous": TOTAL.size * lanes,
                "initials": 32 * lanes,
                **dict.fromkeys(words, 32 * lanes),
            },
        }
        super().__init__(
            {
                **{name: In(shape) for name, shape in inputs.items()},
                "totals": Out(TOTAL.size * lanes),
                "results": Out(32 * lanes),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        shared = ("advance", "first", "counter", "index", "finish")
        words = ("x", "y", "k0", "factor_y", "k1", "k2", "choice_x", "choice_y", "k3")
        for lane in range(self.spec.lanes):
            m.submodules[f"lane{lane}"] = each = own_module(VectorLane(), "vector_lane")
            m.d.comb += [
                *(getattr(each, name).eq(getattr(self, name)) for name in shared),
                *(
                    getattr(each, name).eq(getattr(self, name).word_select(lane, 32))
                    for name in words
                ),
                each.initial.eq(self.initials.word_select(lane, 32)),
                each.config.eq(self.lane_config),
                each.bits.eq(self.bits.word_select(lane, 16)),
                each.there.eq(self.there[lane]),
                each.previous.eq(self.previous.word_select(lane, TOTAL.size)),
                self.totals.word_select(lane, TOTAL.size).eq(each.total),
                self.results.word_select(lane, 32).eq(each.result),
            ]
        return m


def whole_number(m, value, name):
    """Convert a whole number of 8 bits to FP32."""
    skip = [Signal(name=f"{name}_skip{bit}") for bit in range(3)]
    nibble, pair, fraction = (
        Signal(8, name=f"{name}_{part}") for part in ("nibble", "pair", "fraction")
    )
    m.d.comb += [
        skip[2].eq(value[4:8] == 0),
        nibble.eq(Mux(skip[2], value << 4, value)),
        skip[1].eq(nibble[6:8] == 0),
        pair.eq(Mux(skip[1], nibble << 2, nibble)),
        skip[0].eq(~pair[7]),
        fraction.eq(Mux(skip[0], pair << 1, pair)),
    ]
    exponent = Const(CODE_BIAS + 7, 8) - Cat(skip)
    number = Cat(Const(0, 16), fraction[0:7], exponent[0:8], Const(0, 1))
    return Mux(fraction[7], number, 0)


def _chosen(index, *values):
    """Select a word by its number, in a balanced tree that repeats the last one where needed."""
    words = list(values)
    for bit in index:
        words = [
            Mux(bit, words[min(number + 1, len(words) - 1)], words[number])
            for number in range(0, len(words), 2)
        ]
    return words[0]


def _signed(value, negate):
    return Cat(value[0:31], value[31] ^ negate)


def _is_larger(a, b):
    """Whether FP32 number `a` is larger than `b`; -0 is less than +0, and a NaN beyond infinity.

    Of two negative numbers the one with the smaller magnitude is larger. One comparison of
    magnitudes does for both signs: it is of `b` with `a` and, if they are negative, half a unit.
    """
    negative = a[31]
    larger_magnitude = Cat(Const(0, 1), b[0:31]) < Cat(negative, a[0:31])
    return Mux(negative ^ b[31], b[31], larger_magnitude ^ negative)


def _is_zero(value):
    return value[23:31] == 0
