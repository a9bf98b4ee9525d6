"""Predictions of a network: accuracy by class, confusions, and the worst samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fpgapipe.errors import FileError
from fpgapipe.files import read_bytes
from fpgapipe.host.report.drawing.elements import (
    Cell,
    Heading,
    Section,
    fault,
    share,
    table,
    text,
    whole,
)
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.runtime.run_folder import PREDICTIONS
from fpgapipe.json_faults import faults_of

MAX_BYTES = 1 << 28
"""Most bytes of a file of predictions; a larger one is not read."""

MATRIX = 20
"""Most classes of a matrix of confusions; of more, the most frequent ones are listed."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _ByClass(_Part):
    name: str = Field(alias="class")
    samples: Count
    accuracy: Share


class _Sample(_Part):
    sample: str
    found: str = Field(alias="class")
    probability: Share
    label: str | None


class _Predicted(_Part):
    weights: str
    data: str
    backend: str
    accuracy: Share | None
    top_accuracy: Share | None
    by_class: tuple[_ByClass, ...]
    confusion: dict[str, dict[str, Count]]
    worst: tuple[_Sample, ...]


def predicted_section(subject: Subject) -> Section | None:
    """Make the section; None if nothing was predicted with labels."""
    body = ""
    for path in sorted((subject.build.folder / "run").glob(f"*/{PREDICTIONS}")):
        body += _of_file(path)
    lead = (
        "What the trained network takes samples for, as <code>fpgapipe predict</code> has found: "
        "how many of each class are right, which classes are taken for which, and the wrong "
        "samples of which the network is surest."
    )
    return Section("predictions", "Predictions", lead, body) if body else None


def _of_file(path: Path) -> str:
    try:
        found = _Predicted.model_validate_json(read_bytes(path, MAX_BYTES))
    except FileError as error:
        return fault(text(f"{path} {error.faults[0]}."))
    except ValidationError as error:
        return fault(text(f"{path} cannot be used: {faults_of(error)[0]}."))
    if found.accuracy is None or not found.by_class:
        return ""
    what = f"{path.parent.name}: {found.data} in {found.backend}, weights of {found.weights}"
    rows = [[Cell(text(x.name)), whole(x.samples), share(x.accuracy)] for x in found.by_class]
    total = sum(each.samples for each in found.by_class)
    parts = [
        f"<h3>{text(what)}</h3>\n",
        table(
            "Accuracy by class",
            [Heading("class", number=False), Heading("samples"), Heading("right")],
            rows,
            foot=[Cell("all"), whole(total), share(found.accuracy)],
        ),
        _confusions(found),
    ]
    if found.worst:
        parts.append(
            table(
                "Wrong samples, the surest first",
                [
                    Heading("sample", number=False),
                    Heading("taken for", number=False),
                    Heading("is", number=False),
                    Heading("probability"),
                ],
                [
                    [Cell(text(x.sample)), Cell(text(x.found)), Cell(text(x.label)),
                     share(x.probability)]
                    for x in found.worst
                ],
            )
        )  # fmt: skip
    return "".join(parts)


def _confusions(found: _Predicted) -> str:
    """A matrix of few classes; of many, the wrong pairs that are most frequent."""
    names = sorted(
        {*found.confusion, *(other for own in found.confusion.values() for other in own)}
    )
    order = [each.name for each in found.by_class]
    names = order + [name for name in names if name not in order]
    if len(names) <= MATRIX:
        return table(
            "Samples of a class (rows) that are taken for a class (columns)",
            [Heading("class", number=False), *(Heading(text(name)) for name in names)],
            [
                [Cell(text(name)), *(whole(found.confusion[name].get(other, 0)) for other in names)]
                for name in order
                if name in found.confusion
            ],
        )
    pairs = [
        (count, name, other)
        for name, own in found.confusion.items()
        for other, count in own.items()
        if other != name
    ]
    pairs.sort(key=lambda each: (-each[0], each[1], each[2]))
    return table(
        "Classes that are most often taken for another",
        [Heading("class", number=False), Heading("taken for", number=False), Heading("samples")],
        [[Cell(text(name)), Cell(text(other)), whole(n)] for n, name, other in pairs[:MATRIX]],
    )
