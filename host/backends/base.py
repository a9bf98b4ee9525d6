"""The common interface of all backends: bit-exact model, simulator and PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.closing import Closing
from fpgapipe.lowering.memory.memory_map import whole_outcome
from fpgapipe.lowering.schedule.schedule import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.host.backends.snapshot import Snapshot
    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class StepResult:
    """Result of a step.

    Attributes
    ----------
    loss : float
        Mean loss of the mini-batch; of several outputs, the sum of their losses times the weights.
    correct : int
        Number of labels that are found right, by the first output that has classes.
    cycles : int or None
        Cycles from the start of the first device to the end of the last; None if the backend counts
        no cycles.
    outputs : mapping of str to (float, int)
        If the network has several outputs, mean loss (without its weight) and number of labels that
        are found right of each.
    """

    loss: float
    correct: int
    cycles: int | None
    outputs: Mapping[str, tuple[float, int]] = field(default_factory=dict)


class StepRunner(Closing):
    """Runs the training steps of a network; a context manager.

    Attributes
    ----------
    name : str
        Name of the backend in the command line.
    graph : Graph
        Network for the samples of one micro-batch.
    num_microbatches : int
        Number of micro-batches in a mini-batch.
    num_updates : int
        Updates of the weights in a mini-batch: one, or one after each micro-batch.
    memories : list of uint8 arrays
        Memories with all that a step leaves behind; the next step uses what is written there.
    simulation : str or None
        Which blocks are simulated in C++, in words; None if nothing is simulated.
    """

    name: ClassVar[str]
    graph: Graph
    num_microbatches: int
    num_updates: int = 1
    simulation: str | None = None
    memories: list[NDArray[np.uint8]]

    @abstractmethod
    def close(self) -> None:
        """Release all resources; the memories can still be read."""

    @abstractmethod
    def step(
        self,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> StepResult:
        """Run a step on a mini-batch.

        Parameters
        ----------
        inputs : mapping of str to array
            Inputs of the network, for all samples of the mini-batch.
        labels : integer array, float32 array, or mapping of str to array
            Class numbers, or targets, for all outputs or for each by its name.
        scalars : sequence of int
            Contents of the scalar registers
            (`fpgapipe.lowering.units.step_options.scalar_bits`).
        progress : callable, optional
            Function that is called now and then with the cycles so far, if they are counted.
        """

    def shares_done(self) -> list[float]:
        """Share of its program that each device has begun in the present step, 0 to 1.

        The list is empty if the backend does not know. Calling it changes nothing.
        """
        return []

    def snapshot(self) -> Snapshot | None:
        """All of a step that has begun and not ended; None if there is none, or it cannot be kept.

        It may be taken by a step's `progress`, and after that has raised `RunStopped`.
        """
        return None

    def go_on_from(self, snapshot: Snapshot) -> bool:
        """Let the next step go on from a snapshot of that step, to the same bits and cycles.

        Returns whether the snapshot is of such a backend; if not, the step begins anew.
        """
        return False

    @abstractmethod
    def infer(
        self,
        inputs: Values,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[dict[str, NDArray[np.float32]], int | None]:
        """Compute the network's results for a mini-batch; return results and cycles, if counted."""

    @abstractmethod
    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """Present parameters, or with a suffix their gradients or optimiser state.

        See `MemoryMap.parameters`.
        """

    @abstractmethod
    def state(self) -> dict[str, NDArray[np.float32]]:
        """A copy of all values that the next step depends on, by name.

        It can be given to `set_state` of any backend.
        """

    @abstractmethod
    def set_state(self, state: Values) -> None:
        """Continue from a state.

        Raises
        ------
        ValueError
            If a value is missing or has another shape.
        """

    def disturbed(self, seed: int) -> AbstractContextManager[bool]:
        """Let the steps in this context be disturbed, as another order of all sums might.

        The context gives whether the backend can do so. After it, the memories are as before.

        Parameters
        ----------
        seed : int
            Seed of the random disturbances.
        """
        return nullcontext(False)

    def other_versions(self) -> Iterator[str]:
        """Let steps see other versions of late weights than those of the schedule.

        The steps until the next text see what the text says; when it is over, the schedule's own.
        A backend that cannot do so, or whose weights are never late, gives no text.
        """
        return iter(())


class Backend(StepRunner):
    """Runs the steps of a pipeline's programs on its devices.

    Parameters
    ----------
    pipeline : PipelineProgram

    Attributes
    ----------
    pipeline : PipelineProgram
    memories : list of uint8 arrays
        Memory of each device.
    """

    def __init__(self, pipeline: PipelineProgram) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph
        self.num_microbatches = pipeline.num_microbatches
        tasks = pipeline.parts[0].tasks
        self.num_updates = max(sum(task.kind is TaskKind.U for task in tasks), 1)

    def step(
        self,
        inputs: Values,
        labels: Labels,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> StepResult:
        """See `StepRunner`."""
        self.pipeline.set_batch(self.memories, inputs, labels)
        cycles = self._run(self.pipeline.counting(scalars, labels), progress)
        outcomes = self.pipeline.outcomes(self.memories)
        loss, correct = whole_outcome(self.pipeline.losses, outcomes)
        return StepResult(loss, correct, cycles, outcomes if len(outcomes) > 1 else {})

    def infer(
        self,
        inputs: Values,
        scalars: Sequence[int],
        *,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[dict[str, NDArray[np.float32]], int | None]:
        """See `StepRunner`.

        Raises
        ------
        ValueError
            If the programs train: they would compute the results, and change the weights.
        """
        if any(part.losses for part in self.pipeline.parts):
            raise ValueError("these programs train; inference needs programs with train=False")
        self.pipeline.set_batch(self.memories, inputs)
        cycles = self._run(scalars, progress)
        return self.pipeline.results(self.memories), cycles

    @abstractmethod
    def _run(self, scalars: Sequence[int], progress: Callable[[int], object] | None) -> int | None:
        """Run all programs on the memories once; return the cycles, if they are counted."""

    def parameters(self, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`."""
        return self.pipeline.parameters(self.memories, suffix)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """See `StepRunner`."""
        return self.pipeline.state(self.memories)

    def set_state(self, state: Values) -> None:
        """See `StepRunner`."""
        self.pipeline.set_state(self.memories, state)
