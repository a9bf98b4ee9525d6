"""Predictions for samples: ``fpgapipe predict``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import write_output
from fpgapipe.host.build.build import holding
from fpgapipe.host.data.data import SOURCES, load_data
from fpgapipe.host.data.data_folder import classes_in, has_no_classes, read_images
from fpgapipe.host.data.sample_checks import check_samples
from fpgapipe.host.data.samples import Dataset, Samples, Wanted
from fpgapipe.host.predict.opening import build_of, open_weights
from fpgapipe.host.predict.predictions import Predictions, rows_of
from fpgapipe.host.runtime.evaluation import filled_batches, rated
from fpgapipe.host.runtime.run_folder import PREDICTIONS
from fpgapipe.host.terminal.outputs import output_of
from fpgapipe.host.terminal.progress import Progress, silent
from fpgapipe.lowering.units.step_options import scalar_bits
from fpgapipe.network.logits import Logits

if TYPE_CHECKING:
    from fpgapipe.host.backends.base import StepRunner
    from fpgapipe.host.build.build import Build

PARTS = ("validation", "train", "all")
SUFFIXES = (".csv", ".json")


def predict(
    folder: Path | str,
    data: str = "digits",
    *,
    backend: str = "model",
    step: int | None = None,
    part: str = "validation",
    first: int | None = None,
    output: Path | str | None = None,
    cluster_file: Path | str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> Predictions:
    """Say the classes of samples, with probabilities, and keep them for the report.

    Parameters
    ----------
    folder : path
        A build for inference; a build that was trained, or the folder of one of its runs.
    data : str
        Samples, as for `load_data`, or a folder of images whose classes are not known.
    backend : str
        What computes: that of `run` for a build for inference; of a training ``model`` or ``sim``.
    step : int, optional
        Mini-batches of the training's checkpoint; the newest one if it is not given.
    part : str
        Which samples: ``validation``, ``train`` or ``all``.
    first : int, optional
        The first of these samples only.
    output : path, optional
        File to write: ``.csv`` or ``.json``.
    cluster_file : path, optional
        File that says at which addresses boards are reached.
    threads : int, optional
        Threads for the simulation.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If there is no such build, run or checkpoint, the network does not give one class for
        each sample, the samples do not fit it, or a file cannot be written.
    """
    if part not in PARTS:
        raise UserError(f"samples must be one of {', '.join(PARTS)}, not {part}")
    path = output_of(output, SUFFIXES, "predictions are")
    folder = Path(folder)
    with holding(build_of(folder)), ExitStack() as opened:
        source = open_weights(
            folder, backend, step=step, cluster_file=cluster_file, threads=threads
        )
        build, known = source.build, _classes_of(source.data)
        samples, classes, has_labels = _samples(build, data, part, known)
        samples = samples.some(slice(first))
        runner = opened.enter_context(source.make())
        with progress() as display:
            display.add_task("predicting", total=len(samples.labels), unit="samples")
            logits, cycles = _logits(runner, samples, lambda done: display.update(completed=done))
    labels = np.asarray(samples.labels) if has_labels else None
    names = [str(each) for each in samples.names]
    found = Predictions(
        build.graph.name, source.weights, data, backend, classes,
        rows_of(logits, labels, names, classes), cycles,
    )  # fmt: skip
    source.kept.mkdir(parents=True, exist_ok=True)
    write_output(source.kept / PREDICTIONS, json.dumps(found.to_dict()) + "\n")
    if path is not None:
        write_output(path, found.text_for(path))
    return found


def _classes_of(data: str | None) -> tuple[str, ...]:
    """Names of the classes that a run was trained with; empty if they are not known any more."""
    try:
        return () if data is None or data in SOURCES else classes_in(Path(data))
    except FileError:
        return ()


def _samples(
    build: Build, data: str, part: str, known: tuple[str, ...]
) -> tuple[Samples, tuple[str, ...], bool]:
    """The samples, the names of the classes, and whether the samples have labels."""
    graph, loss = build.graph, build.options.loss
    output = graph.evaluated.outputs[0]
    if output not in rated(graph, loss):
        raise UserError(f"{graph.name} was trained for targets, so it gives no classes")
    logits = Logits.of(graph, output)
    if logits.labels_of_sample:
        raise UserError(
            f"{graph.name} gives a class for each of {'x'.join(map(str, logits.labels_of_sample))} "
            "positions of a sample; predict takes networks that give one for each sample"
        )
    wanted = Wanted.of(graph, loss)
    if data not in SOURCES and has_no_classes(Path(data)):
        samples, own, has_labels = read_images(Path(data), wanted), known, False
    else:
        dataset = load_data(data, graph, loss)
        samples, own, has_labels = _part(dataset, part), dataset.classes, True
    check_samples(samples, graph, loss)
    if known and own:
        if unknown := [name for name in own if name not in known]:
            raise UserError(
                f"{data} has classes that the training had not: {', '.join(unknown[:5])}; it had "
                f"{', '.join(known[:5])}{', ...' if len(known) > 5 else ''}"
            )
        numbers = np.array([known.index(name) for name in own])
        samples = replace(samples, labels=numbers[np.asarray(samples.labels)])
    names = known or own
    return samples, (*names, *map(str, range(len(names), logits.classes))), has_labels


def _part(data: Dataset, part: str) -> Samples:
    """The samples that are asked for, those for training first."""
    if part != "all":
        return data.train if part == "train" else data.validation
    return data.train.followed_by(data.validation)


def _logits(runner: StepRunner, samples: Samples, on_done: Any) -> tuple[Any, int | None]:
    """Logits of all samples by the first output, and the cycles of all mini-batches."""
    graph = runner.graph
    assert graph.batch is not None
    size = graph.batch * runner.num_microbatches
    output = graph.outputs[0]
    found, cycles, done = [], None, 0
    for batch, count in filled_batches(samples, size):
        results, took = runner.infer(batch.inputs(graph), scalar_bits())
        found.append(results[output][:count])
        cycles = None if took is None else (cycles or 0) + took
        on_done(done := done + count)
    return np.concatenate(found), cycles
