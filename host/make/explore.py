"""Throughput of a network on a board against area, as ``fpgapipe explore`` shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.boards.cluster import Cluster, chain_of, ways_to_share
from fpgapipe.errors import UserError, counted
from fpgapipe.host.build.build_hardware import on_board
from fpgapipe.host.make.networks import Load, Loader, loader
from fpgapipe.host.report.pages.front_plot import Point, plot_text
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import ENDED, Result
from fpgapipe.partition.cost.cores import RESOURCES
from fpgapipe.partition.explore.explorer import explore
from fpgapipe.partition.explore.planned import as_plan
from fpgapipe.partition.explore.request import Request
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from fpgapipe.boards.schema import Board
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.partition.explore.candidate import Candidate

LOGIC = ("lut", "ff", "dsp")
"""Resources of which the share of a die is told; scratchpads take what there is of the others."""

MOST_SHOWN = 24
"""Most rows of the table that is printed."""

AREAS = ("lut", "dsp", "bram36", "memory_bytes")
"""Quantities of which a point of the front has the least for its throughput."""

PASSES = 3
"""Passes of a training step that multiply each weight with each activation: F, dX and dW."""


@dataclass(frozen=True)
class Choice:
    """Cores and micro-batches, what they give, and what they take of the board.

    Attributes
    ----------
    nodes : int
        Nodes of each board, all of which need not have a stage.
    cores : str
        The cores that have one: ``3 x 32x64``.
    lanes : int
        Lanes of the vector engines of all cores.
    scratchpad_bytes : int
        Scratchpads of all cores.
    micro_batches : int
    schedule : str
    samples_per_s : float
        By formulas, which are 10 % above whole programs and more.
    lut, ff, bram36, uram, dsp : int
        Resources of all cores.
    memory_bytes : int
        Memory that all cores need.
    share : float
        Largest share that a node takes of the LUTs, FFs or DSPs of its part of a die.
    binds : str
        That resource and die: ``LUT of SLR0``.
    multiplies : float
        Share of the time in which all cells would multiply if they did nothing else.
    on_front : bool
        Whether no other choice is as fast with as little of everything in `AREAS`.
    """

    nodes: int
    cores: str
    lanes: int
    scratchpad_bytes: int
    micro_batches: int
    schedule: str
    samples_per_s: float
    lut: int
    ff: int
    bram36: int
    uram: int
    dsp: int
    memory_bytes: int
    share: float
    binds: str
    multiplies: float
    on_front: bool = False


@dataclass(frozen=True)
class Explored(Result):
    """Choices of cores for a network on boards, the fastest first.

    Attributes
    ----------
    network, board : str
    num_boards, batch : int
    choices : tuple of Choice
    refused : tuple of str
        Why numbers of nodes are impossible.
    is_whole : bool
        Whether all was tried; it was not if the user ended the search.
    """

    RECORDS: ClassVar[str] = "choices"

    network: str
    board: str
    num_boards: int
    batch: int
    choices: tuple[Choice, ...]
    refused: tuple[str, ...] = ()
    is_whole: bool = True

    @property
    def title(self) -> str:
        """The network and the boards."""
        return f"{self.network}, batch {self.batch}, on {self.num_boards} x {self.board}"

    @property
    def front(self) -> list[Choice]:
        """The choices that no other one is better than in everything."""
        return [each for each in self.choices if each.on_front]

    def to_dict(self) -> dict[str, Any]:
        """All choices, and the sentence that says what binds the fastest."""
        return {
            **{name: getattr(self, name) for name in ("network", "board", "num_boards", "batch")},
            "choices": [dataclasses.asdict(each) for each in self.choices],
            "refused": list(self.refused),
            "is_whole": self.is_whole,
            "binds": self.sentence,
        }

    def shown(self) -> Iterator[Table | str]:
        """The front as a table, what binds, and what was left out."""
        heads = ">nodes|cores|>lanes|>scratchpads|>micro-batches|schedule|>samples/s|>LUT|>DSP"
        yield Table(
            f"{heads}|>BRAM36|>memory|>most of a die|binds",
            [
                (
                    each.nodes,
                    each.cores,
                    each.lanes,
                    scaled(each.scratchpad_bytes, "B", 1024),
                    each.micro_batches,
                    each.schedule,
                    f"{each.samples_per_s:,.1f}",
                    *(count(getattr(each, name)) for name in ("lut", "dsp", "bram36")),
                    scaled(each.memory_bytes, "B", 1024),
                    f"{each.share:.0%}",
                    each.binds,
                )
                for each in self.front[:MOST_SHOWN]
            ],
            f"{self.title}: what no other choice of {len(self.choices):,} beats in everything",
        )
        if len(self.front) > MOST_SHOWN:
            yield f"{len(self.front) - MOST_SHOWN} slower ones take less of something (--json)"
        for reason in self.refused:
            yield f"left out: {reason}"
        if not self.is_whole:
            yield ENDED
        yield self.sentence

    @property
    def sentence(self) -> str:
        """The fastest choice, and the limit that binds it, in a sentence."""
        best = self.choices[0]
        parts = counted(best.micro_batches, "micro-batch", "es")
        return (
            f"the fastest by formulas is {best.cores} in {parts}, "
            f"{best.samples_per_s:,.1f} samples/s: its cells multiply {best.multiplies:.0%} of "
            f"the time, and {best.binds} bounds its size ({best.share:.0%} used); 'fpgapipe plan' "
            "times its programs"
        )

    def plot(self, *, as_page: bool = False) -> str:
        """Text of a picture of all choices, or of a page with it."""
        points = [
            Point(each.lut, each.samples_per_s, each.nodes, each.on_front, self._told(each))
            for each in self.choices
        ]
        return plot_text(points, self.title, as_page=as_page)

    @staticmethod
    def _told(each: Choice) -> str:
        return (
            f"{each.cores}, {counted(each.micro_batches, 'micro-batch', 'es')}, {each.schedule}: "
            f"{each.samples_per_s:,.1f} samples/s, {each.lut:,} LUT, {each.dsp:,} DSP"
        )


def explore_board(
    network: str | Load,
    board: Board,
    num_boards: int = 1,
    *,
    batch: int = 64,
    nodes: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Explored:
    """Time many choices of cores for a network on a board by formulas.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    board : Board
    num_boards : int
        Number of such boards, cabled in a chain.
    batch : int
        Samples in a mini-batch.
    nodes : sequence of int, optional
        Numbers of nodes of each board; by default one, and so on to one a die.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If a board cannot have so many nodes, or nothing fits.
    """
    load = loader(network)
    if nodes is None:
        clusters = ways_to_share(board, num_boards)[: len(board.fabric.dies)]
    else:
        clusters = [chain_of(board, num_boards, each) for each in dict.fromkeys(nodes)]
    found: list[Choice] = []
    refused, is_whole = [], True
    with progress() as display:
        display.add_task("exploring", total=len(clusters), unit="numbers of nodes")
        for done, cluster in enumerate(clusters):
            display.count(done, len(clusters))
            each = len(cluster.device_names) // num_boards
            try:
                found += _choices(load, batch, cluster, each)
            except PlanError as error:
                refused.append(f"{counted(each, 'node')} of each board: {error}")
            except KeyboardInterrupt:
                if not found:
                    raise
                is_whole = False
                break
    if not found:
        raise UserError("\n".join(refused))
    found.sort(key=lambda each: (-each.samples_per_s, *(getattr(each, name) for name in AREAS)))
    choices = tuple(_with_front(found))
    return Explored(load.name, board.name, num_boards, batch, choices, tuple(refused), is_whole)


def _choices(load: Loader, batch: int, cluster: Cluster, nodes: int) -> Iterator[Choice]:
    """The best schedule of each choice of cores and micro-batches."""
    request = Request(load, batch, cluster.spec, num_microbatches=load.micro_batches(batch, None))
    found = explore(request)
    resources = cache(on_board)
    seen = set()
    for each in sorted((*found.tried, *found.others), key=lambda each: each.steady_s):
        cores = tuple((part.position, part.node) for part in each.stages)
        if (cores, each.num_microbatches) not in seen:
            seen.add((cores, each.num_microbatches))
            yield _choice(each, load, batch, cluster, nodes, resources)


def _choice(
    candidate: Candidate, load: Loader, batch: int, cluster: Cluster, nodes: int, resources: Any
) -> Choice:
    assert candidate.microbatch is not None
    graph = load(candidate.microbatch)
    plan = as_plan(candidate, graph, load.name, batch, cluster.spec)
    devices = [cluster.spec.devices[part.position] for part in candidate.stages]
    taken = [resources(node.core, one) for node, one in zip(plan.nodes, devices, strict=True)]
    share, binds = max(
        (used["used"][name] / used["limits"][name], f"{name.upper()} of {used['die']}")
        for each in taken
        for used in each["dies"]
        for name in LOGIC
        if used["limits"][name]
    )
    per_s = batch / candidate.steady_s
    macs = sum(layer.macs for layer in graph.layers.values()) / candidate.microbatch
    cells_per_s = sum(node.core.cells * node.spec.clk_hz for node in plan.nodes)
    return Choice(
        nodes,
        named([node.core for node in plan.nodes]),
        sum(node.core.vector.lanes for node in plan.nodes if node.core.vector),
        sum(node.core.scratchpad.size_bytes for node in plan.nodes),
        candidate.num_microbatches,
        candidate.kind,
        per_s,
        **{name: sum(each["used"][name] for each in taken) for name in RESOURCES},
        memory_bytes=sum(node.memory_bytes for node in plan.nodes),
        share=share,
        binds=binds,
        multiplies=PASSES * macs * per_s / cells_per_s,
    )


def named(cores: Sequence[CoreSpec]) -> str:
    """Cores in the order in which data flow, equal neighbours together: ``2 x 32x64, 16x32``."""
    names: list[list[Any]] = []
    for core in cores:
        name = f"{core.rows}x{core.cols}"
        if names and names[-1][1] == name:
            names[-1][0] += 1
        else:
            names.append([1, name])
    return ", ".join(f"{number} x {name}" if number > 1 else name for number, name in names)


def _with_front(choices: Sequence[Choice]) -> Iterator[Choice]:
    """The choices, fastest first, with those marked that nothing faster takes as little of all."""
    front: list[tuple[int, ...]] = []
    for each in choices:
        areas = tuple(getattr(each, name) for name in AREAS)
        beaten = any(all(a <= b for a, b in zip(one, areas, strict=True)) for one in front)
        if not beaten:
            front.append(areas)
        yield dataclasses.replace(each, on_front=not beaten)
