"""The plan: who computes what, how, and what to expect; as versioned JSON both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fpgapipe.errors import FileError, shown

MAX_BYTES = 64 * 2**20
"""A larger plan is not read."""

PLAN_VERSION = 2


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ArrayPlan(_Part):
    """The systolic array of a device: rows along the reduction, columns across it."""

    rows: int = Field(ge=1, le=1024)
    cols: int = Field(ge=1, le=1024)


class StagePlan(_Part):
    """What one device does.

    Attributes
    ----------
    device, board : str
        Its name in the cluster, and that of its board.
    layers : tuple of str
        Names of layers, in the order in which they run.
    array : ArrayPlan
    macs : int
        Multiply-accumulates of a forward pass over a micro-batch.
    forward_s, input_gradient_s, weight_gradient_s : float
        Of a micro-batch.
    update_s : float
        Of the weights, once a mini-batch.
    sends_bytes, returns_bytes : int
        Features of a micro-batch to the next stage, and their gradients back.
    memory_bytes : int
        The most in use: weights, gradients, optimiser state, features in flight.
    """

    device: str = Field(min_length=1)
    board: str = Field(min_length=1)
    layers: tuple[str, ...] = Field(min_length=1, strict=False)
    array: ArrayPlan
    macs: int = Field(ge=0)
    forward_s: float = Field(ge=0)
    input_gradient_s: float = Field(ge=0)
    weight_gradient_s: float = Field(ge=0)
    update_s: float = Field(ge=0)
    sends_bytes: int = Field(ge=0)
    returns_bytes: int = Field(ge=0)
    memory_bytes: int = Field(ge=0)


class Prediction(_Part):
    """What the event simulation of the plan says.

    Attributes
    ----------
    minibatch_s : float
        From the first task to the last update.
    period_s : float
        What one more micro-batch costs.
    bubble_rate : float
        Share of the time in which the average engine does not compute.
    samples_per_s : float
    """

    minibatch_s: float = Field(ge=0)
    period_s: float = Field(ge=0)
    bubble_rate: float = Field(ge=0, le=1)
    samples_per_s: float = Field(ge=0)


class Plan(_Part):
    """A network laid out over a cluster.

    Attributes
    ----------
    format, version
        What the file is; another version is refused.
    network : str
        The name under which it was loaded.
    batch, num_microbatches : int
        Samples in a mini-batch, and the equal parts that it is cut into.
    cluster : str
        The cluster's name.
    schedule : str
        The kind; the order of tasks follows from it.
    stages : tuple of StagePlan
        In the order in which data flow.
    predicted : Prediction
    optimal : bool
        Whether no other cut does better under the partitioner's model.
    reason : str
        Why, or why only a bound is known.
    """

    format: Literal["fpgapipe-plan"] = "fpgapipe-plan"
    version: Literal[2] = 2
    network: str = Field(min_length=1)
    batch: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    cluster: str
    schedule: str = Field(min_length=1)
    stages: tuple[StagePlan, ...] = Field(min_length=1, strict=False)
    predicted: Prediction
    optimal: bool
    reason: str

    @model_validator(mode="after")
    def _check(self) -> Plan:
        if self.batch % self.num_microbatches:
            raise ValueError(
                f"a batch of {self.batch} cannot be cut into {self.num_microbatches} equal parts"
            )
        names = [name for stage in self.stages for name in stage.layers]
        twice = {name for name in names if names.count(name) > 1} if len(names) < 2000 else set()
        if twice:
            raise ValueError(f"layers in two stages: {', '.join(sorted(twice)[:5])}")
        return self

    @property
    def microbatch(self) -> int:
        """Samples in a micro-batch."""
        return self.batch // self.num_microbatches

    def to_json(self) -> str:
        """The plan as text that `read` reads back; equal plans give equal text."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan.

        Raises
        ------
        FileError
            With every fault of the file.
        """
        try:
            if path.stat().st_size > MAX_BYTES:
                limit = MAX_BYTES // 2**20
                raise FileError(path, [f"file is over {limit} MiB, too large for a plan"])
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise FileError(path, [f"cannot be read: {error.strerror}"]) from None
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}, "
                f"not {shown(each['input'])}"
                for each in error.errors()
            ]
            raise FileError(path, faults[:20]) from None
