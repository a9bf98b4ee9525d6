"""``fpgapipe plan``: finds the fastest way to train a network on a cluster."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.arrays import parse_array
from fpgapipe.host.cli.options.cluster_options import chosen_cluster, place_options
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.pictures import picture_files, write_pictures
from fpgapipe.host.cli.options.shared import (
    cells_option,
    micro_batches_option,
    planned_batch_option,
    strategy_option,
)
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.outputs import check_outputs, write_output
from fpgapipe.host.terminal.result import show
from fpgapipe.jobs import other_processors


@command("plan", example="fpgapipe plan resnet50 --board u280 --devices 4 --batch 64", lowers=True)
@click.argument("network", shell_complete=networks_that_begin, required=False)
@place_options
@planned_batch_option
@micro_batches_option
@click.option(
    "--schedule",
    default="auto",
    help="Order of the passes, a kind that 'schedule' knows, or auto for the best of several.",
)
@click.option(
    "--from-csv",
    metavar="FILE",
    help="Order of the passes as PyTorch's CSV, a stage for each device.",
)
@strategy_option
@click.option(
    "--array",
    metavar="RxC",
    help="Rows and columns of each device's array of cells [default: the best of several].",
)
@cells_option
@click.option("--free-order", is_flag=True, help="Devices may be cabled in another order.")
@click.option(
    "--objective",
    type=click.Choice(["bottleneck", "minibatch"]),
    help="What the cut makes smallest [minibatch; of profiles, bottleneck].",
)
@click.option("--profile", metavar="FILE", help="Measured times instead of a network and boards.")
@click.option(
    "--bandwidth", type=ranges.BYTES_PER_S, help="Rate of a link in bytes/s, for --profile."
)
@click.option("--straight", is_flag=True, help="For --profile: one device a stage, free transfers.")
@click.option(
    "--explain", is_flag=True, help="Show what each device's array does in the cycles of a step."
)
@click.option("-o", "--output", metavar="FILE", help="Write the plan to this file, as JSON.")
@click.option("--html", metavar="FILE", help="Write the timetable to this file, as a page.")
@click.option("--svg", metavar="FILE", help="Write the timetable to this file, as a picture.")
@click.option(
    "--trace", metavar="FILE", help="Write the timetable to this file, as a trace for Perfetto."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@other_processors()
def plan(network: str | None, profile: str | None, as_json: bool, **options: Any) -> None:
    """Search schedules, micro-batch sizes, array shapes and cuts for the fastest that fits.

    NETWORK is as for 'inspect'; the cluster is a --cluster file, or --devices of a --board in a
    chain. A --board alone is shared among as many --nodes as are fastest, in a pipeline or with
    data parallelism. With --profile, measured
    times are planned for --devices equal ones joined by --bandwidth.
    """
    if options["from_csv"] and options["schedule"] != "auto":
        raise fpgapipe.UserError("--from-csv has a schedule of its own: leave out --schedule")
    if profile and options["strategy"] != "pipeline":
        raise fpgapipe.UserError(
            f"--profile is for pipelines: leave out --strategy {options['strategy']}"
        )
    if options["from_csv"] and options["objective"] == "bottleneck":
        raise fpgapipe.UserError(
            "--from-csv is planned for the time of a mini-batch, not the bottleneck"
        )
    if profile is not None:
        _plan_profile(profile, network, options, as_json)
    elif network is None:
        raise fpgapipe.UserError("name a network, or a --profile")
    elif options["bandwidth"] is not None or options["straight"]:
        raise fpgapipe.UserError(
            "--bandwidth and --straight go with --profile; boards have links of their own"
        )
    else:
        _plan_network(network, options, as_json)


def _plan_network(network: str, options: dict[str, Any], as_json: bool) -> None:
    check_outputs(
        {"--output": options["output"], **picture_files(options)},
        (network, options["board"], options["cluster_file"], options["from_csv"]),
    )
    names = ("board", "devices", "cluster_file", "nodes")
    board, devices, cluster_file, nodes = (options[name] for name in names)
    settings = {
        "array": parse_array(options["array"], options["cells"]),
        "explains": options["explain"],
        "progress": progress,
        **_shared(options),
        **{name: options[name] for name in ("batch", "strategy", "free_order", "cells")},
    }
    rest = (devices, cluster_file, nodes, options["array"], options["from_csv"])
    if board is not None and rest == (None,) * len(rest):
        source = click.get_current_context().get_parameter_source("strategy")
        if source is ParameterSource.DEFAULT:
            settings["strategy"] = None
        found = fpgapipe.plan_board(network, fpgapipe.load_board(board), **settings)
    else:
        cluster = chosen_cluster(board, devices, cluster_file, nodes)
        found = fpgapipe.plan(network, cluster, **settings)
    if isinstance(found, fpgapipe.Planned):
        text = found.plan.to_json()
    else:
        for name in (name for name in ("html", "svg", "trace") if options[name]):
            raise fpgapipe.UserError(f"--{name} needs programs, and none are made: {found.reason}")
        text = json.dumps(found.to_dict(), indent=2) + "\n"
    if options["output"]:
        write_output(options["output"], text)
    if isinstance(found, fpgapipe.Planned):
        write_pictures(found.picture, options)
    show(found, as_json=as_json)


def _plan_profile(
    profile: str, network: str | None, options: dict[str, Any], as_json: bool
) -> None:
    if network or options["board"] or options["cluster_file"]:
        raise fpgapipe.UserError(
            "--profile has its own times: leave out the network, board and cluster"
        )
    for name in ("array", "cells", "html", "svg", "trace"):
        if options[name] is not None:
            raise fpgapipe.UserError(f"--{name} does not go with --profile, which has no boards")
    if options["explain"]:
        raise fpgapipe.UserError("--explain does not go with --profile, which has no programs")
    check_outputs({"--output": options["output"]}, (profile, options["from_csv"]))
    found = fpgapipe.plan_profile(
        profile,
        options["devices"],
        bytes_per_s=options["bandwidth"],
        straight=options["straight"],
        **_shared(options),
    )
    if options["output"]:
        write_output(options["output"], json.dumps(found.to_dict(), indent=2) + "\n")
    show(found, as_json=as_json)


def _shared(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that networks and profiles share."""
    names = ("micro_batches", "schedule", "objective")
    return {"order": options["from_csv"], **{name: options[name] for name in names}}


@command("profile", example="fpgapipe profile lenet5 --samples 8 -o lenet5.csv")
@click.argument("network")
@click.option(
    "--samples", type=ranges.SAMPLES, default=8, help="Samples of a micro-batch.", show_default=True
)
@click.option(
    "--device",
    default="auto",
    help="Where PyTorch computes: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
)
@click.option(
    "--repeats",
    type=ranges.STEPS,
    default=10,
    help="Passes of which the times are the medians.",
)
@click.option("--threads", type=ranges.THREADS, help="Threads on a processor [default: 1].")
@click.option(
    "--processes",
    type=ranges.PROCESSES,
    default=1,
    help="Processes that do so at the same time, as many as a pipeline here will have.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the times to this file, as CSV for 'plan --profile'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    network: str,
    samples: int,
    device: str,
    repeats: int,
    threads: int | None,
    processes: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure in PyTorch how long the parts of NETWORK take on this machine.

    NETWORK is as for 'inspect'. 'plan --profile' cuts it into stages by these times, and 'run' of
    that plan with --backend torch trains it in a process for each stage.
    """
    check_outputs({"--output": output}, (network,))
    found = fpgapipe.profile(
        network,
        samples=samples,
        device=device,
        repeats=repeats,
        threads=threads,
        processes=processes,
        progress=progress,
    )
    if output:
        write_output(output, found.to_csv())
    show(found, as_json=as_json)
