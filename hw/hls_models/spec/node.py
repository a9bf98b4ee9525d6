"""A node of a cluster as planner and models see it: a core, its clock and its memory."""

import math
from dataclasses import dataclass

from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec


@dataclass(frozen=True)
class NodeSpec:
    """A core with the clock and the memory that it has on a board.

    Parameters
    ----------
    core : CoreSpec
    clk_hz : float
        Clock frequency of the core, Hz.
    memory_bytes_per_cycle : float
        Rate that both bus and memory sustain, both directions together; 0 without a memory.
    memory_latency_cycles : int
        Cycles from a read request to its first data.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    core: CoreSpec
    clk_hz: float
    memory_bytes_per_cycle: float = 0.0
    memory_latency_cycles: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clk_hz) and self.clk_hz > 0):
            raise ValueError(f"core clock must be finite and above 0 Hz, not {self.clk_hz!r}")
        if not 0 <= self.memory_bytes_per_cycle < math.inf:
            raise ValueError(
                "memory_bytes_per_cycle of a core must be at least 0 and finite, not "
                f"{self.memory_bytes_per_cycle!r}"
            )

    def shares(self, *, as_one: bool = False) -> int:
        """Engines that share scratchpad and memory alike: one if all are taken as one."""
        return 1 if as_one else self.core.num_engines

    def transfer_cycles(self, size_bytes: float, *, as_one: bool = False) -> int:
        """Cycles for which a transfer of an engine keeps its share of the memory busy.

        The memory's latency is left out; without a memory, transfers cost nothing.
        """
        if not self.memory_bytes_per_cycle:
            return 0
        return -int(-size_bytes // (self.memory_bytes_per_cycle / self.shares(as_one=as_one)))
