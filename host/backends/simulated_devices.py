"""Simulated devices joined by cables, which run in lock-step and can stand still in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.snapshot import PAGE_BYTES, Pages, RunStopped, Snapshot
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices
from fpgapipe.host.transports.simulated import SimulatedTransport
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.core_nodes import cables, core_node
from fpgapipe.sim_tb.native.core_device import device_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.native.waves import WaveWindow
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

    End = tuple[int, int]

LINK_UP_CYCLES = 20_000
"""Cycles in which the two ends of each link must have established the link."""


class SimulatedDevices(Devices):
    """Devices simulated in lock-step; equal cores share one compiled simulator.

    Parameters
    ----------
    cores : sequence of CoreSpec
        Core of each device.
    images : iterable of uint8 array
        Initial memory of each device.
    memories : sequence of MemorySpec
        Speed of each device's memory.
    wiring : sequence of pairs of (device, link)
        Pairs of link ends that are connected.
    wires : sequence of WireSpec
        Cable of each pair.
    threads : int, optional
        Number of threads, as for `Cluster`.
    simulation : Simulation, optional
        Whether blocks are simulated in C++, as for `chosen_simulation`.
    waves : WaveWindow, optional
        Waves to record in the first run.

    Attributes
    ----------
    blocks : Blocks
        How the blocks of the first device are simulated.
    memories : list of uint8 arrays
    cluster : Cluster
    runs : int
        Number of runs that have ended.
    """

    def __init__(
        self,
        cores: Sequence[CoreSpec],
        images: Iterable[NDArray[np.uint8]],
        memories: Sequence[MemorySpec],
        wiring: Sequence[tuple[End, End]],
        wires: Sequence[WireSpec],
        *,
        threads: int | None = None,
        simulation: Simulation | None = None,
        waves: WaveWindow | None = None,
    ) -> None:
        self.blocks = device_blocks(cores[0], simulation)
        designs, nodes, kept = [], [], []
        for number, (core, image, behind) in enumerate(zip(cores, images, memories, strict=True)):
            recorded = waves.format if waves and waves.device == number else None
            design, node = core_node(number, core, image.size, behind, simulation, recorded)
            node.device.memory[:] = image
            designs.append(design)
            nodes.append(node)
            kept.append(node.device.memory)
        cluster = Cluster(nodes, cables(wiring, wires), threads=threads)
        self._come_up(cluster, cores, wiring, kept, designs, waves)

    def _come_up(
        self,
        cluster: Cluster,
        cores: Sequence[CoreSpec],
        wiring: Sequence[tuple[End, End]],
        memories: list[NDArray[np.uint8]],
        designs: Sequence[str],
        waves: WaveWindow | None = None,
    ) -> None:
        """Drive the devices of a cluster, and bring their links up."""
        drivers = [
            CoreDriver(f"device {number}", core, SimulatedTransport(cluster, number, memory))
            for number, (core, memory) in enumerate(zip(cores, memories, strict=True))
        ]
        for driver, memory in zip(drivers, memories, strict=True):
            driver.reserve(memory.size)
        super().__init__(drivers, wiring)
        self.cluster, self.memories = cluster, memories
        self._designs, self._waves = tuple(designs), waves
        self._begin: int | None = None
        self.runs = 0
        self.links_up()

    def links_up(self, limit_cycles: float = LINK_UP_CYCLES) -> None:
        """See `Devices`; the limit is in cycles, as each look at a link takes some."""
        last = self.cluster.cycle + limit_cycles
        self._links_up(lambda: self.cluster.cycle <= last, f"{limit_cycles:,.0f} cycles")

    def run(
        self,
        entries: Sequence[int],
        scalars: Sequence[Sequence[int]],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Run a program on each device; return the cycles until the last one has ended.

        See `Devices`. After `KeyboardInterrupt` and `RunStopped` the programs are not aborted:
        `snapshot` has all that `go_on` needs.
        """
        self._prepare(entries, scalars)
        begin = self.cluster.cycle
        if waves := self._waves:
            self._waves = None
            begins, ends = begin + waves.begin, begin + waves.end
            self.cluster.save_waves(waves.device, waves.path, begins, ends)
        self._start()
        return self._to_the_end(begin, progress)

    def _to_the_end(self, begin: int, progress: Callable[[int], object] | None) -> int:
        self._begin = begin
        try:
            self._run_cluster(progress and (lambda now: progress(now.cycle - begin)))
        except BaseException as error:
            # After an interrupt the devices stand between two rounds and could go on.
            if not isinstance(error, KeyboardInterrupt | RunStopped):
                self._begin = None
            raise
        self._begin = None
        for driver in self.drivers:
            driver.check_end()
        ends = self.cluster.irq_cycles()
        self.runs += 1
        return max(end for end in ends if end is not None) - begin

    def _run_cluster(self, progress: Callable[[Any], object] | None) -> None:
        self.cluster.run(progress=progress)

    def snapshot(self) -> Snapshot | None:
        """The simulation in the middle of a run, between two windows; None if no run is begun.

        It may be taken by `progress`, or after `run` was ended by `KeyboardInterrupt` or
        `RunStopped`.
        """
        if self._begin is None:
            return None
        return Snapshot(
            self._designs,
            self.cluster.cycle,
            self._begin,
            self.runs,
            self.cluster.state(),
            tuple(Pages.of(memory) for memory in self.memories),
        )

    def go_on(self, snapshot: Snapshot, progress: Callable[[int], object] | None = None) -> int:
        """Go on with a run from a snapshot to its end; returns the cycles of the whole run."""
        snapshot.put_memories(self.memories)
        self.cluster.set_state(snapshot.states)
        self.runs = snapshot.runs
        return self._to_the_end(snapshot.begin, progress)

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of the same simulators, with memories of the same size."""
        return snapshot.designs == self._designs and all(
            not pages.numbers.size or pages.numbers[-1] < memory.size // PAGE_BYTES
            for pages, memory in zip(snapshot.memories, self.memories, strict=True)
        )

    def close(self) -> None:
        """End the simulation; the memories can still be read."""
        self.cluster.close()
