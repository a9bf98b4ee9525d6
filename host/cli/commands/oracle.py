"""``fpgapipe oracle``: what parallel strategies take over numbers of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.host.cli.options.oracle_answers import Answers

MOST_DEVICES = 65_536
"""Most devices that may be asked for."""


@command(
    "oracle",
    example="fpgapipe oracle digits-cnn --board u280 --array 8x8 --devices 1,2,4 --plot speed.svg",
    lowers=True,
)
@click.argument("network", required=False)
@click.option("--board", metavar="NAME", help="Board whose core and links a network has.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    help="Samples of an epoch, for a network; seconds are then those of an epoch.",
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
    help="Samples of a mini-batch for each device of the data axis [default: 64].",
)
@click.option(
    "--batch", type=ranges.SAMPLES, help="Samples of a mini-batch, of all devices together."
)
@click.option("--array", metavar="RxC", help="Rows and columns of each device's array of cells.")
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
    help="Devices that share the filters, or an image, in data+filter and data+spatial [default: "
    "the fastest of several; of formulas, 4].",
)
@click.option(
    "--micro-batches",
    type=ranges.MICROBATCHES,
    help="Micro-batches of a mini-batch [default: the best of several; of formulas, 4].",
)
@click.option(
    "--strategies",
    metavar="NAME,..",
    help="Names of the strategies that are asked about [default: all].",
)
@click.option(
    "--plot",
    multiple=True,
    metavar="FILE",
    help="Draw speed over the number of devices, as .svg or .html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def oracle(network: str | None, **options: Any) -> None:
    """Foretell time, memory and limits of parallel strategies over numbers of devices.

    NETWORK is as for 'inspect', on boards of one kind in a chain: data parallelism and pipelines
    take what their plans take, shards of layers are priced by programs. Seconds are those of a
    mini-batch, or of an epoch of --samples. --model paradl takes the formulas of the paper, with
    times of layers by formulas for the core of a --board, or of a --profile with the columns of
    'plan --profile', per sample.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.cli.options.oracle_answers import ask_formulas, ask_machine
    from fpgapipe.host.report.pages.oracle_plot import write_plots
    from fpgapipe.host.terminal.console import print_json
    from fpgapipe.host.terminal.outputs import check_outputs

    numbers = _numbers(options["devices"])
    plots = {f"--plot ({number})": name for number, name in enumerate(options["plot"])}
    check_outputs(plots, (network, options["profile"], options["platform"]))
    for name in options["plot"]:
        if not name.endswith((".svg", ".html")):
            raise UserError(f"--plot must name an .svg or .html file, not {name}")
    ask = ask_machine if options["model"] == "machine" else ask_formulas
    answers = ask(network, options, numbers)  # type: ignore[arg-type]
    if not answers.found:
        raise UserError("\n".join(answers.reasons))
    write_plots(options["plot"], answers.found, answers.title)
    if options["as_json"]:
        print_json(
            {
                "per": "epoch" if answers.per_epoch else "mini-batch",
                "strategies": [{**vars(each), "sentence": each.sentence} for each in answers.found],
                "refused": answers.reasons,
            }
        )
        return
    _print(answers)


def _print(answers: Answers) -> None:
    """Print a table, and a sentence for each strategy on the most devices."""
    from fpgapipe.host.terminal.console import Column, print_table, scaled

    print_table(
        [
            Column("strategy"),
            *(
                Column(text, True)
                for text in ("devices", "batch", "compute", "communication", "mini-batch")
            ),
            *([Column("epoch", True)] if answers.per_epoch else []),
            *(Column(text, True) for text in ("memory", "at most")),
            Column("by"),
        ],
        [
            (
                each.name,
                each.devices,
                each.batch,
                scaled(each.compute_s, "s"),
                scaled(each.communication_s, "s"),
                scaled(each.minibatch_s or 0.0, "s"),
                *([scaled(each.epoch_s or 0.0, "s")] if answers.per_epoch else []),
                scaled(each.memory_bytes, "B", 1024),
                "-" if each.max_devices is None else each.max_devices,
                each.level,
            )
            for each in answers.found
        ],
        answers.title,
    )
    print()
    last = {each.name: each for each in answers.found}
    for each in last.values():
        print(each.sentence)
    for reason in answers.reasons:
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
