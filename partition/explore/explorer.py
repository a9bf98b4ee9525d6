"""Exploration: the fastest combination of schedule, micro-batch size, array shape and partition.

For every schedule, every division of the batch into micro-batches and every core worth trying, the
cost model gives the layers' costs, the partitioner cuts the network, and the event simulation times
the result. Combinations that do not fit on the devices are dropped. If none is left, the error says
which limit is exceeded and by how much.
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
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.graph import Graph
from fpgapipe.partition.cost.cost import (
    CoreConfig,
    CostModel,
    LayerCost,
    candidate_cores,
    core_fits,
    core_of,
)
from fpgapipe.partition.explore.candidate import (
    Candidate,
    DeviceChain,
    Stage,
    device_chain,
    time_candidate,
)
from fpgapipe.partition.explore.unit_problem import make_problem
from fpgapipe.partition.schedule.schedule_kinds import KINDS
from fpgapipe.partition.search import dag
from fpgapipe.partition.search.every_device import over_all_devices
from fpgapipe.partition.search.problem import (
    Objective,
    PlanError,
    ScheduleModel,
    schedule_model,
)

AUTO_SCHEDULES = ("1f1b-as", "fbp-as", "zb-h1", "zb-h2")
"""Schedules that are tried unless the user asks for one. Their transfers are concurrent with
compute."""

MAX_SPLITS = 9
"""Most numbers of micro-batches that are tried for a batch."""

MOST_TRIED = 4096
"""Most micro-batches that a batch is divided into unless the user asks for more. With so many, the
filling and draining of the pipeline hardly matter, and more would take minutes to simulate."""

CORES_TRIED = 3
"""Number of cores that are tried per board: those that run the whole network fastest."""


@dataclass(frozen=True)
class Request:
    """The question to the planner.

    Parameters
    ----------
    load : callable
        Returns the network for a number of samples.
    batch : int
        Samples in a mini-batch.
    cluster : ClusterSpec
    schedules : sequence of str
        Names of the schedules to try.
    num_microbatches : int, optional
        Number of micro-batches; several are tried if it is not given.
    objective : Objective
        Time that the partitioner minimises.
    array : (int, int), optional
        Rows and columns of every device's array; several arrays are tried if it is not given.
    free_order : bool
        Whether the devices may be cabled in another order; all links must be equal then.
    train : bool
        Whether to plan training; if false, there are only forward passes.
    all_devices : bool
        Whether every device gets a stage, even if fewer devices would be faster.
    scratchpad_bytes : int, optional
        Upper limit of each core's scratchpad, bytes.
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
    """The result of an exploration.

    Attributes
    ----------
    best : Candidate
        The fastest candidate.
    tried : tuple of Candidate
        The best candidate for each schedule and micro-batch size, fastest first.
    refused : tuple of str
        Reasons why other combinations are impossible.
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
        Called with the number of steps done and their total.

    Raises
    ------
    PlanError
        If nothing fits. The message names the limit, by how much and where it is exceeded, and
        what would help.
    """
    rows = device_chains(request.cluster)
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
            except PlanError as error:  # a core with one engine may fit where one with two does not
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
                    options.append(plan_one(request, graph, choice, row, kind, count))
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
            # The smallest micro-batches came nearest to fitting.
            raise max(errors, key=lambda each: each[0])[1]
        raise PlanError(refused[0] if refused else "nothing to try")
    found.sort(key=lambda each: each.steady_s)
    return Exploration(found[0], tuple(found), tuple(dict.fromkeys(refused)))


def _splits(request: Request) -> Iterator[int]:
    """Numbers of micro-batches to try: divisors of the batch, evenly sampled if they are many."""
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
    # Fewer micro-batches than devices leave most devices idle. Of those numbers, only the largest
    # is tried, and 1, for which a single device may be best.
    few = [n for n in divisors if n < least]
    few = sorted({*few[:1], *few[-1:]})
    many = [n for n in divisors if n >= least]
    if len(many) > MAX_SPLITS - len(few):
        picks = np.unique(np.linspace(0, len(many) - 1, MAX_SPLITS - len(few)).round().astype(int))
        many = [many[i] for i in picks]
    yield from few + many


def counts_tried(batch: int) -> list[int]:
    """Numbers of equal micro-batches into which a batch can be divided, up to `MOST_TRIED`."""
    return [n for n in range(1, min(batch, MOST_TRIED) + 1) if batch % n == 0]


def device_chains(cluster: ClusterSpec) -> list[DeviceChain]:
    """The device chain in the order given and, where it makes a difference, also reversed.

    Links are equally fast in both directions.
    """
    row = device_chain(cluster)
    back = device_chain(cluster, range(len(cluster.devices))[::-1])
    there = ([cluster.devices[i] for i in each.devices] for each in (row, back))
    same = len({tuple(devices) for devices in there}) == 1
    if same and row.link_bytes_per_s == back.link_bytes_per_s:
        return [row]
    return [row, back]


def _num_engines(kind: str) -> int:
    """GEMM engines per device: 2 if forward and backward passes each have an engine, else 1."""
    return 2 if kind == "fbp-as" else 1


def _core_choices(
    request: Request, model: CostModel, num_engines: int
) -> Iterator[dict[DeviceSpec, tuple[CoreConfig, list[LayerCost]]]]:
    """Combinations worth trying of a core, with the layers' costs, for each kind of device."""
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
            (core, model.costs(device, one_engine(core), train=request.train)) for core in cores
        ]
        options.sort(key=lambda option: sum(cost.total_s for cost in option[1]))
        ranked.append(options[: CORES_TRIED if len(kinds) == 1 else 2])
    for choice in itertools.product(*ranked):
        yield dict(zip(kinds, choice, strict=True))


def _what_does(device: DeviceSpec, num_engines: int, num_links: int) -> str:
    """The end of the message about an array that does not fit: one that does, if there is any."""
    try:
        cores = candidate_cores(device, num_engines, num_links)
    except ValueError:
        return "; nor does any other"
    return f"; {cores[0].rows}x{cores[0].cols} does"


def one_engine(core: CoreConfig) -> CoreConfig:
    """The core with the columns of all its engines in one engine.

    The event simulation expects the times of such an engine and divides it between two by itself.
    """
    return dataclasses.replace(core, cols=core.cols * core.num_engines, num_engines=1)


def plan_one(
    request: Request,
    graph: Graph,
    choice: dict[DeviceSpec, tuple[CoreConfig, list[LayerCost]]],
    row: DeviceChain,
    kind: str,
    count: int,
) -> Candidate:
    """Time the best partition for one schedule, number of micro-batches and choice of cores."""
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
            may_begin = (problem.device_compute_s.max(axis=1) > 0).tolist()
            parts = list(enumerate(over_all_devices(problem, may_begin)))
            found = dataclasses.replace(
                found, optimal=False, reason="over all devices, though fewer would be faster"
            )
    except ValueError as error:  # free order with unequal links, or too many sets of devices
        raise PlanError(str(error)) from None
    costs = [{cost.name: cost for cost in column} for column in columns]
    together = {names[0]: names for names in layers_together(graph)}
    stages = []
    done: list[LayerCost] = []
    for position, first_layers in parts:
        device = devices[position]
        own = tuple(
            costs[kinds.index(device)][name] for first in first_layers for name in together[first]
        )
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
    """The whole network on a single device, for each kind of device that can hold it.

    The partitioner always uses the first devices of the chain, and over slow links its model of a
    schedule may be more optimistic than the simulation. So single devices are timed as well.
    """
    for device, (core, costs) in choice.items():
        position = request.cluster.devices.index(device)
        stage = Stage(position, core, tuple(costs), 0.0, 0.0)
        timed = time_candidate(
            kind,
            request.batch // count,
            count,
            [stage],
            DeviceChain((position,), (), ()),
            train=request.train,
        )
        try:
            check_memory(timed, request.cluster)
        except PlanError:
            continue
        yield dataclasses.replace(timed, reason="one device, which the simulation finds faster")


def model_of(kind: str, count: int, num_devices: int, ratio: float) -> ScheduleModel:
    """The partitioner's model of a schedule, zero-bubble schedules included.

    Raises
    ------
    ScheduleError
        If there is no such schedule, or it cannot be planned.
    """
    if kind in ("zb-h1", "zb-h2", "zb-auto"):
        # They keep equally many micro-batches on every device; their period is that of 1F1B.
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
    """The model of a schedule; in inference, activations are dropped as soon as they were used."""
    model = model_of(kind, count, len(request.cluster.devices), ratio)
    if request.train:
        return model
    return dataclasses.replace(model, in_flight=lambda after: 1, weight_versions=lambda after: 1)


def _ratio(columns: Sequence[Sequence[LayerCost]]) -> float:
    """Ratio of backward to forward time of the whole network on the first kind of device."""
    forward = sum(cost.forward.seconds for cost in columns[0])
    backward = sum(cost.backward_s for cost in columns[0])
    return backward / forward if forward > 0 else 2.0


def cut_bytes(graph: Graph, before: Sequence[LayerCost]) -> tuple[float, float]:
    """Bytes of the boundary tensors of a cut per micro-batch: activations, and their gradients.

    Parameters
    ----------
    graph : Graph
    before : sequence of LayerCost
        All layers before the cut. A result that is read several stages later crosses every cut in
        between.
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
    """Check that the simulated peak of memory fits on each device.

    Raises
    ------
    PlanError
        If it does not. The message names the stage, the amount, and what would help.
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
