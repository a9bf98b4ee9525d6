"""The backend that runs steps on devices through their driver, whatever they are reached by."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fpgapipe.host.backends.base import Backend
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import STALL_LIMIT_S, Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.lowering.program.pipeline import PipelineProgram


class DriverBackend(Backend):
    """Runs programs on devices, simulated or not, through their driver.

    Attributes
    ----------
    devices : Devices
    """

    devices: Devices

    def close(self) -> None:
        """See `Backend`; memories that are not simulated can no longer be read."""
        self.devices.close()

    def counters(self) -> list[dict[str, int]]:
        """Values of all counters of each device; they are not reset between steps."""
        return self.devices.counters()

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int:
        parts = self.pipeline.parts
        return self.devices.run([part.entry for part in parts], [scalars] * len(parts), progress)


class DeviceBackend(DriverBackend):
    """Runs programs on boards.

    Before the first step the devices are checked, loaded, and their links brought up.

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
    stall_s : float
        Seconds without progress after which a run has stalled.
    """

    def __init__(
        self,
        pipeline: PipelineProgram,
        parameters: Values,
        transports: Sequence[Transport],
        names: Sequence[str] | None = None,
        *,
        name: str | None = None,
        stall_s: float = STALL_LIMIT_S,
    ) -> None:
        super().__init__(pipeline)
        self.name = name or transports[0].name  # type: ignore[misc]
        names = names or [f"device {part.index}" for part in pipeline.parts]
        drivers = [
            CoreDriver(name, part.core, transport)
            for name, part, transport in zip(names, pipeline.parts, transports, strict=True)
        ]
        self.devices = Devices(drivers, pipeline.wiring, stall_s=stall_s)
        try:
            for driver in drivers:
                driver.check_identity()
            self.devices.abort()  # a host that died may have left programs that run
            for driver, part, image in zip(
                drivers, pipeline.parts, pipeline.images(parameters), strict=True
            ):
                driver.load(image, part.entry, part.instructions)
            self.devices.links_up()
        except BaseException:
            self.devices.close()
            raise
        # A memory of a device is read and written by slices, as an array is.
        self.memories = [cast("NDArray[np.uint8]", driver.memory) for driver in drivers]
