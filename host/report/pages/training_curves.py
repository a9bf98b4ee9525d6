"""Loss and accuracy of the runs, compared with those of PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.elements import (
    NOTHING,
    Cell,
    Heading,
    Section,
    fault,
    missing,
    share,
    swatches,
    table,
    term,
    text,
    whole,
)
from fpgapipe.host.report.drawing.line_chart import STYLES, Line, line_chart
from fpgapipe.host.report.drawing.timetable import duration
from fpgapipe.host.report.pages.inputs import Run
from fpgapipe.host.report.pages.subject import Subject

BACKENDS = {
    "sim": "simulated hardware",
    "model": "bit-exact model",
    "torch": "PyTorch",
    "torch-mx": "PyTorch with the devices' number formats",
}
"""Backends in words, by the name of a run's folder."""

ALIKE = (
    "data",
    "data_sha256",
    "seed",
    "batch",
    "learning_rate",
    "warm_up",
    "optimiser",
    "momentum",
    "weight_decay",
    "clip_norm",
    "schedule",
    "epochs",
    "steps",
)
"""Settings that have to be equal if runs are to be compared."""

SHOWN_SETTINGS = (
    "data",
    "seed",
    "precision",
    "learning_rate",
    "warm_up",
    "schedule",
    "optimiser",
    "momentum",
    "weight_decay",
    "clip_norm",
    "simulation",
)


def training_section(subject: Subject) -> Section:
    """Make the section with charts and tables of all runs."""
    lead = (
        "How the network learns: the loss of each mini-batch, which should fall, and the share of "
        "samples that it never saw in training and gets right. Simulated hardware and bit-exact "
        f"model give the same numbers; {term('PyTorch', 'pytorch')} is the reference, with the "
        "same data, order and start."
    )
    runs = [run for run in subject.runs if run.steps or run.validations]
    body = "".join(fault(words) for run in subject.runs for words in run.faults)
    if not subject.plan.trains and not runs:
        body += '<p class="note">The build is for inference: nothing is trained.</p>\n'
        return Section("training", "Loss and accuracy", lead, body)
    if runs:
        body += curves(runs)
    body += "".join(_changes(run) for run in runs)
    unlike = [
        key.replace("_", " ")
        for key in ALIKE
        if len({json.dumps(run.settings[key]) for run in runs if key in run.settings}) > 1
    ]
    if unlike:
        body += f'<p class="note">The runs are not alike: they differ in {", ".join(unlike)}.</p>\n'
    names = {run.name for run in runs}
    if not names & {"sim", "model"}:
        body += missing("No run of the hardware or its model yet.", subject.run_command("model"))
    if not any(name.startswith("torch") for name in names):
        body += missing("No run of PyTorch to compare with.", subject.run_command("torch"))
    return Section("training", "Loss and accuracy", lead, body)


def curves(runs: Sequence[Run]) -> str:
    """Charts of runs with a legend, and tables of the same numbers."""
    body = ""
    if len(runs) > STYLES:
        body += f'<p class="note">Lines look alike from the {STYLES + 1}th run on.</p>'
    body += swatches([(f"line s{i % STYLES + 1}", _named(run)) for i, run in enumerate(runs)])
    body += '<div class="charts">' + "".join(_charts(runs)) + "</div>\n"
    return body + _run_table(runs) + _epoch_table(runs)


def _changes(run: Run) -> str:
    """A sentence for each setting that a run changed on its way."""
    words = []
    for each in run.changes:
        new = (
            f"{each.setting.replace('_', ' ')} {_shown(each.after)} ({_shown(each.before)} before)"
        )
        what = "other data" if each.setting == "data" else new
        after = counted(each.step, "mini-batch", "es")
        words.append(f"After {after}, {run.name} went on with {what}.")
    return "".join(f'<p class="note">{text(each)}</p>\n' for each in words)


def _shown(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(run: Run) -> str:
    words = BACKENDS.get(run.name)
    return f"{text(run.name)} ({words})" if words else text(run.name)


def _charts(runs: Sequence[Run]) -> list[str]:
    losses = [Line(run.name, *_losses(run)) for run in runs]
    parts = [
        "<figure><figcaption>Loss of each mini-batch</figcaption>",
        line_chart(losses, title="Loss by step", x_words="step", y_words="loss"),
        "</figure>",
    ]
    epochs = [
        Line(
            run.name,
            np.array([each.epoch for each in run.validations], np.float64),
            np.array([each.accuracy for each in run.validations], np.float64),
        )
        for run in runs
    ]
    title = "Validation accuracy after each epoch"
    if not any(len(line.x) for line in epochs):
        title = "Training accuracy of each epoch"
        epochs = [Line(run.name, *_training_accuracy(run)) for run in runs]
    parts += [
        f"<figure><figcaption>{title}</figcaption>",
        line_chart(epochs, title=title, x_words="epoch", y_words="accuracy", per_cent=True),
        "</figure>",
    ]
    return parts


def _losses(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    steps = np.array([each.step for each in run.steps], np.float64)
    losses = [np.nan if each.loss is None else each.loss for each in run.steps]
    return steps, np.array(losses, np.float64)


def _training_accuracy(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return epochs, and the share of their labels that were right in training."""
    correct: dict[int, int] = {}
    labels: dict[int, int] = {}
    for each in run.steps:
        correct[each.epoch] = correct.get(each.epoch, 0) + each.correct
        own = each.samples if each.labels is None else each.labels
        labels[each.epoch] = labels.get(each.epoch, 0) + own
    epochs = sorted(epoch for epoch, count in labels.items() if count)  # targets are no labels
    shares = [correct[epoch] / labels[epoch] for epoch in epochs]
    return np.array(epochs, np.float64), np.array(shares, np.float64)


def _run_table(runs: Sequence[Run]) -> str:
    given = {key for run in runs for key, value in run.settings.items() if value is not None}
    settings = [key for key in SHOWN_SETTINGS if key in given]
    headings = [
        Heading("Run", False),
        Heading("Steps"),
        Heading("First loss"),
        Heading("Last loss"),
        Heading("Last accuracy", hint="Of validation, after the last epoch"),
        Heading("Best accuracy"),
        Heading("Cycles a step", hint="The mean of simulated steps"),
        Heading("Time", hint="Of the computer that ran it, not of the hardware"),
        *(Heading(text(key.replace("_", " ").capitalize()), False) for key in settings),
    ]
    rows = []
    for run in runs:
        losses = [each.loss for each in run.steps if each.loss is not None]
        accuracies = [each.accuracy for each in run.validations]
        cycles = [each.cycles for each in run.steps if each.cycles is not None]
        wall_s = sum(each.wall_s or 0.0 for each in run.steps)
        rows.append(
            [
                Cell(text(run.name)),
                whole(len(run.steps)),
                _loss(losses[0] if losses else None),
                _loss(losses[-1] if losses else None),
                share(accuracies[-1] if accuracies else None),
                share(max(accuracies, default=None)),
                whole(sum(cycles) / len(cycles) if cycles else None),
                Cell(duration(wall_s), wall_s) if wall_s else NOTHING,
                *(
                    Cell(text(run.settings[key])) if run.settings.get(key) is not None else NOTHING
                    for key in settings
                ),
            ]
        )
    return table("The runs", headings, rows)


def _loss(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.4f}", value)


def _epoch_table(runs: Sequence[Run]) -> str:
    """A table of the accuracy of each epoch, with a column for each run."""
    found = [{each.epoch: each.accuracy for each in run.validations} for run in runs]
    epochs = sorted({epoch for each in found for epoch in each})
    if not epochs:
        return ""
    headings = [Heading("Epoch"), *(Heading(text(run.name)) for run in runs)]
    rows = [[whole(epoch), *(share(each.get(epoch)) for each in found)] for epoch in epochs]
    details = table("Validation accuracy after each epoch", headings, rows, css="narrow")
    return f"<details><summary>Accuracy of each epoch as a table</summary>{details}</details>\n"
