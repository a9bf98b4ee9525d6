"""A training step of a network as the programs of several devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.lowering.memory.memory_map import (
    LossTensors,
    all_results,
    joined,
    mean_outcomes,
    whole_outcome,
)
from fpgapipe.lowering.program.boundary import Part, gradient_formats, stages_of
from fpgapipe.lowering.program.late_updates import LateStepBuilder, late_options
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.tasks import common_steps
from fpgapipe.lowering.schedule.weight_versions import WeightCopies
from fpgapipe.lowering.sums.tied_weights import check_untied, ties_of
from fpgapipe.lowering.units.step_options import StepOptions, counting_labels
from fpgapipe.network.initial_values import num_indices
from fpgapipe.network.losses import labels_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.step_program import StepProgram
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]
    Memories = Sequence[NDArray[np.uint8]]

COMPUTES = frozenset({TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U})
"""Kinds of the tasks that compute, unlike transfers."""


@dataclass(frozen=True)
class PipelineProgram:
    """Programs of a step on a chain of devices, in their order.

    Each device has a stage of the network or, in data parallelism, the whole network for some of
    the micro-batches.

    Attributes
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    parts : tuple of DeviceProgram
        Program of each device.
    """

    graph: Graph
    parts: tuple[DeviceProgram, ...]

    @property
    def wiring(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Pairs of link ends that are connected, each end given as (stage, link)."""
        return wiring_of(len(self.parts))

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a mini-batch, each with as many samples as the graph's batch.

        Devices that share the samples of a stage's micro-batch count smaller ones of their own.
        """
        first = self.parts[0]
        own = next((shape[0] for shape in first.inputs.values()), self.graph.batch or 1)
        return first.all_microbatches * own // (self.graph.batch or 1)

    def images(self, parameters: Values) -> list[NDArray[np.uint8]]:
        """Return the devices' memories before the first step."""
        return [part.image(parameters) for part in self.parts]

    def set_batch(self, memories: Memories, inputs: Values, labels: Labels | None = None) -> None:
        """Write a mini-batch; see `StepProgram.set_batch`.

        Raises
        ------
        ValueError
            If a tensor has another shape, or an index is no row of its embedding's table.
        """
        for name, rows in num_indices(self.graph).items():
            given = inputs.get(name)
            if given is not None and given.size and not 0 <= given.min() <= given.max() < rows:
                wrong = given.min() if given.min() < 0 else given.max()
                raise ValueError(f"input {name} must be in 0..{rows - 1}, not {wrong}")
        for part, memory in zip(self.parts, memories, strict=True):
            part.set_batch(memory, inputs, labels)

    def parameters(self, memories: Memories, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """Read all parameters, or the tensors that belong to them; see `StepProgram.parameters`."""
        pairs = zip(self.parts, memories, strict=True)
        return joined((part, part.parameters(memory, suffix)) for part, memory in pairs)

    def state(self, memories: Memories) -> dict[str, NDArray[np.float32]]:
        """Read all that a step leaves for the next one; see `MemoryMap.state`."""
        pairs = zip(self.parts, memories, strict=True)
        return joined((part, part.state(memory)) for part, memory in pairs)

    def set_state(self, memories: Memories, state: Values) -> None:
        """Write the state that `state` has read."""
        for part, memory in zip(self.parts, memories, strict=True):
            part.set_state(memory, state)

    def results(self, memories: Memories) -> dict[str, NDArray[np.float32]]:
        """Read the network's results for all samples; see `MemoryMap.results`."""
        return all_results(
            part.results_of_each(memory) for part, memory in zip(self.parts, memories, strict=True)
        )

    @property
    def losses(self) -> list[LossTensors]:
        """The losses that devices compute, in the order of the network's outputs."""
        by_output = {each.output: each for part in self.parts for each in part.losses}
        return [by_output[name] for name in self.graph.outputs if name in by_output]

    def outcomes(self, memories: Memories) -> dict[str, tuple[float, int]]:
        """Read the mini-batch's mean loss and number of correct labels of each output."""
        means = mean_outcomes(
            part.outcomes(memory) for part, memory in zip(self.parts, memories, strict=True)
        )
        return {each.output: means[each.output] for each in self.losses}

    def outcome(self, memories: Memories) -> tuple[float, int]:
        """Read the mini-batch's loss, and the number of correct labels of the first output."""
        return whole_outcome(self.losses, self.outcomes(memories))

    def counting(self, scalars: Sequence[int], labels: Labels) -> list[int]:
        """Contents of the scalar registers for labels of which some are ignored.

        Raises
        ------
        ValueError
            If no label of an output counts.
        """
        found = list(scalars)
        for each in self.losses:
            if each.counter is not None:
                own = labels_of(labels, each.output)
                found = counting_labels(found, own, each.counter, each.weight)
        return found


def build_pipeline(
    graph: Graph,
    cores: Sequence[CoreSpec],
    layers: Sequence[Sequence[str]],
    schedule: Schedule,
    memory: MemorySpec | Sequence[MemorySpec] | None = None,
    options: StepOptions | None = None,
    tasks_of: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> PipelineProgram:
    """Compile a training step, or inference, for a chain of devices.

    The links of a core lead to the stage before and to the next stage, in this order; the first and
    the last stage lack one of them.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    cores : sequence of CoreSpec
        One core per stage.
    layers : sequence of sequence of str
        Names of the layers of each stage.
    schedule : Schedule
        Schedule with stage `i` on device `i`. If forward and backward passes have separate engines,
        these are the core's first two GEMM engines; otherwise all products run on the first.
    memory : MemorySpec, or one for each device, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks_of : callable, optional
        Returns those tasks of a device that its program has, for programs that are only timed. All
        if left out; concurrent passes cannot be left out.

    Raises
    ------
    UserError
        If stages, cores and schedule do not fit together, or a core cannot run a layer.
    NotImplementedError
        If a layer does not fit its core.
    """
    options = options or StepOptions()
    memories = memories_of(memory, len(cores))
    is_late = options.train and not schedule.synchronous
    if is_late:
        options = late_options(options)
    stages = stages_of(graph, layers, train=options.train)
    ties = ties_of(graph, [stage.layers for stage in stages]) if options.train else ()
    if is_late:
        check_untied(
            ties, "where weights are updated after each micro-batch; take schedule 1f1b-as"
        )
    splits = schedule.splits_engines and options.train
    steps = common_steps(schedule) if splits else {}
    lanes = tasks_of_stages(schedule, len(stages), steps, train=options.train)
    if len(cores) != len(stages):
        raise UserError(f"a pipeline of {len(stages)} stages needs as many cores, not {len(cores)}")
    for core, stage in zip(cores, stages, strict=True):
        needed = (stage.index > 0) + (not stage.is_last)
        if len(core.links) < needed:
            raise UserError(
                f"the core of stage {stage.index} needs {needed} links, not {len(core.links)}"
            )
        if splits and core.num_engines < 2:
            raise UserError(
                f"schedule {schedule.kind} runs forward and backward passes side by side, for "
                f"which the core of stage {stage.index} needs 2 GEMM engines, not "
                f"{core.num_engines}; give it num_engines=2, or take schedule 1f1b-as"
            )
    parts: list[StepProgram] = []
    for stage, core, own_memory, tasks in zip(stages, cores, memories, lanes, strict=True):
        part = Part(
            stage,
            values=parts[-1].values if parts else {},
            gradient_formats=gradient_formats(graph, stages, stage.index, options.activations),
            before=0,
            after=link_after(stage.index),
            device=stage.index,
            num_devices=len(stages),
            ties=ties,
        )
        concurrent = [steps[task] for task in tasks] if splits else None
        own = tasks_of(tasks) if tasks_of else tasks
        count = schedule.num_microbatches
        if is_late:
            copies, all_copies = (
                WeightCopies.of(each, keeps=schedule.keeps_weights) for each in (own, tasks)
            )
            builder: StepBuilder = LateStepBuilder(
                graph, core, own_memory, options, own, part, count, copies, all_copies.count
            )
        else:
            builder = StepBuilder(
                graph, core, own_memory, options, own, part, concurrent, num_microbatches=count
            )
        parts.append(builder.build())
    return PipelineProgram(graph, tuple(parts))


def memories_of(
    memory: MemorySpec | Sequence[MemorySpec] | None, num_devices: int
) -> Sequence[MemorySpec]:
    """The memory of each device, where one may be given for all of them."""
    if memory is None or isinstance(memory, MemorySpec):
        return [memory or MemorySpec()] * num_devices
    if len(memory) != num_devices:
        raise UserError(f"{num_devices} devices need as many memories, not {len(memory)}")
    return memory


def wiring_of(num_devices: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of link ends that are connected in a chain, each end given as (device, link)."""
    return [((n, link_after(n)), (n + 1, 0)) for n in range(num_devices - 1)]


def link_after(stage: int) -> int:
    """Number of a stage's link to the next stage; the link to the stage before has number 0."""
    return int(stage > 0)


def tasks_of_stages(
    schedule: Schedule, num_stages: int, steps: Mapping[Task, int] | None = None, *, train: bool
) -> list[list[Task]]:
    """Tasks of each device, without transfers, which follow from the boundary tensors.

    Parameters
    ----------
    schedule : Schedule
    num_stages : int
        Number of stages, each on a device of its own.
    steps : mapping of Task to int, optional
        Step of each task, by which they are sorted, if a device has several engines.
    train : bool
        Whether there are more than forward passes.

    Raises
    ------
    UserError
        If no programs are made for such a schedule.
    """
    kinds = COMPUTES if train else {TaskKind.F}
    if schedule.placement != tuple(range(num_stages)):
        raise UserError(
            f"schedule {schedule.kind} must have stage i of {num_stages} on device i, not on "
            f"{', '.join(map(str, schedule.placement))}"
        )
    if schedule.routes != (schedule.placement,):
        raise UserError(
            f"schedule {schedule.kind} must lead every micro-batch through all {num_stages} stages"
        )
    lanes: list[list[Task]] = [[] for _ in range(num_stages)]
    for lane in schedule.lanes:
        lanes[lane.device] += [task for task in lane if task.kind in kinds]
    if steps:
        # Within a step the order affects only slots: a forward pass takes its slot before a
        # backward pass frees one.
        for tasks in lanes:
            tasks.sort(key=lambda task: (steps[task], task.kind is not TaskKind.F))
    return lanes
