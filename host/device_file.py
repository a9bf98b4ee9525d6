"""A device's part of a build as files: what describes it, its program, and its memory.

``device.json`` has everything but numbers in bulk: the core, where each tensor lies, what each
kernel is for. ``program.bin`` is the program as it lies in the memory; ``image.bin`` what else is
not zero there before the first step, one segment after the other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fpgapipe.errors import FileError
from fpgapipe.files import open_file, read_bytes
from fpgapipe.host.device_program import DeviceProgram, KernelOrigin
from fpgapipe.host.memory_map import MemoryMap
from fpgapipe.hw.hls_models.core_spec import CoreSpec
from fpgapipe.hw.hls_models.isa import decode, encode
from fpgapipe.partition.json_faults import faults_of
from fpgapipe.partition.schedule import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

DEVICE, PROGRAM, IMAGE = "device.json", "program.bin", "image.bin"

MAX_BYTES = 1 << 30
"""A larger program or description is not read."""


@dataclass(frozen=True)
class Segment:
    """Bytes of a device's memory: those of a tensor.

    Attributes
    ----------
    tensor : str
    address, size_bytes : int
        In the memory.
    """

    tensor: str
    address: int
    size_bytes: int


@dataclass(frozen=True)
class DeviceFile:
    """What ``device.json`` says.

    Attributes
    ----------
    index : int
        Of the device.
    core : CoreSpec
    registers : dict of str to int
        Settings before the program starts.
    map : MemoryMap
    kernels : list of KernelOrigin
    kernel_runs : list of (int, int)
        For each run of instructions of one kernel, the kernel and how many they are.
    tasks : tuple of Task
    constants : tuple of str
        Tensors that never change.
    segments : tuple of Segment
        Of ``image.bin``, in order.
    """

    index: int
    core: CoreSpec
    registers: dict[str, int]
    map: MemoryMap
    kernels: list[KernelOrigin]
    kernel_runs: list[tuple[int, int]]
    tasks: tuple[Task, ...]
    constants: tuple[str, ...]
    segments: tuple[Segment, ...]


_FILES = TypeAdapter(DeviceFile)


def write_device(
    folder: Path, program: DeviceProgram, parameters: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write the three files of a device.

    Parameters
    ----------
    folder : Path
        Is there.
    program : DeviceProgram
    parameters : mapping of str to array
        Initial values of at least those that the device has.
    """
    (folder / PROGRAM).write_bytes(encode(program.instructions))
    with (folder / IMAGE).open("wb") as file:
        segments = tuple(_write_image(file, program, parameters))
    described = DeviceFile(
        program.index,
        program.core,
        {"PROGRAM": program.entry, "MEMORY_BASE": 0, "MEMORY_LIMIT": program.memory_bytes},
        MemoryMap(**{each.name: getattr(program, each.name) for each in fields(MemoryMap)}),
        program.kernels,
        [(kernel, len(list(run))) for kernel, run in itertools.groupby(program.kernel_of)],
        tuple(program.tasks),
        tuple(program.constants),
        segments,
    )
    (folder / DEVICE).write_bytes(_FILES.dump_json(described, indent=1) + b"\n")


def _write_image(
    file: BinaryIO, program: DeviceProgram, parameters: Mapping[str, NDArray[np.float32]]
) -> Iterator[Segment]:
    """Write the tensors that are not zero, in the order of their addresses."""
    memory = np.zeros(program.memory_bytes, np.uint8)
    program.set_parameters(memory, parameters)
    for tensor, values in program.constants.items():
        program.write(memory, tensor, values)
    tensors = [*program.stored, *program.constants]
    for tensor in sorted(tensors, key=lambda name: program.places[name].begin):
        place = program.places[tensor]
        part = memory[place.begin : place.end]
        if part.any():
            file.write(part.data)
            yield Segment(tensor, place.begin, part.size)


def read_device(folder: Path) -> tuple[DeviceProgram, dict[str, NDArray[np.float32]]]:
    """Read the program of a device, and the initial values of its parameters.

    Raises
    ------
    FileError
        If a file is not what it should be.
    """
    described = _described(folder / DEVICE)
    memory = np.zeros(described.map.memory_bytes, np.uint8)
    _read_image(folder / IMAGE, described.segments, memory)
    core = described.core
    try:
        instructions = decode(
            read_bytes(folder / PROGRAM, MAX_BYTES),
            core.num_engines,
            has_vector=core.vector is not None,
            num_links=len(core.links),
        )
    except ValueError as error:
        raise FileError(folder / PROGRAM, [str(error)]) from None
    kernel_of = [kernel for kernel, count in described.kernel_runs for _ in range(count)]
    if len(kernel_of) != len(instructions) - 1:
        fault = f"{len(instructions) - 1:,} instructions, but {DEVICE} names {len(kernel_of):,}"
        raise FileError(folder / PROGRAM, [fault])
    program = DeviceProgram(
        **{each.name: getattr(described.map, each.name) for each in fields(MemoryMap)},
        index=described.index,
        core=core,
        instructions=instructions,
        kernel_of=kernel_of,
        kernels=described.kernels,
        tasks=described.tasks,
        constants={name: described.map.read(memory, name) for name in described.constants},
    )
    return program, program.parameters(memory)


def _described(path: Path) -> DeviceFile:
    try:
        return _FILES.validate_json(read_bytes(path, MAX_BYTES))
    except ValidationError as error:
        raise FileError(path, faults_of(error)) from None


def _read_image(path: Path, segments: Iterable[Segment], memory: NDArray[np.uint8]) -> None:
    with open_file(path, len(memory)) as file:
        for each in segments:
            part = memory[each.address : each.address + each.size_bytes]
            if file.readinto(part.data) != each.size_bytes:
                raise FileError(path, [f"ends before tensor {each.tensor!r}"])
        if file.read(1):
            raise FileError(path, [f"has more than the segments of {DEVICE}"])
