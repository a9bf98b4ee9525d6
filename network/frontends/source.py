"""What a graph was imported from, kept with it so that the import can be verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TorchSource:
    """A PyTorch module.

    Attributes
    ----------
    module : torch.nn.Module
    inputs : tuple
        What it was exported with.
    fixed_training : bool or None
        Whether the module computes as in training, if it cannot be told to do otherwise: a program
        that was exported already.
    outputs : tuple of str
        For each of its results, the layer.
    orders : mapping of str to tuple of int
        Parameters that the network has with their axes in another order: axis `i` of the network's
        is axis ``order[i]`` of the module's.
    """

    module: Any
    inputs: tuple[Any, ...]
    fixed_training: bool | None
    outputs: tuple[str, ...]
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model.

    Attributes
    ----------
    path : Path
    outputs : tuple of str
        For each of its results, the layer.
    """

    path: Path
    outputs: tuple[str, ...]
