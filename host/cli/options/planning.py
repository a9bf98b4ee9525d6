"""Functions that ``plan``, ``build`` and ``compare`` share: from options to a planned network."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.explorer import Exploration, Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan
    from fpgapipe.partition.timeline.timeline import Timeline

    Searched = LayerwisePlan | None

STRATEGIES = (
    "pipeline",
    "merge",
    "data",
    "filter",
    "channel",
    "spatial",
    "data+filter",
    "data+channel",
    "data+spatial",
    "layerwise",
    "hybrid",
    "auto",
)
"""Strategies by name; any other is the path of a file."""

PIPELINES = ("pipeline", "merge")
"""Strategies whose plans are pipelines, which have a schedule."""


class Loader:
    """Loads a network for a number of samples, and keeps the results; made by `loader`.

    A copy by pickle loads the network itself, once in each process, and equals this one.

    Parameters
    ----------
    network : str
    key : str
        Differs from that of every other loader, since the file of a network may change.
    """

    def __init__(self, network: str, key: str) -> None:
        self.network, self.key = network, key
        self._graphs: dict[int, Graph] = {}

    def __call__(self, samples: int) -> Graph:
        """Load the network.

        Raises
        ------
        UserError
            If the batch of the network is fixed and is not that number, with the reason.
        """
        if samples not in self._graphs:
            self._graphs[samples] = self._load(samples)
        return self._graphs[samples]

    def micro_batches(self, batch: int, asked: int | None) -> int | None:
        """Number of micro-batches of a batch, or None if the planner may choose it.

        Parameters
        ----------
        batch : int
            Samples of a mini-batch.
        asked : int or None
            Number that the user wants.

        Raises
        ------
        UserError
            If the batch of the network is fixed, and `batch` is no multiple of it.
        """
        from fpgapipe.errors import UserError

        if asked is not None or batch == 1:
            return asked
        try:
            for samples in (2 if batch > 2 else 1, batch):  # the verification takes 2
                self(samples)
        except UserError:
            fixed = self._own_batch()
            if fixed and batch % fixed == 0:
                return batch // fixed
            self(batch)  # it says what is wrong
        return None

    def _own_batch(self) -> int | None:
        """Samples of a batch if nobody says how many; None if the network does not load then."""
        from fpgapipe.errors import UserError
        from fpgapipe.network.load import load_network

        try:
            return load_network(self.network).batch
        except UserError:
            return None

    def _load(self, samples: int) -> Graph:
        from fpgapipe.errors import UserError
        from fpgapipe.network.load import load_network

        try:
            graph = load_network(self.network, samples)
        except UserError as error:
            graph = load_network(self.network)
            if graph.batch is None:
                raise
            if graph.batch != samples:
                advice = f"take a --batch of micro-batches that have {graph.batch} samples each"
                raise UserError(f"{error}; or {advice}") from None
        if graph.batch is None:
            raise UserError(f"{self.network} is a profile: use it with 'fpgapipe plan --profile'")
        return graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loader) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied_loader, (self.network, self.key)


@functools.lru_cache(maxsize=4)
def _copied_loader(network: str, key: str) -> Loader:
    return Loader(network, key)


def loader(network: str) -> Loader:
    """Return a function that loads the network for a number of samples, and keeps the result."""
    import uuid

    return Loader(network, uuid.uuid4().hex)


def parse_array(text: str | None) -> tuple[int, int] | None:
    """Rows and columns of an array, written as ``8x8``; None for None.

    Raises
    ------
    UserError
        If the text does not have this form.
    """
    import re

    from fpgapipe.errors import UserError, shown

    if text is None:
        return None
    if found := re.fullmatch(r"(\d{1,4})[xX](\d{1,4})", text, re.ASCII):
        rows, cols = int(found[1]), int(found[2])
        if 1 <= rows <= 1024 and 1 <= cols <= 1024:
            return rows, cols
    raise UserError(f"--array must be ROWSxCOLS, each 1..1024, such as 8x8, not {shown(text)}")


def run_exploration(request: Request, *, thorough: bool = False) -> Exploration:
    """Explore by formulas, then by prices of the machine, with a progress bar.

    Parameters
    ----------
    request : Request
    thorough : bool
        Whether to price more combinations of cores and micro-batches, for which formulas are often
        10 % off and sometimes 60 %.
    """
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.explore.explorer import explore
    from fpgapipe.partition.pricing.machine_search import LOOKS, THOROUGH, explore_remembered
    from fpgapipe.stopwatch import phase

    with progress() as display, phase("planning"):
        display.add_task("planning")

        def first() -> Exploration:
            found = explore(
                request, lambda done, total: display.update(completed=done, total=total)
            )
            display.update(description="pricing")
            return found

        return explore_remembered(request, first, "explore", THOROUGH if thorough else LOOKS)


def check_strategy(strategy: str, schedule: str, free: tuple[str, ...]) -> None:
    """Refuse a strategy that there is not, and a schedule that does not go with it.

    Parameters
    ----------
    strategy : str
        ``pipeline``, another name, or the path of a file.
    schedule : str
        Name of the schedule that was asked for.
    free : tuple of str
        Names that do not ask for any in particular.

    Raises
    ------
    UserError
        If there is no such strategy, or they contradict each other.
    """
    from pathlib import Path

    from fpgapipe.errors import UserError, nearest, shown
    from fpgapipe.partition.plan import DATA_PARALLEL, LAYERWISE

    if strategy not in STRATEGIES and not Path(strategy).exists():
        raise UserError(
            f"--strategy must be {', '.join(STRATEGIES[:-1])}, {STRATEGIES[-1]}, or a file, not "
            f"{shown(strategy)}{nearest(strategy, STRATEGIES)}"
        )
    if strategy not in PIPELINES and schedule not in free:
        raise UserError(
            f"--strategy {strategy} has no order of its own: leave out --schedule {schedule}, or "
            "take --strategy pipeline"
        )
    if strategy in PIPELINES and schedule in (DATA_PARALLEL, LAYERWISE):
        name = "data" if schedule == DATA_PARALLEL else "layerwise"
        raise UserError(f"{schedule} is no order of a pipeline: take --strategy {name}")


def plan_shards(request: Request, network: str, strategy: str) -> tuple[Plan, Timeline, Searched]:
    """Find the fastest plan in which each device has all layers or parts of them.

    Parameters
    ----------
    request : Request
    network : str
        The name under which the network was loaded.
    strategy : str
        ``data``, ``layerwise``, ``hybrid``, a name of `ONE_AXIS`, or the path of a file with
        degrees or stages.

    Returns
    -------
    plan : Plan
    timeline : Timeline
    search : LayerwisePlan or None
        How degrees were found.
    """
    from pathlib import Path

    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
    from fpgapipe.partition.strategies.one_axis import ONE_AXIS, plan_one_axis
    from fpgapipe.partition.strategies.plan_hybrid import plan_given_stages, plan_hybrid
    from fpgapipe.partition.strategies.plan_layerwise import plan_given_degrees, plan_layerwise
    from fpgapipe.partition.strategies.strategy_file import StrategyFile
    from fpgapipe.stopwatch import phase

    given = None if strategy in STRATEGIES else StrategyFile.read(Path(strategy))
    with progress() as display, phase("planning"):
        display.add_task("planning")

        def on_step(done: int, total: int) -> None:
            display.update(completed=done, total=total)

        if given is not None:
            plan_given = plan_given_degrees if given.stages is None else plan_given_stages
            return *plan_given(request, network, given, on_step), None
        if strategy == "hybrid":
            return *plan_hybrid(request, network, on_step), None
        if strategy == "data":
            return *plan_data_parallel(request, network, on_step), None
        if strategy in ONE_AXIS:
            return *plan_one_axis(request, network, strategy, on_step), None
        return plan_layerwise(request, network, on_step)


def fastest_shards(
    request: Request, network: str
) -> tuple[list[tuple[Plan, Timeline, Searched]], list[str]]:
    """The fastest data-parallel, layer-wise and hybrid plans, and why one of them is impossible.

    Parameters
    ----------
    request, network
        As for `plan_shards`.
    """
    from fpgapipe.errors import UserError

    found: list[tuple[Plan, Timeline, Searched]] = []
    refused = []
    several = ("hybrid",) if len(request.cluster.devices) > 2 else ()
    for strategy in ("data", "layerwise", *several):
        try:
            found.append(plan_shards(request, network, strategy))
        except UserError as error:
            refused.append(f"{strategy}: {error}")
    return found, refused


def rank(plan: Plan) -> tuple[bool, float]:
    """Key by which plans are compared: those with prices of the machine come first."""
    return plan.predicted.level != "machine", plan.predicted.minibatch_s


def why_not_built(plan: Plan, graph: Graph, cluster: ClusterSpec) -> dict[str, Any]:
    """Say whether ``fpgapipe build`` can build a plan, for JSON.

    Returns
    -------
    dict
        ``possible``, a bool; ``reason``, a text or None; ``refused``, a list with ``layer``, ``op``
        and ``reason`` of each layer that the core does not run.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.lowering.units.network_units import RefusedNetwork, check_network
    from fpgapipe.partition.explore.explorer import device_chains
    from fpgapipe.partition.schedule.built_schedules import check_schedule_kind

    reasons: list[str] = []
    refused: list[dict[str, str]] = []
    try:
        check_network(graph, train=plan.trains)
    except RefusedNetwork as error:
        reasons.append(str(error))
        refused = [each.to_dict() for each in error.refusals]
    except UserError as error:
        reasons.append(str(error))
    try:
        if not plan.has_shards:
            check_schedule_kind(plan.schedule)
    except UserError as error:
        reasons.append(str(error))
    places = [cluster.device_names.index(stage.device) for stage in plan.stages]
    if not any(places == list(each.devices[: len(places)]) for each in device_chains(cluster)):
        reasons.append(
            "it takes devices in the order in which the cluster lists them, or in the reverse order"
        )
    return {
        "possible": not reasons,
        "reason": "; ".join(reasons) or None,
        "refused": refused,
    }


def print_plan(plan: Plan, cluster: ClusterSpec) -> None:
    """Print a plan as a table."""
    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    room = dict(zip(cluster.device_names, cluster.devices, strict=True))
    rows = []
    for i, stage in enumerate(plan.stages):
        memory = room[stage.device].memory_bytes
        rows.append(
            (
                i,
                stage.device,
                f"{stage.core.rows}x{stage.core.cols}",
                len(stage.layers),
                stage.layers[0],
                stage.layers[-1],
                count(stage.macs),
                scaled(stage.forward_s, "s"),
                scaled(stage.input_gradient_s, "s"),
                scaled(stage.weight_gradient_s, "s"),
                f"{scaled(stage.memory_bytes, 'B', 1024)} of {scaled(memory, 'B', 1024)}",
                scaled(stage.sends_bytes, "B"),
            )
        )
    headings = ("stage", "device", "array", "layers", "from", "to", "MACs", "F", "dX", "dW")
    columns = [
        Column(text, text in ("stage", "layers", "MACs", "F", "dX", "dW")) for text in headings
    ]
    columns += [Column("memory", True), Column("sends", True)]
    title = (
        f"{plan.network}, batch {plan.batch} in {plan.num_microbatches} micro-batches of "
        f"{plan.microbatch}, {plan.schedule} over {plan.cluster}"
    )
    print_table(columns, rows, title)
    told = plan.predicted
    speed = f"{scaled(told.minibatch_s, 's')} a mini-batch, {told.samples_per_s:,.1f} samples/s"
    word = "predicted" if told.level == "machine" else "estimated"
    print(f"{word}: {speed}, bubble {told.bubble_rate:.1%}")
    if plan.degrees is not None:
        print_degrees(plan)
    if not plan.has_shards and not plan.is_hybrid:
        print(f"cut: {'optimal' if plan.optimal else 'not proved optimal'} ({plan.reason})")


def print_degrees(plan: Plan) -> None:
    """Print the degrees of a plan, layers of equal degrees that follow together."""
    from itertools import groupby

    from fpgapipe.host.terminal.console import Column, print_table

    print()
    rows = []
    for degrees, each in groupby(plan.layer_degrees.items(), key=lambda item: item[1]):
        names = [name for name, _ in each]
        whole = degrees.num_devices == 1
        rows.append((names[0], names[-1], len(names), "whole" if whole else str(degrees)))
    columns = [Column("from"), Column("to"), Column("layers", True), Column("cut into parts by")]
    print_table(columns, rows)
