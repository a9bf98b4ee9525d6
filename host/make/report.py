"""The page about a build or about several, as ``fpgapipe report`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import Build, holding, open_build
from fpgapipe.host.report.pages.inputs import Run
from fpgapipe.host.report.pages.page import write_report
from fpgapipe.host.report.pages.several import Compared, gather, write_comparison
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.runtime.measure import measure_build
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import Result


@dataclass(frozen=True)
class Reported(Result):
    """A page that was written, and the figures on it.

    Attributes
    ----------
    page : Path
    compared : tuple of Compared
        The builds that the page is about, with their measurements and runs.
    """

    RECORDS: ClassVar[str] = "builds"

    page: Path
    compared: tuple[Compared, ...]

    def to_dict(self) -> dict[str, Any]:
        """The page, and the figures of each build and its runs."""
        return {"page": str(self.page), self.RECORDS: [_figures(each) for each in self.compared]}

    def shown(self) -> Iterator[Table | str]:
        """Where the page is."""
        yield f"written to {self.page}"


def _figures(compared: Compared) -> dict[str, Any]:
    """Figures of a build and of its runs; None for what was not measured."""
    subject, plan = compared.subject, compared.subject.plan
    measured = subject.measured
    return {
        "label": compared.label,
        "folder": str(subject.build.folder),
        "network": plan.network,
        "mode": plan.mode,
        "cluster": plan.cluster,
        "devices": len(plan.nodes),
        "arrays": [f"{node.core.rows}x{node.core.cols}" for node in plan.nodes],
        "schedule": plan.order_name,
        "batch": plan.batch,
        "micro_batches": plan.num_microbatches,
        "clk_hz": subject.clk_hz,
        "planned_cycles": plan.predicted.minibatch_s * subject.clk_hz,
        "simulated_cycles": subject.simulated_cycles,
        "samples_per_s": subject.samples_per_s,
        "measured_cycles": measured.minibatch_cycles.model_dump() if measured else None,
        "resources": [
            {"device": node.device, "used": each["used"], "limits": each["limits"]}
            for node, each in zip(plan.nodes, subject.build.resources, strict=True)
        ],
        "runs": [_of_run(run) for run in subject.runs],
    }


def _of_run(run: Run) -> dict[str, Any]:
    """Figures of a run: how long it went, and to which loss and accuracy."""
    return {
        "name": run.name,
        "steps": run.steps[-1].step if run.steps else 0,
        "first_loss": run.steps[0].loss if run.steps else None,
        "loss": run.steps[-1].loss if run.steps else None,
        "accuracy": run.validations[-1].accuracy if run.validations else None,
        "changes": [each.model_dump() for each in run.changes],
        "settings": run.settings,
        "faults": list(run.faults),
    }


def report(
    *folders: Path | str,
    output: Path | str | None = None,
    measure: bool = False,
    progress: Progress = silent,
) -> Reported:
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
    Reported
        The ``page``, and the figures on it.
    """
    target = Path(output) if output else None
    if len(folders) > 1:
        if measure:
            raise UserError("--measure simulates one build; measure each of them first")
        compared = gather([Path(each) for each in folders])
        return Reported(write_comparison(compared, target), tuple(compared))
    build = open_build(Path(folders[0]))
    if measure:
        _measure(build, progress)
    page = write_report(build, target)
    return Reported(page, (Compared(build.folder.name, Subject.of(build)),))


def _measure(build: Build, progress: Progress) -> None:
    """Simulate a mini-batch while no other process may use the build."""
    with holding(build.folder), progress() as display:
        display.add_task("simulating a mini-batch, in cycles")
        try:
            measure_build(build, progress=display.count)
        except OSError as error:
            where = error.filename or build.folder
            raise UserError(f"{where} cannot be written: {error.strerror}") from None
