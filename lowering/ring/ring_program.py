"""All programs of a ring of models: a training step of each model, and the hops between them.

Every device has the same memory map. Each model has a part of it, with its program and all tensors
of a training step, on every device; but only the device that a model visits has the present values.
A hop sends what lasts from step to step (parameters, statistics and the optimiser's values) to the
same addresses of the next device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.lowering.memory.placed import Placed, page
from fpgapipe.lowering.placement import End, Placement
from fpgapipe.lowering.ring.hop import BUFFER_BYTES, hop_programs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram

IDLE = Program.of([Instruction(Opcode.END)])
"""Program of a device that no model visits."""


@dataclass(frozen=True)
class Code:
    """A program, and the address at which it lies in a device's memory."""

    instructions: Program
    entry: int


@dataclass(frozen=True)
class RingProgram:
    """The programs of a ring.

    Attributes
    ----------
    core : CoreSpec
        Core of every device.
    num_devices : int
    models : tuple of DeviceProgram
        A training step of each model, each in its own part of the memory.
    lasting : tuple of tuple of Placed
        For each model, the places of all that lasts from step to step.
    hops : tuple of tuple of Code
        For each number of hops before this one, modulo the number of devices, the program of each
        device.
    idle : Code
        Program that does nothing.
    memory_bytes : int
        Bytes of memory that a device needs.
    """

    core: CoreSpec
    num_devices: int
    models: tuple[DeviceProgram, ...]
    lasting: tuple[tuple[Placed, ...], ...]
    hops: tuple[tuple[Code, ...], ...]
    idle: Code
    memory_bytes: int

    @property
    def wiring(self) -> tuple[tuple[End, End], ...]:
        """Pairs of link ends that are connected, each end given as (device, link)."""
        return Placement.chain(self.num_devices).wires

    def visitor(self, device: int, rounds: int) -> int | None:
        """Number of the model that is at a device after so many rounds; None if none is."""
        return visitor(device, rounds, len(self.models), self.num_devices)

    def step_of(self, device: int, rounds: int) -> Code:
        """Program of a mini-batch on a device after so many rounds."""
        model = self.visitor(device, rounds)
        if model is None:
            return self.idle
        return Code(self.models[model].instructions, self.models[model].entry)

    def hop_of(self, rounds: int) -> tuple[Code, ...]:
        """Programs of all devices for the hop after `rounds` rounds and as many hops."""
        return self.hops[rounds % self.num_devices]

    def images(
        self, parameters: Sequence[Mapping[str, NDArray[np.float32]]]
    ) -> list[NDArray[np.uint8]]:
        """Memories before the first round, in which model `k` is at device `k`.

        Parameters
        ----------
        parameters : sequence of mapping of str to array
            Initial parameters of each model.
        """
        common = np.zeros(self.memory_bytes, np.uint8)
        for model, values in zip(self.models, parameters, strict=True):
            begin = _begin(model)
            common[begin : model.memory_bytes] = model.image(values)[begin:]
        for places in self.lasting:
            for place in places:
                common[place.begin : place.end] = 0
        found = []
        for device in range(self.num_devices):
            memory = common.copy()
            codes = [self.idle, *(hop[device] for hop in self.hops)]
            for code in codes:
                encoded = np.frombuffer(code.instructions.encode(), np.uint8)
                memory[code.entry : code.entry + encoded.size] = encoded
            if device < len(self.models):
                self.models[device].set_parameters(memory, parameters[device])
            found.append(memory)
        return found


def build_ring(programs: Sequence[DeviceProgram], core: CoreSpec, num_devices: int) -> RingProgram:
    """Put the programs of several models on one device together to those of a ring of devices.

    Parameters
    ----------
    programs : sequence of DeviceProgram
        A training step of each model on a device alone, at most as many as there are devices.
    core : CoreSpec
        Core of every device, with links to the devices before and after it.
    num_devices : int

    Raises
    ------
    UserError
        If there are fewer than two devices, or more models than devices.
    """
    if num_devices < 2 or len(programs) > num_devices:
        raise UserError(
            f"a ring has at least 2 devices and at most as many models at once, not {len(programs)}"
            f" models on {num_devices} devices"
        )
    at = 0
    models = []
    for program in programs:
        models.append(moved(program, at))
        at += page(program.memory_bytes)
    lasting = tuple(_lasting(each) for each in models)
    buffers, at = at, at + BUFFER_BYTES
    idle = Code(IDLE, at)
    at = page(at + IDLE.num_bytes)
    hops = []
    for rounds in range(num_devices):
        at_device = [visitor(n, rounds, len(models), num_devices) for n in range(num_devices)]
        sends = [() if model is None else lasting[model] for model in at_device]
        codes = hop_programs(sends, buffers)
        hops.append(tuple(Code(code, at) for code in codes))
        at = page(at + max(code.num_bytes for code in codes))
    return RingProgram(core, num_devices, tuple(models), lasting, tuple(hops), idle, at)


def visitor(device: int, rounds: int, num_models: int, num_devices: int) -> int | None:
    """Number of the model that is at a device after so many rounds; None if none is."""
    model = (device - rounds) % num_devices
    return model if model < num_models else None


def moved(program: DeviceProgram, distance: int) -> DeviceProgram:
    """The same program with all its tensors, `distance` bytes further back in the memory.

    Parameters
    ----------
    program : DeviceProgram
    distance : int
        Bytes, a multiple of a page, so that bursts stay the same.
    """
    assert distance == page(distance), "a program is moved by whole pages"
    return replace(
        program,
        entry=program.entry + distance,
        memory_bytes=program.memory_bytes + distance,
        places={
            name: Placed(place.begin + distance, place.end + distance)
            for name, place in program.places.items()
        },
        instructions=program.instructions.moved(distance),
    )


def _begin(program: DeviceProgram) -> int:
    """First byte of a program's part of the memory."""
    return min(place.begin for place in program.places.values())


def _lasting(program: DeviceProgram) -> tuple[Placed, ...]:
    """Places of all that lasts from step to step, those that touch each other joined."""
    names = [name for name, _ in program.lasting()]
    found: list[Placed] = []
    for place in sorted((program.places[name] for name in names), key=lambda each: each.begin):
        begin = place.begin
        if found and begin - found[-1].end < WORD_BYTES:
            begin = found.pop().begin
        found.append(Placed(begin, place.end))
    return tuple(found)
