"""Settings of a training, apart from network and data, and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fpgapipe.errors import UserError

RATE, BATCH, MAX_RATE = 0.01, 8, 0.1
"""The default learning rate is `RATE` for a batch of `BATCH` samples.

It grows with the square root of the batch, up to `MAX_RATE`.
"""

WARM_UP_STEPS = 100
"""Most mini-batches of the warm-up, in which the default rate is reached in equal steps."""

WARM_UP_SHARE = 10
"""The warm-up takes at most 1 / `WARM_UP_SHARE` of a training with a given number of epochs."""

MAX_NUMBER = float(np.finfo(np.float32).max)
"""Largest number of a setting; the hardware's registers hold FP32."""


def default_rate(batch: int) -> float:
    """Learning rate for a batch if none is given, rounded to two digits.

    The mean over a larger batch is less noisy, which allows larger steps; an epoch also has fewer
    of them.

    Source: A. Krizhevsky, "One Weird Trick for Parallelizing Convolutional Neural Networks",
    arXiv 1404.5997, 2014.
    """
    return float(f"{min(RATE * math.sqrt(batch / BATCH), MAX_RATE):.2g}")


@dataclass(frozen=True)
class Settings:
    """Settings of a training, apart from network and data.

    Exactly one of `epochs`, `steps` and `more` must be given.

    Attributes
    ----------
    epochs : int or None
        Passes through the samples; the learning rate falls to 0 along half a cosine.
    steps : int or None
        Number of mini-batches in all, at a constant learning rate.
    more : int or None
        Number of mini-batches after the checkpoint from which training continues, at a constant
        learning rate.
    seed : int
        Seed of the order of the samples and of dropout.
    learning_rate : float or None
        Learning rate of SGD with momentum; None stands for one that suits the batch, with a
        warm-up.
    momentum, weight_decay : float
        Momentum and weight decay of SGD with momentum.
    data : str
        Name of the samples, for the record.
    precision : str
        Precision of PyTorch if that is the backend; else empty.
    warm_up : int
        Number of mini-batches in which the learning rate rises to its full value.
    """

    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    learning_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 1e-4
    data: str = ""
    precision: str = ""
    warm_up: int = 0
    more: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs, self.steps, self.more).count(None) != 2:
            raise UserError("training needs either a number of epochs or one of steps")
        for name, least in (("epochs", 1), ("steps", 1), ("more", 1), ("seed", 0), ("warm_up", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"training {name} must be at least {least}, not {value}")
        for name in ("learning_rate", "momentum", "weight_decay"):
            value = getattr(self, name)
            if value is None and name == "learning_rate":
                continue
            if not (math.isfinite(value) and 0 <= value <= MAX_NUMBER):
                raise UserError(
                    f"training {name} must be a number of at least 0 and at most "
                    f"{MAX_NUMBER:.6g}, the largest in FP32, not {value}"
                )

    def for_batch(self, batch: int, steps_per_epoch: int) -> Settings:
        """These settings, with a learning rate that suits the batch if none was given."""
        if self.learning_rate is not None:
            return self
        warm_up = min(WARM_UP_STEPS, steps_per_epoch)
        if self.epochs is not None:
            warm_up = min(warm_up, self.epochs * steps_per_epoch // WARM_UP_SHARE)
        return replace(self, learning_rate=default_rate(batch), warm_up=warm_up)

    def going_on_from(self, step: int) -> Settings:
        """These settings, with `more` replaced by the number of steps in all after `step`."""
        return self if self.more is None else replace(self, steps=step + self.more, more=None)

    def num_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole training; if `more` is given, those after the checkpoint."""
        if self.epochs is not None:
            return self.epochs * steps_per_epoch
        found = self.more if self.steps is None else self.steps
        assert found is not None, "one of the three is given"
        return found

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """Learning rate of a step; it must have been chosen, by `for_batch` or by the user."""
        assert self.learning_rate is not None, "the rate has been chosen"
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        if self.epochs is None:
            return self.learning_rate
        done = (step - self.warm_up) / (self.epochs * steps_per_epoch - self.warm_up)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2

    @property
    def course(self) -> str:
        """Course of the learning rate after its warm-up, in words."""
        return "constant" if self.epochs is None else "half a cosine"

    def schedule(self) -> str:
        """Course of the learning rate with its warm-up, in words."""
        warm_up = f" after a warm-up of {self.warm_up} steps" if self.warm_up else ""
        return self.course + warm_up

    def decisive(self) -> dict[str, Any]:
        """Settings that the result of a step depends on, which a resumed run may not change.

        The number of steps, which is given with a constant learning rate, is none of them.
        """
        names = ["epochs", "seed", "learning_rate", "warm_up", "momentum", "weight_decay"]
        if self.precision:
            names.append("precision")
        return {name: getattr(self, name) for name in names}
