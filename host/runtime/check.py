"""Compares two backends and finds their first difference, by layer, tensor and index.

Backends that compute the same bits (`ExactCheck`) are compared in all bytes of all devices'
memories after every step. Of all tensors that differ, the one that was computed first is reported:
first by the rank of its task in the order of all devices, then by the place of its kernel in the
program. Where a later micro-batch has reused the memory of a tensor, the tensor of the later
micro-batch is reported, since memory has its values.

`fpgapipe.host.runtime.numeric_check` compares with PyTorch, whose last bits differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.host.backends.base import Backend
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.isa.program import WRITES
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.lowering.memory.memory_map import LASTING
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.units.step_options import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepResult, StepRunner, Values
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.lowering.memory.memory_map import Labels, Stored
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram

    Memories = Sequence[NDArray[np.uint8]]

PROGRAM = "program"
"""Name reported as the tensor where programs differ; the index is then that of the instruction."""


@dataclass(frozen=True)
class Difference:
    """The first difference of two backends.

    Attributes
    ----------
    step, device : int
    layer : str
        Name of the layer; empty if the tensor belongs to none.
    tensor : str
        Name of the tensor.
    index : tuple of int
        Index of an element: in `ExactCheck` the first that differs, in `NumericCheck` the one that
        differs most. For a parameter, its gradient and its optimiser state, it is an index in the
        shape that the network has; for activations, in their order in memory, channels last.
    values : tuple of str
        Value of this element in either backend, in `ExactCheck` with its bits.
    backends : tuple of str
        Names of the backends.
    count : int
        Number of bytes of this device that differ, or, where a tolerance is exceeded, of elements
        of this tensor that differ.
    note : str
        What the difference shows, if more is known than the values.
    """

    step: int
    device: int
    layer: str
    tensor: str
    index: tuple[int, ...]
    values: tuple[str, str]
    backends: tuple[str, str]
    count: int
    note: str = ""

    def __str__(self) -> str:
        """The difference as one line of text."""
        layer = f"layer {self.layer}, " if self.layer else ""
        one, other = (
            f"{value} in {backend}"
            for value, backend in zip(self.values, self.backends, strict=True)
        )
        return (
            f"step {self.step}, device {self.device}, {layer}tensor {self.tensor}"
            f"{list(self.index)}: {one}, {other} ({self.count:,} differ)"
            + (f"; {self.note}" if self.note else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "note" or value}


class Check(ABC):
    """Compares a backend with a second one.

    Parameters
    ----------
    backend : StepRunner
        The second backend.
    """

    def __init__(self, backend: StepRunner) -> None:
        self.backend = backend

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Add to a snapshot of the first backend what the check needs to go on from it."""
        return snapshot

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has what the check needs to go on from it."""
        return True

    def take(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot that fits: the first backend does so in its next step."""
        return

    @abstractmethod
    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
    ) -> Difference | None:
        """Repeat in the second backend the step that the first has done, and compare.

        Parameters
        ----------
        step : int
            Number of the step.
        first : StepRunner
            The first backend.
        result : StepResult
            Result of the first backend.
        before : mapping
            State before the step.
        inputs, labels, scalars
            Arguments of the step, as for `StepRunner.step`.
        """

    @abstractmethod
    def after_inference(
        self,
        step: int,
        first: StepRunner,
        results: Values,
        inputs: Values,
        scalars: Sequence[int],
    ) -> Difference | None:
        """Repeat a mini-batch of inference in the second backend, and compare the results."""


class ExactCheck(Check):
    """Compares all bytes of all memories; each backend continues from its own memories.

    Some bytes, such as those behind the last channel of a tensor, come from what earlier programs
    have left in a core. So both backends must begin alike, and a snapshot keeps the model as well.
    """

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """See `Check`."""
        return self.backend.keep(snapshot) if isinstance(self.backend, ModelBackend) else snapshot

    def fits(self, snapshot: Snapshot) -> bool:
        """See `Check`."""
        return isinstance(self.backend, ModelBackend) and bool(snapshot.model_states)

    def take(self, snapshot: Snapshot) -> None:
        """See `Check`."""
        assert isinstance(self.backend, ModelBackend), "the snapshot fits"
        self.backend.take(snapshot)

    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""
        self.backend.step(inputs, labels, scalars)
        return self._compared(step, first)

    def after_inference(
        self,
        step: int,
        first: StepRunner,
        results: Values,
        inputs: Values,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""
        self.backend.infer(inputs, scalars)
        return self._compared(step, first)

    def _compared(self, step: int, first: StepRunner) -> Difference | None:
        assert isinstance(first, Backend), "PyTorch has no memories of devices to compare"
        return first_difference(
            step,
            first.pipeline,
            (first.memories, self.backend.memories),
            (first.name, self.backend.name),
        )


def first_difference(
    step: int,
    pipeline: PipelineProgram,
    memories: tuple[Memories, Memories],
    backends: tuple[str, str],
) -> Difference | None:
    """Compare the memories of all devices; return the difference that was computed first."""
    ranks = task_ranks([part.tasks for part in pipeline.parts])
    best: tuple[tuple[int, int], DeviceProgram, str, int, int] | None = None
    for part, *pair in zip(pipeline.parts, *memories, strict=True):
        one, other = map(np.asarray, pair)  # a device's memory is read once
        if np.array_equal(one, other):
            continue
        differing = np.flatnonzero(one != other)
        tensors = _tensors_at(part, differing)
        made_by = _writers(part, tensors)
        for name, address in tensors.items():
            kernel = made_by.get(name)
            # A tensor that no instruction writes was different already before the step.
            rank = (-1, -1) if kernel is None else (ranks[part.index][_task(part, kernel)], kernel)
            if best is None or rank < best[0]:
                best = rank, part, name, address, differing.size
    if best is None:
        return None
    _, part, name, address, count = best
    kernel = _writers(part, {name: address}).get(name)
    index, begin, size = _element(part, name, address)
    values = tuple(
        _shown(memory[part.index][begin : begin + size], wide=size == 4) for memory in memories
    )
    layer = _layer_of(pipeline, part, name, kernel, index)
    return Difference(
        step, part.index, layer, name, index, (values[0], values[1]), backends, int(count)
    )


def task_ranks(lanes: Sequence[Sequence[Task]]) -> list[list[int]]:
    """Rank of each task of each device, which is greater than those of all tasks it depends on.

    A pass depends on that of the same micro-batch in the stage before or behind, if there is one.
    """
    backward = {TaskKind.B, TaskKind.DX}
    known = {
        (task.kind in backward, task.stage, task.microbatch) for lane in lanes for task in lane
    }
    done: dict[tuple[bool, int, int], int] = {}
    found: list[list[int]] = [[] for _ in lanes]
    moved = True
    while moved:
        moved = False
        for lane, ranks in zip(lanes, found, strict=True):
            while len(ranks) < len(lane):
                task = lane[len(ranks)]
                rank = 1 + (ranks[-1] if ranks else 0)
                is_backward = task.kind in backward
                if is_backward or task.kind is TaskKind.F:
                    before = task.stage + (1 if is_backward else -1)
                    if (is_backward, before, task.microbatch) in known:
                        needed = done.get((is_backward, before, task.microbatch))
                        if needed is None:
                            break
                        rank = max(rank, needed + 1)
                    done[is_backward, task.stage, task.microbatch] = rank
                ranks.append(rank)
                moved = True
    assert all(map(lambda ranks, lane: len(ranks) == len(lane), found, lanes)), "tasks must end"
    return found


def _task(part: DeviceProgram, kernel: int) -> int:
    return part.kernels[kernel].task


def _tensors_at(part: DeviceProgram, addresses: NDArray[np.intp]) -> dict[str, int]:
    """Tensors that contain some of these addresses, each with the first such address.

    Where tensors share a place, it belongs to the one that was written last.
    """
    alone = [place for place in part.places.items() if place[0] not in part.shared]
    whole = [place for place in alone if place[0] not in SUFFIXES]
    arenas = [place for place in alone if place[0] in SUFFIXES]
    found: dict[str, int] = {}
    is_left = np.ones(addresses.size, bool)
    for name in sorted(part.shared, key=part.shared.__getitem__, reverse=True):
        place = part.places[name]
        first, end = np.searchsorted(addresses, (place.begin, place.end))
        own = addresses[first:end][is_left[first:end]]
        if own.size:
            found[name] = int(own[0])
            is_left[first:end] = False
    left = addresses[is_left]
    for places in (whole, arenas):  # an arena has gaps between its tensors
        ordered = sorted(places, key=lambda each: each[1].begin)
        if not ordered:
            continue
        begins = np.array([place.begin for _, place in ordered])
        ends = np.array([place.end for _, place in ordered])
        at = np.searchsorted(begins, left, side="right") - 1
        inside = (at >= 0) & (left < ends[at])
        numbers, first = np.unique(at[inside], return_index=True)
        for number, address in zip(numbers, left[inside][first], strict=True):
            found[ordered[number][0]] = int(address)
        left = left[~inside]
    if left.size:
        found[PROGRAM] = int(left[0])
    return found


def _writers(part: DeviceProgram, tensors: dict[str, int]) -> dict[str, int]:
    """For each tensor that an instruction writes, the kernel of the last such instruction."""
    places = sorted(
        (part.places[name].begin, part.places[name].end, name)
        for name in tensors
        if name in part.places and name not in part.shared
    )
    ends = list(accumulate((end for _, end, _ in places), max))
    found = {name: part.shared[name] for name in tensors if name in part.shared}
    program = part.instructions
    begins, ends_of = program.spans
    for number in np.flatnonzero(np.isin(program.opcodes, list(WRITES))).tolist():
        begin, end, kernel = int(begins[number]), int(ends_of[number]), part.kernel_of[number]
        for at in range(bisect_left(ends, begin + 1), len(places)):
            if places[at][0] >= end:
                break
            found[places[at][2]] = kernel
    return found


def _stored(part: DeviceProgram, name: str) -> tuple[str, Stored] | None:
    """The parameter to which a tensor belongs, and its layout in memory; else None."""
    for suffix in (*LASTING, SUFFIXES["gradients"]):
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and stem in part.stored:
            return stem, part.stored[stem]
    return None


def _element(part: DeviceProgram, name: str, address: int) -> tuple[tuple[int, ...], int, int]:
    """Index, first address and size in bytes of the element that contains an address."""
    if name not in part.places:
        starts = [0, *np.cumsum(part.instructions.words * WORD_BYTES).tolist()]
        number = max(bisect_left(starts, address - part.entry + 1) - 1, 0)
        return (number,), address, 1
    begin = part.places[name].begin
    stored, tensor = _stored(part, name), part.tensors.get(name)
    size = (FP32 if stored or tensor is None else tensor.format).element_bytes
    flat = (address - begin) // size
    first = begin + flat * size
    if stored:
        lies = stored[1]
        moved = np.unravel_index(flat, tuple(lies.split[axis] for axis in lies.order))
        split = [0] * len(lies.order)
        for axis, at in zip(lies.order, moved, strict=True):
            split[axis] = int(at)
        flat = int(np.ravel_multi_index(split, lies.split))
        shape = lies.shape
    else:
        shape = tensor.shape if tensor else (flat + 1,)
    return tuple(int(at) for at in np.unravel_index(flat, shape)), first, size


def _shown(raw: NDArray[np.uint8], *, wide: bool) -> str:
    """Text of a number and its bits."""
    bits = raw[::-1].tobytes().hex()
    if wide:
        return f"{float(np.frombuffer(raw.tobytes(), '<f4')[0]):.9g} (0x{bits})"
    if raw.size == 2:  # BF16 is the upper half of FP32
        value = np.frombuffer(b"\0\0" + raw.tobytes(), "<f4")[0]
        return f"{float(value):.9g} (0x{bits})"
    return f"0x{bits}"


def _layer_of(
    pipeline: PipelineProgram,
    part: DeviceProgram,
    name: str,
    kernel: int | None,
    index: tuple[int, ...],
) -> str:
    if stored := _stored(part, name):
        for layer in pipeline.graph.layers.values():
            if any(parameter.name == stored[0] for parameter in layer.parameters):
                return layer.name
    if kernel is None and name == PROGRAM and index[0] < len(part.kernel_of):
        kernel = part.kernel_of[index[0]]
    return "" if kernel is None else part.kernels[kernel].layer
