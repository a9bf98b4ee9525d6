"""The training of models in a ring: visits, hops, checkpoints, and what comes of it.

A checkpoint is written after each round, so an interrupted training goes on from the last round
that was whole, and ends with the same bits.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.data.sample_checks import check_samples, digest_of
from fpgapipe.host.ring.shards import shards_of
from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointFolder
from fpgapipe.host.runtime.divergence import diverged, explosion, fixed_numbers
from fpgapipe.host.runtime.evaluation import Inference
from fpgapipe.host.runtime.run_log import RunLog, read_log
from fpgapipe.host.runtime.training import Found
from fpgapipe.host.terminal.interrupts import Interrupts
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.data.samples import Dataset, Samples
    from fpgapipe.host.ring.devices import RingBackend, RingDevices
    from fpgapipe.host.ring.ring_build import RingBuild
    from fpgapipe.host.runtime.settings import Settings

LOG, CHECKPOINTS = "log.jsonl", "checkpoints"


@dataclass
class ModelResult:
    """Outcome of a model's training.

    Attributes
    ----------
    network : str
    loss : float or None
        Mean loss of the last mini-batch; None if it ran before the training was resumed.
    accuracy : float or None
        Share of the validation samples that it classifies right; None if there are none.
    shuffled_accuracy : float or None
        That of the same model after it was trained alone on shuffled samples, if it was.
    state : mapping of str to array
        Parameters, statistics and the optimiser's values.
    """

    network: str
    loss: float | None
    accuracy: float | None
    shuffled_accuracy: float | None
    state: Values = field(repr=False)


@dataclass
class RingResult:
    """Outcome of a training in a ring.

    Attributes
    ----------
    models : list of ModelResult
    rounds : int
        Rounds in all, of all groups.
    visit_cycles, hop_cycles : int or None
        Cycles of all visits and of all hops that ran now, if they are counted; the devices wait for
        the longest visit.
    predicted_hop_cycles : int
        Cycles of the same hops by the cycle model.
    hop_bytes : int
        Bytes that all devices together have sent to the next one in these hops.
    wall_s : float
    difference : str
        The first difference that a check has found; empty if there is none.
    """

    models: list[ModelResult]
    rounds: int
    visit_cycles: int | None
    hop_cycles: int | None
    predicted_hop_cycles: int
    hop_bytes: int
    wall_s: float
    difference: str = ""


class RingTrainer:
    """Trains the models of a build.

    Parameters
    ----------
    build : RingBuild
    data : Dataset
    settings : sequence of Settings
        Settings of each model, with a number of epochs, the same for all, and a seed of dropout.
    folder : Path
        Folder for log and checkpoints.
    backend : str
        ``model`` or ``sim``.
    checks : bool
        Whether the other backend runs beside, and all memories are compared after each round.
    threads : int, optional
        Threads of the simulator.
    on_round : callable
        Called with the number of rounds done and their total.

    Raises
    ------
    UserError
        If the samples do not fit a network, or a shard does not fill a mini-batch.
    """

    def __init__(
        self,
        build: RingBuild,
        data: Dataset,
        settings: Sequence[Settings],
        folder: Path,
        *,
        backend: RingBackend = "model",
        checks: bool = False,
        threads: int | None = None,
        on_round: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        for graph in build.graphs:
            check_samples(data.train, graph)
        self._build, self._data, self._folder = build, data, folder
        self.batch = build.plan.plans[0].batch
        self.shards = shards_of(data.train, build.num_devices, self.batch)
        self.visit_steps = len(self.shards[0].labels) // self.batch
        self.steps_per_epoch = self.visit_steps * build.num_devices
        self.settings = [each.for_batch(self.batch, self.steps_per_epoch) for each in settings]
        epochs = self.settings[0].epochs
        assert epochs is not None, "a ring is trained for epochs"
        self.rounds = epochs * build.num_devices
        self._name, self._checks, self._threads = backend, checks, threads
        self._on_round = on_round
        self._checkpoints = CheckpointFolder(folder / CHECKPOINTS)
        self._done = 0
        self._states: list[Values] = [{} for _ in build.graphs]
        self._losses: list[float | None] = [None] * len(build.graphs)
        self._fixed = [fixed_numbers(graph) for graph in build.graphs]
        self._result = RingResult([], self.rounds * len(build.groups), None, None, 0, 0, 0.0)
        self._hop_cycles: dict[tuple[int, int], int] = {}

    # ------------------------------------------------------------------ checkpoints

    @property
    def _decisive(self) -> dict[str, Any]:
        """Settings that a training that goes on may not change."""
        found: dict[str, Any] = {"data": digest_of(self._data.train)}
        for model, settings in enumerate(self.settings):
            found |= {f"{model}/{name}": value for name, value in settings.decisive().items()}
        return found

    def resume(self) -> int:
        """Go on from the newest checkpoint; return its number of rounds.

        Raises
        ------
        UserError
            If there is none, or it was made with other settings.
        """
        path, checkpoint = self._checkpoints.newest(
            self._build.digest,
            fixed={f"{model}/{name}" for model, names in enumerate(self._fixed) for name in names},
        )
        if dict(checkpoint.settings) != self._decisive:
            raise UserError(
                f"{path} was made with other settings or samples; resume with the same ones, or "
                "begin anew without --resume"
            )
        for name, value in checkpoint.state.items():
            model, _, own = name.partition("/")
            self._states[int(model)] = {**self._states[int(model)], own: value}
        self._done = checkpoint.step
        return self._done

    def _save(self) -> None:
        state = {
            f"{model}/{name}": value
            for model, values in enumerate(self._states)
            for name, value in values.items()
        }
        checkpoint = Checkpoint(self._done, self._build.digest, self._decisive, state)
        self._checkpoints.save(checkpoint)

    # ------------------------------------------------------------------ the rounds

    def run(self, *, shuffled: bool = False) -> RingResult:
        """Train all models, group after group.

        Parameters
        ----------
        shuffled : bool
            Whether each model is also trained alone, on shuffled samples of the whole set.
        """
        self._checkpoints.tidy()
        self._checkpoints.set_aside(self._done if self._done else -1)
        earlier = read_log(self._folder / LOG, self._done) if self._done else []
        began = time.perf_counter()
        with RunLog(self._folder / LOG, earlier) as log, Interrupts() as interrupts:
            for group in range(len(self._build.groups)):
                if self._done >= (group + 1) * self.rounds:
                    continue
                self._run_group(group, log, interrupts)
                if self._result.difference:
                    break
        self._result.wall_s = time.perf_counter() - began
        if not self._result.difference:
            self._judge(shuffled=shuffled)
        return self._result

    def _run_group(self, group: int, log: RunLog, interrupts: Interrupts) -> None:
        build, ring = self._build, self._build.groups[group]
        other: RingBackend = "sim" if self._name == "model" else "model"
        names = [self._name, other] if self._checks else [self._name]
        devices = [build.open(group, name, self._threads) for name in names]
        try:
            first = self._done - group * self.rounds
            if first:
                for number in range(build.num_devices):
                    model = ring.visitor(number, first)
                    if model is not None:
                        state = self._states[build.members(group)[model]]
                        for each in devices:
                            ring.models[model].set_state(each.memories[number], state)
            for done in range(first, self.rounds):
                with interrupts.allowed():
                    line = self._round(group, done, devices)
                log.write(line)
                self._done += 1
                self._save()
                self._on_round(self._done, self.rounds * len(build.groups))
                if self._result.difference:
                    return
        finally:
            for each in devices:
                each.close()

    def _round(self, group: int, done: int, devices: Sequence[RingDevices]) -> dict[str, Any]:
        """All visits of a round and the hop after them; the line for the log."""
        build, ring = self._build, self._build.groups[group]
        members = build.members(group)
        codes = [ring.step_of(device, done) for device in range(build.num_devices)]
        present = {device: ring.visitor(device, done) for device in range(build.num_devices)}
        orders = [
            shard.batches(self.batch, self.settings[0].seed, done // build.num_devices)
            for shard in self.shards
        ]
        visit = 0
        for step in range(self.visit_steps):
            at = done * self.visit_steps + step
            scalars = [scalar_bits() for _ in codes]
            for device, model in present.items():
                batch = next(orders[device])
                if model is None:
                    continue
                number = members[model]
                own = self.settings[number]
                scalars[device] = scalars_of(own, number, at, self.steps_per_epoch)
                inputs = batch.inputs(build.graphs[number])
                for each in devices:
                    ring.models[model].set_batch(each.memories[device], inputs, batch.targets)
            with phase("the visits"):
                cycles = [each.run(codes, scalars) for each in devices]
            visit += cycles[0] or 0
        memories = devices[0].memories
        for device, model in present.items():
            if model is not None:
                loss, _ = ring.models[model].outcome(memories[device])
                self._losses[members[model]] = loss
        with phase("the hops"):
            none = [scalar_bits()] * build.num_devices
            hop, *_ = [each.run(ring.hop_of(done), none) for each in devices]
        for device, model in present.items():
            if model is not None:
                after = (device + 1) % build.num_devices
                self._states[members[model]] = self._checked(
                    members[model], ring.models[model].state(memories[after])
                )
        result = self._result
        sent = sum(place.size_bytes for places in ring.lasting for place in places)
        result.hop_bytes += sent
        result.predicted_hop_cycles += self._predicted(group, done)
        if hop is not None:
            result.visit_cycles = (result.visit_cycles or 0) + visit
            result.hop_cycles = (result.hop_cycles or 0) + hop
        if self._checks:
            result.difference = self._difference(done, devices)
        return {
            "step": self._done,
            "group": group,
            "round": done,
            "visit_cycles": visit if hop is not None else None,
            "hop_cycles": hop,
            "hop_bytes": sent,
        } | {f"loss of model {model}": self._losses[model] for model in members}

    def _predicted(self, group: int, done: int) -> int:
        key = group, done % self._build.num_devices
        if key not in self._hop_cycles:
            self._hop_cycles[key] = self._build.predicted_hop(group, done)
        return self._hop_cycles[key]

    def _checked(self, model: int, state: Values) -> Values:
        """The state, which must not have exploded."""
        loss = self._losses[model]
        fault = explosion(state, self._fixed[model])
        if loss is not None and not math.isfinite(loss):
            fault = f"its loss is {loss}"
        if fault:
            rate = self.settings[model].learning_rate
            assert rate is not None
            good = next(iter(self._checkpoints), None)
            raise diverged(f"model {model} in round {self._done}: {fault}", rate, good)
        return state

    def _difference(self, done: int, devices: Sequence[RingDevices]) -> str:
        one, other = devices
        for number, memories in enumerate(zip(one.memories, other.memories, strict=True)):
            mine, its = map(np.asarray, memories)
            if not np.array_equal(mine, its):
                at = int(np.flatnonzero(mine != its)[0])
                return (
                    f"after round {done}, byte {at:,} of device {number}'s memory is {mine[at]} in "
                    f"{one.name} and {its[at]} in {other.name}"
                )
        return ""

    # ------------------------------------------------------------------ accuracies

    def _judge(self, *, shuffled: bool) -> None:
        for model, graph in enumerate(self._build.graphs):
            with phase("validation"):
                judge = Inference(graph, self._build.groups[0].core, self._data.validation)
                accuracy = _share(judge(self._states[model]))
            alone = None
            if shuffled:
                with phase("one model a device"):
                    alone = _share(judge(self.alone(model)))
            self._result.models.append(
                ModelResult(
                    self._build.plan.networks[model],
                    self._losses[model],
                    accuracy,
                    alone,
                    self._states[model],
                )
            )

    def alone(self, model: int) -> Values:
        """The state of a model after as many epochs on one device, on shuffled samples of all."""
        settings = self.settings[model]
        assert settings.epochs is not None
        train = self._data.train
        batches = (
            batch
            for epoch in range(settings.epochs)
            for batch in train.batches(self.batch, settings.seed, epoch)
        )
        return train_alone(self._build, model, settings, batches, len(train.labels) // self.batch)


def train_alone(
    build: RingBuild,
    model: int,
    settings: Settings,
    batches: Iterable[Samples],
    steps_per_epoch: int,
) -> Values:
    """Train one model on one device, in the bit-exact model, and return its state.

    Parameters
    ----------
    build : RingBuild
    model : int
    settings : Settings
        Settings with a learning rate.
    batches : iterable of Samples
        The mini-batches in their order.
    steps_per_epoch : int
        Mini-batches of an epoch, on which the learning rate depends.
    """
    program, graph = build.programs[model], build.graphs[model]
    core = CoreModel(program.core, program.image(build.parameters[model]), repeats=True)
    for step, batch in enumerate(batches):
        program.set_batch(core.memory, batch.inputs(graph), batch.targets)
        core.scalars[:] = scalars_of(settings, model, step, steps_per_epoch)
        core.run(program.instructions)
    return program.state(core.memory)


def scalars_of(settings: Settings, model: int, step: int, steps_per_epoch: int) -> list[int]:
    """Contents of the scalar registers in a step of a model."""
    return scalar_bits(
        learning_rate=settings.rate(step, steps_per_epoch),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay or 0.0,
        seed=settings.seed + model,
        step=step,
    )


def _share(counts: Found) -> float | None:
    assert isinstance(counts, tuple), "a network with several outputs is refused"
    right, samples = counts
    return right / samples if samples else None
