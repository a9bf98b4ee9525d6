"""``fpgapipe run``: trains or infers on a build, in simulation, model or PyTorch.

Of a file of a plan, it trains the stages in processes of PyTorch.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import fpgapipe
from fpgapipe.errors import counted
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.changes import parse_changes
from fpgapipe.host.cli.options.names import Names
from fpgapipe.host.cli.options.options import build_folder, command
from fpgapipe.host.cli.options.shared import addresses_option, momentum_option, threads_option
from fpgapipe.host.cli.options.suggestions import BACKENDS
from fpgapipe.host.terminal.console import progress
from fpgapipe.host.terminal.outputs import check_folder_there
from fpgapipe.host.terminal.result import show
from fpgapipe.host.transports.opening import backend_names

EXIT_TIME = 75  # EX_TEMPFAIL of sysexits.h: the same command with --resume goes on
SETTINGS = (
    *("epochs", "steps", "more", "data", "seed", "learning_rate", "rate_schedule", "warm_up"),
    *("rate_every", "rate_factor", "momentum", "weight_decay", "clip_norm", "precision"),
    "patience",
)
"""Options that are taken from an earlier run where none are given."""

OF_PLANS = (
    *("folder", "backend", "network", "samples", "processes", "steps", "data", "learning_rate"),
    *("momentum", "seed", "device", "threads", "check", "progress_kind", "as_json"),
)
"""Options that go with a file of a plan."""


@command("run", example="fpgapipe run out/digits-cnn --backend model --steps 2")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--backend",
    type=Names(backend_names, hints=BACKENDS),
    default="sim",
    help="What runs: simulated devices, their bit-exact model, PyTorch, PyTorch with the devices' "
    "number formats and the bits of their matrix products (torch-mx), or boards, reached by PYNQ, "
    "by the files of the XDMA driver, by XRT, by litex_server, or by agents alone.",
)
@addresses_option
@click.option("--steps", type=ranges.STEPS, help="Number of mini-batches in all.")
@click.option("--epochs", type=ranges.EPOCHS, help="Passes through all samples [default: 1].")
@click.option(
    "--more",
    type=ranges.STEPS,
    help="Mini-batches beyond the checkpoint that --resume or --from names.",
)
@click.option(
    "--data",
    default="digits",
    metavar="digits|random|FILE.npz|FOLDER",
    help="Samples to train on: scikit-learn's, made-up ones, arrays, or images by class.",
)
@click.option(
    "--check",
    is_flag=False,
    flag_value="auto",
    default="none",
    type=Names(lambda: [*backend_names(), "auto", "none"], hints=BACKENDS),
    help="Run a second backend beside and stop at the first difference; auto, which --check alone "
    "means, is model for sim, torch and torch-mx, and torch for model.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the newest checkpoint, with that run's options where none are given.",
)
@click.option(
    "--from",
    "source",
    metavar="BACKEND|PATH|model:N",
    help="Go on from another backend's newest checkpoint, or from a file; model:N lets the "
    "bit-exact model do the first N mini-batches, and simulates those behind, by default one.",
)
@click.option(
    "--change",
    "change",
    multiple=True,
    metavar="NAME=VALUE",
    help="Go on by --resume or --from with another learning-rate, rate-schedule, data, seed or the "
    "like, which the log and the report say; repeatable.",
)
@click.option(
    "--checkpoint-every",
    type=ranges.STEPS,
    default=20,
    help="Mini-batches from checkpoint to checkpoint.",
)
@click.option(
    "--time-budget",
    type=ranges.BUDGET,
    metavar="TIME",
    help="Wall time (90s, 10m, 1.5h) after which the run stops at a checkpoint, with exit code 75 "
    "if it has not come to its end.",
)
@click.option(
    "--save-within",
    type=ranges.BUDGET,
    metavar="TIME",
    help="Wall time (90s, 10m, 1.5h) from snapshot to snapshot within a simulated mini-batch, "
    "from which --resume goes on [default: only when the run is stopped].",
)
@click.option(
    "--parameters",
    type=click.Path(dir_okay=False),
    help="Begin with the parameters of a checkpoint, or of a file that 'export' writes or "
    "PyTorch's packages do (.safetensors, .npz, .pt), instead of the build's.",
)
@click.option(
    "--learning-rate",
    type=ranges.LEARNING_RATE,
    help="Learning rate, used as it is from the first mini-batch on unless --warm-up is given "
    "[default: for a batch of 8, 0.01, or 0.001 of Adam, growing with the square root of the "
    "batch, and reached in a warm-up].",
)
@click.option(
    "--rate-schedule",
    type=click.Choice(["constant", "cosine", "step"]),
    help="Course of the learning rate after its warm-up: constant, half a cosine down to 0 at the "
    "end, or multiplied by --rate-factor every --rate-every epochs [default: cosine with "
    "--epochs, else constant].",
)
@click.option(
    "--warm-up",
    type=ranges.WARM_UP,
    help="Mini-batches in which the learning rate rises to its full value, in equal steps.",
)
@click.option(
    "--rate-every",
    type=ranges.EPOCHS,
    default=1,
    help="Epochs from one step of --rate-schedule step to the next.",
)
@click.option(
    "--rate-factor",
    type=ranges.SHARE,
    default=0.1,
    help="Factor of the learning rate at each such step.",
)
@momentum_option
@click.option(
    "--weight-decay",
    type=ranges.WEIGHT_DECAY,
    help="Share of each weight that is added to its gradient; of AdamW, that the weight loses "
    "times the learning rate [default: 1e-4 of SGD, 0 of Adam, 0.01 of AdamW].",
)
@click.option(
    "--clip-norm",
    type=ranges.NORM,
    help="Another largest norm of all gradients, if the build clips them [default: the build's].",
)
@click.option(
    "--seed",
    type=ranges.SEED,
    default=0,
    help="Number that decides the order of the samples and what dropout drops.",
)
@click.option(
    "--patience",
    type=ranges.EPOCHS,
    help="Validations, one an epoch, without a better accuracy after which the training ends; the "
    "best is kept as by --keep-best.",
)
@click.option(
    "--keep-best",
    is_flag=True,
    help="Keep the checkpoint of the best validation as best.ckpt, which export, predict, generate "
    "and build --from take, too.",
)
@click.option("--no-validation", is_flag=True, help="Train only: validations take time, too.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "mxint8"]),
    default="fp32",
    help="Number format that --backend torch computes with; mxint8, which torch-mx has, rounds as "
    "the devices do.",
)
@click.option(
    "--device",
    default="auto",
    help="Where PyTorch computes: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
)
@threads_option
@click.option(
    "--processes",
    type=ranges.DEVICES,
    help="For a file of a plan: processes, of which the plan must have as many.",
)
@click.option("--network", help="For a file of a plan: the network, if it has another name there.")
@click.option(
    "--samples",
    type=ranges.SAMPLES,
    help="For a file of a plan: samples of a micro-batch, if the plan does not say.",
)
@click.option(
    "--simulate",
    type=click.Choice(["fast", "verilog", "verified"]),
    help="Blocks that are simulated in C++: all that have a model, none, or both it and the "
    "Verilog, compared in every cycle [default: FPGAPIPE_SIMULATE, else fast].",
)
@click.option(
    "--waves",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Record waves of one device in the first simulated mini-batch, as FST, or as VCD if the "
    "name ends in .vcd.",
)
@click.option(
    "--waves-device",
    type=ranges.DEVICE,
    default=0,
    help="Number of the device whose waves are recorded.",
)
@click.option(
    "--waves-cycles",
    default="0:10000",
    metavar="BEGIN:END",
    help="Cycles of the waves, counted from the start of the mini-batch; END is not recorded.",
)
@click.option(
    "--progress",
    "progress_kind",
    type=click.Choice(["auto", "lines", "json", "none"]),
    default="auto",
    help="Progress on standard error: a bar on a terminal and else a line a minute, such lines in "
    "any case, lines of JSON, or nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(
    folder: str,
    backend: str,
    progress_kind: str,
    no_validation: bool,
    as_json: bool,
    keep_best: bool,
    change: tuple[str, ...],
    processes: int | None,
    network: str | None,
    samples: int | None,
    **options: Any,
) -> int:
    """Train on the build in DIR, or run its inference, and keep what comes of it in DIR/run.

    The same samples in the same order leave the same weights, bit for bit, in simulated devices and
    in their model, however many there are. Ctrl-C writes a checkpoint.

    DIR may be a file that 'plan -o' has written: --backend torch trains it in processes of PyTorch,
    one for each stage, and keeps nothing.
    """
    if folder.endswith(".json"):
        return _run_plan(folder)
    for name, value in (("processes", processes), ("network", network), ("samples", samples)):
        if value is not None:
            raise fpgapipe.UserError(f"--{name} is for files of plans, which end in .json")
    check_folder_there(Path(folder))
    given = given_settings(options)
    found = fpgapipe.run(
        folder,
        backend,
        validates=not no_validation,
        keeps_best=keep_best,
        changes=parse_changes(change, click.get_current_context().command.params),
        progress=partial(progress, progress_kind),
        **given,
        **{name: value for name, value in options.items() if name not in SETTINGS},
    )
    summary = found.summary
    show(found, as_json=as_json)
    if summary.difference:
        if not as_json:
            print(f"difference: {summary.difference}", file=sys.stderr)
        return 1
    if not summary.stopped:
        return 0
    how = "" if backend == "sim" else f" --backend {backend}"
    asked = counted(summary.steps_asked, "mini-batch", "es")
    click.echo(
        f"the time is over after {summary.steps:,} of {asked}: "
        f"'fpgapipe run {folder}{how} --resume' goes on",
        err=True,
    )
    return EXIT_TIME


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that the command line says, without those that have their defaults."""
    source = click.get_current_context().get_parameter_source
    return {name: options[name] for name in SETTINGS if source(name) is not ParameterSource.DEFAULT}


def _run_plan(path: str) -> int:
    """Train as a file of a plan says."""
    context = click.get_current_context()
    options = context.params
    for name in options:
        is_default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if name not in OF_PLANS and not is_default:
            said = next(each.opts[-1] for each in context.command.params if each.name == name)
            raise fpgapipe.UserError(f"{said} does not go with a file of a plan, {path}")
    if options["backend"] != "torch":
        raise fpgapipe.UserError(
            f"{path} is a plan: 'fpgapipe run {path} --backend torch' trains it in processes of "
            "PyTorch; 'fpgapipe build' makes programs and hardware, and 'run' of its folder runs "
            "them"
        )
    if options["check"] not in ("none", "auto", "torch"):
        raise fpgapipe.UserError("a plan is checked by PyTorch in one process: --check torch")
    source = context.get_parameter_source
    names = ("network", "samples", "processes", "seed", "device", "threads")
    also = [
        name
        for name in ("steps", "data", "learning_rate", "momentum")
        if source(name) is not ParameterSource.DEFAULT
    ]
    found = fpgapipe.run_plan(
        path,
        checks=options["check"] != "none",
        progress=partial(progress, options["progress_kind"]),
        **{name: options[name] for name in (*names, *also)},
    )
    show(found, as_json=options["as_json"])
    return 0 if found.is_right else 1
