"""Builds: a network planned for boards, with its programs and hardware."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.boards.cluster import Cluster, chain_of
from fpgapipe.boards.schema import Board
from fpgapipe.errors import UserError
from fpgapipe.host.backends.verification import verified
from fpgapipe.host.build.build import Build, check_folder, write_build
from fpgapipe.host.build.verilog_ahead import LARGE_MACS, Begun
from fpgapipe.host.make.networks import (
    Load,
    Loader,
    frozen_loader,
    loader,
    with_integers,
    with_parameters,
)
from fpgapipe.host.make.plan import PlannedDegrees, plan_board
from fpgapipe.host.make.plan_tables import plan_parts
from fpgapipe.host.make.planning import (
    AUTO,
    MERGED,
    check_strategy,
    fastest_of,
    form_of,
    has_order,
    spec_of,
    tried_strategies,
)
from fpgapipe.host.package.package import write_package
from fpgapipe.host.package.targets import check_boards
from fpgapipe.host.runtime.program_check import Verification, verify_programs
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.host.weights.trained_run import open_run
from fpgapipe.hw.hls_models.native.native_library import begin_library
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.lowering.memory.sharing import Category
from fpgapipe.lowering.program.late_updates import late_options
from fpgapipe.lowering.units.network_units import check_network
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.cost.cores import RESOURCES, with_room
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import one_link_each, with_larger_scratchpads
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.sharing import Way, ways_told
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import BestPlan, best_plan
from fpgapipe.partition.pricing.climb import FASTEST
from fpgapipe.partition.schedule.built_schedules import check_schedule_kind
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, tried_schedules
from fpgapipe.partition.search.problem import PlanError
from fpgapipe.stopwatch import phase


@dataclass(frozen=True)
class Built(Result):
    """A build that was made.

    Attributes
    ----------
    build : Build
    verification : Verification
        How the programs of the layers compare with PyTorch.
    request : Request
        The question that the plan answers.
    hardware : bool
        Whether there is Verilog.
    compared : str
        What the plan was compared with, and what the fastest one would be, if it is a pipeline.
    boards : Cluster or None
        The boards, if the number of their nodes was searched.
    ways : tuple of Way
        Numbers of nodes of each board, if they were searched.
    package : Path or None
        Folder with the files for the vendor's tools, if the build was packaged.
    """

    RECORDS: ClassVar[str] = "resources"

    build: Build
    verification: Verification
    request: Request
    hardware: bool = True
    compared: str = ""
    boards: Cluster | None = None
    ways: tuple[Way, ...] = ()
    package: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """The plan, the resources of the cores, and what the memories are used for."""
        return {
            "folder": str(self.build.folder),
            "package": str(self.package) if self.package else None,
            "plan": self.build.plan.model_dump(mode="json"),
            "resources": self.build.resources,
            "memory_use": self.build.memory_use,
            "verification": str(self.verification),
            "compared_by": self.compared or None,
        }

    def shown(self) -> Iterator[Table | str]:
        """The plan, resources, memory, what was compared, and where the build is."""
        yield from plan_parts(self.build.plan, self.build.cluster)
        if self.compared:
            yield self.compared
        if self.ways:
            yield ways_told(self.ways)
        yield ""
        yield self._resources
        yield ""
        yield self._memory
        if self.hint:
            yield self.hint
        yield str(self.verification)
        folder = self.build.folder
        where = str(folder) if self.hardware else f"{folder} --backend model"
        yield f"written to {folder}; 'fpgapipe run {where}' runs it"
        if self.package is not None:
            flow = self.package.name
            yield (
                f"packaged for {flow} in {self.package}; each device's README.md says how to "
                "build it"
            )

    @property
    def _stages(self) -> list[int]:
        """Number of the stage of each device."""
        return self.build.plan.stage_numbers

    @property
    def _resources(self) -> Table:
        """The resources that each device's core takes, and their limits on its board."""
        rows = []
        for stage, each in zip(self._stages, self.build.resources, strict=True):
            used, limits = each["used"], each["limits"]
            cells = [
                f"{count(used[name])} of {count(limits[name])}"
                if limits[name]
                else count(used[name])
                for name in RESOURCES
            ]
            rows.append((stage, each["board"], each["core"], *cells))
        heads = "|".join([">stage|board|core", *(f">{name.upper()}" for name in RESOURCES)])
        return Table(heads, rows, "what the cores take of what a design may use")

    @property
    def _memory(self) -> Table:
        """Uses of the memory of each device."""
        use = self.build.memory_use
        names = [name for name in Category if any(name in each for each in use)]
        rows = [
            (
                stage,
                *(scaled(each.get(name, 0), "B", 1024) for name in names),
                scaled(sum(each.values()), "B", 1024),
            )
            for stage, each in zip(self._stages, use, strict=True)
        ]
        heads = "|>".join([">stage", *(name.value for name in names), "all"])
        title = "what the memory of each device is used for, at the fullest moment"
        return Table(heads, rows, title)

    @cached_property
    def hint(self) -> str | None:
        """Says so if a single device is predicted to be faster; both are priced on the machine."""
        plan, request = self.build.plan, self.request
        if len(plan.nodes) == 1 or plan.predicted.level != "machine":
            return None
        first = plan.nodes[0]
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
            scratchpad_bytes=first.core.scratchpad.size_bytes,
        )
        seconds = plan.predicted.minibatch_s
        try:
            least = min(FASTEST, 1 / first.core.num_engines)  # of what formulas say
            if explore(alone).best.steady_s * least >= seconds:
                return None
            found = best_plan(alone, plan.network).plan.predicted
        except PlanError:
            return None
        if found.level != "machine" or found.minibatch_s >= seconds:
            return None
        return (
            f"hint: one {first.board} with this core is predicted to be "
            f"{seconds / found.minibatch_s:.2f} times as fast as these {len(plan.nodes)} "
            "devices"
        )


def build(
    network: str | Load | None,
    cluster: Cluster | ClusterSpec,
    folder: Path | str | None = None,
    *,
    batch: int = 32,
    micro_batches: int | None = None,
    strategy: str = "pipeline",
    schedule: str = "1f1b-as",
    array: tuple[int, int] | None = None,
    cells: str | None = None,
    options: StepOptions | None = None,
    seed: int = 0,
    parameters: str | None = None,
    source: Path | str | None = None,
    int8: str | None = None,
    int8_percentile: float = 100,
    freeze: Sequence[str] = (),
    verify: bool = True,
    hardware: bool = True,
    package: str | None = None,
    on_note: Callable[[str], object] = lambda text: None,
    progress: Progress = silent,
) -> Built:
    """Plan a network for boards, make its programs and hardware, and write the build folder.

    If a layer does not fit its core's scratchpad, the plan is made again with a larger one. All
    devices are used.

    Parameters
    ----------
    network : str, callable or None
        Its name or file, or a function that gives the graph for a number of samples; None for that
        of `source`.
    cluster : Cluster or ClusterSpec
    folder : path, optional
        Folder to write; ``out/NETWORK`` if it is not given.
    batch : int
        Samples in a mini-batch.
    micro_batches : int, optional
        Equal parts of a mini-batch; the best of several numbers if it is not given.
    strategy : str
        A name of ``fpgapipe build --strategy``, or the path of a file of degrees or stages.
    schedule : str
        Order of the passes, or ``auto`` for the best of several.
    array : (int, int), optional
        Rows and columns of each device's array; as few as are fast if it is not given.
    cells : str, optional
        How the cells are made: ``plain``, or ``packed``, two in a DSP48E2. If it is left out, they
        are packed where no array of so many plain cells fits.
    options : StepOptions, optional
        Options of the programs: training, which is the default, or inference.
    seed : int
        Seed of the random initial parameters.
    parameters : str, optional
        A checkpoint, or a file of tensors as `export` writes it, with parameters to begin with.
    source : path, optional
        A build that was trained, or the folder of one of its runs, whose network and weights a
        build for inference takes.
    int8 : str, optional
        Samples, as for `load_data`, from which an INT8 network for inference has its scales.
    int8_percentile : float
        Percentage of the elements of each activation that are within the scale.
    freeze : sequence of str
        Patterns of parameters that training leaves unchanged.
    verify : bool
        Whether an imported network is compared with its source, and the programs with PyTorch.
    hardware : bool
        Whether the cores' Verilog is made.
    package : str, optional
        A vendor's flow for which the build is packaged; boards without it are refused first.
    on_note : callable
        Is told how the network compares with its source.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If options contradict each other, something does not fit, the network differs from its
        source or a program from PyTorch, or the folder cannot be written.
    """
    options = options or StepOptions()
    if folder is not None:
        check_folder(Path(folder))
    if package is not None:
        if not hardware:
            raise UserError("--package packages the cores' Verilog, so it excludes --no-hardware")
        if not isinstance(cluster, Cluster):
            raise TypeError("a package needs the boards of a Cluster, which a ClusterSpec lacks")
        check_boards(cluster, package)
    check_strategy(strategy, schedule, ("auto", "1f1b-as"))
    if schedule != "auto":
        check_schedule_kind(schedule)
    check_training(options, schedule)
    if int8 is not None and options.train:
        raise UserError("--int8 builds networks for inference: it needs --mode infer")
    if source is not None and parameters is not None:
        raise UserError("--from takes the weights of a run; leave --parameters out")
    given = _network_of(network, source, options)
    if source is not None:
        target = Path(folder or f"out/{given.name}").resolve()
        if Path(source).resolve().is_relative_to(target):
            raise UserError(
                f"{target} has the run whose weights are taken; name another folder with -o"
            )
    micro_batches = given.micro_batches(batch, micro_batches)
    microbatch = batch // (micro_batches or 1)
    evaluated = given if options.train else (lambda samples: given(samples).evaluated)
    if int8 is None and int8_percentile != 100:
        raise UserError(
            "--int8-percentile is about the scales of --int8 DATA: name samples with it"
        )
    trained = with_parameters(evaluated, parameters, microbatch)
    load = with_integers(trained, int8, microbatch, int8_percentile)
    if freeze:
        load = frozen_loader(load, freeze)
    request = Request(
        load,
        batch,
        one_link_each(spec_of(cluster)),
        tried_schedules() if schedule == "auto" else (schedule,),
        micro_batches,
        array=array,
        train=options.train,
        all_devices=True,
        merges=strategy == MERGED,
        options=options,
        form=form_of(cells),
    )
    _refuse_layers(request)
    if verify and (note := compared(given, batch, micro_batches, train=request.train)):
        on_note(note)
    making = _Making(request, given.name, folder, seed, verify, hardware, progress)
    names = ["pipeline", *tried_strategies()] if strategy == AUTO else [strategy]
    if verify and importlib.util.find_spec("torch") is not None:
        begin_library()  # the programs that are compared with PyTorch run on it
    found, _, _ = fastest_of(request, given.name, names, progress, smallest=True)
    built = making.of_pipeline(found.pipeline) if found.pipeline else making.of(found.plan)
    if package is None:
        return built
    assert isinstance(cluster, Cluster), "it was refused otherwise"
    try:
        return dataclasses.replace(built, package=write_package(built.build, cluster, package))
    except UserError as error:
        raise UserError(f"{error}; the build is in {built.build.folder}") from None


def build_board(
    network: str | Load | None,
    board: Board,
    num_boards: int = 1,
    folder: Path | str | None = None,
    *,
    batch: int = 32,
    micro_batches: int | None = None,
    strategy: str | None = None,
    schedule: str = "auto",
    array: tuple[int, int] | None = None,
    cells: str | None = None,
    options: StepOptions | None = None,
    package: str | None = None,
    progress: Progress = silent,
    **rest: Any,
) -> Built:
    """Build for boards that are shared among as many nodes as are fastest.

    The number of nodes, the strategy, the schedule and the number of micro-batches are those of
    `fpgapipe.plan_board`; the cores are the smallest that are nearly as fast.

    Parameters
    ----------
    network : str or callable
    board : Board
    num_boards : int
        Number of such boards, cabled in a chain.
    strategy : str, optional
        The fastest one of a pipeline, data parallelism and replicas of a pipeline if it is not
        given.
    folder, batch, micro_batches, schedule, array, cells, options, package, progress, **rest
        As for `build`.

    Returns
    -------
    Built
        `Built.boards` are the boards and their nodes, `Built.ways` the other numbers of nodes.

    Raises
    ------
    UserError
        As `build` does, and for inference, for which no number of nodes is searched.
    """
    options = options or StepOptions()
    if network is None or not options.train:
        raise UserError(
            "the fastest number of nodes is searched for training a network; for --mode infer say "
            "how many --nodes"
        )
    if folder is not None:
        check_folder(Path(folder))
    if package is not None:
        check_boards(chain_of(board, num_boards), package)
    asked: dict[str, Any] = {"batch": batch, "array": array, "cells": cells, "progress": progress}
    found = plan_board(
        network,
        board,
        num_boards,
        micro_batches=micro_batches,
        strategy=strategy,
        schedule=schedule,
        **asked,
    )
    if isinstance(found, PlannedDegrees):
        raise UserError(found.reason)
    made = found.plan
    boards = chain_of(board, num_boards, len(found.cluster.devices) // num_boards)
    built = build(
        network,
        boards,
        folder,
        micro_batches=made.num_microbatches,
        strategy=found.strategy,
        schedule=made.schedule if has_order(found.strategy) else schedule,
        options=options,
        package=package,
        **asked,
        **rest,
    )
    return dataclasses.replace(built, boards=boards, ways=found.ways)


def _network_of(
    network: str | Load | None, source: Path | str | None, options: StepOptions
) -> Loader:
    """Loader of the network that is named, or of that of a run."""
    if source is None:
        if network is None:
            raise UserError("name a network, or a run whose network is built for inference")
        return loader(network)
    if network is not None:
        raise UserError("--from takes the network of a run; leave --network out")
    if options.train:
        raise UserError(
            "--from makes builds for inference: take --mode infer, or begin with the weights of a "
            "checkpoint by --parameters"
        )
    return loader(open_run(Path(source)).evaluated)


def check_training(options: StepOptions, schedule: str) -> None:
    """Refuse options of programs that a schedule does not have.

    Raises
    ------
    UserError
        If they do not go together.
    """
    if options.train and schedule != "auto" and not make_schedule(schedule, 2, 2).synchronous:
        try:
            late_options(options)
        except NotImplementedError as error:
            raise UserError(str(error)) from error


def compared(load: Load, batch: int, micro_batches: int | None, *, train: bool) -> str | None:
    """Refuse a network that differs from its source; say what was compared, if it has one.

    A batch of two samples is enough, unless the network has a fixed batch.

    Parameters
    ----------
    load : callable
        Loads the network for a number of samples.
    batch : int
    micro_batches : int or None
        Micro-batches of a mini-batch, if they were asked for.
    train : bool
        Whether it is to be trained.
    """
    try:
        graph = load(min(2, batch))
    except UserError:
        graph = load(batch // (micro_batches or 1))
    if graph.source is None:
        return None
    if importlib.util.find_spec("torch") is None:
        return "not verified: that needs torch (pip install 'fpgapipe[torch]')"
    return str(verified(graph, train=train))


def _refuse_layers(request: Request) -> None:
    """Refuse a network with layers that no core runs before time is spent on planning."""
    count = request.num_microbatches or 1
    if request.batch % count == 0:  # otherwise the planner refuses the number of micro-batches
        graph = request.load(request.batch // count)
        check_network(graph, train=request.train, loss=request.step_options.loss)


@dataclass(frozen=True)
class _Making:
    """Settings that hold for every plan of a build; attributes are those of `build`."""

    request: Request
    network: str
    folder: Path | str | None
    seed: int
    verify: bool
    hardware: bool
    progress: Progress

    def of_pipeline(self, found: BestPlan) -> Built:
        """Make a pipeline, with larger scratchpads until every layer fits."""
        with contextlib.ExitStack() as stack:
            begun, plan = Begun(stack), found.plan
            if self.hardware:
                is_large = sum(node.macs for node in plan.nodes) >= LARGE_MACS
                with contextlib.suppress(UserError):  # another plan may have cores that can be made
                    begun.begin(list(dict.fromkeys(plan.cores)), is_large=is_large)
            larger = partial(with_larger_scratchpads, cluster=self.request.cluster)
            built = with_room(plan, lambda each: self.of(each, begun), larger)[1]
            return dataclasses.replace(built, compared=found.compared)

    def of(self, plan: Plan, begun: Begun | None = None) -> Built:
        """Compare the programs of a plan with PyTorch, if that is asked for, and write the build.

        Parameters
        ----------
        plan : Plan
        begun : Begun, optional
            Verilog that was begun before.
        """
        request = self.request
        graph = request.load(plan.microbatch)
        folder = Path(self.folder or f"out/{graph.name}")
        verification = Verification(skipped="--no-verify")
        if self.verify:
            with self.progress() as display, phase("comparison of the programs with PyTorch"):
                display.add_task("comparing programs")
                verification = verify_programs(plan, graph, request.step_options)
        with self.progress() as display:
            display.add_task("making programs")
            written = write_build(
                plan,
                graph,
                request.cluster,
                folder,
                seed=self.seed,
                options=request.step_options,
                on_part=lambda what: display.update(description=f"making {what}"),
                begun=begun,
                hardware=self.hardware,
            )
        verification.write(folder)
        return Built(written, verification, request, self.hardware)
