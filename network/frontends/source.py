"""The source of an imported graph, which is kept so that the import can be verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TorchSource:
    """A PyTorch module.

    Attributes
    ----------
    module : torch.nn.Module
        The module.
    inputs : tuple
        Example inputs with which the module was exported.
    fixed_training : bool or None
        For a program that was exported already, whose mode can no longer be changed: whether it
        computes as in training. None for other modules.
    outputs : tuple of str
        Names of the layers that give the module's results.
    unread_dropouts : tuple of str
        Dropouts whose results nobody reads. The network does not have them, but the module draws
        random numbers for them, so that its others drop other values.
    """

    module: Any
    inputs: tuple[Any, ...]
    fixed_training: bool | None
    outputs: tuple[str, ...]
    unread_dropouts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a parameter's values lie in a tensor of the model, so that others can be put there.

    Attributes
    ----------
    tensor : str
        The tensor's name.
    first_byte : int
        Where they begin in the tensor's memory.
    shape, strides : tuple of int
        Shape of the part of the tensor, and bytes from one index to the next along each axis.
    order : tuple of int
        Axis `i` of the part is axis ``order[i]`` of the parameter; empty if they are the same.
    back : callable or None
        Makes values of the part of the parameter's; None if they are equal.
    """

    tensor: str
    first_byte: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    back: Callable[[NDArray[Any]], NDArray[Any]] | None


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model.

    Attributes
    ----------
    path : Path
        File of the model.
    outputs : tuple of str
        Names of the layers that give the model's results.
    places : mapping of str to Place
        Where the values of parameters lie in the model's tensors.
    """

    path: Path
    outputs: tuple[str, ...]
    places: Mapping[str, Place] = field(default_factory=dict)
