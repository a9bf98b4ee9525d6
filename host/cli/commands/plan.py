"""``fpgapipe plan``: finds the fastest way to train a network on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.completion import boards_that_begin, networks_that_begin
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Exploration
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan
    from fpgapipe.partition.timeline.timeline import Timeline


@command("plan", example="fpgapipe plan resnet50 --board u280 --devices 4 --batch 64", lowers=True)
@click.argument("network", shell_complete=networks_that_begin, required=False)
@click.option(
    "--board",
    shell_complete=boards_that_begin,
    metavar="NAME|FILE",
    help="Kind of board; 'fpgapipe boards' lists the built-in ones.",
)
@click.option(
    "--devices",
    metavar="N",
    type=ranges.DEVICES,
    help="Boards of this kind, cabled in a chain [default: 1].",
)
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    help="File that says which boards there are and how they are cabled.",
)
@click.option(
    "--batch", type=ranges.SAMPLES, default=64, show_default=True, help="Samples in a mini-batch."
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Equal parts of a mini-batch in the pipeline [default: the best of several].",
)
@click.option(
    "--schedule",
    default="auto",
    show_default=True,
    help="Order of the passes, a kind that 'schedule' knows, or auto for the best of several.",
)
@click.option(
    "--from-csv",
    metavar="FILE",
    help="Order of the passes as PyTorch's CSV, a stage for each device.",
)
@click.option(
    "--strategy",
    metavar="NAME|FILE",
    default="pipeline",
    show_default=True,
    help="Stages of the network in a pipeline (pipeline), such as merging of layers makes (merge), "
    "all of it on each device (data), all layers cut by output channels (filter), input channels "
    "(channel) or rows (spatial), the same in groups of devices that share the samples "
    "(data+filter, data+channel, data+spatial), each layer cut as is fastest (layerwise), a "
    "pipeline of groups of devices (hybrid), the fastest of pipeline, data, layerwise and hybrid "
    "(auto), or a file that says how each layer is cut.",
)
@click.option(
    "--array",
    metavar="RxC",
    help="Rows and columns of each device's array of cells [default: the best of several].",
)
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
def plan(network: str | None, profile: str | None, **options: Any) -> None:
    """Search schedules, micro-batch sizes, array shapes and cuts for the fastest that fits.

    NETWORK is as for 'inspect'; the cluster is a --cluster file, or --devices of a --board in a
    chain. With --profile, measured times are planned for --devices equal ones joined by
    --bandwidth.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.planning import check_strategy

    if options["from_csv"] and options["schedule"] != "auto":
        raise UserError("--from-csv has a schedule of its own: leave out --schedule")
    check_strategy(options["strategy"], options["schedule"], ("auto",))
    if options["strategy"] != "pipeline":
        for name in ("from_csv", "profile", "objective", "free_order"):
            if profile if name == "profile" else options[name]:
                raise UserError(
                    f"--{name.replace('_', '-')} is for pipelines: leave out --strategy "
                    f"{options['strategy']}"
                )
    if options["from_csv"] and options["objective"] == "bottleneck":
        raise UserError("--from-csv is planned for the time of a mini-batch, not the bottleneck")
    if profile is not None:
        if network or options["board"] or options["cluster_file"]:
            raise UserError("--profile has its own times: leave out the network, board and cluster")
        for name in ("array", "output", "html", "svg", "trace"):
            if options[name] is not None:
                raise UserError(f"--{name} does not go with --profile, which has no boards")
        if options["explain"]:
            raise UserError("--explain does not go with --profile, which has no programs")
        _plan_profile(profile, options)
    elif network is None:
        raise UserError("name a network, or a --profile")
    elif options["bandwidth"] is not None or options["straight"]:
        raise UserError(
            "--bandwidth and --straight go with --profile; boards have links of their own"
        )
    else:
        _plan_network(network, options)


def _plan_network(network: str, options: dict[str, Any]) -> None:
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.commands.schedule import picture_files, write_pictures
    from fpgapipe.host.cli.options.any_degrees import print_any_degrees
    from fpgapipe.host.cli.options.cluster_options import chosen_cluster
    from fpgapipe.host.cli.options.csv_schedule import read_plain_schedule
    from fpgapipe.host.cli.options.explained import explained_json, print_explained
    from fpgapipe.host.cli.options.planning import (
        PIPELINES,
        fastest_shards,
        loader,
        parse_array,
        plan_shards,
        print_plan,
        rank,
        run_exploration,
        why_not_built,
    )
    from fpgapipe.host.terminal.console import print_json, scaled
    from fpgapipe.host.terminal.outputs import check_outputs, write_output
    from fpgapipe.lowering.schedule.schedule import TaskKind
    from fpgapipe.lowering.units.network_units import refusals_of
    from fpgapipe.partition.explore.explorer import AUTO_SCHEDULES, Request
    from fpgapipe.partition.explore.planned import as_plan
    from fpgapipe.partition.pricing.machine import explain_plan
    from fpgapipe.partition.search.problem import Objective
    from fpgapipe.stopwatch import phase

    check_outputs(
        {"--output": options["output"], **picture_files(options)},
        (network, options["board"], options["cluster_file"], options["from_csv"]),
    )
    cluster = chosen_cluster(options["board"], options["devices"], options["cluster_file"]).spec
    load = loader(network)
    kind, count, order = options["schedule"], options["micro_batches"], None
    if options["from_csv"]:
        order = read_plain_schedule(options["from_csv"], len(cluster.devices), count)
        kind, count = order.kind, order.num_microbatches
    count = load.micro_batches(options["batch"], count)
    request = Request(
        load,
        options["batch"],
        cluster,
        AUTO_SCHEDULES if kind == "auto" else (kind,),
        count,
        Objective(options["objective"] or "minibatch"),
        parse_array(options["array"]),
        options["free_order"],
        all_devices=order is not None,
        order=order,
        merges=options["strategy"] == "merge",
    )
    if options["strategy"] == "layerwise":
        samples = request.batch // (request.num_microbatches or 1)
        if refusals := refusals_of(load(samples), train=True):
            print_any_degrees(request, options, "; ".join(map(str, refusals[:3])))
            return
    found: Exploration | None = None
    search: LayerwisePlan | None = None
    sent: dict[tuple[TaskKind, int], float] = {}
    compared: dict[str, Plan] = {}
    refused: list[str] = []
    strategy = options["strategy"]
    if strategy not in (*PIPELINES, "auto"):
        made, timeline, search = plan_shards(request, network, strategy)
        graph = load(made.microbatch)
        built = why_not_built(made, graph, cluster)
    else:
        found = run_exploration(request, thorough=strategy == "auto")
        best = found.best
        assert best.microbatch is not None
        graph = load(best.microbatch)
        made = as_plan(best, graph, network, request.batch, cluster)
        built = why_not_built(made, graph, cluster)
        timeline = best.timeline
        if built["possible"]:
            made, timeline = _priced(made, graph, cluster, timeline, built)
        sent = {(TaskKind.SF, i): stage.sends_bytes for i, stage in enumerate(best.stages)}
        sent |= {(TaskKind.SB, i + 1): stage.returns_bytes for i, stage in enumerate(best.stages)}
        compared[made.kind] = made
    if strategy == "auto" and len(cluster.devices) > 1:
        shards, refused = fastest_shards(request, network)
        for each in shards:
            compared[each[0].kind] = each[0]
            if rank(each[0]) < rank(made):
                made, timeline, search = each
                graph, found, sent = load(made.microbatch), None, {}
                built = why_not_built(made, graph, cluster)
    explained = None
    if options["explain"]:
        if not built["possible"]:
            raise UserError(f"--explain needs a plan that can be built: {built['reason']}")
        with phase("where cycles go"):
            explained = explain_plan(made, graph, cluster)
    if options["output"]:
        write_output(options["output"], made.to_json())
    write_pictures(
        timeline,
        options,
        names=made.stage_devices if made.is_hybrid else [stage.device for stage in made.stages],
        transfer_bytes=sent,
        title=f"{made.network} on {made.cluster}, {made.schedule}",
    )
    if options["as_json"]:
        value = made.model_dump(mode="json")
        value["tried"] = [
            {
                "schedule": each.kind,
                "num_microbatches": each.num_microbatches,
                "minibatch_s": each.minibatch_s,
            }
            for each in (found.tried if found else ())
        ]
        value["refused"] = [*(found.refused if found else ()), *refused]
        value["compared"] = {
            name: {"minibatch_s": each.predicted.minibatch_s, "level": each.predicted.level}
            for name, each in compared.items()
        }
        if search:
            value["search"] = search.to_dict()
            value |= {"num_left": search.num_left, "search_s": search.search_s}
        value["build"] = built
        if explained:
            value["explained"] = explained_json(made, *explained)
        print_json(value)
        return
    print_plan(made, cluster)
    if search:
        print(
            f"degrees: by formulas {scaled(search.step_s, 's')} a mini-batch; {search.num_left} "
            f"nodes left of {len(search.groups)}, searched in {scaled(search.search_s, 's')}"
        )
    if len(compared) > 1 or refused:
        _print_compared(compared, refused)
    if found:
        _print_tried(found)
    if explained:
        print_explained(made, *explained)
    if not built["possible"]:
        print(f"\nnote: 'fpgapipe build' cannot make this plan: {built['reason']}")


def _print_compared(compared: dict[str, Plan], refused: list[str]) -> None:
    """Print what the strategies take that were compared."""
    from fpgapipe.host.terminal.console import Column, print_table, scaled

    print()
    ordered = sorted(compared.items(), key=lambda each: each[1].predicted.minibatch_s)
    print_table(
        [Column("strategy"), *(Column(text, True) for text in ("micro-batches", "mini-batch")),
         Column("by")],
        [
            (
                name,
                each.num_microbatches,
                scaled(each.predicted.minibatch_s, "s"),
                "programs" if each.predicted.level == "machine" else "formulas",
            )
            for name, each in ordered
        ],
    )  # fmt: skip
    for reason in refused:
        print(f"not possible, {reason}")


def _priced(
    plan: Plan, graph: Graph, cluster: ClusterSpec, timeline: Timeline, built: dict[str, Any]
) -> tuple[Plan, Timeline]:
    """Plan and timetable with the times of the programs; as they were if a layer does not fit."""
    from fpgapipe.errors import UserError
    from fpgapipe.partition.pricing.machine import is_soon_priced, price_plan
    from fpgapipe.stopwatch import phase

    if not is_soon_priced(plan):
        return plan, timeline
    try:
        with phase("programs and their times"):
            return price_plan(plan, graph, cluster)
    except UserError as error:
        built |= {"possible": False, "reason": str(error)}
        return plan, timeline


def _print_tried(found: Exploration) -> None:
    from fpgapipe.host.terminal.console import Column, print_table, scaled

    best: dict[str, Candidate] = {}
    for each in found.tried:
        best.setdefault(each.kind, each)
    print()
    print_table(
        [
            Column("schedule"),
            *(Column(text, True) for text in ("micro-batches", "mini-batch", "bubble")),
        ],
        [
            (
                kind,
                each.num_microbatches,
                scaled(each.minibatch_s, "s"),
                f"{each.timeline.bubble_rate:.1%}",
            )
            for kind, each in best.items()
        ],
        "the best of each schedule, estimated",
    )
    for reason in found.refused[:5]:
        print(f"left out: {reason}")


def _plan_profile(profile: str, options: dict[str, Any]) -> None:
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.csv_schedule import read_plain_schedule
    from fpgapipe.host.terminal.console import Column, print_json, print_table, scaled
    from fpgapipe.network.load import load_file
    from fpgapipe.partition.explore.measured import plan_profile
    from fpgapipe.partition.search.problem import Objective

    devices, count, order = options["devices"], options["micro_batches"], None
    if options["from_csv"]:
        order = read_plain_schedule(options["from_csv"], devices, count)
        devices, count = order.num_stages, order.num_microbatches
    if devices is None:
        raise UserError("--profile needs --devices")
    if options["bandwidth"] is None and not options["straight"]:
        raise UserError("--profile needs --bandwidth in bytes/s, or --straight")
    graph = load_file(Path(profile))
    kind = "pipedream" if options["schedule"] == "auto" else options["schedule"]
    kind = order.kind if order else kind
    found = plan_profile(
        graph,
        devices,
        bytes_per_s=options["bandwidth"] or 0.0,
        straight=options["straight"],
        objective=Objective(options["objective"] or "bottleneck"),
        num_microbatches=count or 4 * devices,
        schedule=kind,
        order=order,
    )
    if options["as_json"]:
        print_json({"network": graph.name, "schedule": kind, **found.to_dict()})
        return
    print_table(
        [
            Column("stage", True),
            Column("layers", True),
            Column("from"),
            Column("to"),
            Column("replicas", True),
            Column("time", True),
        ],
        [
            (i, len(s.layers), s.layers[0], s.layers[-1], s.replicas, scaled(s.time_s, "s"))
            for i, s in enumerate(found.stages)
        ],
        f"{graph.name} on {devices} devices, {kind}",
    )
    print(f"period {scaled(found.period_s, 's')}, mini-batch {scaled(found.minibatch_time_s, 's')}")
    print(f"cut: {'optimal' if found.optimal else 'not proved optimal'} ({found.reason})")
