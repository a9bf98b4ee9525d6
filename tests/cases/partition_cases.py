"""Random partition problems, and their answers by trying everything."""

import itertools
import math

import numpy as np

from fpgapipe.partition.schedule.schedule_kinds import model_of
from fpgapipe.partition.search.problem import PartitionProblem, ScheduleModel, Transfer

KINDS = ("gpipe", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so", "pipedream")


def schedule_model(
    kind: str, num_microbatches: int, backward_ratio: float = 2.0, straight: bool = False
) -> ScheduleModel:
    """Model of a kind of schedule that does not depend on the number of devices."""
    model = model_of(kind, num_microbatches, 1, backward_ratio)
    return model.straight if straight else model


def chain(times_s, num_devices, schedule=None, **fields):
    """A chain on equal devices with no limits; times are forward plus backward, halved."""
    times = np.asarray(times_s, float)
    if times.ndim == 1:
        times = times[:, None]
    count = len(times)
    values = {
        "names": tuple(f"layer{i}" for i in range(count)),
        "forward_s": times / 2,
        "backward_s": times / 2,
        "output_bytes": np.zeros(count),
        "weight_bytes": np.zeros(count),
        "activation_bytes": np.zeros(count),
        "edges": tuple((i, i + 1) for i in range(count - 1)),
        "device_names": tuple(f"u280[{i}]" for i in range(num_devices)),
        "device_kinds": np.zeros(num_devices, np.int64),
        "memory_bytes": np.full(num_devices, np.inf),
        "link_bytes_per_s": np.full(num_devices - 1, np.inf),
        "link_latency_s": np.zeros(num_devices - 1),
        "schedule": schedule or schedule_model("1f1b-as", 8),
    }
    arrays = {k: np.asarray(v, float) if isinstance(v, list) else v for k, v in fields.items()}
    return PartitionProblem(**{**values, **arrays})


def random_problem(rng, *, is_chain=True, max_layers=6, max_devices=4):
    """Small integers, so that ties happen; limits that bind about half of the time."""
    count = int(rng.integers(1, max_layers + 1))
    devices = int(rng.integers(1, max_devices + 1))
    kinds = int(rng.integers(1, 4))
    pairs = itertools.combinations(range(count), 2)
    edges = [(i, j) for i, j in pairs if (is_chain and j == i + 1) or rng.random() < 0.3]
    free = bool(rng.random() < 0.4)
    bandwidth = rng.choice([0.0, 1.0, 2.0, 8.0, np.inf], devices - 1, p=[0.1, 0.2, 0.3, 0.2, 0.2])
    latency = rng.integers(0, 2, devices - 1).astype(float)
    if devices > 1 and (free or rng.random() < 0.5):
        bandwidth[:], latency[:] = bandwidth[0], latency[0]
    memory = np.full(devices, np.inf)
    if rng.random() < 0.6:
        memory = rng.choice([15.0, 30.0, 60.0, 120.0], devices)
        if rng.random() < 0.3:
            memory[:] = memory[0]
    schedule = schedule_model(
        str(rng.choice(KINDS)), int(rng.integers(1, 9)), straight=bool(rng.random() < 0.2)
    )
    return chain(
        np.ones((count, kinds)),
        devices,
        schedule,
        forward_s=rng.integers(0, 9, (count, kinds)).astype(float),
        backward_s=rng.integers(1, 9, (count, kinds)).astype(float),
        output_bytes=rng.integers(0, 9, count),
        weight_bytes=rng.integers(0, 6, count),
        activation_bytes=rng.integers(0, 6, count),
        edges=tuple(edges),
        device_kinds=rng.integers(0, kinds, devices),
        memory_bytes=memory,
        link_bytes_per_s=bandwidth,
        link_latency_s=latency,
        free_order=free,
    )


def stage_lists(problem):
    """All ways to cut the layers into non-empty stages that only read earlier ones."""
    count = problem.num_layers
    for num_stages in range(1, min(count, problem.num_devices) + 1):
        for where in itertools.product(range(num_stages), repeat=count):
            if len(set(where)) < num_stages:
                continue
            if any(where[source] > where[target] for source, target in problem.edges):
                continue
            yield [[i for i in range(count) if where[i] == s] for s in range(num_stages)]


def device_lists(problem, num_stages):
    """All ways to give devices to stages."""
    if problem.free_order:
        yield from itertools.permutations(range(problem.num_devices), num_stages)
    else:
        yield tuple(range(num_stages))


def times(problem, stages, devices):
    """Period and mini-batch time, from the definition; None if a limit is broken."""
    schedule = problem.schedule
    period = total = 0.0
    for s, (layers, device) in enumerate(zip(stages, devices, strict=True)):
        kind = problem.device_kinds[device]
        after = len(stages) - 1 - s
        weights = problem.weight_bytes[layers].sum()
        features = problem.activation_bytes[layers].sum()
        kept = problem.state[layers].sum() + weights * (schedule.weight_versions(after) - 1)
        if kept + features * schedule.in_flight(after) > problem.memory_bytes[device]:
            return None
        transfer = _transfer(problem, stages, s)
        if math.isinf(transfer):
            return None
        time = sum(problem.forward_s[i, kind] + problem.backward_s[i, kind] for i in layers)
        if schedule.transfer is Transfer.BLOCK:
            time += schedule.transfers_per_period * transfer
        if schedule.transfer is Transfer.OVERLAP:
            period = max(period, schedule.transfers_per_period * transfer)
        period = max(period, time)
        total += schedule.fill_factor * time + schedule.fill_transfers * transfer
    return period, total + schedule.steady_periods * period


def _transfer(problem, stages, s):
    before = {i for layers in stages[: s + 1] for i in layers}
    sources = {i for i, j in problem.edges if i in before and j not in before}
    crossing = sum(problem.output_bytes[i] for i in sources)
    if not crossing or problem.schedule.transfer is Transfer.NONE:
        return 0.0
    if problem.link_bytes_per_s[s] == 0:
        return math.inf
    return problem.link_latency_s[s] + crossing / problem.link_bytes_per_s[s]


def brute_force(problem):
    """Smallest period and smallest mini-batch time, or None if nothing fits."""
    found = [
        result
        for stages in stage_lists(problem)
        for devices in device_lists(problem, len(stages))
        if (result := times(problem, stages, devices)) is not None
    ]
    if not found:
        return None
    return min(each[0] for each in found), min(each[1] for each in found)


def check_stages(problem, answer):
    """The answer's stages are what it says they are."""
    index = {name: i for i, name in enumerate(problem.names)}
    stages = [[index[name] for name in stage.layers] for stage in answer.stages]
    assert sorted(i for layers in stages for i in layers) == list(range(problem.num_layers))
    where = {i: s for s, layers in enumerate(stages) for i in layers}
    assert all(where[i] <= where[j] for i, j in problem.edges)
    devices = [stage.devices[0] for stage in answer.stages]
    assert len(set(devices)) == len(devices)
    if not problem.free_order:
        assert devices == list(range(len(devices)))
    measured = times(problem, stages, devices)
    assert measured is not None, "a limit is broken"
    np.testing.assert_allclose((answer.period_s, answer.minibatch_time_s), measured, rtol=1e-12)
