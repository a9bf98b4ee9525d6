"""The physical layer of a link over plain pins, which boards without transceivers have.

Each way has a clock, eight pins of data, and two that say whether a byte goes by and whether it is
the last one of a frame. The clock has half the frequency of the sender's core. Data change with its
falling edge and are taken with its rising edge, so that half a period is left for the lengths of
wires to differ. The receiver has a clock domain of its own: no clock is shared.
"""

from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES

BYTES_PER_CYCLE = 0.5
"""Bytes that a link sends in a cycle of its core, each way."""


@dataclass(frozen=True)
class PinsSpec:
    """The gateware between a link and its pins.

    Parameters
    ----------
    phy_bytes : int
        Width of the link's streams: 4, 8 or 16 bytes, parts of the trailer that ends a frame.
    fifo_bytes : int
        Bytes that a queue between the clocks holds, a power of two. The core takes each byte before
        the next one has come, so few are enough.

    Raises
    ------
    ValueError
        If there is no such gateware.
    """

    phy_bytes: int = 4
    fifo_bytes: int = 8

    def __post_init__(self) -> None:
        if self.phy_bytes not in (4, 8, 16):
            raise ValueError(f"pins phy_bytes must be 4, 8 or 16, not {self.phy_bytes!r}")
        if self.fifo_bytes not in (4, 8, 16, 32, 64):
            raise ValueError(f"pins fifo_bytes must be 4, 8, 16, 32 or 64, not {self.fifo_bytes!r}")

    @property
    def lane_bytes(self) -> int:
        """Bytes that go by at a time."""
        return 1

    @property
    def parts(self) -> int:
        """Bytes of a beat of the link."""
        return self.phy_bytes

    @property
    def last_parts(self) -> int:
        """Bytes of the last beat of a frame, which is whole."""
        return min(self.phy_bytes, TRAILER_BYTES)
