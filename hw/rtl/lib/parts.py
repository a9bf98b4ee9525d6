"""Words that pass in parts, as they do in small cores."""

from amaranth.hdl import Const, Signal


def last_part(m, moves, parts):
    """Return whether the part of a word that moves is its last one, and whether it is its first.

    Parameters
    ----------
    m : Module
    moves : Value
        A part moves in this cycle.
    parts : int
        Number of parts of a word.
    """
    if parts == 1:
        return Const(1), Const(1)
    part = Signal(range(parts))
    with m.If(moves):
        m.d.sync += part.eq(part + 1)
    return part == parts - 1, part == 0
