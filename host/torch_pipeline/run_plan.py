"""``fpgapipe.run_plan``: trains as a plan says, in processes of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.errors import UserError, counted
from fpgapipe.host.make.networks import loader
from fpgapipe.host.terminal.console import Table, scaled
from fpgapipe.host.terminal.progress import silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.host.torch_pipeline.plan_file import read_pipeline_plan
from fpgapipe.host.torch_pipeline.profile import check_one_output
from fpgapipe.lowering.schedule.pytorch_csv import to_pytorch_csv
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.optional import require
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fpgapipe.host.terminal.progress import Progress
    from fpgapipe.host.torch_pipeline.workers import Step
    from fpgapipe.network.graph import Graph

TOLERANCE = 1e-6
"""Relative difference of the losses of a pipeline and of one process that is no fault."""


@dataclass(frozen=True)
class PlanRan(Result):
    """A training by a plan in PyTorch.

    Attributes
    ----------
    network, schedule, device : str
    stages : int
    batch, num_microbatches : int
    steps : list of Step
        Loss and seconds of each mini-batch; the seconds are those of all passes without the update.
    alone : list of Step
        The same in one process; empty if it was not asked for.
    predicted_s : float or None
        Seconds of a mini-batch that the plan foretells, if it was made from measured times.
    """

    RECORDS: ClassVar[str] = "steps"

    network: str
    schedule: str
    device: str
    stages: int
    batch: int
    num_microbatches: int
    steps: list[Step]
    alone: list[Step]
    predicted_s: float | None

    @property
    def median_s(self) -> float:
        """Median of the seconds; the first mini-batch counts only if there is no other.

        In the first one, processes tell each other the shapes of their tensors.
        """
        return median(step.seconds for step in self.steps[1:] or self.steps)

    @property
    def difference(self) -> float:
        """Largest relative difference of the losses from those of one process."""
        pairs = zip(self.steps, self.alone, strict=False)
        return max((abs(a.loss - b.loss) / max(abs(b.loss), 1e-30) for a, b in pairs), default=0.0)

    @property
    def is_right(self) -> bool:
        """Whether the losses are those of one process, as far as that was asked for."""
        return self.difference <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Everything, times in seconds."""
        alone: list[Step | None] = [*self.alone] or [None] * len(self.steps)
        return {
            "network": self.network,
            "schedule": self.schedule,
            "device": self.device,
            "stages": self.stages,
            "batch": self.batch,
            "num_microbatches": self.num_microbatches,
            "predicted_s": self.predicted_s,
            "median_s": self.median_s,
            "difference": self.difference if self.alone else None,
            "steps": [
                {
                    "loss": each.loss,
                    "seconds": each.seconds,
                    "loss_alone": one and one.loss,
                    "seconds_alone": one and one.seconds,
                }
                for each, one in zip(self.steps, alone, strict=True)
            ],
        }

    def shown(self) -> Iterator[Table | str]:
        """The mini-batches, and how the plan's time compares."""
        heading = "mini-batch|>loss|>time"
        rows = [(n, f"{s.loss:.6f}", scaled(s.seconds, "s")) for n, s in enumerate(self.steps, 1)]
        parts = counted(self.num_microbatches, "micro-batch", "es")
        title = (
            f"{self.network}, batch {self.batch} in {parts}, {self.schedule} in "
            f"{counted(self.stages, 'process', 'es')} on {self.device}"
        )
        yield Table(f">{heading}", rows, title)
        told = f"median {scaled(self.median_s, 's')} a mini-batch"
        if len(self.steps) > 1:
            told += " without the first"
        if self.predicted_s:
            off = self.median_s / self.predicted_s - 1
            told += (
                f"; the plan foretells {scaled(self.predicted_s, 's')}, and it took {abs(off):.0%} "
                f"{'longer' if off >= 0 else 'less'}"
            )
        yield told
        if self.alone:
            one = median(step.seconds for step in self.alone[1:] or self.alone)
            same = "the same" if self.is_right else "NOT the same"
            yield (
                f"one process takes {scaled(one, 's')}, {one / self.median_s:.2f} times as long; "
                f"its losses are {same} (relative difference {self.difference:.1e})"
            )


def run_plan(
    plan: Path | str,
    *,
    network: str | Callable[[int], Graph] | None = None,
    samples: int | None = None,
    processes: int | None = None,
    steps: int = 10,
    data: str = "random",
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    checks: bool = False,
    progress: Progress = silent,
) -> PlanRan:
    """Train as a plan says, by PyTorch's pipelines, each stage in a process.

    The loss is softmax and cross-entropy; the optimiser is SGD.

    Parameters
    ----------
    plan : path
        File that ``fpgapipe plan -o`` has written: of measured times or of boards.
    network : str or callable, optional
        The network, if the plan does not have its name.
    samples : int, optional
        Samples of a micro-batch, if the plan does not have them.
    processes : int, optional
        Number of processes, which must be that of the plan's devices.
    steps : int
        Mini-batches.
    data : str
        Samples, as for `load_data`.
    learning_rate, momentum : float
    seed : int
        Number that decides initial parameters and the order of the samples.
    device : str
        ``cpu``, ``cuda``, which is a GPU for each process, or ``auto``, which is that if there are
        enough.
    threads : int, optional
        Threads of each process on a processor; one if it is not given.
    checks : bool
        Whether to train in one process as well, and to compare the losses.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If the plan cannot be carried out, with the reason, or a process fails.
    """
    torch = require("torch", "a pipeline in PyTorch")
    from fpgapipe.host.torch_pipeline import workers

    found = read_pipeline_plan(Path(plan))
    ranks = len(found.stages)
    if processes not in (None, ranks):
        raise UserError(
            f"the plan is for {counted(ranks, 'process', 'es')}, one for each device, not "
            f"{processes}"
        )
    load = loader(network or found.network)
    microbatch = samples or found.microbatch
    if microbatch is None:
        raise UserError(
            "the plan does not say how many samples a micro-batch has; name them with --samples"
        )
    if found.microbatch not in (None, microbatch):
        raise UserError(
            f"the plan is for micro-batches of {found.microbatch} samples, not {microbatch}"
        )
    schedule = make_schedule(found.schedule, ranks, found.num_microbatches)
    if not schedule.synchronous:
        raise UserError(
            f"{found.schedule} updates weights before a mini-batch ends, which PyTorch's pipelines "
            "do not; plan with --schedule gpipe, 1f1b or zb-h1"
        )
    if schedule.num_stages != ranks:
        raise UserError(
            f"{found.schedule} has {schedule.num_stages} stages on {ranks} devices; in PyTorch "
            "each process has one"
        )
    graph = load(microbatch)
    check_one_output(graph)
    from fpgapipe.host.torch_pipeline.stages import check_split, dropping_layers

    if checks and (drops := next(dropping_layers(graph), None)):
        raise UserError(
            f"layer {drops!r} drops elements at random, other ones in each process, so the losses "
            "are not those of one process; leave out --check"
        )
    stages = found.cuts(graph)
    if any(TaskKind.DW in lane.kinds for lane in schedule.lanes):
        check_split(graph, stages)
    training = workers.Training(
        load=load,
        stages=stages,
        order=workers.without_transfers(to_pytorch_csv(schedule)),
        microbatch=microbatch,
        num_microbatches=found.num_microbatches,
        steps=steps,
        data=data,
        learning_rate=learning_rate,
        momentum=momentum,
        seed=seed,
        device=_device(torch, device, ranks),
        threads=threads or 1,
    )
    training.parts(graph)  # what is refused is so before processes begin
    next(training.batches(graph))
    alone: list[Step] = []
    done: list[Step] = []
    with progress() as display:
        display.add_task("training", unit="mini-batches")
        total = steps * (2 if checks else 1)

        def count(step: Step) -> None:
            done.append(step)
            display.count(len(done), total)

        ran = workers.train_in_pipeline(training, count)
        if checks:
            alone = workers.train_alone(training, count)
    return PlanRan(
        load.name, found.schedule, training.device, ranks, microbatch * found.num_microbatches,
        found.num_microbatches, ran, alone, found.predicted_s,
    )  # fmt: skip


def _device(torch: Any, name: str, ranks: int) -> str:
    """``cuda`` or ``cpu``."""
    there = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if there >= ranks else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"the device of a pipeline is cpu, cuda or auto, not {name!r}")
    if name == "cuda" and there < ranks:
        raise UserError(f"the plan needs {ranks} GPUs, and PyTorch sees {there}; take --device cpu")
    return name
