"""``fpgapipe profile``: measures the parts of a network in PyTorch."""

from __future__ import annotations

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.outputs import check_outputs, write_output
from fpgapipe.host.terminal.result import show


@command("profile", example="fpgapipe profile lenet5 --samples 8 -o lenet5.csv")
@click.argument("network")
@click.option(
    "--samples", type=ranges.SAMPLES, default=8, help="Samples of a micro-batch.", show_default=True
)
@click.option(
    "--device",
    default="auto",
    help="Where PyTorch computes: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
)
@click.option(
    "--repeats",
    type=ranges.STEPS,
    default=10,
    help="Passes of which the times are the medians.",
)
@click.option("--threads", type=ranges.THREADS, help="Threads on a processor [default: 1].")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the times to this file, as CSV for 'plan --profile'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(
    network: str,
    samples: int,
    device: str,
    repeats: int,
    threads: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure in PyTorch how long the parts of NETWORK take on this machine.

    NETWORK is as for 'inspect'. 'plan --profile' cuts it into stages by these times, and 'run' of
    that plan with --backend torch trains it in a process for each stage.
    """
    check_outputs({"--output": output}, (network,))
    found = fpgapipe.profile(
        network,
        samples=samples,
        device=device,
        repeats=repeats,
        threads=threads,
        progress=progress,
    )
    if output:
        write_output(output, found.to_csv())
    show(found, as_json=as_json)
