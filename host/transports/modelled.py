"""The transport to bit-exact models, behind the registers that a core has.

The models know no cycles: their counters of cycles stay 0. All programs that were started run, to
their ends, when one of them is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.host.driver.allocation import Allocation
from fpgapipe.host.driver.transport import Transport, TransportError
from fpgapipe.hw.hls_models.isa.instructions import (
    ErrorCode,
    Instruction,
    Opcode,
    ProgramError,
    decode,
)
from fpgapipe.hw.hls_models.isa.vector_op import NUM_SCALARS
from fpgapipe.hw.hls_models.model.cluster import ClusterDeadlock, run_cluster
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.registers import DATA_BITS, Kind, Register, RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState
from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES, TICK_CYCLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

    End = tuple[int, int]

_NOTHING = [Instruction(Opcode.END)]
"""Program of a device that was not started."""


class ModelledCluster:
    """Models of several devices and of the links between them.

    Parameters
    ----------
    cores : sequence of CoreSpec
        Core of each device.
    memory_bytes : sequence of int
        Size of each device's memory.
    wiring : sequence of pairs of (device, link)
        Pairs of link ends that are connected.
    """

    def __init__(
        self,
        cores: Sequence[CoreSpec],
        memory_bytes: Sequence[int],
        wiring: Sequence[tuple[End, End]],
    ) -> None:
        self.devices = [
            _Device(_Model(core, np.zeros(size, np.uint8)))
            for core, size in zip(cores, memory_bytes, strict=True)
        ]
        self._wiring = list(wiring)
        for one, other in wiring:
            for (number, link), peer in ((one, other), (other, one)):
                self.devices[number].peers[link] = self.devices[peer[0]], peer[1]

    def advance(self) -> None:
        """Run all programs that were started, if they can run to their ends."""
        running = [device for device in self.devices if device.running]
        if not any(device.is_new for device in running):
            return  # none was started since the models found that they wait for ever
        for device in running:
            device.is_new = False
        try:
            programs = [device.program() if device.running else _NOTHING for device in self.devices]
            run_cluster([device.model for device in self.devices], programs, self._wiring)
        except ClusterDeadlock:
            return  # as devices do, the models wait for ever
        except _Stopped as stopped:
            stopped.device.end(stopped.code, stopped.index)
            return
        for device in running:
            device.end()


class _Stopped(Exception):
    """A device stops with an error."""

    def __init__(self, device: _Device, code: ErrorCode, index: int) -> None:
        super().__init__()
        self.device, self.code, self.index = device, code, index


class _Model(CoreModel):
    """A model whose errors name the device."""

    device: _Device

    def run(self, program: Sequence[Instruction], start: int = 0) -> int:
        """See `CoreModel`."""
        try:
            return super().run(program, start)
        except CoreError as error:
            raise _Stopped(self.device, error.code, error.index) from None

    def catch_up(self) -> bool:
        """See `CoreModel`."""
        try:
            return super().catch_up()
        except CoreError as error:
            raise _Stopped(self.device, error.code, error.index) from None


class _Device:
    """A model with its registers."""

    def __init__(self, model: _Model) -> None:
        self.model = model
        model.device = self
        self.registers = RegisterMap(model.spec)
        self._at = {register.offset: register for register in self.registers}
        self.values = {register.offset: register.reset for register in self.registers}
        self._resets = {f"LINK{link}_CONTROL": link for link in range(len(model.links))}
        self.peers: dict[int, tuple[_Device, int]] = {}
        self.running = self.is_new = False

    def value(self, name: str) -> int:
        return self.values[self.registers.offset(name)]

    def read(self, offset: int) -> int:
        register = self._register(offset)
        if register.name.endswith("_STATUS") and register.name.startswith("LINK"):
            return int(self._link_state(int(register.name[4])))
        if register.name.endswith("_CLOCK"):
            return METER_CYCLES // TICK_CYCLES | register.field("known").mask
        if register.name.startswith("QUEUE") and register.name.endswith("_WAIT"):
            return register.field("empty").mask
        return 0 if register.kind is Kind.COMMAND else self.values[offset]

    def _link_state(self, link: int) -> LinkState:
        if not self.value(f"LINK{link}_ENABLE"):
            return LinkState.OFF
        if link not in self.peers:
            return LinkState.HELLO
        device, other = self.peers[link]
        if device.model.spec.links[other] != self.model.spec.links[link]:
            return LinkState.MISMATCH
        return LinkState.UP if device.value(f"LINK{other}_ENABLE") else LinkState.HELLO

    def write(self, offset: int, value: int) -> None:
        register = self._register(offset)
        if register.kind is Kind.STORED:
            self.values[offset] = value & register.writable
        elif register.name == "CONTROL":
            self._command({field.name for field in register.fields if value & field.mask})
        elif register.name in self._resets and value & register.field("reset").mask:
            self._reset(self._resets[register.name])

    def _register(self, offset: int) -> Register:
        if offset not in self._at:
            raise TransportError(f"there is no register at {offset:#x}")
        return self._at[offset]

    def _command(self, commands: set[str]) -> None:
        if "clear_status" in commands:
            self._status("idle" if not self.running else "running")
        if "clear_counters" in commands:
            for register in self.registers:
                if register.kind in (Kind.COUNTER_LO, Kind.COUNTER_HI):
                    self.values[register.offset] = 0
        if "abort" in commands and self.running:
            self.running = False
            self._status("idle")
            self._forget()
        if "start" in commands and not self.running:
            self.running = self.is_new = True
            self._status("running")

    def _forget(self) -> None:
        """Drop what a program has left in the links."""
        for link in range(len(self.model.links)):
            self._reset(link)
        self.model.late.clear()

    def _reset(self, link: int) -> None:
        """Drop the packets of a link."""
        port = self.model.links[link]
        for queue in (*port.out, *port.inbox):
            queue.clear()

    def _status(self, *names: str) -> None:
        register = self.registers["STATUS"]
        self.values[register.offset] = sum(register.field(name).mask for name in names)

    def program(self) -> list[Instruction]:
        """The program at the address in the registers, with the scalars that it reads."""
        pairs = {
            name: self.value(f"{name}_LO") | self.value(f"{name}_HI") << DATA_BITS
            for name in ("PROGRAM", "MEMORY_BASE", "MEMORY_LIMIT")
        }
        entry, limit = pairs["PROGRAM"], min(pairs["MEMORY_LIMIT"], self.model.memory.size)
        if not pairs["MEMORY_BASE"] <= entry < limit:
            raise _Stopped(self, ErrorCode.MEMORY_RANGE, 0)
        spec = self.model.spec
        if spec.vector:
            self.model.scalars[:] = [self.value(f"SCALAR{index}") for index in range(NUM_SCALARS)]
        try:
            return decode(
                self.model.memory[entry:limit].tobytes(),
                spec.num_engines,
                has_vector=spec.vector is not None,
                num_links=len(spec.links),
            )
        except ProgramError:
            raise _Stopped(self, ErrorCode.BAD_OPCODE, 0) from None

    def end(self, code: ErrorCode = ErrorCode.NONE, index: int = 0) -> None:
        """End the program, with an error if there is one."""
        self.running = False
        self._status("idle", "error" if code else "done")
        self.values[self.registers.offset("ERROR")] = int(code)
        self.values[self.registers.offset("ERROR_INDEX")] = index
        if code:
            self._forget()


class ModelledTransport(Transport):
    """Access to the model of one device.

    Parameters
    ----------
    cluster : ModelledCluster
    number : int
        Number of the device.
    base : int
        Address at which memory is given out, a multiple of 4096.
    """

    name = "model"

    def __init__(self, cluster: ModelledCluster, number: int, base: int = 0) -> None:
        self._cluster, self._device = cluster, cluster.devices[number]
        self._free = Allocation(base, self._device.model.memory.size)

    def close(self) -> None:
        """See `Transport`; there is nothing to release."""

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return self._device.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self._device.write(offset, value)

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        return self._free.take(size_bytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        self._device.model.memory[address : address + data.size] = data

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        return self._device.model.memory[address : address + size_bytes].copy()

    def wait(self, ended: Callable[[], bool], limit_s: float) -> bool:
        """Run all models; see `Transport`."""
        self._cluster.advance()
        return super().wait(ended, limit_s)

    def pause(self, pause_s: float) -> None:
        """Run all models; see `Transport`."""
        self._cluster.advance()
        super().pause(pause_s)
