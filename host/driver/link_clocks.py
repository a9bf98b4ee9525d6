"""The clock of a link's PHY: what a core has counted of it, against what the board should have."""

from __future__ import annotations

from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.link_clock import clock_ratio

TOLERANCE = 0.02
"""Share by which the clock may differ. Clocks that a device makes of others are within 1 % of the
frequency that was asked for; the reference clocks that boards may have instead of one another,
156.25 MHz and 161.13 MHz, differ by 3 %."""


@dataclass(frozen=True)
class LinkClock:
    """Clocks at an end of a link.

    Parameters
    ----------
    core_hz : float
        Frequency of the core's clock.
    phy_hz : float or None
        Frequency that the PHY's clock should have; None if it is not known.
    """

    core_hz: float
    phy_hz: float | None

    def found(self, ticks: int) -> str:
        """Return the frequency for a number of ticks, in words: ``402.8 MHz``."""
        return f"{self.core_hz * clock_ratio(ticks) / 1e6:.4g} MHz"

    def fault(self, ticks: int | None) -> str | None:
        """Say what is wrong with a number of ticks and what to do; None if nothing is.

        Parameters
        ----------
        ticks : int or None
            What the core has counted; None if it has not.
        """
        if ticks is None:
            return "the core has not counted the clock of its PHY"
        if not ticks:
            return (
                "no clock comes from its PHY: transceivers need their reference clock, plain pins "
                "the clock of the other board, so look at the board's clock generator or the cable"
            )
        if self.phy_hz is None:
            return None
        found_hz = self.core_hz * clock_ratio(ticks)
        if abs(found_hz - self.phy_hz) <= TOLERANCE * self.phy_hz:
            return None
        return (
            f"its PHY's clock has {self.found(ticks)}, if the core runs at "
            f"{self.core_hz / 1e6:.4g} MHz, and should have {self.phy_hz / 1e6:.4g} MHz: look at "
            "the reference clock of the transceivers, or the clock of the other board, and at the "
            "clock that the core was built for"
        )
