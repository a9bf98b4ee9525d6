"""``fpgapipe report``: writes a page about a build, or a comparison of several."""

from __future__ import annotations

from pathlib import Path

import click

import fpgapipe
from fpgapipe.host.cli.options.options import build_folders, command
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.outputs import RUN, check_folder_there, check_outputs
from fpgapipe.host.terminal.result import show


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
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, too.")
def report(folders: tuple[str, ...], measure: bool, output: str | None, as_json: bool) -> None:
    """Write a page about the build in DIR: plan, resources, cycles, training.

    The page is one file that needs nothing else. It shows what 'fpgapipe run' has left in DIR and
    what --measure has measured, and says which command makes what is not there. Of several DIR,
    builds or single runs such as out/digits-cnn/run/model, it compares curves, cycles, accuracy and
    resources.
    """
    for folder in map(Path, folders):
        check_folder_there(folder.parent.parent if folder.parent.name == RUN else folder)
    check_outputs({"--output": output})
    made = fpgapipe.report(*folders, output=output, measure=measure, progress=progress)
    show(made, as_json=as_json)
