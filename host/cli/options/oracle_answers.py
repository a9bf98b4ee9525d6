"""What ``oracle`` finds out for strategies on numbers of devices, by formulas or by programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.boards.schema import Board
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec
    from fpgapipe.partition.oracle.forecast import Forecast
    from fpgapipe.partition.oracle.paradl import LayerRow
    from fpgapipe.partition.oracle.platform import Platform
    from fpgapipe.partition.oracle.question import Batch, Machine

FILTER_DEVICES = 4
"""Devices of a group in mixtures with data parallelism, by the formulas of the paper."""


@dataclass(frozen=True)
class Chain:
    """Makes chains of a number of boards of one kind; copies by pickle are equal."""

    board: Board

    def __call__(self, count: int) -> ClusterSpec:
        """Return the chain."""
        from fpgapipe.boards.cluster import chain_of

        return chain_of(self.board, count).spec

    def __hash__(self) -> int:
        return hash(self.board.name)


@dataclass
class Answers:
    """Forecasts, and why others are impossible.

    Attributes
    ----------
    title : str
    per_epoch : bool
        Whether seconds are those of an epoch, or else of a mini-batch.
    found : list of Forecast
    refused : dict of str to list of int
        Numbers of devices that are impossible, by strategy and reason.
    """

    title: str
    per_epoch: bool
    found: list[Forecast] = field(default_factory=list)
    refused: dict[str, list[int]] = field(default_factory=dict)

    def ask(
        self,
        names: Sequence[str],
        numbers: Sequence[int],
        answer: Callable[[str, int], Forecast],
        on_step: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Ask about all strategies on all numbers of devices.

        The answers of `answer`, a function of a module or a partial of one, are `jobs`.
        """
        from fpgapipe.jobs import results

        asked = [(answer, name, devices) for name in names for devices in numbers]
        for (_, name, devices), found in zip(asked, results(_found, asked, on_step), strict=True):
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


def _found(answer: Callable[[str, int], Forecast], name: str, devices: int) -> Forecast | str:
    """What an answer is, or why there is none."""
    from fpgapipe.errors import UserError

    try:
        return answer(name, devices)
    except (UserError, NotImplementedError) as error:
        return str(error)


def strategies_of(text: str | None, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """Names of the strategies that are asked about.

    Raises
    ------
    UserError
        If there is no strategy of a name.
    """
    from fpgapipe.errors import UserError, nearest

    if not text:
        return list(default)
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"there is no strategy {name!r}{nearest(name, tuple(known))}")
    return list(dict.fromkeys(names))


def ask_machine(network: str, options: dict[str, Any], numbers: Sequence[int]) -> Answers:
    """Ask for prices of the machine."""
    from functools import partial

    from fpgapipe.boards.library import load_board
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.options import parse_array
    from fpgapipe.host.make.networks import loader
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.partition.oracle.machine import STRATEGIES
    from fpgapipe.partition.oracle.question import Batch, Machine

    for name in ("profile", "platform"):
        if options[name] is not None:
            raise UserError(f"--{name} has times of its own: take --model paradl")
    if network is None or options["board"] is None:
        raise UserError("prices of the machine need a network and a --board")
    names = strategies_of(options["strategies"], STRATEGIES, STRATEGIES)
    machine = Machine(
        loader(network),
        network,
        Chain(load_board(options["board"])),
        _batch(options, Batch),
        options["micro_batches"],
        parse_array(options["array"]),
        options["filter_devices"],
    )
    samples = options["samples"]
    found = Answers(_title(network, options, "prices of the machine"), samples is not None)

    with progress() as display:
        display.add_task("asking")
        found.ask(
            names,
            numbers,
            partial(_of_machine, machine, samples),
            lambda done, total: display.update(completed=done, total=total),
        )
    return found


def _of_machine(machine: Machine, samples: int | None, name: str, devices: int) -> Forecast:
    """What a strategy takes, for a mini-batch or for an epoch of some samples."""
    from fpgapipe.partition.oracle.machine import ask

    one = ask(machine, name, devices)
    return one.of_epoch(samples) if samples else one


def ask_formulas(network: str | None, options: dict[str, Any], numbers: Sequence[int]) -> Answers:
    """Ask the formulas of ParaDL."""
    from functools import partial

    from fpgapipe.errors import UserError
    from fpgapipe.partition.oracle.paradl import STRATEGIES
    from fpgapipe.partition.oracle.question import Batch

    if options["array"] is not None:
        raise UserError("--array is for prices of the machine: take --model machine")
    names = strategies_of(options["strategies"], list(STRATEGIES), list(STRATEGIES)[1:])
    batch = _batch(options, Batch)
    rows, platform = _layers(network, options)
    per_epoch = network is None or options["samples"] or options["platform"]
    what = f"{platform.samples:,} samples" if per_epoch else "a mini-batch"
    found = Answers(f"{network or options['profile']}, {what}, formulas of ParaDL", bool(per_epoch))
    inside = options["filter_devices"] or FILTER_DEVICES
    micro = options["micro_batches"] or 4
    found.ask(
        names,
        numbers,
        partial(_by_formulas, rows, platform, batch, inside, micro, bool(per_epoch)),
    )
    return found


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
    """What a strategy takes by formulas, in groups of some devices and with some micro-batches."""
    from dataclasses import replace

    from fpgapipe.partition.oracle.paradl import STRATEGIES, Question

    sharers = {"data": devices}.get(name, devices // inside if "+" in name else 1)
    whole = batch.of(max(sharers, 1))
    own = whole // max(sharers, 1)
    known = platform if per_epoch else platform.model_copy(update={"samples": whole})
    told = STRATEGIES[name](Question(rows, known, own, inside, micro), devices)
    seconds = told.compute_s + told.communication_s
    steps = -(-known.samples // whole)
    return replace(
        told, batch=whole, minibatch_s=seconds / steps, epoch_s=seconds if per_epoch else None
    )


def _batch(options: dict[str, Any], batch: Any) -> Any:
    """The mini-batch that is asked about."""
    from fpgapipe.errors import UserError

    if options["batch"] is not None and options["batch_per_device"] is not None:
        raise UserError("--batch is of all devices together, --batch-per-device of one: name one")
    if options["batch"] is not None:
        return batch(options["batch"], per_device=False)
    return batch(options["batch_per_device"] or 64)


def _title(network: str, options: dict[str, Any], by: str) -> str:
    samples = options["samples"]
    what = f"an epoch of {samples:,} samples" if samples else "a mini-batch"
    return f"{network} on {options['board']}, {what}, {by}"


def _layers(network: str | None, options: dict[str, Any]) -> tuple[list[LayerRow], Platform]:
    """The layers and the platform, of a network on a board or from files."""
    from pathlib import Path

    from fpgapipe.boards.cluster import chain_of
    from fpgapipe.boards.library import load_board
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.platform_file import read_platform
    from fpgapipe.host.make.networks import loader
    from fpgapipe.network.load import load_file
    from fpgapipe.partition.oracle.measured_rows import rows_of
    from fpgapipe.partition.oracle.network_rows import rows_of_network
    from fpgapipe.partition.oracle.platform import Platform, PlatformLink

    if network is not None:
        if options["board"] is None or options["profile"] is not None:
            raise UserError("a network needs a --board, whose core gives the times of its layers")
        samples = options["batch_per_device"] or options["batch"] or 64
        graph = loader(network)(samples)
        cluster = chain_of(load_board(options["board"]), 2).spec
        try:
            rows = rows_of_network(graph, cluster.devices[0])
        except ValueError as error:
            raise UserError(str(error)) from None
        if options["platform"] is not None:
            return rows, read_platform(Path(options["platform"]))
        link = cluster.links[0]
        return rows, Platform(
            bytes_per_element=4,
            samples=options["samples"] or 1,
            links=(PlatformLink(bytes_per_s=link.payload_bytes_per_s, latency_s=link.latency_s),),
            shared_uplink=False,
        )
    for name in ("profile", "platform"):
        if options[name] is None:
            raise UserError(f"name a network and a --board, or give --{name}")
    platform = read_platform(Path(options["platform"]))
    profile = load_file(Path(options["profile"]))
    return rows_of(profile, platform.bytes_per_element, platform.input_elements), platform
