"""The page about a build or about several, as ``fpgapipe report`` writes it."""

from __future__ import annotations

from pathlib import Path

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import Build, holding, open_build
from fpgapipe.host.report.pages.page import write_report
from fpgapipe.host.report.pages.several import gather, write_comparison
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.host.terminal.progress import Progress, silent


def report(
    *folders: Path | str,
    output: Path | str | None = None,
    measure: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write a page about a build, or a comparison of several builds or runs.

    Parameters
    ----------
    folders : path
        Folders of builds; of several, single runs in builds as well.
    output : path, optional
        The page; ``run/report.html`` in the build if it is not given, of several
        ``comparison.html``.
    measure : bool
        Whether a mini-batch of the build is simulated first.
    progress : callable
        Shows the progress.

    Returns
    -------
    Path
        The page.
    """
    target = Path(output) if output else None
    if len(folders) > 1:
        if measure:
            raise UserError("--measure simulates one build; measure each of them first")
        return write_comparison(gather([Path(each) for each in folders]), target)
    build = open_build(Path(folders[0]))
    if measure:
        _measure(build, progress)
    return write_report(build, target)


def _measure(build: Build, progress: Progress) -> None:
    """Simulate a mini-batch while no other process may use the build."""
    with holding(build.folder), progress() as display:
        display.add_task("simulating a mini-batch, in cycles")
        try:
            measure_build(build, progress=display.count)
        except OSError as error:
            where = error.filename or build.folder
            raise UserError(f"{where} cannot be written: {error.strerror}") from None
