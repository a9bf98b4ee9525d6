"""Cases, and short functions with which they are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

IMAGE = (4, 3, 8, 8)
"""Shape of the input that most cases take: samples, channels, height, width."""

CLASSES = 5


class Net(nn.Module):
    """A module whose forward pass is a function of itself and its inputs.

    Parameters
    ----------
    run : callable
        Function of the module and the inputs.
    **parts
        Submodules, parameters and buffers (plain tensors), by name.
    """

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the function."""
        return self.run(self, *inputs)


@dataclass(frozen=True)
class Case:
    """A module and the shapes of its inputs.

    Attributes
    ----------
    make : callable
        Function that makes the module; random numbers are seeded before it is called.
    shapes : tuple of shape
        Shape of each input; the first axis is the batch.
    random : bool
        Whether the source draws random numbers in training, so that only its evaluation can be
        compared.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...] = (IMAGE,)
    random: bool = False


def net(
    run: Callable[..., Any], shape: tuple[int, ...] = IMAGE, **parts: Callable[[], Any]
) -> Case:
    """Describe a `Net` of one input; each module gets new `parts`."""
    return Case(
        lambda: Net(run, **{name: make() for name, make in parts.items()}),
        (shape,),
    )


def conv(cin: int = 3, cout: int = 8, size: int = 3, **options: Any) -> Callable[[], nn.Conv2d]:
    """Return a maker of a convolution that keeps height and width by default."""
    options.setdefault("padding", size // 2)
    return lambda: nn.Conv2d(cin, cout, size, **options)


def linear(cin: int, cout: int = CLASSES, **options: Any) -> Callable[[], nn.Linear]:
    """Return a maker of a linear layer."""
    return lambda: nn.Linear(cin, cout, **options)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    """Return a maker of a learned tensor of normally distributed values."""
    return lambda: nn.Parameter(torch.randn(shape) * 0.3)


def buffer(*shape: int) -> Callable[[], torch.Tensor]:
    """Return a maker of a tensor that is not learned."""
    return lambda: torch.randn(shape)
