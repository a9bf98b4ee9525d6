"""Simulated devices joined by cables, which run in lock-step and can stand still in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.host.backends.snapshot import PAGE_BYTES, Pages, RunStopped, Snapshot
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices
from fpgapipe.host.transports.shared_cluster import SharedCluster
from fpgapipe.host.transports.simulated import LIMITS, SimulatedTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.sim_tb.cluster.cluster import Cluster
    from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
    from fpgapipe.sim_tb.native.waves import WaveWindow


class SimulatedDevices(Devices):
    """Devices simulated in lock-step, driven as boards are.

    What a simulation has besides: its cycles are those of the clock that all devices share, its
    state can be kept in the middle of a run, and waves can be recorded.

    Parameters
    ----------
    described : CoreCluster
    waves : WaveWindow, optional
        Waves to record in the first run.
    comm : mpi4py.MPI.Comm, optional
        Ranks that share the devices; this is rank 0 (`fpgapipe.host.backends.ranks`).

    Attributes
    ----------
    cluster : Cluster or SharedCluster
    local : Cluster or None
        The same cluster, if all of it is in this process.
    runs : int
        Number of runs that have ended.
    """

    def __init__(
        self, described: CoreCluster, *, waves: WaveWindow | None = None, comm: Any = None
    ) -> None:
        self.cluster: Cluster | SharedCluster
        self.local: Cluster | None = None
        self._designs: tuple[str, ...] = ()
        if comm is None:
            self.local, self._designs = described.made(waves)
            self.cluster = self.local
        else:
            if waves:
                raise UserError("waves are recorded by one process; leave mpirun out")
            self.cluster = SharedCluster(comm, described)
        each = zip(described.cores, described.memory_bytes, strict=True)
        drivers = [
            CoreDriver(f"device {number}", core, SimulatedTransport(self.cluster, number, size))
            for number, (core, size) in enumerate(each)
        ]
        super().__init__(drivers, described.wiring)
        self._waves = waves
        self._begin: int | None = None
        self.runs = 0

    def load(self, images: Iterable[NDArray[np.uint8]]) -> None:
        """Write all memories, whose programs must be for memory that begins at 0."""
        for driver, image in zip(self.drivers, images, strict=True):
            driver.reserve(image.size)[:] = image

    def _start(self) -> None:
        self._begin = self.cluster.cycle
        if (waves := self._waves) and self.local:
            self._waves = None
            begins, ends = self._begin + waves.begin, self._begin + waves.end
            self.local.save_waves(waves.device, waves.path, begins, ends)
        for driver in self.drivers:
            driver.start()

    def _cycles(self) -> int:
        """Cycles from the start of the first device to the end of the last, or to now."""
        assert self._begin is not None, "programs were started"
        ends = [end for end in self.cluster.irq_cycles() if end is not None]
        all_have_ended = len(ends) == len(self.drivers)
        return (max(ends) if all_have_ended else self.cluster.cycle) - self._begin

    def _broken_off(self, error: BaseException) -> None:
        """Leave programs that could go on as they are, so that `snapshot` can keep them."""
        if not isinstance(error, KeyboardInterrupt | RunStopped):
            super()._broken_off(error)

    def _to_the_end(
        self, begin: Callable[[], object], progress: Callable[[int], object] | None
    ) -> int:
        cycles = super()._to_the_end(begin, progress)
        self._begin = None
        self.runs += 1
        return cycles

    def abort(self) -> None:
        """See `Devices`; what was run can not be kept any more."""
        self._begin = None
        super().abort()

    def snapshot(self) -> Snapshot | None:
        """The simulation in the middle of a run, between two windows; None if no run is begun.

        It may be taken by `progress`, or after `run` was ended by `KeyboardInterrupt` or
        `RunStopped`. Several processes take none.
        """
        if self._begin is None or self.local is None:
            return None
        return Snapshot(
            self._designs,
            self.local.cycle,
            self._begin,
            self.runs,
            self.local.state(),
            tuple(Pages.of(node.device.memory) for node in self.local.nodes),
        )

    def go_on(self, snapshot: Snapshot, progress: Callable[[int], object] | None = None) -> int:
        """Go on with a run from a snapshot to its end; returns the cycles of the whole run."""
        assert self.local is not None, "it fits"
        snapshot.put_memories([node.device.memory for node in self.local.nodes])
        self.local.set_state(snapshot.states)
        self.runs, self._begin = snapshot.runs, snapshot.begin
        return self._to_the_end(lambda: self.cluster.begin(round(LIMITS.stall)), progress)

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of the same simulators, with memories of the same size."""
        if self.local is None or snapshot.designs != self._designs:
            return False
        return all(
            not pages.numbers.size or pages.numbers[-1] < node.device.memory.size // PAGE_BYTES
            for pages, node in zip(snapshot.memories, self.local.nodes, strict=True)
        )
