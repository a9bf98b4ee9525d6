"""``fpgapipe build``: turns a network and a cluster into a folder of programs and hardware."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.training_options import (
    check_training,
    frozen_loader,
    training_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fpgapipe.boards.cluster import Cluster
    from fpgapipe.host.build.build import Build
    from fpgapipe.host.build.verilog_ahead import Begun
    from fpgapipe.host.runtime.program_check import Verification
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.partition.explore.candidate import Candidate
    from fpgapipe.partition.explore.explorer import Exploration, Request
    from fpgapipe.partition.plan import Plan


@command(
    "build",
    example="fpgapipe build --board u280 --array 8x8 --batch 8 -o out/digits-cnn",
    lowers=True,
)
@partial(cluster_options, default_devices=2)
@training_options
@click.option(
    "--network",
    shell_complete=networks_that_begin,
    default="digits-cnn",
    show_default=True,
    help="Network to build: a name or a file, as for 'inspect'.",
)
@click.option(
    "--mode",
    type=click.Choice(["train", "infer"]),
    default="train",
    show_default=True,
    help="Training steps, or forward passes only.",
)
@click.option(
    "--parameters",
    type=click.Path(dir_okay=False),
    help="Begin with the parameters of a .npz file or a checkpoint instead of random ones.",
)
@click.option(
    "--int8",
    metavar="DATA",
    help="Quantise the trained network to INT8, with scales from these samples (as for 'run "
    "--data'); for --mode infer.",
)
@click.option(
    "--int8-percentile",
    type=ranges.PERCENTILE,
    default=100,
    show_default=True,
    help="Percentage of the elements of each activation that INT8 represents without saturation; "
    "rare large ones then cost the others no precision.",
)
@click.option(
    "--batch",
    type=ranges.SAMPLES,
    default=32,
    show_default=True,
    help="Samples in a mini-batch, after which the weights are updated.",
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Equal parts of a mini-batch in the pipeline [default: the best of several].",
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
    "--schedule",
    default="1f1b-as",
    show_default=True,
    help="Order of the passes, a kind that 'schedule' knows, or auto for the best of several.",
)
@click.option(
    "--array",
    "array",
    metavar="RxC",
    help="Rows and columns of each device's array of cells [default: as few as are fast].",
)
@click.option(
    "--seed",
    type=ranges.SEED,
    default=0,
    show_default=True,
    help="Number that decides the random parameters to begin with.",
)
@click.option(
    "--freeze",
    multiple=True,
    metavar="PATTERN",
    help="Parameters, such as 'conv1.*', that training leaves unchanged; may be repeated.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Compare an imported network with its source, and the programs of its layers with "
    "PyTorch; refuse what differs.",
)
@click.option(
    "--hardware/--no-hardware",
    default=True,
    show_default=True,
    help="Make the cores' Verilog, which the simulator and packages need; the bit-exact model "
    "('run --backend model') needs none.",
)
@click.option(
    "--package",
    "package",
    type=click.Choice(["vitis", "vivado", "pynq", "litex"]),
    help="Write for each device, into the folder's 'package', what the vendor's tools need.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    help="Folder to write the build to [default: out/NETWORK].",
)
def build(
    cluster: Cluster,
    network: str,
    mode: str,
    parameters: str | None,
    int8: str | None,
    int8_percentile: float,
    batch: int,
    micro_batches: int | None,
    strategy: str,
    schedule: str,
    array: str | None,
    seed: int,
    verify: bool,
    hardware: bool,
    package: str | None,
    folder: str | None,
    freeze: tuple[str, ...],
    step_options: StepOptions,
) -> None:
    """Plan a network for the boards and make their hardware and programs.

    All boards that are named are used. Their cores have the smallest array that reaches 99 % of the
    throughput of the best; --array says which instead. The folder has everything that 'fpgapipe
    run' needs; nothing is written if a layer does not fit.
    """
    import contextlib
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.build.build import check_folder
    from fpgapipe.host.build.verilog_ahead import LARGE_MACS, Begun
    from fpgapipe.host.cli.options.planning import (
        PIPELINES,
        check_strategy,
        loader,
        parse_array,
        plan_shards,
    )
    from fpgapipe.host.cli.options.quantised import with_integers, with_parameters
    from fpgapipe.host.cli.options.verify import verify_network
    from fpgapipe.hw.hls_models.spec.core_spec import NoRoom
    from fpgapipe.partition.explore.explorer import AUTO_SCHEDULES, Request
    from fpgapipe.partition.explore.planned import as_plan, one_link_each
    from fpgapipe.partition.pricing.plan_cores import core_specs
    from fpgapipe.partition.schedule.built_schedules import check_schedule_kind

    if folder is not None:
        check_folder(Path(folder))
    if package is not None:
        from fpgapipe.host.package.target import check_boards

        if not hardware:
            raise UserError("--package packages the cores' Verilog, so it excludes --no-hardware")
        check_boards(cluster, package)
    check_strategy(strategy, schedule, ("auto", "1f1b-as"))
    if schedule != "auto":
        check_schedule_kind(schedule)
    check_training(step_options, schedule)
    if int8 is not None and mode != "infer":
        raise UserError("--int8 builds networks for inference: it needs --mode infer")
    source = loader(network)
    micro_batches = source.micro_batches(batch, micro_batches)
    microbatch = batch // (micro_batches or 1)
    evaluated = (lambda samples: source(samples).evaluated) if mode == "infer" else source
    if int8 is None and int8_percentile != 100:
        raise UserError(
            "--int8-percentile is about the scales of --int8 DATA: name samples with it"
        )
    trained = with_parameters(evaluated, parameters, microbatch)
    load = with_integers(trained, int8, microbatch, int8_percentile)
    if freeze:
        load = frozen_loader(load, freeze)
    spec = one_link_each(cluster.spec)
    request = Request(
        load,
        batch,
        spec,
        AUTO_SCHEDULES if schedule == "auto" else (schedule,),
        micro_batches,
        array=parse_array(array),
        train=mode == "train",
        all_devices=True,
        merges=strategy == "merge",
        options=step_options,
    )
    _refuse_layers(request)
    if verify:
        verify_network(source, batch, micro_batches, train=request.train)
    shards: Plan | None = None
    if strategy == "auto":
        shards = _faster_shards(request, network)
    elif strategy not in PIPELINES:
        shards, _, _ = plan_shards(request, network, strategy)
    if shards is not None:
        output = Path(folder or f"out/{load(shards.microbatch).name}")
        verification = _verified(shards, request, verify=verify)
        built = _written(shards, request, output, seed, verification, hardware=hardware)
        _tell(built, request, cluster, package, hardware=hardware)
        return

    def planned(best: Candidate) -> Plan:
        assert best.microbatch is not None
        return as_plan(best, load(best.microbatch), network, batch, spec, train=request.train)

    with contextlib.ExitStack() as stack:
        begun = Begun(stack)

        def begin(best: Candidate) -> None:
            if not hardware:
                return
            likely = planned(best)
            is_large = sum(stage.macs for stage in likely.stages) >= LARGE_MACS
            with contextlib.suppress(UserError):  # another plan may have a core that can be made
                begun.begin(list(dict.fromkeys(core_specs(likely))), is_large=is_large)

        best = _explored(request, begin)
        while True:
            plan = planned(best)
            assert best.microbatch is not None
            output = Path(folder or f"out/{load(best.microbatch).name}")
            try:
                verification = _verified(plan, request, verify=verify)
                built = _written(
                    plan, request, output, seed, verification, begun, hardware=hardware
                )
                break
            except UserError as error:
                fits = not isinstance(error.__cause__, NoRoom)
                larger = None if fits else _with_larger_scratchpads(best, request)
                if larger is None:
                    raise
                best = larger
    _tell(built, request, cluster, package, hardware=hardware)


def _tell(
    built: Build, request: Request, cluster: Cluster, package: str | None, *, hardware: bool
) -> None:
    """Print what was built, and package it."""
    from fpgapipe.host.cli.options.planning import print_plan
    from fpgapipe.host.runtime.program_check import Verification

    print_plan(built.plan, request.cluster)
    print()
    _print_resources(built)
    print()
    _print_memory(built)
    _hint(built.plan, request)
    print(Verification.read(built.folder))
    where = str(built.folder) if hardware else f"{built.folder} --backend model"
    print(f"written to {built.folder}; 'fpgapipe run {where}' runs it")
    if package is not None:
        from fpgapipe.host.package.package import write_package

        place = write_package(built, cluster, package)
        print(f"packaged for {package} in {place}; each device's README.md says how to build it")


def _refuse_layers(request: Request) -> None:
    """Refuse a network with layers that no core runs before time is spent on planning."""
    from fpgapipe.lowering.units.network_units import check_network

    count = request.num_microbatches or 1
    if request.batch % count == 0:  # otherwise the planner refuses the number of micro-batches
        graph = request.load(request.batch // count)
        check_network(graph, train=request.train, loss=request.step_options.loss)


def _faster_shards(request: Request, network: str) -> Plan | None:
    """The best plan with shards, if it is faster than the best pipeline."""
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.planning import fastest_shards, rank
    from fpgapipe.partition.explore.planned import as_plan
    from fpgapipe.partition.pricing.machine import price_plan
    from fpgapipe.partition.pricing.machine_search import THOROUGH

    if len(request.cluster.devices) < 2:
        return None
    found, _ = fastest_shards(request, network)
    best = min((plan for plan, _, _ in found), key=rank, default=None)
    if best is None:
        return None
    try:
        pipeline = _explored(request, lambda best: None, THOROUGH)
        assert pipeline.microbatch is not None
        graph = request.load(pipeline.microbatch)
        plan = as_plan(
            pipeline, graph, network, request.batch, request.cluster, train=request.train
        )
        plan, _ = price_plan(plan, graph, request.cluster, options=request.step_options)
    except UserError:
        return best
    return best if rank(best) < rank(plan) else None


def _explored(request: Request, on_first: Callable[[Candidate], None], looks: int = 1) -> Candidate:
    """The best candidate; `on_first` is told of the one that is best before programs are priced."""
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.explore.smallest import explore_smallest
    from fpgapipe.partition.pricing.machine_search import explore_remembered
    from fpgapipe.stopwatch import phase

    with progress() as display, phase("planning"):
        display.add_task("planning")

        def first() -> Exploration:
            found = explore_smallest(
                request, lambda done, total: display.update(completed=done, total=total)
            )
            display.update(description="pricing")
            on_first(found.best)
            return found

        return explore_remembered(request, first, "smallest", looks).best


def _with_larger_scratchpads(best: Candidate, request: Request) -> Candidate | None:
    """Plan again with scratchpads twice as large; None if the boards have no room for them.

    The planner chooses the smallest scratchpad that costs no time. Whether there is a tiling of
    each layer that fits it is known only when the layer's program is made.
    """
    import dataclasses

    from fpgapipe.partition.explore.explorer import explore
    from fpgapipe.partition.search.problem import PlanError

    first = best.stages[0].core
    assert first is not None
    asked = dataclasses.replace(
        request,
        array=(first.rows, first.cols),
        num_microbatches=best.num_microbatches,
        schedules=(best.kind,),
        scratchpad_bytes=2 * _scratchpad_bytes(best),
    )
    try:
        found = explore(asked).best
    except PlanError:
        return None
    return found if _scratchpad_bytes(found) > _scratchpad_bytes(best) else None


def _scratchpad_bytes(candidate: Candidate) -> int:
    return max(stage.core.scratchpad_bytes for stage in candidate.stages if stage.core)


def _verified(plan: Plan, request: Request, *, verify: bool) -> Verification:
    """Compare the programs of a plan's layers with PyTorch, if that is asked for."""
    from fpgapipe.host.runtime.program_check import Verification, verify_programs
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.stopwatch import phase

    if not verify:
        return Verification(skipped="--no-verify")
    with progress() as display, phase("comparison of the programs with PyTorch"):
        display.add_task("comparing programs")
        return verify_programs(plan, request.load(plan.microbatch), request.step_options)


def _written(
    plan: Plan,
    request: Request,
    folder: Path,
    seed: int,
    verification: Verification,
    begun: Begun | None = None,
    *,
    hardware: bool,
) -> Build:
    from fpgapipe.host.build.build import write_build
    from fpgapipe.host.terminal.console import progress

    with progress() as display:
        display.add_task("making programs")
        built = write_build(
            plan,
            request.load(plan.microbatch),
            request.cluster,
            folder,
            seed=seed,
            options=request.step_options,
            on_part=lambda what: display.update(description=f"making {what}"),
            begun=begun,
            hardware=hardware,
        )
    verification.write(folder)
    return built


def _print_resources(build: Build) -> None:
    """Print the resources that each device's core takes, and their limits on its board."""
    from fpgapipe.host.terminal.console import Column, count, print_table
    from fpgapipe.partition.cost.cores import RESOURCES

    rows = []
    for stage, each in enumerate(build.resources):
        used, limits = each["used"], each["limits"]
        cells = [
            f"{count(used[name])} of {count(limits[name])}" if limits[name] else count(used[name])
            for name in RESOURCES
        ]
        rows.append((stage, each["board"], each["core"], *cells))
    print_table(
        [
            Column("stage", True),
            Column("board"),
            Column("core"),
            *(Column(name.upper(), True) for name in RESOURCES),
        ],
        rows,
        "what the cores take of what a design may use",
    )


def _print_memory(build: Build) -> None:
    """Print what the memory of each device is used for."""
    from fpgapipe.host.terminal.console import Column, print_table, scaled
    from fpgapipe.lowering.memory.sharing import Category

    names = [name for name in Category if any(name in each for each in build.memory_use)]
    rows = [
        (
            stage,
            *(scaled(each.get(name, 0), "B", 1024) for name in names),
            scaled(sum(each.values()), "B", 1024),
        )
        for stage, each in enumerate(build.memory_use)
    ]
    headings = (*(name.value for name in names), "all")
    columns = [Column("stage", True), *(Column(name, True) for name in headings)]
    print_table(columns, rows, "what the memory of each device is used for, at the fullest moment")


def _hint(plan: Plan, request: Request) -> None:
    """Say so if a single device is predicted to be faster; both are priced on the machine."""
    import dataclasses

    from fpgapipe.partition.explore.explorer import explore
    from fpgapipe.partition.pricing.machine_search import explore_remembered
    from fpgapipe.partition.search.problem import PlanError

    if len(plan.stages) == 1 or plan.predicted.level != "machine":
        return
    first = plan.stages[0]
    place = request.cluster.device_names.index(first.device)
    cluster = dataclasses.replace(
        request.cluster,
        device_names=(first.device,),
        devices=(request.cluster.devices[place],),
        links=(),
    )
    alone = dataclasses.replace(
        request,
        cluster=cluster,
        num_microbatches=plan.num_microbatches,
        array=(first.core.rows, first.core.cols),
        scratchpad_bytes=first.core.scratchpad_bytes,
    )
    try:
        priced = explore_remembered(alone, partial(explore, alone), "explore")
    except PlanError:
        return
    seconds = plan.predicted.minibatch_s
    if priced.level == "machine" and priced.best.steady_s < seconds:
        print(
            f"hint: one {first.board} with this core is predicted to be "
            f"{seconds / priced.best.steady_s:.2f} times as fast as these {len(plan.stages)}"
            " devices"
        )
