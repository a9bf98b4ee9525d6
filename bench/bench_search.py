"""The cut that the search finds against all cuts tried; prints one JSON object.

Random chains of layers with uneven times, uneven transfers, two kinds of devices in some and memory
limits in others are cut by the search. Then the event simulation times every cut into every
number of stages that the memory allows, and the least of these times is compared.
"""

import argparse
import functools
import itertools
import json
import time

import numpy as np

from fpgapipe.partition.cost.cost import NO_PASS, LayerCost, PassCost
from fpgapipe.partition.explore.candidate import DeviceChain, Stage, time_candidate
from fpgapipe.partition.explore.fastest_cut import Question, find_fastest
from fpgapipe.partition.schedule.schedule_kinds import model_of
from fpgapipe.partition.search.problem import TOLERANCE, PartitionProblem

SCHEDULES = ("gpipe", "1f1b-as", "zb-h1", "fbp-as", "1f1b-sno")
MAX_LAYERS = 10
MAX_DEVICES = 5


def layer(rng, name, slower):
    """A layer with random times, a hundredfold between the shortest and the longest."""
    forward = 10 ** rng.uniform(-2, 0)
    passes = forward * np.array([1, *rng.uniform(0.3, 2, 2)]) * slower
    size, weights = (int(each) for each in rng.integers(0, 1000, 2))
    kept = int(rng.integers(1, 1000))
    return LayerCost(
        name,
        *(PassCost(float(seconds)) for seconds in passes),
        update=PassCost(float(rng.uniform(0, 0.3) * forward)) if weights else NO_PASS,
        output_bytes=size,
        gradient_bytes=size if rng.random() < 0.8 else 0,
        weight_bytes=weights,
        optimiser_bytes=3 * weights,
        operand_bytes=weights // 2,
        activation_bytes=kept,
        kept=((name, kept),),
    )


def problem(seed, kind):
    """A chain on devices in a chain: the problem, its costs, and the links."""
    rng = np.random.default_rng(seed)
    num_layers = int(rng.integers(1, MAX_LAYERS + 1))
    num_devices = int(rng.integers(1, MAX_DEVICES + 1))
    count = int(rng.choice([1, 2, 3, 4, 6, 8, 12]))
    names = [f"layer{i}" for i in range(num_layers)]
    columns = []
    for _ in range(2 if rng.random() < 0.3 else 1):
        state = np.random.default_rng(seed + 1000)  # the same sizes on every kind of device
        slower = 1.0 if not columns else float(rng.uniform(0.5, 2))
        columns.append([layer(state, name, slower) for name in names])
    hops = num_devices - 1
    rate = 10 ** rng.uniform(2, 6)  # from transfers that dominate to transfers that hardly count
    latency = float(rng.choice([0.0, 0.01, 0.2]))
    chain = DeviceChain(
        tuple(range(num_devices)),
        tuple(float(each) for each in rate * rng.uniform(0.5, 2, hops)),
        (latency,) * hops,
    )
    needed = sum(c.optimiser_bytes + c.operand_bytes + c.activation_bytes for c in columns[0])
    memory = np.full(num_devices, np.inf)
    if rng.random() < 0.4:
        memory = needed * rng.uniform(0.3, 2.5) * rng.uniform(0.7, 1.3, num_devices)
    first = columns[0]
    stated = PartitionProblem(
        tuple(names),
        np.array([[c.forward.seconds for c in column] for column in columns]).T,
        np.array([[c.backward_s for c in column] for column in columns]).T,
        np.array([float(c.output_bytes) for c in first]),
        np.array([float(c.weight_bytes) for c in first]),
        np.array([float(c.activation_bytes) for c in first]),
        tuple((i, i + 1) for i in range(num_layers - 1)),
        tuple(f"device{i}" for i in range(num_devices)),
        rng.integers(0, len(columns), num_devices),
        memory,
        np.array(chain.link_bytes_per_s),
        np.array(chain.link_latency_s),
        model_of(kind, count, num_devices, 2.0),
    )
    return stated, columns, chain


def candidate(stated, columns, chain, kind, parts):
    """A cut in the event simulation."""
    stages = []
    index = {name: i for i, name in enumerate(stated.names)}
    for device, names in parts:
        costs = columns[stated.device_kinds[device]]
        own = tuple(costs[index[name]] for name in names)
        last = index[names[-1]] == stated.num_layers - 1
        sends = 0.0 if last else float(own[-1].output_bytes)
        returns = 0.0 if last else float(own[-1].gradient_bytes)
        stages.append(Stage(device, None, own, sends, returns))
    return time_candidate(kind, None, stated.schedule.num_microbatches, stages, chain)


def keeps_memory(stated, columns, chain, kind, parts):
    """Whether the simulated peaks of a cut fit its devices."""
    timed = candidate(stated, columns, chain, kind, parts)
    rooms = stated.memory_bytes[: len(parts)]
    return bool((np.array(timed.memory_bytes) <= rooms).all())


def exhaustive(stated, columns, chain, kind):
    """The least time of all cuts that the memory allows; None if it allows none."""
    times = []
    places = range(1, stated.num_layers)
    for stages in range(1, min(stated.num_layers, stated.num_devices) + 1):
        for chosen in itertools.combinations(places, stages - 1):
            ends = (*chosen, stated.num_layers)
            starts = (0, *chosen)
            parts = [
                (device, stated.names[a:b])
                for device, (a, b) in enumerate(zip(starts, ends, strict=True))
            ]
            timed = candidate(stated, columns, chain, kind, parts)
            if (np.array(timed.memory_bytes) <= stated.memory_bytes[:stages]).all():
                times.append(timed.minibatch_s)
    return min(times, default=None), len(times)


def measure(kind, chains):
    """How the search does on a number of chains under one schedule."""
    equal = proved = nothing = 0
    worst, simulations, tried = 1.0, [], 0
    searching_s = trying_s = 0.0
    for seed in range(chains):
        stated, columns, chain = problem(seed, kind)

        begin = time.perf_counter()
        question = Question(stated, [[[c] for c in column] for column in columns], kind)
        fits = functools.partial(keeps_memory, stated, columns, chain, kind)
        answer = find_fastest(question, [], fits=fits)
        searching_s += time.perf_counter() - begin
        begin = time.perf_counter()
        least, number = exhaustive(stated, columns, chain, kind)
        trying_s += time.perf_counter() - begin
        tried += number
        if answer is None or least is None:
            same = answer is None and least is None
            equal, nothing, proved = equal + same, nothing + same, proved + same
            continue
        found = candidate(stated, columns, chain, kind, answer.parts).minibatch_s
        ratio = found / least
        equal += abs(ratio - 1) <= TOLERANCE
        proved += answer.optimal
        assert answer.lower_bound_s <= least * (1 + TOLERANCE), (kind, seed)
        worst = max(worst, ratio)
        simulations.append(answer.simulations)
    return {
        "schedule": kind,
        "chains": chains,
        "equal": equal,
        "proved_optimal": proved,
        "fit_nowhere": nothing,
        "worst_ratio": worst,
        "simulations_mean": round(float(np.mean(simulations)), 1),
        "simulations_most": max(simulations),
        "cuts_tried_exhaustively": tried,
        "search_s": round(searching_s, 2),
        "exhaustive_s": round(trying_s, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=200)
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES)
    arguments = parser.parse_args()
    rows = [measure(kind, arguments.chains) for kind in arguments.schedules]
    print(json.dumps({"layers": MAX_LAYERS, "devices": MAX_DEVICES, "schedules": rows}, indent=2))


if __name__ == "__main__":
    main()
