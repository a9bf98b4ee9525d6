"""From the combination that formulas like best to those next to the best so far, by prices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.hw.hls_models.spec.node import NodeSpec

NEAR_CORES = 1.3
"""Cores are tried that by formulas take at most this many times as long as the fastest one."""

NEAR = 1.1
"""Cores are tried with other micro-batches if they took at most this many times as long before."""

PROMISING = 1.05
"""Combinations that by formulas take at most this many times as long as the best one so far may be
faster, since formulas are further off for one core than for another; more time is spent on them."""

TRIFLE = 1.01
"""Combinations within this ratio of each other by formulas are as good as each other."""

FASTEST = 0.79
"""The least time of a program that was seen, as a share of its time by formulas (digits-cnn on a
32x32 core with 6,250 samples, whose layers overlap). Nearly all programs take longer than formulas
say."""

SLACK = 0.12
"""Share of the time by prices of layers, or by formulas that are as far off as of another plan, by
which a whole program may be faster; 0.1 was seen."""

FURTHER = 0.06
"""The same share, once the ratio of one program to its prices by layers is known; within a network
and a schedule, ratios of 0.97 to 1.03 times their mean were seen."""


class Combination(ABC):
    """A number of micro-batches and cores, with what formulas say of them."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of micro-batches."""

    @property
    @abstractmethod
    def node(self) -> NodeSpec:
        """The first device's core, port and lanes."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Name of the cores, and of whatever else sets it apart from others with its count."""

    @property
    @abstractmethod
    def estimate_s(self) -> float:
        """Seconds of a mini-batch by formulas."""

    @property
    def engines(self) -> int:
        """GEMM engines of a core; all cores have as many."""
        return self.node.core.num_engines

    @property
    def least_s(self) -> float:
        """Seconds below which no program has been seen."""
        return least_of(self.estimate_s, self.engines)


def least_of(estimate_s: float, engines: int) -> float:
    """Seconds below which no program has been seen that formulas give so many seconds.

    Where forward and backward passes have engines of their own, formulas let each take as long as
    if both were always at work.
    """
    return estimate_s * FASTEST / engines


Look = TypeVar("Look", bound=Combination)


def cheapest_first(looks: Sequence[Look], effort: Callable[[Look], float]) -> list[Look]:
    """Order combinations, of which formulas like the first best, for the first price.

    Those that are slower by a trifle come first with the best, the ones of least effort before the
    others: formulas do not know which of them is the best, and more can be priced in the same time.
    """
    alike = [look for look in looks if look.estimate_s <= TRIFLE * looks[0].estimate_s]
    return [*sorted(alike, key=effort), *(look for look in looks if look not in alike)]


def climb(
    looks: Sequence[Look], best_of: dict[Look, float], price: Callable[[list[Look]], object]
) -> None:
    """Price the combinations next to the best one until none of them is better.

    Parameters
    ----------
    looks : sequence of Combination
    best_of : dict
        Seconds of the combinations that are priced, infinite for those that have no price; also of
        others than those of `looks`.
    price : callable
        Enters combinations in `best_of`.
    """
    counts = sorted({look.count for look in looks})

    def is_near(look: Look, best: Look) -> bool:
        if look.key == best.key and look.count != best.count:
            return abs(counts.index(look.count) - counts.index(best.count)) == 1
        of_best = {each.count: each for each in looks if each.key == best.key}
        for each in looks:  # a core that was slow with another count is slow with this one
            known_s = best_of.get(of_best[each.count], inf) if each.count in of_best else inf
            if each.key == look.key and inf > best_of.get(each, inf) > NEAR * known_s:
                return False
        row = min(each.estimate_s for each in looks if each.count == look.count)
        return look.count == best.count and look.estimate_s <= NEAR_CORES * row

    while True:
        best = min(looks, key=lambda look: best_of.get(look, inf))
        least_s = min(best_of.values(), default=inf)
        near = [
            look
            for look in looks
            if look not in best_of and look.least_s < least_s and is_near(look, best)
        ]
        if best_of.get(best, inf) == inf or not near:
            return
        price(sorted(near, key=lambda look: look.estimate_s))  # should time run out
