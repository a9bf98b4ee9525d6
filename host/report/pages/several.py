"""Several builds and runs compared on one page: their curves, and a table of what differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpgapipe import __version__
from fpgapipe.errors import UserError, counted
from fpgapipe.files import write_output
from fpgapipe.host.build.build import RUN, open_build
from fpgapipe.host.report.drawing.elements import (
    NOTHING,
    Cell,
    Heading,
    Section,
    meter,
    share,
    table,
    text,
    whole,
)
from fpgapipe.host.report.drawing.theme import asset, page_begins
from fpgapipe.host.report.drawing.timetable import number, percent
from fpgapipe.host.report.pages.findings import findings, furthest
from fpgapipe.host.report.pages.resource_tables import fullest
from fpgapipe.host.report.pages.subject import Subject, array_words
from fpgapipe.host.report.pages.training_curves import curves
from fpgapipe.host.terminal.outputs import check_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE = "comparison.html"


@dataclass(frozen=True)
class Compared:
    """A build, with those of its runs that are compared.

    Attributes
    ----------
    label : str
        Label that distinguishes it from the others.
    subject : Subject
    """

    label: str
    subject: Subject


def gather(folders: Sequence[Path]) -> list[Compared]:
    """Open builds, or single runs of builds such as ``out/digits-cnn/run/model``.

    Raises
    ------
    UserError
        If one is neither, or the same is named twice.
    """
    found = []
    for folder in folders:
        is_run = folder.parent.name == RUN
        subject = Subject.of(open_build(folder.parent.parent if is_run else folder))
        if is_run:
            runs = tuple(run for run in subject.runs if run.name == folder.name)
            if not runs:
                raise UserError(f"{folder} has no log of a run")
            subject = replace(subject, runs=runs)
        found.append((folder, subject))
    paths = [folder.resolve() for folder, _ in found]
    if len(set(paths)) < len(paths):
        raise UserError("the same build or run is named twice; there is nothing to compare")
    return [Compared(label, each[1]) for label, each in zip(_labels(folders), found, strict=True)]


def _labels(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that distinguish them."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts))):
        labels = ["/".join(each[-length:]) for each in parts]
        if len(set(labels)) == len(labels):
            break
    return labels


def write_comparison(compared: Sequence[Compared], output: Path | None = None) -> Path:
    """Write the page to the first build's ``run`` folder, or to `output`.

    Raises
    ------
    UserError
        If it cannot be written, or `output` is one of a build's own files.
    """
    if output is not None:
        check_output(output)
    page = output or compared[0].subject.build.run_folder / PAGE
    if output is None:
        try:
            page.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"{page.parent} cannot be written: {error.strerror}") from None
    write_output(page, make_comparison(compared))
    return page


def make_comparison(compared: Sequence[Compared]) -> str:
    """Make the page: the same input gives the same text."""
    sections = [_builds(compared), _training(compared)]
    links = "".join(f'<a href="#{each.ident}">{each.heading}</a>' for each in sections)
    items = "".join(
        f"<li><b>{text(each.label)}</b>: {findings(each.subject)}</li>" for each in compared
    )
    title = f"{len(compared)} builds and runs compared"
    return f"""{page_begins(f"{title}: fpgapipe report", asset("report.css"), "")}<body>
<a class="skip" href="#main">To the content</a>
<header>
<p class="eyebrow">fpgapipe report</p>
<h1>{title}</h1>
<p class="sentence">{_verdict(compared)}</p>
<ul>{items}</ul>
</header>
<nav aria-label="Sections"><div>{links}</div>
<button type="button" id="theme" hidden>Dark</button></nav>
<main id="main">
{"".join(each.html() for each in sections)}</main>
<footer>
<p>Made by fpgapipe {__version__}. The page needs nothing else: it can be kept, sent and
printed.</p>
</footer>
<script>{asset("report.js")}</script>
</body>
</html>
"""


def accuracy_of(subject: Subject) -> float | None:
    """Accuracy in the last validation of the run that went furthest."""
    run = furthest(subject)
    return run.validations[-1].accuracy if run and run.validations else None


def _verdict(compared: Sequence[Compared]) -> str:
    """Say in two sentences which build is the fastest, and which finds most classes."""
    fastest = max(compared, key=lambda each: each.subject.samples_per_s)
    known = "" if fastest.subject.simulated_cycles else ", by its plan"
    words = (
        f"<b>{text(fastest.label)}</b> is the fastest{known}, with "
        f"{number(fastest.subject.samples_per_s, 4)} samples a second."
    )
    scored = [
        (accuracy, each.label)
        for each in compared
        if (accuracy := accuracy_of(each.subject)) is not None
    ]
    if not scored:
        return f"{words} None has been validated yet."
    best, label = max(scored, key=lambda each: each[0])
    return f"{words} <b>{text(label)}</b> finds most classes, {percent(best)} of unseen samples."


def _builds(compared: Sequence[Compared]) -> Section:
    """Make the section with the table of what differs between the builds."""
    headings = [
        Heading("Build", False),
        Heading("Network", False),
        Heading("Cluster", False),
        Heading("Arrays", False),
        Heading("Schedule", False),
        Heading("Batch"),
        Heading("Cycles a step, planned"),
        Heading("Cycles a step, simulated"),
        Heading("Samples/s", hint="Simulated at the clock, or else planned"),
        Heading("Accuracy", hint="Of validation, of the run that went furthest"),
        Heading("Fullest resource", False, hint="Of any device: what a design may use of it"),
    ]
    rows = []
    for each in compared:
        subject, plan = each.subject, each.subject.plan
        arrays = ", ".join(dict.fromkeys(array_words(node.core) for node in plan.nodes))
        resource, used = fullest(subject)
        parts = counted(plan.num_microbatches, "micro-batch", "es")
        rows.append(
            [
                Cell(text(each.label)),
                Cell(text(plan.network)),
                Cell(f"{text(plan.cluster)}, {counted(len(plan.nodes), 'device')}"),
                Cell(text(arrays)),
                Cell(f"{text(plan.order_name)}, {parts}"),
                whole(plan.batch),
                whole(plan.predicted.minibatch_s * subject.clk_hz),
                whole(subject.simulated_cycles),
                Cell(number(subject.samples_per_s, 4), subject.samples_per_s),
                share(accuracy_of(subject)),
                Cell(f"{resource} {percent(used)}{meter(used)}", used) if resource else NOTHING,
            ]
        )
    lead = "What the builds are made of, how fast they are, and what they have learned."
    return Section("builds", "The builds", lead, table("Builds and runs", headings, rows))


def _training(compared: Sequence[Compared]) -> Section:
    runs = [
        replace(run, name=f"{each.label}: {run.name}" if run.name not in each.label else each.label)
        for each in compared
        for run in each.subject.runs
        if run.steps or run.validations
    ]
    lead = "The loss of each mini-batch, which should fall, and the share of unseen samples right."
    body = curves(runs) if runs else '<p class="note">None of them has been trained yet.</p>\n'
    return Section("training", "Loss and accuracy", lead, body)
