"""Rings: models that travel around devices whose samples stay, as ``fpgapipe ring`` trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fpgapipe.boards.cluster import Cluster
from fpgapipe.errors import UserError, counted
from fpgapipe.host.data.data import load_data
from fpgapipe.host.data.sample_checks import check_samples
from fpgapipe.host.make.build import compared
from fpgapipe.host.make.networks import loader
from fpgapipe.host.make.planning import spec_of
from fpgapipe.host.ring.ring_build import check_one_output, make_ring_build
from fpgapipe.host.ring.ring_folder import RingFolder
from fpgapipe.host.ring.ring_training import RingResult, RingTrainer
from fpgapipe.host.ring.shards import shard_size
from fpgapipe.host.runtime.settings import Settings
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.lowering.units.network_units import check_network
from fpgapipe.partition.explore.planned import one_link_each
from fpgapipe.partition.strategies.plan_ring import plan_ring, ring_cost
from fpgapipe.partition.strategies.ring import RingCost
from fpgapipe.stopwatch import phase

MOST_MODELS = 256
"""Most models of a ring."""


@dataclass(frozen=True)
class Ring(Result):
    """A ring that was planned, and perhaps trained.

    Attributes
    ----------
    cost : RingCost
        What is planned.
    folder : Path
    backend : str
    checked : bool
        Whether another backend ran beside.
    clk_hz : float
        Clock frequency of the devices, Hz.
    result : RingResult or None
        What the training has come to; None if the ring was only planned.
    """

    cost: RingCost
    folder: Path
    backend: str
    checked: bool
    clk_hz: float
    result: RingResult | None = None

    @property
    def difference(self) -> str | None:
        """The first difference that a check has found."""
        return (self.result.difference or None) if self.result else None

    def to_dict(self) -> dict[str, Any]:
        """The plan, and the outcome of the training."""
        plan, result = self.cost.to_dict(), self.result
        if result is None:
            return plan
        figures = ("rounds", "visit_cycles", "hop_cycles", "predicted_hop_cycles", "hop_bytes")
        names = ("network", "loss", "accuracy", "shuffled_accuracy")
        run = {
            "backend": self.backend,
            **{name: getattr(result, name) for name in figures},
            "clk_hz": self.clk_hz,
            "wall_s": result.wall_s,
            "difference": self.difference,
            "models": [{name: getattr(each, name) for name in names} for each in result.models],
        }
        return {"plan": plan, "run": run}

    def to_records(self) -> list[dict[str, Any]]:
        """A record for each model."""
        value = self.to_dict()
        models: list[dict[str, Any]] = value.get("run", value)["models"]
        return models

    def shown(self) -> Iterator[Table | str]:
        """The visits and when a ring pays, and what the training has come to."""
        yield from _plan_parts(self.cost)
        if self.result is not None:
            yield ""
            yield from self._result_parts(self.result)
            if self.checked and not self.difference:
                yield "every byte of every memory equal to the other backend's"

    def _result_parts(self, result: RingResult) -> Iterator[Table | str]:
        def share(value: float | None) -> str:
            return "" if value is None else f"{value:.2%}"

        columns = ">model|network|>loss of the last|>accuracy|>shuffled, alone"
        rows = [
            (
                number,
                each.network,
                "" if each.loss is None else f"{each.loss:.4f}",
                share(each.accuracy),
                share(each.shuffled_accuracy),
            )
            for number, each in enumerate(result.models)
        ]
        yield Table(columns, rows, f"trained in {counted(result.rounds, 'round')}, {self.backend}")
        hops = f"{count(result.predicted_hop_cycles)} cycles by the cycle model"
        if result.hop_cycles is not None and result.visit_cycles is not None:
            yield f"visits: {count(result.visit_cycles)} cycles simulated"
            hops = f"{count(result.hop_cycles)} cycles simulated, {hops}"
        yield f"hops: {count(result.hop_bytes)} bytes, {hops}"
        yield f"wall time {scaled(result.wall_s, 's')}; kept in {self.folder}"


def _plan_parts(cost: RingCost) -> Iterator[Table | str]:
    """The visits, the formula of the whole time, and when a ring pays."""
    rows = [
        (
            number,
            model.network,
            scaled(model.step_s, "s"),
            scaled(visit, "s"),
            scaled(model.state_bytes, "B"),
        )
        for number, (model, visit) in enumerate(zip(cost.models, cost.visits_s, strict=True))
    ]
    columns = ">model|network|>mini-batch|>visit|>travels"
    title = (
        f"{counted(len(cost.models), 'model')} in a ring of {counted(cost.devices, 'device')}, "
        f"each with {counted(cost.shard_samples, 'sample')}: "
        f"{counted(cost.visit_steps, 'mini-batch', 'es')} of {cost.batch} a visit"
    )
    yield Table(columns, rows, title)
    visits = " + ".join(
        f"({scaled(visit, 's')} + {scaled(cost.hop_s, 's')})" for visit in cost.longest_visits_s
    )
    yield f"T = E S (v + x) = {cost.epochs} x {cost.devices} x {visits} = {_s(cost.total_s)}"
    yield (
        f"utilisation K/S = {len(cost.models)}/{cost.groups * cost.devices} = "
        f"{cost.utilisation:.1%}; {cost.busy:.1%} with hops and waiting"
    )
    word = "fewer" if cost.moves_less else "no fewer"
    yield (
        f"bytes a visit: {count(cost.state_bytes)} in a ring; with one model a device, (D/S) x "
        f"sample = {count(cost.shard_samples)} x {cost.sample_bytes} = {count(cost.shard_bytes)}. "
        f"The ring moves {word}; from {count(cost.pays_from_samples)} samples a device on, fewer"
    )
    yield (
        f"one model a device: E S max(v, stream) = {_s(cost.streamed_s)}, with a stream of "
        f"{_s(cost.stream_s)} while it computes a visit; {_s(cost.streamed_first_s)} if it waits"
    )
    faster = "The ring is faster" if cost.is_faster else "The ring is not faster"
    if cost.moves_less:
        limit = scaled(cost.pays_below_bytes_per_s, "B/s")
        yield f"{faster}; it is where a wire carries less than (shard - model) / v = {limit}"
    else:
        yield f"{faster}: no wire is so slow that it would be"


def _s(seconds: float) -> str:
    return scaled(seconds, "s")


def ring(
    networks: Sequence[str],
    cluster: Cluster | ClusterSpec,
    folder: Path | str = "out/ring",
    *,
    data: str = "digits",
    epochs: int = 1,
    batch: int = 32,
    micro_batches: int | None = None,
    array: tuple[int, int] | None = None,
    learning_rates: Sequence[float] = (),
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    seed: int = 0,
    backend: Literal["model", "sim"] = "model",
    checks: bool = False,
    shuffled: bool = False,
    verify: bool = True,
    plan_only: bool = False,
    samples: int | None = None,
    resume: bool = False,
    threads: int | None = None,
    on_note: Callable[[str], object] = lambda text: None,
    progress: Progress = silent,
) -> Ring:
    """Train several models in a ring: each device keeps its part of the samples, models travel.

    Parameters
    ----------
    networks : sequence of str
        Names or files of the models; the same may come several times.
    cluster : Cluster or ClusterSpec
    folder : path
        Folder for the plan, programs, the log, checkpoints and trained parameters.
    data : str
        Samples, as for `load_data`.
    epochs : int
        Visits of each model to all devices.
    batch, micro_batches : int
        Samples in a mini-batch, and its equal parts; the best of several numbers if not given.
    array : (int, int), optional
        Rows and columns of each device's array; as few as are fast if it is not given.
    learning_rates : sequence of float
        One for all models, or one for each; one that suits the batch if there is none.
    momentum, weight_decay : float
    seed : int
        Seed of the order of the samples and of the first model's parameters.
    backend : str
        ``model`` or ``sim``.
    checks : bool
        Whether the other backend runs beside, and all memories are compared.
    shuffled : bool
        Whether each model is also trained alone on shuffled samples of all.
    verify : bool
        Whether imported networks are compared with their sources.
    plan_only : bool
        Whether nothing is trained.
    samples : int, optional
        Samples of the training set to plan with, instead of those of `data`.
    resume : bool
        Whether to go on from the checkpoint of the last whole round.
    threads : int, optional
        Threads for the simulation.
    on_note : callable
        Is told how networks compare with their sources.
    progress : callable
        Shows the progress.
    """
    if not 2 <= len(networks) <= MOST_MODELS:
        raise UserError(
            f"a ring has 2 to {MOST_MODELS} models, not {len(networks)}; name one "
            "several times to train it from several seeds"
        )
    if samples is not None and not plan_only:
        raise UserError("--samples is a number to plan with: use it with --plan, or give --data")
    rates = learning_rates or (None,)
    if len(rates) not in (1, len(networks)):
        raise UserError(
            f"--learning-rate must be given once, or once for each of {len(networks)} models, not "
            f"{len(rates)} times"
        )
    setting = partial(Settings, epochs=epochs, seed=seed, momentum=momentum, data=data)
    every = list(rates) * (len(networks) // len(rates))
    settings = [setting(learning_rate=rate, weight_decay=weight_decay) for rate in every]
    place = RingFolder(Path(folder))
    if not plan_only:
        place.check(resumes=resume)
    loads = {name: loader(name) for name in networks}
    models = [(name, loads[name]) for name in networks]
    size = batch // (micro_batches or 1)
    for load in loads.values():
        check_network(load(size), train=True)
        check_one_output(load(size))
        if verify and not plan_only and (note := compared(load, batch, micro_batches, train=True)):
            on_note(note)
    found = None
    if samples is None:
        found = load_data(data, models[0][1](size))
        for load in loads.values():
            check_samples(found.train, load(size))
    spec = one_link_each(spec_of(cluster))
    total = (samples or 0) if found is None else len(found.train.labels)
    shard = shard_size(total, len(spec.devices), batch)
    with phase("planning"):
        plan = plan_ring(models, batch, spec, micro_batches, array)
        cost = ring_cost(plan, models, spec, epochs, shard)
    if found is None or plan_only:
        return Ring(cost, place.path, backend, checks, plan.clk_hz)
    with progress() as display:
        display.add_task("making programs")
        with phase("programs"):
            build = make_ring_build(plan, [load for _, load in models], spec, seed=seed)
        place.write(build, cost)

        def on_round(done: int, total: int) -> None:
            display.update(description="rounds", completed=done, total=total)

        trainer = RingTrainer(
            build,
            found,
            settings,
            place.path,
            backend=backend,
            checks=checks,
            threads=threads,
            on_round=on_round,
        )
        if resume:
            trainer.resume()
        result = trainer.run(shuffled=shuffled)
    place.keep(result)
    return Ring(cost, place.path, backend, checks, plan.clk_hz, result)
