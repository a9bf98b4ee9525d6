"""The memory of a device: what a write destroys where it was not meant to be."""

import memory_faults
import numpy as np
import pytest
from step_cases import SMALL_CORE

from fpgapipe.host.driver.device_memory import DeviceMemory, MemoryFault
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport


def test_a_load_that_destroys_some_of_itself_is_found():
    cluster = ModelledCluster([SMALL_CORE], [1 << 16], [])
    way = memory_faults.WrongMemory(ModelledTransport(cluster, 0), memory_faults.elsewhere, 2, [0])
    memory = DeviceMemory(way, way.allocate(1 << 15), 1 << 15, "card")
    image = np.random.default_rng(0).integers(0, 256, 1 << 15, dtype=np.uint8)
    memory.load(image, 1 << 14, [])
    memory[1 << 13 : (1 << 13) + 64] = np.arange(64, dtype=np.uint8)
    with pytest.raises(MemoryFault, match=r"^card: .* changed while other places were written"):
        memory.settle()
