"""The clock of a link's PHY, counted by the core (docs/links.md).

What is between a link and its transceivers or pins runs from a clock that a core does not have. It
tells the core each time that some cycles of that clock have passed, a tick, and the core counts
ticks for a while of its own clock. So a host learns the frequency of the PHY's clock, and with it
whether the reference clock of the transceivers is the one that a board's file says.
"""

TICK_CYCLES = 16
"""Cycles of the PHY's clock from one tick to the next. Ticks of a clock that is less than 8 times
as fast as the core's are all seen."""

METER_CYCLES = 1 << 14
"""Cycles of the core in which it counts ticks."""

METER_BITS = METER_CYCLES.bit_length()
"""Width of the number of ticks, of which there is at most one a cycle."""


def clock_ratio(ticks: int) -> float:
    """Cycles of the PHY's clock for each of the core's, from the ticks that were counted.

    Parameters
    ----------
    ticks : int
        Ticks in `METER_CYCLES` cycles of the core.

    Returns
    -------
    float
        The ratio, exact to one tick: 0.1 % if both clocks have the same frequency.
    """
    return ticks * TICK_CYCLES / METER_CYCLES
