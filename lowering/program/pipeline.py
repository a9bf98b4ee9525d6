"""The programs of a step on several devices, and how the devices are linked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.lowering.memory.memory_map import (
    LossTensors,
    all_results,
    joined,
    mean_outcomes,
    whole_outcome,
)
from fpgapipe.lowering.placement import ALONE, End, Placement
from fpgapipe.lowering.units.step_options import counting_labels
from fpgapipe.network.initial_values import num_indices
from fpgapipe.network.losses import labels_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.lowering.memory.memory_map import Labels
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]
    Memories = Sequence[NDArray[np.uint8]]


@dataclass(frozen=True)
class PipelineProgram:
    """Programs of a step on a chain of devices, in their order.

    Each device has a stage of the network or, in data parallelism, the whole network for some of
    the micro-batches.

    Attributes
    ----------
    graph : Graph
        The network, with the batch size of one micro-batch.
    parts : tuple of DeviceProgram
        Program of each device.
    placement : Placement
        The devices, and the wires between them; a device alone if left out.
    """

    graph: Graph
    parts: tuple[DeviceProgram, ...]
    placement: Placement = ALONE

    def __post_init__(self) -> None:
        assert len(self.parts) == self.placement.num_nodes, "each node has a program"

    @property
    def wiring(self) -> tuple[tuple[End, End], ...]:
        """Pairs of link ends that are connected, each end given as (device, link)."""
        return self.placement.wires

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a mini-batch, each with as many samples as the graph's batch.

        Devices that share the samples of a stage's micro-batch count smaller ones of their own.
        """
        first = self.parts[0]
        own = next((shape[0] for shape in first.inputs.values()), self.graph.batch or 1)
        return first.all_microbatches * own // (self.graph.batch or 1)

    def images(self, parameters: Values) -> list[NDArray[np.uint8]]:
        """Return the devices' memories before the first step."""
        return [part.image(parameters) for part in self.parts]

    def set_batch(self, memories: Memories, inputs: Values, labels: Labels | None = None) -> None:
        """Write a mini-batch; see `StepProgram.set_batch`.

        Raises
        ------
        ValueError
            If a tensor has another shape, or an index is no row of its embedding's table.
        """
        for name, rows in num_indices(self.graph).items():
            given = inputs.get(name)
            if given is not None and given.size and not 0 <= given.min() <= given.max() < rows:
                wrong = given.min() if given.min() < 0 else given.max()
                raise ValueError(f"input {name} must be in 0..{rows - 1}, not {wrong}")
        for part, memory in zip(self.parts, memories, strict=True):
            part.set_batch(memory, inputs, labels)

    def parameters(self, memories: Memories, suffix: str = "") -> dict[str, NDArray[np.float32]]:
        """Read all parameters, or the tensors that belong to them; see `StepProgram.parameters`."""
        pairs = zip(self.parts, memories, strict=True)
        return joined((part, part.parameters(memory, suffix)) for part, memory in pairs)

    def state(self, memories: Memories) -> dict[str, NDArray[np.float32]]:
        """Read all that a step leaves for the next one; see `MemoryMap.state`."""
        pairs = zip(self.parts, memories, strict=True)
        return joined((part, part.state(memory)) for part, memory in pairs)

    def set_state(self, memories: Memories, state: Values) -> None:
        """Write the state that `state` has read."""
        for part, memory in zip(self.parts, memories, strict=True):
            part.set_state(memory, state)

    def results(self, memories: Memories) -> dict[str, NDArray[np.float32]]:
        """Read the network's results for all samples; see `MemoryMap.results`."""
        return all_results(
            part.results_of_each(memory) for part, memory in zip(self.parts, memories, strict=True)
        )

    @property
    def losses(self) -> list[LossTensors]:
        """The losses that devices compute, in the order of the network's outputs."""
        by_output = {each.output: each for part in self.parts for each in part.losses}
        return [by_output[name] for name in self.graph.outputs if name in by_output]

    def outcomes(self, memories: Memories) -> dict[str, tuple[float, int]]:
        """Read the mini-batch's mean loss and number of correct labels of each output."""
        means = mean_outcomes(
            part.outcomes(memory) for part, memory in zip(self.parts, memories, strict=True)
        )
        return {each.output: means[each.output] for each in self.losses}

    def outcome(self, memories: Memories) -> tuple[float, int]:
        """Read the mini-batch's loss, and the number of correct labels of the first output."""
        return whole_outcome(self.losses, self.outcomes(memories))

    def counting(self, scalars: Sequence[int], labels: Labels) -> list[int]:
        """Contents of the scalar registers for labels that are counted.

        Raises
        ------
        ValueError
            If no label of an output counts.
        """
        found = list(scalars)
        for each in self.losses:
            if each.counter is not None:
                own = labels_of(labels, each.output)
                weights = each.class_weights
                found = counting_labels(found, own, each.counter, each.weight, weights)
        return found
