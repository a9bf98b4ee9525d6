"""The training loop, which is the same for every backend.

A run writes its files into a folder of its own: ``log.jsonl``, ``settings.json`` and
``checkpoints``. The order of the samples depends only on seed and epoch, and the result of a step
only on state, samples and settings. A run that was interrupted at any point and resumed therefore
ends with the same bits as an uninterrupted one.
"""

from __future__ import annotations

import json
import logging
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError, counted
from fpgapipe.files import write_whole
from fpgapipe.host.backends.snapshot import RunStopped
from fpgapipe.host.data.sample_checks import check_samples, digest_of, labels_that_count
from fpgapipe.host.runtime.best import BEST, Best, best_of
from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from fpgapipe.host.runtime.divergence import Diverged, diverged, explosion, fixed_numbers
from fpgapipe.host.runtime.run_folder import (
    CHECKPOINTS,
    LOG,
    SETTINGS,
    bring_back,
    drop_oldest,
    earlier_runs,
    keep_earlier,
    others_than,
)
from fpgapipe.host.runtime.run_log import RunLog, read_log, simulated
from fpgapipe.host.runtime.settings import COURSE, Change, Settings, changed_settings
from fpgapipe.host.runtime.step_snapshots import StepSnapshots
from fpgapipe.host.runtime.training_result import TrainingResult
from fpgapipe.host.terminal.interrupts import Interrupts, told_of_ending
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.losses import CROSS_ENTROPY, Loss
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fpgapipe.host.backends.base import StepRunner, Values
    from fpgapipe.host.data.samples import Samples
    from fpgapipe.host.runtime.check import Check, Difference

PROGRESS_EVERY_S = 20.0
"""Seconds between lines of progress that a long step writes to the log."""

COMPUTES = {
    "sim": "simulation",
    "model": "training in the model",
    "torch": "PyTorch",
    "torch-mx": "PyTorch",
}
"""Name of the phase, for the stopwatch, in which a backend computes its steps."""

CHECKPOINT_EVERY = 20
"""Default number of steps from checkpoint to checkpoint."""


Found = tuple[int, int] | dict[str, tuple[int, int]]
"""Labels that are found right, and all labels, of the only output or of each by its name."""

logger = logging.getLogger(__name__)


class Watcher:
    """Receiver of a training's progress; this base class ignores it."""

    def begin(self, done: int, total: int) -> None:
        """Receive the steps that are done before the first one runs, and the steps in all."""

    def cycles(self, step: int, cycles: int, shares: Sequence[float] = ()) -> None:
        """Receive the number of cycles that a step has been simulated so far.

        `shares` has the share of its program that each device has begun, if that is known.
        """

    def step(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Receive the log's line of a finished step, the steps done, and the steps in all."""

    def validation(self, line: Mapping[str, Any]) -> None:
        """Receive the log's line of a finished validation."""


class TimeIsOver(RunStopped):
    """The time of a run is over."""


class Trainer:
    """Trains on a backend and writes the files of the run into a folder.

    Parameters
    ----------
    backend : StepRunner
    train : Samples
    settings : Settings
    folder : Path
        Folder of this run.
    build : str
        Digest of the build; a checkpoint of another build is refused.
    evaluate : callable, optional
        Function from parameters to the number of labels that are found right and the number
        of all samples, or to both for each output. It is called after every epoch and at the end.
    check : Check, optional
        Check that runs the same steps on a second backend.
    checkpoint_every : int
        Steps from checkpoint to checkpoint.
    watcher : Watcher, optional
    loss : Loss
        The loss of the backend's steps.
    ends_s : float, optional
        Time of `time.monotonic` at which the run stops at a checkpoint.
    save_within_s : float, optional
        Seconds from snapshot to snapshot within a step; without it one is written only when the run
        is stopped within a step.
    until : int, optional
        Number of steps after which `run` returns with a checkpoint, before the end of the training.
    keeps_best : bool
        Whether the checkpoint of the best validation is kept; with a patience it always is.

    Attributes
    ----------
    step : int
        Number of steps that are done.
    num_steps, steps_per_epoch : int
        Number of steps of the whole training, and of an epoch.
    settings : Settings
        Settings with a learning rate, whether one was given or not.

    Raises
    ------
    UserError
        If the samples do not fit the network, or do not fill a mini-batch.
    """

    def __init__(
        self,
        backend: StepRunner,
        train: Samples,
        settings: Settings,
        folder: Path,
        *,
        build: str = "",
        evaluate: Callable[[Values], Found] | None = None,
        check: Check | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        watcher: Watcher | None = None,
        loss: Loss = CROSS_ENTROPY,
        ends_s: float | None = None,
        save_within_s: float | None = None,
        until: int | None = None,
        keeps_best: bool = False,
    ) -> None:
        graph = backend.graph
        check_samples(train, graph, loss)
        assert graph.batch is not None, "a network to train has a batch"
        self.batch = graph.batch * backend.num_microbatches
        self._fixed = fixed_numbers(graph)
        self.steps_per_epoch = len(train.labels) // self.batch
        if not self.steps_per_epoch:
            raise UserError(
                f"a mini-batch has {counted(self.batch, 'sample')}; {len(train.labels)} fill none"
            )
        if checkpoint_every < 1:
            raise UserError(f"checkpoints need a step or more between, not {checkpoint_every}")
        self._loss = loss
        self._chooses_rate = settings.learning_rate is None
        settings = settings.for_batch(self.batch, self.steps_per_epoch)
        self.num_steps = settings.num_steps(self.steps_per_epoch)
        self.step = 0
        self._backend = backend
        self._train = train
        self.settings = settings
        self._folder = folder
        self._build = build
        self._evaluate = evaluate
        self._check = check
        self._every = checkpoint_every
        self._ends_s = math.inf if ends_s is None else ends_s
        self._save_within_s = math.inf if save_within_s is None else save_within_s
        self._until = until
        self._snapshots = StepSnapshots(folder / CHECKPOINTS)
        self._watcher = watcher or Watcher()
        self._checkpoints = CheckpointFolder(folder / CHECKPOINTS)
        self._decisive = settings.decisive() | {"data": digest_of(train)}
        self._lines: list[dict[str, Any]] = []
        self._saved = self._changed_at = -1
        keeps_best = keeps_best or settings.patience is not None
        self._best = Best(folder / CHECKPOINTS / BEST, settings.patience) if keeps_best else None
        self._ends_early = False
        self._ran, self._wall_s = 0, 0.0
        self._told: tuple[int, int, Sequence[float]] = -1, 0, ()
        self._state: Values = {}
        self._batches: Iterator[Samples] = iter(())
        self._next_of_batches = -1

    # ------------------------------------------------------------------ where to begin

    def resume(self, source: Path | None = None, changes: Collection[str] = ()) -> Path:
        """Continue from a checkpoint; return its path.

        Parameters
        ----------
        source : Path, optional
            A checkpoint, or the folder of a run, which may be that of another backend; the folder
            of this run if left out. Of a folder, the newest undamaged checkpoint is used.
        changes : collection of str
            Settings that may differ from those of the checkpoint; the log says which do.

        Raises
        ------
        UserError
            If there is no such checkpoint, or it was made with other settings.
        """
        folder = source or self._folder
        if folder.is_file():
            path, checkpoint = folder, Checkpoint.read(folder, self._state_bytes())
            folder = folder.resolve().parent.parent
            if checkpoint.build != self._build:
                raise CheckpointError(f"{path} is of another build")
            if fault := explosion(checkpoint.state, self._fixed):
                raise CheckpointError(f"{path} is of a training that diverged: {fault}")
        else:
            path, checkpoint = self._newest(folder)
        changed = self._changed(path, checkpoint, changes)
        try:
            self._backend.set_state(checkpoint.state)
            if self._check:
                self._check.backend.set_state(checkpoint.state)
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
        self.step = checkpoint.step
        self.settings = self.settings.going_on_from(self.step)
        self.num_steps = self.settings.num_steps(self.steps_per_epoch)
        self._lines = read_log(folder / LOG, self.step)
        if folder.resolve() in map(Path.resolve, earlier_runs(self._folder)):
            bring_back(self._folder, folder)
            folder = self._folder
            path = folder / CHECKPOINTS / path.name
        StepSnapshots(path.parent).resume(self._backend, self._identity(), self._check)
        if folder.resolve() == self._folder.resolve():
            self._checkpoints.set_aside(self.step)
            self._saved = self.step
        else:
            keep_earlier(self._folder)
        logger.info("going on from step %d, %s", self.step, path)
        if (best := self._folder / CHECKPOINTS / BEST).exists():  # and so it stays the best one
            self._best = self._best or Best(best)
            self._best.begin(self.step)
        if changed:  # further steps depend on them, so the checkpoint is written again
            self._saved, self._changed_at = -1, self.step
        for each in changed:
            logger.info("from here on with another %s", each)
            self._lines.append({"change": {"step": self.step, **each.to_dict()}})
        return path

    def _state_bytes(self) -> int:
        """Bytes of the backend's state, which is also the most that a checkpoint may have."""
        return sum(value.nbytes for value in self._backend.state().values())

    def _newest(self, folder: Path) -> tuple[Path, Checkpoint]:
        """The newest checkpoint of a run; the error if there is none names the other runs."""
        try:
            kept = CheckpointFolder(folder / CHECKPOINTS)
            return kept.newest(self._build, self._state_bytes(), self._fixed)
        except UserError as error:
            raise UserError(f"{error}{others_than(folder)}") from None

    def _changed(
        self, path: Path, checkpoint: Checkpoint, changes: Collection[str]
    ) -> list[Change]:
        """The settings that differ from a checkpoint's, which only named ones may."""
        then_epochs, then_steps = (checkpoint.settings.get(each) for each in ("epochs", "steps"))
        end = then_epochs * self.steps_per_epoch if isinstance(then_epochs, int) else then_steps
        falls = self._decisive["rate_schedule"] == "cosine"
        is_finished = checkpoint.step == end and self.settings.epochs is None and not falls
        changed = [
            each
            for each in changed_settings(checkpoint.settings, self._decisive)
            if each.name in changes or not (is_finished and each.name in COURSE)
        ]
        if refused := [str(each) for each in changed if each.name not in changes]:
            raise UserError(
                f"{path} was made with other settings: {', '.join(refused)}; resume with the same "
                "ones, begin anew without --resume, or allow them by --change NAME=VALUE"
            )
        if self.settings.more is None and checkpoint.step > self.num_steps:
            raise UserError(
                f"{path} comes after {counted(checkpoint.step, 'step')}, more than the "
                f"{self.num_steps} asked for"
            )
        return changed

    # ------------------------------------------------------------------ the loop

    def run(self) -> TrainingResult:
        """Train to the end, or to the first difference that a check finds.

        On Ctrl-C, the present step is abandoned, a checkpoint of the state before it is written,
        and then `KeyboardInterrupt` is raised. At the end of the time the same happens, but the
        run ends with a result. Other exceptions in a step are handled alike, except
        that no checkpoint is written when writing has failed or the training has diverged.
        """
        if self.settings.more is not None:
            raise UserError("--more goes on from a checkpoint; name it with --resume or --from")
        if not self.step:
            keep_earlier(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._checkpoints.tidy()
        described = asdict(self.settings)
        if described["model_steps"] is None:
            del described["model_steps"]
        described |= {
            "backend": self._backend.name,
            "batch": self.batch,
            "schedule": self.settings.course,
            "data_sha256": self._decisive["data"],
            **simulated(self._backend),
        }
        write_whole(self._folder / SETTINGS, [json.dumps(described, indent=2).encode() + b"\n"])
        if self._chooses_rate:
            logger.info(
                "learning rate %g, which suits a batch of %d, %s; --learning-rate says another",
                self.settings.learning_rate,
                self.batch,
                self.settings.schedule(),
            )
        self._state = self._backend.state()
        if self._changed_at == self.step:
            self._save()
        self._watcher.begin(self.step, self.num_steps)
        with Interrupts() as interrupts:
            try:
                with (
                    RunLog(self._folder / LOG, self._lines) as log,
                    told_of_ending(lambda name: self._say_where(name, log)),
                ):
                    difference = self._loop(log, interrupts)
            except TimeIsOver:
                difference = None
                self._save()
                self._save_within()
            except BaseException as error:
                # After an OSError nothing more can be written; a diverged state is not worth it.
                if not isinstance(error, (OSError, Diverged)):
                    self._save()
                    if isinstance(error, KeyboardInterrupt):
                        self._save_within()
                    logger.info("step %d is kept; --resume goes on from there", self.step)
                raise
            if difference:
                self._save()
        steps = [line for line in self._lines if "step" in line]
        checked = [line for line in self._lines if "validation" in line]
        return TrainingResult(
            self.step,
            self._ran,
            steps[-1] if steps else {},
            checked[-1] if checked else {},
            self._wall_s,
            difference,
            self.step not in (self.num_steps, self._until) and not (difference or self._ends_early),
            self._ends_early,
            best_of(self._lines) if self._best else {},
        )

    def _loop(self, log: RunLog, interrupts: Interrupts) -> Difference | None:
        """Do steps, validations and checkpoints when they are due."""
        is_new = True
        while True:
            if self._is_validation_due():
                is_new = True
                with interrupts.allowed():
                    line = self._validate()
                self._keep(log, line)
                self._watcher.validation(line)
            if self._best and is_new:
                now = Checkpoint(self.step, self._build, self._decisive, self._state)
                self._ends_early, is_new = self._best.look(self._lines, now), False
            if self.step and (self.step % self._every == 0 or self.step == self.num_steps):
                self._save()
            if self.step in (self.num_steps, self._until) or self._ends_early:
                self._save()
                return None
            self._stop_in_time()
            with interrupts.allowed():
                line, difference = self._advance(log)
            if difference:
                return difference
            state = self._checked_state(line["loss"])
            self._keep(log, line)
            # Both are set in one statement, so that an interrupt never finds only one of them new.
            self._state, self.step = state, self.step + 1
            self._ran += 1
            self._wall_s += line["wall_s"]
            self._watcher.step(line, self.step, self.num_steps)

    def _say_where(self, name: str, log: RunLog) -> None:
        """Say, in any thread, where the run is when a signal asks it to end."""
        step, cycles, shares = self._told
        count = self._backend.num_microbatches
        at = [min(int(share * count) + 1, count) for share in shares] if step == self.step else []
        where = f"step {self.step} of {self.num_steps}"
        if at:
            where += (
                f", micro-batch {' and '.join(map(str, at))} of {count} on the devices in order"
            )
        figures = {"step": self.step, "cycles": cycles if at else None, "microbatches": at}
        log.write({"progress": figures | {"ending": name}})
        logger.info("%s: asked to end in %s; what is done is kept", name, where)

    def _stop_in_time(self) -> None:
        if time.monotonic() >= self._ends_s:
            raise TimeIsOver

    def _keep(self, log: RunLog, line: dict[str, Any]) -> None:
        log.write(line)
        self._lines.append(line)

    def _save(self) -> None:
        if self._saved != self.step:
            self._checkpoints.save(Checkpoint(self.step, self._build, self._decisive, self._state))
            self._snapshots.drop()  # it is of an earlier step
            self._saved = self.step
            if self.step:
                drop_oldest(self._folder)

    def _save_within(self) -> None:
        """Keep the present step, if the backend has begun it and can; checkpoint it before."""
        if snapshot := self._backend.snapshot():
            self._save()
            if self._check:
                snapshot = self._check.keep(snapshot)
            self._snapshots.save(snapshot, self._identity())

    def _identity(self) -> dict[str, Any]:
        return {"step": self.step, "build": self._build, "settings": self._decisive}

    def _is_validation_due(self) -> bool:
        if not self._evaluate or not self.step:
            return False
        if self.step % self.steps_per_epoch and self.step != self.num_steps:
            return False
        return not any(
            line["validation"]["step"] == self.step for line in self._lines if "validation" in line
        )

    def _validate(self) -> dict[str, Any]:
        assert self._evaluate is not None, "a validation is due only if there is one"
        with phase("validation"):
            found = self._evaluate(self._state)
        several = found if isinstance(found, dict) else {}
        right, labels = next(iter(several.values())) if isinstance(found, dict) else found
        outputs = {
            name: right / labels if labels else None for name, (right, labels) in several.items()
        }
        return {
            "validation": {
                "epoch": (self.step - 1) // self.steps_per_epoch,
                "step": self.step,
                "accuracy": right / labels if labels else None,
                "samples": labels,
                **({"outputs": outputs} if outputs else {}),
            },
            "backend": self._backend.name,
        }

    def _advance(self, log: RunLog) -> tuple[dict[str, Any], Difference | None]:
        """Do a step; return its line for the log and the difference that the check has found."""
        epoch = self.step // self.steps_per_epoch
        batch = self._samples()
        rate = self.settings.rate(self.step, self.steps_per_epoch)
        scalars = scalar_bits(
            learning_rate=rate,
            momentum=self.settings.momentum,
            # Updates after each micro-batch decay the weights together as much as a single one.
            weight_decay=(self.settings.weight_decay or 0.0) / self._backend.num_updates,
            max_norm=1.0 if self.settings.clip_norm is None else self.settings.clip_norm,
            betas=self.settings.betas,
            seed=self.settings.seed,
            step=self.step,
        )
        inputs = batch.inputs(self._backend.graph)
        begin = said = kept = time.perf_counter()

        def tell(cycles: int) -> None:
            nonlocal said, kept
            shares = self._backend.shares_done()
            self._told = self.step, cycles, shares
            self._watcher.cycles(self.step, cycles, shares)
            now = time.perf_counter()
            if now - said >= PROGRESS_EVERY_S:
                said = now
                wall_s = round(now - begin, 3)
                devices = [round(share, 4) for share in shares]
                figures = {"step": self.step, "cycles": cycles, "wall_s": wall_s}
                log.write({"progress": figures | {"devices": devices}})
            self._stop_in_time()
            if now - kept >= self._save_within_s:
                self._save_within()
                kept = time.perf_counter()

        with phase(COMPUTES.get(self._backend.name, self._backend.name)):
            result = self._backend.step(inputs, batch.targets, scalars, progress=tell)
        wall_s = time.perf_counter() - begin
        difference = None
        if self._check:
            with phase("the check beside it"):
                difference = self._check.after(
                    self.step, self._backend, result, self._state, inputs, batch.targets, scalars
                )
        counts = labels_that_count(batch, self._backend.graph, self._loss)
        line: dict[str, Any] = {
            "step": self.step,
            "epoch": epoch,
            "samples": self.batch,
            "loss": result.loss,
            "correct": result.correct,
            "labels": next((count for count in counts.values() if count), 0),
            "cycles": result.cycles,
            "wall_s": round(wall_s, 6),
            "backend": self._backend.name,
            **simulated(self._backend),
        }
        if result.outputs:
            line["outputs"] = {
                name: {"loss": loss, "correct": right, "labels": counts[name]}
                for name, (loss, right) in result.outputs.items()
            }
        return line, difference

    def _checked_state(self, loss: float) -> Values:
        """Return the state after a step.

        Raises
        ------
        Diverged
            If the loss is not finite, which is caused by the state before the step, or if the
            update has left values that are too large to compute with.
        """
        rate = self.settings.rate(self.step, self.steps_per_epoch)
        if not math.isfinite(loss):
            self._checkpoints.set_aside(self.step - 1)
            good = next(iter(self._checkpoints), None)
            raise diverged(f"the loss of step {self.step} is {loss}", rate, good)
        state = self._backend.state()
        if fault := explosion(state, self._fixed):
            self._save()
            good = next(iter(self._checkpoints), None)
            raise diverged(f"after the update of step {self.step} {fault}", rate, good)
        return state

    def _samples(self) -> Samples:
        """The samples of the present step."""
        epoch, index = divmod(self.step, self.steps_per_epoch)
        if self._next_of_batches != self.step or not index:
            self._batches = self._train.batches(self.batch, self.settings.seed, epoch, index)
        self._next_of_batches = self.step + 1
        with phase("reading samples"):
            return next(self._batches)
