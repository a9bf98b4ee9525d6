"""The backend and the weights by which `predict` and `generate` compute a network's results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import read_json
from fpgapipe.host.build.build import MANIFEST, open_build
from fpgapipe.host.predict.single_device import open_single
from fpgapipe.host.runtime.run_folder import SETTINGS
from fpgapipe.host.runtime.runtime import RunOptions, open_backend
from fpgapipe.host.transports.opening import backend_names, transports_of
from fpgapipe.host.weights.trained_run import find_run, open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fpgapipe.host.backends.base import StepRunner
    from fpgapipe.host.build.build import Build


@dataclass(frozen=True)
class Opened:
    """A build for inference, or a run that was trained, whose results a backend computes.

    Attributes
    ----------
    build : Build
    weights : Path
        Build or checkpoint whose weights are taken.
    kept : Path
        Folder of the run.
    data : str or None
        What the run was trained with; None if it is not known, as of a build for inference.
    make : callable
        Opens the backend.
    """

    build: Build
    weights: Path
    kept: Path
    data: str | None
    make: Callable[[], StepRunner]


def build_of(folder: Path) -> Path:
    """The folder of the build that a folder is, or of whose runs it is one."""
    if folder.is_file():  # a checkpoint of a run
        folder = folder.parent.parent
    return folder if (folder / MANIFEST).is_file() else folder.parent.parent


def open_weights(
    folder: Path,
    backend: str,
    *,
    step: int | None = None,
    cluster_file: Path | str | None = None,
    threads: int | None = None,
) -> Opened:
    """Open a build for inference, a build that was trained, or the folder of one of its runs.

    Parameters
    ----------
    folder : Path
    backend : str
        What computes: that of `run` for a build for inference; of a training ``model`` or ``sim``.
    step : int, optional
        Mini-batches of the training's checkpoint; the newest one if it is not given.
    cluster_file : path, optional
        File that says at which addresses boards are reached.
    threads : int, optional
        Threads for the simulation.

    Raises
    ------
    UserError
        If there is no such backend, build, run or checkpoint.
    """
    if backend not in backend_names():
        raise UserError(f"a backend must be one of {', '.join(backend_names())}, not {backend}")
    build = open_build(folder) if (folder / MANIFEST).is_file() else None
    if build is not None and not build.plan.trains:
        if step is not None:
            raise UserError("a build for inference has no checkpoints, so --step excludes it")
        options = RunOptions(
            backend, threads=threads, transports=transports_of(backend, cluster_file)
        )
        make: Callable[[], StepRunner] = partial(open_backend, build, backend, options)
        return Opened(build, folder, build.run_folder / backend, None, make)
    run = open_run(folder, step=step)
    kept = find_run(folder, None)[1]
    return Opened(
        run.build, run.path, kept, _data_of(kept), partial(open_single, run, backend, threads)
    )


def _data_of(run: Path) -> str | None:
    """The data that a run was trained with; None if it is not known any more."""
    try:
        data = read_json(run / SETTINGS, 1 << 20)["data"]
    except (FileError, LookupError, TypeError):
        return None
    return data if isinstance(data, str) else None
