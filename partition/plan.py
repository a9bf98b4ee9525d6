"""The plan: stages, cores, links and the predicted times; written and read as versioned JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fpgapipe.errors import FileError, counted
from fpgapipe.files import read_bytes
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.json_faults import faults_of
from fpgapipe.lowering.schedule.schedule import Schedule
from fpgapipe.lowering.shards.degrees import AXES, Axis, Degrees
from fpgapipe.lowering.shards.stages import Stages
from fpgapipe.partition.plan_version_3 import of_this_version
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

DATA_PARALLEL = "data-parallel"
"""Kind of plans in which each device has the whole network."""

LAYERWISE = "layer-wise"
"""Kind of plans in which each device has parts of all layers."""

HYBRID = "hybrid"
"""Kind of plans of several stages, some of which have several devices."""

REPLICAS = "replicas"
"""Kind of plans of several pipelines with the same stages, which share the samples."""

ONE_STAGE = "1f1b-as"
"""Schedule of plans of one stage, whose devices do one micro-batch after the other."""

MAX_BYTES = 64 * 2**20
"""Largest plan file that is read, bytes."""

PROFILE_PLAN = "fpgapipe-profile-plan"
"""Format of a file of stages that were planned from measured times, which is no `Plan`."""


def above_one(degrees: Mapping[str, Degrees]) -> dict[str, dict[Axis, int]]:
    """Degrees of the layers that are cut, those above 1."""
    return {
        name: {axis: getattr(each, axis) for axis in AXES if getattr(each, axis) > 1}
        for name, each in degrees.items()
        if each.num_devices > 1
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class NodePlan(_Part):
    """The work of one node, which is a device of its own today.

    Attributes
    ----------
    device, board : str
        Name of the device in the cluster, and name of its board.
    spec : NodeSpec
        The core, with the ends of its links to the nodes before and after it, its clock and its
        memory.
    macs : int
        Multiply-accumulates of a forward pass over a micro-batch.
    forward_s, input_gradient_s, weight_gradient_s : float
        Seconds of each pass over a micro-batch.
    update_s : float
        Seconds of the weight update, once per mini-batch.
    sends_bytes, returns_bytes : int
        Bytes of a micro-batch's activations sent to the next node, and of their gradients, which
        come back.
    memory_bytes : int
        The most memory in use: weights, gradients, optimiser state and activations in flight.
    """

    device: str = Field(min_length=1)
    board: str = Field(min_length=1)
    spec: NodeSpec
    macs: int = Field(ge=0)
    forward_s: float = Field(ge=0)
    input_gradient_s: float = Field(ge=0)
    weight_gradient_s: float = Field(ge=0)
    update_s: float = Field(ge=0)
    sends_bytes: int = Field(ge=0)
    returns_bytes: int = Field(ge=0)
    memory_bytes: int = Field(ge=0)

    @property
    def core(self) -> CoreSpec:
        """The core."""
        return self.spec.core


class StagePlan(_Part):
    """Layers, and the nodes that compute them.

    Attributes
    ----------
    layers : tuple of str
        Names of the layers, in the order in which they run.
    nodes : tuple of NodePlan
        Neighbours in the order in which data flow, or those of each replica, one after the other.
    degrees : dict of str to dict of str to int
        Parts into which the nodes cut layers, by the layers' axes, where they are above 1. Of a
        layer that is not there, each node computes all.
    """

    layers: tuple[str, ...] = Field(min_length=1, strict=False)
    nodes: tuple[NodePlan, ...] = Field(min_length=1, strict=False)
    degrees: dict[str, dict[Axis, int]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> StagePlan:
        if strange := sorted(set(self.degrees) - set(self.layers)):
            raise ValueError(f"degrees of a layer that the stage has not: {strange[0]!r}")
        return self

    @property
    def layer_degrees(self) -> dict[str, Degrees]:
        """Degrees of each layer."""
        return {name: Degrees(**self.degrees.get(name, {})) for name in self.layers}


class Prediction(_Part):
    """Times that the event simulation of the plan predicts.

    Attributes
    ----------
    minibatch_s : float
        Seconds from the first task to the last update.
    period_s : float
        Seconds that one more micro-batch costs.
    bubble_rate : float
        Share of the time in which the average engine does not compute.
    samples_per_s : float
        Samples of a mini-batch over its time.
    level : str
        Where the numbers come from: ``machine``, the programs of all devices and their cycle model;
        or ``estimate``, formulas, where no programs are made for the plan.
    """

    minibatch_s: float = Field(ge=0)
    period_s: float = Field(ge=0)
    bubble_rate: float = Field(ge=0, le=1)
    samples_per_s: float = Field(ge=0)
    level: Literal["machine", "estimate"] = "estimate"


class Plan(_Part):
    """A network distributed over a cluster.

    Attributes
    ----------
    format, version
        Format and version of the file. Version 3 is read, too; others are refused.
    network : str
        The name under which the network was loaded.
    batch, num_microbatches : int
        Samples in a mini-batch, and number of equal micro-batches that it is divided into. Replicas
        do some of them each, and so do the nodes of an only stage that share the samples.
    cluster : str
        The cluster's name.
    mode : str
        ``train``, or ``infer`` for forward passes only.
    schedule : str
        Kind of schedule, which determines the order of the tasks.
    stages : tuple of StagePlan
        Stages in the order in which data flow.
    replicas : int
        Pipelines with these stages, one behind the other along the chain of devices.
    predicted : Prediction
    optimal : bool
        Whether no other partition has a better objective, by the prices by which it was searched.
    lower_bound_s : float
        Time below which the objective cannot be with another partition, by the same prices.
    gap : float
        Share of the objective by which another partition could be below it, at most.
    reason : str
        Why the partition is optimal, or why only a bound is known.
    """

    format: Literal["fpgapipe-plan"] = "fpgapipe-plan"
    version: Literal[4] = 4
    network: str = Field(min_length=1)
    batch: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    cluster: str
    mode: Literal["train", "infer"] = "train"
    schedule: str = Field(min_length=1)
    stages: tuple[StagePlan, ...] = Field(min_length=1, strict=False)
    replicas: int = Field(default=1, ge=1)
    predicted: Prediction
    optimal: bool
    lower_bound_s: float = Field(default=0.0, ge=0)
    gap: float = Field(default=1.0, ge=0, le=1)
    reason: str

    @model_validator(mode="after")
    def _check(self) -> Plan:
        if self.batch % self.num_microbatches:
            raise ValueError(
                f"a batch of {self.batch} cannot be cut into {self.num_microbatches} equal parts"
            )
        for number, stage in enumerate(self.stages):
            if len(stage.nodes) != self.replicas > 1:
                raise ValueError(
                    f"stage {number} must have one node for each of {self.replicas} replicas, not "
                    f"{len(stage.nodes)}"
                )
        if self.replicas > 1 and len(self.stages) == 1:
            raise ValueError("replicas have two stages or more; an only stage has degrees instead")
        if self.num_microbatches % self.sharers:
            parts = counted(self.num_microbatches, "micro-batch", "es")
            what = "replicas" if self.replicas > 1 else "devices"
            raise ValueError(f"{parts} cannot be shared equally by {self.sharers} {what}")
        names = Counter(name for stage in self.stages for name in stage.layers)
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise ValueError(f"layers in two stages: {', '.join(twice[:5])}")
        return self

    @property
    def microbatch(self) -> int:
        """Samples in a micro-batch."""
        return self.batch // self.num_microbatches

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """All nodes in the order of the chain."""
        rest = [iter(stage.nodes) for stage in self.stages]
        return tuple(next(rest[stage]) for stage in self.stage_numbers)

    @property
    def cores(self) -> list[CoreSpec]:
        """Cores of all nodes; equal ones are one object."""
        known: dict[CoreSpec, CoreSpec] = {}
        return [known.setdefault(node.core, node.core) for node in self.nodes]

    @property
    def node_layers(self) -> list[tuple[str, ...]]:
        """Layers of the stage of each node."""
        return [self.stages[number].layers for number in self.stage_numbers]

    @property
    def stage_numbers(self) -> list[int]:
        """Number of the stage of each node."""
        own = [
            number
            for number, stage in enumerate(self.stages)
            for _ in range(len(stage.nodes) // self.replicas)
        ]
        return own * self.replicas

    @property
    def lane_names(self) -> list[str]:
        """Names of the lanes of the event simulation: of nodes, or of stages of several."""
        if len(self.stages) == 1 or self.replicas > 1:
            return [node.device for node in self.nodes]
        return [", ".join(node.device for node in stage.nodes) for stage in self.stages]

    @property
    def division(self) -> Stages:
        """How the layers are divided among the nodes."""
        degrees = {
            name: each
            for stage in self.stages
            if len(stage.nodes) > self.replicas
            for name, each in stage.layer_degrees.items()
        }
        return Stages(
            tuple(stage.layers for stage in self.stages),
            tuple(len(stage.nodes) // self.replicas for stage in self.stages),
            degrees,
            self.replicas,
        )

    @property
    def sharers(self) -> int:
        """Parts into which replicas, or the nodes of an only stage, divide the samples."""
        return self.division.sharers[0] if len(self.stages) == 1 else self.replicas

    @property
    def independent(self) -> int:
        """Groups of nodes whose passes wait for no other group: replicas, or whole devices."""
        return len(self.nodes) if self.kind == DATA_PARALLEL else self.replicas

    @property
    def rounds(self) -> int:
        """Micro-batches that a node of the first stage does one after the other."""
        return self.num_microbatches // self.sharers

    @property
    def order(self) -> Schedule:
        """Schedule of the stages, each on a device; all nodes of a stage do its tasks.

        It is that of each replica.
        """
        return make_schedule(self.schedule, len(self.stages), self.rounds)

    @property
    def clk_hz(self) -> float:
        """Clock frequency by which cycles of the whole become times, Hz: that of the slowest core.

        Simulated devices run at one clock; boards whose cores have several wait for the slowest.
        """
        return min(node.spec.clk_hz for node in self.nodes)

    @property
    def kind(self) -> str:
        """Name under which plans are compared: the schedule's, or that of the strategy."""
        division = self.division
        if self.replicas > 1:
            return REPLICAS
        if max(division.sizes) == 1:
            return self.schedule
        if len(self.stages) > 1:
            return HYBRID
        size = division.sizes[0]
        shared = all(each == Degrees(sample=size) for each in division.degrees.values())
        return DATA_PARALLEL if shared else LAYERWISE

    @property
    def order_name(self) -> str:
        """Name of the order of the tasks; devices of an only stage have that of their strategy."""
        return self.kind if len(self.stages) == 1 else self.schedule

    @property
    def trains(self) -> bool:
        """Whether the plan has backward passes and updates."""
        return self.mode == "train"

    def estimated(self, seconds: float, reason: str) -> Plan:
        """The plan with other seconds of a mini-batch, by formulas, and why it was taken."""
        told = {"minibatch_s": seconds, "samples_per_s": self.batch / seconds}
        predicted = self.predicted.model_copy(update=told)
        changed = {"predicted": predicted, "optimal": False, "reason": reason}
        return self.model_copy(update=changed)

    def with_nodes(self, nodes: Sequence[NodePlan]) -> Plan:
        """The plan with other nodes in the same stages, in the order of the chain."""
        of_stage: list[list[NodePlan]] = [[] for _ in self.stages]
        for number, node in zip(self.stage_numbers, nodes, strict=True):
            of_stage[number].append(node)
        stages = [
            stage.model_copy(update={"nodes": tuple(own)})
            for stage, own in zip(self.stages, of_stage, strict=True)
        ]
        return self.model_copy(update={"stages": tuple(stages)})

    def to_json(self) -> str:
        """The plan as text that `read` can read back; equal plans give equal text."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan from a file.

        Raises
        ------
        FileError
            If the file is no valid plan. The message lists every fault.
        """
        data = read_bytes(path, MAX_BYTES)
        try:
            return cls.model_validate_json(of_this_version(data))
        except ValidationError as error:
            raise FileError(path, faults_of(error)) from None
