"""``fpgapipe bench link``: a link between two devices, measured on the simulated hardware."""

import re
from fractions import Fraction

import click

from fpgapipe.errors import UserError, shown
from fpgapipe.host.bench.link_bench import bench_link
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.machine_options import number_options
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.console import Table, count, print_json, progress
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.sim_tb.native.phy import WireSpec

_SLOTS = re.compile(r"\d{1,9}(,\d{1,9}){2}", re.ASCII)
_RATE = re.compile(r"\d{1,9}(\.\d{1,9}|/0*[1-9]\d{0,8})?", re.ASCII)
"""Pattern of a rate. Exponents are refused, since a `Fraction` would store all of their digits."""

_OPTIONS = (
    (
        "--frame-words",
        ranges.Whole(1, 32),
        16,
        "Words of 64 bytes of a full frame; a power of two.",
    ),
    ("--latency", ranges.Whole(1, 1 << 20), 128, "Cycles from one end of the wire to the other."),
    (
        "--probe-cycles",
        ranges.Whole(16, 65_535),
        256,
        "Cycles after which an end that waits asks the other one for news.",
    ),
    ("--cycles", ranges.Whole(1000, 10**9), 200_000, "Cycles of each of the two measurements."),
    ("--seed", ranges.SEED, 0, "Number that decides the random words and the errors of the wire."),
)
"""Options that are whole numbers: name, range, default, help."""


@command("link", example="fpgapipe bench link --bit-error-rate 1e-6 --cycles 20000")
@click.option(
    "--phy-bytes",
    type=click.Choice(["4", "8", "16", "32", "64"]),
    default="16",
    help="Bytes that the port to the transceiver carries in one beat, which is one cycle.",
)
@click.option(
    "--bytes-per-cycle",
    help="Bytes that the wire carries in a cycle, as 16 or 125/3 [default: as many as the port].",
)
@click.option(
    "--slots",
    default="32,32,8",
    help="Frames buffered for each of the three channels at either end.",
)
@click.option(
    "--bit-error-rate",
    type=ranges.ERROR_RATE,
    default=0.0,
    help="Share of the bits that the wire flips, from 0 to below 1.",
)
@number_options(_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def link(
    phy_bytes: str,
    bytes_per_cycle: str | None,
    slots: str,
    bit_error_rate: float,
    as_json: bool,
    **given: int,
) -> int:
    """Run both ends of a link on the simulated hardware, on random words, and measure it.

    All three channels are saturated, first in both directions and then in one; every word that
    leaves is compared with the one that was sent, and one that is lost, repeated, out of order or
    wrong ends the command with an error.

    efficiency is bytes of words over bytes that the line can carry, of the worse direction;
    word_cycles is what one word takes through an idle link, the wire's latency included.
    """
    rate_text = bytes_per_cycle or phy_bytes
    if not (_SLOTS.fullmatch(slots) and _RATE.fullmatch(rate_text)):
        raise UserError(
            f"slots must be three whole numbers and bytes per cycle a number, such as 16 or 125/3, "
            f"not {shown(slots)} and {shown(rate_text)}"
        )
    numbers, rate = tuple(map(int, slots.split(","))), Fraction(rate_text)
    try:
        spec = LinkEngineSpec(int(phy_bytes), given["frame_words"], numbers, given["probe_cycles"])
        wire = WireSpec(
            phy_bytes=spec.phy_bytes,
            bytes_per_cycle=rate,
            latency_cycles=given["latency"],
            bit_error_rate=bit_error_rate,
            seed=given["seed"],
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    with progress() as display:
        display.add_task("simulating a link")
        found = bench_link(spec, wire, cycles=given["cycles"], progress=display.count)
    figures = found.to_dict()
    if as_json:
        print_json(figures)
        return 0
    rows = [
        (name, count(value) if isinstance(value, int) else f"{value:.4g}")
        for name, value in (figures | figures["events"]).items()
        if isinstance(value, (int, float))
    ]
    title = f"link of {spec.phy_bytes} bytes a beat, slots {slots}"
    Table("figure|>value", rows, title).print()
    return 0
