"""Inference with a run's weights, as its validation computes it: on the build's first core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.host.backends.model import ModelBackend
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.lowering.lower import build_pipeline
from fpgapipe.lowering.units.step_options import StepOptions
from fpgapipe.partition.schedule.schedule_kinds import make_schedule

if TYPE_CHECKING:
    from fpgapipe.host.backends.base import Backend
    from fpgapipe.host.weights.trained_run import TrainedRun

ON_ONE_DEVICE = ("model", "sim")
"""Backends that compute with a training's weights without a build for inference."""


def open_single(run: TrainedRun, backend: str, threads: int | None = None) -> Backend:
    """A backend of one device that computes the network's results with the weights of a run.

    Batch normalisation uses the running statistics. What only training computes is left out.

    Parameters
    ----------
    run : TrainedRun
    backend : str
        ``model`` or ``sim``.
    threads : int, optional
        Threads for the simulation.

    Raises
    ------
    UserError
        If the backend is another one.
    """
    build = run.build
    if backend not in ON_ONE_DEVICE:
        raise UserError(
            f"a training's weights are tried in {' and '.join(ON_ONE_DEVICE)}; for {backend}, "
            f"'fpgapipe build --mode infer --from {run.path.parent.parent}' makes a build for "
            "inference"
        )
    graph = build.graph.evaluated
    pipeline = build_pipeline(
        graph,
        [build.cores[0]],
        [list(graph.layers)],
        make_schedule("gpipe", 1, 1),
        build.memories[0],
        StepOptions(activations=build.options.activations, train=False),
    )
    if backend == "model":
        return ModelBackend(pipeline, run.parameters)
    build.check_verilog()
    return SimulatorBackend(pipeline, run.parameters, build.memories[0], [], threads=threads)
