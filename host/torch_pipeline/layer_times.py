"""Measures how long the parts of a network take in PyTorch."""

from __future__ import annotations

import csv
import io
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing

from fpgapipe.errors import UserError
from fpgapipe.host.backends.torch_loss import loss_of
from fpgapipe.host.torch_pipeline.stages import make_parts, parts_of
from fpgapipe.host.torch_pipeline.workers import end_all
from fpgapipe.network.frontends.profile import CSV_COLUMNS, SAMPLES
from fpgapipe.network.initial_values import initial_parameters, random_batch
from fpgapipe.network.losses import CROSS_ENTROPY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.synchronize import Semaphore

    from fpgapipe.host.make.networks import Loader
    from fpgapipe.network.graph import Graph

WARM_UPS = 2
"""Passes through the network before those that are measured: libraries choose their algorithms."""

LOOK_S = 1.0
"""Seconds from one look at whether another process is alive to the next."""


@dataclass(frozen=True)
class PartTimes:
    """A part of a network, as a row of a profile.

    Attributes
    ----------
    layer : str
        Its last layer.
    forward_s, backward_input_s, backward_weight_s : float
        Seconds of a micro-batch. The gradient of weights has what a whole backward pass takes
        beyond that of the input.
    output_bytes, weight_bytes : int
    """

    layer: str
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    output_bytes: int
    weight_bytes: int


def to_csv(parts: Iterable[PartTimes], samples: int) -> str:
    """The times as a profile that `fpgapipe plan --profile` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*CSV_COLUMNS, SAMPLES))
    for part in parts:
        cells = (f"{each:.9g}" if isinstance(each, float) else each for each in astuple(part))
        writer.writerow((*cells, samples))
    return text.getvalue()


def measure_parts(
    graph: Graph,
    device: str,
    repeats: int,
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> list[PartTimes]:
    """Measure the passes of the parts of a network, each the median of several.

    The passes go through the whole network each time, so that caches are as in a training. The last
    part has the loss with it, softmax and cross-entropy.

    Parameters
    ----------
    graph : Graph
        Network for the samples of a micro-batch.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``.
    repeats : int
        Passes that are measured.
    on_step : callable
        Called with the number of passes done and their total.

    Raises
    ------
    UserError
        If the PyTorch reference does not have a layer.
    """
    names = parts_of(graph)
    parts = make_parts(graph, names, initial_parameters(graph, 0))
    given, labels = random_batch(graph, 0)
    inputs = tuple(torch.from_numpy(each).to(device) for each in given.values())
    target = torch.from_numpy(labels).to(device)
    for part in parts:
        part.to(device).train()
    clock = _Clock(device)
    seconds: list[list[tuple[float, float, float]]] = [[] for _ in parts]
    outputs = [0] * len(parts)
    total = WARM_UPS + repeats
    for number in range(total):
        on_step(number, total)
        x = inputs
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            x = tuple(each.detach().requires_grad_(index > 0) for each in x)
            begin_s = clock()
            y = part(*x)
            loss = loss_of(CROSS_ENTROPY, y, target) if last else y
            forward_s = clock() - begin_s
            seed = torch.ones_like(loss)
            learned = list(part.parameters())
            whole_s = input_s = 0.0
            if loss.requires_grad:
                begin_s = clock()
                loss.backward(seed, retain_graph=True)
                whole_s = input_s = clock() - begin_s
            if learned:
                input_s = 0.0
                if index > 0:
                    begin_s = clock()
                    torch.autograd.grad(loss, x, seed)
                    input_s = min(clock() - begin_s, whole_s)
            outputs[index] = y.numel() * y.element_size()
            seconds[index].append((forward_s, input_s, whole_s - input_s))
            x = (y,)
    on_step(total, total)
    medians = [[median(each) for each in zip(*own[WARM_UPS:], strict=True)] for own in seconds]
    return [
        PartTimes(
            own[-1],
            forward_s,
            input_s,
            weight_s,
            output_bytes,
            sum(each.numel() * each.element_size() for each in part.parameters()),
        )
        for own, part, (forward_s, input_s, weight_s), output_bytes in zip(
            names, parts, medians, outputs, strict=True
        )
    ]


@contextmanager
def others_at_work(count: int, load: Loader, samples: int, threads: int) -> Iterator[None]:
    """Let other processes go through the network meanwhile, as those of a pipeline do.

    They take their share of the memory's bandwidth, and of processors that are two threads of one.
    """
    context = torch.multiprocessing.get_context("spawn")
    ready = context.Semaphore(0)
    others = [
        context.Process(target=_work, args=(load, samples, threads, ready), daemon=True)
        for _ in range(count)
    ]
    try:
        for other in others:
            other.start()
        for other in others:
            while not ready.acquire(timeout=LOOK_S):
                if not other.is_alive():
                    raise UserError(f"a process that measures beside has ended: {other.exitcode}")
        yield
    finally:
        end_all(others)


def _work(load: Loader, samples: int, threads: int, ready: Semaphore) -> None:
    """Go through a network until this process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it and ends the others
    torch.set_num_threads(threads)

    def tell(done: int, total: int) -> None:
        if done == 1:
            ready.release()

    while True:
        measure_parts(load(samples), "cpu", 1 << 20, tell)


class _Clock:
    """Seconds at which all that a device was told to do is done."""

    def __init__(self, device: str) -> None:
        self._waits = device.startswith("cuda")

    def __call__(self) -> float:
        if self._waits:
            torch.cuda.synchronize()
        return time.perf_counter()
