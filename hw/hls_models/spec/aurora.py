"""The bridge between a link of a core and an Aurora 64B/66B core: what both sides agree about.

Aurora's user interface has 8 bytes for each lane and its own clock, and its receiving side cannot
wait. Source: Aurora 64B/66B LogiCORE IP Product Guide, PG074 (framing interface, reset sequence).
"""

from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES

LANE_BYTES = 8
"""Bytes of Aurora's user interface for each lane."""

RELEASE_CYCLES = 256
"""Cycles of the free-running clock between the release of the transceivers and that of the core."""


def user_clock_hz(lane_rate_bits_per_s: float) -> float:
    """Frequency of Aurora's user clock: a lane carries 64 bits of payload in each of its cycles.

    Source: PG074, constraints of the example design (3.125 Gb/s: 20.48 ns).
    """
    return lane_rate_bits_per_s / (8 * LANE_BYTES)


@dataclass(frozen=True)
class AuroraSpec:
    """The bridge between a link and Aurora.

    Parameters
    ----------
    phy_bytes : int
        Width of the link's streams: 8, 16, 32 or 64 bytes, at least as wide as Aurora's.
    lanes : int
        Lanes of Aurora: 1, 2, 4 or 8.
    reset_cycles : int
        Cycles of the free-running clock for which the transceivers are held in reset; PG074 asks
        for at least a second, so that the other end notices it.
    fifo_beats : int
        Beats of Aurora that a queue between the clocks holds, a power of two.

    Raises
    ------
    ValueError
        If there is no such bridge.
    """

    phy_bytes: int
    lanes: int
    reset_cycles: int = 100_000_000
    fifo_beats: int = 32

    def __post_init__(self) -> None:
        if self.phy_bytes not in (8, 16, 32, 64):
            raise ValueError(f"aurora phy_bytes must be 8, 16, 32 or 64, not {self.phy_bytes!r}")
        if self.lanes not in (1, 2, 4, 8):
            raise ValueError(f"aurora lanes must be 1, 2, 4 or 8, not {self.lanes!r}")
        if self.phy_bytes < self.lane_bytes:
            raise ValueError(
                f"aurora phy_bytes must be at least the {self.lane_bytes} bytes of {self.lanes} "
                f"lanes, not {self.phy_bytes!r}"
            )
        if not 1 <= self.reset_cycles <= 1 << 32:
            raise ValueError(f"aurora reset_cycles must be 1..2**32, not {self.reset_cycles!r}")
        if self.fifo_beats not in (4, 8, 16, 32, 64):
            raise ValueError(
                f"aurora fifo_beats must be 4, 8, 16, 32 or 64, not {self.fifo_beats!r}"
            )

    @property
    def lane_bytes(self) -> int:
        """Width of Aurora's streams in bytes."""
        return LANE_BYTES * self.lanes

    @property
    def parts(self) -> int:
        """Beats of Aurora in a beat of the link."""
        return self.phy_bytes // self.lane_bytes

    @property
    def last_parts(self) -> int:
        """Beats of Aurora in the last beat of a frame, which has at most 16 bytes."""
        return max(min(self.phy_bytes, TRAILER_BYTES) // self.lane_bytes, 1)
