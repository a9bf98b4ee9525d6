"""Program of one device: its core, its instructions, and its memory map.

A run needs nothing else, so a build stores it as data and no run has to lower the network again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.lowering.memory.memory_map import MemoryMap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.instructions import Opcode
    from fpgapipe.hw.hls_models.isa.program import Program
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.schedule.schedule import Task


SUM = "gradient sum"
"""Layer of the kernels that add up the gradients of several devices."""


@dataclass(frozen=True)
class KernelOrigin:
    """The layer and the task that a kernel of a program belongs to.

    Attributes
    ----------
    name : str
        Name of the kernel.
    layer : str
        Name of the unit's last layer; for a transfer, the layer whose result is transferred.
        Kernels that belong to no layer have ``loss`` or ``update``.
    task : int
        Index in the tasks of the device.
    """

    name: str
    layer: str
    task: int


@dataclass(frozen=True)
class DeviceProgram(MemoryMap):
    """A step's program on one device.

    Attributes
    ----------
    index : int
        Number of the device, which is that of its stage.
    core : CoreSpec
    instructions : Program
        The last one is END.
    kernel_of : list of int
        Number of the kernel of each instruction but END.
    kernels : list of KernelOrigin
    tasks : tuple of Task
        Tasks in the order in which the device does them.
    constants : dict of str to array
        Contents of tensors that never change.
    """

    index: int
    core: CoreSpec
    instructions: Program
    kernel_of: list[int]
    kernels: list[KernelOrigin]
    tasks: tuple[Task, ...]
    constants: dict[str, NDArray[np.float32]]

    def kernels_with(self, opcode: Opcode) -> list[int]:
        """Numbers of the kernels that have an instruction with an opcode, in ascending order."""
        places = self.instructions.places_of(opcode)
        return sorted({self.kernel_of[place] for place in places.tolist()})

    def image(self, parameters: Mapping[str, NDArray[np.float32]]) -> NDArray[np.uint8]:
        """Memory before the first step: program, parameters and constants; the rest is zero."""
        image = np.zeros(self.memory_bytes, np.uint8)
        program = np.frombuffer(self.instructions.encode(), np.uint8)
        image[self.entry : self.entry + program.size] = program
        self.set_parameters(image, parameters)
        for tensor, values in self.constants.items():
            self.write(image, tensor, values)
        return image
