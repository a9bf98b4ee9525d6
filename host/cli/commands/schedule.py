"""``fpgapipe schedule``: draws a schedule's timetable for given times."""

from __future__ import annotations

from typing import Any

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.pictures import picture_files, write_pictures
from fpgapipe.host.terminal.outputs import check_outputs, write_output
from fpgapipe.host.terminal.result import show
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES


@command(
    "schedule", example="fpgapipe schedule zb-h1 --stages 4 --micro-batches 8 --tf 1 --tb 1 --tw 1"
)
@click.argument("kind", type=Names(SCHEDULES.names, checks=False), required=False)
@click.option("--stages", type=ranges.STAGES, help="Devices in the chain, a stage each.")
@click.option("--micro-batches", type=ranges.MICROBATCHES, help="Equal parts of a mini-batch.")
@click.option(
    "--from-csv",
    metavar="FILE",
    help="Read the order of tasks from this file, PyTorch's CSV, instead of a kind.",
)
@click.option("--tf", type=ranges.SECONDS, default=1.0, help="Seconds that a forward pass takes.")
@click.option(
    "--tb", type=ranges.SECONDS, default=1.0, help="Seconds that the gradient of the inputs takes."
)
@click.option(
    "--tw", type=ranges.SECONDS, default=1.0, help="Seconds that the gradient of the weights takes."
)
@click.option(
    "--tcomm",
    type=ranges.SECONDS,
    default=0.0,
    help="Seconds that a transfer to the next device takes.",
)
@click.option(
    "--latency",
    type=ranges.SECONDS,
    default=0.0,
    help="Seconds from one end of a link to the other.",
)
@click.option(
    "--chunks",
    type=ranges.CHUNKS,
    help="Stages of each device in interleaved schedules [default: 2].",
)
@click.option(
    "--memory-limit",
    type=ranges.KEPT,
    help="Micro-batches whose activations a device keeps at most, for zb-auto.",
)
@click.option(
    "--fifo-depth",
    type=ranges.KEPT,
    help="Results that a link holds at most [default: any number].",
)
@click.option(
    "--order", "shows_order", is_flag=True, help="Print the order of tasks instead of a timetable."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False), help="Write the timetable to this file, as a picture."
)
@click.option(
    "--html", type=click.Path(dir_okay=False), help="Write the timetable to this file, as a page."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="Write the timetable to this file, as a trace for Perfetto.",
)
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(dir_okay=False),
    help="Write the order of tasks to this file, as the CSV that PyTorch reads.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def schedule(
    kind: str | None, as_json: bool, from_csv: str | None, csv_file: str | None, **options: Any
) -> None:
    """Draw the timetable of a schedule, or of a file, for equal stages; print what it comes to.

    Times are those of one micro-batch on one stage; a backward pass that is whole takes --tb and
    --tw together.
    """
    pictures = {name: options.pop(name) for name in ("svg", "html", "trace")}
    check_outputs({"--csv": csv_file, **picture_files(pictures)}, (from_csv,))
    found = fpgapipe.schedule(kind, order=from_csv, **options)
    if csv_file:
        write_output(csv_file, found.to_csv())
    write_pictures(found.picture, pictures)
    show(found, as_json=as_json)
