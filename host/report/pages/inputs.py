"""Readers of what runs and measurements leave in a build's ``run`` folder.

Files may be missing, damaged, or from an interrupted run. Whatever cannot be used is left out, and
a sentence says so.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fpgapipe.errors import FileError, shown
from fpgapipe.files import open_file, parse_json, read_bytes
from fpgapipe.json_faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MEASURED = "measured.json"
LOG = "log.jsonl"
SETTINGS = "settings.json"

MAX_BYTES = {MEASURED: 1 << 26, LOG: 1 << 27, SETTINGS: 1 << 20}
"""Most bytes of a file by its name; a larger one is not read."""

MAX_LINE_BYTES = 1 << 16
"""Most bytes of a line of a log; a longer line is a fault."""

MAX_LINES = 500_000
"""Most lines of a log that are shown."""

Cycle = Annotated[float, Field(ge=0, le=1e15)]
"""A number of cycles; the limit is a month."""

Interval = tuple[Cycle, Cycle]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Levels(_Part):
    """Cycles of one thing by each level; None if a level was not run."""

    closed_form: Cycle | None = None
    event: Cycle | None = None
    cycle_model: Cycle | None = None
    rtl: Cycle | None = None


class TaskTimes(_Part):
    """First and last cycle of a task by each level."""

    task: str
    kind: str
    microbatch: int = Field(ge=-1, lt=1 << 31)
    event: Interval | None = None
    cycle_model: Interval | None = None
    rtl: Interval | None = None


class LayerCycles(Levels):
    """Cycles of a layer in one pass, for all micro-batches."""

    layer: str
    direction: str = Field(alias="pass")


class SpentCycles(_Part):
    """Cycles in which an array does, or waits for, one thing in one pass of a unit."""

    array: Count
    layer: str
    direction: str = Field(alias="pass")
    cause: str
    cycles: Count


class DeviceMeasured(_Part):
    """Counters of a device after a mini-batch, and times of its tasks and layers."""

    counters: dict[str, Count] = {}
    spent: tuple[SpentCycles, ...] = ()
    tasks: tuple[TaskTimes, ...] = ()
    layers: tuple[LayerCycles, ...] = ()


class LinkMeasured(_Part):
    """Bytes of a mini-batch over a direction of a link, and cycles in which it carries them."""

    source: Count = Field(alias="from")
    destination: Count = Field(alias="to")
    num_bytes: Count | None = Field(default=None, alias="bytes")
    busy_cycles: Levels = Levels()
    counters: dict[str, Count] = {}


class Measured(_Part):
    """One mini-batch, predicted and measured; times of tasks in RTL are exact to some cycles."""

    clk_hz: float = Field(ge=1, le=1e12)
    minibatch_cycles: Levels
    resolution_cycles: Cycle = 0
    devices: tuple[DeviceMeasured, ...] = ()
    links: tuple[LinkMeasured, ...] = ()

    @field_validator("minibatch_cycles")
    @classmethod
    def _lasts(cls, levels: Levels) -> Levels:
        if any(each is not None and each < 1 for each in levels.model_dump().values()):
            raise ValueError("a mini-batch takes at least a cycle")
        return levels


class StepLine(BaseModel):
    """A line of a run's log about one step; its loss is None if it is not a number.

    Where it does not say how many labels it had, it had one for each sample.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Count
    epoch: Count
    samples: Annotated[Count, Field(ge=1)]
    loss: float | None
    correct: Count
    labels: Count | None = None
    cycles: Count | None = None
    wall_s: Annotated[float, Field(ge=0, le=1e9)] | None = None

    @field_validator("loss")
    @classmethod
    def _finite(cls, loss: float | None) -> float | None:
        """Replace a loss that is not a number, or too large for a chart, by None."""
        return loss if loss is not None and abs(loss) < 1e30 else None


class ValidationLine(_Part):
    """A line of a run's log about a validation."""

    epoch: Count
    step: Count
    accuracy: float = Field(ge=0, le=1)
    samples: Count


class ChangeLine(_Part):
    """A line of a run's log about a setting that was another one from a step on."""

    step: Count
    setting: str = Field(max_length=40)
    before: float | str | None = None
    after: float | str | None = None


@dataclass(frozen=True)
class Run:
    """Training of one backend.

    Attributes
    ----------
    name : str
        Name of its folder: ``sim``, ``model``, ``torch``.
    steps : tuple of StepLine
        Steps in order.
    validations : tuple of ValidationLine
    changes : tuple of ChangeLine
    settings : dict
    faults : tuple of str
        One sentence for each thing that cannot be used.
    """

    name: str
    steps: tuple[StepLine, ...]
    validations: tuple[ValidationLine, ...]
    changes: tuple[ChangeLine, ...]
    settings: dict[str, Any]
    faults: tuple[str, ...]


def read_measured(path: Path) -> tuple[Measured | None, str]:
    """Read measurements, or say why there are none; the reason is "" if there is no file."""
    raw, why = _read(path)
    if raw is None:
        return None, why
    try:
        return Measured.model_validate_json(raw), ""
    except ValidationError as error:
        return None, f"{path} cannot be used: {faults_of(error)[0]}."


def read_runs(folder: Path) -> tuple[Run, ...]:
    """Read the logs of all backends in a ``run`` folder, by name."""
    try:
        logs = sorted(folder.glob(f"*/{LOG}"))
    except OSError:
        return ()
    return tuple(_read_run(log) for log in logs)


def _read_run(path: Path) -> Run:
    faults: list[str] = []
    steps: list[StepLine] = []
    validations: list[ValidationLine] = []
    changes: list[ChangeLine] = []
    further = 0
    for number, line in enumerate(_lines(path, faults), 1):
        try:
            value = parse_json(line)
            if isinstance(value, dict) and "validation" in value:
                validations.append(ValidationLine.model_validate(value["validation"]))
            elif isinstance(value, dict) and "change" in value:
                changes.append(ChangeLine.model_validate(value["change"]))
            elif not (isinstance(value, dict) and "progress" in value):
                steps.append(StepLine.model_validate(value))
            continue
        except ValidationError as error:
            fault = f"{path}, line {number} cannot be used: {faults_of(error)[0]}."
        except ValueError:
            fault = f"{path}, line {number} is damaged: {shown(line.decode(errors='replace'))}."
        further += len(faults) >= 3
        faults += [fault] * (len(faults) < 3)
    if further:
        faults.append(f"{path}: {further:,} further lines cannot be used.")
    settings: dict[str, Any] = {}
    beside, why = _read(path.with_name(SETTINGS))
    if why:
        faults.append(why)
    if beside is not None:
        try:
            found = parse_json(beside)
            if not isinstance(found, dict):
                raise ValueError
            json.dumps(found, allow_nan=False)  # a number such as 1e999 is infinite
            settings = found
        except ValueError:
            faults.append(
                f"{path.with_name(SETTINGS)} is damaged: no JSON object of finite numbers."
            )
    return Run(
        path.parent.name, tuple(steps), tuple(validations), tuple(changes), settings, tuple(faults)
    )


def _lines(path: Path, faults: list[str]) -> Iterator[bytes]:
    """Yield whole lines of a log, and add what cannot be read to the faults.

    A run that was interrupted, or still goes on, may leave the start of a line; this is no fault.
    """
    try:
        with open_file(path, MAX_BYTES[LOG]) as file:
            for _ in range(MAX_LINES):
                line = file.readline(MAX_LINE_BYTES)
                if not line.endswith(b"\n"):
                    if len(line) == MAX_LINE_BYTES:
                        faults.append(f"{path} has lines that are no log's.")
                    return
                yield line[:-1]
        faults.append(f"{path} has more than {MAX_LINES:,} lines; the others are not shown.")
    except FileError as error:
        faults.append(f"{path} {error.faults[0]}.")
    except OSError as error:
        faults.append(f"{path} cannot be read: {error.strerror}.")


def _read(path: Path) -> tuple[bytes | None, str]:
    """Return the bytes of a file, or None and the reason; the reason is "" if there is no file."""
    if not os.path.lexists(path):
        return None, ""
    try:
        return read_bytes(path, MAX_BYTES[path.name]), ""
    except FileError as error:
        return None, f"{path} {error.faults[0]}."
