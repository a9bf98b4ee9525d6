"""Cycle-accurate models of what counts the clock of a link's PHY."""

from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES


class ClockMeter:
    """Counts the ticks of a PHY's clock, for `METER_CYCLES` cycles at a time.

    Attributes
    ----------
    ticks : int
        Ticks of the last whole time; 0 until one is over.
    known : bool
        Whether one is over.
    """

    def __init__(self) -> None:
        self.ticks, self.known = 0, False
        self._cycle = self._count = 0

    def step(self, valid: bool) -> None:
        """Go on by a cycle of the core, in which a tick comes or not."""
        self._count += valid
        self._cycle += 1
        if self._cycle == METER_CYCLES:
            self.ticks, self.known = self._count, True
            self._cycle = self._count = 0
