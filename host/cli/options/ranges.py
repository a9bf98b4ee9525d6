"""Ranges of numeric options: each has a least and a largest value.

Beyond its range, an option would let a command run for days, take all memory, or overflow.
tests/host/test_ranges.py tries the limits of all options.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import click


class Whole(click.IntRange):
    """Whole numbers from a least to a largest one, both included."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number; the error for a very long text does not repeat the text."""
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            self.fail(f"a number of {len(value):,} characters is too long", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Real(click.FloatRange):
    """Finite numbers from a least to a largest one; `below` excludes the largest one itself."""

    def __init__(self, least: float, most: float, *, below: bool = False) -> None:
        super().__init__(least, most, max_open=below)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number; NaN is refused, since no comparison with the limits would refuse it."""
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            self.fail(f"a number of {len(value):,} characters is too long", param, ctx)
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class Duration(Real):
    """Durations in seconds, minutes or hours: ``90``, ``90s``, ``10m``, ``1.5h``; gives seconds."""

    name = "duration"
    _units: ClassVar = {"s": 1.0, "m": 60.0, "h": 3600.0}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number with a unit, or one of seconds."""
        unit = value[-1:] if isinstance(value, str) else ""
        if unit not in self._units or not value[:-1].rstrip()[-1:].isdigit():
            return super().convert(value, param, ctx)
        number = super().convert(value[:-1].rstrip(), param, ctx)
        return super().convert(number * self._units[unit], param, ctx)


MOST_CHARACTERS = 400
"""Most characters of a number in an option; no number within its range needs more."""

SAMPLES = Whole(1, 1 << 24)
"""Samples of a mini-batch that is planned or built."""

SAMPLES_SHOWN = Whole(1, 1 << 53)
"""Samples of a batch whose shapes are only shown."""

SAMPLES_SIMULATED = Whole(1, 1 << 16)
MICROBATCHES = Whole(1, 1 << 16)
DEVICE = Whole(0, 4095)
"""Number of a device."""

DEVICES = Whole(1, 4096)
"""Devices of a chain of equal boards; a cluster file may have at most as many."""

NODES = Whole(1, 31)
"""Nodes of a board."""

AUTO = "auto"
"""Word for a number that is to be searched."""


class NumberOrAuto(click.ParamType):  # type: ignore[type-arg]
    """A number of a range, or ``auto``."""

    name = "number or auto"

    def __init__(self, numbers: Whole) -> None:
        self.numbers = numbers

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Read the word or a number."""
        return AUTO if value == AUTO else self.numbers.convert(value, param, ctx)


STAGES = Whole(1, 4096)
"""Stages of a schedule that is drawn."""

CHUNKS = Whole(1, 1024)
KEPT = Whole(1, 1 << 24)
"""Micro-batches whose activations a device keeps, or results that a link holds."""

SECONDS = Real(0, 1e9)
BUDGET = Duration(0, 1e8)
"""Wall time after which a run stops."""

BYTES_PER_S = Real(0, 1e15)
SAMPLES_PER_S = Real(1e-6, 1e9)
"""Rate of training that is asked for."""

STEPS = Whole(1, 10**9)
EPOCHS = Whole(1, 10**6)
WARM_UP = Whole(0, 10**9)
SEED = Whole(0, (1 << 63) - 1)
TOKENS = Whole(1, 1 << 20)
"""Tokens that a network chooses, one behind the other."""

TEMPERATURE = Real(1e-6, 1e6)
TOP_K = Whole(1, 1 << 24)
LEARNING_RATE = Real(0, 1e6)
MOMENTUM = Real(0, 1)
WEIGHT_DECAY = Real(0, 1e3)
BETA = Real(0, 1, below=True)
EPSILON = Real(1e-12, 1)
"""Number that keeps a division from one by 0."""

NORM = Real(1e-12, 1e12)
"""Largest norm of all gradients."""

SHARE = Real(0, 1)
SMOOTHING = Real(0, 1, below=True)
PERCENTILE = Real(90, 100)
"""Percentage of a tensor's elements that INT8 represents without saturation."""

PROCESSES = Whole(1, 64)
"""Processes that measure at the same time."""

THREADS = Whole(1, 256)
ERROR_RATE = Real(0, 1, below=True)
WATCH = Real(0, 3600)
"""Seconds for which a link is watched."""
