"""The backend that runs steps on simulated devices, cycle by cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.devices import DriverBackend
from fpgapipe.host.backends.simulated_devices import SimulatedDevices
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.core_device import device_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.native.waves import WaveWindow
    from fpgapipe.sim_tb.substitutes.simulation import Simulation


class SimulatorBackend(DriverBackend):
    """Runs programs on devices simulated in lock-step.

    Parameters
    ----------
    pipeline : PipelineProgram
    parameters : mapping of str to array
        Initial parameters.
    memory : MemorySpec or sequence of MemorySpec
        Memory of each device, or one spec for all.
    wires : sequence of WireSpec
        Cables: for each stage but the last, the one to the next stage.
    threads : int, optional
        Number of threads, as for `Cluster`.
    simulation : Simulation, optional
        Whether blocks are simulated in C++, as for `chosen_simulation`.
    waves : WaveWindow, optional
        Waves to record in the first step.
    comm : mpi4py.MPI.Comm, optional
        Ranks that share the devices; this is rank 0 (`fpgapipe.host.backends.ranks`).
    """

    name = "sim"
    devices: SimulatedDevices

    def __init__(
        self,
        pipeline: PipelineProgram,
        parameters: Values,
        memory: MemorySpec | Sequence[MemorySpec],
        wires: Sequence[WireSpec],
        *,
        threads: int | None = None,
        simulation: Simulation | None = None,
        waves: WaveWindow | None = None,
        comm: Any = None,
    ) -> None:
        cores = [part.core for part in pipeline.parts]
        speeds = [memory] * len(cores) if isinstance(memory, MemorySpec) else list(memory)
        sizes = [part.memory_bytes for part in pipeline.parts]
        cluster = CoreCluster(
            cores, sizes, speeds, pipeline.wiring, wires, threads=threads, simulation=simulation
        )
        super().__init__(pipeline, parameters, SimulatedDevices(cluster, waves=waves, comm=comm))
        self.simulation = str(device_blocks(cores[0], simulation))
        self._pending: Snapshot | None = None

    def shares_done(self) -> list[float]:
        """See `StepRunner`."""
        found = []
        for number, part in enumerate(self.pipeline.parts):
            # The counter goes on from run to run, modulo 2^32; the instruction END is not counted.
            total = max(len(part.instructions) - 1, 1)
            before = self.devices.runs * total
            counted = self.devices.cluster.progress_of(number).get("INSTRUCTIONS", before) - before
            done = (counted + (1 << 31)) % (1 << 32) - (1 << 31)
            found.append(min(max(done / total, 0.0), 1.0))
        return found

    def snapshot(self) -> Snapshot | None:
        """See `StepRunner`."""
        return self.devices.snapshot()

    def go_on_from(self, snapshot: Snapshot) -> bool:
        """See `StepRunner`."""
        if not self.devices.fits(snapshot):
            return False
        self._pending = snapshot
        return True

    def cycles_of(
        self,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Run a mini-batch, of training or of inference, and return only its cycles."""
        self.pipeline.set_batch(self.memories, inputs, labels)
        return self._run(scalars, progress)

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int:
        if snapshot := self._pending:
            self._pending = None
            return self.devices.go_on(snapshot, progress)
        return super()._run(scalars, progress)
