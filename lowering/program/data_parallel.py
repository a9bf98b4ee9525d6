"""A training step of a network on several devices, each of which has the whole network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.lowering.program.all_reduce import Member
from fpgapipe.lowering.program.pipeline import COMPUTES, PipelineProgram, link_after
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.units.step_options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.network.graph import Graph


def build_data_parallel(
    graph: Graph,
    cores: Sequence[CoreSpec],
    schedule: Schedule,
    memory: MemorySpec | None = None,
    options: StepOptions | None = None,
    tasks_of: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> PipelineProgram:
    """Compile a training step, or inference, for devices that share the micro-batches.

    The devices are a chain, with the links of a pipeline: those of a core lead to the device before
    and to the next one, in this order. After its backward passes a device has the sum of the
    gradients of its micro-batches, in their order. The sums of all devices are added in the order
    of the devices (`lowering.program.all_reduce`). So the weights are those of one device that does
    all micro-batches, to the last bit, if each device has one micro-batch; otherwise they differ as
    far as the order of additions matters. Batch normalisation has the statistics of each
    micro-batch, and the running averages are those of the first device.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    cores : sequence of CoreSpec
        One core per device.
    schedule : Schedule
        Schedule in which device `i` does all tasks of stage `i`, which is the whole network.
    memory : MemorySpec, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks_of : callable, optional
        As for `build_pipeline`.

    Raises
    ------
    UserError
        If cores and schedule do not fit together, the devices would have unequal numbers of
        micro-batches, or a core cannot run a layer.
    NotImplementedError
        If a layer does not fit its core.
    """
    options = options or StepOptions()
    count = len(cores)
    if schedule.placement != tuple(range(count)) or any(len(each) > 1 for each in schedule.routes):
        raise UserError(
            f"schedule {schedule.kind} must have the whole network on each of {count} devices"
        )
    if schedule.num_microbatches % count:
        raise UserError(
            f"{schedule.num_microbatches} micro-batches cannot be shared equally by {count} "
            f"devices; use a multiple of {count}"
        )
    parts = []
    lanes = tasks_of_devices(schedule, count, train=options.train)
    for index, (core, tasks) in enumerate(zip(cores, lanes, strict=True)):
        needed = (index > 0) + (index < count - 1)
        if len(core.links) < needed:
            raise UserError(
                f"the core of device {index} needs {needed} links, not {len(core.links)}"
            )
        builder = StepBuilder(
            graph,
            core,
            memory or MemorySpec(),
            options,
            tasks_of(tasks) if tasks_of else tasks,
            num_microbatches=schedule.num_microbatches // count,
            member=Member(index, count, before=0, after=link_after(index)),
        )
        parts.append(builder.build())
    return PipelineProgram(graph, tuple(parts))


def tasks_of_devices(schedule: Schedule, num_devices: int, *, train: bool) -> list[list[Task]]:
    """Tasks of each device, in their order.

    Parameters
    ----------
    schedule : Schedule
    num_devices : int
    train : bool
        Whether there are more than forward passes.
    """
    kinds = COMPUTES if train else {TaskKind.F}
    lanes: list[list[Task]] = [[] for _ in range(num_devices)]
    for lane in schedule.lanes:
        lanes[lane.device] += [task for task in lane if task.kind in kinds]
    return lanes
