"""Gateware that turns wide words, in modules of two stages each.

Yosys keeps the borders of modules and gives four inputs and their two selects a LUT; it finds fewer
of those in a turn of five stages that is one module, and takes up to half as many LUTs again.
"""

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

STAGES = 2
"""Of a module."""


@dataclass(frozen=True)
class BarrelRotatorSpec:
    """A turn of a word.

    Parameters
    ----------
    bits : int
        Of the word.
    step_bits : int
        By which the word turns if `amount` is 1.
    stages : int
        Bits of `amount`.
    """

    bits: int
    step_bits: int
    stages: int


class BarrelRotator(wiring.Component):
    """Gateware of :class:`BarrelRotatorSpec`. Combinational.

    Members
    -------
    i : In(bits)
    amount : In(stages)
    o : Out(bits)
        Bit ``(b + amount * step_bits) % bits`` is bit `b` of `i`.
    """

    def __init__(self, spec: BarrelRotatorSpec) -> None:
        self.spec = spec
        super().__init__({"i": In(spec.bits), "amount": In(spec.stages), "o": Out(spec.bits)})

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        word = self.i
        for stage in range(self.spec.stages):
            rotated = Signal(self.spec.bits, name=f"turned{stage}")
            step = word.rotate_left(self.spec.step_bits << stage)
            m.d.comb += rotated.eq(Mux(self.amount[stage], step, word))
            word = rotated
        m.d.comb += self.o.eq(word)
        return m


def rotated(m, word, amount, step_bits, name):
    """A word turned to the left by ``amount * step_bits``, the largest steps first.

    Parameters
    ----------
    m : Module
        Gets the modules.
    word, amount : Value
    step_bits : int
    name : str
        Prefix of submodules.
    """
    for low in reversed(range(0, len(amount), STAGES)):
        part = amount[low : low + STAGES]
        m.submodules[f"{name}{low}"] = rotator = BarrelRotator(
            BarrelRotatorSpec(len(word), step_bits << low, len(part))
        )
        m.d.comb += [rotator.i.eq(word), rotator.amount.eq(part)]
        word = rotator.o
    return word
