"""Time and memory of parallel strategies on numbers of devices, as ``fpgapipe oracle`` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.boards.schema import Board
from fpgapipe.boards.yaml_file import read_yaml
from fpgapipe.errors import FileError, UserError, nearest
from fpgapipe.host.make.networks import Load, Loader, loader
from fpgapipe.host.report.pages.oracle_plot import plot_text
from fpgapipe.host.terminal.console import Table, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import ENDED, Result
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.jobs import results
from fpgapipe.json_faults import faults_of
from fpgapipe.network.load import load_file
from fpgapipe.partition.oracle.forecast import Forecast
from fpgapipe.partition.oracle.machine import STRATEGIES as PRICED
from fpgapipe.partition.oracle.machine import ask
from fpgapipe.partition.oracle.measured_rows import rows_of
from fpgapipe.partition.oracle.network_rows import rows_of_network
from fpgapipe.partition.oracle.paradl import STRATEGIES as FORMULAS
from fpgapipe.partition.oracle.paradl import LayerRow, Question
from fpgapipe.partition.oracle.platform import Platform, PlatformLink
from fpgapipe.partition.oracle.question import Batch, Machine

FILTER_DEVICES = 4
"""Devices of a group in mixtures with data parallelism, by the formulas of the paper."""


@dataclass(frozen=True)
class Chain:
    """Makes chains of a number of boards of one kind; copies by pickle are equal."""

    board: Board

    def __call__(self, count: int) -> ClusterSpec:
        """Return the chain."""
        return chain_of(self.board, count).spec

    def __hash__(self) -> int:
        return hash(self.board.name)


@dataclass
class Answers(Result):
    """Forecasts, and why others are impossible.

    Attributes
    ----------
    title : str
    per_epoch : bool
        Whether seconds are those of an epoch, or else of a mini-batch.
    found : list of Forecast
    refused : dict of str to list of int
        Numbers of devices that are impossible, by strategy and reason.
    is_whole : bool
        Whether all was asked; it was not if the user ended the search.
    """

    RECORDS: ClassVar[str] = "strategies"

    title: str
    per_epoch: bool
    found: list[Forecast] = field(default_factory=list)
    refused: dict[str, list[int]] = field(default_factory=dict)
    is_whole: bool = True

    def ask(
        self,
        names: Sequence[str],
        numbers: Sequence[int],
        answer: Callable[[str, int], Forecast],
        on_step: Callable[[int, int], object] = lambda done, total: None,
        *,
        are_long: bool = False,
    ) -> None:
        """Ask about all strategies on all numbers of devices.

        The answers of `answer`, a function of a module or a partial of one, are `jobs`, which may
        take long (`fpgapipe.jobs.results`). Where the user ends the search, the answers that are
        there stay.
        """
        asked = [(answer, name, devices) for name in names for devices in numbers]
        answers: list[Forecast | str] = []
        try:
            results(_found, asked, on_step, answers, are_long=are_long)
        except KeyboardInterrupt:
            if not any(isinstance(each, Forecast) for each in answers):
                raise
            self.is_whole = False
        for (_, name, devices), found in zip(asked, answers, strict=False):
            if isinstance(found, str):
                self.refused.setdefault(f"{name}: {found}", []).append(devices)
            else:
                self.found.append(found)

    @property
    def reasons(self) -> list[str]:
        """Sentences that say what is impossible."""
        found = []
        for reason, devices in self.refused.items():
            name, _, words = reason.partition(": ")
            found.append(f"{name} on {', '.join(map(str, devices))}: {words}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The forecasts, and what is impossible."""
        return {
            "per": "epoch" if self.per_epoch else "mini-batch",
            "strategies": [
                {
                    **vars(each),
                    "samples_per_s": each.samples_per_s,
                    "sentence": each.sentence,
                }
                for each in self.found
            ],
            "refused": self.reasons,
            "is_whole": self.is_whole,
        }

    def shown(self) -> Iterator[Table | str]:
        """A table, and a sentence for each strategy on the most devices."""
        columns = "strategy|>devices|>batch|>compute|>communication|>mini-batch"
        columns += f"{'|>epoch' if self.per_epoch else ''}|>samples/s|>memory|>at most|by"
        yield Table(
            columns,
            [
                (
                    each.name,
                    each.devices,
                    each.batch,
                    scaled(each.compute_s, "s"),
                    scaled(each.communication_s, "s"),
                    scaled(each.minibatch_s or 0.0, "s"),
                    *([scaled(each.epoch_s or 0.0, "s")] if self.per_epoch else []),
                    f"{each.samples_per_s:,.1f}",
                    scaled(each.memory_bytes, "B", 1024),
                    "-" if each.max_devices is None else each.max_devices,
                    each.level,
                )
                for each in self.found
            ],
            self.title,
        )
        yield ""
        last = {each.name: each for each in self.found}
        for each in last.values():
            yield each.sentence
        for reason in self.reasons:
            yield f"left out: {reason}"
        if not self.is_whole:
            yield ENDED

    def plot(self, *, as_page: bool = False) -> str:
        """Text of a picture of speed over the number of devices: SVG, or a page."""
        return plot_text(self.found, self.title, as_page=as_page)


def _found(answer: Callable[[str, int], Forecast], name: str, devices: int) -> Forecast | str:
    """An answer, or the reason why there is none."""
    try:
        return answer(name, devices)
    except (UserError, NotImplementedError) as error:
        return str(error)


def strategies_of(
    names: Sequence[str] | None, known: Sequence[str], default: Sequence[str]
) -> list[str]:
    """Names of the strategies that are asked about.

    Raises
    ------
    UserError
        If there is no strategy of a name.
    """
    if not names:
        return list(default)
    for name in names:
        if name not in known:
            raise UserError(f"there is no strategy {name!r}{nearest(name, tuple(known))}")
    return list(dict.fromkeys(names))


def oracle(
    network: str | Load | None = None,
    devices: Sequence[int] = (1, 2, 4, 8),
    *,
    board: str | None = None,
    model: str = "machine",
    batch: int | None = None,
    batch_per_device: int | None = None,
    samples: int | None = None,
    micro_batches: int | None = None,
    array: tuple[int, int] | None = None,
    filter_devices: int | None = None,
    strategies: Sequence[str] | None = None,
    profile: str | None = None,
    platform: str | None = None,
    progress: Progress = silent,
) -> Answers:
    """Foretell time, memory and limits of parallel strategies over numbers of devices.

    Parameters
    ----------
    network : str or callable, optional
        Its name or file, or a function that gives the graph for a number of samples; a `profile`
        stands for it.
    devices : sequence of int
        Numbers of devices that are asked about.
    board : str, optional
        Board whose core and links a network has.
    model : str
        ``machine`` for prices of the machine, ``paradl`` for the formulas of the paper.
    batch, batch_per_device : int, optional
        Samples of a mini-batch, of all devices together or for each of the data axis, by default
        64.
    samples : int, optional
        Samples of an epoch; seconds are then those of an epoch.
    micro_batches : int, optional
        Micro-batches of a mini-batch; the best of several if it is not given, and 4 of formulas.
    array : (int, int), optional
        Rows and columns of each device's array, for prices of the machine.
    filter_devices : int, optional
        Devices of a group in data+filter and data+spatial; the fastest of several if it is not
        given, and 4 of formulas.
    strategies : sequence of str, optional
        Names of those that are asked about; all if it is not given.
    profile, platform : str, optional
        Files of measured times and of links, for formulas.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If options contradict each other, or all is impossible.
    """
    if model == "machine":
        for name, given in (("profile", profile), ("platform", platform)):
            if given is not None:
                raise UserError(f"--{name} has times of its own: take --model paradl")
        if network is None or board is None:
            raise UserError("prices of the machine need a network and a --board")
        names = strategies_of(strategies, PRICED, PRICED)
        load = loader(network)
        chain = Chain(load_board(board))
        size = _batch(batch, batch_per_device)
        machine = Machine(load, load.name, chain, size, micro_batches, array, filter_devices)
        what = f"an epoch of {samples:,} samples" if samples else "a mini-batch"
        title = f"{load.name} on {board}, {what}, prices of the machine"
        answers = Answers(title, samples is not None)
        with progress() as display:
            display.add_task("asking")
            answer = partial(_of_machine, machine, samples)
            answers.ask(names, devices, answer, display.count, are_long=True)
    else:
        if array is not None:
            raise UserError("--array is for prices of the machine: take --model machine")
        names = strategies_of(strategies, list(FORMULAS), list(FORMULAS)[1:])
        size = _batch(batch, batch_per_device)
        source = None if network is None else loader(network)
        rows, links = _layers(source, board, profile, platform, batch_per_device or batch, samples)
        per_epoch = bool(source is None or samples or platform)
        what = f"{links.samples:,} samples" if per_epoch else "a mini-batch"
        title = f"{source.name if source else profile}, {what}, formulas of ParaDL"
        inside, micro = filter_devices or FILTER_DEVICES, micro_batches or 4
        by_formulas = partial(_by_formulas, rows, links, size, inside, micro, per_epoch)
        answers = Answers(title, per_epoch)
        answers.ask(names, devices, by_formulas)
    if not answers.found:
        raise UserError("\n".join(answers.reasons))
    return answers


def _of_machine(machine: Machine, samples: int | None, name: str, devices: int) -> Forecast:
    """Time and memory of a strategy, for a mini-batch or for an epoch of some samples."""
    one = ask(machine, name, devices)
    return one.of_epoch(samples) if samples else one


def _by_formulas(
    rows: list[LayerRow],
    platform: Platform,
    batch: Batch,
    inside: int,
    micro: int,
    per_epoch: bool,
    name: str,
    devices: int,
) -> Forecast:
    """A strategy's time and memory by formulas, in groups of devices and in micro-batches."""
    sharers = {"data": devices}.get(name, devices // inside if "+" in name else 1)
    whole = batch.of(max(sharers, 1))
    own = whole // max(sharers, 1)
    known = platform if per_epoch else platform.model_copy(update={"samples": whole})
    told = FORMULAS[name](Question(rows, known, own, inside, micro), devices)
    seconds = told.compute_s + told.communication_s
    steps = -(-known.samples // whole)
    return replace(
        told, batch=whole, minibatch_s=seconds / steps, epoch_s=seconds if per_epoch else None
    )


def _batch(batch: int | None, per_device: int | None) -> Batch:
    """The mini-batch that is asked about."""
    if batch is not None and per_device is not None:
        raise UserError("--batch is of all devices together, --batch-per-device of one: name one")
    return Batch(per_device or 64) if batch is None else Batch(batch, per_device=False)


def _layers(
    load: Loader | None,
    board: str | None,
    profile: str | None,
    file: str | None,
    batch: int | None,
    samples: int | None,
) -> tuple[list[LayerRow], Platform]:
    """The layers and the platform, of a network on a board or from files."""
    if load is not None:
        if board is None or profile is not None:
            raise UserError("a network needs a --board, whose core gives the times of its layers")
        graph = load(batch or 64)
        cluster = chain_of(load_board(board), 2).spec
        try:
            rows = rows_of_network(graph, cluster.devices[0])
        except ValueError as error:
            raise UserError(str(error)) from None
        if file is not None:
            return rows, read_platform(Path(file))
        link = cluster.links[0]
        return rows, Platform(
            bytes_per_element=4,
            samples=samples or 1,
            links=(PlatformLink(bytes_per_s=link.payload_bytes_per_s, latency_s=link.latency_s),),
            shared_uplink=False,
        )
    if profile is None or file is None:
        missing = "profile" if profile is None else "platform"
        raise UserError(f"name a network and a --board, or give --{missing}")
    platform = read_platform(Path(file))
    measured = load_file(Path(profile))
    return rows_of(measured, platform.bytes_per_element, platform.input_elements), platform


def read_platform(path: Path) -> Platform:
    """Read a platform from a YAML file.

    Raises
    ------
    FileError
        If the file is no valid platform. The message lists every fault.
    """
    document = read_yaml(path)
    document.raise_faults()
    try:
        return Platform.model_validate(document.value)
    except ValidationError as error:
        raise FileError(path, faults_of(error)) from None
