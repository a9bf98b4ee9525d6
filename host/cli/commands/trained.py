"""What is done with trained weights: ``fpgapipe export`` writes them to a file."""

from __future__ import annotations

import click

import fpgapipe
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import build_folder, command
from fpgapipe.host.terminal.outputs import check_outputs
from fpgapipe.host.terminal.result import show
from fpgapipe.host.transports.opening import backend_names


@command("export", example="fpgapipe export out/digits-cnn -o digits.npz")
@click.argument("run", metavar="RUN", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    help="File to write: .safetensors, .npz, .pt (tensors alone) or .onnx.",
)
@click.option(
    "--backend",
    type=Names(backend_names),
    help="Backend of the run [default: that of the only run].",
)
@click.option(
    "--step", type=ranges.STEPS, help="Mini-batches of the checkpoint [default: the newest]."
)
@click.option(
    "--network",
    metavar="FILE.onnx|MODULE:FUNCTION",
    help="For .onnx, what was built: a build has its layers, not the model. Naming a function runs "
    "the code of its module.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    run: str,
    output: str,
    backend: str | None,
    step: int | None,
    network: str | None,
    as_json: bool,
) -> None:
    """Write the weights of a run for the module that its network came from.

    RUN is a build, or the folder of one of its runs (out/digits-cnn/run/model). The file fits the
    module's load_state_dict, with tied weights under all their names, running statistics and
    counters; networks that came from no module have the names of their layers.
    """
    check_outputs({"--output": output}, [network])
    found = fpgapipe.export(run, output, step=step, backend=backend, network=network)
    show(found, as_json=as_json)
