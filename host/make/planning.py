"""From a question about a network to its plan: strategies by name, and the fastest of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpgapipe.boards.cluster import Cluster
from fpgapipe.errors import UserError, nearest, shown
from fpgapipe.garbage import rare_collections
from fpgapipe.host.make.networks import Loader
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.hw.hls_models.spec.systolic import Form
from fpgapipe.jobs import results, starts_processes
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.best_plan import BestPlan, best_plan
from fpgapipe.partition.strategies.plan_hybrid import plan_given_stages
from fpgapipe.partition.strategies.plan_layerwise import plan_given_degrees
from fpgapipe.partition.strategies.registered import STRATEGIES, search
from fpgapipe.partition.strategies.strategy import Found
from fpgapipe.partition.strategies.strategy_file import StrategyFile
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from fpgapipe.partition.strategies.layerwise import LayerwisePlan
    from fpgapipe.partition.timeline.timeline import Timeline

MERGED = "merge"
"""Name that asks for a pipeline whose stages are found by merging layers."""

PIPELINES = ("pipeline", MERGED)
"""Strategies whose plans are pipelines."""

AUTO = "auto"
"""Name that asks for the fastest of a pipeline and the strategies that are tried."""

LEFT_OUT = 1.6
"""Seconds of the machine that an estimate is taken for, where it is compared with programs.

Programs of convolutional networks take 0.8 to 2.6 times as long as formulas say, those of small
transformers and LSTMs up to 4 times (``bench/bench_formulas.py``), so this is no bound.
"""


def strategy_names() -> list[str]:
    """All that may be asked for by name; anything else is the path of a file."""
    return [*PIPELINES, *STRATEGIES.names(), AUTO]


def tried_strategies() -> list[str]:
    """Names of the strategies that are tried besides a pipeline."""
    return [name for name in STRATEGIES.usable() if STRATEGIES[name].is_tried]


def board_strategies() -> tuple[str, ...]:
    """Names of the strategies that are tried for boards whose number of nodes is open."""
    rest = [name for name in STRATEGIES.usable() if STRATEGIES[name].suits_boards]
    return (PIPELINES[0], *rest)


def has_order(strategy: str) -> bool:
    """Whether plans of a strategy have a schedule that may be asked for."""
    return strategy in PIPELINES or (strategy in STRATEGIES and STRATEGIES[strategy].has_order)


def spec_of(cluster: Cluster | ClusterSpec) -> ClusterSpec:
    """The planner's view of a cluster."""
    return cluster.spec if isinstance(cluster, Cluster) else cluster


def form_of(cells: str | None) -> Form | None:
    """How cells are made, by its name; None for None, by which the planner chooses."""
    if cells is None:
        return None
    if cells not in [*Form]:
        raise UserError(f"cells must be {' or '.join(Form)}, not {shown(cells)}")
    return Form(cells)


def best_pipeline(
    request: Request, network: str, *, smallest: bool = False, progress: Progress = silent
) -> BestPlan:
    """The best plan of a pipeline; see `fpgapipe.partition.pricing.best_plan.best_plan`."""
    with progress() as display, phase("planning"), rare_collections():
        display.add_task("planning")
        return best_plan(request, network, smallest=smallest, on_step=display.count)


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
    names = strategy_names()
    if strategy not in names and not Path(strategy).exists():
        raise UserError(
            f"--strategy must be {', '.join(names)}, or a file, not {shown(strategy)}"
            f"{nearest(strategy, names)}"
        )
    if not has_order(strategy) and schedule not in free:
        raise UserError(
            f"--strategy {strategy} has no order of its own: leave out --schedule {schedule}, or "
            "take --strategy pipeline"
        )
    for name in STRATEGIES.usable():
        if schedule == STRATEGIES[name].kind:
            raise UserError(f"{schedule} is no order of a pipeline: take --strategy {name}")


def plan_shards(
    request: Request, network: str, strategy: str, progress: Progress = silent
) -> Found:
    """Find the fastest plan in which each device has all layers or parts of them.

    Parameters
    ----------
    request : Request
    network : str
        The name under which the network was loaded.
    strategy : str
        A name of `fpgapipe.partition.strategies.registered.STRATEGIES`, or the path of a file with
        degrees or stages.
    progress : callable

    Returns
    -------
    plan : Plan
    timeline : Timeline
    search : LayerwisePlan or None
        How degrees were found.
    """
    known = strategy in STRATEGIES
    given = None if known else StrategyFile.read(Path(strategy))
    with progress() as display, phase("planning"), rare_collections():
        display.add_task("planning")
        if given is None:
            return search(strategy, request, network, display.count)
        plan_given = plan_given_degrees if given.stages is None else plan_given_stages
        return *plan_given(request, network, given, display.count), None


@dataclass(frozen=True)
class Chosen:
    """The fastest plan of a strategy, and what else its search found.

    Attributes
    ----------
    strategy : str
    plan : Plan
    timeline : Timeline
    degrees : LayerwisePlan or None
        How degrees of layers were found, if they were searched.
    pipeline : BestPlan or None
        What else the search for a pipeline found.
    """

    strategy: str
    plan: Plan
    timeline: Timeline
    degrees: LayerwisePlan | None = None
    pipeline: BestPlan | None = None

    @property
    def fits(self) -> bool:
        """Whether its programs fit the memory of their boards, as far as that is known."""
        return self.pipeline is None or self.pipeline.fault is None


def plan_by(
    request: Request, network: str, strategy: str, progress: Progress, *, smallest: bool = False
) -> Chosen:
    """The fastest plan of one strategy; a pipeline has the smallest cores if that is asked for."""
    if strategy not in PIPELINES:
        return Chosen(strategy, *plan_shards(request, network, strategy, progress))
    found = best_pipeline(request, network, smallest=smallest, progress=progress)
    return Chosen(strategy, found.plan, found.timeline, pipeline=found)


def fastest_of(
    request: Request,
    network: str,
    strategies: Sequence[str],
    progress: Progress,
    *,
    smallest: bool = False,
) -> tuple[Chosen, dict[str, Plan], tuple[str, ...]]:
    """The fastest plan of several strategies; the first has no rivals on a single device.

    Parameters
    ----------
    request, network, progress
        As for `plan_shards`.
    strategies : sequence of str
    smallest : bool
        As for `plan_by`.

    Returns
    -------
    answer : Chosen
    compared : dict of str to Plan
        All plans that were found, by their kinds.
    refused : tuple of str
        Why other strategies have no plan.

    Raises
    ------
    UserError
        If none has a plan.
    """
    devices = len(request.cluster.devices)
    rivals = [
        strategy
        for strategy in (strategies[:1] if devices == 1 else strategies)
        if len(strategies) == 1
        or strategy not in STRATEGIES
        or devices >= STRATEGIES[strategy].least_devices
    ]
    travels = isinstance(request.load, Loader)  # and does not as parameters or INT8 need it
    if len(rivals) > 1 and travels and starts_processes():
        with progress() as display, phase("planning"), rare_collections():
            display.add_task("planning")
            asked = [(request, network, each, silent, smallest) for each in rivals]
            answers = results(_answer, asked, display.count, are_long=True)
    else:
        answers = [_answer(request, network, each, progress, smallest) for each in rivals]
    found = [each for each in answers if isinstance(each, Chosen)]
    refused = [
        (strategy, each)
        for strategy, each in zip(rivals, answers, strict=True)
        if isinstance(each, UserError)
    ]
    if not found:
        raise refused[0][1]
    return (
        min(found, key=lambda each: (not each.fits, rank(each.plan))),
        {each.plan.kind: each.plan for each in found},
        tuple(f"{strategy}: {error}" for strategy, error in refused),
    )


def _answer(
    request: Request, network: str, strategy: str, progress: Progress, smallest: bool
) -> Chosen | UserError:
    """What `plan_by` returns or raises."""
    try:
        return plan_by(request, network, strategy, progress, smallest=smallest)
    except UserError as error:
        return error


def rank(plan: Plan) -> float:
    """Key by which plans are compared: the seconds that a mini-batch is taken for."""
    return most_seconds(plan.predicted.minibatch_s, plan.predicted.level)


def most_seconds(predicted_s: float, level: str) -> float:
    """The seconds that a prediction of a level, ``machine`` or ``estimate``, is taken for."""
    return predicted_s * (1.0 if level == "machine" else LEFT_OUT)
