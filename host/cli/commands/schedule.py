"""``fpgapipe schedule``: draws a schedule's timetable for given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.lowering.schedule.schedule import Schedule
    from fpgapipe.partition.timeline.timeline import StageTimes, Timeline


@command(
    "schedule",
    example="fpgapipe schedule zb-h1 --stages 4 --microbatches 8 --tf 1 --tb 1 --tw 1",
)
@click.argument("kind", required=False)
@click.option("--stages", type=ranges.STAGES, help="Devices in the chain, a stage each.")
@click.option("--microbatches", type=ranges.MICROBATCHES, help="Equal parts of a mini-batch.")
@click.option(
    "--from-csv",
    metavar="FILE",
    help="Read the order of tasks from this file, PyTorch's CSV, instead of a KIND.",
)
@click.option(
    "--tf",
    type=ranges.SECONDS,
    default=1.0,
    show_default=True,
    help="Seconds that a forward pass takes.",
)
@click.option(
    "--tb",
    type=ranges.SECONDS,
    default=1.0,
    show_default=True,
    help="Seconds that the gradient of the inputs takes.",
)
@click.option(
    "--tw",
    type=ranges.SECONDS,
    default=1.0,
    show_default=True,
    help="Seconds that the gradient of the weights takes.",
)
@click.option(
    "--tcomm",
    type=ranges.SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds that a transfer to the next device takes.",
)
@click.option(
    "--latency",
    type=ranges.SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds from one end of a link to the other.",
)
@click.option(
    "--chunks",
    type=ranges.CHUNKS,
    default=2,
    show_default=True,
    help="Stages of each device in interleaved schedules.",
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
@click.option("--order", is_flag=True, help="Print the order of tasks instead of a timetable.")
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
def schedule(kind: str | None, as_json: bool, **options: Any) -> None:
    """Draw the timetable of KIND, or of a file, for equal stages, and print what it comes to.

    KIND is gpipe, 1f1b, 1f1b-as, fbp-as, 1f1b-sno, 1f1b-so, pipedream, pipedream-newest,
    interleaved, zb-h1, zb-h2, zb-auto, chimera or data-parallel. Times are those of one micro-batch
    on one stage; a backward pass that is whole takes --tb and --tw together.
    """
    from fpgapipe.host.terminal.console import print_json
    from fpgapipe.host.terminal.outputs import check_outputs, write_output
    from fpgapipe.lowering.schedule.pytorch_csv import to_pytorch_csv
    from fpgapipe.partition.schedule.schedule_rules import check_schedule
    from fpgapipe.partition.timeline.timeline import simulate

    check_outputs({"--csv": options["csv_file"], **picture_files(options)}, (options["from_csv"],))
    made, times = _read(kind, options) if options["from_csv"] else _make(kind, options)
    timeline = simulate(made, times, fifo_depth=options["fifo_depth"])
    verdict = check_schedule(made, fifo_depth=options["fifo_depth"])
    if options["csv_file"]:
        write_output(options["csv_file"], to_pytorch_csv(made))
    write_pictures(timeline, options)
    if as_json:
        print_json(
            {
                "kind": made.kind,
                "makespan": timeline.makespan_s,
                "span": timeline.span_s,
                "bubble_rate": timeline.bubble_rate,
                "peak_microbatches": list(timeline.peak_microbatches()),
                "weight_versions": list(verdict.weight_versions),
                "fifo_depth": verdict.fifo_depth,
                "busy": list(timeline.busy_s),
            }
        )
        return
    _print(made, timeline, options["order"])
    print(f"makespan {timeline.makespan_s:g} s, bubble rate {timeline.bubble_rate:.2%}")
    print(f"micro-batches of features kept: {'/'.join(map(str, timeline.peak_microbatches()))}")
    print(f"versions of weights kept: {'/'.join(map(str, verdict.weight_versions))}")
    print(f"results that each link must hold: {verdict.fifo_depth}")


def _read(kind: str | None, options: dict[str, Any]) -> tuple[Schedule, StageTimes]:
    """Read the schedule of a file; all its stages have the times of the options."""
    from fpgapipe.errors import UserError
    from fpgapipe.host.make.csv_schedule import read_schedule
    from fpgapipe.partition.timeline.timeline import StageTimes

    if kind is not None:
        raise UserError(f"--from-csv has a schedule of its own: leave out {kind!r}")
    if options["memory_limit"] is not None:
        raise UserError("--memory-limit is for zb-auto; --from-csv has an order of its own")
    made = read_schedule(options["from_csv"], options["stages"], options["microbatches"])
    work = [options["tf"], options["tb"], options["tw"]]
    transfer = {"transfer_s": options["tcomm"], "latency_s": options["latency"]}
    return made, StageTimes.uniform(made.num_stages, *work, **transfer)


def _make(kind: str | None, options: dict[str, Any]) -> tuple[Schedule, StageTimes]:
    """Make the schedule and its times; several stages of one device share the device's work."""
    from fpgapipe.errors import UserError
    from fpgapipe.partition.schedule.schedule_kinds import make_schedule
    from fpgapipe.partition.schedule.zero_bubble import zb_auto
    from fpgapipe.partition.timeline.timeline import StageTimes

    if kind is None:
        raise UserError("name a KIND of schedule, or a file with --from-csv")
    for name in ("stages", "microbatches"):
        if options[name] is None:
            raise UserError(f"{kind} needs --{name}")
    devices, microbatches = options["stages"], options["microbatches"]
    transfer = {"transfer_s": options["tcomm"], "latency_s": options["latency"]}
    work = [options["tf"], options["tb"], options["tw"]]
    if kind == "zb-auto":
        times = StageTimes.uniform(devices, *work, **transfer)
        limit = options["memory_limit"]
        return zb_auto(devices, microbatches, times, memory_limit=limit), times
    made = make_schedule(kind, devices, microbatches, chunks=options["chunks"])
    # Interleaved stages share a device's work; a data-parallel device does the work of all stages.
    share = {"interleaved": 1 / options["chunks"], "data-parallel": devices}.get(kind, 1)
    work = [each * share for each in work]
    return made, StageTimes.uniform(made.num_stages, *work, **transfer)


def _print(made: Schedule, timeline: Timeline, order: bool) -> None:
    import shutil
    import sys

    from fpgapipe.host.report.drawing.timetable_text import draw_text

    if order:
        print(made, end="")
        return
    encoding = (sys.stdout.encoding or "").lower()
    width = shutil.get_terminal_size((120, 24)).columns
    print(draw_text(timeline, width=width, unicode=encoding.startswith("utf")))


def picture_files(options: dict[str, Any]) -> dict[str, str | None]:
    """Files that `write_pictures` will write, by option, for `check_outputs`."""
    return {f"--{name}": options[name] for name in ("svg", "html", "trace")}


def write_pictures(timeline: Timeline, options: dict[str, Any], **more: Any) -> None:
    """Write the pictures that ``--svg``, ``--html`` and ``--trace`` ask for.

    `more` has arguments of all drawing functions, such as names of devices and bytes of transfers,
    and `title`, which only the page has.
    """
    import json

    from fpgapipe.host.terminal.outputs import write_output

    title = more.pop("title", f"{timeline.schedule.kind} timetable")
    if options["svg"]:
        from fpgapipe.host.report.drawing.timetable_svg import draw_svg

        write_output(options["svg"], draw_svg(timeline, **more))
    if options["html"]:
        from fpgapipe.host.report.drawing.timetable_html import draw_html

        write_output(options["html"], draw_html(timeline, title=title, **more))
    if options["trace"]:
        from fpgapipe.host.report.drawing.perfetto import chrome_trace

        write_output(options["trace"], json.dumps(chrome_trace(timeline, **more)) + "\n")
