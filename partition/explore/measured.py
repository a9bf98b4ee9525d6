"""Planning from measured times, on equal devices with equal links; stages may be replicated."""

from __future__ import annotations

import numpy as np

from fpgapipe.lowering.schedule.schedule import ScheduleError
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators import Measured
from fpgapipe.partition.cost.cost import measured_costs
from fpgapipe.partition.explore.candidate import DeviceChain
from fpgapipe.partition.explore.unit_problem import make_problem
from fpgapipe.partition.search import dag
from fpgapipe.partition.search.problem import Objective, Partition, schedule_model
from fpgapipe.partition.search.replicas import plan_replicated

MAX_DEVICES = 65_536


def plan_profile(
    graph: Graph,
    num_devices: int,
    *,
    bytes_per_s: float,
    straight: bool = False,
    objective: Objective = Objective.BOTTLENECK,
    num_microbatches: int = 1,
    schedule: str = "pipedream",
) -> Partition:
    """Cut a measured network into stages.

    Parameters
    ----------
    graph : Graph
        Profile: a network of `Measured` layers.
    num_devices : int
        Number of devices, all equal to the one that was measured.
    bytes_per_s : float
        Bandwidth of the link between any two devices.
    straight : bool
        Whether every stage has one device and transfers cost nothing. If false, a stage may have
        several devices, which add up their gradients in a ring.
    objective : Objective
        Time to minimise.
    num_microbatches : int
        Micro-batches of a mini-batch.
    schedule : str
        Name of the schedule.

    Raises
    ------
    NetworkError
        If the number of devices is out of range, or the network is no profile.
    ScheduleError
        If the schedule cannot be planned.
    PlanError
        If no partition keeps the limits.
    """
    if not 1 <= num_devices <= MAX_DEVICES:
        raise NetworkError(f"devices must be 1..{MAX_DEVICES}, not {num_devices}")
    if not all(isinstance(layer.operator, Measured) for layer in graph.layers.values()):
        raise NetworkError(f"{graph.name} is no profile: its layers have shapes, not times")
    costs = measured_costs(graph)
    forward = sum(cost.forward.seconds for cost in costs)
    ratio = sum(cost.backward_s for cost in costs) / forward if forward else 2.0
    try:
        model = schedule_model(schedule, num_microbatches, ratio, straight)
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    hops = num_devices - 1
    problem = make_problem(
        graph,
        [costs],
        [0] * num_devices,
        [f"device{i}" for i in range(num_devices)],
        [float(np.inf)] * num_devices,
        DeviceChain(tuple(range(num_devices)), (bytes_per_s,) * hops, (0.0,) * hops),
        model,
    )
    if straight:
        return dag.plan(problem, objective)
    return plan_replicated(problem, objective)
