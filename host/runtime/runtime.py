"""Runs a build: opens its backends, trains or infers on them, and summarises the results."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError, counted
from fpgapipe.files import read_bytes, write_whole
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.ranks import communicator
from fpgapipe.host.build.build import MANIFEST, MAX_MANIFEST_BYTES
from fpgapipe.host.package.clocks import PACKAGE, core_clocks, other_clocks
from fpgapipe.host.runtime.check import Check, ExactCheck
from fpgapipe.host.runtime.evaluation import (
    Inference,
    filled_batches,
    found_of,
    num_right,
    plus,
    rated,
)
from fpgapipe.host.runtime.numeric_check import NumericCheck
from fpgapipe.host.runtime.run_folder import LOG, drop_oldest, keep_earlier
from fpgapipe.host.runtime.run_log import RunLog, simulated
from fpgapipe.host.runtime.run_summary import RunSummary
from fpgapipe.host.runtime.training import CHECKPOINT_EVERY, Trainer, Watcher
from fpgapipe.host.terminal.interrupts import Interrupts
from fpgapipe.lowering.lower import network_of_device
from fpgapipe.lowering.program.array_rows import array_rows
from fpgapipe.lowering.schedule.weight_versions import LateWeights
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.losses import count_of, labels_of
from fpgapipe.network.operators import Conv, Linear, Pass
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import StepRunner, Values
    from fpgapipe.host.backends.torch_backend import Precision
    from fpgapipe.host.build.build import Build
    from fpgapipe.host.data.samples import Dataset, Samples
    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.host.runtime.settings import Settings
    from fpgapipe.host.runtime.training import Found
    from fpgapipe.network.graph import Graph
    from fpgapipe.partition.plan import Plan
    from fpgapipe.sim_tb.native.waves import WaveWindow
    from fpgapipe.sim_tb.substitutes.simulation import Simulation

PYTORCH = ("torch", "torch-mx")
"""Backends in PyTorch: with the precision of the options, and with the core's number formats."""

LOGITS = "logits.npz"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes
    ----------
    backend : str
        Name of the backend.
    check : str or None
        Name of a second backend that computes the same steps for comparison.
    source : Path or None
        Checkpoint, or folder of a run, from which to continue.
    changes : collection of str
        Settings that may differ from those of that run.
    parameters : mapping or None
        Initial parameters, instead of the build's.
    checkpoint_every : int
        Steps from checkpoint to checkpoint.
    ends_s : float or None
        Time of `time.monotonic` at which a training stops at a checkpoint.
    save_within_s : float or None
        Seconds from snapshot to snapshot within a simulated step.
    waves : WaveWindow or None
        Waves to record of the first simulated mini-batch.
    validates : bool
        Whether training is validated.
    keeps_best : bool
        Whether the checkpoint of the best validation is kept.
    threads : int or None
        Threads of the simulator.
    simulation : Simulation or None
        Whether blocks are simulated in C++, as for `chosen_simulation`.
    precision, device : str
        Precision and device of PyTorch.
    transports : callable or None
        Function that opens the way to each device of a plan, if the backend is one of boards.
    """

    backend: str
    check: str | None = None
    source: Path | None = None
    changes: Collection[str] = ()
    parameters: Values | None = field(default=None, repr=False)
    checkpoint_every: int = CHECKPOINT_EVERY
    ends_s: float | None = None
    save_within_s: float | None = None
    waves: WaveWindow | None = None
    validates: bool = True
    keeps_best: bool = False
    threads: int | None = None
    simulation: Simulation | None = None
    precision: Precision = "fp32"
    device: str = "auto"
    transports: Callable[[Plan], Sequence[Transport]] | None = None


# ---------------------------------------------------------------------- backends and parameters


def counterpart(backend: str) -> str:
    """Name of the backend that one is checked against if no other is named."""
    return "torch" if backend == "model" else "model"


def open_backend(
    build: Build, name: str, options: RunOptions, *, precision: Precision | None = None
) -> StepRunner:
    """Make a backend of a build, with its initial parameters or those of the options."""
    parameters = build.parameters if options.parameters is None else options.parameters
    if name in PYTORCH:
        from fpgapipe.host.backends.torch_backend import TorchBackend, TorchMxBackend

        kind = TorchMxBackend if name == "torch-mx" else TorchBackend
        if name == "torch-mx":
            precision = "mxint8"
        precision = precision or options.precision
        return kind(
            build.graph,
            parameters,
            num_microbatches=build.plan.num_microbatches,
            options=build.options,
            precision=precision,
            device=options.device,
            late=late_weights(build.plan),
            parts=product_parts(build.plan, build.graph),
            array_rows=array_rows(build.pipeline.parts) if precision == "mxint8" else None,
        )
    if name == "sim":
        from fpgapipe.cache import cache_dir
        from fpgapipe.host.backends.simulator import SimulatorBackend

        cache_dir()  # an unusable cache is refused before the Verilog is compared
        build.check_verilog()
        return SimulatorBackend(
            build.pipeline,
            parameters,
            build.memories,
            build.wires,
            threads=options.threads,
            simulation=options.simulation,
            waves=options.waves,
            comm=communicator(),
        )
    if name == "model":
        return ModelBackend(build.pipeline, parameters)
    from fpgapipe.host.backends.devices import DeviceBackend

    assert options.transports is not None, "boards have addresses"
    ways = options.transports(build.plan)
    names = [node.device for node in build.plan.nodes]
    plan = build.plan
    periods = [plan.clk_hz / each for each in core_clocks(build.folder / PACKAGE, plan)]
    return DeviceBackend(build.pipeline, parameters, ways, names, name=name, periods=periods)


def product_parts(plan: Plan, graph: Graph) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Axis and sizes of the parts of the weights that are cut over devices, by layers' names."""
    division = plan.division
    shares = [
        network_of_device(division, graph, stage, 0).share for stage in range(len(division.sizes))
    ]
    return {
        layer.name: (share.axes.get(parameter.name, 0), share.parts[parameter.name])
        for share in shares
        for layer in graph.layers.values()
        for parameter in layer.parameters
        if parameter.spec.role == "weight"
        and parameter.name in share.parts
        and isinstance(layer.operator, Conv | Linear)
    }


def late_weights(plan: Plan) -> LateWeights | None:
    """Updates before the passes of a plan, if it updates the weights after each micro-batch."""
    schedule = plan.order
    if schedule.synchronous or not plan.trains:
        return None
    return LateWeights.of(schedule, [stage.layers for stage in plan.stages])


def open_check(build: Build, options: RunOptions) -> Check | None:
    """Make the check of a run; PyTorch then computes with the core's number formats.

    Raises
    ------
    UserError
        If a backend would be checked against itself, or against another number format.
    """
    names = (options.backend, options.check)
    if options.check is None:
        return None
    if names[0] == names[1] or set(names) <= set(PYTORCH):
        raise UserError(f"--check needs another backend than {names[0]}, which it is checked with")
    if not set(names) & set(PYTORCH):
        return ExactCheck(open_backend(build, options.check, options))
    if options.backend == "torch" and options.precision != "mxint8":
        raise UserError(
            f"devices compute with MXINT8, which {options.precision} differs from; check torch "
            "with --precision mxint8, or run torch-mx"
        )
    gain = 1 - build.options.betas[0] if build.options.has_second_moment else 1.0
    return NumericCheck(open_backend(build, options.check, options, precision="mxint8"), gain)


def build_digest(build: Build) -> str:
    """SHA-256 of a build's manifest, which identifies the build down to its last byte.

    Checkpoints carry it, so that a checkpoint of another build is refused.
    """
    return hashlib.sha256(read_bytes(build.folder / MANIFEST, MAX_MANIFEST_BYTES)).hexdigest()


def macs_of(graph: Graph, *, train: bool) -> int:
    """Multiply-accumulates of a micro-batch's matrix products; in training, of all passes."""
    return sum(
        gemm.macs
        for layer in graph.layers
        for which, gemms in graph.passes(layer).items()
        for gemm in gemms
        if train or which is Pass.FORWARD
    )


# ---------------------------------------------------------------------- runs


def run_build(
    build: Build,
    data: Dataset,
    settings: Settings,
    options: RunOptions,
    watcher: Watcher | None = None,
) -> RunSummary:
    """Train or infer on a build, whichever the build was made for.

    Inference goes through the validation samples: `settings.steps` mini-batches, or all of them.

    Raises
    ------
    UserError
        If build, data, settings and options do not fit each other, or the files of the run cannot
        be written.
    """
    folder = build.run_folder / options.backend
    with contextlib.ExitStack() as opened:
        with phase("programs and memory images"):
            backend = opened.enter_context(open_backend(build, options.backend, options))
        check = open_check(build, options)
        if check:
            opened.enter_context(check.backend)
        try:
            run = _train if build.plan.trains else _infer
            figures = run(build, backend, check, data, settings, options, folder, watcher)
        except (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError) as error:
            where = error.filename or folder
            raise UserError(f"{where} cannot be written: {error.strerror}") from None
        except OSError as error:
            if error.filename is None:
                error.filename = str(folder)  # an error of a write does not name the file
            raise
    plan = build.plan
    return RunSummary(
        network=plan.network,
        mode=plan.mode,
        backend=options.backend,
        check=options.check,
        devices=len(plan.nodes),
        schedule=plan.order_name,
        batch=plan.batch,
        clk_hz=plan.clk_hz,
        macs=plan.num_microbatches * macs_of(build.graph, train=plan.trains),
        worst=check.worst if isinstance(check, NumericCheck) else {},
        folder=folder,
        simulation=backend.simulation or (check.backend.simulation if check else None),
        other_clocks_hz=other_clocks(build.folder / PACKAGE, plan) if options.transports else {},
        **figures,
    )


def _train(
    build: Build,
    backend: StepRunner,
    check: Check | None,
    data: Dataset,
    settings: Settings,
    options: RunOptions,
    folder: Path,
    watcher: Watcher | None,
) -> dict[str, Any]:
    # Targets have no accuracy, so a loss of targets is not validated.
    validates = options.validates and bool(rated(build.graph, build.options.loss))
    trainer_of = partial(
        Trainer,
        train=data.train,
        settings=settings,
        folder=folder,
        build=build_digest(build),
        evaluate=_evaluation(build, backend, data.validation) if validates else None,
        checkpoint_every=options.checkpoint_every,
        watcher=watcher,
        loss=build.options.loss,
        ends_s=options.ends_s,
        keeps_best=options.keeps_best,
    )
    if not validates and (options.keeps_best or settings.patience):
        raise UserError(
            "--patience and --keep-best go by the accuracy of validations, and there are none: "
            + ("leave --no-validation out" if not options.validates else "the loss has no classes")
        )
    trainer = trainer_of(backend, check=check, save_within_s=options.save_within_s)
    source = options.source
    result = None
    if settings.model_steps is not None:
        if settings.model_steps >= trainer.num_steps:
            raise UserError(
                f"of {counted(trainer.num_steps, 'mini-batch', 'es')}, "
                f"{settings.model_steps} in the model leave none to simulate; --steps says how "
                "many there are in all"
            )
        with open_backend(build, "model", options) as model:
            before = trainer_of(model, until=settings.model_steps)
            if source:
                before.resume(source, options.changes)
            if before.step < settings.model_steps:
                result = before.run()
                source = folder
            if result and not result.stopped:
                trainer.resume(folder)
                exact = [check.backend] if isinstance(check, ExactCheck) else []
                for each in (backend, *exact):
                    for mine, memory in zip(each.memories, model.memories, strict=True):
                        mine[:] = memory
                logger.info("from here on it is simulated, with the bytes of the model's memories")
                source = result = None
    if source and not result:
        trainer.resume(source, options.changes)
    result = result or trainer.run()
    return {
        "steps": result.steps,
        "ran": result.ran,
        "loss": result.last.get("loss"),
        "accuracy": result.validation.get("validation", {}).get("accuracy"),
        "cycles": result.last.get("cycles"),
        "wall_s": result.wall_s,
        "difference": result.difference,
        "learning_rate": trainer.settings.learning_rate,
        "rate_schedule": trainer.settings.schedule(),
        "stopped": result.stopped,
        "ended_early": result.ended_early,
        "best": {name: result.best[name] for name in ("step", "accuracy") if result.best},
        "steps_asked": trainer.num_steps,
        "model_steps": min(settings.model_steps or 0, result.steps),
        "outputs": {
            name: {
                "loss": values["loss"],
                "accuracy": result.validation.get("validation", {}).get("outputs", {}).get(name),
            }
            for name, values in result.last.get("outputs", {}).items()
        },
    }


def _evaluation(build: Build, backend: StepRunner, samples: Samples) -> Callable[[Values], Found]:
    """Return the function that validates: it takes parameters and counts right and all samples.

    The PyTorch backend validates in PyTorch, all others in the bit-exact model.
    """
    from fpgapipe.host.backends.torch_backend import TorchBackend

    if not isinstance(backend, TorchBackend):
        return Inference(build.graph, build.cores[0], samples, build.options)

    names = rated(build.graph, build.options.loss)

    def evaluate(parameters: Values) -> Found:
        found = dict.fromkeys(names, (0, 0))
        for filled, count in filled_batches(samples, build.plan.batch):
            batch = filled.some(slice(count))
            result = backend.evaluate(batch.inputs(build.graph), batch.targets)
            for name in names:
                _, right = result.outputs.get(name, (0.0, result.correct))
                labels = count_of(labels_of(batch.targets, name))
                found[name] = plus(found[name], (right, labels))
        return found_of(found)

    return evaluate


def _tell(watcher: Watcher, backend: StepRunner, step: int, cycles: int) -> None:
    watcher.cycles(step, cycles, backend.shares_done())


def _infer(
    build: Build,
    backend: StepRunner,
    check: Check | None,
    data: Dataset,
    settings: Settings,
    options: RunOptions,
    folder: Path,
    watcher: Watcher | None,
) -> dict[str, Any]:
    if options.source:
        raise UserError("inference has no checkpoints to resume from; it begins anew each time")
    if options.ends_s is not None:
        raise UserError(
            "inference begins anew each time, so it has no --time-budget; --steps limits it"
        )
    watcher = watcher or Watcher()
    samples = data.validation
    outputs = build.graph.outputs
    num_batches = math.ceil(len(samples.labels) / build.plan.batch)
    num_batches = min(num_batches, settings.steps or num_batches)
    batches = islice(filled_batches(samples, build.plan.batch), num_batches)
    found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in outputs}
    line: dict[str, Any] = {}
    right, wall_s = dict.fromkeys(outputs, 0), 0.0
    before = 0
    difference = None
    keep_earlier(folder)
    watcher.begin(0, num_batches)
    with RunLog(folder / LOG) as log, Interrupts() as interrupts:
        for step, (batch, count) in enumerate(batches):
            with interrupts.allowed():
                inputs, scalars = batch.inputs(build.graph), scalar_bits()
                begin = time.perf_counter()
                results, cycles = backend.infer(
                    inputs,
                    scalars,
                    progress=partial(_tell, watcher, backend, step),
                )
                took_s = time.perf_counter() - begin
                if check:
                    difference = check.after_inference(step, backend, results, inputs, scalars)
            if difference:
                break
            for name in outputs:
                own = labels_of(batch.targets, name)
                right[name] += num_right(results[name], own, count, build.graph, name)
                found[name].append(results[name][:count])
            correct, before = right[outputs[0]] - before, right[outputs[0]]
            wall_s += took_s
            line = {
                "step": step, "epoch": 0, "samples": count, "loss": None, "correct": correct,
                "labels": batch.labels[:count].size, "cycles": cycles,
                "wall_s": round(took_s, 6), "backend": backend.name, **simulated(backend),
            }  # fmt: skip
            log.write(line)
            watcher.step(line, step + 1, num_batches)
    arrays: dict[str, NDArray[Any]] = {}
    accuracy: dict[str, float | None] = {}
    for name, own in found.items():
        logits = np.concatenate(own) if own else np.zeros((0, 0), np.float32)
        labels = labels_of(samples.some(slice(len(logits))).targets, name)
        suffix = f".{name}" if len(outputs) > 1 else ""
        arrays |= {f"logits{suffix}": logits, f"labels{suffix}": labels}
        accuracy[name] = right[name] / labels.size if labels.size else None
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    write_whole(folder / LOGITS, [file.getvalue()])
    drop_oldest(folder)
    return {
        "steps": len(found[outputs[0]]),
        "ran": len(found[outputs[0]]),
        "loss": None,
        "accuracy": accuracy[outputs[0]],
        "cycles": line.get("cycles"),
        "wall_s": wall_s,
        "difference": difference,
        "learning_rate": None,
        "rate_schedule": None,
        "stopped": False,
        "steps_asked": num_batches,
        "model_steps": 0,
        "outputs": {
            name: {"loss": None, "accuracy": each}
            for name, each in accuracy.items()
            if len(accuracy) > 1
        },
    }
