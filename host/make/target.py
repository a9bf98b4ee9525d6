"""How many boards a network needs for a rate, as ``fpgapipe explore --target`` finds it."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.boards.cluster import MAX_DEVICES, ways_to_share
from fpgapipe.errors import UserError, counted
from fpgapipe.host.make.explore import named
from fpgapipe.host.make.networks import Load, loader
from fpgapipe.host.make.plan import Planned, plan_board
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.progress import Progress, about, silent
from fpgapipe.host.terminal.result import ENDED, Result
from fpgapipe.partition.pricing.cycle_account import Cause, CycleAccount
from fpgapipe.partition.pricing.machine import explain_plan

if TYPE_CHECKING:
    from fpgapipe.boards.schema import Board

MOST_PER_S = 1e9
"""Largest rate that may be asked for, samples/s."""

IDLE = (Cause.RECEIVE, Cause.SEND, Cause.DONE)
"""States of an array while other devices hold it up."""


@dataclass(frozen=True)
class Tried:
    """The fastest plan of a number of boards.

    Attributes
    ----------
    boards, nodes : int
        Boards, and nodes of each.
    samples_per_s : float
        As the plan predicts it.
    sure_per_s : float
        The same if the time is that of programs, and less if it is an estimate.
    level : str
        ``machine`` if the time is that of programs.
    kind : str
        Schedule or strategy.
    micro_batches : int
    cores : str
        The cores in the order in which data flow.
    """

    boards: int
    nodes: int
    samples_per_s: float
    sure_per_s: float
    level: str
    kind: str
    micro_batches: int
    cores: str


@dataclass(frozen=True)
class Reached(Result):
    """How many boards reach a rate, and what binds.

    Attributes
    ----------
    network, board : str
    batch : int
    target_per_s : float
        Samples a second that are asked for.
    tried : tuple of Tried
        Plans in the order in which they were made.
    refused : tuple of (int, str)
        Numbers of boards without a plan, and why.
    binds : str
        What the array of the busiest node does, or waits for, in the plan of `best`.
    is_whole : bool
        Whether the search came to its end; it did not if the user ended it.
    """

    RECORDS: ClassVar[str] = "tried"

    network: str
    board: str
    batch: int
    target_per_s: float
    tried: tuple[Tried, ...]
    refused: tuple[tuple[int, str], ...] = ()
    binds: str = ""
    is_whole: bool = True

    @property
    def best(self) -> Tried:
        """The fewest boards that reach the rate, or the fastest if none do."""
        enough = [each for each in self.tried if each.sure_per_s >= self.target_per_s]
        if enough:
            return min(enough, key=lambda each: each.boards)
        return max(self.tried, key=lambda each: each.sure_per_s)

    @property
    def is_reached(self) -> bool:
        """Whether some number of boards reaches the rate."""
        return self.best.sure_per_s >= self.target_per_s

    def to_dict(self) -> dict[str, Any]:
        """All plans, and the sentence that says how many boards it takes."""
        return {
            **{name: getattr(self, name) for name in ("network", "board", "batch")},
            "target_per_s": self.target_per_s,
            "boards": self.best.boards if self.is_reached else None,
            "tried": [dataclasses.asdict(each) for each in self.tried],
            "refused": [{"boards": boards, "reason": why} for boards, why in self.refused],
            "binds": self.binds,
            "is_whole": self.is_whole,
            "answer": self.sentence,
        }

    def shown(self) -> Iterator[Table | str]:
        """The plans as a table, how many boards it takes, and what binds."""
        yield Table(
            ">boards|>nodes each|>samples/s|by|plan|>micro-batches|cores",
            [
                (
                    each.boards,
                    each.nodes,
                    f"{each.samples_per_s:,.1f}",
                    "programs" if each.level == "machine" else "estimates",
                    each.kind,
                    each.micro_batches,
                    each.cores,
                )
                for each in sorted(self.tried, key=lambda each: each.boards)
            ],
            f"{self.network}, batch {self.batch}, on {self.board}: {self.target_per_s:,.10g} "
            "samples/s asked for",
        )
        for boards, why in self.refused:
            yield f"left out: {counted(boards, 'board')}: {why}"
        if not self.is_whole:
            yield ENDED
        yield self.sentence
        if self.binds:
            yield self.binds

    @property
    def sentence(self) -> str:
        """How many boards reach the rate, or why none do."""
        best, asked = self.best, f"{self.target_per_s:,.10g} samples/s"
        what = f"{counted(best.boards, 'board')} with {counted(best.nodes, 'node')} each"
        does = f"{best.samples_per_s:,.1f} samples/s by {best.kind}"
        if not self.is_reached:
            if not self.is_whole:
                return f"{asked} were not reached so far: {what} do {does}"
            more = [each for each in self.tried if each.boards > best.boards]
            why = (
                f"{counted(more[0].boards, 'board')} do {more[0].samples_per_s:,.1f}"
                if more
                else "there is no plan for more"
            )
            return f"{asked} are not reached: {what} do {does}, and {why}"
        fewer = [each for each in self.tried if each.boards < best.boards]
        last = max(fewer, key=lambda each: each.boards, default=None)
        found = f"{asked} take {what}, which do {does}"
        if last and (self.is_whole or last.boards == best.boards - 1):
            found += f"; {counted(last.boards, 'board')} do {last.samples_per_s:,.1f}"
        return found if self.is_whole else f"{found}; fewer may do, too"


@dataclass
class _Search:
    """Plans of numbers of boards, as far as they have been made.

    Attributes
    ----------
    plan_of : callable
        The fastest plan of a number of boards.
    found : dict of int to (Planned, nodes of each board)
    refused : dict of int to str
    """

    plan_of: Callable[[int], Planned]
    found: dict[int, Planned] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def per_s(self, boards: int) -> float:
        """Samples a second of so many boards; 0 if there is no plan for them."""
        try:
            self.found[boards] = self.plan_of(boards)
        except UserError as error:
            self.refused[boards] = str(error)
            return 0.0
        return self.found[boards].sure_per_s

    def until(self, target_per_s: float, most: int) -> None:
        """Find the fewest boards that reach a rate, as if more boards were never slower.

        Twice as many boards are tried again and again, until they reach the rate or are no faster;
        then the numbers between.
        """
        below, boards, fastest = 0, 1, 0.0
        while (per_s := self.per_s(boards)) < target_per_s:
            if boards == most or (fastest and per_s <= fastest):
                return
            fastest = max(fastest, per_s)
            below, boards = boards, min(2 * boards, most)
        while boards - below > 1:
            middle = (below + boards) // 2
            if self.per_s(middle) < target_per_s:
                below = middle
            else:
                boards = middle


def explore_target(
    network: str | Load,
    board: Board,
    target_per_s: float,
    *,
    batch: int = 64,
    nodes: int | None = None,
    progress: Progress = silent,
) -> Reached:
    """Find how many boards train a network at a rate, by the programs of the fastest plans.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    board : Board
    target_per_s : float
        Samples a second.
    batch : int
        Samples in a mini-batch.
    nodes : int, optional
        Nodes of each board; by default as many as are fastest on the fewest boards that hold the
        network.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If the rate is out of range, or nothing fits.
    """
    if not 0 < target_per_s <= MOST_PER_S:  # which NaN is not, either
        raise UserError(
            f"the rate must be above 0 and at most {MOST_PER_S:,.0f} samples/s, not {target_per_s}"
        )
    load = loader(network)

    def plan_of(boards: int) -> Planned:
        asked = nodes
        if asked is None and search.found:
            known = next(iter(search.found))
            asked = len(search.found[known].cluster.devices) // known
            asked = min(asked, len(ways_to_share(board, boards)))
        found = plan_board(
            load,
            board,
            boards,
            batch=batch,
            nodes=asked,
            progress=about(progress, f"{counted(boards, 'board')}: "),
        )
        assert isinstance(found, Planned), "degrees of layers were not asked for"
        return found

    search = _Search(plan_of)
    is_whole, binds = True, ""
    try:
        search.until(target_per_s, MAX_DEVICES // (nodes or 1))
    except KeyboardInterrupt:
        if not search.found:
            raise
        is_whole = False
    if not search.found:
        raise UserError("\n".join(dict.fromkeys(search.refused.values())))
    tried = tuple(_tried(boards, found) for boards, found in search.found.items())
    refused = tuple(search.refused.items())
    reached = Reached(load.name, board.name, batch, target_per_s, tried, refused, is_whole=is_whole)
    if is_whole:
        with about(progress, "what binds: ")() as display:
            display.add_task("following cycles")
            binds = _binds(search.found[reached.best.boards])
    return dataclasses.replace(reached, binds=binds)


def _tried(boards: int, found: Planned) -> Tried:
    plan = found.plan
    return Tried(
        boards,
        len(found.cluster.devices) // boards,
        found.samples_per_s,
        found.sure_per_s,
        plan.predicted.level,
        plan.kind,
        plan.num_microbatches,
        named([node.core for node in plan.nodes]),
    )


def _binds(found: Planned) -> str:
    """Most frequent state of the array of the busiest node."""
    if not found.built["possible"]:
        return f"what binds is not known, since no programs are made: {found.built['reason']}"
    _, accounts = explain_plan(found.plan, found.graph, found.cluster)
    spent = [_causes(account) for account in accounts]
    held_up = [math.fsum(each[cause] for cause in IDLE) for each in spent]
    busiest = min(range(len(spent)), key=held_up.__getitem__)
    causes = sorted(spent[busiest].items(), key=lambda item: -item[1])
    told = ", ".join(f"{words} {share:.0%}" for words, share in causes[:3])
    return f"what binds: {found.plan.nodes[busiest].device}, the busiest node, whose array: {told}"


def _causes(account: CycleAccount) -> dict[Cause, float]:
    """Share of the cycles of a device's arrays by what they do or wait for."""
    engines = account.program.core.num_engines
    shares: dict[Cause, float] = defaultdict(float)
    for engine in range(engines):
        for each in account.spent(engine):
            shares[each.cause] += each.cycles / account.cycles / engines
    return shares
