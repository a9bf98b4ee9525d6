"""A network side by side with what it was imported from, in one precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.host.backends.torch_reference import forward
from fpgapipe.network import operators as ops
from fpgapipe.network.graph import Graph
from fpgapipe.network.mask_inputs import mask_inputs
from fpgapipe.network.verification import EVALUATION, TOLERANCES, TRAINING, Verification

if TYPE_CHECKING:
    import torch


class NotRunError(Exception):
    """One of the two sides cannot compute in this precision."""


class Side(ABC):
    """A network and its source, compared in one precision."""

    name: str

    def __init__(self, torch: Any, graph: Graph, source: Any, precision: str) -> None:
        self.torch = torch
        self.graph = graph
        self.source = source
        self.precision = precision
        self.dtype = getattr(torch, precision)
        self.weights: dict[str, torch.Tensor] = {}
        self.errors: dict[str, dict[str, float]] = {}

    @abstractmethod
    def run(self, batches: int, modes: Sequence[str]) -> Verification:
        """Compare some batches in each mode."""

    def learned(self) -> dict[str, Any]:
        """Specs of the network's learned parameters, by name."""
        return {
            p.name: p.spec
            for layer in self.graph.layers.values()
            for p in layer.parameters
            if p.spec.trainable
        }

    def inputs(self, index: int) -> dict[str, Any]:
        """Random inputs by name; integers are in the range that the layers reading them accept."""
        torch = self.torch
        generator = torch.Generator().manual_seed(index)
        given = {}
        masks = mask_inputs(self.graph)
        for position, (name, tensor) in enumerate(self.graph.inputs.items()):
            if tensor.dtype.is_float:
                value = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                if value.ndim:
                    # Every other sample is larger, so that it reaches bounds such as that of ReLU6.
                    sizes = 1 + 3 * ((torch.arange(len(value)) + index) % 2)
                    value *= sizes.reshape(-1, *[1] * (value.ndim - 1))
                given[name] = value.to(self.dtype)
                continue
            most, example = self._most(name), self.example(position)
            if most is None and example is not None and name not in masks:
                order = torch.randperm(example.numel(), generator=generator)
                value = example.reshape(-1)[order].reshape(example.shape)
            elif name in masks:
                drawn = masks[name].random(tensor.shape, np.random.default_rng(index))
                value = torch.from_numpy(drawn)
            else:
                value = torch.randint(0, most or 2, tensor.shape, generator=generator)
            given[name] = value.to(getattr(torch, tensor.dtype.value))
        return given

    def _most(self, name: str) -> int | None:
        """Number of values that an integer input may have; None if no layer that reads it says."""
        found = []
        for layer in self.graph.layers.values():
            if name in layer.inputs and isinstance(layer.operator, ops.Embedding):
                found.append(layer.operator.num_embeddings)
            if name in layer.inputs[1:] and isinstance(layer.operator, ops.CrossEntropy):
                found.append(layer.input_tensors[0].shape[1])
        return min(found, default=None)

    def example(self, position: int) -> Any | None:
        """The input with which the source was exported; None if there is none."""
        return None

    def computed(self, weights: Mapping[str, Any], given: Mapping[str, Any], training: bool) -> Any:
        """Results of all layers of the network."""
        try:
            return forward(self.graph, weights, given, training=training)
        except NotImplementedError as error:
            raise NotRunError(str(error)) from None
        except (RuntimeError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise NotRunError(f"the network does not run in {self.precision}: {text}") from None

    def held(self, kind: str, name: str, found: Any, expected: Any, least: float = 0.0) -> None:
        """Record the difference of two tensors, relative to the larger of the norm and `least`."""
        each = self.errors.setdefault(kind, {})
        if tuple(found.shape) != tuple(expected.shape):
            each[name] = float("inf")
            return
        found, expected = found.detach().double(), expected.detach().double()
        # An infinity, as masks have them, is no difference if it is on both sides.
        infinite = (found == expected) & expected.isinf()
        found, expected = found.masked_fill(infinite, 0), expected.masked_fill(infinite, 0)
        norm = max(float(expected.norm()), least, 1e-30)
        error = float((found - expected).norm()) / norm
        if self.torch.equal(found.isnan(), expected.isnan()) and error != error:
            raise NotRunError("the results are no numbers on both sides")
        each[name] = max(each.get(name, 0.0), error if error == error else float("inf"))

    def result(self, batches: int, **more: Any) -> Verification:
        """Make the verification from the recorded differences."""
        limit = TOLERANCES[self.precision]
        words = {
            EVALUATION: "the result {} in evaluation",
            TRAINING: "the result {} in training",
            "gradients": "the gradient of {}",
            "statistics": "the statistics {} after a step",
        }
        wrong = [
            f"{words[kind].format(repr(name))} is off by {error:.2g}"
            for kind, each in self.errors.items()
            for name, error in each.items()
            if not error <= limit
        ]
        wrong = more.pop("faults", []) + wrong
        hidden = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        return Verification(
            not wrong,
            self.name,
            "; ".join(wrong[:5]) + hidden,
            self.precision,
            batches,
            self.graph.batch,
            self.errors,
            self.graph.totals.parameters,
            **more,
        )
