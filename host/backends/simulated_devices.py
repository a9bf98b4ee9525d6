"""Simulated devices joined by cables: their links, registers and runs of their programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.snapshot import PAGE_BYTES, Pages, RunStopped, Snapshot
from fpgapipe.hw.hls_models.model.core_protocol import check_program, prepare_program
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device, device_blocks
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection
    from fpgapipe.sim_tb.native.phy import WireSpec
    from fpgapipe.sim_tb.native.waves import WaveFormat, WaveWindow
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

    End = tuple[int, int]

LINK_UP_CYCLES = 20_000
"""Cycles in which the two ends of each link must have established the link."""


def device_of(
    core: CoreSpec,
    memory_bytes: int,
    behind: MemorySpec,
    simulation: Simulation | None = None,
    waves: WaveFormat | None = None,
) -> tuple[str, NativeDevice]:
    """The identity of a core's simulator, and a device of it with its memory."""
    library, _, _ = build_device(core, simulation, waves)
    device = NativeDevice(
        library,
        memory_bytes=memory_bytes,
        bytes_per_cycle=behind.bytes_per_cycle,  # type: ignore[arg-type]
        latency_cycles=behind.latency_cycles,
    )
    return library.parent.name, device


def cables_of(wiring: Sequence[tuple[End, End]], wires: Sequence[WireSpec]) -> list[Connection]:
    """Both directions of all cables."""
    return [
        connection
        for (one, other), wire in zip(wiring, wires, strict=True)
        for connection in cable(one, other, wire)
    ]


class SimulatedDevices:
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
        self._registers = [RegisterMap(core) for core in cores]
        self.blocks = device_blocks(cores[0], simulation)
        self.memories: list[NDArray[np.uint8]] = []
        self._begin: int | None = None
        designs = []
        nodes = []
        for number, (core, image, behind) in enumerate(zip(cores, images, memories, strict=True)):
            recorded = waves.format if waves and waves.device == number else None
            design, device = device_of(core, image.size, behind, simulation, recorded)
            designs.append(design)
            device.memory[:] = image
            self.memories.append(device.memory)
            nodes.append(Node(f"device {number}", device, self._registers[number]))
        self._designs = tuple(designs)
        self.runs = 0
        self._waves = waves
        self._sizes = [memory.size for memory in self.memories]
        self.cluster = Cluster(nodes, cables_of(wiring, wires), threads=threads)
        self._links_up([end for pair in wiring for end in pair])

    def _write(self, number: int, name: str, value: int) -> None:
        self.cluster.write_register(number, self._registers[number].offset(name), value)

    def _read(self, number: int, name: str) -> int:
        return self.cluster.read_register(number, self._registers[number].offset(name))

    def counters(self) -> list[dict[str, int]]:
        """Values of all counters of each device; they are not reset between runs."""
        return [
            {
                name: self._read(number, f"{name}_LO") | self._read(number, f"{name}_HI") << 32
                for name in registers.counters
            }
            for number, registers in enumerate(self._registers)
        ]

    def _links_up(self, ends: Sequence[End]) -> None:
        """Enable both ends of all links, and wait until the links are up."""
        for number, link in ends:
            self._write(number, f"LINK{link}_SEED", 1 + 4 * number + link)
            self._write(number, f"LINK{link}_ENABLE", 1)
        last = self.cluster.cycle + LINK_UP_CYCLES
        for number, link in ends:
            field = self._registers[number][f"LINK{link}_STATUS"].field("state")
            while (state := field.of(self._read(number, f"LINK{link}_STATUS"))) != LinkState.UP:
                if self.cluster.cycle > last or state == LinkState.MISMATCH:
                    raise DeviceError(
                        f"link {link} of device {number} does not come up: it is "
                        f"{LinkState(state).name}; both ends must have the same frames and slots, "
                        "and a wire between them"
                    )

    def run(
        self,
        entries: Sequence[int],
        scalars: Sequence[Sequence[int]],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Run a program on each device; return the cycles until the last one has ended.

        Parameters
        ----------
        entries : sequence of int
            Address of each device's program.
        scalars : sequence of sequence of int
            Contents of the scalar registers of each device.
        progress : callable, optional
            Function that is called now and then with the cycles so far.
        """
        for number, (entry, values) in enumerate(zip(entries, scalars, strict=True)):
            for index, bits in enumerate(values):
                self._write(number, f"SCALAR{index}", bits)
            write = partial(self.cluster.write_register, number)
            prepare_program(write, self._registers[number], entry, self._sizes[number])
        begin = self.cluster.cycle
        if waves := self._waves:
            self._waves = None
            begins, ends = begin + waves.begin, begin + waves.end
            self.cluster.save_waves(waves.device, waves.path, begins, ends)
        for number, registers in enumerate(self._registers):
            self._write(number, "CONTROL", registers["CONTROL"].field("start").mask)
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
        for number, registers in enumerate(self._registers):
            check_program(partial(self.cluster.read_register, number), registers)
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
