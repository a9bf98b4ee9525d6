"""Compares two backends and finds their first difference, by layer, tensor and index.

Backends that compute the same bits (`ExactCheck`) are compared in all bytes of all devices'
memories after every step. Of all tensors that differ, the one that was computed first is reported:
first by the rank of its task in the order of all devices, then by the place of its kernel in the
program. Where a later micro-batch has reused the memory of a tensor, the tensor of the later
micro-batch is reported, since memory has its values.

PyTorch with the core's number formats (`NumericCheck`) adds in another order, so that now and then
a value is rounded to another neighbour. Loss and gradients are compared within a tolerance, and
each step begins with the same state in both backends. Where weights are updated after each
micro-batch, memory has only the last one's gradients, so what the step has added to the momentum is
compared as well: the sum of the gradients of all micro-batches, the earlier ones discounted.

Such differences are smaller than the error that MXINT8 rounding itself causes in a product. An
element of a block with largest magnitude ``m`` is rounded to a multiple of at most ``m / 64``,
which causes an error of ``m / (64 * sqrt(12))`` (root mean square), where ``m`` is at most
``sqrt(32)`` times the root mean square of the block's elements. Both operands are rounded, hence
`MX_NOISE`. A loss is computed in FP32 from FP32 logits; its tolerance is BF16's resolution.

A sum whose terms cancel is less exact than that: the gradient of a bias in front of a
normalisation is zero, and so is that of the keys' bias in an attention, and what is computed is the
remainder of rounding errors. Where a tensor differs by more than its tolerance, PyTorch repeats the
step a few times with all values disturbed as another order of sums might, before they are rounded
to the formats, and the tensor may differ as far as it moves then, times `DISTURBED_SHARE`.
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
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.hw.hls_models.isa.instructions import encode, span_of
from fpgapipe.hw.hls_models.numerics.element_format import FP32
from fpgapipe.hw.hls_models.numerics.mx import MX_BLOCK
from fpgapipe.lowering.memory.memory_map import LASTING, LOSS
from fpgapipe.lowering.program.hazards import WRITES
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.lowering.units.step_options import SUFFIXES, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepResult, StepRunner, Values
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.lowering.memory.memory_map import Labels, Stored
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram

    Memories = Sequence[NDArray[np.uint8]]

MX_NOISE = math.sqrt(2) * math.sqrt(MX_BLOCK) / (64 * math.sqrt(12))
"""Largest relative error to be expected of a product of MXINT8 operands: 3.6 %."""

LOSS_NOISE = 2.0**-8
"""Tolerance of a loss, relative to the loss."""

LEAST_LOSS = 2.0**-20
"""Least tolerance of a loss: that of the exponentials and logarithms of which it is the sum."""

REMAINDER = 2.0**-20
"""Least tolerance of a gradient, relative to the largest norm of the step's gradients.

It is that of FP32 sums whose terms cancel, 16 steps.
"""

NUM_DISTURBED = 8
"""Disturbed steps from which a doubtful tensor's further tolerance follows."""

DISTURBED_SHARE = 3.0
"""Tolerance as a multiple of the largest movement in the disturbed steps."""

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
        """The difference as one line of text."""
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
        """Values for JSON."""
        return asdict(self)


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


@dataclass(frozen=True)
class _Pair:
    """A tensor as both backends have computed it.

    Attributes
    ----------
    tensor : str
        Name of the tensor.
    layer : str
        Name of its layer; empty if it belongs to none.
    parameter : str or None
        The parameter whose gradient or momentum it is.
    found, expected : float32 array
        Values of the first and of the second backend.
    noise : float
        Tolerance, relative to the norm of the expected values.
    least : float
        Least tolerance.
    """

    tensor: str
    layer: str
    parameter: str | None
    found: NDArray[np.float32]
    expected: NDArray[np.float32]
    noise: float = MX_NOISE
    least: float = 0.0


class NumericCheck(Check):
    """Compares loss and gradients within a tolerance, each step from the first backend's state.

    Attributes
    ----------
    worst : dict of str to float
        Largest error so far of the loss and of each gradient, as a share of its tolerance.
    """

    def __init__(self, backend: StepRunner, gain: float = 1.0) -> None:
        super().__init__(backend)
        self.worst: dict[str, float] = {}
        self._gain = gain

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
        self.backend.set_state(before)
        other = self.backend.step(inputs, labels, scalars)

        def again(runner: StepRunner) -> Iterator[_Pair]:
            runner.set_state(before)
            found = runner.step(inputs, labels, scalars)
            one, two = (result, found) if runner is self.backend else (found, other)
            return self._pairs(first, one.loss, two.loss, before, scalars)

        pairs = list(self._pairs(first, result.loss, other.loss, before, scalars))
        return self._first_beyond(step, first, pairs, again)

    def after_inference(
        self,
        step: int,
        first: StepRunner,
        results: Values,
        inputs: Values,
        scalars: Sequence[int],
    ) -> Difference | None:
        """See `Check`."""

        def pairs(ours: Values, others: Values) -> Iterator[_Pair]:
            for name, expected in others.items():
                yield _Pair(name, name, None, ours[name].reshape(expected.shape), expected)

        def again(runner: StepRunner) -> Iterator[_Pair]:
            found, _ = runner.infer(inputs, scalars)
            return pairs(results, found) if runner is self.backend else pairs(found, others)

        others, _ = self.backend.infer(inputs, scalars)
        return self._first_beyond(step, first, list(pairs(results, others)), again)

    def _pairs(
        self,
        first: StepRunner,
        loss: float,
        other_loss: float,
        before: Values,
        scalars: Sequence[int],
    ) -> Iterator[_Pair]:
        """What a step has computed: the loss, and what belongs to parameters, last layers first."""
        one, two = (np.array([each], np.float32) for each in (loss, other_loss))
        yield _Pair(LOSS, "", None, one, two, noise=LOSS_NOISE, least=LEAST_LOSS)
        kinds = {"gradient": _gradients(first, self.backend, self._gain)}
        if first.num_updates > 1:
            kinds["momentum"] = _added_momentum(first, self.backend, before, scalars)
        for kind, (found, expected) in kinds.items():
            least = REMAINDER * max(map(_norm, expected.values()), default=0.0)
            for layer in reversed(list(first.graph.layers.values())):  # as in the backward pass
                for name in (each.name for each in layer.parameters if each.name in found):
                    yield _Pair(
                        f"{name}.{kind}", layer.name, name, found[name], expected[name], least=least
                    )

    def _first_beyond(
        self,
        step: int,
        first: StepRunner,
        pairs: Sequence[_Pair],
        again: Callable[[StepRunner], Iterator[_Pair]],
    ) -> Difference | None:
        """The first pair that differs by more than its tolerance, where its error is largest."""
        moved: dict[str, float] | None = None
        for pair in pairs:
            error = np.abs(pair.found.astype(np.float64) - pair.expected)
            if not error.any():
                self.worst.setdefault(pair.tensor, 0.0)
                continue
            size = _norm(error)
            limit = max(pair.noise * _norm(pair.expected), pair.least)
            if not size <= limit:  # NaN exceeds the tolerance, too
                if moved is None:
                    moved = self._movements(first, pairs, again)
                limit = max(limit, DISTURBED_SHARE * moved[pair.tensor])
            share = float(size / np.float64(limit))
            self.worst[pair.tensor] = max(self.worst.get(pair.tensor, 0.0), share)
            if not share <= 1:
                flat = int(np.nan_to_num(error, nan=np.inf).argmax())
                at = tuple(int(each) for each in np.unravel_index(flat, error.shape))
                return Difference(
                    step,
                    _device_of(first, pair.parameter),
                    pair.layer,
                    pair.tensor,
                    at,
                    (f"{pair.found[at]:.9g}", f"{pair.expected[at]:.9g}"),
                    (first.name, self.backend.name),
                    int(np.count_nonzero(pair.found != pair.expected)),
                )
        return None

    def _movements(
        self,
        first: StepRunner,
        pairs: Sequence[_Pair],
        again: Callable[[StepRunner], Iterator[_Pair]],
    ) -> dict[str, float]:
        """How far each tensor moves at most when PyTorch's values are disturbed, by norm."""
        moved = dict.fromkeys((pair.tensor for pair in pairs), 0.0)
        for runner in (self.backend, first):
            for seed in range(NUM_DISTURBED):
                with runner.disturbed(seed) as is_disturbed:
                    if not is_disturbed:
                        break
                    for old, new in zip(pairs, again(runner), strict=True):
                        now, then = (
                            (each.expected if runner is self.backend else each.found)
                            for each in (new, old)
                        )
                        with np.errstate(over="ignore", invalid="ignore"):
                            change = now - then
                        if np.isfinite(change).all():  # what overflows says nothing
                            moved[old.tensor] = max(moved[old.tensor], _norm(change))
        return moved


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


def _gradients(one: StepRunner, other: StepRunner, gain: float) -> tuple[Values, Values]:
    """Gradients of a step that both backends have done from one state.

    Where one of them does not keep a gradient, its momentum says how far it is from that of the
    other: the momentum of both was equal before, and `gain` times the gradient is added to it.
    Where none keeps it, the momentum is compared.
    """
    inverse = np.float32(1 / gain)
    found, expected = one.parameters(".gradient"), other.parameters(".gradient")
    moments = one.parameters(".momentum"), other.parameters(".momentum")
    for name in moments[0]:
        if name in found and name in expected:
            continue
        first, second = (each[name] for each in moments)
        if name in expected:
            found[name] = expected[name] + (first - second) * inverse
        elif name in found:
            expected[name] = found[name] + (second - first) * inverse
        else:
            found[name], expected[name] = first, second
    return found, expected


def _added_momentum(
    one: StepRunner, other: StepRunner, before: Values, scalars: Sequence[int]
) -> tuple[Values, Values]:
    """What the updates of a step have added to the momentum, in both backends."""
    kept = float(np.uint32(scalars[Scalar.MOMENTUM]).view(np.float32)) ** one.num_updates
    found, expected = (
        {
            name: value - np.float32(kept) * before[f"{name}.momentum"]
            for name, value in each.parameters(".momentum").items()
        }
        for each in (one, other)
    )
    return found, expected


def _device_of(backend: StepRunner, parameter: str | None) -> int:
    """Index of the device that has a parameter, else of the last one; 0 for PyTorch."""
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
    """Compare the memories of all devices; return the difference that was computed first."""
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
    """The parameter to which a tensor belongs, and its layout in memory; else None."""
    for suffix in (*LASTING, SUFFIXES["gradients"]):
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and stem in part.stored:
            return stem, part.stored[stem]
    return None


def _element(part: DeviceProgram, name: str, address: int) -> tuple[tuple[int, ...], int, int]:
    """Index, first address and size in bytes of the element that contains an address."""
    if name not in part.places:
        starts = [0, *accumulate(len(encode([each])) for each in part.instructions)]
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
