"""The plan: which device computes which layers, with what array. Versioned JSON both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fpgapipe.errors import FileError, shown

MAX_BYTES = 64 * 2**20
"""A larger plan is not read."""


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
    device : str
        Its name in the cluster.
    layers : tuple of str
        Names of layers, in the order in which they run.
    macs : int
        Multiply-accumulates of a forward pass over the batch.
    """

    device: str = Field(min_length=1)
    layers: tuple[str, ...] = Field(min_length=1, strict=False)
    macs: int = Field(ge=0)


class Plan(_Part):
    """A network laid out over a cluster.

    Attributes
    ----------
    format, version
        What the file is; another version is refused.
    network, batch
        The network, by the name under which it was loaded, and the samples in a batch.
    cluster : str
        The cluster's name.
    array : ArrayPlan
    stages : tuple of StagePlan
        In the order in which data flow.
    """

    format: Literal["fpgapipe-plan"] = "fpgapipe-plan"
    version: Literal[1] = 1
    network: str = Field(min_length=1)
    batch: int = Field(ge=1)
    cluster: str
    array: ArrayPlan
    stages: tuple[StagePlan, ...] = Field(min_length=1, strict=False)

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
                raise FileError(
                    path, [f"file is over {MAX_BYTES // 2**20} MiB, too large for a plan"]
                )
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
