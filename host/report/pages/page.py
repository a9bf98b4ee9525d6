"""The report of a build: one page that needs nothing else, and a trace next to it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fpgapipe import __version__
from fpgapipe.errors import UserError
from fpgapipe.files import write_output
from fpgapipe.host.report.drawing.elements import text
from fpgapipe.host.report.drawing.perfetto import rows_trace
from fpgapipe.host.report.drawing.theme import asset, page_begins
from fpgapipe.host.report.drawing.timetable_svg import RULES
from fpgapipe.host.report.pages.cluster_svg import cluster_section
from fpgapipe.host.report.pages.cycle_tables import cycles_section
from fpgapipe.host.report.pages.glossary import glossary_section
from fpgapipe.host.report.pages.head import head
from fpgapipe.host.report.pages.predicted import predicted_section
from fpgapipe.host.report.pages.resource_tables import resources_section
from fpgapipe.host.report.pages.spent_cycles import spent_section
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.report.pages.task_times import measured_rows, timetable_section
from fpgapipe.host.report.pages.training_curves import training_section
from fpgapipe.host.report.pages.utilisation import utilisation_section
from fpgapipe.host.terminal.outputs import check_output

if TYPE_CHECKING:
    from fpgapipe.host.build.build import Build

SECTIONS = (
    cluster_section,
    resources_section,
    timetable_section,
    cycles_section,
    utilisation_section,
    spent_section,
    training_section,
)
"""Functions that make the sections, in the order of the page."""

PAGE = "report.html"
TRACE = "trace.json"


def write_report(build: Build, output: Path | None = None) -> Path:
    """Write the page, and if task times were measured the trace in the build's ``run`` folder.

    Parameters
    ----------
    build : Build
    output : Path, optional
        Path of the page; ``run/report.html`` in the build if not given.

    Returns
    -------
    Path
        Path of the page.

    Raises
    ------
    UserError
        If a file cannot be written, or `output` is one of a build's own.
    """
    if output is not None:
        check_output(output)
    subject = Subject.of(build)
    run = build.run_folder
    page = output or run / PAGE
    rows = measured_rows(subject)
    trace = run / TRACE if rows else None
    try:
        if trace is not None or output is None:
            run.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{run} cannot be written: {error.strerror}") from None
    if trace is not None:
        found = rows_trace(rows, subject.names, subject.clk_hz)
        write_output(trace, json.dumps(found) + "\n")
        subject = replace(subject, trace=_relative(trace, page))
    write_output(page, make_page(subject))
    return page


def _relative(target: Path, page: Path) -> str:
    """Address of a file relative to a page."""
    try:
        between = os.path.relpath(target.resolve(), page.resolve().parent)
    except ValueError:  # on another drive
        return target.resolve().as_uri()
    return quote(Path(between).as_posix())


def make_page(subject: Subject) -> str:
    """Make the page: the same input gives the same text."""
    made = [make(subject) for make in SECTIONS] + [predicted_section(subject)]
    sections = [each for each in made if each]
    glossary = glossary_section()
    links = "".join(f'<a href="#{each.ident}">{each.heading}</a>' for each in [*sections, glossary])
    title = f"{subject.plan.network} on {subject.plan.cluster}"
    return f"""{page_begins(f"{text(title)}: fpgapipe report", asset("report.css"), RULES)}<body>
<a class="skip" href="#main">To the content</a>
<header>
{head(subject)}</header>
<nav aria-label="Sections"><div>{links}</div>
<button type="button" id="theme" hidden>Dark</button></nav>
<main id="main">
{"".join(each.html() for each in sections)}{glossary.html()}</main>
<footer>
<p>Made by fpgapipe {__version__} from {text(subject.build.folder.name)}. The page needs
nothing else: it can be kept, sent and printed.</p>
</footer>
<script>{asset("timetable.js")}{asset("report.js")}</script>
</body>
</html>
"""
