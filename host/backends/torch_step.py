"""A training step in PyTorch, with which a core's step is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.torch_reference import gradients_of
from fpgapipe.network.logits import Logits
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
    labels: Any,
    factors: Values | None = None,
) -> Reference:
    """Compute forward and backward pass of a step in PyTorch.

    Parameters
    ----------
    graph, parameters, inputs, labels
    factors : mapping, optional
        Factors by which the dropout layers multiply their inputs, by layer.
    """
    require("torch", "comparing with PyTorch")
    import torch

    weights = {name: torch.tensor(value) for name, value in parameters.items()}
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    drops = {name: torch.tensor(value) for name, value in (factors or {}).items()}
    seen: list[torch.Tensor] = []

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        rows = Logits(tuple(logits.shape)).classes_second(logits)
        loss = torch.nn.functional.cross_entropy(rows, torch.as_tensor(labels))
        seen.extend((loss.detach(), logits.detach()))
        return loss

    found = gradients_of(graph, weights, given, drops, loss_of)
    loss, logits = seen
    return Reference(
        float(loss), logits.numpy(), {name: value.numpy() for name, value in found.items()}
    )
