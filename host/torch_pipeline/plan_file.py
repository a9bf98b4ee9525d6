"""Reads what a pipeline in PyTorch needs of a file that ``fpgapipe plan -o`` has written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fpgapipe.errors import FileError, UserError, counted
from fpgapipe.files import read_bytes
from fpgapipe.json_faults import faults_of
from fpgapipe.partition.plan import MAX_BYTES, PROFILE_PLAN, Plan

if TYPE_CHECKING:
    from pathlib import Path

    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class PipelinePlan:
    """A plan, as far as PyTorch carries it out.

    Attributes
    ----------
    network : str
        The name under which the network was loaded, or the name of its profile.
    schedule : str
    stages : tuple of tuple of str
        Names of the layers of each stage; of a profile, the last layer of each part.
    num_microbatches : int
    microbatch : int or None
        Samples of a micro-batch, if they are known.
    predicted_s : float or None
        Time of a mini-batch by measured times, if it was planned with them.
    """

    network: str
    schedule: str
    stages: tuple[tuple[str, ...], ...]
    num_microbatches: int
    microbatch: int | None
    predicted_s: float | None

    def cuts(self, graph: Graph) -> tuple[tuple[str, ...], ...]:
        """Names of all layers of each stage of a network.

        Raises
        ------
        UserError
            If the network has no layer of a name, or not in this order.
        """
        if self.predicted_s is None:
            return self.stages
        names = list(graph.layers)
        found, begin = [], 0
        for number, stage in enumerate(self.stages):
            for name in stage:
                if name not in graph.layers:
                    raise UserError(
                        f"{graph.name} has no layer {name!r}, which stage {number} of the plan "
                        "has; name the network that was measured with --network"
                    )
            end = names.index(stage[-1]) + 1
            if end <= begin:
                raise UserError(f"layer {stage[-1]!r} ends stage {number}, but comes before it")
            found.append(tuple(names[begin:end]))
            begin = end
        return tuple(found)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Stage(_Part):
    layers: tuple[str, ...] = Field(min_length=1, strict=False)
    replicas: int = Field(ge=1)


class ProfilePlan(_Part):
    """Stages of measured layers, as a file has them."""

    network: str = Field(min_length=1)
    schedule: str = Field(min_length=1)
    micro_batches: int = Field(ge=1)
    samples: int | None = Field(default=None, ge=1)
    stages: tuple[_Stage, ...] = Field(min_length=1, strict=False)
    minibatch_time_s: float = Field(ge=0)


def read_pipeline_plan(path: Path) -> PipelinePlan:
    """Read a plan of boards or of measured times.

    Raises
    ------
    FileError
        If the file is no plan.
    UserError
        If the plan is no pipeline whose stages have one device each, or not for training.
    """
    data = read_bytes(path, MAX_BYTES)
    try:
        value = json.loads(data)
    except ValueError as error:
        raise FileError(path, [f"no JSON: {error}"]) from None
    if isinstance(value, dict) and value.get("format") == PROFILE_PLAN:
        try:
            found = ProfilePlan.model_validate_json(data)
        except ValidationError as error:
            raise FileError(path, faults_of(error)) from None
        for number, stage in enumerate(found.stages):
            if stage.replicas > 1:
                raise UserError(
                    f"{path}: stage {number} is on {stage.replicas} devices, whose gradients "
                    "PyTorch's pipelines do not add up; plan with --straight"
                )
        stages = tuple(stage.layers for stage in found.stages)
        return PipelinePlan(
            found.network, found.schedule, stages, found.micro_batches, found.samples,
            found.minibatch_time_s,
        )  # fmt: skip
    plan = Plan.read(path)
    if not plan.trains:
        raise UserError(f"{path} is a plan of inference; PyTorch's pipelines train")
    if len(plan.nodes) != len(plan.stages):
        raise UserError(
            f"{path} has {counted(len(plan.stages), 'stage')} on "
            f"{counted(len(plan.nodes), 'device')}; PyTorch's pipelines have a device a stage, so "
            "take --strategy pipeline"
        )
    return PipelinePlan(
        plan.network, plan.schedule, tuple(stage.layers for stage in plan.stages),
        plan.num_microbatches, plan.microbatch, None,
    )  # fmt: skip
