"""A device of PYNQ in front of another transport."""

import numpy as np


def pynq_device(inner):
    """Make a device whose registers and memory are those of a transport."""
    from pynq.buffer import PynqBuffer
    from pynq.pl_server.device import Device

    class Behind(Device):
        """PYNQ's own classes read registers and flush buffers through these functions."""

        _probe_priority_ = 10_000

        def __init__(self):
            super().__init__("behind")
            self.capabilities = {"REGISTER_RW": True}

        def read_registers(self, address, length):
            inner.wait(lambda: True, 0)  # the device goes on meanwhile
            return inner.read_register(address - self.base).to_bytes(length, "little")

        def write_registers(self, address, data):
            inner.write_register(address - self.base, int.from_bytes(bytes(data), "little"))

        def allocate(self, shape, dtype, **kwargs):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            address = inner.allocate(size)
            buffer = PynqBuffer(shape, dtype, device=self, device_address=address, bo=address)
            self.host[address] = buffer
            return buffer

        def flush(self, bo, offset, pointer, size):
            whole = np.asarray(self.host[bo])
            inner.write(bo + offset, whole[offset : offset + size])

        def invalidate(self, bo, offset, pointer, size):
            whole = np.asarray(self.host[bo])
            whole[offset : offset + size] = inner.read(bo + offset, size)

    device = Behind()
    device.base, device.host = 0xA0000000, {}
    return device
