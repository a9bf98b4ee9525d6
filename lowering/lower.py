"""A training step of a network as the programs of a chain of devices.

The chain is cut into stages, each of one device or of several neighbours. Within a stage of several
devices, layers are cut by samples, channels, input channels or rows, or every device computes all
of them (:mod:`fpgapipe.lowering.shards.local_network`). What goes from stage to stage is whole: the
last device of a stage sends it, and each device of the next one passes it on. Gradients go back in
the same way. A pipeline has stages of one device; data parallelism is one stage of all devices
whose layers are all cut by samples; in a layer-wise plan they are cut in different ways. A pipeline
may have replicas, which follow one another along the chain: each has micro-batches of its own, and
those of each stage add up their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.lowering.placement import Placement
from fpgapipe.lowering.program.boundary import Part, gradient_formats, stages_of
from fpgapipe.lowering.program.late_updates import LateStepBuilder, late_options
from fpgapipe.lowering.program.pipeline import PipelineProgram
from fpgapipe.lowering.program.share import Share, StageTensors
from fpgapipe.lowering.program.step import StepBuilder
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.schedule.tasks import common_steps
from fpgapipe.lowering.schedule.weight_versions import WeightCopies
from fpgapipe.lowering.shards import exchange_units, halo_unit, norm_unit  # noqa: F401, register units
from fpgapipe.lowering.shards.local_network import stage_network
from fpgapipe.lowering.shards.rebatched import rebatched
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.lowering.sums.all_reduce import Member
from fpgapipe.lowering.sums.tied_weights import check_untied, ties_of
from fpgapipe.lowering.units.network_units import units_of
from fpgapipe.lowering.units.step_options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.memory.memory_map import Stored
    from fpgapipe.lowering.program.boundary import StageUnits
    from fpgapipe.lowering.program.step_program import StepProgram
    from fpgapipe.lowering.schedule.schedule import Schedule, Task
    from fpgapipe.lowering.shards.local_network import StageNetwork
    from fpgapipe.lowering.sums.tied_weights import Tie
    from fpgapipe.lowering.units.layouts import Value
    from fpgapipe.network.graph import Graph

    TasksOf = Callable[[Sequence[Task]], Sequence[Task]]

COMPUTES = frozenset({TaskKind.F, TaskKind.B, TaskKind.DX, TaskKind.DW, TaskKind.U})
"""Kinds of the tasks that compute, unlike transfers."""


def build_pipeline(
    graph: Graph,
    cores: Sequence[CoreSpec],
    layers: Stages | Sequence[Sequence[str]],
    schedule: Schedule,
    memory: MemorySpec | Sequence[MemorySpec] | None = None,
    options: StepOptions | None = None,
    tasks_of: TasksOf | None = None,
    placement: Placement | None = None,
) -> PipelineProgram:
    """Compile a training step, or inference, for devices that are joined by wires.

    Parameters
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch. Replicas of a pipeline, and devices of
        an only stage that share the samples, have micro-batches of their own of this size.
    cores : sequence of CoreSpec
        One core per device.
    layers : Stages, or sequence of sequence of str
        The stages, or the names of the layers of each, if each has one device.
    schedule : Schedule
        Schedule with one device for each stage, stage `i` on device `i`; all devices of a stage do
        its tasks in its order, and so does each replica for its micro-batches. If forward and
        backward passes have separate engines, these are the core's first two GEMM engines;
        otherwise all products run on the first.
    memory : MemorySpec, or one for each device, optional
        Speed of the memory, with which run times are estimated.
    options : StepOptions, optional
    tasks_of : callable, optional
        Returns those tasks of a device that its program has, for programs that are only timed. All
        if left out; concurrent passes cannot be left out.
    placement : Placement, optional
        The devices and their wires. A chain if left out: the links of a core lead to the device
        before and to the next one, in this order, and the first and the last device lack one.

    Raises
    ------
    UserError
        If stages, cores, degrees and schedule do not fit together, or a core cannot run a layer.
    NotImplementedError
        If no programs are made for such a plan, or a layer does not fit its core.
    """
    lowering = Lowering.of(graph, cores, layers, schedule, memory, options, placement)
    parts: list[StepProgram] = []
    values: Mapping[str, Value] = {}
    for device in range(len(cores)):
        builder = lowering.builder(device, values, tasks_of)
        parts.append(builder.build())
        if builder.part.is_last_lane:
            values = builder.given
    for tie in lowering.ties:
        _check_order(
            tie, [part.stored[tie.parameter] for part in parts if tie.parameter in part.stored]
        )
    return PipelineProgram(graph, tuple(parts), lowering.placement)


@dataclass(frozen=True)
class Lowering:
    """Facts that hold for all programs before the first one is made; see `build_pipeline`.

    Attributes
    ----------
    graph, cores, schedule
        As for `build_pipeline`.
    division : Stages
    stages : tuple of StageUnits
        Units and boundary tensors of each stage.
    memories : sequence of MemorySpec
    options : StepOptions
        Those of late updates, if the schedule has these.
    ties : tuple of Tie
        Weights of several stages.
    steps : mapping of Task to int
        Step of each task, if devices have two engines.
    placement : Placement
        The devices, and the wires between them.
    """

    graph: Graph
    cores: Sequence[CoreSpec]
    schedule: Schedule
    division: Stages
    stages: tuple[StageUnits, ...]
    memories: Sequence[MemorySpec]
    options: StepOptions
    ties: tuple[Tie, ...]
    steps: Mapping[Task, int]
    placement: Placement

    @classmethod
    def of(
        cls,
        graph: Graph,
        cores: Sequence[CoreSpec],
        layers: Stages | Sequence[Sequence[str]],
        schedule: Schedule,
        memory: MemorySpec | Sequence[MemorySpec] | None = None,
        options: StepOptions | None = None,
        placement: Placement | None = None,
    ) -> Lowering:
        """Check that all fit together; parameters and errors are those of `build_pipeline`."""
        division = layers if isinstance(layers, Stages) else Stages.of(layers)
        options = options or StepOptions()
        is_late = options.train and not schedule.synchronous
        splits = options.train and schedule.splits_engines
        if (is_late or splits) and division.num_devices > len(division.sizes):
            what = "replicas" if division.replicas > 1 else "stages of several devices"
            raise NotImplementedError(
                f"no programs are made for schedule {schedule.kind} with {what}; take 1f1b-as"
            )
        if division.replicas > 1 and division.replica_devices > len(division.sizes):
            raise NotImplementedError(
                "no programs are made for replicas of a pipeline that has stages of several "
                "devices; give each of its stages one device"
            )
        if is_late:
            options = late_options(options)
        memories = memories_of(memory, len(cores))
        stages = tuple(stages_of(graph, division.layers, train=options.train))
        names = tuple(tuple(stage.layers) for stage in stages)
        division = replace(division, layers=names)
        ties = ties_of(graph, names, division.sizes) if options.train else ()
        if is_late:
            check_untied(
                ties, "where weights are updated after each micro-batch; take schedule 1f1b-as"
            )
        for tie in ties:
            _check_whole(graph, tie, division)
        steps = common_steps(schedule) if splits else {}
        placement = placement or Placement.chain(len(cores))
        _check_cores(cores, division, schedule, placement, 2 if splits else 1)
        return cls(
            graph, cores, schedule, division, stages, memories, options, ties, steps, placement
        )

    @cached_property
    def _lanes(self) -> list[list[Task]]:
        """Tasks of each stage."""
        train = self.options.train
        return tasks_of_stages(self.schedule, len(self.stages), self.steps, train=train)

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """Replica, stage and lane of each device."""
        return self.division.places

    @cached_property
    def _stage_tensors(self) -> tuple[StageTensors, ...]:
        """What replicas of each stage have."""
        return tuple(StageTensors.of(self.graph, names) for names in self.division.layers)

    def builder(
        self,
        device: int,
        values: Mapping[str, Value] | None = None,
        tasks_of: TasksOf | None = None,
    ) -> StepBuilder:
        """The builder of one device's program.

        Parameters
        ----------
        device : int
            Number of the device.
        values : mapping of str to Value, optional
            Values that come from the stage before; the first stage of a replica needs none.
        tasks_of : callable, optional
            As for `build_pipeline`.
        """
        replica, index, lane = self._places[device]
        stage, division = self.stages[index], self.division
        size, sharers = division.sizes[index], division.sharers[index]
        member = Member.of(self.placement, device)
        found = network_of_device(division, self.graph, index, lane, self.placement)
        formats = [
            gradient_formats(self.graph, self.stages, each, self.options.activations)
            for each in ((index, index - 1) if size > 1 and index else (index,))
        ]
        units = stage.units
        if size > 1:
            units = tuple(
                unit for unit in units_of(found.network) if unit.layers[0].name in found.layers
            )
        part = Part(
            replace(stage, units=units),
            values=values if values and index else {},
            gradient_formats=formats[0],
            returned_formats=formats[1] if len(formats) > 1 else {},
            before=member.before,
            after=member.after,
            device=device - lane,
            num_devices=len(self.cores),
            lane=lane,
            group_size=size,
            sharers=sharers * division.replicas,
            names=found.whole,
            ties=tuple(
                replace(tie, team=tie.team.shifted(replica * division.replica_devices))
                for tie in self.ties
            ),
        )
        share = found.share
        if division.replicas > 1:
            replicas = division.replicas
            share = Share(member, replicas, replicas, stages=self._stage_tensors)
        tasks = _own_tasks(self._lanes[index], division, replica, index, lane)
        own = tasks_of(tasks) if tasks_of else tasks
        count = self.schedule.num_microbatches
        more = found.network, self.cores[device], self.memories[device], self.options, own, part
        if self.options.train and not self.schedule.synchronous:
            copies, all_copies = (
                WeightCopies.of(each, keeps=self.schedule.keeps_weights) for each in (own, tasks)
            )
            return LateStepBuilder(*more, count, copies, all_copies.count)
        concurrent = [self.steps[task] for task in own] if self.steps else None
        return StepBuilder(*more, concurrent, num_microbatches=count, share=share)


def network_of_device(
    stages: Stages, graph: Graph, stage: int, lane: int, placement: Placement | None = None
) -> StageNetwork:
    """The network of one device of a stage.

    Parameters
    ----------
    stages : Stages
    graph : Graph
        As for `build_pipeline`.
    stage, lane : int
        Number of the stage, and of the device in it.
    placement : Placement, optional
        All devices and their wires; a chain if left out.

    Raises
    ------
    UserError, NotImplementedError
        As `build_pipeline` does.
    """
    sharers = stages.sharers[stage]
    batch = (graph.batch or 1) * (sharers if len(stages.sizes) == 1 else 1)
    if batch % sharers:
        raise UserError(
            f"{sharers} devices of stage {stage} cannot share the "
            f"{counted(batch, 'sample')} of a micro-batch equally; use micro-batches of a "
            f"multiple of {sharers}"
        )
    network = graph if sharers == 1 else rebatched(graph, batch // sharers)
    placement = placement or Placement.chain(sum(stages.sizes))
    ends = placement.between(stages.first[stage] + lane)
    member = Member(lane, stages.sizes[stage], *ends)
    return stage_network(network, stages.degrees, member, stages.layers[stage])


def tasks_of_devices(stages: Stages, schedule: Schedule, *, train: bool) -> list[list[Task]]:
    """Tasks of each device, without transfers, which follow from the boundary tensors.

    Parameters
    ----------
    stages : Stages
    schedule : Schedule
        Schedule with one device for each stage.
    train : bool
        Whether there are more than forward passes.

    Raises
    ------
    UserError
        If no programs are made for such a schedule.
    """
    lanes = tasks_of_stages(schedule, len(stages.layers), train=train)
    return [_own_tasks(lanes[place[1]], stages, *place) for place in stages.places]


def memories_of(
    memory: MemorySpec | Sequence[MemorySpec] | None, num_devices: int
) -> Sequence[MemorySpec]:
    """The memory of each device, where one may be given for all of them."""
    if memory is None or isinstance(memory, MemorySpec):
        return [memory or MemorySpec()] * num_devices
    if len(memory) != num_devices:
        raise UserError(f"{num_devices} devices need as many memories, not {len(memory)}")
    return memory


def _check_cores(
    cores: Sequence[CoreSpec],
    division: Stages,
    schedule: Schedule,
    placement: Placement,
    num_engines: int,
) -> None:
    """Check that there is a core for each device, with the links and the engines that it needs."""
    count = len(cores)
    if len(division.sizes) != len(division.layers) or division.num_devices != count:
        times = f" {division.replicas} times" if division.replicas > 1 else ""
        raise UserError(
            f"{len(division.layers)} stages need a number of devices each, {count} together, not "
            f"{list(division.sizes)}{times}"
        )
    if placement.num_nodes != count:
        raise UserError(f"{count} devices cannot be those of {placement.num_nodes} nodes")
    for index in range(1, count):
        if placement.before(index) != index - 1:
            raise UserError(f"data pass from node {index - 1} to node {index}, which no wire joins")
    for index, core in enumerate(cores):
        needed = max(placement.links_of(index), default=-1) + 1
        if len(core.links) < needed:
            raise UserError(
                f"the core of device {index} needs {needed} links, not {len(core.links)}"
            )
        if core.num_engines < num_engines:
            raise UserError(
                f"schedule {schedule.kind} runs forward and backward passes side by side, for "
                f"which the core of device {index} needs {num_engines} GEMM engines, not "
                f"{core.num_engines}; give it num_engines={num_engines}, or take schedule 1f1b-as"
            )


def _check_whole(graph: Graph, tie: Tie, division: Stages) -> None:
    """Refuse a weight of several stages of which a device has a part."""
    for number in tie.stages:
        for name in division.layers[number]:
            layer, own = graph.layers[name], division.degrees.get(name)
            reads = any(each.name == tie.parameter for each in layer.parameters)
            if division.sizes[number] > 1 and reads and own and own.channel * own.input > 1:
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


def _own_tasks(
    tasks: Sequence[Task], division: Stages, replica: int, stage: int, lane: int
) -> list[Task]:
    """A stage's tasks with the numbers of a device's own micro-batches."""
    own = division.sharers[stage]
    sharers = own * division.replicas
    number = replica * own + lane * own // division.sizes[stage]
    if sharers == 1:
        return list(tasks)
    return [
        task
        if task.kind is TaskKind.U
        else replace(task, microbatch=task.microbatch * sharers + number)
        for task in tasks
    ]


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
