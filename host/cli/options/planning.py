"""Functions that ``plan``, ``build`` and ``compare`` share: from options to a planned network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.explore.explorer import Exploration, Request
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.timeline.timeline import Timeline


def loader(network: str) -> Callable[[int], Graph]:
    """Return a function that loads the network for a number of samples, and keeps the result.

    If the batch of the network is fixed and is not that number, the function raises an error with
    the reason.
    """
    import functools

    from fpgapipe.errors import UserError
    from fpgapipe.network.load import load_network

    @functools.cache
    def load(samples: int) -> Graph:
        try:
            graph = load_network(network, samples)
        except UserError as error:
            graph = load_network(network)
            if graph.batch is None:
                raise
            if graph.batch != samples:
                advice = f"take as many --micro-batches as make each of {graph.batch} samples"
                raise UserError(f"{error}; or {advice}") from None
        if graph.batch is None:
            raise UserError(f"{network} is a profile: use it with 'fpgapipe plan --profile'")
        return graph

    return load


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


def run_exploration(request: Request) -> Exploration:
    """Explore by formulas, then by prices of the machine, with a progress bar."""
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.explore.explorer import explore
    from fpgapipe.partition.pricing.machine_search import explore_remembered
    from fpgapipe.stopwatch import phase

    with progress() as display, phase("planning"):
        display.add_task("planning")

        def first() -> Exploration:
            found = explore(
                request, lambda done, total: display.update(completed=done, total=total)
            )
            display.update(description="pricing")
            return found

        return explore_remembered(request, first, "explore")


def check_strategy(strategy: str, schedule: str, free: tuple[str, ...]) -> None:
    """Refuse a schedule that does not go with a strategy.

    Parameters
    ----------
    strategy : str
        ``pipeline``, or another, whose order of tasks is always the same.
    schedule : str
        Name of the schedule that was asked for.
    free : tuple of str
        Names that do not ask for any in particular.

    Raises
    ------
    UserError
        If they contradict each other.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.partition.plan import DATA_PARALLEL

    if strategy != "pipeline" and schedule not in free:
        raise UserError(
            f"--strategy {strategy} has no pipeline: leave out --schedule {schedule}, or take "
            "--strategy pipeline"
        )
    if strategy == "pipeline" and schedule == DATA_PARALLEL:
        raise UserError(f"{DATA_PARALLEL} is no order of a pipeline: take --strategy data")


def plan_shared_batch(request: Request, network: str) -> tuple[Plan, Timeline]:
    """Find the fastest data-parallel plan, with a progress bar."""
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.strategies.data_parallel import plan_data_parallel
    from fpgapipe.stopwatch import phase

    with progress() as display, phase("planning"):
        display.add_task("planning")
        return plan_data_parallel(
            request, network, lambda done, total: display.update(completed=done, total=total)
        )


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
        if not plan.is_data_parallel:
            check_schedule_kind(plan.schedule)
    except UserError as error:
        reasons.append(str(error))
    names = [stage.device for stage in plan.stages]
    if names != list(cluster.device_names[: len(names)]):
        reasons.append(
            "it takes devices in the order in which the cluster lists them, the first first"
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
    if not plan.is_data_parallel:
        print(f"cut: {'optimal' if plan.optimal else 'not proved optimal'} ({plan.reason})")
