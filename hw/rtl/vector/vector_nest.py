"""Gateware of the loop nest of a VECTOR instruction, and of the numbers that it moves."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpgapipe.hw.hls_models.isa.vector_fields import NUM_VECTOR_LOOPS, U_BITS, Y_BITS
from fpgapipe.hw.hls_models.isa.vector_op import LANES
from fpgapipe.hw.rtl.lib.rotator import selected

COUNT_BITS = 16

_AT_FIRST = 3


class VectorNest(wiring.Component):
    """Position in a loop nest: loops in their first or last iteration, and the one that stepped.

    Members
    -------
    advance : In(1)
        Clock enable of all commands.
    take : In(1)
        A new instruction, with `counts`, begins at its first position; `step` is then ignored.
    step : In(1)
        Go to the next position; there is none after the last.
    counts : In(16).array(6)
        Iterations less one, the innermost loop first.
    at_first, at_last : Out(6)
        Loops that are in their first iteration, and loops that are in their last one.
    steps : Out(6)
        Loop that steps to reach the next position, as one bit; none at the last position.
    inner, outer : Out(2)
        How this position was reached. `outer` is 0 if one of the inner four loops stepped, whose
        number is `inner`, 1 or 2 if the fifth or sixth loop did, and 3 at the first position. So
        two LUTs choose among what belongs to each.
    """

    def __init__(self):
        super().__init__(
            {
                "advance": In(1),
                "take": In(1),
                "step": In(1),
                "counts": In(COUNT_BITS).array(NUM_VECTOR_LOOPS),
                "at_first": Out(NUM_VECTOR_LOOPS),
                "at_last": Out(NUM_VECTOR_LOOPS),
                "steps": Out(NUM_VECTOR_LOOPS),
                "inner": Out(2),
                "outer": Out(2),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        loops = range(NUM_VECTOR_LOOPS)
        # Flags say which loops are in their last iteration, since a comparison would be slower.
        count = [Signal(COUNT_BITS, name=f"count{k}", reset_less=True) for k in loops]
        once = [Signal(name=f"once{k}", reset_less=True) for k in loops]
        left = [Signal(COUNT_BITS, name=f"left{k}", reset_less=True) for k in loops]
        done = [Signal(name=f"done{k}", reset_less=True) for k in loops]
        fresh = [Signal(name=f"fresh{k}", reset_less=True) for k in loops]
        inner, outer = (Signal(2, name=name, reset_less=True) for name in ("inner", "outer"))
        m.d.comb += [
            self.at_first.eq(Cat(fresh)),
            self.at_last.eq(Cat(done)),
            self.steps.eq(Cat(~done[k] & Cat(done[:k]).all() for k in loops)),
            self.inner.eq(inner),
            self.outer.eq(outer),
        ]
        with m.If(self.advance & self.take):
            m.d.sync += outer.eq(_AT_FIRST)
            for k in loops:
                m.d.sync += [
                    count[k].eq(self.counts[k]),
                    left[k].eq(self.counts[k]),
                    once[k].eq(self.counts[k] == 0),
                    done[k].eq(self.counts[k] == 0),
                    fresh[k].eq(1),
                ]
        with m.Elif(self.advance & self.step):
            m.d.sync += outer.eq(_AT_FIRST)
            for k in loops:
                with m.If(self.steps[k]):
                    m.d.sync += outer.eq(max(0, k - 3))
                    if k < 4:
                        m.d.sync += inner.eq(k)
                    m.d.sync += [left[k].eq(left[k] - 1), done[k].eq(left[k] == 1), fresh[k].eq(0)]
                with m.Elif(self.steps[k + 1 :].any()):
                    m.d.sync += [left[k].eq(count[k]), done[k].eq(once[k]), fresh[k].eq(1)]
        return m


def reduced_loops(inner, reduced):
    """Find the reduced loops and those inside them, from an instruction's fields.

    Returns
    -------
    Value, Value
        Loops inside the reduced ones, and reduced loops, with one bit per loop.
    """
    within = Cat(inner > k for k in range(NUM_VECTOR_LOOPS))
    outer = Cat(inner + reduced > k for k in range(NUM_VECTOR_LOOPS))
    return within, outer & ~within


def moving(m, name, base, jumps, nest, take):
    """Make a number that the loops move; it is there two cycles after the nest's position.

    Parameters
    ----------
    m : Module
    name : str
        Prefix of the names of signals.
    base : Value
        Number at the first position.
    jumps : list of Value
        Change of the number when a loop steps, for each loop.
    nest : VectorNest
        Loop nest, whose `advance` moves the number too.
    take : Signal
        Enable of the registers that keep `base` and `jumps`.
    """
    bits = len(base)
    kept_base = Signal(bits, name=f"{name}_base", reset_less=True)
    kept = [Signal(bits, name=f"{name}_jump{k}", reset_less=True) for k in range(len(jumps))]
    with m.If(take):
        m.d.sync += kept_base.eq(base)
        m.d.sync += [register.eq(jump) for register, jump in zip(kept, jumps, strict=True)]
    # The change, or the first number, is selected in one cycle and added in the next.
    is_first = Signal(name=f"{name}_is_first", reset_less=True)
    chosen = Signal(bits, name=f"{name}_chosen", reset_less=True)
    value = Signal(bits, name=name, reset_less=True)
    with m.If(nest.advance):
        m.d.sync += [
            is_first.eq(nest.outer == _AT_FIRST),
            chosen.eq(selected(nest.outer, [selected(nest.inner, kept[:4]), *kept[4:], kept_base])),
            value.eq(chosen + Mux(is_first, 0, value)),
        ]
    return value


class Lanes:
    """Valid lanes of a vector: those in ``first..end - 1``.

    A register that takes `first`, `end` or `mask` has them two cycles after the coordinate.

    Parameters
    ----------
    m : Module
    name : str
        Prefix of the names of signals.
    advance : Value
        Clock enable.
    u : Signal
        Coordinate of lane 0, a signed number of `U_BITS` bits.
    u_limit : Signal
        Limit of the coordinates of valid lanes.

    Attributes
    ----------
    first, end : Value
        Numbers in 0..16; no lane is valid unless `end` is above `first`. They are combinational
        functions of registers that follow `u` by one cycle.
    """

    def __init__(self, m, name, advance, u, u_limit):
        below = Signal(signed(U_BITS + 1), name=f"{name}_below", reset_less=True)
        above = Signal(signed(U_BITS + 2), name=f"{name}_above", reset_less=True)
        with m.If(advance):
            m.d.sync += [below.eq(-u.as_signed()), above.eq(u_limit - u.as_signed())]
        bits = LANES.bit_length()
        self.first = Signal(bits, name=f"{name}_first")
        self.end = Signal(bits, name=f"{name}_end")
        m.d.comb += [self.first.eq(_clamped(below)), self.end.eq(_clamped(above))]

    def mask(self):
        """Mask of the valid lanes, one bit per lane."""
        ones = Const((1 << LANES) - 1, LANES)
        return (ones << self.first)[:LANES] & ~(ones << self.end)[:LANES]


def is_within(y, y_limit):
    """Whether a coordinate, signed in `Y_BITS`, is in ``0..y_limit - 1``."""
    return ~y[Y_BITS - 1] & (y < y_limit)


def _clamped(value):
    """Limit a signed value to ``0..LANES``."""
    return Mux(value < 0, 0, Mux(value > LANES, LANES, value.as_unsigned()))
