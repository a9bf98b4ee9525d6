"""``fpgapipe bench``: measurements on the simulated hardware."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.commands.bench_link import link
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.completion import networks_that_begin
from fpgapipe.host.cli.options.options import command

if TYPE_CHECKING:
    from fpgapipe.host.bench.cluster_bench import ClusterBench

_EXAMPLE = "fpgapipe bench core --rows 8 --cols 8 --layer gemm:m=64,n=64,k=64"
_CLUSTER_EXAMPLE = "fpgapipe bench cluster --rows 4 --cols 4 --devices 2 --vectors 8 --width 32"
_STEP_EXAMPLE = "fpgapipe bench step --network digits-cnn --rows 8 --cols 8 --batch 2"


@click.group("bench", epilog=f"Example: {_EXAMPLE}")
def bench() -> None:
    """Measure the simulated hardware, and check it against its model."""


_MACHINE = (
    ("--rows", ranges.Whole(1, 128), 32, "Rows of cells of the systolic array."),
    ("--cols", ranges.Whole(1, 128), 32, "Columns of cells of the systolic array."),
    (
        "--memory-bytes-per-cycle",
        ranges.Whole(1, 4096),
        64,
        "Bytes that the memory moves in a cycle, reads and writes together.",
    ),
    (
        "--memory-latency",
        ranges.Whole(1, 1 << 20),
        100,
        "Cycles from a read request to its first data.",
    ),
    (
        "--scratchpad-bytes",
        ranges.Whole(1024, 1 << 26),
        1 << 21,
        "Bytes of on-chip memory; a power of two.",
    ),
    (
        "--acc-depth",
        ranges.Whole(16, 65_536),
        1024,
        "Accumulators below each column; a power of two.",
    ),
    ("--seed", ranges.SEED, 0, "Number that decides the random data."),
)
"""Options of the simulated core and its memory: name, range, default, help."""


def _machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `_MACHINE`, and ``--json``."""
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)
    for name, kind, default, text in reversed(_MACHINE):
        click.option(name, type=kind, default=default, show_default=True, help=text)(function)
    return function


@command("core", example=_EXAMPLE)
@click.option(
    "--layer",
    required=True,
    help="Layer to run, as gemm:m=..,n=..,k=.. or conv:cin=..,cout=..,k=..,...",
)
@click.option(
    "--pass",
    "which",
    type=click.Choice(["forward", "input", "weight"]),
    default="forward",
    show_default=True,
    help="Pass to run: forward, gradient of the input, or gradient of the weights.",
)
@_machine_options
def core(
    rows: int,
    cols: int,
    layer: str,
    which: str,
    seed: int,
    memory_bytes_per_cycle: int,
    memory_latency: int,
    scratchpad_bytes: int,
    acc_depth: int,
    as_json: bool,
) -> int:
    """Run one pass of LAYER on the training core's hardware, on random data.

    The core, its Verilog compiled by Verilator, runs the layer's program with a model of the memory
    behind its bus; every byte of the memory is compared with the bit-exact model's afterwards.

    A layer is gemm:m=512,n=512,k=512 (m vectors of k elements to n) or
    conv:cin=64,cout=64,k=3,stride=1,pad=1,h=56,w=56,batch=1; stride, pad, dilation and batch may be
    left out, and k=3x5, for instance, is a kernel of 3 rows and 5 columns.

    cycles counts from the command that starts the program to the last word written to memory,
    both included; utilisation is macs / (cycles x rows x cols). Exit code 1 if a byte differs.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.bench.core_bench import bench_layer, parse_layer
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec

    conv = parse_layer(layer)
    try:
        spec = CoreSpec(
            rows,
            cols,
            acc_depth=acc_depth,
            scratchpad=ScratchpadSpec(4, scratchpad_bytes // 4),
        )
        memory = MemorySpec(memory_bytes_per_cycle, memory_latency)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        with progress() as display:
            display.add_task("simulating cycles")
            found = bench_layer(
                conv,
                which,  # type: ignore[arg-type]
                spec,
                seed=seed,
                memory=memory,
                progress=lambda done, total: display.update(completed=done, total=total),
            )
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    _print(found.to_dict(), found.matches_model, layer, as_json)
    return 0 if found.matches_model else 1


@command("step", example=_STEP_EXAMPLE)
@click.option(
    "--network",
    shell_complete=networks_that_begin,
    default="digits-cnn",
    show_default=True,
    help="Network to run: a name or a file, as for 'inspect'.",
)
@click.option(
    "--batch",
    type=ranges.SAMPLES_SIMULATED,
    default=32,
    show_default=True,
    help="Samples in a mini-batch.",
)
@click.option(
    "--features",
    type=click.Choice(["bf16", "fp32"]),
    default="bf16",
    show_default=True,
    help="Format of features and their gradients in memory.",
)
@_machine_options
def step(
    network: str,
    batch: int,
    features: str,
    rows: int,
    cols: int,
    seed: int,
    memory_bytes_per_cycle: int,
    memory_latency: int,
    scratchpad_bytes: int,
    acc_depth: int,
    as_json: bool,
) -> int:
    """Run one training step of NETWORK on the training core's hardware, on random data.

    Forward pass, loss (softmax with cross-entropy), backward pass and an update by SGD with
    momentum run from one program on the Verilated core, and in the bit-exact model; every byte of
    the memory is compared. Matrix products are held to what MXINT8 rounding may do to them, and
    loss and gradients are put beside PyTorch's.

    cycles counts from the command that starts the program to the last word written to memory, both
    included; gemm_busy is the share of them in which the GEMM engine had work. Exit code 1 if a
    byte differs, or a product exceeds its bound.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.bench.step_bench import bench_step
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.network.load import load_network

    graph = load_network(network, batch)
    try:
        spec = CoreSpec(
            rows,
            cols,
            acc_depth=acc_depth,
            scratchpad=ScratchpadSpec(8, scratchpad_bytes // 8),
            vector=VectorSpec(),
        )
        memory = MemorySpec(memory_bytes_per_cycle, memory_latency)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        with progress() as display:
            display.add_task("simulating cycles")
            found = bench_step(
                graph,
                spec,
                seed=seed,
                options=StepOptions(activations=ElementFormat(features.upper())),
                memory=memory,
                progress=lambda done, total: display.update(completed=done, total=total),
            )
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    figures = found.to_dict()
    _print(figures, figures["matches_model"], network, as_json)
    return 0 if figures["matches_model"] and figures["product_error_of_bound"] <= 1 else 1


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


def _cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `_CLUSTER`."""
    for name, kind, default, text in reversed(_CLUSTER):
        click.option(name, type=kind, default=default, show_default=True, help=text)(function)
    return function


@command("cluster", example=_CLUSTER_EXAMPLE)
@_cluster_options
@click.option(
    "--threads",
    type=ranges.THREADS,
    help="Threads for the simulation [default: one for each processor].",
)
@click.option(
    "--bit-error-rate",
    type=ranges.ERROR_RATE,
    default=0.0,
    show_default=True,
    help="Share of the bits that the wires flip, from 0 to below 1.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="Write the counters over time to this file, for Perfetto.",
)
@_machine_options
def cluster(
    devices: int,
    rounds: int,
    vectors: int,
    width: int,
    latency: int,
    wire_bytes_per_cycle: int,
    sample_cycles: int,
    threads: int | None,
    bit_error_rate: float,
    trace: str | None,
    rows: int,
    cols: int,
    seed: int,
    memory_bytes_per_cycle: int,
    memory_latency: int,
    scratchpad_bytes: int,
    acc_depth: int,
    as_json: bool,
) -> int:
    """Run a chain of training cores on simulated hardware, links included, on random data.

    Each device multiplies its operand by a matrix of its own and sends the result to the next one,
    round by round. All devices are clocked together, each in some thread; every byte of their
    memories is compared with the bit-exact model's afterwards. Wires may lose and damage frames,
    which the links send again.

    cycles counts from the command that starts the first program to the end of the last. The same
    options give the same cycles and the same digest, whatever the number of threads. A trace is
    Chrome's JSON, for ui.perfetto.dev. Exit code 1 if a byte differs.
    """
    from fpgapipe.errors import UserError
    from fpgapipe.host.bench.cluster_bench import bench_chain, chain_core, make_chain
    from fpgapipe.host.terminal.console import progress
    from fpgapipe.host.terminal.outputs import check_outputs, write_output
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
    from fpgapipe.sim_tb.native.phy import WireSpec

    check_outputs({"--trace": trace})
    try:
        core = chain_core(
            rows, cols, acc_depth=acc_depth, scratchpad=ScratchpadSpec(4, scratchpad_bytes // 4)
        )
        memory = MemorySpec(memory_bytes_per_cycle, memory_latency)
        wire = WireSpec(
            phy_bytes=core.links[0].phy_bytes,
            bytes_per_cycle=wire_bytes_per_cycle,
            latency_cycles=latency,
            bit_error_rate=bit_error_rate,
            seed=seed,
        )
        chain = make_chain(core, devices, rounds, vectors, width, memory)
    except (ValueError, NotImplementedError) as error:
        raise UserError(str(error)) from None
    with progress() as display:
        display.add_task("simulating cycles", total=chain.expected_cycles)
        found = bench_chain(
            chain,
            wire=wire,
            memory=memory,
            seed=seed,
            threads=threads,
            sample_cycles=sample_cycles if trace else 0,
            progress=lambda now: display.update(
                completed=now.ran, total=max(now.ran, chain.expected_cycles)
            ),
        )
    _print(found.to_dict(), found.matches_model, f"{devices} devices", as_json)
    if trace:
        write_output(trace, _trace_of(found))
    return 0 if found.matches_model else 1


def _trace_of(found: "ClusterBench") -> str:
    """JSON text of a trace with the samples of a run."""
    import json

    from fpgapipe.host.report.drawing.cluster_trace import counter_trace

    names = [f"device{number}" for number in range(len(found.chain.programs))]
    return json.dumps(counter_trace(found.samples, names, _CLOCK_HZ))


def _print(figures: Mapping[str, Any], matches: bool, title: str, as_json: bool) -> None:
    """Print all figures as JSON, or those that are numbers as a table."""
    from fpgapipe.host.terminal.console import Column, count, print_json, print_table

    if as_json:
        print_json(figures)
        return
    rows = [
        (name, count(value) if isinstance(value, int) else f"{value:.4g}")
        for name, value in figures.items()
        if not isinstance(value, (dict, bool, str))
    ]
    rows.append(("matches model", "yes" if matches else "NO"))
    print_table([Column("figure"), Column("value", number=True)], rows, title)


bench.add_command(core)
bench.add_command(link)
bench.add_command(step)
bench.add_command(cluster)
