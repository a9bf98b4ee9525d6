"""What runs a step: the one interface of the bit-exact model and the simulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.pipeline import PipelineProgram

    Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class StepResult:
    """What came of a step.

    Attributes
    ----------
    loss : float
        Mean of the mini-batch.
    correct : int
        Samples whose class was found.
    cycles : int or None
        From the start of the first device to the end of the last; None if none are counted.
    """

    loss: float
    correct: int
    cycles: int | None


class Backend(ABC):
    """Runs the steps of a pipeline's programs; a context manager.

    Parameters
    ----------
    pipeline : PipelineProgram

    Attributes
    ----------
    pipeline : PipelineProgram
    memories : list of uint8 arrays
        Of the devices: all that a step leaves behind, and so all that a checkpoint has to keep.
    """

    memories: list[NDArray[np.uint8]]

    def __init__(self, pipeline: PipelineProgram) -> None:
        self.pipeline = pipeline

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; the memories stay."""

    def step(
        self,
        inputs: Values,
        labels: NDArray[np.integer],
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> StepResult:
        """Run a step on a mini-batch.

        Parameters
        ----------
        inputs : mapping of str to array
            Of the network, for all samples.
        labels : integer array
            Class numbers.
        scalars : sequence of int
            What the scalar registers hold, as `fpgapipe.host.step_program.scalar_bits` gives them.
        progress : callable, optional
            Called now and then with the cycles so far, if they are counted.
        """
        self.pipeline.set_batch(self.memories, inputs, labels)
        cycles = self._run(scalars, progress)
        loss, correct = self.pipeline.outcome(self.memories)
        return StepResult(loss, correct, cycles)

    @abstractmethod
    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int | None:
        """Run all programs on the memories once; returns the cycles, if they are counted."""

    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """Parameters as they are now, or what goes with them; see `StepProgram.parameters`."""
        return self.pipeline.parameters(self.memories, suffix)
