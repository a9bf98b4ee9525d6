"""The backend that runs steps on devices through their driver, whatever they are reached by."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from fpgapipe.host.backends.base import Backend
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.driver.transport import Limits, Transport
    from fpgapipe.lowering.program.pipeline import PipelineProgram


Found = TypeVar("Found")


class DriverBackend(Backend):
    """Runs programs on devices, simulated or not, through their driver.

    Before the first step the devices are checked, loaded, and their links brought up.

    Parameters
    ----------
    pipeline : PipelineProgram
    parameters : mapping of str to array
        Initial parameters.
    devices : Devices
        One for each part of the pipeline; they are closed with the backend, and if a check fails.

    Attributes
    ----------
    devices : Devices
    """

    def __init__(self, pipeline: PipelineProgram, parameters: Values, devices: Devices) -> None:
        super().__init__(pipeline)
        self.devices = devices
        self._known: dict[str, NDArray[np.float32]] | None = None
        try:
            for driver in devices.drivers:
                driver.check_identity()
            devices.abort()  # a host that died may have left programs that run
            for driver, part, image in zip(
                devices.drivers, pipeline.parts, pipeline.images(parameters), strict=True
            ):
                driver.load(image, part.entry, part.instructions)
            devices.links_up()
        except BaseException:
            devices.close()
            raise
        # A memory of a device is read and written by slices, as an array is.
        self.memories = [cast("NDArray[np.uint8]", driver.memory) for driver in devices.drivers]

    def close(self) -> None:
        """See `Backend`; memories that are not simulated can no longer be read."""
        self.devices.close()

    def counters(self) -> list[dict[str, int]]:
        """Values of all counters of each device; they are not reset between steps."""
        return self.devices.counters()

    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """See `Backend`; memory that reads as something else than what was written is an error."""
        return self._checked(super().parameters(suffix))

    def state(self) -> dict[str, NDArray[np.float32]]:
        """See `Backend`; memory that reads as something else than what was written is an error."""
        self._known = self._checked(super().state())
        return self._known

    def set_state(self, state: Values) -> None:
        """See `Backend`."""
        self._known = None
        super().set_state(state)

    def _settle(self) -> None:
        """Check memories before programs run: a write that went wrong may have landed elsewhere.

        What was written is compared, and the weights with those that were last read.
        """
        memories = [driver.memory for driver in self.devices.drivers if driver.memory]
        wrong = [memory for memory in memories if memory.settle()]
        if wrong and self._known is not None:
            found = super().state()
            for name, known in self._known.items():
                if not np.array_equal(found[name], known, equal_nan=True):
                    raise wrong[0].destroyed(f"values of {name}")
        self._known = None

    def _checked(self, found: Found) -> Found:
        for driver in self.devices.drivers:
            assert driver.memory is not None, "programs were loaded"
            driver.memory.check()
        return found

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int:
        self._settle()
        parts = self.pipeline.parts
        return self.devices.run([part.entry for part in parts], [scalars] * len(parts), progress)


class DeviceBackend(DriverBackend):
    """Runs programs on boards.

    Parameters
    ----------
    pipeline : PipelineProgram
    parameters : mapping of str to array
        Initial parameters.
    transports : sequence of Transport
        Way to each device, in the order of the stages.
    names : sequence of str, optional
        Names of the devices in messages.
    name : str, optional
        Name of the backend; by default that of the first transport.
    limits : Limits, optional
        How long to wait for devices; by default those of the first transport.
    periods : sequence of float, optional
        See `Devices`.
    """

    def __init__(
        self,
        pipeline: PipelineProgram,
        parameters: Values,
        transports: Sequence[Transport],
        names: Sequence[str] | None = None,
        *,
        name: str | None = None,
        limits: Limits | None = None,
        periods: Sequence[float] | None = None,
    ) -> None:
        self.name = name or transports[0].name  # type: ignore[misc]
        names = names or [f"device {part.index}" for part in pipeline.parts]
        drivers = [
            CoreDriver(name, part.core, transport)
            for name, part, transport in zip(names, pipeline.parts, transports, strict=True)
        ]
        devices = Devices(drivers, pipeline.wiring, limits=limits, periods=periods)
        super().__init__(pipeline, parameters, devices)
