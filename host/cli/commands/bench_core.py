"""``fpgapipe bench core`` and ``step``: a pass or a training step on the simulated hardware."""

import click

from fpgapipe.errors import UserError
from fpgapipe.host.bench.core_bench import bench_layer, parse_layer
from fpgapipe.host.bench.step_bench import bench_step
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.machine_options import machine_of, machine_options, print_figures
from fpgapipe.host.cli.options.network_names import networks_that_begin
from fpgapipe.host.cli.options.options import command
from fpgapipe.host.terminal.console import progress
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec
from fpgapipe.lowering.products.conv import Pass
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.network.load import load_network


@command("core", example="fpgapipe bench core --rows 8 --cols 8 --layer gemm:m=64,n=64,k=64")
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
    help="Pass to run: forward, gradient of the input, or gradient of the weights.",
)
@machine_options
def core(layer: str, which: Pass, as_json: bool, **machine: int) -> int:
    """Run one pass of LAYER on the training core's hardware, on random data.

    The core, its Verilog compiled by Verilator, runs the layer's program with a model of the memory
    behind its bus; every byte of the memory is compared with the bit-exact model's afterwards.

    A layer is gemm:m=512,n=512,k=512 (m vectors of k elements to n) or
    conv:cin=64,cout=64,k=3,stride=1,pad=1,h=56,w=56,batch=1; stride, pad, dilation and batch may be
    left out, and k=3x5, for instance, is a kernel of 3 rows and 5 columns.

    cycles counts from the command that starts the program to the last word written to memory,
    both included; utilisation is macs / (cycles x rows x cols). Exit code 1 if a byte differs.
    """
    conv = parse_layer(layer)
    spec, memory = machine_of(machine, 4)
    try:
        with progress() as display:
            display.add_task("simulating cycles")
            found = bench_layer(
                conv, which, spec, seed=machine["seed"], memory=memory, progress=display.count
            )
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    print_figures(found.to_dict(), found.matches_model, layer, as_json)
    return 0 if found.matches_model else 1


@command("step", example="fpgapipe bench step --network digits-cnn --rows 8 --cols 8 --batch 2")
@click.option(
    "--network",
    shell_complete=networks_that_begin,
    default="digits-cnn",
    help="Network to run: a name or a file, as for 'inspect'.",
)
@click.option("--batch", type=ranges.SAMPLES_SIMULATED, default=32, help="Samples in a mini-batch.")
@click.option(
    "--features",
    type=click.Choice(["bf16", "fp32"]),
    default="bf16",
    help="Format of features and their gradients in memory.",
)
@machine_options
def step(network: str, batch: int, features: str, as_json: bool, **machine: int) -> int:
    """Run one training step of NETWORK on the training core's hardware, on random data.

    Forward pass, loss (softmax with cross-entropy), backward pass and an update by SGD with
    momentum run from one program on the Verilated core, and in the bit-exact model; every byte of
    the memory is compared. Matrix products are held to what MXINT8 rounding may do to them, and
    loss and gradients are put beside PyTorch's.

    cycles counts from the command that starts the program to the last word written to memory, both
    included; gemm_busy is the share of them in which the GEMM engine had work. Exit code 1 if a
    byte differs, or a product exceeds its bound.
    """
    graph = load_network(network, batch)
    spec, memory = machine_of(machine, 8, vector=VectorSpec())
    try:
        with progress() as display:
            display.add_task("simulating cycles")
            found = bench_step(
                graph,
                spec,
                seed=machine["seed"],
                options=StepOptions(activations=ElementFormat(features.upper())),
                memory=memory,
                progress=display.count,
            )
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    figures = found.to_dict()
    print_figures(figures, figures["matches_model"], network, as_json)
    return 0 if figures["matches_model"] and figures["product_error_of_bound"] <= 1 else 1
