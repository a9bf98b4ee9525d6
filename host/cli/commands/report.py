"""``fpgapipe report``: writes a page about a build, or a comparison of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options.options import build_folders, command

if TYPE_CHECKING:
    from fpgapipe.host.build.build import Build


@command("report", example="fpgapipe report out/digits-cnn")
@click.argument("folders", metavar="DIR...", nargs=-1, type=click.Path(), callback=build_folders)
@click.option(
    "--measure",
    is_flag=True,
    help="Simulate a mini-batch first, and show its cycles by every level of prediction.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write the page to [default: DIR/run/report.html; of several, comparison.html].",
)
def report(folders: tuple[str, ...], measure: bool, output: str | None) -> None:
    """Write a page about the build in DIR: plan, resources, cycles, training.

    The page is one file that needs nothing else. It shows what 'fpgapipe run' has left in DIR and
    what --measure has measured, and says which command makes what is not there. Of several DIR,
    builds or single runs such as out/digits-cnn/run/model, it compares curves, cycles, accuracy and
    resources.
    """
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.build.build import open_build
    from fpgapipe.host.report.pages.page import write_report
    from fpgapipe.host.report.pages.several import gather, write_comparison
    from fpgapipe.host.terminal.outputs import check_outputs

    target = Path(output) if output else None
    check_outputs({"--output": output})
    if len(folders) > 1:
        if measure:
            raise UserError("--measure simulates one build; measure each of them first")
        page = write_comparison(gather([Path(each) for each in folders]), target)
    else:
        build = open_build(Path(folders[0]))
        if measure:
            _measure(build)
        page = write_report(build, target)
    print(f"written to {page}")


def _measure(build: Build) -> None:
    """Simulate a mini-batch with a progress bar, while no other process may use the build."""
    from fpgapipe.errors import UserError
    from fpgapipe.host.build.build import holding
    from fpgapipe.host.runtime.measure import measure_build
    from fpgapipe.host.terminal.console import progress

    with holding(build.folder), progress() as display:
        display.add_task("simulating a mini-batch, in cycles")
        try:
            measure_build(
                build,
                progress=lambda done, total: display.update(completed=done, total=total),
            )
        except OSError as error:
            where = error.filename or build.folder
            raise UserError(f"{where} cannot be written: {error.strerror}") from None
