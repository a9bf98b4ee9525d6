"""``fpgapipe bench cluster``: a chain of cores, measured on the simulated hardware."""

import json
from typing import Any

import click

from fpgapipe.errors import UserError, counted
from fpgapipe.host.bench.cluster_bench import bench_chain, chain_core, make_chain
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.machine_options import (
    machine_of,
    machine_options,
    number_options,
    print_figures,
)
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.cli.options.shared import threads_option
from fpgapipe.host.report.drawing.cluster_trace import counter_trace
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.outputs import check_outputs, write_output
from fpgapipe.sim_tb.native.phy import WireSpec

_CLUSTER_EXAMPLE = "fpgapipe bench cluster --rows 4 --cols 4 --devices 2 --vectors 8 --width 32"

_CLUSTER = (
    ("--devices", ranges.Whole(1, 64), 4, "Devices in the chain."),
    (
        "--rounds",
        ranges.Whole(1, 4096),
        6,
        "Operands that go through the chain, one after the other.",
    ),
    ("--vectors", ranges.Whole(1, 1 << 16), 128, "Vectors of an operand."),
    ("--width", ranges.Whole(32, 1 << 14), 256, "Elements of a vector; a multiple of 32."),
    ("--latency", ranges.Whole(1, 1 << 20), 128, "Cycles from one end of a wire to the other."),
    (
        "--wire-bytes-per-cycle",
        ranges.Whole(1, 1 << 20),
        16,
        "Bytes that a wire carries in a cycle, each way.",
    ),
    (
        "--sample-cycles",
        ranges.Whole(256, 10**9),
        2000,
        "Cycles from sample to sample of the counters that --trace writes.",
    ),
)
"""Options of a chain: name, range, default, help."""

_CLOCK_HZ = 300e6
"""Clock frequency with which cycles are converted to the microseconds of a trace, Hz."""


@command("cluster", example=_CLUSTER_EXAMPLE)
@number_options(_CLUSTER)
@threads_option
@click.option(
    "--bit-error-rate",
    type=ranges.ERROR_RATE,
    default=0.0,
    help="Share of the bits that the wires flip, from 0 to below 1.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="Write the counters over time to this file, for Perfetto.",
)
@machine_options
def cluster(threads: int | None, trace: str | None, as_json: bool, **given: Any) -> int:
    """Run a chain of training cores on simulated hardware, links included, on random data.

    Each device multiplies its operand by a matrix of its own and sends the result to the next one,
    round by round. All devices are clocked together, each in some thread; every byte of their
    memories is compared with the bit-exact model's afterwards. Wires may lose and damage frames,
    which the links send again.

    cycles counts from the command that starts the first program to the end of the last. The same
    options give the same cycles and the same digest, whatever the number of threads. A trace is
    Chrome's JSON, for ui.perfetto.dev. Exit code 1 if a byte differs.
    """
    check_outputs({"--trace": trace})
    core, memory = machine_of(given, 4, chain_core)
    try:
        wire = WireSpec(
            phy_bytes=core.links[0].phy_bytes,
            bytes_per_cycle=given["wire_bytes_per_cycle"],
            latency_cycles=given["latency"],
            bit_error_rate=given["bit_error_rate"],
            seed=given["seed"],
        )
        rounds, vectors, width = (given[name] for name in ("rounds", "vectors", "width"))
        chain = make_chain(core, given["devices"], rounds, vectors, width, memory)
    except (ValueError, NotImplementedError) as error:
        raise UserError(str(error)) from None
    with progress() as display:
        display.add_task("simulating cycles", total=chain.expected_cycles)
        found = bench_chain(
            chain,
            wire=wire,
            memory=memory,
            seed=given["seed"],
            threads=threads,
            sample_cycles=given["sample_cycles"] if trace else 0,
            progress=lambda ran: display.update(
                completed=ran, total=max(ran, chain.expected_cycles)
            ),
        )
    print_figures(
        found.to_dict(), found.matches_model, counted(given["devices"], "device"), as_json
    )
    if trace:
        names = [f"device{number}" for number in range(len(found.chain.programs))]
        write_output(trace, json.dumps(counter_trace(found.samples, names, _CLOCK_HZ)))
    return 0 if found.matches_model else 1
