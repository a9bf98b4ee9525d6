"""A training step of a network on a pipeline whose stages are groups of devices.

The chain of devices is cut into groups of neighbours, one for each stage. Within a group, layers
are cut by samples, channels, input channels or rows, or every device computes all of them
(:mod:`fpgapipe.lowering.shards.local_network`). What goes from stage to stage is whole: the last
device of a group sends it, and each device of the next one passes it on. Gradients go back in the
same way. So a stage may be replicated, or have parts of layers, and stages may have different
numbers of devices.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.lowering.program.boundary import Part, gradient_formats, stages_of
from fpgapipe.lowering.program.pipeline import (
    PipelineProgram,
    link_after,
    memories_of,
    tasks_of_stages,
)
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.shards import exchange_units, halo_unit, norm_unit  # noqa: F401, register units
from fpgapipe.lowering.shards.degrees import sharers_of
from fpgapipe.lowering.shards.local_network import stage_network
from fpgapipe.lowering.shards.rebatched import rebatched
from fpgapipe.lowering.sums.tied_weights import ties_of
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.share import Share
    from fpgapipe.lowering.program.step_program import StepProgram
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.lowering.shards.degrees import Degrees
    from fpgapipe.lowering.sums.tied_weights import Tie
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.network.graph import Graph


def build_hybrid(
    graph: Graph,
    cores: Sequence[CoreSpec],
    layers: Sequence[Sequence[str]],
    sizes: Sequence[int],
    degrees: Mapping[str, Degrees],
    schedule: Schedule,
    memory: MemorySpec | Sequence[MemorySpec] | None = None,
    options: StepOptions | None = None,
    tasks_of: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> PipelineProgram:
    """Compile a training step, or inference, for a pipeline of groups of devices.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch of the pipeline.
    cores : sequence of CoreSpec
        One core per device, in the order of the chain.
    layers : sequence of sequence of str
        Names of the layers of each stage.
    sizes : sequence of int
        Number of devices of each stage.
    degrees : mapping of str to Degrees
        Degrees of each layer: of as many parts as its stage has devices, or whole.
    schedule : Schedule
        Schedule with one device for each stage; all devices of a stage do its tasks in its order.
    memory : MemorySpec, or one for each device, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks_of : callable, optional
        As for `build_pipeline`.

    Raises
    ------
    UserError
        If stages, cores, degrees and schedule do not fit together, or a core cannot run a layer.
    NotImplementedError
        If no programs are made for such a plan, or a layer does not fit its core.
    """
    options = options or StepOptions()
    memories = memories_of(memory, len(cores))
    stages = stages_of(graph, layers, train=options.train)
    if len(sizes) != len(stages) or sum(sizes) != len(cores):
        raise UserError(
            f"{len(stages)} stages need a number of devices each, {len(cores)} together, not "
            f"{list(sizes)}"
        )
    if options.train and (schedule.splits_engines or not schedule.synchronous):
        raise NotImplementedError(
            f"no programs are made for schedule {schedule.kind} with stages of several devices; "
            "take 1f1b-as"
        )
    names_of = [stage.layers for stage in stages]
    ties = ties_of(graph, names_of, sizes) if options.train else ()
    for tie in ties:
        _check_whole(graph, tie, names_of, sizes, degrees)
    lanes = tasks_of_stages(schedule, len(stages), train=options.train)
    parts: list[StepProgram] = []
    values: dict[str, Value] = {}
    for stage, size, first in zip(stages, sizes, accumulate(sizes, initial=0), strict=False):
        names = stage.layers
        sharers = _sharers(names, degrees, size)
        network = rebatched(graph, _samples(graph, sharers, stage.index))
        returned, formats = (
            gradient_formats(graph, stages, index, options.activations) if index >= 0 else {}
            for index in (stage.index - 1, stage.index)
        )
        for lane in range(size):
            core = cores[first + lane]
            _check_links(core, first + lane, len(cores))
            found = stage_network(network, degrees, lane, size, names, first)
            units = tuple(
                unit for unit in units_of(found.network) if unit.layers[0].name in found.layers
            )
            part = Part(
                replace(stage, units=units),
                values=values,
                gradient_formats=formats,
                returned_formats=returned,
                before=0,
                after=link_after(first + lane),
                device=first,
                num_devices=len(cores),
                lane=lane,
                group_size=size,
                sharers=sharers,
                names=found.whole,
                ties=ties,
            )
            tasks = _tasks(lanes[stage.index], sharers, lane)
            builder = StepBuilder(
                found.network,
                core,
                memories[first + lane],
                options,
                tasks_of(tasks) if tasks_of else tasks,
                part,
                num_microbatches=schedule.num_microbatches,
                share=found.share,
            )
            parts.append(builder.build())
        values = {each.value: parts[-1].values[part.name(each)] for each in stage.after}
    for tie in ties:
        _check_order(
            tie, [part.stored[tie.parameter] for part in parts if tie.parameter in part.stored]
        )
    return PipelineProgram(graph, tuple(parts))


def _check_whole(
    graph: Graph,
    tie: Tie,
    stages: Sequence[Collection[str]],
    sizes: Sequence[int],
    degrees: Mapping[str, Degrees],
) -> None:
    """Refuse a weight of several stages of which a device has a part."""
    for number in tie.stages:
        for name in stages[number]:
            layer, own = graph.layers[name], degrees.get(name)
            reads = any(each.name == tie.parameter for each in layer.parameters)
            if sizes[number] > 1 and reads and own and own.channel * own.input > 1:
                raise NotImplementedError(
                    f"{tie}, and layer {name!r} is cut by channels: the devices of both stages "
                    "must have all of the weight; cut it by samples or rows, or leave it whole"
                )


def _check_order(tie: Tie, found: Sequence[Stored]) -> None:
    """Refuse a weight that lies in another order in another stage."""
    if any(each != found[0] for each in found):
        raise NotImplementedError(
            f"{tie}, which would lie in two orders; put these layers in one stage"
        )


def shares_of_stages(
    graph: Graph,
    layers: Sequence[Sequence[str]],
    sizes: Sequence[int],
    degrees: Mapping[str, Degrees],
) -> list[Share]:
    """What the first device of each stage has of the stage.

    Parameters
    ----------
    graph, layers, sizes, degrees
        As for `build_hybrid`.
    """
    found = []
    for number, (names, size) in enumerate(zip(layers, sizes, strict=True)):
        sharers = _sharers(names, degrees, size)
        network = rebatched(graph, _samples(graph, sharers, number))
        found.append(stage_network(network, degrees, 0, size, names, 0).share)
    return found


def _sharers(names: Sequence[str], degrees: Mapping[str, Degrees], size: int) -> int:
    """Devices of a stage that share the samples of a micro-batch."""
    return sharers_of({name: degrees[name] for name in names if name in degrees}) if size > 1 else 1


def tasks_of_devices(
    schedule: Schedule,
    parts: Sequence[DeviceProgram],
    sizes: Sequence[int],
    *,
    train: bool,
) -> list[list[Task]]:
    """Tasks of each device, by a schedule of more or fewer micro-batches than its program has.

    Parameters
    ----------
    schedule : Schedule
        Schedule with one device for each stage.
    parts : sequence of DeviceProgram
        Programs of the devices, for some micro-batches.
    sizes : sequence of int
        Number of devices of each stage.
    train : bool
        Whether there are more than forward passes.
    """
    lanes = tasks_of_stages(schedule, len(sizes), train=train)
    found = []
    for stage, (size, first) in enumerate(zip(sizes, accumulate(sizes, initial=0), strict=False)):
        own = [set(part.microbatches) for part in parts[first : first + size]]
        sharers = size if size > 1 and own[0] != own[1] else 1
        found += [_tasks(lanes[stage], sharers, lane) for lane in range(size)]
    return found


def _samples(graph: Graph, sharers: int, stage: int) -> int:
    """Samples of a micro-batch for each device that shares them."""
    batch = graph.batch or 1
    if batch % sharers:
        raise UserError(
            f"{sharers} devices of stage {stage} cannot share the {batch} samples of a micro-batch "
            f"equally; use micro-batches of a multiple of {sharers}"
        )
    return batch // sharers


def _tasks(tasks: Sequence[Task], sharers: int, lane: int) -> list[Task]:
    """A stage's tasks with the numbers of a device's own micro-batches."""
    if sharers == 1:
        return list(tasks)
    return [
        task
        if task.kind is TaskKind.U
        else replace(task, microbatch=task.microbatch * sharers + lane)
        for task in tasks
    ]


def _check_links(core: CoreSpec, index: int, count: int) -> None:
    needed = (index > 0) + (index < count - 1)
    if len(core.links) < needed:
        raise UserError(f"the core of device {index} needs {needed} links, not {len(core.links)}")
