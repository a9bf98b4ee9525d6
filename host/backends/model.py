"""The backend that runs steps in the bit-exact model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpgapipe.host.backends.base import Backend
from fpgapipe.host.backends.snapshot import Pages
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.lowering.program.pipeline import PipelineProgram


class ModelBackend(Backend):
    """Runs programs on the model of each core; packets reach the next device without delay.

    Parameters
    ----------
    pipeline : PipelineProgram
    parameters : mapping of str to array
        Initial parameters.
    repeats : bool
        Whether many programs are run, so that machine code pays even for short ones.
    """

    name = "model"

    def __init__(
        self, pipeline: PipelineProgram, parameters: Values, *, repeats: bool = False
    ) -> None:
        super().__init__(pipeline)
        self.memories = pipeline.images(parameters)
        self._models = [
            CoreModel(part.core, memory, repeats=repeats)
            for part, memory in zip(pipeline.parts, self.memories, strict=True)
        ]

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Add to a snapshot what the model is between two steps."""
        return replace(
            snapshot,
            model_states=tuple(model.remains() for model in self._models),
            model_memories=tuple(Pages.of(memory) for memory in self.memories),
        )

    def take(self, snapshot: Snapshot) -> None:
        """Be what `keep` has added to a snapshot."""
        for model, remains in zip(self._models, snapshot.model_states, strict=True):
            model.set_remains(remains)
        for pages, memory in zip(snapshot.model_memories, self.memories, strict=True):
            pages.put(memory)

    def close(self) -> None:
        """See `Backend`; there is nothing to release."""

    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> None:
        for model in self._models:
            model.scalars[:] = scalars
        programs = [part.instructions for part in self.pipeline.parts]
        run_cluster(self._models, programs, self.pipeline.wiring)
