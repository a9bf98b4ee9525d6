"""``fpgapipe oracle``: what parallel strategies take over numbers of devices."""

from __future__ import annotations

from typing import Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import command

MOST_DEVICES = 65_536
"""Most devices that may be asked for."""


@command(
    "oracle",
    example="fpgapipe oracle --profile p.csv --model paradl --platform p.yaml "
    "--batch-per-device 64 --devices 2,4,8",
)
@click.argument("network", required=False)
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
    "--batch-per-device", type=ranges.SAMPLES, default=64, show_default=True, help="Samples."
)
@click.option("--devices", metavar="N,N,..", default="1,2,4,8", show_default=True, help="Devices.")
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
@click.option("--strategies", metavar="NAME,..", help="Some strategies [default: all].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def oracle(network: str | None, **options: Any) -> None:
    """Foretell time, memory and limits of parallel strategies over numbers of devices.

    Seconds are those of an epoch. A profile has the columns of 'plan --profile', per sample.
    """
    from pathlib import Path

    from fpgapipe.errors import UserError, nearest
    from fpgapipe.host.cli.options.platform_file import read_platform
    from fpgapipe.host.terminal.console import Column, print_json, print_table, scaled
    from fpgapipe.network.load import load_file
    from fpgapipe.partition.oracle.measured_rows import rows_of
    from fpgapipe.partition.oracle.paradl import STRATEGIES, Question

    if network is not None or options["model"] == "machine":
        raise UserError(
            "the oracle has no prices of the machine yet: take --profile, --platform and --model "
            "paradl; 'fpgapipe compare' times strategies on boards"
        )
    for name in ("profile", "platform"):
        if options[name] is None:
            raise UserError(f"--model paradl needs --{name}")
    names = list(STRATEGIES)[1:]
    if options["strategies"]:
        names = options["strategies"].split(",")
    for name in names:
        if name not in STRATEGIES:
            raise UserError(f"there is no strategy {name!r}{nearest(name, tuple(STRATEGIES))}")
    platform = read_platform(Path(options["platform"]))
    profile = load_file(Path(options["profile"]))
    question = Question(
        rows_of(profile, platform.bytes_per_element, platform.input_elements),
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
