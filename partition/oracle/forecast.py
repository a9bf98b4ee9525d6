"""Answer of the oracle for a strategy on a number of devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fpgapipe.errors import UserError, counted

SMALL = 0.05
"""Share of the time below which a loss does not limit a strategy."""


@dataclass(frozen=True)
class Forecast:
    """Time and memory of a strategy on a number of devices; names are those of the JSON.

    Attributes
    ----------
    name : str
    devices : int
    compute_s, communication_s : float
        Seconds of an epoch, or of a mini-batch if nothing is known of an epoch. Communication is
        what computing does not hide.
    memory_bytes : float
        Bytes of the fullest device.
    max_devices : int or None
        Most devices that the strategy can use; None if that does not follow from what is known.
    limiter : str
        What limits the strategy, and by how much.
    batch : int or None
        Samples of a mini-batch, all devices together.
    level : str
        ``closed form`` for formulas of the paper, ``machine`` for a plan whose programs are timed,
        ``estimate`` for formulas of the machine.
    minibatch_s, epoch_s : float or None
        Seconds of a mini-batch and of an epoch, computing and communication; None if unknown.
    efficiency : float or None
        Share of the speed that as many devices would have if nothing were lost.
    """

    name: str
    devices: int
    compute_s: float
    communication_s: float
    memory_bytes: float
    max_devices: int | None
    limiter: str
    batch: int | None = None
    level: str = "closed form"
    minibatch_s: float | None = None
    epoch_s: float | None = None
    efficiency: float | None = None

    def of_epoch(self, samples: int) -> Forecast:
        """The forecast of a mini-batch as that of an epoch of some samples.

        The last mini-batch of an epoch takes as long as the others.
        """
        assert self.batch is not None
        steps = math.ceil(samples / self.batch)
        return replace(
            self,
            compute_s=steps * self.compute_s,
            communication_s=steps * self.communication_s,
            epoch_s=steps * (self.compute_s + self.communication_s),
        )

    @property
    def samples_per_s(self) -> float:
        """Speed; 0 if the batch or its time is unknown."""
        return self.batch / self.minibatch_s if self.batch and self.minibatch_s else 0.0

    @property
    def sentence(self) -> str:
        """Limit of the strategy, as a sentence."""
        most = f", at most {self.max_devices:,}" if self.max_devices is not None else ""
        speed = ""
        if self.efficiency is not None:
            speed = f"{self.efficiency:.0%} of the speed of as many devices without losses; "
        number = "1 device" if self.devices == 1 else f"{self.devices:,} devices"
        return f"{self.name} on {number}{most}: {speed}limited by {self.limiter}."


@dataclass(frozen=True)
class Loss:
    """Seconds that a strategy loses.

    Attributes
    ----------
    words : str
        What takes them.
    seconds : float
    """

    words: str
    seconds: float


def limiter_of(losses: list[Loss], whole_s: float) -> str:
    """Name the largest loss and its share of the time; without a large one, the devices limit."""
    worst = max(losses, key=lambda each: each.seconds)
    share = worst.seconds / whole_s if whole_s > 0 else 0.0
    if share < SMALL:
        return "number of devices"
    return f"{worst.words}: {share:.1%} of the time"


def check_most(name: str, devices: int, most: int, what: str, of: str = "device") -> None:
    """Refuse more devices, or groups of them, than a strategy can use.

    Raises
    ------
    UserError
        If there are more.
    """
    if devices > most:
        raise UserError(f"{name} has at most {counted(most, of)}, one for each of its {what}")
