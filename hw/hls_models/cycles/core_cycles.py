"""Cycle model of the training core: when each instruction of a program starts and ends.

This is an event simulation (`event_loop`); `instruction_cycles` has the times that an instruction
takes on its own. Tests compare the model with the gateware.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fpgapipe.hw.hls_models.cycles.run_tables import Held, Port, Run
from fpgapipe.hw.hls_models.cycles.simulation import simulate
from fpgapipe.hw.hls_models.isa.instructions import Instruction
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

MOST_LATENCY_CYCLES = 1 << 40
"""Largest latency of a memory; floating-point times of this size still resolve 1/1000 cycle."""


@dataclass(frozen=True)
class MemorySpec:
    """The memory behind the core's bus.

    Parameters
    ----------
    bytes_per_cycle : float
        Bandwidth, reads and writes together.
    latency_cycles : int
        Cycles from a read request to its first data, and from a write's last data to its response.
    """

    bytes_per_cycle: float = 64
    latency_cycles: int = 100

    def __post_init__(self) -> None:
        if not self.bytes_per_cycle > 0:
            raise ValueError(
                f"memory bytes_per_cycle must be above 0, not {self.bytes_per_cycle!r}"
            )
        if not 0 <= self.latency_cycles <= MOST_LATENCY_CYCLES:
            raise ValueError(
                f"memory latency_cycles must be in 0..{MOST_LATENCY_CYCLES}, not "
                f"{self.latency_cycles!r}"
            )


@dataclass(frozen=True)
class Prediction:
    """Times at which a program's instructions run, in cycles.

    Attributes
    ----------
    cycles : int
        Cycles from the start command to the last word written to memory, both included.
    starts, ends : tuple of float
        Times at which each instruction is taken by its engine, and at which it is done.
    gemm_cycles : float
        Cycles in which vectors enter an array, all engines together.
    """

    cycles: int
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    gemm_cycles: float


def predict(
    program: Sequence[Instruction],
    core: CoreSpec,
    memory: MemorySpec | None = None,
    *,
    link_bytes_per_cycle: float | None = None,
) -> Prediction:
    """Predict the cycles of a program on a single core.

    Other devices are not modelled. A link takes words only as fast as it sends them, although a
    real one can buffer some, and the words of a RECEIVE arrive as soon as it begins.

    Parameters
    ----------
    program : sequence of Instruction
    core : CoreSpec
    memory : MemorySpec, optional
    link_bytes_per_cycle : float, optional
        Payload bandwidth of every link. By default, it follows from the PHY's width and the frames.

    Raises
    ------
    ValueError
        If the program waits for semaphores that nothing signals, or needs an engine that the core
        does not have.
    """
    rates = [link_bytes_per_cycle or link.phy_bytes * link.efficiency for link in core.links]
    return CoreRun(program, core, memory or MemorySpec(), rates).run()


class CoreRun(Run):
    """One run of the model.

    Parameters
    ----------
    program, core, memory
        The same as for `predict`.
    link_bytes_per_cycle : sequence of float
        Payload bandwidth of each link.
    begins, ports, held
        The same as for `Run`.
    """

    def __init__(
        self,
        program: Sequence[Instruction],
        core: CoreSpec,
        memory: MemorySpec,
        link_bytes_per_cycle: Sequence[float],
        begins: float = 0,
        *,
        ports: Sequence[Port] = (),
        held: Held | None = None,
    ) -> None:
        rate, latency = memory.bytes_per_cycle, memory.latency_cycles
        columns = Program.of(program)
        super().__init__(columns, core, rate, latency, link_bytes_per_cycle, begins, ports, held)

    def prediction(self) -> Prediction:
        """Return the result when there are no more events."""
        return Prediction(
            math.ceil(self.written or max(self.ends)),
            tuple(self.starts),
            tuple(self.ends),
            self.gemm_cycles,
        )

    def run(self) -> Prediction:
        """Run until there are no more events, and return the result."""
        simulate([self])
        if waiting := self.waiting():
            raise ValueError(
                "the program waits for semaphores that nothing signals: " + "; ".join(waiting)
            )
        return self.prediction()
