"""The progress of a run on a terminal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fpgapipe.host.console import count, scaled
from fpgapipe.host.training import Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import Progress

logger = logging.getLogger(__name__)


class RunDisplay(Watcher):
    """A bar with loss, accuracy, cycles of a mini-batch and samples a second at the clock.

    Where there is no terminal for it, validations alone are written, a line each.

    Parameters
    ----------
    display : Progress
    clk_hz : float
        Of the devices.
    """

    def __init__(self, display: Progress, clk_hz: float) -> None:
        self._display = display
        self._clk_hz = clk_hz
        self._task = display.add_task("starting", total=None)
        self._text = ""
        self._validated = ""

    def cycles(self, step: int, cycles: int) -> None:
        """See `Watcher`."""
        text = f"step {step}: {count(cycles)} cycles so far"
        self._display.update(self._task, description="  ".join(filter(None, [text, self._text])))

    def step(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """See `Watcher`."""
        parts = [] if line["loss"] is None else [f"loss {line['loss']:.4f}"]
        parts.append(f"{line['correct'] / line['samples']:.0%} right")
        if line["cycles"]:
            parts.append(f"{count(line['cycles'])} cycles")
            rate = line["samples"] / line["cycles"] * self._clk_hz
            parts.append(f"{scaled(rate, 'samples/s')} at {scaled(self._clk_hz, 'Hz')}")
        self._text = "  ".join(parts)
        self._display.update(
            self._task,
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
