"""``fpgapipe oracle``: what parallel strategies take over numbers of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.partition.oracle.paradl import LayerRow
    from fpgapipe.partition.oracle.platform import Platform

MOST_DEVICES = 65_536
"""Most devices that may be asked for."""


@command(
    "oracle",
    example="fpgapipe oracle vgg16 --board u280 --model paradl --devices 2,4,8",
)
@click.argument("network", required=False)
@click.option("--board", metavar="NAME", help="Board whose core and links a network has.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    default=50_000,
    show_default=True,
    help="Samples of an epoch, for a network.",
)
@click.option("--profile", metavar="FILE", help="Measured times and bytes of a sample, as CSV.")
@click.option(
    "--model",
    type=click.Choice(["paradl", "machine"]),
    default="machine",
    show_default=True,
    help="The formulas of the paper, or prices of the machine.",
)
@click.option("--platform", metavar="FILE", help="Links, element size and samples, as YAML.")
@click.option(
    "--batch-per-device",
    type=ranges.SAMPLES,
    default=64,
    show_default=True,
    help="Samples of a batch for each device of the data axis.",
)
@click.option(
    "--devices",
    metavar="N,N,..",
    default="1,2,4,8",
    show_default=True,
    help="Numbers of devices that are asked about.",
)
@click.option(
    "--filter-devices",
    type=ranges.MICROBATCHES,
    default=4,
    show_default=True,
    help="Devices that share the filters of a layer in data+filter.",
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    default=4,
    show_default=True,
    help="Micro-batches of a pipeline.",
)
@click.option(
    "--strategies",
    metavar="NAME,..",
    help="Names of the strategies that are asked about [default: all].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def oracle(network: str | None, **options: Any) -> None:
    """Foretell time, memory and limits of parallel strategies over numbers of devices.

    Seconds are those of an epoch. NETWORK is as for 'inspect', with times of layers by formulas for
    the core of a --board. A --profile has the columns of 'plan --profile', per sample.
    """
    from fpgapipe.errors import UserError, nearest
    from fpgapipe.host.terminal.console import Column, print_json, print_table, scaled
    from fpgapipe.partition.oracle.paradl import STRATEGIES, Question

    if options["model"] == "machine":
        raise UserError(
            "the oracle has no prices of the machine yet: take --model paradl; 'fpgapipe compare' "
            "times strategies on boards"
        )
    names = list(STRATEGIES)[1:]
    if options["strategies"]:
        names = options["strategies"].split(",")
    for name in names:
        if name not in STRATEGIES:
            raise UserError(f"there is no strategy {name!r}{nearest(name, tuple(STRATEGIES))}")
    rows, platform = _asked(network, options)
    question = Question(
        rows,
        platform,
        options["batch_per_device"],
        options["filter_devices"],
        options["micro_batches"],
    )
    found, refused = [], []
    for name in names:
        for devices in _numbers(options["devices"]):
            try:
                found.append(STRATEGIES[name](question, devices))
            except (UserError, NotImplementedError) as error:
                refused.append(f"{name} on {devices}: {error}")
    if not found:
        raise UserError("\n".join(dict.fromkeys(refused)))
    if options["as_json"]:
        print_json({"strategies": [vars(each) for each in found], "refused": refused})
        return
    print_table(
        [
            Column("strategy"),
            *(Column(text, True) for text in ("devices", "compute", "communication", "memory")),
            Column("at most", True),
            Column("limited by"),
        ],
        [
            (
                each.name,
                each.devices,
                scaled(each.compute_s, "s"),
                scaled(each.communication_s, "s"),
                scaled(each.memory_bytes, "B", 1024),
                "-" if each.max_devices is None else each.max_devices,
                each.limiter,
            )
            for each in found
        ],
        f"an epoch of {platform.samples:,} samples, by the formulas of ParaDL",
    )
    for reason in dict.fromkeys(refused):
        print(f"left out: {reason}")


def _asked(network: str | None, options: dict[str, Any]) -> tuple[list[LayerRow], Platform]:
    """The layers and the platform, of a network on a board or from files."""
    from pathlib import Path

    from fpgapipe.boards.cluster import chain_of
    from fpgapipe.boards.library import load_board
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.planning import loader
    from fpgapipe.host.cli.options.platform_file import read_platform
    from fpgapipe.network.load import load_file
    from fpgapipe.partition.oracle.measured_rows import rows_of
    from fpgapipe.partition.oracle.network_rows import rows_of_network
    from fpgapipe.partition.oracle.platform import Platform, PlatformLink

    if network is not None:
        if options["board"] is None or options["profile"] is not None:
            raise UserError("a network needs a --board, whose core gives the times of its layers")
        graph = loader(network)(options["batch_per_device"])
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
            samples=options["samples"],
            links=(PlatformLink(bytes_per_s=link.payload_bytes_per_s, latency_s=link.latency_s),),
            shared_uplink=False,
        )
    for name in ("profile", "platform"):
        if options[name] is None:
            raise UserError(f"name a network and a --board, or give --{name}")
    platform = read_platform(Path(options["platform"]))
    profile = load_file(Path(options["profile"]))
    return rows_of(profile, platform.bytes_per_element, platform.input_elements), platform


def _numbers(text: str) -> list[int]:
    """Numbers of devices, as they are asked for."""
    from fpgapipe.errors import UserError, shown

    found = []
    for part in text.split(","):
        if not part.strip().isascii() or not part.strip().isdecimal() or len(part) > 9:
            raise UserError(f"--devices must be numbers such as 2,4,8, not {shown(text)}")
        number = int(part)
        if not 1 <= number <= MOST_DEVICES:
            raise UserError(f"--devices must be in 1..{MOST_DEVICES:,}, not {number}")
        found.append(number)
    return found
