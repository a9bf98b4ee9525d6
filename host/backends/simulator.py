"""The backend that runs steps on simulated devices, cycle by cycle."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.host.backends.base import Backend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_nodes import Node, cable
from fpgapipe.sim_tb.native.core_device import build_device, check_program, prepare_program
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.sim_tb.native.phy import WireSpec

LINK_UP_CYCLES = 20_000
"""Cycles in which the two ends of each link must have established the link."""


class SimulatorBackend(Backend):
    """Runs programs on devices simulated in lock-step; equal cores share one compiled simulator.

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
    """

    name = "sim"

    def __init__(
        self,
        pipeline: PipelineProgram,
        parameters: Values,
        memory: MemorySpec | Sequence[MemorySpec],
        wires: Sequence[WireSpec],
        *,
        threads: int | None = None,
    ) -> None:
        super().__init__(pipeline)
        parts = pipeline.parts
        self._registers = [RegisterMap(part.core) for part in parts]
        each_memory = [memory] * len(parts) if isinstance(memory, MemorySpec) else memory
        nodes = []
        for part, registers, behind in zip(parts, self._registers, each_memory, strict=True):
            library, _, _ = build_device(part.core)
            device = NativeDevice(
                library,
                memory_bytes=part.memory_bytes,
                bytes_per_cycle=behind.bytes_per_cycle,  # type: ignore[arg-type]
                latency_cycles=behind.latency_cycles,
            )
            nodes.append(Node(f"device {part.index}", device, registers))
        self.memories = [node.device.memory for node in nodes]
        for own, image in zip(self.memories, pipeline.images(parameters), strict=True):
            own[:] = image
        cables = [
            connection
            for (one, other), wire in zip(pipeline.wiring, wires, strict=True)
            for connection in cable(one, other, wire)
        ]
        self.cluster = Cluster(nodes, cables, threads=threads)
        self._links_up()

    def close(self) -> None:
        """See `Backend`."""
        self.cluster.close()

    def _write(self, number: int, name: str, value: int) -> None:
        self.cluster.write_register(number, self._registers[number].offset(name), value)

    def _read(self, number: int, name: str) -> int:
        return self.cluster.read_register(number, self._registers[number].offset(name))

    def counters(self) -> list[dict[str, int]]:
        """Values of all counters of each device; they are not reset between steps."""
        return [
            {
                name: self._read(number, f"{name}_LO") | self._read(number, f"{name}_HI") << 32
                for name in registers.counters
            }
            for number, registers in enumerate(self._registers)
        ]

    def cycles_of(
        self,
        inputs: Values,
        labels: NDArray[np.integer],
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Run a mini-batch, of training or of inference, and return only its cycles."""
        self.pipeline.set_batch(self.memories, inputs, labels)
        return self._run(scalars, progress)

    def _links_up(self) -> None:
        """Enable both ends of all links, and wait until the links are up."""
        ends = [end for pair in self.pipeline.wiring for end in pair]
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

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int:
        for number, part in enumerate(self.pipeline.parts):
            for index, bits in enumerate(scalars):
                self._write(number, f"SCALAR{index}", bits)
            write = partial(self.cluster.write_register, number)
            prepare_program(write, self._registers[number], part.entry, part.memory_bytes)
        begin = self.cluster.cycle
        for number, registers in enumerate(self._registers):
            self._write(number, "CONTROL", registers["CONTROL"].field("start").mask)
        self.cluster.run(progress=progress and (lambda now: progress(now.cycle - begin)))
        for number, registers in enumerate(self._registers):
            check_program(partial(self.cluster.read_register, number), registers)
        ends = [node.device.statistics.irq_cycle for node in self.cluster.nodes]
        return max(end for end in ends if end is not None) - begin
