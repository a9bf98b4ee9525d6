"""The devices of a ring: their bit-exact model, or simulated hardware."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from fpgapipe.closing import Closing
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.lowering.ring.ring_program import Code, RingProgram
    from fpgapipe.sim_tb.native.phy import WireSpec

    Parameters = Sequence[Mapping[str, NDArray[np.float32]]]

RingBackend = Literal["model", "sim"]


class RingDevices(Closing):
    """Devices that run programs of a ring at the same time; a context manager.

    Attributes
    ----------
    name : str
        Name of the backend in the command line.
    memories : list of uint8 array
        Memory of each device.
    """

    name: ClassVar[RingBackend]
    memories: list[NDArray[np.uint8]]

    @abstractmethod
    def close(self) -> None:
        """Release all resources; the memories can still be read."""

    @abstractmethod
    def run(self, codes: Sequence[Code], scalars: Sequence[Sequence[int]]) -> int | None:
        """Run a program on each device, until all have ended.

        Parameters
        ----------
        codes : sequence of Code
        scalars : sequence of sequence of int
            Contents of the scalar registers of each device.

        Returns
        -------
        int or None
            Cycles until the last device has ended, if they are counted.
        """


class ModelDevices(RingDevices):
    """The bit-exact model of all devices.

    Parameters
    ----------
    ring : RingProgram
    parameters : sequence of mapping of str to array
        Initial parameters of each model.
    """

    name = "model"

    def __init__(self, ring: RingProgram, parameters: Parameters) -> None:
        self._ring = ring
        self.memories = ring.images(parameters)
        self._models: dict[tuple[int, int], CoreModel] = {}

    def close(self) -> None:
        """See `RingDevices`; there is nothing to release."""

    def run(self, codes: Sequence[Code], scalars: Sequence[Sequence[int]]) -> None:
        """See `RingDevices`."""
        models = [self._model(device, code) for device, code in enumerate(codes)]
        for model, values in zip(models, scalars, strict=True):
            model.scalars[:] = values
        run_cluster(models, [code.instructions for code in codes], self._ring.wiring)

    def _model(self, device: int, code: Code) -> CoreModel:
        """The model of a device for a program, which it prepares once."""
        key = device, code.entry
        if key not in self._models:
            own = CoreModel(self._ring.core, self.memories[device], repeats=True)
            self._models[key] = own
        return self._models[key]


class SimulatorDevices(RingDevices):
    """Simulated devices.

    Parameters
    ----------
    ring : RingProgram
    parameters : sequence of mapping of str to array
        Initial parameters of each model.
    memories : sequence of MemorySpec
        Speed of each device's memory.
    wires : sequence of WireSpec
        For each device but the last, the cable to the next one.
    threads : int, optional
    """

    name = "sim"

    def __init__(
        self,
        ring: RingProgram,
        parameters: Parameters,
        memories: Sequence[MemorySpec],
        wires: Sequence[WireSpec],
        *,
        threads: int | None = None,
    ) -> None:
        from fpgapipe.host.backends.simulated_devices import SimulatedDevices
        from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster

        cores = [ring.core] * ring.num_devices
        images = ring.images(parameters)
        sizes = [each.size for each in images]
        cluster = CoreCluster(cores, sizes, memories, ring.wiring, wires, threads=threads)
        self._devices = SimulatedDevices(cluster)
        self._devices.load(images)
        self._devices.links_up()
        # A memory of a device is read and written by slices, as an array is.
        self.memories = [
            cast("NDArray[np.uint8]", driver.memory) for driver in self._devices.drivers
        ]

    def close(self) -> None:
        """See `RingDevices`."""
        self._devices.close()

    def run(self, codes: Sequence[Code], scalars: Sequence[Sequence[int]]) -> int:
        """See `RingDevices`."""
        return self._devices.run([code.entry for code in codes], scalars)
