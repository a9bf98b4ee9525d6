"""The cut that the event simulation finds fastest, against every cut simulated."""

import dataclasses
import itertools

import numpy as np
import pytest

from fpgapipe.partition.cost.cost import LayerCost, PassCost
from fpgapipe.partition.explore.candidate import DeviceChain, Stage, time_candidate
from fpgapipe.partition.explore.fastest_cut import Question, find_fastest
from fpgapipe.partition.schedule.schedule_kinds import make_schedule, model_of
from fpgapipe.partition.search.path_bounds import PathBounds
from fpgapipe.partition.search.problem import PartitionProblem
from fpgapipe.partition.timeline.replay import Replay
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

KINDS = ("gpipe", "1f1b-as", "zb-h1", "fbp-as", "1f1b-sno", "1f1b-so", "zb-h2", "pipedream")


def cost(rng, name):
    size, weights, kept = (int(each) for each in rng.integers(1, 100, 3))
    passes = [PassCost(float(seconds)) for seconds in 10 ** rng.uniform(-1.5, 0, 4)]
    return LayerCost(
        name, *passes, size, size // 2, weights, 3 * weights, weights, kept, ((name, kept),)
    )


class Case:
    """A random chain of layers on a chain of devices, where every cut is simulated."""

    def __init__(self, seed, kind, *, layers=(2, 8), tight=False, edges=None, mixed=False):
        rng = np.random.default_rng(seed)
        self.kind, self.layers = kind, int(rng.integers(*layers))
        self.devices, self.count = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        names = [f"l{i}" for i in range(self.layers)]
        self.columns = [[cost(rng, name) for name in names] for _ in range(1 + mixed)]
        for one, other in zip(self.columns[0], self.columns[-1], strict=True):
            kept = {field: getattr(one, field) for field in ("output_bytes", "gradient_bytes")}
            kept |= {field: getattr(one, field) for field in ("activation_bytes", "kept")}
            index = self.columns[-1].index(other)
            self.columns[-1][index] = dataclasses.replace(other, **kept)
        self.kinds = rng.integers(0, 1 + mixed, self.devices)
        self.rates = tuple(float(each) for each in 10 ** rng.uniform(1, 4, self.devices - 1))
        self.latency = float(rng.choice([0, 0.1]))
        whole = sum(
            c.optimiser_bytes + c.operand_bytes + 2 * c.activation_bytes for c in self.first
        )
        self.memory = np.full(self.devices, np.inf)
        if tight:
            self.memory = whole * rng.uniform(0.3, 1.2, self.devices)
        self.edges = edges or tuple((i, i + 1) for i in range(self.layers - 1))

    @property
    def first(self):
        return self.columns[0]

    @property
    def problem(self):
        def table(name):
            return np.array([[getattr(c, name) for c in self.first]], float).T[:, 0]

        def seconds(*names):
            rows = [
                [sum(getattr(c, name).seconds for name in names) for c in column]
                for column in self.columns
            ]
            return np.array(rows).T

        return PartitionProblem(
            tuple(c.name for c in self.first),
            seconds("forward"),
            seconds("input_gradient", "weight_gradient"),
            table("output_bytes"),
            table("weight_bytes"),
            table("activation_bytes"),
            self.edges,
            tuple(f"d{i}" for i in range(self.devices)),
            self.kinds,
            self.memory,
            np.array(self.rates),
            np.full(self.devices - 1, self.latency),
            model_of(self.kind, self.count, self.devices, 2.0),
        )

    def timed(self, stages):
        """Time of stages, given as lists of layers, and whether they fit; without the search."""
        done, passes, sent = set(), [], []
        for device, members in enumerate(stages):
            own = [self.columns[self.kinds[device]][i] for i in members]
            fields = ("forward", "input_gradient", "weight_gradient", "update")
            passes.append([sum(getattr(c, field).seconds for c in own) for field in fields])
            done |= set(members)
            crossing = {s for s, t in self.edges if s in done and t not in done}
            sent.append([sum(self.first[i].output_bytes for i in crossing)])
            sent[-1].append(sum(self.first[i].gradient_bytes for i in crossing))
        activations, gradients = np.zeros((2, len(stages)))
        for i, rate in enumerate(self.rates[: len(stages) - 1]):
            activations[i], gradients[i + 1] = np.array(sent[i]) / rate
        latency = self.latency if len(stages) > 1 else 0.0
        times = StageTimes(*np.array(passes).T, activations, gradients, latency)
        timeline = simulate(make_schedule(self.kind, len(stages), self.count), times)
        kept = np.array([sum(self.first[i].activation_bytes for i in each) for each in stages])
        needed = np.array(timeline.peak_activations(kept.astype(float)))
        for device, members in enumerate(stages):
            own = [self.columns[self.kinds[device]][i] for i in members]
            needed[device] += sum(c.optimiser_bytes + c.operand_bytes for c in own)
        return timeline.makespan_s, bool((needed <= self.memory[: len(stages)]).all())

    def all_cuts(self):
        """Every division of the layers into consecutive stages."""
        for stages in range(1, min(self.devices, self.layers) + 1):
            for chosen in itertools.combinations(range(1, self.layers), stages - 1):
                edges = (0, *chosen, self.layers)
                yield [list(range(a, b)) for a, b in itertools.pairwise(edges)]

    def least(self):
        times = [seconds for seconds, fits in map(self.timed, self.all_cuts()) if fits]
        return min(times, default=None)

    @property
    def question(self):
        units = [[[layer] for layer in column] for column in self.columns]
        return Question(self.problem, units, self.kind)

    def find(self, **more):
        def fits(parts):
            return self.timed([[int(name[1:]) for name in names] for _, names in parts])[1]

        question = self.question
        return find_fastest(question, [], fits=fits, **more)


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("tight", [False, True])
def test_no_cut_is_faster(kind, tight):
    for seed in range(12):
        case = Case(seed, kind, tight=tight, mixed=seed % 3 == 0)
        answer, least = case.find(), case.least()
        if least is None:
            assert answer is None
            continue
        assert answer.optimal, answer.reason
        assert answer.minibatch_s == pytest.approx(least, rel=1e-9), seed
        assert answer.lower_bound_s <= least * (1 + 1e-9)


def test_no_cut_of_an_asynchronous_pipeline_is_faster():
    """Its mini-batch is timed in the steady state: what the busiest engine or link does."""
    for seed in range(10):
        case = Case(seed, "pipedream")
        chain = DeviceChain(tuple(range(case.devices)), case.rates, (case.latency,) * 4)
        times = []
        for members in case.all_cuts():
            stages = []
            for device, own in enumerate(members):
                last = case.first[own[-1]] if own[-1] < case.layers - 1 else None
                sends = (last.output_bytes, last.gradient_bytes) if last else (0, 0)
                stages.append(Stage(device, None, tuple(case.first[i] for i in own), *sends))
            times.append(time_candidate("pipedream", None, case.count, stages, chain).steady_s)
        answer = case.find()
        assert answer.optimal
        assert answer.minibatch_s == pytest.approx(min(times), rel=1e-9)


def downsets(num_layers, edges):
    """All sets of layers that contain what their members need."""
    needs = [{s for s, t in edges if t == layer} for layer in range(num_layers)]
    for size in range(num_layers + 1):
        for chosen in itertools.combinations(range(num_layers), size):
            if all(needs[layer] <= set(chosen) for layer in chosen):
                yield set(chosen)


def divisions(sets, done, left):
    """All divisions of the layers that are not done into at most so many stages."""
    if done == sets[-1]:
        yield []
    elif left:
        for more in sets:
            if done < more:
                rest = divisions(sets, more, left - 1)
                yield from ([sorted(more - done), *each] for each in rest)


def test_every_downset_of_a_network_with_branches_is_a_cut():
    """Two branches of two layers: stages may hold one branch, or parts of both."""
    edges = ((0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5))
    sets = list(downsets(6, edges))
    for seed in range(10):
        case = Case(seed, "1f1b-as", layers=(6, 7), edges=edges)
        least = min(case.timed(each)[0] for each in divisions(sets, set(), case.devices))
        answer = case.find()
        assert answer.optimal
        assert answer.minibatch_s == pytest.approx(least, rel=1e-9)


def test_a_search_that_is_stopped_has_a_bound_and_a_gap():
    for seed in (1, 4, 5):
        case = Case(seed, "1f1b-as", layers=(7, 9))
        case.devices, case.rates = 4, (100.0,) * 3
        case.kinds, case.memory = np.zeros(4, int), np.full(4, np.inf)
        answer = case.find(max_simulations=4)
        least = case.least() * (1 + 1e-9)
        assert answer.lower_bound_s <= least <= answer.minibatch_s * (1 + 1e-6)
        assert answer == case.find(max_simulations=4)  # equal input, equal answer
        if not answer.optimal:
            assert "above the least possible" in answer.reason


def test_zb_auto_has_a_bound_for_every_order():
    case = Case(3, "zb-h1")
    fixed = case.find()
    case.kind = "zb-auto"
    free = case.find()
    assert free.lower_bound_s <= free.minibatch_s <= fixed.minibatch_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_paths_bound_the_simulation(kind):
    """The path found for some durations takes their time, and no more than that of others."""
    rng = np.random.default_rng(1)
    for stages, count in ((1, 1), (3, 2), (4, 7)):
        schedule = make_schedule(kind, stages, count)
        replay = Replay(schedule, 0.25)
        tables = rng.uniform(0, 1, (6, 6, stages))
        paths = [*replay.lane_paths(), *(replay.longest(table)[1] for table in tables)]
        for table in tables:
            seconds, path = replay.longest(table)
            assert path.seconds(table) == pytest.approx(seconds, rel=1e-12)
            assert seconds == simulate(schedule, StageTimes(*table, 0.25)).makespan_s
            assert all(each.seconds(table) <= seconds * (1 + 1e-12) for each in paths)


def test_compiled_and_plain_simulation_are_equal(monkeypatch):
    replay = Replay(make_schedule("zb-h2", 3, 5), 0.1)
    table = np.random.default_rng(2).uniform(0, 1, (6, 3))
    plain = replay.minibatch_s(table)
    monkeypatch.setattr("fpgapipe.partition.timeline.replay.COMPILED_FROM_STEPS", 0)
    assert replay.minibatch_s(table) == plain


def test_bounds_of_stages_hold_for_every_cut_with_them():
    case = Case(7, "1f1b-as", layers=(6, 7))
    times = case.question.times
    stages = 3
    bounds = PathBounds(times, (0,) * stages, (50.0,) * stages)
    replay = Replay(make_schedule("1f1b-as", stages, 4), 0.1)
    cuts = [(*chosen, 6) for chosen in itertools.combinations(range(1, 6), 2)]
    for cut in cuts[::3]:
        bounds.add(replay.longest(bounds.durations(cut))[1])
    bounds.open[:] = True  # nothing is closed, so every stage has a bound
    for cut in cuts:
        seconds = replay.minibatch_s(bounds.durations(cut))
        assert bounds.lengths(np.array([cut])).max() <= seconds * (1 + 1e-12)
        for stage, (begin, end) in enumerate(itertools.pairwise((0, *cut))):
            assert bounds.bound_s[stage, begin, end] <= seconds * (1 + 1e-12)


def test_compiled_and_plain_bounds_are_equal(monkeypatch):
    """No bit of a bound differs, nor the order in which cuts are extended."""
    case = Case(7, "1f1b-as", layers=(9, 10))
    stages = 4
    replay = Replay(make_schedule("1f1b-as", stages, 4), 0.1)
    cuts = [(*chosen, 9) for chosen in itertools.combinations(range(1, 9), 3)]
    found = []
    for first in (0, np.inf):
        monkeypatch.setattr("fpgapipe.partition.search.path_bounds.COMPILED_FROM_CELLS", first)
        bounds = PathBounds(case.question.times, (0,) * stages, (50.0,) * stages)
        for cut in cuts[::5]:
            bounds.add(replay.longest(bounds.durations(cut))[1])
        least, _, rest = bounds.least()
        bounds.close(1.5 * least)
        made = np.zeros((1, 0), np.int64)
        parts = [bounds.bound_s, *bounds._behind, rest]
        for _ in range(stages):
            made, values = bounds.extensions(made, 1.4 * least, rest)
            parts += [made, values]
        found.append(parts)
    assert len(found[0][-1]) > 3
    for compiled, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, plain)


def test_a_search_without_an_admissible_cut_finds_nothing():
    case = Case(0, "gpipe")
    case.memory = np.zeros(case.devices)
    assert case.find() is None


def test_equal_searches_give_equal_answers():
    case = Case(11, "fbp-as", layers=(8, 9))
    assert case.find() == case.find()
