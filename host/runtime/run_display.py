"""The display of a run's progress."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from fpgapipe.host.runtime.training import Watcher
from fpgapipe.host.terminal.console import count, scaled
from fpgapipe.host.terminal.progress import span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fpgapipe.host.terminal.progress import Display

logger = logging.getLogger(__name__)


class RunDisplay(Watcher):
    """Shows loss, accuracy, cycles of a mini-batch, and samples per second at the clock.

    Each validation is also logged, as one line.

    Parameters
    ----------
    display : Display
    clk_hz : float
        Clock frequency of the devices, Hz.
    expected_cycles : float
        Approximate cycles of a mini-batch; replaced by those of the last simulated one.
    """

    def __init__(self, display: Display, clk_hz: float, expected_cycles: float) -> None:
        self._display = display
        self._clk_hz = clk_hz
        self._expected = expected_cycles
        self._of_step = -1
        self._begin = 0, 0.0
        display.add_task("preparing the run", unit="mini-batches")
        self._text = ""
        self._validated = ""

    def cycles(self, step: int, cycles: int) -> None:
        """See `Watcher`."""
        now = time.monotonic()
        if self._of_step != step:
            self._of_step, self._begin = step, (cycles, now)
        text = f"step {step}: {count(cycles)} of about {count(max(self._expected, cycles))} cycles"
        rate = (cycles - self._begin[0]) / max(now - self._begin[1], 1e-9)
        if rate > 0:
            text += f" at {scaled(rate, 'cycles/s')}"
            if cycles < self._expected:
                text += f", its end in {span((self._expected - cycles) / rate)}"
        self._display.update(description="  ".join(filter(None, [text, self._text])))

    def step(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """See `Watcher`."""
        parts = [] if line["loss"] is None else [f"loss {line['loss']:.4f}"]
        if line["labels"]:
            parts.append(f"{line['correct'] / line['labels']:.0%} right")
        if line["cycles"]:
            self._expected = line["cycles"]
            parts.append(f"{count(line['cycles'])} cycles")
            rate = line["samples"] / line["cycles"] * self._clk_hz
            parts.append(f"{scaled(rate, 'samples/s')} at {scaled(self._clk_hz, 'Hz')}")
        self._text = "  ".join(parts)
        self._display.update(
            description="  ".join(filter(None, [self._text, self._validated])),
            completed=done,
            total=total,
        )

    def validation(self, line: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        found = line["validation"]
        if found["accuracy"] is None:
            return
        self._validated = f"validation {found['accuracy']:.1%}"
        logger.info(
            "epoch %d, step %d: %s (%s samples)",
            found["epoch"],
            found["step"],
            self._validated,
            count(found["samples"]),
        )
