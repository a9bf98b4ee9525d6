"""The backend that runs steps in the bit-exact model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.backends.base import Backend
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.host.backends.base import Values
    from fpgapipe.lowering.program.pipeline import PipelineProgram


class ModelBackend(Backend):
    """Runs programs on the model of each core; packets reach the next device without delay.

    Parameters
    ----------
    pipeline : PipelineProgram
    parameters : mapping of str to array
        Initial parameters.
    """

    name = "model"

    def __init__(self, pipeline: PipelineProgram, parameters: Values) -> None:
        super().__init__(pipeline)
        self.memories = pipeline.images(parameters)
        self._models = [
            CoreModel(part.core, memory)
            for part, memory in zip(pipeline.parts, self.memories, strict=True)
        ]

    def close(self) -> None:
        """See `Backend`; there is nothing to release."""

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> None:
        for model in self._models:
            model.scalars[:] = scalars
        programs = [part.instructions for part in self.pipeline.parts]
        run_cluster(self._models, programs, self.pipeline.wiring)
