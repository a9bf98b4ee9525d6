"""Settings of a training, apart from network and data, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fpgapipe.errors import UserError, counted, shown
from fpgapipe.lowering.units.step_options import Optimiser

BATCH = 8
RATES: dict[Optimiser, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
"""Default learning rate of each optimiser for a batch of `BATCH` samples.

It grows with the square root of the batch, up to `MAX_GROWTH` times as much.
"""

MAX_GROWTH = 10.0

DECAYS: dict[Optimiser, float] = {"sgd": 1e-4, "adam": 0.0, "adamw": 0.01}
"""Default weight decay of each optimiser; those of Adam and AdamW are PyTorch's."""

RateSchedule = Literal["constant", "cosine", "step"]

RATE_SCHEDULES: tuple[RateSchedule, ...] = get_args(RateSchedule)

WARM_UP_STEPS = 100
"""Most mini-batches of the warm-up, in which the default rate is reached in equal steps."""

WARM_UP_SHARE = 10
"""The warm-up takes at most 1 / `WARM_UP_SHARE` of a training with a given number of epochs."""

MAX_NUMBER = float(np.finfo(np.float32).max)
"""Largest number of a setting; the hardware's registers hold FP32."""


def default_rate(batch: int, optimiser: Optimiser = "sgd") -> float:
    """Learning rate for a batch if none is given, rounded to two digits.

    The mean over a larger batch is less noisy, which allows larger steps; an epoch also has fewer
    of them.

    Source: A. Krizhevsky, "One Weird Trick for Parallelizing Convolutional Neural Networks",
    arXiv 1404.5997, 2014.
    """
    return float(f"{RATES[optimiser] * min(math.sqrt(batch / BATCH), MAX_GROWTH):.2g}")


COURSE = (
    "epochs",
    "steps",
    "learning_rate",
    "warm_up",
    "rate_schedule",
    "rate_every",
    "rate_factor",
    "momentum",
    "weight_decay",
    "clip_norm",
)
"""Settings that may be changed when a training that has reached its end is continued."""


@dataclass(frozen=True)
class Settings:
    """Settings of a training, apart from network and data.

    Exactly one of `epochs`, `steps` and `more` must be given.

    Attributes
    ----------
    epochs : int or None
        Passes through the samples; unless `rate_schedule` says otherwise, the learning rate falls
        to 0 along half a cosine.
    steps : int or None
        Number of mini-batches in all, at a constant learning rate unless `rate_schedule` says
        otherwise.
    more : int or None
        Number of mini-batches after the checkpoint from which training continues.
    seed : int
        Seed of the order of the samples and of dropout.
    learning_rate : float or None
        Full learning rate; None stands for one that suits optimiser and batch, with a warm-up.
    momentum : float
        Momentum of SGD.
    weight_decay : float or None
        Weight decay; None stands for the default of the optimiser.
    data : str
        Name of the samples, for the record.
    precision : str
        Precision of PyTorch if that is the backend; else empty.
    warm_up : int or None
        Number of mini-batches in which the learning rate rises to its full value, in equal steps;
        None stands for one that suits a learning rate that is chosen, or for none.
    optimiser : str
        Optimiser of the build, ``sgd``, ``adam`` or ``adamw``.
    betas : (float, float)
        Those of the build, for Adam and AdamW.
    clip_norm : float or None
        Largest norm of all gradients, if the build clips them.
    rate_schedule : str or None
        Course of the learning rate after its warm-up: ``constant``, ``cosine``, along half a cosine
        to 0 at the end of the training, or ``step``, multiplied by `rate_factor` every `rate_every`
        epochs. None stands for a cosine with a number of epochs, else for a constant rate.
    rate_every : int
    rate_factor : float
    model_steps : int or None
        Number of first mini-batches that the bit-exact model does, before a simulation goes on.
    patience : int or None
        Validations without a better accuracy after which the training ends.
    """

    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    learning_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float | None = None
    data: str = ""
    precision: str = ""
    warm_up: int | None = None
    more: int | None = None
    optimiser: Optimiser = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float | None = None
    rate_schedule: RateSchedule | None = None
    rate_every: int = 1
    rate_factor: float = 0.1
    model_steps: int | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs, self.steps, self.more).count(None) != 2:
            raise UserError("training needs either a number of epochs or one of steps")
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", DECAYS[self.optimiser])
        if self.rate_schedule not in (None, *RATE_SCHEDULES):
            raise UserError(
                f"training rate_schedule must be {', '.join(RATE_SCHEDULES)}, not "
                f"{self.rate_schedule!r}"
            )
        if self.rate_schedule == "cosine" and self.more is not None:
            raise UserError("a cosine ends with the training, which goes on for some steps more")
        if not 0 <= self.rate_factor <= 1:
            raise UserError(f"training rate_factor must be in 0..1, not {self.rate_factor}")
        for name, least in (
            ("epochs", 1), ("steps", 1), ("more", 1), ("seed", 0), ("warm_up", 0),
            ("rate_every", 1), ("patience", 1),
        ):  # fmt: skip
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
        warm_up = self.warm_up
        if warm_up is None:
            warm_up = min(WARM_UP_STEPS, steps_per_epoch)
            if self.epochs is not None:
                warm_up = min(warm_up, self.epochs * steps_per_epoch // WARM_UP_SHARE)
        rate = default_rate(batch, self.optimiser)
        return replace(self, learning_rate=rate, warm_up=warm_up)

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
        warm_up = self.warm_up or 0
        if step < warm_up:
            return self.learning_rate * (step + 1) / warm_up
        if self._falls == "cosine":
            done = (step - warm_up) / (self.num_steps(steps_per_epoch) - warm_up)
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        if self._falls == "step":
            falls = step // steps_per_epoch // self.rate_every
            return float(self.learning_rate * self.rate_factor**falls)
        return self.learning_rate

    @property
    def _falls(self) -> RateSchedule:
        """Course of the learning rate after its warm-up."""
        default: RateSchedule = "constant" if self.epochs is None else "cosine"
        return self.rate_schedule or default

    @property
    def course(self) -> str:
        """Course of the learning rate after its warm-up, in words."""
        if self._falls == "step":
            epochs = "epoch" if self.rate_every == 1 else f"{self.rate_every} epochs"
            return f"times {self.rate_factor:g} every {epochs}"
        return "constant" if self._falls == "constant" else "half a cosine"

    def schedule(self) -> str:
        """Course of the learning rate with its warm-up, in words."""
        warm_up = f" after a warm-up of {counted(self.warm_up, 'step')}" if self.warm_up else ""
        return self.course + warm_up

    def decisive(self) -> dict[str, Any]:
        """Settings that the result of a step depends on, which a resumed run may not change.

        The number of steps is one of them only if the learning rate falls to its end.
        """
        names = ["epochs", "seed", "learning_rate", "momentum", "weight_decay", "clip_norm"]
        if self.precision:
            names.append("precision")
        if self._falls == "step":
            names += ["rate_every", "rate_factor"]
        elif self._falls == "cosine" and self.epochs is None:
            names.append("steps")
        found = {name: getattr(self, name) for name in names}
        return found | {"warm_up": self.warm_up or 0, "rate_schedule": self._falls}


@dataclass(frozen=True)
class Change:
    """A setting that further steps depend on and that is not what it was.

    Attributes
    ----------
    name : str
    before, after : number, str or None
        Its values; of ``data``, digests of the samples.
    """

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        words = self.name.replace("_", " ")
        if self.name == "data":
            return "data (other samples)"
        return f"{words} (then {shown(self.before)}, now {self.after})".lower()

    def to_dict(self) -> dict[str, Any]:
        """The change as a line of a log has it."""
        return {"setting": self.name, "before": self.before, "after": self.after}


def changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The settings (`Settings.decisive`) that are not those of an earlier step."""
    return [
        Change(name, before, after)
        for name, after in now.items()
        if (before := then.get(name, after)) != after
    ]
