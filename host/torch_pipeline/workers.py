"""Trains the stages of a plan in PyTorch, each rank of a pipeline in a process of its own.

The order of the passes is that of the plan's schedule, as a list of actions for each rank
(`fpgapipe.lowering.schedule.pytorch_csv`), so that every schedule with one engine a device runs.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing
from torch import distributed
from torch.distributed.pipelining import PipelineStage

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_loss import loss_of
from fpgapipe.host.data.data import load_data
from fpgapipe.host.torch_pipeline.stages import Part, make_parts, shared_parameters
from fpgapipe.network.initial_values import initial_parameters
from fpgapipe.network.losses import CROSS_ENTROPY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from fpgapipe.host.make.networks import Loader
    from fpgapipe.network.graph import Graph

PATIENCE = timedelta(minutes=30)
"""Longest wait of a rank for another one."""

ENDING_S = 5.0
"""Seconds in which a process that is told to end does so, before it is killed."""


@dataclass(frozen=True)
class Training:
    """A training in PyTorch, as all of its processes know it.

    Attributes
    ----------
    load : Loader
        Gives the network for a number of samples.
    stages : tuple of tuple of str
        Names of the layers of each stage.
    order : str
        The passes of each rank, in PyTorch's CSV.
    microbatch, num_microbatches : int
        Samples of a micro-batch, micro-batches of a mini-batch.
    steps : int
        Mini-batches.
    data : str
        As for `fpgapipe.load_data`.
    learning_rate, momentum : float
    seed : int
        Number that decides initial parameters and the order of the samples.
    device : str
        ``cpu``, or ``cuda`` for a GPU each.
    threads : int
        Threads of a process on a processor.
    """

    load: Loader
    stages: tuple[tuple[str, ...], ...]
    order: str
    microbatch: int
    num_microbatches: int
    steps: int
    data: str
    learning_rate: float
    momentum: float
    seed: int
    device: str
    threads: int

    @property
    def num_ranks(self) -> int:
        """Processes of the pipeline, each with a stage."""
        return len(self.stages)

    def parts(self, graph: Graph, *, whole: bool = False) -> list[Part]:
        """The stages with their initial parameters, or the whole network as one."""
        cuts = [tuple(graph.layers)] if whole else self.stages
        return make_parts(graph, cuts, initial_parameters(graph, self.seed))

    def batches(self, graph: Graph) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
        """Inputs and labels of each mini-batch."""
        train = load_data(self.data, graph).train
        size, epoch, done = self.microbatch * self.num_microbatches, 0, 0
        if len(train.labels) < size:
            raise UserError(
                f"{self.data} has {len(train.labels):,} samples, and a mini-batch {size:,}"
            )
        while True:
            for some in train.batches(size, self.seed, epoch):
                if done == self.steps:
                    return
                inputs = tuple(map(torch.from_numpy, some.inputs(graph).values()))
                yield inputs, torch.from_numpy(some.labels)
                done += 1
            epoch += 1

    def optimiser(self, part: Part) -> torch.optim.Optimizer | None:
        """SGD of all parameters of a part; None if it has none."""
        learned = list(part.parameters())
        return torch.optim.SGD(learned, self.learning_rate, self.momentum) if learned else None


@dataclass(frozen=True)
class Step:
    """A mini-batch: its mean loss, and the seconds of all its passes."""

    loss: float
    seconds: float


def train_alone(training: Training, on_step: Callable[[Step], object]) -> list[Step]:
    """Train in this process, micro-batch by micro-batch, with which a pipeline is compared."""
    device = "cuda:0" if training.device == "cuda" else training.device
    graph = training.load(training.microbatch)
    before = torch.get_num_threads()
    torch.set_num_threads(training.threads)
    try:
        (part,) = training.parts(graph, whole=True)
        optimiser = training.optimiser(part.to(device).train())
        count = training.num_microbatches
        found = []
        for inputs, labels in training.batches(graph):
            begin_s = time.perf_counter()
            losses = []
            for given, target in zip(
                zip(*(each.to(device).chunk(count) for each in inputs), strict=True),
                labels.to(device).chunk(count),
                strict=True,
            ):
                loss = loss_of(CROSS_ENTROPY, part(*given), target)
                loss.backward()
                losses.append(loss.detach())
            for each in part.parameters():
                if each.grad is not None:
                    each.grad /= count
            step = Step(float(torch.stack(losses).mean()), time.perf_counter() - begin_s)
            if optimiser is not None:
                optimiser.step()
                optimiser.zero_grad()
            found.append(step)
            on_step(step)
        return found
    finally:
        torch.set_num_threads(before)


def train_in_pipeline(training: Training, on_step: Callable[[Step], object]) -> list[Step]:
    """Train in processes, one for each rank.

    Returns
    -------
    list of Step
        The seconds are those of the slowest rank.

    Raises
    ------
    UserError
        If a process fails, with the end of what it says.
    """
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(training.num_ranks)]
        ranks = [
            context.Process(target=_serve, args=(rank, training, folder, sender), daemon=True)
            for rank, (_, sender) in enumerate(pipes)
        ]
        try:
            for rank, (_, sender) in zip(ranks, pipes, strict=True):
                rank.start()
                sender.close()
            return _listen([receiver for receiver, _ in pipes], training.steps, on_step)
        finally:
            end_all(ranks)


def end_all(processes: Sequence[BaseProcess]) -> None:
    """End some processes that may have ended, or not have begun."""
    begun = [each for each in processes if each.pid is not None]
    for each in begun:
        each.terminate()
    for each in begun:
        each.join(ENDING_S)
        each.kill()


def _listen(
    receivers: list[Connection], steps: int, on_step: Callable[[Step], object]
) -> list[Step]:
    """The steps that all ranks tell of."""
    told: dict[int, dict[int, Step]] = {}
    found: list[Step] = []
    while len(found) < steps:
        ready = wait(receivers)
        for rank, receiver in enumerate(receivers):
            if receiver not in ready:
                continue
            try:
                message = receiver.recv()
            except EOFError:
                raise UserError(f"rank {rank} of the pipeline has ended without a word") from None
            if isinstance(message, str):
                raise UserError(f"rank {rank} of the pipeline has failed: {message}")
            number, own = message
            told.setdefault(number, {})[rank] = own
            if len(told[number]) == len(receivers):
                all_of = told.pop(number).values()
                step = Step(sum(each.loss for each in all_of), max(each.seconds for each in all_of))
                found.append(step)
                on_step(step)
    return found


def _serve(rank: int, training: Training, folder: str, sender: Connection) -> None:
    """What a process of the pipeline does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it and ends the others
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        for number, step in enumerate(_steps(rank, training, Path(folder))):
            sender.send((number, step))
    except BaseException as error:
        told = str(error) if isinstance(error, UserError) else traceback.format_exc(limit=-3)
        with suppress(OSError):
            sender.send(told)
        raise SystemExit(1) from None


def _steps(rank: int, training: Training, folder: Path) -> Iterator[Step]:
    """Train the stages of a rank."""
    # The runtime of lists of actions has no public name.
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    torch.set_num_threads(training.threads)
    device = torch.device(f"cuda:{rank}" if training.device == "cuda" else training.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=training.num_ranks,
        timeout=PATIENCE,
    )
    graph = training.load(training.microbatch)
    order = folder / f"order{rank}.csv"
    order.write_text(training.order)
    part = training.parts(graph)[rank].to(device).train()
    shared = []
    for name, ranks in shared_parameters(graph, training.stages).items():
        group = distributed.new_group(list(ranks))  # every rank must make every group
        if rank in ranks:
            shared.append((getattr(part, part.places[name]), group))
    stage = PipelineStage(part, rank, len(training.stages), device)

    def loss_function(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss_of(CROSS_ENTROPY, output, target)

    runtime = _PipelineScheduleRuntime(
        [stage], training.num_microbatches, loss_fn=loss_function, scale_grads=True
    )
    runtime._load_csv(str(order))
    optimiser = training.optimiser(part)
    is_first, is_last = rank == 0, rank == training.num_ranks - 1
    for inputs, labels in training.batches(graph):
        given = tuple(each.to(device) for each in inputs) if is_first else ()
        target = labels.to(device) if is_last else None
        losses: list[torch.Tensor] = []
        distributed.barrier()
        begin_s = time.perf_counter()
        runtime.step(
            *given, target=target, losses=losses if is_last else None, return_outputs=False
        )
        for value, group in shared:
            distributed.all_reduce(value.grad, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin_s
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
        yield Step(float(torch.stack(losses).detach().mean()) if losses else 0.0, seconds)
    distributed.destroy_process_group()


def without_transfers(order: str) -> str:
    """An order of passes alone, to which PyTorch adds the transfers that they need."""
    lines = (
        ",".join(cell for cell in line.split(",") if "_" not in cell) for line in order.splitlines()
    )
    return "\n".join(lines) + "\n"
