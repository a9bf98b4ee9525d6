"""Plans: the fastest way to train a network on a cluster, as ``fpgapipe plan`` finds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.boards.cluster import Cluster, chain_of, ways_to_share
from fpgapipe.boards.schema import Board
from fpgapipe.errors import UserError, counted
from fpgapipe.host.make.networks import loader
from fpgapipe.host.make.plan_tables import explained_parts, plan_parts
from fpgapipe.host.make.planning import (
    AUTO,
    MERGED,
    Chosen,
    board_strategies,
    check_strategy,
    fastest_of,
    form_of,
    rank,
    spec_of,
    tried_strategies,
)
from fpgapipe.host.make.schedule import read_plain_schedule
from fpgapipe.host.report.drawing.pictures import picture
from fpgapipe.host.terminal.console import Table, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.lowering.schedule.schedule import Schedule, TaskKind
from fpgapipe.lowering.units.network_units import refusals_of
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.graph import Graph
from fpgapipe.network.load import load_file
from fpgapipe.partition.explore.measured import plan_profile as cut_profile
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.explore.sharing import Way, fastest_sharing, ways_told
from fpgapipe.partition.plan import PROFILE_PLAN, Plan
from fpgapipe.partition.pricing.best_plan import BestPlan, why_not_built
from fpgapipe.partition.pricing.cycle_account import CycleAccount
from fpgapipe.partition.pricing.machine import explain_plan
from fpgapipe.partition.schedule.schedule_kinds import tried_schedules
from fpgapipe.partition.search.problem import Objective, Partition
from fpgapipe.partition.strategies.layerwise import LayerwisePlan
from fpgapipe.partition.strategies.registered import STRATEGIES
from fpgapipe.partition.timeline.timeline import Timeline
from fpgapipe.stopwatch import phase

LEAST_UPLOAD = 0.01
"""Share of a mini-batch's time from which the time of writing its inputs is shown."""


@dataclass(frozen=True)
class Planned(Result):
    """The fastest plan that was found.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        The network for a micro-batch.
    cluster : ClusterSpec
    timeline : Timeline
        Timetable of a mini-batch.
    built : dict
        ``possible``, whether `fpgapipe.build` can build it, and the ``reason`` if not.
    found : BestPlan or None
        What else was tried, if the plan is a pipeline.
    search : LayerwisePlan or None
        How degrees of layers were found, if it has some.
    compared : dict of str to Plan
        Plans of the strategies that were compared.
    refused : tuple of str
        Why other strategies are impossible.
    explained : (int, list of CycleAccount) or None
        Micro-batches of a step, and where its cycles go on each device, if that was asked for.
    ways : tuple of Way
        Numbers of nodes of each board, if they were left open.
    strategy : str
        The strategy that found the plan.
    """

    plan: Plan
    graph: Graph
    cluster: ClusterSpec
    timeline: Timeline
    built: Mapping[str, Any]
    found: BestPlan | None = None
    search: LayerwisePlan | None = None
    compared: Mapping[str, Plan] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    explained: tuple[int, list[CycleAccount]] | None = None
    ways: tuple[Way, ...] = ()
    strategy: str = "pipeline"

    @property
    def samples_per_s(self) -> float:
        """Samples of a mini-batch in a second."""
        return self.plan.batch / self.plan.predicted.minibatch_s

    @property
    def sure_per_s(self) -> float:
        """Samples a second of which its prices can be sure, by `rank`."""
        return self.plan.batch / rank(self.plan)

    @property
    def fits(self) -> bool:
        """Whether the programs fit the memory of their boards, as far as that is known."""
        return self.found is None or self.found.fault is None

    @property
    def upload_s(self) -> float:
        """Seconds in which the host writes the inputs of a mini-batch, before the devices start.

        The time of a mini-batch leaves them out. All inputs go through one host. Labels, and what a
        transfer costs besides its bytes, come on top.
        """
        options, rates = StepOptions(), [each.host_bytes_per_s for each in self.cluster.devices]
        size = sum(
            tensor.elements * options.format_of_input(self.graph, name).element_bytes
            for name, tensor in self.graph.inputs.items()
        )
        first = [self.cluster.device_names.index(each.device) for each in self.plan.stages[0].nodes]
        batches = self.plan.batch // self.plan.microbatch
        return size * batches / min(rates[place] for place in first)

    def picture(self, kind: str) -> str:
        """Text of a picture of the timetable: ``svg``, ``html``, or ``trace`` for Perfetto."""
        plan, sent = self.plan, dict[tuple[TaskKind, int], float]()
        if self.found:
            for i, node in enumerate(plan.nodes):
                sent[TaskKind.SF, i] = node.sends_bytes
                sent[TaskKind.SB, i + 1] = node.returns_bytes
        return picture(
            kind,
            self.timeline,
            f"{plan.network} on {plan.cluster}, {plan.order_name}",
            names=plan.lane_names,
            transfer_bytes=sent,
        )

    def to_records(self) -> list[dict[str, Any]]:
        """A row for each node, with the number and the layers of its stage."""
        return [
            {"stage": number, "layers": stage.layers, **node.model_dump(mode="json")}
            for number, stage in enumerate(self.plan.stages)
            for node in stage.nodes
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan, what it was compared with, and whether it can be built."""
        found = self.found
        value: dict[str, Any] = self.plan.model_dump(mode="json")
        value["tried"] = found.tried if found else []
        value["compared_by"] = found.compared if found else None
        value["refused"] = [*(found.refused if found else ()), *self.refused]
        value["compared"] = {
            name: {"minibatch_s": each.predicted.minibatch_s, "level": each.predicted.level}
            for name, each in self.compared.items()
        }
        if self.search:
            value["search"] = self.search.to_dict()
            value |= {"num_left": self.search.num_left, "search_s": self.search.search_s}
        value["upload_s"] = self.upload_s
        value["build"] = self.built
        if self.ways:
            value["nodes_of_a_board"] = [dataclasses.asdict(way) for way in self.ways]
        if self.explained:
            count, accounts = self.explained
            value["explained"] = {
                "num_microbatches": count,
                "cycles": accounts[0].cycles,
                "devices": [
                    {"device": node.device, **account.to_dict()}
                    for node, account in zip(self.plan.nodes, accounts, strict=True)
                ],
            }
        return value

    def shown(self) -> Iterator[Table | str]:
        """The plan, what it was compared with, and where cycles go if that was asked for."""
        yield from plan_parts(self.plan, self.cluster)
        if self.upload_s > LEAST_UPLOAD * self.plan.predicted.minibatch_s:
            told = scaled(self.upload_s, "s")
            yield f"before a mini-batch, the host takes {told} to write its inputs"
        if self.search:
            yield (
                f"degrees: by formulas {scaled(self.search.step_s, 's')} a mini-batch; "
                f"{counted(self.search.num_left, 'node')} left of {len(self.search.groups)}, "
                f"searched in {scaled(self.search.search_s, 's')}"
            )
        if len(self.compared) > 1 or self.refused:
            yield ""
            yield self._compared
            for reason in self.refused:
                yield f"not possible, {reason}"
        if self.found:
            yield ""
            yield from _tried_parts(self.found)
        if self.ways:
            yield ways_told(self.ways)
        if self.explained:
            yield from explained_parts(self.plan, *self.explained)
        if not self.built["possible"]:
            yield f"\nnote: 'fpgapipe build' cannot make this plan: {self.built['reason']}"

    @property
    def _compared(self) -> Table:
        """Times of the strategies that were compared."""
        ordered = sorted(self.compared.items(), key=lambda each: each[1].predicted.minibatch_s)
        return Table(
            "strategy|>micro-batches|>mini-batch|by",
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


def _tried_parts(found: BestPlan) -> Iterator[Table | str]:
    """The best of each schedule, why some are impossible, and what was compared."""
    yield Table(
        "schedule|>micro-batches|>mini-batch|>bubble",
        [
            (
                each["schedule"],
                each["num_microbatches"],
                scaled(each["minibatch_s"], "s"),
                f"{each['bubble_rate']:.1%}",
            )
            for each in found.tried
        ],
        "the best of each schedule",
    )
    for reason in found.refused[:5]:
        yield f"left out: {reason}"
    yield found.compared


@dataclass(frozen=True)
class PlannedDegrees(Result):
    """Degrees of all layers by formulas, of a network for which no programs are made.

    Attributes
    ----------
    found : LayerwisePlan
    reason : str
        Why no programs are made.
    """

    RECORDS: ClassVar[str] = "groups"
    fits: ClassVar[bool] = True  # there are no programs

    found: LayerwisePlan
    reason: str

    @property
    def sure_per_s(self) -> float:
        """Samples a second, to compare degrees with other degrees; all are by formulas."""
        return self.found.batch / self.found.step_s

    def to_dict(self) -> dict[str, Any]:
        """The degrees of all groups of layers, and their times."""
        return self.found.to_dict()

    def shown(self) -> Iterator[Table | str]:
        """The degrees, and what they are compared with."""
        found = self.found
        yield Table(
            "layers|degrees|>devices|>compute|>gradient sum|>memory",
            [
                (
                    group.layers[0]
                    if len(group.layers) == 1
                    else f"{group.layers[0]} + {len(group.layers) - 1}",
                    str(group.degrees),
                    group.degrees.num_devices,
                    scaled(group.compute_s, "s"),
                    scaled(group.sum_s, "s"),
                    scaled(group.memory_bytes, "B", 1024),
                )
                for group in found.groups
            ],
            f"{found.network}, batch {found.batch}, layer-wise on "
            f"{counted(found.num_devices, 'device')}",
        )
        yield (
            f"estimated: {scaled(found.step_s, 's')} a mini-batch, {scaled(found.moves_s, 's')} of "
            f"it moves activations; {scaled(found.data_parallel_s, 's')} if all layers cut the "
            f"batch, {scaled(found.serial_s, 's')} on one device"
        )
        proof = (
            "optimal by these prices" if found.is_optimal else "the best found in these memories"
        )
        left = counted(found.num_left, "node")
        yield f"{proof}; {left} left, searched in {scaled(found.search_s, 's')}"
        yield f"\nnote: 'fpgapipe build' cannot make this plan: {self.reason}"


@dataclass(frozen=True)
class PlannedProfile(Result):
    """Stages of a network whose times were measured.

    Attributes
    ----------
    network : str
    devices : int
    schedule : str
    micro_batches : int
        Micro-batches of a mini-batch.
    samples : int or None
        Samples of a micro-batch, if the profile has them.
    found : Partition
    """

    RECORDS: ClassVar[str] = "stages"

    network: str
    devices: int
    schedule: str
    micro_batches: int
    samples: int | None
    found: Partition

    def to_dict(self) -> dict[str, Any]:
        """The stages and their times, as `run_plan` reads them from a file, too."""
        return {
            "format": PROFILE_PLAN,
            "network": self.network,
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "samples": self.samples,
            **self.found.to_dict(),
        }

    def shown(self) -> Iterator[Table | str]:
        """The stages and their times."""
        found = self.found
        yield Table(
            ">stage|>layers|from|to|>replicas|>time",
            [
                (i, len(s.layers), s.layers[0], s.layers[-1], s.replicas, scaled(s.time_s, "s"))
                for i, s in enumerate(found.stages)
            ],
            f"{self.network} on {counted(self.devices, 'device')}, {self.schedule}",
        )
        period, whole = scaled(found.period_s, "s"), scaled(found.minibatch_time_s, "s")
        yield f"period {period}, mini-batch {whole}"
        yield f"cut: {'optimal' if found.optimal else 'not proved optimal'} ({found.reason})"


def plan(
    network: str | Callable[[int], Graph],
    cluster: Cluster | ClusterSpec,
    *,
    batch: int = 64,
    micro_batches: int | None = None,
    schedule: str = "auto",
    order: Schedule | Path | str | None = None,
    strategy: str | Sequence[str] = "pipeline",
    array: tuple[int, int] | None = None,
    cells: str | None = None,
    free_order: bool = False,
    objective: str | None = None,
    explains: bool = False,
    progress: Progress = silent,
) -> Planned | PlannedDegrees:
    """Find the fastest way to train a network on a cluster.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    cluster : Cluster or ClusterSpec
    batch : int
        Samples in a mini-batch.
    micro_batches : int, optional
        Equal parts of a mini-batch; several numbers are tried if it is not given.
    schedule : str
        Order of the passes, or ``auto`` for the best of several.
    order : Schedule or path, optional
        A schedule with an order of its own and a stage for each device, instead of one by name; a
        path is that of PyTorch's CSV.
    strategy : str or sequence of str
        A name of ``fpgapipe plan --strategy``, or the path of a file of degrees or stages; of
        several names the fastest plan is taken.
    array : (int, int), optional
        Rows and columns of each device's array; several are tried if it is not given.
    cells : str, optional
        How the cells are made: ``plain``, or ``packed``, two in a DSP48E2. If it is left out, they
        are packed where no array of so many plain cells fits.
    free_order : bool
        Whether the devices may be cabled in another order.
    objective : str, optional
        What the cut makes smallest, ``bottleneck`` or ``minibatch``, which is the default.
    explains : bool
        Whether to say where the cycles of a step go.
    progress : callable
        Shows the progress.

    Returns
    -------
    Planned
        Or `PlannedDegrees`, if degrees of layers are asked for of a network that no core runs.

    Raises
    ------
    UserError
        If options contradict each other, or nothing fits.
    """
    names = [strategy] if isinstance(strategy, str) else list(strategy)
    if not names:
        raise UserError("name at least one strategy")
    if len(names) > 1 and (alone := {AUTO, MERGED}.intersection(names)):
        raise UserError(f"strategy {min(alone)} goes with no other: leave out the others")
    for name in names:
        check_strategy(name, schedule, ("auto",))
        if name != "pipeline":
            given = {"from-csv": order, "objective": objective, "free-order": free_order}
            for option in (option for option, value in given.items() if value):
                raise UserError(f"--{option} is for pipelines: leave out --strategy {name}")
    if names == [AUTO]:
        names = ["pipeline", *tried_strategies()]
    source, spec = loader(network), spec_of(cluster)
    if order is not None:
        order = read_plain_schedule(order, len(spec.devices), micro_batches)
        schedule, micro_batches = order.kind, order.num_microbatches
    request = Request(
        source,
        batch,
        spec,
        tried_schedules() if schedule == "auto" else (schedule,),
        source.micro_batches(batch, micro_batches),
        Objective(objective or "minibatch"),
        array,
        free_order,
        all_devices=order is not None,
        order=order,
        merges=names == [MERGED],
        form=form_of(cells),
    )
    estimate = STRATEGIES[names[0]].estimate if names[0] in STRATEGIES else None
    if len(names) == 1 and estimate:
        samples = request.batch // (request.num_microbatches or 1)
        if refusals := refusals_of(source(samples), train=True):
            reason = "; ".join(map(str, refusals[:3]))
            if explains:
                raise UserError(f"--explain needs programs, and none are made: {reason}")
            if micro_batches is None and samples != batch:
                raise UserError(
                    f"{source.name} has a fixed batch: without programs, --strategy {names[0]} "
                    f"plans a mini-batch as a whole, so take --batch {samples}"
                )
            with progress() as display:
                display.add_task("pricing layers")
                return PlannedDegrees(estimate(request, display.count), reason)
    fastest, compared, refused = fastest_of(request, source.name, names, progress)
    found = _planned(request, fastest)
    if len(names) > 1:
        found = replace(found, compared=compared, refused=refused)
    if explains:
        if not found.built["possible"]:
            raise UserError(f"--explain needs a plan that can be built: {found.built['reason']}")
        with phase("where cycles go"):
            told = explain_plan(found.plan, found.graph, found.cluster)
        found = replace(found, explained=told)
    return found


def plan_board(
    network: str | Callable[[int], Graph],
    board: Board,
    num_boards: int = 1,
    *,
    batch: int = 64,
    micro_batches: int | None = None,
    strategy: str | None = None,
    array: tuple[int, int] | None = None,
    cells: str | None = None,
    nodes: int | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Planned | PlannedDegrees:
    """Find the fastest way to train a network on boards that may be shared among several nodes.

    Parameters
    ----------
    network : str or callable
    board : Board
    num_boards : int
        Number of such boards, cabled in a chain.
    strategy : str, optional
        As for `plan`; the fastest one of a pipeline, data parallelism and replicas of a pipeline if
        it is not given, or a pipeline if options say something of its order.
    nodes : int, optional
        Nodes of each board; the fastest number is searched if it is not given.
    batch, micro_batches, array, cells, progress, **options
        As for `plan`.

    Returns
    -------
    Planned or PlannedDegrees
        The plan with the fastest number of nodes; `Planned.ways` has the others.

    Raises
    ------
    UserError
        As `plan` does.
    """
    source = loader(network)

    def request_on(cluster: Cluster) -> Request:
        count = source.micro_batches(batch, micro_batches)
        form = form_of(cells)
        return Request(source, batch, cluster.spec, num_microbatches=count, array=array, form=form)

    orders = [options.get(name) for name in ("order", "objective", "free_order")]
    is_ordered = options.get("schedule", "auto") != "auto" or any(orders)
    names = (strategy,) if strategy else board_strategies()[: 1 if is_ordered else None]

    def planned_on(cluster: Cluster) -> Planned | PlannedDegrees:
        asked: dict[str, Any] = {**options, "batch": batch, "micro_batches": micro_batches}
        asked |= {"array": array, "cells": cells, "progress": progress}
        return plan(network, cluster, strategy=names, **asked)

    if nodes is not None:
        return planned_on(chain_of(board, num_boards, nodes))
    clusters, num_dies = ways_to_share(board, num_boards), len(board.fabric.dies)
    found, ways = fastest_sharing(clusters, num_dies, request_on, planned_on)
    return replace(found, ways=ways) if isinstance(found, Planned) else found


def _planned(request: Request, made: Chosen) -> Planned:
    """The plan of a strategy, and whether it can be built."""
    best = made.pipeline
    graph = best.graph if best else request.load(made.plan.microbatch)
    built = best.built if best else why_not_built(made.plan, graph, request.cluster)
    return Planned(
        *(made.plan, graph, request.cluster, made.timeline, built, best),
        search=made.degrees,
        strategy=made.strategy,
    )


def plan_profile(
    profile: Path | str,
    devices: int | None = None,
    *,
    bytes_per_s: float | None = None,
    straight: bool = False,
    objective: str | None = None,
    micro_batches: int | None = None,
    schedule: str = "auto",
    order: Schedule | Path | str | None = None,
) -> PlannedProfile:
    """Cut a network of measured times into stages on equal devices.

    Parameters
    ----------
    profile : path
        File of measured times, as for ``fpgapipe plan --profile``.
    devices : int
        Number of devices; an `order` has its own.
    bytes_per_s : float
        Rate of a link.
    straight : bool
        Whether a stage has one device and transfers cost nothing; no rate is needed then.
    objective, micro_batches, schedule, order
        As for `plan`; the default objective is the ``bottleneck``.
    """
    if order is not None:
        order = read_plain_schedule(order, devices, micro_batches)
        devices, micro_batches, schedule = order.num_stages, order.num_microbatches, order.kind
    if devices is None:
        raise UserError("--profile needs --devices")
    if bytes_per_s is None and not straight:
        raise UserError("--profile needs --bandwidth in bytes/s, or --straight")
    kind = "pipedream" if schedule == "auto" else schedule
    graph = load_file(Path(profile))
    micro_batches = micro_batches or 4 * devices
    found = cut_profile(
        graph,
        devices,
        bytes_per_s=bytes_per_s or 0.0,
        straight=straight,
        objective=Objective(objective or "bottleneck"),
        num_microbatches=micro_batches,
        schedule=kind,
        order=order,
    )
    return PlannedProfile(graph.name, devices, kind, micro_batches, graph.batch, found)
