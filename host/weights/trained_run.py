"""The run that a command takes weights from: a build, the folder of one of its runs, a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import MANIFEST, RUN, Build, open_build
from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointError, CheckpointFolder
from fpgapipe.host.runtime.divergence import fixed_numbers
from fpgapipe.host.runtime.run_folder import CHECKPOINTS
from fpgapipe.host.runtime.runtime import build_digest
from fpgapipe.host.terminal.outputs import how_to_build
from fpgapipe.host.weights.parameters_file import shapes_of
from fpgapipe.lowering.memory.memory_map import LASTING
from fpgapipe.lowering.shards.rebatched import rebatched

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class TrainedRun:
    """A checkpoint of a run, and the build that was trained.

    Attributes
    ----------
    build : Build
    path : Path
        The checkpoint's file.
    checkpoint : Checkpoint
    """

    build: Build
    path: Path
    checkpoint: Checkpoint

    @property
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Values of the network's parameters, in the layout of its source."""
        return {name: self.checkpoint.state[name] for name in shapes_of(self.build.graph)}

    def evaluated(self, samples: int) -> Graph:
        """The network for inference with the weights of the run, for a number of samples.

        Raises
        ------
        UserError
            If it is only known for the micro-batches of the build.
        """
        graph, values = self.build.graph.evaluated, self.parameters
        try:
            found = rebatched(graph, samples)
        except NotImplementedError as error:
            raise UserError(
                f"{graph.name} was built for micro-batches of {graph.batch}: {error}"
            ) from None
        kept = {name: values[name] for name in shapes_of(found)}
        return replace(found, values=kept, aliases=graph.aliases, state=graph.state, source=None)

    @property
    def num_batches(self) -> int:
        """Micro-batches that the run has trained with."""
        return self.checkpoint.step * self.build.plan.num_microbatches


def find_run(folder: Path, backend: str | None) -> tuple[Path, Path]:
    """The folder of a build, and that of one of its runs.

    Parameters
    ----------
    folder : Path
        A build, the folder of a run in it, or a checkpoint of one.
    backend : str or None
        Backend of the run; not needed if the build has one run only.

    Raises
    ------
    UserError
        If there is no such run; the message says which there are.
    """
    if folder.is_file() and folder.parent.name == CHECKPOINTS:
        folder = folder.parent.parent
    if (folder / MANIFEST).is_file():
        there = sorted(
            each.name
            for each in ((folder / RUN).iterdir() if (folder / RUN).is_dir() else ())
            if CheckpointFolder(each / CHECKPOINTS).steps()
        )
        now = [name for name in there if ".before" not in name]
        if backend is None and len(now) == 1:
            backend = now[0]
        if backend in there:
            return folder, folder / RUN / str(backend)
        if not there and not open_build(folder).plan.trains:
            raise UserError(f"{folder} is a build for inference, which is not trained")
        what = "a checkpoint" if backend is None else f"a run of {backend} with a checkpoint"
        have = f"it has {', '.join(there)}" if there else f"'fpgapipe run {folder}' makes one"
        if backend is None and now:
            which = f"say which with --backend, or name {folder / RUN / now[0]}"
            raise UserError(f"{folder} has runs of {', '.join(now)}; {which}")
        raise UserError(f"{folder} has no {what.removeprefix('a ')}; {have}")
    build = folder.parent.parent
    if folder.parent.name != RUN or not (build / MANIFEST).is_file():
        if not folder.exists():
            raise UserError(f"{folder} is not there; {how_to_build(folder)}")
        raise UserError(f"{folder} is neither a build nor the folder of a run in one")
    if backend not in (None, folder.name):
        raise UserError(f"{folder} is a run of {folder.name}, so --backend {backend} excludes it")
    return build, folder


def open_run(folder: Path, *, backend: str | None = None, step: int | None = None) -> TrainedRun:
    """Open a build and read a checkpoint of one of its runs.

    Parameters
    ----------
    folder : Path
        A build, the folder of a run in it, or a checkpoint of one.
    backend : str, optional
        Backend of the run; not needed if the build has one run only.
    step : int, optional
        Steps of the checkpoint; the newest one if not given.

    Raises
    ------
    UserError
        If there is no such run or checkpoint, or it is damaged or another build's.
    """
    named = folder if folder.is_file() and folder.parent.name == CHECKPOINTS else None
    if named and step is not None:
        raise UserError(f"{named} is a checkpoint already, so --step {step} excludes it")
    build_folder, run = find_run(folder, backend)
    build = open_build(build_folder)
    kept = CheckpointFolder(run / CHECKPOINTS)
    steps = kept.steps()
    if not steps:
        raise UserError(f"{run} has no checkpoint; 'fpgapipe run' writes them")
    if step is not None and step not in steps:
        raise UserError(
            f"{run} has no checkpoint after step {step}; there are those after "
            f"{', '.join(map(str, sorted(steps)))}"
        )
    shapes = shapes_of(build.graph)
    most_bytes = 4 * len(LASTING) * sum(map(math.prod, shapes.values()))
    digest = build_digest(build)
    if step is None and named is None:
        path, checkpoint = kept.newest(digest, most_bytes, fixed_numbers(build.graph))
    else:
        path = named or next(each for each in kept if each.stem == f"step-{step:08d}")
        checkpoint = Checkpoint.read(path, most_bytes)
        if checkpoint.build != digest:
            raise CheckpointError(f"{path} is of another build")
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in checkpoint.state or checkpoint.state[name].shape != shape
    ]
    if wrong:
        raise CheckpointError(f"{path} is of another network: it lacks {wrong[0]}")
    if not checkpoint.has_own_layout:
        raise CheckpointError(
            f"{path} is of an earlier version, which does not say the layout of its weights; "
            "begin the training anew"
        )
    return TrainedRun(build, path, checkpoint)
