"""Gateware that rotates wide words, in modules of two stages each.

Two stages choose one of four bits by two selects, which fits one LUT. Yosys keeps the borders of
modules, so it finds these LUTs. In one module of five stages it finds fewer of them, and takes up
to half as many LUTs more.
"""

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

STAGES = 2
"""Number of stages of a module."""


@dataclass(frozen=True)
class BarrelRotatorSpec:
    """A rotation of a word.

    Parameters
    ----------
    bits : int
        Width of the word, bits.
    step_bits : int
        Bits by which the word is rotated if `amount` is 1.
    stages : int
        Width of `amount`, bits.
    """

    bits: int
    step_bits: int
    stages: int


class BarrelRotator(wiring.Component):
    """Gateware of :class:`BarrelRotatorSpec`. It is combinational.

    Members
    -------
    i : In(bits)
        The word.
    amount : In(stages)
        Number of steps to the left.
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


@dataclass(frozen=True)
class TurningChoiceSpec:
    """A choice among words whose halves are swapped.

    Parameters
    ----------
    bits : int
        Width of a word, bits.
    granule_bits : int
        Bits that come from the same word.
    words : int
        Number of words, a power of two.
    """

    bits: int
    granule_bits: int
    words: int


class TurningChoice(wiring.Component):
    """Gateware of :class:`TurningChoiceSpec`. It is combinational.

    Members
    -------
    i : In(bits).array(words)
        The words.
    turn : In(1)
        Whether the halves of the words are swapped.
    numbers : In(log2(words)).array(bits // granule_bits)
        The word that each granule of the result comes from.
    o : Out(bits)
    """

    def __init__(self, spec: TurningChoiceSpec) -> None:
        self.spec = spec
        number_bits = (spec.words - 1).bit_length()
        super().__init__(
            {
                "i": In(spec.bits).array(spec.words),
                "turn": In(1),
                "numbers": In(number_bits).array(spec.bits // spec.granule_bits),
                "o": Out(spec.bits),
            }
        )

    def elaborate(self, platform):  # noqa: D102
        m = Module()
        half = self.spec.bits // 2
        words = [Mux(self.turn, word.rotate_left(half), word) for word in self.i]
        for granule, number in enumerate(self.numbers):
            parts = [word.word_select(granule, self.spec.granule_bits) for word in words]
            chosen = selected(number, parts)
            m.d.comb += self.o.word_select(granule, self.spec.granule_bits).eq(chosen)
        return m


def selected(number, values):
    """Return the value with a number; there is a power of two of values."""
    for bit in number:
        values = [Mux(bit, b, a) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def rotated(m, word, amount, step_bits, name):
    """Return a word rotated to the left by ``amount * step_bits``; the largest steps come first.

    Parameters
    ----------
    m : Module
        Module that the rotators are added to.
    word, amount : Value
        The word, and the number of steps.
    step_bits : int
        Bits of a step.
    name : str
        Prefix of the names of the submodules.
    """
    for low in reversed(range(0, len(amount), STAGES)):
        part = amount[low : low + STAGES]
        m.submodules[f"{name}{low}"] = rotator = BarrelRotator(
            BarrelRotatorSpec(len(word), step_bits << low, len(part))
        )
        m.d.comb += [rotator.i.eq(word), rotator.amount.eq(part)]
        word = rotator.o
    return word
