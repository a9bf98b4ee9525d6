"""Turns of those who share something."""

from amaranth.hdl import Cat, Mux, Signal


def by_turns(m, asks, taken):
    """Return who is next: the first who asks behind the one served last, or the first of all.

    Parameters
    ----------
    m : Module
    asks : Signal
        A bit for each who may ask.
    taken : Value
        Whether the one who is next is served in this cycle.

    Returns
    -------
    Signal
        A bit for each, of which at most one is set.
    """
    upper, chosen, behind = (Signal(len(asks), name=n) for n in ("upper", "next", "behind"))
    has_upper = Signal(name="has_upper")
    m.d.comb += [
        upper.eq(asks & behind),
        has_upper.eq(upper.any()),
        *(
            each.eq(Mux(has_upper, upper[k] & ~upper[:k].any(), asks[k] & ~asks[:k].any()))
            for k, each in enumerate(chosen)
        ),
    ]
    with m.If(taken):
        m.d.sync += behind.eq(Cat(chosen[:k].any() for k in range(len(asks))))
    return chosen
