"""Runs of builds: training or inference, as ``fpgapipe run`` does it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpgapipe.errors import FileError, UserError, counted, shown
from fpgapipe.files import check_output, read_json
from fpgapipe.host.backends.torch_backend import Precision
from fpgapipe.host.build.build import RUN, holding, open_build
from fpgapipe.host.data.data import load_data
from fpgapipe.host.runtime.best import BEST
from fpgapipe.host.runtime.run_display import RunDisplay
from fpgapipe.host.runtime.run_folder import SETTINGS, check_resumable, others_than
from fpgapipe.host.runtime.run_summary import RunSummary
from fpgapipe.host.runtime.runtime import (
    PYTORCH,
    RunOptions,
    counterpart,
    run_build,
)
from fpgapipe.host.runtime.settings import RateSchedule, Settings
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.host.transports.opening import backend_names, transports_of
from fpgapipe.host.weights.parameters_file import read_parameters
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.sim_tb.native.waves import WaveWindow, possible_format
from fpgapipe.sim_tb.substitutes.simulation import Simulation

COURSES = ("epochs", "steps", "more")
CHANGEABLE = (
    *("epochs", "data", "seed", "learning_rate", "rate_schedule", "warm_up", "rate_every"),
    *("rate_factor", "momentum", "weight_decay", "clip_norm"),
)
"""Settings that a run which goes on may change."""

WHOLE = ("seed", "epochs", "steps", "warm_up", "rate_every", "patience")
PRECISIONS = ("fp32", "bf16", "mxint8")


@dataclass(frozen=True)
class Ran(Result):
    """Outcome of a run.

    Attributes
    ----------
    summary : RunSummary
    says_accuracy : bool
        Whether accuracies mean something, which they do not on random samples.
    """

    summary: RunSummary
    says_accuracy: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The values of the summary."""
        return self.summary.to_dict()

    def shown(self) -> Iterator[Table | str]:
        """A table of the summary, and what a check has found to be equal."""
        summary = self.summary
        done = f"{summary.steps:,}, {summary.ran:,} just now"
        rows: list[tuple[str, str]] = [("mini-batches", done)]
        if summary.model_steps:
            simulated = summary.steps - summary.model_steps
            text = f"{summary.model_steps:,} in the model, {simulated:,} simulated"
            rows.append(("of these", text))
        if summary.loss is not None:
            rows.append(("loss of the last", f"{summary.loss:.4f}"))
        if summary.accuracy is not None and self.says_accuracy:
            rows.append(("validation accuracy", f"{summary.accuracy:.2%}"))
        if summary.best:
            step, best = summary.best["step"], summary.best["accuracy"]
            rows.append(
                ("best validation", f"{best:.2%} after {step:,}, kept as checkpoints/{BEST}")
            )
        if summary.ended_early:
            rows.append(("ended", "before its end, for want of a better validation"))
        for name, values in summary.outputs.items():
            loss, accuracy = values["loss"], values["accuracy"]
            parts = [] if loss is None else [f"loss {loss:.4f}"]
            if accuracy is not None and self.says_accuracy:
                parts.append(f"accuracy {accuracy:.2%}")
            rows.append((f"of {name}", ", ".join(parts)))
        if summary.cycles and summary.samples_per_s:
            rate = scaled(summary.samples_per_s, "samples/s")
            rows.append(("cycles of the last", count(summary.cycles)))
            rows.append((f"at {scaled(summary.clk_hz, 'Hz')}", rate))
        for device, clk_hz in summary.other_clocks_hz.items():
            rows.append((f"clock of {device}", f"{scaled(clk_hz, 'Hz')}, not as planned"))
        if summary.learning_rate is not None:
            rows.append(("learning rate", f"{summary.learning_rate:g}, {summary.rate_schedule}"))
        rows.append(("wall time", scaled(summary.wall_s, "s")))
        speed = "simulated" if summary.backend == "sim" else "computed"
        rows.append((speed, scaled(summary.macs_per_s, "MAC/s")))
        if summary.simulation:
            rows.append(("simulation", summary.simulation))
        rows.append(("kept in", str(summary.folder)))
        devices = counted(summary.devices, "device")
        head = f"{summary.network}, {summary.mode}, {summary.backend}"
        yield Table("|", rows, f"{head}: {devices}, {summary.schedule}")
        if summary.check and not summary.difference:
            worst = max(summary.worst.values(), default=None)
            text = (
                "every byte of every memory equal"
                if worst is None
                else f"loss and gradients within {worst:.1%} of the tolerance"
            )
            yield f"checked against {summary.check}: {text}"


@dataclass(frozen=True)
class Asked:
    """Settings of a training that are asked for; those that are None are an earlier run's.

    Without an earlier run, or where that has none, they are the defaults of `Settings`. The
    attributes are its, with `data` and `precision` as for `run`.
    """

    epochs: int | None = None
    steps: int | None = None
    more: int | None = None
    data: str | None = None
    seed: int | None = None
    learning_rate: float | None = None
    rate_schedule: RateSchedule | None = None
    warm_up: int | None = None
    rate_every: int | None = None
    rate_factor: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    precision: Precision | None = None
    patience: int | None = None

    def after(self, source: Path) -> Asked:
        """The given settings, with those of an earlier run where nothing is given.

        Parameters
        ----------
        source : Path
            The folder of the run, or a checkpoint in it.
        """
        known = _settings_of(source)
        if self.learning_rate is not None:
            known.pop("warm_up", None)
        if self.more and known.get("rate_schedule") == "cosine":
            del known["rate_schedule"]
        if any(getattr(self, name) for name in COURSES):
            known.pop("epochs", None)
            known.pop("steps", None)
        names = [name for name in vars(self) if name != "more" and getattr(self, name) is None]
        taken = {name: known[name] for name in names if _is_setting(name, known.get(name))}
        return replace(self, **taken)

    def changed(self, changes: Mapping[str, Any]) -> Asked:
        """These settings, with others for some names."""
        whole = {"steps": None, "more": None} if "epochs" in changes else {}
        return replace(self, **whole, **changes)

    def settings(
        self,
        programs: StepOptions,
        *,
        backend: str = "model",
        resume: bool = False,
        model_steps: int | None = None,
    ) -> Settings:
        """Settings of a training, of which the build's programs decide some.

        Raises
        ------
        UserError
            If they contradict each other, or the programs.
        """
        given = [name for name in COURSES if getattr(self, name)]
        if len(given) > 1:
            raise UserError(
                f"{' and '.join(f'--{name}' for name in given)} exclude each other: each says how "
                "long"
            )
        epochs, steps, more = self.epochs, self.steps, self.more
        first = None if resume else model_steps
        if first is not None and (more or not (epochs or steps)):
            steps, more = first + (more or 1), None
        if not programs.train and (epochs or more):
            raise UserError("inference has no epochs; --steps limits its mini-batches")
        if self.clip_norm is not None and not programs.clips:
            raise UserError(
                "the build does not clip gradients, so --clip-norm has no effect; build it again "
                "with --clip-norm"
            )
        others = ("seed", "rate_every", "rate_factor", "momentum", "patience")
        chosen = {name: getattr(self, name) for name in others if getattr(self, name) is not None}
        return Settings(
            epochs=None if steps or more else epochs or 1,
            steps=steps,
            more=more,
            model_steps=model_steps,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            rate_schedule=self.rate_schedule,
            optimiser=programs.optimiser,
            betas=programs.betas,
            clip_norm=programs.clip_norm if self.clip_norm is None else self.clip_norm,
            weight_decay=self.weight_decay,
            data="digits" if self.data is None else self.data,
            precision=(self.precision or "fp32") if backend in PYTORCH else "",
            **chosen,
        )


def _settings_of(source: Path) -> dict[str, Any]:
    """The settings of an earlier run; none if they cannot be read.

    The checkpoint itself has those that must not change.
    """
    folder = source.resolve().parent.parent if source.is_file() else source
    try:
        known = read_json(folder / SETTINGS, 1 << 20)
    except FileError:
        return {}
    return known if isinstance(known, dict) else {}


def _is_setting(name: str, value: object) -> bool:
    """Whether a value that a file names can be that of a setting."""
    kinds = dict.fromkeys(("data", "precision", "rate_schedule"), str) | dict.fromkeys(WHOLE, int)
    if isinstance(value, bool) or not isinstance(value, kinds.get(name, float)):
        return False
    if name == "precision":
        return value in PRECISIONS
    if isinstance(value, int) and value >= 1 << 63:
        return False
    if name == "clip_norm" and isinstance(value, float) and not 1e-12 <= value <= 1e12:
        return False
    course = {} if name in COURSES else {"steps": 1}
    try:
        Settings(**course, **{name: value})  # type: ignore[arg-type]
    except UserError:
        return False
    return True


def run(
    folder: Path | str,
    backend: str = "sim",
    *,
    cluster_file: Path | str | None = None,
    check: str = "none",
    resume: bool = False,
    source: Path | str | None = None,
    changes: Mapping[str, Any] | None = None,
    checkpoint_every: int = 20,
    time_budget: float | None = None,
    save_within: float | None = None,
    parameters: Path | str | None = None,
    validates: bool = True,
    keeps_best: bool = False,
    device: str = "auto",
    threads: int | None = None,
    simulate: str | None = None,
    waves: Path | str | None = None,
    waves_device: int = 0,
    waves_cycles: str = "0:10000",
    progress: Progress = silent,
    **settings: Any,
) -> Ran:
    """Train on a build, or run its inference, and keep what comes of it in the build's folder.

    Parameters
    ----------
    folder : path
        Folder of the build, which no other process may use meanwhile.
    backend : str
        ``sim``, ``model``, ``torch``, or how boards are reached.
    cluster_file : path, optional
        File that says at which addresses boards are reached.
    check : str
        A second backend that runs beside; ``auto`` for the one that suits, or ``none``.
    resume : bool
        Whether to go on from the newest checkpoint, with that run's settings where none are given.
    source : path or str, optional
        Another backend whose newest checkpoint to go on from, a checkpoint, or ``model:N``.
    changes : mapping, optional
        Settings that are to be others than before from there on, by their names and values.
    checkpoint_every : int
        Mini-batches from checkpoint to checkpoint.
    time_budget : float, optional
        Seconds after which the run stops at a checkpoint.
    save_within : float, optional
        Seconds from snapshot to snapshot within a simulated mini-batch.
    parameters : path, optional
        A checkpoint, or a file of tensors as `export` writes it, with parameters to begin with.
    validates : bool
        Whether training is validated.
    keeps_best : bool
        Whether the checkpoint of the best validation is kept, as it is with a ``patience``.
    device : str
        Where PyTorch computes.
    threads : int, optional
        Threads for the simulation.
    simulate : str, optional
        Blocks that are simulated in C++: ``fast``, ``verilog`` or ``verified``.
    waves : path, optional
        File for waves of device `waves_device` in the cycles `waves_cycles`, ``BEGIN:END``.
    progress : callable
        Shows the progress.
    settings
        The attributes of `Settings` that an option of ``fpgapipe run`` says, with ``data`` and
        ``precision``; one of ``epochs``, ``steps`` and ``more`` says how long.

    Returns
    -------
    Ran
        Its ``summary`` is that of `run_build`.
    """
    begin_s = time.monotonic()
    folder = Path(folder)
    if backend not in backend_names():
        raise UserError(f"a backend must be one of {', '.join(backend_names())}, not {backend}")
    with holding(folder):
        build = open_build(folder)
        asked = Asked(**settings)
        if build.options.has_second_moment and asked.momentum is not None:
            raise UserError(
                f"the build updates its weights by {build.options.optimiser}, which has betas "
                "instead of --momentum; they are options of 'fpgapipe build'"
            )
        if backend == "torch-mx" and asked.precision not in (None, "mxint8"):
            raise UserError(
                f"--backend torch-mx computes with mxint8, not {asked.precision}; leave "
                "--precision out, or run --backend torch"
            )
        place, model_steps = _source(source, folder, backend, resume=resume)
        if place and source is None and build.plan.trains:
            check_resumable(place)
        if changes:
            _check_changes(changes, settings, place)
        if place:
            asked = asked.after(place).changed(changes or {})
            if backend == "sim" and source is None:
                model_steps = _settings_of(place).get("model_steps")
        if backend == "torch-mx":
            asked = replace(asked, precision="mxint8")
        chosen = asked.settings(
            build.options, backend=backend, resume=resume, model_steps=model_steps
        )
        data = load_data(chosen.data, build.graph, build.options.loss)
        if data.note:
            logging.getLogger("fpgapipe").info("%s: %s", chosen.data, data.note)
        values = (
            read_parameters(Path(parameters), build.graph, build.parameters) if parameters else None
        )
        if place and values is not None:
            raise UserError("a checkpoint has parameters of its own; leave --parameters out")
        beside = {"none": None, "auto": counterpart(backend)}
        options = RunOptions(
            backend,
            beside.get(check, check),
            source=place,
            changes=tuple(changes or ()),
            parameters=values,
            checkpoint_every=checkpoint_every,
            ends_s=None if time_budget is None else begin_s + time_budget,
            save_within_s=save_within,
            waves=None
            if waves is None
            else _waves(Path(waves), waves_device, waves_cycles, backend, len(build.plan.nodes)),
            validates=validates,
            keeps_best=keeps_best,
            threads=threads,
            simulation=Simulation(simulate) if simulate else None,
            precision=asked.precision or "fp32",
            device=device,
            transports=transports_of(backend, cluster_file),
        )
        clock = build.plan.clk_hz
        with progress() as display:
            expected = build.plan.predicted.minibatch_s * clock
            watcher = RunDisplay(display, clock, expected)
            summary = run_build(build, data, chosen, options, watcher)
    return Ran(summary, chosen.data != "random")


def _check_changes(
    changes: Mapping[str, Any], settings: Mapping[str, Any], place: Path | None
) -> None:
    """Refuse changes of a run that begins anew, and settings that are given twice."""
    if place is None:
        raise UserError(
            "--change changes settings of a run that goes on: it needs --resume or --from"
        )
    if unknown := [name for name in changes if name not in CHANGEABLE]:
        raise UserError(f"changes are of {', '.join(CHANGEABLE)}, not {shown(unknown[0])}")
    for name in changes:
        if settings.get(name) is not None or (name == "epochs" and any(map(settings.get, COURSES))):
            raise UserError(f"--change {name.replace('_', '-')} excludes the option for the same")


def _source(
    given: Path | str | None, folder: Path, backend: str, *, resume: bool
) -> tuple[Path | None, int | None]:
    """The checkpoint, or the folder of a run, to go on from, and the mini-batches of the model."""
    if isinstance(given, str) and (warm := re.fullmatch(r"model:(\d{1,9})", given)):
        if backend != "sim" or not int(warm[1]):
            raise UserError(
                f"--from {given} lets the model do mini-batches before others are simulated: "
                "N must be 1 or more and --backend sim"
            )
        return (folder / RUN / backend if resume else None), int(warm[1])
    if not given:
        return (folder / RUN / backend if resume else None), None
    source = folder / RUN / given if given in backend_names() else Path(given)
    if not source.exists():
        others = others_than(folder / RUN / backend)
        raise UserError(
            f"{source} is not there: no run of which --from {given} could go on{others}"
        )
    return source, None


def _waves(file: Path, device: int, cycles: str, backend: str, devices: int) -> WaveWindow:
    """The waves that are asked for; a line says if they cannot be FST."""
    if backend != "sim":
        raise UserError("--waves records a simulation; leave --backend out")
    found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", cycles)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(f"--waves-cycles must be BEGIN:END with BEGIN less than END, not {cycles}")
    if device >= devices:
        raise UserError(f"--waves-device must be 0..{devices - 1}, not {device}")
    path, kind, fault = possible_format(file)
    if fault:
        logging.getLogger("fpgapipe").warning(
            "waves are written as VCD to %s, since %s; 'fpgapipe doctor' says what FST needs",
            path,
            fault,
        )
    check_output(path)
    return WaveWindow(path, kind, device, int(found[1]), int(found[2]))
