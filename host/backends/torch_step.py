"""A training step in PyTorch, with which a core's step is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.torch_loss import loss_of
from fpgapipe.host.backends.torch_reference import gradients_of
from fpgapipe.network.losses import Loss, labels_of
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Reference:
    """Result of a step in PyTorch, in FP32.

    Attributes
    ----------
    loss : float
    logits : array
        What the first output gives.
    gradients : dict of str to array
        Gradient of each parameter.
    """

    loss: float
    logits: NDArray[np.float32]
    gradients: dict[str, NDArray[np.float32]]


def torch_step(
    graph: Graph,
    parameters: Values,
    inputs: Values,
    labels: Any,  # an array, or one for each output by its name
    factors: Values | None = None,
    loss: Loss | None = None,
) -> Reference:
    """Compute forward and backward pass of a step in PyTorch.

    Parameters
    ----------
    graph, parameters, inputs, labels
    factors : mapping, optional
        Factors by which the dropout layers multiply their inputs, by layer.
    loss : Loss, optional
        Softmax with cross-entropy if not given.
    """
    require("torch", "comparing with PyTorch")
    import torch

    weights = {name: torch.tensor(value) for name, value in parameters.items()}
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    drops = {name: torch.tensor(value) for name, value in (factors or {}).items()}
    seen: list[torch.Tensor] = []

    def value_of(*outputs: torch.Tensor) -> torch.Tensor:
        value = torch.zeros(())
        losses = (loss or Loss()).of_each(graph)
        for (name, own), result in zip(losses.items(), outputs, strict=True):
            value = value + own.weight * loss_of(
                own, result, torch.as_tensor(labels_of(labels, name))
            )
        seen.extend((value.detach(), outputs[0].detach()))
        return value

    found = gradients_of(graph, weights, given, drops, value_of)
    value, logits = seen
    return Reference(
        float(value), logits.numpy(), {name: value.numpy() for name, value in found.items()}
    )
