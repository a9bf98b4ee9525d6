"""The files of one device in a build: its description, its program, and its initial memory.

``device.json`` has everything but the large arrays of numbers: the core, the place of each tensor,
the origin of each kernel. ``program.bin`` has the bytes of the program in the device's memory.
``image.bin`` has the tensors that are not all zero before the first step, one after the other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from fpgapipe.errors import FileError
from fpgapipe.files import open_file, read_bytes
from fpgapipe.hw.hls_models.isa.instructions import decode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.json_faults import faults_of
from fpgapipe.lowering.memory.memory_map import MemoryMap
from fpgapipe.lowering.program.device_program import DeviceProgram, KernelOrigin
from fpgapipe.lowering.schedule.schedule import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

DEVICE, PROGRAM, IMAGE = "device.json", "program.bin", "image.bin"

MAX_BYTES = 1 << 30
"""Most bytes of a program or description; a larger one is not read."""


@dataclass(frozen=True)
class Segment:
    """The bytes of one tensor in a device's memory.

    Attributes
    ----------
    tensor : str
        Name of the tensor.
    address, size_bytes : int
        First byte in the device's memory, and number of bytes.
    """

    tensor: str
    address: int
    size_bytes: int


@dataclass(frozen=True)
class DeviceFile:
    """Contents of ``device.json``.

    Attributes
    ----------
    index : int
        Index of the device in the pipeline.
    design : str
        SHA-256 of all that determines the program (`Design.digest`).
    core : CoreSpec
    registers : dict of str to int
        Values of the control registers before the program starts.
    map : MemoryMap
    kernels : list of KernelOrigin
    kernel_runs : list of (int, int)
        Index of the kernel and number of instructions, for each run of consecutive instructions of
        one kernel.
    tasks : tuple of Task
    constants : tuple of str
        Names of the tensors that never change.
    segments : tuple of Segment
        Segments of ``image.bin``, in order.
    """

    index: int
    design: str
    core: CoreSpec
    registers: dict[str, int]
    map: MemoryMap
    kernels: list[KernelOrigin]
    kernel_runs: list[tuple[int, int]]
    tasks: tuple[Task, ...]
    constants: tuple[str, ...]
    segments: tuple[Segment, ...]


class _Segments(BaseModel):
    """The part of ``device.json`` that `read_values` uses."""

    segments: tuple[Segment, ...]


_FILES = TypeAdapter(DeviceFile)


def device_files(
    program: DeviceProgram, parameters: Mapping[str, NDArray[np.float32]], design: str
) -> Iterator[tuple[str, list[bytes | memoryview]]]:
    """Names and contents of the three files of a device.

    Parameters
    ----------
    program : DeviceProgram
    parameters : mapping of str to array
        Initial values of at least the parameters that the device has.
    design : str
        SHA-256 of all that determines the program (`Design.digest`).
    """
    yield PROGRAM, [program.instructions.encode()]
    memory = np.zeros(program.memory_bytes, np.uint8)
    program.set_parameters(memory, parameters)
    for tensor, values in program.constants.items():
        program.write(memory, tensor, values)
    segments = []
    pieces: list[bytes | memoryview] = []
    for tensor in _lasting(program):
        place = program.places[tensor]
        part = memory[place.begin : place.end]
        if part.any():
            pieces.append(part.data)
            segments.append(Segment(tensor, place.begin, part.size))
    yield IMAGE, pieces
    described = DeviceFile(
        program.index,
        design,
        program.core,
        {"PROGRAM": program.entry, "MEMORY_BASE": 0, "MEMORY_LIMIT": program.memory_bytes},
        MemoryMap(**{each.name: getattr(program, each.name) for each in fields(MemoryMap)}),
        program.kernels,
        [(kernel, len(list(run))) for kernel, run in itertools.groupby(program.kernel_of)],
        tuple(program.tasks),
        tuple(program.constants),
        tuple(segments),
    )
    yield DEVICE, [_FILES.dump_json(described, indent=1) + b"\n"]


def _lasting(program: DeviceProgram) -> list[str]:
    """Tensors that may have values other than zero before the first step, sorted by address."""
    tensors = [*program.stored, *program.constants]
    return sorted(tensors, key=lambda name: program.places[name].begin)


def read_values(
    folder: Path, program: DeviceProgram, limit_bytes: int
) -> dict[str, NDArray[np.float32]]:
    """Read the initial values of a device's parameters from its memory image.

    Only the values are taken from the files; where they lie in memory is taken from the program.

    Parameters
    ----------
    folder : Path
    program : DeviceProgram
    limit_bytes : int
        Most bytes of the description; a larger one is refused.

    Raises
    ------
    FileError
        If the files do not belong to such a program, or a value is not finite.
    """
    try:
        data = read_bytes(folder / DEVICE, limit_bytes)
        segments = _Segments.model_validate_json(data).segments
    except ValidationError as error:
        raise FileError(folder / DEVICE, faults_of(error)) from None
    known = {
        name: Segment(name, program.places[name].begin, program.places[name].size_bytes)
        for name in _lasting(program)
    }
    order = [name for name in known if name in {each.tensor for each in segments}]
    if [known.get(each.tensor) for each in segments] != list(segments) or order != [
        each.tensor for each in segments
    ]:
        raise FileError(folder / DEVICE, ["has segments that its program does not have"])
    memory = np.zeros(program.memory_bytes, np.uint8)
    _read_image(folder / IMAGE, segments, memory)
    found = program.parameters(memory)
    faults = [f"parameter {name} must be finite" for name in found if not _finite(found[name])]
    if faults:
        raise FileError(folder / IMAGE, faults[:20])
    return found


def _finite(values: NDArray[np.float32]) -> bool:
    return bool(np.isfinite(values).all())


def read_device(folder: Path) -> tuple[DeviceProgram, dict[str, NDArray[np.float32]]]:
    """Read the program of a device, and the initial values of its parameters.

    Raises
    ------
    FileError
        If a file is missing, is malformed, or does not agree with the others.
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
        instructions=Program.of(instructions),
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
