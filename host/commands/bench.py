"""``fpgapipe bench``: measurements on the simulated hardware."""

import click

from fpgapipe.host.commands.options import command

_EXAMPLE = "fpgapipe bench core --rows 8 --cols 8 --layer gemm:m=64,n=64,k=64"


@click.group("bench", epilog=f"Example: {_EXAMPLE}")
def bench() -> None:
    """Measure the simulated hardware, and check it against its model."""


@command("core", example=_EXAMPLE)
@click.option("--rows", type=click.IntRange(1), default=32, show_default=True, help="Of the array.")
@click.option("--cols", type=click.IntRange(1), default=32, show_default=True, help="Of the array.")
@click.option("--layer", required=True, help="gemm:m=..,n=..,k=.. or conv:cin=..,cout=..,k=..,...")
@click.option(
    "--pass",
    "which",
    type=click.Choice(["forward", "input", "weight"]),
    default="forward",
    show_default=True,
    help="Forward, input gradient or weight gradient.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the data.")
@click.option(
    "--memory-bytes-per-cycle",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Of the memory, both directions together.",
)
@click.option(
    "--memory-latency",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Cycles from a read request to its data.",
)
@click.option(
    "--scratchpad-bytes",
    type=click.IntRange(1024),
    default=1 << 21,
    show_default=True,
    help="On-chip memory, in four banks; a power of two.",
)
@click.option(
    "--acc-depth",
    type=click.IntRange(16),
    default=1024,
    show_default=True,
    help="Accumulators below each column; a power of two.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    from fpgapipe.host.console import Column, count, print_json, print_table, progress
    from fpgapipe.host.core_bench import bench_layer, parse_layer
    from fpgapipe.hw.hls_models.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.core_spec import CoreSpec, ScratchpadSpec

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
            task = display.add_task("simulating cycles", total=None)
            found = bench_layer(
                conv,
                which,  # type: ignore[arg-type]
                spec,
                seed=seed,
                memory=memory,
                progress=lambda done, total: display.update(task, completed=done, total=total),
            )
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    figures = found.to_dict()
    if as_json:
        print_json(figures)
    else:
        rows_of_table = [
            (name, count(value) if isinstance(value, int) else f"{value:.4g}")
            for name, value in figures.items()
            if not isinstance(value, (dict, bool, str))
        ]
        rows_of_table.append(("matches model", "yes" if found.matches_model else "NO"))
        print_table([Column("figure"), Column("value", number=True)], rows_of_table, layer)
    return 0 if found.matches_model else 1


bench.add_command(core)
