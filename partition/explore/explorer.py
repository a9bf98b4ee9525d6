"""Exploration: schedule x micro-batch size x array shape x partition, the fastest that fits.

For every schedule and every way to cut the batch, each core that is worth trying is costed, the
partitioner cuts the network, and the event simulation times what comes out. What a device cannot
hold is left out on the way; if nothing is left, the error says which limit is in the way and by how
much.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fpgapipe.errors import nearest
from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import (
    CoreConfig,
    CostModel,
    LayerCost,
    candidate_cores,
    core_fits,
    core_of,
)
from fpgapipe.partition.explore.candidate import Candidate, Row, Stage, row_of, time_candidate
from fpgapipe.partition.schedule.schedule_kinds import KINDS
from fpgapipe.partition.search import dag
from fpgapipe.partition.search.every_device import over_all_devices
from fpgapipe.partition.search.problem import (
    Objective,
    PartitionProblem,
    PlanError,
    ScheduleModel,
    schedule_model,
)

AUTO_SCHEDULES = ("1f1b-as", "fbp-as", "zb-h1", "zb-h2")
"""What is tried unless a schedule is asked for: those whose transfers run beside compute."""

MAX_SPLITS = 9
"""Ways to cut a batch into micro-batches that are tried."""

MOST_TRIED = 4096
"""Micro-batches that a batch is cut into at most, unless more are asked for: the ends of a pipeline
matter no longer then, and more take minutes to simulate."""

CORES_TRIED = 3
"""Cores of each board that are tried, those that run the whole network fastest."""


@dataclass(frozen=True)
class Request:
    """What to plan.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    batch : int
        Samples in a mini-batch.
    cluster : ClusterSpec
    schedules : sequence of str
    num_microbatches : int, optional
        Instead of trying several.
    objective : Objective
    array : (int, int), optional
        Rows and columns of every device's array, instead of trying several.
    free_order : bool
        Whether the devices may be cabled in another order; all links must be equal then.
    train : bool
        Whether there are backward passes and updates; else there are forward passes only.
    all_devices : bool
        Whether every device gets a stage, even if fewer would be faster.
    scratchpad_bytes : int, optional
        Of each core, at most.
    """

    load: Callable[[int], Graph]
    batch: int
    cluster: ClusterSpec
    schedules: Sequence[str] = AUTO_SCHEDULES
    num_microbatches: int | None = None
    objective: Objective = Objective.MINIBATCH
    array: tuple[int, int] | None = None
    free_order: bool = False
    train: bool = True
    all_devices: bool = False
    scratchpad_bytes: int | None = None


@dataclass(frozen=True)
class Exploration:
    """What was found.

    Attributes
    ----------
    best : Candidate
    tried : tuple of Candidate
        The best of each schedule and micro-batch size, fastest first.
    refused : tuple of str
        Why some could not be.
    """

    best: Candidate
    tried: tuple[Candidate, ...]
    refused: tuple[str, ...]


def explore(
    request: Request, on_step: Callable[[int, int], object] = lambda done, total: None
) -> Exploration:
    """Find the fastest way to train a network on a cluster.

    Parameters
    ----------
    request : Request
    on_step : function
        Called with the steps done and their total.

    Raises
    ------
    PlanError
        If nothing fits; with the limit, by how much, where, and what would help.
    """
    rows = _rows(request.cluster)
    splits = list(_splits(request))
    total = len(splits) * len(request.schedules)
    found: list[Candidate] = []
    refused: list[str] = []
    errors: list[tuple[int, PlanError]] = []
    for step, count in enumerate(splits):
        graph = request.load(request.batch // count)
        model = CostModel(graph)
        cores = {}
        too_large: dict[int, PlanError] = {}
        for number in {_num_engines(kind) for kind in request.schedules}:
            try:
                cores[number] = list(_core_choices(request, model, number))
            except PlanError as error:  # one engine may fit where two do not
                too_large[number] = error
                errors.append((0, error))
        for i, kind in enumerate(request.schedules):
            on_step(step * len(request.schedules) + i, total)
            if reason := too_large.get(_num_engines(kind)):
                refused.append(f"{kind}: {reason}")
                continue
            options = []
            for choice, row in itertools.product(cores[_num_engines(kind)], rows):
                try:
                    options.append(_plan_one(request, graph, choice, row, kind, count))
                    if not request.all_devices:
                        options += on_one_device(request, choice, kind, count)
                except PlanError as error:
                    errors.append((count, error))
                except ScheduleError as error:
                    refused.append(str(error))
            if options:
                found.append(min(options, key=lambda each: each.steady_s))
            elif errors:
                refused.append(f"{kind}, {count} micro-batches: {errors[-1][1]}")
    on_step(total, total)
    if not found:
        if errors:
            # The smallest micro-batches are the nearest to fitting.
            raise max(errors, key=lambda each: each[0])[1]
        raise PlanError(refused[0] if refused else "nothing to try")
    found.sort(key=lambda each: each.steady_s)
    return Exploration(found[0], tuple(found), tuple(dict.fromkeys(refused)))


def _splits(request: Request) -> Iterator[int]:
    """Numbers of micro-batches to try: divisors of the batch, those near the middle rather."""
    if request.num_microbatches is not None:
        if request.batch % request.num_microbatches:
            raise PlanError(
                f"a batch of {request.batch} cannot be cut into {request.num_microbatches} equal "
                "micro-batches"
            )
        yield request.num_microbatches
        return
    divisors = counts_tried(request.batch)
    least = len(request.cluster.devices)
    # Fewer micro-batches than devices leave most of them idle; try the largest of these as well,
    # and one, for which a single device may be best.
    few = [n for n in divisors if n < least]
    few = sorted({*few[:1], *few[-1:]})
    many = [n for n in divisors if n >= least]
    if len(many) > MAX_SPLITS - len(few):
        picks = np.unique(np.linspace(0, len(many) - 1, MAX_SPLITS - len(few)).round().astype(int))
        many = [many[i] for i in picks]
    yield from few + many


def counts_tried(batch: int) -> list[int]:
    """Numbers of equal micro-batches, `MOST_TRIED` at most, that a batch can be cut into."""
    return [n for n in range(1, min(batch, MOST_TRIED) + 1) if batch % n == 0]


def _rows(cluster: ClusterSpec) -> list[Row]:
    """The devices in the order given; where it makes a difference, also the other way round.

    Links are equally fast in both directions.
    """
    row = row_of(cluster)
    back = row_of(cluster, range(len(cluster.devices))[::-1])
    there = ([cluster.devices[i] for i in each.devices] for each in (row, back))
    same = len({tuple(devices) for devices in there}) == 1
    if same and row.link_bytes_per_s == back.link_bytes_per_s:
        return [row]
    return [row, back]


def _num_engines(kind: str) -> int:
    """GEMM engines of a device under a schedule: two where forward and backward have their own."""
    return 2 if kind == "fbp-as" else 1


def _core_choices(
    request: Request, model: CostModel, num_engines: int
) -> Iterator[dict[DeviceSpec, tuple[CoreConfig, list[LayerCost]]]]:
    """For each kind of device a core and the layers' costs, in every combination worth trying."""
    kinds = list(dict.fromkeys(request.cluster.devices))
    num_links = min(len(request.cluster.devices) - 1, 2)
    ranked = []
    for device in kinds:
        if request.array:
            try:
                core = core_of(
                    device,
                    *request.array,
                    num_engines,
                    num_links=num_links,
                    scratchpad_bytes=request.scratchpad_bytes,
                )
            except ValueError as error:
                raise PlanError(str(error)) from None
            broken = core_fits(device, core)
            if broken:
                raise PlanError(
                    f"an array of {core.rows}x{core.cols} does not fit {device.name}: "
                    f"{'; '.join(map(str, broken))}{_what_does(device, num_engines, num_links)}"
                )
            cores = [core]
        else:
            try:
                cores = candidate_cores(device, num_engines, num_links)
            except ValueError as error:
                raise PlanError(str(error)) from None
        options = [
            (core, model.costs(device, _one_engine(core), train=request.train)) for core in cores
        ]
        options.sort(key=lambda option: sum(cost.total_s for cost in option[1]))
        ranked.append(options[: CORES_TRIED if len(kinds) == 1 else 2])
    for choice in itertools.product(*ranked):
        yield dict(zip(kinds, choice, strict=True))


def _what_does(device: DeviceSpec, num_engines: int, num_links: int) -> str:
    """What to take in place of an array that does not fit."""
    try:
        cores = candidate_cores(device, num_engines, num_links)
    except ValueError:
        return "; nor does any other"
    return f"; {cores[0].rows}x{cores[0].cols} does"


def _one_engine(core: CoreConfig) -> CoreConfig:
    """The core with the arithmetic of its engines in one: what the event simulation has shared."""
    return dataclasses.replace(core, cols=core.cols * core.num_engines, num_engines=1)


def _plan_one(
    request: Request,
    graph: Graph,
    choice: dict[DeviceSpec, tuple[CoreConfig, list[LayerCost]]],
    row: Row,
    kind: str,
    count: int,
) -> Candidate:
    """The best partition under one schedule, cut and choice of cores, timed."""
    devices = [request.cluster.devices[i] for i in row.devices]
    kinds = list(choice)
    columns = [choice[device][1] for device in kinds]
    try:
        problem = make_problem(
            graph,
            columns,
            [kinds.index(device) for device in devices],
            [request.cluster.device_names[i] for i in row.devices],
            [float(device.memory_bytes) or np.inf for device in devices],
            row,
            _model_of(request, kind, count, _ratio(columns)),
            free_order=request.free_order,
        )
        found = dag.plan(problem, request.objective)
        parts = [(stage.devices[0], stage.layers) for stage in found.stages]
        if request.all_devices and len(parts) < len(devices):
            fused = [cost.fused_into is None and cost.total_s > 0 for cost in columns[0]]
            parts = list(enumerate(over_all_devices(problem, fused)))
            found = dataclasses.replace(
                found, optimal=False, reason="over all devices, though fewer would be faster"
            )
    except ValueError as error:  # devices in any order: unequal links, or too many ways
        raise PlanError(str(error)) from None
    costs = [{cost.name: cost for cost in column} for column in columns]
    stages = []
    done: list[LayerCost] = []
    for position, layers in parts:
        device = devices[position]
        own = tuple(costs[kinds.index(device)][name] for name in layers)
        done += own
        sends, returns = cut_bytes(graph, done)
        stages.append(Stage(row.devices[position], choice[device][0], own, sends, returns))
    timed = time_candidate(kind, request.batch // count, count, stages, row, train=request.train)
    check_memory(timed, request.cluster)
    return dataclasses.replace(
        timed, optimal=found.optimal, reason=found.reason, lower_bound_s=found.lower_bound_s
    )


def on_one_device(
    request: Request,
    choice: dict[DeviceSpec, tuple[CoreConfig, list[LayerCost]]],
    kind: str,
    count: int,
) -> Iterator[Candidate]:
    """The whole network on one device of each kind that holds it.

    The partitioner takes the first devices, and its model of a schedule may promise more of slow
    links than the simulation then finds.
    """
    for device, (core, costs) in choice.items():
        position = request.cluster.devices.index(device)
        stage = Stage(position, core, tuple(costs), 0.0, 0.0)
        timed = time_candidate(
            kind,
            request.batch // count,
            count,
            [stage],
            Row((position,), (), ()),
            train=request.train,
        )
        try:
            check_memory(timed, request.cluster)
        except PlanError:
            continue
        yield dataclasses.replace(timed, reason="one device, which the simulation finds faster")


def model_of(kind: str, count: int, num_devices: int, ratio: float) -> ScheduleModel:
    """What the partitioner has to know of a schedule, the zero-bubble ones included."""
    if kind in ("zb-h1", "zb-h2", "zb-auto"):
        # They keep as many micro-batches on every device; their period is that of 1F1B.
        places = 2 * num_devices - 1 if kind == "zb-h2" else num_devices
        base = schedule_model("1f1b-as", count, ratio)
        return dataclasses.replace(base, name=kind, in_flight=lambda after: min(places, count))
    if kind == "1f1b":
        return dataclasses.replace(schedule_model("1f1b-so", count, ratio), name=kind)
    try:
        return schedule_model(kind, count, ratio)
    except ValueError:
        if kind not in KINDS:
            kinds = (*KINDS, "zb-auto")
            raise ScheduleError(
                f"no schedule {kind!r}{nearest(kind, kinds)} (there are {', '.join(kinds)})"
            ) from None
        raise ScheduleError(f"{kind} is no schedule of plain stages that can be planned") from None


def _model_of(request: Request, kind: str, count: int, ratio: float) -> ScheduleModel:
    """Of inference, a micro-batch's features are dropped when they have been used."""
    model = model_of(kind, count, len(request.cluster.devices), ratio)
    if request.train:
        return model
    return dataclasses.replace(model, in_flight=lambda after: 1, weight_versions=lambda after: 1)


def _ratio(columns: Sequence[Sequence[LayerCost]]) -> float:
    """Backward over forward time of the whole network."""
    forward = sum(cost.forward.seconds for cost in columns[0])
    backward = sum(cost.backward_s for cost in columns[0])
    return backward / forward if forward > 0 else 2.0


def make_problem(
    graph: Graph,
    columns: Sequence[Sequence[LayerCost]],
    device_kinds: Sequence[int],
    device_names: Sequence[str],
    memory_bytes: Sequence[float],
    row: Row,
    model: ScheduleModel,
    *,
    free_order: bool = False,
) -> PartitionProblem:
    """Put costs into the partitioner's terms; `columns` has a list of costs for each kind."""
    names = tuple(cost.name for cost in columns[0])
    index = {name: i for i, name in enumerate(names)}
    first = columns[0]
    weights = np.array([float(cost.weight_bytes) for cost in first])
    state = np.array([float(cost.optimiser_bytes + cost.operand_bytes) for cost in first])
    factor = float(state.sum() / weights.sum()) if weights.sum() else 0.0
    edges = sorted(
        {
            (index[source], index[name])
            for name in names
            for source in graph.layers[name].inputs
            if source in index
        }
    )
    return PartitionProblem(
        names,
        np.array([[cost.forward.seconds for cost in column] for column in columns]).T,
        np.array([[cost.backward_s for cost in column] for column in columns]).T,
        np.array([float(cost.output_bytes) for cost in first]),
        weights,
        np.array([float(cost.activation_bytes) for cost in first]),
        tuple(sorted(edges)),
        tuple(device_names),
        np.array(device_kinds, np.int64),
        np.array(memory_bytes, np.float64),
        np.array(row.link_bytes_per_s, np.float64),
        np.array(row.link_latency_s, np.float64),
        model,
        factor,
        free_order,
    )


def cut_bytes(graph: Graph, before: Sequence[LayerCost]) -> tuple[float, float]:
    """Bytes that cross a cut for each micro-batch: features forth, gradients back.

    Parameters
    ----------
    graph : Graph
    before : sequence of LayerCost
        All layers before the cut. A result that is read several stages on crosses every cut on its
        way.
    """
    inside = {cost.name for cost in before}
    read_beyond = {
        name
        for layer in graph.layers.values()
        if layer.name not in inside
        for name in layer.inputs
        if name in inside
    }
    out = [cost for cost in before if cost.name in read_beyond]
    return float(sum(c.output_bytes for c in out)), float(sum(c.gradient_bytes for c in out))


def check_memory(candidate: Candidate, cluster: ClusterSpec) -> None:
    """Hold the simulated peak of memory against each device.

    Raises
    ------
    PlanError
        With the stage, the amount, and what would help.
    """
    for i, (stage, needed) in enumerate(zip(candidate.stages, candidate.memory_bytes, strict=True)):
        device = cluster.devices[stage.device]
        room = device.memory_bytes or np.inf
        if needed > room:
            over = needed - room
            fewer = math.ceil(over / stage.activation_bytes) if stage.activation_bytes else math.inf
            remedy = f"a device with {math.ceil(over):,} bytes more would help"
            if fewer < (needed - stage.state_bytes) / max(stage.activation_bytes, 1):
                remedy = f"{fewer} fewer micro-batches in flight or a smaller micro-batch would do"
            raise PlanError(
                f"stage {i} on {cluster.device_names[stage.device]} needs {needed:,.0f} bytes of "
                f"memory, {room:,.0f} usable, {math.ceil(over):,} too few; {remedy}"
            )
