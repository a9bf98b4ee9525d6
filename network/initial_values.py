"""Initial values of a network's parameters, and random inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import CROSS_ENTROPY, target_shape
from fpgapipe.network.mask_inputs import mask_inputs
from fpgapipe.network.operators import Embedding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.network.graph import Graph
    from fpgapipe.network.losses import Loss


def initial_parameters(graph: Graph, seed: int) -> dict[str, NDArray[np.float32]]:
    """Initial parameter values, uniform within 1/sqrt(fan in) as PyTorch's layers draw them.

    The weights of a layer whose result only ReLUs read are larger by a factor of sqrt(6). With
    that, the activations keep their variance from layer to layer, and even a short training leaves
    the first plateau. Normalisations begin with a scale and variance of 1, and a shift and mean of
    0.

    Source: K. He et al., "Delving Deep into Rectifiers", ICCV 2015.
    """
    rng = np.random.default_rng(seed)
    rectified = _rectified(graph)
    found: dict[str, NDArray[np.float32]] = {}
    for layer in graph.layers.values():
        fan_in = 1
        for parameter in layer.parameters:
            role, shape = parameter.spec.role, parameter.spec.shape
            if len(shape) > 1:
                fan_in = math.prod(shape[1:])
            if layer.op in ("batch_norm", "layer_norm"):
                start = 1.0 if role in ("weight", "running_var") else 0.0
                found[parameter.name] = np.full(shape, start, np.float32)
            else:
                keeps = len(shape) > 1 and layer.name in rectified
                limit = math.sqrt((6 if keeps else 1) / fan_in)
                drawn = rng.uniform(-limit, limit, shape).astype(np.float32)
                found[parameter.name] = (
                    drawn.transpose(parameter.back) if parameter.order else drawn
                )
    return found


def _rectified(graph: Graph) -> set[str]:
    """Layers whose results only ReLUs read."""
    readers: dict[str, set[str]] = {name: {"output"} for name in graph.outputs}
    for layer in graph.layers.values():
        for name in layer.inputs:
            readers.setdefault(name, set()).add(layer.op)
    return {name for name, operators in readers.items() if operators == {"relu"}}


def num_indices(graph: Graph) -> dict[str, int]:
    """For each integer input that embeddings read, the number of its values, which begin at 0."""
    found: dict[str, int] = {}
    for layer in graph.layers.values():
        for name in layer.inputs:
            if isinstance(layer.operator, Embedding) and name in graph.inputs:
                rows = layer.operator.num_embeddings
                found[name] = min(found.get(name, rows), rows)
    return found


def random_batch(
    graph: Graph, seed: int, count: int = 1, loss: Loss | None = None
) -> tuple[dict[str, NDArray[Any]], Any]:
    """Random samples and labels for `count` micro-batches.

    Inputs of floating-point numbers are normally distributed; indices of embeddings and labels are
    equally distributed over all that there are, and targets over 0..1. Masks keep the first
    positions, at least half of them. Of a network with several
    outputs, the labels are a dictionary with an array for each.
    """
    rng = np.random.default_rng(seed)
    indices, masks = num_indices(graph), mask_inputs(graph)
    inputs: dict[str, NDArray[Any]] = {}
    for name, tensor in graph.inputs.items():
        shape = (tensor.shape[0] * count, *tensor.shape[1:])
        if name in indices:
            inputs[name] = rng.integers(0, indices[name], shape)
        elif name in masks:
            inputs[name] = masks[name].random(shape, rng)
        else:
            inputs[name] = rng.standard_normal(shape, np.float32)
    labels = {
        output: _random_labels(graph, output, rng, count, has_classes=own.has_classes)
        for output, own in (loss or CROSS_ENTROPY).of_each(graph).items()
    }
    return inputs, labels if len(labels) > 1 else labels[graph.outputs[0]]


def _random_labels(
    graph: Graph, output: str, rng: np.random.Generator, count: int, *, has_classes: bool
) -> NDArray[Any]:
    """Random labels or targets of an output."""
    if not has_classes:
        samples, *rest = target_shape(graph, output)
        return rng.random((samples * count, *rest), np.float32)
    logits = Logits.of(graph, output)
    samples, *rest = logits.label_shape
    return rng.integers(0, logits.classes, (samples * count, *rest))
