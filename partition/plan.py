"""The plan: stages, cores, links and the predicted times; written and read as versioned JSON."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fpgapipe.errors import FileError
from fpgapipe.files import read_bytes
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.node import NodeSpec
from fpgapipe.json_faults import faults_of
from fpgapipe.lowering.shards.degrees import Axis, Degrees, sharers_of

DATA_PARALLEL = "data-parallel"
"""Schedule of a plan in which each device has the whole network."""

LAYERWISE = "layer-wise"
"""Schedule of a plan in which each device has parts of all layers."""

HYBRID = "hybrid"
"""Name of plans whose stages are groups of devices; these have the schedule of a pipeline."""

MAX_BYTES = 64 * 2**20
"""Largest plan file that is read, bytes."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


MOST_BURSTS, FEW_BURSTS = 64, 16
"""Bursts under way at a time in most cores, and in those with narrow ports of the scratchpad.

A small board's memory answers within tens of cycles and gives a few bytes a cycle, so that 16
bursts keep it busy; a queue of so many is made of LUTs, whose outputs are sooner there than a block
RAM's.
"""


def outstanding(scratchpad_port_bytes: int) -> int:
    """Bursts under way at a time in a core whose scratchpad has ports of this width."""
    return FEW_BURSTS if scratchpad_port_bytes < WORD_BYTES else MOST_BURSTS


class LinkPlan(_Part):
    """The link engine at a core's end of a link, with the fields of `LinkEngineSpec`."""

    phy_bytes: int = Field(ge=1)
    frame_words: int = Field(ge=1)
    slots: tuple[int, ...] = Field(min_length=1, strict=False)
    probe_cycles: int = Field(ge=1)
    port_bytes: int = Field(default=WORD_BYTES, ge=1)


class CorePlan(_Part):
    """The training core of a device.

    Attributes
    ----------
    rows, cols : int
        Rows and columns of cells in each array: along the reduction, and across it.
    num_engines : int
        GEMM engines, each with an array.
    clk_hz : float
        Clock frequency of the core, Hz.
    vector_lanes, function_lanes : int
        Elements per cycle that the vector engine processes, and those that it processes in
        instructions with a function from a table.
    scratchpad_banks, scratchpad_bank_bytes : int
        Banks of the on-chip memory, and bytes of each.
    acc_depth : int
        FP32 accumulators below each column.
    bus_bytes : int
        Width of the bus to the memory, bytes.
    memory_bytes_per_cycle : float
        Rate that both bus and memory sustain, both directions together; 0 without a memory.
    memory_latency_cycles : int
        Cycles from a read request to its first data.
    links : tuple of LinkPlan
        Link engines to the stage before, if there is one, and to the next, if there is one.
    scratchpad_port_bytes : int
        Bytes that a port of the scratchpad reads or writes in a cycle.
    random, counters : bool
        Whether the vector engine draws random numbers, and whether the core counts what its engines
        wait for.
    """

    rows: int = Field(ge=1, le=1024)
    cols: int = Field(ge=1, le=1024)
    num_engines: int = Field(ge=1)
    clk_hz: float = Field(gt=0)
    vector_lanes: int = Field(ge=1)
    function_lanes: int = Field(ge=1)
    scratchpad_banks: int = Field(ge=1)
    scratchpad_bank_bytes: int = Field(ge=1)
    acc_depth: int = Field(ge=1)
    bus_bytes: int = Field(ge=1)
    memory_bytes_per_cycle: float = Field(ge=0)
    memory_latency_cycles: int = Field(ge=0)
    links: tuple[LinkPlan, ...] = Field(strict=False)
    scratchpad_port_bytes: int = Field(default=64, ge=1)
    random: bool = True
    counters: bool = True

    @classmethod
    def of(cls, node: NodeSpec) -> CorePlan:
        """The core of a node, with its clock and its memory."""
        core = node.core
        assert core.vector is not None, "a core that trains has a vector engine"
        return cls(
            rows=core.rows,
            cols=core.cols,
            num_engines=core.num_engines,
            clk_hz=node.clk_hz,
            vector_lanes=core.vector.lanes,
            function_lanes=core.vector.function_lanes,
            scratchpad_banks=core.scratchpad.banks,
            scratchpad_bank_bytes=core.scratchpad.bank_bytes,
            acc_depth=core.acc_depth,
            bus_bytes=core.bus_bytes,
            memory_bytes_per_cycle=node.memory_bytes_per_cycle,
            memory_latency_cycles=node.memory_latency_cycles,
            links=tuple(LinkPlan(**asdict(each)) for each in core.links),
            scratchpad_port_bytes=core.scratchpad.port_bytes,
            random=core.vector.random,
            counters=core.counters,
        )

    @property
    def scratchpad_bytes(self) -> int:
        """Bytes of all banks together."""
        return self.scratchpad_banks * self.scratchpad_bank_bytes


class StagePlan(_Part):
    """The work of one device.

    Attributes
    ----------
    device, board : str
        Name of the device in the cluster, and name of its board.
    layers : tuple of str
        Names of the layers, in the order in which they run.
    core : CorePlan
    macs : int
        Multiply-accumulates of a forward pass over a micro-batch.
    forward_s, input_gradient_s, weight_gradient_s : float
        Seconds of each pass over a micro-batch.
    update_s : float
        Seconds of the weight update, once per mini-batch.
    sends_bytes, returns_bytes : int
        Bytes of a micro-batch's activations sent to the next stage, and of their gradients, which
        come back.
    memory_bytes : int
        The most memory in use: weights, gradients, optimiser state and activations in flight.
    """

    device: str = Field(min_length=1)
    board: str = Field(min_length=1)
    layers: tuple[str, ...] = Field(min_length=1, strict=False)
    core: CorePlan
    macs: int = Field(ge=0)
    forward_s: float = Field(ge=0)
    input_gradient_s: float = Field(ge=0)
    weight_gradient_s: float = Field(ge=0)
    update_s: float = Field(ge=0)
    sends_bytes: int = Field(ge=0)
    returns_bytes: int = Field(ge=0)
    memory_bytes: int = Field(ge=0)


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
        Format and version of the file; other versions are refused.
    network : str
        The name under which the network was loaded.
    batch, num_microbatches : int
        Samples in a mini-batch, and number of equal micro-batches that it is divided into.
    cluster : str
        The cluster's name.
    mode : str
        ``train``, or ``infer`` for forward passes only.
    schedule : str
        Kind of schedule, which determines the order of the tasks.
    degrees : dict of str to dict of str to int, optional
        In a layer-wise or a hybrid plan, the degrees of each layer that are above 1, by their axes.
    stages : tuple of StagePlan
        Devices in the order in which data flow, each with a stage of a pipeline. If the plan is
        data-parallel or layer-wise, each has all layers; if it is hybrid, neighbours with the same
        layers compute a stage together.
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
    version: Literal[3] = 3
    network: str = Field(min_length=1)
    batch: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    cluster: str
    mode: Literal["train", "infer"] = "train"
    schedule: str = Field(min_length=1)
    degrees: dict[str, dict[Axis, int]] | None = None
    stages: tuple[StagePlan, ...] = Field(min_length=1, strict=False)
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
        names = [name for stage in self.stages for name in stage.layers]
        if self.schedule == LAYERWISE and self.degrees is None:
            raise ValueError(f"a {LAYERWISE} plan must have degrees of each layer")
        if self.is_data_parallel and self.degrees is not None:
            raise ValueError(f"a {DATA_PARALLEL} plan has no degrees")
        if self.is_hybrid:
            assert self.degrees is not None
            names = [name for layers in self.stage_layers for name in layers]
            if set(self.degrees) != set(names):
                raise ValueError("a hybrid plan must have degrees of each layer")
        if self.has_shards:
            if any(stage.layers != self.stages[0].layers for stage in self.stages):
                raise ValueError(f"every device of a {self.schedule} plan must have all layers")
            if self.num_microbatches % self.sharers:
                raise ValueError(
                    f"{self.num_microbatches} micro-batches cannot be shared equally by "
                    f"{self.sharers} devices"
                )
            names = list(self.stages[0].layers)
            if self.degrees is not None and set(self.degrees) != set(names):
                raise ValueError("a layer-wise plan must have degrees of each layer")
        twice = {name for name in names if names.count(name) > 1} if len(names) < 2000 else set()
        if twice:
            raise ValueError(f"layers in two stages: {', '.join(sorted(twice)[:5])}")
        return self

    @property
    def microbatch(self) -> int:
        """Samples in a micro-batch."""
        return self.batch // self.num_microbatches

    @property
    def is_data_parallel(self) -> bool:
        """Whether each device has the whole network, and does some of the micro-batches."""
        return self.schedule == DATA_PARALLEL

    @property
    def clk_hz(self) -> float:
        """Clock frequency by which cycles of the whole become times, Hz: that of the slowest core.

        Simulated devices run at one clock; boards whose cores have several wait for the slowest.
        """
        return min(stage.core.clk_hz for stage in self.stages)

    @property
    def has_shards(self) -> bool:
        """Whether each device has all layers, or parts of them."""
        return self.schedule in (DATA_PARALLEL, LAYERWISE)

    @property
    def is_hybrid(self) -> bool:
        """Whether the plan is a pipeline whose stages are groups of devices."""
        return self.degrees is not None and not self.has_shards

    @property
    def kind(self) -> str:
        """Name under which plans are compared: the schedule's, or ``hybrid``."""
        return HYBRID if self.is_hybrid else self.schedule

    @property
    def stage_sizes(self) -> tuple[int, ...]:
        """Number of devices of each stage of a pipeline."""
        return tuple(len(list(each)) for _, each in groupby(s.layers for s in self.stages))

    @property
    def stage_layers(self) -> list[tuple[str, ...]]:
        """Layers of each stage of a pipeline."""
        return [layers for layers, _ in groupby(stage.layers for stage in self.stages)]

    @property
    def stage_devices(self) -> list[str]:
        """Names of the devices of each stage of a pipeline, in one text."""
        ends = list(accumulate(self.stage_sizes, initial=0))
        own = [self.stages[begin:end] for begin, end in pairwise(ends)]
        return [", ".join(stage.device for stage in each) for each in own]

    @property
    def layer_degrees(self) -> dict[str, Degrees]:
        """Degrees of each layer of a plan with shards, or of a hybrid one."""
        if self.degrees is None:
            return dict.fromkeys(self.stages[0].layers, Degrees(sample=len(self.stages)))
        return {name: Degrees(**each) for name, each in self.degrees.items()}

    @property
    def sharers(self) -> int:
        """Devices that share the samples of a mini-batch, of a plan with shards."""
        return sharers_of(self.layer_degrees)

    @property
    def trains(self) -> bool:
        """Whether the plan has backward passes and updates."""
        return self.mode == "train"

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
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise FileError(path, faults_of(error)) from None
