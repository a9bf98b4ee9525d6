"""``fpgapipe run``: trains or infers on a build, in simulation, model or PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.options import build_folder, command
from fpgapipe.host.transports.opening import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.host.runtime.runtime import RunOptions, RunSummary
    from fpgapipe.host.runtime.settings import Settings
    from fpgapipe.lowering.units.step_options import StepOptions
    from fpgapipe.partition.plan import Plan
    from fpgapipe.sim_tb.native.waves import WaveWindow

RANDOM = "random"
EXIT_TIME = 75  # EX_TEMPFAIL of sysexits.h: the same command with --resume goes on
BOARDS = TRANSPORTS
BACKENDS = ("sim", "model", "torch", "torch-mx", *BOARDS)
COURSES = ("epochs", "steps", "more")
WHOLE = ("seed", "epochs", "steps", "warm_up", "rate_every")
RATE_SCHEDULES = ("constant", "cosine", "step")


@command("run", example="fpgapipe run out/digits-cnn --backend model --steps 2")
@click.argument("folder", metavar="DIR", required=False, type=click.Path(), callback=build_folder)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="sim",
    show_default=True,
    help="What runs: simulated devices, their bit-exact model, PyTorch, PyTorch with the devices' "
    "number formats and the bits of their matrix products (torch-mx), or boards, reached by PYNQ, "
    "by the files of the XDMA driver, by XRT, by litex_server, or by agents alone.",
)
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File that says at which addresses boards are reached.",
)
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
    show_default=True,
    metavar="digits|random|FILE.npz|FOLDER",
    help="Samples to train on: scikit-learn's, made-up ones, arrays, or images by class.",
)
@click.option(
    "--check",
    is_flag=False,
    flag_value="auto",
    default="none",
    show_default=True,
    type=click.Choice([*BACKENDS, "auto", "none"]),
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
    "--checkpoint-every",
    type=ranges.STEPS,
    default=20,
    show_default=True,
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
    help="Begin with the parameters of a .npz file or a checkpoint instead of the build's.",
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
    type=click.Choice(RATE_SCHEDULES),
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
    show_default=True,
    help="Epochs from one step of --rate-schedule step to the next.",
)
@click.option(
    "--rate-factor",
    type=ranges.SHARE,
    default=0.1,
    show_default=True,
    help="Factor of the learning rate at each such step.",
)
@click.option(
    "--momentum",
    type=ranges.MOMENTUM,
    default=0.9,
    show_default=True,
    help="Share of its last update that SGD keeps.",
)
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
    show_default=True,
    help="Number that decides the order of the samples and what dropout drops.",
)
@click.option("--no-validation", is_flag=True, help="Train only: validations take time, too.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "mxint8"]),
    default="fp32",
    show_default=True,
    help="Number format that --backend torch computes with; mxint8, which torch-mx has, rounds as "
    "the devices do.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where PyTorch computes: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
)
@click.option(
    "--threads",
    type=ranges.THREADS,
    help="Threads for the simulation [default: one for each processor].",
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
    show_default=True,
    help="Number of the device whose waves are recorded.",
)
@click.option(
    "--waves-cycles",
    default="0:10000",
    show_default=True,
    metavar="BEGIN:END",
    help="Cycles of the waves, counted from the start of the mini-batch; END is not recorded.",
)
@click.option(
    "--progress",
    type=click.Choice(["auto", "lines", "json", "none"]),
    default="auto",
    show_default=True,
    help="Progress on standard error: a bar on a terminal and else a line a minute, such lines in "
    "any case, lines of JSON, or nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(folder: str, as_json: bool, **options: Any) -> int:
    """Train on the build in DIR, or run its inference, and keep what comes of it in DIR/run.

    The same samples in the same order leave the same weights, bit for bit, in simulated devices and
    in their model, however many there are. Ctrl-C writes a checkpoint.
    """
    import logging
    import time
    from pathlib import Path

    begin_s = time.monotonic()
    from fpgapipe.host.build.build import holding, open_build
    from fpgapipe.host.data.data import load_data
    from fpgapipe.host.runtime.parameters_file import read_parameters
    from fpgapipe.host.runtime.run_display import RunDisplay
    from fpgapipe.host.runtime.runtime import run_build
    from fpgapipe.host.terminal.console import print_json, progress

    with holding(Path(folder)):
        build = open_build(Path(folder))
        source = _source(options, Path(folder))
        if source:
            _take_over(options, source)
        settings = _settings(options, build.options)
        data = load_data(options["data"], build.graph, build.options.loss)
        if data.note:
            logging.getLogger("fpgapipe").info("%s: %s", options["data"], data.note)
        file = options["parameters"]
        parameters = read_parameters(Path(file), build.graph) if file else None
        how = _how(options, source, parameters, begin_s, len(build.plan.stages))
        clock = build.plan.clk_hz
        with progress(options["progress"]) as display:
            summary = run_build(
                build,
                data,
                settings,
                how,
                RunDisplay(display, clock, build.plan.predicted.minibatch_s * clock),
            )
    if as_json:
        print_json(summary.to_dict())
    else:
        _print(summary, says_accuracy=options["data"] != RANDOM)
    if summary.difference:
        return 1
    if not summary.stopped:
        return 0
    backend = "" if options["backend"] == "sim" else f" --backend {options['backend']}"
    click.echo(
        f"the time is over after {summary.steps:,} of {summary.steps_asked:,} mini-batches: "
        f"'fpgapipe run {folder}{backend} --resume' goes on",
        err=True,
    )
    return EXIT_TIME


def _source(options: dict[str, Any], folder: Path) -> Path | None:
    """The checkpoint, or the folder of a run, from which to continue; None to begin anew."""
    import re
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.host.build.build import RUN

    given = options["source"]
    options["model_steps"] = None
    if given and (warm := re.fullmatch(r"model:(\d{1,9})", given)):
        options["model_steps"] = int(warm[1])
        if options["backend"] != "sim" or not int(warm[1]):
            raise UserError(
                f"--from {given} lets the model do mini-batches before others are simulated: "
                "N must be 1 or more and --backend sim"
            )
        given = None
    if given is None:
        return folder / RUN / options["backend"] if options["resume"] else None
    source: Path = folder / RUN / given if given in BACKENDS else Path(given)
    if not source.exists():
        raise UserError(f"{source} is not there: no run of which --from {given} could go on")
    return source


def _take_over(options: dict[str, Any], source: Path) -> None:
    """Take settings that the user has not given from the run that is continued."""
    import contextlib

    from click.core import ParameterSource

    from fpgapipe.errors import FileError
    from fpgapipe.files import read_json
    from fpgapipe.host.runtime.run_folder import SETTINGS

    folder = source.resolve().parent.parent if source.is_file() else source
    try:
        known = read_json(folder / SETTINGS, 1 << 20)
    except FileError:
        return  # the checkpoint itself has the settings that must not change
    if not isinstance(known, dict):
        return
    given = click.get_current_context().get_parameter_source
    names = ["data", "seed", "learning_rate", "momentum", "weight_decay", "clip_norm"]
    names += ["rate_every", "rate_factor"]
    if known.get("precision"):
        names.append("precision")
    if given("learning_rate") is ParameterSource.DEFAULT:
        names.append("warm_up")
    if not (options["more"] and known.get("rate_schedule") == "cosine"):
        names.append("rate_schedule")
    if not any(options[name] for name in COURSES):
        names += ["epochs", "steps"]
    if options["backend"] == "sim" and options["source"] is None:
        options["model_steps"] = known.get("model_steps")
    kinds = dict.fromkeys(("data", "precision", "rate_schedule"), str) | dict.fromkeys(WHOLE, int)
    ranges_of = {each.name: each.type for each in click.get_current_context().command.params}
    for name in names:
        value = known.get(name)
        if given(name) is not ParameterSource.DEFAULT or isinstance(value, bool):
            continue
        if isinstance(value, kinds.get(name, float)):
            with contextlib.suppress(click.BadParameter):
                options[name] = ranges_of[name].convert(value, None, None)


def _settings(options: dict[str, Any], programs: StepOptions) -> Settings:
    """Settings of a training, of which the build's programs decide some.

    Raises
    ------
    UserError
        If they contradict each other, or the programs.
    """
    from click.core import ParameterSource

    from fpgapipe.errors import UserError
    from fpgapipe.host.runtime.settings import Settings

    given = [name for name in COURSES if options[name]]
    if len(given) > 1:
        raise UserError(
            f"{' and '.join(f'--{name}' for name in given)} exclude each other: each says how long"
        )
    epochs, steps, more = (options[name] for name in COURSES)
    first = None if options["resume"] else options.get("model_steps")
    if first is not None and (more or not (epochs or steps)):
        steps, more = first + (more or 1), None
    if not programs.train and (epochs or more):
        raise UserError("inference has no epochs; --steps limits its mini-batches")
    source = click.get_current_context().get_parameter_source
    if programs.has_second_moment and source("momentum") is not ParameterSource.DEFAULT:
        raise UserError(
            f"the build updates its weights by {programs.optimiser}, which has betas instead of "
            "--momentum; they are options of 'fpgapipe build'"
        )
    if options["clip_norm"] is not None and not programs.clips:
        raise UserError(
            "the build does not clip gradients, so --clip-norm has no effect; build it again with "
            "--clip-norm"
        )
    return Settings(
        epochs=None if steps or more else epochs or 1,
        steps=steps,
        more=more,
        model_steps=options.get("model_steps"),
        seed=options["seed"],
        learning_rate=options["learning_rate"],
        warm_up=options["warm_up"],
        rate_schedule=options["rate_schedule"],
        rate_every=options["rate_every"],
        rate_factor=options["rate_factor"],
        optimiser=programs.optimiser,
        betas=programs.betas,
        clip_norm=programs.clip_norm if options["clip_norm"] is None else options["clip_norm"],
        momentum=options["momentum"],
        weight_decay=options["weight_decay"],
        data=options["data"],
        precision=_precision(options),
    )


def _precision(options: dict[str, Any]) -> str:
    """Number format of a run in PyTorch; "" of another run."""
    from click.core import ParameterSource

    from fpgapipe.errors import UserError

    precision: str = options["precision"]
    if options["backend"] != "torch-mx":
        return precision if options["backend"] == "torch" else ""
    source = click.get_current_context().get_parameter_source("precision")
    if source is not ParameterSource.DEFAULT and precision != "mxint8":
        raise UserError(
            f"--backend torch-mx computes with mxint8, not {precision}; leave --precision out, or "
            "run --backend torch"
        )
    return "mxint8"


def _how(
    options: dict[str, Any], source: Path | None, parameters: Any, begin_s: float, devices: int
) -> RunOptions:
    from fpgapipe.errors import UserError
    from fpgapipe.host.runtime.runtime import COUNTERPART, RunOptions
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

    if source and parameters is not None:
        raise UserError("a checkpoint has parameters of its own; leave --parameters out")
    simulation = Simulation(options["simulate"]) if options["simulate"] else None
    waves = _waves(options, devices) if options["waves"] else None
    beside = {"none": None, "auto": COUNTERPART[options["backend"]]}
    check = options["check"]
    return RunOptions(
        options["backend"],
        beside.get(check, check),
        source=source,
        parameters=parameters,
        checkpoint_every=options["checkpoint_every"],
        ends_s=None if options["time_budget"] is None else begin_s + options["time_budget"],
        save_within_s=options["save_within"],
        waves=waves,
        validates=not options["no_validation"],
        threads=options["threads"],
        simulation=simulation,
        precision=options["precision"],
        device=options["device"],
        transports=transports_of(options["backend"], options["cluster_file"]),
    )


def _waves(options: dict[str, Any], devices: int) -> WaveWindow:
    """The waves that are asked for; a line says if they cannot be FST."""
    import logging
    import re
    from pathlib import Path

    from fpgapipe.errors import UserError
    from fpgapipe.files import check_output
    from fpgapipe.sim_tb.native.waves import WaveWindow, possible_format

    if options["backend"] != "sim":
        raise UserError("--waves records a simulation; leave --backend out")
    cycles = re.fullmatch(r"(\d{1,18}):(\d{1,18})", options["waves_cycles"])
    if not cycles or int(cycles[1]) >= int(cycles[2]):
        raise UserError(
            f"--waves-cycles must be BEGIN:END with BEGIN less than END, not "
            f"{options['waves_cycles']}"
        )
    device = options["waves_device"]
    if device >= devices:
        raise UserError(f"--waves-device must be 0..{devices - 1}, not {device}")
    path, kind, fault = possible_format(Path(options["waves"]))
    if fault:
        logging.getLogger("fpgapipe").warning(
            "waves are written as VCD to %s, since %s; 'fpgapipe doctor' says what FST needs",
            path,
            fault,
        )
    check_output(path)
    return WaveWindow(path, kind, device, int(cycles[1]), int(cycles[2]))


def transports_of(
    backend: str, cluster_file: str | None
) -> Callable[[Plan], list[Transport]] | None:
    """Function that opens the boards of a plan; None for backends without boards.

    Raises
    ------
    UserError
        If there is a cluster file without boards, or the other way round.
    """
    from pathlib import Path

    from fpgapipe.boards.cluster import load_cluster
    from fpgapipe.errors import UserError
    from fpgapipe.host.transports.opening import open_transports

    if backend not in BOARDS:
        if cluster_file is not None:
            raise UserError(f"--cluster has addresses of boards, and --backend {backend} has none")
        return None
    if cluster_file is None:
        raise UserError(
            f"--backend {backend} needs --cluster FILE, which says at which address each board is "
            "reached (docs/boards.md)"
        )
    file = Path(cluster_file)
    cluster = load_cluster(file)
    return lambda plan: open_transports(backend, plan, cluster, file)


def _print(summary: RunSummary, *, says_accuracy: bool) -> None:
    """Print the summary; without accuracy on random samples, where it means nothing."""
    import sys

    from fpgapipe.host.terminal.console import Column, count, print_table, scaled

    rows: list[tuple[str, str]] = [("mini-batches", f"{summary.steps:,}, {summary.ran:,} just now")]
    if summary.model_steps:
        simulated = summary.steps - summary.model_steps
        rows.append(("of these", f"{summary.model_steps:,} in the model, {simulated:,} simulated"))
    if summary.loss is not None:
        rows.append(("loss of the last", f"{summary.loss:.4f}"))
    if summary.accuracy is not None and says_accuracy:
        rows.append(("validation accuracy", f"{summary.accuracy:.2%}"))
    for name, values in summary.outputs.items():
        loss, accuracy = values["loss"], values["accuracy"]
        parts = [] if loss is None else [f"loss {loss:.4f}"]
        if accuracy is not None and says_accuracy:
            parts.append(f"accuracy {accuracy:.2%}")
        rows.append((f"of {name}", ", ".join(parts)))
    if summary.cycles and summary.samples_per_s:
        rate = scaled(summary.samples_per_s, "samples/s")
        rows.append(("cycles of the last", count(summary.cycles)))
        rows.append((f"at {scaled(summary.clk_hz, 'Hz')}", rate))
    if summary.learning_rate is not None:
        rows.append(("learning rate", f"{summary.learning_rate:g}, {summary.rate_schedule}"))
    rows.append(("wall time", scaled(summary.wall_s, "s")))
    speed = "simulated" if summary.backend == "sim" else "computed"
    rows.append((speed, scaled(summary.macs_per_s, "MAC/s")))
    if summary.simulation:
        rows.append(("simulation", summary.simulation))
    rows.append(("kept in", str(summary.folder)))
    devices = f"{summary.devices} device{'s' * (summary.devices != 1)}"
    title = f"{summary.network}, {summary.mode}, {summary.backend}: {devices}, {summary.schedule}"
    print_table([Column(""), Column("")], rows, title)
    if summary.difference:
        print(f"difference: {summary.difference}", file=sys.stderr)
    elif summary.check:
        worst = max(summary.worst.values(), default=None)
        text = (
            "every byte of every memory equal"
            if worst is None
            else f"loss and gradients within {worst:.1%} of the tolerance"
        )
        print(f"checked against {summary.check}: {text}")
