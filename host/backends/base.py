"""What runs a step: the one interface of bit-exact model, simulator and PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.network.graph import Graph

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


class StepRunner(ABC):
    """Runs the training steps of a network; a context manager.

    Attributes
    ----------
    name : str
        Under which the command line knows it.
    graph : Graph
        For the samples of one micro-batch.
    num_microbatches : int
    memories : list of uint8 arrays
        All that a step leaves behind; what is written there counts in the next step.
    """

    name: ClassVar[str]
    graph: Graph
    num_microbatches: int
    memories: list[NDArray[np.uint8]]

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

    @abstractmethod
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
            What the scalar registers hold, as `fpgapipe.lowering.units.step_options.scalar_bits`
            gives them.
        progress : callable, optional
            Called now and then with the cycles so far, if they are counted.
        """

    @abstractmethod
    def infer(
        self,
        inputs: Values,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[dict[str, NDArray[np.float32]], int | None]:
        """Compute the network's results for a mini-batch; returns them, and cycles as `step`."""

    @abstractmethod
    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """Parameters as they are now, or what goes with them; see `MemoryMap.parameters`."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[np.float32]]:
        """All that the next step builds on, by name: a copy, for `set_state` of any backend."""

    @abstractmethod
    def set_state(self, state: Values) -> None:
        """Go on from a state.

        Raises
        ------
        ValueError
            If something is missing or has another shape.
        """


class Backend(StepRunner):
    """Runs the steps of a pipeline's programs on its devices.

    Parameters
    ----------
    pipeline : PipelineProgram

    Attributes
    ----------
    pipeline : PipelineProgram
    memories : list of uint8 arrays
        Of the devices.
    """

    def __init__(self, pipeline: PipelineProgram) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph
        self.num_microbatches = pipeline.parts[0].num_microbatches

    def step(
        self,
        inputs: Values,
        labels: NDArray[np.integer],
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> StepResult:
        """See `StepRunner`."""
        self.pipeline.set_batch(self.memories, inputs, labels)
        cycles = self._run(scalars, progress)
        loss, correct = self.pipeline.outcome(self.memories)
        return StepResult(loss, correct, cycles)

    def infer(
        self,
        inputs: Values,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[dict[str, NDArray[np.float32]], int | None]:
        """See `StepRunner`; the programs have to be of inference."""
        self.pipeline.set_batch(self.memories, inputs)
        cycles = self._run(scalars, progress)
        return self.pipeline.results(self.memories), cycles

    @abstractmethod
    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int | None:
        """Run all programs on the memories once; returns the cycles, if they are counted."""

    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`."""
        return self.pipeline.parameters(self.memories, suffix)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`."""
        return self.pipeline.state(self.memories)

    def set_state(self, state: Values) -> None:
        """See `StepRunner`."""
        self.pipeline.set_state(self.memories, state)
