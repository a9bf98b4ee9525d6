"""A training step in PyTorch, which a core's is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.partition.graph import Graph

    Values = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Reference:
    """A step in PyTorch, FP32.

    Attributes
    ----------
    loss : float
    logits : array
    gradients : dict of str to array
        By parameter.
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
    """Forward and backward pass of a step in PyTorch.

    Parameters
    ----------
    graph, parameters, inputs, labels
    factors : mapping, optional
        What dropout layers multiply by.
    """
    torch = require("torch", "comparing with PyTorch")
    learned = {
        p.name: p.spec.trainable for layer in graph.layers.values() for p in layer.parameters
    }
    weights = {
        name: torch.tensor(value, requires_grad=learned[name]) for name, value in parameters.items()
    }
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    drops = {name: torch.tensor(value) for name, value in (factors or {}).items()}
    results = forward(graph, weights, given, training=True, factors=drops)
    logits = results[graph.outputs[0]]
    loss = torch.nn.functional.cross_entropy(logits, torch.as_tensor(labels))
    loss.backward()
    gradients = {name: weights[name].grad.numpy() for name, trains in learned.items() if trains}
    return Reference(float(loss.detach()), logits.detach().numpy(), gradients)
