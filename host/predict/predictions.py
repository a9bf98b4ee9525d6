"""Classes of samples, with probabilities and the names of files, and how good they are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOP = 5
"""Most classes that are given for a sample."""

WORST = 20
"""Most wrong samples that are shown, those first of whose wrong class the network is surest."""

SHOWN = 10
"""Most samples that the terminal shows."""


@dataclass(frozen=True)
class Predictions(Result):
    """Predictions of a network for samples.

    Attributes
    ----------
    network : str
    weights : Path
        Build or checkpoint whose weights were taken.
    data : str
    backend : str
    classes : tuple of str
        Names of the classes, or their numbers.
    rows : tuple of dict
        For each sample its ``sample`` (name of the file, or number), ``class``, ``probability``,
        ``top``, a list of classes with their probabilities, and ``label``, the class that the data
        say; None if they say none.
    cycles : int or None
        Cycles of all mini-batches, if they are counted.
    """

    RECORDS: ClassVar[str] = "samples"

    network: str
    weights: Path
    data: str
    backend: str
    classes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    cycles: int | None = None

    @property
    def has_labels(self) -> bool:
        """Whether the data say which classes are right."""
        return bool(self.rows) and self.rows[0]["label"] is not None

    @property
    def accuracy(self) -> float | None:
        """Share of samples whose class is right."""
        return self._share(lambda row: row["class"] == row["label"])

    @property
    def top_accuracy(self) -> float | None:
        """Share of samples whose class is among the first `TOP`."""
        return self._share(lambda row: row["label"] in [name for name, _ in row["top"]])

    def _share(self, is_right: Any) -> float | None:
        return sum(map(is_right, self.rows)) / len(self.rows) if self.has_labels else None

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """How often samples of a class (first key) were taken for a class (second key)."""
        found: dict[str, dict[str, int]] = {}
        for row in self.rows if self.has_labels else ():
            counts = found.setdefault(row["label"], {})
            counts[row["class"]] = counts.get(row["class"], 0) + 1
        return {
            name: {other: found[name][other] for other in self.classes if other in found[name]}
            for name in self.classes
            if name in found
        }

    @property
    def by_class(self) -> list[dict[str, Any]]:
        """For each ``class`` in the data its number of ``samples`` and their ``accuracy``."""
        return [
            {"class": name, "samples": sum(own.values()),
             "accuracy": own.get(name, 0) / sum(own.values())}
            for name, own in self.confusion.items()
        ]  # fmt: skip

    @property
    def worst(self) -> list[dict[str, Any]]:
        """The wrong samples of which the network is surest."""
        wrong = [row for row in self.rows if self.has_labels and row["class"] != row["label"]]
        return sorted(wrong, key=lambda row: -row["probability"])[:WORST]

    def to_dict(self) -> dict[str, Any]:
        """All samples, and how good the classes are."""
        return {
            "network": self.network,
            "weights": str(self.weights),
            "data": self.data,
            "backend": self.backend,
            "classes": list(self.classes),
            "accuracy": self.accuracy,
            "top_accuracy": self.top_accuracy,
            "cycles": self.cycles,
            "by_class": self.by_class,
            "confusion": self.confusion,
            "worst": self.worst,
            self.RECORDS: list(self.rows),
        }

    def shown(self) -> Iterator[Table | str]:
        """The first samples, and the accuracy by class."""
        count = len(self.rows)
        rows = [
            (row["sample"], row["class"], f"{row['probability']:.1%}", *self._label(row))
            for row in self.rows[:SHOWN]
        ]
        heads = "sample|class|>probability" + ("|label" if self.has_labels else "")
        title = (
            f"{self.network}, {self.backend}: {count:,} sample{'s' * (count != 1)} of {self.data}"
        )
        yield Table(heads, rows, title)
        if count > SHOWN:
            yield f"and {count - SHOWN:,} more, which -o FILE.csv or FILE.json has"
        if self.has_labels:
            own = [
                (each["class"], f"{each['samples']:,}", f"{each['accuracy']:.2%}")
                for each in self.by_class
            ]
            top = min(TOP, len(self.classes))
            yield Table(
                "class|>samples|>right",
                [*own, ("all", f"{count:,}", f"{self.accuracy:.2%}")],
                f"accuracy; {self.top_accuracy:.2%} are among the first {top}",
            )

    def _label(self, row: dict[str, Any]) -> tuple[str, ...]:
        return (row["label"],) if self.has_labels else ()

    def to_csv(self) -> str:
        """A line for each sample: name, label, and the first classes with their probabilities."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        count = min(TOP, len(self.classes))
        further = [word for n in range(2, count + 1) for word in (f"class_{n}", f"probability_{n}")]
        writer.writerow(["sample", "label", "class", "probability", *further])
        for row in self.rows:
            words = [word for name, share in row["top"] for word in (name, f"{share:.6g}")]
            writer.writerow([row["sample"], row["label"] or "", *words])
        return file.getvalue()

    def text_for(self, path: Path) -> str:
        """Contents of a file of a name: CSV, or JSON if it ends in ``.json``."""
        if path.suffix.lower() == ".json":
            return json.dumps(self.to_dict(), indent=1) + "\n"
        return self.to_csv()


def rows_of(
    logits: NDArray[np.float32],
    labels: NDArray[np.integer] | None,
    names: Sequence[str],
    classes: Sequence[str],
) -> tuple[dict[str, Any], ...]:
    """Rows of `Predictions` from logits.

    Parameters
    ----------
    logits : float32 array, shape (samples, classes)
    labels : int array, shape (samples,), or None
    names : sequence of str
        Names of the samples; numbers if there are none.
    classes : sequence of str
    """
    logits64 = logits.astype(np.float64)
    exponents = np.exp(logits64 - logits64.max(1, keepdims=True))
    shares = exponents / exponents.sum(1, keepdims=True)
    # A stable sort: of equal classes the first is taken, as accuracy counts them.
    order = np.argsort(-logits64, axis=1, kind="stable")[:, : min(TOP, logits.shape[1])]
    found = []
    for number, first in enumerate(order):
        top = [[classes[each], float(shares[number, each])] for each in first]
        found.append(
            {
                "sample": str(names[number]) if len(names) else str(number),
                "class": top[0][0],
                "probability": top[0][1],
                "label": None if labels is None else classes[int(labels[number])],
                "top": top,
            }
        )
    return tuple(found)
