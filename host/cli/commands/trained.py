"""Uses of trained weights: ``fpgapipe export``, ``predict``, ``generate``."""

from __future__ import annotations

import re
from typing import Any

import click

import fpgapipe
from fpgapipe.errors import UserError, shown
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import build_folder, command
from fpgapipe.host.cli.options.shared import addresses_option, threads_option
from fpgapipe.host.cli.options.suggestions import BACKENDS
from fpgapipe.host.terminal.console import progress
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
    type=Names(backend_names, hints=BACKENDS),
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


@command("predict", example="fpgapipe predict out/digits-cnn -o digits.csv")
@click.argument("run", metavar="RUN", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--data",
    default="digits",
    metavar="digits|random|FILE.npz|FOLDER",
    help="Samples, as for 'run', or a folder of images whose classes are not known.",
)
@click.option(
    "--samples",
    "part",
    type=click.Choice(["validation", "train", "all"]),
    default="validation",
    help="Which samples of the data are taken.",
)
@click.option("--first", type=ranges.SAMPLES, metavar="N", help="The first N of them only.")
@click.option(
    "--backend",
    type=Names(backend_names, hints=BACKENDS),
    default="model",
    help="What computes: any backend of 'run' for a build for inference (--mode infer); for what "
    "was trained, model or sim, on one device of the build.",
)
@click.option(
    "--step", type=ranges.STEPS, help="Mini-batches of the checkpoint [default: the newest]."
)
@addresses_option
@threads_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write: .csv with a line for each sample, or .json with all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def predict(run: str, output: str | None, as_json: bool, **options: Any) -> None:
    """Say the classes of samples, with probabilities and names of files.

    RUN is a build that was trained, the folder of one of its runs (out/digits-cnn/run/model), or a
    build for inference. If the data say which classes are right, so do the table, the
    JSON and 'fpgapipe report': accuracy by class, which classes are taken for which, and the wrong
    samples of which the network is surest.
    """
    check_outputs({"--output": output})
    found = fpgapipe.predict(run, output=output, progress=progress, **options)
    show(found, as_json=as_json)


@command("generate", example="fpgapipe generate out/char-gpt --prompt 'To be, ' --count 12")
@click.argument("run", metavar="RUN", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--prompt", metavar="TEXT", help="Text to continue, for what was trained with a text."
)
@click.option("--tokens", metavar="1,2,3", help="Tokens to continue, in the place of a text.")
@click.option("--count", type=ranges.TOKENS, default=64, help="Tokens that are chosen.")
@click.option(
    "--temperature",
    type=ranges.TEMPERATURE,
    help="Draw each token; above 1 more evenly than the network has it, below 1 less [default: the "
    "likeliest token, or with --top-k 1].",
)
@click.option(
    "--top-k",
    type=ranges.TOP_K,
    metavar="K",
    help="Draw from the K likeliest tokens [default: all, with --temperature].",
)
@click.option("--seed", type=ranges.SEED, help="Seed of what is drawn [default: 0].")
@click.option(
    "--backend",
    type=Names(backend_names, hints=BACKENDS),
    default="model",
    help="What computes: model or sim, for what was trained on one device of the build.",
)
@click.option(
    "--step", type=ranges.STEPS, help="Mini-batches of the checkpoint [default: the newest]."
)
@threads_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write: .txt, or .json with the probability of each token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def generate(
    run: str,
    prompt: str | None,
    tokens: str | None,
    count: int,
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a text, or a row of tokens, by a network that predicts the token behind each.

    RUN is a build that was trained, the folder of one of its runs (out/char-gpt/run/model), or a
    build for inference. The network must be causal, as GPTs and LSTMs are; this is checked by
    PyTorch.
    """
    if (prompt is None) == (tokens is None):
        raise click.UsageError("give either --prompt or --tokens")
    check_outputs({"--output": output})
    given = _numbers(tokens or "") if prompt is None else prompt
    found = fpgapipe.generate(run, given, count, output=output, progress=progress, **options)
    show(found, as_json=as_json)


def _numbers(text: str) -> list[int]:
    """Tokens, as ``1,2,3``.

    Raises
    ------
    UserError
        If the text has another form.
    """
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text, re.ASCII):
        raise UserError(f"--tokens must be whole numbers such as 1,2,3, not {shown(text)}")
    return [int(each) for each in text.split(",")]
