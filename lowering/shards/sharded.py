"""A training step of a network on several devices, each of which has parts of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.lowering.program.pipeline import PipelineProgram, memories_of
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.tasks import single_device
from fpgapipe.lowering.shards import exchange_units, halo_unit, norm_unit  # noqa: F401, register units
from fpgapipe.lowering.shards.local_network import local_network
from fpgapipe.lowering.units.step_options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.schedule.schedule import Task
    from fpgapipe.lowering.shards.degrees import Degrees
    from fpgapipe.network.graph import Graph


def build_sharded(
    graph: Graph,
    cores: Sequence[CoreSpec],
    degrees: Mapping[str, Degrees],
    num_microbatches: int,
    memory: MemorySpec | Sequence[MemorySpec] | None = None,
    options: StepOptions | None = None,
    tasks_of: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> PipelineProgram:
    """Compile a training step, or inference, for devices that have parts of all layers.

    The devices are a chain, with the links of a pipeline, or equal groups of neighbours in it, each
    with samples of its own. Within a group a layer is cut by samples, by output channels or by
    rows, or every device computes all of it (:mod:`fpgapipe.lowering.shards.local_network`). Values
    and gradients are exchanged within the passes. Gradients of weights that several devices have
    are added up before the update, as in data parallelism.

    Parameters
    ----------
    graph : Graph
        The network for the samples of one micro-batch.
    cores : sequence of CoreSpec
        One core per device.
    degrees : mapping of str to Degrees
        Degrees of each layer.
    num_microbatches : int
        Micro-batches of a mini-batch. Groups do as many of them side by side as there are groups.
        If a layer is cut by samples within groups, all devices do so; layers that are not process
        those of the group together.
    memory : MemorySpec, or one for each device, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks_of : callable, optional
        As for `build_pipeline`.

    Raises
    ------
    UserError
        If cores and strategy do not fit together, or a core cannot run a layer.
    NotImplementedError
        If no programs are made for the strategy, or a layer does not fit its core.
    """
    parts = []
    for index, own in enumerate(memories_of(memory, len(cores))):
        builder = builder_of_device(
            index, graph, cores, degrees, num_microbatches, own, options, tasks_of
        )
        parts.append(builder.build())
    return PipelineProgram(graph, tuple(parts))


def builder_of_device(
    index: int,
    graph: Graph,
    cores: Sequence[CoreSpec],
    degrees: Mapping[str, Degrees],
    num_microbatches: int,
    memory: MemorySpec | None = None,
    options: StepOptions | None = None,
    tasks_of: Callable[[Sequence[Task]], Sequence[Task]] | None = None,
) -> StepBuilder:
    """The builder of one device's program; see `build_sharded`."""
    options = options or StepOptions()
    count, core = len(cores), cores[index]
    needed = (index > 0) + (index < count - 1)
    if len(core.links) < needed:
        raise UserError(f"the core of device {index} needs {needed} links, not {len(core.links)}")
    network, share = local_network(graph, degrees, index, count)
    tasks = tasks_of_device(index, count, share.sharers, num_microbatches, train=options.train)
    return StepBuilder(
        network,
        core,
        memory or MemorySpec(),
        options,
        tasks_of(tasks) if tasks_of else tasks,
        num_microbatches=num_microbatches // share.sharers,
        share=share,
    )


def tasks_of_device(
    index: int, num_devices: int, sharers: int, num_microbatches: int, *, train: bool
) -> list[Task]:
    """Tasks of a device, in their order.

    Parameters
    ----------
    index, num_devices : int
        Number of the device, and of all devices.
    sharers : int
        Parts into which the samples of a mini-batch are divided: one for each device, or for each
        group of devices. The first has micro-batch 0, the second one micro-batch 1, and so on.
    num_microbatches : int
        Micro-batches of the mini-batch.
    train : bool
        Whether there are more than forward passes.

    Raises
    ------
    UserError
        If the devices cannot share the micro-batches equally.
    """
    if num_microbatches % sharers:
        raise UserError(
            f"{num_microbatches} micro-batches cannot be shared equally by {sharers} devices; use "
            f"a multiple of {sharers}"
        )
    first = index * sharers // num_devices
    return [
        task if task.microbatch < 0 else replace(task, microbatch=task.microbatch * sharers + first)
        for task in single_device(num_microbatches // sharers, train=train)
    ]
