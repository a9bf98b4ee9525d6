"""Weights of PyTorch's reference, where devices update theirs after each micro-batch.

PyTorch does one micro-batch after the other. The weights that the passes of a micro-batch see on
each device follow from the schedule alone: those after some of the updates before its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network import operators as ops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from fpgapipe.lowering.schedule.weight_versions import LateWeights
    from fpgapipe.network.graph import Graph

    Tensors = dict[str, torch.Tensor]


class WeightHistory:
    """The learned parameters after the latest updates of a mini-batch.

    Parameters
    ----------
    graph : Graph
    late : LateWeights
        The updates before each pass.
    learned : collection of str
        Names of the learned parameters.
    """

    def __init__(self, graph: Graph, late: LateWeights, learned: Collection[str]) -> None:
        stage_of = {name: at for at, layers in enumerate(late.stages) for name in layers}
        self._late = late
        self._stages: dict[str, int] = {}
        self._kept: set[str] = set()
        for layer in graph.layers.values():
            for parameter in layer.parameters:
                if parameter.name in learned:
                    self._stages.setdefault(parameter.name, stage_of[layer.name])
                    if isinstance(layer.operator, ops.BatchNorm):
                        self._kept.add(parameter.name)
        self._versions: list[Tensors] = []
        self._first = 0

    def begin(self, state: Mapping[str, torch.Tensor]) -> None:
        """Begin a mini-batch with these parameters."""
        self._versions, self._first = [], 0
        self.add(state)

    def add(self, state: Mapping[str, torch.Tensor]) -> None:
        """Keep the parameters after an update; those that no pass sees any more are dropped."""
        self._versions.append({name: state[name].clone() for name in self._stages})
        while len(self._versions) > self._late.most_late + 1:
            del self._versions[0]
            self._first += 1

    def forward(self, microbatch: int) -> Tensors:
        """The parameters that the forward pass of a micro-batch sees."""
        return self._seen(self._late.forward, microbatch)

    def backward(self, microbatch: int) -> Tensors:
        """The parameters that its backward pass sees.

        Of batch normalisation, a device keeps the scale of the forward pass, already divided by the
        deviation.
        """
        kept = self.forward(microbatch)
        found = self._seen(self._late.backward, microbatch)
        return found | {name: kept[name] for name in self._kept}

    def _seen(self, table: NDArray[np.int64], microbatch: int) -> Tensors:
        return {
            name: self._versions[int(table[stage, microbatch]) - self._first][name]
            for name, stage in self._stages.items()
        }
