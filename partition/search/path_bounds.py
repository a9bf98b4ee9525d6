"""Lower bounds of the simulated time of a mini-batch, for every stage that a cut may have.

A path through the tasks of a schedule is a sum: so many times the forward pass of stage 0, so many
times its transfer, and so on. The simulated time of any cut is at least the length of each path
(`fpgapipe.partition.timeline.replay`). Since the sum has a term for each stage, the least length of
a path over all cuts, and over all cuts that contain a given stage, follows from two passes of a
dynamic program: one from the first cut on and one from the last cut back. The largest of these
lengths over several paths is the bound of a stage. A stage whose bound is no better than the best
cut known is closed, that is, never considered again.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpgapipe.partition.timeline.replay import ACTIVATIONS, GRADIENTS, Path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMPILED_FROM_CELLS = 20_000_000
"""Number of bounds raised so far by all paths of a process from which on it is worth loading the
compiler."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Cut = tuple[int, ...]
"""For each stage, the number of the cut that ends it."""


@dataclass(frozen=True)
class CutTimes:
    """Times of the stages between two cuts, and bytes that pass each cut.

    Parameters
    ----------
    passes_s : float array, shape (4, kinds, cuts)
        Seconds of the forward pass, the input gradient, the weight gradient and the update of all
        layers before each cut, on each kind of device.
    sends_bytes, returns_bytes : float array, shape (cuts,)
        Bytes of a micro-batch's activations that pass the cut, and of their gradients.
    within : bool array, shape (cuts, cuts)
        Whether a stage may begin at the cut of the row and end at that of the column.
    """

    passes_s: Floats
    sends_bytes: Floats
    returns_bytes: Floats
    within: Bools

    @property
    def num_cuts(self) -> int:
        """Number of cuts, with that before all layers and that behind them."""
        return len(self.sends_bytes)


class PathBounds:
    """Bounds of all stages of a given number, on given devices.

    Parameters
    ----------
    times : CutTimes
    kinds : sequence of int
        Kind of each stage's device.
    link_bytes_per_s : sequence of float
        Rate of the link behind each stage but the last; 0 if there is none.
    fits : bool array, shape (stages, cuts, cuts), optional
        Whether each stage's device has the memory for the layers between two cuts.

    Attributes
    ----------
    open : bool array, shape (stages, cuts, cuts)
        Stages that may be part of a better cut than the best known.
    bound_s : float array, shape (stages, cuts, cuts)
        Lower bound of the time of every cut that contains a stage.
    """

    def __init__(
        self,
        times: CutTimes,
        kinds: Sequence[int],
        link_bytes_per_s: Sequence[float],
        fits: Bools | None = None,
    ) -> None:
        self.times = times
        self.stages = len(kinds)
        self.size = times.num_cuts
        self.passes_s = times.passes_s[:, list(kinds), :]
        rates = np.array([*link_bytes_per_s[: self.stages - 1], np.inf])[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            self.sends_s = np.where(times.sends_bytes > 0, times.sends_bytes / rates, 0.0)
            self.returns_s = np.where(times.returns_bytes > 0, times.returns_bytes / rates, 0.0)
        self.open = np.broadcast_to(times.within, (self.stages, self.size, self.size)).copy()
        if fits is not None:
            self.open &= fits
        self.open &= (np.isfinite(self.sends_s) & np.isfinite(self.returns_s))[:, None, :]
        self.sends_s[~np.isfinite(self.sends_s)] = 0.0
        self.returns_s[~np.isfinite(self.returns_s)] = 0.0
        self.open[0, 1:] = False
        self.open[1:, 0] = False
        self.open[:-1, :, -1] = False
        self.open[-1, :, :-1] = False
        self.bound_s = np.zeros(self.open.shape)
        self._sums: list[Floats] = []
        self._sent: list[Floats] = []
        self._behind: list[Floats] = []
        self.lags_s: list[float] = []
        self._connect()

    @property
    def num_paths(self) -> int:
        """Number of paths from which the bounds follow."""
        return len(self._sums)

    def durations(self, cut: Cut) -> Floats:
        """Seconds of the stages' passes and transfers, in the rows of `Replay.minibatch_s`."""
        stages = np.arange(self.stages)
        ends = np.array(cut)
        starts = np.concatenate([[0], ends[:-1]])
        result = np.zeros((6, self.stages))
        result[:4] = self.passes_s[:, stages, ends] - self.passes_s[:, stages, starts]
        result[ACTIVATIONS] = self.sends_s[stages, ends]
        result[GRADIENTS, 1:] = self.returns_s[stages, ends][:-1]
        np.maximum(result, 0.0, out=result)  # differences of sums can be just below 0
        return result

    def add(self, path: Path) -> None:
        """Raise the bounds to those that follow from a path."""
        sums = np.einsum("rk,rkn->kn", path.counts[:4], self.passes_s)
        returned = np.append(path.counts[GRADIENTS, 1:], 0.0)
        sent = path.counts[ACTIVATIONS][:, None] * self.sends_s + returned[:, None] * self.returns_s
        ahead = np.full((self.stages + 1, self.size), np.inf)
        behind = np.full((self.stages + 1, self.size), np.inf)
        ahead[0, 0] = behind[-1, -1] = 0.0
        _raised[0] += self.open.size
        loop = compiled_raise() if _raised[0] >= COMPILED_FROM_CELLS else None
        (loop or raise_bounds)(
            self.open, self.bound_s, sums, sums + sent, path.lag_s, ahead, behind
        )
        self._sums.append(sums)
        self._sent.append(sums + sent)
        self._behind.append(behind)
        self.lags_s.append(path.lag_s)

    def close(self, limit_s: float) -> None:
        """Close the stages whose bound is not below a limit."""
        self.open &= self.bound_s < limit_s
        self._connect()

    def _connect(self) -> None:
        """Close the stages that no cut from the first to the last contains."""
        reached = np.zeros(self.size, bool)
        reached[0] = True
        for stage in range(self.stages):
            self.open[stage] &= reached[:, None]
            reached = self.open[stage].any(axis=0)
        reached = np.zeros(self.size, bool)
        reached[-1] = True
        for stage in reversed(range(self.stages)):
            self.open[stage] &= reached
            reached = self.open[stage].any(axis=1)

    def least(self) -> tuple[float, Cut, Floats]:
        """The bound of all cuts, a cut that has it, and the bounds from each cut on.

        The bound of a cut is the largest of its stages' bounds. It is inf if nothing is open.
        """
        rest = np.full((self.stages + 1, self.size), np.inf)
        rest[-1, -1] = 0.0
        following = np.zeros((self.stages, self.size), np.int64)
        for stage in reversed(range(self.stages)):
            values = np.where(self.open[stage], self.bound_s[stage], np.inf)
            np.maximum(values, rest[stage + 1], out=values)
            # Of several ends with the same bound, take the one whose own stage has the least.
            following[stage] = values.argmin(axis=1)
            rest[stage] = values.min(axis=1)
        cut, at = [], 0
        for stage in range(self.stages):
            at = int(following[stage, at])
            cut.append(at)
        return float(rest[0, 0]), tuple(cut), rest

    def lengths(self, cuts: Ints) -> Floats:
        """Length of every path up to the end of the last stage given.

        Parameters
        ----------
        cuts : int array, shape (count, stages)
            Ends of the first stages of several cuts.

        Returns
        -------
        float array, shape (paths, count)
        """
        result: Floats = np.zeros((self.num_paths, len(cuts)))
        result += np.array(self.lags_s)[:, None]
        if not cuts.shape[1]:
            return result
        starts = np.concatenate([np.zeros((len(cuts), 1), np.int64), cuts[:, :-1]], axis=1)
        stages = np.arange(cuts.shape[1])
        for number in range(self.num_paths):
            parts = self._sent[number][stages, cuts] - self._sums[number][stages, starts]
            result[number] += parts.sum(axis=1)
        return result

    def extensions(self, cuts: Ints, limit_s: float, rest: Floats) -> tuple[Ints, Floats]:
        """The same cuts with one more stage, and their bounds, where these are below a limit."""
        stage = cuts.shape[1]
        at = cuts[:, -1] if stage else np.zeros(len(cuts), np.int64)
        so_far = self.lengths(cuts)
        loop = compiled_extend() if _raised[0] >= COMPILED_FROM_CELLS else None
        if loop is not None and self.num_paths:
            tables = (np.array([each[stage] for each in own]) for own in (self._sums, self._sent))
            behind = np.array([each[stage + 1] for each in self._behind])
            room = len(cuts) * self.size
            parent, end = np.zeros(room, np.int64), np.zeros(room, np.int64)
            bounds = np.zeros(room)
            own = self.open[stage], self.bound_s[stage], rest[stage + 1]
            count = loop(*own, at, so_far, *tables, behind, limit_s, parent, end, bounds)
            extended = np.concatenate([cuts[parent[:count]], end[:count, None]], axis=1)
            return extended.astype(np.int64), bounds[:count]
        values = np.where(self.open[stage], self.bound_s[stage], np.inf)
        values = np.maximum(values, rest[stage + 1])[at]
        parent, end = np.nonzero(values < limit_s)
        bounds = values[parent, end]
        for number in range(self.num_paths):
            length = so_far[number][parent] - self._sums[number][stage, at[parent]]
            length += self._sent[number][stage, end] + self._behind[number][stage + 1, end]
            np.maximum(bounds, length, out=bounds)
        keeps: Any = bounds < limit_s
        extended = np.concatenate([cuts[parent[keeps]], end[keeps, None]], axis=1)
        return extended.astype(np.int64), bounds[keeps]


_raised = [0]
"""Number of bounds that this process has raised."""


def raise_bounds(
    may: Bools,
    bound_s: Floats,
    sums: Floats,
    ends: Floats,
    lag_s: float,
    ahead: Floats,
    behind: Floats,
) -> None:
    """Raise bounds to the least length of a path over all cuts that contain a stage.

    Parameters
    ----------
    may : bool array, shape (stages, cuts, cuts)
        Stages whose bounds are raised.
    bound_s : float array, shape (stages, cuts, cuts)
        Bounds, which are changed.
    sums, ends : float array, shape (stages, cuts)
        A stage from one cut to another adds the number in `ends` of the latter less that in `sums`
        of the former.
    lag_s : float
        What the path takes besides.
    ahead, behind : float array, shape (stages + 1, cuts)
        The least lengths from the first cut to each and from each to the last. They are filled in,
        and are 0 at the first and the last cut and inf elsewhere before.
    """
    stages = len(may)
    costs = np.where(may, ends[:, None, :] - sums[:, :, None], np.inf)
    for stage in range(stages):
        ahead[stage + 1] = (ahead[stage][:, None] + costs[stage]).min(axis=0)
    for stage in reversed(range(stages)):
        behind[stage] = (costs[stage] + behind[stage + 1]).min(axis=1)
    costs += ahead[:-1, :, None]
    costs += behind[1:, None, :] + lag_s
    np.maximum(bound_s, costs, out=bound_s, where=may)


def _raise_bounds_one_by_one(  # type: ignore[no-untyped-def]
    may, bound_s, sums, ends, lag_s, ahead, behind
):
    """Do what `raise_bounds` does, in the same order for each number, so no bit differs."""
    stages, size = sums.shape
    for stage in range(stages):
        for start in range(size):
            for end in range(size):
                if may[stage, start, end]:
                    length = ahead[stage, start] + (ends[stage, end] - sums[stage, start])
                    ahead[stage + 1, end] = min(ahead[stage + 1, end], length)
    for stage in range(stages - 1, -1, -1):
        for start in range(size):
            least = behind[stage, start]
            for end in range(size):
                if may[stage, start, end]:
                    cost = ends[stage, end] - sums[stage, start]
                    least = min(least, cost + behind[stage + 1, end])
                    length = cost + ahead[stage, start] + (behind[stage + 1, end] + lag_s)
                    bound_s[stage, start, end] = max(bound_s[stage, start, end], length)
            behind[stage, start] = least


def _extend_one_by_one(  # type: ignore[no-untyped-def]
    may, bound_s, rest, at, so_far, sums, sent, behind, limit_s, parents, ends, bounds
):
    """Fill in what `PathBounds.extensions` finds, in the same order; returns how much it is."""
    count = 0
    for parent in range(len(at)):
        start = at[parent]
        for end in range(len(rest)):
            if not may[start, end]:
                continue
            bound = max(bound_s[start, end], rest[end])
            if not bound < limit_s:
                continue
            for path in range(len(sums)):
                length = so_far[path, parent] - sums[path, start]
                bound = max(bound, length + (sent[path, end] + behind[path, end]))
                if not bound < limit_s:
                    break
            else:
                parents[count], ends[count], bounds[count] = parent, end, bound
                count += 1
    return count


@cache
def compiled_raise() -> Callable[..., None] | None:
    """`raise_bounds` as machine code; None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from fpgapipe.machine_code import compiled

    return compiled(_raise_bounds_one_by_one)


@cache
def compiled_extend() -> Callable[..., int] | None:
    """`_extend_one_by_one` as machine code; None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from fpgapipe.machine_code import compiled

    return compiled(_extend_one_by_one)
