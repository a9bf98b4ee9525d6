"""What one device runs: its core, its program, and where everything lies in its memory.

It is all that a run needs, so a build keeps it as data and no run lowers a network again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import encode
from fpgapipe.lowering.memory.memory_map import MemoryMap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.instructions import Instruction
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.schedule.schedule import Task


@dataclass(frozen=True)
class KernelOrigin:
    """What a kernel of a program was made for.

    Attributes
    ----------
    name : str
        Of the kernel.
    layer : str
        Whose work it does: a unit's last layer; of a transfer, the layer whose result crosses;
        ``loss`` and ``update`` of what belongs to no layer.
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
        Of the device, which is that of its stage.
    core : CoreSpec
    instructions : list of Instruction
        END is the last.
    kernel_of : list of int
        Of each instruction but END, the number of its kernel.
    kernels : list of KernelOrigin
    tasks : tuple of Task
        In the order in which the device does them.
    constants : dict of str to array
        Contents of tensors that never change.
    """

    index: int
    core: CoreSpec
    instructions: list[Instruction]
    kernel_of: list[int]
    kernels: list[KernelOrigin]
    tasks: tuple[Task, ...]
    constants: dict[str, NDArray[np.float32]]

    def image(self, parameters: Mapping[str, NDArray[np.float32]]) -> NDArray[np.uint8]:
        """Memory before the first step: program, parameters and constants; zeros elsewhere."""
        image = np.zeros(self.memory_bytes, np.uint8)
        program = np.frombuffer(encode(self.instructions), np.uint8)
        image[self.entry : self.entry + program.size] = program
        self.set_parameters(image, parameters)
        for tensor, values in self.constants.items():
            self.write(image, tensor, values)
        return image
