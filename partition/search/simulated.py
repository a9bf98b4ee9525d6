"""The cut whose mini-batch is the fastest in the event simulation, with a proof or a bound.

The search alternates between bounds and simulations. The bounds (`path_bounds`) say which cut could
be the fastest; it is simulated, and the path that decides its time becomes another bound. What the
bounds leave open is then enumerated, the most promising first, until every cut is either simulated
or bounded by the best time found: then the best cut is proved optimal. If the search reaches its
limit before, it reports the least bound of what is left. The limits are numbers of simulations and
of cuts, not seconds, so equal input gives an equal answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fpgapipe.partition.search.path_bounds import Bools, Cut, CutTimes, Floats, Ints, PathBounds
from fpgapipe.partition.search.problem import TOLERANCE
from fpgapipe.partition.timeline.replay import UPDATE, Replay

MAX_SIMULATIONS = 3000
"""Default limit of simulations of a search."""
MAX_EXTENSIONS = 3_000_000
"""Default limit of partial cuts that a search enumerates."""
MAX_PATHS = 64
"""Most paths from which the bounds of a number of stages follow."""
ROUNDS = 40
"""Most cuts of a number of stages that are simulated because they have the least bound."""
CHUNK = 1024
"""Partial cuts that are extended at a time."""
NEIGHBOURS = 4
"""Other places that are tried for one boundary of the best cut."""


@dataclass(frozen=True)
class Lineup:
    """Devices that may take the stages, in order, and the schedule for as many.

    Attributes
    ----------
    devices : tuple of int
        Device of each stage.
    kinds : tuple of int
        Kind of each of these devices.
    link_bytes_per_s : tuple of float
        Rates of the links between them; 0 if there is none.
    replay : Replay
        Simulation of the schedule.
    fits : bool array, shape (stages, cuts, cuts), optional
        Whether each stage's device has the memory for the layers between two cuts.
    """

    devices: tuple[int, ...]
    kinds: tuple[int, ...]
    link_bytes_per_s: tuple[float, ...]
    replay: Replay
    fits: Bools | None = None


@dataclass(frozen=True)
class Fastest:
    """The fastest cut found.

    Attributes
    ----------
    lineup : Lineup
        Devices of its stages.
    cut : tuple of int
        For each stage, the number of the cut that ends it.
    minibatch_s : float
        Simulated time of a mini-batch; of an asynchronous schedule, in the steady state.
    lower_bound_s : float
        Time below which no cut can be.
    simulations : int
        Number of simulations of the search.
    """

    lineup: Lineup
    cut: Cut
    minibatch_s: float
    lower_bound_s: float
    simulations: int

    @property
    def optimal(self) -> bool:
        """Whether the time equals the bound, apart from rounding."""
        return self.minibatch_s - self.lower_bound_s <= TOLERANCE * self.minibatch_s


@dataclass
class Limits:
    """Limits of a search.

    Attributes
    ----------
    simulations, extensions : int
        Numbers of simulations and of partial cuts that are left.
    """

    simulations: int = MAX_SIMULATIONS
    extensions: int = MAX_EXTENSIONS

    @property
    def reached(self) -> bool:
        """Whether nothing is left of one of them."""
        return self.simulations <= 0 or self.extensions <= 0


def fastest(
    times: CutTimes,
    lineups: Sequence[Lineup],
    *,
    start: Sequence[tuple[int, Cut]] = (),
    admits: Callable[[Lineup, Cut], bool] | None = None,
    limits: Limits | None = None,
) -> Fastest | None:
    """Find the cut with the least simulated time of a mini-batch.

    Parameters
    ----------
    times : CutTimes
    lineups : sequence of Lineup
        Devices to try, each with its own number of stages.
    start : sequence of (int, Cut)
        Cuts to begin with, each with the number of its lineup; they need not be admissible.
    admits : callable, optional
        Whether a cut keeps limits of memory that depend on the simulated times.
    limits : Limits, optional
        What the search may do; what it did is subtracted.

    Returns
    -------
    Fastest or None
        None if there is no cut that keeps the limits of memory and links, or none was found before
        the search reached its limit.
    """
    search = _Search(times, lineups, admits, limits or Limits())
    for number, cut in start:
        search.simulate(search.parts[number], cut)
    for part in search.parts:
        search.seed(part)
    # The lineups whose bound is least come first, since their cuts close most of the others.
    for part in sorted(search.parts, key=lambda each: each.least_s):
        search.tighten(part)
    for part in sorted(search.parts, key=lambda each: each.least_s):
        search.enumerate(part)
    for part in search.parts:
        if search.best is None:  # the limit was reached before any cut was simulated
            search.simulate(part, part.bounds.least()[1])
    if search.best is None:
        return None
    part, cut, seconds = search.best
    bound = min(seconds, *(each.least_s for each in search.parts))
    return Fastest(part.lineup, cut, seconds, bound, search.simulations)


@dataclass
class _Part:
    """The cuts for one lineup."""

    lineup: Lineup
    bounds: PathBounds
    least_s: float = 0.0
    seen: dict[Cut, float] = field(default_factory=dict)


class _Search:
    def __init__(
        self,
        times: CutTimes,
        lineups: Sequence[Lineup],
        admits: Callable[[Lineup, Cut], bool] | None,
        limits: Limits,
    ) -> None:
        self.parts = [
            _Part(each, PathBounds(times, each.kinds, each.link_bytes_per_s, each.fits))
            for each in lineups
        ]
        self.admits = admits
        self.limits = limits
        self.simulations = 0
        self.best: tuple[_Part, Cut, float] | None = None

    @property
    def best_s(self) -> float:
        """Time of the best cut so far; inf if there is none."""
        return np.inf if self.best is None else self.best[2]

    @property
    def limit_s(self) -> float:
        """Time below which a cut would be better than the best so far."""
        return self.best_s * (1 - TOLERANCE)

    def simulate(self, part: _Part, cut: Cut) -> float:
        """Time of a cut; its path is added to the bounds if it raises the bound of the cut."""
        if cut in part.seen:
            return part.seen[cut]
        bounds = part.bounds
        durations = bounds.durations(cut)
        self.simulations += 1
        self.limits.simulations -= 1
        learns = bounds.num_paths < MAX_PATHS
        if learns:
            seconds, path = part.lineup.replay.longest(durations)
        else:
            seconds = part.lineup.replay.minibatch_s(durations)
        part.seen[cut] = seconds
        if learns:
            known = bounds.lengths(np.array([cut])).max(initial=0.0)
            if known < seconds * (1 - TOLERANCE):
                bounds.add(path)
        if seconds < self.best_s and _is_open(bounds, cut) and self._admitted(part, cut):
            self.best = part, cut, seconds
        return seconds

    def _admitted(self, part: _Part, cut: Cut) -> bool:
        return self.admits is None or self.admits(part.lineup, cut)

    def seed(self, part: _Part) -> None:
        """Add the paths that are longest where one stage or one link is by far the slowest."""
        bounds, replay = part.bounds, part.lineup.replay
        for path in replay.lane_paths():
            bounds.add(path)
        if replay.schedule.synchronous and replay.fixed_order:
            for durations in _extremes(bounds):
                if self.limits.reached:
                    break
                self.simulations += 1
                self.limits.simulations -= 1
                bounds.add(replay.longest(durations)[1])
        part.least_s = bounds.least()[0]

    def tighten(self, part: _Part) -> None:
        """Simulate the cut with the least bound, again and again, and learn from its path."""
        bounds = part.bounds
        for _ in range(ROUNDS):
            bounds.close(self.limit_s)
            part.least_s, cut, _ = bounds.least()
            if part.least_s >= self.limit_s or cut in part.seen or self.limits.reached:
                break
            before = self.best_s
            self.simulate(part, cut)
            if self.best_s < before:
                self._improve()
        part.least_s = bounds.least()[0]

    def _improve(self) -> None:
        """Move the boundaries of the best cut, one at a time, as long as that makes it faster."""
        better = True
        while better and not self.limits.reached:
            better = False
            assert self.best is not None
            part, cut, _ = self.best
            for stage in range(len(cut) - 1):
                for other in self._moved(part, cut, stage):
                    before = self.best_s
                    if self.limits.reached:
                        break
                    self.simulate(part, other)
                    better = better or self.best_s < before
                if better:
                    break

    def _moved(self, part: _Part, cut: Cut, stage: int) -> list[Cut]:
        """Cuts with another end of a stage, those with the least bounds."""
        bounds = part.bounds
        start = cut[stage - 1] if stage else 0
        mine = np.where(bounds.open[stage, start], bounds.bound_s[stage, start], np.inf)
        end = cut[stage + 1]
        following = np.where(
            bounds.open[stage + 1, :, end], bounds.bound_s[stage + 1, :, end], np.inf
        )
        values = np.maximum(mine, following)
        order = np.argsort(values, kind="stable")[: NEIGHBOURS + 1]
        good = [int(at) for at in order if values[at] < self.limit_s and at != cut[stage]]
        return [(*cut[:stage], at, *cut[stage + 1 :]) for at in good[:NEIGHBOURS]]

    def enumerate(self, part: _Part) -> None:
        """Try all cuts whose bound is below the best time, or as many as the limits allow."""
        bounds = part.bounds
        bounds.close(self.limit_s)
        part.least_s, _, rest = bounds.least()
        if part.least_s >= self.limit_s:
            part.least_s = max(part.least_s, self.limit_s)
            return
        open_s = np.inf
        stack: list[tuple[Ints, Floats]] = [(np.zeros((1, 0), np.int64), np.array([part.least_s]))]
        while stack:
            cuts, values = stack.pop()
            if self.limits.reached:
                open_s = min(open_s, float(values.min(initial=np.inf)))
                continue
            keeps = values < self.limit_s
            if cuts.shape[1] == bounds.stages:
                open_s = min(open_s, self._leaves(part, cuts[keeps], values[keeps]))
                continue
            cuts, values = bounds.extensions(cuts[keeps], self.limit_s, rest)
            self.limits.extensions -= len(cuts)
            order = np.argsort(-values, kind="stable")
            for begin in range(0, len(order), CHUNK):
                some = order[begin : begin + CHUNK]
                stack.append((cuts[some], values[some]))
        part.least_s = max(part.least_s, min(open_s, self.best_s))

    def _leaves(self, part: _Part, cuts: Ints, values: Floats) -> float:
        """Simulate whole cuts, those with the least bounds first; the least bound left over."""
        order = np.argsort(values, kind="stable")
        for place, number in enumerate(order):
            if values[number] >= self.limit_s:
                break
            if self.limits.reached:
                return float(values[order[place:]].min())
            paths = part.bounds.num_paths
            self.simulate(part, tuple(int(each) for each in cuts[number]))
            if part.bounds.num_paths > paths:
                left = order[place + 1 :]
                longer = part.bounds.lengths(cuts[left])[paths:].max(axis=0, initial=0.0)
                values[left] = np.maximum(values[left], longer)
        return np.inf


def _is_open(bounds: PathBounds, cut: Cut) -> bool:
    starts = (0, *cut[:-1])
    return all(bounds.open[i, s, e] for i, (s, e) in enumerate(zip(starts, cut, strict=True)))


def _extremes(bounds: PathBounds) -> list[Floats]:
    """Durations in which all stages are equal, or one stage or one link is by far the slowest."""
    stages = bounds.stages
    whole = bounds.passes_s[:, :, -1] / stages
    even = np.concatenate([whole, np.zeros((2, stages))])
    found = [even]
    for stage in range(stages):
        slow = even * 0.1
        slow[:, stage] = even[:, stage] * 10
        found.append(slow)
    for stage in range(stages - 1):
        for row, sender in ((UPDATE + 1, stage), (UPDATE + 2, stage + 1)):
            sends = float((bounds.sends_s, bounds.returns_s)[row - UPDATE - 1][stage].max())
            if sends:
                slow = even * 0.1
                slow[row, sender] = float(even[:UPDATE].max()) * 10
                found.append(slow)
    return found
