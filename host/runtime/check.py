"""Two backends beside each other: the first difference between them, by layer, tensor and index.

Backends that compute the same bits (`ExactCheck`) are compared in all bytes of all devices'
memories after every step. Of what differs, the tensor is named that was computed first: by the
task's place in the order of all devices, then by the kernel's in the program. A tensor whose place
a later micro-batch took over counts as the later one's, since that is what memory has.

PyTorch with the core's numbers (`NumericCheck`) adds in another order, so that now and then a value
lies on the other side of a rounding border; loss and gradients are held to a tolerance, each step
from the same state.

A difference of that kind is less than what MXINT8 rounding itself does to a product. An element of
a block with largest magnitude ``m`` is rounded to a multiple of at most ``m / 64``: an error of
``m / (64 * sqrt(12))`` (root mean square), where ``m`` is at most ``sqrt(32)`` times that of the
block's elements. Both operands are rounded, hence `MX_NOISE`. A loss is computed in FP32 from
logits that are; it is held to BF16's resolution.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.host.backends.base import Backend
from fpgapipe.hw.hls_models.isa.instructions import encode, span_of
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.memory.memory_map import LASTING, LOSS
from fpgapipe.lowering.program.hazards import WRITES
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.units.step_options import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepResult, StepRunner, Values
    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram

    Memories = Sequence[NDArray[np.uint8]]

MX_NOISE = math.sqrt(2) * math.sqrt(MX_BLOCK) / (64 * math.sqrt(12))
"""Relative error of a product of MXINT8 operands, at most to be expected: 3.6 %."""

LOSS_NOISE = 2.0**-8
"""Of a loss, or of 1 if that is more."""

FADES = 2.0**-20
"""Gradients below so much of a parameter's norm count as that much: they hardly change it."""

REMAINDER = 2.0**-12
"""Gradients below so much of the step's largest norm count as that much. A bias in front of a batch
normalisation has the gradient zero; what is computed is the remainder of a sum that cancels, and
depends on the order of the sum."""

PROGRAM = "program"
"""Named as the tensor where programs differ; the index is then the instruction's."""


@dataclass(frozen=True)
class Difference:
    """Where two backends differ first.

    Attributes
    ----------
    step, device : int
    layer : str
        Empty for what belongs to none.
    tensor : str
    index : tuple of int
        Of the first element that differs: of parameters and what goes with them as the network has
        them, of features as they lie in memory, channels last.
    values : tuple of str
        Of the two: a number and its bits.
    backends : tuple of str
    count : int
        Differing bytes of this device, or elements of this tensor where a tolerance is exceeded.
    """

    step: int
    device: int
    layer: str
    tensor: str
    index: tuple[int, ...]
    values: tuple[str, str]
    backends: tuple[str, str]
    count: int

    def __str__(self) -> str:
        """One line."""
        layer = f"layer {self.layer}, " if self.layer else ""
        one, other = (
            f"{value} in {backend}"
            for value, backend in zip(self.values, self.backends, strict=True)
        )
        return (
            f"step {self.step}, device {self.device}, {layer}tensor {self.tensor}"
            f"{list(self.index)}: {one}, {other} ({self.count:,} differ)"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Check(ABC):
    """Compares a backend with a second one.

    Parameters
    ----------
    backend : StepRunner
        The second.
    """

    def __init__(self, backend: StepRunner) -> None:
        self.backend = backend

    @abstractmethod
    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: NDArray[np.integer],
        scalars: Sequence[int],
    ) -> Difference | None:
        """Do in the second backend the step that the first has done, and compare.

        Parameters
        ----------
        step : int
        first : Backend
        result : StepResult
            Of the first.
        before : mapping
            State before the step.
        inputs, labels, scalars
            Of the step.
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
        """The same for a mini-batch of inference and its results."""


class ExactCheck(Check):
    """Compares all bytes of all memories; both backends go on from their own."""

    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: NDArray[np.integer],
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


class NumericCheck(Check):
    """Compares loss and gradients within a tolerance, each step from the first backend's state.

    Attributes
    ----------
    worst : dict of str to float
        Of the loss and of each gradient, the largest error so far, as a share of its tolerance.
    """

    def __init__(self, backend: StepRunner) -> None:
        super().__init__(backend)
        self.worst: dict[str, float] = {}

    def after(
        self,
        step: int,
        first: StepRunner,
        result: StepResult,
        before: Values,
        inputs: Values,
        labels: NDArray[np.integer],
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""
        self.backend.set_state(before)
        other = self.backend.step(inputs, labels, scalars)
        one_by_one = first.parameters(".gradient"), self.backend.parameters(".gradient")
        limit = LOSS_NOISE * max(1.0, abs(other.loss))
        if self._exceeds(LOSS, abs(result.loss - other.loss) / limit):
            losses = f"{result.loss:.9g}", f"{other.loss:.9g}"
            return self._difference(step, first, None, "", LOSS, (0,), losses, 1)
        sizes = [float(np.linalg.norm(each.astype(np.float64))) for each in one_by_one[1].values()]
        remainder = REMAINDER * max(sizes, default=0.0)
        for layer in reversed(list(first.graph.layers.values())):  # the order of the backward pass
            for parameter in layer.parameters:
                name = parameter.name
                if name not in one_by_one[0]:
                    continue
                found, expected = (each[name] for each in one_by_one)
                fades = FADES * float(np.linalg.norm(before[name].astype(np.float64)))
                least = max(fades, remainder)
                tensor = f"{name}.gradient"
                at = self._beyond(tensor, found, expected, least)
                if at is not None:
                    values = f"{found[at]:.9g}", f"{expected[at]:.9g}"
                    count = int(np.count_nonzero(found != expected))
                    return self._difference(
                        step, first, name, layer.name, tensor, at, values, count
                    )
        return None

    def after_inference(
        self,
        step: int,
        first: StepRunner,
        results: Values,
        inputs: Values,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""
        others, _ = self.backend.infer(inputs, scalars)
        for name, expected in others.items():
            found = results[name].reshape(expected.shape)
            at = self._beyond(name, found, expected, 0.0)
            if at is not None:
                values = f"{found[at]:.9g}", f"{expected[at]:.9g}"
                count = int(np.count_nonzero(found != expected))
                return self._difference(step, first, None, name, name, at, values, count)
        return None

    def _beyond(
        self,
        name: str,
        found: NDArray[np.float32],
        expected: NDArray[np.float32],
        least: float,
    ) -> tuple[int, ...] | None:
        """Where values differ most, if as a whole they differ by more than `MX_NOISE`."""
        error = np.abs(found.astype(np.float64) - expected)
        limit = MX_NOISE * max(float(np.linalg.norm(expected.astype(np.float64))), least)
        # Both are nothing where nothing has a gradient.
        share = float(np.linalg.norm(error) / np.float64(limit)) if error.any() else 0.0
        if not self._exceeds(name, share):
            return None
        at = int(np.nan_to_num(error, nan=np.inf).argmax())
        return tuple(int(each) for each in np.unravel_index(at, error.shape))

    def _difference(
        self,
        step: int,
        first: StepRunner,
        parameter: str | None,
        layer: str,
        tensor: str,
        index: tuple[int, ...],
        values: tuple[str, str],
        count: int,
    ) -> Difference:
        names = (first.name, self.backend.name)
        device = _device_of(first, parameter)
        return Difference(step, device, layer, tensor, index, values, names, count)

    def _exceeds(self, name: str, share: float) -> bool:
        self.worst[name] = max(self.worst.get(name, 0.0), share)
        return not share <= 1  # what is no number does, too


def _device_of(backend: StepRunner, parameter: str | None) -> int:
    """The device that has a parameter, or the last one; PyTorch has but one."""
    if not isinstance(backend, Backend):
        return 0
    parts = backend.pipeline.parts
    return next((part.index for part in parts if parameter in part.stored), parts[-1].index)


def first_difference(
    step: int,
    pipeline: PipelineProgram,
    memories: tuple[Memories, Memories],
    backends: tuple[str, str],
) -> Difference | None:
    """Compare the memories of all devices; what was computed first of all that differs."""
    ranks = task_ranks([part.tasks for part in pipeline.parts])
    best: tuple[tuple[int, int], DeviceProgram, str, int, int] | None = None
    for part, one, other in zip(pipeline.parts, *memories, strict=True):
        if np.array_equal(one, other):
            continue
        differing = np.flatnonzero(one != other)
        tensors = _tensors_at(part, differing)
        made_by = _writers(part, tensors)
        for name, address in tensors.items():
            kernel = made_by.get(name)
            # What no instruction writes was different before the step.
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
    """For the tasks of each device a number that is greater than those of all it depends on."""
    backward = {TaskKind.B, TaskKind.DX}
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
                    if 0 <= before < len(lanes):
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
    """Tensors that have some of the bytes, each with the first of them."""
    whole = [place for place in part.places.items() if place[0] not in SUFFIXES]
    arenas = [place for place in part.places.items() if place[0] in SUFFIXES]
    found: dict[str, int] = {}
    left = addresses
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
    """For each tensor that an instruction writes, the kernel of the last one."""
    places = sorted(
        (part.places[name].begin, part.places[name].end, name)
        for name in tensors
        if name in part.places
    )
    ends = list(accumulate((end for _, end, _ in places), max))
    found: dict[str, int] = {}
    for instruction, kernel in zip(part.instructions, part.kernel_of, strict=False):
        if instruction.opcode not in WRITES:
            continue
        begin, end = span_of(instruction)
        for at in range(bisect_left(ends, begin + 1), len(places)):
            if places[at][0] >= end:
                break
            found[places[at][2]] = kernel
    return found


def _stored(part: DeviceProgram, name: str) -> tuple[str, Stored] | None:
    """The parameter to which a tensor belongs, and how it lies in memory."""
    for suffix in (*LASTING, SUFFIXES["gradients"]):
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and stem in part.stored:
            return stem, part.stored[stem]
    return None


def _element(part: DeviceProgram, name: str, address: int) -> tuple[tuple[int, ...], int, int]:
    """Index, first byte and bytes of the element that has a byte."""
    if name not in part.places:
        starts = [0, *accumulate(len(encode([each])) for each in part.instructions)]
        number = max(bisect_left(starts, address - part.entry + 1) - 1, 0)
        return (number,), address, 1
    begin = part.places[name].begin
    stored, tensor = _stored(part, name), part.tensors.get(name)
    size = 4 if stored or tensor is None else tensor.element_bytes
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
    """A number and its bits."""
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
